//! Ranges: throughput, CPU time, time to the first chunk, and their effect on other requests.

use crate::comparison::{ComparisonRunner, NODES};
use crate::comparisons::READS_BESIDE_RANGES;
use crate::data::{drop_page_cache, store_in_batches};
use crate::measure::{BenchLoad, measure, preload};
use crate::servers::{CpuLayout, Durability, WorkDir};
use crate::side::ComparedSide;
use crate::table::{ResultTable, Threshold, both};
use crate::tools::Tools;
use crate::{BenchResult, Options};
use bench::affinity::pin_current_thread;
use bench::cpu::CpuMeter;
use bench::keys::{KeyNumber, KeyOrder};
use bench::threads::join_scoped;
use bench::{Operation, Pacing};
use lab::process::{ServerProcess, resident_memory};
use lab::put_batch::PutBatch;
use lab::stats::{ratio, rounds};
use lab::stream::{RangeRead, ReadOptions, read_range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

const VALUE_BYTES: usize = 1024;
const CONNECTIONS: usize = 64;
/// Memory budget: enough for the cache to hold a gigabyte of values.
const MEMORY: &str = "4GiB";
/// Memory budget of each node of a cluster, and of the single node that it is compared with.
const CLUSTER_MEMORY: &str = "1GiB";
const BIG_MEMORY: &str = "512MiB";
/// Number of ranges that are read during point reads, and the bytes per second of each.
const RANGES: usize = 4;
const RANGE_PACE: u64 = 50_000_000;
const BATCH_VALUE_BYTES: usize = 100;
/// Numbers of batches that are sent concurrently.
const BATCHES: [usize; 2] = [1, 4];
/// Number of measurements of the first chunk.
const FIRST_CHUNKS: u64 = 9;

/// Optional measurements.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RangeArguments {
    /// Also measure the time to the first chunk of a range of 10 GB
    #[arg(long)]
    big: bool,
}

/// Measures, and adds the rows.
pub(crate) fn rows(
    options: &Options,
    arguments: &RangeArguments,
    work_dir: &WorkDir,
    table: &mut ResultTable,
) -> BenchResult<()> {
    for layout in options.layouts() {
        table.section(&format!("ranges; {}", layout.title));
        local_rows(options, work_dir, *layout, table)?;
        batch_rows(options, work_dir, *layout, table)?;
    }
    table.section("three nodes compared with one; two I/O threads each, unpinned");
    cluster_row(options, work_dir, table)?;
    if arguments.big {
        table.section("10 GB of values of 1 KiB, --memory 512MiB (size as given)");
        first_chunk_row(options, work_dir, table)?;
    }
    Ok(())
}

fn load(options: &Options, operation: Operation, pacing: Pacing, seed: u64) -> BenchLoad {
    BenchLoad {
        operation,
        connections: CONNECTIONS,
        pacing,
        keys: options.keys(),
        value_bytes: VALUE_BYTES,
        seed,
    }
}

/// Path of the whole data set, from its first key.
fn everything(scope: &str) -> String {
    format!("/v0/entities?start=0{scope}")
}

fn local_rows(
    options: &Options,
    work_dir: &WorkDir,
    layout: CpuLayout,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let entries = format!("--range-entries={}", options.keys());
    let value_bytes = format!("--range-value-bytes={VALUE_BYTES}");
    let flags = [entries, value_bytes];
    let hyper = work_dir.bare_hyper(layout, &flags)?;
    let flat = work_dir.bare_hyper(layout, &[&flags[..], &["--flatten".to_owned()]].concat())?;
    let name = format!("range-{}", layout.server_threads);
    let server = work_dir.veche(&name, layout, Durability::Sync, Some(MEMORY))?;
    preload(&server, layout, KeyOrder::Sequential, options.keys(), VALUE_BYTES)?;
    warm(options, &server, layout)?;
    let (mut bare, mut flattened, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    let mut grown = Vec::new();
    for server in [&hyper, &flat] {
        one_range(server, layout, "")?;
    }
    for round in 0..options.rounds() {
        bare.push(one_range(&hyper, layout, "")?);
        flattened.push(one_range(&flat, layout, "")?);
        let before = resident_memory(server.pid())?.now;
        ours.push(one_range(&server, layout, "")?);
        let after = resident_memory(server.pid())?;
        grown.push(after.now.saturating_sub(before) as f64 / f64::from(1 << 20));
        let rate = |ranges: &[(RangeRead, f64)]| ranges[round].0.per_second() / 1e6;
        println!(
            "  round {round}: MB/s bare {:.0}, flattened {:.0}, veche {:.0}; CPU us an entry {:.2} / {:.2} / {:.2}",
            rate(&bare),
            rate(&flattened),
            rate(&ours),
            bare[round].1,
            flattened[round].1,
            ours[round].1,
        );
    }
    same_bytes(&bare, &ours)?;
    let [bare, flattened, ours] = [&bare, &flattened, &ours].map(|ranges| megabytes_per_second(ranges));
    table.row(
        "range of 1 GB in cache: bytes/s, veche / bare hyper",
        Threshold::AtLeast(0.6),
        ratio(&ours, &bare),
        both("MB/s", &ours, &bare),
    );
    table.row(
        "range of 1 GB in cache: bytes/s, veche / hyper with --flatten",
        Threshold::None,
        ratio(&ours, &flattened),
        both("MB/s", &ours, &flattened),
    );
    table.row(
        "resident memory added by that range, MiB",
        Threshold::AtMost(32.0),
        rounds(&grown),
        String::new(),
    );
    let side = ComparedSide::new("veche --memory 4GiB", "the latest value", vec![server]);
    let runner = ComparisonRunner { options, work_dir, tools: &Tools::default(), layout };
    runner.run_on(&READS_BESIDE_RANGES, &[Some(side)], options.keys(), table)
}

/// Reads until every block is in the cache.
fn warm(options: &Options, server: &ServerProcess, layout: CpuLayout) -> BenchResult<()> {
    let mut left = options.keys() as f64;
    let mut seed = 0;
    while left > 0.0 {
        // With a dozen entries per block, as many uniform reads as there are keys miss one block in
        // e^12.
        let sample = measure(server, layout, 2.0, &[load(options, Operation::Get, Pacing::Closed, seed)])?;
        left -= sample.answers as f64;
        seed += 1;
    }
    Ok(())
}

/// Reads one whole range. Also returns the CPU time of the server per entry, in microseconds.
fn one_range(server: &ServerProcess, layout: CpuLayout, which: &str) -> BenchResult<(RangeRead, f64)> {
    let meter = CpuMeter::start(server.pid())?;
    let read = || -> io::Result<RangeRead> {
        pin_current_thread(layout.generator_cores)?;
        read_range(server.address(), &everything(which), ReadOptions::default())
    };
    let streamed = thread::scope(|scope| join_scoped(scope.spawn(read)))?;
    let entries = streamed.bytes as f64 / (VALUE_BYTES as f64 + 24.0);
    Ok((streamed, meter.spent()?.as_secs_f64() * 1e6 / entries))
}

fn megabytes_per_second(ranges: &[(RangeRead, f64)]) -> Vec<f64> {
    ranges.iter().map(|(range, _)| range.per_second() / 1e6).collect()
}

/// Fails unless both servers sent the same number of bytes: otherwise they did different work.
fn same_bytes(one: &[(RangeRead, f64)], other: &[(RangeRead, f64)]) -> BenchResult<()> {
    match one.iter().zip(other).find(|((one, _), (other, _))| one.bytes != other.bytes) {
        None => Ok(()),
        Some(((one, _), (other, _))) => {
            Err(format!("a range of {} bytes, and one of {}", one.bytes, other.bytes).into())
        }
    }
}

/// Runs `work` while paced ranges are read repeatedly. Also returns the bytes per second of all
/// ranges.
pub(crate) fn while_reading_ranges<T>(
    server: &ServerProcess,
    layout: CpuLayout,
    work: impl FnOnce() -> T,
) -> BenchResult<(T, f64)> {
    let stop = AtomicBool::new(false);
    let target = server.address();
    let begun = Instant::now();
    thread::scope(|scope| {
        let read = || -> io::Result<u64> {
            pin_current_thread(layout.generator_cores)?;
            let reading = ReadOptions {
                bytes_per_second: Some(RANGE_PACE),
                stop: Some(&stop),
                ..ReadOptions::default()
            };
            let mut bytes = 0;
            while !stop.load(Ordering::Relaxed) {
                bytes += read_range(target, &everything(""), reading)?.bytes;
            }
            Ok(bytes)
        };
        let readers: Vec<_> = (0..RANGES).map(|_| scope.spawn(read)).collect();
        let done = work();
        stop.store(true, Ordering::Relaxed);
        let mut bytes = 0;
        for reader in readers {
            bytes += join_scoped(reader)?;
        }
        Ok((done, bytes as f64 / begun.elapsed().as_secs_f64()))
    })
}

/// Range over the whole cluster, compared with that of a single node.
fn cluster_row(options: &Options, work_dir: &WorkDir, table: &mut ResultTable) -> BenchResult<()> {
    let layout = CpuLayout::UNPINNED;
    let alone = work_dir.veche("range-alone", layout, Durability::Sync, Some(CLUSTER_MEMORY))?;
    let nodes = work_dir.cluster("range-node", NODES, layout, Durability::Sync, CLUSTER_MEMORY)?;
    for server in [&alone, &nodes[0]] {
        preload(server, layout, KeyOrder::Sequential, options.keys(), VALUE_BYTES)?;
    }
    let (mut one, mut all) = (Vec::new(), Vec::new());
    for round in 0..options.rounds() {
        one.push(one_range(&alone, layout, "")?);
        all.push(one_range(&nodes[0], layout, "&cluster=1")?);
        println!(
            "  round {round}: MB/s one node {:.0}, cluster {:.0}",
            one[round].0.per_second() / 1e6,
            all[round].0.per_second() / 1e6
        );
    }
    same_bytes(&one, &all)?;
    let [one, all] = [&one, &all].map(|ranges| megabytes_per_second(ranges));
    table.row(
        "range: bytes/s, of the cluster with 2 of 3 / of one node",
        Threshold::AtLeast(0.35),
        ratio(&all, &one),
        both("MB/s", &all, &one),
    );
    Ok(())
}

/// Time to the first chunk on a node that has just started, with an empty page cache.
fn first_chunk_row(options: &Options, work_dir: &WorkDir, table: &mut ResultTable) -> BenchResult<()> {
    let (name, layout) = ("range-big", CpuLayout::PINNED);
    let keys = options.big_keys();
    let server = work_dir.veche(name, layout, Durability::Sync, Some(BIG_MEMORY))?;
    store_in_batches(&server, keys, VALUE_BYTES)?;
    server.kill()?;
    let mut waits = Vec::new();
    for number in 0..FIRST_CHUNKS {
        let server = work_dir.veche(name, layout, Durability::Sync, Some(BIG_MEMORY))?;
        // By now the log is replayed and its memtable is flushed. The pages that this read are
        // dropped again.
        thread::sleep(Duration::from_secs(1));
        drop_page_cache(&work_dir.data(name))?;
        let key = KeyNumber(keys / 2 + number * keys / 100).stored_key();
        let path = format!("/v0/entities?start={}", String::from_utf8_lossy(&key));
        let reading = ReadOptions { first_only: true, ..ReadOptions::default() };
        let streamed = read_range(server.address(), &path, reading)?;
        waits.push(streamed.first.as_secs_f64() * 1e3);
        server.kill()?;
    }
    let note = format!("{FIRST_CHUNKS} starts, each at another key; page cache dropped");
    table.row("first chunk of a range in 10 GB, cold, ms", Threshold::AtMost(20.0), rounds(&waits), note);
    Ok(())
}

/// Batches, compared with single requests.
fn batch_rows(
    options: &Options,
    work_dir: &WorkDir,
    layout: CpuLayout,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let name = format!("batch-{}", layout.server_threads);
    let server = work_dir.veche(&name, layout, Durability::Sync, None)?;
    let keys = options.keys();
    preload(&server, layout, KeyOrder::Sequential, keys, BATCH_VALUE_BYTES)?;
    let mut single = Vec::new();
    let mut batched = BATCHES.map(|_| Vec::new());
    for round in 0..options.rounds() as u64 {
        let load = BenchLoad {
            operation: Operation::Put,
            connections: CONNECTIONS,
            pacing: Pacing::Closed,
            keys,
            value_bytes: BATCH_VALUE_BYTES,
            seed: round,
        };
        single.push(measure(&server, layout, options.seconds(), &[load])?.per_second);
        for (count, rates) in BATCHES.into_iter().zip(&mut batched) {
            let batches: Vec<PutBatch> = (0..count as u64)
                .map(|i| PutBatch::of_writes(keys / count as u64, keys, BATCH_VALUE_BYTES, round << 8 | i))
                .collect();
            rates.push(send_all(&server, layout, &batches)?);
        }
        let last = |rates: &[f64]| rates.last().copied().unwrap_or_default();
        println!(
            "  round {round}: entries/s single x{CONNECTIONS} {:.0}, one batch {:.0}, four {:.0}",
            last(&single),
            last(&batched[0]),
            last(&batched[1])
        );
    }
    for (count, rates) in BATCHES.into_iter().zip(&batched) {
        table.row(
            &format!("PUT of 100 B: entries/s, concurrent batches: {count} / single requests x64"),
            Threshold::AtLeast(4.0),
            ratio(rates, &single),
            both("1/s", rates, &single),
        );
    }
    Ok(())
}

/// Sends the batches concurrently. Returns entries per second.
fn send_all(server: &ServerProcess, layout: CpuLayout, batches: &[PutBatch]) -> BenchResult<f64> {
    let begun = Instant::now();
    thread::scope(|scope| -> io::Result<()> {
        let send = |batch: &PutBatch| -> io::Result<()> {
            pin_current_thread(layout.generator_cores)?;
            batch.send(server.address()).map(|_| ())
        };
        let senders: Vec<_> = batches.iter().map(|batch| scope.spawn(move || send(batch))).collect();
        senders.into_iter().try_for_each(join_scoped)
    })?;
    let entries: u64 = batches.iter().map(PutBatch::entries).sum();
    Ok(entries as f64 / begun.elapsed().as_secs_f64())
}
