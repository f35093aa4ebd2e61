//! The protocol as a value: what a coordinator decides, with no socket, file, clock or thread in sight.
//!
//! **Promise.** Whatever reaches a [`Coordinator`] (a user's [`Command`], an answer of the local store, the
//! passing of time) goes in as an argument, and whatever it wants done comes out as an [`Effect`]. The same
//! inputs give the same effects, so that a process and a simulator drive the same code. Each command that is
//! submitted gets exactly one [`Reply`].
//!
//! **Mechanism.** One `Coordinator` for each I/O thread. The local replica is one more message target: it is
//! asked with [`Effect::Store`], and an acknowledgement is what [`Coordinator::handle_stored`] makes of its
//! answer, so nothing is acknowledged before the store said that it is durable. Versions come from the one
//! [`HybridClock`] of the process, which never hands out a value that a restart could hand out again.
//!
//! **Caveats.** The layout holds one node: every key has one replica, this one.

mod clock;
mod command;
mod coordinator;
mod effect;
mod quorum;
mod reply;
mod store_request;

pub use clock::{ClockExhausted, HybridClock};
pub use command::{Command, Key, KeyError, Lifetime, VALUE_BYTES_MAX_DEFAULT};
pub use coordinator::{Coordinator, Limits};
pub use effect::{Effect, Event, RequestId, StoreId};
pub use quorum::{Quorum, QuorumChoice, QuorumError, Tally};
pub use reply::{Acks, Failure, Reply};
pub use store_request::{StoreFault, StoreRequest, StoreResponse};
