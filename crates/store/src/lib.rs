//! The store: executes the store requests of the cluster protocol on the storage engine.
//!
//! **Promise.** An acknowledged write survives any crash: the engine makes the cell durable before
//! the responses of its [`WriteGroup`] are delivered. A data directory belongs to one process at a
//! time, and to the node and cluster that it was created for; it remembers the cluster as a layout
//! record ([`DirectoryCluster`]). Another cluster is refused with instructions. If a node was
//! absent for too long to return with its data, the data is renamed and not used.
//!
//! **Mechanism.** A directory holds a lock, an [`Identity`] and one engine per shard (currently one
//! shard). In an engine the first byte of a key selects its space ([`keyspace`]): entities of
//! users, or cells of this node alone, such as hints and its record of peers. All writes of one
//! event-loop iteration of an I/O thread form a [`WriteGroup`], so that they share a hand-over
//! between threads and a sync.
//!
//! Users' ranges are read page by page from snapshots that stay open between pages for a limited
//! time. Repair and hinted handoff read in chunks, each from a snapshot of its own. A checkpoint is
//! a data directory beside the data. A copy of it is prepared with a statement of what happened
//! since ([`prepare_restored`]).
//!
//! **Caveats.** A batch fails as a whole: all of its writes receive the same fault.

mod alive_mark;
mod checkpoints;
mod clock_seal;
mod damage;
mod data_directory;
mod data_loss;
mod directory;
mod error;
mod group;
mod identity;
mod identity_mismatch;
mod ingest;
mod joining;
pub mod keyspace;
mod layout_file;
mod log_mark;
mod name_watch;
mod node_record;
mod open_ingests;
mod ownership;
mod pages;
mod pause;
mod recovered_layout;
mod restored;
mod scan;
mod sealed;
mod snapshots;
mod store;
mod verify;
mod votes_file;

pub use alive_mark::{AWAY_MAX_DEFAULT, AfterAbsence};
pub use checkpoints::{CHECKPOINTS_MAX, Checkpoint, Renewal};
pub use data_directory::{DataDirectory, OpenReport, StoreOptions};
pub use error::{HeldCheckpoint, StoreError};
pub use group::WriteGroup;
pub use identity::{HASH_VERSION, IDENTITY_FILE, Identity, Membership, PARTITIONS_DEFAULT};
pub use identity_mismatch::IdentityMismatch;
pub use ingest::EntityIngest;
pub use joining::{JoinRequest, JoiningDirectory, cluster_of};
pub use layout_file::{DirectoryCluster, LAYOUT_FILE, recorded_layout};
pub use name_watch::NameWatch;
pub use recovered_layout::{BEFORE_RECOVERY_SUFFIX, Recover, RecoveredLayout, recover_layout};
pub use restored::{AfterRestore, prepare_restored};
pub use snapshots::{SNAPSHOT_AGE_DEFAULT, SNAPSHOTS_MAX};
pub use store::{Store, TryAnswer};
pub use verify::{FutureCells, VerifiedDirectory, verify};
pub use votes_file::{VOTES_FILE, VotesFound};

/// Readers of files, for fuzz targets.
#[cfg(feature = "internals")]
pub mod internals {
    pub use crate::votes_file::encode_votes_again;
}
