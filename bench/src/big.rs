//! A data set much larger than the memory budget: memory use, reads of absent keys, opening after
//! `kill -9`.

use crate::comparison::ComparisonRunner;
use crate::comparisons::ABSENT;
use crate::measure::{BenchLoad, measure, preload};
use crate::servers::{CpuLayout, Durability, WorkDir, numbers_about, status};
use crate::side::ComparedSide;
use crate::table::{ResultTable, Threshold};
use crate::tools::Tools;
use crate::{BenchResult, Options};
use bench::keys::KeyOrder;
use bench::{Operation, Pacing};
use lab::process::{ServerProcess, resident_memory};
use lab::stats::rounds;
use std::time::Instant;

const LAYOUT: CpuLayout = CpuLayout::PINNED;
const NAME: &str = "big";
const VALUE_BYTES: usize = 1024;
const CONNECTIONS: usize = 64;
const MEMORY: &str = "512MiB";
const MEMORY_BYTES: f64 = (512 << 20) as f64;
const KILLS: u64 = 3;
/// Prefix in the status of the memory that the engine accounts for, by component, in bytes.
const ACCOUNTED: &str = "storage.memory.";
/// Path below [`ACCOUNTED`] that is the budget, not a component.
const BUDGET: &str = "storage.memory.budget_bytes";

/// Measures, and adds the rows.
pub(crate) fn rows(options: &Options, work_dir: &WorkDir, table: &mut ResultTable) -> BenchResult<()> {
    table.section("10 GB data set, --memory 512MiB (size as given)");
    let mut server = work_dir.veche(NAME, LAYOUT, Durability::Sync, Some(MEMORY))?;
    preload(&server, LAYOUT, KeyOrder::Scattered, options.big_keys(), VALUE_BYTES)?;
    let load = |operation| BenchLoad {
        operation,
        connections: CONNECTIONS,
        pacing: Pacing::Closed,
        keys: options.big_keys(),
        value_bytes: VALUE_BYTES,
        seed: 1,
    };
    for operation in [Operation::Get, Operation::Put, Operation::Get] {
        let sample = measure(&server, LAYOUT, options.seconds(), &[load(operation)])?;
        println!("  {}: {:.0}/s, p99.9 {:.0} us", operation.name(), sample.per_second, sample.p999_us);
    }
    memory_rows(&server, table)?;
    let side = ComparedSide::new("veche --memory 512MiB", "the latest value", vec![server]);
    let runner = ComparisonRunner { options, work_dir, tools: &Tools::default(), layout: LAYOUT };
    runner.run_on(&ABSENT, &[Some(side.clone())], options.big_keys(), table)?;
    drop(side);
    server = work_dir.veche(NAME, LAYOUT, Durability::Sync, Some(MEMORY))?;
    let mut opened = Vec::new();
    for _ in 0..KILLS {
        measure(&server, LAYOUT, options.seconds(), &[load(Operation::Put)])?;
        server.kill()?;
        let begun = Instant::now();
        server = work_dir.veche(NAME, LAYOUT, Durability::Sync, Some(MEMORY))?;
        opened.push(begun.elapsed().as_secs_f64());
    }
    let note = "to the first successful /v0/status, killed directly after writes".to_owned();
    table.row("start after kill -9, s", Threshold::AtMost(2.0), rounds(&opened), note);
    Ok(())
}

fn memory_rows(server: &ServerProcess, table: &mut ResultTable) -> BenchResult<()> {
    let status = status(server)?;
    let mut parts = numbers_about(&status, &[ACCOUNTED]);
    parts.retain(|(path, _)| path != BUDGET);
    let bytes: f64 = parts.iter().map(|(_, bytes)| bytes).sum();
    let accounted = if parts.is_empty() { None } else { rounds(&[bytes / MEMORY_BYTES]) };
    table.row(
        "memory that the node accounts for / --memory",
        Threshold::AtMost(1.1),
        accounted,
        format!("{parts:?}"),
    );
    let memory = resident_memory(server.pid())?;
    let mib = |bytes: u64| bytes >> 20;
    let note = format!(
        "MiB: now {}, anonymous {}, peak {}",
        mib(memory.now),
        mib(memory.anonymous),
        mib(memory.peak)
    );
    table.row(
        "peak resident memory / --memory",
        Threshold::AtMost(1.3),
        rounds(&[memory.peak as f64 / MEMORY_BYTES]),
        note,
    );
    Ok(())
}
