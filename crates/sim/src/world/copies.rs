//! A second process of a node, started from a copy of its data directory.
//!
//! It runs on a host of its own, with an index behind the hosts of nodes, and stands for the same
//! member of the cluster. It gets the messages of peers only if it answers at the node's address.

use super::members::host_of;
use super::{World, WorldEvent};
use crate::Plant;
use crate::host::EndCause;
use crate::network::Endpoint;
use cluster::NodeIndex;
use env::MemFs;

impl World {
    /// Slot of the member of the cluster that the process of a host stands for.
    pub(crate) fn member_of(&self, host: NodeIndex) -> NodeIndex {
        self.hosts[host.as_usize()].member
    }

    /// Whether this is the host of copies.
    pub(crate) fn is_copy(&self, host: NodeIndex) -> bool {
        host == self.copy()
    }

    /// Host of copies.
    pub(crate) fn copy(&self) -> NodeIndex {
        NodeIndex(self.scenario.hosts())
    }

    /// Whether a second process of this node runs.
    pub(crate) fn has_copy(&mut self, node: NodeIndex) -> bool {
        let copy = self.copy();
        self.host(copy).process.is_some() && self.member_of(copy) == node
    }

    /// Host that answers at the address that the layout of a dialer has for a member. The copy does
    /// not dial itself.
    pub(super) fn host_at(&self, dialer: Endpoint, member: NodeIndex) -> NodeIndex {
        let is_moved = self.copy_has_address && self.member_of(self.copy()) == member;
        if is_moved && !self.is_copy(dialer.node) {
            return self.copy();
        }
        if self.scenario.plant == Some(Plant::AddressOfFormerNode) && member.0 < self.scenario.nodes {
            return member;
        }
        let process = self.hosts[dialer.node.as_usize()].process.as_ref();
        let name = process.and_then(|process| process.member.layout.names().get(member.as_usize()));
        name.and_then(|name| host_of(name)).unwrap_or(member)
    }

    /// Whether this node would reach a copy at the address of another node that runs too.
    pub(crate) fn would_reach_copy(&self, node: NodeIndex) -> bool {
        let copy = &self.hosts[self.copy().as_usize()];
        let original = &self.hosts[copy.member.as_usize()];
        let both_run = copy.process.is_some() && original.process.is_some();
        both_run && self.copy_has_address && node != copy.member && !self.is_copy(node)
    }

    /// Host that a client of this node reaches: sometimes the copy, if this node has one.
    pub(crate) fn host_for_client(&mut self, node: NodeIndex) -> NodeIndex {
        let copy = self.copy();
        let goes_to_copy = self.has_copy(node) && (self.copy_has_address || self.workload.chance(0.5));
        if goes_to_copy { copy } else { node }
    }

    /// Starts a second process of `node` on this disk.
    pub(crate) fn start_copy(&mut self, node: NodeIndex, disk: MemFs, takes_address: bool) {
        let copy = self.copy();
        self.judge.note_copied_directory(node, copy);
        let host = self.host(copy);
        host.member = node;
        host.disk = disk;
        host.clock.correct(0);
        self.copy_has_address = takes_address;
        self.at(self.now, WorldEvent::Start(copy));
    }

    /// Ends the second process for good. The node answers at its own address again.
    pub(crate) fn end_copy(&mut self) {
        let copy = self.copy();
        self.end_process(copy, EndCause::Kill, None);
        if self.judge.agreement.voter(copy).is_some() {
            self.judge.agreement.note_lost(copy);
        }
        self.copy_has_address = false;
    }
}
