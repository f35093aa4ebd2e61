//! Crashes, disks and networks that fail.

use crate::cluster_of_voters::{Cluster, Disk, WITHIN};
use crate::world::{MILLISECOND, SECOND};
use cluster::{ChainResponse, ChainVote, Message, NodeIndex, NodeResponse, PeerAnswer, ProposalOutcome};
use std::collections::BTreeMap;
use stdx::Rng;

/// Promises and votes that a host has sent.
fn votes_sent_by(cluster: &Cluster, host: usize) -> usize {
    let is_vote = |message: &Message| {
        let Message::Answer { answer: PeerAnswer::Node(NodeResponse::Chain(response)), .. } = message else {
            return false;
        };
        matches!(response, ChainResponse::Promised { .. } | ChainResponse::Accepted { .. })
    };
    cluster.world.sent.iter().filter(|(from, _, message)| *from == host && is_vote(message)).count()
}

#[test]
fn a_vote_leaves_only_after_it_is_durable() {
    for mode in [Disk::Hangs, Disk::Fails, Disk::KeepsSilent] {
        let mut cluster = Cluster::started(3, 1);
        cluster.crash(2);
        cluster.disks[1].mode = mode;
        cluster.propose(0, "a").unwrap();
        cluster.run(3 * SECOND);
        assert_eq!(votes_sent_by(&cluster, 1), 0, "{mode:?}");
        assert_eq!(cluster.epochs(), [1; 3]);
        cluster.disks[1].mode = Disk::Works;
        if mode == Disk::KeepsSilent {
            cluster.crash(1);
            cluster.start(1);
        }
        cluster.run(WITHIN);
        assert!(votes_sent_by(&cluster, 1) > 0, "{mode:?}");
        assert_eq!(cluster.epochs()[0], 2, "{mode:?}");
    }
}

#[test]
fn a_vote_survives_a_restart_between_the_disk_and_the_answer() {
    let mut cluster = Cluster::started(3, 1);
    cluster.crash(2);
    let first = cluster.propose(0, "first").unwrap();
    let has_accepted = |cluster: &Cluster, host: usize| cluster.disks[host].state.acceptor.accepted.is_some();
    while !has_accepted(&cluster, 1) {
        if cluster.disks[1].state.acceptor.promised.is_some() && votes_sent_by(&cluster, 1) > 0 {
            cluster.disks[1].mode = Disk::KeepsSilent;
        }
        cluster.run(MILLISECOND);
    }
    // Both votes are durable. Nobody knows that the record is decided.
    cluster.run(5 * MILLISECOND);
    assert!(has_accepted(&cluster, 0));
    assert_eq!(cluster.epochs(), [1; 3]);
    (0..2).for_each(|host| cluster.crash(host));
    cluster.disks[1].mode = Disk::Works;
    (1..3).for_each(|host| cluster.start(host));
    cluster.run(6 * SECOND);
    cluster.propose(2, "second").unwrap();
    cluster.run(2 * SECOND);
    assert_eq!(cluster.outcomes(2), [ProposalOutcome::OtherDecided(first)]);
}

#[test]
fn a_process_uses_a_ballot_for_one_record() {
    let mut cluster = Cluster::started(6, 1);
    let proposer = 5;
    assert!(!cluster.adopted(proposer).voters.contains(&NodeIndex(proposer as u8)));
    cluster.propose(proposer, "first").unwrap();
    while cluster.proposed_by(proposer).is_empty() {
        cluster.run(MILLISECOND);
    }
    // No voter remembers the record, and the proposal ends.
    (0..5).for_each(|host| cluster.crash(host));
    cluster.run(WITHIN);
    assert_eq!(cluster.outcomes(proposer), [ProposalOutcome::TimedOut]);
    (0..5).for_each(|host| cluster.start(host));
    cluster.run(3 * SECOND);
    let second = cluster.propose(proposer, "second").unwrap();
    cluster.run(3 * SECOND);
    assert_eq!(cluster.adopted(0), second);
    let mut records = BTreeMap::new();
    for ChainVote { ballot, record } in cluster.proposed_by(proposer) {
        assert_eq!(*records.entry(ballot).or_insert_with(|| record.clone()), record, "{ballot:?}");
    }
    assert!(records.len() > 1);
}

#[test]
fn a_decided_record_is_stored_again_until_it_is_durable() {
    let mut cluster = Cluster::started(3, 1);
    cluster.disks[2].mode = Disk::Fails;
    cluster.propose(0, "a").unwrap();
    cluster.run(3 * SECOND);
    assert_eq!(cluster.epochs(), [2, 2, 1]);
    cluster.disks[2].mode = Disk::Works;
    cluster.run(SECOND);
    assert_eq!(cluster.epochs(), [2; 3]);
}

#[test]
fn a_proposal_that_ended_is_decided_or_replaced_by_the_next_one() {
    for seed in 0..20 {
        let mut cluster = Cluster::started(3, seed);
        let mut rng = Rng::new(seed);
        cluster.propose(0, "first").unwrap();
        cluster.run(MILLISECOND * rng.below(30) as u32);
        cluster.crash(0);
        cluster.run(SECOND);
        if cluster.epochs()[1] == 1 {
            cluster.propose(1, "second").unwrap();
            cluster.run(3 * SECOND);
        }
        cluster.start(0);
        cluster.run(3 * SECOND);
        assert_eq!(cluster.epochs(), [2; 3], "seed {seed}");
    }
}

/// Faults of all kinds while nodes propose; then none, and one proposal that everybody learns. The
/// cluster checks each adopted record.
#[test]
fn random_faults_decide_one_record_an_epoch_and_end_in_agreement() {
    let mut decided = 0;
    for seed in 0..40 {
        let hosts = 3 + (seed % 3) as usize;
        let mut cluster = Cluster::started(hosts, seed);
        let mut rng = Rng::new(seed);
        cluster.world.net.jitter = 10 * MILLISECOND;
        cluster.world.net.loss = 0.05;
        cluster.world.net.doubled = 0.05;
        for step in 0..60 {
            let host = rng.below(hosts as u64) as usize;
            match rng.below(10) {
                0 if cluster.is_running(host) => cluster.crash(host),
                0 | 1 if !cluster.is_running(host) => cluster.start(host),
                2 => cluster.world.cut_off(host, rng.below(hosts as u64) as usize),
                3 => cluster.world.heal(),
                4 => {
                    let modes = [Disk::Works, Disk::Works, Disk::Hangs, Disk::Fails];
                    cluster.disks[host].mode = modes[rng.below(4) as usize];
                }
                _ if cluster.is_running(host) => {
                    let _ = cluster.propose(host, &format!("{seed} {step}"));
                }
                _ => {}
            }
            cluster.run(MILLISECOND * rng.below(200) as u32);
        }
        cluster.world.heal();
        cluster.world.net.loss = 0.0;
        for host in 0..hosts {
            cluster.disks[host].mode = Disk::Works;
            if !cluster.is_running(host) {
                cluster.start(host);
            }
        }
        cluster.run(10 * SECOND);
        let before = cluster.epochs();
        assert_eq!(before, vec![before[0]; hosts], "seed {seed}: all have adopted the newest record");
        decided += before[0] - 1;
        cluster.propose(0, "last").unwrap();
        cluster.run(3 * SECOND);
        assert_eq!(cluster.epochs(), vec![before[0] + 1; hosts], "seed {seed}");
        assert_eq!((0..hosts).flat_map(|host| cluster.conflicts(host)).count(), 0);
    }
    assert!(decided > 100, "only {decided} records were decided under faults");
}

#[test]
fn slow_disks_delay_a_decision_and_do_not_prevent_it() {
    for latency in [200, 450, 1_000] {
        let mut cluster = Cluster::started(3, 1);
        cluster.disk_latency = latency * MILLISECOND;
        let record = cluster.propose_within(0, "a", 20 * SECOND).unwrap();
        cluster.run(20 * SECOND);
        assert_eq!(cluster.outcomes(0), [ProposalOutcome::Decided(record)], "{latency} ms");
    }
}
