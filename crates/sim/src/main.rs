//! Runs seeds: `sim run --seed N [--trace] [--small] [--flood | --fault KIND | --plant NAME |
//! --as-for NAME]`, `sim sweep COUNT [--from SEED] [--small] [--fault KIND]`, `sim plants COUNT
//! [--small] [--plant NAME]`.
//!
//! A sweep and the plants use every core. A sweep also runs every tenth seed with a flood. With
//! `--fault`, half of the faults of each run are of that kind, for example `--fault clock-step`.
//! With `--with`, each run has this dimension of the world, even if its seed does not draw it, for
//! example `--with narrow-links`. With `run --plant`, the run has a planted bug; with `--as-for` it
//! is the same run without the bug.

use sim::{Dimension, FaultKind, Plant, RunReport, Scale, Scenario};
use std::cell::Cell;
use std::num::NonZero;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const USAGE: &str = "sim run --seed N [--trace] [--small] [--flood | --fault KIND | --plant NAME | --as-for NAME] [--with DIMENSION]\nsim sweep COUNT [--from SEED] [--small] [--fault KIND] [--with DIMENSION]\nsim plants COUNT [--small] [--plant NAME]";

/// A sweep reports its progress each time it has run this number of seeds.
const PROGRESS_EVERY: u64 = 500;
/// Stack of a thread that runs seeds, as large as that of a main thread.
const STACK_BYTES: usize = 8 << 20;
/// A sweep runs the seeds that are multiples of this number with a flood too.
const FLOOD_EVERY: u64 = 10;

/// Options of a run besides its seed.
#[derive(Clone, Copy, Debug)]
struct RunOptions {
    scale: Scale,
    is_flood: bool,
    fault: Option<FaultKind>,
    /// Dimension that the run has even if its seed does not draw it.
    with: Option<Dimension>,
    /// Planted bug that the run is drawn for, and whether the run has it.
    plant: Option<(Plant, bool)>,
}

thread_local! {
    /// The run of this thread.
    static RUNNING: Cell<Option<(u64, RunOptions)>> = const { Cell::new(None) };
}

impl RunOptions {
    fn draw(self, seed: u64) -> Scenario {
        let scenario = match self.fault {
            Some(kind) => Scenario::draw_with_fault(seed, self.scale, kind),
            None if self.is_flood => Scenario::draw_flood(seed, self.scale),
            None => {
                let has_bug = self.plant.is_some_and(|(_, has_bug)| has_bug);
                let scenario = Scenario::draw(seed, self.scale, self.plant.map(|(plant, _)| plant));
                Scenario { plant: scenario.plant.filter(|_| has_bug), ..scenario }
            }
        };
        match self.with {
            Some(dimension) => scenario.with_dimension(dimension),
            None => scenario,
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| words.iter().any(|word| word == flag);
    let number_after = |flag: &str| {
        let at = words.iter().position(|word| word == flag)?;
        words.get(at + 1)?.parse::<u64>().ok()
    };
    let scale = if has("--small") { Scale::SMALL } else { Scale::FULL };
    let fault_name = words.iter().skip_while(|word| *word != "--fault").nth(1);
    let fault = fault_name.and_then(|name| FaultKind::named(name));
    if has("--fault") && fault.is_none() {
        let all = FaultKind::ALL.into_iter().chain(FaultKind::CHANGES);
        eprintln!("kinds of faults: {}", all.map(FaultKind::name).collect::<Vec<_>>().join(" "));
        return usage();
    }
    let with_name = words.iter().skip_while(|word| *word != "--with").nth(1);
    let with = with_name.and_then(|name| Dimension::named(name));
    if has("--with") && with.is_none() {
        eprintln!("dimensions: {}", Dimension::ALL.map(Dimension::name).join(" "));
        return usage();
    }
    let name_after = |flag: &str| words.iter().skip_while(|word| *word != flag).nth(1);
    let plant_after = |flag: &str| {
        let name = name_after(flag)?;
        Plant::ALL.into_iter().find(|plant| format!("{plant:?}") == *name)
    };
    let plant = plant_after("--plant").map(|plant| (plant, true));
    let plant = plant.or_else(|| plant_after("--as-for").map(|plant| (plant, false)));
    match words.first().map(String::as_str) {
        Some("run") => match number_after("--seed") {
            Some(seed) => run_one(
                seed,
                RunOptions { scale, is_flood: has("--flood"), fault, with, plant },
                has("--trace"),
            ),
            None => usage(),
        },
        Some("sweep") => match number_after("sweep") {
            Some(count) => sweep(
                number_after("--from").unwrap_or(0),
                count,
                RunOptions { scale, is_flood: false, fault, with, plant: None },
            ),
            None => usage(),
        },
        Some("plants") => match number_after("plants") {
            Some(count) => plants(count, scale, words.iter().skip_while(|word| *word != "--plant").nth(1)),
            None => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::FAILURE
}

fn run_one(seed: u64, options: RunOptions, prints: bool) -> ExitCode {
    replay_on_panic();
    RUNNING.set(Some((seed, options)));
    let scenario = options.draw(seed);
    println!("{scenario:#?}");
    let report = sim::run(scenario, prints);
    print(&report, options);
    if report.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs `count` seeds, on every core. Prints each violation with the command line that replays it.
fn sweep(from: u64, count: u64, options: RunOptions) -> ExitCode {
    replay_on_panic();
    let progress = Mutex::new((0_u64, Vec::new()));
    on_every_core(from..from + count, |seed| {
        let failures = failures_of(seed, options);
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, failed) = &mut *progress;
        *done += 1;
        failed.extend(std::iter::repeat_n(seed, failures));
        if done.is_multiple_of(PROGRESS_EVERY) && *done < count {
            eprintln!("{done} of {count} seeds from {from}: {} failed {failed:?}", failed.len());
        }
    });
    let (_, mut failed) = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort_unstable();
    println!("{count} seeds from {from}: {} failed {failed:?}", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a seed of a sweep. Returns the number of its runs that failed.
fn failures_of(seed: u64, options: RunOptions) -> usize {
    let has_flood = options.fault.is_none() && seed.is_multiple_of(FLOOD_EVERY);
    let flood = has_flood.then_some(RunOptions { is_flood: true, ..options });
    let fails = |options: &RunOptions| {
        let options = *options;
        RUNNING.set(Some((seed, options)));
        // A panic is a failed assertion inside a state machine. The sweep continues after it.
        let report = std::panic::catch_unwind(|| sim::run(options.draw(seed), false));
        !report.is_ok_and(|report| report.violation.as_ref().inspect(|_| print(&report, options)).is_none())
    };
    std::iter::once(options).chain(flood).filter(fails).count()
}

/// Runs each planted bug, or the one named `only`, and prints how many of the seeds catch it.
fn plants(count: u64, scale: Scale, only: Option<&String>) -> ExitCode {
    let mut missed = false;
    let is_wanted = |plant: &Plant| only.is_none_or(|name| format!("{plant:?}") == *name);
    std::panic::set_hook(Box::new(|_| {}));
    for plant in Plant::ALL.into_iter().filter(is_wanted) {
        let caught = Mutex::new(Vec::new());
        on_every_core(0..count, |seed| {
            let run = std::panic::catch_unwind(|| sim::run(Scenario::draw(seed, scale, Some(plant)), false));
            let by = match run {
                Ok(report) => report.violation.map(|violation| violation.invariant.to_owned()),
                Err(_) => Some("panic".to_owned()),
            };
            let mut caught = caught.lock().unwrap_or_else(PoisonError::into_inner);
            caught.extend(by.map(|by| (seed, by)));
        });
        let mut caught = caught.into_inner().unwrap_or_else(PoisonError::into_inner);
        caught.sort_unstable();
        missed |= caught.is_empty();
        println!("{plant:?}: {} of {count} seeds: {:?}", caught.len(), caught.get(..caught.len().min(6)));
    }
    if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Calls `run` once for each seed, on as many threads as there are cores.
fn on_every_core(seeds: Range<u64>, run: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(seeds.start);
    let run_rest = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            run(seed);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, run_rest).expect("a thread for each core");
        }
    });
}

fn print(report: &RunReport, options: RunOptions) {
    let RunReport { seed, violation, hash, events, operations, scans, faults, layouts, took } = report;
    let ((succeeded, submitted), (complete, begun)) = (operations, scans);
    if let Some(violation) = violation {
        println!("{violation}\n{}", replay(*seed, options));
    }
    println!(
        "seed {seed}: {succeeded} of {submitted} commands succeeded, {complete} of {begun} scans reached their end, {faults} faults, {layouts} layout records, {events} events in {took:?}, trace {hash:016x}"
    );
}

/// Prints the command line that replays the run of a thread when it panics.
fn replay_on_panic() {
    std::panic::set_hook(Box::new(|panic| match RUNNING.get() {
        Some((seed, options)) => println!("{panic}\n{}", replay(seed, options)),
        None => println!("{panic}"),
    }));
}

fn replay(seed: u64, options: RunOptions) -> String {
    let small = if options.scale == Scale::SMALL { " --small" } else { "" };
    let flood = if options.is_flood { " --flood" } else { "" };
    let fault = options.fault.map_or_else(String::new, |kind| format!(" --fault {}", kind.name()));
    let with = options.with.map_or_else(String::new, |dimension| format!(" --with {}", dimension.name()));
    format!("replay: cargo xtask sim --seed {seed}{small}{flood}{fault}{with}")
}
