//! The content of `GET /v0/status`.

use crate::local::Local;
use crate::process::Process;
use crate::warnings::{self, WarningSource};
use api::{
    ClockStatus, ClusterStatus, DiskRoom, DurabilityStatus, IoStatus, JobStatus, LevelStatus, LinkStatus,
    MemberStatus, MemoryStatus, QueueStatus, QuorumStatus, RangeStatus, Status, StorageStatus,
};
use cluster::{HybridClock, Key, NodeIndex, Quorum};
use engine::Stats;
use limits::MemoryCategory;
use stdx::{Hlc, Now, WallTime};

/// The current state of the node. It calls the file system, so it is not for the hot path.
pub(crate) fn of(process: &Process) -> Status {
    let now = process.env.clock.now();
    let quorum = Quorum::with_default_ack(process.rules.default_from);
    let local = process.local.get().map(|local| &**local);
    let account = local.and_then(|local| local.account.lock().clone());
    let stats = local.map(|local| local.store.engine().stats()).unwrap_or_default();
    let nodes = nodes(process, account.as_deref());
    let warnings = warnings_about(process, &stats, &nodes, now);
    Status {
        version: env!("CARGO_PKG_VERSION"),
        state: process.serving_state.get(),
        uptime_ms: now.mono.saturating_since(process.started).as_millis() as u64,
        warnings,
        nodes,
        cluster: account.as_deref().map(ClusterStatus::from),
        links: links(process),
        default_quorum: QuorumStatus { ack: quorum.ack(), from: quorum.from() },
        clock: clock(local, now),
        queues: queues(process, &stats),
        requests: process.counters.counts(process.refusals.refused_in_all()),
        ranges: RangeStatus {
            open: process.ranges.count() as u64,
            snapshots: local.map_or(0, |local| local.store.snapshot_count() as u64),
        },
        storage: storage(process, &stats),
    }
}

/// The warnings of the status, which is not made for them.
pub(crate) fn warnings(process: &Process, stats: &Stats, now: Now) -> Vec<String> {
    let account = process.local.get().and_then(|local| local.account.lock().clone());
    warnings_about(process, stats, &nodes(process, account.as_deref()), now)
}

fn warnings_about(process: &Process, stats: &Stats, nodes: &[MemberStatus], now: Now) -> Vec<String> {
    warnings::of(&WarningSource {
        config: &process.config,
        started: process.started,
        accept_failures: &process.accept_state.failures,
        peer_warnings: &process.peer_links.warnings,
        local: process.local.get().map(|local| &**local),
        stats,
        nodes,
        now,
    })
}

/// The nodes with their URLs, those of the adopted layout record once the store is open.
fn urls(process: &Process) -> Vec<(NodeIndex, String)> {
    match process.local.get() {
        Some(local) => local.urls(),
        None => (0..).map(NodeIndex).zip(process.config.node_names()).collect(),
    }
}

/// The URLs of the nodes that hold `key` if `from` of them do, in the order of its preference list,
/// separated by commas. `None` before the store is open.
pub(crate) fn urls_of_replicas(process: &Process, key: &Key, from: u8) -> Option<Box<str>> {
    let local = process.local.get()?;
    let layout = local.layout();
    let of_replicas: Vec<_> = layout.replicas(key, from).iter().map(|node| local.url_of(*node)).collect();
    Some(of_replicas.join(", ").into())
}

fn nodes(process: &Process, account: Option<&cluster::NodeStatus>) -> Vec<MemberStatus> {
    let own = process.config.own_name();
    let me = process.local.get().map(|local| local.member.me);
    let node = |(node, url): (NodeIndex, String)| {
        let is_self = me.map_or(url == own, |me| node == me);
        match account.and_then(|account| account.peers.iter().find(|peer| peer.node == node)) {
            Some(peer) => MemberStatus::of(url, is_self, peer),
            None => MemberStatus::unknown(url, is_self),
        }
    };
    urls(process).into_iter().map(node).collect()
}

fn links(process: &Process) -> LinkStatus {
    let counts = process.gauges.links();
    LinkStatus {
        dialed: counts.dialed,
        accepted: counts.accepted,
        refused: process.peer_links.warnings.refused_count(),
        sent_messages: counts.all.messages_sent,
        sent_bytes: counts.all.bytes_sent,
        write_calls: counts.write_calls,
        received_messages: counts.all.messages_received,
        received_bytes: counts.all.bytes_received,
    }
}

fn clock(local: Option<&Local>, now: Now) -> ClockStatus {
    let ahead_ms = |of: WallTime| of.saturating_since(now.wall).as_millis() as u64;
    let ahead_of =
        |hlc: fn(&HybridClock) -> Hlc| local.map_or(0, |local| ahead_ms(hlc(&local.member.clock).wall()));
    ClockStatus { ahead_ms: ahead_of(HybridClock::issued), bound_ahead_ms: ahead_of(HybridClock::bound) }
}

fn queues(process: &Process, stats: &Stats) -> QueueStatus {
    let operations_max = u64::from(cluster::CoordinatorLimits::default().operations_max);
    QueueStatus {
        connections: process.gauges.connections(),
        operations: process.gauges.operations(),
        operations_max: operations_max * process.config.threads as u64,
        commit_waiting_bytes: stats.memory.queue_bytes,
    }
}

fn storage(process: &Process, stats: &Stats) -> StorageStatus {
    let levels = (0..).zip(&stats.levels).map(|(level, of)| LevelStatus {
        level,
        tables: of.tables as u64,
        bytes: of.file_bytes,
    });
    StorageStatus {
        durability: match process.config.engine.durability {
            engine::Durability::Sync => DurabilityStatus::Fdatasync,
            engine::Durability::Os => DurabilityStatus::Os,
        },
        disk_available_bytes: process.env.fs.available_bytes(&process.config.data).unwrap_or(0),
        disk_room: match stats.disk.space {
            engine::DiskSpace::Ample => DiskRoom::Enough,
            engine::DiskSpace::Low => DiskRoom::Short,
            engine::DiskSpace::Full => DiskRoom::Full,
        },
        disk_soft_bytes: stats.disk.soft_bytes,
        disk_reserve_bytes: stats.disk.reserve_bytes,
        wal_bytes: stats.wal.bytes,
        levels: levels.collect(),
        memory: MemoryStatus {
            budget_bytes: process.config.memory_bytes(),
            memtables_bytes: stats.memory.memtable_bytes,
            snapshots_bytes: stats.memory.pinned_memtable_bytes,
            cache_bytes: stats.memory.cache_bytes,
            tables_bytes: stats.memory.table_bytes,
            queue_bytes: stats.memory.queue_bytes,
            bodies_bytes: process.memory.reserved_bytes(MemoryCategory::Bodies),
            writes_bytes: process.memory.reserved_bytes(MemoryCategory::Writes),
            replies_bytes: process.memory.reserved_bytes(MemoryCategory::Replies),
            ranges_bytes: process.memory.reserved_bytes(MemoryCategory::Ranges),
            batches_bytes: process.memory.reserved_bytes(MemoryCategory::Batches),
            peer_links_bytes: process.memory.reserved_bytes(MemoryCategory::PeerLinks),
            connections_bytes: process.memory.reserved_bytes(MemoryCategory::Connections),
        },
        jobs: JobStatus {
            flushes: stats.jobs.flushes,
            flushed_bytes: stats.jobs.flushed_bytes,
            compactions: stats.jobs.compactions,
            compacted_bytes: stats.jobs.compacted_bytes,
        },
        io: IoStatus {
            reads: stats.io.reads,
            read_bytes: stats.io.read_bytes,
            writes: stats.io.writes,
            written_bytes: stats.io.written_bytes,
            syncs: stats.io.syncs,
        },
    }
}
