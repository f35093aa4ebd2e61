//! A copy of a node with peers starts according to the decision about it, and not before there is
//! one.

mod common;

use cluster::{NodeIndex, NodeRecord, NodeSet, StoreRequest, SyncState};
use common::{DATA, carry_out, copy_of, key, options, read, value, write};
use env::{Clock, Env, FaultFs, FaultPlan, Fs, ManualClock, MemFs};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Hlc, NodeTag, Rng, WallTime};
use store::{
    AWAY_MAX_DEFAULT, AfterAbsence, AfterRestore, Membership, OpenReport, Store, StoreError, StoreOptions,
};

const SEEDS: u64 = 16;
const MADE_AT: WallTime = WallTime::EPOCH_2020;
const HOUR: Duration = Duration::from_secs(3600);
const YOUNG: Duration = HOUR;
/// An age from which a copy is not used as a head start.
const OLD: Duration = Duration::from_secs(AWAY_MAX_DEFAULT.as_secs() / 2);

fn peers() -> Membership {
    let nodes = ["http://a:1", "http://b:1", "http://c:1"].map(str::to_owned);
    Membership::of(nodes.to_vec()).seen_by("http://b:1")
}

fn env_at(fs: Arc<dyn Fs>, age: Duration) -> Env {
    Env { fs, clock: Arc::new(ManualClock::new(MADE_AT.saturating_add(age))) as Arc<dyn Clock> }
}

/// Opens the directory at this time after the checkpoint. `tag` is used if a new identity is
/// created.
fn open_after(fs: Arc<dyn Fs>, age: Duration, tag: u64) -> Result<(Store, OpenReport), StoreError> {
    let after_absence = AfterAbsence::Refuse;
    let options = StoreOptions { membership: peers(), after_absence, ..options(tag) };
    Store::open(env_at(fs, age), Path::new(DATA), options)
}

fn remembered() -> NodeRecord {
    NodeRecord {
        revision: 7,
        sync_state: SyncState::Settled,
        peers: BTreeMap::from([(NodeIndex(0), NodeTag(10)), (NodeIndex(2), NodeTag(12))]),
        repaired_at: Some(MADE_AT),
        repair_pending: NodeSet::EMPTY,
        ..NodeRecord::default()
    }
}

/// A copy of a checkpoint of the node of tag 9.
fn copied() -> MemFs {
    let disk = MemFs::new();
    let (store, _) = open_after(Arc::new(disk.clone()), Duration::ZERO, 9).unwrap();
    carry_out(&store, &write(key(b"a"), value(1, b"copied")));
    carry_out(&store, &StoreRequest::PersistRecord { record: remembered() });
    carry_out(&store, &StoreRequest::RaiseClockBound { bound: Hlc::from_bits(1 << 60) });
    copy_of(&disk, &store.checkpoint().unwrap().path)
}

fn prepare(disk: &MemFs, age: Duration, after: AfterRestore) {
    let env = env_at(Arc::new(disk.clone()), age);
    let identity = store::prepare_restored(&env, Path::new(DATA), after).unwrap();
    assert_eq!((identity.tag, &identity.membership), (NodeTag(9), &peers()));
}

fn holds_copied(store: &Store) -> bool {
    read(store, &key(b"a")).is_some()
}

#[test]
fn an_undecided_copy_is_not_opened() {
    let disk = copied();
    for _ in 0..2 {
        let refused = open_after(Arc::new(disk.clone()), YOUNG, 1).map(|_| ()).unwrap_err();
        assert!(matches!(refused, StoreError::CopyUndecided { .. }), "{refused}");
    }
    store::verify(&env_at(Arc::new(disk.clone()), YOUNG), Path::new(DATA), &mut |_| {}).unwrap();
    disk.corrupt(Path::new(DATA).join("copied"), 20, 3).unwrap();
    let refused = open_after(Arc::new(disk), YOUNG, 1).map(|_| ()).unwrap_err();
    assert!(matches!(refused, StoreError::CopiedCorrupt { .. }), "{refused}");
}

#[test]
fn after_rebuild_the_copy_is_a_new_node_with_a_head_start() {
    let disk = copied();
    prepare(&disk, YOUNG, AfterRestore::Rebuild);
    let (store, opened) = open_after(Arc::new(disk.clone()), YOUNG, 1).unwrap();
    assert_eq!((opened.identity.tag, store.tag()), (NodeTag(1), NodeTag(1)));
    assert!(!opened.is_new && opened.stale_shard.is_none() && holds_copied(&store));
    let expected = NodeRecord { revision: 8, sync_state: SyncState::Rebuilding, ..remembered() };
    assert_eq!(opened.record, expected);
    assert_eq!(opened.clock_start, Hlc::from_bits(1 << 60));
    drop(store);

    let (store, opened) = open_after(Arc::new(disk.clone()), YOUNG, 2).unwrap();
    assert_eq!((opened.identity.tag, opened.record), (NodeTag(1), expected), "once is enough");
    let settled = NodeRecord { revision: 9, sync_state: SyncState::Settled, ..remembered() };
    carry_out(&store, &StoreRequest::PersistRecord { record: settled.clone() });
    drop(store);
    let (_, opened) = open_after(Arc::new(disk), YOUNG, 2).unwrap();
    assert_eq!(opened.record, settled);
}

#[test]
fn the_new_record_wins_with_a_clock_set_back_and_a_lesser_tag() {
    let disk = MemFs::new();
    let (store, _) = open_after(Arc::new(disk.clone()), YOUNG, 9).unwrap();
    carry_out(&store, &StoreRequest::PersistRecord { record: remembered() });
    let copy = copy_of(&disk, &store.checkpoint().unwrap().path);
    prepare(&copy, Duration::ZERO, AfterRestore::Rebuild);
    drop(open_after(Arc::new(copy.clone()), Duration::ZERO, 1).unwrap());
    let (_, opened) = open_after(Arc::new(copy), Duration::ZERO, 1).unwrap();
    assert_eq!(opened.record.sync_state, SyncState::Rebuilding);
}

#[test]
fn where_peers_may_have_dropped_deletes_the_copy_begins_empty() {
    for (age, is_old) in [(OLD, true), (OLD - Duration::from_secs(1), false), (OLD * 100, true)] {
        let disk = copied();
        prepare(&disk, age, AfterRestore::Rebuild);
        let (store, opened) = open_after(Arc::new(disk.clone()), age, 1).unwrap();
        assert_eq!((opened.is_new, opened.stale_shard.is_some()), (is_old, is_old));
        assert_eq!(holds_copied(&store), !is_old);
        assert_eq!((opened.identity.tag, opened.record.sync_state), (NodeTag(1), SyncState::Rebuilding));
        drop(store);
        let (_, opened) = open_after(Arc::new(disk), age, 2).unwrap();
        assert_eq!((opened.identity.tag, opened.record.sync_state), (NodeTag(1), SyncState::Rebuilding));
    }
}

#[test]
fn after_keep_the_copy_is_the_same_node_with_a_pending_repair() {
    for age in [YOUNG, AWAY_MAX_DEFAULT * 100] {
        let disk = copied();
        prepare(&disk, age, AfterRestore::Rebuild);
        prepare(&disk, age, AfterRestore::Keep);
        let (store, opened) = open_after(Arc::new(disk.clone()), age, 1).unwrap();
        assert!(!opened.is_new && opened.stale_shard.is_none() && holds_copied(&store));
        let repair_pending = [0, 2].map(NodeIndex).into_iter().collect();
        assert_eq!(opened.record, NodeRecord { revision: 8, repair_pending, ..remembered() });
        assert_eq!((opened.identity.tag, opened.clock_start), (NodeTag(9), Hlc::from_bits(1 << 60)));
        drop(store);
        let (_, opened) = open_after(Arc::new(disk.kill()), age, 2).expect("it is alive since");
        assert_eq!((opened.record.revision, opened.identity.tag), (8, NodeTag(9)));
    }
}

#[test]
fn a_crash_in_the_first_opening_keeps_the_decision() {
    for (after, age) in
        [(AfterRestore::Rebuild, YOUNG), (AfterRestore::Rebuild, OLD), (AfterRestore::Keep, OLD)]
    {
        let prepared = copied();
        prepare(&prepared, age, after);
        for stop in 0.. {
            let disk = prepared.kill();
            let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::stop_after(stop).tear_last_write());
            let is_done = open_after(Arc::new(fs), age, 1).is_ok();
            for seed in 0..SEEDS {
                let place = format!("{after:?} after {age:?}: stop {stop}, seed {seed}");
                let disk = if seed == 0 { disk.kill() } else { disk.crash(&mut Rng::new(seed)) };
                let (store, opened) = open_after(Arc::new(disk), age, 2).expect(&place);
                let is_kept = after == AfterRestore::Keep;
                assert_eq!(opened.identity.tag == NodeTag(9), is_kept, "{place}");
                assert_eq!(opened.record.sync_state == SyncState::Rebuilding, !is_kept, "{place}");
                assert_eq!(opened.record.repair_pending == NodeSet::EMPTY, !is_kept, "{place}");
                assert_eq!(holds_copied(&store), is_kept || age == YOUNG, "{place}");
            }
            if is_done {
                break;
            }
        }
    }
}

#[test]
fn a_crash_while_deciding_leaves_the_copy_undecided_or_decided() {
    for stop in 0.. {
        let disk = copied();
        let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::stop_after(stop).tear_last_write());
        let env = env_at(Arc::new(fs), YOUNG);
        let is_done = store::prepare_restored(&env, Path::new(DATA), AfterRestore::Rebuild).is_ok();
        for seed in 0..SEEDS {
            let disk = if seed == 0 { disk.kill() } else { disk.crash(&mut Rng::new(seed)) };
            match open_after(Arc::new(disk), YOUNG, 1) {
                Ok((_, opened)) => assert_eq!(opened.record.sync_state, SyncState::Rebuilding, "stop {stop}"),
                Err(StoreError::CopyUndecided { .. }) => assert!(!is_done, "stop {stop}"),
                Err(error) => panic!("stop {stop}: {error}"),
            }
        }
        if is_done {
            return;
        }
    }
}

/// The copy is opened as a head start, stopped before it is filled, and started again when the
/// peers have dropped deletes.
#[test]
fn an_unfilled_head_start_is_not_used_after_the_grace_period() {
    let disk = copied();
    let age = OLD - HOUR;
    prepare(&disk, age, AfterRestore::Rebuild);
    let (store, opened) = open_after(Arc::new(disk.clone()), age, 1).unwrap();
    assert_eq!(opened.record.sync_state, SyncState::Rebuilding);
    store.note_alive(MADE_AT.saturating_add(age)).unwrap();
    drop(store);
    // It was down for less than nine days, but its data is thirteen days old, and tombstones are
    // kept for ten.
    let refused = open_after(Arc::new(disk), age + AWAY_MAX_DEFAULT - HOUR, 2).map(|_| ()).unwrap_err();
    assert!(matches!(refused, StoreError::AwayTooLong { away_days: 13, .. }), "{refused}");
}
