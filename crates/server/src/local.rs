//! State that the threads of a node share once the store is open.

use crate::adopted_layout::{LayoutHandle, OwnAddress};
use crate::config::Config;
use crate::layout_progress::LayoutProgress;
use crate::layout_status::PeerEpochs;
use crate::links::{InvalidAddress, PeerAddress, PeerAddresses};
use crate::read_pool::ReadPool;
use cluster::{
    AgreementStatus, ClusterView, Layout, LinkId, Member, MemberState, NodeIndex, NodeSet, NodeStatus,
    PeerHello, Requester, SyncState,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::{Hlc, WallTime};
use store::{OpenReport, Store};
use wire::handshake::{self, ClusterDigest, LayoutStatement, Secret};

/// State that the threads of a node share once the store is open.
pub(crate) struct Local {
    pub(crate) store: Store,
    /// This node, with the layout of the start. The present one is in `layout`.
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
    /// The progress of the running change of the layout.
    pub(crate) layout_progress: LayoutProgress,
    /// The layout records that the peers hold.
    pub(crate) peer_epochs: Arc<PeerEpochs>,
    /// Greatest feature level of the layout records that this node carries out.
    pub(crate) feature_level_max: u32,
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
        let own = OwnAddress { slot: member.me, name: config.own_name(), stated: config.moved_to.clone() };
        let others = other_addresses(&config.listed, opened, own.stated.as_ref().unwrap_or(&own.name));
        Ok(Self {
            addresses: PeerAddresses::new(&member.layout, &others)?,
            view: Mutex::new(member.first_view()),
            account: Mutex::default(),
            agreement: Mutex::default(),
            digest: ClusterDigest::of(
                member.layout.names(),
                config.membership.partitions,
                config.membership.hash_version,
            ),
            layout: LayoutHandle::new(Arc::clone(&opened.layout), own),
            layout_progress: LayoutProgress::default(),
            peer_epochs: Arc::new(PeerEpochs::new(&opened.votes)),
            secret: Secret::new(config.secret.clone().unwrap_or_default()),
            links: AtomicU64::new(0),
            feature_level_max: config.feature_level_max,
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
            members: adopted.layout.members(),
            named: Arc::clone(&adopted.named),
            removed: Arc::clone(&adopted.removed),
            secret: self.secret.clone(),
            versions: adopted.versions,
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
        (from != self.member.me && self.layout().members().contains(from)).then_some(from)
    }

    /// The newest layout of the cluster.
    pub(crate) fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.layout.get().layout)
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
        url_in(&self.layout.get().layout, node)
    }

    /// All nodes with their URLs in the adopted layout record.
    pub(crate) fn urls(&self) -> Vec<(NodeIndex, String)> {
        let layout = self.layout();
        layout.nodes().map(|node| (node, url_in(&layout, node))).collect()
    }

    /// The names of nodes that are missing, for a sentence. A member that was declared lost is
    /// marked, since it is not to be started.
    pub(crate) fn names_of_missing(&self, nodes: NodeSet) -> String {
        let adopted = self.layout.get();
        let name = |node: NodeIndex| {
            let is_dead = adopted.record.member(node).is_some_and(|member| member.state == MemberState::Dead);
            let mark = if is_dead { " (declared lost)" } else { "" };
            format!("{}{mark}", url_in(&adopted.layout, node))
        };
        nodes.iter().map(name).collect::<Vec<_>>().join(", ")
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

/// URL of a node in a layout. A slot without a member is named by its number.
fn url_in(layout: &Layout, node: NodeIndex) -> String {
    let name = layout.names().get(node.as_usize()).filter(|name| !name.is_empty());
    name.cloned().unwrap_or_else(|| format!("slot {}", node.0))
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
