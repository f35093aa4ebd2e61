//! The horizon: the time up to which compaction may drop dead cells, with and without peers.

mod common;

use common::{DATA, key, options, write};
use engine::Cursor;
use env::{Env, ManualClock, MemFs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Hlc, NodeTag, Version, WallTime};
use store::{Membership, Store, StoreOptions};

const START: WallTime = WallTime::EPOCH_2020;
const HOUR: Duration = Duration::from_secs(3_600);

/// A store of a cluster of `nodes` nodes that holds one value, which expires in an hour.
fn with_expiring(nodes: usize) -> (Store, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(START));
    let env = Env { fs: Arc::new(MemFs::new()), clock: Arc::clone(&clock) as _ };
    let names = (0..nodes).map(|node| format!("http://node{node}:8080")).collect();
    let options = StoreOptions { membership: Membership::of(names), ..options(1) };
    let (store, _) = Store::open(env, Path::new(DATA), options).expect("a new directory");
    let expires_at = Some(START.saturating_add(HOUR));
    let meta = CellMeta { expires_at, ..CellMeta::value(Version::new(Hlc::at(START), NodeTag(1)), 1) };
    let value = Cell { meta, value: "value".into() };
    common::carry_out(&store, &write(key(b"key"), value));
    (store, clock)
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
fn a_node_with_peers_drops_cells_by_the_horizon_and_not_by_its_clock() {
    let (store, clock) = with_expiring(3);
    clock.advance(10 * HOUR);
    assert_eq!(kinds_after_compaction(&store), [CellKind::Value], "no horizon was set");
    store.set_horizon(START.saturating_add(HOUR).saturating_sub(Duration::from_micros(1)), START);
    assert_eq!(kinds_after_compaction(&store), [CellKind::Value], "it has not expired by the horizon");
    store.set_horizon(START.saturating_add(2 * HOUR), START);
    assert_eq!(kinds_after_compaction(&store), [CellKind::Tombstone]);
}

#[test]
fn a_standalone_node_drops_cells_by_its_clock() {
    let (store, clock) = with_expiring(1);
    store.set_horizon(WallTime::default(), WallTime::default());
    clock.advance(10 * HOUR);
    assert_eq!(kinds_after_compaction(&store), [CellKind::Tombstone]);
}
