//! Complete benchmarks: describe the servers, preload, measure or search, report.
//!
//! **Promise.** After the first connection, every behaviour of the server is part of the report and
//! never aborts it: refusals, broken connections, a crash. A benchmark that is asked to stop ends
//! within seconds with the results so far.

use crate::client::fetch;
use crate::console::{Console, PreloadProgress};
use crate::cpu::{CpuMeter, own_cpu};
use crate::goal::{Goal, Observation};
use crate::keys::{KEY_LEN, KeyNumber, KeyOrder};
use crate::load::{Lane, LaneResult, LoadError, RunHooks, RunSpec, run_with_hooks};
use crate::machine::MachineInfo;
use crate::report::{
    CostReport, FORMAT, LaneReport, LoadReport, Report, SearchReport, ServerReport, TrialReport,
};
use crate::schedule::Pacing;
use crate::search::{RateSearch, SETTLE_DIVISOR, SearchStep};
use crate::stop::StopFlag;
use crate::target::Target;
use crate::units::{bytes, grouped, span};
use crate::workload::{Mix, Operation, QuorumOverride, WorkloadSpec};
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Minimum number of connections for a preload; more if the benchmark itself uses more.
const PRELOAD_CONNECTIONS: usize = 64;
/// Seconds without a stored key after which a preload is abandoned.
const PRELOAD_IDLE_MAX_S: u64 = 30;
/// Keys that are read to find out whether the data is present.
const SAMPLED_KEYS: u64 = 64;
/// Timeout of a status request.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(5);

/// A benchmark's parameters.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// Name of the preset, or of the operations.
    pub name: String,
    /// Command line that repeats the benchmark.
    pub command: String,
    /// Version of the generator.
    pub version: String,
    /// Published results of others for this load.
    pub published: Option<String>,
    /// Servers under test.
    pub targets: Vec<Target>,
    /// Connections over all threads.
    pub connections: usize,
    /// Threads of the generator.
    pub threads: usize,
    /// Cores for the threads, assigned round-robin; empty: not pinned.
    pub cores: Vec<usize>,
    /// Pacing of the requests. A search starts at this rate.
    pub pacing: Pacing,
    /// With a rate: requests due within this interval start together. Zero: each request starts at
    /// its own time.
    pub burst: Duration,
    /// Requests to send.
    pub workload: WorkloadSpec,
    /// Keys to store before the measurement.
    pub preload: Option<Preload>,
    /// Time before the measurement whose requests do not count.
    pub warmup: Duration,
    /// Time to measure after the warm-up. `None`: until all requests were sent.
    pub duration: Option<Duration>,
    /// Number of requests after which the benchmark ends.
    pub requests: Option<u64>,
    /// Compare the values in responses with the expected bytes.
    pub verify: bool,
    /// Search for the highest rate that meets a goal.
    pub search: Option<SearchPlan>,
    /// Local server processes whose CPU time is measured.
    pub pids: Vec<u32>,
}

/// Data to store before a benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Preload {
    /// Number of keys, from key 0 on.
    pub keys: u64,
    /// Store the data even if a sample of the keys is present.
    pub always: bool,
}

/// Parameters of a search for the highest rate.
#[derive(Clone, Debug)]
pub struct SearchPlan {
    /// Goal that a rate has to meet.
    pub goal: Goal,
    /// Duration of a trial.
    pub trial: Duration,
}

/// Reason why a benchmark has no report.
#[derive(Debug)]
pub enum BenchError {
    /// Nothing was measured.
    Load(LoadError),
    /// The data could not be stored.
    Preload(String),
    /// The CPU time of a server process cannot be read.
    Process(std::io::Error),
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(source) => source.fmt(f),
            Self::Preload(reason) => write!(f, "the data could not be stored: {reason}"),
            Self::Process(source) => write!(f, "the process of --pid cannot be watched: {source}"),
        }
    }
}

impl std::error::Error for BenchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Load(source) => Some(source),
            Self::Preload(_) => None,
            Self::Process(source) => Some(source),
        }
    }
}

impl From<LoadError> for BenchError {
    fn from(source: LoadError) -> Self {
        Self::Load(source)
    }
}

/// Runs a benchmark.
///
/// # Errors
/// [`BenchError`] if there is nothing to report.
pub fn benchmark(plan: &BenchPlan, stop: &StopFlag, console: &mut Console) -> Result<Report, BenchError> {
    benchmark_with_hook(plan, stop, console, &mut || ())
}

/// Runs a benchmark and calls `before_measurement` just before the warm-up of the reported
/// measurement. It must return before the measurement starts. A search calls it before each long
/// measurement; the last one is reported.
///
/// # Errors
/// [`BenchError`] if there is nothing to report.
pub fn benchmark_with_hook(
    plan: &BenchPlan,
    stop: &StopFlag,
    console: &mut Console,
    before_measurement: &mut dyn FnMut(),
) -> Result<Report, BenchError> {
    allow_many_files();
    let started = rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    let servers: Vec<ServerReport> = plan.targets.iter().map(describe_server).collect();
    let mut runner = Runner { plan, stop, console, before_measurement };
    let preloaded = plan.preload.map(|preload| runner.preload(preload)).transpose()?;
    runner.announce(&servers);
    let (search, measured) = match &plan.search {
        None => {
            (runner.before_measurement)();
            (None, runner.measure(plan.pacing, plan.duration)?)
        }
        Some(search) => {
            let (found, measured) = runner.search(search)?;
            (Some(found), measured)
        }
    };
    Ok(Report {
        format: FORMAT.to_owned(),
        name: plan.name.clone(),
        command: plan.command.clone(),
        started,
        generator: plan.version.clone(),
        machine: MachineInfo::here(),
        servers,
        load: plan.load(preloaded),
        published: plan.published.clone(),
        interrupted: stop.is_set(),
        cost: measured.cost,
        search,
        profile: Vec::new(),
        run: LaneReport::new(&measured.result),
    })
}

/// Raises the limit of open files, because each connection needs one. If that fails, connecting
/// reports the error.
fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A measurement with its CPU cost.
struct Measurement {
    result: LaneResult,
    cost: CostReport,
}

struct Runner<'a> {
    plan: &'a BenchPlan,
    stop: &'a StopFlag,
    console: &'a mut Console,
    before_measurement: &'a mut dyn FnMut(),
}

impl Runner<'_> {
    fn announce(&mut self, servers: &[ServerReport]) {
        for server in servers {
            let facts = if server.facts.is_empty() {
                String::new()
            } else {
                format!(" ({})", server.facts.join(", "))
            };
            self.console.say(&format!("{}: {}{facts}", server.url, server.software));
        }
        let plan = self.plan;
        let rate = match (&plan.search, plan.pacing) {
            (Some(search), _) => format!("highest rate that holds {}", search.goal),
            (None, Pacing::Rate(rate)) if plan.burst.is_zero() => format!("{} requests/s", grouped(rate)),
            (None, Pacing::Rate(rate)) => {
                format!("{} requests/s in bursts each {:?}", grouped(rate), plan.burst)
            }
            (None, Pacing::Closed) => "closed loop".to_owned(),
        };
        let WorkloadSpec { mix, keys, order, sizes, .. } = plan.workload;
        let length = match (plan.duration, plan.requests) {
            (Some(duration), _) => span(duration),
            (None, requests) => format!("{} requests", grouped(requests.unwrap_or(0))),
        };
        let mix = if plan.name == mix.to_string() { String::new() } else { format!("{mix}, ") };
        self.console.say(&format!(
            "{}: {rate}, {}, {}; {mix}{} {order} keys, values of {sizes}; {length} after {} of warm-up",
            plan.name,
            pluralize(plan.connections, "connection"),
            pluralize(plan.threads, "thread"),
            grouped(keys),
            span(plan.warmup),
        ));
    }

    /// Stores the keys `0..preload.keys`. Returns their number.
    fn preload(&mut self, preload: Preload) -> Result<u64, BenchError> {
        let keys = preload.keys;
        if !preload.always && self.is_preloaded(keys) {
            self.console
                .say(&format!("preload: {SAMPLED_KEYS} of {} keys looked at, all there", grouped(keys)));
            return Ok(keys);
        }
        let plan = self.plan;
        let lane = Lane {
            name: "preload".to_owned(),
            connections: PRELOAD_CONNECTIONS.max(plan.connections),
            pacing: Pacing::Closed,
            burst: Duration::ZERO,
            workload: WorkloadSpec {
                mix: Mix::only(Operation::Put),
                order: KeyOrder::Sequential,
                keys,
                ttl_ms: None,
                ..plan.workload
            },
            requests: Some(keys),
            verify: false,
            retry: true,
            send_timeout: None,
            answer_timeout: None,
        };
        let mut progress = PreloadProgress::new(keys, KEY_LEN as f64 + plan.workload.sizes.mean());
        let (idle_stop, console) = (StopFlag::default(), &mut *self.console);
        let (stop, mut idle_s) = (self.stop, 0);
        let spec = plan.run_spec(lane, Duration::ZERO, None);
        let stored_status = Operation::Put.expected_status();
        let hooks = RunHooks {
            stop: &idle_stop,
            on_second: &mut |second| {
                let stored = second.row.statuses.get(&stored_status).copied().unwrap_or(0);
                progress.second(stored);
                console.progress(&progress);
                idle_s = if stored == 0 { idle_s + 1 } else { 0 };
                if idle_s == PRELOAD_IDLE_MAX_S || stop.is_set() {
                    idle_stop.set();
                }
            },
        };
        let result = run_with_hooks(&spec, hooks)?.remove(0);
        let stored = result.recorder.with_status(stored_status);
        if stored == keys {
            return Ok(keys);
        }
        let why = if stop.is_set() { "interrupted" } else { "the server has stopped storing keys" };
        let report = LaneReport::new(&result);
        Err(BenchError::Preload(format!("{why}; {stored} of {keys} keys stored\n{report}")))
    }

    /// Whether keys sampled evenly over the data have the expected values. A failed read counts as
    /// absent.
    fn is_preloaded(&self, keys: u64) -> bool {
        let samples = SAMPLED_KEYS.min(keys);
        let values = self.plan.workload.values();
        let quorum = quorum_parameters(self.plan.workload.quorum);
        (0..samples).all(|sample| {
            let key = KeyNumber(
                (u128::from(sample) * u128::from(keys - 1) / u128::from(samples.max(2) - 1)) as u64,
            );
            let path = format!("/v0/entity?id={}{quorum}", String::from_utf8_lossy(&key.stored_key()));
            let target = &self.plan.targets[sample as usize % self.plan.targets.len()];
            let mut expected = Vec::new();
            values.append(key, &mut expected);
            fetch(target.address(), "GET", &path, &[], SAMPLE_TIMEOUT)
                .is_ok_and(|answer| answer.status == 200 && answer.body == expected)
        })
    }

    fn measure(&mut self, pacing: Pacing, duration: Option<Duration>) -> Result<Measurement, BenchError> {
        let plan = self.plan;
        let lane = Lane {
            name: plan.name.clone(),
            connections: plan.connections,
            pacing,
            burst: plan.burst,
            workload: plan.workload,
            requests: plan.requests,
            verify: plan.verify,
            retry: false,
            send_timeout: None,
            answer_timeout: None,
        };
        let meters = plan.pids.iter().map(|pid| CpuMeter::start(*pid)).collect::<Result<Vec<_>, _>>();
        let meters = meters.map_err(BenchError::Process)?;
        let own = own_cpu();
        let begun = Instant::now();
        let console = &mut *self.console;
        let hooks = RunHooks { stop: self.stop, on_second: &mut |second| console.second(second) };
        let spec = plan.run_spec(lane, plan.warmup, duration);
        let result = run_with_hooks(&spec, hooks)?.remove(0);
        let own = own_cpu() - own;
        let answers = result.recorder.answers_with_warmup().max(1) as f64;
        let per_answer = |spent: Duration| spent.as_secs_f64() * 1e6 / answers;
        // A server process that has ended has no figure.
        let server = meters.iter().map(CpuMeter::spent).sum::<Result<Duration, _>>().ok();
        let cost = CostReport {
            generator_us_per_answer: per_answer(own),
            generator_busy: own.as_secs_f64() / begun.elapsed().as_secs_f64() / plan.threads as f64,
            server_us_per_answer: server.filter(|_| !meters.is_empty()).map(per_answer),
        };
        Ok(Measurement { result, cost })
    }

    fn search(&mut self, plan: &SearchPlan) -> Result<(SearchReport, Measurement), BenchError> {
        let start = match self.plan.pacing {
            Pacing::Rate(rate) => rate,
            Pacing::Closed => SEARCH_START,
        };
        let mut search = RateSearch::new(start);
        let mut report = SearchReport { goal: plan.goal.to_string(), ..SearchReport::default() };
        let mut last = None;
        loop {
            let (rate, is_long) = match search.step() {
                SearchStep::Try(rate) => (rate, false),
                SearchStep::Confirm(rate) => (rate, true),
                SearchStep::Done(found) => {
                    (report.knee, report.working_point) = (found.knee, found.working_point);
                    break;
                }
            };
            let duration = if is_long { self.plan.duration.unwrap_or(plan.trial) } else { plan.trial };
            self.console.say(&format!("{} requests/s for {}", grouped(rate), span(duration)));
            if is_long {
                (self.before_measurement)();
            }
            let trial = match self.measure(Pacing::Rate(rate), Some(duration)) {
                Ok(measured) => {
                    let trial = Observation::of(&measured.result, rate).trial(&plan.goal, rate, is_long);
                    last = Some(measured);
                    trial
                }
                // A server that accepted connections before and does not now has failed at this
                // rate.
                Err(BenchError::Load(error @ LoadError::Connect { .. })) if last.is_some() => {
                    TrialReport { rate, is_long, why: vec![error.to_string()], ..TrialReport::default() }
                }
                Err(error) => return Err(error),
            };
            if self.stop.is_set() {
                break;
            }
            self.console.say(&describe_verdict(&trial));
            search.record_verdict(trial.held);
            report.trials.push(trial);
            std::thread::sleep(plan.trial / SETTLE_DIVISOR);
        }
        let measured = last.ok_or(BenchError::Load(LoadError::Spec("the search measured nothing")))?;
        Ok((report, measured))
    }
}

/// Rate at which a search starts by default, in requests/s.
const SEARCH_START: u64 = 1_000;

fn describe_verdict(trial: &TrialReport) -> String {
    if trial.held { "it holds".to_owned() } else { format!("it does not hold: {}", trial.why.join(", ")) }
}

impl BenchPlan {
    fn run_spec(&self, lane: Lane, warmup: Duration, duration: Option<Duration>) -> RunSpec {
        RunSpec {
            targets: self.targets.clone(),
            threads: self.threads,
            cores: self.cores.clone(),
            warmup,
            duration,
            lanes: vec![lane],
        }
    }

    fn load(&self, preloaded: Option<u64>) -> LoadReport {
        let WorkloadSpec { mix, keys, order, sizes, seed, quorum, ttl_ms, limit, .. } = self.workload;
        let shown = |part: Option<u32>| part.map_or("default".to_owned(), |part| part.to_string());
        let is_default = quorum == QuorumOverride::default();
        LoadReport {
            mix: mix.to_string(),
            order: order.to_string(),
            keys,
            value_size: sizes.to_string(),
            quorum: (!is_default).then(|| format!("{} of {}", shown(quorum.ack), shown(quorum.from))),
            ttl_ms,
            limit: mix.has(Operation::Range).then_some(limit),
            preloaded,
            connections: self.connections,
            threads: self.threads,
            seed,
            warmup_s: self.warmup.as_secs_f64(),
        }
    }
}

fn quorum_parameters(quorum: QuorumOverride) -> String {
    let part =
        |name: &str, value: Option<u32>| value.map_or(String::new(), |value| format!("&{name}={value}"));
    part("ack", quorum.ack) + &part("from", quorum.from)
}

/// Describes a server by its `/v0/status`, else by its `Server` header.
fn describe_server(target: &Target) -> ServerReport {
    let mut report =
        ServerReport { url: target.to_string(), software: "unknown server".to_owned(), facts: Vec::new() };
    let Ok(answer) = fetch(target.address(), "GET", "/v0/status", &[], STATUS_TIMEOUT) else { return report };
    let status: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let Some(version) = status["version"].as_str() else {
        let head = String::from_utf8_lossy(&answer.head).into_owned();
        let named = head.lines().filter_map(|line| line.split_once(':'));
        let server =
            named.filter(|(name, _)| name.eq_ignore_ascii_case("server")).map(|(_, value)| value).next();
        if let Some(server) = server {
            report.software = server.trim().to_owned();
        }
        return report;
    };
    report.software = format!("veche {version}");
    if let Some(nodes) = status["nodes"].as_array().filter(|nodes| nodes.len() > 1) {
        report.facts.push(format!("{} nodes", nodes.len()));
    }
    let storage = &status["storage"];
    report.facts.extend(storage["durability"].as_str().map(|durability| format!("durability {durability}")));
    let budget = storage["memory"]["budget_bytes"].as_u64();
    report.facts.extend(budget.map(|budget| format!("memory budget {}", bytes(budget as f64))));
    report
}

fn pluralize(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats the time since 1970 as `2025-01-31T12:00:00Z`. The calendar is Howard Hinnant's
/// `civil_from_days`.
fn rfc3339(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests;
