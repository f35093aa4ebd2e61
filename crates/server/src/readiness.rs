//! Whether this node can serve operations with the default quorum: `GET /v0/ready`, and a warning
//! in the status.
//!
//! **Promise.** A node is not ready while it starts or drains, or while its clock prevents it from
//! writing. It is not ready either while most keys lack enough reachable replicas for the default
//! quorum. The reason for a lost quorum names the missing nodes.
//!
//! **Mechanism.** A replica counts if it is up and read eligible. A partition has its default
//! quorum if enough of its replicas count.
//!
//! **Caveats.** A load balancer takes an unready node out of service. If only some keys have lost
//! their quorum, all nodes see the same, and taking all of them out of service would lose the other
//! keys, too. Such a node is therefore ready, and its status contains a warning. A full disk does
//! not make a node unready, because reads and deletes continue.

use crate::local::Local;
use api::ServingState;
use cluster::{ClusterView, Layout, NodeIndex, NodeSet, PartitionId, PeerState, Quorum};
use std::sync::Arc;

/// Availability of the default quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuorumReach {
    /// Partitions without a default quorum.
    lost: u32,
    partitions: u32,
    missing: NodeSet,
}

impl QuorumReach {
    /// The availability if exactly the replicas in `counting` count.
    fn of(layout: &Layout, default_from: u8, counting: NodeSet) -> Self {
        let has_quorum = |partition| {
            let replicas = layout.replicas_of_partition(partition, default_from);
            let reached = replicas.iter().filter(|replica| counting.contains(**replica)).count();
            Quorum::with_default_ack(replicas.len() as u8).is_met_by(reached as u8)
        };
        let partitions = layout.partitions();
        let lost = (0..partitions).filter(|partition| !has_quorum(PartitionId(*partition))).count();
        let missing = layout.nodes().filter(|node| !counting.contains(*node)).collect();
        Self { lost: u32::try_from(lost).unwrap_or(u32::MAX), partitions, missing }
    }

    /// The availability according to a node's `view` of the cluster.
    pub(crate) fn of_view(local: &Local, default_from: u8, view: &ClusterView) -> Self {
        let (me, layout) = (local.member.me, local.layout());
        let counts = |node: &NodeIndex| {
            let peer = view.peer(*node);
            let is_reached =
                *node == me || peer.linking || matches!(peer.state, PeerState::Up | PeerState::Suspected);
            is_reached && peer.read_eligible
        };
        Self::of(&layout, default_from, layout.nodes().filter(counts).collect())
    }

    /// Whether at least half of the keys have their default quorum.
    fn is_enough(&self) -> bool {
        self.lost.saturating_mul(2) <= self.partitions
    }

    /// A warning about keys without their default quorum, if there are any. `names` returns the
    /// names of the missing nodes.
    pub(crate) fn warning(&self, names: impl FnOnce(NodeSet) -> String) -> Option<String> {
        let keys = match self.lost {
            0 => return None,
            lost if lost == self.partitions => "all keys".to_owned(),
            lost => format!("{} % of the keys", (u64::from(lost) * 100 / u64::from(self.partitions)).max(1)),
        };
        Some(format!(
            "Operations on {keys} with the default quorum fail here: too few replicas can be reached, or their answers to \
             reads do not count. Missing: {}.",
            names(self.missing)
        ))
    }
}

/// The reason why the node is not ready; `None` if it is ready.
pub(crate) fn obstacle(state: ServingState, local: Option<&Local>, default_from: u8) -> Option<String> {
    match state {
        ServingState::Starting => return Some("The node is starting.".to_owned()),
        ServingState::Draining => return Some("The node is stopping.".to_owned()),
        ServingState::Serving => {}
    }
    let local = local?;
    let view = Arc::clone(&local.view.lock());
    if view.clock_ahead {
        return Some(
            "The clock of this node is ahead of most others, so the node takes no writes. Set it.".to_owned(),
        );
    }
    let reach = QuorumReach::of_view(local, default_from, &view);
    if reach.is_enough() { None } else { reach.warning(|missing| local.names_of_missing(missing)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(nodes: u8) -> Layout {
        let names = (0..nodes).map(|node| format!("http://n{node}")).collect();
        Layout::new(names, 64).expect("a layout")
    }

    fn warning(reach: &QuorumReach) -> Option<String> {
        let name = |node: NodeIndex| format!("http://n{}", node.0);
        reach.warning(|missing| missing.iter().map(name).collect::<Vec<_>>().join(", "))
    }

    fn reach(nodes: u8, from: u8, counting: impl IntoIterator<Item = u8>) -> QuorumReach {
        QuorumReach::of(&layout(nodes), from, counting.into_iter().map(NodeIndex).collect())
    }

    #[test]
    fn a_majority_of_three_is_enough_and_one_is_not() {
        for counting in [vec![0, 1, 2], vec![0, 2], vec![1, 2]] {
            let reach = reach(3, 3, counting);
            assert!(reach.is_enough());
            assert_eq!(warning(&reach), None);
        }
        let reach = reach(3, 3, [1]);
        assert!(!reach.is_enough());
        let told = warning(&reach).expect("a warning");
        assert!(told.contains("all keys") && told.ends_with("Missing: http://n0, http://n2."), "{told}");
    }

    #[test]
    fn a_minority_of_keys_without_quorum_is_a_warning_and_leaves_the_node_ready() {
        let two_down = reach(5, 3, [0, 1, 2]);
        assert!(two_down.is_enough());
        let told = warning(&two_down).expect("a warning");
        assert!(told.contains(" % of the keys"), "{told}");
        let three_down = reach(5, 3, [0, 1]);
        assert!(!three_down.is_enough());
    }

    #[test]
    fn a_single_node_is_its_own_quorum() {
        let alone = reach(1, 1, [0]);
        assert!(alone.is_enough() && warning(&alone).is_none());
        assert!(!reach(1, 1, []).is_enough());
    }
}
