//! The document of `GET /v0/status`.
//!
//! Sizes are in bytes, and times in milliseconds unless the name has another unit. Counters count
//! from the start of the process.

use cluster::{PeerState, PeerStatus, RepairKind, RepairStatus, SyncState};
use serde::Serialize;
use stdx::WallTime;

/// Status of a node.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Release of the node.
    pub version: &'static str,
    /// Whether the node serves clients.
    pub state: ServingState,
    /// Time since the process started, in milliseconds.
    pub uptime_ms: u64,
    /// Every node of the cluster, including this one.
    pub nodes: Vec<MemberStatus>,
    /// This node as a member of the cluster; `None` before it has recovered.
    pub cluster: Option<ClusterStatus>,
    /// Connections to and from other nodes.
    pub links: LinkStatus,
    /// Quorum of a request that does not choose one.
    pub default_quorum: QuorumStatus,
    /// The version clock.
    pub clock: ClockStatus,
    /// Queues and work in progress.
    pub queues: QueueStatus,
    /// Unusual events of requests.
    pub requests: RequestStatus,
    /// Open ranges.
    pub ranges: RangeStatus,
    /// The local store.
    pub storage: StorageStatus,
    /// Conditions that an operator should examine, one sentence each.
    pub warnings: Vec<String>,
}

/// Whether a node serves clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServingState {
    /// The node has not recovered yet.
    Starting,
    /// The node serves.
    Serving,
    /// The node is about to stop.
    Draining,
}

/// A node, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberStatus {
    /// URL at which the node is reached.
    pub url: String,
    /// Whether this entry is the answering node itself.
    #[serde(rename = "self")]
    pub is_self: bool,
    /// State of the node in the failure detector.
    pub state: NodeState,
    /// Whether the node's answers to reads count; `None` before it is known.
    #[serde(rename = "standing")]
    pub sync_state: Option<NodeSyncState>,
    /// Whether the node refuses values for lack of disk space.
    pub disk_full: bool,
    /// Number of hints that this node keeps for it: writes that it missed.
    pub hints: u64,
    /// Size of these hints, in bytes.
    pub hints_bytes: u64,
    /// Number of hints for it that this node dropped for lack of space or for their age.
    /// Anti-entropy delivers these writes.
    pub hints_dropped: u64,
    /// Milliseconds by which its wall clock is ahead of this node's; negative if it is behind.
    pub clock_ahead_ms: i64,
    /// Time from a heartbeat to its answer, in microseconds; `None` while the node does not answer.
    pub round_trip_us: Option<u64>,
    /// Number of replicas of a key if a request to the node does not choose it; `None` before the
    /// node has reported it.
    pub default_from: Option<u8>,
}

/// State of a node in the failure detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// No message has arrived from it yet.
    Unknown,
    /// The node answers.
    Up,
    /// An answer of the node is late.
    Suspected,
    /// The node does not answer, and operations do not wait for it.
    Unreachable,
}

/// Synchronization state of a node's data. The answers of a node to reads count only if it is
/// settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeSyncState {
    /// The directory is new, and it is unknown whether it replaces a lost one.
    Unsettled,
    /// The node lost its data and is being filled by its peers.
    Rebuilding,
    /// The node holds its data.
    Settled,
}

/// This node as a member of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterStatus {
    /// Whether this node's answers to reads count.
    #[serde(rename = "standing")]
    pub sync_state: NodeSyncState,
    /// Whether each peer is linked or unreachable, and the hints that reachable peers keep for this
    /// node are applied.
    pub ready: bool,
    /// Current pass over all keys.
    pub repair: Option<RepairProgress>,
    /// Start of the last complete pass, in milliseconds of Unix time by this node's clock.
    pub repaired_at_ms: Option<u64>,
    /// Number of keys whose newest cell was refused, because its version lies too far in the
    /// future. Reads of them fail at this node.
    pub refused_keys: usize,
}

/// A pass over all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RepairProgress {
    /// Whether the pass fills this node, which lost its data.
    pub rebuilding: bool,
    /// Whether the pass gets the data of a damaged table from the other nodes. If neither this nor
    /// `rebuilding` is set, it compares this node with them.
    pub healing: bool,
    /// Fraction of the keys passed, in thousandths; an estimate.
    pub permille: u16,
    /// Number of cells taken from other nodes or sent to them.
    pub cells: u64,
}

/// Connections to and from other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStatus {
    /// Number of open links that this node dialed.
    pub dialed: u64,
    /// Number of open links that this node accepted.
    pub accepted: u64,
    /// Number of links refused by this node or to it, for another cluster, layout record, secret or
    /// protocol.
    pub refused: u64,
    /// Number of messages sent.
    pub sent_messages: u64,
    /// Number of bytes sent.
    pub sent_bytes: u64,
    /// Number of system calls that sent them.
    pub write_calls: u64,
    /// Number of messages received.
    pub received_messages: u64,
    /// Number of bytes received.
    pub received_bytes: u64,
}

impl MemberStatus {
    /// Creates the status of a node of which only the URL is known.
    pub const fn unknown(url: String, is_self: bool) -> Self {
        Self {
            url,
            is_self,
            state: if is_self { NodeState::Up } else { NodeState::Unknown },
            sync_state: None,
            disk_full: false,
            hints: 0,
            hints_bytes: 0,
            hints_dropped: 0,
            clock_ahead_ms: 0,
            round_trip_us: None,
            default_from: None,
        }
    }

    /// Creates the status of a node from the state that this node keeps of it.
    pub fn of(url: String, is_self: bool, peer: &PeerStatus) -> Self {
        let state = match peer.state {
            _ if is_self => NodeState::Up,
            PeerState::Unknown => NodeState::Unknown,
            PeerState::Up => NodeState::Up,
            PeerState::Suspected => NodeState::Suspected,
            PeerState::Unreachable => NodeState::Unreachable,
        };
        let is_heard_of = state != NodeState::Unknown;
        let round_trip = peer.round_trip.filter(|_| state == NodeState::Up);
        Self {
            url,
            is_self,
            state,
            sync_state: is_heard_of.then(|| peer.sync_state.into()),
            disk_full: peer.disk_full,
            hints: peer.hints.hints,
            hints_bytes: peer.hints.bytes,
            hints_dropped: peer.hints_dropped,
            clock_ahead_ms: peer.clock_ahead_micros / 1_000,
            default_from: peer.default_from,
            round_trip_us: round_trip.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
        }
    }
}

impl From<SyncState> for NodeSyncState {
    fn from(sync_state: SyncState) -> Self {
        match sync_state {
            SyncState::Unsettled => Self::Unsettled,
            SyncState::Rebuilding => Self::Rebuilding,
            SyncState::Settled => Self::Settled,
        }
    }
}

impl From<&cluster::NodeStatus> for ClusterStatus {
    fn from(node: &cluster::NodeStatus) -> Self {
        Self {
            sync_state: node.sync_state.into(),
            ready: node.ready,
            repair: node.repair.map(RepairProgress::from),
            repaired_at_ms: node.repaired_at.map(WallTime::millis_since_unix_epoch),
            refused_keys: node.refused_keys,
        }
    }
}

impl From<RepairStatus> for RepairProgress {
    fn from(RepairStatus { kind, permille, cells }: RepairStatus) -> Self {
        let (rebuilding, healing) = (kind == RepairKind::Rebuild, kind == RepairKind::Healing);
        Self { rebuilding, healing, permille, cells }
    }
}

/// A quorum: `ack` of `from` replicas.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct QuorumStatus {
    /// Number of replicas that must answer.
    pub ack: u8,
    /// Number of replicas that hold a key.
    pub from: u8,
}

/// The version clock.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ClockStatus {
    /// Milliseconds by which the newest issued version is ahead of the wall clock, or 0. Seconds
    /// mean that the wall clock was set back.
    pub ahead_ms: u64,
    /// Milliseconds by which the durable bound of versions is ahead of the wall clock, or 0.
    pub bound_ahead_ms: u64,
}

/// Queues and work in progress.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct QueueStatus {
    /// Number of open client connections.
    pub connections: u64,
    /// Number of commands in flight.
    pub operations: u64,
    /// Limit of commands in flight.
    pub operations_max: u64,
    /// Size of the writes that wait for their group commit, in bytes.
    pub commit_waiting_bytes: u64,
}

/// Open ranges.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RangeStatus {
    /// Number of open ranges of clients of this node.
    pub open: u64,
    /// Number of snapshots kept for further pages, for ranges of this node and of others.
    pub snapshots: u64,
}

/// Unusual events of requests.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RequestStatus {
    /// Number of writes acknowledged although a greater version was already there.
    pub superseded: u64,
    /// Number of requests that reached their deadline.
    pub deadlines_passed: u64,
    /// Number of requests for which too few replicas answered, at their deadline or before.
    pub not_enough_replicas: u64,
    /// Number of requests and connections refused by admission control.
    pub refused: u64,
    /// Number of writes refused because their versions were too far ahead of this node's clock.
    pub clock_ahead: u64,
    /// Number of hedged reads: reads that asked one more replica because an answer was late.
    pub hedged: u64,
    /// Number of reads with differing answers that were repaired before the reply.
    pub repaired_before_reply: u64,
    /// Number of reads with differing answers that were repaired after the reply.
    pub repaired_after_reply: u64,
    /// Number of hinted writes delivered to their nodes.
    pub hints_delivered: u64,
}

/// Condition under which a write counts as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityStatus {
    /// After `fdatasync`.
    Fdatasync,
    /// When the operating system has the write: loss of power may undo it.
    Os,
}

/// State of the free space on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskRoom {
    /// There is enough space.
    Enough,
    /// There is little space, and writes are slowed down.
    Short,
    /// There is no space for values, which are refused.
    Full,
}

/// The local store.
#[derive(Clone, Debug, Serialize)]
pub struct StorageStatus {
    /// Condition under which a write counts as stored.
    pub durability: DurabilityStatus,
    /// Free space of the file system of the data directory, in bytes.
    pub disk_available_bytes: u64,
    /// State of this free space.
    pub disk_room: DiskRoom,
    /// Free space below which writes are slowed down, in bytes.
    pub disk_soft_bytes: u64,
    /// Free space below which values are refused, in bytes.
    pub disk_reserve_bytes: u64,
    /// Number of bytes written to the write-ahead log.
    pub wal_bytes: u64,
    /// Tables by level, the newest level first.
    pub levels: Vec<LevelStatus>,
    /// Memory by use.
    pub memory: MemoryStatus,
    /// Background jobs.
    pub jobs: JobStatus,
    /// Calls of the file system.
    pub io: IoStatus,
}

/// One level of tables.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LevelStatus {
    /// Number of the level; 0 is the newest.
    pub level: u32,
    /// Number of tables.
    pub tables: u64,
    /// Size of the tables on disk, in bytes.
    pub bytes: u64,
}

/// Memory by use.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryStatus {
    /// Budget for all uses together, in bytes.
    pub budget_bytes: u64,
    /// Memory of memtables, in bytes.
    pub memtables_bytes: u64,
    /// Memory of flushed memtables that snapshots hold, in bytes.
    pub snapshots_bytes: u64,
    /// Memory of the block cache, in bytes.
    pub cache_bytes: u64,
    /// Memory of tables outside of the cache, in bytes.
    pub tables_bytes: u64,
    /// Memory of writes that wait for their group commit, in bytes.
    pub queue_bytes: u64,
    /// Memory of request bodies that arrive in pieces, in bytes.
    pub bodies_bytes: u64,
    /// Memory of values that arrived together with their requests, in bytes.
    pub writes_bytes: u64,
    /// Memory of large values that are being sent to clients, in bytes.
    pub replies_bytes: u64,
    /// Memory of open ranges, in bytes.
    pub ranges_bytes: u64,
    /// Memory of batches, in bytes.
    pub batches_bytes: u64,
    /// Memory of messages to and from other nodes, in bytes.
    pub peer_links_bytes: u64,
    /// Memory of client connections, in bytes.
    pub connections_bytes: u64,
}

/// Background jobs since the process started.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct JobStatus {
    /// Number of memtables flushed.
    pub flushes: u64,
    /// Size of the tables written by flushes, in bytes.
    pub flushed_bytes: u64,
    /// Number of finished compactions.
    pub compactions: u64,
    /// Size of the tables written by compactions, in bytes.
    pub compacted_bytes: u64,
}

/// Calls of the file system.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct IoStatus {
    /// Number of reads.
    pub reads: u64,
    /// Number of bytes read.
    pub read_bytes: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of bytes written.
    pub written_bytes: u64,
    /// Number of calls that waited for durability.
    pub syncs: u64,
}
