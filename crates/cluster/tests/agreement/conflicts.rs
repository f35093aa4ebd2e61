//! Records that contradict each other are reported and never adopted.

use crate::cluster_of_voters::{Cluster, named, new_state};
use crate::world::SECOND;
use cluster::{
    ClusterId, LayoutConflict, LayoutConflictReason, LayoutEpoch, LayoutRecord, LayoutRecordError, NodeIndex,
};

/// Three nodes of which the last one holds another first record.
fn with_other_record(change: impl FnOnce(&mut LayoutRecord)) -> Cluster {
    let mut cluster = Cluster::new(3, 1);
    let mut other = named(3);
    change(&mut other);
    cluster.disks[2].state = new_state(other);
    cluster.start_all();
    cluster
}

fn conflict(node: u8, epoch: u64, reason: LayoutConflictReason) -> LayoutConflict {
    LayoutConflict { node: NodeIndex(node), epoch: Some(LayoutEpoch(epoch)), reason }
}

#[test]
fn different_records_of_one_epoch_are_reported_once_and_not_adopted() {
    let mut cluster = with_other_record(|record| record.default_from = 2);
    let other = |node| conflict(node, 1, LayoutConflictReason::AnotherRecord);
    cluster.run(SECOND);
    assert_eq!(cluster.conflicts(0), [other(2)]);
    assert_eq!(cluster.conflicts(2), [other(0), other(1)]);
    cluster.propose(0, "a").unwrap();
    cluster.run(SECOND);
    assert_eq!(cluster.epochs(), [2, 2, 1]);
    let refused = LayoutConflictReason::Refused(LayoutRecordError::NotTheChild);
    let reported = &cluster.conflicts(2)[2..];
    assert!(reported.contains(&conflict(0, 2, refused)), "{reported:?}");
    assert!(reported.contains(&conflict(1, 2, refused)), "{reported:?}");
    assert_eq!(reported.len(), 2);
    assert_eq!(cluster.conflicts(0).len(), 1, "its epoch is behind");
}

#[test]
fn a_record_of_another_cluster_is_reported_and_not_adopted() {
    let mut cluster = with_other_record(|record| record.cluster = ClusterId([7; 16]));
    cluster.propose(0, "a").unwrap();
    cluster.run(SECOND);
    assert_eq!(cluster.epochs(), [2, 2, 1]);
    let reported = &cluster.conflicts(2)[2..];
    assert!(reported.contains(&conflict(0, 2, LayoutConflictReason::AnotherCluster)), "{reported:?}");
}

#[test]
fn a_voter_with_another_record_does_not_vote_on_its_child() {
    let mut cluster = with_other_record(|record| record.default_from = 2);
    cluster.crash(1);
    cluster.run(SECOND);
    cluster.propose(0, "a").unwrap();
    cluster.run(3 * SECOND);
    assert_eq!(cluster.epochs(), [1; 3]);
    assert_eq!(cluster.disks[2].state.acceptor.accepted, None);
}
