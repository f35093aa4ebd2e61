//! Which tables are live, and where.
//!
//! **Promise.** The set of live tables changes only by whole edits: after a crash at any moment it is the set
//! after some number of edits, and every edit whose [`Manifest::append`] returned is among them. A damaged
//! manifest is an error that names the file and the place, never a smaller set of tables.
//!
//! **Mechanism.** [`Levels`] is the set in memory: immutable, shared, replaced as a whole. A [`VersionEdit`]
//! is the step from one set to the next: tables added, tables removed, the segment of the log from which
//! recovery must replay. [`Manifest`] is the file of all edits since a snapshot; the file `CURRENT` names the
//! manifest that counts. It is written anew at every start and whenever it has outgrown its snapshot.
//!
//! **Caveats.** Opening reads the whole manifest: about 200 bytes for each live table with keys of ordinary
//! length, so a terabyte of tables costs some megabytes.

mod current;
mod edit;
mod frame;
mod levels;
mod log;
mod state;

pub(crate) use current::find_missing_file;
pub use edit::VersionEdit;
pub use levels::{HasMeta, LEVELS, Levels};
pub use log::{Manifest, RecoveredState, holds_data};
pub use state::check_bytes;
