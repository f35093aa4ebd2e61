//! Comparison of veche's engine with RocksDB and fjall: the same work, the same memory and the same
//! durability, in one run.
//!
//! Each store does each round in a process of its own, so that no allocator, page or thread is
//! shared. The stores alternate within a round, and a result is the median of the rounds' ratios.
//! All options of all stores are printed. `bench/README.md` describes the rows.

use bench::machine::MachineInfo;
use clap::Parser;
use compare::report::Results;
use compare::scenario::{self, Scenario};
use compare::store::{Kind, Outcome};
use compare::workload::{self, Job, JobReport};
use lab::cgroup::{self, ControlGroup};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const BLOCK_BYTES: u32 = 16 * 1024;

/// Compares storage engines.
#[derive(Clone, Debug, Parser)]
struct Options {
    /// A smoke run: seconds instead of minutes, numbers without meaning.
    #[arg(long)]
    quick: bool,
    /// The stores.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["veche", "rocksdb", "fjall"])]
    stores: Vec<Kind>,
    /// The scenarios, by name; all without it.
    #[arg(long, value_delimiter = ',')]
    scenarios: Vec<String>,
    /// Rounds of everything.
    #[arg(long)]
    rounds: Option<u64>,
    /// Seconds of each phase that is bounded by time.
    #[arg(long)]
    seconds: Option<f64>,
    /// Size of data blocks, the same for all stores.
    #[arg(long, default_value_t = BLOCK_BYTES)]
    block_bytes: u32,
    /// Use each store's own default size of data blocks instead.
    #[arg(long, conflicts_with = "block_bytes")]
    own_blocks: bool,
    /// Directory for data; a subdirectory is created for the run and removed at its end.
    #[arg(long, default_value = "target/compare-data")]
    dir: PathBuf,
    /// Also write the results to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Job of this process, if it is a child of another one.
    #[arg(long, hide = true)]
    child: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match &options.child {
        Some(job) => child(job),
        None => compare(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn child(job: &str) -> Outcome<()> {
    let job: Job = serde_json::from_str(job)?;
    if let Some(dir) = &job.cgroup {
        cgroup::join(dir)?;
    }
    println!("{}", serde_json::to_string(&workload::run(&job)?)?);
    Ok(())
}

fn compare(options: &Options) -> Outcome<()> {
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 7 });
    let seconds = options.seconds.unwrap_or(if options.quick { 0.2 } else { 3.0 });
    let block_bytes = (!options.own_blocks).then_some(options.block_bytes);
    let mut scenarios = scenario::all(block_bytes, options.quick);
    scenarios.retain(|scenario| options.scenarios.is_empty() || options.scenarios.contains(&scenario.name));
    if scenarios.is_empty() {
        return Err("there is no scenario of that name".into());
    }
    let home = options.dir.join(format!("run-{}", std::process::id()));
    std::fs::create_dir_all(&home)?;
    let mut results = Results::new(MachineInfo::here(), format!("{rounds} rounds, {seconds} s: {options:?}"));
    print!("{}", results.heading());
    let done = scenarios.iter().try_for_each(|scenario| {
        println!("\n# {scenario:?}");
        for round in 0..rounds {
            for turn in 0..options.stores.len() {
                let kind = options.stores[(turn + round as usize) % options.stores.len()];
                let dir = home.join(format!("{}-{}-{round}", kind.name(), scenario.name));
                let job = Job { kind, dir, scenario: scenario.clone(), seconds, seed: round, cgroup: None };
                let report = run_child(job, scenario)?;
                results.add(&scenario.name, kind, round, report);
            }
        }
        print!("{}", results.table(&scenario.name));
        Outcome::Ok(())
    });
    std::fs::remove_dir_all(&home)?;
    done?;
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_vec_pretty(&results)?)?;
    }
    Ok(())
}

fn run_child(mut job: Job, scenario: &Scenario) -> Outcome<JobReport> {
    let limit = scenario.memory_bytes.map(|bytes| ControlGroup::with_memory("compare", bytes)).transpose();
    let limit = limit.unwrap_or_else(|error| {
        println!("  no memory cgroup ({error}): only the cache is small, the page cache is not");
        None
    });
    job.cgroup = limit.as_ref().map(|limit| limit.dir().to_owned());
    let begun = std::time::Instant::now();
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--child").arg(serde_json::to_string(&job)?).stderr(Stdio::inherit());
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{} on {}: {}", job.kind.name(), scenario.name, output.status).into());
    }
    println!("  {} round {}: {:.1} s", job.kind.name(), job.seed, begun.elapsed().as_secs_f64());
    Ok(serde_json::from_slice(&output.stdout)?)
}
