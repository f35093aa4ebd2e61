//! A cgroup that bounds a process's memory, its page cache included.
//!
//! Version 2 where it has the memory controller, else version 1; needs the right to make one, as root has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const V2: &str = "/sys/fs/cgroup";
const V1: &str = "/sys/fs/cgroup/memory";

/// A cgroup of this run's own; removed when dropped.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    dir: PathBuf,
}

impl MemoryLimit {
    /// A cgroup that bounds its processes to so many bytes together.
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        let controllers = fs::read_to_string(Path::new(V2).join("cgroup.controllers")).unwrap_or_default();
        let (root, limit) = if controllers.split_ascii_whitespace().any(|name| name == "memory") {
            (V2, "memory.max")
        } else {
            (V1, "memory.limit_in_bytes")
        };
        let dir = Path::new(root).join(format!("compare-{}", std::process::id()));
        fs::create_dir(&dir)?;
        let group = Self { dir };
        fs::write(group.dir.join(limit), bytes.to_string())?;
        Ok(group)
    }

    /// What a process joins.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
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
pub(crate) fn join(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("cgroup.procs"), std::process::id().to_string())
}
