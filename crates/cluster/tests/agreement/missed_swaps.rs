//! A node that was down while swaps ended compares with its peers: a node that has gained a place
//! may lack writes that the one before it had missed.

use crate::cluster_of_voters::{Cluster, named, new_state};
use crate::world::{PARTITIONS, SECOND};
use cluster::{
    FEATURE_LEVEL_PLANS, Layout, LayoutEpoch, LayoutRecord, Message, NodeIndex, NodeRequest, PeerRequest,
    RecordHash, SyncState,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use stdx::WallTime;

/// The node that was down.
const ABSENT: usize = 1;
const BEFORE: LayoutEpoch = LayoutEpoch(5);
const AFTER: LayoutEpoch = LayoutEpoch(9);

/// A record of four hosts without a plan, as of before or after the swaps of hosts 2 and 3.
fn record(epoch: LayoutEpoch) -> LayoutRecord {
    let mut record = named(4);
    (record.epoch, record.parent) = (epoch, RecordHash([epoch.0 as u8; 32]));
    record.feature_level = FEATURE_LEVEL_PLANS;
    record.changed.fill(LayoutEpoch(4));
    record.lists = (0..4).map(NodeIndex).collect::<Vec<_>>().repeat(PARTITIONS as usize);
    if epoch == AFTER {
        record.lists[..4].copy_from_slice(&[0, 1, 3, 2].map(NodeIndex));
        record.changed[0] = LayoutEpoch(8);
    }
    assert_eq!(record.check(), Ok(()));
    record
}

/// Hosts that have had their last round a moment ago. All but one hold the later record.
fn started(of_absent: LayoutEpoch) -> Cluster {
    let mut cluster = Cluster::of(record(AFTER), 1);
    cluster.world.limits.feature_level_max = FEATURE_LEVEL_PLANS;
    cluster.disks[ABSENT].state = new_state(record(of_absent));
    let now = cluster.world.now_at(0).wall;
    for (host, disk) in cluster.world.hosts.iter_mut().zip(&cluster.disks) {
        let record = &mut host.store.record;
        record.sync_state = SyncState::Settled;
        record.repaired_at = Some(now);
        record.disowned_to = disk.state.acceptor.decided.changed.iter().copied().max();
        host.member.layout = Arc::new(Layout::of_record(&disk.state.acceptor.decided));
    }
    cluster
}

/// The peers that a host has compared ranges with.
fn compared_by(cluster: &Cluster, host: usize) -> BTreeSet<usize> {
    let is_range = |message: &Message| {
        matches!(message, Message::Request { request: PeerRequest::Node(NodeRequest::Range(_)), .. })
    };
    let sent = cluster.world.sent.iter().filter(|(from, _, message)| *from == host && is_range(message));
    sent.map(|(_, to, _)| *to).collect()
}

fn exchanged_to(cluster: &Cluster, host: usize) -> WallTime {
    cluster.node(host).deletes_exchanged_to(cluster.world.now_at(host))
}

#[test]
fn a_node_that_missed_the_end_of_swaps_begins_a_round_and_keeps_deletes_until_its_end() {
    let mut cluster = started(BEFORE);
    cluster.start_all();
    cluster.run(SECOND);
    assert_eq!(cluster.adopted(ABSENT).epoch, AFTER, "it has learned the record");
    assert!(exchanged_to(&cluster, ABSENT) > WallTime::default(), "it does not follow the record yet");
    for host in 0..4 {
        cluster.follow(host);
    }
    assert_eq!(exchanged_to(&cluster, ABSENT), WallTime::default());
    cluster.run(60 * SECOND);
    assert_eq!(compared_by(&cluster, ABSENT), BTreeSet::from([0, 2, 3]));
    assert!(exchanged_to(&cluster, ABSENT) > WallTime::default());
    let record = &cluster.world.hosts[ABSENT].store.record;
    assert!(record.repaired_at.is_some(), "a restart finds the round");
}

#[test]
fn a_node_that_ended_before_it_followed_the_end_of_swaps_begins_a_round_at_its_start() {
    let mut cluster = started(AFTER);
    cluster.world.hosts[ABSENT].store.record.disowned_to = Some(LayoutEpoch(4));
    cluster.start_all();
    assert_eq!(exchanged_to(&cluster, ABSENT), WallTime::default());
    cluster.run(60 * SECOND);
    assert_eq!(compared_by(&cluster, ABSENT), BTreeSet::from([0, 2, 3]));
}

#[test]
fn a_node_that_has_followed_the_end_of_swaps_begins_no_round_at_its_start() {
    let mut cluster = started(AFTER);
    cluster.start_all();
    cluster.run(60 * SECOND);
    for host in 0..4 {
        assert_eq!(compared_by(&cluster, host), BTreeSet::new(), "host {host}");
    }
}
