//! Ordered iteration.
//!
//! Every ordered source is a [`Cursor`]: memtables, tables, levels, and merges of them. Each yields
//! a key once, with the cell that supersedes all other cells of the key in the source (in a
//! memtable: all visible ones). So a merge only compares sources with each other.
//!
//! A large value occupies memory while the cursor rests on it. [`Cursor::release_value`] frees that
//! memory, and the cursor keeps its position. A cursor for versions does not read such a value at
//! all, where it can learn the version without it. [`Cursor::take_value`] returns the value in the
//! memory it was read into, so that the caller need not copy it.

mod level;
mod merge;

#[cfg(test)]
mod tests;

pub use level::LevelCursor;
pub use merge::MergeCursor;

use crate::Error;
use std::ops::Range;
use stdx::{CellMeta, CellRef};

/// A large value in the buffer that it was read into.
#[derive(Debug)]
pub struct OwnedValue {
    /// The buffer.
    pub bytes: Vec<u8>,
    /// Range of the value in the buffer.
    pub range: Range<usize>,
}

/// A position in a sequence of `(key, cell)` with ascending, unique keys: at an entry, or past the
/// last.
///
/// A new cursor is past the last entry until the first seek. After an error it is past the last
/// entry.
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

    /// Returns the entry at the position; `None` past the last entry.
    ///
    /// # Panics
    /// If the value was released or not read: see [`Cursor::holds_value`].
    fn entry(&self) -> Option<(&[u8], CellRef<'_>)>;

    /// Returns the entry without its value, which may be released.
    #[inline]
    fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
        self.entry().map(|(key, cell)| (key, cell.meta))
    }

    /// Whether the cursor holds the value at the position. If not, it was released, or the cursor
    /// is for versions and did not read it.
    #[inline]
    fn holds_value(&self) -> bool {
        true
    }

    /// Frees the memory of the value at the position if it is large and can be read again. The
    /// cursor can still be moved, but [`Cursor::entry`] must not be called before
    /// [`Cursor::reload_value`].
    #[inline]
    fn release_value(&mut self) {}

    /// Reads the value at the position if it was released or not read.
    #[inline]
    fn reload_value(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the value at the position without a copy, if it is large and not shared. The
    /// cursor's value is released then.
    #[inline]
    fn take_value(&mut self) -> Option<OwnedValue> {
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

    fn holds_value(&self) -> bool {
        (**self).holds_value()
    }

    fn release_value(&mut self) {
        (**self).release_value();
    }

    fn reload_value(&mut self) -> Result<(), Error> {
        (**self).reload_value()
    }

    fn take_value(&mut self) -> Option<OwnedValue> {
        (**self).take_value()
    }
}
