//! Bytes written for each ingested byte, as the file system counts them, until no job is left.

use super::source::{number_key, push_all, values};
use super::support::{World, batch_of, small_options};
use engine::{Compression, Engine, Options};
use stdx::Cell;

const VALUE_BYTES: usize = 1_000;
const PART: u64 = 256;

fn options() -> Options {
    Options {
        memtable_bytes: Some(256 << 10),
        block_bytes: 16 << 10,
        compression: Compression::None,
        table_bytes: 256 << 10,
        level0_tables: 4,
        level1_bytes: 1 << 20,
        level_growth: 10,
        wal_segment_bytes: 1 << 20,
        ..small_options()
    }
}

/// Ingests `parts` parts of `sources` sources side by side. Their keys interleave. Before each
/// part, `between` is called. Jobs run meanwhile and to their end.
fn ingest(
    world: &mut World,
    engine: &Engine,
    sources: u64,
    parts: u64,
    between: &mut dyn FnMut(&mut World, u64),
) {
    let expected_bytes = parts * PART * (VALUE_BYTES as u64 + 100);
    let mut ingests: Vec<_> = (0..sources)
        .map(|source| engine.ingest(format!("source {source}").as_bytes(), expected_bytes).expect("open"))
        .collect();
    for part in 0..parts {
        for (source, ingest) in ingests.iter_mut().enumerate() {
            between(world, part);
            engine.run_jobs().expect("jobs");
            assert!(!ingest.is_stalled());
            let numbers = (0..PART).map(|number| (part * PART + number) * sources + source as u64);
            let cells = values(world, numbers, VALUE_BYTES);
            push_all(ingest, &cells).expect("push");
            ingest.commit(&part.to_be_bytes()).expect("commit");
            engine.run_jobs().expect("jobs");
        }
    }
    drop(ingests);
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
}

/// Bytes written since a count, for each ingested byte.
fn amplification(engine: &Engine, before: u64) -> f64 {
    let stats = engine.stats();
    let written = stats.io.written_bytes - before;
    let levels: Vec<_> = stats.levels.iter().map(|level| level.file_bytes >> 10).collect();
    println!(
        "{written} bytes written for {}: KiB by level {levels:?}, {} tables in level 0",
        stats.ingest.data_bytes, stats.ingest.level0_tables
    );
    written as f64 / stats.ingest.data_bytes as f64
}

#[test]
fn a_new_node_writes_each_byte_of_up_to_four_sources_once() {
    for sources in 1..=4 {
        let mut world = World::new(sources);
        let engine = world.open(&options());
        let before = engine.stats().io.written_bytes;
        ingest(&mut world, &engine, sources, 48 / sources, &mut |_, _| ());
        let amplification = amplification(&engine, before);
        assert!(amplification <= 1.2, "{sources} sources: {amplification}");
    }
}

/// An engine with data in its first levels, spread over all keys.
fn filled(world: &mut World) -> Engine {
    let engine = world.open(&options());
    for round in 0..32u64 {
        for number in 0..PART {
            let key = [number_key(number * 48 + round), b"/own".to_vec()].concat();
            let cell = Cell::value(world.next_version(), 1, vec![round as u8; VALUE_BYTES].into());
            engine.write(batch_of([&(key, cell)])).expect("write");
        }
        engine.flush().expect("flush");
        engine.run_jobs().expect("jobs");
    }
    engine
}

#[test]
fn a_node_with_data_writes_each_byte_once_while_there_are_free_levels() {
    for sources in 1..=3 {
        let mut world = World::new(10 + sources);
        let engine = filled(&mut world);
        let used = super::source::used_levels(&engine);
        assert!(used.iter().all(|level| *level <= 3), "{used:?}");
        let before = engine.stats().io.written_bytes;
        ingest(&mut world, &engine, sources, 48 / sources, &mut |_, _| ());
        let amplification = amplification(&engine, before);
        assert!(amplification <= 1.2, "{sources} sources: {amplification}");
    }
}

/// What concurrent writes cost is compared with the same writes on an engine without an ingest.
#[test]
fn writes_during_an_ingest_do_not_rewrite_its_tables() {
    let written = |sources: u64| {
        let mut world = World::new(20);
        let engine = world.open(&options());
        let before = engine.stats().io.written_bytes;
        let mut number = 0;
        let mut write = |world: &mut World, part: u64| {
            for _ in 0..PART / 8 {
                number += 1;
                let key = number_key(number * 7_919 % (48 * PART));
                let cell = Cell::value(world.next_version(), 1, vec![part as u8; VALUE_BYTES].into());
                engine.write(batch_of([&(key, cell)])).expect("write");
            }
        };
        if sources == 0 {
            for part in 0..48 {
                write(&mut world, part);
                engine.run_jobs().expect("jobs");
            }
            engine.flush().expect("flush");
            engine.run_jobs().expect("jobs");
        } else {
            ingest(&mut world, &engine, sources, 48 / sources, &mut write);
        }
        let stats = engine.stats();
        (stats.io.written_bytes - before, stats.ingest.data_bytes)
    };
    let (alone, _) = written(0);
    for sources in [1, 2, 4] {
        let (together, ingested) = written(sources);
        let amplification = (together as f64 - alone as f64) / ingested as f64;
        println!("{sources} sources: {together} bytes, {alone} of them for writes alone: {amplification}");
        assert!(amplification <= 1.2, "{sources} sources: {amplification}");
    }
}
