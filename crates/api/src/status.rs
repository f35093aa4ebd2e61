//! The document of `GET /v0/status`.
//!
//! Sizes are in bytes, times in milliseconds; counters count from the start of the process.

use serde::Serialize;

/// All that a node says of itself.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The release.
    pub version: &'static str,
    /// Whether it serves.
    pub state: ServingState,
    /// Since the process started.
    pub uptime_ms: u64,
    /// Every node of the cluster, this one too.
    pub nodes: Vec<NodeStatus>,
    /// What a request gets that asks for nothing else.
    pub default_quorum: QuorumStatus,
    /// The version clock.
    pub clock: ClockStatus,
    /// What waits or is under way.
    pub queues: QueueStatus,
    /// What happened to requests, where it was out of the ordinary.
    pub requests: RequestStatus,
    /// The local store.
    pub storage: StorageStatus,
    /// What an operator should look at, one sentence each.
    pub warnings: Vec<String>,
}

/// Whether a node serves users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServingState {
    /// Not yet.
    Starting,
    /// Yes.
    Serving,
    /// No more: it is about to stop.
    Draining,
}

/// One node, as this one sees it.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// Where it is reached.
    pub url: String,
    /// Whether it is.
    pub state: NodeState,
}

/// Whether a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It does.
    Up,
}

/// How many of how many.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct QuorumStatus {
    /// Replicas that must answer.
    pub ack: u8,
    /// Replicas that hold a key.
    pub from: u8,
}

/// The version clock.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ClockStatus {
    /// How far the newest version issued is ahead of the wall clock; 0 when it is not. Seconds mean that the
    /// wall clock was set back.
    pub ahead_ms: u64,
    /// How far the durable bound of versions is ahead of the wall clock; 0 when it is not.
    pub bound_ahead_ms: u64,
}

/// What waits or is under way.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct QueueStatus {
    /// Open connections of users.
    pub connections: u64,
    /// Commands without a reply.
    pub operations: u64,
    /// The most of them.
    pub operations_max: u64,
    /// Bytes of writes that wait for their group commit.
    pub commit_waiting_bytes: u64,
}

/// What happened to requests, where it was out of the ordinary.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RequestStatus {
    /// Writes acknowledged although a greater version was already there.
    pub superseded: u64,
    /// Requests that reached their deadline.
    pub deadlines_passed: u64,
    /// Requests refused because too many were under way.
    pub refused: u64,
}

/// When a write counts as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// After `fdatasync`.
    Fdatasync,
    /// When the operating system has it: power loss may undo it.
    Os,
}

/// The local store.
#[derive(Clone, Debug, Serialize)]
pub struct StorageStatus {
    /// When a write counts as stored.
    pub durability: Durability,
    /// Bytes that may still be written to the file system of the data directory.
    pub disk_available_bytes: u64,
    /// Bytes that went to the write-ahead log.
    pub wal_bytes: u64,
    /// Tables by level, the newest level first.
    pub levels: Vec<LevelStatus>,
    /// How much memory is used for what.
    pub memory: MemoryStatus,
    /// Background work.
    pub jobs: JobStatus,
    /// What was asked of the file system.
    pub io: IoStatus,
}

/// One level of tables.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LevelStatus {
    /// Which; 0 is the newest.
    pub level: u32,
    /// How many tables.
    pub tables: u64,
    /// Their size on disk.
    pub bytes: u64,
}

/// How much memory is used for what.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryStatus {
    /// All of it may be this much.
    pub budget_bytes: u64,
    /// In memtables.
    pub memtables_bytes: u64,
    /// In the block cache.
    pub cache_bytes: u64,
    /// Kept for tables outside the cache.
    pub tables_bytes: u64,
    /// In writes that wait for their group commit.
    pub queue_bytes: u64,
}

/// Background work since the process started.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct JobStatus {
    /// Memtables flushed.
    pub flushes: u64,
    /// Size of the tables they became.
    pub flushed_bytes: u64,
    /// Compactions finished.
    pub compactions: u64,
    /// Size of the tables they wrote or moved.
    pub compacted_bytes: u64,
}

/// What was asked of the file system.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct IoStatus {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Waits for durability.
    pub syncs: u64,
}
