//! Errors of operator commands. Their texts address the operator.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Reason why a backup, restore, verification, export or import ended early.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// A file operation failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// Operation that failed, as a verb.
        operation: &'static str,
        /// File or directory of the operation.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The disk is full.
    #[error("the disk is full: {} cannot be written; free disk space, then repeat the command", path.display())]
    Full {
        /// File that could not be written.
        path: PathBuf,
    },
    /// There is less free space than required.
    #[error("{} has {available} free bytes, and {needed} are needed", path.display())]
    NoRoom {
        /// Directory to be written to.
        path: PathBuf,
        /// Required bytes.
        needed: u64,
        /// Available bytes.
        available: u64,
    },
    /// Another process uses the repository.
    #[error("the backup repository {} is in use by another process; wait until that process ends", path.display())]
    Locked {
        /// Directory of the repository.
        path: PathBuf,
    },
    /// The directory to read backups from is not a repository.
    #[error(
        "the directory {} is not a backup repository: it has no file veche-backups; name the directory that \
         `veche backup --to` was given",
        path.display()
    )]
    NotARepository {
        /// Directory that was given.
        path: PathBuf,
    },
    /// The directory for a new repository holds other files.
    #[error(
        "the directory {} is not a backup repository and holds other files; name an empty directory, or one \
         that does not exist yet",
        path.display()
    )]
    RepositoryNotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The repository belongs to another node.
    #[error(
        "the backup repository {} holds backups of node {holds}, and this is node {found}; use a separate directory for \
         each node, and a new one for a node that was rebuilt",
        path.display()
    )]
    OtherNode {
        /// Directory of the repository.
        path: PathBuf,
        /// Tag of the node whose backups it holds.
        holds: String,
        /// Tag of the node to be backed up.
        found: String,
    },
    /// The requested backup does not exist.
    #[error("the backup repository {} {}", path.display(), match (wanted, there.as_slice()) {
        (_, []) => "holds no backup".to_owned(),
        (None, _) => "holds no such backup".to_owned(),
        (Some(wanted), there) => format!("holds no backup {wanted}; it holds {}", there.join(", ")),
    })]
    NoBackup {
        /// Directory of the repository.
        path: PathBuf,
        /// Requested backup; `None` for the newest.
        wanted: Option<String>,
        /// Existing backups.
        there: Vec<String>,
    },
    /// A file differs from what was written.
    #[error("{} is damaged: {detail}", path.display())]
    Damaged {
        /// Damaged file.
        path: PathBuf,
        /// Description of the damage.
        detail: String,
    },
    /// The target directory of a restore is not empty.
    #[error("{} is not empty: it holds {found}; restore to an empty or new directory", path.display())]
    NotEmpty {
        /// Target directory.
        path: PathBuf,
        /// Name of one of its entries.
        found: String,
    },
    /// A restore failed, and its files could not be removed.
    #[error("{error}; remove the files in {} by hand, because this failed: {left}", path.display())]
    NotCleanedUp {
        /// Target directory.
        path: PathBuf,
        /// Error of the restore.
        #[source]
        error: Box<CtlError>,
        /// Error of removing the files.
        left: Box<CtlError>,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// The file to be created exists already.
    #[error("{} exists already; remove it, or write to another file", path.display())]
    FileExists {
        /// Existing file.
        path: PathBuf,
    },
    /// The output of an export cannot be written.
    #[error("cannot write the export: {source}")]
    Output {
        /// Error of the system.
        source: io::Error,
    },
    /// This process cannot read the checkpoint that the node made.
    #[error(
        "the checkpoint of {node} is in {}, which cannot be read here ({source}): run this command on the node's machine, \
         as a user who may read its data directory",
        path.display()
    )]
    CheckpointUnreadable {
        /// Address of the node.
        node: String,
        /// Path on the node's machine.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The node named a directory that is not that of the requested checkpoint.
    #[error(
        "{node} says that its checkpoint is {}, which is not the directory of the requested checkpoint: nothing \
         was read there. Check that a veche node listens at this address",
        path.display()
    )]
    UnexpectedCheckpointPath {
        /// Address of the node.
        node: String,
        /// Path that the node named.
        path: PathBuf,
    },
    /// No connection to the node can be established.
    #[error("{node} cannot be reached: {detail}")]
    Unreachable {
        /// Address of the node.
        node: String,
        /// Description of the failure.
        detail: String,
    },
    /// The server at the address is not a node.
    #[error("{node} does not answer as a veche node does: check the address")]
    NotANode {
        /// The address.
        node: String,
    },
    /// The node refused the request.
    #[error("{node} answers {status}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Refused {
        /// Address of the node.
        node: String,
        /// Status of the response.
        status: u16,
        /// Detail of the node's problem document.
        detail: String,
        /// Value of `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The node still refuses a checkpoint after the longest wait for it.
    #[error(
        "{refused} (it was asked again for {} s; the checkpoints that it keeps: curl {node}/v0/checkpoint)",
        waited.as_secs()
    )]
    StillRefused {
        /// Address of the node.
        node: String,
        /// Time of waiting.
        waited: Duration,
        /// The last refusal.
        refused: Box<CtlError>,
    },
    /// The node's checkpoint was removed while it was copied.
    #[error(
        "the checkpoint of {node} was removed while it was copied, and so was a second one ({error}): another          client removes checkpoints, or the node was started again; repeat the command once that has ended"
    )]
    CheckpointRemoved {
        /// Address of the node.
        node: String,
        /// Error of copying the second one.
        error: Box<CtlError>,
    },
    /// The node's response is incomplete or malformed.
    #[error("the response of {node} is incomplete: {detail}")]
    BrokenAnswer {
        /// Address of the node.
        node: String,
        /// Description of the failure.
        detail: String,
    },
    /// The observer cancelled the operation.
    #[error("cancelled")]
    Cancelled,
}

/// Class of a [`CtlError`], by the operator's remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtlErrorKind {
    /// Repeat the command, now or later.
    Retry,
    /// Change the arguments.
    Invalid,
    /// Use another backup or copy.
    Corrupt,
    /// Free disk space.
    Full,
    /// Examine the machine.
    Internal,
}

impl CtlError {
    /// Class of the error.
    pub fn kind(&self) -> CtlErrorKind {
        match self {
            Self::Locked { .. } | Self::Cancelled | Self::Unreachable { .. } | Self::BrokenAnswer { .. } => {
                CtlErrorKind::Retry
            }
            Self::Refused { status: 503 | 504, .. } => CtlErrorKind::Retry,
            Self::Refused { status: 507, .. } => CtlErrorKind::Full,
            Self::NotARepository { .. }
            | Self::RepositoryNotEmpty { .. }
            | Self::OtherNode { .. }
            | Self::NoBackup { .. }
            | Self::NotEmpty { .. }
            | Self::FileExists { .. }
            | Self::CheckpointUnreadable { .. }
            | Self::UnexpectedCheckpointPath { .. }
            | Self::NotANode { .. }
            | Self::Refused { .. } => CtlErrorKind::Invalid,
            Self::Damaged { .. } => CtlErrorKind::Corrupt,
            Self::Full { .. } | Self::NoRoom { .. } => CtlErrorKind::Full,
            Self::CheckpointRemoved { .. } => CtlErrorKind::Retry,
            Self::NotCleanedUp { error, .. } | Self::StillRefused { refused: error, .. } => error.kind(),
            Self::Io { .. } | Self::Output { .. } | Self::Store(_) => CtlErrorKind::Internal,
        }
    }

    /// Time after which the node takes the same request, if it said that.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { status: 503, retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Maps the error of a file operation. A full disk becomes [`CtlError::Full`].
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
