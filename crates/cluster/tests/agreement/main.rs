//! Nodes agree on layout records: decided by majorities of voters that remember, learned by all.

#[path = "../world/mod.rs"]
mod world;

#[allow(dead_code, reason = "tests of the crate use the rest")]
mod cluster_of_voters;
mod commands;
mod conflicts;
mod copies;
mod faults;
mod first_ids;
mod lost_votes;
mod missed_swaps;
mod plans;
mod reconciliation;
mod recovered;
mod removed;
mod statements;

use cluster::{
    AgreementEffect, LayoutConflict, LayoutEpoch, Message, NodeIndex, NodeRequest, NodeResponse, PeerAnswer,
    PeerRequest, ProposalOutcome, ProposeError,
};
use cluster_of_voters::{Cluster, Disk, WITHIN};
use stdx::NodeTag;
use world::{MILLISECOND, SECOND};

#[test]
fn a_record_is_decided_and_every_node_adopts_it() {
    for hosts in 1..=6 {
        let mut cluster = Cluster::started(hosts, hosts as u64);
        let proposer = hosts - 1;
        let record = cluster.propose(proposer, "a").unwrap();
        cluster.run(SECOND);
        assert_eq!(cluster.outcomes(proposer), [ProposalOutcome::Decided(record.clone())]);
        for host in 0..hosts {
            assert_eq!(cluster.adopted(host), record, "{hosts} hosts, host {host}");
        }
    }
}

#[test]
fn records_are_decided_while_a_minority_of_the_voters_is_down() {
    let mut cluster = Cluster::started(5, 1);
    (1..=2).for_each(|host| cluster.crash(host));
    cluster.run(SECOND);
    for zone in ["a", "b"] {
        let record = cluster.propose(4, zone).unwrap();
        cluster.run(SECOND);
        assert_eq!(cluster.adopted(0), record);
    }
    (1..=2).for_each(|host| cluster.start(host));
    cluster.run(3 * SECOND);
    assert_eq!(cluster.epochs(), [3; 5]);
}

#[test]
fn nothing_is_decided_while_a_majority_of_the_voters_is_down() {
    let mut cluster = Cluster::started(3, 1);
    (1..=2).for_each(|host| cluster.crash(host));
    cluster.propose(0, "a").unwrap();
    cluster.run(WITHIN - MILLISECOND);
    assert_eq!(cluster.outcomes(0), []);
    cluster.run(SECOND);
    assert_eq!(cluster.outcomes(0), [ProposalOutcome::TimedOut]);
    assert_eq!(cluster.epochs()[0], 1);
    (1..=2).for_each(|host| cluster.start(host));
    cluster.run(3 * SECOND);
    let record = cluster.propose(0, "b").unwrap();
    cluster.run(SECOND);
    let decided = cluster.adopted(0);
    assert!(decided.epoch == record.epoch, "also after a proposal that has ended: {:?}", cluster.outcomes(0));
}

#[test]
fn duelling_proposers_decide_one_record() {
    for seed in 0..30 {
        let mut cluster = Cluster::started(5, seed);
        cluster.world.net.jitter = 5 * MILLISECOND;
        cluster.world.net.loss = 0.05;
        let proposed: Vec<_> = (0..5).map(|host| cluster.propose(host, &host.to_string()).unwrap()).collect();
        cluster.run(WITHIN + SECOND);
        let decided = cluster.adopted(0);
        assert_eq!(decided.epoch, LayoutEpoch(2), "seed {seed}");
        assert!(proposed.contains(&decided));
        for (host, own) in proposed.iter().enumerate() {
            let expected = match *own == decided {
                true => ProposalOutcome::Decided(decided.clone()),
                false => ProposalOutcome::OtherDecided(decided.clone()),
            };
            assert_eq!(cluster.outcomes(host), [expected], "seed {seed}, host {host}");
        }
    }
}

#[test]
fn a_node_that_lags_fetches_the_newest_record() {
    let mut cluster = Cluster::started(4, 1);
    (0..3).for_each(|host| cluster.world.cut_off(host, 3));
    cluster.run(3 * SECOND);
    for zone in ["a", "b", "c"] {
        cluster.propose(0, zone).unwrap();
        cluster.run(SECOND);
    }
    assert_eq!(cluster.epochs(), [4, 4, 4, 1]);
    cluster.world.heal();
    cluster.run(3 * SECOND);
    assert_eq!(cluster.epochs(), [4; 4]);
    assert_eq!(cluster.adopted_by(3), [LayoutEpoch(4)], "records between are not needed");
}

#[test]
fn a_voter_that_lags_learns_the_parent_and_votes() {
    let mut cluster = Cluster::started(3, 1);
    cluster.crash(2);
    cluster.propose(0, "a").unwrap();
    cluster.run(SECOND);
    cluster.crash(1);
    cluster.start(2);
    let record = loop {
        if let Ok(record) = cluster.propose(0, "b") {
            break record;
        }
        cluster.run(MILLISECOND);
    };
    cluster.run(2 * SECOND);
    assert_eq!([cluster.adopted(0), cluster.adopted(2)], [record.clone(), record]);
}

#[test]
fn the_new_epoch_is_reported_only_once_it_is_durable() {
    let mut cluster = Cluster::started(3, 1);
    cluster.disks[2].mode = Disk::Hangs;
    cluster.propose(0, "a").unwrap();
    cluster.run(2 * SECOND);
    assert_eq!(cluster.epochs(), [2, 2, 1]);
    assert_eq!(cluster.stamps_sent_by(2), [1]);
    cluster.disks[2].mode = Disk::Works;
    cluster.run(SECOND);
    assert_eq!(cluster.epochs(), [2, 2, 2]);
    assert_eq!(cluster.stamps_sent_by(2), [1, 2]);
}

#[test]
fn a_peer_of_an_older_release_is_sent_no_message_that_it_lacks() {
    let mut cluster = Cluster::new(3, 1);
    cluster.joins[2] = false;
    cluster.start_all();
    let record = cluster.propose(0, "a").unwrap();
    cluster.run(SECOND);
    assert_eq!([cluster.adopted(0), cluster.adopted(1)], [record.clone(), record]);
    assert!(cluster.chain_messages().any(|(from, to)| (from, to) == (0, 1)));
    assert!(cluster.chain_messages().all(|(from, to)| from != 2 && to != 2));
    assert_eq!(cluster.stamps_sent_by(2), []);
    cluster.crash(1);
    cluster.run(SECOND);
    cluster.propose(0, "b").unwrap();
    cluster.run(WITHIN + SECOND);
    assert_eq!(cluster.outcomes(0)[1..], [ProposalOutcome::TimedOut], "it does not vote");
}

#[test]
fn a_proposal_is_refused_unless_it_can_follow_the_adopted_record() {
    let mut cluster = Cluster::started(3, 1);
    let other = cluster.child(0, |record| record.epoch = LayoutEpoch(3));
    assert!(matches!(cluster.propose_record(0, other), Err(ProposeError::Refused(_))));
    cluster.propose(0, "a").unwrap();
    assert_eq!(cluster.propose(0, "b").unwrap_err(), ProposeError::Busy);
    let mut alone = Cluster::new(1, 1);
    alone.joins[0] = false;
    alone.start(0);
    let record = alone.child(0, |record| record.members[0].zone = "a".to_owned());
    assert_eq!(alone.propose_record(0, record), Err(ProposeError::NoPart));
}

#[test]
fn only_a_voter_that_is_heard_is_named() {
    let mut cluster = Cluster::started(4, 1);
    let unknown = cluster.child(0, |record| record.members[1].node_id = Some(NodeTag(77)));
    let refused = |slot| Err(ProposeError::VoterNotHeard { slot: NodeIndex(slot) });
    assert_eq!(cluster.propose_record(0, unknown), refused(1));
    let exchanged = cluster.child(0, |record| record.voters[2] = NodeIndex(3));
    cluster.crash(3);
    cluster.run(SECOND);
    assert_eq!(cluster.propose_record(0, exchanged.clone()), refused(3));
    cluster.start(3);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.propose_record(0, exchanged), Ok(()));
    cluster.run(SECOND);
    assert_eq!(cluster.epochs(), [2; 4]);
}

#[test]
fn an_idle_cluster_sends_heartbeats_only() {
    let mut cluster = Cluster::started(3, 1);
    cluster.propose(0, "a").unwrap();
    cluster.run(SECOND);
    cluster.world.sent.clear();
    cluster.run(2 * SECOND);
    let is_heartbeat = |message: &Message| match message {
        Message::Request { request, .. } => matches!(request, PeerRequest::Node(NodeRequest::Heartbeat(_))),
        Message::Answer { answer, .. } => matches!(answer, PeerAnswer::Node(NodeResponse::Heartbeat(_))),
    };
    assert_eq!(cluster.world.sent.iter().filter(|(_, _, message)| !is_heartbeat(message)).count(), 0);
    let conflicts: Vec<LayoutConflict> = (0..3).flat_map(|host| cluster.conflicts(host)).collect();
    assert_eq!(conflicts, []);
    assert!(cluster.effects.iter().flatten().all(|it| !matches!(it, AgreementEffect::Persist { .. })));
}
