//! Each constraint of a placement is refused when it is broken.

use crate::cluster_state::{add, first, planned, weight, zone};
use cluster::{LayoutRecord, MemberState, NodeIndex, PartitionId, PlacementFault};

fn balanced() -> LayoutRecord {
    let zones = [zone(0, "a"), zone(1, "a"), zone(2, "b"), zone(3, "b"), zone(4, "c"), zone(5, "c")];
    planned(&first(6, 64, 3), &zones).expect("zones").1
}

/// The fault after the members at these positions of the first list that satisfies `is_meant`
/// changed places.
fn fault_after_swap(record: &LayoutRecord, first: usize, second: usize) -> PlacementFault {
    let mut record = record.clone();
    record.lists[..record.members.len()].swap(first, second);
    record.check().expect("a valid record");
    record.check_placement().expect_err("a broken constraint")
}

#[test]
fn copies_in_one_zone_are_refused() {
    let record = balanced();
    let zone_of = |slot: &NodeIndex| &record.member(*slot).expect("a member").zone;
    let list = record.preference_list(PartitionId(0));
    let second = (3..6).find(|&tail| zone_of(&list[tail]) != zone_of(&list[2])).expect("another zone");
    assert_eq!(
        fault_after_swap(&record, 2, second),
        PlacementFault::ZoneSpread { partition: PartitionId(0) }
    );
}

#[test]
fn a_zone_without_a_copy_is_refused_although_no_zone_has_too_many() {
    let zones = [zone(0, "a"), zone(1, "a"), zone(2, "b"), zone(3, "b"), zone(4, "c"), zone(5, "c")];
    let mut record = planned(&first(6, 64, 4), &zones).expect("zones").1;
    record.lists[..6].copy_from_slice(&[0, 1, 2, 3, 4, 5].map(NodeIndex));
    let fault = record.check_placement().expect_err("two, two and no copies");
    assert_eq!(fault, PlacementFault::ZoneSpread { partition: PartitionId(0) });
}

#[test]
fn a_member_with_too_much_or_too_little_is_refused() {
    let mut record = balanced();
    let zone_of = |slot: &NodeIndex| record.member(*slot).expect("a member").zone.clone();
    // Each member holds 32 of 64 partitions, so one more or less is no rounding.
    let list = record.preference_list(PartitionId(0));
    let second = (3..6).find(|&tail| zone_of(&list[tail]) == zone_of(&list[2])).expect("the same zone");
    let fault = fault_after_swap(&record, 2, second);
    assert!(
        matches!(fault, PlacementFault::MemberShare { partitions: 31 | 33, least: 32 | 31, .. }),
        "{fault}"
    );
    record.members[0].weight = 2;
    assert!(matches!(record.check_placement(), Err(PlacementFault::MemberShare { .. })));
}

/// The share of node 0 is 16 partitions. In fixed-point numbers it is a little less.
#[test]
fn a_whole_share_is_not_rounded_down() {
    let weights = [weight(0, 3), weight(1, 5), weight(2, 4)];
    let mut record = planned(&first(3, 64, 1), &weights).expect("weights").1;
    let list = record.lists.chunks_exact_mut(3).find(|list| list[0] == NodeIndex(0)).expect("it holds some");
    let other = list.iter().position(|slot| *slot == NodeIndex(2)).expect("a member");
    list.swap(0, other);
    let slot = NodeIndex(0);
    let expected = PlacementFault::MemberShare { slot, partitions: 15, least: 16, most: 16 };
    let of_zone = PlacementFault::ZoneShare { slot, partitions: 15, least: 16, most: 16 };
    let fault = record.check_placement().expect_err("it holds one partition less");
    assert!([expected, of_zone].contains(&fault), "{fault}");
}

#[test]
fn a_zone_with_too_much_is_refused() {
    let (_, mut record) =
        planned(&first(5, 64, 2), &[zone(0, "a"), zone(1, "a"), zone(2, "b")]).expect("zones");
    record.members[2].weight = 2;
    let fault = record.check_placement().expect_err("the shares of the zones differ");
    assert!(matches!(fault, PlacementFault::ZoneShare { .. }), "{fault}");
}

#[test]
fn an_unbalanced_first_position_is_refused() {
    let record = planned(&first(4, 64, 2), &[]).expect("no changes").1;
    // Each member is first 16 times.
    let fault = fault_after_swap(&record, 0, 1);
    assert!(matches!(fault, PlacementFault::Position { position: 0, partitions: 15 | 17, .. }), "{fault}");
}

#[test]
fn a_member_that_is_not_active_holds_nothing() {
    let (_, mut record) = planned(&first(4, 64, 2), &[add(4), weight(4, 2)]).expect("a new node");
    record.members[1].state = MemberState::Leaving;
    let fault = record.check_placement().expect_err("a leaving member with data");
    assert!(matches!(fault, PlacementFault::NotActive { slot: NodeIndex(1), .. }), "{fault}");
    record.members[2].state = MemberState::Leaving;
    record.members[3].state = MemberState::Dead;
    record.members[4].state = MemberState::Dead;
    assert_eq!(record.check_placement(), Err(PlacementFault::TooFewActive { active: 1, default_from: 2 }));
}
