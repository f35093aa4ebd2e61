//! What `GET /v0/status` says.

use crate::counters::Counts;
use crate::node::Node;
use crate::process::Process;
use api::{
    ClockStatus, Durability, IoStatus, JobStatus, LevelStatus, MemoryStatus, NodeState, NodeStatus,
    QueueStatus, QuorumStatus, RequestStatus, Status, StorageStatus,
};
use engine::Stats;
use stdx::{Now, WallTime};

/// The node as it is now. Looks at the file system, so it is not for the hot path.
pub(crate) fn of(process: &Process) -> Status {
    let now = process.clock.now();
    let from = process.rules.default_from;
    let node = process.node.get().map(|node| &**node);
    let stats = node.map(|node| node.store.engine().stats()).unwrap_or_default();
    Status {
        version: env!("CARGO_PKG_VERSION"),
        state: process.state(),
        uptime_ms: now.mono.saturating_since(process.started).as_millis() as u64,
        nodes: nodes(process),
        default_quorum: QuorumStatus { ack: from / 2 + 1, from },
        clock: clock(node, now),
        queues: queues(process, &stats),
        requests: requests(process),
        warnings: warnings(process, &stats),
        storage: storage(process, &stats),
    }
}

fn nodes(process: &Process) -> Vec<NodeStatus> {
    let own = || vec![format!("http://{}", process.config.listen)];
    let nodes = &process.config.membership.nodes;
    let urls = if nodes.is_empty() { own() } else { nodes.clone() };
    urls.into_iter().map(|url| NodeStatus { url, state: NodeState::Up }).collect()
}

fn clock(node: Option<&Node>, now: Now) -> ClockStatus {
    let ahead_ms = |of: WallTime| {
        of.micros_since_unix_epoch().saturating_sub(now.wall.micros_since_unix_epoch()) / 1_000
    };
    ClockStatus {
        ahead_ms: node.map_or(0, |node| ahead_ms(node.version_clock.issued().wall())),
        bound_ahead_ms: node.map_or(0, |node| ahead_ms(node.version_clock.bound().wall())),
    }
}

fn queues(process: &Process, stats: &Stats) -> QueueStatus {
    let operations_max = u64::from(cluster::Limits::default().operations_max);
    QueueStatus {
        connections: process.gauges.connections(),
        operations: process.gauges.operations(),
        operations_max: operations_max * process.config.threads as u64,
        commit_waiting_bytes: stats.memory.queue_bytes,
    }
}

fn requests(process: &Process) -> RequestStatus {
    let Counts { superseded, deadlines_passed, refused } = process.counters.counts();
    RequestStatus { superseded, deadlines_passed, refused }
}

fn warnings(process: &Process, stats: &Stats) -> Vec<String> {
    let mut warnings = Vec::new();
    if process.config.engine.durability == engine::Durability::Os {
        warnings.push("--durability os: the loss of power may undo acknowledged writes.".to_owned());
    }
    if stats.disk_full {
        warnings.push("The disk is full: values are refused until there is room.".to_owned());
    }
    warnings
}

fn storage(process: &Process, stats: &Stats) -> StorageStatus {
    let levels = (0..).zip(&stats.levels).map(|(level, of)| LevelStatus {
        level,
        tables: of.tables as u64,
        bytes: of.file_bytes,
    });
    StorageStatus {
        durability: match process.config.engine.durability {
            engine::Durability::Sync => Durability::Fdatasync,
            engine::Durability::Os => Durability::Os,
        },
        disk_available_bytes: process.env.fs.available_bytes(&process.config.data).unwrap_or(0),
        wal_bytes: stats.wal.bytes,
        levels: levels.collect(),
        memory: MemoryStatus {
            budget_bytes: process.config.engine.memory_bytes,
            memtables_bytes: stats.memory.memtable_bytes,
            cache_bytes: stats.memory.cache_bytes,
            tables_bytes: stats.memory.table_bytes,
            queue_bytes: stats.memory.queue_bytes,
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
