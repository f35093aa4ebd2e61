//! Commands of operators on records: each returns a record that follows, or a refusal that says
//! why.

use cluster::{
    ClusterOrigin, CommandRefusal, FEATURE_LEVEL_NAMED, FEATURE_LEVEL_PLANS, JoiningNode, LayoutRecord,
    LayoutRecordError, MemberState, NODES_MAX, NodeIndex, NodeSet, PartitionId, PlacementChange,
    PlacementPlan, PlacementRefusal, RateLimit, RunningPlan,
};
use stdx::NodeTag;

fn url(node: usize) -> String {
    format!("http://n{node}")
}

/// A balanced record of the level of plans, with ids.
fn cluster(nodes: usize) -> LayoutRecord {
    let origin = ClusterOrigin {
        nodes: (0..nodes).map(url).collect(),
        partitions: 16,
        hash_version: 1,
        default_from: nodes.min(3) as u8,
        tag: NodeTag(7),
    };
    let mut record = LayoutRecord::first(origin).expect("a valid origin");
    record.lists = PlacementPlan::new(&record, &[]).expect("a plan").lists;
    record.feature_level = FEATURE_LEVEL_PLANS;
    for member in &mut record.members {
        member.node_id = Some(NodeTag(100 + u64::from(member.slot.0)));
    }
    record
}

fn joining(node: usize) -> JoiningNode {
    JoiningNode {
        id: NodeTag(1_000 + node as u64),
        url: url(node),
        zone: "z".to_owned(),
        weight: 2,
        feature_level_max: FEATURE_LEVEL_PLANS,
        member_url: "http://a:1".to_owned(),
    }
}

fn set(slots: &[u8]) -> NodeSet {
    slots.iter().copied().map(NodeIndex).collect()
}

fn planned(record: &LayoutRecord, changes: &[PlacementChange]) -> PlacementPlan {
    PlacementPlan::new(record, changes).expect("a possible change")
}

#[test]
fn a_node_joins_as_the_last_member_of_every_list() {
    let record = cluster(3);
    let joined = record.with_joined(joining(3)).expect("a new node");
    assert_eq!(joined.verify(&record), Ok(()));
    let member = joined.member(NodeIndex(3)).expect("it is a member");
    assert_eq!((member.state, member.weight, member.zone.as_str()), (MemberState::Joining, 2, "z"));
    assert_eq!(member.node_id, Some(NodeTag(1_003)));
    for partition in (0..16).map(PartitionId) {
        let list = record.preference_list(partition);
        assert_eq!(joined.preference_list(partition), [list, &[NodeIndex(3)]].concat());
    }
    assert_eq!(joined.changed, record.changed, "nothing moves");
}

#[test]
fn a_member_without_a_url_gets_the_one_at_which_the_first_joining_node_has_reached_it() {
    let mut alone = cluster(1);
    alone.members[0].url.clear();
    let reached = |member_url: String| JoiningNode { member_url, ..joining(1) };
    let is_member = CommandRefusal::IsMember { url: url(1) };
    assert_eq!(alone.with_joined(reached(url(1))), Err(is_member), "it has reached itself");
    let two = alone.with_joined(reached("http://first".to_owned())).expect("a new node");
    let urls = |record: &LayoutRecord| record.members.iter().map(|its| its.url.clone()).collect::<Vec<_>>();
    assert_eq!(urls(&two), ["http://first".to_owned(), url(1)]);
    let three = two.with_joined(JoiningNode { member_url: "http://other".to_owned(), ..joining(2) });
    assert_eq!(urls(&three.expect("a new node")), ["http://first".to_owned(), url(1), url(2)]);
}

#[test]
fn a_node_takes_the_least_free_slot() {
    let mut record = cluster(4);
    record.members[1].state = MemberState::Leaving;
    for list in record.lists.chunks_exact_mut(4) {
        let at = list.iter().position(|slot| *slot == NodeIndex(1)).expect("a member");
        list.swap(at, 3);
    }
    let parent = record.clone();
    let mut record = LayoutRecord {
        epoch: record.epoch.next().expect("a small epoch"),
        parent: record.hash(),
        voters: [0, 2, 3].map(NodeIndex).to_vec(),
        ..record
    };
    record.members.remove(1);
    record.lists.retain(|slot| *slot != NodeIndex(1));
    record.record_former_ids(&parent);
    assert_eq!(record.check(), Ok(()));
    let joined = record.with_joined(joining(9)).expect("a new node");
    assert_eq!(joined.members.iter().map(|member| member.slot.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(joined.member(NodeIndex(1)).map(|member| member.url.as_str()), Some("http://n9"));
    let former = JoiningNode { id: NodeTag(101), ..joining(9) };
    assert_eq!(record.with_joined(former), Err(CommandRefusal::FormerNode));
}

#[test]
fn a_node_that_cannot_join_is_told_why() {
    let record = cluster(3);
    let refused = |node: JoiningNode| record.with_joined(node).expect_err("a refusal");
    assert_eq!(refused(JoiningNode { url: String::new(), ..joining(3) }), CommandRefusal::NodeBounds);
    let long = JoiningNode { url: "u".repeat(cluster::URL_BYTES_MAX + 1), ..joining(3) };
    assert_eq!(refused(long), CommandRefusal::NodeBounds);
    assert_eq!(refused(JoiningNode { weight: 0, ..joining(3) }), CommandRefusal::NodeBounds);
    assert_eq!(refused(JoiningNode { id: NodeTag(0), ..joining(3) }), CommandRefusal::NodeBounds);
    assert_eq!(refused(JoiningNode { zone: "z".repeat(65), ..joining(3) }), CommandRefusal::NodeBounds);
    let (level, max) = (FEATURE_LEVEL_PLANS, FEATURE_LEVEL_NAMED);
    let earlier = JoiningNode { feature_level_max: max, ..joining(3) };
    assert_eq!(refused(earlier), CommandRefusal::NodeLevel { url: url(3), level, max });
    let is_member = |url: String| CommandRefusal::IsMember { url };
    assert_eq!(refused(JoiningNode { url: url(1), ..joining(3) }), is_member(url(1)));
    assert_eq!(refused(JoiningNode { id: NodeTag(101), ..joining(3) }), is_member(url(3)));
    assert_eq!(refused(JoiningNode { member_url: String::new(), ..joining(3) }), CommandRefusal::NodeBounds);
    assert_eq!(cluster(NODES_MAX).with_joined(joining(64)), Err(CommandRefusal::TooManyMembers));
}

#[test]
fn no_command_is_possible_before_records_have_plans() {
    let record = LayoutRecord { feature_level: FEATURE_LEVEL_NAMED, ..cluster(4) };
    let refused = Err(CommandRefusal::NoPlans { level: FEATURE_LEVEL_NAMED });
    for child in [
        record.with_joined(joining(4)),
        record.with_dead(set(&[1])),
        record.with_plan(&planned(&record, &[])),
        record.with_plan_paused(),
        record.with_plan_resumed(),
        record.with_plan_limited(None),
        record.with_plan_cancelled(),
    ] {
        assert_eq!(child, refused);
    }
}

#[test]
fn a_change_begins_with_its_target_and_the_states_of_its_members() {
    let record = cluster(4).with_joined(joining(4)).expect("a new node");
    let changes = [
        PlacementChange::Add { url: url(4) },
        PlacementChange::Remove { url: url(0) },
        PlacementChange::Weight { url: url(1), weight: 3 },
        PlacementChange::Zone { url: url(2), zone: "b".to_owned() },
    ];
    let plan = planned(&record, &changes);
    let begun = record.with_plan(&plan).expect("a change");
    assert_eq!(begun.verify(&record), Ok(()));
    let state = |slot| begun.member(NodeIndex(slot)).map(|member| member.state);
    assert_eq!(state(0), Some(MemberState::Leaving));
    assert_eq!(state(4), Some(MemberState::Joining), "it is active at the end");
    assert_eq!((begun.members[1].weight, begun.members[2].zone.as_str()), (3, "b"));
    let running = begun.plan.as_ref().expect("a plan runs");
    assert_eq!((running.began, running.is_paused, running.swaps.len()), (begun.epoch, false, 0));
    assert_eq!(running.target, plan.target(3));
    assert_eq!((&begun.lists, &begun.changed), (&record.lists, &record.changed));
    assert_eq!(LayoutRecord::decode(&begun.encode()), Ok(begun.clone()));
    assert_eq!(begun.with_plan(&plan), Err(CommandRefusal::PlanRuns));
    assert_eq!(PlacementPlan::new(&begun, &[]), Err(PlacementRefusal::PlanRuns));
}

#[test]
fn a_change_of_a_node_that_has_not_joined_or_of_other_members_is_refused() {
    let record = cluster(3);
    let add = [PlacementChange::Add { url: url(3) }];
    let plan = planned(&record, &add);
    assert_eq!(record.with_plan(&plan), Err(CommandRefusal::HasToJoin { url: url(3) }));
    let joined = record.with_joined(joining(3)).expect("a new node");
    let plan = planned(&joined, &add);
    assert_eq!(record.with_plan(&plan), Err(CommandRefusal::PlanOutdated));
    let mut replaced = joined.clone();
    replaced.members[1].node_id = Some(NodeTag(5));
    assert_eq!(replaced.with_plan(&plan), Err(CommandRefusal::PlanOutdated));
    let mut moved = joined.clone();
    moved.members[1].url = url(9);
    assert_eq!(moved.with_plan(&plan), Err(CommandRefusal::PlanOutdated));
    let died = joined.with_dead(set(&[1])).expect("a death");
    assert_eq!(died.with_plan(&plan), Err(CommandRefusal::PlanOutdated));
    assert!(joined.with_plan(&plan).is_ok());
}

/// A plan is data from another thread, or of an earlier record. It never makes a broken record.
#[test]
fn a_plan_that_contradicts_itself_is_refused() {
    let record = cluster(4);
    let plan = planned(&record, &[PlacementChange::Remove { url: url(1) }]);
    let mut both = plan.clone();
    both.members.push(record.members[1].clone());
    both.lists = plan.lists.chunks_exact(3).flat_map(|list| [list, &[NodeIndex(1)]].concat()).collect();
    let mut neither = plan.clone();
    neither.removed = NodeSet::EMPTY;
    let mut short = plan.clone();
    short.lists.truncate(short.lists.len() - plan.members.len());
    for broken in [both, neither, short] {
        assert_eq!(record.with_plan(&broken), Err(CommandRefusal::PlanOutdated));
    }
    assert!(record.with_plan(&plan).is_ok());
}

/// Its death is known: no operation is planned anew because of it.
#[test]
fn a_member_that_is_dead_already_does_not_die_again_with_the_change_that_removes_it() {
    let record = cluster(4).with_dead(set(&[1])).expect("a death");
    let begun =
        record.with_plan(&planned(&record, &[PlacementChange::Remove { url: url(1) }])).expect("a change");
    assert_eq!(begun.member(NodeIndex(1)).map(|member| member.state), Some(MemberState::Dead));
    assert_eq!(begun.changed, record.changed);
    let joined = record.with_joined(joining(4)).expect("a new node");
    let change = PlacementChange::Replace { old: url(1), new: url(4), is_dead: true };
    let begun = joined.with_plan(&planned(&joined, &[change])).expect("a change");
    assert_eq!(begun.changed, joined.changed);
}

#[test]
fn a_dead_member_is_replaced_by_one_command() {
    let record = cluster(3).with_joined(joining(3)).expect("a new node");
    let change = PlacementChange::Replace { old: url(1), new: url(3), is_dead: true };
    let begun = record.with_plan(&planned(&record, &[change])).expect("a change");
    assert_eq!(begun.member(NodeIndex(1)).map(|member| member.state), Some(MemberState::Dead));
    assert_eq!(begun.changed, vec![begun.epoch; 16], "no plan sends to it");
    assert_eq!(begun.verify(&record), Ok(()));
}

#[test]
fn a_member_is_declared_dead_once_and_never_the_last_one() {
    let record = cluster(3);
    let died = record.with_dead(set(&[1])).expect("a death");
    assert_eq!(died.verify(&record), Ok(()));
    assert_eq!(died.with_dead(set(&[1])), Err(CommandRefusal::IsDead { slot: NodeIndex(1) }));
    assert_eq!(record.with_dead(set(&[7])), Err(CommandRefusal::NoSuchMember { slot: NodeIndex(7) }));
    let all = record.with_dead(set(&[0, 1, 2]));
    assert_eq!(all, Err(CommandRefusal::Record(LayoutRecordError::NoMemberRemains)));
}

#[test]
fn a_plan_is_paused_resumed_and_cancelled() {
    let record = cluster(4);
    for refused in [record.with_plan_paused(), record.with_plan_resumed(), record.with_plan_cancelled()] {
        assert_eq!(refused, Err(CommandRefusal::NoPlan));
    }
    let remove = [PlacementChange::Remove { url: url(1) }];
    let begun = record.with_plan(&planned(&record, &remove)).expect("a change");
    assert_eq!(begun.with_plan_resumed(), Err(CommandRefusal::NotPaused));
    let paused = begun.with_plan_paused().expect("it runs");
    assert_eq!(paused.with_plan_paused(), Err(CommandRefusal::IsPaused));
    assert!(paused.plan.as_ref().is_some_and(|plan| plan.is_paused));
    assert_eq!(LayoutRecord::decode(&paused.encode()), Ok(paused.clone()));
    let resumed = paused.with_plan_resumed().expect("it is paused");
    assert_eq!(resumed.plan, begun.plan);
    for running in [begun, paused] {
        let cancelled = running.with_plan_cancelled().expect("it runs");
        assert_eq!(cancelled.verify(&running), Ok(()));
        let expected = RunningPlan::new(running.plan.as_ref().expect("it runs").began);
        assert_eq!(cancelled.plan, Some(expected));
        assert_eq!(cancelled.members[1].state, MemberState::Active, "it does not leave");
        assert_eq!(cancelled.with_plan_cancelled(), Err(CommandRefusal::IsCancelled));
        assert_eq!(cancelled.with_plan_paused(), Err(CommandRefusal::IsCancelled));
    }
}

#[test]
fn fewer_members_than_default_from_are_refused_with_the_numbers() {
    let record = cluster(3);
    let refused = PlacementPlan::new(&record, &[PlacementChange::Remove { url: url(1) }]);
    assert_eq!(refused, Err(PlacementRefusal::TooFewMembers { remaining: 2, default_from: 3 }));
    let mut plan = planned(&cluster(4), &[PlacementChange::Remove { url: url(1) }]);
    // A plan that was made by other rules.
    plan.lists = [0, 2, 0].map(NodeIndex).repeat(16);
    let refused = CommandRefusal::TooFewMembers { remaining: 2, default_from: 3 };
    assert_eq!(cluster(4).with_plan(&plan), Err(refused));
}

#[test]
fn the_rate_of_a_running_plan_is_limited_and_no_operation_is_planned_anew() {
    let record = cluster(4);
    let limit = RateLimit::new(1 << 20);
    assert_eq!(record.with_plan_limited(limit), Err(CommandRefusal::NoPlan));
    let plan = planned(&record, &[PlacementChange::Weight { url: url(1), weight: 3 }]);
    let begun = record.with_plan(&plan).expect("it begins");
    let limited = begun.with_plan_limited(limit).expect("it runs");
    assert_eq!(limited.verify(&begun), Ok(()));
    assert_eq!(limited.plan.as_ref().and_then(|plan| plan.rate_limit), limit);
    assert_eq!(limited.changed, begun.changed);
    let paused = limited.with_plan_paused().expect("it runs");
    assert_eq!(paused.plan.as_ref().and_then(|plan| plan.rate_limit), limit, "a pause keeps it");
    let unlimited = paused.with_plan_limited(None).expect("it runs");
    assert_eq!(unlimited.plan.as_ref().and_then(|plan| plan.rate_limit), None);
    let cancelled = begun.with_plan_cancelled().expect("it runs");
    assert_eq!(cancelled.with_plan_limited(limit), Err(CommandRefusal::IsCancelled));
}

#[test]
fn the_copies_left_are_those_of_the_plan_until_the_lists_are_as_its_target() {
    let record = cluster(4);
    assert_eq!(record.copies_left(), 0, "no plan runs");
    let plan = planned(&record, &[PlacementChange::Remove { url: url(1) }]);
    let begun = record.with_plan(&plan).expect("it begins");
    assert_eq!(begun.copies_left(), plan.preview(&record).moved());
    assert!(begun.copies_left() > 0);
    let mut moved = begun.clone();
    let target = plan.target(record.default_from);
    for (list, holders) in moved.lists.chunks_exact_mut(4).zip(target.chunks_exact(3)) {
        let rest: Vec<_> = list.iter().copied().filter(|slot| !holders.contains(slot)).collect();
        list.copy_from_slice(&[holders, &rest].concat());
    }
    assert_eq!(moved.copies_left(), 0);
    assert_eq!(begun.with_plan_cancelled().expect("it runs").copies_left(), 0, "nothing is to move");
}
