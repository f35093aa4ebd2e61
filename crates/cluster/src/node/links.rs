//! Links: whom to dial, whom to let in, and what must be remembered before.
//!
//! **Promise.** A link to a peer is used for reads and writes only while the peer's identity is the one that is
//! durably remembered here; so of two nodes that exchanged a write, each can tell the other later that it has lost
//! its disk. A remembered identity gives way to another only when the other's node says that it knows what it
//! stands for: until then it must hear from here what was remembered. If it did not, a repair is owed with it.
//!
//! **Mechanism.** The first hello of a peer, or the first of another identity, changes the record; the accepted
//! link waits, and the dialed one carries heartbeats only, until the change is durable. A node that has yet to
//! hear of its loss is let in, for its heartbeats bring it the answer. A second process that goes by a peer's name
//! is not, as long as the one at the peer's address answers. One accepted link of a peer's `Node` is
//! kept, the newest. Links of coordinators are let in if the identity is remembered, and belong to their threads.
//!
//! A peer is *linking* while it is not up yet and one direction is open: its link has been let in and brings heartbeats, or
//! what was dialed to it is open and no heartbeat has been answered yet. Operations wait for such a peer instead of failing.
//! A dial that was under way when the peer's link came may have been lost with the partition that has just ended, so
//! one more is awaited. When a dial that began later fails too, the peer counts as one that cannot be dialed.

use super::Node;
use super::peer::{AcceptedLink, DialedLink};
use crate::{
    DialFailure, LinkAction, LinkEvent, LinkId, NodeIndex, PeerHello, PeerState, Requester, SyncState,
};
use stdx::{NodeTag, Now};

impl Node {
    pub(super) fn link_event(&mut self, now: Now, event: LinkEvent) {
        match event {
            LinkEvent::Opened(hello) => self.link_opened(now, hello),
            LinkEvent::DialFailed { node, reason }
                if self.is_peer(node) && self.peer(node).dialer.is_dialing() =>
            {
                let peer = self.peer_mut(node);
                peer.dials_awaited = peer.dials_awaited.saturating_sub(1);
                peer.refuses |= matches!(reason, DialFailure::NotAdmitted | DialFailure::Copy);
                self.link_ended(now, node);
                if reason == DialFailure::Copy {
                    self.begin_rebuild_of_copy(now);
                }
            }
            LinkEvent::Closed { node } if self.is_peer(node) && self.peer(node).dialer.is_open() => {
                self.peer_mut(node).dials_awaited = 1;
                self.link_ended(now, node);
            }
            LinkEvent::AdmissionRequested { link, hello } => self.link_arrived(now, link, hello),
            LinkEvent::AcceptedClosed { link } => self.link_left(link),
            // Of a link that was given up meanwhile.
            LinkEvent::DialFailed { .. } | LinkEvent::Closed { .. } => {}
        }
    }

    /// Dials whom it is time to dial.
    pub(super) fn dial_due(&mut self, now: Now) {
        for node in self.peer_nodes() {
            if self.peer_mut(node).dialer.start(now.mono) {
                self.outbox.link(LinkAction::Dial(node));
            }
        }
    }

    /// Closes what was dialed to a peer that is silent.
    pub(super) fn hang_up(&mut self, now: Now, node: NodeIndex) {
        self.outbox.link(LinkAction::HangUp(node));
        self.peer_mut(node).dials_awaited = 0;
        self.link_ended(now, node);
    }

    /// Whether a peer that is not up yet will be in a moment: see the module.
    pub(super) fn is_linking(&self, now: Now, node: NodeIndex) -> bool {
        let peer = self.peer(node);
        let wanted = self.record.wanted().peers.get(&node);
        let has_dialed = peer.dialed.as_ref().is_some_and(|dialed| wanted == Some(&dialed.hello.tag));
        let is_heard = |accepted: &AcceptedLink| now.mono - accepted.heard_at < self.limits.unreachable_after;
        has_dialed || peer.dials_awaited > 0 && peer.accepted.as_ref().is_some_and(is_heard)
    }

    /// Lets in what waited for the record to be durable.
    pub(super) fn admit_remembered(&mut self) {
        for node in self.peer_nodes() {
            let Some(waiting) = self.peer(node).waiting else { continue };
            if self.remembers(node, waiting.hello.tag) {
                self.peer_mut(node).waiting = None;
                self.admit(waiting);
            }
        }
    }

    /// Whether the peer's dialed link may carry more than heartbeats.
    pub(super) fn is_usable(&self, node: NodeIndex) -> bool {
        let dialed = self.peer(node).dialed.as_ref();
        dialed.is_some_and(|dialed| self.remembers(node, dialed.hello.tag))
    }

    /// Takes note of an identity, where it may take the place of what is remembered.
    pub(super) fn meet(&mut self, node: NodeIndex, tag: NodeTag, sync_state: SyncState) {
        let may_remember = match self.record.wanted().peers.get(&node) {
            Some(known) => *known != tag && sync_state != SyncState::Unsettled,
            None => true,
        };
        if may_remember {
            let former = self.record.change().peers.insert(node, tag);
            self.record.change().peer_generations.remove(&node);
            if former.is_some() && sync_state.is_read_eligible() {
                // Nobody could tell it of what it has lost, or it was rebuilt without what is here.
                self.owe_repair([node].into_iter().collect());
            }
        }
    }

    fn link_opened(&mut self, now: Now, hello: PeerHello) {
        if !self.is_peer(hello.node) || !self.peer(hello.node).dialer.is_dialing() {
            return;
        }
        self.meet(hello.node, hello.tag, hello.sync_state);
        let heard_number = self.outbox.last_number();
        let peer = self.peer_mut(hello.node);
        peer.dialer.opened();
        if peer.state == PeerState::Unknown {
            peer.hints_there.since = now.mono;
        }
        peer.dialed = Some(DialedLink { hello, heard_at: now.mono, heard_number, heartbeat: None });
        self.send_heartbeat(now, hello.node);
    }

    fn link_ended(&mut self, now: Now, node: NodeIndex) {
        let peer = &mut self.peers[node.as_usize()];
        peer.dialer.failed(now.mono, &mut self.rng);
        peer.dialed = None;
        peer.state = PeerState::Unreachable;
        self.keep_heard_generation(node);
        for purpose in self.outbox.abandon(node) {
            self.answered(now, node, purpose, None);
        }
    }

    fn link_arrived(&mut self, now: Now, link: LinkId, hello: PeerHello) {
        if !self.is_peer(hello.node) {
            return self.outbox.link(LinkAction::Refuse(link));
        }
        self.peer_mut(hello.node).dialer.end_back_off();
        if self.is_impostor(&hello) {
            return self.refuse_impostor(now, link, &hello);
        }
        let accepted = AcceptedLink { link, hello, sent: None, heard_at: now.mono };
        match hello.requester {
            Requester::Coordinator(_) if self.remembers(hello.node, hello.tag) => {
                self.outbox.link(LinkAction::Admit(link));
            }
            Requester::Coordinator(_) => self.outbox.link(LinkAction::Refuse(link)),
            Requester::Node => {
                self.meet(hello.node, hello.tag, hello.sync_state);
                if self.is_to_wait(&hello) {
                    self.keep_waiting(accepted);
                } else {
                    self.admit(accepted);
                }
            }
        }
    }

    /// Whether another process than the one at the peer's address calls itself by its name. While that one answers
    /// there, it is who it says it is.
    fn is_impostor(&self, hello: &PeerHello) -> bool {
        let peer = self.peer(hello.node);
        let differs = |dialed: &DialedLink| dialed.hello.incarnation != hello.incarnation;
        peer.state == PeerState::Up && peer.dialed.as_ref().is_some_and(differs)
    }

    /// Says why only when the process at the address goes on answering: else the peer was restarted a moment ago, and
    /// its former process is about to be missed.
    fn refuse_impostor(&mut self, now: Now, link: LinkId, hello: &PeerHello) {
        let unreachable_after = self.limits.unreachable_after;
        let peer = self.peer_mut(hello.node);
        let since = match peer.copy {
            Some((incarnation, since)) if incarnation == hello.incarnation => since,
            _ => now.mono,
        };
        peer.copy = Some((hello.incarnation, since));
        let heard_at = peer.dialed.as_ref().map(|dialed| dialed.heard_at);
        let goes_on = heard_at.is_some_and(|heard_at| heard_at > since + unreachable_after);
        let refuse = if goes_on { LinkAction::RefuseCopy } else { LinkAction::Refuse };
        self.outbox.link(refuse(link));
    }

    /// A link waits while the record is about to hold its identity.
    fn is_to_wait(&self, hello: &PeerHello) -> bool {
        let is_wanted = self.record.wanted().peers.get(&hello.node) == Some(&hello.tag);
        is_wanted && !self.remembers(hello.node, hello.tag)
    }

    fn keep_waiting(&mut self, waiting: AcceptedLink) {
        if let Some(older) = self.peer_mut(waiting.hello.node).waiting.replace(waiting) {
            self.outbox.link(LinkAction::Refuse(older.link));
        }
    }

    fn admit(&mut self, accepted: AcceptedLink) {
        let peer = self.peer_mut(accepted.hello.node);
        peer.dials_awaited = 1 + u8::from(peer.dialer.is_dialing());
        if let Some(older) = self.peer_mut(accepted.hello.node).accepted.replace(accepted) {
            self.replica.link_closed(older.link);
            self.outbox.link(LinkAction::Refuse(older.link));
        }
        self.outbox.link(LinkAction::Admit(accepted.link));
    }

    fn link_left(&mut self, link: LinkId) {
        self.replica.link_closed(link);
        for node in self.peer_nodes() {
            let peer = self.peer_mut(node);
            peer.accepted.take_if(|accepted| accepted.link == link);
            peer.waiting.take_if(|waiting| waiting.link == link);
        }
    }

    fn remembers(&self, node: NodeIndex, tag: NodeTag) -> bool {
        self.record.durable().peers.get(&node) == Some(&tag)
    }
}
