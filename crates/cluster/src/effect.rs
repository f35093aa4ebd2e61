//! What a coordinator wants done.

use crate::{Reply, StoreRequest};
use stdx::Hlc;

/// Names a submitted command; chosen by whoever submits, unique among those without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a request to the local store; chosen by the coordinator, never reused by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u64);

/// What a coordinator wants done, in the order in which it wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Carry this out on the local store and bring the answer to `handle_stored`, once.
    Store {
        /// Comes back with the answer.
        id: StoreId,
        /// What to do.
        request: StoreRequest,
    },
    /// Answer a user. The only effect that names this request, and the last.
    Reply {
        /// Which command.
        to: RequestId,
        /// The answer.
        reply: Reply,
    },
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
    /// A command was refused because too many are under way.
    Refused,
    /// The wall clock is further behind the versions already issued than a restart explains: it was set back.
    /// Said once, until it has caught up.
    ClockBehind {
        /// The newest version clock issued.
        issued: Hlc,
    },
}
