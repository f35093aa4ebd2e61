//! State that the threads of a node share once the store is open.

use crate::adopted_layout::LayoutHandle;
use crate::config::Config;
use crate::layout_status::PeerEpochs;
use crate::links::{InvalidAddress, PeerAddress, PeerAddresses};
use crate::read_pool::ReadPool;
use cluster::{
    AgreementStatus, ClusterView, LayoutRecord, LinkId, Member, MemberState, NodeIndex, NodeSet, NodeStatus,
    PeerHello, Requester, SyncState,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::{Hlc, WallTime};
use store::{OpenReport, Store};
use wire::handshake::{self, ClusterDigest, LayoutStatement, ProtocolVersions, Secret};

/// State that the threads of a node share once the store is open.
pub(crate) struct Local {
    pub(crate) store: Store,
    pub(crate) member: Member,
    pub(crate) reads: ReadPool,
    /// Addresses at which the peers are dialed.
    pub(crate) addresses: PeerAddresses,
    /// The newest version on disk at the start, if it was too far ahead for the version clock to
    /// start after it.
    pub(crate) version_ahead: Option<Hlc>,
    /// The node's latest view of the cluster, for threads that start. Changes are also sent to the
    /// threads.
    pub(crate) view: Mutex<Arc<ClusterView>>,
    /// The node's latest status of itself, for operators and for the handshake.
    pub(crate) account: Mutex<Option<Arc<NodeStatus>>>,
    /// The node's latest status in the agreement on layout records.
    pub(crate) agreement: Mutex<Option<Arc<AgreementStatus>>>,
    /// The newest adopted layout record.
    pub(crate) layout: LayoutHandle,
    /// The layout records that the peers hold.
    pub(crate) peer_epochs: Arc<PeerEpochs>,
    /// The sync state that was durable at the start.
    first_sync_state: SyncState,
    digest: ClusterDigest,
    secret: Secret,
    /// Number of links accepted so far.
    links: AtomicU64,
}

impl Local {
    /// The shared state at the start.
    ///
    /// # Errors
    /// If the name of a node is not an address.
    pub(crate) fn new(
        store: Store,
        member: Member,
        reads: ReadPool,
        opened: &OpenReport,
        config: &Config,
    ) -> Result<Self, InvalidAddress> {
        let own_url = config.moved_to.clone().unwrap_or_else(|| config.own_name());
        let others = other_addresses(&config.listed, opened, &own_url);
        Ok(Self {
            addresses: PeerAddresses::new(member.layout.names(), &others)?,
            view: Mutex::new(member.first_view()),
            account: Mutex::default(),
            agreement: Mutex::default(),
            digest: ClusterDigest::of(
                member.layout.names(),
                config.membership.partitions,
                config.membership.hash_version,
            ),
            layout: LayoutHandle::new(Arc::clone(&opened.layout), own_url),
            peer_epochs: Arc::new(PeerEpochs::new(usize::from(member.layout.len()), &opened.votes)),
            secret: Secret::new(config.secret.clone().unwrap_or_default()),
            links: AtomicU64::new(0),
            first_sync_state: opened.record.sync_state,
            version_ahead: opened.version_ahead,
            store,
            member,
            reads,
        })
    }

    /// This node's part of a handshake for the state machine `requester`.
    pub(crate) fn introduce(&self, requester: Requester) -> handshake::HandshakeConfig {
        let Member { me, tag, incarnation, clock, .. } = &self.member;
        let adopted = self.layout.get();
        handshake::HandshakeConfig {
            hello: PeerHello {
                node: *me,
                tag: *tag,
                requester,
                incarnation: *incarnation,
                clock: clock.shown(),
                sync_state: self.sync_state(),
            },
            digest: self.digest,
            layout: adopted.statement.clone(),
            members: adopted.record.slots(),
            named: Arc::clone(&adopted.named),
            secret: self.secret.clone(),
            versions: ProtocolVersions::with_record_of(adopted.record.epoch),
        }
    }

    /// The early proof in a request to the node `to`, which shows that this node belongs to the
    /// cluster.
    pub(crate) fn early_proof(&self, to: NodeIndex, now: WallTime) -> String {
        self.secret.early_proof(self.member.me, to, now)
    }

    /// The peer that made this early proof for this node, if the proof is valid.
    pub(crate) fn check_early_proof(&self, text: &str, now: WallTime) -> Option<NodeIndex> {
        let from = self.secret.check_early_proof(text, self.member.me, now)?;
        (from != self.member.me && from.0 < self.member.layout.len()).then_some(from)
    }

    /// Records the address that a peer has stated in a handshake.
    pub(crate) fn record_statement(&self, hello: &PeerHello, statement: Option<&LayoutStatement>) {
        if let Some(statement) = statement {
            self.addresses.state(&self.layout.get().record, hello.node, hello.tag, &statement.url);
        }
    }

    /// Records that the peer has answered a link that was dialed to `address`.
    pub(crate) fn record_reached(&self, hello: &PeerHello, address: &PeerAddress) {
        self.addresses.reached(&self.layout.get().record, hello.node, hello.tag, address);
    }

    /// URL of `node` in the adopted layout record, by which logs and pages for operators name it.
    pub(crate) fn url_of(&self, node: NodeIndex) -> String {
        self.url_in(&self.layout.get().record, node)
    }

    /// URLs of all nodes in the adopted layout record, by slot.
    pub(crate) fn urls(&self) -> Vec<String> {
        let record = Arc::clone(&self.layout.get().record);
        self.member.layout.nodes().map(|node| self.url_in(&record, node)).collect()
    }

    /// The names of nodes that are missing, for a sentence. A member that was declared lost is
    /// marked, since it is not to be started.
    pub(crate) fn names_of_missing(&self, nodes: NodeSet) -> String {
        let record = Arc::clone(&self.layout.get().record);
        let name = |node: NodeIndex| {
            let is_dead = record.member(node).is_some_and(|member| member.state == MemberState::Dead);
            let mark = if is_dead { " (declared lost)" } else { "" };
            format!("{}{mark}", self.url_in(&record, node))
        };
        nodes.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// The record of a node on its own has no address. The node then has the one of its start.
    fn url_in(&self, record: &LayoutRecord, node: NodeIndex) -> String {
        let recorded = record.member(node).map(|member| &member.url).filter(|url| !url.is_empty());
        recorded.unwrap_or(&self.member.layout.names()[node.as_usize()]).clone()
    }

    /// A number for an accepted link, unique in this process.
    pub(crate) fn next_link(&self) -> LinkId {
        LinkId(self.links.fetch_add(1, Ordering::Relaxed))
    }

    fn sync_state(&self) -> SyncState {
        let account = self.account.lock();
        account.as_ref().map_or(self.first_sync_state, |account| account.sync_state).in_hello()
    }
}

/// The listed addresses that no member has, and that are not the one of this node. Members may be
/// found there once the record names the id of this node, and so those of all.
fn other_addresses(listed: &[String], opened: &OpenReport, own_url: &str) -> Vec<String> {
    let members = &opened.layout.members;
    if !members.iter().any(|member| member.node_id == Some(opened.identity.tag)) {
        return Vec::new();
    }
    let is_other = |url: &&String| *url != own_url && members.iter().all(|member| member.url != **url);
    listed.iter().filter(is_other).cloned().collect()
}
