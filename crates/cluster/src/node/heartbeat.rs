//! Heartbeats: the failure detector, and the state that peers report of themselves.
//!
//! **Promise.** A peer is `Up` while it answers. A silent peer becomes `Suspected`, then
//! `Unreachable`; a peer whose link ends is `Unreachable` at once. A report of a peer counts only
//! if it comes from the process that the link was opened to, and if it is newer than its last
//! report.
//!
//! **Mechanism.** At each interval a heartbeat is sent over each dialed link. Answers carry the
//! number of their request. An answer that is not newer than the last one is ignored: it neither
//! updates the state nor counts as a sign of life. The link to a silent peer is closed and dialed
//! again with back-off, so that probing costs one handshake at a time.
//!
//! **Caveats.** The time by which this node's own timer fired late is not counted as silence of its
//! peers. The measured difference of wall clocks includes the network delay.

use super::Node;
use crate::{
    ClusterView, Effect, HeartbeatPayload, Incarnation, LinkId, MessageId, NodeIndex, NodeRequest,
    NodeResponse, PeerState, PeerView, SyncState,
};
use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now};

impl Node {
    /// Sends a heartbeat to every peer with an open dialed link.
    pub(super) fn send_heartbeats(&mut self, now: Now) {
        for node in self.peer_nodes() {
            if self.peer(node).dialed.is_some() {
                self.send_heartbeat(now, node);
            }
        }
    }

    pub(super) fn send_heartbeat(&mut self, now: Now, node: NodeIndex) {
        let Some(to) = self.peer(node).dialed.as_ref().map(|dialed| dialed.hello.incarnation) else { return };
        let heartbeat = self.heartbeat_payload_for(now, node, to, now.mono);
        self.outbox.send_untracked_request(node, NodeRequest::Heartbeat(heartbeat));
    }

    /// Handles a peer's heartbeat that came over its admitted link.
    pub(super) fn handle_heartbeat(
        &mut self,
        now: Now,
        link: LinkId,
        id: MessageId,
        node: NodeIndex,
        its: HeartbeatPayload,
    ) {
        let Some(accepted) = &mut self.peer_mut(node).accepted else { return };
        let from = accepted.hello.incarnation;
        let is_news = accepted.newest_sent_at.is_none_or(|sent| sent < its.sent);
        if is_news {
            accepted.newest_sent_at = Some(its.sent);
            accepted.heard_at = now.mono;
            let hello = accepted.hello;
            self.peer_mut(node).last_heard = now.mono;
            self.record_identity(node, hello.tag, its.sync_state);
            self.record_generation(node, &hello, &its);
            self.record_identity_report(node, &its);
            self.record_layout_stamp(node, its.layout);
            self.record_stated_plan(now, node, hello.tag, &its);
        }
        let heartbeat = self.heartbeat_payload_for(now, node, from, its.sent);
        self.outbox.answer(link, id, NodeResponse::Heartbeat(heartbeat));
    }

    /// Handles a peer's answer to a heartbeat.
    pub(super) fn handle_heartbeat_answer(
        &mut self,
        now: Now,
        node: NodeIndex,
        number: u64,
        its: HeartbeatPayload,
    ) {
        let last_request_number = self.outbox.last_request_number();
        let peer = self.peer_mut(node);
        let Some(dialed) = &mut peer.dialed else { return };
        if number <= dialed.answered_number || number > last_request_number {
            return;
        }
        dialed.answered_number = number;
        dialed.heard_at = now.mono;
        dialed.heartbeat = Some(its);
        let hello = dialed.hello;
        peer.last_heard = now.mono;
        peer.unacked_repair_notice = peer.unacked_repair_notice.filter(|&before| number <= before);
        peer.state = PeerState::Up;
        peer.round_trip = Some(now.mono - its.sent);
        let micros = |wall: stdx::WallTime| wall.micros_since_unix_epoch() as i64;
        peer.clock_ahead_micros = micros(its.wall).wrapping_sub(micros(now.wall));
        self.record_wall_clock(now, node, &its);
        let peer = self.peer_mut(node);
        if its.hints_for_you < peer.hint_progress.fewest {
            peer.hint_progress = super::peer::HintProgress { fewest: its.hints_for_you, since: now.mono };
        }
        self.record_identity(node, hello.tag, its.sync_state);
        self.record_generation(node, &hello, &its);
        self.record_identity_report(node, &its);
        self.record_layout_stamp(node, its.layout);
        self.record_stated_plan(now, node, hello.tag, &its);
    }

    /// Marks silent peers as suspected, and closes the links to those that are silent for too long.
    pub(super) fn detect_failures(&mut self, now: Now) {
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

    /// Time at which [`Node::detect_failures`] may change the state of a peer.
    pub(super) fn detection_due(&self, node: NodeIndex) -> Option<Instant> {
        let peer = self.peer(node);
        let after = match peer.state {
            PeerState::Up => self.limits.suspected_after,
            PeerState::Unknown | PeerState::Suspected | PeerState::Unreachable => {
                self.limits.unreachable_after
            }
        };
        peer.dialed.as_ref().map(|dialed| dialed.heard_at + after)
    }

    /// Excludes a delay of this process's own timer from the silence of every peer.
    pub(super) fn discount_own_pause(&mut self, now: Now, late: Duration) {
        for peer in &mut self.peers {
            if let Some(dialed) = &mut peer.dialed {
                dialed.heard_at = (dialed.heard_at + late).min(now.mono);
            }
        }
    }

    /// Sends the coordinators of this process a new view if anything in it has changed.
    pub(super) fn publish_view(&mut self, now: Now) {
        let (clock_ahead, refusing) = (self.is_clock_ahead(now), self.peers_behind(now));
        let holds_writes = self.holds_writes(now);
        let unheard_peers = self.peers_to_hear();
        let is_news = (self.view.clock_ahead, self.view.holds_writes) != (clock_ahead, holds_writes)
            || self.view.refusing != refusing
            || self.view.unheard_peers != unheard_peers
            || self.view.refused != self.record.wanted().refused
            || self.view.peers.len() != self.member.layout.slot_count()
            || self.slots().any(|slot| self.view.peer(slot) != self.view_of(now, slot));
        if is_news {
            let peers = self.slots().map(|slot| self.view_of(now, slot)).collect();
            let refused = self.record.wanted().refused.clone();
            let view = ClusterView { peers, clock_ahead, refusing, holds_writes, unheard_peers, refused };
            self.view = Arc::new(view);
            self.outbox.effects.push_back(Effect::Publish(Arc::clone(&self.view)));
        }
    }

    fn slots(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        (0..self.member.layout.slot_count()).map(|slot| NodeIndex(slot as u8))
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
        if !self.is_peer(node) {
            return PeerView::UNREACHABLE;
        }
        let peer = self.peer(node);
        let heartbeat = peer.heartbeat();
        let state = match peer.state {
            state @ (PeerState::Unknown | PeerState::Unreachable) => state,
            // A node must not be written to before its identity is durable here: its loss would go
            // unnoticed.
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

    /// The payload for the process `to` of a peer.
    fn heartbeat_payload_for(
        &mut self,
        now: Now,
        node: NodeIndex,
        to: Incarnation,
        sent: Instant,
    ) -> HeartbeatPayload {
        HeartbeatPayload {
            sent,
            wall: now.wall,
            sync_state: self.sync_state_for(node),
            draining: self.drain.is_some(),
            disk_full: self.disk_full,
            hints_for_you: self.hints_left(node),
            repair_pending: self.peer(node).unacked_repair_notice.is_some(),
            remembered_tag_of_you: self.record.durable().peers.get(&node).copied(),
            remembered_generation_of_you: self.remembered_generation(node, to),
            generation: self.current_generation(),
            default_from: NonZeroU8::new(self.limits.default_from),
            layout: self.layout_stamp(),
            votes_forgotten: self.has_forgotten_votes(),
            feature_level_max: self.limits.feature_level_max,
            plan: self.plan_statements(),
        }
    }
}
