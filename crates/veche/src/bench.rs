//! `veche bench`: load a server and report its latencies.
//!
//! This module parses the arguments. The crate `bench` implements the command.

use crate::node_url::NodeUrl;
use crate::output::{self, print_line};
use crate::profile::NodeProfileRequest;
use crate::quantity::{REPLICAS_MAX, whole};
use ::bench::goal::Goal;
use ::bench::keys::{KEY_LEN, KeyOrder};
use ::bench::presets::{PRESETS, PreloadSize, Preset};
use ::bench::report::{self, Report};
use ::bench::units::{grouped, parse_time};
use ::bench::values::ValueSizes;
use ::bench::{
    BenchPlan, Console, Mix, Operation, Pacing, Preload, Protocol, QuorumOverride, RangeScope, SearchPlan,
    StopFlag, Target, WorkloadSpec, benchmark_with_hook,
};
use ::profile::Capture;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

/// Default of `--connections` without a preset.
const CONNECTIONS_DEFAULT: usize = 64;
const DURATION_DEFAULT: Duration = Duration::from_secs(10);
const KEYS_DEFAULT: u64 = 1_000_000;
const VALUE_SIZE_DEFAULT: ValueSizes = ValueSizes::Fixed(100);
/// Upper bound for numbers of connections, threads and cores.
const COUNT_MAX: u64 = u32::MAX as u64;
/// File name that stands for standard output.
const STANDARD_OUTPUT: &str = "-";
/// Value of `--preload` without an amount.
const ALL_KEYS: &str = "keys";

/// Load a server, at a constant rate or in a closed loop, and report its latencies.
///
/// At a constant rate, a latency is measured from the intended start of the request, so that a
/// stalled server does not hide it.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    load: Load,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Compare two runs, from their JSON files.
    Compare(Compare),
    /// List the presets, with published results of other systems.
    Presets {
        /// Print one JSON document; docs/command-line.md lists its fields
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Compare {
    /// JSON files of runs; the table compares the first two
    #[arg(required = true, num_args = 2.., value_name = "JSON")]
    runs: Vec<PathBuf>,
    /// Write an HTML page with the charts of all runs overlaid
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the reports as one JSON document instead of the table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Load {
    /// Servers to load; connections are distributed over them
    #[arg(long, visible_alias = "url", env = "VECHE_URL", value_name = "URL,...", value_delimiter = ',', default_value = crate::client::URL_DEFAULT)]
    target: Vec<Target>,
    /// Named load, see `veche bench presets`; other flags override it
    #[arg(short, long, value_name = "NAME")]
    preset: Option<Preset>,

    /// Requests/s over all connections; without it, a closed loop: each connection sends its next
    /// request when it gets an answer
    #[arg(short, long, value_name = "N", help_heading = "Pace")]
    rate: Option<Pacing>,
    /// With a rate: start all requests of each period TIME together at its beginning [default: each
    /// request at its own time]
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = "Pace")]
    burst: Option<Duration>,
    /// Use a closed loop, even if the preset has a rate
    #[arg(long, conflicts_with_all = ["rate", "burst"], help_heading = "Pace")]
    closed: bool,
    /// Find the highest rate that meets GOAL, such as 'p99<10ms,errors=0', then measure 20 % below
    /// it for --duration
    #[arg(long, value_name = "GOAL", conflicts_with = "closed", help_heading = "Pace")]
    find_max: Option<Goal>,
    /// Duration of each trial of --find-max
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time, help_heading = "Pace")]
    trial: Duration,
    /// Duration of the measurement [default: 10s, or the preset's]
    #[arg(short, long, value_name = "TIME", value_parser = parse_time, help_heading = "Pace")]
    duration: Option<Duration>,
    /// Duration of the load before the measurement
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time, help_heading = "Pace")]
    warmup: Duration,
    /// Stop after N requests, or after --duration if given
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX), conflicts_with = "find_max", help_heading = "Pace")]
    requests: Option<u64>,
    /// Number of connections, over all threads [default: 64, or the preset's]
    #[arg(short, long, value_name = "N", value_parser = whole::<usize>(1, COUNT_MAX), help_heading = "Pace")]
    connections: Option<usize>,
    /// Number of threads of the load generator
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = whole::<usize>(1, COUNT_MAX), help_heading = "Pace")]
    threads: usize,
    /// Cores to which the threads are pinned, round robin
    #[arg(long, value_name = "CORE,...", value_delimiter = ',', value_parser = whole::<usize>(0, COUNT_MAX), help_heading = "Pace")]
    cores: Vec<usize>,

    /// Operations: get, get-missing, put, delete, range; or several with shares: get=80,put=20
    /// [default: get, or the preset's]
    #[arg(short, long, value_name = "MIX", help_heading = "Load")]
    mix: Option<Mix>,
    /// Number of distinct keys [default: the preset's, else all keys of --preload, else 1,000,000]
    #[arg(short, long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX), help_heading = "Load")]
    keys: Option<u64>,
    /// Choice of keys: uniform, sequential, zipf (0.99), latest (writes add keys, reads prefer new
    /// ones), scattered (each once, in random-like order) [default: uniform, or the preset's]
    #[arg(short, long, value_name = "ORDER", help_heading = "Load")]
    order: Option<KeyOrder>,
    /// Size of values: 100, 2KiB, 100..2000 (uniform), log:100..64KiB (many small, few large)
    /// [default: 100, or the preset's]
    #[arg(short = 's', long, value_name = "SIZE", help_heading = "Load")]
    value_size: Option<ValueSizes>,
    /// Maximum number of entries of a range [default: 100]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0, u64::MAX), help_heading = "Load")]
    limit: Option<u64>,
    /// Read ranges of the whole cluster instead of one node
    #[arg(long, help_heading = "Load")]
    cluster: bool,
    /// Number of replicas that must answer (`ack`)
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1, REPLICAS_MAX), help_heading = "Load")]
    ack: Option<u32>,
    /// Number of replicas of a key (`from`)
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1, REPLICAS_MAX), help_heading = "Load")]
    from: Option<u32>,
    /// Written values expire after MS milliseconds
    #[arg(long, value_name = "MS", value_parser = whole::<u64>(1, u64::MAX), help_heading = "Load")]
    ttl: Option<u64>,
    /// Seed of the random keys and values; the same seed gives the same requests
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX), help_heading = "Load")]
    seed: u64,
    /// First store AMOUNT, a number of keys or a size such as 1GiB, unless it is stored already;
    /// without an amount, all --keys
    #[arg(long, value_name = "AMOUNT", num_args = 0..=1, default_missing_value = ALL_KEYS, help_heading = "Load")]
    preload: Option<PreloadAmount>,
    /// Store the preload even if it seems to be stored already
    #[arg(long, help_heading = "Load")]
    preload_again: bool,
    /// Verify the bytes of every value that is read
    #[arg(long, help_heading = "Load")]
    verify: bool,

    /// Also print the percentile spectrum, and a line for each second
    #[arg(short = 'L', long, help_heading = "Report")]
    latency: bool,
    /// Write the report as JSON; - is standard output, instead of the text
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    json: Option<PathBuf>,
    /// Write the report as an HTML page
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    html: Option<PathBuf>,
    /// Write the latencies in the format of the HdrHistogram plotter
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    hgrm: Option<PathBuf>,
    /// Server processes on this machine whose CPU time is reported
    #[arg(long, value_name = "PID,...", value_delimiter = ',', value_parser = whole::<u32>(1, u32::MAX as u64), help_heading = "Report")]
    pid: Vec<u32>,
    /// Profile the first target, on this machine, during the measurement: cpu, alloc or wait; DIR
    /// is the directory for the files
    #[arg(long, value_name = "KIND[=DIR]", help_heading = "Report")]
    profile: Option<ProfileOption>,
    /// Show nothing while it runs
    #[arg(short, long, help_heading = "Report")]
    quiet: bool,
}

/// Value of `--preload`.
#[derive(Clone, Copy, Debug)]
enum PreloadAmount {
    AllKeys,
    Amount(PreloadSize),
}

impl std::str::FromStr for PreloadAmount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == ALL_KEYS { Ok(Self::AllKeys) } else { text.parse().map(Self::Amount) }
    }
}

/// Value of `--profile`.
#[derive(Clone, Debug)]
struct ProfileOption {
    kind: ::profile::CaptureKind,
    dir: PathBuf,
}

impl std::str::FromStr for ProfileOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, dir) = text.split_once('=').unwrap_or((text, "."));
        Ok(Self { kind: kind.parse()?, dir: dir.into() })
    }
}

pub(crate) fn run(arguments: BenchArguments) -> Result<(), String> {
    match arguments.command {
        Some(Command::Compare(files)) => compare(&files),
        Some(Command::Presets { json: false }) => print(&presets()),
        Some(Command::Presets { json: true }) => print(&format!("{}\n", presets_document())),
        None => load(&arguments.load),
    }
}

fn load(load: &Load) -> Result<(), String> {
    let plan = load.plan()?;
    let stop = StopFlag::on_interrupt().map_err(|error| format!("cannot watch for Ctrl-C: {error}"))?;
    let mut profiled =
        load.profile.as_ref().map(|option| ProfileDuringRun::new(option, &plan)).transpose()?;
    let mut begin = || {
        profiled.iter_mut().for_each(ProfileDuringRun::begin);
    };
    let report = benchmark_with_hook(&plan, &stop, &mut Console::new(load.quiet), &mut begin);
    let mut report = report.map_err(|error| error.to_string())?;
    if let Some(profiled) = profiled {
        report.profile = profiled.save()?;
    }
    // Files are written first: writing to a closed pipe ends the process.
    let json = load.json.as_ref().map(|path| {
        let json = serde_json::to_string(&report).map_err(|error| error.to_string())?;
        Ok::<_, String>((path, json))
    });
    let json = json.transpose()?;
    if let Some((path, json)) = &json
        && *path != Path::new(STANDARD_OUTPUT)
    {
        write(path, json)?;
    }
    if let Some(path) = &load.html {
        write(path, &report::page(std::slice::from_ref(&report)))?;
    }
    if let Some(path) = &load.hgrm {
        let latency =
            report.run.overall().ok_or("no request was answered: there are no latencies to write")?;
        write(path, &report::hgrm(latency))?;
    }
    match json {
        Some((path, json)) if path == Path::new(STANDARD_OUTPUT) => print(&format!("{json}\n")),
        _ => print(&report::text(&report, load.latency)),
    }
}

/// A profile taken during the measurement.
struct ProfileDuringRun<'a> {
    option: &'a ProfileOption,
    target: String,
    url: NodeUrl,
    warmup: Duration,
    seconds: u16,
    thread: Option<JoinHandle<Result<Capture, String>>>,
}

impl<'a> ProfileDuringRun<'a> {
    fn new(option: &'a ProfileOption, plan: &BenchPlan) -> Result<Self, String> {
        const SECONDS_MAX: u64 = 300;
        let target = plan.targets[0].to_string();
        let url = target.parse().map_err(|error| format!("--profile: {error}"))?;
        let duration = plan.duration.ok_or("--profile needs --duration")?;
        let seconds = duration.as_secs().clamp(1, SECONDS_MAX);
        let seconds = u16::try_from(seconds).expect("it is clamped");
        Ok(Self { option, target, url, warmup: plan.warmup, seconds, thread: None })
    }

    /// Starts the profile on a thread, after the warm-up that begins now.
    fn begin(&mut self) {
        let request =
            NodeProfileRequest { url: self.url.clone(), kind: self.option.kind, seconds: self.seconds };
        let warmup = self.warmup;
        self.thread = Some(std::thread::spawn(move || {
            std::thread::sleep(warmup);
            request.send()
        }));
    }

    /// Waits for the profile and saves it. Returns the names of its files.
    fn save(self) -> Result<Vec<String>, String> {
        let thread = self.thread.ok_or("--profile: nothing was measured")?;
        let capture = thread.join().map_err(|_| "the profile ended early; this is a bug".to_owned())??;
        let files = crate::profile::save(&capture, &self.target, &self.option.dir)?;
        Ok(files.iter().map(|file| file.display().to_string()).collect())
    }
}

impl Load {
    fn plan(&self) -> Result<BenchPlan, String> {
        let preset = self.preset.as_ref();
        let workload = self.workload();
        let preload = self.preload_keys(workload.sizes, workload.keys);
        let rate = self.rate.or(preset.map(|preset| Pacing::Rate(preset.rate)));
        let pacing = if self.closed { Pacing::Closed } else { rate.unwrap_or(Pacing::Closed) };
        if self.burst.is_some() && pacing == Pacing::Closed && self.find_max.is_none() {
            return Err("--burst needs --rate: a closed loop has no schedule".to_owned());
        }
        let connections = self.connections.or(preset.map(|preset| preset.connections));
        let of_preset = preset.map(|preset| Duration::from_secs(preset.duration_s));
        let unless_counted = || self.requests.is_none().then(|| of_preset.unwrap_or(DURATION_DEFAULT));
        Ok(BenchPlan {
            name: preset.map_or_else(|| workload.mix.to_string(), |preset| preset.name.to_owned()),
            command: command_line(),
            version: format!("veche {}", env!("CARGO_PKG_VERSION")),
            published: preset.map(|preset| preset.published.to_owned()),
            targets: self.target.clone(),
            // Each thread needs a connection.
            connections: connections.unwrap_or(CONNECTIONS_DEFAULT).max(self.threads),
            threads: self.threads,
            cores: self.cores.clone(),
            pacing,
            burst: self.burst.unwrap_or_default(),
            workload,
            preload: preload.map(|keys| Preload { keys, always: self.preload_again }),
            warmup: self.warmup,
            duration: self.duration.or_else(unless_counted),
            requests: self.requests,
            verify: self.verify,
            search: self.find_max.clone().map(|goal| SearchPlan { goal, trial: self.trial }),
            pids: self.pid.clone(),
        })
    }

    fn workload(&self) -> WorkloadSpec {
        let preset = self.preset.as_ref();
        let sizes = self.value_size.or(preset.map(Preset::sizes)).unwrap_or(VALUE_SIZE_DEFAULT);
        let of_preset = preset.map(|preset| preset.quorum).unwrap_or_default();
        let stored = || self.preload_keys(sizes, KEYS_DEFAULT);
        let keys = self.keys.or(preset.and_then(|preset| preset.keys)).or_else(stored);
        WorkloadSpec {
            mix: self.mix.or(preset.map(Preset::mix)).unwrap_or(Mix::only(Operation::Get)),
            keys: keys.unwrap_or(KEYS_DEFAULT),
            order: self.order.or(preset.map(|preset| preset.order)).unwrap_or(KeyOrder::Uniform),
            sizes,
            seed: self.seed,
            quorum: QuorumOverride { ack: self.ack.or(of_preset.ack), from: self.from.or(of_preset.from) },
            ttl_ms: self.ttl,
            limit: self.limit.or(preset.map(|preset| preset.limit)).unwrap_or(WorkloadSpec::default().limit),
            scope: if self.cluster { RangeScope::Cluster } else { RangeScope::Node },
            protocol: Protocol::Entities,
        }
    }

    /// Number of keys to preload, if the load uses `keys` keys.
    fn preload_keys(&self, sizes: ValueSizes, keys: u64) -> Option<u64> {
        let of_preset = self.preset.as_ref().and_then(Preset::preload).map(PreloadAmount::Amount);
        self.preload.or(of_preset).map(|amount| match amount {
            PreloadAmount::AllKeys => keys,
            PreloadAmount::Amount(amount) => amount.keys(KEY_LEN, sizes),
        })
    }
}

fn compare(files: &Compare) -> Result<(), String> {
    let runs = files.runs.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    if let Some(path) = &files.html {
        write(path, &report::page(&runs))?;
    }
    if files.json {
        return print(&format!("{}\n", serde_json::json!({ "runs": runs })));
    }
    print(&report::comparison(&runs[0], &runs[1]))
}

fn read(path: &Path) -> Result<Report, String> {
    let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let report: Report = serde_json::from_slice(&text)
        .map_err(|error| format!("{} is not a report of veche bench: {error}", path.display()))?;
    if report.format != report::FORMAT {
        return Err(format!(
            "{} is not a report of veche bench: its format is {:?}",
            path.display(),
            report.format
        ));
    }
    Ok(report)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    output::write_file(path, text.as_bytes())
}

/// Prints text that ends with a line feed.
fn print(text: &str) -> Result<(), String> {
    print_line!("{}", text.strip_suffix('\n').unwrap_or(text));
    Ok(())
}

fn presets() -> String {
    let lines = PRESETS.iter().map(|preset| {
        let rate = grouped(preset.rate);
        format!("{}\n    {}, {rate}/s\n    others: {}\n", preset.name, preset.about, preset.published)
    });
    lines.collect()
}

fn presets_document() -> serde_json::Value {
    let document = |preset: &Preset| {
        let (name, about, published) = (preset.name, preset.about, preset.published);
        serde_json::json!({ "name": name, "about": about, "rate": preset.rate, "published": published })
    };
    serde_json::json!({ "presets": PRESETS.iter().map(document).collect::<Vec<_>>() })
}

/// The command line, quoted for a shell.
fn command_line() -> String {
    let quoted = |argument: String| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:,=@%+".contains(&byte);
        let plain = !argument.is_empty() && argument.bytes().all(is_plain);
        if plain { argument } else { format!("'{}'", argument.replace('\'', r"'\''")) }
    };
    let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once("veche".to_owned()).chain(arguments.map(quoted)).collect::<Vec<_>>().join(" ")
}
