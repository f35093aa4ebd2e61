//! Nodes of the soak test, across restarts, and the small disk of the last one.

use crate::BenchResult;
use crate::servers::{CpuLayout, Durability, NodeSpec, WorkDir, lasting_addresses};
use lab::process::{ServerProcess, resident_memory};
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const LAYOUT: CpuLayout = CpuLayout::UNPINNED;
/// Time in which a node must start, or must serve again after a fault.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Size of the last node's disk, in MiB: several times the live data, yet filled within seconds.
const SMALL_DISK_MIB: u32 = 1024;
const PIECE_BYTES: usize = 1 << 20;

/// Nodes of the soak test.
pub(super) struct Nodes<'a> {
    work_dir: &'a WorkDir,
    specs: Vec<NodeSpec>,
    /// Servers by node; `None` while a node is killed.
    servers: Vec<Mutex<Option<ServerProcess>>>,
    small_disk: Option<SmallDisk>,
    unexpected_exits: AtomicU64,
}

/// A mounted file system. It is unmounted when this is dropped.
struct SmallDisk {
    mount: PathBuf,
}

/// Resources that a node uses.
pub(super) struct NodeUsage {
    pub(super) resident: Option<u64>,
    pub(super) bytes: u64,
    pub(super) files: u64,
}

impl<'a> Nodes<'a> {
    /// Starts new nodes, and waits until all of them serve.
    pub(super) fn start(work_dir: &'a WorkDir, count: usize, memory: &str) -> BenchResult<Self> {
        let specs = work_dir.node_specs("soak", lasting_addresses(count)?, LAYOUT, Durability::Sync, memory);
        let small_disk = specs.last().and_then(|spec| SmallDisk::mount(&work_dir.data(&spec.name)));
        let servers = specs.iter().map(|spec| Ok(Mutex::new(Some(work_dir.spawn_node(spec, LAYOUT)?))));
        let servers = servers.collect::<BenchResult<Vec<_>>>()?;
        let nodes = Self { work_dir, specs, servers, small_disk, unexpected_exits: AtomicU64::new(0) };
        (0..nodes.len()).try_for_each(|node| nodes.wait_until_ready(node))?;
        Ok(nodes)
    }

    pub(super) fn len(&self) -> usize {
        self.specs.len()
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.specs.iter().map(|spec| spec.address).collect()
    }

    /// Whether the last node has a disk that can be filled.
    pub(super) fn has_small_disk(&self) -> bool {
        self.small_disk.is_some()
    }

    /// Number of exits of nodes that were not killed.
    pub(super) fn unexpected_exits(&self) -> u64 {
        self.unexpected_exits.load(Ordering::Relaxed)
    }

    /// Kills a node, as `kill -9` does.
    pub(super) fn kill(&self, node: usize) -> BenchResult<()> {
        if let Some(server) = self.server(node).take() {
            server.kill()?;
        }
        Ok(())
    }

    /// Starts a killed node, without waiting for it.
    pub(super) fn spawn(&self, node: usize) -> BenchResult<()> {
        let mut server = self.server(node);
        if server.is_none() {
            *server = Some(self.work_dir.spawn_node(&self.specs[node], LAYOUT)?);
        }
        Ok(())
    }

    pub(super) fn pause(&self, node: usize) -> BenchResult<()> {
        Ok(self.server(node).as_ref().map_or(Ok(()), ServerProcess::pause)?)
    }

    pub(super) fn resume(&self, node: usize) -> BenchResult<()> {
        Ok(self.server(node).as_ref().map_or(Ok(()), ServerProcess::resume)?)
    }

    /// Fills the last node's disk, until [`Nodes::free_disk`].
    pub(super) fn fill_disk(&self) -> BenchResult<()> {
        self.small_disk.as_ref().map_or(Ok(()), SmallDisk::fill)
    }

    pub(super) fn free_disk(&self) -> BenchResult<()> {
        self.small_disk.as_ref().map_or(Ok(()), SmallDisk::free)
    }

    pub(super) fn wait_until_ready(&self, node: usize) -> BenchResult<()> {
        let mut server = self.server(node);
        match server.as_mut().map(|server| server.wait_until_ready(READY_TIMEOUT)) {
            Some(Err(error)) => Err(format!("node {node}: {error}").into()),
            _ => Ok(()),
        }
    }

    /// Samples the resources of a node. A node that has exited unexpectedly is counted, reported
    /// and restarted.
    pub(super) fn sample_usage(&self, node: usize) -> BenchResult<NodeUsage> {
        let pid = {
            let mut server = self.server(node);
            if server.as_mut().is_some_and(ServerProcess::has_ended) {
                println!("  BROKEN: node {node} has exited unexpectedly");
                self.unexpected_exits.fetch_add(1, Ordering::Relaxed);
                *server = Some(self.work_dir.spawn_node(&self.specs[node], LAYOUT)?);
            }
            server.as_ref().map(ServerProcess::pid)
        };
        let (mut bytes, mut files) = (0, 0);
        count_files(&self.work_dir.data(&self.specs[node].name), &mut bytes, &mut files);
        let resident = pid.and_then(|pid| resident_memory(pid).ok()).map(|resident| resident.now);
        Ok(NodeUsage { resident, bytes, files })
    }

    fn server(&self, node: usize) -> MutexGuard<'_, Option<ServerProcess>> {
        // The server is stored and taken as a whole, so a panic leaves no partial state.
        self.servers[node].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the files below `dir`. Files that disappear meanwhile are not counted.
fn count_files(dir: &Path, bytes: &mut u64, files: &mut u64) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            count_files(&entry.path(), bytes, files);
        } else if entry.file_name() != OTHER_DATA {
            *files += 1;
            *bytes += entry.metadata().map_or(0, |metadata| metadata.len());
        }
    }
}

/// File that fills the disk, beside the node's own files.
const OTHER_DATA: &str = "other-data";

impl SmallDisk {
    fn mount(mount: &Path) -> Option<Self> {
        fs::create_dir_all(mount).ok()?;
        let size = format!("size={SMALL_DISK_MIB}m");
        let mut command = Command::new("mount");
        let done = command.args(["-t", "tmpfs", "-o", &size, "none"]).arg(mount).output();
        if done.is_ok_and(|done| done.status.success()) {
            return Some(Self { mount: mount.to_owned() });
        }
        println!("  omitted: a full disk, because a tmpfs cannot be mounted without root");
        None
    }

    fn fill(&self) -> BenchResult<()> {
        let mut file = File::create(self.mount.join(OTHER_DATA))?;
        let piece = vec![1; PIECE_BYTES];
        // Writes until the disk is full.
        while file.write_all(&piece).is_ok() {}
        Ok(())
    }

    fn free(&self) -> BenchResult<()> {
        match fs::remove_file(self.mount.join(OTHER_DATA)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Unmount lazily: a process that used the file system may still be ending.
        let done = Command::new("umount").arg("--lazy").arg(&self.mount).status();
        if !done.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.mount.display());
        }
    }
}
