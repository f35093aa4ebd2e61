//! An embedded, ordered key-value store: a log-structured merge tree of versioned cells.
//!
//! **Promise.** A write that was acknowledged under [`Durability::Sync`] survives the death of the
//! process and the loss of power. A read returns the durable cell of its key with the greatest
//! version, whatever the order of arrival; it never returns a write that a crash can still undo.
//! Bytes from the disk are used only after their checksum was verified.
//!
//! **Mechanism.** Writes go to a write-ahead log ([`wal`]), where many writers share one
//! `fdatasync`, and into a [`memtable`]. Full memtables are flushed to sorted tables ([`sstable`]),
//! which [`compaction`] merges into levels. A [`manifest`] of edits records the set of live tables.
//! A [`cache`] with one budget keeps blocks that were read. Within a key, cells are ordered by
//! version. So writes never read first, and a read stops as soon as the cell found is newer than
//! everything not yet searched. Tables are immutable: a [`Snapshot`] is a set of references, and a
//! checkpoint ([`Engine::checkpoint`]) a directory of hard links.
//!
//! The engine starts no thread unless the host calls [`workers::start`]. Commit, flush and
//! compaction are jobs that the host steps, so that a simulator can step them too.
//!
//! ```
//! use engine::iter::Cursor;
//! use engine::{Batch, Engine, Options};
//! use stdx::{Cell, Hlc, NodeTag, Version};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let (engine, recovery) = Engine::open(env::Env::os(), dir, Options::default())?;
//! assert_eq!(recovery.cells, 0, "a new directory");
//!
//! // The writer chooses the version. The greatest wins, in any order of arrival.
//! let version = |clock| Version::new(Hlc::from_bits(clock), NodeTag(7));
//! let mut batch = Batch::new();
//! batch.put(b"apple", Cell::value(version(2), 1, "red".into()).as_ref());
//! batch.put(b"pear", Cell::value(version(2), 1, "green".into()).as_ref());
//! batch.put(b"pear", Cell::tombstone(version(3), 1).as_ref());
//! batch.put(b"apple", Cell::value(version(1), 1, "too late".into()).as_ref());
//! engine.write(batch)?; // Durable when it returns.
//!
//! let apple = engine.get(b"apple")?.expect("just written");
//! assert_eq!(apple.value, "red");
//!
//! let mut cursor = engine.snapshot().cursor();
//! cursor.seek(b"b")?;
//! let (key, cell) = cursor.entry().expect("one key is left");
//! assert_eq!(key, b"pear");
//! // A delete is visible until compaction drops it.
//! assert_eq!(cell.to_cell(), Cell::tombstone(version(3), 1));
//!
//! engine.flush()?; // `workers::start` does this in the background.
//! engine.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! **Caveats.** One process at a time. A key has one visible cell: the next flush or merge removes
//! older versions. Ranges are read forward only.

mod batch;
pub mod cache;
mod cell_part;
mod checkpoint;
mod commit;
pub mod compaction;
mod damaged;
mod disk;
mod engine;
mod error;
mod heal;
mod horizon;
pub mod iter;
mod jobs;
pub mod manifest;
pub mod memtable;
mod missing_files;
mod obsolete;
mod open;
mod options;
mod paths;
mod pinned_memtables;
mod prefetch;
mod prefix;
mod pressure;
mod quarantine;
mod read;
mod scrub;
mod sequence;
mod signals;
mod snapshot;
pub mod sstable;
mod stats;
mod throughput;
mod urgency;
mod verify;
mod view;
pub mod wal;
pub mod workers;

pub use batch::Batch;
pub use checkpoint::{CheckpointSummary, CheckpointTable};
pub use commit::{CommitOutcome, CommitTimes, Completion, Covering, PossiblySuperseded};
pub use damaged::DamagedTable;
pub use disk::{DiskSpace, DiskStats};
pub use engine::Engine;
pub use error::{Error, ErrorKind};
pub use horizon::HorizonSource;
pub use jobs::Progress;
pub use manifest::holds_data;
pub use open::Recovery;
pub use options::{Compression, Durability, Options};
pub use pressure::Backlog;
pub use read::TryGet;
pub use sequence::Sequence;
pub use snapshot::{Snapshot, SnapshotCursor};
pub use sstable::{HeldMemory, LargeReadPermit, ReadMemory};
pub use stats::{JobStats, LevelStats, MemoryStats, ScrubStats, StallStats, Stats, WalStats};
pub use urgency::StepTime;
pub use verify::{LogTail, VerifyProgress, VerifyReport, verify, verify_showing};
pub use wal::{LogEnd, SegmentId};
