//! Errors of opening, copying and restoring a data directory.

use crate::identity_mismatch::IdentityMismatch;
use cluster::{ClusterId, LayoutEpoch};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Reason why a data directory cannot be opened, copied or restored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process uses the directory.
    #[error("the data directory {} is in use by another process; stop it, or use another --data", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// The operating system refused a file operation.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The attempted operation, as a verb.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The identity file is corrupt.
    #[error("{} is corrupt: {detail}; restore it from a backup of this node, or move the data directory away", path.display())]
    IdentityCorrupt {
        /// The file.
        path: PathBuf,
        /// Description of the defect.
        detail: String,
    },
    /// The file `alive` is corrupt.
    #[error(
        "{} is corrupt: {detail}; remove it if the node was running in the last days, else move the data directory away",
        path.display()
    )]
    AliveCorrupt {
        /// The file.
        path: PathBuf,
        /// Description of the defect.
        detail: String,
    },
    /// The log mark is corrupt.
    #[error(
        "{} is corrupt: {detail}; to start without the check that nothing of the log is missing: echo unknown > {}",
        path.display(), stdx::shell_path(path)
    )]
    LogMarkCorrupt {
        /// The file.
        path: PathBuf,
        /// Description of the defect.
        detail: String,
    },
    /// The directory of a standalone node has lost data.
    #[error(
        "the data directory {} has less than it had: {detail}. Put back what is missing, or restore the directory from \
         a backup (veche restore); {advice}",
        path.display()
    )]
    DataLost {
        /// The data directory.
        path: PathBuf,
        /// The missing part.
        detail: String,
        /// How to continue without it.
        advice: String,
    },
    /// The node was absent for longer than its peers certainly keep deletes, or its wall clock is
    /// ahead.
    #[error(
        "the node of {} was away for {away_days} days by the clock of this machine, longer than its peers keep deletes: \
         with its data it could bring back what was deleted meanwhile. If that clock is wrong, set it right and start \
         the node again. If it is right and other nodes ran meanwhile, start it with --after-absence rebuild: its data \
         is set aside and it is filled from them. If no node ran, start all with --after-absence keep",
        path.display()
    )]
    AwayTooLong {
        /// The data directory.
        path: PathBuf,
        /// Duration of the absence, in days.
        away_days: u64,
    },
    /// The node has peers and data, but no record of the length of its absence.
    #[error(
        "the data directory {} lacks the file alive, which says until when the node has heard of deletes: how long it was \
         away is unknown. If the file was moved, put it back. If other nodes may have run for 9 days or more since the \
         node stopped, start it with --after-absence rebuild, and it is filled from them. If not, start it with \
         --after-absence keep, and it is compared with them",
        path.display()
    )]
    AbsenceUnknown {
        /// The data directory.
        path: PathBuf,
    },
    /// The process was paused for longer than its peers certainly keep deletes.
    #[error(
        "the node of {} stood still, stopped or suspended, and has not heard of deletes for {missed_days} days, longer than \
         its peers keep them: it ends, so that its next start decides what becomes of its data. If other nodes ran \
         meanwhile, start it with --after-absence rebuild, else with --after-absence keep",
        path.display()
    )]
    PausedTooLong {
        /// The data directory.
        path: PathBuf,
        /// Time without hearing of deletes, in days.
        missed_days: u64,
    },
    /// The directory was copied from a checkpoint of a node with peers, and it is not decided how
    /// to use it.
    #[error(
        "{} is a copy of a node with peers, and it is not decided whether they went on since it was made: restore it with \
         veche restore, which asks for that",
        path.display()
    )]
    CopyUndecided {
        /// The directory.
        path: PathBuf,
    },
    /// The directory is not a complete copy of a checkpoint.
    #[error("{} is not a whole copy of a node's checkpoint: {detail}; copy it again", path.display())]
    CopyIncomplete {
        /// The directory.
        path: PathBuf,
        /// The missing part.
        detail: String,
    },
    /// The file `copied` is corrupt.
    #[error("{} is corrupt: {detail}; copy the directory again", path.display())]
    CopiedCorrupt {
        /// The file.
        path: PathBuf,
        /// Description of the defect.
        detail: String,
    },
    /// The maximum number of checkpoints exists.
    #[error(
        "{} holds {} checkpoints, and no more are kept; remove one first: {}",
        path.display(),
        held.len(),
        held.iter().map(|held| held.name.as_str()).collect::<Vec<_>>().join(", ")
    )]
    TooManyCheckpoints {
        /// Directory of the checkpoints.
        path: PathBuf,
        /// The checkpoints that exist.
        held: Vec<HeldCheckpoint>,
    },
    /// A checkpoint with the requested name exists.
    #[error("there is a checkpoint {} already; give another name, or remove it first", path.display())]
    CheckpointExists {
        /// Path of the checkpoint.
        path: PathBuf,
    },
    /// The requested name is not valid for a checkpoint.
    #[error(
        "{name:?} is no name of a checkpoint; it has 1 to 255 letters, digits, -, _ and ., and does not begin with ."
    )]
    NotACheckpointName {
        /// The requested name.
        name: String,
    },
    /// There is data without an identity.
    #[error(
        "{} is missing although its directory holds data; restore it from a backup of this node, or move the data directory away",
        path.display()
    )]
    IdentityMissing {
        /// Path of the missing file.
        path: PathBuf,
    },
    /// The file with the request of a node that joins is corrupt, or of a later release.
    #[error(
        "{} cannot be read: {detail}; remove the directory, which holds no data, and start the node with --join again",
        path.display()
    )]
    JoiningCorrupt {
        /// The file.
        path: PathBuf,
        /// Description of the defect.
        detail: String,
    },
    /// The layout record is corrupt, or of a later release.
    #[error(
        "{} cannot be read: {detail}; copy the file from another node of the cluster, where it is the same, or restore it \
         from a backup of this node. A node on its own makes it anew once it is removed",
        path.display()
    )]
    LayoutCorrupt {
        /// The file.
        path: PathBuf,
        /// Description of the defect.
        detail: String,
    },
    /// The layout record in the directory refuses the node of the directory for ever.
    #[error(
        "{} is the data directory of a node that was removed from its cluster, replaced or declared dead, as the layout record \
         of epoch {epoch} in it says. The other nodes refuse it for ever. A new node needs another --data, which is empty",
        path.display()
    )]
    RemovedNode {
        /// The directory.
        path: PathBuf,
        /// Epoch of the record.
        epoch: LayoutEpoch,
    },
    /// The layout record in the directory has no member for the node of the directory.
    #[error(
        "{} is the layout record of another cluster, with the id {cluster} and the members {members}, and the data \
         directory belongs to {own}. Copy the file from another member of its own cluster, or from a backup of this node. If \
         the node is to belong to cluster {cluster}, start it with another --data, which is empty: docs/operations.md says \
         how, under \"A copied layout\"",
        path.display()
    )]
    ForeignLayout {
        /// The file.
        path: PathBuf,
        /// The cluster of the record.
        cluster: ClusterId,
        /// Its members, in words.
        members: String,
        /// Address of the node of the directory, in words.
        own: String,
    },
    /// The file with the votes on layout records is corrupt, or of a later release.
    #[error(
        "{} cannot be read: {detail}. The node serves its data, and does not vote on changes of the cluster any more. To \
         let it vote, replace it by a node with an empty data directory",
        path.display()
    )]
    VotesCorrupt {
        /// The file.
        path: PathBuf,
        /// Description of the defect.
        detail: String,
    },
    /// A layout record does not follow the one of the directory, or cannot be built.
    #[error("a layout record is refused: {detail}")]
    LayoutRefused {
        /// The broken constraint.
        detail: String,
    },
    /// The directory was created for another cluster.
    #[error("the data directory {} {mismatch}", path.display())]
    IdentityMismatch {
        /// The directory.
        path: PathBuf,
        /// The difference, and the possible actions.
        mismatch: IdentityMismatch,
    },
    /// The cell of the version clock's bound is malformed.
    #[error(
        "the stored bound of the version clock has {len} bytes and not 8; this data was written by another program"
    )]
    ClockBound {
        /// Length of its value, in bytes.
        len: usize,
    },
    /// The cell of the node record is malformed.
    #[error(
        "the stored record of the node cannot be read: {detail}; this data was written by another program"
    )]
    NodeRecord {
        /// Description of the defect.
        detail: String,
    },
    /// Error of the engine.
    #[error(transparent)]
    Engine(#[from] engine::Error),
}

/// A checkpoint that occupies a slot, as listed in a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCheckpoint {
    /// Name of the checkpoint, by which it is removed.
    pub name: String,
    /// Age of the checkpoint and time since its last renewal. `None` if this process has not made
    /// it.
    pub ages: Option<(Duration, Duration)>,
}

impl StoreError {
    pub(crate) fn io(operation: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { operation, path, source }
    }

    /// Whether a file operation failed because the disk or the quota is full.
    pub(crate) fn is_out_of_space(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}
