//! Iteration over a level.
//!
//! The tables of a level other than level 0 do not overlap, so one open table cursor suffices. A
//! merge then compares as many sources as there are levels, not tables, and opens a table only when
//! it is reached.

use super::{Cursor, OwnedValue};
use crate::Error;
use crate::sstable::{ReadMode, StoredBlock, Table, TableCursor};
use std::sync::Arc;
use stdx::{CellMeta, CellRef};

/// A cursor over consecutive, non-overlapping tables.
pub struct LevelCursor {
    tables: Arc<[Arc<Table>]>,
    mode: ReadMode,
    current: Option<Current>,
}

/// The table that the cursor is in.
struct Current {
    at: usize,
    cursor: TableCursor,
}

impl LevelCursor {
    /// Returns a cursor past the last entry of `tables`, which are in key order and do not overlap.
    pub fn new(tables: impl Into<Arc<[Arc<Table>]>>, mode: ReadMode) -> Self {
        let tables = tables.into();
        debug_assert!(
            tables.windows(2).all(|pair| pair[0].meta().key_max < pair[1].meta().key_min),
            "the tables of a level overlap"
        );
        Self { tables, mode, current: None }
    }

    /// Same as [`TableCursor::stored`], of the current table.
    pub(crate) fn stored(&self) -> Option<StoredBlock<'_>> {
        self.current.as_ref()?.cursor.stored()
    }

    /// Enters the table at `at` and moves its cursor by `seek`. If that leaves no entry, continues
    /// with the next table. Past the last table, and after an error, the cursor is in no table.
    fn enter(
        &mut self,
        at: usize,
        seek: impl FnOnce(&mut TableCursor) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let reused = self.current.take().filter(|current| current.at == at);
        let Some(table) = self.tables.get(at) else { return Ok(()) };
        let mut cursor = reused.map_or_else(|| table.cursor(self.mode), |current| current.cursor);
        seek(&mut cursor)?;
        self.current = Some(Current { at, cursor });
        self.leave_finished()
    }

    /// Moves to the next table that has an entry, if the current cursor is past its last one.
    fn leave_finished(&mut self) -> Result<(), Error> {
        while let Some(current) = &self.current
            && current.cursor.key_and_meta().is_none()
        {
            let at = current.at + 1;
            self.current = None;
            if let Some(table) = self.tables.get(at) {
                let mut cursor = table.cursor(self.mode);
                cursor.seek_to_first()?;
                self.current = Some(Current { at, cursor });
            }
        }
        Ok(())
    }
}

impl Cursor for LevelCursor {
    fn seek_to_first(&mut self) -> Result<(), Error> {
        self.enter(0, TableCursor::seek_to_first)
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        let at = self.tables.partition_point(|table| table.meta().key_max < key);
        self.enter(at, |cursor| cursor.seek(key))
    }

    fn advance(&mut self) -> Result<(), Error> {
        let current = self.current.as_mut().expect("the cursor is at an entry");
        if let Err(error) = current.cursor.advance() {
            self.current = None;
            return Err(error);
        }
        self.leave_finished()
    }

    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        self.current.as_ref()?.cursor.entry()
    }

    #[inline]
    fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
        self.current.as_ref()?.cursor.key_and_meta()
    }

    #[inline]
    fn holds_value(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.cursor.holds_value())
    }

    #[inline]
    fn release_value(&mut self) {
        if let Some(current) = &mut self.current {
            current.cursor.release_value();
        }
    }

    #[inline]
    fn reload_value(&mut self) -> Result<(), Error> {
        match &mut self.current {
            Some(current) => current.cursor.reload_value(),
            None => Ok(()),
        }
    }

    fn take_value(&mut self) -> Option<OwnedValue> {
        self.current.as_mut()?.cursor.take_value()
    }
}
