//! Ordered iteration.
//!
//! Everything that can be walked in key order is a [`Cursor`]: memtables, tables, levels, and merges of
//! them. Each yields a key once, with the cell that supersedes all others of it that the source holds (and,
//! for a memtable, shows): so a merge need only compare sources with each other.

mod level;
mod merge;

#[cfg(test)]
mod tests;

pub use level::LevelCursor;
pub use merge::MergeCursor;

use crate::Error;
use stdx::CellRef;

/// A position in a sequence of `(key, cell)` with ascending keys, each once: at an entry, or past the last.
///
/// A new cursor is past the last entry until it is sought. After an error the position is past the last.
pub trait Cursor: Send {
    /// Moves to the first entry.
    fn seek_to_first(&mut self) -> Result<(), Error>;

    /// Moves to the first entry whose key is not less than `key`.
    fn seek(&mut self, key: &[u8]) -> Result<(), Error>;

    /// Moves to the next entry.
    ///
    /// # Panics
    /// May panic when the position is past the last entry.
    fn advance(&mut self) -> Result<(), Error>;

    /// The entry at the position; `None` past the last. What it borrows lives until the cursor moves.
    fn entry(&self) -> Option<(&[u8], CellRef<'_>)>;
}

impl<C: Cursor + ?Sized> Cursor for Box<C> {
    fn seek_to_first(&mut self) -> Result<(), Error> {
        (**self).seek_to_first()
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        (**self).seek(key)
    }

    fn advance(&mut self) -> Result<(), Error> {
        (**self).advance()
    }

    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        (**self).entry()
    }
}
