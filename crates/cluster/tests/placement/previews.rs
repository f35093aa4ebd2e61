//! What an operator reads before a change.

use crate::cluster_state::{add, first, planned, remove, replace, weight, zone};
use cluster::{LayoutRecord, MemberState, PlacementChange, PlacementPreview};
use std::fmt::Write as _;

fn preview(record: &LayoutRecord, changes: &[PlacementChange]) -> PlacementPreview {
    planned(record, changes).expect("a possible change").0.preview(record)
}

fn described(preview: &PlacementPreview) -> String {
    let mut text = String::new();
    for member in &preview.members {
        let removed = if member.is_removed { ", removed" } else { "" };
        writeln!(
            text,
            "{}: holds {} -> {}, first of {} -> {}, gains {}, loses {}{removed}",
            member.url,
            member.held_before,
            member.held_after,
            member.first_before,
            member.first_after,
            member.gained,
            member.lost,
        )
        .expect("a string");
    }
    for pair in &preview.moves {
        let dead = if pair.is_from_dead { " (dead)" } else { "" };
        writeln!(
            text,
            "{:?}{dead} -> {:?}: {} partitions, {:.2} %",
            pair.from,
            pair.to,
            pair.partitions,
            preview.fraction(pair.partitions) * 100.0
        )
        .expect("a string");
    }
    writeln!(
        text,
        "{} of {} copies move; {} swaps of order",
        preview.moved(),
        preview.copies,
        preview.order_swaps
    )
    .expect("a string");
    preview.notes.iter().for_each(|note| writeln!(text, "note: {note}").expect("a string"));
    text
}

/// Three nodes with three copies hold everything, each a third of the first positions.
fn three() -> LayoutRecord {
    planned(&first(3, 16, 3), &[]).expect("no changes").1
}

#[test]
fn a_fourth_node() {
    let expected = "\
http://n0: holds 16 -> 12, first of 6 -> 4, gains 0, loses 4
http://n1: holds 16 -> 12, first of 5 -> 4, gains 0, loses 4
http://n2: holds 16 -> 12, first of 5 -> 4, gains 0, loses 4
http://n3: holds 0 -> 12, first of 0 -> 4, gains 12, loses 0
n0 -> n3: 4 partitions, 8.33 %
n1 -> n3: 4 partitions, 8.33 %
n2 -> n3: 4 partitions, 8.33 %
12 of 48 copies move; 5 swaps of order
note: http://n3 is not a member yet: it has to join before the change
";
    assert_eq!(described(&preview(&three(), &[add(3)])), expected);
}

#[test]
fn a_fourth_node_in_an_occupied_zone() {
    let zones = [zone(0, "a"), zone(1, "b"), zone(2, "c")];
    let record = planned(&three(), &zones).expect("zones").1;
    let expected = "\
http://n0: holds 16 -> 8, first of 6 -> 2, gains 0, loses 8
http://n1: holds 16 -> 16, first of 5 -> 6, gains 0, loses 0
http://n2: holds 16 -> 16, first of 5 -> 5, gains 0, loses 0
http://n3: holds 0 -> 8, first of 0 -> 3, gains 8, loses 0
n0 -> n3: 8 partitions, 16.67 %
8 of 48 copies move; 1 swaps of order
note: the 2 nodes of zone a share 33.3 % of the data, and not 50.0 % as by weight: at most 1 of 3 copies may be in one zone
note: http://n3 is not a member yet: it has to join before the change
";
    assert_eq!(described(&preview(&record, &[add(3), zone(3, "a")])), expected);
}

#[test]
fn a_dead_node_is_replaced() {
    let mut record = planned(&three(), &[add(3)]).expect("a new node").1;
    record.members[1].state = MemberState::Dead;
    let expected = "\
http://n0: holds 12 -> 12, first of 4 -> 4, gains 0, loses 0
http://n1: holds 12 -> 0, first of 4 -> 0, gains 0, loses 12, removed
http://n2: holds 12 -> 12, first of 4 -> 4, gains 0, loses 0
http://n3: holds 12 -> 12, first of 4 -> 4, gains 0, loses 0
http://n4: holds 0 -> 12, first of 0 -> 4, gains 12, loses 0
n1 (dead) -> n4: 12 partitions, 25.00 %
12 of 48 copies move; 4 swaps of order
note: http://n4 is not a member yet: it has to join before the change
";
    assert_eq!(described(&preview(&record, &[replace(1, 4)])), expected);
}

#[test]
fn a_node_leaves() {
    let record = planned(&three(), &[add(3)]).expect("a new node").1;
    let expected = "\
http://n0: holds 12 -> 0, first of 4 -> 0, gains 0, loses 12, removed
http://n1: holds 12 -> 16, first of 4 -> 5, gains 4, loses 0
http://n2: holds 12 -> 16, first of 4 -> 5, gains 4, loses 0
http://n3: holds 12 -> 16, first of 4 -> 6, gains 4, loses 0
n0 -> n1: 4 partitions, 8.33 %
n0 -> n2: 4 partitions, 8.33 %
n0 -> n3: 4 partitions, 8.33 %
12 of 48 copies move; 2 swaps of order
";
    assert_eq!(described(&preview(&record, &[remove(0)])), expected);
}

#[test]
fn a_weight_beyond_a_copy_of_every_partition() {
    let expected = "\
http://n0: holds 16 -> 16, first of 6 -> 6, gains 0, loses 0
http://n1: holds 16 -> 16, first of 5 -> 5, gains 0, loses 0
http://n2: holds 16 -> 16, first of 5 -> 5, gains 0, loses 0
0 of 48 copies move; 0 swaps of order
note: http://n0 holds 33.3 % of the data, and not 60.0 % as by weight: it has a copy of every partition already
";
    assert_eq!(described(&preview(&three(), &[weight(0, 3)])), expected);
}

#[test]
fn two_zones_for_three_copies() {
    let record = planned(&first(4, 16, 3), &[]).expect("no changes").1;
    let zones = [zone(0, "a"), zone(1, "b"), zone(2, "b"), zone(3, "b")];
    let expected = "\
http://n0: holds 12 -> 16, first of 4 -> 5, gains 4, loses 0
http://n1: holds 12 -> 11, first of 4 -> 3, gains 0, loses 1
http://n2: holds 12 -> 11, first of 4 -> 4, gains 0, loses 1
http://n3: holds 12 -> 10, first of 4 -> 4, gains 0, loses 2
n1 -> n0: 1 partitions, 2.08 %
n2 -> n0: 1 partitions, 2.08 %
n3 -> n0: 2 partitions, 4.17 %
4 of 48 copies move; 1 swaps of order
note: there are 2 zones for 3 copies, so up to 2 copies of a key are in one zone
note: zone a holds 33.3 % of the data, and not 25.0 % as by weight: at least 1 of 3 copies are there, so that no zone has two more than another
note: the 3 nodes of zone b share 66.7 % of the data, and not 75.0 % as by weight: at most 2 of 3 copies may be in one zone
note: partitions are whole: nodes of equal weight hold 10 or 11
";
    assert_eq!(described(&preview(&record, &zones)), expected);
}

#[test]
fn data_that_only_dead_nodes_hold_is_lost() {
    let mut record = planned(&first(3, 16, 1), &[]).expect("no changes").1;
    record.members[2].state = MemberState::Dead;
    let expected = "\
http://n0: holds 6 -> 6, first of 6 -> 6, gains 0, loses 0
http://n1: holds 5 -> 5, first of 5 -> 5, gains 0, loses 0
http://n2: holds 5 -> 0, first of 5 -> 0, gains 0, loses 5, removed
http://n3: holds 0 -> 5, first of 0 -> 5, gains 5, loses 0
n2 (dead) -> n3: 5 partitions, 31.25 %
5 of 16 copies move; 11 swaps of order
note: nodes without a zone: 2; each counts as a zone of its own
note: partitions are whole: nodes of equal weight hold 5 or 6
note: http://n3 is not a member yet: it has to join before the change
note: all holders of 5 partitions are dead: their data is lost
";
    assert_eq!(described(&preview(&record, &[replace(2, 3), zone(0, "a")])), expected);
}
