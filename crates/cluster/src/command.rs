//! What a user asks for.

use crate::{Quorum, Scan, ScanId};
use bytes::Bytes;
use std::fmt;
use std::time::Duration;
use stdx::WallTime;

/// The largest value that is accepted unless configured otherwise, in bytes: 16 MiB.
pub const VALUE_BYTES_MAX_DEFAULT: usize = 16 << 20;

/// The key of an entity: 1 to [`Key::LEN_MAX`] bytes, any bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Bytes);

/// Why some bytes are not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No bytes at all.
    #[error("a key has at least 1 byte")]
    Empty,
    /// More than [`Key::LEN_MAX`] bytes.
    #[error("a key has at most {} bytes, this one has {len}", Key::LEN_MAX)]
    TooLong {
        /// How many it has.
        len: usize,
    },
}

impl Key {
    /// The longest key, in bytes.
    pub const LEN_MAX: usize = 8_192;

    /// The key of these bytes.
    ///
    /// # Errors
    /// [`KeyError`] when there are none or too many.
    pub fn new(bytes: Bytes) -> Result<Self, KeyError> {
        match bytes.len() {
            0 => Err(KeyError::Empty),
            len if len > Self::LEN_MAX => Err(KeyError::TooLong { len }),
            _ => Ok(Self(bytes)),
        }
    }

    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// How long a value lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until it is overwritten or deleted.
    Forever,
    /// For this long from the moment the coordinator takes the write, by the coordinator's clock.
    For(Duration),
    /// Until this time, by the clock of whoever reads.
    Until(WallTime),
}

/// A request for one entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read the newest value.
    Get {
        /// Of this key.
        key: Key,
        /// From so many replicas.
        quorum: Quorum,
    },
    /// Write a value.
    Put {
        /// Under this key.
        key: Key,
        /// The value; may be empty.
        value: Bytes,
        /// How long it lives.
        lifetime: Lifetime,
        /// On so many replicas.
        quorum: Quorum,
    },
    /// Delete the value, if any.
    Delete {
        /// Of this key.
        key: Key,
        /// On so many replicas.
        quorum: Quorum,
    },
    /// Begin a scan; its first page.
    Scan {
        /// Names it from now on.
        id: ScanId,
        /// What is wanted.
        scan: Scan,
    },
    /// The next page of a scan. Only when its last page has come, and was not the last of all.
    NextPage {
        /// Which scan.
        id: ScanId,
    },
}
