//! Writes that need not be logged: a memtable holds their version or a newer one.

mod support;

use engine::{Covering, Engine, Error, Options};
use env::{Fault, FaultFs, FaultPlan, OperationKind, OperationMatch};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use stdx::{Cell, CellMeta, CellRef, Hlc, NodeTag, Version, WallTime};
use support::{DIR, World, batch_of, small_options};

const KEY: &[u8] = b"k";

fn meta(hlc: u64, from: u8) -> CellMeta {
    CellMeta::value(Version::new(Hlc::from_bits(hlc), NodeTag(1)), from)
}

/// Submits a cell of [`KEY`] and does not commit it.
fn submit(engine: &Engine, meta: CellMeta) {
    let write = (KEY.to_vec(), Cell { meta, value: "value".into() });
    engine.submit(batch_of([&write]), Box::new(|_| ()));
}

/// The cell that covers one of this key and metadata, with the value that [`submit`] writes.
fn covering_of(engine: &Engine, key: &[u8], meta: CellMeta) -> Option<Covering> {
    engine.find_covering(key, CellRef { meta, value: b"value" })
}

/// Waits for the cell that covers one with this metadata. The receiver gets the outcome.
fn follow(engine: &Engine, meta: CellMeta) -> Option<Receiver<Result<(), Error>>> {
    let (tell, told) = channel();
    let covering = covering_of(engine, KEY, meta)?;
    covering.when_durable(move |outcome| tell.send(outcome).expect("somebody listens"));
    Some(told)
}

/// An engine on a disk with faults.
fn open_with_faults(world: &World) -> (Engine, FaultFs) {
    let faults = FaultFs::new(Arc::new(world.disk.clone()), FaultPlan::none());
    let env = world.env_over(Arc::new(faults.clone()));
    let (engine, _) = Engine::open(env, Path::new(DIR), small_options()).expect("open");
    (engine, faults)
}

#[test]
fn a_cell_covers_its_own_version_and_older_ones_with_no_greater_from() {
    let engine = World::new(1).open(&small_options());
    submit(&engine, meta(5, 2));
    assert!(engine.step_commit().expect("commit"));
    let covered_by = |meta| covering_of(&engine, KEY, meta).map(|covering| covering.version());
    for from in [1, 2] {
        for hlc in [1, 5] {
            assert_eq!(covered_by(meta(hlc, from)), Some(meta(5, 2).version));
        }
    }
    assert_eq!(covered_by(meta(6, 2)), None, "a newer version");
    for hlc in [1, 5] {
        assert_eq!(covered_by(meta(hlc, 3)), None, "a greater `from` is stored");
    }
    let expiring = CellMeta { expires_at: Some(WallTime::EPOCH_2020), ..meta(5, 2) };
    assert_eq!(covered_by(expiring), None, "another expiry");
    assert_eq!(covered_by(meta(5, 2).buried()), None, "another kind");
    let other_value = CellRef { meta: meta(5, 2), value: b"other" };
    assert!(engine.find_covering(KEY, other_value).is_none(), "another value of this version");
    assert!(covering_of(&engine, b"other", meta(1, 1)).is_none());
}

#[test]
fn a_cell_in_a_table_covers_nothing() {
    let engine = World::new(2).open(&small_options());
    submit(&engine, meta(5, 1));
    assert!(engine.step_commit().expect("commit"));
    assert!(covering_of(&engine, KEY, meta(5, 1)).is_some());
    engine.flush().expect("flush");
    assert!(covering_of(&engine, KEY, meta(5, 1)).is_none());
}

#[test]
fn a_cell_in_a_sealed_memtable_covers() {
    let engine = World::new(3).open(&Options { memtable_bytes: Some(1), ..small_options() });
    submit(&engine, meta(5, 1));
    let write = (b"other".to_vec(), Cell { meta: meta(1, 1), value: "value".into() });
    engine.submit(batch_of([&write]), Box::new(|_| ()));
    assert!(engine.stats().memtables > 1);
    let told = follow(&engine, meta(5, 1)).expect("it is in a memtable");
    assert!(engine.step_commit().expect("commit"));
    assert!(told.try_recv().expect("told").is_ok());
}

#[test]
fn a_covered_write_succeeds_when_the_covering_cell_is_durable_and_not_before() {
    let engine = World::new(4).open(&small_options());
    submit(&engine, meta(5, 1));
    let followers: Vec<_> =
        [meta(5, 1), meta(4, 1)].map(|meta| follow(&engine, meta).expect("it is in a memtable")).into();
    for told in &followers {
        assert!(told.try_recv().is_err(), "the cell is not durable");
    }
    assert!(engine.step_commit().expect("commit"));
    for told in &followers {
        assert!(told.try_recv().expect("told").is_ok());
    }
    let told = follow(&engine, meta(5, 1)).expect("it is in a memtable");
    assert!(told.try_recv().expect("told at once").is_ok());
    assert!(!engine.step_commit().expect("commit"), "a covered write is not logged");
}

#[test]
fn a_covered_write_that_arrives_during_the_sync_waits_for_its_end() {
    let world = World::new(5);
    let (engine, faults) = open_with_faults(&world);
    let (shared, told) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    shared.set(engine.clone()).expect("set once");
    let (of_hook, tell) = (Arc::clone(&shared), Arc::clone(&told));
    let is_early = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&is_early);
    faults.set_plan(FaultPlan::on_operation(move |call| {
        if call.kind == OperationKind::SyncData && tell.get().is_none() {
            let engine: &Engine = of_hook.get().expect("it is open");
            let receiver = follow(engine, meta(5, 1)).expect("it is being committed");
            note.store(receiver.try_recv().is_ok(), Ordering::Relaxed);
            tell.set(std::sync::Mutex::new(receiver)).expect("the first sync");
        }
        None
    }));
    submit(&engine, meta(5, 1));
    assert!(engine.step_commit().expect("commit"));
    assert!(!is_early.load(Ordering::Relaxed), "the sync had not begun");
    let receiver = told.get().expect("the group was synced").lock().expect("no thread panicked");
    assert!(receiver.try_recv().expect("told").is_ok());
    faults.clear();
}

#[test]
fn a_covered_write_fails_with_the_batch_that_covers_it() {
    let world = World::new(6);
    let (engine, faults) = open_with_faults(&world);
    submit(&engine, meta(1, 1));
    assert!(engine.step_commit().expect("commit"));
    submit(&engine, meta(5, 1));
    let told = follow(&engine, meta(4, 1)).expect("it is in a memtable");
    let older = follow(&engine, meta(1, 1)).expect("it is durable");
    let is_write = OperationMatch::kind(OperationKind::Write).sticky();
    faults.set_plan(FaultPlan::fail(is_write, Fault::Error(io::ErrorKind::StorageFull)));
    assert!(engine.step_commit().expect("the group fails, not the engine"));
    assert!(matches!(told.try_recv().expect("told"), Err(Error::Full { .. })));
    assert!(older.try_recv().expect("told").is_ok());
    faults.clear();
    assert!(covering_of(&engine, KEY, meta(4, 1)).is_none(), "the newer cell was aborted");
    assert!(covering_of(&engine, KEY, meta(1, 1)).is_some());
}

#[test]
fn a_completion_that_panics_keeps_no_outcome_from_covered_writes() {
    let engine = World::new(7).open(&small_options());
    let write = (KEY.to_vec(), Cell { meta: meta(5, 1), value: "value".into() });
    engine.submit(batch_of([&write]), Box::new(|_| panic!("a completion that panics")));
    let told = follow(&engine, meta(5, 1)).expect("it is in a memtable");
    let committed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| engine.step_commit()));
    assert!(committed.is_err(), "the panic is resumed");
    assert!(told.try_recv().expect("told").is_ok());
}
