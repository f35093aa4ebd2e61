//! The first record that names ids needs every member and the vote of every voter, also of those
//! whose directories were emptied before.

use crate::cluster_of_voters::{Cluster, Disk, WITHIN};
use crate::world::{MILLISECOND, SECOND};
use cluster::{LayoutEpoch, ProposalOutcome, ProposeError, SyncState, VoteHistory};
use std::collections::BTreeSet;
use stdx::Rng;

/// Time in which nodes that are linked again are rebuilt and named.
const NAMED_WITHIN: u32 = 60;

fn reconciling(hosts: usize, seed: u64) -> Cluster {
    let mut cluster = Cluster::without_ids(hosts, seed);
    cluster.reconciles = true;
    cluster
}

/// Asserts that each host adopts a record which names the present ids of all hosts.
fn assert_all_are_named(cluster: &mut Cluster, context: &str) {
    let is_named = |cluster: &Cluster, host: usize| {
        let adopted = cluster.adopted(host);
        let named = adopted.members.iter().map(|member| member.node_id);
        named.eq(cluster.world.hosts.iter().map(|host| Some(host.tag)))
    };
    let hosts = cluster.disks.len();
    for _ in 0..NAMED_WITHIN {
        if (0..hosts).all(|host| is_named(cluster, host)) {
            return;
        }
        cluster.run(SECOND);
    }
    let history = |host: usize| (cluster.world.sync_state(host), cluster.disks[host].state.history);
    let states: Vec<_> = (0..hosts).map(history).collect();
    panic!("{context}: epochs {:?}, {states:?}", cluster.epochs());
}

#[test]
fn the_ids_are_proposed_once_every_member_was_heard_by_a_voter() {
    let mut cluster = Cluster::without_ids(4, 1);
    (0..3).for_each(|host| cluster.start(host));
    cluster.run(8 * SECOND);
    assert_eq!(cluster.propose(0, "a"), Err(ProposeError::IdsNotNamed), "the last one holds another record");
    cluster.start(3);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.propose(3, "a"), Err(ProposeError::IdsNotNamed), "it is no voter");
    let record = cluster.propose(0, "a").unwrap();
    cluster.run(SECOND);
    assert_eq!(cluster.outcomes(0), [ProposalOutcome::Decided(record)]);
    assert_eq!(cluster.epochs(), [2; 4]);
}

#[test]
fn the_first_ids_need_the_vote_of_every_voter() {
    let mut cluster = Cluster::without_ids(3, 1);
    cluster.start_all();
    cluster.disks[2].mode = Disk::Hangs;
    let record = cluster.propose(0, "a").unwrap();
    cluster.run(WITHIN + SECOND);
    assert_eq!(cluster.outcomes(0), [ProposalOutcome::TimedOut]);
    assert_eq!(cluster.epochs(), [1; 3], "two of three are a majority, and no more");
    cluster.disks[2].mode = Disk::Works;
    cluster.run(SECOND);
    cluster.propose(1, "b").unwrap();
    cluster.run(SECOND);
    assert_eq!(cluster.epochs(), [2; 3]);
    assert!([&record.members[0].zone, "b"].contains(&&*cluster.adopted(0).members[0].zone));
}

#[test]
fn a_host_votes_on_the_first_ids_once_all_members_have_admitted_it() {
    let mut cluster = Cluster::without_ids(3, 1);
    cluster.start_all();
    cluster.crash(1);
    cluster.world.cut_off(1, 2);
    cluster.start(1);
    cluster.run(8 * SECOND);
    assert_eq!(cluster.world.sync_state(1), SyncState::Settled);
    cluster.propose(0, "a").unwrap();
    cluster.run(WITHIN + SECOND);
    assert_eq!(cluster.disks[1].state.acceptor.promised, None, "host 2 may hear its predecessor");
    assert_eq!(cluster.epochs(), [1; 3]);
    cluster.world.heal();
    cluster.run(3 * SECOND);
    cluster.propose(0, "b").unwrap();
    cluster.run(SECOND);
    assert_eq!(cluster.epochs(), [2; 3]);
}

#[test]
fn a_promise_does_not_count_after_its_host_has_begun_anew() {
    let mut cluster = Cluster::without_ids(3, 1);
    cluster.start_all();
    cluster.disks[2].mode = Disk::Hangs;
    cluster.propose(0, "a").unwrap();
    let promised = |cluster: &Cluster| cluster.disks[1].state.acceptor.promised;
    while promised(&cluster).is_none() {
        cluster.run(MILLISECOND);
    }
    let ballot = promised(&cluster);
    cluster.run(10 * MILLISECOND);
    cluster.crash(1);
    cluster.start(1);
    cluster.run(100 * MILLISECOND);
    cluster.disks[2].mode = Disk::Works;
    cluster.run(100 * MILLISECOND);
    let proposed = cluster.proposed_by(0);
    assert!(!proposed.is_empty(), "all have promised a ballot");
    assert!(proposed.iter().all(|vote| Some(vote.ballot) != ballot), "{proposed:?}");
    cluster.run(2 * SECOND);
    assert_eq!(cluster.epochs(), [2; 3]);
}

/// All but the last host are up, and some of them lose their disks. Then the last one starts.
#[test]
fn hosts_that_were_emptied_before_all_were_up_once_are_named() {
    for hosts in 2..=5 {
        for emptied in 1..hosts {
            let mut cluster = reconciling(hosts, 1);
            (0..hosts - 1).for_each(|host| cluster.start(host));
            cluster.run(8 * SECOND);
            for host in 0..emptied {
                cluster.lose_disk(host);
                cluster.start(host);
                cluster.run(3 * SECOND);
            }
            assert_eq!(cluster.epochs(), vec![1; hosts]);
            cluster.start(hosts - 1);
            assert_all_are_named(&mut cluster, &format!("{hosts} hosts, {emptied} emptied"));
        }
    }
}

/// A node without the agreement keeps the cluster in epoch 1 while the others lose their disks, one
/// after the other, and are rebuilt.
#[test]
fn hosts_that_were_rebuilt_in_epoch_1_are_named() {
    for hosts in 2..=5 {
        let mut cluster = reconciling(hosts, 1);
        let last = hosts - 1;
        cluster.joins[last] = false;
        cluster.start_all();
        for host in 0..last {
            cluster.lose_disk(host);
            cluster.start(host);
            cluster.run(20 * SECOND);
            assert_eq!(cluster.world.sync_state(host), SyncState::Settled, "{hosts} hosts: it was rebuilt");
            assert_eq!(cluster.disks[host].state.history, VoteHistory::OfThisId);
        }
        assert_eq!(cluster.epochs(), vec![1; hosts]);
        cluster.crash(last);
        cluster.joins[last] = true;
        cluster.start(last);
        assert_all_are_named(&mut cluster, &format!("{hosts} hosts"));
    }
}

#[test]
fn a_host_that_is_an_older_state_of_itself_is_named() {
    let mut cluster = reconciling(3, 1);
    cluster.joins[2] = false;
    cluster.start_all();
    cluster.roll_back(1);
    assert_eq!(cluster.disks[1].state.history, VoteHistory::Incomplete);
    assert_eq!(cluster.epochs(), [1; 3]);
    cluster.crash(2);
    cluster.joins[2] = true;
    cluster.start(2);
    assert_all_are_named(&mut cluster, "an older state");
}

/// Disks are lost, messages are lost and delayed, and nodes restart while the ids are proposed. The
/// cluster checks that no two nodes adopt different records.
#[test]
fn disks_that_are_lost_while_the_ids_are_proposed_cause_no_second_record() {
    let (mut lost_at, mut decided_late) = (BTreeSet::new(), 0);
    for seed in 0..60 {
        let hosts = 2 + (seed % 3) as usize;
        let mut cluster = reconciling(hosts, seed);
        let mut rng = Rng::new(seed);
        cluster.world.net.jitter = 10 * MILLISECOND;
        cluster.world.net.loss = 0.05;
        cluster.world.net.doubled = 0.05;
        (0..hosts).for_each(|host| cluster.start(host));
        for _ in 0..6 {
            let is_named = |cluster: &Cluster| cluster.epochs().iter().any(|epoch| *epoch > 1);
            for _ in 0..rng.below(4_000) {
                cluster.run(MILLISECOND);
                // The moment at which a vote is on its way.
                let voted = cluster.disks.iter().any(|disk| disk.state.acceptor.accepted.is_some());
                if voted && rng.chance(0.1) || is_named(&cluster) && rng.chance(0.01) {
                    break;
                }
            }
            let host = rng.below(hosts as u64) as usize;
            lost_at.insert(cluster.disks[host].state.acceptor.accepted.is_some());
            cluster.lose_disk(host);
            cluster.run(MILLISECOND * rng.below(500) as u32);
            cluster.start(host);
        }
        decided_late += u64::from(cluster.epochs().contains(&1));
        cluster.world.net.loss = 0.0;
        cluster.run(30 * SECOND);
        let newest = cluster.epochs().into_iter().max().unwrap_or_default();
        assert!(newest >= 2, "seed {seed}: {:?}", cluster.epochs());
        assert_eq!(cluster.adopted(0).epoch, LayoutEpoch(newest), "seed {seed}");
    }
    assert_eq!(lost_at.len(), 2, "a disk was lost with a vote on it");
    assert!(decided_late > 10, "{decided_late} runs lost disks before a record was decided");
}
