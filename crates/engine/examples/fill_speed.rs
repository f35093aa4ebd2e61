//! Measures the cost of a fill in random order, including all flushes and compactions.
//!
//! `cargo run --release -p engine --example fill_speed [entries] [value bytes] [memtable MiB]
//! [compaction threads]`. One writer, not durable, on real files. Prints the time of the writer,
//! the time until no job is left, the processor time of both, and the bytes written per accepted
//! byte. Nothing asserts on them.

use engine::workers::{self, WorkerOptions};
use engine::{Batch, Durability, Engine, Options, Stats};
use env::Env;
use std::time::{Duration, Instant};
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Rng, Version};

/// Odd, so that multiplying by it visits each number below a power of two once.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Background jobs may pause this long between two jobs.
const QUIET: Duration = Duration::from_millis(100);

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let entries = arguments.next().unwrap_or(2_000_000).next_power_of_two();
    let value_bytes = arguments.next().unwrap_or(100) as usize;
    let memtable_bytes = arguments.next().unwrap_or(16) << 20;
    let compaction_threads = arguments.next().unwrap_or(1) as usize;
    let options = Options {
        durability: Durability::Os,
        memtable_bytes: Some(memtable_bytes),
        memory_bytes: memtable_bytes * 8,
        ..Options::default()
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (engine, _) = Engine::open(Env::os(), directory.path(), options).expect("opened");
    let threads = WorkerOptions { compaction_threads, ..WorkerOptions::default() };
    let workers = workers::start(&engine, threads).expect("workers");
    println!("{entries} entries, values of {value_bytes} bytes, memtables of {memtable_bytes}");

    let began = Instant::now();
    fill(&engine, entries, value_bytes);
    report("filled", entries, began, &engine.stats());
    settle(&engine);
    report("settled", entries, began, &engine.stats());
    for (number, level) in engine.stats().levels.iter().enumerate() {
        println!("  level {number}: {} tables, {} MiB", level.tables, level.file_bytes >> 20);
    }
    workers.stop();
}

fn fill(engine: &Engine, entries: u64, value_bytes: usize) {
    let mut rng = Rng::new(1);
    let mut value = vec![0; value_bytes];
    for number in 0..entries {
        let key = format!("{:016x}", number.wrapping_mul(SCATTER) % entries);
        // Half of each value is random, so that it compresses about as texts do.
        rng.fill(&mut value[..value_bytes / 2]);
        let version = Version::new(Hlc::from_bits(number + 1), NodeTag(1));
        let mut batch = Batch::new();
        batch.put(key.as_bytes(), CellRef { meta: CellMeta::value(version, 1), value: &value });
        engine.write(batch).expect("written");
    }
}

fn settle(engine: &Engine) {
    engine.flush().expect("flushed");
    loop {
        let jobs = engine.stats().jobs;
        std::thread::sleep(QUIET);
        if engine.stats().jobs == jobs && engine.backlog().debt_bytes == 0 {
            return;
        }
    }
}

fn report(what: &str, entries: u64, began: Instant, stats: &Stats) {
    let (took, cpu) = (began.elapsed(), env::os_process::usage().cpu);
    println!(
        "{what}: {:.2} s, {:.0} entries/s, {:.2} µs of processor each; {} compactions; written for each byte: {:.2}",
        took.as_secs_f64(),
        entries as f64 / took.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / entries as f64,
        stats.jobs.compactions,
        stats.write_amplification().unwrap_or_default(),
    );
    println!(
        "  flushed {} MiB, merged {} MiB into {} MiB; pauses {} of {:.2} s together",
        stats.jobs.flushed_bytes >> 20,
        stats.jobs.merged_bytes >> 20,
        stats.jobs.compacted_bytes >> 20,
        stats.stalls.pauses,
        Duration::from_nanos(stats.stalls.paused_nanos).as_secs_f64(),
    );
}
