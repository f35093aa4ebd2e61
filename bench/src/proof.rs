//! Proof that writes are synced: `strace` counts the syncs of a side.
//!
//! With at most `n` writes in flight, one sync covers at most `n` of them. A server that has
//! answered `w` writes, each synced before its response, has therefore synced at least `w / n`
//! times. `strace` counts in a separate run, because it slows everything down.

use crate::BenchResult;
use crate::measure::BenchLoad;
use crate::servers::CpuLayout;
use crate::side::ComparedSide;
use crate::tools::Tool;
use lab::process::ServerProcess;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// System calls that make a file durable.
const SYNCS: &str = "fsync,fdatasync,sync_file_range,msync";
const SECONDS: f64 = 1.0;
/// Timeout of attaching strace to all threads of the servers.
const ATTACHED_WITHIN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// Counts the syncs of a side during writes. Returns the result as a sentence.
pub(crate) fn count_syncs(
    strace: &Tool,
    side: &ComparedSide,
    layout: CpuLayout,
    load: &BenchLoad,
    scratch: &Path,
) -> BenchResult<String> {
    let table = scratch.join("strace");
    let trace = Trace::attach(strace, &side.servers, &table)?;
    let sample = side.measure(layout, SECONDS, std::slice::from_ref(load))?;
    trace.end()?;
    let syncs = syncs_in(&fs::read_to_string(&table)?);
    let needed = sample.answers * u64::from(side.synced_copies) / load.connections as u64;
    let counted = format!("under strace {} writes were answered and {syncs} syncs made", sample.answers);
    if syncs < needed {
        return Err(format!("{}: {counted}; had each been synced, there were {needed}", side.name).into());
    }
    Ok(counted)
}

/// A running strace.
struct Trace(Child);

impl Trace {
    fn attach(strace: &Tool, servers: &[ServerProcess], table: &Path) -> BenchResult<Self> {
        let mut command = Command::new(&strace.path);
        command.args(["-f", "-q", "-c", "-U", "calls,name", "-e"]).arg(format!("trace={SYNCS}"));
        command.arg("-o").arg(table);
        command.args(servers.iter().map(|server| format!("-p{}", server.pid())));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut trace = Self(child);
        let begun = Instant::now();
        while !servers.iter().all(|server| is_traced(server.pid())) {
            if trace.0.try_wait()?.is_some() || begun.elapsed() > ATTACHED_WITHIN {
                return Err("strace cannot trace: it needs ptrace of other processes".into());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(trace)
    }

    /// Detaches from the servers. The table is complete afterwards.
    fn end(mut self) -> BenchResult<()> {
        kill_process(Pid::from_child(&self.0), Signal::INT)?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Both calls fail only for a process that was already reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether every thread of a process is traced.
fn is_traced(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.flatten().all(|task| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        !status.contains("TracerPid:\t0\n")
    })
}

/// Sums the calls in a table of `strace -c -U calls,name`.
fn syncs_in(table: &str) -> u64 {
    let calls = |line: &str| {
        let (calls, name) = line.trim().split_once(char::is_whitespace)?;
        SYNCS.split(',').any(|sync| sync == name.trim()).then(|| calls.parse::<u64>().ok())?
    };
    table.lines().filter_map(calls).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_of_all_kinds_are_added_up() {
        let table = "    calls syscall\n--------- ----------------\n     1200 fdatasync\n       34 fsync\n--------- \
                     ----------------\n     1234 total\n";
        assert_eq!(syncs_in(table), 1_234);
        assert_eq!(syncs_in(""), 0);
    }
}
