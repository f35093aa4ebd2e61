//! Errors of the engine, and the reaction that each calls for.

use crate::sstable::OpenFailed;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An error of the engine.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb: `"read"`, `"sync"`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::sync::Arc<io::Error>,
    },
    /// Bytes on disk differ from the bytes written.
    #[error("{} is corrupt at byte {offset}: {detail}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Offset of the damaged part, in bytes.
        offset: u64,
        /// Description of the damage.
        detail: String,
    },
    /// A durable file is missing, or shorter than it was: the directory has lost data since it was
    /// last open.
    #[error("{} {detail}", path.display())]
    Lost {
        /// The file.
        path: PathBuf,
        /// The missing part, as the rest of a sentence that begins with the path.
        detail: String,
    },
    /// The disk has no space for writes. Reads go on; writes resume when there is space.
    #[error("the disk is full: {} cannot grow", path.display())]
    Full {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// No file descriptor, or no memory for one, is left to open a file. Nothing was changed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Exhausted {
        /// The operation, as a verb: `"open"`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::sync::Arc<io::Error>,
    },
    /// The write backlog is at its bound. Nothing was stored.
    #[error("writes wait for flush and compaction; try again in {retry_after:?}")]
    Overloaded {
        /// Estimated time until there is space.
        retry_after: Duration,
    },
    /// The host's memory budget has no space for the value to be read. Nothing was read.
    #[error("there is no memory for a large value; try again in {retry_after:?}")]
    NoRoom {
        /// Estimated time until there is space.
        retry_after: Duration,
    },
    /// An earlier failure left the durability of writes unknown: the process must end and recover.
    #[error("the store stopped after a failed write to disk: {reason}")]
    Poisoned {
        /// The failure.
        reason: String,
    },
    /// Another process, or another engine of this process, has the directory open.
    #[error("{} is in use by another process", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// The argument is invalid.
    #[error("{0}")]
    Invalid(String),
}

/// The reaction that an [`Error`] calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Retry later.
    Retry,
    /// Correct the request.
    Invalid,
    /// Wait until the other process closes the directory.
    Unavailable,
    /// Restore the file, or read another replica.
    Corrupt,
    /// Free disk space.
    Full,
    /// Check the disk, then restart.
    Internal,
}

impl Error {
    /// The reaction that this error calls for.
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

    /// The file that could not be read back, if that is the cause.
    pub(crate) fn unreadable(&self) -> Option<&Path> {
        match self {
            Self::Corrupt { path, .. } | Self::Io { operation: "read" | "stat", path, .. } => Some(path),
            _ => None,
        }
    }

    /// Whether a file operation failed for lack of a resource that may become available: disk space
    /// or file descriptors. The operation can be undone and retried.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Exhausted { .. })
    }

    /// Wraps the error of a file operation. A full disk becomes [`Error::Full`]; lack of
    /// descriptors or memory to open a file becomes [`Error::Exhausted`].
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        let (operation, source) = match source.downcast::<OpenFailed>() {
            Ok(OpenFailed(source)) => ("open", source),
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

    /// An [`Error::Corrupt`].
    pub(crate) fn corrupt(path: &Path, offset: u64, detail: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_owned(), offset, detail: detail.into() }
    }

    /// An [`Error::Lost`].
    pub(crate) fn lost(path: &Path, detail: impl Into<String>) -> Self {
        Self::Lost { path: path.to_owned(), detail: detail.into() }
    }
}
