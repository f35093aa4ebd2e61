//! An embedded, ordered key-value store: a log-structured merge tree of versioned cells.
//!
//! **Promise.** A write that was acknowledged under [`Durability::Sync`] survives the death of the
//! process and the loss of power. A read returns the durable cell of its key with the greatest
//! version, whatever the order of arrival; it never returns a write that a crash can still undo.
//! Bytes from the disk are used only after their checksum was verified.
//!
//! **Mechanism.** Writes go to a write-ahead log, where many writers share one `fdatasync`, and
//! into a memtable. Full memtables are flushed to sorted tables, which compaction merges into
//! levels. A manifest of edits records the set of live tables. A cache with one budget keeps blocks
//! that were read. Within a key, cells are ordered by version. So writes never read first, and a
//! read stops as soon as the cell found is newer than everything not yet searched. Tables are
//! immutable: a [`Snapshot`] is a set of references, and a checkpoint ([`Engine::checkpoint`]) a
//! directory of hard links.
//!
//! The engine starts no thread unless the host calls [`workers::start`]. Commit, flush and
//! compaction are jobs that the host steps, so that a simulator can step them too.
//!
//! # Example
//!
//! ```
//! use engine::{Batch, Cursor, Engine, Options};
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
//! # Tasks
//!
//! | task | use |
//! |---|---|
//! | open a directory | [`Engine::open`] with [`Options`]; [`Recovery`] reports the contents; [`holds_data`] looks without opening |
//! | write | a [`Batch`] with [`Engine::write`], which blocks, or [`Engine::submit`], which calls back |
//! | load sorted cells | [`Engine::ingest`]: tables without the log, resumed at a durable position |
//! | read a key | [`Engine::get`]; [`Engine::try_get`] never waits for the disk; [`Engine::get_meta`] reads no large value |
//! | read a range | [`Engine::snapshot`], then [`Snapshot::cursor`] and the methods of [`Cursor`] |
//! | flush and compact | [`workers::start`], or the `step_` methods of [`Engine`] on threads of the host |
//! | delete for good | [`HorizonSource`]: the time before which compaction drops tombstones and expired cells |
//! | forget keys by their hashes | [`Engine::disown`]: absent at once, and purged by compaction |
//! | slow writers down | nothing: writes are paced; [`Error::Overloaded`] has the time after which to retry |
//! | handle an error | [`Error::kind`]: whether to retry, to end the process, or to repair |
//! | bound the memory | [`Options::memory_bytes`]; [`ReadMemory`], an argument of reads, for large values |
//! | copy and verify | [`Engine::checkpoint`], [`checkpoint_tables`], [`verify()`] |
//! | find and heal damage | [`Engine::step_scrub`], [`Engine::damaged_tables`], [`Engine::allow_replacement`] |
//! | observe | [`Engine::stats`], [`Engine::memory_stats`], [`Engine::backlog`] |
//!
//! **Caveats.** One process at a time. A key has one visible cell: the next flush or merge removes
//! older versions. Ranges are read forward only.

// Without the feature, items that only tests use are unreachable.
#![cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub, unused_imports))]

mod batch;
mod cache;
mod cell_part;
mod checkpoint;
mod commit;
mod compaction;
mod damaged;
mod disk;
mod engine;
mod error;
mod heal;
mod horizon;
mod ingest;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
mod iter;
mod jobs;
mod manifest;
mod memtable;
mod missing_files;
mod obsolete;
mod open;
mod options;
mod ownership;
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
mod sstable;
mod stats;
mod throughput;
mod urgency;
mod verify;
mod view;
mod wal;
pub mod workers;

// The tests of this crate also have a dependency named `engine`: the crate with its feature.
pub use self::engine::Engine;
pub use batch::Batch;
pub use cache::{CacheStats, FilterStats, KindStats};
pub use checkpoint::{CheckpointSummary, CheckpointTable, checkpoint_tables};
pub use commit::{CommitOutcome, CommitTimes, Completion, Covering, PossiblySuperseded};
pub use damaged::DamagedTable;
pub use disk::{DiskSpace, DiskStats};
pub use error::{Error, ErrorKind};
pub use horizon::HorizonSource;
pub use ingest::Ingest;
pub use iter::{Cursor, OwnedValue};
pub use jobs::Progress;
pub use manifest::{IngestCursor, holds_data};
pub use open::Recovery;
pub use options::{Compression, Durability, Options};
pub use ownership::{DisownedRange, HashRange, OwnedRange, PurgeProgress};
pub use pressure::Backlog;
pub use read::{ReadableCell, TryGet, UnreadCell};
pub use snapshot::{Snapshot, SnapshotCursor};
pub use sstable::{HeldMemory, LargeReadPermit, ReadMemory, TableId, UnreadableRange, VisitCell};
pub use stats::{IngestStats, JobStats, LevelStats, MemoryStats, ScrubStats, StallStats, Stats, WalStats};
pub use urgency::StepTime;
pub use verify::{LogTail, VerifyProgress, VerifyReport, verify, verify_showing};
pub use wal::{LogEnd, SegmentId};

use sequence::Sequence;
