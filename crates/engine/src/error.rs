//! What can go wrong, and what to do about it.

use crate::sstable::NotOpened;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An error of the engine.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb: `"read"`, `"sync"`.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: std::sync::Arc<io::Error>,
    },
    /// Bytes on disk are not what was written.
    #[error("{} is corrupt at byte {offset}: {detail}", path.display())]
    Corrupt {
        /// In which file.
        path: PathBuf,
        /// Where the bad part begins.
        offset: u64,
        /// What is wrong with it.
        detail: String,
    },
    /// A file that was durable is missing, or shorter than it was known to be: the directory has come back with less
    /// than it had.
    #[error("{} {detail}", path.display())]
    Lost {
        /// The file.
        path: PathBuf,
        /// What of it is missing, as the rest of a sentence that begins with its path.
        detail: String,
    },
    /// The disk has no room for writes. Reads go on; writes do again when there is room.
    #[error("the disk is full: {} cannot grow", path.display())]
    Full {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// The process or the system has no file descriptor, or no memory for one, left to open a file. Nothing was done.
    #[error("cannot {operation} {}: {source}", path.display())]
    Exhausted {
        /// What was tried, as a verb: `"open"`.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: std::sync::Arc<io::Error>,
    },
    /// More waits than may wait. Nothing was stored.
    #[error("writes wait for flush and compaction; try again in {retry_after:?}")]
    Overloaded {
        /// When there will be room.
        retry_after: Duration,
    },
    /// The host has no room for what was to be read. Nothing was.
    #[error("there is no room in memory for a large value; try again in {retry_after:?}")]
    NoRoom {
        /// When there may be room.
        retry_after: Duration,
    },
    /// An earlier failure left the durability of writes unknown: the process must end and recover.
    #[error("the store stopped after a failed write to disk: {reason}")]
    Poisoned {
        /// The failure.
        reason: String,
    },
    /// Another process, or another engine of this one, has the directory.
    #[error("{} is in use by another process", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// What was asked makes no sense.
    #[error("{0}")]
    Invalid(String),
}

/// What a caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Try again later.
    Retry,
    /// Ask for something else.
    Invalid,
    /// Nothing, until whoever holds it lets go.
    Unavailable,
    /// Restore the file, or read another replica.
    Corrupt,
    /// Make room.
    Full,
    /// Look at the disk, then restart.
    Internal,
}

impl Error {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } | Self::Poisoned { .. } => ErrorKind::Internal,
            Self::Corrupt { .. } | Self::Lost { .. } => ErrorKind::Corrupt,
            Self::Full { .. } => ErrorKind::Full,
            Self::Overloaded { .. } | Self::NoRoom { .. } | Self::Exhausted { .. } => ErrorKind::Retry,
            Self::Locked { .. } => ErrorKind::Unavailable,
            Self::Invalid(_) => ErrorKind::Invalid,
        }
    }

    /// The file that could not be read back, if that is what went wrong.
    pub(crate) fn unreadable(&self) -> Option<&Path> {
        match self {
            Self::Corrupt { path, .. } | Self::Io { operation: "read" | "stat", path, .. } => Some(path),
            _ => None,
        }
    }

    /// Whether a file operation failed for lack of something that there may be again: room on the disk, descriptors.
    /// It can be undone and tried again.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Exhausted { .. })
    }

    /// The error of a file operation. A full disk becomes [`Error::Full`], and a file that could not be opened for lack
    /// of descriptors or memory [`Error::Exhausted`].
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        let (operation, source) = match source.downcast::<NotOpened>() {
            Ok(NotOpened(source)) => ("open", source),
            Err(source) => (operation, source),
        };
        let opens = matches!(operation, "open" | "create" | "list");
        match source.kind() {
            _ if env::is_out_of_descriptors(&source) => {
                Self::Exhausted { operation, path: path.to_owned(), source: source.into() }
            }
            io::ErrorKind::OutOfMemory if opens => {
                Self::Exhausted { operation, path: path.to_owned(), source: source.into() }
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path: path.to_owned() },
            _ => Self::Io { operation, path: path.to_owned(), source: source.into() },
        }
    }

    /// Bytes that are not what was written.
    pub(crate) fn corrupt(path: &Path, offset: u64, detail: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_owned(), offset, detail: detail.into() }
    }

    /// A file that is missing or shorter than it was.
    pub(crate) fn lost(path: &Path, detail: impl Into<String>) -> Self {
        Self::Lost { path: path.to_owned(), detail: detail.into() }
    }
}
