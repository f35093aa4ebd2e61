//! The layout record that the node has adopted, for handshakes and for the pages of operators.
//!
//! **Promise.** A reader gets one whole record. Records are replaced by later ones only.
//!
//! **Mechanism.** The control thread replaces the record when the node adopts another one. Readers
//! copy a reference under a lock, once for each handshake or page. No request of a client takes the
//! lock.

use cluster::LayoutRecord;
use parking_lot::Mutex;
use std::sync::Arc;
use wire::handshake::LayoutStatement;

/// A layout record, with what is derived from it once.
pub(crate) struct AdoptedLayout {
    pub(crate) record: Arc<LayoutRecord>,
    /// The record, as handshakes state it.
    pub(crate) statement: LayoutStatement,
}

impl AdoptedLayout {
    fn of(record: Arc<LayoutRecord>) -> Arc<Self> {
        let statement = LayoutStatement::of(&record);
        Arc::new(Self { record, statement })
    }
}

/// The newest adopted layout record of the process.
pub(crate) struct LayoutHandle(Mutex<Arc<AdoptedLayout>>);

impl LayoutHandle {
    /// The handle of a node that starts with `record`.
    pub(crate) fn new(record: Arc<LayoutRecord>) -> Self {
        Self(Mutex::new(AdoptedLayout::of(record)))
    }

    /// The newest record.
    pub(crate) fn get(&self) -> Arc<AdoptedLayout> {
        Arc::clone(&self.0.lock())
    }

    /// Replaces the record by a later one. Returns the former.
    pub(crate) fn replace(&self, record: Arc<LayoutRecord>) -> Arc<AdoptedLayout> {
        let adopted = AdoptedLayout::of(record);
        std::mem::replace(&mut *self.0.lock(), adopted)
    }
}
