//! Links: which peers to dial, which links to admit, and which identities to store first.
//!
//! **Promise.** A link to a peer carries reads and writes only while the peer's identity is the one
//! that is stored durably here. So of two nodes that exchanged a write, each can later tell the
//! other that it has lost its disk. A stored identity is replaced by another only when the new node
//! reports that it has decided its sync state. Until then the new node must be able to learn the
//! stored identity from here. If the identity is replaced although the new node did not learn it, a
//! repair with that node becomes pending.
//!
//! **Mechanism.** The first hello of a peer, or the first with another identity, changes the node
//! record. Until the change is durable, the accepted link waits and the dialed link carries
//! heartbeats only. A node that has yet to learn of its loss is admitted, since the answers to its
//! heartbeats tell it. A second process under a peer's name is refused as long as the process at
//! the peer's address answers. Of the links that a peer's `Node` dials, the newest admitted one is
//! kept. Links of coordinators are admitted if the identity is stored, and belong to the
//! coordinators' threads.
//!
//! A peer is *linking* while it is not up and one direction is open: its link is admitted and
//! brings heartbeats, or the link dialed to it is open and no heartbeat has been answered yet.
//! Operations wait for such a peer instead of failing. A dial that was in progress when the peer's
//! link arrived may have been lost in a partition that has just ended, so one more dial is awaited.
//! If a dial that began later fails as well, the peer no longer counts as linking.

use super::Node;
use super::peer::{AcceptedLink, DialedLink};
use super::undecided_generations::UndecidedGenerations;
use crate::{
    DialFailure, LinkAction, LinkEvent, LinkId, NodeIndex, PeerHello, PeerState, Requester, SyncState,
};
use stdx::{NodeTag, Now};

impl Node {
    pub(super) fn handle_link_event(&mut self, now: Now, event: LinkEvent) {
        match event {
            LinkEvent::Opened(hello) => self.handle_link_opened(now, hello),
            LinkEvent::DialFailed { node, reason }
                if self.is_peer(node) && self.peer(node).dialer.is_dialing() =>
            {
                let peer = self.peer_mut(node);
                peer.dial_failures_allowed = peer.dial_failures_allowed.saturating_sub(1);
                peer.has_refused |= matches!(reason, DialFailure::NotAdmitted | DialFailure::Copy);
                self.end_dialed_link(now, node);
                match reason {
                    DialFailure::Copy => self.begin_rebuild_of_duplicate(now),
                    DialFailure::Removed { epoch } => self.report_removal(epoch),
                    _ => {}
                }
            }
            LinkEvent::Closed { node } if self.is_peer(node) && self.peer(node).dialer.is_open() => {
                self.peer_mut(node).dial_failures_allowed = 1;
                self.end_dialed_link(now, node);
            }
            LinkEvent::AdmissionRequested { link, hello } => self.handle_link_arrived(now, link, hello),
            LinkEvent::AcceptedClosed { link } => self.handle_link_left(link),
            // The event belongs to a link that was closed meanwhile.
            LinkEvent::DialFailed { .. } | LinkEvent::Closed { .. } => {}
        }
    }

    /// Dials the peers whose back-off has ended.
    pub(super) fn dial_due_peers(&mut self, now: Now) {
        for node in self.peer_nodes() {
            if self.peer_mut(node).dialer.start(now.mono) {
                self.outbox.emit_link_action(LinkAction::Dial(node));
            }
        }
    }

    /// Closes the dialed link to a silent peer.
    pub(super) fn hang_up(&mut self, now: Now, node: NodeIndex) {
        self.outbox.emit_link_action(LinkAction::HangUp(node));
        self.peer_mut(node).dial_failures_allowed = 0;
        self.end_dialed_link(now, node);
    }

    /// Whether a peer that is not up is about to be: a link is open in one direction and the other
    /// is being dialed.
    pub(super) fn is_linking(&self, now: Now, node: NodeIndex) -> bool {
        let peer = self.peer(node);
        let wanted = self.record.wanted().peers.get(&node);
        let has_dialed = peer.dialed.as_ref().is_some_and(|dialed| wanted == Some(&dialed.hello.tag));
        let is_heard = |accepted: &AcceptedLink| now.mono - accepted.heard_at < self.limits.unreachable_after;
        has_dialed || peer.dial_failures_allowed > 0 && peer.accepted.as_ref().is_some_and(is_heard)
    }

    /// Admits the links whose peer identity has become durable.
    pub(super) fn admit_pending_links(&mut self, now: Now) {
        for node in self.peer_nodes() {
            let Some(pending) = self.peer(node).pending_link else { continue };
            if self.has_stored_identity(node, pending.hello.tag) {
                self.peer_mut(node).pending_link = None;
                self.admit(now, pending);
            }
        }
    }

    /// Whether the dialed link to a peer may carry more than heartbeats.
    pub(super) fn is_usable(&self, node: NodeIndex) -> bool {
        let dialed = self.peer(node).dialed.as_ref();
        dialed.is_some_and(|dialed| self.has_stored_identity(node, dialed.hello.tag))
    }

    /// Records the identity of a peer if it may replace the stored one.
    pub(super) fn record_identity(&mut self, node: NodeIndex, tag: NodeTag, sync_state: SyncState) {
        let may_remember = match self.record.wanted().peers.get(&node) {
            Some(known) => *known != tag && sync_state != SyncState::Unsettled,
            None => true,
        };
        if may_remember {
            let former = self.record.wanted_mut().peers.insert(node, tag);
            self.record.wanted_mut().peer_generations.remove(&node);
            self.peer_mut(node).undecided_generations = UndecidedGenerations::default();
            if former.is_some() && sync_state.is_read_eligible() {
                // The peer could not learn here that it lost data, or it was rebuilt without the
                // cells of this node.
                self.mark_repair_pending([node].into_iter().collect());
            }
        }
    }

    fn handle_link_opened(&mut self, now: Now, hello: PeerHello) {
        if !self.is_peer(hello.node) || !self.peer(hello.node).dialer.is_dialing() {
            return;
        }
        self.record_identity(hello.node, hello.tag, hello.sync_state);
        let answered_number = self.outbox.last_request_number();
        self.note_process(now, &hello);
        let peer = self.peer_mut(hello.node);
        peer.dialer.opened();
        peer.has_admitted = true;
        if peer.state == PeerState::Unknown {
            peer.hint_progress.since = now.mono;
        }
        peer.dialed = Some(DialedLink { hello, heard_at: now.mono, answered_number, heartbeat: None });
        self.send_heartbeat(now, hello.node);
    }

    /// Notes the process of a peer with which a link begins, unless another link with it is open.
    fn note_process(&mut self, now: Now, hello: &PeerHello) {
        let peer = self.peer(hello.node);
        let dialed = peer.dialed.as_ref().map(|dialed| dialed.hello.incarnation);
        let accepted = peer.accepted.map(|accepted| accepted.hello.incarnation);
        if ![dialed, accepted].contains(&Some(hello.incarnation)) {
            self.handle_new_voter_process(now);
        }
    }

    fn end_dialed_link(&mut self, now: Now, node: NodeIndex) {
        let peer = &mut self.peers[node.as_usize()];
        peer.dialer.failed(now.mono, &mut self.rng);
        peer.dialed = None;
        peer.state = PeerState::Unreachable;
        self.store_heard_generation(node);
        for purpose in self.outbox.abandon(node) {
            self.complete_request(now, node, purpose, None);
        }
    }

    fn handle_link_arrived(&mut self, now: Now, link: LinkId, hello: PeerHello) {
        if !self.is_peer(hello.node) {
            return self.outbox.emit_link_action(LinkAction::Refuse(link));
        }
        self.peer_mut(hello.node).dialer.end_back_off();
        if self.is_duplicate(&hello) {
            return self.refuse_duplicate(now, link, &hello);
        }
        let accepted = AcceptedLink { link, hello, newest_sent_at: None, heard_at: now.mono };
        match hello.requester {
            Requester::Coordinator(_) if self.has_stored_identity(hello.node, hello.tag) => {
                self.outbox.emit_link_action(LinkAction::Admit(link));
            }
            Requester::Coordinator(_) => self.outbox.emit_link_action(LinkAction::Refuse(link)),
            Requester::Node => {
                self.record_identity(hello.node, hello.tag, hello.sync_state);
                if self.is_identity_being_stored(&hello) {
                    self.defer_admission(accepted);
                } else {
                    self.admit(now, accepted);
                }
            }
        }
    }

    /// Whether the hello comes from another process than the one that answers at the peer's
    /// address. The process at the address is the genuine one as long as it answers.
    fn is_duplicate(&self, hello: &PeerHello) -> bool {
        let peer = self.peer(hello.node);
        let differs = |dialed: &DialedLink| dialed.hello.incarnation != hello.incarnation;
        peer.state == PeerState::Up && peer.dialed.as_ref().is_some_and(differs)
    }

    /// Refuses a duplicate process. The reason is given only if the process at the address still
    /// answers after [`NodeLimits::unreachable_after`](super::NodeLimits). Otherwise the peer was
    /// just restarted, and its former process will soon be found unreachable.
    fn refuse_duplicate(&mut self, now: Now, link: LinkId, hello: &PeerHello) {
        let unreachable_after = self.limits.unreachable_after;
        let peer = self.peer_mut(hello.node);
        let since = match peer.duplicate {
            Some((incarnation, since)) if incarnation == hello.incarnation => since,
            _ => now.mono,
        };
        peer.duplicate = Some((hello.incarnation, since));
        let heard_at = peer.dialed.as_ref().map(|dialed| dialed.heard_at);
        let goes_on = heard_at.is_some_and(|heard_at| heard_at > since + unreachable_after);
        let refuse = if goes_on { LinkAction::RefuseCopy } else { LinkAction::Refuse };
        self.outbox.emit_link_action(refuse(link));
    }

    /// Whether the identity in the hello is being stored and is not durable yet.
    fn is_identity_being_stored(&self, hello: &PeerHello) -> bool {
        let is_wanted = self.record.wanted().peers.get(&hello.node) == Some(&hello.tag);
        is_wanted && !self.has_stored_identity(hello.node, hello.tag)
    }

    fn defer_admission(&mut self, pending: AcceptedLink) {
        if let Some(older) = self.peer_mut(pending.hello.node).pending_link.replace(pending) {
            self.outbox.emit_link_action(LinkAction::Refuse(older.link));
        }
    }

    fn admit(&mut self, now: Now, accepted: AcceptedLink) {
        self.note_process(now, &accepted.hello);
        let peer = self.peer_mut(accepted.hello.node);
        peer.dial_failures_allowed = 1 + u8::from(peer.dialer.is_dialing());
        if let Some(older) = self.peer_mut(accepted.hello.node).accepted.replace(accepted) {
            self.replica.link_closed(older.link);
            self.outbox.emit_link_action(LinkAction::Refuse(older.link));
        }
        self.outbox.emit_link_action(LinkAction::Admit(accepted.link));
    }

    fn handle_link_left(&mut self, link: LinkId) {
        self.replica.link_closed(link);
        for node in self.peer_nodes() {
            let peer = self.peer_mut(node);
            peer.accepted.take_if(|accepted| accepted.link == link);
            peer.pending_link.take_if(|pending| pending.link == link);
        }
    }

    fn has_stored_identity(&self, node: NodeIndex, tag: NodeTag) -> bool {
        self.record.durable().peers.get(&node) == Some(&tag)
    }
}
