//! A new layout: the node follows an adopted layout record while it runs.
//!
//! **Promise.**
//!
//! 1. From [`Node::handle_layout`] on, the node dials and admits the members of that layout, and no
//!    others. Majorities, hints, pulls, anti-entropy, readiness and the comparison of clocks take
//!    its members.
//! 2. A node that is a member no more gets no further message, and counts nowhere. The state that
//!    was kept for it is not taken for that of a later node in its slot.
//! 3. A node that has become a member delays no operation before it is linked.
//! 4. [`Node::fenced`] is an epoch that the whole process has fenced: its record is durable, all
//!    state machines follow it, and the requests of older plans have ended.
//!
//! **The order in a process.** The host carries these steps out, each before the next one:
//!
//! 1. The agreement has stored the record, and says so
//!    ([`AgreementEffect::Adopted`](super::AgreementEffect::Adopted)).
//! 2. Handshakes state the record from now on, and admit its members. The host makes one
//!    [`Layout`] of it, which all state machines share.
//! 3. Each coordinator takes the layout as a message, and plans its operations anew before it sends
//!    another request ([`Coordinator::handle_layout`](crate::Coordinator::handle_layout)). Each
//!    request names the epoch of its plan, so coordinators need not change at the same time.
//! 4. The node takes the layout. The view that it publishes then has the new members.
//! 5. Each coordinator reports when it has fenced the epoch. The host collects the reports in a
//!    [`ProcessFence`](crate::ProcessFence), and tells the node.
//!
//! A record that has no place for this node, or that has removed, replaced or declared dead this
//! node, is not passed on: the process ends, since it is a member of nothing. A node that has not
//! heard of that record is told so by the peers that it dials
//! ([`AgreementEffect::Removed`](super::AgreementEffect::Removed)).
//!
//! **Members that appear.** They are unreachable until they are linked, and dialed at once. The
//! first peer of a node that was alone begins its count of generations.
//!
//! **Members that disappear.** Their links are closed, and requests to them fail. Identities,
//! generations, pending repairs and refused cells of theirs leave the node record. Hints for them
//! are deleted from the store.
//!
//! **Members that have moved.** If such a peer is not linked, it is dialed at once.
//!
//! **Requests.** Each request of the node tells the epoch of the layout by which it was planned. No
//! request of a former plan is sent from then on, and no answer to one is stored or counted by a
//! layout for which it may be wrong. Most requests are planned when they are sent: the delivery of
//! a hint, a range of a pull, the retry of a refused key. Two duties keep plans for longer.
//!
//! - A pass of anti-entropy has found differences by the former layout. It ends, its peers stay
//!   due, and the next pass begins at the first key.
//! - A pull counts the replicas of the partitions that this node holds. It begins again if one of
//!   these partitions has changed, or if a node is gone.
//!
//! Peers judge the requests. The replica role of a peer refuses a cell whose partition has changed
//! since. A range request covers all partitions, so both nodes must have the same layout: otherwise
//! a pass skips the chunk with that peer, and a pull asks again after a pause. A hint that is
//! refused stays, and is planned anew by the next pass over the hints for its target.
//!
//! **Caveats.** If this process has ended while one node left a slot and another took it, the
//! identity that is remembered for the slot is that of the first node. The second one then rebuilds
//! itself as if it had lost its disk. Hints for a node in a slot behind those of all members, which
//! a process could not delete before its end, stay on disk until the slot is used again. While
//! layouts follow each other faster than a pass of anti-entropy takes, no pass ends.

use super::Node;
use super::peer::Peer;
use crate::{Layout, LayoutEpoch, LinkAction, NodeIndex, NodeSet, SyncState};
use std::sync::Arc;
use stdx::Now;

impl Node {
    /// Handles a newer layout of the cluster. An older one has no effect.
    ///
    /// # Panics
    /// If the layout has other partitions, or this node is no member of it.
    pub fn handle_layout(&mut self, now: Now, layout: Arc<Layout>) {
        if !self.member.is_followed_by(&layout) {
            return;
        }
        let former = Arc::clone(&self.member.layout);
        let departed = former.departed(&layout);
        departed.iter().for_each(|node| self.part_with(now, node));
        self.forget_in_record(departed);
        self.leftover_hints = self.leftover_hints.union(departed).without(layout.members());
        let appeared = layout.members().without(former.members().without(departed));
        let is_reordered = former.is_reordered_in(&layout);
        self.member.layout = layout;
        let layout = Arc::clone(&self.member.layout);
        let slots = layout.slot_count().max(self.peers.len());
        self.peers.resize_with(slots, || Peer::appearing(now.mono));
        appeared.iter().for_each(|node| self.renew_peer(now, node));
        for node in former.moved(&layout).without(departed).iter() {
            self.peer_mut(node).dialer.end_back_off();
        }
        if former.len() == 1 && layout.len() > 1 {
            self.begin_to_have_peers();
        }
        self.outbox.follow(layout.newest_change());
        if layout.newest_change() > former.newest_change() {
            self.abandon_pass();
            self.peer_nodes().for_each(|node| self.expedite_handoff(now, node));
        }
        if is_reordered {
            self.compare_after_missed_swaps(now);
        }
        self.follow_in_pull(now, &former, departed);
        self.note_lost_places(&former);
        let held = self.replica.learn(&layout);
        for request in held {
            let (header, request) = request.resumed(now);
            if !departed.contains(header.origin.node) {
                self.handle_held_request(now, header, request);
            }
        }
        self.dial_due_peers(now);
        self.advance(now);
    }

    /// Handles the newest epoch that all coordinators of this process have fenced.
    pub fn handle_coordinators_fenced(&mut self, now: Now, epoch: LayoutEpoch) {
        self.coordinators_fenced = epoch.max(self.coordinators_fenced);
        self.advance(now);
    }

    /// The newest epoch that this process has fenced: no request for a partition that changed in it
    /// or before is being carried out, or will be accepted, that was planned before that change.
    pub fn fenced(&self) -> LayoutEpoch {
        self.replica.fenced().min(self.coordinators_fenced)
    }

    /// Forgets the nodes that are no members from the node record, after a start.
    pub(super) fn forget_absent_nodes(&mut self) {
        let absent = NodeSet::ALL.without(self.member.layout.members());
        self.forget_in_record(absent);
        let slots: NodeSet = (0..self.peers.len()).map(|slot| NodeIndex(slot as u8)).collect();
        self.leftover_hints = slots.intersection(absent);
    }

    /// Closes the links with a node that is a member no more, and ends what is in progress with it.
    fn part_with(&mut self, now: Now, node: NodeIndex) {
        let peer = self.peer_mut(node);
        let is_dialed = !peer.dialer.is_down();
        peer.dialed = None;
        let accepted = [peer.accepted.take(), peer.pending_link.take()];
        if is_dialed {
            self.outbox.emit_link_action(LinkAction::HangUp(node));
        }
        for accepted in accepted.into_iter().flatten() {
            self.replica.link_closed(accepted.link);
            self.outbox.emit_link_action(LinkAction::Refuse(accepted.link));
        }
        for purpose in self.outbox.abandon(node) {
            self.complete_request(now, node, purpose, None);
        }
        self.renew_peer(now, node);
        self.forget_in_repair(node);
        self.forget_in_agreement(node);
    }

    /// Begins the state of a peer anew. The work of the store for the slot goes on.
    fn renew_peer(&mut self, now: Now, node: NodeIndex) {
        let former = std::mem::replace(self.peer_mut(node), Peer::appearing(now.mono));
        let peer = self.peer_mut(node);
        (peer.handoff, peer.ranges_in_flight) = (former.handoff, former.ranges_in_flight);
    }

    fn forget_in_record(&mut self, gone: NodeSet) {
        let record = self.record.wanted_mut();
        record.peers.retain(|node, _| !gone.contains(*node));
        record.peer_generations.retain(|node, _| !gone.contains(*node));
        record.repair_pending = record.repair_pending.without(gone);
        record.unheard = record.unheard.without(gone);
        record.refused.forget_holders(gone);
    }

    /// Has a node that was alone take part in what nodes with peers do. Its data is all that the
    /// cluster has.
    fn begin_to_have_peers(&mut self) {
        self.record.wanted_mut().sync_state = SyncState::Settled;
        self.begin_generation();
    }
}
