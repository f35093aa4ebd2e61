//! A minimum-cost flow of copies between members, by successive shortest augmenting paths.
//!
//! **Promise.** Of all choices in which the count of every member is within its bounds, the result
//! has the fewest members that are chosen for a partition and not preferred there. The caller
//! guarantees that such a choice exists.
//!
//! **Mechanism.** The vertices are the members and [`VACANT`], which stands for missing copies. An
//! arc from `u` to `v` is a partition in which `v` can take the copy of `u`. Its cost is 1 if `v`
//! is not preferred there, less 1 if `u` is not. A path from a member with a surplus to one that
//! lacks copies moves one copy along each of its arcs, so only the counts of its ends change.
//!
//! The first choice contains preferred members only, so no arc has a negative cost. Each step takes
//! a path of the least cost, and of those one with the fewest arcs. The choice then stays one of
//! the least cost for its counts (Ahuja, Magnanti and Orlin, *Network Flows*, 1993, section 9.7).
//! The fewest arcs also guarantee that the arcs of a path do not interfere within a partition
//! (Frank, "A weighted matroid intersection algorithm", 1981).
//!
//! Parallel arcs are counted by cost. So a search visits at most 65 vertices, for any number of
//! partitions. The partition of an arc is found at the end, from a starting point that differs for
//! each exchange: the copies that a member gains come from partitions all over the cluster.

use super::super::{NODES_MAX, NodeIndex, NodeSet};
use super::spread::ZoneSpread;

/// The vertex of missing copies.
const VACANT: usize = NODES_MAX;
const VERTICES: usize = NODES_MAX + 1;
/// Factor of the cost of an arc. A path has fewer arcs than that, so their number breaks ties.
const COST: i64 = 1 << 10;
/// Gain of a path for each end whose count was out of bounds: more than any path costs.
const GAIN: i64 = 1 << 40;
/// Length of the path to a vertex that is not reached.
const UNREACHED: i64 = i64::MAX;
/// Costs of an arc are -1, 0 and 1.
const COSTS: usize = 3;

/// The members that are chosen for a partition.
#[derive(Clone, Copy)]
pub(super) struct FlowPartition {
    /// Members that can be chosen.
    pub(super) candidates: NodeSet,
    /// Members that cost nothing.
    pub(super) preferred: NodeSet,
    /// Members that are chosen: at first, preferred ones only.
    pub(super) chosen: NodeSet,
    /// Number of members that are still to be chosen.
    pub(super) vacant: u8,
}

/// The numbers of partitions for which a member may be chosen.
#[derive(Clone, Copy, Default)]
pub(super) struct CountBounds {
    pub(super) least: u32,
    pub(super) most: u32,
}

/// The state of the flow.
pub(super) struct ReplicaFlow<'a> {
    spread: &'a ZoneSpread,
    partitions: Vec<FlowPartition>,
    bounds: [CountBounds; VERTICES],
    counts: [u32; VERTICES],
    /// Number of partitions that are an arc between two vertices, by cost.
    arcs: Vec<[[u32; COSTS]; VERTICES]>,
    /// Number of arcs whose partition was looked up.
    lookups: usize,
}

/// An arc of a path.
struct PathArc {
    from: usize,
    to: usize,
    /// Index into the costs.
    cost: usize,
}

impl<'a> ReplicaFlow<'a> {
    pub(super) fn new(
        spread: &'a ZoneSpread,
        partitions: Vec<FlowPartition>,
        bounds: &[CountBounds; NODES_MAX],
    ) -> Self {
        let mut flow = Self {
            spread,
            bounds: [CountBounds::default(); VERTICES],
            counts: [0; VERTICES],
            arcs: vec![[[0; COSTS]; VERTICES]; VERTICES],
            lookups: 0,
            partitions,
        };
        flow.bounds[..NODES_MAX].copy_from_slice(bounds);
        for index in 0..flow.partitions.len() {
            let FlowPartition { chosen, vacant, .. } = flow.partitions[index];
            chosen.iter().for_each(|slot| flow.counts[slot.as_usize()] += 1);
            flow.counts[VACANT] += u32::from(vacant);
            flow.count_arcs(index, |count| *count += 1);
        }
        flow
    }

    /// Returns the members that are chosen for each partition.
    ///
    /// # Panics
    /// If no choice is within the bounds.
    pub(super) fn solve(mut self) -> Vec<NodeSet> {
        while let Some(path) = self.shortest_path() {
            self.augment(&path);
        }
        let is_within = |(count, bounds): (&u32, &CountBounds)| (bounds.least..=bounds.most).contains(count);
        assert!(self.counts.iter().zip(&self.bounds).all(is_within), "some choice is within the bounds");
        self.partitions.iter().map(|partition| partition.chosen).collect()
    }

    /// The shortest path that brings a count within its bounds, by the algorithm of Bellman and
    /// Ford: arcs may have negative costs, and no cycle does.
    fn shortest_path(&self) -> Option<Vec<PathArc>> {
        let mut lengths = [UNREACHED; VERTICES];
        let mut previous = [VACANT; VERTICES];
        let mut improved = Vec::new();
        for (vertex, (count, bounds)) in self.counts.iter().zip(&self.bounds).enumerate() {
            if *count > bounds.least {
                lengths[vertex] = if *count > bounds.most { -GAIN } else { 0 };
                improved.push(vertex);
            }
        }
        let mut passes = 0;
        while !improved.is_empty() {
            assert!(passes < VERTICES, "no cycle has a negative cost");
            passes += 1;
            let mut is_improved = [false; VERTICES];
            for from in std::mem::take(&mut improved) {
                for to in 0..NODES_MAX {
                    let Some(cost) = self.least_cost(from, to) else { continue };
                    let length = lengths[from] + (cost as i64 - 1) * COST + 1;
                    if length < lengths[to] {
                        (lengths[to], previous[to]) = (length, from);
                        if !std::mem::replace(&mut is_improved[to], true) {
                            improved.push(to);
                        }
                    }
                }
            }
        }
        let mut to = self.best_end(&lengths)?;
        let mut path = Vec::new();
        // The remainder is the number of arcs.
        while lengths[to].rem_euclid(COST) != 0 {
            let from = previous[to];
            let cost = self.least_cost(from, to).expect("an arc of the path");
            path.push(PathArc { from, to, cost });
            to = from;
        }
        Some(path)
    }

    /// The end of the path that is shortest with the gain of its end. `None` if no path improves
    /// the counts.
    fn best_end(&self, lengths: &[i64; VERTICES]) -> Option<usize> {
        let with_gain = |to: usize| match self.counts[to] {
            _ if lengths[to] == UNREACHED => None,
            count if count < self.bounds[to].least => Some((lengths[to] - GAIN, to)),
            count if count < self.bounds[to].most => Some((lengths[to], to)),
            _ => None,
        };
        let (length, to) = (0..NODES_MAX).filter_map(with_gain).min()?;
        (length < 0).then_some(to)
    }

    /// Index of the least cost of an arc.
    fn least_cost(&self, from: usize, to: usize) -> Option<usize> {
        self.arcs[from][to].iter().position(|count| *count > 0)
    }

    fn augment(&mut self, path: &[PathArc]) {
        let found: Vec<usize> = path.iter().map(|arc| self.partition_of(arc)).collect();
        for (PathArc { from, to, .. }, index) in path.iter().zip(found) {
            self.count_arcs(index, |count| *count -= 1);
            let partition = &mut self.partitions[index];
            match *from {
                VACANT => partition.vacant -= 1,
                slot => assert!(partition.chosen.remove(NodeIndex(slot as u8)), "the arc has a copy to move"),
            }
            assert!(partition.chosen.insert(NodeIndex(*to as u8)), "one copy on each member");
            debug_assert!(self.spread.permits(partition.chosen));
            self.count_arcs(index, |count| *count += 1);
            self.counts[*from] -= 1;
            self.counts[*to] += 1;
        }
    }

    /// A partition that is this arc.
    fn partition_of(&mut self, arc: &PathArc) -> usize {
        /// Odd, so that successive lookups begin at different partitions: their number is a power
        /// of two.
        const STRIDE: usize = 0x9e37_79b1;
        let len = self.partitions.len();
        let begin = self.lookups.wrapping_mul(STRIDE) % len;
        self.lookups += 1;
        let mut indexes = (begin..len).chain(0..begin);
        let is_arc = |index: &usize| self.cost(*index, arc.from, arc.to) == Some(arc.cost);
        indexes.find(is_arc).expect("a counted arc is a partition")
    }

    /// Index of the cost of moving a copy of the partition, `None` if that is not possible.
    fn cost(&self, index: usize, from: usize, to: usize) -> Option<usize> {
        let FlowPartition { candidates, preferred, chosen, vacant } = self.partitions[index];
        let gains = NodeIndex(to as u8);
        if !candidates.contains(gains) || chosen.contains(gains) {
            return None;
        }
        let cost = 1 + usize::from(!preferred.contains(gains));
        let mut after = chosen;
        after.insert(gains);
        if from == VACANT {
            return (vacant > 0 && self.spread.permits(after)).then_some(cost);
        }
        let loses = NodeIndex(from as u8);
        let is_possible = after.remove(loses)
            && (self.spread.zone_index(loses) == self.spread.zone_index(gains) || self.spread.permits(after));
        is_possible.then(|| cost - usize::from(!preferred.contains(loses)))
    }

    /// Applies `change` to the count of each arc that the partition is.
    fn count_arcs(&mut self, index: usize, change: impl Fn(&mut u32)) {
        let FlowPartition { candidates, chosen, vacant, .. } = self.partitions[index];
        let vacancy = (vacant > 0).then_some(VACANT);
        for from in chosen.iter().map(NodeIndex::as_usize).chain(vacancy) {
            for to in candidates.without(chosen).iter().map(NodeIndex::as_usize) {
                if let Some(cost) = self.cost(index, from, to) {
                    change(&mut self.arcs[from][to][cost]);
                }
            }
        }
    }
}
