//! The live tables in memory, by level.
//!
//! Level 0 holds tables as they were flushed: their key ranges overlap. In every other level the
//! ranges are disjoint and ascend. A level says *nothing* about versions: a late write is flushed
//! to level 0 with a version below those of deeper levels. So a read takes the cell with the
//! greatest version from all tables that may hold its key. It may stop early only because of
//! version bounds, never because of a level.

use super::VersionEdit;
use crate::sstable::{Table, TableId, TableMeta};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use stdx::Version;

/// Number of levels, from 0 to 6.
pub const LEVELS: usize = 7;

/// Types that have the metadata of a table. The picker needs no more, so its tests use bare
/// [`TableMeta`]s.
pub trait HasMeta {
    /// The metadata.
    fn meta(&self) -> &TableMeta;
}

impl HasMeta for TableMeta {
    fn meta(&self) -> &TableMeta {
        self
    }
}

impl HasMeta for Table {
    fn meta(&self) -> &TableMeta {
        Table::meta(self)
    }
}

/// The live tables at one moment. Immutable; [`Levels::apply`] returns a changed copy.
pub struct Levels<T = Table> {
    levels: [Arc<[Arc<T>]>; LEVELS],
    version_max_from: [Version; LEVELS],
}

impl<T> Clone for Levels<T> {
    fn clone(&self) -> Self {
        Self { levels: self.levels.clone(), version_max_from: self.version_max_from }
    }
}

impl<T: HasMeta> Default for Levels<T> {
    fn default() -> Self {
        Self::of(std::array::from_fn(|_| Arc::from([])))
    }
}

impl<T: HasMeta> Levels<T> {
    /// The tables of a level: in level 0 by descending greatest version, in all others by key.
    ///
    /// # Panics
    /// When the level does not exist, as for every method below.
    pub fn level(&self, level: usize) -> &[Arc<T>] {
        &self.levels[level]
    }

    /// As [`Levels::level`], as a shared reference.
    pub(crate) fn shared_level(&self, level: usize) -> &Arc<[Arc<T>]> {
        &self.levels[level]
    }

    /// All tables with their levels.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Arc<T>)> {
        self.levels
            .iter()
            .enumerate()
            .flat_map(|(level, tables)| tables.iter().map(move |table| (level, table)))
    }

    /// Number of levels down to the deepest one with a table: those that a reader must search.
    pub fn depth(&self) -> usize {
        self.levels.iter().rposition(|tables| !tables.is_empty()).map_or(0, |deepest| deepest + 1)
    }

    /// Total length of all table files, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.iter().map(|(_, table)| table.meta().file_bytes).sum()
    }

    /// Total length of the table files of a level, in bytes.
    pub fn bytes(&self, level: usize) -> u64 {
        self.level(level).iter().map(|table| table.meta().file_bytes).sum()
    }

    /// The greatest version in this level and all below it. A reader that has found a newer cell
    /// stops here.
    pub fn version_max_from(&self, level: usize) -> Version {
        self.version_max_from[level]
    }

    /// The tables of a level that may hold `key`: any number in level 0, at most one in another.
    #[inline]
    pub fn candidates<'a>(&'a self, level: usize, key: &'a [u8]) -> impl Iterator<Item = &'a Arc<T>> + 'a {
        self.overlapping(level, key, key)
    }

    /// The tables of a level whose key ranges overlap `min..=max`.
    pub fn overlapping<'a>(
        &'a self,
        level: usize,
        min: &'a [u8],
        max: &'a [u8],
    ) -> impl Iterator<Item = &'a Arc<T>> + 'a {
        let tables = self.level(level);
        let tables = if level == 0 { tables } else { sorted_overlap(tables, min, max) };
        tables.iter().filter(move |table| table.meta().overlaps(min, max))
    }

    /// The levels after `edit`. A table that moves between levels is reused; every other added
    /// table is opened with `open`.
    ///
    /// # Errors
    /// A description of the fault: the edit removes a table that does not exist, adds one that
    /// does, names an unknown level, or makes tables of a level overlap.
    pub fn apply(
        &self,
        edit: &VersionEdit,
        open: &mut dyn FnMut(&TableMeta) -> Arc<T>,
    ) -> Result<Self, String> {
        if let Some((level, meta)) = edit.added.iter().find(|(level, _)| usize::from(*level) >= LEVELS) {
            return Err(format!("table {} is added to level {level}, which does not exist", meta.id.0));
        }
        let mut removed = BTreeMap::new();
        let mut levels = self.levels.clone();
        for (level, tables) in levels.iter_mut().enumerate() {
            let leaving = edit.removed.iter().filter(|(from, _)| usize::from(*from) == level);
            let leaving: BTreeSet<_> = leaving.map(|(_, id)| *id).collect();
            if !leaving.is_empty() {
                *tables = take(level, tables, &leaving, &mut removed)?;
            }
        }
        for (level, tables) in levels.iter_mut().enumerate() {
            let coming = edit.added.iter().filter(|(to, _)| usize::from(*to) == level);
            let opened: Vec<_> = coming
                .map(|(_, meta)| removed.get(&meta.id).map_or_else(|| open(meta), Arc::clone))
                .collect();
            if !opened.is_empty() {
                *tables = joined(level, tables, opened)?;
            }
        }
        Ok(Self::of(levels))
    }

    fn of(levels: [Arc<[Arc<T>]>; LEVELS]) -> Self {
        let mut version_max_from = [Version::MIN; LEVELS];
        let mut greatest = Version::MIN;
        for level in (0..LEVELS).rev() {
            greatest =
                levels[level].iter().map(|table| table.meta().version_max).fold(greatest, Version::max);
            version_max_from[level] = greatest;
        }
        Self { levels, version_max_from }
    }
}

impl<T: HasMeta> fmt::Debug for Levels<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(
                self.levels
                    .iter()
                    .map(|tables| tables.iter().map(|table| table.meta().id.0).collect::<Vec<_>>()),
            )
            .finish()
    }
}

/// `tables` without those in `leaving`, which are added to `removed`.
fn take<T: HasMeta>(
    level: usize,
    tables: &[Arc<T>],
    leaving: &BTreeSet<TableId>,
    removed: &mut BTreeMap<TableId, Arc<T>>,
) -> Result<Arc<[Arc<T>]>, String> {
    let (gone, kept): (Vec<_>, Vec<_>) =
        tables.iter().cloned().partition(|table| leaving.contains(&table.meta().id));
    if let Some(id) = leaving.iter().find(|id| gone.iter().all(|table| table.meta().id != **id)) {
        return Err(format!("table {} is removed from level {level}, where it is not", id.0));
    }
    removed.extend(gone.into_iter().map(|table| (table.meta().id, table)));
    Ok(kept.into())
}

/// `tables` and `coming` in the order of `level`, if they may share a level.
fn joined<T: HasMeta>(level: usize, tables: &[Arc<T>], coming: Vec<Arc<T>>) -> Result<Arc<[Arc<T>]>, String> {
    let mut all: Vec<_> = tables.iter().cloned().chain(coming).collect();
    if let Some(table) = all.iter().find(|table| table.meta().key_min > table.meta().key_max) {
        return Err(format!("the least key of table {} is above its greatest", table.meta().id.0));
    }
    if level == 0 {
        all.sort_by_key(|table| std::cmp::Reverse((table.meta().version_max, table.meta().id)));
    } else {
        all.sort_by(|a, b| a.meta().key_min.cmp(&b.meta().key_min));
    }
    for pair in all.windows(2) {
        let (a, b) = (pair[0].meta(), pair[1].meta());
        if a.id == b.id {
            return Err(format!("table {} is twice in level {level}", a.id.0));
        }
        if level > 0 && a.key_max >= b.key_min {
            return Err(format!("tables {} and {} overlap in level {level}", a.id.0, b.id.0));
        }
    }
    Ok(all.into())
}

/// The subslice of sorted, disjoint `tables` that overlaps `min..=max`.
fn sorted_overlap<'a, T: HasMeta>(tables: &'a [Arc<T>], min: &[u8], max: &[u8]) -> &'a [Arc<T>] {
    let from = tables.partition_point(|table| table.meta().key_max < min);
    let count = tables[from..].partition_point(|table| table.meta().key_min <= max);
    &tables[from..from + count]
}
