//! Asynchronous commits: visibility, flushing and completions.

mod support;

use engine::{Batch, Durability, Error, Options, Progress};
use env::{Fault, FaultFs, FaultPlan, OperationKind, OperationMatch};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use stdx::Cell;
use support::{DIR, World, batch_of, small_options};

/// Submits a value of `len` bytes under `key`; the receiver gets the result.
fn submit(
    world: &mut World,
    engine: &engine::Engine,
    key: &[u8],
    len: usize,
) -> Receiver<Result<engine::CommitOutcome, Error>> {
    let write = (key.to_vec(), Cell::value(world.next_version(), 1, vec![7; len].into()));
    let (tell, told) = channel();
    engine.submit(batch_of([&write]), Box::new(move |result| tell.send(result).expect("somebody listens")));
    told
}

/// The outcome of a write if no job frees space for it.
fn outcome(
    world: &World,
    engine: &engine::Engine,
    told: &Receiver<Result<engine::CommitOutcome, Error>>,
) -> Result<engine::CommitOutcome, Error> {
    engine.step_commit().expect("commit");
    told.try_recv().unwrap_or_else(|_| {
        world.clock.advance(Duration::from_secs(1));
        engine.step_commit().expect("commit");
        told.try_recv().expect("it waits no longer")
    })
}

#[test]
fn a_batch_is_seen_when_it_is_committed_and_not_before() {
    let mut world = World::new(1);
    let engine = world.open(&small_options());
    let told = submit(&mut world, &engine, b"k", 10);
    assert_eq!(engine.get(b"k").expect("get"), None);
    assert!(told.try_recv().is_err(), "not told before it is durable");
    assert!(engine.step_commit().expect("commit"));
    assert!(told.try_recv().expect("told").is_ok());
    assert!(engine.get(b"k").expect("get").is_some());
    assert!(!engine.step_commit().expect("commit"), "nothing is left");
}

#[test]
fn a_memtable_is_flushed_only_when_all_of_it_is_durable() {
    let mut world = World::new(2);
    let engine = world.open(&Options { memtables_max: 8, ..small_options() });
    let mut told = Vec::new();
    while engine.stats().memtables < 3 {
        told.push(submit(&mut world, &engine, format!("{}", told.len()).as_bytes(), 2_000));
    }
    assert_eq!(engine.step_flush(u64::MAX).expect("step"), Progress::Idle, "nothing of it is durable");
    assert!(engine.step_commit().expect("commit"));
    assert_eq!(engine.step_flush(u64::MAX).expect("step"), Progress::Worked);
    for told in told {
        assert!(told.try_recv().expect("told").is_ok());
    }
}

#[test]
fn writes_are_refused_when_memtables_are_full_and_admitted_after_the_flush() {
    let mut world = World::new(3);
    let engine = world.open(&small_options());
    let mut refused = None;
    for number in 0..1_000 {
        let told = submit(&mut world, &engine, format!("{number}").as_bytes(), 2_000);
        if let Err(error) = outcome(&world, &engine, &told) {
            refused = Some((number, error));
            break;
        }
    }
    let (number, error) = refused.expect("memory is bounded");
    assert!(matches!(error, Error::Overloaded { .. }), "{error}");
    assert_eq!(
        engine.get(format!("{number}").as_bytes()).expect("get"),
        None,
        "a refused write is not there"
    );
    assert!(engine.get(b"0").expect("get").is_some(), "reads go on");
    while engine.step_flush(u64::MAX).expect("step") == Progress::Worked {}
    let told = submit(&mut world, &engine, b"again", 2_000);
    engine.step_commit().expect("commit");
    assert!(told.try_recv().expect("told").is_ok());
}

#[test]
fn the_rate_that_is_permitted_falls_before_writes_are_refused() {
    let mut world = World::new(4);
    let engine = world.open(&Options { durability: Durability::Os, ..small_options() });
    let mut slowed_at = None;
    for number in 0..1_000 {
        let told = submit(&mut world, &engine, format!("{number}").as_bytes(), 500);
        if outcome(&world, &engine, &told).is_err() {
            let slowed_at = slowed_at.expect("slowed before refused");
            assert!(number > slowed_at + 5, "slowed at {slowed_at}, refused at {number}");
            return;
        }
        if engine.backlog().buffered_fraction > 0.6 {
            slowed_at = slowed_at.or(Some(number));
        }
    }
    panic!("memory is bounded");
}

#[test]
fn writes_behind_a_failed_sync_fail_and_no_later_write_is_admitted() {
    let mut world = World::new(5);
    let plan = FaultPlan::none();
    let faults = FaultFs::new(Arc::new(world.disk.clone()), plan);
    let env = world.env_over(Arc::new(faults.clone()));
    let (engine, _) = engine::Engine::open(env, Path::new(DIR), small_options()).expect("open");
    let told: Vec<_> = (0..3).map(|number| submit(&mut world, &engine, &[number], 10)).collect();
    faults.set_plan(FaultPlan::fail(
        OperationMatch::kind(OperationKind::SyncData).sticky(),
        Fault::DeviceError,
    ));
    assert!(matches!(engine.step_commit(), Err(Error::Poisoned { .. })));
    for told in told {
        assert!(matches!(told.try_recv().expect("told"), Err(Error::Poisoned { .. })));
    }
    assert!(engine.poison().is_some());
    let told = submit(&mut world, &engine, b"k", 10);
    assert!(matches!(told.try_recv().expect("told at once"), Err(Error::Poisoned { .. })));
    assert_eq!(engine.get(&[0]).expect("get"), None, "what may be undone is not seen");
}

#[test]
fn a_batch_with_a_cell_that_is_too_large_is_refused_whole() {
    let mut world = World::new(10);
    let engine = world.open(&small_options());
    let cell = Cell::value(world.next_version(), 1, vec![7; 10].into());
    let long_key = vec![b'k'; Batch::KEY_BYTES_MAX + 1];
    let long_value = Cell::value(world.next_version(), 1, vec![0; Batch::VALUE_BYTES_MAX + 1].into());
    let refused: [(&[u8], &Cell); 3] = [(b"", &cell), (&long_key, &cell), (b"long", &long_value)];
    for (key, wrong) in refused {
        for cells in
            [vec![(key, wrong)], vec![(b"before".as_slice(), &cell), (key, wrong), (b"behind", &cell)]]
        {
            let batch = || {
                let mut batch = Batch::new();
                cells.iter().for_each(|(key, cell)| batch.put(key, cell.as_ref()));
                batch
            };
            assert!(matches!(engine.write(batch()), Err(Error::Invalid(_))));
            let (tell, told) = channel();
            engine.submit(batch(), Box::new(move |result| tell.send(result).expect("somebody listens")));
            assert!(matches!(told.try_recv().expect("told at once"), Err(Error::Invalid(_))));
        }
    }
    assert!(!engine.step_commit().expect("commit"), "nothing waits");
    for key in [b"before".as_slice(), b"behind"] {
        assert_eq!(engine.get(key).expect("get"), None);
    }
    let mut longest = Batch::new();
    longest.put(&long_key[1..], cell.as_ref());
    engine.write(longest).expect("the longest key");
}

/// Submits a write whose completion panics.
fn submit_that_panics(world: &mut World, engine: &engine::Engine, key: &[u8]) {
    let write = (key.to_vec(), Cell::value(world.next_version(), 1, vec![7; 10].into()));
    engine.submit(batch_of([&write]), Box::new(|_| panic!("a completion that panics")));
}

/// The panic with which a commit ends.
fn panic_of_commit(engine: &engine::Engine) -> &'static str {
    let panic = catch_unwind(AssertUnwindSafe(|| engine.step_commit())).expect_err("the panic is resumed");
    panic.downcast_ref::<&str>().copied().expect("the panic of the completion")
}

#[test]
fn a_completion_that_panics_keeps_no_outcome_from_the_others_of_its_group() {
    let mut world = World::new(8);
    let engine = world.open(&small_options());
    let before = submit(&mut world, &engine, b"1", 10);
    submit_that_panics(&mut world, &engine, b"2");
    let behind = submit(&mut world, &engine, b"3", 10);
    assert_eq!(panic_of_commit(&engine), "a completion that panics");
    for told in [before, behind] {
        assert!(told.try_recv().expect("told").is_ok());
    }
    assert!(engine.get(b"2").expect("get").is_some(), "the group was committed");
    let later = submit(&mut world, &engine, b"4", 10);
    assert!(engine.step_commit().expect("commit"));
    assert!(later.try_recv().expect("told").is_ok());
}

#[test]
fn a_completion_that_panics_keeps_no_failure_from_the_others() {
    let mut world = World::new(9);
    let faults = FaultFs::new(Arc::new(world.disk.clone()), FaultPlan::none());
    let env = world.env_over(Arc::new(faults.clone()));
    let (engine, _) = engine::Engine::open(env, Path::new(DIR), small_options()).expect("open");
    submit_that_panics(&mut world, &engine, b"1");
    let behind = submit(&mut world, &engine, b"2", 10);
    let plan = FaultPlan::fail(OperationMatch::kind(OperationKind::SyncData).sticky(), Fault::DeviceError);
    faults.set_plan(plan);
    assert_eq!(panic_of_commit(&engine), "a completion that panics");
    assert!(matches!(behind.try_recv().expect("told"), Err(Error::Poisoned { .. })));
}

#[test]
fn stalled_writes_fail_when_the_flush_fails() {
    let mut world = World::new(7);
    let faults = FaultFs::new(Arc::new(world.disk.clone()), FaultPlan::none());
    let env = world.env_over(Arc::new(faults.clone()));
    let (engine, _) = engine::Engine::open(env, Path::new(DIR), small_options()).expect("open");
    for number in 0..2 {
        let told = submit(&mut world, &engine, &[number], 20_000);
        engine.step_commit().expect("commit");
        assert!(told.try_recv().expect("told").is_ok());
    }
    let waiting = submit(&mut world, &engine, b"k", 10);
    faults.set_plan(FaultPlan::fail(
        OperationMatch::kind(OperationKind::SyncData).sticky(),
        Fault::DeviceError,
    ));
    assert!(matches!(engine.step_flush(u64::MAX), Err(Error::Poisoned { .. })));
    assert!(matches!(engine.step_commit(), Err(Error::Poisoned { .. })));
    assert!(matches!(waiting.try_recv().expect("told"), Err(Error::Poisoned { .. })));
}

#[test]
fn a_value_larger_than_all_memtables_together_does_not_shut_out_the_next() {
    let mut world = World::new(8);
    let engine = world.open(&Options { memtable_bytes: Some(1 << 20), ..small_options() });
    // At the least permitted rate it takes longer than a write may wait.
    let mut is_taken = |number| {
        let told = submit(&mut world, &engine, &[number], 3 << 20);
        outcome(&world, &engine, &told).is_ok()
    };
    assert!(is_taken(0));
    for number in 1..3 {
        assert!(!is_taken(number), "the one before is in memory");
        while engine.step_flush(u64::MAX).expect("flush") == Progress::Worked {}
        assert!(is_taken(number), "the one before was sealed");
    }
}

#[test]
fn small_writes_behind_a_value_larger_than_all_memtables_are_admitted() {
    let mut world = World::new(9);
    let engine = world.open(&Options { memtable_bytes: Some(1 << 20), ..small_options() });
    let mut is_taken = |number, bytes| {
        let told = submit(&mut world, &engine, &[number], bytes);
        outcome(&world, &engine, &told).is_ok()
    };
    assert!(is_taken(0, 16 << 20));
    for number in 1..100 {
        assert!(is_taken(number, 1 << 10), "{number}");
    }
    assert!(!is_taken(100, 16 << 20), "the one before is in memory");
}

#[test]
fn a_commit_reports_cells_that_a_greater_version_supersedes() {
    let mut world = World::new(6);
    let engine = world.open(&small_options());
    let (old, new) = (world.next_version(), world.next_version());
    let newer = (b"k".to_vec(), Cell::value(new, 1, "new".into()));
    assert!(engine.write(batch_of([&newer])).expect("write").superseded.is_empty());
    let late = (b"k".to_vec(), Cell::value(old, 1, "old".into()));
    let other = (b"a".to_vec(), Cell::value(old, 1, "other".into()));
    assert_eq!(engine.write(batch_of([&other, &late])).expect("write").superseded, [1]);
}

#[test]
fn a_write_that_finds_its_own_version_for_more_nodes_is_not_superseded() {
    let mut world = World::new(7);
    let engine = world.open(&small_options());
    let version = world.next_version();
    let repaired = (b"k".to_vec(), Cell::value(version, 3, "value".into()));
    let original = (b"k".to_vec(), Cell::value(version, 1, "value".into()));
    assert!(repaired.1.as_ref().supersedes(&original.1.as_ref()), "a read finds the repaired one");
    assert!(engine.write(batch_of([&repaired])).expect("write").superseded.is_empty());
    assert!(engine.write(batch_of([&original])).expect("write").superseded.is_empty());
}

#[test]
fn a_commit_reports_the_timestamps_of_its_stages() {
    const SYNC: Duration = Duration::from_millis(30);
    const WRITE: Duration = Duration::from_millis(4);
    let mut world = World::new(7);
    let faults = FaultFs::new(Arc::new(world.disk.clone()), FaultPlan::none());
    let env = world.env_over(Arc::new(faults.clone()));
    for durability in [Durability::Sync, Durability::Os] {
        faults.set_plan(FaultPlan::none());
        let options = Options { durability, ..small_options() };
        let (engine, _) = engine::Engine::open(env.clone(), Path::new(DIR), options).expect("open");
        let clock = Arc::clone(&world.clock);
        faults.set_plan(FaultPlan::on_operation(move |operation| {
            let duration = match operation.kind {
                OperationKind::SyncData => SYNC,
                OperationKind::Write => WRITE,
                _ => return None,
            };
            let clock = Arc::clone(&clock);
            Some(Fault::Delay { duration, wait: Arc::new(move |delay| clock.advance(delay)) })
        }));
        let told = submit(&mut world, &engine, b"k", 10);
        world.clock.advance(Duration::from_millis(11));
        let taken = env::Clock::now(&*world.clock).mono;
        engine.step_commit().expect("commit");
        let times = told.try_recv().expect("told").expect("committed").times;
        let written = taken + WRITE;
        let synced = if durability == Durability::Sync { written + SYNC } else { written };
        assert_eq!((times.dequeued, times.written), (taken, written), "{durability:?}");
        assert_eq!((times.synced, times.published), (synced, synced), "{durability:?}");
        assert_eq!(times.paused, Duration::ZERO);
    }
}
