//! Bulk operations on data for operators: backup, restore, export and import.
//!
//! **Promise.** An existing backup is complete. At no time, through crashes and full disks, does a
//! [`Repository`] contain a manifest whose files are not all present, byte for byte. A flipped bit
//! anywhere in a backup is an error that names the file, and never results in a data directory that
//! can be started.
//!
//! **Mechanism.** A running node makes a checkpoint on request: a directory of hard links that
//! opens as a data directory. Its files are copied into the repository, except tables that an
//! earlier backup has copied already.

#![warn(missing_docs)]

mod backup;
mod backup_fs;
mod checksum;
mod error;
mod files;
mod node;
mod percent;
mod progress;
mod repository;
mod restore;
mod transfer;
mod utc;
mod verify;
mod whole_cluster;

pub use backup::{BackupOptions, BackupReport, back_up};
pub use checksum::{Checksum, ParseChecksumError};
pub use error::{CtlError, CtlErrorKind};
pub use node::{NodeAddress, NodeCheckpoint};
pub use progress::{OperationProgress, ProgressObserver};
pub use repository::{
    AddedBackup, BackupFile, BackupLayout, BackupManifest, BackupNumber, Repository, RetentionReport,
};
pub use restore::restore;
pub use transfer::{
    Export, ExportReport, FAILURES_SHOWN_MAX, FailedEntry, Import, ImportReport, PartialFile,
    RequestedQuorum, count, export, import, is_in_future,
};
pub use utc::utc;
pub use verify::{RepositoryReport, verify_repository};
pub use whole_cluster::{WholeClusterRefusal, check_whole_cluster};
