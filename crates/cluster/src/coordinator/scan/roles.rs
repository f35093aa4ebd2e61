//! Who has which part in a scan of the cluster.
//!
//! The best to read from come first, this node before all others; so it is the source of all that it holds itself, and
//! few nodes have a part. Two things keep a node out: it cannot be asked, or its answers do not count.

use super::super::context::Context;
use super::super::peers::Availability;
use crate::{Layout, NodeIndex, Partition, PartitionSet, Quorum, ScanRoles};
use std::sync::Arc;

/// So many casts are kept.
const CASTS_MAX: usize = 8;

/// The roles of a scan, and which partitions follow from them.
#[derive(Debug, PartialEq)]
pub(super) struct Cast {
    pub(super) roles: ScanRoles,
    /// Of those that have a part.
    pub(super) parts: Vec<Part>,
}

/// The part of a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) node: NodeIndex,
    pub(super) sourced: PartitionSet,
    pub(super) checked: PartitionSet,
}

/// Why there are no roles: so few nodes take part in some partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooFew {
    pub(super) participants: u8,
}

impl Cast {
    /// The roles of nodes in this order.
    pub(super) fn new(layout: &Layout, order: Vec<NodeIndex>, quorum: Quorum) -> Result<Self, TooFew> {
        let roles = ScanRoles { order, ack: quorum.ack(), from: quorum.from() };
        let participants = least_participants(layout, &roles);
        if participants < quorum.ack() {
            return Err(TooFew { participants });
        }
        let part = |node: &NodeIndex| Part {
            node: *node,
            sourced: roles.sourced_by(layout, *node),
            checked: roles.checked_by(layout, *node),
        };
        let parts = roles.order.iter().map(part).filter(|part| !part.is_empty()).collect();
        Ok(Self { roles, parts })
    }

    /// Whether fewer of those that have a part are to hold a cell, by the cell's own `from`, than have to hold what was
    /// read, so that it stays: they alone cannot say whether it does.
    pub(super) fn are_strangers_to(&self, layout: &Layout, key: &[u8], from: u8) -> bool {
        if from >= self.roles.from {
            return false;
        }
        let partition = Partition::of(key, layout.partitions());
        let replicas = &layout.preference_list(partition)[..usize::from(from)];
        let participants = self.roles.participants(layout, partition);
        let holders = participants.filter(|node| replicas.contains(node)).count();
        holders < usize::from(from.min(self.roles.ack))
    }

    /// Whether `node` has a part.
    pub(super) fn has_part(&self, node: NodeIndex) -> bool {
        self.parts.iter().any(|part| part.node == node)
    }
}

/// The latest casts: one scan after the other has the same.
#[derive(Debug, Default)]
pub(in crate::coordinator) struct Casts(Vec<Arc<Cast>>);

impl Casts {
    /// The cast of nodes in this order.
    pub(super) fn find(
        &mut self,
        layout: &Layout,
        order: Vec<NodeIndex>,
        quorum: Quorum,
    ) -> Result<Arc<Cast>, TooFew> {
        let is_it = |roles: &ScanRoles| {
            roles.order == order && (roles.ack, roles.from) == (quorum.ack(), quorum.from())
        };
        if let Some(cast) = self.0.iter().find(|cast| is_it(&cast.roles)) {
            return Ok(Arc::clone(cast));
        }
        let cast = Arc::new(Cast::new(layout, order, quorum)?);
        if self.0.len() == CASTS_MAX {
            self.0.remove(0);
        }
        self.0.push(Arc::clone(&cast));
        Ok(cast)
    }
}

impl Part {
    fn is_empty(&self) -> bool {
        self.sourced.is_empty() && self.checked.is_empty()
    }
}

/// Those of all nodes that can be asked now, the best first.
pub(super) fn usable(context: &Context) -> Vec<NodeIndex> {
    order_of(context, |availability| availability == Availability::Ready)
}

/// The same, and behind them those that only have too much to do for now.
pub(super) fn usable_soon(context: &Context) -> Vec<NodeIndex> {
    order_of(context, |availability| matches!(availability, Availability::Ready | Availability::Busy))
}

fn order_of(context: &Context, is_usable: impl Fn(Availability) -> bool) -> Vec<NodeIndex> {
    let mut order: Vec<_> =
        context.member.layout.nodes().filter(|node| is_usable(context.can_read(*node))).collect();
    // Also where its disk is slow: it has no link to itself to be asked for a check.
    let is_other = |node: NodeIndex| node != context.member.me;
    order.sort_by_key(|node| {
        (is_other(*node), context.can_read(*node) != Availability::Ready, context.read_rank(*node))
    });
    order
}

/// How many nodes in this order would take part in the partition of which the fewest would.
pub(super) fn participants(layout: &Layout, order: Vec<NodeIndex>, quorum: Quorum) -> u8 {
    least_participants(layout, &ScanRoles { order, ack: quorum.ack(), from: quorum.from() })
}

/// Whether the nodes of which this holds would be enough.
pub(super) fn would_do(layout: &Layout, quorum: Quorum, is_in: impl Fn(NodeIndex) -> bool) -> bool {
    let order = layout.nodes().filter(|node| is_in(*node)).collect();
    participants(layout, order, quorum) == quorum.ack()
}

/// How many take part in the partition of which the fewest do.
fn least_participants(layout: &Layout, roles: &ScanRoles) -> u8 {
    let count = |partition| roles.participants(layout, Partition(partition)).count() as u8;
    (0..layout.partitions()).map(count).min().expect("a layout has partitions")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QuorumChoice;
    use std::num::NonZeroU8;

    const PARTITIONS: u32 = 32;

    fn layout(nodes: u8) -> Layout {
        Layout::new((0..nodes).map(|node| format!("http://{node}:1")).collect(), PARTITIONS)
            .expect("a layout")
    }

    /// All orders of all sets of so many nodes.
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

    /// For every order of up to five nodes and every quorum.
    #[test]
    fn each_partition_has_one_source_and_as_many_others_as_must_have_a_say() {
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

    fn check(layout: &Layout, order: &[NodeIndex], quorum: Quorum) {
        let usable = |partition: u32| {
            let replicas = &layout.preference_list(Partition(partition))[..usize::from(quorum.from())];
            order.iter().filter(|node| replicas.contains(node)).copied().collect::<Vec<_>>()
        };
        let least = (0..PARTITIONS).map(|partition| usable(partition).len()).min().expect("partitions");
        let cast = Cast::new(layout, order.to_vec(), quorum);
        assert_eq!(cast.is_ok(), least >= usize::from(quorum.ack()));
        assert_eq!(would_do(layout, quorum, |node| order.contains(&node)), cast.is_ok());
        let Ok(cast) = cast else {
            assert_eq!(cast.err(), Some(TooFew { participants: least as u8 }));
            return;
        };
        for partition in 0..PARTITIONS {
            let with = |has: fn(&Part) -> &PartitionSet| {
                let parts = cast.parts.iter().filter(|part| has(part).contains(Partition(partition)));
                parts.map(|part| part.node).collect::<Vec<_>>()
            };
            let participants = &usable(partition)[..usize::from(quorum.ack())];
            assert_eq!(with(|part| &part.sourced), participants[..1]);
            assert_eq!(with(|part| &part.checked), participants[1..]);
        }
    }
}
