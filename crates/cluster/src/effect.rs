//! Effects: the actions that a state machine requests from its driver.

use crate::{
    ClusterView, CopyObstacle, Destination, LinkAction, Message, NodeIndex, NodeSet, Reply, StallReason,
    StoreRequest, WaitTrace,
};
use limits::Deadline;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Hlc, WallTime};

/// Identifies a submitted command. Chosen by the submitter, unique among commands without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Identifies a request to the local store. Chosen by the state machine that makes it, which never
/// reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u64);

/// An action that a state machine requests. Effects are carried out in the order in which they are
/// returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Carry out a request on the local store, and pass its answer to `handle_stored` once.
    Store {
        /// Identifies the request in `handle_stored`.
        id: StoreId,
        /// The request.
        request: StoreRequest,
        /// Time after which the answer is not needed: a request that has not been started by then
        /// is answered with [`StoreFault::Expired`](crate::StoreFault::Expired).
        deadline: Deadline,
    },
    /// Send a message if the link is still open, else drop it.
    Send {
        /// The link.
        to: Destination,
        /// The message.
        message: Message,
    },
    /// Answer a client. This is the only and last effect that names this request.
    Reply {
        /// The command.
        to: RequestId,
        /// The answer.
        reply: Reply,
        /// The events that the reply waited for.
        wait: WaitTrace,
    },
    /// Open or close a link.
    Link(LinkAction),
    /// Only from `Node`: pass this view to every coordinator's `handle_view`.
    Publish(Arc<ClusterView>),
    /// An event for counters and logs.
    Event(Event),
}

/// An event that operators may want counted or logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write was acknowledged although a greater version was already stored.
    WriteSuperseded,
    /// An operation reached its deadline before its answers.
    DeadlinePassed,
    /// A request of this node or of a peer was dropped, because its deadline passed before it was
    /// started.
    Expired,
    /// A command was refused because too many are in flight.
    Refused,
    /// The wall clock is further behind the issued versions than a restart explains: it was set
    /// back. Reported once, until it has caught up.
    ClockBehind {
        /// The newest version clock issued.
        issued: Hlc,
    },
    /// A write was refused because its version is too far ahead of this node's clock.
    ClockAhead {
        /// The node that issued the version.
        node: NodeIndex,
    },
    /// A cell requested from a peer was not stored, because its version is too far ahead of this
    /// node's clock. Reported again each time it is requested.
    CellRefused {
        /// The node that holds the cell.
        node: NodeIndex,
    },
    /// A read asked one more replica because an answer was overdue.
    Hedged,
    /// Replicas answered a read differently, and the newest cell was sent to those with an older
    /// one.
    ReadRepaired {
        /// Whether the reply waited for it.
        blocking: bool,
    },
    /// A hint was dropped: the ledger was full, or the hint was too old.
    HintDropped {
        /// The node that the hint was for.
        target: NodeIndex,
    },
    /// A hinted cell reached its target.
    HintDelivered {
        /// The target.
        target: NodeIndex,
    },
    /// The last round of anti-entropy is recorded with a time in the future, by a clock that was
    /// wrong. The time is ignored, and a round begins.
    RoundInFuture {
        /// The recorded time.
        at: WallTime,
    },
    /// Anti-entropy skipped a range of keys, because a block is damaged here or on the peer.
    /// Reported again by each pass that meets it.
    RangeSkipped {
        /// The peer with which the range was not compared.
        node: NodeIndex,
    },
    /// Anti-entropy exchanged a cell.
    Repaired {
        /// The peer.
        node: NodeIndex,
    },
    /// This node begins to rebuild itself from the others, or continues after a start.
    RebuildBegan {
        /// The reason.
        why: RebuildReason,
    },
    /// This node has been rebuilt: it is eligible for reads from now on.
    RebuildEnded {
        /// Cells that were stored for the rebuild since the process started or the rebuild was
        /// restarted.
        cells: u64,
        /// The time since then.
        took: Duration,
        /// Nodes that were read and had not lost their own data. If there are none, no earlier data
        /// was recovered.
        from: NodeSet,
    },
    /// This node begins to copy the cells that it gains by a swap, or continues after a start.
    CopyBegan {
        /// The loser of the swap.
        loser: NodeIndex,
    },
    /// A copy cannot go on. Reported once, until it has gone on.
    CopyBlocked {
        /// The loser of the swap.
        loser: NodeIndex,
        /// The reason.
        by: CopyObstacle,
    },
    /// The running plan has made no progress for
    /// [`PLAN_STALLED_AFTER`](crate::PLAN_STALLED_AFTER). Reported once, until it has gone on.
    PlanStalled {
        /// The first event that it waits for.
        reason: StallReason,
    },
    /// This node durably holds all cells that it gains by a swap.
    CopyEnded {
        /// The loser of the swap.
        loser: NodeIndex,
        /// Number of cells.
        cells: u64,
        /// Size of their keys and values, in bytes.
        bytes: u64,
        /// Time since the process began to copy.
        took: Duration,
    },
    /// This node has settled with a new directory: none of the nodes that were heard remembers
    /// another directory at its address.
    SettledAsNew {
        /// Nodes that were not heard.
        unheard: NodeSet,
    },
}

/// The reason why a node rebuilds itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildReason {
    /// The data directory says so at the start: it had lost data, is a restored copy, or an earlier
    /// rebuild had not ended.
    Directory,
    /// The disk was lost: the data directory is new, and a peer remembers another one at this
    /// address.
    LostDisk {
        /// The peer.
        told_by: NodeIndex,
    },
    /// The data directory is an older state of itself, or a copy beside which another process ran:
    /// a peer remembers a generation that the directory does not know.
    OlderState {
        /// The peer.
        told_by: NodeIndex,
    },
    /// Peers refuse this process because they are linked with another process of this node: one of
    /// the two runs on a copy of the directory.
    Copy,
    /// The data directory is new, and a peer is rebuilding itself: that peer cannot tell which
    /// directory was here before.
    PeerRebuilds {
        /// The peer.
        peer: NodeIndex,
    },
}
