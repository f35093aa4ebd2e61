//! Clusters whose placement is planned, and naive versions of the rules of the planner.

use cluster::{
    ClusterOrigin, LayoutEpoch, LayoutMember, LayoutRecord, MemberState, NodeIndex, NodeSet, PartitionId,
    PlacementChange, PlacementPlan, PlacementRefusal,
};
use std::collections::{BTreeMap, BTreeSet};
use stdx::{NodeTag, Rng};

pub(crate) fn url(node: usize) -> String {
    format!("http://n{node}")
}

pub(crate) fn add(node: usize) -> PlacementChange {
    PlacementChange::Add { url: url(node) }
}

pub(crate) fn remove(node: usize) -> PlacementChange {
    PlacementChange::Remove { url: url(node) }
}

pub(crate) fn replace(old: usize, new: usize) -> PlacementChange {
    PlacementChange::Replace { old: url(old), new: url(new), is_dead: false }
}

pub(crate) fn weight(node: usize, weight: u16) -> PlacementChange {
    PlacementChange::Weight { url: url(node), weight }
}

pub(crate) fn zone(node: usize, zone: &str) -> PlacementChange {
    PlacementChange::Zone { url: url(node), zone: zone.to_owned() }
}

/// Epoch 1 of a cluster of the nodes 0 to `nodes` - 1.
pub(crate) fn first(nodes: usize, partitions: u32, default_from: u8) -> LayoutRecord {
    let nodes = (0..nodes).map(url).collect();
    let origin = ClusterOrigin { nodes, partitions, hash_version: 1, default_from, tag: NodeTag(7) };
    LayoutRecord::first(origin).expect("a valid origin")
}

/// A cluster whose preference lists are random permutations.
pub(crate) fn shuffled(nodes: usize, partitions: u32, default_from: u8, rng: &mut Rng) -> LayoutRecord {
    let mut record = first(nodes, partitions, default_from);
    for list in record.lists.chunks_exact_mut(nodes) {
        for last in (1..nodes).rev() {
            list.swap(last, rng.below(last as u64 + 1) as usize);
        }
    }
    record
}

/// The record after the node has joined: last in every preference list, and holding nothing.
pub(crate) fn joined(record: &LayoutRecord, node: usize) -> LayoutRecord {
    let mut after = record.clone();
    let slot = NodeIndex(record.members.len() as u8);
    let lists = record.lists.chunks_exact(record.members.len());
    after.lists = lists.flat_map(|list| [list, &[slot]].concat()).collect();
    let member =
        LayoutMember { slot, url: url(node), state: MemberState::Joining, ..record.members[0].clone() };
    after.members.push(member);
    after
}

/// Plans the changes, and returns the record after the plan too. The steps are applied one by one,
/// and both records are checked.
pub(crate) fn planned(
    record: &LayoutRecord,
    changes: &[PlacementChange],
) -> Result<(PlacementPlan, LayoutRecord), PlacementRefusal> {
    record.check().expect("a valid record before the plan");
    let plan = PlacementPlan::new(record, changes)?;
    let after = applied(record, &plan);
    after.check().expect("a valid record after the plan");
    after.check_placement().expect("the constraints of a placement");
    Ok((plan, after))
}

/// The record after the steps of the plan.
fn applied(record: &LayoutRecord, plan: &PlacementPlan) -> LayoutRecord {
    let appended: Vec<NodeIndex> = plan.appended.iter().map(|member| member.slot).collect();
    let mut lists: Vec<Vec<NodeIndex>> = (0..record.partitions())
        .map(|partition| [record.preference_list(PartitionId(partition)), &appended].concat())
        .collect();
    for swap in &plan.swaps {
        let list = &mut lists[swap.partition.0 as usize];
        let (first, second) = (usize::from(swap.first), usize::from(swap.second));
        assert!(first < second, "{swap:?}");
        assert_eq!((list[first], list[second]), (swap.loses, swap.gains), "{swap:?}");
        list.swap(first, second);
    }
    for list in &mut lists {
        let kept = list.len() - usize::from(plan.removed.len());
        let last: NodeSet = list.drain(kept..).collect();
        assert_eq!(last, plan.removed, "removed members are last");
    }
    let mut after = record.clone();
    after.lists = lists.concat();
    assert_eq!(after.lists, plan.lists, "the steps lead to the lists of the plan");
    after.epoch = LayoutEpoch(record.epoch.0 + 1);
    after.parent = record.hash();
    after.members.clone_from(&plan.members);
    after.voters = vec![after.members[0].slot];
    after
}

/// The first `from` members of each list.
pub(crate) fn holders(record: &LayoutRecord, from: u8) -> Vec<NodeSet> {
    let lists = record.lists.chunks_exact(record.members.len());
    lists.map(|list| list[..usize::from(from)].iter().copied().collect()).collect()
}

/// Number of copies that the members of `after` hold and those of `before` do not.
pub(crate) fn moved(before: &LayoutRecord, after: &LayoutRecord) -> u32 {
    let from = before.default_from;
    let pairs = holders(before, from).into_iter().zip(holders(after, from));
    pairs.map(|(before, after)| u32::from(after.without(before).len())).sum()
}

/// Number of partitions that each active member holds.
pub(crate) fn held(record: &LayoutRecord, from: u8) -> BTreeMap<NodeIndex, u32> {
    let active = record.members.iter().filter(|member| member.state == MemberState::Active);
    let mut counts: BTreeMap<NodeIndex, u32> = active.map(|member| (member.slot, 0)).collect();
    for slot in holders(record, from).iter().flat_map(|holders| holders.iter()) {
        *counts.entry(slot).or_default() += 1;
    }
    counts
}

/// The active members of each zone. A member without a zone is one of its own.
pub(crate) fn zones(record: &LayoutRecord) -> Vec<NodeSet> {
    let active = record.members.iter().filter(|member| member.state == MemberState::Active);
    let mut zones: BTreeMap<String, NodeSet> = BTreeMap::new();
    for member in active {
        let name = match member.zone.is_empty() {
            true => format!("own {}", member.url),
            false => format!("zone {}", member.zone),
        };
        zones.entry(name).or_default().insert(member.slot);
    }
    zones.into_values().collect()
}

/// Whether no copy can pass from a zone to another one that has two copies less.
pub(crate) fn is_even(holders: NodeSet, zones: &[NodeSet]) -> bool {
    let copies = |zone: &NodeSet| holders.intersection(*zone).len();
    zones.iter().all(|zone| {
        zones.iter().all(|other| copies(zone) <= copies(other) + 1 || copies(other) == other.len())
    })
}

/// All sets of `len` members.
pub(crate) fn subsets(members: &[NodeIndex], len: usize) -> BTreeSet<u64> {
    match members {
        _ if len == 0 => [0].into(),
        [] => BTreeSet::new(),
        [first, rest @ ..] => {
            let with_first = subsets(rest, len - 1).into_iter().map(|set| set | 1 << first.0);
            with_first.chain(subsets(rest, len)).collect()
        }
    }
}
