//! The exchanges that lead from one preference list to another.

use super::super::{NodeIndex, NodeSet, PartitionId};

/// An exchange of two positions of a preference list.
///
/// For each `from` greater than `first` and not greater than `second`, `loses` stops holding the
/// partition and `gains` begins to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlacementSwap {
    /// The member at `first` before the swap.
    pub loses: NodeIndex,
    /// The member at `second` before the swap.
    pub gains: NodeIndex,
    /// The partition.
    pub partition: PartitionId,
    /// The lesser position, from 0.
    pub first: u8,
    /// The greater position.
    pub second: u8,
}

impl PlacementSwap {
    /// Whether keys with `from` replicas move.
    pub const fn moves_data(&self, from: u8) -> bool {
        self.first < from && from <= self.second
    }
}

/// The first of the fewest swaps that lead `list` to one that begins with `head` and ends with the
/// members `removed`. `None` if it is such a list. After each swap it is the next one of the same
/// number of swaps, so a change can go on from the list alone.
pub(crate) fn next_swap(
    partition: PartitionId,
    list: &[NodeIndex],
    head: &[NodeIndex],
    removed: NodeSet,
) -> Option<PlacementSwap> {
    let mut rounds = SwapRounds::default();
    rounds.lead(partition, &mut list.to_vec(), head, removed);
    rounds.0.into_iter().next()?.pop()
}

/// The swaps of all partitions: round `n` has the swap `n` of each partition. Within a round, the
/// swaps of two members follow each other, because one pass over the losing member serves them all.
#[derive(Default)]
pub(super) struct SwapRounds(Vec<Vec<PlacementSwap>>);

impl SwapRounds {
    pub(super) fn into_swaps(self) -> Vec<PlacementSwap> {
        let sorted = self.0.into_iter().map(|mut round| {
            round.sort_unstable();
            round
        });
        sorted.flatten().collect()
    }

    /// Appends the fewest swaps that lead `list` to one that begins with `head` and ends with the
    /// members `removed`, and applies them to `list`.
    pub(super) fn lead(
        &mut self,
        partition: PartitionId,
        list: &mut [NodeIndex],
        head: &[NodeIndex],
        removed: NodeSet,
    ) {
        let mut swaps = PartitionSwaps { partition, list, rounds: &mut self.0, done: 0 };
        swaps.bring_in(head);
        swaps.order(head);
        swaps.bring_to_end(removed);
    }
}

/// The swaps of a partition, and its list after them.
struct PartitionSwaps<'a> {
    partition: PartitionId,
    list: &'a mut [NodeIndex],
    rounds: &'a mut Vec<Vec<PlacementSwap>>,
    done: usize,
}

impl PartitionSwaps<'_> {
    fn swap(&mut self, first: usize, second: usize) {
        let (loses, gains) = (self.list[first], self.list[second]);
        self.list.swap(first, second);
        if self.rounds.len() == self.done {
            self.rounds.push(Vec::new());
        }
        let (first, second) = (first as u8, second as u8);
        self.rounds[self.done].push(PlacementSwap { loses, gains, partition: self.partition, first, second });
        self.done += 1;
    }

    fn find(&self, slot: NodeIndex) -> usize {
        self.list.iter().position(|other| *other == slot).expect("a list names every member")
    }

    /// Swaps each new holder with one that leaves the head. The member that leaves is found by
    /// following the displaced holders: the position of the new one has a member that belongs to
    /// another position, and so on. So every swap is on a cycle of the permutation and splits it,
    /// which makes their number the least.
    fn bring_in(&mut self, head: &[NodeIndex]) {
        for (position, slot) in head.iter().enumerate() {
            let found = self.find(*slot);
            if found < head.len() {
                continue;
            }
            let mut position = position;
            while let Some(next) = head.iter().position(|other| *other == self.list[position]) {
                position = next;
            }
            self.swap(position, found);
        }
    }

    /// Orders the holders.
    fn order(&mut self, head: &[NodeIndex]) {
        for (position, slot) in head.iter().enumerate() {
            let found = self.find(*slot);
            if found != position {
                self.swap(position, found);
            }
        }
    }

    /// Moves the removed members, which hold no data any more, to the end.
    fn bring_to_end(&mut self, removed: NodeSet) {
        let kept = self.list.len() - usize::from(removed.len());
        for position in kept..self.list.len() {
            if !removed.contains(self.list[position]) {
                let is_removed = |slot: &NodeIndex| removed.contains(*slot);
                let first = self.list[..kept].iter().position(is_removed);
                self.swap(first.expect("a removed member is not at the end"), position);
            }
        }
    }
}
