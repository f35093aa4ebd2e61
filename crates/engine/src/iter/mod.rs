//! Ordered iteration.
//!
//! Everything that can be walked in key order is a [`Cursor`]: memtables, tables, levels, and merges of
//! them. Each yields a key once, with the cell that supersedes all others of it that the source holds (and,
//! for a memtable, shows): so a merge need only compare sources with each other.
//!
//! A large value is much to hold while it is not looked at. Whoever leaves a cursor where it stands can have it *set
//! aside* the value there: what it takes is freed, and the cursor keeps its place. Whoever would copy a large value can
//! have the memory that it stands in instead, where nobody else has it.

mod level;
mod merge;

#[cfg(test)]
mod tests;

pub use level::LevelCursor;
pub use merge::MergeCursor;

use crate::Error;
use std::ops::Range;
use stdx::{CellMeta, CellRef};

/// A large value in the memory that it was read to.
#[derive(Debug)]
pub struct TakenValue {
    /// What was read.
    pub bytes: Vec<u8>,
    /// Where in it the value is.
    pub at: Range<usize>,
}

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
    ///
    /// # Panics
    /// When the value was set aside.
    fn entry(&self) -> Option<(&[u8], CellRef<'_>)>;

    /// The entry without its value, which may be set aside.
    #[inline]
    fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
        self.entry().map(|(key, cell)| (key, cell.meta))
    }

    /// Frees what the value at the position takes, if it is large and can be read again. The cursor may be moved then,
    /// but its entry is not to be asked for before the value was brought back.
    #[inline]
    fn set_aside(&mut self) {}

    /// Reads the value at the position again, if it was set aside.
    #[inline]
    fn bring_back(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Gives away the value at the position without a copy, if it is large and nobody else has it: then it is set aside.
    #[inline]
    fn take_value(&mut self) -> Option<TakenValue> {
        None
    }
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

    fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
        (**self).key_and_meta()
    }

    fn set_aside(&mut self) {
        (**self).set_aside();
    }

    fn bring_back(&mut self) -> Result<(), Error> {
        (**self).bring_back()
    }

    fn take_value(&mut self) -> Option<TakenValue> {
        (**self).take_value()
    }
}
