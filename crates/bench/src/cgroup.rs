//! A cgroup that bounds a process's memory, its page cache included.
//!
//! Version 2 where it has the memory controller, else version 1; needs the right to make one, as root has. Pages belong to
//! the group that reads them first: what another group left in the page cache is not counted here, so whoever compares
//! has the system forget it before.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const V2: &str = "/sys/fs/cgroup";
const V1: &str = "/sys/fs/cgroup/memory";
const PROCESSES: &str = "cgroup.procs";
/// Joins the group whose list of processes is the first argument, and becomes the program behind it.
const JOIN_AND_EXEC: &str = r#"echo $$ > "$0" && exec "$@""#;

/// A cgroup of this process's own; removed when dropped.
#[derive(Debug)]
pub struct MemoryLimit {
    dir: PathBuf,
}

impl MemoryLimit {
    /// A cgroup that bounds its processes to so many bytes together. `name` tells it from others of this process.
    ///
    /// # Errors
    /// When none can be made here.
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

    /// What a process joins.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The command that runs another one inside from its first byte on, under the process id that it was given.
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
            eprintln!("{} stays behind: {error}", self.dir.display());
        }
    }
}

/// Puts this process into the cgroup.
///
/// # Errors
/// The system's.
pub fn join(dir: &Path) -> io::Result<()> {
    fs::write(dir.join(PROCESSES), std::process::id().to_string())
}
