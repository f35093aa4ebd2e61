//! The manifest: the durable record of the live tables and their levels.
//!
//! **Promise.** The set of live tables changes only by whole edits. After a crash at any moment it
//! is the set after some number of edits, which includes every edit whose [`Manifest::append`]
//! returned. A damaged manifest is an error that names the file and the offset, never a smaller set
//! of tables.
//!
//! **Mechanism.** [`Levels`] is the set in memory: immutable, shared, replaced as a whole. A
//! [`VersionEdit`] changes one set into the next: tables added, tables removed, and the segment
//! from which recovery replays the log. Tables of an ingest are added together with its cursor
//! ([`IngestCursor`]). [`Manifest`] is a file with a snapshot and all edits since;
//! the file `CURRENT` names the current one. It is rewritten at every start and whenever it has
//! outgrown its snapshot.
//!
//! **Caveats.** Opening reads the whole manifest: about 200 bytes for each live table with keys of
//! ordinary length, so some megabytes for a terabyte of tables.

mod current;
mod edit;
mod frame;
mod levels;
mod log;
mod state;

pub(crate) use current::find_missing_file;
pub use edit::{IngestCursor, VersionEdit};
pub use levels::{HasMeta, LEVELS, Levels};
pub use log::{Manifest, RecoveredState, holds_data};
pub use state::check_bytes;
