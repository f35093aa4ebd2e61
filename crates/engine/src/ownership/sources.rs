//! Lookup of a key in the sources beside a job.

use crate::Sequence;
use crate::memtable::hash_key;
use crate::sstable::{Lookup, TableId, Wait};
use crate::view::View;
use arc_swap::ArcSwap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The memtables and tables of an engine except those that a job reads.
///
/// Each lookup uses the present view. A cell that was visible when a range was disowned is found,
/// wherever other jobs have moved it meanwhile.
#[derive(Clone, Default)]
pub struct OtherSources {
    /// `None` for a job without an engine, whose filter is empty.
    view: Option<Arc<ArcSwap<View>>>,
    own_tables: BTreeSet<TableId>,
    own_memtable: Option<u64>,
}

/// The greatest `from` of a key in other sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FromElsewhere {
    /// It is at least as great as was asked for.
    Reaches(u8),
    /// All cells of the key have a smaller one, or there are none.
    Below,
    /// A table that may hold the key cannot be read.
    Unknown,
}

impl OtherSources {
    pub(crate) fn of(view: &Arc<ArcSwap<View>>) -> Self {
        Self { view: Some(Arc::clone(view)), ..Self::default() }
    }

    /// Without these tables.
    #[must_use]
    pub(crate) fn without_tables(self, tables: impl Iterator<Item = TableId>) -> Self {
        Self { own_tables: tables.collect(), ..self }
    }

    /// Without this memtable.
    #[must_use]
    pub(crate) fn without_memtable(self, id: u64) -> Self {
        Self { own_memtable: Some(id), ..self }
    }

    /// Looks for a cell of `key` with a `from` of `at_least` or more.
    pub(super) fn greatest_from(&self, key: &[u8], at_least: u8) -> FromElsewhere {
        let Some(view) = self.view.as_ref().map(|view| view.load()) else { return FromElsewhere::Below };
        let hash = hash_key(key);
        let memtables = view.memtables().map(|logged| &logged.memtable);
        let in_memory = memtables
            .filter(|memtable| self.own_memtable != Some(memtable.id()))
            .filter_map(|memtable| memtable.greatest_from(key, hash, Sequence(u64::MAX)));
        let mut greatest = in_memory.max().unwrap_or(0);
        let mut has_unread = false;
        for table in (0..view.levels.depth()).flat_map(|level| view.levels.candidates(level, key)) {
            if self.own_tables.contains(&table.meta().id) {
                continue;
            }
            match table.get_meta(key, hash, Wait::Allowed) {
                Ok(Lookup::Found(meta)) => greatest = greatest.max(meta.from),
                Ok(Lookup::Absent) => {}
                Ok(Lookup::WouldWait) => unreachable!("waiting is allowed"),
                Err(error) => {
                    tracing::debug!(%error, "a key of a disowned range is kept: a table cannot be read");
                    has_unread = true;
                }
            }
        }
        match greatest >= at_least {
            true => FromElsewhere::Reaches(greatest),
            false if has_unread => FromElsewhere::Unknown,
            false => FromElsewhere::Below,
        }
    }
}

impl std::fmt::Debug for OtherSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtherSources")
            .field("own_tables", &self.own_tables)
            .field("own_memtable", &self.own_memtable)
            .finish_non_exhaustive()
    }
}
