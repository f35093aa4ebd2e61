//! The nodes of a cluster whose membership changes, across starts and ends of their processes.
//!
//! **Mechanism.** The first nodes start with `--cluster`, the spare one with `--join`. Nodes are
//! addressed by number, so that the thread that changes the cluster and the one that watches it
//! share them. Data is stored without compression, so that bytes that move, bytes that are written
//! and bytes on the disk are comparable.

use super::layout::{self, LayoutChange, LayoutView};
use super::moved::logged_bytes;
use crate::BenchResult;
use crate::data::drop_page_cache;
use crate::scrape::Scrape;
use crate::servers::{CpuLayout, Durability, NodeSpec, WorkDir, lasting_addresses};
use bench::{StopFlag, fetch};
use cluster::{FEATURE_LEVEL_PLANS, LayoutRecord};
use lab::process::{ResidentMemory, ServerProcess, resident_memory};
use serde_json::Value;
use std::error::Error;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{fmt, fs};

pub(super) const LAYOUT: CpuLayout = CpuLayout::UNPINNED;
const UNCOMPRESSED: &str = "--compression=none";
/// Time in which a node must start or join, and in which the members must see each other.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time in which the feature level rises after the ids of all nodes are known.
const LEVEL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which former data must be purged. Compaction rewrites it at its own pace.
const PURGE_TIMEOUT: Duration = Duration::from_secs(1_800);
const POLL: Duration = Duration::from_millis(200);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a block, the unit of the space that a file occupies.
const BLOCK_BYTES: u64 = 512;

/// The nodes do not support changes of the layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoPlans {
    level: u32,
}

impl fmt::Display for NoPlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level } = self;
        write!(f, "the cluster has feature level {level}, and changes need level {FEATURE_LEVEL_PLANS}")
    }
}

impl Error for NoPlans {}

/// Nodes of a cluster, and one that may join it.
pub(super) struct Cluster<'a> {
    work_dir: &'a WorkDir,
    interrupted: StopFlag,
    specs: Vec<NodeSpec>,
    /// Servers by node; `None` while a node does not run.
    servers: Vec<Mutex<Option<ServerProcess>>>,
}

impl<'a> Cluster<'a> {
    /// Starts `nodes` new nodes, and waits until all of them serve. The next node is spare.
    pub(super) fn start(
        work_dir: &'a WorkDir,
        name: &str,
        nodes: usize,
        memory: &str,
        interrupted: &StopFlag,
    ) -> BenchResult<Self> {
        let mut addresses = lasting_addresses(nodes + 1)?;
        let (first, spare) = (addresses[0], addresses.split_off(nodes)[0]);
        let mut specs = work_dir.node_specs(name, addresses, LAYOUT, Durability::Sync, memory);
        let name = format!("{name}-{nodes}");
        specs.push(work_dir.joining_spec(&name, spare, first, LAYOUT, Durability::Sync, memory));
        specs.iter_mut().for_each(|spec| spec.args.push(UNCOMPRESSED.to_owned()));
        let servers = specs.iter().map(|_| Mutex::new(None)).collect();
        let cluster = Self { work_dir, interrupted: interrupted.clone(), specs, servers };
        // All of them start before one is awaited: a new cluster needs its majority.
        (0..nodes).try_for_each(|node| cluster.spawn(node))?;
        (0..nodes).try_for_each(|node| cluster.wait_until_started(node))?;
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    /// Waits until the cluster can change its layout.
    ///
    /// # Errors
    /// [`NoPlans`] if it does not reach the feature level of plans.
    pub(super) fn require_plans(&self) -> BenchResult<()> {
        let level = || self.layout(0).map_or(0, |layout| layout.feature_level);
        match self.poll(LEVEL_TIMEOUT, || level() >= FEATURE_LEVEL_PLANS) {
            Err(_) if !self.interrupted.is_set() => Err(NoPlans { level: level() }.into()),
            reached => reached,
        }
    }

    /// Number of nodes, with the spare one.
    pub(super) fn len(&self) -> usize {
        self.specs.len()
    }

    pub(super) fn address(&self, node: usize) -> SocketAddr {
        self.specs[node].address
    }

    pub(super) fn url(&self, node: usize) -> String {
        format!("http://{}", self.address(node))
    }

    /// The node with this URL.
    pub(super) fn find(&self, url: &str) -> Option<usize> {
        (0..self.len()).find(|node| self.url(*node) == url)
    }

    pub(super) fn data(&self, node: usize) -> PathBuf {
        self.work_dir.data(&self.specs[node].name)
    }

    /// Numbers of the nodes whose processes run.
    pub(super) fn running(&self) -> Vec<usize> {
        (0..self.len()).filter(|node| self.pid(*node).is_some()).collect()
    }

    /// Process id of a node; `None` if it does not run.
    pub(super) fn pid(&self, node: usize) -> Option<u32> {
        let mut server = self.server(node);
        let server = server.as_mut()?;
        (!server.has_ended()).then(|| server.pid())
    }

    /// Calls `use_server` with the process of a node.
    pub(super) fn with_server<T>(
        &self,
        node: usize,
        use_server: impl FnOnce(&ServerProcess) -> BenchResult<T>,
    ) -> BenchResult<T> {
        match self.server(node).as_ref() {
            Some(server) => use_server(server),
            None => Err(format!("node {node} does not run").into()),
        }
    }

    pub(super) fn resident(&self, node: usize) -> Option<ResidentMemory> {
        resident_memory(self.pid(node)?).ok()
    }

    /// Starts a node, and waits until all members see each other.
    pub(super) fn start_node(&self, node: usize) -> BenchResult<()> {
        self.spawn(node)?;
        self.wait_until_started(node)?;
        self.wait_until_whole()
    }

    /// Kills a node, as `kill -9` does.
    pub(super) fn kill(&self, node: usize) -> BenchResult<()> {
        match self.server(node).take() {
            Some(server) => Ok(server.kill().map(drop)?),
            None => Ok(()),
        }
    }

    /// Ends a node by `SIGTERM`, starts it again, and waits until all members see each other.
    pub(super) fn restart(&self, node: usize) -> BenchResult<()> {
        let ended = self.server(node).take();
        drop(ended.map(ServerProcess::with_graceful_end));
        self.start_node(node)
    }

    fn spawn(&self, node: usize) -> BenchResult<()> {
        let mut server = self.server(node);
        if server.is_none() {
            *server = Some(self.work_dir.spawn_node(&self.specs[node], LAYOUT)?);
        }
        Ok(())
    }

    /// Waits until a node answers. The watcher looks at the nodes meanwhile, so no lock is held.
    fn wait_until_started(&self, node: usize) -> BenchResult<()> {
        let answers = || {
            let answer = fetch(self.address(node), "GET", "/v0/status", b"", REQUEST_TIMEOUT);
            answer.is_ok_and(|answer| answer.status == 200)
        };
        let started = self.poll(READY_TIMEOUT, || self.pid(node).is_none() || answers());
        let started = started.and_then(|()| match self.pid(node) {
            Some(_) => Ok(()),
            None => Err("the node has ended".into()),
        });
        started.map_err(|error| {
            let log = self.log(node);
            let last = log.lines().last().unwrap_or_default();
            format!("{}: {error}; its log ends with: {last}", self.specs[node].name).into()
        })
    }

    /// Waits until each running node serves, and sees all running nodes as up and settled.
    pub(super) fn wait_until_whole(&self) -> BenchResult<()> {
        self.poll(READY_TIMEOUT, || self.running().into_iter().all(|node| self.is_whole(node)))
            .map_err(|error| format!("{error}: not all nodes are up and settled").into())
    }

    fn is_whole(&self, node: usize) -> bool {
        let Ok(status) = self.get(node, "/v0/status") else { return false };
        let is_settled = |url: &str| {
            let known = status["nodes"].as_array().into_iter().flatten();
            let mut known = known.filter(|known| known["url"] == url);
            known.all(|known| {
                known["self"] == true || known["state"] == "up" && known["standing"] == "settled"
            })
        };
        let Ok(layout) = self.layout(node) else { return false };
        let running: Vec<String> = self.running().into_iter().map(|node| self.url(node)).collect();
        let is_named = layout.members.iter().all(|member| member.node_id.is_some());
        let members = layout.members.iter().filter(|member| running.contains(&member.url));
        let mut members = members.filter(|member| member.url != self.url(node));
        let is_ready = fetch(self.address(node), "GET", "/v0/ready", b"", REQUEST_TIMEOUT);
        is_named
            && members.all(|member| member.health == "up" && is_settled(&member.url))
            && is_ready.is_ok_and(|answer| answer.status == 200)
    }

    /// Waits until no node has data that it has lost to others.
    pub(super) fn wait_until_purged(&self) -> BenchResult<Duration> {
        let begun = Instant::now();
        let purging = |node: usize| {
            let scrape = Scrape::at(self.address(node));
            scrape.map_or(f64::NAN, |scrape| scrape.sum("veche_purging_partitions", ""))
        };
        self.poll(PURGE_TIMEOUT, || self.running().into_iter().all(|node| purging(node) == 0.0))
            .map_err(|error| format!("{error}: former data is not purged"))?;
        Ok(begun.elapsed())
    }

    /// Has the node `by` plan a change and begin it, and waits at most `patience` for its end.
    pub(super) fn change(&self, by: usize, change: &LayoutChange, patience: Duration) -> BenchResult<()> {
        let epoch = self.begin(by, change)?;
        self.wait_for_change(by, epoch, patience)
    }

    /// Has the node `by` plan a change and begin it. Returns the epoch in which it begins.
    pub(super) fn begin(&self, by: usize, change: &LayoutChange) -> BenchResult<u64> {
        let plan = layout::plan(self.address(by), change)?;
        let epoch = layout::apply(self.address(by), &plan)?;
        println!("  the change has begun in epoch {epoch}");
        Ok(epoch)
    }

    /// Waits until the change that began in `epoch` has ended, as the node `by` shows it.
    pub(super) fn wait_for_change(&self, by: usize, epoch: u64, patience: Duration) -> BenchResult<()> {
        let has_ended = |layout: LayoutView| layout.epoch >= epoch && layout.plan.is_none();
        self.poll(patience, || self.layout(by).is_ok_and(has_ended)).map_err(|error| {
            let plan = self.layout(by).ok().and_then(|layout| layout.plan);
            let plan = plan.map_or_else(String::new, |plan| plan.summary());
            format!("{error}: the change has not ended ({plan})").into()
        })
    }

    /// The layout as a node shows it.
    pub(super) fn layout(&self, node: usize) -> BenchResult<LayoutView> {
        layout::parse(&fetch(self.address(node), "GET", "/v0/layout", b"", REQUEST_TIMEOUT)?)
    }

    /// The layout record in the data directory of a node.
    pub(super) fn record(&self, node: usize) -> BenchResult<LayoutRecord> {
        let path = self.data(node).join("layout");
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(LayoutRecord::decode(&bytes).map_err(|error| format!("{}: {error}", path.display()))?)
    }

    /// Bytes of the copies that all nodes have logged as complete since their first start.
    pub(super) fn logged_bytes(&self) -> u64 {
        (0..self.len()).map(|node| logged_bytes(&self.log(node))).sum()
    }

    /// Space that all data directories occupy, in bytes.
    pub(super) fn disk_bytes(&self) -> u64 {
        (0..self.len()).map(|node| occupied_bytes(&self.data(node))).sum()
    }

    /// Drops the files of all nodes from the page cache.
    pub(super) fn drop_page_cache(&self) -> BenchResult<()> {
        self.running().into_iter().try_for_each(|node| drop_page_cache(&self.data(node)))
    }

    fn log(&self, node: usize) -> String {
        fs::read_to_string(self.work_dir.log(&self.specs[node].name)).unwrap_or_default()
    }

    fn get(&self, node: usize, path: &str) -> BenchResult<Value> {
        let answer = fetch(self.address(node), "GET", path, b"", REQUEST_TIMEOUT)?;
        Ok(serde_json::from_slice(&answer.body)?)
    }

    /// Sleeps, unless the run is interrupted.
    pub(super) fn sleep(&self, time: Duration) -> BenchResult<()> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.check_interrupted()?;
            thread::sleep(POLL.min(time.saturating_sub(begun.elapsed())));
        }
        Ok(())
    }

    /// Polls `is_done` for at most `patience`.
    fn poll(&self, patience: Duration, is_done: impl Fn() -> bool) -> BenchResult<()> {
        let begun = Instant::now();
        while !is_done() {
            self.check_interrupted()?;
            if begun.elapsed() > patience {
                return Err(format!("after {} s", patience.as_secs()).into());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn check_interrupted(&self) -> BenchResult<()> {
        if self.interrupted.is_set() { Err("interrupted".into()) } else { Ok(()) }
    }

    fn server(&self, node: usize) -> MutexGuard<'_, Option<ServerProcess>> {
        // The server is stored and taken as a whole, so a panic leaves no partial state.
        self.servers[node].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        // The next cluster needs the space.
        for node in 0..self.len() {
            drop(self.server(node).take());
            // A spare node that never started has no directory.
            let _ = fs::remove_dir_all(self.data(node));
        }
    }
}

/// Space that the files below `dir` occupy, in bytes. Files that disappear meanwhile do not count.
fn occupied_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let of_entry = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => occupied_bytes(&entry.path()),
        Ok(metadata) => metadata.blocks() * BLOCK_BYTES,
        Err(_) => 0,
    };
    entries.flatten().map(of_entry).sum()
}
