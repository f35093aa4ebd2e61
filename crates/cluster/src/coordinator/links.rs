//! Links to peers: dialed while the node of this process reports a peer as alive, closed when it
//! reports otherwise.
//!
//! Requests in flight over a link that ends fail at once: a write counts its replica as failed, a
//! read asks the next one, a scan continues with other roles.
//!
//! A peer that comes back with another identity has lost its disk. Acknowledgements that it gave
//! before are revoked from the writes that still wait for their quorum, and count as failures.

use super::context::{Context, CoordinatorInput};
use super::{Coordinator, OperationState};
use crate::{ClusterView, Effect, LinkAction, LinkEvent, NodeIndex, PeerState, WaitTarget};
use std::sync::Arc;
use stdx::{Instant, Now};

impl Coordinator {
    /// Handles a new view of the cluster from the node of this process.
    pub fn handle_view(&mut self, now: Now, view: Arc<ClusterView>) {
        let input = CoordinatorInput { now, source: WaitTarget::Links };
        self.begin_input(input);
        let before = std::mem::replace(&mut self.context.peers.view, view);
        for node in self.others() {
            let state = self.context.peers.view.peer(node).state;
            let dialer = &mut self.context.peers.states[node.as_usize()].dialer;
            if state == PeerState::Up && before.peer(node).state != PeerState::Up {
                dialer.end_back_off();
            }
            if state == PeerState::Unreachable && dialer.is_open() {
                self.hang_up(now, node);
            }
        }
        self.drop_ineligible_participants(input);
        self.dial(now);
        self.resume_parked(now);
        self.resume_link_waiters(now);
        self.resume_scans(input);
        self.finish_input(input);
    }

    /// Handles an event of a link of this thread.
    pub fn handle_link(&mut self, now: Now, event: LinkEvent) {
        let input = CoordinatorInput { now, source: WaitTarget::Links };
        self.begin_input(input);
        match event {
            LinkEvent::Opened(hello) => {
                let peer = &mut self.context.peers.states[hello.node.as_usize()];
                peer.dialer.opened();
                if peer.tag.replace(hello.tag).is_some_and(|tag| tag != hello.tag) {
                    self.revoke_acks(now, hello.node);
                }
                if self.context.peers.view.peer(hello.node).state == PeerState::Unreachable {
                    self.hang_up(now, hello.node);
                }
            }
            LinkEvent::DialFailed { node, .. } | LinkEvent::Closed { node } => self.link_ended(now, node),
            LinkEvent::AcceptedClosed { link } => self.replica.link_closed(link),
            LinkEvent::AdmissionRequested { .. } => unreachable!("the node decides which links to admit"),
        }
        self.dial(now);
        self.resume_link_waiters(now);
        self.resume_scans(input);
        self.finish_input(input);
    }

    /// Whether there is a link to every peer that is up.
    pub fn is_linked(&self) -> bool {
        self.others().all(|node| {
            self.context.peers.view.peer(node).state != PeerState::Up
                || self.context.peers.states[node.as_usize()].dialer.is_open()
        })
    }

    /// Dials the peers that are due.
    pub(super) fn dial(&mut self, now: Now) {
        for node in self.others() {
            let dialer = &mut self.context.peers.states[node.as_usize()].dialer;
            if is_wanted(&self.context.peers.view, node) && dialer.start(now.mono) {
                self.context.outbox.effects.push_back(Effect::Link(LinkAction::Dial(node)));
            }
        }
        self.next_dial = self.find_next_dial();
    }

    /// Time at which the next peer is to be dialed.
    pub(super) fn find_next_dial(&self) -> Option<Instant> {
        (self.others())
            .filter(|&node| is_wanted(&self.context.peers.view, node))
            .filter_map(|node| self.context.peers.states[node.as_usize()].dialer.due())
            .min()
    }

    fn hang_up(&mut self, now: Now, node: NodeIndex) {
        self.context.outbox.effects.push_back(Effect::Link(LinkAction::HangUp(node)));
        self.link_ended(now, node);
    }

    fn link_ended(&mut self, now: Now, node: NodeIndex) {
        let Context { peers, rng, .. } = &mut self.context;
        peers.states[node.as_usize()].dialer.failed(now.mono, rng);
        self.fail_requests_to(now, node);
    }

    /// Fails the requests in flight at a peer.
    fn fail_requests_to(&mut self, now: Now, node: NodeIndex) {
        let input = CoordinatorInput { now, source: WaitTarget::Peer(node) };
        self.context.repairs.forget_node(node);
        for slot in 0..self.operations.slots() {
            let Some((id, operation)) = self.operations.at(slot) else {
                continue;
            };
            let was_waiting = match &mut operation.state {
                OperationState::Read(read) => {
                    let replica_index = self.context.peers.replica_index(&read.subject, node);
                    read.fail_replica(&mut self.context.of(now, id), replica_index)
                }
                OperationState::Write(write) => {
                    let replica_index = self.context.peers.replica_index(&write.subject, node);
                    write.fail_replica(&mut self.context.of(now, id), replica_index)
                }
                OperationState::Parked(_) | OperationState::WaitingForLinks(_) | OperationState::Starting => {
                    false
                }
            };
            if was_waiting {
                self.advance_operation(input, id);
            }
        }
        self.fail_scan_requests(input, node);
    }

    /// Revokes the acknowledgements of a peer that has lost its disk.
    fn revoke_acks(&mut self, now: Now, node: NodeIndex) {
        let input = CoordinatorInput { now, source: WaitTarget::Peer(node) };
        for slot in 0..self.operations.slots() {
            if let Some((id, operation)) = self.operations.at(slot)
                && let OperationState::Write(write) = &mut operation.state
                && write.revoke_ack(self.context.peers.replica_index(&write.subject, node))
            {
                self.advance_operation(input, id);
            }
        }
    }

    fn others(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        let me = self.context.peers.member.me;
        self.context.peers.member.layout.nodes().filter(move |node| *node != me)
    }
}

fn is_wanted(view: &ClusterView, node: NodeIndex) -> bool {
    matches!(view.peer(node).state, PeerState::Up | PeerState::Suspected)
}
