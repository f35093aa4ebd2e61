//! Snapshots of a model store, read page by page.

use cluster::{Cut, Key, PageBuilder, PageContent, PageRequest, ReplicaResponse, SnapshotId, StoreResponse};
use std::collections::BTreeMap;
use stdx::{Cell, CellMeta, CellRef};

/// The snapshots that a model store keeps.
#[derive(Clone)]
pub(crate) struct Snapshots {
    kept: BTreeMap<SnapshotId, BTreeMap<Key, Cell>>,
    /// Greatest number of entries examined for one page.
    pub(crate) passed_max: usize,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self { kept: BTreeMap::new(), passed_max: 5 }
    }
}

impl Snapshots {
    /// The next page of a snapshot, which is taken from `cells` if it is not held.
    pub(crate) fn read(&mut self, cells: &BTreeMap<Key, Cell>, request: &PageRequest) -> StoreResponse {
        let snapshot = self.kept.entry(request.snapshot).or_insert_with(|| cells.clone());
        let mut page = PageBuilder::with_capacity(0);
        let in_range = snapshot.iter().filter(|(key, _)| request.range.contains(key.as_bytes()));
        for (passed, (key, cell)) in in_range.enumerate() {
            let is_of_partitions =
                request.partitions.as_ref().is_none_or(|set| set.contains_key(key.as_bytes()));
            let shown = shown(cell, request.content).filter(|_| is_of_partitions);
            let len = page.bytes_len() + key.as_bytes().len() + 1 + shown.map_or(0, |cell| cell.value.len());
            let is_full = page.len() == request.limit.entries || len > request.limit.bytes;
            if passed >= self.passed_max || shown.is_some() && !page.is_empty() && is_full {
                return StoreResponse::Replica(ReplicaResponse::Page {
                    page: page.finish(),
                    rest: Some(Cut::Before(key.clone())),
                });
            }
            if let Some(cell) = shown {
                page.push(key.as_bytes(), cell);
            }
        }
        if request.continues_at().is_none() {
            self.kept.remove(&request.snapshot);
        }
        StoreResponse::Replica(ReplicaResponse::Page { page: page.finish(), rest: None })
    }

    /// Releases a snapshot.
    pub(crate) fn end(&mut self, id: SnapshotId) {
        self.kept.remove(&id);
    }

    /// Number of snapshots held.
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }
}

fn shown(cell: &Cell, content: PageContent) -> Option<CellRef<'_>> {
    let is_dead_since = |meta: &CellMeta, time| meta.dead_from().is_some_and(|dead| dead < time);
    match content {
        PageContent::Live { at } => cell.meta.is_live_at(at).then(|| cell.as_ref()),
        PageContent::Cells { at, dead_since, versions_only } => {
            let has_value = !versions_only && cell.meta.is_live_at(at);
            let value = if has_value { &cell.value[..] } else { &[] };
            (!is_dead_since(&cell.meta, dead_since)).then_some(CellRef { meta: cell.meta, value })
        }
    }
}
