//! Three nodes on this machine, with writes acknowledged by two of three: the cost of replication,
//! and the effect of a hung node.

use crate::measure::{Load, Sample, measure, measure_all, preload};
use crate::servers::{CpuLayout, Durability, WorkDir, number_at, status};
use crate::table::{ResultTable, Threshold};
use crate::{BenchResult, Options};
use bench::keys::KeyOrder;
use bench::process::ServerProcess;
use bench::stats::{median, ratio, rounds};
use bench::{Operation, Pacing};
use std::time::Duration;

const LAYOUT: CpuLayout = CpuLayout::PINNED;
const NODES: usize = 3;
const VALUE_BYTES: usize = 100;
const CONNECTIONS: usize = 64;
const MEMORY: &str = "512MiB";
/// Time from the stop of a node to the measurement. By then the other nodes know that it hangs.
const NOTICED_AFTER: Duration = Duration::from_secs(1);
/// Time from the continuation of a node to the next measurement. By then it has received the writes
/// that it missed.
const SETTLED_AFTER: Duration = Duration::from_secs(3);
/// Fraction of the top rate at which latencies are measured.
const CALM: f64 = 0.5;
/// Path in the status of the number of system calls that write to peers.
const PEER_WRITES: &str = "links.write_calls";

/// Measurements of one operation, by round.
#[derive(Debug, Default)]
struct ClusterRounds {
    alone_cpu_us: Vec<f64>,
    cluster_cpu_us: Vec<f64>,
    cluster_per_second: Vec<f64>,
    peer_writes: Vec<f64>,
    well_p99_us: Vec<f64>,
    hung_p99_us: Vec<f64>,
}

/// Measures, and adds the rows.
pub(crate) fn rows(options: &Options, work_dir: &WorkDir, table: &mut ResultTable) -> BenchResult<()> {
    table.section("three nodes on core 0 with one I/O thread each, generator on core 1; 2 of 3, durable");
    let alone = work_dir.veche("alone", LAYOUT, Durability::Sync, Some(MEMORY))?;
    let nodes = work_dir.cluster("node", NODES, LAYOUT, Durability::Sync, MEMORY)?;
    for server in [&alone, &nodes[0]] {
        preload(server, LAYOUT, KeyOrder::Sequential, options.keys(), VALUE_BYTES)?;
    }
    for operation in [Operation::Put, Operation::Get] {
        let mut measured = ClusterRounds::default();
        for round in 0..options.rounds() as u64 {
            measure_cost(options, &alone, &nodes, operation, round, &mut measured)?;
            measure_hung(options, &nodes, operation, round, &mut measured)?;
        }
        add_rows(table, operation, &measured);
    }
    Ok(())
}

fn load(options: &Options, operation: Operation, pacing: Pacing, seed: u64) -> Load {
    Load { operation, connections: CONNECTIONS, pacing, keys: options.keys(), value_bytes: VALUE_BYTES, seed }
}

fn measure_cost(
    options: &Options,
    alone: &ServerProcess,
    nodes: &[ServerProcess],
    operation: Operation,
    round: u64,
    measured: &mut ClusterRounds,
) -> BenchResult<()> {
    let load = load(options, operation, Pacing::Closed, round);
    let one = measure(alone, LAYOUT, options.seconds(), &[load])?;
    let before = peer_writes(nodes)?;
    let all = measure_all(nodes, LAYOUT, options.seconds(), &[load])?;
    let writes = (peer_writes(nodes)? - before) / all.answers.max(1) as f64;
    println!(
        "  round {round}: {:<4} alone {:>8.0}/s {:>6.2} us; three nodes {:>8.0}/s {:>6.2} us, {writes:.3} peer writes",
        operation.name(),
        one.per_second,
        one.cpu_us,
        all.per_second,
        all.cpu_us,
    );
    measured.alone_cpu_us.push(one.cpu_us);
    measured.cluster_cpu_us.push(all.cpu_us);
    measured.cluster_per_second.push(all.per_second);
    measured.peer_writes.push(writes);
    Ok(())
}

/// Measures the tail latency at a moderate rate, with all nodes running and with the last one hung.
fn measure_hung(
    options: &Options,
    nodes: &[ServerProcess],
    operation: Operation,
    round: u64,
    measured: &mut ClusterRounds,
) -> BenchResult<()> {
    let top = measured.cluster_per_second.last().copied().unwrap_or(1.0);
    let calm = load(options, operation, Pacing::at(top * CALM), !round);
    let sample = || -> BenchResult<Sample> { measure(&nodes[0], LAYOUT, options.seconds(), &[calm]) };
    let well = sample()?;
    let last = &nodes[NODES - 1];
    last.pause()?;
    std::thread::sleep(NOTICED_AFTER);
    let hung = sample();
    last.resume()?;
    let hung = hung?;
    std::thread::sleep(SETTLED_AFTER);
    println!(
        "  round {round}: {:<4} p99 all well {:.0} us, one hung {:.0} us",
        operation.name(),
        well.p99_us,
        hung.p99_us
    );
    measured.well_p99_us.push(well.p99_us);
    measured.hung_p99_us.push(hung.p99_us);
    Ok(())
}

fn add_rows(table: &mut ResultTable, operation: Operation, measured: &ClusterRounds) {
    let name = operation.name().to_uppercase();
    let cost_max = if operation == Operation::Put { 2.5 } else { 2.2 };
    let (alone, cluster) = (median(&measured.alone_cpu_us), median(&measured.cluster_cpu_us));
    table.row(
        &format!("{name} 2/3 x{CONNECTIONS}: CPU of all nodes / one node's alone"),
        Threshold::AtMost(cost_max),
        ratio(&measured.cluster_cpu_us, &measured.alone_cpu_us),
        format!("us: {cluster:.2} / {alone:.2}; {:.0}/s", median(&measured.cluster_per_second)),
    );
    table.row(
        &format!("{name} 2/3 x{CONNECTIONS}: write calls on peer links an operation"),
        Threshold::AtMost(0.5),
        rounds(&measured.peer_writes),
        "of all nodes, with heartbeats".to_owned(),
    );
    table.row(
        &format!("{name} 2/3 at half the top rate: p99, one hung / all well"),
        Threshold::AtMost(1.5),
        ratio(&measured.hung_p99_us, &measured.well_p99_us),
        format!("us: {:.0} / {:.0}", median(&measured.hung_p99_us), median(&measured.well_p99_us)),
    );
}

/// Write calls on peer links so far, summed over the nodes.
fn peer_writes(nodes: &[ServerProcess]) -> BenchResult<f64> {
    let mut sum = 0.0;
    for node in nodes {
        let status = status(node)?;
        sum += number_at(&status, PEER_WRITES).ok_or_else(|| format!("status has no {PEER_WRITES}"))?;
    }
    Ok(sum)
}
