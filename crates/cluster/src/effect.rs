//! What a machine wants done.

use crate::{
    ClusterView, Destination, LinkAction, Message, NodeIndex, NodeSet, Reply, StoreRequest, WaitTrace,
};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Hlc, Instant, WallTime};

/// Names a submitted command; chosen by whoever submits, unique among those without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a request to the local store; chosen by the machine that makes it, never reused by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u64);

/// What a machine wants done, in the order in which it wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Carry this out on the local store and bring the answer to `handle_stored`, once.
    Store {
        /// Comes back with the answer.
        id: StoreId,
        /// What to do.
        request: StoreRequest,
        /// Nobody waits for it past this time: what has not been begun by then is answered with
        /// [`StoreFault::Expired`](crate::StoreFault::Expired). `None`: it is to be done whenever.
        deadline: Option<Instant>,
    },
    /// Send this, if the link is still open; else forget it.
    Send {
        /// Over which link.
        to: Destination,
        /// What.
        message: Message,
    },
    /// Answer a user. The only effect that names this request, and the last.
    Reply {
        /// Which command.
        to: RequestId,
        /// The answer.
        reply: Reply,
        /// What it waited for.
        wait: WaitTrace,
    },
    /// Open or close a link.
    Link(LinkAction),
    /// Only from `Node`: bring this to every coordinator's `handle_view`.
    Publish(Arc<ClusterView>),
    /// Something that an operator may want counted or told.
    Event(Event),
}

/// Something that an operator may want counted or told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write was acknowledged although a greater version was already there.
    WriteSuperseded,
    /// An operation reached its deadline before its answers.
    DeadlinePassed,
    /// What nobody waited for any more was dropped when its turn came, here or for a peer.
    Expired,
    /// A command was refused because too many are under way.
    Refused,
    /// The wall clock is further behind the versions already issued than a restart explains: it was set back.
    /// Said once, until it has caught up.
    ClockBehind {
        /// The newest version clock issued.
        issued: Hlc,
    },
    /// A write was refused because its version is too far ahead of this node's clock.
    ClockAhead {
        /// Whose version it is.
        node: NodeIndex,
    },
    /// A cell that this node asked a peer for was not stored because its version is too far ahead of this node's clock.
    /// Told again whenever it is asked for again.
    CellRefused {
        /// Who holds it.
        node: NodeIndex,
    },
    /// A read asked one more replica because an answer was late.
    Hedged,
    /// Replicas that answered a read differed, and the older were sent the newest cell.
    ReadRepaired {
        /// The reply waited for it.
        blocking: bool,
    },
    /// A hint was given up: no room for it, or kept for too long.
    HintDropped {
        /// For whom.
        target: NodeIndex,
    },
    /// A hinted cell reached its target.
    HintDelivered {
        /// Who.
        target: NodeIndex,
    },
    /// The last round of anti-entropy is recorded with a time in the future, by a clock that was wrong. The time is
    /// ignored, and a round begins.
    RoundInFuture {
        /// The recorded time.
        at: WallTime,
    },
    /// Anti-entropy passed over a range of keys, because a block is damaged here or on the peer. Told again by each
    /// pass that meets it.
    RangeSkipped {
        /// The peer with which the range was not compared.
        node: NodeIndex,
    },
    /// A cell was exchanged by anti-entropy.
    Repaired {
        /// With whom.
        node: NodeIndex,
    },
    /// This node begins to rebuild itself from the others, or goes on with that after a start.
    RebuildBegan {
        /// Why.
        why: RebuildReason,
    },
    /// This node has been rebuilt: its answers to reads count from now on.
    RebuildEnded {
        /// Cells that were stored for that since the process started or the rebuild began anew.
        cells: u64,
        /// The time since then.
        took: Duration,
        /// Nodes that were read and had not lost their own data. If there is none, nothing of before came back.
        from: NodeSet,
    },
    /// This node has settled with a new directory: no node that was heard remembers another one at its address.
    SettledAsNew {
        /// Nodes that were not heard.
        unheard: NodeSet,
    },
}

/// Why a node rebuilds itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildReason {
    /// The data directory said so at the start: it had lost data, is a restored copy, or an earlier rebuild had not ended.
    Directory,
    /// The data directory is new, and a peer remembers another one at this address: a lost disk.
    LostDisk {
        /// The peer.
        told_by: NodeIndex,
    },
    /// The data directory is an older state of itself, or a copy beside which another one ran: a peer remembers a life
    /// that it does not know.
    OlderState {
        /// The peer.
        told_by: NodeIndex,
    },
    /// Peers refuse this process because they are linked with another one of this node: one of the two runs on a copy of
    /// the directory.
    Copy,
    /// The data directory is new, and a peer rebuilds itself: that peer cannot tell what was before.
    PeerRebuilds {
        /// The peer.
        peer: NodeIndex,
    },
}
