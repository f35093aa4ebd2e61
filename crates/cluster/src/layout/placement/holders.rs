//! The holders of each partition, in order.

use super::super::{NODES_MAX, NodeIndex, NodeSet};
use super::flow::{CountBounds, FlowPartition, ReplicaFlow};
use super::quotas::WeightShares;
use super::request::RequestedMembers;
use super::spread::ZoneSpread;

/// The beginnings of the preference lists: the positions that hold data by default.
pub(super) struct Holders<'a> {
    requested: &'a RequestedMembers,
    from: usize,
    /// Today's holders in order, after each replacement took the positions of the replaced member.
    former: Vec<Vec<NodeIndex>>,
}

impl<'a> Holders<'a> {
    /// `lists` are today's preference lists with the appended members.
    pub(super) fn new(requested: &'a RequestedMembers, lists: &[Vec<NodeIndex>], from: usize) -> Self {
        let replacement = |slot: &NodeIndex| {
            let other = requested.replaced.iter().find_map(|&(old, new)| match *slot {
                slot if slot == old => Some(new),
                slot if slot == new => Some(old),
                _ => None,
            });
            other.unwrap_or(*slot)
        };
        let former = lists.iter().map(|list| list[..from].iter().map(replacement).collect()).collect();
        Self { requested, from, former }
    }

    /// The holders of each partition, in order.
    pub(super) fn place(self) -> Vec<Vec<NodeIndex>> {
        let mut heads: Vec<Vec<NodeIndex>> = (self.choose().into_iter().zip(&self.former).enumerate())
            .map(|(partition, (holders, former))| inherit(partition, former, holders))
            .collect();
        for position in 0..self.from - 1 {
            balance_position(&mut heads, position, self.requested.placed);
        }
        heads
    }

    /// Chooses the holders of each partition.
    fn choose(&self) -> Vec<NodeSet> {
        let RequestedMembers { members, placed, .. } = self.requested;
        let spread = ZoneSpread::new(members, *placed, self.from);
        let partitions: Vec<_> = self.former.iter().map(|list| self.begin_of(list, &spread)).collect();
        let shares = WeightShares::new(members, &spread, partitions.len() as u32, self.from);
        let preferred = partitions.iter().map(|partition| partition.preferred);
        let quotas = shares.quotas(&counts(preferred.flat_map(NodeSet::iter)));
        let bounds = quotas.map(|quota| CountBounds { least: quota, most: quota });
        ReplicaFlow::new(&spread, partitions, &bounds).solve()
    }

    /// The partition before the flow: today's holders are kept as far as the zones permit.
    fn begin_of(&self, former: &[NodeIndex], spread: &ZoneSpread) -> FlowPartition {
        let candidates = self.requested.placed;
        let preferred = candidates.intersection(former.iter().copied().collect());
        let mut chosen = NodeSet::EMPTY;
        for slot in former.iter().filter(|slot| preferred.contains(**slot)) {
            let with_it = chosen.union(NodeSet::from_iter([*slot]));
            if spread.permits(with_it) {
                chosen = with_it;
            }
        }
        FlowPartition { candidates, preferred, chosen, vacant: self.from as u8 - chosen.len() }
    }
}

/// The holders in the order of `former`. The new ones take the positions that became free.
fn inherit(partition: usize, former: &[NodeIndex], holders: NodeSet) -> Vec<NodeIndex> {
    let mut new: Vec<NodeIndex> = holders.without(former.iter().copied().collect()).iter().collect();
    // So that the member with the least slot is not always first.
    let len = new.len().max(1);
    new.rotate_left(partition % len);
    let mut new = new.into_iter();
    let inherited = |slot: &NodeIndex| match holders.contains(*slot) {
        true => *slot,
        false => new.next().expect("as many members are new as left"),
    };
    former.iter().map(inherited).collect()
}

/// Exchanges holders until each member is equally often at `position`, give or take one, of the
/// partitions in which it is there or behind. The last position is balanced with the others.
fn balance_position(heads: &mut [Vec<NodeIndex>], position: usize, placed: NodeSet) {
    let spread = ZoneSpread::anywhere(placed, 1);
    let positions = heads.first().map_or(0, |head| head.len() - position) as u32;
    let behind = counts(heads.iter().flat_map(|head| head[position..].iter().copied()));
    let bounds =
        behind.map(|count| CountBounds { least: count / positions, most: count.div_ceil(positions) });
    let partition = |head: &Vec<NodeIndex>| {
        let present = NodeSet::from_iter([head[position]]);
        let candidates = head[position..].iter().copied().collect();
        FlowPartition { candidates, preferred: present, chosen: present, vacant: 0 }
    };
    let partitions = heads.iter().map(partition).collect();
    let chosen = ReplicaFlow::new(&spread, partitions, &bounds).solve();
    for (head, chosen) in heads.iter_mut().zip(chosen) {
        let found = head.iter().position(|slot| chosen.contains(*slot)).expect("a holder was chosen");
        head.swap(position, found);
    }
}

/// How often each member occurs, by slot.
pub(super) fn counts(slots: impl Iterator<Item = NodeIndex>) -> [u32; NODES_MAX] {
    let mut counts = [0; NODES_MAX];
    slots.for_each(|slot| counts[slot.as_usize()] += 1);
    counts
}
