//! The ingests that requests of the node have opened.
//!
//! **Promise.** The cells of an [`IngestRequest::Append`] are stored behind those of the one
//! before, or behind the durable position if the request says so. After a fault the cells since the
//! durable position are stored neither now nor later. Cells and position become durable together.
//!
//! **Mechanism.** An ingest is opened by the first request that begins at its durable position, and
//! stays open until it is forgotten. It is committed when its cells fill a table, and when the
//! request is the last one. A request takes the ingest out of the table while it is carried out, so
//! requests of different ingests run side by side.
//!
//! **Caveats.** The requester has one request of an ingest in flight at a time. Another one fails.

use crate::ingest::EntityIngest;
use crate::store::Store;
use bytes::Bytes;
use cluster::{CopyCursor, IngestRequest, IngestResponse, StoreFault};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Estimate of the size of an ingest, by which the level of its tables is chosen: a copy is a part
/// of the data of another node.
const EXPECTED_BYTES: u64 = 1 << 30;

/// The open ingests by name.
#[derive(Debug, Default)]
pub(crate) struct OpenIngests(Mutex<BTreeMap<Bytes, EntityIngest>>);

impl OpenIngests {
    fn take(&self, name: &Bytes) -> Option<EntityIngest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }

    fn put(&self, name: Bytes, ingest: EntityIngest) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, ingest);
    }
}

impl Store {
    /// Carries out a request for an ingest. Blocks on the disk.
    pub(crate) fn ingest_response(&self, request: &IngestRequest) -> Result<IngestResponse, StoreFault> {
        match request {
            IngestRequest::ReadCursors => Ok(IngestResponse::Cursors(self.ingest_cursors())),
            IngestRequest::Append { name, is_rewound, .. } => {
                let mut ingest = match self.ingests.take(name) {
                    Some(ingest) => ingest,
                    None if *is_rewound => self.ingest(name, EXPECTED_BYTES)?,
                    None => return Err(StoreFault::Io { detail: "the ingest is not open".to_owned() }),
                };
                let appended = append(&mut ingest, request);
                self.ingests.put(name.clone(), ingest);
                appended
            }
            IngestRequest::Forget { name } => {
                drop(self.ingests.take(name));
                self.forget_ingest(name).map(|()| IngestResponse::Forgotten)
            }
        }
    }

    fn ingest_cursors(&self) -> Vec<CopyCursor> {
        let cursors = self.ingest_positions().into_iter();
        cursors.map(|(name, position)| CopyCursor { name: name.into(), position: position.into() }).collect()
    }
}

fn append(ingest: &mut EntityIngest, request: &IngestRequest) -> Result<IngestResponse, StoreFault> {
    let IngestRequest::Append { is_rewound, cells, position, is_last, .. } = request else {
        unreachable!("the caller appends");
    };
    if *is_rewound {
        ingest.rewind();
    }
    for (key, cell) in cells {
        ingest.push(key, cell.as_ref())?;
    }
    let is_durable = *is_last || ingest.is_full();
    if is_durable {
        ingest.commit(position)?;
    }
    Ok(IngestResponse::Appended { is_durable, is_stalled: ingest.is_stalled() })
}
