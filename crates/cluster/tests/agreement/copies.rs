//! The gainer of a swap copies what it gains from the loser, or from enough other replicas.

use crate::cluster_of_voters::{Cluster, named, new_state};
use crate::world::{DiskState, MILLISECOND, PARTITIONS, SECOND, Store};
use bytes::Bytes;
use cluster::{
    AgreementStatus, CopyObstacle, CopyStatus, Event, FEATURE_LEVEL_PLANS, Key, LayoutEpoch, LayoutRecord,
    LostRange, MemberState, Message, NodeIndex, NodeRequest, NodeResponse, PLAN_STALLED_AFTER, PairSwap,
    PartitionId, PeerAnswer, PeerRequest, RateLimit, RecordHash, RunningPlan, StallReason, StoreRequest,
    SwapPhase, SwapWait,
};
use std::collections::BTreeSet;
use stdx::{Cell, Hlc, NodeTag, Version, WallTime};

const LOSER: usize = 2;
const GAINER: usize = 3;
/// The partitions of the swap.
const MOVED: [u32; 16] = [0, 1, 5, 9, 12, 13, 20, 22, 30, 31, 40, 41, 42, 50, 55, 63];
/// Number of keys of each store.
const KEYS: usize = 6_000;
const PLAN: LayoutEpoch = LayoutEpoch(3);
const EPOCH: LayoutEpoch = LayoutEpoch(5);

/// A record of hosts in which a swap of host 2 with host 3 is in PREPARE since epoch 4. With `from`
/// 3, host 3 gains the keys of its partitions.
fn with_swap(hosts: usize) -> LayoutRecord {
    let mut record = named(hosts);
    (record.epoch, record.parent) = (EPOCH, RecordHash([1; 32]));
    record.feature_level = FEATURE_LEVEL_PLANS;
    record.changed.fill(EPOCH);
    record.lists = (0..hosts as u8).map(NodeIndex).collect::<Vec<_>>().repeat(PARTITIONS as usize);
    let swap = PairSwap {
        loser: NodeIndex(LOSER as u8),
        gainer: NodeIndex(GAINER as u8),
        phase: SwapPhase::Prepare,
        attempt: LayoutEpoch(4),
        since: LayoutEpoch(4),
        partitions: MOVED.map(PartitionId).to_vec(),
    };
    record.plan = Some(RunningPlan { swaps: vec![swap], ..RunningPlan::new(PLAN) });
    assert_eq!(record.check(), Ok(()));
    record
}

/// As [`with_swap`], with a dead loser and host 4 as the gainer, behind host 3. It gains the keys
/// with `from` 3 and 4.
fn with_dead_loser() -> LayoutRecord {
    let mut record = with_swap(5);
    record.members[LOSER].state = MemberState::Dead;
    let plan = record.plan.as_mut().expect("it has one");
    let swap = &mut plan.swaps[0];
    (swap.gainer, swap.attempt, swap.since) = (NodeIndex(4), EPOCH, EPOCH);
    assert_eq!(record.check(), Ok(()));
    record
}

fn key(number: usize) -> Key {
    Key::new(Bytes::from(format!("key-{number:05}"))).expect("a short key")
}

/// Cells with `from` 2 to 4; each tenth one is a tombstone, and each eleventh one has expired.
fn cell(number: usize) -> Cell {
    let version =
        Version::new(Hlc::at(WallTime::EPOCH_2020.saturating_add_micros(number as u64)), NodeTag(1));
    let from = 2 + (number % 3) as u8;
    let mut cell = Cell::value(version, from, Bytes::from(vec![7; 100]));
    if number.is_multiple_of(11) {
        cell.meta.expires_at = Some(WallTime::EPOCH_2020);
    }
    if number % 10 == 1 { Cell::tombstone(version, from) } else { cell }
}

fn fill(store: &mut Store) {
    for number in 0..KEYS {
        store.put(&key(number), &cell(number));
    }
}

/// The keys that the gainer copies: those of which the loser is a replica. With `from` 4 the gainer
/// is one too.
fn gained(cluster: &Cluster) -> BTreeSet<Key> {
    let layout = cluster::Layout::of_record(&cluster.adopted(GAINER));
    let is_gained = |number: &usize| {
        cell(*number).meta.from >= 3 && MOVED.contains(&layout.partition_of(&key(*number)).0)
    };
    (0..KEYS).filter(is_gained).map(key).collect()
}

/// Hosts of this record, of which all but host 3 and 4 hold the cells.
fn started(record: LayoutRecord) -> Cluster {
    let hosts = record.members.len();
    let mut cluster = Cluster::of(record, 1);
    (0..=LOSER).for_each(|host| fill(&mut cluster.world.hosts[host].store));
    if hosts == 5 {
        fill(&mut cluster.world.hosts[3].store);
    }
    cluster.start_all();
    cluster
}

fn fence(cluster: &mut Cluster, hosts: &[usize]) {
    hosts.iter().for_each(|host| cluster.state_fenced(*host, EPOCH));
}

/// The keys that a host has ingested.
fn ingested(cluster: &Cluster, host: usize) -> BTreeSet<Key> {
    let committed = &cluster.world.hosts[host].store.ingests.committed;
    committed.iter().map(|(key, _)| key.clone()).collect()
}

fn status(cluster: &Cluster, host: usize) -> AgreementStatus {
    cluster.node(host).agreement_status().expect("it takes part")
}

fn copy_status(cluster: &Cluster, host: usize) -> CopyStatus {
    status(cluster, host).copies[0]
}

fn is_complete(cluster: &Cluster, host: usize) -> bool {
    status(cluster, host).copies.first().is_some_and(|copy| copy.permille == 1_000)
}

/// Whether a host states in its last heartbeat that its copy is complete.
fn states_complete(cluster: &Cluster, host: usize) -> bool {
    let stated = |message: &Message| match message {
        Message::Request { request: PeerRequest::Node(NodeRequest::Heartbeat(payload)), .. } => {
            Some(payload.plan.complete.contains(0))
        }
        _ => None,
    };
    let sent = cluster.world.sent.iter().rev().filter(|(from, ..)| *from == host);
    sent.filter_map(|(.., message)| stated(message)).next().unwrap_or(false)
}

/// Whether a host states in its last heartbeat that it purges.
fn states_purging(cluster: &Cluster, host: usize) -> bool {
    let stated = |message: &Message| match message {
        Message::Request { request: PeerRequest::Node(NodeRequest::Heartbeat(payload)), .. } => {
            Some(payload.plan.is_purging)
        }
        _ => None,
    };
    let sent = cluster.world.sent.iter().rev().filter(|(from, ..)| *from == host);
    sent.filter_map(|(.., message)| stated(message)).next().unwrap_or(false)
}

/// The next swap of the plan may wait for it.
#[test]
fn a_purge_is_looked_at_often_while_a_plan_runs() {
    for has_plan in [true, false] {
        let mut record = with_swap(4);
        record.plan = record.plan.filter(|_| has_plan);
        let mut cluster = Cluster::of(record, 1);
        cluster.world.hosts[LOSER].store.holds_up_purges = true;
        cluster.start_all();
        cluster.run(3 * SECOND);
        // It may have lost its places in epochs that it has not seen.
        fence(&mut cluster, &[0, 1, 2, 3]);
        cluster.run(2 * SECOND);
        assert!(states_purging(&cluster, LOSER));
        cluster.world.hosts[LOSER].store.holds_up_purges = false;
        cluster.run(4 * SECOND);
        assert_eq!(states_purging(&cluster, LOSER), !has_plan, "a plan runs: {has_plan}");
    }
}

/// The first keys of the ranges that a host has asked others for, behind the first `skipped`
/// messages, with the host that was asked.
fn asked_by(cluster: &Cluster, host: usize, skipped: usize) -> Vec<(usize, Option<Key>)> {
    let sent = cluster.world.sent.iter().skip(skipped).filter(|(from, ..)| *from == host);
    let asked = |(_, to, message): &(usize, usize, Message)| match message {
        Message::Request { request: PeerRequest::Node(NodeRequest::Copy(request)), .. } => {
            Some((*to, request.after.clone()))
        }
        _ => None,
    };
    sent.filter_map(asked).collect()
}

/// Number of answers with cells that a host has sent.
fn chunks_of(cluster: &Cluster, host: usize) -> usize {
    let is_chunk = |message: &Message| {
        matches!(message, Message::Answer { answer: PeerAnswer::Node(NodeResponse::Copied(_)), .. })
    };
    cluster.world.sent.iter().filter(|(from, _, message)| *from == host && is_chunk(message)).count()
}

fn run_until(cluster: &mut Cluster, seconds: u32, is_so: impl Fn(&Cluster) -> bool) -> bool {
    let end = cluster.world.now + SECOND * seconds;
    while cluster.world.now < end && !is_so(cluster) {
        cluster.run(5 * MILLISECOND);
    }
    is_so(cluster)
}

/// Makes the copy slow enough to be interrupted.
fn slow_down(cluster: &mut Cluster) {
    cluster.world.hosts.iter_mut().for_each(|host| {
        host.store.latency = 20 * MILLISECOND;
        host.store.ingests.cells_of_table = 1;
    });
}

#[test]
fn a_gainer_copies_all_cells_that_it_gains_from_a_live_loser() {
    let mut cluster = started(with_swap(4));
    fence(&mut cluster, &[LOSER, GAINER]);
    assert!(
        run_until(&mut cluster, 20, |cluster| is_complete(cluster, GAINER)),
        "{:?}",
        copy_status(&cluster, 3)
    );
    let gained = gained(&cluster);
    assert!(gained.len() > 500);
    assert_eq!(ingested(&cluster, GAINER), gained, "tombstones and expired cells included, others not");
    let store = &cluster.world.hosts[GAINER].store;
    assert!(
        store.ingests.committed.iter().all(|(key, it)| cluster.world.hosts[LOSER].store.cells[key] == *it)
    );
    let copied = copy_status(&cluster, GAINER);
    assert_eq!((copied.cells, copied.obstacle), (gained.len() as u64, None));
    assert!(copied.bytes > 50 * copied.cells);
    cluster.run(SECOND);
    assert!(states_complete(&cluster, GAINER));
    let events = &cluster.world.hosts[GAINER].events;
    let loser = NodeIndex(LOSER as u8);
    assert!(events.contains(&Event::CopyBegan { loser }));
    assert!(
        events.iter().any(|event| matches!(event, Event::CopyEnded { cells, .. } if *cells == copied.cells))
    );
}

#[test]
fn a_source_refuses_before_it_has_fenced() {
    let mut cluster = started(with_swap(4));
    fence(&mut cluster, &[GAINER]);
    cluster.follow(LOSER);
    cluster.run(5 * SECOND);
    assert!(asked_by(&cluster, GAINER, 0).len() >= 3, "it asks again");
    assert_eq!(chunks_of(&cluster, LOSER), 0);
    assert_eq!(copy_status(&cluster, GAINER).obstacle, Some(CopyObstacle::Source { node: NodeIndex(2) }));
    fence(&mut cluster, &[LOSER]);
    assert!(run_until(&mut cluster, 20, |cluster| is_complete(cluster, GAINER)));
}

#[test]
fn a_gainer_asks_nothing_before_it_has_fenced_itself() {
    let mut cluster = started(with_swap(4));
    fence(&mut cluster, &[LOSER]);
    cluster.follow(GAINER);
    cluster.run(5 * SECOND);
    assert_eq!(asked_by(&cluster, GAINER, 0), []);
    assert_eq!(copy_status(&cluster, GAINER).obstacle, Some(CopyObstacle::Fence));
    fence(&mut cluster, &[GAINER]);
    assert!(run_until(&mut cluster, 20, |cluster| is_complete(cluster, GAINER)));
}

#[test]
fn only_the_gainer_of_the_record_is_answered() {
    // The record of the gainer has a swap that the record of the loser has not.
    let mut cluster = started(with_swap(4));
    let mut without = with_swap(4);
    without.plan.as_mut().expect("it has one").swaps.clear();
    cluster.crash(LOSER);
    cluster.disks[LOSER].state = new_state(without);
    cluster.start(LOSER);
    cluster.run(2 * SECOND);
    fence(&mut cluster, &[LOSER, GAINER]);
    cluster.run(5 * SECOND);
    assert!(asked_by(&cluster, GAINER, 0).len() >= 3);
    assert_eq!(chunks_of(&cluster, LOSER), 0);
}

#[test]
fn a_copy_goes_on_where_it_was_when_the_loser_returns() {
    let mut cluster = started(with_swap(4));
    slow_down(&mut cluster);
    fence(&mut cluster, &[LOSER, GAINER]);
    assert!(run_until(&mut cluster, 20, |cluster| ingested(cluster, GAINER).len() > 100));
    cluster.crash(LOSER);
    cluster.run(5 * SECOND);
    assert!(!is_complete(&cluster, GAINER));
    let before = ingested(&cluster, GAINER).len();
    cluster.start(LOSER);
    cluster.run(SECOND);
    let sent = cluster.world.sent.len();
    fence(&mut cluster, &[LOSER]);
    assert!(run_until(&mut cluster, 60, |cluster| is_complete(cluster, GAINER)));
    assert!(asked_by(&cluster, GAINER, sent).iter().all(|(_, after)| after.is_some()), "not from the start");
    assert!(before < gained(&cluster).len());
    assert_eq!(ingested(&cluster, GAINER), gained(&cluster));
}

#[test]
fn a_gainer_that_restarts_goes_on_at_its_durable_position() {
    let mut cluster = started(with_swap(4));
    slow_down(&mut cluster);
    fence(&mut cluster, &[LOSER, GAINER]);
    assert!(run_until(&mut cluster, 20, |cluster| ingested(cluster, GAINER).len() > 100));
    let cells = copy_status(&cluster, GAINER).cells;
    cluster.crash(GAINER);
    let (sent, durable) = (cluster.world.sent.len(), ingested(&cluster, GAINER));
    cluster.start(GAINER);
    cluster.run(2 * SECOND);
    fence(&mut cluster, &[GAINER]);
    assert!(run_until(&mut cluster, 60, |cluster| is_complete(cluster, GAINER)));
    let asked = asked_by(&cluster, GAINER, sent);
    assert!(asked[0].1.as_ref() >= durable.last(), "it goes on at {:?}", asked[0]);
    assert_eq!(ingested(&cluster, GAINER), gained(&cluster));
    assert!(cells > 0 && copy_status(&cluster, GAINER).cells == gained(&cluster).len() as u64);

    // A complete copy is stated again without being read again.
    cluster.crash(GAINER);
    let sent = cluster.world.sent.len();
    cluster.start(GAINER);
    assert!(run_until(&mut cluster, 20, |cluster| is_complete(cluster, GAINER)));
    assert_eq!(asked_by(&cluster, GAINER, sent), []);
    cluster.run(SECOND);
    assert!(states_complete(&cluster, GAINER));
}

#[test]
fn the_position_of_an_earlier_attempt_is_removed_and_not_used() {
    let mut cluster = started(with_swap(4));
    slow_down(&mut cluster);
    fence(&mut cluster, &[LOSER, GAINER]);
    assert!(run_until(&mut cluster, 20, |cluster| ingested(cluster, GAINER).len() > 100));
    let former: Vec<Bytes> = cluster.world.hosts[GAINER].store.ingests.cursors.keys().cloned().collect();
    assert_eq!(former.len(), 1);
    // The swap was cancelled and has begun anew.
    let sent = cluster.world.sent.len();
    let epoch = restart_with(&mut cluster, |record| {
        let (epoch, swap) = (record.epoch, &mut record.plan.as_mut().expect("it has one").swaps[0]);
        (swap.attempt, swap.since) = (epoch, epoch);
    });
    cluster.world.hosts[GAINER].store.ingests.committed.clear();
    [LOSER, GAINER].iter().for_each(|host| cluster.state_fenced(*host, epoch));
    assert!(run_until(&mut cluster, 60, |cluster| is_complete(cluster, GAINER)));
    let asked = asked_by(&cluster, GAINER, sent);
    assert!(asked.iter().any(|(_, after)| after.is_none()), "from the first key");
    assert_eq!(ingested(&cluster, GAINER), gained(&cluster));
    let cursors = &cluster.world.hosts[GAINER].store.ingests.cursors;
    assert!(cursors.len() == 1 && !cursors.contains_key(&former[0]), "{cursors:?}");
}

#[test]
fn a_complete_copy_of_an_earlier_attempt_does_not_count() {
    let mut cluster = started(with_swap(4));
    fence(&mut cluster, &[LOSER, GAINER]);
    assert!(run_until(&mut cluster, 20, |cluster| is_complete(cluster, GAINER)));
    restart_with(&mut cluster, |record| {
        let (epoch, swap) = (record.epoch, &mut record.plan.as_mut().expect("it has one").swaps[0]);
        (swap.attempt, swap.since) = (epoch, epoch);
    });
    cluster.run(5 * SECOND);
    assert!(!is_complete(&cluster, GAINER), "no node has fenced the new attempt");
    assert!(!states_complete(&cluster, GAINER));
}

#[test]
fn enough_other_replicas_stand_in_for_a_dead_loser() {
    // Of the replicas 0, 1 and 3 that are left, two include one of each majority.
    for (down, is_enough) in [(3, true), (1, false)] {
        let mut cluster = started(with_dead_loser());
        cluster.crash(LOSER);
        cluster.crash(down);
        let up: Vec<usize> = [0, 1, 3, 4].into_iter().filter(|host| *host != down).collect();
        fence(&mut cluster, &up);
        let ends = run_until(&mut cluster, 20, |cluster| is_complete(cluster, 4));
        assert_eq!(ends, is_enough, "without host {down}");
        assert!(asked_by(&cluster, 4, 0).iter().all(|(to, _)| *to != LOSER));
    }
}

#[test]
fn other_replicas_are_no_sources_before_they_have_fenced_the_death() {
    let mut cluster = started(with_dead_loser());
    cluster.crash(LOSER);
    fence(&mut cluster, &[0, 4]);
    [1, 3].iter().for_each(|host| cluster.follow(*host));
    cluster.run(5 * SECOND);
    assert_eq!((chunks_of(&cluster, 1), is_complete(&cluster, 4)), (0, false));
    fence(&mut cluster, &[1]);
    assert!(run_until(&mut cluster, 20, |cluster| is_complete(cluster, 4)));
}

#[test]
fn other_replicas_refuse_while_the_loser_is_not_dead() {
    // The gainer holds a record in which the loser is dead, and the others one in which it is not.
    let mut record = with_dead_loser();
    record.members[LOSER].state = MemberState::Active;
    let mut cluster = started(record);
    cluster.crash(4);
    cluster.disks[4].state = new_state(with_dead_loser());
    cluster.start(4);
    cluster.run(2 * SECOND);
    fence(&mut cluster, &[0, 1, 3, 4]);
    cluster.run(5 * SECOND);
    assert!(!asked_by(&cluster, 4, 0).is_empty());
    assert_eq!((0..4).map(|host| chunks_of(&cluster, host)).sum::<usize>(), 0);
}

#[test]
fn a_full_disk_pauses_a_copy_and_the_status_says_so() {
    let mut cluster = started(with_swap(4));
    cluster.world.hosts[GAINER].store.disk = DiskState::Full;
    fence(&mut cluster, &[LOSER, GAINER]);
    cluster.run(5 * SECOND);
    assert_eq!(copy_status(&cluster, GAINER).obstacle, Some(CopyObstacle::DiskFull));
    assert!(ingested(&cluster, GAINER).is_empty());
    let by = CopyObstacle::DiskFull;
    let blocked = Event::CopyBlocked { loser: NodeIndex(LOSER as u8), by };
    assert!(cluster.world.hosts[GAINER].events.contains(&blocked));
    // The store has told the node. No source is asked meanwhile.
    cluster.set_disk_full(GAINER, true);
    cluster.run(SECOND);
    let sent = cluster.world.sent.len();
    cluster.run(5 * SECOND);
    assert_eq!(asked_by(&cluster, GAINER, sent), []);
    cluster.world.hosts[GAINER].store.disk = DiskState::Healthy;
    cluster.set_disk_full(GAINER, false);
    assert!(run_until(&mut cluster, 20, |cluster| is_complete(cluster, GAINER)));
    assert_eq!(ingested(&cluster, GAINER), gained(&cluster));
}

/// The plan is not cancelled, so the swap waits for its copy.
fn with_target(mut record: LayoutRecord) -> LayoutRecord {
    let holders = |partition| match MOVED.contains(&partition) {
        true => [0, 1, GAINER as u8],
        false => [0, 1, LOSER as u8],
    };
    let target = (0..PARTITIONS).flat_map(holders).map(NodeIndex).collect();
    record.plan.as_mut().expect("it has one").target = target;
    assert_eq!(record.check(), Ok(()));
    record
}

#[test]
fn a_plan_without_progress_is_reported_by_each_member_with_what_it_waits_for() {
    let mut cluster = started(with_target(with_swap(4)));
    cluster.world.hosts[GAINER].store.disk = DiskState::Full;
    fence(&mut cluster, &[LOSER, GAINER]);
    cluster.run(5 * SECOND);
    let gainer = NodeIndex(GAINER as u8);
    let wait = SwapWait::Copy { gainer };
    let stalled = Event::PlanStalled { reason: StallReason::Swap(wait) };
    let reports = |cluster: &Cluster, host: usize| {
        cluster.world.hosts[host].events.iter().filter(|event| **event == stalled).count()
    };
    for host in 0..4 {
        let status = status(&cluster, host);
        assert_eq!((status.waits, status.plan_wait), (vec![wait], None), "host {host}");
        let [(node, copying)] = status.copying[..] else { panic!("host {host}: {:?}", status.copying) };
        assert_eq!((node, copying.obstacle), (gainer, Some(CopyObstacle::DiskFull)), "host {host}");
        assert!(status.progressed_at.is_some() && status.unheard.is_empty());
    }
    cluster.run(PLAN_STALLED_AFTER - 20 * SECOND);
    assert!((0..4).all(|host| reports(&cluster, host) == 0));
    cluster.run(30 * SECOND);
    assert!((0..4).all(|host| reports(&cluster, host) == 1), "once");
    let before = status(&cluster, 0).progressed_at;
    cluster.world.hosts[GAINER].store.disk = DiskState::Healthy;
    assert!(run_until(&mut cluster, 20, |cluster| is_complete(cluster, GAINER)));
    cluster.run(SECOND);
    let after = status(&cluster, 0);
    assert!(after.progressed_at > before && after.copying[0].1.bytes > 0);
    assert_eq!(after.copying[0].1.obstacle, None);
}

#[test]
fn a_store_that_cannot_keep_up_pauses_a_copy() {
    let mut cluster = started(with_swap(4));
    cluster.world.hosts[GAINER].store.ingests.is_stalled = true;
    fence(&mut cluster, &[LOSER, GAINER]);
    cluster.run(10 * SECOND);
    assert_eq!(asked_by(&cluster, GAINER, 0).len(), 1, "one chunk was read");
    assert_eq!(copy_status(&cluster, GAINER).obstacle, Some(CopyObstacle::Stalled));
    cluster.world.hosts[GAINER].store.ingests.is_stalled = false;
    assert!(run_until(&mut cluster, 20, |cluster| is_complete(cluster, GAINER)));
}

#[test]
fn a_write_that_fails_is_read_again_from_the_durable_position() {
    let mut cluster = started(with_swap(4));
    cluster.world.hosts[GAINER].store.ingests.cells_of_table = 10_000;
    cluster.world.hosts[LOSER].store.latency = 20 * MILLISECOND;
    fence(&mut cluster, &[LOSER, GAINER]);
    assert!(run_until(&mut cluster, 20, |cluster| asked_by(cluster, GAINER, 0).len() == 2));
    cluster.world.hosts[GAINER].store.disk = DiskState::Unwritable;
    cluster.run(2 * SECOND);
    assert_eq!(copy_status(&cluster, GAINER).obstacle, Some(CopyObstacle::Store));
    cluster.world.hosts[GAINER].store.disk = DiskState::Healthy;
    assert!(run_until(&mut cluster, 20, |cluster| is_complete(cluster, GAINER)));
    assert_eq!(ingested(&cluster, GAINER), gained(&cluster));
}

#[test]
fn a_copy_keeps_the_rate_limit_of_the_plan() {
    let mut record = with_swap(4);
    let bytes_per_second = 10_000;
    record.plan.as_mut().expect("it has one").rate_limit = RateLimit::new(bytes_per_second);
    let mut cluster = started(record);
    fence(&mut cluster, &[LOSER, GAINER]);
    let began = cluster.world.now;
    assert!(run_until(&mut cluster, 60, |cluster| is_complete(cluster, GAINER)));
    let (took, bytes) = (cluster.world.now - began, copy_status(&cluster, GAINER).bytes);
    // The last chunk is not waited for, and a second is saved up.
    assert!(bytes > 60_000 && took >= 3 * SECOND, "{bytes} bytes in {took:?}");
    let pauses = cluster.world.sent.iter().filter_map(|(.., message)| match message {
        Message::Answer { answer: PeerAnswer::Node(NodeResponse::Copied(copied)), .. } => Some(copied.pause),
        _ => None,
    });
    assert!(pauses.max() >= Some(SECOND), "the source asks for pauses as well");
}

#[test]
fn a_gainer_keeps_the_rate_limit_by_itself() {
    // The record of the loser has no limit.
    let mut record = with_swap(4);
    record.plan.as_mut().expect("it has one").rate_limit = RateLimit::new(10_000);
    let mut cluster = started(record);
    cluster.crash(LOSER);
    cluster.disks[LOSER].state = new_state(with_swap(4));
    cluster.start(LOSER);
    cluster.run(2 * SECOND);
    fence(&mut cluster, &[LOSER, GAINER]);
    let began = cluster.world.now;
    assert!(run_until(&mut cluster, 60, |cluster| is_complete(cluster, GAINER)));
    assert!(cluster.world.now - began >= 3 * SECOND);
}

#[test]
fn a_copy_begins_once_the_record_says_that_no_delete_is_exchanged() {
    let mut cluster = started(with_swap(4));
    cluster.crash(GAINER);
    let now = cluster.world.now_at(GAINER).wall;
    let store = &mut cluster.world.hosts[GAINER].store;
    store.record.repaired_at = Some(now);
    store.fails = |request| matches!(request, StoreRequest::PersistRecord { .. });
    cluster.start(GAINER);
    fence(&mut cluster, &[LOSER, GAINER]);
    cluster.run(5 * SECOND);
    assert_eq!(asked_by(&cluster, GAINER, 0), []);
    cluster.world.hosts[GAINER].store.fails = |_| false;
    assert!(run_until(&mut cluster, 20, |cluster| is_complete(cluster, GAINER)));
    assert_eq!(cluster.world.hosts[GAINER].store.record.repaired_at, None);
}

#[test]
fn a_gainer_whose_table_is_damaged_copies_from_the_first_key() {
    let mut cluster = started(with_swap(4));
    slow_down(&mut cluster);
    fence(&mut cluster, &[LOSER, GAINER]);
    assert!(run_until(&mut cluster, 20, |cluster| ingested(cluster, GAINER).len() > 100));
    let all = LostRange { after: None, until: None };
    let lost = ingested(&cluster, GAINER);
    cluster.world.hosts[GAINER].store.damage(1, all, |key| lost.contains(key));
    cluster.world.hosts[GAINER].store.ingests.committed.clear();
    let sent = cluster.world.sent.len();
    assert!(run_until(&mut cluster, 60, |cluster| is_complete(cluster, GAINER)));
    assert!(asked_by(&cluster, GAINER, sent).iter().any(|(_, after)| after.is_none()));
    assert_eq!(ingested(&cluster, GAINER), gained(&cluster));
}

#[test]
fn no_delete_counts_as_exchanged_from_the_begin_of_a_swap_to_a_round_after_its_end() {
    let mut record = with_swap(4);
    let plan = record.plan.take().expect("it has one");
    let mut cluster = started(record);
    let exchanged =
        |cluster: &Cluster, host: usize| cluster.node(host).deletes_exchanged_to(cluster.world.now_at(host));
    (0..4).for_each(|host| cluster.state_fenced(host, EPOCH));
    assert!(
        run_until(&mut cluster, 120, |cluster| exchanged(cluster, 0) > WallTime::default()),
        "a round ends"
    );

    let epoch = restart_with(&mut cluster, |record| {
        let epoch = record.epoch;
        let mut plan = RunningPlan { began: epoch, ..plan.clone() };
        (plan.swaps[0].attempt, plan.swaps[0].since) = (epoch, epoch);
        record.plan = Some(plan);
    });
    (0..4).for_each(|host| cluster.state_fenced(host, epoch));
    assert_eq!(exchanged(&cluster, 0), WallTime::default());
    cluster.run(120 * SECOND);
    assert_eq!(exchanged(&cluster, 0), WallTime::default(), "passes of that time do not count");
    assert_eq!(cluster.world.hosts[0].store.record.repaired_at, None);

    let before_end = cluster.world.now_at(0).wall;
    let epoch = restart_with(&mut cluster, |record| record.plan = None);
    (0..4).for_each(|host| cluster.state_fenced(host, epoch));
    assert_eq!(exchanged(&cluster, 0), WallTime::default(), "no pass has ended since");
    assert!(
        run_until(&mut cluster, 240, |cluster| exchanged(cluster, 0) > WallTime::default()),
        "a round ends"
    );
    assert!(exchanged(&cluster, 0) >= before_end);
}

/// Starts all hosts again with the next record, in which the partitions of the swap have changed.
fn restart_with(cluster: &mut Cluster, change: impl FnOnce(&mut LayoutRecord)) -> LayoutEpoch {
    let next = cluster.child(0, |record| {
        change(record);
        MOVED.iter().for_each(|partition| record.changed[*partition as usize] = record.epoch);
    });
    assert_eq!(next.verify(&cluster.adopted(0)), Ok(()));
    let hosts = cluster.disks.len();
    (0..hosts).for_each(|host| cluster.crash(host));
    for host in 0..hosts {
        cluster.disks[host].state = new_state(next.clone());
        cluster.start(host);
    }
    cluster.run(2 * SECOND);
    next.epoch
}
