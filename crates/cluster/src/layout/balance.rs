//! Computes preference lists by rendezvous hashing under quotas, as the [layout](super) describes.

use super::{NodeIndex, NodeSet};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The preference lists of all partitions, concatenated.
pub(super) fn preference_lists(nodes: &[String], partitions: u32) -> Vec<NodeIndex> {
    let scores = Scores::new(nodes, partitions);
    let mut lists = vec![Vec::with_capacity(nodes.len()); partitions as usize];
    let mut groups = vec![(0..partitions).collect::<Vec<u32>>()];
    for _ in nodes {
        let mut placed = vec![0_u32; nodes.len()];
        let mut next_groups = Vec::new();
        for group in groups {
            place_group(&scores, &group, &mut lists, &mut placed);
            split(group, &lists, &mut next_groups);
        }
        groups = next_groups;
    }
    lists.concat()
}

/// Rendezvous scores: a node with a higher score is preferred for a partition.
struct Scores {
    nodes: usize,
    by_partition: Vec<u64>,
}

impl Scores {
    fn new(nodes: &[String], partitions: u32) -> Self {
        let score = |node: &String, partition| xxh3_64_with_seed(node.as_bytes(), u64::from(partition));
        let by_partition = (0..partitions)
            .flat_map(|partition| nodes.iter().map(move |node| score(node, partition)))
            .collect();
        Self { nodes: nodes.len(), by_partition }
    }

    fn of(&self, partition: u32, node: NodeIndex) -> u64 {
        self.by_partition[partition as usize * self.nodes + node.as_usize()]
    }
}

/// Appends the next node to the list of each partition of the group. All lists of a group are equal
/// so far.
fn place_group(scores: &Scores, group: &[u32], lists: &mut [Vec<NodeIndex>], placed: &mut [u32]) {
    let taken: NodeSet = lists[group[0] as usize].iter().copied().collect();
    let left: Vec<NodeIndex> = NodeSet::first(scores.nodes as u8).without(taken).iter().collect();
    if let &[partition] = group {
        let node = left.into_iter().min_by_key(|&node| need(scores, group, placed, node));
        let node = node.expect("an incomplete list lacks a node");
        lists[partition as usize].push(node);
        placed[node.as_usize()] += 1;
        return;
    }
    let len_before = usize::from(taken.len());
    let mut quota = quotas(scores, group, left.clone(), placed);
    let mut pairs: Vec<(u64, u32, NodeIndex)> = (group.iter())
        .flat_map(|&partition| left.iter().map(move |&node| (scores.of(partition, node), partition, node)))
        .collect();
    pairs.sort_unstable_by(|a, b| b.cmp(a));
    for (_, partition, node) in pairs {
        let list = &mut lists[partition as usize];
        if list.len() == len_before && quota[node.as_usize()] > 0 {
            list.push(node);
            quota[node.as_usize()] -= 1;
            placed[node.as_usize()] += 1;
        }
    }
}

/// Number of partitions of the group that each node gets: even shares. The remainder goes to the
/// nodes with the greatest need.
fn quotas(scores: &Scores, group: &[u32], mut left: Vec<NodeIndex>, placed: &[u32]) -> Vec<usize> {
    let mut quota = vec![0; scores.nodes];
    for node in &left {
        quota[node.as_usize()] = group.len() / left.len();
    }
    left.sort_by_key(|&node| need(scores, group, placed, node));
    for node in &left[..group.len() % left.len()] {
        quota[node.as_usize()] += 1;
    }
    quota
}

/// Sort key of a node's need, least first: nodes that have this list position least often so far;
/// among equals, nodes with the highest score for the group's first partition.
fn need(scores: &Scores, group: &[u32], placed: &[u32], node: NodeIndex) -> (u32, Reverse<u64>) {
    (placed[node.as_usize()], Reverse(scores.of(group[0], node)))
}

/// Splits the group by the last node of the lists, in the order of that node.
fn split(group: Vec<u32>, lists: &[Vec<NodeIndex>], into: &mut Vec<Vec<u32>>) {
    if group.len() == 1 {
        return into.push(group);
    }
    let mut parts: BTreeMap<Option<NodeIndex>, Vec<u32>> = BTreeMap::new();
    for partition in group {
        parts.entry(lists[partition as usize].last().copied()).or_default().push(partition);
    }
    into.extend(parts.into_values());
}
