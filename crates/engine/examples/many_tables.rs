//! Measures the overhead of a store with very many tables: opening it, adding a table, picking and
//! running a compaction, and file descriptors.
//!
//! `cargo run --release -p engine --example many_tables [tables]`. Real files, not durable, tables
//! of one cell. Each step runs 20 times; the median is printed. Nothing asserts on the times.

use engine::{Batch, Durability, Engine, Options};
use env::Env;
use std::path::Path;
use std::time::{Duration, Instant};
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Version};

const TABLES: u64 = 50_000;
const VALUE_BYTES: usize = 1_024;
const ROUNDS: u64 = 20;

fn main() {
    let tables = std::env::args().nth(1).map_or(TABLES, |text| text.parse().expect("a number"));
    let options = Options {
        durability: Durability::Os,
        memory_bytes: 1 << 30,
        memtable_bytes: Some(256 << 20),
        table_bytes: 1,
        level0_tables: 1,
        level1_bytes: 1 << 40,
        ..Options::default()
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let engine = open(directory.path(), &options);
    // With gaps between the keys, so that each later key falls into a table.
    (0..tables).for_each(|number| put(&engine, number * 2, number + 1));
    settle(&engine);
    // The first table moves down unchanged; merged with another, it is divided.
    put(&engine, 0, tables + 1);
    settle(&engine);
    let count = || engine.stats().levels.iter().map(|level| level.tables).sum::<usize>();
    println!("{} tables, {} descriptors", count(), descriptors());

    let (mut adding, mut merging) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        put(&engine, round * tables / ROUNDS * 2, tables + round + 2);
        adding.push(timed(|| engine.flush().expect("flushed")));
        merging.push(timed(|| engine.run_jobs().expect("done")));
    }
    println!("a memtable of one cell is flushed in {:?}", median(adding));
    println!("it is merged into one table of {} in {:?}", count(), median(merging));
    drop(engine);
    let mut opening = Vec::new();
    for _ in 0..5 {
        let mut engine = None;
        opening.push(timed(|| engine = Some(open(directory.path(), &options))));
        println!("{} descriptors after opening", descriptors());
    }
    println!("it is opened in {:?}", median(opening));
}

fn open(directory: &Path, options: &Options) -> Engine {
    Engine::open(Env::os(), directory, options.clone()).expect("opened").0
}

fn put(engine: &Engine, key: u64, version: u64) {
    let version = Version::new(Hlc::from_bits(version), NodeTag(1));
    let mut batch = Batch::new();
    batch.put(
        format!("{key:016x}").as_bytes(),
        CellRef { meta: CellMeta::value(version, 1), value: &[0; VALUE_BYTES] },
    );
    engine.write(batch).expect("written");
}

fn settle(engine: &Engine) {
    engine.flush().expect("flushed");
    engine.run_jobs().expect("done");
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
