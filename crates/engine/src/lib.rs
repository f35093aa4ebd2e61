//! An embedded, ordered key-value store: a log-structured merge tree of versioned cells.
//!
//! **Promise.** A write that was acknowledged under [`Durability::Sync`] survives the death of the process
//! and the loss of power. A read returns, of all durable cells of its key, the one with the greatest
//! version, in whatever order they arrived; it never returns what a crash can still undo. What the disk
//! gives back is believed only after its checksum was seen to match.
//!
//! **Mechanism.** Writes go to a write-ahead log ([`wal`]), many writers sharing one `fdatasync`, and into a
//! [`memtable`]; full memtables are flushed to sorted tables ([`sstable`]), which [`compaction`] merges into
//! levels. The set of live tables is kept by a [`manifest`] of edits. Blocks that were read are kept in a
//! [`cache`] under one budget. Within a key, cells are ordered by version: writes never read before they
//! write, and a read may stop as soon as what it found is newer than all it has not looked at.
//!
//! No thread is started here unless the host calls [`workers::start`]: committing, flushing and compacting
//! are jobs that the host steps, so that a simulator can step them too.
//!
//! **Caveats.** One process at a time. A key has one visible cell: older versions go at the next flush or
//! merge. Ranges are read forward only.

mod batch;
pub mod cache;
mod commit;
pub mod compaction;
mod disk;
mod engine;
mod error;
pub mod iter;
mod jobs;
pub mod manifest;
pub mod memtable;
mod open;
mod options;
mod paths;
mod pressure;
mod read;
mod sequence;
mod signals;
mod snapshot;
pub mod sstable;
mod stats;
mod verify;
mod view;
pub mod wal;
pub mod workers;

pub use batch::Batch;
pub use commit::{Committed, Completion};
pub use engine::Engine;
pub use error::{Error, ErrorKind};
pub use jobs::Progress;
pub use open::Recovery;
pub use options::{Compression, Durability, Options};
pub use pressure::Backlog;
pub use read::TryGet;
pub use sequence::Sequence;
pub use snapshot::{Snapshot, SnapshotCursor};
pub use stats::{JobStats, LevelStats, MemoryStats, Stats, WalStats};
pub use verify::{Verified, VerifyProgress, verify};
