//! What is wrong with bytes of a link.

use stdx::codec::Truncated;

/// Why bytes are not frames of messages. The link they came over is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A frame begins with other bytes than any frame does.
    #[error("a frame begins with {found:#06x}, which no frame does")]
    Magic {
        /// What stands there.
        found: u16,
    },
    /// A frame of a version of the protocol that this build does not speak.
    #[error("a frame of protocol version {found}, which is not spoken here")]
    Version {
        /// Which version.
        found: u8,
    },
    /// A frame longer than any may be.
    #[error("a frame of {bytes} bytes is longer than any may be")]
    FrameLength {
        /// What it says of its length, in bytes.
        bytes: usize,
    },
    /// The bytes of a frame are not those that were sent.
    #[error("the checksum of a frame does not match")]
    Checksum,
    /// A kind of frame that is not known.
    #[error("a frame of unknown kind {kind}")]
    FrameKind {
        /// Which.
        kind: u8,
    },
    /// A message longer than any may be.
    #[error("a message of {bytes} bytes is longer than any may be here")]
    MessageLength {
        /// How long it is, in bytes.
        bytes: usize,
    },
    /// A fragment that continues no message, or not where it ended so far.
    #[error("a fragment does not fit what came before it")]
    Fragment,
    /// More messages travel in fragments at once than may.
    #[error("too many messages travel in fragments at once")]
    TooManyFragmented,
    /// A kind of message that is not known.
    #[error("a message of unknown kind {kind:#04x}")]
    MessageKind {
        /// Which.
        kind: u8,
    },
    /// A message that ends inside one of its fields.
    #[error("a message ends inside one of its fields")]
    Truncated,
    /// A field of a message has a value that it cannot have.
    #[error("a message has an impossible {field}")]
    Field {
        /// Which field.
        field: &'static str,
    },
}

impl From<Truncated> for WireError {
    fn from(Truncated: Truncated) -> Self {
        Self::Truncated
    }
}
