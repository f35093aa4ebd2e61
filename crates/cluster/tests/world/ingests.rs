//! The ingests of a store.

use bytes::Bytes;
use cluster::{CopyCursor, IngestRequest, IngestResponse, Key, StoreFault, StoreRequest};
use std::collections::BTreeMap;
use stdx::Cell;

/// The ingests of a store that is a map.
#[derive(Clone, Debug)]
pub(crate) struct Ingests {
    /// The durable positions.
    pub(crate) cursors: BTreeMap<Bytes, Bytes>,
    /// The cells that are not durable.
    open: BTreeMap<Bytes, Vec<(Key, Cell)>>,
    /// Number of cells that are made durable together.
    pub(crate) cells_of_table: usize,
    /// Whether writes are slowed.
    pub(crate) is_stalled: bool,
    /// The cells that were made durable, in order.
    pub(crate) committed: Vec<(Key, Cell)>,
}

impl Default for Ingests {
    fn default() -> Self {
        Self {
            cursors: BTreeMap::new(),
            open: BTreeMap::new(),
            cells_of_table: 500,
            is_stalled: false,
            committed: Vec::new(),
        }
    }
}

impl Ingests {
    /// The process has ended.
    pub(super) fn restart(&mut self) {
        self.open.clear();
    }

    /// A request fails: the cells that are not durable are discarded.
    pub(super) fn fail(&mut self, request: &StoreRequest) {
        if let StoreRequest::Ingest(IngestRequest::Append { name, .. }) = request {
            self.open.remove(name);
        }
    }

    /// Carries out a request. Returns the cells that become durable.
    pub(super) fn carry_out(
        &mut self,
        request: IngestRequest,
    ) -> Result<(Vec<(Key, Cell)>, IngestResponse), StoreFault> {
        match request {
            IngestRequest::ReadCursors => {
                let cursor = |(name, position): (&Bytes, &Bytes)| CopyCursor {
                    name: name.clone(),
                    position: position.clone(),
                };
                Ok((Vec::new(), IngestResponse::Cursors(self.cursors.iter().map(cursor).collect())))
            }
            IngestRequest::Append { name, is_rewound, cells, position, is_last } => {
                if is_rewound {
                    self.open.insert(name.clone(), Vec::new());
                }
                let Some(open) = self.open.get_mut(&name) else {
                    return Err(StoreFault::Io { detail: "the ingest is not open".to_owned() });
                };
                open.extend(cells);
                assert!(open.is_sorted_by(|(before, _), (behind, _)| before < behind), "keys ascend");
                let is_durable = is_last || open.len() >= self.cells_of_table;
                let mut committed = Vec::new();
                if is_durable {
                    committed = std::mem::take(open);
                    self.cursors.insert(name, position);
                    self.committed.extend(committed.iter().cloned());
                }
                Ok((committed, IngestResponse::Appended { is_durable, is_stalled: self.is_stalled }))
            }
            IngestRequest::Forget { name } => {
                self.open.remove(&name);
                self.cursors.remove(&name);
                Ok((Vec::new(), IngestResponse::Forgotten))
            }
        }
    }
}
