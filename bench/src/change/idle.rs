//! A join without load: its rate by the speeds that bound it, and what it costs the joining node.
//!
//! **Mechanism.** The speeds are measured alone before, on the same directory and the same node.
//! The page cache of the nodes is dropped before the scan and before the join.
//!
//! **Caveats.** All nodes share one disk: the copy reads and writes it at the same time, whereas
//! each speed is measured without the other. Files that are written without a sync may still be in
//! the page cache when the change ends. The bytes that a process has written include those that its
//! compaction writes until the node has settled.

use super::ChangeBench;
use super::cluster::Cluster;
use super::layout::LayoutChange;
use super::moved::{bytes_by_partition, least_bytes};
use super::phases::Phase;
use super::rows::{add_fence_row, add_moved_row};
use super::speeds::{scan_speed, write_speed};
use super::watch::{SharedProgress, Watched, watch};
use crate::BenchResult;
use crate::data::wait_until_settled;
use crate::table::{ResultTable, Threshold};
use bench::threads::join_scoped;
use bench::units::{bytes, parse_bytes, span};
use bench::{StopFlag, keys::KEY_LEN};
use lab::process::disk_written_bytes;
use lab::stats::rounds;
use std::thread;
use std::time::{Duration, Instant};

const NODES: usize = 3;
/// The joining node, and the one that is asked and scanned.
const JOINING: usize = NODES;
const ASKED: usize = 0;
/// Greatest size of the file by which the disk is measured, in bytes.
const WRITE_BYTES_MAX: u64 = 4 << 30;
const SETTLE_PATIENCE: Duration = Duration::from_secs(600);

/// Minimum rate of a join, by the lesser of both speeds.
const RATE_MIN: f64 = 0.7;
/// Maximum bytes that the joining node writes, by those that it receives.
const WRITTEN_MAX: f64 = 1.2;
/// Maximum space beyond that before the change, by the bytes that move.
const EXTRA_DISK_MAX: f64 = 1.0;
/// Maximum resident memory by `--memory`.
const RESIDENT_MAX: f64 = 1.0;

/// Results of the join.
struct IdleJoin {
    took: Duration,
    purged_after: Duration,
    moved: u64,
    least: u64,
    /// Bytes that the joining node has written, at the end of the change and once it has settled.
    written: [u64; 2],
    extra_disk: u64,
    watched: Watched,
}

impl ChangeBench<'_> {
    /// Measures a join without load, and adds the rows.
    pub(super) fn add_idle_join(&self, table: &mut ResultTable) -> BenchResult<()> {
        let load = self.load_of(self.idle_bytes);
        let stored = load.keys * (KEY_LEN + load.value_bytes) as u64;
        table.section(&format!("join of {} to {NODES} nodes without load", bytes(stored as f64)));
        let cluster = self.changeable_cluster("idle", NODES, load)?;
        let write = write_speed(self.work_dir.dir(), stored.min(WRITE_BYTES_MAX))?;
        cluster.drop_page_cache()?;
        let scan = scan_speed(cluster.address(ASKED), stored)?;
        cluster.start_node(JOINING)?;
        cluster.drop_page_cache()?;
        let join = self.join(&cluster, load)?;

        let mb = |speed: f64| rounds(&[speed / 1e6]);
        table.row("sequential write of the disk, MB/s", Threshold::None, mb(write), String::new());
        table.row("scan of the source by HTTP, MB/s", Threshold::None, mb(scan), String::new());
        let rate = join.moved as f64 / join.took.as_secs_f64();
        let note = format!("{} in {}", bytes(join.moved as f64), span(join.took));
        table.row("join, MB/s", Threshold::None, mb(rate), note);
        let title = "join / lesser of disk write and scan";
        let value = rounds(&[rate / write.min(scan)]);
        table.row(title, Threshold::AtLeast(RATE_MIN), value, String::new());
        add_moved_row(join.moved, Some(join.least), table);
        add_fence_row(&join.watched, table);
        self.add_costs(&join, table)
    }

    /// Joins the spare node, and watches until the former data is purged.
    fn join(&self, cluster: &Cluster<'_>, load: super::load::QuorumLoad) -> BenchResult<IdleJoin> {
        let before = cluster.record(ASKED)?;
        let disk = cluster.disk_bytes();
        let written = || cluster.with_server(JOINING, |server| Ok(disk_written_bytes(server.pid())?));
        let written_before = written()?;
        let logged = cluster.logged_bytes();
        let (stop, progress) = (StopFlag::default(), SharedProgress::default());
        progress.update(|progress| progress.phase = Phase::During);
        let change = LayoutChange::Add(cluster.url(JOINING));
        let (changed, watched) = thread::scope(|scope| {
            let watcher = scope.spawn(|| watch(cluster, ASKED, &progress, &stop));
            let change_and_purge = || -> BenchResult<_> {
                let begun = Instant::now();
                cluster.change(ASKED, &change, self.times.patience)?;
                let (took, written_then) = (begun.elapsed(), written()?);
                Ok((took, written_then, cluster.wait_until_purged()?))
            };
            let changed = change_and_purge();
            stop.set();
            (changed, join_scoped(watcher))
        });
        let (took, written_then, purged_after) = changed?;
        cluster.with_server(JOINING, |server| wait_until_settled(server, SETTLE_PATIENCE))?;
        let after = cluster.record(ASKED)?;
        let by_partition = bytes_by_partition(&before, load.keys, load.value_bytes);
        Ok(IdleJoin {
            took,
            purged_after,
            moved: watched.moved_bytes.max(cluster.logged_bytes() - logged),
            least: least_bytes(&before, &after, &by_partition, None),
            written: [written_then - written_before, written()? - written_before],
            extra_disk: watched.disk_bytes_max.saturating_sub(disk),
            watched,
        })
    }

    /// Adds what the join costs: written bytes, disk space and memory.
    fn add_costs(&self, join: &IdleJoin, table: &mut ResultTable) -> BenchResult<()> {
        let by_moved = |count: u64| rounds(&[count as f64 / join.moved as f64]);
        let [at_end, settled] = join.written.map(|count| bytes(count as f64));
        let note = format!("{settled} once it had settled, {at_end} at the end of the change");
        let title = "joining node: bytes written / bytes moved";
        table.row(title, Threshold::AtMost(WRITTEN_MAX), by_moved(join.written[1]), note);
        let title = "extra disk space of all nodes, at most / bytes moved";
        let note = bytes(join.extra_disk as f64);
        table.row(title, Threshold::AtMost(EXTRA_DISK_MAX), by_moved(join.extra_disk), note);
        let budget = parse_bytes(&self.arguments.memory)? as f64;
        let peak = |node: usize| join.watched.resident_max.get(&node).copied().unwrap_or(0) as f64;
        let others: Vec<String> = (0..NODES).map(|node| bytes(peak(node))).collect();
        let note = format!("{}; the others: {}", bytes(peak(JOINING)), others.join(", "));
        let value = rounds(&[peak(JOINING) / budget]);
        let title = "joining node: peak resident memory / --memory";
        table.row(title, Threshold::AtMost(RESIDENT_MAX), value, note);
        let purged = rounds(&[join.purged_after.as_secs_f64()]);
        let title = "former data is purged after the change, s";
        table.row(title, Threshold::None, purged, String::new());
        Ok(())
    }
}
