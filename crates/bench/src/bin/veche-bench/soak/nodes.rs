//! The nodes, as often as they are started, and the small disk of the last one.

use crate::Outcome;
use crate::servers::{Durability, Home, Layout, Member};
use bench::process::{Server, resident};
use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Ports that the system does not hand out by itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
const LAYOUT: Layout = Layout::UNPINNED;
/// A node has started, or sees the others again, within this.
pub(super) const WELL_WITHIN: Duration = Duration::from_secs(60);
/// Of the last node's disk: room for what lives several times over, yet filled in no time.
const SMALL_DISK_MIB: u32 = 1024;
const PIECE_BYTES: usize = 1 << 20;

/// See the module.
pub(super) struct Nodes<'a> {
    home: &'a Home,
    members: Vec<Member>,
    /// `None`: it was killed.
    servers: Vec<Mutex<Option<Server>>>,
    small_disk: Option<SmallDisk>,
    ended_by_themselves: AtomicU64,
}

/// A mounted file system. It goes when this is dropped.
struct SmallDisk {
    mount: PathBuf,
}

/// What a node takes.
pub(super) struct Taken {
    pub(super) resident: Option<u64>,
    pub(super) bytes: u64,
    pub(super) files: u64,
}

impl<'a> Nodes<'a> {
    /// Starts new nodes, and waits until all of them serve.
    pub(super) fn start(home: &'a Home, count: usize, memory: &str) -> Outcome<Self> {
        let members = home.members("soak", free_addresses(count)?, LAYOUT, Durability::Sync, memory);
        let small_disk = members.last().and_then(|member| SmallDisk::mount(&home.data(&member.name)));
        let servers = members.iter().map(|member| Ok(Mutex::new(Some(home.spawn_member(member, LAYOUT)?))));
        let servers = servers.collect::<Outcome<Vec<_>>>()?;
        let nodes = Self { home, members, servers, small_disk, ended_by_themselves: AtomicU64::new(0) };
        (0..nodes.len()).try_for_each(|node| nodes.wait_until_well(node))?;
        Ok(nodes)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.address).collect()
    }

    /// Whether the last node has a disk that can be filled.
    pub(super) fn has_small_disk(&self) -> bool {
        self.small_disk.is_some()
    }

    /// How many nodes ended that were not killed.
    pub(super) fn ended_by_themselves(&self) -> u64 {
        self.ended_by_themselves.load(Ordering::Relaxed)
    }

    /// `kill -9`.
    pub(super) fn kill(&self, node: usize) -> Outcome<()> {
        if let Some(server) = self.server(node).take() {
            server.kill()?;
        }
        Ok(())
    }

    /// Starts a node that was killed, and waits for nothing.
    pub(super) fn spawn(&self, node: usize) -> Outcome<()> {
        let mut server = self.server(node);
        if server.is_none() {
            *server = Some(self.home.spawn_member(&self.members[node], LAYOUT)?);
        }
        Ok(())
    }

    pub(super) fn pause(&self, node: usize) -> Outcome<()> {
        Ok(self.server(node).as_ref().map_or(Ok(()), Server::pause)?)
    }

    pub(super) fn resume(&self, node: usize) -> Outcome<()> {
        Ok(self.server(node).as_ref().map_or(Ok(()), Server::resume)?)
    }

    /// Leaves the last node's disk no room, until [`Nodes::free_disk`].
    pub(super) fn fill_disk(&self) -> Outcome<()> {
        self.small_disk.as_ref().map_or(Ok(()), SmallDisk::fill)
    }

    pub(super) fn free_disk(&self) -> Outcome<()> {
        self.small_disk.as_ref().map_or(Ok(()), SmallDisk::free)
    }

    pub(super) fn wait_until_well(&self, node: usize) -> Outcome<()> {
        let mut server = self.server(node);
        match server.as_mut().map(|server| server.wait_until_ready(WELL_WITHIN)) {
            Some(Err(error)) => Err(format!("node {node}: {error}").into()),
            _ => Ok(()),
        }
    }

    /// What a node takes now. One that has ended by itself is counted, told, and started again.
    pub(super) fn look_at(&self, node: usize) -> Outcome<Taken> {
        let pid = {
            let mut server = self.server(node);
            if server.as_mut().is_some_and(Server::has_ended) {
                println!("  BROKEN: node {node} has ended by itself");
                self.ended_by_themselves.fetch_add(1, Ordering::Relaxed);
                *server = Some(self.home.spawn_member(&self.members[node], LAYOUT)?);
            }
            server.as_ref().map(Server::pid)
        };
        let (mut bytes, mut files) = (0, 0);
        count_files(&self.home.data(&self.members[node].name), &mut bytes, &mut files);
        let resident = pid.and_then(|pid| resident(pid).ok()).map(|resident| resident.now);
        Ok(Taken { resident, bytes, files })
    }

    fn server(&self, node: usize) -> MutexGuard<'_, Option<Server>> {
        // It is put and taken whole.
        self.servers[node].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds what is below `dir`. What goes away meanwhile does not count.
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

/// Addresses whose ports stay free while a node is down.
fn free_addresses(count: usize) -> Outcome<Vec<SocketAddr>> {
    let first = PORTS.start + (std::process::id() % u32::from(PORTS.end - PORTS.start)) as u16;
    let ports = (first..PORTS.end).chain(PORTS.start..first);
    let free = ports.filter_map(|port| {
        TcpListener::bind(("127.0.0.1", port)).ok().and_then(|listener| listener.local_addr().ok())
    });
    let free: Vec<SocketAddr> = free.take(count).collect();
    if free.len() == count { Ok(free) } else { Err("there are no free ports".into()) }
}

/// What fills the disk, beside the node's own files.
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
        println!("  NOT DONE: no disk is filled, as none can be mounted here (that takes root)");
        None
    }

    fn fill(&self) -> Outcome<()> {
        let mut file = File::create(self.mount.join(OTHER_DATA))?;
        let piece = vec![1; PIECE_BYTES];
        // The end of the room is where it is to come to.
        while file.write_all(&piece).is_ok() {}
        Ok(())
    }

    fn free(&self) -> Outcome<()> {
        match fs::remove_file(self.mount.join(OTHER_DATA)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: whoever used it may be ending still.
        let done = Command::new("umount").arg("--lazy").arg(&self.mount).status();
        if !done.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.mount.display());
        }
    }
}
