//! A node whose directory has forgotten votes does not vote.

use crate::cluster_of_voters::{Cluster, Disk, WITHIN};
use crate::world::SECOND;
use cluster::{LayoutRecord, NodeIndex, ProposalOutcome, SyncState, VoteHistory};

/// A child of the first host's record that names the present id of each host.
fn all_named(cluster: &Cluster) -> LayoutRecord {
    cluster.child(0, |record| {
        for (member, host) in record.members.iter_mut().zip(&cluster.world.hosts) {
            member.node_id = Some(host.tag);
        }
    })
}

fn is_named(cluster: &Cluster, host: usize) -> bool {
    cluster.adopted(0).members[host].node_id == Some(cluster.world.hosts[host].tag)
}

/// Whether the hosts that run decide a record.
fn decides(cluster: &mut Cluster, proposer: usize, zone: &str) -> bool {
    cluster.propose(proposer, zone).unwrap();
    cluster.run(WITHIN + SECOND);
    cluster.outcomes(proposer).last().is_some_and(|outcome| *outcome != ProposalOutcome::TimedOut)
}

#[test]
fn a_node_with_an_emptied_directory_does_not_vote_before_a_record_names_its_id() {
    let mut cluster = Cluster::started(3, 1);
    cluster.lose_disk(1);
    cluster.start(1);
    cluster.run(20 * SECOND);
    assert_eq!(cluster.world.sync_state(1), SyncState::Settled, "it was rebuilt");
    cluster.crash(2);
    cluster.run(2 * SECOND);
    assert!(!decides(&mut cluster, 0, "a"), "a lost vote could be given again");
    assert_eq!(cluster.disks[1].state.history, VoteHistory::OfThisId);
    cluster.start(2);
    cluster.run(3 * SECOND);
    // The record of the proposal that has ended may be decided first.
    while !is_named(&cluster, 1) {
        let named = all_named(&cluster);
        cluster.propose_record(0, named).unwrap();
        cluster.run(3 * SECOND);
    }
    let before = cluster.epochs();
    assert_eq!([before[1], before[2]], [before[0]; 2]);
    cluster.crash(2);
    cluster.run(2 * SECOND);
    assert!(decides(&mut cluster, 0, "b"), "its new id has never voted");
}

#[test]
fn the_node_record_changes_only_after_lost_votes_are_durably_known() {
    let mut cluster = Cluster::started(3, 1);
    cluster.lose_disk(1);
    cluster.disks[1].mode = Disk::Hangs;
    cluster.start(1);
    cluster.run(5 * SECOND);
    assert_eq!(cluster.world.hosts[1].store.record.sync_state, SyncState::Unsettled);
    cluster.disks[1].mode = Disk::Works;
    cluster.run(20 * SECOND);
    assert_eq!(cluster.world.hosts[1].store.record.sync_state, SyncState::Settled);
    assert_eq!(cluster.disks[1].state.history, VoteHistory::OfThisId);
}

#[test]
fn a_directory_that_is_an_older_state_of_itself_never_votes_again() {
    let mut cluster = Cluster::started(3, 1);
    let named = all_named(&cluster);
    cluster.propose_record(0, named).unwrap();
    cluster.run(SECOND);
    cluster.roll_back(1);
    assert_eq!(cluster.world.sync_state(1), SyncState::Settled, "it was rebuilt");
    assert_eq!(cluster.disks[1].state.history, VoteHistory::Incomplete);
    cluster.crash(2);
    cluster.run(2 * SECOND);
    assert!(!decides(&mut cluster, 0, "a"));
    assert_eq!(cluster.disks[1].state.acceptor.promised, None);
}

#[test]
fn a_voter_that_has_forgotten_votes_is_replaced_by_a_member_that_votes() {
    let mut cluster = Cluster::new(4, 1);
    cluster.reconciles = true;
    cluster.start_all();
    cluster.run(3 * SECOND);
    assert_eq!(cluster.adopted(0).voters, [0, 1, 2].map(NodeIndex));
    cluster.roll_back(1);
    assert_eq!(cluster.world.sync_state(1), SyncState::Settled, "it was rebuilt");
    assert_eq!(cluster.disks[1].state.history, VoteHistory::Incomplete);
    assert_eq!(cluster.adopted(0).voters, [0, 2, 3].map(NodeIndex));
    cluster.crash(2);
    cluster.run(2 * SECOND);
    assert!(decides(&mut cluster, 0, "a"), "two of three voters know their votes");
}

#[test]
fn a_voter_that_has_forgotten_votes_counts_as_none_in_the_status() {
    let mut cluster = Cluster::new(3, 1);
    cluster.reconciles = true;
    cluster.start_all();
    cluster.run(3 * SECOND);
    cluster.roll_back(1);
    assert_eq!(cluster.world.sync_state(1), SyncState::Settled, "it was rebuilt");
    assert_eq!(cluster.disks[1].state.history, VoteHistory::Incomplete);
    assert_eq!(cluster.adopted(0).voters, [0, 1, 2].map(NodeIndex), "no other member can vote");
    for host in 0..3 {
        let status = cluster.node(host).agreement_status().unwrap();
        let forgetful = status.voters.iter().map(|voter| voter.votes_forgotten).collect::<Vec<_>>();
        assert_eq!((forgetful, status.has_majority()), (vec![false, true, false], true));
    }
    cluster.crash(2);
    cluster.run(2 * SECOND);
    for host in 0..2 {
        assert!(!cluster.node(host).agreement_status().unwrap().has_majority(), "host {host}");
    }
}

#[test]
fn a_voter_that_hears_no_majority_does_not_vote() {
    let mut cluster = Cluster::started(5, 1);
    (1..5).for_each(|host| cluster.crash(host));
    cluster.crash(0);
    cluster.start(0);
    cluster.start(1);
    cluster.run(8 * SECOND);
    cluster.propose(0, "a").unwrap();
    cluster.run(SECOND);
    for host in [0, 1] {
        assert_eq!(cluster.disks[host].state.acceptor.promised, None, "it may be an older state");
    }
    cluster.start(2);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.epochs()[..3], [2; 3]);
}
