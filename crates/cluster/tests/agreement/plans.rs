//! A cluster reaches the feature level of plans by itself, and carries out changes of its members.
//!
//! Data is not moved here: a gainer reports its copy once the loser has fenced the swap.

use crate::cluster_of_voters::{Cluster, WITHIN};
use crate::world::{MILLISECOND, SECOND};
use cluster::{
    AgreementEffect, CommandRefusal, FEATURE_LEVEL_NAMED, FEATURE_LEVEL_PLANS, JoiningNode, LayoutCommand,
    LayoutCommandOutcome, LayoutEpoch, LayoutRecord, MemberState, NodeIndex, PlacementChange, PlacementPlan,
    PlannedChange, SwapPhase, SyncState,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use stdx::NodeTag;

/// Nodes that carry out plans, with a record that is built from their list.
fn reconciling(hosts: usize, seed: u64) -> Cluster {
    let mut cluster = Cluster::without_ids(hosts, seed);
    cluster.reconciles = true;
    cluster.world.limits.feature_level_max = FEATURE_LEVEL_PLANS;
    cluster
}

/// The same, once they have reached the feature level of plans.
fn started(hosts: usize, seed: u64) -> Cluster {
    let mut cluster = reconciling(hosts, seed);
    cluster.start_all();
    cluster.run(3 * SECOND);
    assert_eq!(levels(&cluster), vec![FEATURE_LEVEL_PLANS; hosts]);
    cluster
}

/// The feature level of the record that each host holds, by its disk.
fn levels(cluster: &Cluster) -> Vec<u32> {
    cluster.disks.iter().map(|disk| disk.state.acceptor.decided.feature_level).collect()
}

fn url(host: usize) -> String {
    format!("http://node{host:02}:8080")
}

fn begin(cluster: &Cluster, host: usize, changes: &[PlacementChange]) -> LayoutCommand {
    let base = cluster.adopted(host);
    let plan = PlacementPlan::new(&base, changes).expect("a possible change");
    LayoutCommand::Begin(Box::new(PlannedChange { base, plan, rate_limit: None }))
}

/// Has a host carry out a command, which takes effect.
fn carry_out_command(cluster: &mut Cluster, host: usize, command: LayoutCommand) {
    cluster.command(host, 1, command, WITHIN).unwrap();
    cluster.run(SECOND);
    let outcomes = cluster.command_outcomes(host);
    assert!(matches!(outcomes[..], [.., (1, LayoutCommandOutcome::Done { .. })]), "{outcomes:?}");
}

/// The running hosts that the newest record has not removed.
fn members(cluster: &Cluster) -> Vec<usize> {
    let running: Vec<_> = (0..cluster.disks.len()).filter(|host| cluster.is_running(*host)).collect();
    let records = running.iter().map(|host| cluster.adopted(*host));
    let newest = records.max_by_key(|record| record.epoch).expect("a host runs");
    running.into_iter().filter(|host| !newest.has_removed(cluster.world.hosts[*host].tag)).collect()
}

/// Runs the cluster until the plan has ended. Each host follows its record at once.
fn carry_out_plan(cluster: &mut Cluster) {
    let mut followed = BTreeMap::new();
    for _ in 0..2_000 {
        for host in members(cluster) {
            let record = cluster.adopted(host);
            if followed.insert(host, record.epoch) != Some(record.epoch) {
                cluster.state_fenced(host, record.epoch);
            }
        }
        cluster.run(5 * MILLISECOND);
        let hosts = members(cluster);
        let newest = hosts.iter().map(|host| cluster.adopted(*host).epoch).max();
        let is_over = |host: &usize| {
            let record = cluster.adopted(*host);
            record.plan.is_none() && Some(record.epoch) == newest
        };
        if hosts.iter().all(is_over) {
            return;
        }
    }
    panic!("the plan goes on: {:?}", cluster.adopted(members(cluster)[0]).plan);
}

/// The phases of each swap, in the records that a host has adopted since `epoch`.
fn phases(
    cluster: &Cluster,
    host: usize,
    since: LayoutEpoch,
) -> BTreeMap<(NodeIndex, NodeIndex), Vec<SwapPhase>> {
    let mut phases: BTreeMap<_, Vec<SwapPhase>> = BTreeMap::new();
    let adopted = cluster.effects[host].iter().filter_map(|effect| match effect {
        AgreementEffect::Adopted(record) if record.epoch > since => Some(Arc::clone(record)),
        _ => None,
    });
    for record in adopted {
        for swap in record.swaps() {
            let of_pair = phases.entry(swap.pair()).or_default();
            if of_pair.last() != Some(&swap.phase) {
                of_pair.push(swap.phase);
            }
        }
    }
    phases
}

/// The holders of each partition, each as a set.
fn holders(record: &LayoutRecord) -> Vec<Vec<NodeIndex>> {
    let lists = record.lists.chunks_exact(record.members.len());
    let sorted = |list: &[NodeIndex]| {
        let mut holders = list[..usize::from(record.default_from)].to_vec();
        holders.sort_unstable();
        holders
    };
    lists.map(sorted).collect()
}

#[test]
fn a_cluster_raises_its_feature_level_once_after_its_ids() {
    for hosts in 1..=6 {
        let mut cluster = started(hosts, hosts as u64);
        assert_eq!(cluster.epochs(), vec![3; hosts]);
        cluster.run(10 * SECOND);
        assert_eq!(cluster.epochs(), vec![3; hosts], "nothing is left to change");
    }
}

#[test]
fn a_member_that_does_not_carry_out_plans_keeps_the_level_until_it_does() {
    let mut cluster = reconciling(4, 1);
    (0..3).for_each(|host| cluster.start(host));
    cluster.world.limits.feature_level_max = FEATURE_LEVEL_NAMED;
    cluster.start(3);
    cluster.run(10 * SECOND);
    assert_eq!(levels(&cluster), [FEATURE_LEVEL_NAMED; 4]);
    let plan = begin(&cluster, 0, &[PlacementChange::Weight { url: url(1), weight: 3 }]);
    cluster.command(0, 1, plan, WITHIN).unwrap();
    let refused = LayoutCommandOutcome::Refused(CommandRefusal::NoPlans { level: FEATURE_LEVEL_NAMED });
    assert_eq!(cluster.command_outcomes(0), [(1, refused)]);
    cluster.crash(3);
    cluster.run(5 * SECOND);
    assert_eq!(levels(&cluster), [FEATURE_LEVEL_NAMED; 4], "it may come back as it was");
    cluster.world.limits.feature_level_max = FEATURE_LEVEL_PLANS;
    cluster.start(3);
    cluster.run(5 * SECOND);
    assert_eq!(levels(&cluster), [FEATURE_LEVEL_PLANS; 4]);
}

/// A directory that is put back to an earlier release.
#[test]
fn a_node_that_does_not_carry_out_its_record_neither_votes_nor_proposes() {
    let mut cluster = started(3, 1);
    (1..3).for_each(|host| cluster.crash(host));
    cluster.world.limits.feature_level_max = FEATURE_LEVEL_NAMED;
    (1..3).for_each(|host| cluster.start(host));
    cluster.run(3 * SECOND);
    cluster.world.sent.clear();
    cluster.state_url(1, 1, "http://moved:1").expect("another address");
    cluster.state_url(0, 1, "http://moved:1").expect("another address");
    cluster.run(10 * SECOND);
    assert_eq!(cluster.epochs(), [3; 3], "two of three do not vote");
    assert_eq!(cluster.proposed_by(1), []);
}

#[test]
fn a_change_of_the_weights_goes_through_the_phases_of_its_swaps() {
    for (hosts, seed) in [(4, 1), (5, 2), (6, 3)] {
        let mut cluster = started(hosts, seed);
        let before = cluster.adopted(0);
        let change = PlacementChange::Weight { url: url(1), weight: 3 };
        let LayoutCommand::Begin(planned) = begin(&cluster, 0, &[change]) else { unreachable!("it begins") };
        let target = planned.plan.target(before.default_from);
        carry_out_command(&mut cluster, 0, LayoutCommand::Begin(planned));
        carry_out_plan(&mut cluster);
        let phases = phases(&cluster, 0, before.epoch);
        assert!(!phases.is_empty(), "{hosts} hosts: something moves");
        for (pair, seen) in phases {
            let expected = [SwapPhase::Prepare, SwapPhase::ReadNew, SwapPhase::New];
            assert!(seen.chunks(3).all(|swap| swap == expected), "{hosts} hosts, {pair:?}: {seen:?}");
        }
        let after = cluster.adopted(0);
        let sorted = |list: &[NodeIndex]| {
            let mut list = list.to_vec();
            list.sort_unstable();
            list
        };
        let wanted: Vec<_> = target.chunks_exact(before.default_from.into()).map(sorted).collect();
        assert_eq!(holders(&after), wanted, "{hosts} hosts");
        assert_eq!(after.members[1].weight, 3);
        assert_eq!(cluster.epochs(), vec![after.epoch.0; hosts]);
    }
}

/// A node that asks to join, with the id and the address of this host.
fn joining(host: usize) -> JoiningNode {
    JoiningNode {
        id: NodeTag(host as u64 + 1),
        url: url(host),
        zone: String::new(),
        weight: 1,
        feature_level_max: FEATURE_LEVEL_PLANS,
        member_url: url(0),
    }
}

/// The last leaving voter is replaced by a member that is active only once the plan has ended.
#[test]
fn a_plan_that_replaces_all_members_ends() {
    let mut cluster = started(2, 1);
    for host in 2..4 {
        carry_out_command(&mut cluster, 0, LayoutCommand::Join(joining(host)));
        let record = cluster.adopted(0);
        (0..host).for_each(|host| cluster.state_fenced(host, record.epoch));
        cluster.add_host(&record);
        cluster.start(host);
        cluster.run(3 * SECOND);
    }
    let replace = |old, new| PlacementChange::Replace { old: url(old), new: url(new), is_dead: false };
    let plan = begin(&cluster, 0, &[replace(0, 2), replace(1, 3)]);
    carry_out_command(&mut cluster, 0, plan);
    carry_out_plan(&mut cluster);
    let after = cluster.adopted(3);
    let slots: Vec<_> = after.members.iter().map(|member| (member.slot.0, member.state)).collect();
    assert_eq!(slots, [2, 3].map(|slot| (slot, MemberState::Active)));
}

/// Otherwise it could not take the place of that member, since it gains nothing before it is
/// settled.
#[test]
fn a_node_that_joins_does_not_wait_for_a_dead_member() {
    let mut cluster = started(3, 1);
    cluster.crash(1);
    cluster.run(3 * SECOND);
    carry_out_command(&mut cluster, 0, LayoutCommand::DeclareDead(vec![NodeTag(2)]));
    carry_out_command(&mut cluster, 0, LayoutCommand::Join(joining(3)));
    let record = cluster.adopted(0);
    [0, 2].into_iter().for_each(|host| cluster.state_fenced(host, record.epoch));
    cluster.add_host(&record);
    cluster.start(3);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.node(3).status().sync_state, SyncState::Settled);
}

#[test]
fn a_node_that_has_joined_takes_the_place_of_another_one_which_is_removed() {
    let mut cluster = started(3, 1);
    carry_out_command(&mut cluster, 0, LayoutCommand::Join(joining(3)));
    let record = cluster.adopted(0);
    assert_eq!(record.members[3].state, MemberState::Joining);
    (0..3).for_each(|host| cluster.state_fenced(host, record.epoch));
    cluster.add_host(&record);
    cluster.start(3);
    cluster.run(3 * SECOND);
    let change = PlacementChange::Replace { old: url(1), new: url(3), is_dead: false };
    // The member that does not vote begins the change.
    let plan = begin(&cluster, 3, &[change]);
    carry_out_command(&mut cluster, 3, plan);
    carry_out_plan(&mut cluster);
    cluster.run(3 * SECOND);
    let after = cluster.adopted(3);
    let slots: Vec<_> = after.members.iter().map(|member| (member.slot.0, member.state)).collect();
    assert_eq!(slots, [0, 2, 3].map(|slot| (slot, MemberState::Active)));
    assert!(after.has_removed(NodeTag(2)) && after.former_ids == [NodeTag(2)]);
    assert!(after.voters.contains(&NodeIndex(3)), "{:?}", after.voters);
}

/// A write that needs both sets of replicas would wait for the gainer.
#[test]
fn the_swaps_of_a_gainer_that_is_out_of_reach_end_after_half_a_minute_and_begin_again_with_it() {
    let mut cluster = started(4, 1);
    let change = PlacementChange::Weight { url: url(1), weight: 3 };
    let plan = begin(&cluster, 0, &[change]);
    carry_out_command(&mut cluster, 0, plan);
    let gainer = NodeIndex(1);
    let gains = |cluster: &Cluster| {
        let gains = cluster.adopted(0).swaps().iter().any(|swap| swap.gainer == gainer);
        assert!(cluster.adopted(0).plan.is_some());
        gains
    };
    cluster.run(3 * SECOND);
    assert!(gains(&cluster), "no loser has fenced, so no copy has begun");
    cluster.crash(1);
    cluster.run(28 * SECOND);
    assert!(gains(&cluster), "it may be back in a moment");
    cluster.run(6 * SECOND);
    assert!(!gains(&cluster));
    cluster.run(60 * SECOND);
    assert!(!gains(&cluster), "a node that is not heard gains nothing");
    cluster.start(1);
    cluster.run(10 * SECOND);
    assert!(gains(&cluster), "its swaps begin again");
    carry_out_plan(&mut cluster);
    assert_eq!(cluster.adopted(0).members[1].weight, 3);
}
