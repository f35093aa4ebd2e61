//! Commands of clients, and keys.

use crate::{Quorum, Scan, ScanId};
use bytes::Bytes;
use std::fmt;
use std::time::Duration;
use stdx::WallTime;

/// Default limit of the size of a value, in bytes: 16 MiB.
pub const VALUE_BYTES_MAX_DEFAULT: usize = 16 << 20;

/// Key of an entity: 1 to [`Key::LEN_MAX`] arbitrary bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Bytes);

/// The reason why some bytes are not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// There are no bytes.
    #[error("a key has at least 1 byte")]
    Empty,
    /// There are more than [`Key::LEN_MAX`] bytes.
    #[error("a key has at most {} bytes, this one has {len}", Key::LEN_MAX)]
    TooLong {
        /// Number of bytes.
        len: usize,
    },
}

impl Key {
    /// Length of the longest key, in bytes.
    pub const LEN_MAX: usize = 8_192;

    /// Creates the key of these bytes.
    ///
    /// # Errors
    /// [`KeyError`] if there are no bytes or too many.
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

/// Lifetime of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until it is overwritten or deleted.
    Forever,
    /// For this duration from the moment the coordinator takes the write, by the coordinator's
    /// clock.
    For(Duration),
    /// Until this time, by the clock of the node that reads.
    Until(WallTime),
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Reads the newest value.
    Get {
        /// Key to read.
        key: Key,
        /// Replicas that must answer.
        quorum: Quorum,
    },
    /// Writes a value.
    Put {
        /// Key to write.
        key: Key,
        /// The value; may be empty.
        value: Bytes,
        /// Lifetime of the value.
        lifetime: Lifetime,
        /// Replicas that must acknowledge.
        quorum: Quorum,
    },
    /// Deletes the value, if there is one.
    Delete {
        /// Key to delete.
        key: Key,
        /// Replicas that must acknowledge.
        quorum: Quorum,
    },
    /// Begins a scan, and reads its first page.
    Scan {
        /// Identifies the scan in later commands.
        id: ScanId,
        /// Range, limit and scope of the scan.
        scan: Scan,
    },
    /// Reads the next page of a scan. Allowed only after the previous page was returned and was not
    /// the last.
    NextPage {
        /// The scan.
        id: ScanId,
    },
}
