//! Random clusters and sequences of changes.

use crate::cluster_state::{
    add, first, held, is_even, joined, moved, planned, remove, replace, weight, zone, zones,
};
use crate::least_movement::assert_no_exchange_moves_less;
use cluster::{LayoutRecord, MemberState, NodeIndex, NodeSet, PlacementChange, PlacementNote};
use proptest::prelude::*;

/// A change, as two numbers and a zone that are interpreted in the cluster of its turn.
fn change() -> impl Strategy<Value = (u8, usize, u16)> {
    (0..5_u8, 0..64_usize, 1..5_u16)
}

/// Turns numbers into a change of the members that there are.
fn change_of(record: &LayoutRecord, next: usize, (kind, pick, amount): (u8, usize, u16)) -> PlacementChange {
    let member = &record.members[pick % record.members.len()];
    let node: usize = member.url.trim_start_matches("http://n").parse().expect("a number");
    match kind {
        0 => add(next),
        1 => remove(node),
        2 => replace(node, next),
        3 => weight(node, amount),
        _ => zone(node, ["", "a", "b", "c"][usize::from(amount) % 4]),
    }
}

/// If one member holds clearly more for its weight than another one, then the other one holds every
/// partition, or a limit of their zones is in the way.
fn assert_fair(record: &LayoutRecord) {
    let from = record.default_from;
    let (held, zones) = (held(record, from), zones(record));
    let zone_of = |slot| *zones.iter().find(|zone| zone.contains(slot)).expect("an active member");
    let partitions = record.partitions();
    let copies = |zone: NodeSet| -> Vec<u8> {
        let lists = record.lists.chunks_exact(record.members.len());
        let heads = lists.map(|list| list[..usize::from(from)].iter().copied().collect::<NodeSet>());
        heads.map(|holders| holders.intersection(zone).len()).collect()
    };
    for (slot, count) in &held {
        for (other, other_count) in &held {
            let weight = |slot: &NodeIndex| f64::from(record.member(*slot).expect("a member").weight);
            let more = (f64::from(*count) - 2.0) / weight(slot);
            let less = (f64::from(*other_count) + 2.0) / weight(other);
            if more <= less || *other_count == partitions {
                continue;
            }
            let (zone, other_zone) = (zone_of(*slot), zone_of(*other));
            assert_ne!(zone, other_zone, "{slot:?} holds {count}, {other:?} holds {other_count}");
            // The zones are at limits if all partitions have equally many copies in one of them.
            let is_constant = |copies: &[u8]| copies.iter().all(|count| *count == copies[0]);
            assert!(
                is_constant(&copies(zone)) || is_constant(&copies(other_zone)),
                "{slot:?} holds {count}, {other:?} holds {other_count}"
            );
        }
    }
}

#[test]
fn a_node_that_has_joined_is_placed_like_one_that_is_going_to() {
    let record = first(5, 64, 3);
    let (early, _) = planned(&record, &[add(5)]).expect("a node that is going to join");
    let (late, _) = planned(&joined(&record, 5), &[add(5)]).expect("a node that has joined");
    assert_eq!((&early.lists, &early.swaps), (&late.lists, &late.swaps));
    assert_eq!((early.appended.len(), late.appended.len()), (1, 0));
}

#[test]
fn a_joining_member_holds_nothing_before_it_is_added() {
    let record = joined(&planned(&first(5, 64, 3), &[]).expect("no changes").1, 5);
    let (plan, after) = planned(&record, &[]).expect("no changes");
    assert_eq!(plan.swaps, []);
    assert_eq!(after.members[5].state, MemberState::Joining);
    let note = PlacementNote::NotAdded { url: "http://n5".to_owned() };
    assert!(plan.preview(&record).notes.contains(&note));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_sequence_of_changes_keeps_the_promises(
        nodes in 1..9_usize,
        from in 1..6_u8,
        changes in prop::collection::vec(prop::collection::vec(change(), 1..3), 1..6),
    ) {
        let from = from.min(nodes as u8);
        let mut record = first(nodes, 256, from);
        for member in &mut record.members {
            member.node_id = Some(stdx::NodeTag(1 + u64::from(member.slot.0)));
        }
        let mut next = nodes;
        for numbers in changes {
            let mut request = Vec::new();
            for number in numbers {
                request.push(change_of(&record, next, number));
                next += 1;
            }
            let Ok((plan, mut after)) = planned(&record, &request) else { continue };
            for member in &mut after.members {
                member.node_id.get_or_insert(stdx::NodeTag(1_000 + next as u64 * 64 + u64::from(member.slot.0)));
            }
            let zones = zones(&after);
            for list in after.lists.chunks_exact(after.members.len()) {
                let holders = list[..usize::from(from)].iter().copied().collect();
                prop_assert!(is_even(holders, &zones), "{list:?}");
            }
            assert_fair(&after);
            let data = plan.swaps.iter().filter(|swap| swap.moves_data(from)).count() as u32;
            prop_assert_eq!(data, moved(&record, &after), "no copy moves twice");
            let is_replaced = request.iter().any(|change| matches!(change, PlacementChange::Replace { .. }));
            if zones.iter().all(|zone| zone.len() == 1) && !is_replaced {
                assert_no_exchange_moves_less(&record, &after);
            }
            prop_assert_eq!(&planned(&record, &request).expect("as before").0, &plan, "deterministic");
            prop_assert_eq!(planned(&after, &[]).expect("no changes").0.swaps, [], "repeated");
            record = after;
        }
    }

    #[test]
    fn a_node_that_is_added_and_removed_leaves_the_balance(nodes in 1..9_usize, weights in prop::collection::vec(1..5_u16, 8)) {
        let from = nodes.min(3) as u8;
        let request: Vec<_> = (0..nodes).map(|node| weight(node, weights[node])).collect();
        let (_, balanced) = planned(&first(nodes, 256, from), &request).expect("new weights");
        let (_, grown) = planned(&balanced, &[add(nodes)]).expect("a new node");
        let (_, shrunk) = planned(&grown, &[remove(nodes)]).expect("enough nodes");
        let (before, after) = (held(&balanced, from), held(&shrunk, from));
        for (slot, count) in before {
            prop_assert!(after[&slot].abs_diff(count) <= 1, "{:?} holds {} after {}", slot, after[&slot], count);
        }
        prop_assert_eq!(moved(&grown, &shrunk), held(&grown, from)[&NodeIndex(nodes as u8)], "only its data moves");
    }
}
