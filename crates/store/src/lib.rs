//! Carries out the store requests of the protocol on the engine.
//!
//! **Promise.** What the store answers to a write is true after any crash: the engine has made the cell durable
//! before [`WriteGroup`]'s responses are handed out. A data directory belongs to one process at a time, and to
//! the node and the cluster it was made for: another node list, partition count or hash is refused with a
//! sentence that says what to do, never read as if it were this node's. Data of a node that was away for too long to
//! come back with it is set aside.
//!
//! **Mechanism.** A directory holds a lock, an [`Identity`] and one engine for each shard (one, for now). Inside
//! an engine the first byte of a key names its space ([`keyspace`]): what users stored, or what is this node's
//! own, such as hints and what it remembers of its peers. All writes of one turn of an I/O thread are gathered in
//! one [`WriteGroup`] and become one batch of the engine, so that they share a hand-over between threads as well
//! as a sync. Users' ranges are read page by page out of snapshots that are kept between the pages, for a while; what
//! repair and hints walk through, a chunk at a time, each over a snapshot of its own. A checkpoint is a data directory
//! beside the data; a copy of it comes back as what an operator says happened since ([`prepare_restored`]).
//!
//! **Caveats.** A batch that fails fails whole: its writes are told the same fault.

mod alive;
mod checkpoints;
mod claimed;
mod clock_seal;
mod damage;
mod directory;
mod error;
mod group;
mod identity;
pub mod keyspace;
mod log_mark;
mod lost;
mod node_record;
mod pages;
mod presence;
mod restored;
mod scan;
mod sealed;
mod snapshots;
mod store;
mod verify;
mod watched;

pub use alive::AWAY_MAX_DEFAULT;
pub use checkpoints::{CHECKPOINTS_MAX, Checkpoint, HeldPlace, Renewal};
pub use claimed::{AfterAbsence, Claimed, Opened, StoreOptions};
pub use error::StoreError;
pub use group::WriteGroup;
pub use identity::{HASH_VERSION, IDENTITY_FILE, Identity, IdentityMismatch, Membership, PARTITIONS_DEFAULT};
pub use restored::{AfterRestore, prepare_restored};
pub use snapshots::{SNAPSHOT_AGE_DEFAULT, SNAPSHOTS_MAX};
pub use store::{ReadNow, Store};
pub use verify::{FutureCells, VerifiedDirectory, verify};
pub use watched::WatchedNames;
