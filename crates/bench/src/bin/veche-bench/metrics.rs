//! The cost of metrics: the same server with `--metrics on` and off, in interleaved rounds.

use crate::measure::{Load, measure, preload};
use crate::servers::{CpuLayout, Durability, WorkDir};
use crate::table::{ResultTable, Threshold};
use crate::{BenchResult, Options};
use bench::keys::KeyOrder;
use bench::process::ServerProcess;
use bench::stats::ratio;
use bench::{Operation, Pacing};

const VALUE_BYTES: usize = 100;
const CONNECTIONS: usize = 64;
const OPERATIONS: [Operation; 2] = [Operation::Get, Operation::Put];
/// Maximum ratio of CPU time with metrics to CPU time without.
const COST_MAX: f64 = 1.02;

/// CPU time per request, by round.
#[derive(Clone, Debug, Default)]
struct Costs {
    on: Vec<f64>,
    off: Vec<f64>,
}

/// Measures, and adds the rows.
pub(crate) fn rows(
    options: &Options,
    work_dir: &WorkDir,
    layout: CpuLayout,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let start = |metrics: &str| -> BenchResult<ServerProcess> {
        let name = format!("metrics-{metrics}-{}", layout.server_threads);
        let flags = [format!("--metrics={metrics}")];
        let server = work_dir.veche_with(&name, layout, Durability::Sync, None, &flags)?;
        preload(&server, layout, KeyOrder::Sequential, options.keys(), VALUE_BYTES)?;
        Ok(server)
    };
    let (on, off) = (start("on")?, start("off")?);
    let mut costs = [Costs::default(), Costs::default()];
    for round in 0..options.rounds() {
        for (operation, costs) in OPERATIONS.into_iter().zip(&mut costs) {
            let mut turns = [(&on, &mut costs.on), (&off, &mut costs.off)];
            if round % 2 == 1 {
                turns.reverse();
            }
            for (server, costs) in turns {
                let load = Load {
                    operation,
                    connections: CONNECTIONS,
                    pacing: Pacing::Closed,
                    keys: options.keys(),
                    value_bytes: VALUE_BYTES,
                    seed: round as u64,
                };
                costs.push(measure(server, layout, options.seconds(), &[load])?.cpu_us);
            }
            if let (Some(on), Some(off)) = (costs.on.last(), costs.off.last()) {
                println!(
                    "  round {round}: {:<4} on {on:>6.2} off {off:>6.2} us CPU/request",
                    operation.name()
                );
            }
        }
    }
    for (operation, costs) in OPERATIONS.into_iter().zip(&costs) {
        let name =
            format!("{} x{CONNECTIONS}: CPU/request, metrics on / off", operation.name().to_uppercase());
        table.row(&name, Threshold::AtMost(COST_MAX), ratio(&costs.on, &costs.off), String::new());
    }
    Ok(())
}
