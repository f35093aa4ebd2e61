//! Commands on the layout: each ends with one outcome, and takes effect at most once.

use crate::cluster_of_voters::{Cluster, Disk, WITHIN, named};
use crate::world::{MILLISECOND, SECOND};
use cluster::{
    CommandObstacle, CommandRefusal, FEATURE_LEVEL_NAMED, FEATURE_LEVEL_PLANS, JoiningNode, LayoutCommand,
    LayoutCommandOutcome, LayoutEpoch, LayoutRecord, LayoutRecordError, MemberState, NodeIndex,
    PlacementChange, PlacementPlan, PlannedChange, ProposeError, RateLimit,
};
use std::sync::Arc;
use std::time::Duration;
use stdx::NodeTag;

/// A balanced record of the level of plans.
fn balanced(hosts: usize) -> LayoutRecord {
    let mut record = named(hosts);
    record.lists = PlacementPlan::new(&record, &[]).expect("a plan").lists;
    record.feature_level = FEATURE_LEVEL_PLANS;
    assert_eq!(record.check(), Ok(()));
    record
}

/// Nodes that carry out records with plans.
fn started(hosts: usize, seed: u64) -> Cluster {
    let mut cluster = Cluster::of(balanced(hosts), seed);
    cluster.world.limits.feature_level_max = FEATURE_LEVEL_PLANS;
    cluster.start_all();
    cluster
}

fn joining(id: u64) -> LayoutCommand {
    LayoutCommand::Join(JoiningNode {
        id: NodeTag(id),
        url: format!("http://new{id}:1"),
        zone: String::new(),
        weight: 1,
        feature_level_max: FEATURE_LEVEL_PLANS,
        member_url: "http://a:1".to_owned(),
    })
}

/// The command by which the changes begin, planned at a host.
fn begin(cluster: &Cluster, host: usize, changes: &[PlacementChange]) -> LayoutCommand {
    let base = cluster.adopted(host);
    let plan = PlacementPlan::new(&base, changes).expect("a possible change");
    LayoutCommand::Begin(Box::new(PlannedChange { base, plan, rate_limit: None }))
}

fn weight(host: usize, weight: u16) -> PlacementChange {
    PlacementChange::Weight { url: format!("http://node{host:02}:8080"), weight }
}

fn epoch_of(outcome: &LayoutCommandOutcome) -> Option<u64> {
    match outcome {
        LayoutCommandOutcome::Done { epoch, .. } => Some(epoch.0),
        _ => None,
    }
}

fn only(cluster: &Cluster, host: usize) -> LayoutCommandOutcome {
    let outcomes = cluster.command_outcomes(host);
    assert_eq!(outcomes.len(), 1, "{outcomes:?}");
    outcomes[0].1.clone()
}

#[test]
fn a_command_at_any_member_takes_effect_in_a_record_that_all_adopt() {
    for hosts in [1, 2, 3, 5, 6] {
        let mut cluster = started(hosts, 1);
        let host = hosts - 1;
        cluster.command(host, 7, joining(90), WITHIN).unwrap();
        cluster.run(SECOND);
        let (id, outcome) = cluster.command_outcomes(host).remove(0);
        assert_eq!((id, epoch_of(&outcome)), (7, Some(2)), "{hosts} hosts");
        for other in 0..hosts {
            let record = cluster.adopted(other);
            assert!(record.members.iter().any(|member| member.node_id == Some(NodeTag(90))));
        }
    }
}

#[test]
fn a_plan_is_begun_limited_paused_resumed_and_cancelled() {
    let mut cluster = started(4, 1);
    let limit = RateLimit::new(1 << 20);
    let commands =
        [LayoutCommand::Limit(limit), LayoutCommand::Pause, LayoutCommand::Resume, LayoutCommand::Cancel];
    let begun = begin(&cluster, 3, &[weight(1, 3)]);
    cluster.command(3, 0, begun, WITHIN).unwrap();
    for (id, command) in (1..).zip(commands) {
        cluster.command(3, id, command, WITHIN).unwrap();
    }
    cluster.run(2 * SECOND);
    let ended: Vec<_> = cluster.command_outcomes(3);
    let epochs: Vec<_> = ended.iter().map(|(id, outcome)| (*id, epoch_of(outcome))).collect();
    assert_eq!(epochs, [(0, Some(2)), (1, Some(3)), (2, Some(4)), (3, Some(5)), (4, Some(6))]);
    let plan = cluster.adopted(0).plan.clone().expect("its swaps are taken back by a driver");
    assert_eq!((plan.began, plan.rate_limit, plan.target.len()), (LayoutEpoch(2), limit, 0));
    cluster.command(2, 5, LayoutCommand::Cancel, WITHIN).unwrap();
    assert_eq!(only(&cluster, 2), LayoutCommandOutcome::Refused(CommandRefusal::IsCancelled));
}

#[test]
fn a_command_that_does_not_apply_is_refused_without_a_message() {
    let mut cluster = started(3, 1);
    let sent = cluster.chain_messages().count();
    cluster.command(1, 1, LayoutCommand::Pause, WITHIN).unwrap();
    assert_eq!(only(&cluster, 1), LayoutCommandOutcome::Refused(CommandRefusal::NoPlan));
    assert_eq!(cluster.chain_messages().count(), sent);
    let dead = LayoutCommand::DeclareDead(vec![NodeTag(77)]);
    cluster.command(2, 1, dead, WITHIN).unwrap();
    let refusal = CommandRefusal::NoSuchNode { id: NodeTag(77) };
    assert_eq!(only(&cluster, 2), LayoutCommandOutcome::Refused(refusal));
}

#[test]
fn every_command_is_refused_before_records_have_plans() {
    let record = LayoutRecord { feature_level: FEATURE_LEVEL_NAMED, ..balanced(3) };
    let mut cluster = Cluster::of(record, 1);
    cluster.start_all();
    let commands = [
        joining(90),
        LayoutCommand::DeclareDead(vec![NodeTag(1)]),
        begin(&cluster, 0, &[]),
        LayoutCommand::Pause,
        LayoutCommand::Resume,
        LayoutCommand::Cancel,
        LayoutCommand::Limit(None),
    ];
    let count = commands.len();
    (0..).zip(commands).for_each(|(id, command)| cluster.command(0, id, command, WITHIN).unwrap());
    let refused = LayoutCommandOutcome::Refused(CommandRefusal::NoPlans { level: FEATURE_LEVEL_NAMED });
    let outcomes = cluster.command_outcomes(0);
    assert_eq!(outcomes, (0..count as u64).map(|id| (id, refused.clone())).collect::<Vec<_>>());
    assert_eq!(cluster.epochs(), [1; 3]);
}

#[test]
fn members_that_do_not_come_back_are_named_by_their_ids() {
    let mut cluster = started(4, 1);
    cluster.crash(3);
    cluster.run(3 * SECOND);
    cluster.command(0, 1, LayoutCommand::DeclareDead(vec![NodeTag(4)]), WITHIN).unwrap();
    cluster.run(SECOND);
    assert_eq!(epoch_of(&only(&cluster, 0)), Some(2));
    let record = cluster.adopted(1);
    assert_eq!(record.member(NodeIndex(3)).map(|member| member.state), Some(MemberState::Dead));
}

#[test]
fn commands_of_several_operators_at_once_all_take_effect_once() {
    for seed in 0..20 {
        let mut cluster = started(5, seed);
        cluster.world.net.jitter = 5 * MILLISECOND;
        cluster.world.net.loss = 0.05;
        (0..5).for_each(|host| {
            cluster.command(host, 1, joining(90 + host as u64), Duration::from_secs(30)).unwrap();
        });
        cluster.run(31 * SECOND);
        let mut epochs: Vec<_> = (0..5).filter_map(|host| epoch_of(&only(&cluster, host))).collect();
        epochs.sort_unstable();
        assert_eq!(epochs, [2, 3, 4, 5, 6], "seed {seed}");
        assert_eq!(cluster.adopted(0).members.len(), 10, "seed {seed}");
    }
}

#[test]
fn of_two_plans_at_once_one_begins_and_the_other_is_refused() {
    for seed in 0..20 {
        let mut cluster = started(5, seed);
        let plans = [begin(&cluster, 0, &[weight(1, 3)]), begin(&cluster, 4, &[weight(2, 5)])];
        for (host, plan) in [0, 4].into_iter().zip(plans) {
            cluster.command(host, 1, plan, WITHIN).unwrap();
        }
        cluster.run(WITHIN + SECOND);
        let outcomes = [0, 4].map(|host| only(&cluster, host));
        let done = outcomes.iter().filter(|outcome| epoch_of(outcome) == Some(2)).count();
        let refused = LayoutCommandOutcome::Refused(CommandRefusal::PlanRuns);
        assert!(done == 1 && outcomes.contains(&refused), "seed {seed}: {outcomes:?}");
    }
}

#[test]
fn a_plan_is_refused_if_the_members_have_changed_since() {
    let mut cluster = started(4, 1);
    let plan = begin(&cluster, 0, &[weight(1, 3)]);
    let zone = cluster.child(1, |record| record.members[2].zone = "west".to_owned());
    cluster.propose_record(1, zone).unwrap();
    cluster.run(SECOND);
    cluster.command(0, 1, plan, WITHIN).unwrap();
    assert_eq!(only(&cluster, 0), LayoutCommandOutcome::Refused(CommandRefusal::PlanOutdated));
    let voters = cluster.child(1, |record| record.voters = vec![NodeIndex(0), NodeIndex(1)]);
    let plan = begin(&cluster, 2, &[weight(1, 3)]);
    cluster.propose_record(1, voters).unwrap();
    cluster.run(SECOND);
    cluster.command(2, 1, plan, WITHIN).unwrap();
    cluster.run(SECOND);
    assert_eq!(epoch_of(&only(&cluster, 2)), Some(4), "a change of the voters does not matter");
}

#[test]
fn a_command_at_a_node_that_lags_takes_effect_in_the_newest_record() {
    let mut cluster = started(5, 1);
    (0..4).for_each(|host| cluster.world.cut_off(host, 4));
    cluster.run(3 * SECOND);
    for zone in ["a", "b", "c"] {
        cluster.propose(0, zone).unwrap();
        cluster.run(SECOND);
    }
    assert_eq!(cluster.epochs(), [4, 4, 4, 4, 1]);
    cluster.command(4, 1, joining(90), Duration::from_secs(20)).unwrap();
    cluster.run(SECOND);
    assert_eq!(cluster.command_outcomes(4), [], "it waits until it hears the voters");
    cluster.world.heal();
    cluster.run(5 * SECOND);
    assert_eq!(epoch_of(&only(&cluster, 4)), Some(5));
}

#[test]
fn a_command_without_a_majority_has_no_effect_and_will_have_none() {
    let mut cluster = started(3, 1);
    (1..=2).for_each(|host| cluster.crash(host));
    cluster.run(3 * SECOND);
    cluster.command(0, 1, joining(90), WITHIN).unwrap();
    cluster.run(WITHIN + SECOND);
    let obstacle = CommandObstacle::NoMajority { able: 1, voters: 3 };
    assert_eq!(only(&cluster, 0), LayoutCommandOutcome::NotDecided(obstacle));
    (1..=2).for_each(|host| cluster.start(host));
    cluster.run(5 * SECOND);
    cluster.propose(1, "a").unwrap();
    cluster.run(SECOND);
    assert!(cluster.adopted(0).members.len() == 3, "no voter has accepted its record");
}

#[test]
fn a_command_whose_record_may_be_accepted_ends_as_unknown() {
    let mut cluster = started(3, 1);
    (1..3).for_each(|host| cluster.disks[host].mode = Disk::KeepsSilent);
    cluster.command(0, 1, joining(90), WITHIN).unwrap();
    cluster.run(WITHIN + SECOND);
    // Promises are durable, and their voters never answer: the record was not offered.
    assert_eq!(only(&cluster, 0), LayoutCommandOutcome::NotDecided(CommandObstacle::NoAnswer));
    let mut cluster = started(3, 1);
    cluster.command(0, 1, joining(90), WITHIN).unwrap();
    while cluster.proposed_by(0).is_empty() {
        cluster.run(MILLISECOND);
    }
    (1..3).for_each(|host| cluster.disks[host].mode = Disk::KeepsSilent);
    cluster.run(WITHIN + SECOND);
    assert_eq!(only(&cluster, 0), LayoutCommandOutcome::Unknown);
    (1..3).for_each(|host| {
        cluster.crash(host);
        cluster.disks[host].mode = Disk::Works;
        cluster.start(host);
    });
    cluster.run(5 * SECOND);
    cluster.propose(1, "a").unwrap();
    cluster.run(2 * SECOND);
    assert_eq!(cluster.adopted(0).members.len(), 4, "it has taken effect after all");
}

#[test]
fn a_command_whose_record_was_decided_while_it_was_overtaken_is_done() {
    // The proposer is cut off once its record is offered, and hears only of later records.
    for later in 1..=3 {
        let mut cluster = started(5, 1);
        cluster.command(4, 1, joining(90), Duration::from_secs(60)).unwrap();
        while cluster.proposed_by(4).is_empty() {
            cluster.run(MILLISECOND);
        }
        cluster.run(3 * MILLISECOND);
        (0..4).for_each(|host| cluster.world.cut_off(host, 4));
        cluster.run(3 * SECOND);
        for zone in 0..=later {
            cluster.propose(0, &zone.to_string()).unwrap();
            cluster.run(2 * SECOND);
        }
        assert_eq!(cluster.command_outcomes(4), []);
        cluster.world.heal();
        cluster.run(10 * SECOND);
        let joined = |host: usize| cluster.adopted(host).members.len() == 6;
        assert!(joined(0) && joined(4), "the record was accepted by all");
        assert!(epoch_of(&only(&cluster, 4)).is_some(), "{later} later records");
    }
}

#[test]
fn a_pause_whose_fate_stays_open_is_not_repeated() {
    let mut cluster = started(5, 1);
    let plan = begin(&cluster, 0, &[weight(1, 3)]);
    cluster.command(0, 1, plan, WITHIN).unwrap();
    cluster.run(SECOND);
    cluster.command(4, 1, LayoutCommand::Pause, Duration::from_secs(60)).unwrap();
    while cluster.proposed_by(4).is_empty() {
        cluster.run(MILLISECOND);
    }
    cluster.run(3 * MILLISECOND);
    (0..4).for_each(|host| cluster.world.cut_off(host, 4));
    cluster.run(3 * SECOND);
    cluster.propose(0, "a").unwrap();
    cluster.run(2 * SECOND);
    cluster.command(0, 2, LayoutCommand::Resume, WITHIN).unwrap();
    cluster.run(2 * SECOND);
    assert_eq!(cluster.adopted(0).plan.as_ref().map(|plan| plan.is_paused), Some(false));
    cluster.propose(0, "b").unwrap();
    cluster.run(2 * SECOND);
    cluster.world.heal();
    cluster.run(10 * SECOND);
    assert_eq!(only(&cluster, 4), LayoutCommandOutcome::Unknown);
    assert_eq!(cluster.adopted(4).plan.as_ref().map(|plan| plan.is_paused), Some(false));
}

#[test]
fn commands_are_bounded_and_end_in_time_while_another_one_is_decided() {
    let mut cluster = started(3, 1);
    (1..=2).for_each(|host| cluster.crash(host));
    cluster.run(3 * SECOND);
    for id in 0..16 {
        let within = if id == 3 { SECOND } else { WITHIN };
        cluster.command(0, id, joining(90 + id), within).unwrap();
    }
    assert_eq!(cluster.command(0, 99, joining(300), WITHIN), Err(ProposeError::Busy));
    cluster.run(2 * SECOND);
    let ended: Vec<_> = cluster.command_outcomes(0).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ended, [3]);
    cluster.run(WITHIN);
    assert_eq!(cluster.command_outcomes(0).len(), 16);
}

#[test]
fn a_command_waits_for_a_proposal_of_the_host_and_goes_before_reconciliation() {
    let mut cluster = started(3, 1);
    let proposed = cluster.propose(0, "a").unwrap();
    cluster.command(0, 1, joining(90), WITHIN).unwrap();
    cluster.run(SECOND);
    assert_eq!(cluster.adopted(1).parent, Arc::clone(&proposed).hash());
    assert_eq!(epoch_of(&only(&cluster, 0)), Some(3));
    cluster.command(0, 2, joining(91), WITHIN).unwrap();
    let zone = cluster.child(0, |record| record.members[0].zone = "b".to_owned());
    assert_eq!(cluster.propose_record(0, zone), Err(ProposeError::Busy), "a command is being decided");
}

#[test]
fn a_node_that_takes_no_part_in_the_agreement_takes_no_command() {
    let mut alone = Cluster::new(1, 1);
    alone.joins[0] = false;
    alone.start(0);
    assert_eq!(alone.command(0, 1, joining(90), WITHIN), Err(ProposeError::NoPart));
}

#[test]
fn a_change_is_refused_if_the_lists_or_the_default_of_replicas_differ_from_those_of_its_plan() {
    let cluster = started(4, 1);
    let LayoutCommand::Begin(change) = begin(&cluster, 0, &[weight(1, 3)]) else { unreachable!("it begins") };
    let record = cluster.adopted(0);
    let apply = |record: &LayoutRecord| LayoutCommand::Begin(change.clone()).apply(record);
    assert!(apply(&record).is_ok());
    let mut other = (*record).clone();
    other.lists.swap(0, 1);
    assert_eq!(apply(&other), Err(CommandRefusal::PlanOutdated));
    let other = LayoutRecord { default_from: 2, ..(*record).clone() };
    assert_eq!(apply(&other), Err(CommandRefusal::PlanOutdated));
    let mut other = (*record).clone();
    other.members[2].zone = "west".to_owned();
    assert_eq!(apply(&other), Err(CommandRefusal::PlanOutdated));
    let limited = PlannedChange { rate_limit: RateLimit::new(5), ..(*change).clone() };
    let begun = LayoutCommand::Begin(Box::new(limited)).apply(&record).expect("a change");
    assert_eq!(begun.plan.and_then(|plan| plan.rate_limit), RateLimit::new(5));
}

#[test]
fn plans_have_equal_names_only_if_they_are_equal() {
    let cluster = started(4, 1);
    let LayoutCommand::Begin(change) = begin(&cluster, 0, &[weight(1, 3)]) else { unreachable!("it begins") };
    type Change = fn(&mut PlannedChange);
    let changes: [Change; 10] = [
        |it| it.base = Arc::new(LayoutRecord { epoch: LayoutEpoch(9), ..(*it.base).clone() }),
        |it| it.rate_limit = RateLimit::new(5),
        |it| it.plan.members[1].weight = 4,
        |it| it.plan.members[1].zone = "west".to_owned(),
        |it| it.plan.members[1].url = "http://other:1".to_owned(),
        |it| it.plan.members[1].node_id = Some(NodeTag(77)),
        |it| it.plan.members[3].slot = NodeIndex(9),
        |it| it.plan.removed = [NodeIndex(1)].into_iter().collect(),
        |it| it.plan.dead = [NodeIndex(1)].into_iter().collect(),
        |it| it.plan.lists.swap(0, 1),
    ];
    let mut names = vec![change.name()];
    assert_eq!((change.name(), names[0].len()), (change.clone().name(), 16));
    for other in changes {
        let mut changed = (*change).clone();
        other(&mut changed);
        names.push(changed.name());
    }
    // Texts are not joined to each other.
    let mut joined = (*change).clone();
    (joined.plan.members[1].url, joined.plan.members[1].zone) = ("http://othe".to_owned(), "r:1".to_owned());
    names.push(joined.name());
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// Has host 4 offer the record of a command, which the voters accept or not. Then it is cut off
/// while three later records are decided, so that it does not learn the first of them, and returns.
/// `meanwhile`: what the others do before.
fn overtaken(
    mut cluster: Cluster,
    command: LayoutCommand,
    is_accepted: bool,
    meanwhile: impl FnOnce(&mut Cluster),
) -> LayoutCommandOutcome {
    cluster.command(4, 1, command, Duration::from_secs(60)).unwrap();
    while cluster.proposed_by(4).is_empty() {
        cluster.run(MILLISECOND);
    }
    if is_accepted {
        cluster.run(3 * MILLISECOND);
    }
    (0..4).for_each(|host| cluster.world.cut_off(host, 4));
    if !is_accepted {
        // No disk is so fast.
        (0..4).for_each(|host| {
            cluster.crash(host);
            cluster.start(host);
        });
    }
    cluster.run(3 * SECOND);
    meanwhile(&mut cluster);
    for zone in ["a", "b", "c"] {
        cluster.propose(0, zone).unwrap();
        cluster.run(2 * SECOND);
    }
    assert_eq!(cluster.command_outcomes(4), []);
    cluster.world.heal();
    cluster.run(10 * SECOND);
    only(&cluster, 4)
}

/// Five hosts with a plan that runs.
fn with_running_plan() -> Cluster {
    let mut cluster = started(5, 1);
    let plan = begin(&cluster, 0, &[weight(1, 3)]);
    cluster.command(0, 1, plan, WITHIN).unwrap();
    cluster.run(SECOND);
    cluster
}

#[test]
fn an_overtaken_command_is_done_if_a_later_record_has_its_effect_and_unknown_if_not() {
    let begun = || begin(&started(5, 1), 4, &[weight(1, 3)]);
    let on_members = [joining(90), LayoutCommand::DeclareDead(vec![NodeTag(4)]), begun()];
    let on_plan = [LayoutCommand::Pause, LayoutCommand::Cancel, LayoutCommand::Limit(RateLimit::new(9))];
    let cases = on_members.map(|command| (started(5, 1), command)).into_iter();
    for (cluster, command) in cases.chain(on_plan.map(|command| (with_running_plan(), command))) {
        let outcome = overtaken(cluster, command.clone(), true, |_| ());
        assert!(epoch_of(&outcome).is_some(), "{command:?}: {outcome:?}");
    }
    let on_members = [joining(90), LayoutCommand::DeclareDead(vec![NodeTag(4)]), begun()];
    let on_plan = [LayoutCommand::Pause, LayoutCommand::Cancel, LayoutCommand::Limit(RateLimit::new(9))];
    let cases = on_members.map(|command| (started(5, 1), command)).into_iter();
    for (cluster, command) in cases.chain(on_plan.map(|command| (with_running_plan(), command))) {
        let outcome = overtaken(cluster, command.clone(), false, |_| ());
        assert_eq!(outcome, LayoutCommandOutcome::Unknown, "{command:?}");
    }
}

#[test]
fn an_overtaken_plan_is_not_taken_for_another_one_of_the_same_epoch() {
    let (cluster, other) = (started(5, 1), begin(&started(5, 1), 0, &[weight(2, 5)]));
    let own = begin(&cluster, 4, &[weight(1, 3)]);
    let outcome = overtaken(cluster, own, false, |cluster| {
        cluster.command(0, 1, other, WITHIN).unwrap();
        cluster.run(SECOND);
        assert_eq!(epoch_of(&only(cluster, 0)), Some(2));
    });
    assert_eq!(outcome, LayoutCommandOutcome::Unknown);
}

#[test]
fn a_command_waits_until_the_newest_decided_record_is_durable_here() {
    let mut cluster = started(3, 1);
    cluster.disks[0].mode = Disk::Hangs;
    cluster.propose(1, "a").unwrap();
    cluster.run(SECOND);
    cluster.command(0, 1, joining(90), WITHIN).unwrap();
    cluster.run(WITHIN + SECOND);
    assert_eq!(only(&cluster, 0), LayoutCommandOutcome::NotDecided(CommandObstacle::Lags));
}

/// A voter that has forgotten its votes does not vote, so a majority with it is none.
#[test]
fn a_command_counts_only_voters_that_vote() {
    let mut cluster = started(3, 1);
    cluster.run(2 * SECOND);
    cluster.roll_back(2);
    cluster.crash(1);
    cluster.run(3 * SECOND);
    cluster.command(0, 1, joining(90), WITHIN).unwrap();
    cluster.run(WITHIN + SECOND);
    let obstacle = CommandObstacle::NoMajority { able: 1, voters: 3 };
    assert_eq!(only(&cluster, 0), LayoutCommandOutcome::NotDecided(obstacle));
}

/// The last reason is that of the command in front of it, too.
#[test]
fn a_command_that_waits_behind_another_one_has_its_obstacle() {
    let mut cluster = started(3, 1);
    (1..=2).for_each(|host| cluster.crash(host));
    cluster.run(3 * SECOND);
    for id in 0..2 {
        cluster.command(0, id, joining(90 + id), WITHIN).unwrap();
    }
    cluster.run(WITHIN + SECOND);
    let expected = LayoutCommandOutcome::NotDecided(CommandObstacle::NoMajority { able: 1, voters: 3 });
    assert_eq!(cluster.command_outcomes(0), [(0, expected.clone()), (1, expected)]);
}

#[test]
fn a_command_that_waits_is_refused_once_a_newer_record_rules_it_out() {
    let mut cluster = started(5, 1);
    (0..4).for_each(|host| cluster.world.cut_off(host, 4));
    cluster.run(3 * SECOND);
    cluster.command(4, 1, joining(90), Duration::from_secs(60)).unwrap();
    cluster.command(0, 1, joining(90), WITHIN).unwrap();
    cluster.run(2 * SECOND);
    assert_eq!(epoch_of(&only(&cluster, 0)), Some(2));
    assert_eq!(cluster.command_outcomes(4), []);
    cluster.world.heal();
    cluster.run(5 * SECOND);
    let url = "http://new90:1".to_owned();
    assert_eq!(only(&cluster, 4), LayoutCommandOutcome::Refused(CommandRefusal::IsMember { url }));
    assert_eq!(cluster.adopted(4).epoch, LayoutEpoch(2), "it has proposed nothing");
}

#[test]
fn a_command_on_a_record_that_the_node_does_not_carry_out_is_refused() {
    let mut cluster = Cluster::of(balanced(3), 1);
    cluster.start_all();
    cluster.command(0, 1, joining(90), WITHIN).unwrap();
    let refusal = LayoutRecordError::FeatureLevel { level: FEATURE_LEVEL_PLANS, max: FEATURE_LEVEL_NAMED };
    assert_eq!(only(&cluster, 0), LayoutCommandOutcome::Refused(refusal.into()));
}
