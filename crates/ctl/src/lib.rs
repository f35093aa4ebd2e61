//! What operators do to data in bulk.
//!
//! **Promise.** A backup that is there is whole: at no moment, through crashes and full disks, is there a manifest in a
//! [`Repository`] whose files are not in it, byte for byte. A flipped bit anywhere in a backup is an error that names
//! the file, and nothing that could be started as a node comes of it.
//!
//! **Mechanism.** A running node is asked for a checkpoint, a directory of hard links that opens as a data directory;
//! its files are copied into the repository, but for the tables that an earlier backup brought there.

#![warn(missing_docs)]

mod backup;
mod checksum;
mod error;
mod files;
mod mount;
mod node;
mod percent;
mod progress;
mod repository;
mod restore;
mod transfer;
mod utc;
mod verify;

pub use backup::{BackedUp, back_up};
pub use checksum::{Checksum, NotAChecksum};
pub use error::{CtlError, CtlErrorKind};
pub use node::{Node, NodeCheckpoint};
pub use progress::{Observer, Progress};
pub use repository::{BackupFile, BackupNumber, Manifest, Removed, Repository, Taken};
pub use restore::restore;
pub use transfer::{
    Export, Exported, FAILURES_SHOWN_MAX, FailedEntry, Import, Imported, PartialFile, QuorumWish, count,
    export, import, is_in_future,
};
pub use utc::utc;
pub use verify::{RepositoryReport, verify_repository};
