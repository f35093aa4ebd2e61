//! CPU time per request and throughput, compared with the floor and with weaker durability.

use crate::measure::{Load, Sample, measure, preload};
use crate::servers::{CpuLayout, Durability, WorkDir};
use crate::table::{ResultTable, Threshold};
use crate::{BenchResult, Options};
use bench::keys::{KeyNumber, KeyOrder};
use bench::process::ServerProcess;
use bench::stats::{median, ratio};
use bench::values::{ValueGenerator, ValueSizes};
use bench::{Operation, Pacing, fetch};
use std::time::Duration;

const VALUE_BYTES: usize = 100;
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Servers of a round, in the order of [`SERVER_KINDS`].
struct CostServers {
    servers: [ServerProcess; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerKind {
    Floor = 0,
    Sync = 1,
    Os = 2,
}

const SERVER_KINDS: [ServerKind; 3] = [ServerKind::Floor, ServerKind::Sync, ServerKind::Os];

/// Loads on each server in each round.
const LOADS: [(Operation, usize); 3] = [(Operation::Get, 64), (Operation::Put, 64), (Operation::Put, 256)];

/// Samples of one load on one server, by round.
#[derive(Clone, Debug, Default)]
struct Samples(Vec<Sample>);

impl Samples {
    fn cpu(&self) -> Vec<f64> {
        self.0.iter().map(|sample| sample.cpu_us).collect()
    }

    fn rate(&self) -> Vec<f64> {
        self.0.iter().map(|sample| sample.per_second).collect()
    }
}

/// Measures, and adds the rows.
pub(crate) fn rows(
    options: &Options,
    work_dir: &WorkDir,
    layout: CpuLayout,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let servers = CostServers::start(options, work_dir, layout)?;
    let mut samples = vec![[Samples::default(), Samples::default(), Samples::default()]; LOADS.len()];
    for round in 0..options.rounds() {
        for (l, (operation, connections)) in LOADS.into_iter().enumerate() {
            for turn in 0..SERVER_KINDS.len() {
                let kind = SERVER_KINDS[(turn + round) % SERVER_KINDS.len()];
                let load = Load {
                    operation,
                    connections,
                    pacing: Pacing::Closed,
                    keys: options.keys(),
                    value_bytes: VALUE_BYTES,
                    seed: round as u64,
                };
                let sample = measure(servers.of(kind), layout, options.seconds(), &[load])?;
                print_sample(round, operation, connections, kind, &sample);
                samples[l][kind as usize].0.push(sample);
            }
        }
    }
    add_rows(table, &samples);
    Ok(())
}

fn print_sample(round: usize, operation: Operation, connections: usize, kind: ServerKind, sample: &Sample) {
    println!(
        "  round {round}: {:<4} x{connections:<4} {kind:<6?} {:>9.0}/s {:>7.2} us CPU/request, generator busy {:.0} %",
        operation.name(),
        sample.per_second,
        sample.cpu_us,
        sample.generator_busy * 100.0,
    );
}

fn add_rows(table: &mut ResultTable, samples: &[[Samples; 3]]) {
    let [floor, sync, os] = SERVER_KINDS.map(|kind| kind as usize);
    for ((operation, connections), of) in LOADS.into_iter().zip(samples) {
        let name = format!("{} x{connections}", operation.name().to_uppercase());
        let target = match (operation, connections) {
            (Operation::Get, 64) => Threshold::AtLeast(0.85),
            (Operation::Put, 64) => Threshold::AtLeast(0.55),
            _ => Threshold::None,
        };
        let note = format!("us: {:.2} / {:.2}", median(&of[floor].cpu()), median(&of[sync].cpu()));
        table.row(
            &format!("{name}: CPU/request, floor / veche"),
            target,
            ratio(&of[floor].cpu(), &of[sync].cpu()),
            note,
        );
        let note = format!("1/s: {:.2} / {:.2}", median(&of[sync].rate()), median(&of[floor].rate()));
        table.row(
            &format!("{name}: requests/s, veche / floor"),
            Threshold::None,
            ratio(&of[sync].rate(), &of[floor].rate()),
            note,
        );
    }
    let of = &samples[LOADS.len() - 1];
    let note = format!("1/s: {:.2} / {:.2}", median(&of[sync].rate()), median(&of[os].rate()));
    let value = ratio(&of[sync].rate(), &of[os].rate());
    table.row("PUT x256: requests/s, durable / --durability os", Threshold::AtLeast(0.8), value, note);
    let note = format!("us: {:.2} / {:.2}", median(&of[os].cpu()), median(&of[sync].cpu()));
    let value = ratio(&of[os].cpu(), &of[sync].cpu());
    table.row("PUT x256: CPU/request, --durability os / durable", Threshold::None, value, note);
}

impl CostServers {
    fn start(options: &Options, work_dir: &WorkDir, layout: CpuLayout) -> BenchResult<Self> {
        let name = |durability: &str| format!("cost-{durability}-{}", layout.server_threads);
        let servers = [
            work_dir.floor(layout)?,
            work_dir.veche(&name("sync"), layout, Durability::Sync, None)?,
            work_dir.veche(&name("os"), layout, Durability::Os, None)?,
        ];
        for server in &servers {
            preload(server, layout, KeyOrder::Sequential, options.keys(), VALUE_BYTES)?;
        }
        let servers = Self { servers };
        compare_heads(servers.of(ServerKind::Floor), servers.of(ServerKind::Sync))?;
        Ok(servers)
    }

    fn of(&self, kind: ServerKind) -> &ServerProcess {
        &self.servers[kind as usize]
    }
}

/// Prints a warning unless both servers send the same number of header bytes: the floor is
/// comparable only then.
pub(crate) fn compare_heads(floor: &ServerProcess, veche: &ServerProcess) -> BenchResult<()> {
    let mut value = Vec::new();
    ValueGenerator::standard(ValueSizes::Fixed(VALUE_BYTES)).append(KeyNumber(0), &mut value);
    let key = KeyNumber(0).stored_key();
    let path = format!("/v0/entity?id={}", String::from_utf8_lossy(&key));
    for (method, body) in [("GET", [].as_slice()), ("PUT", &value)] {
        let head = |server: &ServerProcess| {
            fetch(server.address(), method, &path, body, FETCH_TIMEOUT).map(|answer| answer.head)
        };
        let (floor, veche) = (head(floor)?, head(veche)?);
        if floor.len() != veche.len() {
            let (floor, veche) = (String::from_utf8_lossy(&floor), String::from_utf8_lossy(&veche));
            println!("  NOT THE SAME HEADER BYTES on {method}:\n--- floor\n{floor}--- veche\n{veche}");
        }
    }
    Ok(())
}
