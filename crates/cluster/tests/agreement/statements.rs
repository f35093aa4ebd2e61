//! The statements of nodes about the running plan are sent at once, to all peers, and only while
//! they are awaited.

use crate::cluster_of_voters::{Cluster, named};
use crate::world::{MILLISECOND, PARTITIONS, SECOND};
use cluster::{
    FEATURE_LEVEL_PLANS, LayoutEpoch, LayoutRecord, Message, NodeIndex, NodeRequest, NodeResponse, PairSwap,
    PartitionId, PeerAnswer, PeerRequest, PlanStatements, RecordHash, RunningPlan, SwapPhase, SwapSet,
};

const LOSER: usize = 1;
const GAINER: usize = 2;

/// A record in which two swaps of host 2 as the gainer are in PREPARE, in an order in which the
/// one with host 1 is second.
fn with_swaps() -> LayoutRecord {
    let mut record = named(3);
    (record.epoch, record.parent) = (LayoutEpoch(5), RecordHash([1; 32]));
    record.feature_level = FEATURE_LEVEL_PLANS;
    record.changed.fill(LayoutEpoch(5));
    record.lists = [0, 1, 2].map(NodeIndex).repeat(PARTITIONS as usize);
    let swap = |loser, partition| PairSwap {
        loser: NodeIndex(loser),
        gainer: NodeIndex(GAINER as u8),
        phase: SwapPhase::Prepare,
        attempt: LayoutEpoch(4),
        since: LayoutEpoch(4),
        partitions: vec![PartitionId(partition)],
    };
    record.plan =
        Some(RunningPlan { swaps: vec![swap(0, 0), swap(1, 1)], ..RunningPlan::new(LayoutEpoch(3)) });
    assert_eq!(record.check(), Ok(()));
    record
}

fn started(record: LayoutRecord) -> Cluster {
    let mut cluster = Cluster::of(record, 1);
    cluster.start_all();
    cluster
}

/// Has the loser and the gainer fence the record, and the gainer copy from the loser.
fn copy(cluster: &mut Cluster) {
    cluster.state_fenced(LOSER, LayoutEpoch(5));
    cluster.state_fenced(GAINER, LayoutEpoch(5));
    let complete = |cluster: &Cluster| {
        let copies = cluster.node(GAINER).agreement_status().map(|status| status.copies);
        copies.is_some_and(|copies| copies.iter().any(|copy| copy.permille == 1_000))
    };
    let end = cluster.world.now + 20 * SECOND;
    while !complete(cluster) {
        assert!(cluster.world.now < end, "the copy ends");
        cluster.run(MILLISECOND);
    }
}

/// The statements in the heartbeats that a host has sent behind the first `skipped` messages.
fn stated_by(cluster: &Cluster, host: usize, skipped: usize) -> Vec<PlanStatements> {
    let stated = |message: &Message| match message {
        Message::Request { request: PeerRequest::Node(NodeRequest::Heartbeat(payload)), .. }
        | Message::Answer { answer: PeerAnswer::Node(NodeResponse::Heartbeat(payload)), .. } => {
            // Purges and the progress of copies are no concern of these tests.
            Some(PlanStatements { is_purging: false, copying: None, ..payload.plan })
        }
        _ => None,
    };
    let sent = cluster.world.sent.iter().skip(skipped).filter(|(from, ..)| *from == host);
    sent.filter_map(|(.., message)| stated(message)).collect()
}

fn swap_set(indexes: &[usize]) -> SwapSet {
    let mut set = SwapSet::EMPTY;
    indexes.iter().for_each(|index| set.insert(*index));
    set
}

#[test]
fn statements_are_sent_to_all_peers_at_once_and_repeated() {
    let mut cluster = started(with_swaps());
    let sent = cluster.world.sent.len();
    let fenced = PlanStatements { fenced: Some(LayoutEpoch(5)), ..PlanStatements::default() };
    let complete = PlanStatements { complete: swap_set(&[1]), ..fenced };
    cluster.state_fenced(LOSER, LayoutEpoch(5));
    assert_eq!(stated_by(&cluster, LOSER, sent)[..2], [fenced; 2]);
    copy(&mut cluster);
    let stated = stated_by(&cluster, GAINER, sent);
    assert!(stated.ends_with(&[complete; 2]), "{stated:?}");
    let sent = cluster.world.sent.len();
    cluster.run(5 * SECOND);
    let repeated = stated_by(&cluster, GAINER, sent);
    assert!(repeated.len() > 4 && repeated.iter().all(|stated| *stated == complete), "{repeated:?}");
}

#[test]
fn a_statement_that_is_no_news_sends_nothing() {
    let mut cluster = started(with_swaps());
    copy(&mut cluster);
    let sent = cluster.world.sent.len();
    cluster.state_fenced(GAINER, LayoutEpoch(5));
    cluster.state_fenced(GAINER, LayoutEpoch(4));
    assert_eq!(stated_by(&cluster, GAINER, sent), []);
}

#[test]
fn a_restarted_node_states_its_fence_and_its_copies_again_once_it_knows_them() {
    let mut cluster = started(with_swaps());
    copy(&mut cluster);
    cluster.run(SECOND);
    cluster.crash(GAINER);
    let sent = cluster.world.sent.len();
    cluster.start(GAINER);
    cluster.run(5 * SECOND);
    let stated = stated_by(&cluster, GAINER, sent);
    let complete = PlanStatements { complete: swap_set(&[1]), ..PlanStatements::default() };
    assert_eq!(stated.first(), Some(&PlanStatements::default()), "its cursors are not read yet");
    assert_eq!(stated.last(), Some(&complete), "it has not fenced the record again");
}

#[test]
fn a_fence_without_a_running_plan_waits_for_the_next_heartbeat() {
    let mut cluster = started(LayoutRecord { plan: None, ..with_swaps() });
    let sent = cluster.world.sent.len();
    cluster.state_fenced(LOSER, LayoutEpoch(5));
    assert_eq!(stated_by(&cluster, LOSER, sent), []);
    cluster.run(2 * SECOND);
    let stated = stated_by(&cluster, LOSER, sent);
    assert!(stated.iter().any(|stated| stated.has_fenced(LayoutEpoch(5))));
}
