//! The protocol between nodes as bytes: frames, messages and the handshake.
//!
//! **Promise.** A message that one node pushes into an [`Outbox`] leaves the other node's [`Inbox`]
//! unchanged, or the link fails with a [`WireError`]. Damaged bytes are never decoded as a message.
//! No bytes from outside can cause a panic or exceed the memory limits. Before the first frame, a
//! [`handshake`] proves that both nodes know the cluster's secret and belong to the same cluster.
//!
//! **Mechanism.** A link begins as an HTTP [`upgrade`], followed by the messages of the handshake.
//! After that both directions carry frames until the link ends. `docs/wire-format.md` describes
//! every format byte by byte, and `tests/formats/` holds files of each released version.
//!
//! This crate reads no socket, clock or entropy: bytes go in and bytes come out.
//!
//! A request arrives with the epoch of the layout by which it was planned (`plan_epoch`).
//!
//! **Caveats.** Nothing is encrypted. The handshake authenticates the peers only when the link
//! begins: an attacker who can alter bytes afterwards can forge frames.

mod error;
mod frame;
pub mod handshake;
mod inbox;
mod message;
mod outbox;
mod plan_epoch;
mod reassembly;
pub mod upgrade;

pub use error::WireError;
pub use frame::{FRAME_HEADER_LEN, FRAME_PAYLOAD_MAX};
pub use inbox::{Inbox, InboxLimits, Incoming};
pub use outbox::{Outbox, OutboxLimits, PushError, PushOutcome};

/// Newest version of the protocol that this build speaks.
pub const PROTOCOL_VERSION: u8 = 5;

/// Oldest version of the protocol that this build speaks.
pub const PROTOCOL_VERSION_MIN: u8 = 1;

/// Maximum length of a message in bytes: the largest value with its key, or a chunk of a range that
/// exceeds its limit by one such value.
pub const MESSAGE_BYTES_MAX: usize = 72 << 20;

/// Maximum number of messages that are sent in fragments at the same time on one link.
pub const FRAGMENTED_MAX: usize = 4;
