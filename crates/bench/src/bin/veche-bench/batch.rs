//! Batches compared with single requests.

use crate::measure::{Load, measure, preload};
use crate::servers::{CpuLayout, Durability, WorkDir};
use crate::table::{ResultTable, Threshold};
use crate::{BenchResult, Options};
use bench::affinity::pin_current_thread;
use bench::batch::PutBatch;
use bench::keys::KeyOrder;
use bench::process::ServerProcess;
use bench::stats::{median, ratio};
use bench::threads::join_scoped;
use bench::{Operation, Pacing};
use std::time::Instant;
use std::{io, thread};

const VALUE_BYTES: usize = 100;
const SINGLE_CONNECTIONS: usize = 64;
/// Number of batches that are sent concurrently.
const BATCHES: [usize; 2] = [1, 4];

/// Measures, and adds the rows.
pub(crate) fn row(
    options: &Options,
    work_dir: &WorkDir,
    layout: CpuLayout,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let name = format!("batch-{}", layout.server_threads);
    let server = work_dir.veche(&name, layout, Durability::Sync, None)?;
    let keys = options.keys();
    preload(&server, layout, KeyOrder::Sequential, keys, VALUE_BYTES)?;
    let mut single = Vec::new();
    let mut batched = BATCHES.map(|_| Vec::new());
    for round in 0..options.rounds() as u64 {
        let load = Load {
            operation: Operation::Put,
            connections: SINGLE_CONNECTIONS,
            pacing: Pacing::Closed,
            keys,
            value_bytes: VALUE_BYTES,
            seed: round,
        };
        single.push(measure(&server, layout, options.seconds(), &[load])?.per_second);
        for (count, rates) in BATCHES.into_iter().zip(&mut batched) {
            let batches: Vec<PutBatch> = (0..count as u64)
                .map(|i| PutBatch::of_writes(keys / count as u64, keys, VALUE_BYTES, round << 8 | i))
                .collect();
            rates.push(send_all(&server, layout, &batches)?);
        }
        let last = |rates: &[f64]| rates.last().copied().unwrap_or_default();
        println!(
            "  round {round}: entries/s single x{SINGLE_CONNECTIONS} {:.0}, one batch {:.0}, four {:.0}",
            last(&single),
            last(&batched[0]),
            last(&batched[1])
        );
    }
    for (count, rates) in BATCHES.into_iter().zip(&batched) {
        table.row(
            &format!("PUT of 100 B, durable: entries/s, {count} batches / single x64"),
            Threshold::AtLeast(4.0),
            ratio(rates, &single),
            format!("1/s: {:.0} / {:.0}", median(rates), median(&single)),
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
