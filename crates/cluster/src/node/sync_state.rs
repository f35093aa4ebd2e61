//! Whether this node holds what it acknowledged.
//!
//! **Promise.** A node fills itself from the others before its answers to reads count, when a peer shows that the
//! data directory lacks acknowledged writes:
//!
//! * The directory is new, and a peer remembers another identity of this address: a lost disk.
//! * The directory is an older state of itself, or a copy beside which another one ran: a peer remembers a life of
//!   this identity that the directory does not know, or knows less far ([`GenerationHistory`](crate::GenerationHistory)).
//!
//! A node of a new directory counts as a node of a new cluster only when all listed nodes were heard, and each
//! remembers none or this very identity; or when the operator said so and a majority was heard. Each change of
//! standing is durable before a peer is told of it.
//!
//! **Mechanism.** Each peer says in its heartbeats what it remembers: its *word*. Until a peer's word was heard in this
//! life, this node says to that peer that it is unsettled. A peer keeps what it remembers until this node says
//! otherwise, so a word is not lost by a crash or a broken link. At its start a settled node waits for the words of
//! all peers that may be reachable before its own answers count.
//!
//! Two processes may run on copies of one directory. A peer that is linked with one of them refuses the other, which
//! then lacks what is written through that peer. So the answers of a process that a peer refused do not count until
//! that peer says what it remembers, also if the peer is down meanwhile: else a copy would be believed as soon as the
//! peers that know the original restart. A process that was admitted before is treated alike: its address may have
//! been given to the copy. A node that restarts so fast that its peers have not missed the former process is refused
//! for a moment too, and counts when it is admitted. A process that is still refused while the other one goes on
//! answering rebuilds itself once it is admitted, and remembers that durably.
//!
//! Where the operator said that the cluster is new ([`NodeLimits::new_cluster`](crate::NodeLimits)), the record keeps
//! the peers that were not heard. The word of such a peer is still heard later, and makes a settled node rebuild.
//! Once settled, the operator's word means nothing any more. What was stored before stays, as in any rebuild.
//!
//! A start is counted in the record, which is durable before a peer hears of the life. Where the disk refuses the
//! record, peers hear of no life, and the next start takes the same number.
//!
//! A life that contradicts is renounced: this node numbers its life above it. So one loss causes one rebuild, though
//! other peers speak of it later.
//!
//! If a peer of a new node is rebuilding itself, its word says nothing of what was before: then this node rebuilds too.
//!
//! **Caveats.** If all nodes that remember an identity lost their data too, nothing shows the loss. A directory that
//! was rolled back within one life is recognised by the version clock, which begins behind nothing that a former life
//! reported. So the loss of writes
//! goes unnoticed that were made within [`HybridClock::RESERVATION`](crate::HybridClock) after the older state was
//! taken, if none came later; and any loss that no peer saw, because all peers lost power with the node. A peer of
//! an older release remembers no lives.

use super::Node;
use super::peer::Peer;
use crate::{
    Event, Generation, GenerationReport, HeartbeatPayload, NodeIndex, NodeSet, PeerHello, PeerState,
    RebuildReason, SyncState,
};
use std::time::Duration;
use stdx::{NodeTag, Now};

/// Words of peers that are outstanding for longer after the start are not waited for.
const WORDS_WITHIN: Duration = Duration::from_secs(5);

/// What a peer remembers of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// The identity of this address.
    tag: Option<NodeTag>,
    /// The newest life of that identity.
    generation: Option<Generation>,
}

/// How a word shows that this node lacks data.
enum Contradiction {
    /// Another identity had this address.
    OtherIdentity,
    /// This identity had a life that is not in the directory.
    OtherGeneration(Generation),
}

impl Node {
    /// Counts this start. Peers hear of it once it is durable.
    pub(super) fn begin_generation(&mut self) {
        if self.peers_count() > 0 {
            let (incarnation, clock) = (self.member.incarnation, self.member.clock.start());
            self.record.change().own_generations.begin(incarnation, clock);
            if self.record.durable().sync_state == SyncState::Rebuilding {
                self.outbox.event(Event::RebuildBegan { why: RebuildReason::Directory });
            }
        }
    }

    /// The life of this process, once it is durable.
    pub(super) fn generation_report(&self) -> Option<GenerationReport> {
        let generation = self.record.durable().own_generations.current()?;
        let is_own = generation.incarnation == self.member.incarnation;
        is_own.then(|| GenerationReport { number: generation.number, clock: self.member.clock.secured() })
    }

    /// Whether this node's answers to reads count.
    pub(super) fn is_read_eligible(&self) -> bool {
        let is_settled = || {
            let (durable, wanted) = (self.record.durable().sync_state, self.record.wanted().sync_state);
            self.words_are_heard && durable.is_read_eligible() && wanted.is_read_eligible()
        };
        self.peers_count() == 0 || is_settled() && !self.is_refused()
    }

    /// The standing that `node` is told.
    pub(super) fn sync_state_for(&self, node: NodeIndex) -> SyncState {
        let durable = self.record.durable();
        let is_heard = self.peer(node).word.is_some() && !durable.unheard.contains(node);
        match durable.sync_state {
            SyncState::Settled if !is_heard || !self.is_read_eligible() => SyncState::Unsettled,
            sync_state => sync_state,
        }
    }

    pub(super) fn take_word(&mut self, node: NodeIndex, its: &HeartbeatPayload) {
        let word = Word { tag: its.remembered_tag_of_you, generation: its.remembered_generation_of_you };
        let peer = self.peer_mut(node);
        peer.word = Some(word);
        peer.refuses = false;
        peer.default_from = its.default_from.or(peer.default_from);
        if its.repair_pending {
            // Who lacks a write finds it at any of its replicas; who gave it up may be none of them.
            self.owe_repair(self.peer_nodes().collect());
        }
    }

    /// Takes note of the life that a peer reports. A life gives way to another only when the peer says that it knows
    /// what it stands for: until then the peer must hear from here which life was remembered.
    pub(super) fn meet_generation(&mut self, node: NodeIndex, hello: &PeerHello, its: &HeartbeatPayload) {
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
            Some(_) if its.sync_state == SyncState::Unsettled => {}
            _ => {
                self.record.change().peer_generations.insert(node, generation);
                self.peer_mut(node).heard_generation = Some(generation);
            }
        }
    }

    /// What this node remembers of a peer's life, for the peer.
    pub(super) fn remembered_generation(&self, node: NodeIndex) -> Option<Generation> {
        let durable = *self.record.durable().peer_generations.get(&node)?;
        let heard = self.peer(node).heard_generation.filter(|heard| is_same_generation(heard, &durable));
        let clock = heard.map_or(durable.clock, |heard| heard.clock.max(durable.clock));
        Some(Generation { clock, ..durable })
    }

    /// Makes durable how far a peer's life was heard, now that no more will be heard for a while.
    pub(super) fn keep_heard_generation(&mut self, node: NodeIndex) {
        let Some(heard) = self.peer(node).heard_generation else { return };
        let known = self.record.wanted().peer_generations.get(&node);
        if known.is_some_and(|known| is_same_generation(known, &heard) && known.clock < heard.clock) {
            self.record.change().peer_generations.insert(node, heard);
        }
    }

    /// Decides what follows from the words of peers.
    pub(super) fn decide_sync_state(&mut self, now: Now) {
        self.look_whether_words_are_heard(now);
        for node in self.peer_nodes() {
            if let Some(contradiction) = self.contradiction_by(node) {
                self.begin_rebuild(now, node, &contradiction);
            } else if self.record.wanted().unheard.contains(node) && self.peer(node).word.is_some() {
                let record = self.record.change();
                record.unheard = record.unheard.without([node].into_iter().collect());
            }
        }
        self.settle_in_new_cluster(now);
    }

    /// Whether some peer may be reachable and has not said what it remembers.
    pub(super) fn is_word_outstanding(&self) -> bool {
        let may_answer = |peer: &Peer| {
            peer.state != PeerState::Unreachable
                || peer.refuses
                || peer.dialed.is_some()
                || peer.accepted.is_some()
        };
        self.peer_nodes().map(|node| self.peer(node)).any(|peer| peer.word.is_none() && may_answer(peer))
    }

    /// Whether some peer has refused this process and has not spoken to it since.
    fn is_refused(&self) -> bool {
        self.peer_nodes().any(|node| self.peer(node).refuses)
    }

    /// Peers that have to be heard before the answers of this node count, since its directory is new.
    pub(super) fn peers_to_hear(&self) -> NodeSet {
        match self.record.durable().sync_state {
            SyncState::Unsettled => self.unheard_peers(),
            SyncState::Rebuilding | SyncState::Settled => NodeSet::EMPTY,
        }
    }

    /// The standing of a peer by its word, for operators.
    pub(super) fn sync_state_of(&self, node: NodeIndex) -> SyncState {
        if node == self.member.me { self.record.durable().sync_state } else { self.peer(node).sync_state() }
    }

    fn look_whether_words_are_heard(&mut self, now: Now) {
        let is_late = || now.mono - self.started >= WORDS_WITHIN;
        if !self.words_are_heard && (!self.is_word_outstanding() || is_late()) {
            self.words_are_heard = true;
            self.send_heartbeats(now);
        }
    }

    fn contradiction_by(&self, node: NodeIndex) -> Option<Contradiction> {
        let word = self.peer(node).word?;
        let record = self.record.wanted();
        if word.tag? == self.member.tag {
            let generation = word
                .generation
                .filter(|generation| record.own_generations.are_contradicted_by(generation))?;
            return Some(Contradiction::OtherGeneration(generation));
        }
        let is_new =
            self.record.durable().sync_state == SyncState::Unsettled || record.unheard.contains(node);
        let is_known = record.sync_state == SyncState::Rebuilding;
        (is_new && !is_known).then_some(Contradiction::OtherIdentity)
    }

    /// Another process of this node is linked with a peer that refuses this one: what is written through that peer is
    /// lacking here, until some time after the last refusal.
    pub(super) fn begin_rebuild_of_copy(&mut self, now: Now) {
        if self.record.wanted().sync_state != SyncState::Rebuilding {
            self.outbox.event(Event::RebuildBegan { why: RebuildReason::Copy });
            let record = self.record.change();
            record.sync_state = SyncState::Rebuilding;
            record.unheard = NodeSet::EMPTY;
        }
        self.forget_rebuild(now);
    }

    fn begin_rebuild(&mut self, now: Now, told_by: NodeIndex, contradiction: &Contradiction) {
        let why = match contradiction {
            Contradiction::OtherIdentity => RebuildReason::LostDisk { told_by },
            Contradiction::OtherGeneration(_) => RebuildReason::OlderState { told_by },
        };
        self.outbox.event(Event::RebuildBegan { why });
        let record = self.record.change();
        record.sync_state = SyncState::Rebuilding;
        record.unheard = NodeSet::EMPTY;
        if let Contradiction::OtherGeneration(generation) = contradiction {
            record.own_generations.renounce(generation);
            // What was pulled before may have been written elsewhere since.
            self.forget_rebuild(now);
        }
    }

    fn settle_in_new_cluster(&mut self, now: Now) {
        let is_open = |sync_state| sync_state == SyncState::Unsettled;
        if !is_open(self.record.durable().sync_state) || !is_open(self.record.wanted().sync_state) {
            return;
        }
        let unheard = self.unheard_peers();
        let heard = usize::from(self.member.layout.len()) - usize::from(unheard.len());
        let is_majority = heard * 2 > usize::from(self.member.layout.len());
        if !is_majority || self.is_word_outstanding() {
            return;
        }
        let is_rebuilding = |node| self.peer(node).sync_state() == SyncState::Rebuilding;
        if let Some(peer) = self.peer_nodes().find(|&node| is_rebuilding(node)) {
            self.outbox.event(Event::RebuildBegan { why: RebuildReason::PeerRebuilds { peer } });
            self.record.change().sync_state = SyncState::Rebuilding;
        } else if unheard.is_empty() || self.limits.new_cluster {
            let record = self.record.change();
            record.sync_state = SyncState::Settled;
            record.unheard = unheard;
            // There is nothing that others could hold and this node lacks.
            record.repaired_at = Some(now.wall);
            if self.peers_count() > 0 {
                self.outbox.event(Event::SettledAsNew { unheard });
            }
        }
    }

    fn unheard_peers(&self) -> NodeSet {
        self.peer_nodes().filter(|&node| self.peer(node).word.is_none()).collect()
    }
}

fn is_same_generation(a: &Generation, b: &Generation) -> bool {
    (a.number, a.incarnation) == (b.number, b.incarnation)
}
