//! The layout record that the node has adopted, for handshakes and for the pages of operators.
//!
//! **Promise.** A reader gets one whole record, with the layout that follows from it. Records are
//! replaced by later ones only.
//!
//! **Mechanism.** The control thread replaces the record when the node adopts another one. Readers
//! copy a reference under a lock, once for each handshake, page or log line. A request of a client
//! takes the lock only if it fails because this node is new and has not heard its peers.
//!
//! **Caveats.** The division of file descriptors, and the memory that is guaranteed for messages
//! with the largest value, are those for the number of members at the start of the process.

use cluster::{Layout, LayoutRecord, NodeIndex};
use parking_lot::Mutex;
use std::sync::Arc;
use stdx::NodeTag;
use wire::handshake::{LayoutStatement, NamedMember, ProtocolVersions};

/// A layout record, with the parts that are derived from it once.
pub(crate) struct AdoptedLayout {
    pub(crate) record: Arc<LayoutRecord>,
    /// Its members and its placement. The state machines follow it, each by a message.
    pub(crate) layout: Arc<Layout>,
    /// The record and the address of this node, as handshakes state them.
    pub(crate) statement: LayoutStatement,
    /// The versions of the protocol that the record permits.
    pub(crate) versions: ProtocolVersions,
    /// The members whose node ids the record names.
    pub(crate) named: Arc<[NamedMember]>,
    /// The ids of the nodes that the record refuses for ever.
    pub(crate) removed: Arc<[NodeTag]>,
}

/// The newest adopted layout record of the process.
pub(crate) struct LayoutHandle {
    own: OwnAddress,
    adopted: Mutex<Arc<AdoptedLayout>>,
}

/// This node in the layout records of its cluster.
pub(crate) struct OwnAddress {
    pub(crate) slot: NodeIndex,
    /// Its name in a record that has no address for it.
    pub(crate) name: String,
    /// The address that the operator states. `None`: that of the record.
    pub(crate) stated: Option<String>,
}

impl LayoutHandle {
    /// The handle of a node that starts with `record`.
    pub(crate) fn new(record: Arc<LayoutRecord>, own: OwnAddress) -> Self {
        Self { adopted: Mutex::new(AdoptedLayout::of(record, &own)), own }
    }

    /// The newest record.
    pub(crate) fn get(&self) -> Arc<AdoptedLayout> {
        Arc::clone(&self.adopted.lock())
    }

    /// Replaces the record by a later one. Returns the former.
    pub(crate) fn replace(&self, record: Arc<LayoutRecord>) -> Arc<AdoptedLayout> {
        let adopted = AdoptedLayout::of(record, &self.own);
        std::mem::replace(&mut *self.adopted.lock(), adopted)
    }
}

impl AdoptedLayout {
    fn of(record: Arc<LayoutRecord>, own: &OwnAddress) -> Arc<Self> {
        let layout = layout_of(&record, &own.name);
        let recorded = record.member(own.slot).map_or("", |member| &member.url);
        // A node on its own has no address in its record.
        let stated = own.stated.as_deref().filter(|_| record.members.len() > 1);
        let statement = LayoutStatement::of(&record).reached_at(stated.unwrap_or(recorded));
        let named = NamedMember::all_of(&record).into();
        let removed = record.removed_ids().collect();
        let versions = ProtocolVersions::with_record(&record);
        Arc::new(Self { layout: Arc::new(layout), record, statement, versions, named, removed })
    }
}

/// The layout of a record. A node on its own, whose record has no address, is named `own_name`.
pub(crate) fn layout_of(record: &LayoutRecord, own_name: &str) -> Layout {
    Layout::of_record(record).named(own_name.to_owned())
}
