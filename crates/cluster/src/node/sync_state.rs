//! The sync state: whether this node holds every write that it has acknowledged.
//!
//! **Promise.** A node fills itself from the others before its reads count if a peer shows that the
//! data directory lacks acknowledged writes:
//!
//! - The directory is new, and a peer remembers another identity at this address: the disk was
//!   lost.
//! - The directory is an older state of itself, or a copy beside which another one was used. A peer
//!   then remembers a generation of this identity that the directory does not know, or that
//!   advanced further than the directory shows ([`GenerationHistory`](crate::GenerationHistory)).
//!
//! A node with a new directory counts as one of a new cluster only if every listed node was heard,
//! and each remembers no identity or this very one. The alternative is that the operator declared
//! the cluster new and a majority was heard. Every change of the sync state is durable before a
//! peer is told of it.
//!
//! **Mechanism.** The heartbeats of a peer carry its *identity report*: the identity and generation
//! that it remembers of this node. Until a peer's report was received since the start of this
//! process, this node tells that peer that it is unsettled. A peer keeps its memory until this node
//! reports another sync state, so a report survives crashes and broken links. At its start a
//! settled node waits for the reports of all peers that may be reachable before its own reads
//! count.
//!
//! Two processes may run on copies of one directory. A peer that is linked with one of them refuses
//! the other, which then lacks the writes through that peer. So the reads of a refused process do
//! not count until that peer sends its report, even if the peer is down meanwhile. Otherwise a copy
//! would be trusted as soon as the peers that know the original restart. This also applies to a
//! process that was admitted before, since its address may have been given to the copy. A node that
//! restarts before its peers have detected the end of its former process is refused for a moment
//! too, and counts when it is admitted. A process that is still refused while the other one
//! continues to answer rebuilds itself once it is admitted; the record holds that durably.
//!
//! If the operator declared the cluster new ([`NodeLimits::new_cluster`](crate::NodeLimits)), the
//! record lists the peers that were not heard. A later report of such a peer is still evaluated and
//! can make a settled node rebuild. Once the node is settled, the declaration has no effect any
//! more. Cells stored before stay, as in any rebuild.
//!
//! A process may be linked before it has decided its sync state. Its generation is then not
//! recorded, since the process must first learn of the recorded one. Writes may count it all the
//! same, so this node remembers its generation, beside those of a few other such processes, until
//! it ends. The process of the recorded generation is told of them in turn, and rebuilds itself if
//! one is not among its own generations. A process that restarts is told of them too: its new
//! generation is recorded when it has decided its sync state.
//!
//! A start is counted in the record, which is durable before a peer learns of the generation. If
//! the disk refuses the record, peers learn of no generation, and the next start takes the same
//! number.
//!
//! A contradicting generation is renounced: this node gives its own a greater number. So one loss
//! causes one rebuild, though other peers report it later.
//!
//! A peer that is dead by the layout record of this node is not waited for. It does not count as
//! one of the nodes either, of which a majority is needed.
//!
//! If a peer of a new node is itself rebuilding, its report tells nothing about the time before.
//! This node then rebuilds as well.
//!
//! **Caveats.** If every node that remembers an identity has lost its data too, the loss is not
//! detected. A directory that was rolled back within one generation is detected by the version
//! clock, which never starts behind a value that an earlier generation reported. So these losses
//! are not detected:
//!
//! - Writes made within [`HybridClock::RESERVATION`](crate::HybridClock) after the older state was
//!   taken, if no later writes were made.
//! - Losses that no peer can report, because all peers lost power together with the node before
//!   they stored how far its clock had advanced.
//!
//! An undecided generation is forgotten when the node that was linked with it ends, and when more
//! than [`UndecidedGenerations::COUNT_MAX`](super::undecided_generations::UndecidedGenerations)
//! later processes were linked without a decision. A process that restarts learns of it only after
//! its new generation was recorded; its reads may count for a few heartbeats before that.
//!
//! A peer of an older release remembers no generations.

use super::Node;
use super::peer::Peer;
use crate::quorum::is_majority;
use crate::{
    Event, Generation, GenerationReport, HeartbeatPayload, Incarnation, NodeIndex, NodeSet, PeerHello,
    PeerState, RebuildReason, SyncState, VoteHistory,
};
use std::time::Duration;
use stdx::{NodeTag, Now};

/// Time after the start for which missing identity reports are waited for.
const IDENTITY_REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The identity and generation that a peer remembers of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdentityReport {
    /// The identity of this address.
    tag: Option<NodeTag>,
    /// The newest generation of that identity.
    generation: Option<Generation>,
}

/// Reason why an identity report shows that this node lacks data.
enum Contradiction {
    /// Another identity had this address.
    OtherIdentity,
    /// This identity had a generation that the directory does not contain.
    OtherGeneration(Generation),
}

impl Node {
    /// Counts this start, unless this node is alone. Peers learn of it once it is durable.
    pub(super) fn begin_generation(&mut self) {
        if self.peers_count() > 0 {
            let (incarnation, clock) = (self.member.incarnation, self.member.clock.start());
            self.record.wanted_mut().own_generations.begin(incarnation, clock);
            if self.record.wanted().sync_state == SyncState::Rebuilding {
                self.outbox.emit_event(Event::RebuildBegan { why: RebuildReason::Directory });
            }
        }
    }

    /// The generation of this process, once it is durable.
    pub(super) fn current_generation(&self) -> Option<GenerationReport> {
        let generation = self.record.durable().own_generations.current()?;
        let is_own = generation.incarnation == self.member.incarnation;
        is_own.then(|| GenerationReport { number: generation.number, clock: self.member.clock.secured() })
    }

    /// Whether this node's answers to reads count.
    pub(super) fn is_read_eligible(&self) -> bool {
        let is_settled = || {
            let (durable, wanted) = (self.record.durable().sync_state, self.record.wanted().sync_state);
            self.has_identity_reports && durable.is_read_eligible() && wanted.is_read_eligible()
        };
        self.peers_count() == 0 || is_settled() && !self.is_refused()
    }

    /// The sync state that `node` is told.
    pub(super) fn sync_state_for(&self, node: NodeIndex) -> SyncState {
        let durable = self.record.durable();
        let is_heard = self.peer(node).identity_report.is_some() && !durable.unheard.contains(node);
        match durable.sync_state {
            SyncState::Settled if !is_heard || !self.is_read_eligible() => SyncState::Unsettled,
            sync_state => sync_state,
        }
    }

    pub(super) fn record_identity_report(&mut self, node: NodeIndex, its: &HeartbeatPayload) {
        let report =
            IdentityReport { tag: its.remembered_tag_of_you, generation: its.remembered_generation_of_you };
        let peer = self.peer_mut(node);
        peer.identity_report = Some(report);
        peer.has_refused = false;
        peer.default_from = its.default_from.or(peer.default_from);
        if its.repair_pending {
            // A missing write may be on any of its replicas, and the peer that dropped the hint
            // need not be one of them. So all peers are asked.
            self.mark_repair_pending(self.peer_nodes().collect());
        }
    }

    /// Records the generation that a peer reports. It replaces another one only when the peer has
    /// decided its sync state. Until then the peer must learn from here which generation was
    /// recorded.
    pub(super) fn record_generation(&mut self, node: NodeIndex, hello: &PeerHello, its: &HeartbeatPayload) {
        let Some(now) = its.generation else { return };
        let record = self.record.wanted();
        if record.peers.get(&node) != Some(&hello.tag) {
            return;
        }
        let generation = Generation { number: now.number, incarnation: hello.incarnation, clock: now.clock };
        match record.peer_generations.get(&node) {
            Some(known) if is_same_generation(known, &generation) => {
                let heard =
                    self.peer(node).heard_generation.filter(|heard| is_same_generation(heard, &generation));
                let clock = heard.map_or(generation.clock, |heard| heard.clock.max(generation.clock));
                self.peer_mut(node).heard_generation = Some(Generation { clock, ..generation });
            }
            Some(_) if its.sync_state == SyncState::Unsettled => {
                self.peer_mut(node).undecided_generations.insert(generation);
            }
            _ => {
                self.peer_mut(node).undecided_generations.remove(generation.incarnation);
                self.record.wanted_mut().peer_generations.insert(node, generation);
                self.peer_mut(node).heard_generation = Some(generation);
            }
        }
    }

    /// The generation of a peer that this node remembers, for the heartbeat to its process `to`.
    ///
    /// The process of the recorded generation learns of the undecided ones instead, which were
    /// linked meanwhile: the recorded one tells this process nothing.
    pub(super) fn remembered_generation(&mut self, node: NodeIndex, to: Incarnation) -> Option<Generation> {
        let durable = *self.record.durable().peer_generations.get(&node)?;
        if durable.incarnation == to
            && let Some(undecided) = self.peer_mut(node).undecided_generations.next_to_tell()
        {
            return Some(undecided);
        }
        let heard = self.peer(node).heard_generation.filter(|heard| is_same_generation(heard, &durable));
        let clock = heard.map_or(durable.clock, |heard| heard.clock.max(durable.clock));
        Some(Generation { clock, ..durable })
    }

    /// Has the greatest clock heard of a peer's generation stored, since the peer will not be heard
    /// for a while.
    pub(super) fn store_heard_generation(&mut self, node: NodeIndex) {
        let Some(heard) = self.peer(node).heard_generation else { return };
        let known = self.record.wanted().peer_generations.get(&node);
        if known.is_some_and(|known| is_same_generation(known, &heard) && known.clock < heard.clock) {
            self.record.wanted_mut().peer_generations.insert(node, heard);
        }
    }

    /// Updates the sync state by the identity reports of the peers.
    pub(super) fn update_sync_state(&mut self, now: Now) {
        self.check_identity_reports(now);
        for node in self.peer_nodes() {
            if let Some(contradiction) = self.contradiction_by(node) {
                self.begin_rebuild(now, node, &contradiction);
            } else if self.record.wanted().unheard.contains(node) && self.peer(node).identity_report.is_some()
            {
                let record = self.record.wanted_mut();
                record.unheard = record.unheard.without([node].into_iter().collect());
            }
        }
        self.settle_in_new_cluster(now);
    }

    /// Whether a peer that may be reachable has not sent its identity report.
    pub(super) fn is_identity_report_missing(&self) -> bool {
        let may_answer = |peer: &Peer| {
            peer.state != PeerState::Unreachable
                || peer.has_refused
                || peer.dialed.is_some()
                || peer.accepted.is_some()
        };
        self.peer_nodes()
            .map(|node| self.peer(node))
            .any(|peer| peer.identity_report.is_none() && may_answer(peer))
    }

    /// Whether a majority of the nodes that are not dead, this one included, was heard since the
    /// start of this process, and none of them refuses it.
    pub(super) fn is_confirmed_by_majority(&self) -> bool {
        let dead = self.dead_peers();
        let nodes = self.nodes_count() - usize::from(dead.len());
        let unheard = self.unheard_peers().without(dead);
        let is_heard = is_majority(nodes - usize::from(unheard.len()), nodes);
        self.has_identity_reports && !self.is_refused() && is_heard
    }

    /// Whether a peer has refused this process and has not sent a report since.
    fn is_refused(&self) -> bool {
        self.peer_nodes().any(|node| self.peer(node).has_refused)
    }

    /// Peers that must be heard before this node's reads count, because its directory is new.
    pub(super) fn peers_to_hear(&self) -> NodeSet {
        match self.record.durable().sync_state {
            SyncState::Unsettled => self.unheard_peers().without(self.dead_peers()),
            SyncState::Rebuilding | SyncState::Settled => NodeSet::EMPTY,
        }
    }

    /// The sync state of a node for operators, by the node's own report.
    pub(super) fn sync_state_of(&self, node: NodeIndex) -> SyncState {
        if node == self.member.me { self.record.durable().sync_state } else { self.peer(node).sync_state() }
    }

    fn check_identity_reports(&mut self, now: Now) {
        let is_late = || now.mono - self.started >= IDENTITY_REPORT_TIMEOUT;
        if !self.has_identity_reports && (!self.is_identity_report_missing() || is_late()) {
            self.has_identity_reports = true;
            self.send_heartbeats(now);
        }
    }

    fn contradiction_by(&self, node: NodeIndex) -> Option<Contradiction> {
        let report = self.peer(node).identity_report?;
        let record = self.record.wanted();
        if report.tag? == self.member.tag {
            let generation = report
                .generation
                .filter(|generation| record.own_generations.are_contradicted_by(generation))?;
            return Some(Contradiction::OtherGeneration(generation));
        }
        let is_new =
            self.record.durable().sync_state == SyncState::Unsettled || record.unheard.contains(node);
        let is_known = record.sync_state == SyncState::Rebuilding;
        (is_new && !is_known).then_some(Contradiction::OtherIdentity)
    }

    /// Starts a rebuild because a peer is linked with another process of this node and refuses this
    /// one. Writes through that peer are missing here until some time after the last refusal.
    pub(super) fn begin_rebuild_of_duplicate(&mut self, now: Now) {
        if self.record.wanted().sync_state != SyncState::Rebuilding {
            self.outbox.emit_event(Event::RebuildBegan { why: RebuildReason::Copy });
            let record = self.record.wanted_mut();
            record.sync_state = SyncState::Rebuilding;
            record.unheard = NodeSet::EMPTY;
        }
        self.restart_rebuild(now);
        self.restrict_votes(VoteHistory::Incomplete);
    }

    fn begin_rebuild(&mut self, now: Now, told_by: NodeIndex, contradiction: &Contradiction) {
        let why = match contradiction {
            Contradiction::OtherIdentity => RebuildReason::LostDisk { told_by },
            Contradiction::OtherGeneration(_) => RebuildReason::OlderState { told_by },
        };
        self.outbox.emit_event(Event::RebuildBegan { why });
        let record = self.record.wanted_mut();
        record.sync_state = SyncState::Rebuilding;
        record.unheard = NodeSet::EMPTY;
        if let Contradiction::OtherGeneration(generation) = contradiction {
            record.own_generations.renounce(generation);
            // Keys that were pulled before may have been written elsewhere since.
            self.restart_rebuild(now);
            self.restrict_votes(VoteHistory::Incomplete);
        }
    }

    fn settle_in_new_cluster(&mut self, now: Now) {
        let is_open = |sync_state| sync_state == SyncState::Unsettled;
        if !is_open(self.record.durable().sync_state) || !is_open(self.record.wanted().sync_state) {
            return;
        }
        let dead = self.dead_peers();
        let unheard = self.unheard_peers().without(dead);
        let nodes = self.nodes_count() - usize::from(dead.len());
        let is_heard = is_majority(nodes - usize::from(unheard.len()), nodes);
        if !is_heard || self.is_identity_report_missing() {
            return;
        }
        let is_rebuilding = |node| self.peer(node).sync_state() == SyncState::Rebuilding;
        if let Some(peer) = self.peer_nodes().find(|&node| is_rebuilding(node)) {
            self.outbox.emit_event(Event::RebuildBegan { why: RebuildReason::PeerRebuilds { peer } });
            self.record.wanted_mut().sync_state = SyncState::Rebuilding;
        } else if unheard.is_empty() || self.limits.new_cluster {
            let record = self.record.wanted_mut();
            record.sync_state = SyncState::Settled;
            record.unheard = unheard;
            // A new cluster has no data that this node could lack.
            record.repaired_at = Some(now.wall);
            if self.peers_count() > 0 {
                self.outbox.emit_event(Event::SettledAsNew { unheard });
            }
        }
    }

    /// Peers that were not heard since the start of this process.
    fn unheard_peers(&self) -> NodeSet {
        self.peer_nodes().filter(|&node| self.peer(node).identity_report.is_none()).collect()
    }
}

fn is_same_generation(a: &Generation, b: &Generation) -> bool {
    (a.number, a.incarnation) == (b.number, b.incarnation)
}
