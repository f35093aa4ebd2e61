//! Errors of the bytes of a link.

use stdx::codec::Truncated;

/// Error in the bytes of a link. The link cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A frame does not begin with the magic bytes.
    #[error("a frame begins with {found:#06x} instead of the magic bytes")]
    Magic {
        /// The bytes found in their place.
        found: u16,
    },
    /// A frame has a version of the protocol that this build does not speak.
    #[error("a frame has protocol version {found}, which this build does not speak")]
    Version {
        /// Version of the frame.
        found: u8,
    },
    /// A frame is longer than [`FRAME_PAYLOAD_MAX`](crate::FRAME_PAYLOAD_MAX).
    #[error("a frame of {bytes} bytes exceeds the limit")]
    FrameLength {
        /// Length of the payload in bytes, as the frame states it.
        bytes: usize,
    },
    /// The checksum of a frame does not match its bytes.
    #[error("the checksum of a frame does not match")]
    Checksum,
    /// A frame has an unknown kind.
    #[error("a frame has the unknown kind {kind}")]
    FrameKind {
        /// Kind of the frame.
        kind: u8,
    },
    /// A message is longer than the limit.
    #[error("a message of {bytes} bytes exceeds the limit")]
    MessageLength {
        /// Length of the message in bytes.
        bytes: usize,
    },
    /// A fragment does not continue its message at the end of the previous fragment.
    #[error("a fragment does not continue its message")]
    Fragment,
    /// More than [`FRAGMENTED_MAX`](crate::FRAGMENTED_MAX) messages, or more bytes than the limit,
    /// are in fragments at the same time.
    #[error("too many messages are in fragments at the same time")]
    TooManyFragmented,
    /// A message has an unknown kind.
    #[error("a message has the unknown kind {kind:#04x}")]
    MessageKind {
        /// Kind of the message.
        kind: u8,
    },
    /// A message ends inside one of its fields.
    #[error("a message ends inside one of its fields")]
    Truncated,
    /// A field of a message has an invalid value.
    #[error("a message has an invalid {field}")]
    Field {
        /// Name of the field.
        field: &'static str,
    },
}

impl From<Truncated> for WireError {
    fn from(Truncated: Truncated) -> Self {
        Self::Truncated
    }
}
