//! Measures scans of a whole engine on one core, and their memory.
//!
//! `cargo run --release -p engine --example scan_speed [cells] [value bytes]`. Prints nanoseconds
//! per entry of whole scans, with blocks first in the page cache and then in the block cache. Also
//! prints by how much the process grows during a scan, and with many idle cursors. Nothing asserts
//! on them.

use engine::{Batch, Cursor, Durability, Engine, Options, SnapshotCursor};
use env::Env;
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Rng, Version};

/// Scans of each kind. The fastest is printed, to exclude other load on the machine.
const SCANS: usize = 5;
/// Number of idle cursors.
const IDLE_CURSORS: u64 = 100;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let cells = arguments.next().unwrap_or(200_000);
    let value_bytes = arguments.next().unwrap_or(1_024) as usize;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let options = Options {
        memory_bytes: 4 << 30,
        memtable_bytes: Some(16 << 20),
        durability: Durability::Os,
        ..Options::default()
    };
    let (engine, _) = Engine::open(Env::os(), directory.path(), options.clone()).expect("an engine");
    println!("{cells} cells, keys of 16 bytes, values of {value_bytes}");
    fill(&engine, cells, value_bytes);
    engine.flush().expect("a flush");
    engine.run_jobs().expect("compactions");
    engine.close().expect("a closed engine");
    drop(engine);
    // Reopened, so that no memtable is left.
    let (engine, _) = Engine::open(Env::os(), directory.path(), options).expect("an engine");
    println!("  {:?}", engine.stats().levels);

    let before = resident_bytes();
    report("scan, out of the system's memory", cells, &engine, walk);
    println!("  scans grew the process by {} KiB", (resident_bytes().saturating_sub(before)) >> 10);
    stand(&engine, cells);

    let mut rng = Rng::new(3);
    (0..cells).for_each(|_| drop(engine.get(&key(rng.below(cells))).expect("an answer")));
    (0..cells).for_each(|i| drop(engine.get(&key(i)).expect("an answer")));
    println!("  data blocks in the cache: {} MiB", engine.stats().cache.data.bytes >> 20);
    report("scan, out of the cache", cells, &engine, walk);
    report("scan, values not looked at", cells, &engine, pass);
}

fn fill(engine: &Engine, cells: u64, value_bytes: usize) {
    let mut rng = Rng::new(1);
    let mut value = vec![0; value_bytes];
    for first in (0..cells).step_by(64) {
        let mut batch = Batch::new();
        for i in first..cells.min(first + 64) {
            // In random order, so that tables are merged; half of each value is random.
            rng.fill(&mut value[..value_bytes / 2]);
            let version = Version::new(Hlc::from_bits(0x0123_4567_89ab_0000 + first), NodeTag(7));
            batch.put(&key(mixed(i, cells)), CellRef { meta: CellMeta::value(version, 3), value: &value });
        }
        engine.write(batch).expect("a write");
    }
}

/// A permutation of the numbers below `cells`, if 7919 does not divide `cells`.
fn mixed(i: u64, cells: u64) -> u64 {
    i * 7_919 % cells
}

fn key(i: u64) -> Vec<u8> {
    format!("user{i:012}").into_bytes()
}

fn report(name: &str, cells: u64, engine: &Engine, walk: fn(&mut SnapshotCursor, u64) -> u64) {
    let mut fastest = f64::INFINITY;
    for _ in 0..SCANS {
        let mut cursor = engine.snapshot().cursor();
        let begun = processor_nanos();
        cursor.seek_to_first().expect("a first entry");
        let entries = walk(&mut cursor, cells);
        fastest = fastest.min((processor_nanos() - begun) as f64 / entries as f64);
    }
    println!("  {name:<36} {fastest:8.1} ns an entry");
}

/// Advances by up to `entries`, and copies their bytes, as a reply does.
fn walk(cursor: &mut SnapshotCursor, entries: u64) -> u64 {
    let mut page = Vec::with_capacity(1 << 17);
    for walked in 0..entries {
        let Some((key, cell)) = cursor.entry() else { return walked };
        if page.len() > 1 << 16 {
            page.clear();
        }
        page.extend_from_slice(key);
        page.extend_from_slice(cell.value);
        cursor.advance().expect("a next entry");
    }
    entries
}

/// As [`walk`], without reading values.
fn pass(cursor: &mut SnapshotCursor, entries: u64) -> u64 {
    for passed in 0..entries {
        let Some((key, _)) = cursor.entry() else { return passed };
        std::hint::black_box(key);
        cursor.advance().expect("a next entry");
    }
    entries
}

/// Opens many cursors that read a little and then stay idle.
fn stand(engine: &Engine, cells: u64) {
    let before = resident_bytes();
    let begun = processor_nanos();
    let idle: Vec<SnapshotCursor> = (0..IDLE_CURSORS)
        .map(|i| {
            let mut cursor = engine.snapshot().cursor();
            cursor.seek(&key(i * cells / IDLE_CURSORS)).expect("an entry");
            walk(&mut cursor, 1_000);
            cursor
        })
        .collect();
    let took = (processor_nanos() - begun) / 1_000 / IDLE_CURSORS;
    let grown = resident_bytes().saturating_sub(before);
    println!("  {} cursors that stand: {} KiB; {took} us for each to come there", idle.len(), grown >> 10);
}

/// Processor time of this thread: excludes other load on the machine.
fn processor_nanos() -> u64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux system");
    let nanos = schedstat.split(' ').next().and_then(|nanos| nanos.parse().ok());
    nanos.expect("the first number is that of nanoseconds")
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("a Linux system");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("the second number is that of resident pages") * 4096
}
