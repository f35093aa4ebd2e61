//! What nodes say to each other, as bytes.
//!
//! **Promise.** What one node pushes into an [`Outbox`] comes out of the other's [`Inbox`] as it was, or the link
//! ends with a [`WireError`]: damaged bytes are never taken for a message, and no bytes from outside make a
//! process panic or hold more memory than the limits say. Before the first frame, a [`handshake`] proves that
//! both nodes know the cluster's secret and mean the same cluster.
//!
//! **Mechanism.** A link begins as an HTTP [`upgrade`]; then come the messages of the handshake; then frames
//! without end, in both directions. All formats are described byte by byte in `docs/wire-format.md`, and files of
//! each released version are kept in `tests/formats/`.
//!
//! Nothing here reads a socket, a clock or entropy: bytes go in and bytes come out.
//!
//! **Caveats.** Nothing is encrypted. The handshake proves who is there when the link begins; whoever can alter
//! bytes on their way afterwards can forge frames.

mod error;
mod frame;
pub mod handshake;
mod inbox;
mod message;
mod outbox;
mod reassembly;
pub mod upgrade;

pub use error::WireError;
pub use frame::{FRAME_HEADER_LEN, FRAME_PAYLOAD_MAX};
pub use inbox::{Inbox, InboxLimits, Incoming};
pub use outbox::{Outbox, OutboxFull, OutboxLimits, Pushed};

/// The newest version of the protocol that this build speaks.
pub const PROTOCOL_VERSION: u8 = 3;

/// The oldest version of the protocol that this build speaks.
pub const PROTOCOL_VERSION_MIN: u8 = 1;

/// The longest message, in bytes: the largest value with its key, or a chunk of a range that passes its bound
/// with one such value.
pub const MESSAGE_BYTES_MAX: usize = 72 << 20;

/// Messages that travel in fragments at the same time on one link, at most.
pub const FRAGMENTED_MAX: usize = 4;
