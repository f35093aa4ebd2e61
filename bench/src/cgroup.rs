//! Control groups: a limit of memory, page cache included, or of processor time.
//!
//! Uses cgroup version 2 if it has the controller, else version 1. Requires the right to create
//! groups, as root has. Pages are charged to the group that reads them first: pages that another
//! group left in the page cache are not charged here. Callers that compare servers drop the page
//! cache before.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ROOT: &str = "/sys/fs/cgroup";
const PROCESSES: &str = "cgroup.procs";
/// Shell script that joins the group whose list of processes is `$0`, then executes the program in
/// `$@`.
const JOIN_AND_EXEC: &str = r#"echo $$ > "$0" && exec "$@""#;

/// A control group with a limit. It is removed when this is dropped; its processes must have ended
/// by then.
#[derive(Debug)]
pub struct ControlGroup {
    dir: PathBuf,
}

impl ControlGroup {
    /// Creates a group that limits the memory of its processes to `bytes` bytes together. `name`
    /// distinguishes it from other groups of this process.
    ///
    /// # Errors
    /// The group cannot be created.
    pub fn with_memory(name: &str, bytes: u64) -> io::Result<Self> {
        if has_version_2("memory") {
            Self::create(ROOT.as_ref(), name, &[("memory.max", bytes.to_string())])
        } else {
            let root = Path::new(ROOT).join("memory");
            Self::create(&root, name, &[("memory.limit_in_bytes", bytes.to_string())])
        }
    }

    /// Creates a group whose processes together run for at most `quota` in each `period`.
    ///
    /// # Errors
    /// As [`ControlGroup::with_memory`].
    pub fn with_processor_time(name: &str, quota: Duration, period: Duration) -> io::Result<Self> {
        let [quota, period] = [quota, period].map(|time| time.as_micros());
        if has_version_2("cpu") {
            Self::create(ROOT.as_ref(), name, &[("cpu.max", format!("{quota} {period}"))])
        } else {
            let limits = [("cpu.cfs_period_us", period.to_string()), ("cpu.cfs_quota_us", quota.to_string())];
            Self::create(&Path::new(ROOT).join("cpu"), name, &limits)
        }
    }

    fn create(root: &Path, name: &str, limits: &[(&str, String)]) -> io::Result<Self> {
        let dir = root.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&dir)?;
        let group = Self { dir };
        limits.iter().try_for_each(|(file, limit)| fs::write(group.dir.join(file), limit))?;
        Ok(group)
    }

    /// Directory of the group.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Moves a process with all of its threads into the group.
    ///
    /// # Errors
    /// There is no such process.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        fs::write(self.dir.join(PROCESSES), pid.to_string())
    }

    /// Command that runs `program` inside the group from its first byte on, under the same process
    /// id.
    pub fn command(&self, program: &Path, args: &[String]) -> (PathBuf, Vec<String>) {
        let text = |text: &OsStr| text.to_string_lossy().into_owned();
        let processes = self.dir.join(PROCESSES);
        let mut all =
            vec!["-c".to_owned(), JOIN_AND_EXEC.to_owned(), text(processes.as_ref()), text(program.as_ref())];
        all.extend_from_slice(args);
        (PathBuf::from("/bin/sh"), all)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("{} cannot be removed: {error}", self.dir.display());
        }
    }
}

fn has_version_2(controller: &str) -> bool {
    let controllers = fs::read_to_string(Path::new(ROOT).join("cgroup.controllers")).unwrap_or_default();
    controllers.split_ascii_whitespace().any(|name| name == controller)
}

/// Moves this process into the group at `dir`.
///
/// # Errors
/// The list of processes cannot be written.
pub fn join(dir: &Path) -> io::Result<()> {
    fs::write(dir.join(PROCESSES), std::process::id().to_string())
}
