//! The load generator on the command line. One lane; see the library for what its numbers mean.

use bench::keys::KeyOrder;
use bench::machine::Machine;
use bench::process::CpuMeter;
use bench::report::LaneReport;
use bench::values::Sizes;
use bench::{Lane, Mix, Operation, Pacing, RunSpec, WorkloadSpec, run};
use clap::Parser;
use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PRELOAD_CONNECTIONS: usize = 64;

/// Loads an HTTP key-value server, in a closed loop or at a constant rate, and reports latencies counted from
/// the intended start of each request.
#[derive(Debug, Parser)]
struct Options {
    /// The server.
    #[arg(long, default_value = "127.0.0.1:8080")]
    target: SocketAddr,
    /// Connections, over all threads.
    #[arg(short, long, default_value_t = 64)]
    connections: usize,
    /// Generator threads.
    #[arg(short, long, default_value_t = 1)]
    threads: usize,
    /// Cores for the threads, in turn: 1 or 0,1.
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Requests/s over all connections. Without it a closed loop.
    #[arg(short, long)]
    rate: Option<Pacing>,
    /// Seconds to measure.
    #[arg(short, long, default_value_t = 10.0)]
    duration: f64,
    /// Seconds before that which do not count.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Stop after so many requests.
    #[arg(short = 'n', long)]
    requests: Option<u64>,
    /// Operations and their shares: get, put, delete, get-missing, as in get=80,put=20.
    #[arg(short, long, default_value = "get")]
    mix: Mix,
    /// Keys in the data set.
    #[arg(short, long, default_value_t = 1_000_000)]
    keys: u64,
    /// sequential, scattered, uniform, zipf (0.99) or latest.
    #[arg(short, long, default_value = "uniform")]
    order: KeyOrder,
    /// Bytes of a value: 100, or 100..2000 for sizes that follow from the key.
    #[arg(short = 's', long, default_value = "100")]
    value_size: Sizes,
    /// Of the order of operations and keys.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// First store every key once, in order, and fail unless all were stored.
    #[arg(long)]
    preload: bool,
    /// Check the bytes of every value read.
    #[arg(long)]
    verify: bool,
    /// Also print the percentile spectrum and a row for each second.
    #[arg(short = 'L', long)]
    latency: bool,
    /// Process whose CPU time per request is to be measured.
    #[arg(long)]
    pid: Option<u32>,
    /// Also write the report to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match load(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("veche-load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn load(options: &Options) -> Result<(), Box<dyn Error>> {
    println!("{}\n{options:?}", Machine::here());
    if options.preload {
        preload(options)?;
    }
    let spec = measured(options)?;
    let meter = options.pid.map(CpuMeter::start).transpose()?;
    let results = run(&spec)?;
    let spent = meter.as_ref().map(CpuMeter::spent).transpose()?;
    for result in &results {
        let report = LaneReport::new(result);
        print!("{report}");
        if options.latency {
            print!("{}", report.details());
        }
        if let Some(spent) = spent {
            let answers = result.recorder.answers_with_warmup().max(1);
            println!("CPU of the server: {:.2} us/request", spent.as_secs_f64() * 1e6 / answers as f64);
        }
        if let Some(path) = &options.json {
            fs::write(path, serde_json::to_vec_pretty(&report)?)?;
        }
    }
    Ok(())
}

fn measured(options: &Options) -> Result<RunSpec, Box<dyn Error>> {
    let lane = Lane {
        name: options.mix.to_string(),
        connections: options.connections,
        pacing: options.rate.unwrap_or(Pacing::Closed),
        workload: workload(options, options.mix, options.order),
        requests: options.requests,
        verify: options.verify,
        retry: false,
    };
    Ok(RunSpec {
        target: options.target,
        threads: options.threads,
        cores: options.cores.clone(),
        warmup: Duration::try_from_secs_f64(options.warmup)?,
        duration: Some(Duration::try_from_secs_f64(options.duration)?),
        lanes: vec![lane],
    })
}

fn preload(options: &Options) -> Result<(), Box<dyn Error>> {
    let lane = Lane {
        name: "preload".to_owned(),
        connections: PRELOAD_CONNECTIONS.max(options.threads),
        pacing: Pacing::Closed,
        workload: workload(options, Mix::only(Operation::Put), KeyOrder::Sequential),
        requests: Some(options.keys),
        verify: false,
        retry: true,
    };
    let spec = RunSpec {
        target: options.target,
        threads: options.threads,
        cores: options.cores.clone(),
        warmup: Duration::ZERO,
        duration: None,
        lanes: vec![lane],
    };
    let results = run(&spec)?;
    for result in &results {
        println!("{}", LaneReport::new(result));
        if result.recorder.with_status(Operation::Put.expected_status()) != options.keys {
            return Err("the preload did not store every key".into());
        }
    }
    Ok(())
}

fn workload(options: &Options, mix: Mix, order: KeyOrder) -> WorkloadSpec {
    WorkloadSpec { mix, keys: options.keys, order, sizes: options.value_size, seed: options.seed }
}
