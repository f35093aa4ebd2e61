//! A node that was absent for longer than its tombstones are kept does not return with its data
//! unconditionally.

mod common;

use cluster::{NodeRecord, ReplicaRequest, StoreRequest, SyncState};
use common::{DATA, carry_out, env, hints_for, key, nodes, options, read, value, version, write};
use env::{Clock, Env, FaultFs, FaultPlan, Fs, ManualClock, MemFs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stdx::{NodeTag, Rng, WallTime};
use store::{AWAY_MAX_DEFAULT, AfterAbsence, Membership, OpenReport, Store, StoreError, StoreOptions};

const SEEDS: u64 = 32;
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const START: WallTime = WallTime::EPOCH_2020;

fn peers() -> Membership {
    let nodes = ["http://a:1", "http://b:1", "http://c:1"].map(str::to_owned);
    Membership::of(nodes.to_vec()).seen_by("http://b:1")
}

fn open_at(
    fs: Arc<dyn Fs>,
    tag: u64,
    membership: Membership,
    wall: WallTime,
) -> Result<(Store, OpenReport), StoreError> {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(wall));
    let options = StoreOptions { membership, ..options(tag) };
    Store::open(Env { fs, clock }, Path::new(DATA), options)
}

/// The record of a settled node with this pending repair.
fn settled(revision: u64, repair_pending: &[u8]) -> NodeRecord {
    let sync_state = SyncState::Settled;
    NodeRecord { revision, sync_state, repair_pending: nodes(repair_pending), ..NodeRecord::default() }
}

fn remember(store: &Store, record: NodeRecord) {
    carry_out(store, &StoreRequest::PersistRecord { record });
}

/// A disk with data of a node of tag 1 whose alive mark is `alive`.
fn disk_of(membership: Membership, alive: WallTime) -> MemFs {
    let disk = MemFs::new();
    let (store, opened) = open_at(Arc::new(disk.clone()), 1, membership, START).unwrap();
    assert!(opened.is_new && opened.stale_shard.is_none());
    carry_out(&store, &write(key(b"a"), value(1, b"old")));
    remember(&store, settled(1, &[]));
    store.note_alive(alive).unwrap();
    drop(store);
    disk.kill()
}

fn holds_old(store: &Store) -> bool {
    read(store, &key(b"a")).is_some()
}

#[test]
fn a_node_absent_for_too_long_begins_empty_and_keeps_its_renamed_data() {
    let noted = START.saturating_add(3600 * SECOND);
    let disk = disk_of(peers(), noted);
    let back = noted.saturating_add(AWAY_MAX_DEFAULT);
    let (store, opened) = open_at(Arc::new(disk.clone()), 2, peers(), back).unwrap();
    assert_eq!((opened.identity.tag, opened.is_new), (NodeTag(2), true));
    assert_eq!(opened.record.sync_state, SyncState::Rebuilding);
    assert!(!holds_old(&store));
    let stale = opened.stale_shard.expect("it says where");
    let name = format!("stale-0000000000000001-{}", back.micros_since_unix_epoch());
    assert_eq!(stale, Path::new(DATA).join(name));
    drop(store);
    let (engine, _) = engine::Engine::open(env(Arc::new(disk)), &stale, options(1).engine).unwrap();
    assert!(engine.get(b"\x01a").unwrap().is_some(), "nothing of it is lost");
}

#[test]
fn without_an_absence_policy_it_refuses_to_start_and_changes_nothing() {
    let noted = START.saturating_add(3600 * SECOND);
    let disk = disk_of(peers(), noted);
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(noted.saturating_add(AWAY_MAX_DEFAULT)));
    let open = |after_absence| {
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        let options = StoreOptions { membership: peers(), after_absence, ..options(2) };
        Store::open(Env { fs, clock: Arc::clone(&clock) }, Path::new(DATA), options)
    };
    let refused = open(AfterAbsence::Refuse).map(|_| ()).expect_err("it was away for too long");
    assert!(matches!(refused, StoreError::AwayTooLong { away_days: 9, .. }), "{refused}");
    let (store, opened) = open(AfterAbsence::Keep).unwrap();
    assert!(holds_old(&store) && opened.stale_shard.is_none() && opened.identity.tag == NodeTag(1));
    drop(store);
    assert!(open(AfterAbsence::Refuse).is_ok(), "it is alive since");
}

#[test]
fn a_node_with_a_clock_ahead_refuses_and_starts_once_the_clock_is_right() {
    let noted = START.saturating_add(HOUR);
    let disk = disk_of(peers(), noted);
    let open_at = |wall: WallTime| {
        let env = Env { fs: Arc::new(disk.clone()), clock: Arc::new(ManualClock::new(wall)) };
        let options = StoreOptions { membership: peers(), after_absence: AfterAbsence::Refuse, ..options(2) };
        Store::open(env, Path::new(DATA), options)
    };
    let refused =
        open_at(noted.saturating_add(DAY * 365)).map(|_| ()).expect_err("it seems to have been away");
    let told = refused.to_string();
    assert!(told.contains("by the clock of this machine"), "{told}");
    assert!(told.contains("If that clock is wrong, set it right and start the node again"), "{told}");
    let (store, opened) = open_at(noted.saturating_add(SECOND)).expect("it was away for a second");
    assert!(holds_old(&store) && opened.stale_shard.is_none() && opened.identity.tag == NodeTag(1));
}

#[test]
fn a_node_after_a_short_absence_keeps_its_data() {
    let noted = START.saturating_add(HOUR);
    let disk = disk_of(peers(), noted);
    let back = noted.saturating_add(AWAY_MAX_DEFAULT.checked_sub(SECOND).unwrap());
    let (store, opened) = open_at(Arc::new(disk.clone()), 2, peers(), back).unwrap();
    assert!(holds_old(&store) && opened.stale_shard.is_none() && !opened.is_new);
    assert_eq!((opened.identity.tag, opened.record), (NodeTag(1), settled(2, &[0, 2])), "it owes a repair");
}

#[test]
fn absences_add_up_until_the_node_has_exchanged_all_with_its_peers() {
    for (still_owed, is_fresh) in [(&[0, 2][..], false), (&[0][..], true), (&[][..], true)] {
        let disk = disk_of(peers(), START);
        let back = START.saturating_add(DAY * 8);
        let (store, opened) = open_at(Arc::new(disk.clone()), 2, peers(), back).unwrap();
        store.note_alive(back).unwrap();
        remember(&store, settled(opened.record.revision + 1, still_owed));
        store.note_alive(back).unwrap();
        drop(store);
        let (store, opened) = open_at(Arc::new(disk), 3, peers(), back.saturating_add(DAY * 8)).unwrap();
        assert_eq!(opened.stale_shard.is_none(), is_fresh, "{still_owed:?}");
        assert_eq!(holds_old(&store), is_fresh, "{still_owed:?}");
    }
}

#[test]
fn the_only_peer_must_be_repaired() {
    let two = Membership::of(peers().nodes[..2].to_vec()).seen_by("http://b:1");
    let disk = disk_of(two.clone(), START);
    let back = START.saturating_add(DAY * 8);
    let (store, opened) = open_at(Arc::new(disk.clone()), 2, two.clone(), back).unwrap();
    assert_eq!(opened.record.repair_pending, nodes(&[0]));
    store.note_alive(back).unwrap();
    drop(store);
    let (_, opened) = open_at(Arc::new(disk), 3, two, back.saturating_add(DAY * 8)).unwrap();
    assert!(opened.stale_shard.is_some());
}

#[test]
fn the_alive_mark_of_an_unsettled_node_does_not_advance() {
    let disk = disk_of(peers(), START);
    let (store, _) = open_at(Arc::new(disk.clone()), 2, peers(), START).unwrap();
    remember(&store, NodeRecord { sync_state: SyncState::Rebuilding, ..settled(2, &[]) });
    store.note_alive(START.saturating_add(DAY)).unwrap();
    drop(store);
    let (store, opened) =
        open_at(Arc::new(disk), 3, peers(), START.saturating_add(AWAY_MAX_DEFAULT)).unwrap();
    assert!(!holds_old(&store) && opened.stale_shard.is_some());
}

#[test]
fn absent_peers_never_hold_back_a_healthy_node() {
    let disk = disk_of(peers(), START);
    let mut now = START;
    for start in 0..4 {
        let (store, opened) = open_at(Arc::new(disk.clone()), 2, peers(), now).expect("it was well");
        assert!(holds_old(&store) && opened.stale_shard.is_none(), "start {start}");
        for _ in 0..9 * 24 {
            // It dropped hints for both.
            remember(&store, settled(opened.record.revision + 1, &[0, 2]));
            now = now.saturating_add(HOUR);
            store.note_alive(now).unwrap();
        }
    }
}

#[test]
fn setting_the_clock_back_hides_no_absence() {
    let noted = START.saturating_add(DAY);
    let disk = disk_of(peers(), noted);
    let (store, _) = open_at(Arc::new(disk.clone()), 2, peers(), START).unwrap();
    store.note_alive(START).unwrap();
    assert!(holds_old(&store));
    drop(store);
    let back = noted.saturating_add(AWAY_MAX_DEFAULT.checked_sub(SECOND).unwrap());
    let (_, opened) = open_at(Arc::new(disk.clone()), 2, peers(), back).unwrap();
    assert!(opened.stale_shard.is_none(), "what was noted is not forgotten");
    let (_, opened) = open_at(Arc::new(disk), 2, peers(), back.saturating_add(SECOND)).unwrap();
    assert!(opened.stale_shard.is_some());
}

#[test]
fn the_mark_of_a_wrong_clock_is_corrected_by_the_clocks_of_the_peers() {
    let year = DAY * 365;
    for (supported, is_corrected) in [(None, false), (Some(START), true)] {
        let disk = disk_of(peers(), START.saturating_add(year));
        let (store, _) = open_at(Arc::new(disk.clone()), 2, peers(), START).unwrap();
        supported.map_or(Ok(()), |wall| store.limit_alive(wall)).unwrap();
        store.note_alive(START).unwrap();
        drop(store);
        let back = START.saturating_add(AWAY_MAX_DEFAULT);
        let (_, opened) = open_at(Arc::new(disk), 2, peers(), back).unwrap();
        assert_eq!(opened.stale_shard.is_some(), is_corrected, "{supported:?}");
    }
}

#[test]
fn a_mark_slightly_ahead_of_the_peers_stays() {
    let noted = START.saturating_add(HOUR);
    let disk = disk_of(peers(), noted);
    let (store, _) = open_at(Arc::new(disk.clone()), 2, peers(), START).unwrap();
    store.limit_alive(START).unwrap();
    drop(store);
    let back = noted.saturating_add(AWAY_MAX_DEFAULT.checked_sub(SECOND).unwrap());
    let (_, opened) = open_at(Arc::new(disk), 2, peers(), back).unwrap();
    assert!(opened.stale_shard.is_none());
}

#[test]
fn a_standalone_node_misses_no_deletes() {
    let alone = Membership::of(Vec::new());
    let disk = disk_of(alone.clone(), START);
    let later = START.saturating_add(AWAY_MAX_DEFAULT * 100);
    let (store, opened) = open_at(Arc::new(disk), 2, alone, later).unwrap();
    assert!(holds_old(&store) && opened.stale_shard.is_none());
}

#[test]
fn an_unreadable_alive_mark_is_reported() {
    let disk = disk_of(peers(), START);
    disk.corrupt(Path::new(DATA).join("alive"), 20, 3).unwrap();
    let refused = open_at(Arc::new(disk), 2, peers(), START).err().expect("a bit is wrong");
    assert!(matches!(refused, StoreError::AliveCorrupt { .. }), "{refused}");
}

#[test]
fn an_absence_without_a_note_is_not_taken_for_none_and_the_operator_decides() {
    let open = |disk: &MemFs, after_absence, wall| {
        let env = Env { fs: Arc::new(disk.clone()), clock: Arc::new(ManualClock::new(wall)) };
        let options = StoreOptions { membership: peers(), after_absence, ..options(2) };
        Store::open(env, Path::new(DATA), options)
    };
    let disk_without_note = || {
        let disk = disk_of(peers(), START);
        disk.remove_file(&Path::new(DATA).join("alive")).unwrap();
        disk
    };
    let disk = disk_without_note();
    let refused = open(&disk, AfterAbsence::Refuse, START).map(|_| ()).expect_err("it may have been away");
    assert!(matches!(refused, StoreError::AbsenceUnknown { .. }), "{refused}");
    assert!(refused.to_string().contains("lacks the file alive"), "{refused}");

    let (store, opened) = open(&disk, AfterAbsence::Keep, START).unwrap();
    assert!(holds_old(&store) && opened.stale_shard.is_none() && !opened.is_new);
    assert_eq!(opened.record, settled(2, &[0, 2]), "it owes a repair");
    drop(store);
    assert!(open(&disk, AfterAbsence::Refuse, START).is_ok(), "the note is there again");

    let (store, opened) = open(&disk_without_note(), AfterAbsence::Rebuild, START).unwrap();
    assert!(!holds_old(&store) && opened.stale_shard.is_some());
    assert_eq!(opened.record.sync_state, SyncState::Rebuilding);
}

#[test]
fn another_cluster_is_refused_before_the_shard_is_renamed() {
    let disk = disk_of(peers(), START);
    let later = START.saturating_add(AWAY_MAX_DEFAULT * 2);
    let mut others = peers();
    others.nodes.push("http://d:1".to_owned());
    let refused = open_at(Arc::new(disk.clone()), 2, others, later).err().expect("another list");
    assert!(matches!(refused, StoreError::IdentityMismatch { .. }), "{refused}");
    assert_eq!(stale_of(&disk), Vec::<PathBuf>::new());
}

/// Paths of the renamed shards.
fn stale_of(disk: &MemFs) -> Vec<PathBuf> {
    let mut names = disk.read_dir(Path::new(DATA)).unwrap();
    names.retain(|name| name.starts_with("stale-"));
    names.into_iter().map(|name| Path::new(DATA).join(name)).collect()
}

#[test]
fn a_crash_while_renaming_the_shard_never_gives_the_old_identity_to_an_empty_node() {
    let back = START.saturating_add(AWAY_MAX_DEFAULT);
    let disk = disk_of(peers(), START);
    let operations = {
        let faults = FaultFs::new(Arc::new(disk.kill()), FaultPlan::none());
        open_at(Arc::new(faults.clone()), 2, peers(), back).unwrap();
        faults.operations()
    };
    for stop in 0..=operations {
        for seed in 0..SEEDS {
            let place = format!("stop {stop}, seed {seed}");
            let disk = disk.kill();
            let plan = FaultPlan::stop_after(stop).tear_last_write();
            let faults = Arc::new(FaultFs::new(Arc::new(disk.clone()), plan));
            drop(open_at(faults, 2, peers(), back));
            let disk = if seed == 0 { disk.kill() } else { disk.crash(&mut Rng::new(seed)) };
            let (store, opened) = open_at(Arc::new(disk.clone()), 3, peers(), back).expect(&place);
            assert_ne!(opened.identity.tag, NodeTag(1), "{place}");
            assert!(!holds_old(&store), "{place}");
            assert_eq!(opened.record.sync_state, SyncState::Rebuilding, "{place}");
            let [stale] = &stale_of(&disk)[..] else { panic!("{place}: {:?}", stale_of(&disk)) };
            let env = env(Arc::new(disk.clone()));
            let (engine, _) = engine::Engine::open(env, stale, options(1).engine).expect(&place);
            assert!(engine.get(b"\x01a").expect(&place).is_some(), "{place}: what is kept is whole");
        }
    }
}

#[test]
fn a_later_record_takes_precedence_over_a_renamed_shard() {
    let disk = disk_of(peers(), START);
    let back = START.saturating_add(AWAY_MAX_DEFAULT);
    let (store, opened) = open_at(Arc::new(disk.clone()), 2, peers(), back).unwrap();
    let mut record = opened.record;
    (record.revision, record.sync_state) = (1, SyncState::Settled);
    remember(&store, record.clone());
    let hint = StoreRequest::Replica(ReplicaRequest::KeepHints {
        key: key(b"h"),
        version: version(1),
        targets: nodes(&[1]),
    });
    carry_out(&store, &hint);
    drop(store);
    let (store, opened) = open_at(Arc::new(disk.kill()), 3, peers(), back).unwrap();
    assert_eq!((opened.record, opened.identity.tag), (record, NodeTag(2)));
    assert_eq!(hints_for(&store, 1).len(), 1);
}
