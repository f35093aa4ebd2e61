//! Memory limit for a process, page cache included, by a cgroup.
//!
//! Uses cgroup version 2 if it has the memory controller, else version 1. Requires the right to
//! create cgroups, as root has. Pages are charged to the group that reads them first: pages that
//! another group left in the page cache are not charged here. Callers that compare servers drop the
//! page cache before.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const V2: &str = "/sys/fs/cgroup";
const V1: &str = "/sys/fs/cgroup/memory";
const PROCESSES: &str = "cgroup.procs";
/// Shell script that joins the group whose list of processes is `$0`, then executes the program in
/// `$@`.
const JOIN_AND_EXEC: &str = r#"echo $$ > "$0" && exec "$@""#;

/// A cgroup with a memory limit. It is removed when this is dropped.
#[derive(Debug)]
pub struct MemoryLimit {
    dir: PathBuf,
}

impl MemoryLimit {
    /// Creates a cgroup that limits its processes to `bytes` bytes together. `name` distinguishes
    /// it from other groups of this process.
    ///
    /// # Errors
    /// The cgroup cannot be created.
    pub fn new(name: &str, bytes: u64) -> io::Result<Self> {
        let controllers = fs::read_to_string(Path::new(V2).join("cgroup.controllers")).unwrap_or_default();
        let (root, limit) = if controllers.split_ascii_whitespace().any(|name| name == "memory") {
            (V2, "memory.max")
        } else {
            (V1, "memory.limit_in_bytes")
        };
        let dir = Path::new(root).join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&dir)?;
        let group = Self { dir };
        fs::write(group.dir.join(limit), bytes.to_string())?;
        Ok(group)
    }

    /// Directory of the cgroup.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Command that runs `program` inside the cgroup from its first byte on, under the same process
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

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("{} cannot be removed: {error}", self.dir.display());
        }
    }
}

/// Moves this process into the cgroup.
///
/// # Errors
/// The list of processes cannot be written.
pub fn join(dir: &Path) -> io::Result<()> {
    fs::write(dir.join(PROCESSES), std::process::id().to_string())
}
