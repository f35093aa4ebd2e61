//! Each request that is not possible is refused with a sentence that says what to do.

use crate::cluster_state::{add, first, planned, remove, replace, url, weight, zone};
use cluster::{
    ClusterOrigin, FEATURE_LEVEL_PLANS, LayoutEpoch, LayoutRecord, MemberState, PlacementChange, RunningPlan,
};
use stdx::NodeTag;

fn refusal(record: &LayoutRecord, changes: &[PlacementChange]) -> String {
    planned(record, changes).expect_err("a refusal").to_string()
}

#[test]
fn a_removal_that_leaves_too_few_members_is_refused_with_the_numbers() {
    let record = first(4, 16, 3);
    assert_eq!(
        refusal(&record, &[remove(0), remove(1)]),
        "2 nodes would hold data, and each key has 3 replicas: add 1 more, or remove fewer"
    );
    planned(&record, &[remove(0), remove(1), add(4)]).expect("three nodes would hold data");
}

#[test]
fn a_node_has_one_part_in_a_request() {
    let record = first(4, 16, 3);
    let twice = |node: usize| {
        format!(
            "{} is named more than once: name a node in one change, and not at all if it is removed",
            url(node)
        )
    };
    assert_eq!(refusal(&record, &[remove(0), remove(0)]), twice(0));
    assert_eq!(refusal(&record, &[replace(0, 4), add(4)]), twice(4));
    assert_eq!(refusal(&record, &[replace(0, 0)]), twice(0));
    assert_eq!(refusal(&record, &[replace(0, 4), replace(0, 5)]), twice(0));
    assert_eq!(refusal(&record, &[remove(0), weight(0, 2)]), twice(0));
    assert_eq!(refusal(&record, &[weight(0, 2), weight(0, 3)]), twice(0));
    planned(&record, &[weight(0, 2), zone(0, "a")]).expect("two properties");
}

#[test]
fn only_members_are_changed_and_only_others_are_added() {
    let record = first(4, 16, 3);
    let unknown = "http://n9 is not a member: `veche layout show` lists the members";
    assert_eq!(refusal(&record, &[remove(9)]), unknown);
    assert_eq!(refusal(&record, &[weight(9, 1)]), unknown);
    assert_eq!(
        refusal(&record, &[add(1)]),
        "http://n1 is a member already, and is active: name a node that joins"
    );
}

#[test]
fn the_weight_and_the_zone_of_a_leaving_member_are_refused_with_their_own_sentence() {
    let mut record = first(4, 16, 3);
    record.members[1].state = MemberState::Leaving;
    let leaving = "http://n1 is leaving: its weight and its zone do not matter any more";
    assert_eq!(refusal(&record, &[weight(1, 2)]), leaving);
    assert_eq!(refusal(&record, &[zone(1, "a")]), leaving);
}

#[test]
fn no_change_is_planned_while_one_runs() {
    let mut record = first(4, 16, 3);
    (record.epoch, record.parent) = (LayoutEpoch(2), record.hash());
    record.feature_level = FEATURE_LEVEL_PLANS;
    record.plan = Some(RunningPlan::new(record.epoch));
    let running = "a change is running: wait for its end, or cancel it";
    assert_eq!(refusal(&record, &[]), running);
    assert_eq!(refusal(&record, &[add(4)]), running);
}

#[test]
fn no_node_is_added_to_a_member_without_a_url() {
    let origin = ClusterOrigin {
        nodes: Vec::new(),
        partitions: 16,
        hash_version: 1,
        default_from: 1,
        tag: NodeTag(7),
    };
    let record = LayoutRecord::first(origin).expect("a node without a list");
    let without = "the only member has no URL: it gets one once another node joins by `veche serve --join`";
    assert_eq!(refusal(&record, &[add(1)]), without);
}

#[test]
fn values_are_within_their_bounds() {
    let record = first(4, 16, 3);
    assert_eq!(
        refusal(&record, &[weight(0, 0)]),
        "the weight of http://n0 is 0: give at least 1, or remove the node"
    );
    assert_eq!(
        refusal(&record, &[zone(0, &"z".repeat(65))]),
        "the zone of http://n0 has 65 bytes: give at most 64"
    );
    let long = PlacementChange::Add { url: "u".repeat(321) };
    assert_eq!(refusal(&record, &[long]), "the URL of a node that joins has 321 bytes: give 1 to 320");
}

#[test]
fn the_members_of_before_and_after_have_slots() {
    let record = first(64, 16, 3);
    assert_eq!(
        refusal(&record, &[replace(0, 64)]),
        "the cluster would have 65 members during the change, and has at most 64: remove nodes first"
    );
}
