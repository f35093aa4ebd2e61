//! Preference lists under quotas. See the layout's module.

use super::NodeIndex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The preference lists of all partitions, one after the other.
pub(super) fn preference_lists(nodes: &[String], partitions: u32) -> Vec<NodeIndex> {
    let mut lists = vec![Vec::with_capacity(nodes.len()); partitions as usize];
    let mut groups = vec![(0..partitions).collect::<Vec<u32>>()];
    for _ in nodes {
        let mut placed = vec![0_u32; nodes.len()];
        let mut next_groups = Vec::new();
        for group in groups {
            place_group(nodes, &group, &mut lists, &mut placed);
            next_groups.extend(split(group, &lists));
        }
        groups = next_groups;
    }
    lists.concat()
}

/// Gives each partition of the group, all of which agree in what they have so far, its next node.
fn place_group(nodes: &[String], group: &[u32], lists: &mut [Vec<NodeIndex>], placed: &mut [u32]) {
    let taken = &lists[group[0] as usize];
    let left: Vec<NodeIndex> =
        (0..nodes.len() as u8).map(NodeIndex).filter(|node| !taken.contains(node)).collect();
    let mut quota = quotas(&left, group, nodes, placed);
    let mut pairs: Vec<(u64, u32, NodeIndex)> = (group.iter())
        .flat_map(|&partition| left.iter().map(move |&node| (partition, node)))
        .map(|(partition, node)| (score(&nodes[node.as_usize()], partition), partition, node))
        .collect();
    pairs.sort_unstable_by(|a, b| b.cmp(a));
    let len_before = taken.len();
    for (_, partition, node) in pairs {
        let list = &mut lists[partition as usize];
        if list.len() == len_before && quota[node.as_usize()] > 0 {
            list.push(node);
            quota[node.as_usize()] -= 1;
            placed[node.as_usize()] += 1;
        }
    }
}

/// How many partitions of the group each node gets: even shares; what is left over goes to the nodes that have
/// this place least often so far, of equals to those that the group's first partition prefers.
fn quotas(left: &[NodeIndex], group: &[u32], nodes: &[String], placed: &[u32]) -> Vec<usize> {
    let mut quota = vec![0; nodes.len()];
    for node in left {
        quota[node.as_usize()] = group.len() / left.len();
    }
    let mut by_need = left.to_vec();
    by_need.sort_by_key(|node| {
        (placed[node.as_usize()], std::cmp::Reverse(score(&nodes[node.as_usize()], group[0])))
    });
    for node in &by_need[..group.len() % left.len()] {
        quota[node.as_usize()] += 1;
    }
    quota
}

/// The parts of the group that agree in their last node too, in the order of that node.
fn split(group: Vec<u32>, lists: &[Vec<NodeIndex>]) -> Vec<Vec<u32>> {
    let mut parts: std::collections::BTreeMap<Option<NodeIndex>, Vec<u32>> = Default::default();
    for partition in group {
        parts.entry(lists[partition as usize].last().copied()).or_default().push(partition);
    }
    parts.into_values().collect()
}

fn score(node: &str, partition: u32) -> u64 {
    xxh3_64_with_seed(node.as_bytes(), u64::from(partition))
}
