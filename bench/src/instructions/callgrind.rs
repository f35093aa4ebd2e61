//! A server process under callgrind.

use crate::BenchResult;
use crate::servers::{CpuLayout, NodeSpec, WorkDir};
use lab::process::ServerProcess;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use std::cell::Cell;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// Operation of `prctl(2)` that returns the auxiliary vector of the process.
const PR_GET_AUXV: u64 = 0x4155_5856;

/// A server under callgrind.
pub(super) struct CountedProcess {
    server: ServerProcess,
    name: String,
    /// Path of the counts, without the number of the dump.
    counts: PathBuf,
    /// Number of dumps so far.
    dumps: Cell<u32>,
}

impl CountedProcess {
    /// Starts `program` as the node `spec`, without waiting for it.
    pub(super) fn spawn(
        work_dir: &WorkDir,
        program: &Path,
        spec: &NodeSpec,
        layout: CpuLayout,
    ) -> BenchResult<Self> {
        let counts = work_dir.dir().join(format!("{}.callgrind", spec.name));
        let mut args = vec!["--tool=callgrind".to_owned(), "--fair-sched=yes".to_owned()];
        args.push(format!("--callgrind-out-file={}", counts.display()));
        args.push(program.display().to_string());
        args.extend_from_slice(&spec.args);
        let spawn = || {
            hide_auxiliary_vector()?;
            let spawned = work_dir.spawn(&spec.name, Path::new("valgrind"), &args, layout, spec.address);
            spawned.map_err(|error| format!("{error} (valgrind is a package of most distributions)"))
        };
        // A filter of system calls holds for the thread that installs it and for its children.
        let server = thread::scope(|scope| scope.spawn(spawn).join().expect("the thread does not panic"))?;
        Ok(Self { server, name: spec.name.clone(), counts, dumps: Cell::new(0) })
    }

    /// Waits until `is_ready` returns `true`.
    pub(super) fn ready(
        self,
        work_dir: &WorkDir,
        is_ready: impl Fn(SocketAddr) -> bool,
    ) -> BenchResult<Self> {
        let server = work_dir.wait_for_other(self.server, &self.name, is_ready)?;
        Ok(Self { server, ..self })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Instructions since the last call, or since the start.
    pub(super) fn take(&self) -> BenchResult<u64> {
        let pid = self.server.pid().to_string();
        let output = Command::new("callgrind_control").args(["--dump", &pid]).output()?;
        if !output.status.success() {
            return Err(format!("callgrind_control: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        self.dumps.set(self.dumps.get() + 1);
        let path = self.counts.with_added_extension(self.dumps.get().to_string());
        let dump = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let total = dump.lines().find_map(|line| line.strip_prefix("totals:")?.trim().parse().ok());
        total.ok_or_else(|| format!("{} has no totals", path.display()).into())
    }
}

/// Makes `prctl(PR_GET_AUXV)` fail in this thread and its children. valgrind hides the vDSO from a
/// program, but passes this call on to the kernel. A program that finds the vDSO by it, and calls
/// it, ends under valgrind.
fn hide_auxiliary_vector() -> Result<(), String> {
    let filter = || -> BenchResult<()> {
        let is_get_auxv = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, PR_GET_AUXV)?;
        let rules = [(libc::SYS_prctl, vec![SeccompRule::new(vec![is_get_auxv])?])];
        let filter = SeccompFilter::new(
            rules.into_iter().collect(),
            SeccompAction::Allow,
            SeccompAction::Errno(libc::EINVAL as u32),
            std::env::consts::ARCH.try_into()?,
        )?;
        let program: BpfProgram = filter.try_into()?;
        apply_filter(&program)?;
        Ok(())
    };
    filter().map_err(|error| format!("system calls cannot be filtered: {error}"))
}
