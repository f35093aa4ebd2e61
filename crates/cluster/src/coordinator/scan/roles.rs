//! Assignment of roles to nodes in a scan of the cluster.
//!
//! The best nodes to read from come first, this node before all others. It is thus the source of
//! all that it holds itself, and few nodes have a role. A node has no role if it cannot be asked,
//! or if it is not read-eligible.
//!
//! The roles are those of one layout, whose epoch all requests of the assignment tell.

use crate::coordinator::peers::{Availability, Peers};
use crate::quorum::CellReplicas;
use crate::replica_set::ReplicaSet;
use crate::{Layout, LayoutEpoch, NodeIndex, PartitionId, PartitionSet, Quorum, ScanRoles};
use std::sync::Arc;

/// Greatest number of cached assignments.
const ASSIGNMENTS_MAX: usize = 8;

/// The roles of a scan, and the partitions that follow from them.
#[derive(Debug, PartialEq)]
pub(super) struct RoleAssignment {
    pub(super) roles: ScanRoles,
    quorum: Quorum,
    /// Epoch of the newest change in the layout by which the roles were assigned.
    pub(super) epoch: LayoutEpoch,
    /// Partitions of each node that has a role.
    pub(super) node_roles: Vec<NodeRole>,
}

/// The role of a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeRole {
    pub(super) node: NodeIndex,
    pub(super) sourced: PartitionSet,
    pub(super) checked: PartitionSet,
}

/// The reason why there is no assignment: the number of participants of the partition that has the
/// fewest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooFewParticipants {
    pub(super) participants: u8,
}

impl RoleAssignment {
    /// Assigns roles to nodes in this order.
    pub(super) fn new(
        layout: &Layout,
        order: Vec<NodeIndex>,
        quorum: Quorum,
    ) -> Result<Self, TooFewParticipants> {
        let roles = ScanRoles { order, ack: quorum.ack(), from: quorum.from() };
        let participants = fewest_participants(layout, &roles);
        if !quorum.is_met_by(participants) {
            return Err(TooFewParticipants { participants });
        }
        let role = |node: &NodeIndex| NodeRole {
            node: *node,
            sourced: roles.sourced_by(layout, *node),
            checked: roles.checked_by(layout, *node),
        };
        let node_roles = roles.order.iter().map(role).filter(|role| !role.is_empty()).collect();
        Ok(Self { roles, quorum, epoch: layout.newest_change(), node_roles })
    }

    /// Whether the participants alone cannot decide that a cell stays: those that should hold it,
    /// by the cell's own `from`, do not suffice for the result of a read.
    pub(super) fn lacks_replica_quorum(&self, layout: &Layout, key: &[u8], from: u8) -> bool {
        if !self.quorum.exceeds_replicas_of(from) {
            return false;
        }
        let partition = PartitionId::of(key, layout.partitions());
        let participants = self.roles.participants(layout, partition);
        let held: ReplicaSet = participants
            .filter(|node| layout.is_intended_replica(*node, partition, from))
            .map(|node| layout.replica_index(partition, node))
            .collect();
        let (swap, none) = (layout.swapped_replicas(partition), ReplicaSet::EMPTY);
        let cell = CellReplicas { cell_from: from, held, answered: held, out_of_reach: none, swap };
        !cell.suffice(self.quorum)
    }

    /// Whether `node` has a role.
    pub(super) fn has_role(&self, node: NodeIndex) -> bool {
        self.node_roles.iter().any(|role| role.node == node)
    }
}

/// Cache of the latest assignments by one layout, because successive scans mostly have the same.
#[derive(Debug, Default)]
pub(super) struct RoleAssignmentCache {
    layout: Option<LayoutEpoch>,
    assignments: Vec<Arc<RoleAssignment>>,
}

impl RoleAssignmentCache {
    /// The assignment for nodes in this order.
    pub(super) fn find(
        &mut self,
        layout: &Layout,
        order: Vec<NodeIndex>,
        quorum: Quorum,
    ) -> Result<Arc<RoleAssignment>, TooFewParticipants> {
        let is_it = |assignment: &&Arc<RoleAssignment>| {
            assignment.quorum == quorum && assignment.roles.order == order
        };
        if self.layout.replace(layout.epoch()) != Some(layout.epoch()) {
            self.assignments.clear();
        }
        if let Some(assignment) = self.assignments.iter().find(is_it) {
            return Ok(Arc::clone(assignment));
        }
        let assignment = Arc::new(RoleAssignment::new(layout, order, quorum)?);
        if self.assignments.len() == ASSIGNMENTS_MAX {
            self.assignments.remove(0);
        }
        self.assignments.push(Arc::clone(&assignment));
        Ok(assignment)
    }
}

impl NodeRole {
    fn is_empty(&self) -> bool {
        self.sourced.is_empty() && self.checked.is_empty()
    }
}

/// All nodes that can be asked now, the best first.
pub(super) fn readable_nodes(peers: &Peers) -> Vec<NodeIndex> {
    ranked_nodes(peers, |availability| availability == Availability::Ready)
}

/// As [`readable_nodes`], followed by the nodes that are only busy.
pub(super) fn readable_or_busy_nodes(peers: &Peers) -> Vec<NodeIndex> {
    ranked_nodes(peers, |availability| matches!(availability, Availability::Ready | Availability::Busy))
}

fn ranked_nodes(peers: &Peers, is_usable: impl Fn(Availability) -> bool) -> Vec<NodeIndex> {
    let mut order: Vec<_> =
        peers.member.layout.nodes().filter(|node| is_usable(peers.can_read(*node))).collect();
    // This node comes first even if its disk is slow, because it has no link to itself over which
    // it could be asked for a check.
    let is_other = |node: NodeIndex| node != peers.member.me;
    order.sort_by_key(|node| {
        (is_other(*node), peers.can_read(*node) != Availability::Ready, peers.read_rank(*node))
    });
    order
}

/// Number of participants of the partition that would have the fewest, with nodes in this order.
pub(super) fn participant_count(layout: &Layout, order: Vec<NodeIndex>, quorum: Quorum) -> u8 {
    fewest_participants(layout, &ScanRoles { order, ack: quorum.ack(), from: quorum.from() })
}

/// Whether the nodes that satisfy `is_in` suffice.
pub(super) fn can_form_quorum(layout: &Layout, quorum: Quorum, is_in: impl Fn(NodeIndex) -> bool) -> bool {
    let order = layout.nodes().filter(|node| is_in(*node)).collect();
    quorum.is_met_by(participant_count(layout, order, quorum))
}

/// Number of participants of the partition that has the fewest.
fn fewest_participants(layout: &Layout, roles: &ScanRoles) -> u8 {
    let count = |partition| roles.participant_count(layout, PartitionId(partition));
    (0..layout.partitions()).map(count).min().expect("a layout has partitions")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterOrigin, LayoutRecord, NodeSet, PairSwap, QuorumChoice, RunningPlan, SwapPhase};
    use std::num::NonZeroU8;
    use stdx::NodeTag;

    const PARTITIONS: u32 = 32;

    fn layout(nodes: u8) -> Layout {
        Layout::new((0..nodes).map(|node| format!("http://{node}:1")).collect(), PARTITIONS)
            .expect("a layout")
    }

    /// All orders of all subsets of this number of nodes.
    fn orders(nodes: u8) -> Vec<Vec<NodeIndex>> {
        let mut orders = vec![Vec::new()];
        let mut longest = orders.clone();
        for _ in 0..nodes {
            let longer = |order: &Vec<NodeIndex>| {
                let others = (0..nodes).map(NodeIndex).filter(|node| !order.contains(node));
                others.map(|node| [&order[..], &[node]].concat()).collect::<Vec<_>>()
            };
            longest = longest.iter().flat_map(longer).collect();
            orders.extend(longest.clone());
        }
        orders
    }

    /// Checks every order of up to five nodes and every quorum.
    #[test]
    fn each_partition_has_one_source_and_ack_participants() {
        for nodes in 1..=5 {
            let layout = layout(nodes);
            let count = NonZeroU8::new(nodes).expect("there are nodes");
            for order in orders(nodes) {
                for (from, ack) in (1..=nodes).flat_map(|from| (1..=from).map(move |ack| (from, ack))) {
                    let choice = QuorumChoice { ack: Some(ack.into()), from: Some(from.into()) };
                    let quorum = choice.resolve(count, from).expect("a quorum");
                    check(&layout, &order, quorum);
                }
            }
        }
    }

    /// A layout of one partition, in which a swap exchanges these positions of its list.
    fn swapping(nodes: u8, (loser, gainer): (usize, usize), phase: SwapPhase) -> Layout {
        let origin = ClusterOrigin {
            nodes: (0..nodes).map(|node| format!("http://{node}:1")).collect(),
            partitions: 1,
            hash_version: 1,
            default_from: 1,
            tag: NodeTag(1),
        };
        let mut record = LayoutRecord::first(origin).expect("a small cluster");
        let [loser, gainer] = [loser, gainer].map(|at| record.lists[at]);
        let (since, partitions) = (LayoutEpoch::FIRST, vec![PartitionId(0)]);
        let swap = PairSwap { loser, gainer, phase, attempt: since, since, partitions };
        record.plan = Some(RunningPlan { swaps: vec![swap], ..RunningPlan::new(since) });
        Layout::of_record(&record)
    }

    /// Checks every order of up to four nodes, every quorum, and every swap in each phase.
    #[test]
    fn while_a_swap_runs_ack_of_each_set_participate_and_the_source_is_one_that_reads_ask() {
        let phases = [SwapPhase::Prepare, SwapPhase::ReadNew, SwapPhase::Back];
        for nodes in 2..=4u8 {
            let all = usize::from(nodes);
            let pairs = (0..all).flat_map(|loser| (loser + 1..all).map(move |gainer| (loser, gainer)));
            for (pair, phase) in pairs.flat_map(|pair| phases.map(|phase| (pair, phase))) {
                let layout = swapping(nodes, pair, phase);
                let before = layout.preference_list(PartitionId(0)).to_vec();
                let mut after = before.clone();
                after.swap(pair.0, pair.1);
                for order in orders(nodes) {
                    for (from, ack) in (1..=nodes).flat_map(|from| (1..=from).map(move |ack| (from, ack))) {
                        let roles = ScanRoles { order: order.clone(), ack, from };
                        let [before, after]: [NodeSet; 2] =
                            [&before, &after].map(|list| list[..usize::from(from)].iter().copied().collect());
                        let least = |nodes: NodeSet| {
                            [before, after].map(|set| set.intersection(nodes).len()).into_iter().min()
                        };
                        let participants: Vec<_> = roles.participants(&layout, PartitionId(0)).collect();
                        let available = least(order.iter().copied().collect());
                        let count = roles.participant_count(&layout, PartitionId(0));
                        assert_eq!(least(participants.iter().copied().collect()), Some(count));
                        assert_eq!(Some(count), available.map(|it| it.min(ack)), "{pair:?} {roles:?}");
                        assert!(participants.len() <= usize::from(ack) + 1);
                        let readers = if phase == SwapPhase::ReadNew { after } else { before };
                        let is_read = |source: &NodeIndex| readers.contains(*source);
                        assert!(count < ack || participants.first().is_some_and(is_read), "{roles:?}");
                    }
                }
            }
        }
    }

    fn check(layout: &Layout, order: &[NodeIndex], quorum: Quorum) {
        let readable_nodes = |partition: u32| {
            let replicas = &layout.preference_list(PartitionId(partition))[..usize::from(quorum.from())];
            order.iter().filter(|node| replicas.contains(node)).copied().collect::<Vec<_>>()
        };
        let least =
            (0..PARTITIONS).map(|partition| readable_nodes(partition).len()).min().expect("partitions");
        let assignment = RoleAssignment::new(layout, order.to_vec(), quorum);
        assert_eq!(assignment.is_ok(), least >= usize::from(quorum.ack()));
        assert_eq!(can_form_quorum(layout, quorum, |node| order.contains(&node)), assignment.is_ok());
        let Ok(assignment) = assignment else {
            assert_eq!(assignment.err(), Some(TooFewParticipants { participants: least as u8 }));
            return;
        };
        for partition in 0..PARTITIONS {
            let with = |has: fn(&NodeRole) -> &PartitionSet| {
                let node_roles =
                    assignment.node_roles.iter().filter(|role| has(role).contains(PartitionId(partition)));
                node_roles.map(|role| role.node).collect::<Vec<_>>()
            };
            let participants = &readable_nodes(partition)[..usize::from(quorum.ack())];
            assert_eq!(with(|role| &role.sourced), participants[..1]);
            assert_eq!(with(|role| &role.checked), participants[1..]);
        }
    }
}
