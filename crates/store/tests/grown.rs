//! The directory of a node that was alone at its first start, and has a peer by its layout record.

mod common;

use cluster::{
    FEATURE_LEVEL_PLANS, JoiningNode, LayoutEpoch, LayoutRecord, NodeIndex, NodeSet, RecordHash, StoreRequest,
};
use common::{DATA, carry_out, copy_of, key, options, write};
use engine::Cursor;
use env::{Env, ManualClock, MemFs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Hlc, NodeTag, Version, WallTime};
use store::{
    AfterAbsence, AfterRestore, DirectoryCluster, Membership, OpenReport, Store, StoreError, StoreOptions,
};

const START: WallTime = WallTime::EPOCH_2020;
const HOUR: Duration = Duration::from_secs(3_600);

struct Machine {
    disk: MemFs,
    clock: Arc<ManualClock>,
}

impl Machine {
    fn new() -> Self {
        Self { disk: MemFs::new(), clock: Arc::new(ManualClock::new(START)) }
    }

    fn env(&self, disk: &MemFs) -> Env {
        Env { fs: Arc::new(disk.clone()), clock: Arc::clone(&self.clock) as _ }
    }

    /// Opens the directory on a disk as a start does: with the members of its record.
    fn open(&self, disk: &MemFs) -> Result<(Store, OpenReport), StoreError> {
        let env = self.env(disk);
        let membership = match DirectoryCluster::find(&env, Path::new(DATA))? {
            DirectoryCluster::New => Membership::of(vec!["http://n0:1".to_owned()]),
            DirectoryCluster::Listed(found)
            | DirectoryCluster::Recorded(found)
            | DirectoryCluster::Named(found) => found,
        };
        Store::open(
            env,
            Path::new(DATA),
            StoreOptions { membership, after_absence: AfterAbsence::Refuse, ..options(1) },
        )
    }
}

/// The record by which the node of `first`, with this id, has a peer.
fn grown(first: &LayoutRecord, id: NodeTag) -> LayoutRecord {
    let mut record = first.clone();
    (record.epoch, record.parent) = (LayoutEpoch(2), RecordHash([1; 32]));
    record.feature_level = FEATURE_LEVEL_PLANS;
    record.members[0].node_id = Some(id);
    let (url, zone) = ("http://n1:1".to_owned(), String::new());
    let feature_level_max = FEATURE_LEVEL_PLANS;
    let member_url = "http://a:1".to_owned();
    let node = JoiningNode { id: NodeTag(77), url, zone, weight: 1, feature_level_max, member_url };
    record.with_joined(node).expect("it may join")
}

/// A store with a value that expires in an hour, whose node gets a peer afterwards.
fn with_peer(machine: &Machine) -> Store {
    let (store, opened) = machine.open(&machine.disk).expect("a new directory");
    let expires_at = Some(START.saturating_add(HOUR));
    let meta = CellMeta { expires_at, ..CellMeta::value(Version::new(Hlc::at(START), NodeTag(1)), 1) };
    carry_out(&store, &write(key(b"key"), Cell { meta, value: "value".into() }));
    store.adopt_layout(grown(&opened.layout, store.tag())).expect("a newer record");
    store
}

/// The kinds of all cells after all compactions.
fn kinds_after_compaction(store: &Store) -> Vec<CellKind> {
    let engine = store.engine();
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    let mut cursor = engine.snapshot().cursor();
    cursor.seek(&[store::keyspace::ENTITIES]).expect("seek");
    let mut kinds = Vec::new();
    while let Some((_, cell)) = cursor.entry() {
        kinds.push(cell.meta.kind);
        cursor.advance().expect("advance");
    }
    kinds
}

#[test]
fn its_compaction_follows_the_horizon_of_the_cluster_from_the_first_peer_on() {
    let machine = Machine::new();
    let store = with_peer(&machine);
    store.set_horizon(START, START);
    machine.clock.advance(10 * HOUR);
    assert_eq!(kinds_after_compaction(&store), [CellKind::Value], "by its clock it has expired");
    store.engine().close().expect("it closes");
    drop(store);

    let (store, _) = machine.open(&machine.disk).expect("the same directory");
    machine.clock.advance(10 * HOUR);
    assert_eq!(kinds_after_compaction(&store), [CellKind::Value], "no horizon was set since the start");
    store.set_horizon(START.saturating_add(2 * HOUR), START);
    assert_eq!(kinds_after_compaction(&store), [CellKind::Tombstone]);
}

#[test]
fn a_copy_of_it_is_not_opened_before_it_is_decided_what_its_peer_did_since() {
    let machine = Machine::new();
    let store = with_peer(&machine);
    let copy = copy_of(&machine.disk, &store.checkpoint().expect("a checkpoint").path);
    let refused = machine.open(&copy).map(|_| ()).unwrap_err();
    assert!(matches!(refused, StoreError::CopyUndecided { .. }), "{refused}");
    store::prepare_restored(&machine.env(&copy), Path::new(DATA), AfterRestore::Keep).expect("whole");
    let (_, opened) = machine.open(&copy).expect("it is decided");
    assert_eq!(opened.record.repair_pending, NodeSet::from_iter([NodeIndex(1)]), "its peer");
}

#[test]
fn a_start_finds_how_long_it_was_absent_since_its_first_peer() {
    let machine = Machine::new();
    // It was alone for longer than a node may be absent.
    let (store, opened) = machine.open(&machine.disk).expect("a new directory");
    machine.clock.advance(100 * 24 * HOUR);
    store.adopt_layout(grown(&opened.layout, store.tag())).expect("a newer record");
    store.check_for_pause().expect("it has not been absent");
    drop(store);
    let stopped = machine.disk.kill();
    machine.clock.advance(HOUR);
    machine.open(&stopped).expect("an hour is short");
    machine.clock.advance(100 * 24 * HOUR);
    let refused = machine.open(&stopped).map(|_| ()).unwrap_err();
    assert!(matches!(refused, StoreError::AwayTooLong { .. }), "{refused}");
}

#[test]
fn a_checkpoint_of_a_restarted_node_is_marked_too() {
    let machine = Machine::new();
    let store = with_peer(&machine);
    carry_out(&store, &StoreRequest::RaiseClockBound { bound: Hlc::from_bits(1 << 40) });
    store.engine().close().expect("it closes");
    drop(store);
    let (store, _) = machine.open(&machine.disk).expect("the same directory");
    let copy = copy_of(&machine.disk, &store.checkpoint().expect("a checkpoint").path);
    assert!(matches!(machine.open(&copy).map(|_| ()), Err(StoreError::CopyUndecided { .. })));
}
