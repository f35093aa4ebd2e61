//! The layout record that the node has adopted, for handshakes and for the pages of operators.
//!
//! **Promise.** A reader gets one whole record. Records are replaced by later ones only.
//!
//! **Mechanism.** The control thread replaces the record when the node adopts another one. Readers
//! copy a reference under a lock, once for each handshake, page or log line. A request of a client
//! takes the lock only if it fails because this node is new and has not heard its peers.

use cluster::LayoutRecord;
use parking_lot::Mutex;
use std::sync::Arc;
use wire::handshake::{LayoutStatement, NamedMember};

/// A layout record, with what is derived from it once.
pub(crate) struct AdoptedLayout {
    pub(crate) record: Arc<LayoutRecord>,
    /// The record and the address of this node, as handshakes state them.
    pub(crate) statement: LayoutStatement,
    /// The members whose node ids the record names.
    pub(crate) named: Arc<[NamedMember]>,
}

/// The newest adopted layout record of the process.
pub(crate) struct LayoutHandle {
    /// Address at which this node is reached.
    own_url: String,
    adopted: Mutex<Arc<AdoptedLayout>>,
}

impl LayoutHandle {
    /// The handle of a node that starts with `record` and is reached at `own_url`.
    pub(crate) fn new(record: Arc<LayoutRecord>, own_url: String) -> Self {
        Self { adopted: Mutex::new(AdoptedLayout::of(record, &own_url)), own_url }
    }

    /// The newest record.
    pub(crate) fn get(&self) -> Arc<AdoptedLayout> {
        Arc::clone(&self.adopted.lock())
    }

    /// Replaces the record by a later one. Returns the former.
    pub(crate) fn replace(&self, record: Arc<LayoutRecord>) -> Arc<AdoptedLayout> {
        let adopted = AdoptedLayout::of(record, &self.own_url);
        std::mem::replace(&mut *self.adopted.lock(), adopted)
    }
}

impl AdoptedLayout {
    fn of(record: Arc<LayoutRecord>, own_url: &str) -> Arc<Self> {
        // A node on its own has no address in its record, whatever it listens on.
        let own_url = if record.members.len() > 1 { own_url } else { "" };
        let statement = LayoutStatement::of(&record).reached_at(own_url);
        let named = NamedMember::all_of(&record).into();
        Arc::new(Self { record, statement, named })
    }
}
