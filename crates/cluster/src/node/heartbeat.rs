//! Heartbeats: whether peers answer, and what they say of themselves.
//!
//! **Promise.** A peer is up while it answers, suspected and then unreachable when it is silent, and unreachable
//! at once when its link ends. What it says of itself counts only from the process that the link was opened to, and
//! never behind something newer that it said.
//!
//! **Mechanism.** A heartbeat goes over each dialed link at each interval. Answers are numbered; one that is not
//! newer than the last does not count, neither as news nor as a sign of life. A silent peer is hung up on, and
//! dialed again with back-off: so probing it costs one handshake at a time.
//!
//! **Caveats.** A pause of this process is not its peers' silence: time by which its own timer was late is not
//! counted. The distance of wall clocks has what the network takes in it.

use super::Node;
use crate::{
    ClusterView, Effect, HeartbeatPayload, LinkId, MessageId, NodeIndex, PeerAnswer, PeerRequest, PeerState,
    PeerView, SyncState,
};
use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now};

impl Node {
    /// To every peer whose link is open.
    pub(super) fn send_heartbeats(&mut self, now: Now) {
        for node in self.peer_nodes() {
            if self.peer(node).dialed.is_some() {
                self.send_heartbeat(now, node);
            }
        }
    }

    pub(super) fn send_heartbeat(&mut self, now: Now, node: NodeIndex) {
        let heartbeat = self.heartbeat_payload_for(now, node, now.mono);
        self.outbox.send_request(node, PeerRequest::Heartbeat(heartbeat));
    }

    /// A peer's heartbeat came over the link that was let in.
    pub(super) fn heartbeat_came(
        &mut self,
        now: Now,
        link: LinkId,
        id: MessageId,
        node: NodeIndex,
        its: HeartbeatPayload,
    ) {
        let Some(accepted) = &mut self.peer_mut(node).accepted else { return };
        let is_news = accepted.sent.is_none_or(|sent| sent < its.sent);
        if is_news {
            accepted.sent = Some(its.sent);
            accepted.heard_at = now.mono;
            let hello = accepted.hello;
            self.peer_mut(node).last_heard = now.mono;
            self.meet(node, hello.tag, its.sync_state);
            self.meet_generation(node, &hello, &its);
            self.take_word(node, &its);
        }
        let heartbeat = self.heartbeat_payload_for(now, node, its.sent);
        self.outbox.answer(link, id, PeerAnswer::Heartbeat(heartbeat));
    }

    /// A peer has answered a heartbeat.
    pub(super) fn heartbeat_answered(
        &mut self,
        now: Now,
        node: NodeIndex,
        number: u64,
        its: HeartbeatPayload,
    ) {
        let last_number = self.outbox.last_number();
        let peer = self.peer_mut(node);
        let Some(dialed) = &mut peer.dialed else { return };
        if number <= dialed.heard_number || number > last_number {
            return;
        }
        dialed.heard_number = number;
        dialed.heard_at = now.mono;
        dialed.heartbeat = Some(its);
        let hello = dialed.hello;
        peer.last_heard = now.mono;
        peer.untold = peer.untold.filter(|&before| number <= before);
        peer.state = PeerState::Up;
        peer.round_trip = Some(now.mono - its.sent);
        let micros = |wall: stdx::WallTime| wall.micros_since_unix_epoch() as i64;
        peer.clock_ahead_micros = micros(its.wall).wrapping_sub(micros(now.wall));
        self.note_wall_clock(now, node, &its);
        let peer = self.peer_mut(node);
        if its.hints_for_you < peer.hints_there.least {
            peer.hints_there = super::peer::HintsThere { least: its.hints_for_you, since: now.mono };
        }
        self.meet(node, hello.tag, its.sync_state);
        self.meet_generation(node, &hello, &its);
        self.take_word(node, &its);
    }

    /// Suspects who is silent, and gives up who is so for too long.
    pub(super) fn detect(&mut self, now: Now) {
        for node in self.peer_nodes() {
            let limits = self.limits;
            let peer = self.peer_mut(node);
            let Some(dialed) = &peer.dialed else { continue };
            let silence = now.mono - dialed.heard_at;
            if silence >= limits.unreachable_after {
                self.hang_up(now, node);
            } else if silence >= limits.suspected_after && peer.state == PeerState::Up {
                peer.state = PeerState::Suspected;
            }
        }
    }

    /// When [`Node::detect`] may find something.
    pub(super) fn next_silence(&self, node: NodeIndex) -> Option<Instant> {
        let peer = self.peer(node);
        let after = match peer.state {
            PeerState::Up => self.limits.suspected_after,
            PeerState::Unknown | PeerState::Suspected | PeerState::Unreachable => {
                self.limits.unreachable_after
            }
        };
        peer.dialed.as_ref().map(|dialed| dialed.heard_at + after)
    }

    /// Takes the time by which this process was late out of everybody's silence.
    pub(super) fn forgive_own_pause(&mut self, now: Now, late: Duration) {
        for peer in &mut self.peers {
            if let Some(dialed) = &mut peer.dialed {
                dialed.heard_at = (dialed.heard_at + late).min(now.mono);
            }
        }
    }

    /// Tells the coordinators of this process, if there is news.
    pub(super) fn publish(&mut self, now: Now) {
        let (clock_ahead, refusing) = (self.is_clock_ahead(now), self.refusing(now));
        let holds_writes = self.holds_writes(now);
        let unheard_peers = self.peers_to_hear();
        let is_news = (self.view.clock_ahead, self.view.holds_writes) != (clock_ahead, holds_writes)
            || self.view.refusing != refusing
            || self.view.unheard_peers != unheard_peers
            || self.view.refused != self.record.wanted().refused
            || self.member.layout.nodes().any(|node| self.view.peer(node) != self.view_of(now, node));
        if is_news {
            let peers = self.member.layout.nodes().map(|node| self.view_of(now, node)).collect();
            let refused = self.record.wanted().refused.clone();
            let view = ClusterView { peers, clock_ahead, refusing, holds_writes, unheard_peers, refused };
            self.view = Arc::new(view);
            self.outbox.effects.push_back(Effect::Publish(Arc::clone(&self.view)));
        }
    }

    fn view_of(&self, now: Now, node: NodeIndex) -> PeerView {
        if node == self.member.me {
            return PeerView {
                state: PeerState::Up,
                linking: false,
                read_eligible: self.is_read_eligible(),
                rebuilding: !self.is_read_eligible()
                    && self.record.durable().sync_state == SyncState::Rebuilding,
                disk_full: self.disk_full,
                draining: self.drain.is_some(),
            };
        }
        let peer = self.peer(node);
        let heartbeat = peer.heartbeat();
        let state = match peer.state {
            state @ (PeerState::Unknown | PeerState::Unreachable) => state,
            // Nothing is to be written to a node whose loss would not be noticed.
            _ if !self.is_usable(node) => PeerState::Unreachable,
            state => state,
        };
        let is_reachable = matches!(state, PeerState::Up | PeerState::Suspected);
        PeerView {
            state,
            linking: !is_reachable && self.is_linking(now, node),
            rebuilding: is_reachable && peer.sync_state() == SyncState::Rebuilding,
            read_eligible: is_reachable && peer.sync_state().is_read_eligible(),
            disk_full: heartbeat.is_some_and(|heartbeat| heartbeat.disk_full),
            draining: heartbeat.is_some_and(|heartbeat| heartbeat.draining),
        }
    }

    fn heartbeat_payload_for(&self, now: Now, node: NodeIndex, sent: Instant) -> HeartbeatPayload {
        HeartbeatPayload {
            sent,
            wall: now.wall,
            sync_state: self.sync_state_for(node),
            draining: self.drain.is_some(),
            disk_full: self.disk_full,
            hints_for_you: self.hints_left(node),
            repair_pending: self.peer(node).untold.is_some(),
            remembered_tag_of_you: self.record.durable().peers.get(&node).copied(),
            remembered_generation_of_you: self.remembered_generation(node),
            generation: self.generation_report(),
            default_from: NonZeroU8::new(self.limits.default_from),
        }
    }
}
