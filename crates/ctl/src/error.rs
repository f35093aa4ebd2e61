//! Why something could not be done for an operator, as sentences for one.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a backup, a restore, a check, an export or an import ended early.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// The operating system refused a file operation.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no room for what is to be written.
    #[error("the disk is full: {} cannot be written; make room, then do this again", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// There is less room than will be needed.
    #[error("{} has room for {available} bytes, and {needed} are needed", path.display())]
    NoRoom {
        /// The directory.
        path: PathBuf,
        /// Bytes to be written.
        needed: u64,
        /// Bytes that fit.
        available: u64,
    },
    /// Another process works on the repository.
    #[error("the backup repository {} is in use by another process; wait until that is done", path.display())]
    Locked {
        /// The repository.
        path: PathBuf,
    },
    /// A directory that holds something else than backups, or nothing.
    #[error("{} is not a backup repository{}", path.display(), if *is_empty { "" } else { ", but holds files; use an empty directory" })]
    NotARepository {
        /// The directory.
        path: PathBuf,
        /// Nothing is there.
        is_empty: bool,
    },
    /// The repository belongs to another node.
    #[error(
        "the backup repository {} holds backups of node {holds}, and this is node {found}; give each node a directory of \
         its own, and a node that was rebuilt a new one",
        path.display()
    )]
    OtherNode {
        /// The repository.
        path: PathBuf,
        /// Whose backups it holds.
        holds: String,
        /// Whose was to be added.
        found: String,
    },
    /// There is no such backup.
    #[error("the backup repository {} {}", path.display(), match (wanted, there.as_slice()) {
        (_, []) => "holds no backup".to_owned(),
        (None, _) => "holds no such backup".to_owned(),
        (Some(wanted), there) => format!("holds no backup {wanted}; it holds {}", there.join(", ")),
    })]
    NoBackup {
        /// The repository.
        path: PathBuf,
        /// Which was asked for; `None`: the newest.
        wanted: Option<String>,
        /// Which there are.
        there: Vec<String>,
    },
    /// A file is not what was written.
    #[error("{} is damaged: {detail}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// Where a node is to be restored, something is.
    #[error("{} is not empty: it holds {found}; restore to a directory of its own", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// One of the names in it.
        found: String,
    },
    /// What a restore had made before it failed could not be removed.
    #[error("{error}; what was made in {} is to be removed by hand: {left}", path.display())]
    LeftBehind {
        /// The directory.
        path: PathBuf,
        /// Why the restore failed.
        #[source]
        error: Box<CtlError>,
        /// Why it was not removed.
        left: Box<CtlError>,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// A file is there already that would be made.
    #[error("{} is there already; remove it, or write to another file", path.display())]
    Taken {
        /// The file.
        path: PathBuf,
    },
    /// What an export is written to takes no more.
    #[error("cannot write what is exported: {source}")]
    Output {
        /// What the system said.
        source: io::Error,
    },
    /// The node has made a checkpoint where this process cannot read it.
    #[error(
        "the checkpoint of {node} is in {}, which cannot be read here ({source}): do this on the node's machine, as a user \
         who may read its data directory",
        path.display()
    )]
    OutOfReach {
        /// The node's address.
        node: String,
        /// Where it is on the node's machine.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The node names another directory than that of the checkpoint it was asked for.
    #[error(
        "{node} says that its checkpoint is {}, which is not where a node keeps the checkpoint that it was asked for: nothing \
         was read there. Is it a veche node that answers at this address?",
        path.display()
    )]
    NotTheCheckpoint {
        /// The node's address.
        node: String,
        /// What it named.
        path: PathBuf,
    },
    /// No connection to the node comes about.
    #[error("{node} cannot be reached: {detail}")]
    Unreachable {
        /// Its address.
        node: String,
        /// Why.
        detail: String,
    },
    /// The node does not do what it is asked.
    #[error("{node} answers {status}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Refused {
        /// Its address.
        node: String,
        /// The status of its answer.
        status: u16,
        /// What it says.
        detail: String,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// The node's answer is not whole, or not one of a node.
    #[error("the answer of {node} broke off: {detail}")]
    BrokenOff {
        /// Its address.
        node: String,
        /// How.
        detail: String,
    },
    /// Whoever watched has ended it.
    #[error("stopped before it was done")]
    Cancelled,
}

/// What an operator can do about a [`CtlError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtlErrorKind {
    /// Do it again, now or later.
    Retry,
    /// Ask for something else.
    Invalid,
    /// Use another backup or copy.
    Corrupt,
    /// Make room.
    Full,
    /// Look at the machine.
    Internal,
}

impl CtlError {
    /// What an operator can do about it.
    pub fn kind(&self) -> CtlErrorKind {
        match self {
            Self::Locked { .. } | Self::Cancelled | Self::Unreachable { .. } | Self::BrokenOff { .. } => {
                CtlErrorKind::Retry
            }
            Self::Refused { status: 503 | 504, .. } => CtlErrorKind::Retry,
            Self::Refused { status: 507, .. } => CtlErrorKind::Full,
            Self::NotARepository { .. }
            | Self::OtherNode { .. }
            | Self::NoBackup { .. }
            | Self::NotEmpty { .. }
            | Self::Taken { .. }
            | Self::OutOfReach { .. }
            | Self::NotTheCheckpoint { .. }
            | Self::Refused { .. } => CtlErrorKind::Invalid,
            Self::Damaged { .. } => CtlErrorKind::Corrupt,
            Self::Full { .. } | Self::NoRoom { .. } => CtlErrorKind::Full,
            Self::LeftBehind { error, .. } => error.kind(),
            Self::Io { .. } | Self::Output { .. } | Self::Store(_) => CtlErrorKind::Internal,
        }
    }

    /// For `map_err` on a file operation; a full disk becomes [`CtlError::Full`].
    pub(crate) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path },
            _ => Self::Io { operation, path, source },
        }
    }

    pub(crate) fn damaged(path: &Path, detail: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), detail: detail.into() }
    }
}
