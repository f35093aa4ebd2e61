//! What a machine wants done.

use crate::{ClusterView, Destination, LinkAction, Message, NodeIndex, Reply, StoreRequest, Wait};
use std::sync::Arc;
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
        wait: Wait,
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
    RangePassedOver {
        /// The peer with which the range was not compared.
        node: NodeIndex,
    },
    /// A cell was exchanged by anti-entropy.
    Repaired {
        /// With whom.
        node: NodeIndex,
    },
}
