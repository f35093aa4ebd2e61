//! An exact solver for small clusters: no placement with the same numbers moves less.

use crate::cluster_state::{
    add, held, holders, is_even, moved, planned, remove, replace, shuffled, subsets, url, weight, zone, zones,
};
use cluster::{LayoutRecord, NodeIndex, NodeSet, PlacementChange, PlacementRefusal};
use std::collections::BTreeMap;
use stdx::Rng;

/// The least number of copies that move if each member holds as many partitions as in `after`. All
/// holders of all partitions are tried; partial placements with equal numbers are merged.
fn least_moved(before: &LayoutRecord, after: &LayoutRecord) -> u32 {
    let from = before.default_from;
    let members: Vec<NodeIndex> = held(after, from).into_keys().collect();
    let zones = zones(after);
    let choices: Vec<NodeSet> = subsets(&members, usize::from(from))
        .into_iter()
        .map(NodeSet::from_bits)
        .filter(|holders| is_even(*holders, &zones))
        .collect();
    let left: Vec<u32> = held(after, from).into_values().collect();
    let mut least = BTreeMap::from([(left, 0)]);
    for former in holders(before, from) {
        let mut next: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
        for (left, cost) in least {
            for choice in &choices {
                let taken = |(slot, left): (&NodeIndex, &u32)| match choice.contains(*slot) {
                    true => left.checked_sub(1),
                    false => Some(*left),
                };
                let Some(left) = members.iter().zip(&left).map(taken).collect() else { continue };
                let cost = cost + u32::from(choice.without(former).len());
                let entry = next.entry(left).or_insert(cost);
                *entry = cost.min(*entry);
            }
        }
        least = next;
    }
    *least.get(&vec![0; members.len()]).expect("the plan is such a placement")
}

/// A request that may be refused: of up to three changes of random kinds.
fn random_changes(nodes: usize, rng: &mut Rng) -> Vec<PlacementChange> {
    let node = |rng: &mut Rng| rng.below(nodes as u64) as usize;
    let zone_of = |rng: &mut Rng| ["", "a", "b", "c"][rng.below(4) as usize];
    let mut changes = Vec::new();
    for new in (nodes..).take(rng.below(3) as usize) {
        changes.push(match rng.below(3) {
            0 => replace(node(rng), new),
            _ => add(new),
        });
        if rng.chance(0.5) {
            changes.push(zone(new, zone_of(rng)));
        }
    }
    if rng.chance(0.3) {
        changes.push(remove(node(rng)));
    }
    if rng.chance(0.3) {
        changes.push(weight(node(rng), 1 + rng.below(4) as u16));
    }
    if rng.chance(0.3) {
        changes.push(zone(node(rng), zone_of(rng)));
    }
    changes
}

#[test]
fn no_placement_with_the_same_numbers_moves_less() {
    let (mut plans, mut moving, mut zoned) = (0, 0, 0);
    for seed in 0..1_500 {
        let rng = &mut Rng::new(seed);
        let nodes = 2 + rng.below(4) as usize;
        let from = 1 + rng.below(nodes.min(4) as u64) as u8;
        let mut record = shuffled(nodes, 1 << rng.below(4), from, rng);
        for member in &mut record.members {
            member.weight = 1 + rng.below(3) as u16;
            ["", "a", "b", "c"][rng.below(4) as usize].clone_into(&mut member.zone);
        }
        let changes = random_changes(nodes, rng);
        let Ok((_, after)) = planned(&record, &changes) else { continue };
        if changes.iter().any(|change| matches!(change, PlacementChange::Replace { .. })) {
            // A replacement is a step of its own: see `a_replacement_takes_all_positions`.
            continue;
        }
        let least = least_moved(&record, &after);
        assert_eq!(moved(&record, &after), least, "seed {seed}: {changes:?}");
        plans += 1;
        moving += u32::from(least > 0);
        zoned += u32::from(zones(&after).iter().any(|zone| zone.len() > 1));
    }
    assert!(plans > 700 && moving > 500 && zoned > 300, "{plans} plans, {moving} move, {zoned} with zones");
}

/// Two copies may be in one zone, and each zone has to have one.
#[test]
fn no_placement_of_four_copies_in_three_zones_moves_less() {
    for seed in 0..100 {
        let rng = &mut Rng::new(seed);
        let mut record = shuffled(6, 4, 4, rng);
        for member in &mut record.members {
            member.weight = 1 + rng.below(3) as u16;
            ["a", "b", "c"][member.slot.as_usize() % 3].clone_into(&mut member.zone);
        }
        let (_, after) = planned(&record, &[]).expect("no changes");
        assert_eq!(moved(&record, &after), least_moved(&record, &after), "seed {seed}");
    }
}

#[test]
fn a_plan_without_changes_moves_nothing_in_a_balanced_cluster() {
    for nodes in 1..=5 {
        let record = crate::cluster_state::first(nodes, 64, nodes.min(3) as u8);
        let (_, balanced) = planned(&record, &[]).expect("no changes");
        let (plan, _) = planned(&balanced, &[]).expect("no changes");
        assert_eq!(plan.swaps, [], "{nodes} nodes");
    }
}

#[test]
fn a_replacement_takes_all_positions() {
    for seed in 0..50 {
        let rng = &mut Rng::new(seed);
        let nodes = 3 + rng.below(3) as usize;
        let (_, record) = planned(&shuffled(nodes, 32, 3, rng), &[]).expect("no changes");
        let (plan, after) = planned(&record, &[replace(1, nodes)]).expect("a replacement");
        let new = NodeIndex(nodes as u8);
        assert_eq!(plan.removed, NodeSet::from_iter([NodeIndex(1)]));
        assert!(after.members.iter().any(|member| member.slot == new && member.url == url(nodes)));
        for (before, after) in holders(&record, 3).into_iter().zip(holders(&after, 3)) {
            let replaced = |slot| if slot == NodeIndex(1) { new } else { slot };
            assert_eq!(before.iter().map(replaced).collect::<NodeSet>(), after, "seed {seed}");
        }
        let data = plan.swaps.iter().filter(|swap| swap.moves_data(3));
        assert!(data.clone().all(|swap| (swap.loses, swap.gains) == (NodeIndex(1), new)), "seed {seed}");
        assert_eq!(data.count() as u32, moved(&record, &after));
    }
}

#[test]
fn a_replacement_of_another_weight_moves_no_copy_twice() {
    let (_, record) = planned(&shuffled(5, 64, 3, &mut Rng::new(1)), &[]).expect("no changes");
    let (plan, after) = planned(&record, &[replace(0, 5), weight(5, 2)]).expect("a heavier replacement");
    let data = plan.swaps.iter().filter(|swap| swap.moves_data(3)).count();
    assert_eq!(data as u32, moved(&record, &after));
}

/// Checks a placement without zones by the optimality condition of minimum-cost flows: no cycle of
/// members, each of which gives one copy to the next one, moves less (Ahuja, Magnanti and Orlin,
/// theorem 9.1). Costs of paths are those of Floyd and Warshall.
pub(crate) fn assert_no_exchange_moves_less(before: &LayoutRecord, after: &LayoutRecord) {
    const NO_PATH: i32 = 1_000_000;
    let from = before.default_from;
    let members: Vec<NodeIndex> = held(after, from).into_keys().collect();
    let len = members.len();
    let mut costs = vec![vec![NO_PATH; len]; len];
    for (former, holders) in holders(before, from).into_iter().zip(holders(after, from)) {
        let is_new = |slot| i32::from(!former.contains(slot));
        for (row, loses) in costs.iter_mut().zip(&members).filter(|(_, slot)| holders.contains(**slot)) {
            for (cost, gains) in row.iter_mut().zip(&members).filter(|(_, slot)| !holders.contains(**slot)) {
                *cost = (is_new(*gains) - is_new(*loses)).min(*cost);
            }
        }
    }
    for middle in 0..len {
        for first in 0..len {
            for last in 0..len {
                costs[first][last] = costs[first][last].min(costs[first][middle] + costs[middle][last]);
            }
        }
    }
    let is_saving = |member: &usize| costs[*member][*member] < 0;
    assert_eq!((0..len).find(is_saving), None, "a cycle of exchanges moves less");
}

#[test]
fn a_dead_member_has_to_be_named() {
    let mut record = shuffled(4, 16, 3, &mut Rng::new(1));
    record.members[2].state = cluster::MemberState::Dead;
    assert_eq!(planned(&record, &[]).err(), Some(PlacementRefusal::DeadMember { url: url(2) }));
    let (plan, _) = planned(&record, &[remove(2)]).expect("three members remain");
    assert_eq!(plan.dead, NodeSet::from_iter([NodeIndex(2)]));
}
