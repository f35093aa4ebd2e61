//! Placement is balanced, nested, equal on all nodes, and never changes by accident.

use cluster::{Layout, LayoutError, NodeIndex, PartitionId};
use std::collections::BTreeMap;

const PARTITIONS: u32 = 4_096;
const SIZES: [usize; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 20, 64];

fn names(nodes: usize) -> Vec<String> {
    (0..nodes).map(|i| format!("http://node{i}.example:8080")).collect()
}

fn layout(nodes: usize) -> Layout {
    Layout::new(names(nodes), PARTITIONS).expect("a list of nodes")
}

fn lists(layout: &Layout) -> impl Iterator<Item = &[NodeIndex]> {
    (0..layout.partitions()).map(|partition| layout.preference_list(PartitionId(partition)))
}

/// Least and greatest number of times that a node is at index `place` of the lists that begin with
/// `begin`.
fn spread(layout: &Layout, begin: &[NodeIndex], place: usize) -> (usize, usize) {
    let others = layout.nodes().filter(|node| !begin.contains(node));
    let mut counts: BTreeMap<NodeIndex, usize> = others.map(|node| (node, 0)).collect();
    for list in lists(layout).filter(|list| list.starts_with(begin)) {
        if let Some(count) = counts.get_mut(&list[place]) {
            *count += 1;
        }
    }
    let least = counts.values().min().expect("some node is left");
    (*least, *counts.values().max().expect("some node is left"))
}

#[test]
fn each_list_names_each_node_once() {
    for nodes in SIZES {
        let layout = layout(nodes);
        for list in lists(&layout) {
            let mut sorted = list.to_vec();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(layout.nodes()), "{nodes} nodes: {list:?}");
        }
    }
}

#[test]
fn each_node_is_first_equally_often_and_second_behind_each_first() {
    for nodes in SIZES {
        let layout = layout(nodes);
        let (least, greatest) = spread(&layout, &[], 0);
        assert!(greatest - least <= 1, "{nodes} nodes are first {least} to {greatest} times");
        for first in layout.nodes().filter(|_| nodes > 1) {
            let (least, greatest) = spread(&layout, &[first], 1);
            assert!(greatest - least <= 1, "of {nodes} nodes, behind {first:?}: {least} to {greatest} times");
        }
        for second in layout.nodes().skip(1).filter(|_| nodes > 2) {
            let (least, greatest) = spread(&layout, &[NodeIndex(0), second], 2);
            assert!(
                greatest - least <= 1,
                "of {nodes} nodes, behind 0 and {second:?}: {least} to {greatest} times"
            );
        }
    }
}

/// The number of replicas on a node determines the load of its disk. For each `from`, the fullest
/// node has at most a tenth more than the emptiest.
#[test]
fn each_node_holds_about_equally_many_replicas() {
    for nodes in SIZES {
        let layout = layout(nodes);
        for from in 1..=nodes.min(5) {
            let mut counts = vec![0_usize; nodes];
            lists(&layout).flat_map(|list| &list[..from]).for_each(|node| counts[node.as_usize()] += 1);
            let (least, greatest) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(greatest * 100 <= least * 110, "{nodes} nodes, from {from}: {least} to {greatest}");
        }
    }
}

#[test]
fn the_replicas_of_fewer_are_among_those_of_more() {
    let layout = layout(5);
    for i in 0..1_000 {
        let key = cluster::Key::new(format!("key{i}").into()).expect("a short key");
        for from in 1..=5_u8 {
            let replicas = layout.replicas(&key, from);
            assert_eq!(replicas.len(), usize::from(from));
            assert_eq!(replicas[..usize::from(from) - 1], *layout.replicas(&key, from - 1));
            assert!(
                layout.nodes().all(|node| layout.is_replica(node, &key, from) == replicas.contains(&node))
            );
        }
        assert_eq!(layout.replicas(&key, 200).len(), 5, "there are no more than all");
    }
}

#[test]
fn order_and_duplicates_of_the_list_do_not_matter() {
    for nodes in [1, 3, 7] {
        let mut others = names(nodes);
        others.reverse();
        others.push(others[0].clone());
        assert_eq!(Layout::new(others, PARTITIONS).expect("a list of nodes"), layout(nodes));
    }
}

/// Adding a node also moves replicas between old nodes. At most a fifth of the new node's share of
/// first positions moves between old nodes in addition; of three replicas, at most as many as the
/// new node takes.
#[test]
fn adding_or_removing_a_node_moves_little_beyond_its_share() {
    for nodes in 1..=12 {
        let (small, large) = (layout(nodes), layout(nodes + 1));
        // The new name is the last one, except with 10 nodes and more, where it sorts in between:
        // compare names.
        let name = |layout: &Layout, node: NodeIndex| layout.names()[node.as_usize()].clone();
        for from in [1, 3.min(nodes)] {
            let (mut taken, mut shuffled) = (0, 0);
            for (before, after) in lists(&small).zip(lists(&large)) {
                let before: Vec<String> = before[..from].iter().map(|&node| name(&small, node)).collect();
                let after: Vec<String> = after[..from].iter().map(|&node| name(&large, node)).collect();
                let new: Vec<&String> = after.iter().filter(|name| !before.contains(name)).collect();
                let is_taken = new.iter().any(|name| small.find(name).is_none());
                taken += usize::from(is_taken);
                shuffled += new.len() - usize::from(is_taken);
            }
            let shuffled_max = if from == 1 { taken / 5 } else { taken };
            assert!(shuffled <= shuffled_max, "{nodes} and 1, from {from}: {shuffled} beside {taken}");
        }
    }
}

/// A changed layout loses keys, so layouts are pinned.
#[test]
fn layouts_never_change() {
    let begin = |nodes| {
        let layout = layout(nodes);
        let digits = |list: &[NodeIndex]| list.iter().map(|node| node.0.to_string()).collect::<String>();
        lists(&layout).take(12).map(digits).collect::<Vec<String>>().join(" ")
    };
    assert_eq!(begin(3), "012 120 210 120 021 210 012 210 012 201 012 021");
    assert_eq!(begin(5), "40123 13204 21304 31420 04123 21043 04132 21034 03124 23041 30142 04231");
    let all = |nodes| {
        let bytes: Vec<u8> = lists(&layout(nodes)).flatten().map(|node| node.0).collect();
        xxhash_rust::xxh3::xxh3_64(&bytes)
    };
    assert_eq!(
        [3, 5, 12, 64].map(all),
        [0xf734_877e_8b8c_f606, 0x003f_91f8_0879_71fe, 0x6858_f300_ab42_3b72, 0xf445_e3cb_8e22_434f,]
    );
    let key = cluster::Key::new("user:1".into()).expect("a short key");
    assert_eq!(layout(3).partition_of(&key), PartitionId(949));
}

#[test]
fn a_list_that_cannot_be_laid_out_is_an_error() {
    assert_eq!(Layout::new(Vec::new(), 8), Err(LayoutError::Nodes { nodes: 0 }));
    assert_eq!(Layout::new(names(65), 8), Err(LayoutError::Nodes { nodes: 65 }));
    for partitions in [0, 3, 1 << 17] {
        assert_eq!(Layout::new(names(1), partitions), Err(LayoutError::Partitions { partitions }));
    }
}

#[test]
fn partitions_are_used_evenly() {
    let layout = layout(3);
    let mut counts = vec![0_u32; PARTITIONS as usize];
    for i in 0..PARTITIONS * 64 {
        let key = cluster::Key::new(format!("user:{i}").into()).expect("a short key");
        counts[layout.partition_of(&key).0 as usize] += 1;
    }
    assert!(
        counts.iter().all(|count| (24..120).contains(count)),
        "{:?} to {:?}",
        counts.iter().min(),
        counts.iter().max()
    );
}
