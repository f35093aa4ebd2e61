//! The document of `GET /v0/status`.
//!
//! Sizes are in bytes, times in milliseconds unless the name says otherwise; counters count from the start of the
//! process.

use cluster::{PeerState, PeerStatus, RepairKind, RepairStatus, SyncState};
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
    /// This node as a member of the cluster; nothing before it has recovered.
    pub cluster: Option<ClusterStatus>,
    /// Connections to and from other nodes.
    pub links: LinkStatus,
    /// What a request gets that asks for nothing else.
    pub default_quorum: QuorumStatus,
    /// The version clock.
    pub clock: ClockStatus,
    /// What waits or is under way.
    pub queues: QueueStatus,
    /// What happened to requests, where it was out of the ordinary.
    pub requests: RequestStatus,
    /// Ranges that are being sent.
    pub ranges: RangeStatus,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Where it is reached.
    pub url: String,
    /// It is the one that says all this.
    #[serde(rename = "self")]
    pub is_self: bool,
    /// Whether it answers.
    pub state: NodeState,
    /// Whether its answers to reads count; nothing before that is known.
    #[serde(rename = "standing")]
    pub sync_state: Option<NodeSyncState>,
    /// Whether it refuses values for lack of room on its disk.
    pub disk_full: bool,
    /// Hints that this node keeps for it: writes that it missed.
    pub hints: u64,
    /// Bytes that they take.
    pub hints_bytes: u64,
    /// Hints for it that this node had no room for or kept too long; anti-entropy makes up for them.
    pub hints_dropped: u64,
    /// How far its wall clock is ahead of this node's, less than 0 when it is behind.
    pub clock_ahead_ms: i64,
    /// From a heartbeat to its answer, in microseconds; nothing while it does not answer.
    pub round_trip_us: Option<u64>,
    /// How many nodes hold a key when a request to it does not say it; nothing before it has told.
    pub default_from: Option<u8>,
}

/// Whether a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Nothing has been heard of it yet.
    Unknown,
    /// It does.
    Up,
    /// It is late.
    Suspected,
    /// It does not: operations do not wait for it.
    Unreachable,
}

/// Whether a node's answers to reads count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeSyncState {
    /// Its directory is new, and it does not know yet whether it stands for a lost one.
    Unsettled,
    /// It lost its data and is being filled by the others.
    Rebuilding,
    /// They do.
    Settled,
}

/// This node as a member of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterStatus {
    /// Whether its answers to reads count.
    #[serde(rename = "standing")]
    pub sync_state: NodeSyncState,
    /// Each peer is linked or unreachable, and the hints that reachable peers keep for this node are applied.
    pub ready: bool,
    /// The pass over all keys under way.
    pub repair: Option<RepairProgress>,
    /// When the last pass ended, in milliseconds since 1970 by this node's clock.
    pub repaired_at_ms: Option<u64>,
    /// Keys of which the newest cell was refused, since its version lies too far in the future: reads of them fail here.
    pub refused_keys: usize,
}

/// A pass over all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RepairProgress {
    /// It fills this node, which lost its data, ...
    pub rebuilding: bool,
    /// ... or gets from the others what a damaged table has lost; otherwise it compares this node with them.
    pub healing: bool,
    /// The part of the keys passed, in thousandths; an estimate.
    pub permille: u16,
    /// Cells taken from other nodes or sent to them.
    pub cells: u64,
}

/// Connections to and from other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStatus {
    /// Open links that this node dialed.
    pub dialed: u64,
    /// Open links that it accepted.
    pub accepted: u64,
    /// Links refused by this node or to it: another list, another secret, another protocol.
    pub refused: u64,
    /// Messages sent.
    pub sent_messages: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Calls to the operating system that sent them.
    pub write_calls: u64,
    /// Messages received.
    pub received_messages: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

impl NodeStatus {
    /// A node of which nothing is known but where it is.
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

    /// A node of which this is known.
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
            repaired_at_ms: node.repaired_at.map(|at| at.micros_since_unix_epoch() / 1_000),
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

/// Ranges that are being sent.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RangeStatus {
    /// To users of this node.
    pub open: u64,
    /// Snapshots kept for pages to come, for ranges of this node and of others.
    pub snapshots: u64,
}

/// What happened to requests, where it was out of the ordinary.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RequestStatus {
    /// Writes acknowledged although a greater version was already there.
    pub superseded: u64,
    /// Requests that reached their deadline.
    pub deadlines_passed: u64,
    /// Requests for which too few replicas answered, at their deadline or before.
    pub not_enough_replicas: u64,
    /// Requests and connections refused because there was no room for them.
    pub refused: u64,
    /// Writes refused because their versions were too far ahead of this node's clock.
    pub clock_ahead: u64,
    /// Reads that asked one more replica because an answer was late.
    pub hedged: u64,
    /// Reads whose answers differed, repaired before the reply.
    pub repaired_before_reply: u64,
    /// Reads whose answers differed, repaired after the reply.
    pub repaired_after_reply: u64,
    /// Hinted writes that reached the node they were kept for.
    pub hints_delivered: u64,
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

/// How much room there is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskRoom {
    /// Enough.
    Enough,
    /// Little: writes are slowed.
    Short,
    /// None: values are refused.
    Full,
}

/// The local store.
#[derive(Clone, Debug, Serialize)]
pub struct StorageStatus {
    /// When a write counts as stored.
    pub durability: Durability,
    /// Bytes that may still be written to the file system of the data directory.
    pub disk_available_bytes: u64,
    /// What that comes to.
    pub disk_room: DiskRoom,
    /// With less than this, writes are slowed.
    pub disk_soft_bytes: u64,
    /// With less than this, values are refused.
    pub disk_reserve_bytes: u64,
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
    /// In memtables that were flushed and that snapshots hold.
    pub snapshots_bytes: u64,
    /// In the block cache.
    pub cache_bytes: u64,
    /// CheckpointDocument for tables outside the cache.
    pub tables_bytes: u64,
    /// In writes that wait for their group commit.
    pub queue_bytes: u64,
    /// In bodies of requests that come piece by piece.
    pub bodies_bytes: u64,
    /// In values that came at once with their requests.
    pub writes_bytes: u64,
    /// In large values on their way to readers.
    pub replies_bytes: u64,
    /// In open ranges.
    pub ranges_bytes: u64,
    /// In batches.
    pub batches_bytes: u64,
    /// In messages to and from other nodes.
    pub peer_links_bytes: u64,
    /// In connections of users.
    pub connections_bytes: u64,
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
    /// Size of the tables they wrote.
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
