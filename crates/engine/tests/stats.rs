//! Statistics of known operations: exact counts, on an in-memory disk.

mod support;

use engine::internals::wal::record::RECORD_HEADER_LEN;
use engine::{Durability, Engine, Error, ErrorKind, Options, Progress, TryGet};
use env::{Fault, FaultFs, FaultPlan, Fs, OperationKind, OperationMatch};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use stdx::Cell;
use stdx::histogram::HistogramSnapshot;
use support::{DIR, GRACE, World, batch_of, small_options};

/// Length of a group header, as in `docs/storage-format/wal.md`.
const GROUP_HEADER_BYTES: u64 = 48;

/// Opens an engine on `fs`, which wraps the disk of `world`.
fn open_over(world: &World, fs: &FaultFs, options: &Options) -> Engine {
    Engine::open(world.env_over(Arc::new(fs.clone())), Path::new(DIR), options.clone()).expect("opened").0
}

fn disk_syncs(world: &World) -> u64 {
    world.disk.counters().counts().syncs
}

/// Lengths of all existing table files.
fn table_lengths(world: &World) -> Vec<u64> {
    let names = world.disk.file_names().into_iter();
    let tables = names.filter(|name| name.extension().is_some_and(|extension| extension == "sst"));
    tables.map(|name| world.disk.read_file(name).expect("read").len() as u64).collect()
}

/// Writes incompressible values, so that the lengths of files are close to those of the data.
fn write_of(world: &mut World, key: &[u8], value_bytes: usize) -> (Vec<u8>, Cell) {
    let mut value = vec![0; value_bytes];
    world.rng.fill(&mut value);
    (key.to_vec(), Cell::value(world.next_version(), 1, value.into()))
}

fn submit(
    world: &mut World,
    engine: &Engine,
    key: &[u8],
    value_bytes: usize,
) -> Receiver<Result<engine::CommitOutcome, Error>> {
    let write = write_of(world, key, value_bytes);
    let (tell, told) = channel();
    engine.submit(batch_of([&write]), Box::new(move |result| tell.send(result).expect("somebody listens")));
    told
}

fn put(world: &mut World, engine: &Engine, key: &[u8], value_bytes: usize) {
    let write = write_of(world, key, value_bytes);
    engine.write(batch_of([&write])).expect("written");
}

/// The values of a histogram: the bound of each bucket and its count.
fn buckets(snapshot: &HistogramSnapshot) -> Vec<(u64, u64)> {
    let mut below = 0;
    let counted = HistogramSnapshot::bounds().map(|bound| {
        let up_to = snapshot.count_up_to(bound);
        let count = up_to - std::mem::replace(&mut below, up_to);
        (bound, count)
    });
    counted.filter(|(_, count)| *count > 0).collect()
}

/// Seals the active memtable by filling it, and flushes all sealed ones.
fn flush(world: &mut World, engine: &Engine, number: u64) {
    let before = engine.stats().jobs.flushes;
    for filler in 0.. {
        if engine.stats().jobs.flushes > before {
            return;
        }
        put(world, engine, format!("filler-{number:04}-{filler:04}").as_bytes(), 1_000);
        while engine.step_flush(u64::MAX).expect("flush") == Progress::Worked {}
    }
}

fn compact(engine: &Engine) {
    while engine.step_compaction(0, u64::MAX).expect("compaction") == Progress::Worked {}
}

#[test]
fn three_writes_that_wait_are_one_group_and_one_sync() {
    let mut world = World::new(1);
    let engine = world.open(&small_options());
    let told: Vec<_> = [b"a", b"b", b"c"].map(|key| submit(&mut world, &engine, key, 10)).into();
    let waiting = engine.stats();
    assert_eq!((waiting.queued_batches, waiting.wal.groups), (3, 0));
    assert!(waiting.memory.queue_bytes > 0);

    let syncs = disk_syncs(&world);
    assert!(engine.step_commit().expect("commit"));
    let stats = engine.stats();
    assert_eq!(disk_syncs(&world) - syncs, 1);
    assert_eq!((stats.wal.groups, stats.wal.batches, stats.wal.cells), (1, 3, 3));
    assert_eq!(buckets(&stats.wal.group_cells), [(3, 1)]);
    assert_eq!(stats.wal.group_cells.sum(), 3);
    assert_eq!(stats.wal.sync_nanos.count(), 1);
    assert_eq!(stats.wal.data_bytes, 3 * (1 + 10));
    // Flags, version and two lengths of a byte each, beside key and value.
    assert_eq!(stats.wal.bytes, 3 * (RECORD_HEADER_LEN as u64 + 2 + 16 + 2 + 11));
    assert_eq!(stats.wal.group_bytes.sum(), stats.wal.bytes);
    assert_eq!(stats.wal.written_bytes, stats.wal.bytes + GROUP_HEADER_BYTES);
    assert_eq!((stats.queued_batches, stats.memory.queue_bytes), (0, 0));
    assert!(told.iter().all(|told| told.try_recv().expect("told").is_ok()));

    let writes = [b"d", b"e"].map(|key| write_of(&mut world, key, 10));
    engine.write(batch_of(&writes)).expect("written");
    let stats = engine.stats();
    assert_eq!((stats.wal.groups, stats.wal.batches, stats.wal.cells), (2, 4, 5));
    assert_eq!(buckets(&stats.wal.group_cells), [(2, 1), (3, 1)]);
    assert_eq!(stats.wal.sync_nanos.count(), 2);
}

#[test]
fn without_syncs_nothing_is_timed_until_the_log_is_closed() {
    let mut world = World::new(2);
    let engine = world.open(&Options { durability: Durability::Os, ..small_options() });
    put(&mut world, &engine, b"a", 10);
    put(&mut world, &engine, b"b", 10);
    let stats = engine.stats();
    assert_eq!((stats.wal.groups, stats.wal.sync_nanos.count()), (2, 0));
    engine.close().expect("closed");
    let stats = engine.stats();
    assert_eq!(stats.wal.sync_nanos.count(), 2, "before the closing record, and of it");
    assert_eq!(stats.wal.written_bytes, stats.wal.bytes + 3 * GROUP_HEADER_BYTES);
}

#[test]
fn the_time_of_a_sync_is_that_of_the_device() {
    let mut world = World::new(3);
    let fs = FaultFs::new(Arc::new(world.disk.clone()), FaultPlan::none());
    let engine = open_over(&world, &fs, &small_options());
    let took = Duration::from_micros(900);
    let clock = Arc::clone(&world.clock);
    let slow = Fault::Delay { duration: took, wait: Arc::new(move |duration| clock.advance(duration)) };
    // A slow write is not a slow sync.
    fs.set_plan(FaultPlan::fail(OperationMatch::kind(OperationKind::Write).sticky(), slow.clone()));
    put(&mut world, &engine, b"a", 10);
    assert_eq!(engine.stats().wal.sync_nanos.sum(), 0);
    fs.set_plan(FaultPlan::fail(OperationMatch::kind(OperationKind::SyncData).sticky(), slow));
    put(&mut world, &engine, b"b", 10);
    let sync_nanos = engine.stats().wal.sync_nanos;
    assert_eq!((sync_nanos.count(), sync_nanos.sum()), (2, 900_000));
    assert_eq!(sync_nanos.quantile(1.0), 917_504, "seven eighths of 2^20");
}

#[test]
fn filters_count_what_they_spare_and_what_they_do_not() {
    let mut world = World::new(4);
    let options = Options { filter_bits_per_key: 1, level0_tables: 100, ..small_options() };
    let engine = world.open(&options);
    for number in 0..100u64 {
        put(&mut world, &engine, format!("key-{number:03}").as_bytes(), 10);
    }
    flush(&mut world, &engine, 0);
    let filters = || engine.stats().filters;
    assert_eq!(filters(), Default::default(), "no read yet");

    assert!(engine.get(b"key-007").expect("get").is_some());
    assert_eq!((filters().checked, filters().negatives, filters().false_positives), (1, 0, 0));
    assert_eq!(engine.get(b"zzz").expect("get"), None);
    assert_eq!(filters().checked, 1, "outside of the table's keys no filter is asked");

    let absent = 500;
    for number in 0..absent {
        assert_eq!(engine.get(format!("key-007-{number}").as_bytes()).expect("get"), None);
    }
    let filters = filters();
    assert_eq!(filters.checked, 1 + absent);
    assert_eq!(filters.negatives + filters.false_positives, absent);
    // A false positive loads or finds a data block, a negative does not.
    let data = engine.stats().cache.data;
    assert_eq!(data.hits + data.misses, 1 + filters.false_positives);
    assert!(filters.negatives > 0 && filters.false_positives > 0, "{filters:?}");
}

#[test]
fn a_lookup_that_would_wait_is_counted_when_it_was_done() {
    let mut world = World::new(9);
    let engine = world.open(&small_options());
    put(&mut world, &engine, b"key", 10);
    flush(&mut world, &engine, 0);
    assert_eq!(engine.get(b"kex").expect("get"), None);
    let before = engine.stats().filters.checked;
    assert_eq!(
        (before, engine.stats().cache.filter.misses),
        (1, 1),
        "the filter is in the cache, no block is"
    );
    world.disk.set_cold(true);
    for _ in 0..3 {
        assert_eq!(engine.try_get(b"key").expect("get"), TryGet::WouldWait);
    }
    assert_eq!(engine.stats().filters.checked, before);
    assert!(engine.get(b"key").expect("get").is_some());
    assert_eq!(engine.stats().filters.checked, before + 1);
}

#[test]
fn amplification_is_that_of_the_files_after_a_known_compaction() {
    let mut world = World::new(5);
    let engine = world.open(&small_options());
    assert_eq!(engine.stats().write_amplification(), None);
    assert_eq!(engine.stats().space_amplification(), None);
    // The same keys in both tables: half of the flushed cells are superseded.
    for _ in 0..2 {
        for number in 0..100u64 {
            put(&mut world, &engine, format!("key-{number:03}").as_bytes(), 100);
        }
        flush(&mut world, &engine, 0);
    }
    let before = engine.stats();
    assert_eq!((before.jobs.flushes, before.levels[0].tables), (2, 2));
    assert_eq!(before.jobs.flushed_bytes, table_lengths(&world).iter().sum::<u64>());
    assert_eq!(before.table_bytes(), table_lengths(&world).iter().sum::<u64>());
    assert_eq!(before.live_bytes, table_lengths(&world).into_iter().max().expect("two tables"));
    assert!(before.space_amplification().expect("tables") > 1.9);

    compact(&engine);
    engine.step_upkeep(u64::MAX).expect("upkeep");
    let after = engine.stats();
    assert_eq!((after.jobs.compactions, after.jobs.moves, after.levels[0].tables), (1, 0, 0));
    assert_eq!(after.jobs.merged_bytes, before.jobs.flushed_bytes);
    assert_eq!(after.jobs.compacted_bytes, table_lengths(&world).iter().sum::<u64>());
    let written =
        after.wal.written_bytes + before.jobs.flushed_bytes + table_lengths(&world).iter().sum::<u64>();
    assert_eq!(after.written_bytes(), written);
    let expected = written as f64 / after.wal.data_bytes as f64;
    assert_eq!(after.write_amplification(), Some(expected));
    assert!((2.0..4.0).contains(&expected), "{expected}: log, flush, and half of it again");
    assert_eq!(after.space_amplification(), Some(1.0), "one level has all");
    assert_eq!(after.levels[1].cells, support::scan(&engine).len() as u64);
}

#[test]
fn a_table_that_moves_is_not_written() {
    let mut world = World::new(6);
    let engine = world.open(&Options { level0_tables: 1, ..small_options() });
    put(&mut world, &engine, b"a", 10);
    flush(&mut world, &engine, 0);
    compact(&engine);
    let jobs = engine.stats().jobs;
    assert_eq!((jobs.compactions, jobs.moves), (1, 1));
    assert_eq!((jobs.merged_bytes, jobs.compacted_bytes), (0, 0));
}

#[test]
fn tombstones_are_counted_by_level() {
    let mut world = World::new(7);
    let engine = world.open(&small_options());
    for number in 0..5u64 {
        let write = (format!("key-{number}").into_bytes(), Cell::tombstone(world.next_version(), 1));
        engine.write(batch_of([&write])).expect("written");
    }
    world.clock.advance(GRACE / 2);
    flush(&mut world, &engine, 0);
    assert_eq!(engine.stats().levels[0].tombstones, 5);
}

#[test]
fn refused_writes_are_counted_by_reason() {
    let mut world = World::new(8);
    let engine = world.open(&small_options());
    let refused = (0..1_000).find_map(|number| {
        let told = submit(&mut world, &engine, format!("{number}").as_bytes(), 2_000);
        engine.step_commit().expect("commit");
        told.try_recv()
            .unwrap_or_else(|_| {
                // It waits for space that no job frees.
                world.clock.advance(Duration::from_secs(1));
                engine.step_commit().expect("commit");
                told.try_recv().expect("told")
            })
            .err()
    });
    assert_eq!(refused.expect("memory is bounded").kind(), ErrorKind::Retry);
    let stalls = engine.stats().stalls;
    assert_eq!((stalls.refused_overloaded, stalls.refused_full), (1, 0));

    world.disk.set_capacity(0);
    engine.step_upkeep(0).expect("upkeep");
    let told = submit(&mut world, &engine, b"full", 10);
    assert_eq!(told.try_recv().expect("told").expect_err("full").kind(), ErrorKind::Full);
    let stalls = engine.stats().stalls;
    assert_eq!((stalls.refused_overloaded, stalls.refused_full), (1, 1));
}

/// A new file is filled with zeros first, which doubles the logged bytes.
#[test]
fn once_memtables_are_flushed_the_same_files_take_the_log_again() {
    let mut world = World::new(9);
    let filled_bytes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&filled_bytes);
    let plan = FaultPlan::on_operation(move |operation| {
        if operation.kind == OperationKind::Write && operation.path.to_string_lossy().ends_with(".spare.tmp")
        {
            counted.fetch_add(operation.len, Ordering::SeqCst);
        }
        None
    });
    let fs = FaultFs::new(Arc::new(world.disk.clone()), plan);
    let options = Options { memtable_bytes: Some(512 << 10), ..small_options() };
    let engine = open_over(&world, &fs, &options);
    let mut fill_memtables = |count: u64| {
        let flushed = engine.stats().jobs.flushes + count;
        while engine.stats().jobs.flushes < flushed {
            let write = write_of(&mut world, b"key", 4 << 10);
            engine.write(batch_of(&[write])).expect("written");
            engine.run_jobs().expect("jobs");
        }
    };
    fill_memtables(2);
    let of_growth = filled_bytes.load(Ordering::SeqCst);
    assert!(of_growth > 0, "the first segments were nobody's before");
    fill_memtables(5);
    assert_eq!(filled_bytes.load(Ordering::SeqCst), of_growth);
}
