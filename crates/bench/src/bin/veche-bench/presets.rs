//! Every preset of `veche bench` with both durabilities, on nodes started for it: one page, one
//! table.
//!
//! Each load is run by `veche bench` itself, and its command line is on the page. Consecutive
//! presets that read the same data share a node. The server and the generator have a core each; the
//! nodes of a cluster share one.
//!
//! **Caveats.** Published results come from other machines: their shapes are comparable, their
//! figures are not. A durable load with one connection waits for each sync. If its rate is out of
//! reach for that reason, it runs as a closed loop.

use crate::data::require_free_space;
use crate::servers::{CpuLayout, Durability, WorkDir};
use crate::table::write_report;
use crate::{BenchResult, Options};
use bench::machine::MachineInfo;
use bench::presets::{PRESETS, Preset};
use bench::process::ServerProcess;
use bench::report::{PresetGroup, Report, Sheet, gallery};
use bench::units::{grouped, micros};
use bench::{Operation, QuorumOverride, StopFlag};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// File name of the report, without extension.
const NAME: &str = "presets";
const LAYOUT: CpuLayout = CpuLayout::PINNED;
const NODES: usize = 3;
/// Memory budget of each node of a cluster.
const CLUSTER_MEMORY: &str = "1GiB";
/// Size of the largest data set including compaction, in bytes.
const ROOM_BYTES: u64 = 6 << 30;
/// Number of keys of a smoke run.
const QUICK_KEYS: u64 = 10_000;
/// Maximum rate of a single connection that waits for each sync, in requests/s.
const ONE_DURABLE_WRITER_MAX: u64 = 5_000;
const BROWSER: &str = "chromium";
const PICTURE_WIDTH: u32 = 1_400;
const PICTURE_HEIGHT: u32 = 2_400;
const DURABILITIES: [Durability; 2] = [Durability::Sync, Durability::Os];

/// Selection of presets, and destination of the report.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only these
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<Preset>,
    /// Use each preset's own duration instead of --seconds [default: 20]
    #[arg(long)]
    full: bool,
    /// Also search for the highest rate that meets this goal
    #[arg(long, value_name = "GOAL", num_args = 0..=1, default_missing_value = "p99<10ms,errors=0")]
    knee: Option<String>,
    /// Directory for presets.html, presets.md and presets.json
    #[arg(long, default_value = "target/presets")]
    out: PathBuf,
    /// Also write presets.md and, where there is a browser, img/presets-light.png and -dark.png
    /// here
    #[arg(long)]
    docs: Option<PathBuf>,
}

/// A preset with its reports.
struct PresetRuns {
    preset: Preset,
    runs: Vec<(Durability, Report)>,
}

/// Nodes that hold the data of one preset, or of several presets that only read it.
struct PresetNodes<'a> {
    work_dir: &'a WorkDir,
    names: Vec<String>,
    servers: Vec<ServerProcess>,
    data: DataSpec,
    durability: Durability,
}

/// Identity of preloaded data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DataSpec {
    preload: Option<&'static str>,
    value_size: &'static str,
    quorum: QuorumOverride,
}

/// Runs the presets, and writes the page and the table.
pub(crate) fn run(options: &Options, arguments: &Arguments, work_dir: &WorkDir) -> BenchResult<()> {
    require_free_space(work_dir.dir(), ROOM_BYTES)?;
    let stop = StopFlag::on_interrupt()?;
    let presets = if arguments.only.is_empty() { PRESETS.to_vec() } else { arguments.only.clone() };
    let mut all: Vec<PresetRuns> =
        presets.into_iter().map(|preset| PresetRuns { preset, runs: Vec::new() }).collect();
    for durability in DURABILITIES {
        let mut nodes: Option<PresetNodes<'_>> = None;
        for loaded in &mut all {
            if stop.is_set() {
                break;
            }
            let preset = &loaded.preset;
            if !nodes.as_ref().is_some_and(|nodes| nodes.serves(preset)) {
                // Remove the previous data before the next data is stored.
                drop(nodes.take());
                nodes = Some(PresetNodes::start(work_dir, preset, durability)?);
            }
            println!("{}, --durability {}", preset.name, durability.flag());
            let nodes = nodes.as_ref().ok_or("there are nodes")?;
            let report = nodes.load(options, arguments, preset)?;
            println!("{}", report.run);
            loaded.runs.push((durability, report));
        }
    }
    all.retain(|loaded| !loaded.runs.is_empty());
    write(arguments, all)
}

impl<'a> PresetNodes<'a> {
    fn start(work_dir: &'a WorkDir, preset: &Preset, durability: Durability) -> BenchResult<Self> {
        let name = format!("{}-{}", preset.name, durability.flag());
        let (names, servers) = if preset.quorum == QuorumOverride::default() {
            let server = work_dir.veche(&name, LAYOUT, durability, None)?;
            (vec![name], vec![server])
        } else {
            let servers = work_dir.cluster(&name, NODES, LAYOUT, durability, CLUSTER_MEMORY)?;
            ((0..NODES).map(|node| format!("{name}-{node}")).collect(), servers)
        };
        Ok(Self { work_dir, names, servers, data: DataSpec::of(preset), durability })
    }

    /// Whether the preset only reads, and reads the data that is stored here.
    fn serves(&self, preset: &Preset) -> bool {
        let mix = preset.mix();
        let only_reads = !mix.has(Operation::Put) && !mix.has(Operation::Delete);
        only_reads && preset.preload.is_some() && self.data == DataSpec::of(preset)
    }

    /// Runs the preset with `veche bench`.
    fn load(&self, options: &Options, arguments: &Arguments, preset: &Preset) -> BenchResult<Report> {
        let json = self.work_dir.dir().join("report.json");
        let pids: Vec<String> = self.servers.iter().map(|server| server.pid().to_string()).collect();
        let cores: Vec<String> = LAYOUT.generator_cores.iter().map(ToString::to_string).collect();
        let mut command = Command::new(self.work_dir.program());
        command.args(["bench", "--preset", preset.name]);
        command.args(["--target", &format!("http://{}", self.servers[0].address())]);
        command.args(["--pid", &pids.join(","), "--cores", &cores.join(",")]);
        command.args(pace_flags(options, arguments, preset, self.durability));
        if options.quick {
            command.args(smoke_flags(preset));
        }
        command.arg("--json").arg(&json).stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.status()?;
        if !status.success() {
            return Err(format!("veche bench --preset {}: {status}", preset.name).into());
        }
        let report = serde_json::from_slice(&fs::read(&json)?)?;
        fs::remove_file(&json)?;
        Ok(report)
    }
}

impl Drop for PresetNodes<'_> {
    fn drop(&mut self) {
        self.servers.clear();
        for name in &self.names {
            let data = self.work_dir.data(name);
            if let Err(error) = fs::remove_dir_all(&data) {
                eprintln!("{} cannot be removed: {error}", data.display());
            }
        }
    }
}

impl DataSpec {
    fn of(preset: &Preset) -> Self {
        Self { preload: preset.preload, value_size: preset.value_size, quorum: preset.quorum }
    }
}

/// Flags for pacing and duration.
fn pace_flags(
    options: &Options,
    arguments: &Arguments,
    preset: &Preset,
    durability: Durability,
) -> Vec<String> {
    let seconds = if options.quick { 1.0 } else { 20.0 };
    let seconds = options.seconds.unwrap_or(seconds);
    let mut flags = Vec::new();
    if !arguments.full {
        flags.push(format!("--duration={seconds}s"));
    }
    if is_out_of_reach(preset, durability) {
        flags.push("--closed".to_owned());
    } else if let Some(goal) = &arguments.knee {
        flags.extend([format!("--find-max={goal}"), format!("--trial={}s", seconds / 4.0)]);
    }
    flags
}

fn is_out_of_reach(preset: &Preset, durability: Durability) -> bool {
    let waits = durability == Durability::Sync && preset.connections == 1;
    waits && preset.mix().has(Operation::Put) && preset.rate > ONE_DURABLE_WRITER_MAX
}

/// Flags of a smoke run.
fn smoke_flags(preset: &Preset) -> Vec<String> {
    let keys = preset.keys.map_or(QUICK_KEYS, |keys| keys.min(QUICK_KEYS));
    let preload = preset.preload.map(|_| format!("--preload={QUICK_KEYS}"));
    preload.into_iter().chain([format!("--keys={keys}")]).collect()
}

fn write(arguments: &Arguments, all: Vec<PresetRuns>) -> BenchResult<()> {
    let machine = MachineInfo::here();
    let sheet = sheet(&all);
    let about = format!(
        "Every preset of veche bench, durable (each write waits for its sync) and with --durability os (each write is with the \
         operating system). Latencies count from the moment at which a request was meant to start. Nodes on one core, generator on \
         the other: {machine}. Published figures of other systems are from their machines: compare the shapes, not the figures."
    );
    let markdown = markdown(&about, &sheet, &all);
    let groups: Vec<PresetGroup> = all.into_iter().map(group).collect();
    let page = gallery("The presets of veche bench", &about, &sheet, &groups);
    let runs: Vec<&Report> = groups.iter().flat_map(|group| &group.runs).collect();
    println!("{markdown}");
    write_report(&arguments.out, NAME, &markdown, &page, &serde_json::to_string(&runs)?)?;
    if let Some(docs) = &arguments.docs {
        let pictures = docs.join("img");
        fs::create_dir_all(&pictures)?;
        fs::write(docs.join("presets.md"), &markdown)?;
        let html = arguments.out.join(NAME).with_extension("html");
        for theme in [Theme::Light, Theme::Dark] {
            take_picture(&html, &pictures.join(format!("presets-{}.png", theme.name())), theme)?;
        }
    }
    Ok(())
}

fn sheet(all: &[PresetRuns]) -> Sheet {
    let numbers = ["asked/s", "answered/s", "p50", "p99", "p99.9", "max", "errors", "knee/s"];
    let mut sheet = Sheet::new(&["preset", "durability"], &numbers, &["load", "published figures"]);
    for PresetRuns { preset, runs } in all {
        for (number, (durability, report)) in runs.iter().enumerate() {
            let is_first = number == 0;
            let once = |text: &str| if is_first { text.to_owned() } else { String::new() };
            let mut cells = vec![once(preset.name), durability.flag().to_owned()];
            cells.extend(measured(report));
            cells.extend([once(preset.about), once(preset.published)]);
            sheet.row(cells);
        }
    }
    sheet
}

/// Cells of the numbers.
fn measured(report: &Report) -> Vec<String> {
    let run = &report.run;
    let at =
        |percentile| run.overall().and_then(|latency| latency.at(percentile)).map_or("-".to_owned(), micros);
    let asked = run.asked_per_s.map_or("closed loop".to_owned(), grouped);
    let answered = match run.kept() {
        Some(kept) if kept < 0.999 => {
            format!("{} ({:.1} %)", grouped(run.arrived_per_s as u64), kept * 100.0)
        }
        _ => grouped(run.arrived_per_s.round() as u64),
    };
    let knee = report.search.as_ref().map(|search| search.knee.map_or("none".to_owned(), grouped));
    let latencies = [50.0, 99.0, 99.9, 100.0].map(at);
    [asked, answered]
        .into_iter()
        .chain(latencies)
        .chain([grouped(run.errors()), knee.unwrap_or_default()])
        .collect()
}

fn group(loaded: PresetRuns) -> PresetGroup {
    let PresetRuns { preset, runs } = loaded;
    let named = |(durability, mut report): (Durability, Report)| {
        report.name = format!("--durability {}", durability.flag());
        report
    };
    PresetGroup {
        title: preset.name.to_owned(),
        about: preset.about.to_owned(),
        published: preset.published.to_owned(),
        runs: runs.into_iter().map(named).collect(),
    }
}

fn markdown(about: &str, sheet: &Sheet, all: &[PresetRuns]) -> String {
    let runs = all.iter().flat_map(|loaded| &loaded.runs);
    let first = runs.map(|(_, report)| report).next();
    let started = first.map_or("", |report| report.started.as_str());
    let generator = first.map_or("", |report| report.generator.as_str());
    format!(
        "# The presets of `veche bench`, beside published figures\n\n{about}\n\nMade by `bench/run presets`, {generator}, \
         {started}.\n\n{sheet}\n<picture>\n  \
         <source media=\"(prefers-color-scheme: dark)\" srcset=\"img/presets-dark.png\">\n  \
         <img src=\"img/presets-light.png\" width=\"860\" alt=\"The page of all presets: for each the latency by percentile and \
         over time\">\n</picture>\n",
        sheet = sheet.markdown()
    )
}

#[derive(Clone, Copy, Debug)]
enum Theme {
    Light,
    Dark,
}

impl Theme {
    const fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    /// Value of Blink's `PreferredColorScheme`.
    const fn setting(self) -> u8 {
        match self {
            Self::Dark => 0,
            Self::Light => 1,
        }
    }
}

/// Takes a screenshot of the page with a headless browser. Without a browser, prints a note.
fn take_picture(page: &Path, picture: &Path, theme: Theme) -> BenchResult<()> {
    let mut command = Command::new(BROWSER);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    command.arg(format!("--window-size={PICTURE_WIDTH},{PICTURE_HEIGHT}"));
    command.arg(format!("--blink-settings=preferredColorScheme={}", theme.setting()));
    command.arg(format!("--screenshot={}", picture.display()));
    command.arg(format!("file://{}", page.canonicalize()?.display()));
    match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => println!("{}", picture.display()),
        Ok(status) => return Err(format!("{BROWSER}: {status}").into()),
        Err(error) => println!("no picture: {BROWSER} cannot be started: {error}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_durable_writer_runs_as_a_closed_loop() {
        let closed = |durability| -> Vec<&str> {
            let out_of_reach = PRESETS.iter().filter(|preset| is_out_of_reach(preset, durability));
            out_of_reach.map(|preset| preset.name).collect()
        };
        assert_eq!(closed(Durability::Sync), ["put-small-seq"]);
        assert!(closed(Durability::Os).is_empty());
    }

    #[test]
    fn the_sheet_has_a_row_per_run_and_names_each_preset_once() {
        let runs = || DURABILITIES.map(|durability| (durability, Report::default())).into();
        let all: Vec<PresetRuns> =
            PRESETS.iter().map(|preset| PresetRuns { preset: *preset, runs: runs() }).collect();
        let markdown = markdown("about", &sheet(&all), &all);
        for preset in &PRESETS {
            assert_eq!(markdown.matches(&format!("| {} |", preset.name)).count(), 1, "{}", preset.name);
            assert!(markdown.contains(preset.published));
        }
        assert_eq!(markdown.matches("| sync |").count(), PRESETS.len());
    }
}
