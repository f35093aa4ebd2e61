//! Comparisons: the same loads on several sides, in interleaved rounds.
//!
//! **Promise.** The sides of a comparison receive the same keys and values over the same number of
//! connections, one request in flight on each, in interleaved rounds of one run. CPU time covers
//! all processes of a side, including forked ones, until they are idle again. Rewriting a log or
//! merging tables after the last response is therefore charged to the side that caused it, and
//! slows no other side.
//!
//! **Mechanism.** A [`Comparison`] is data: its sides, loads and figures are tables in
//! [`crate::comparisons`]. A figure names the measurements that it needs, a load on a side each;
//! only those are made. A first round is not counted, because it pays for one-time costs: fresh
//! pages, cold caches. One generator drives all servers with HTTP or RESP
//! ([`bench::Protocol`]); etcd, which uses gRPC, is driven by [`crate::etcd_load`]. Afterwards
//! values are read back and compared on every side, and `strace` counts syncs during writes
//! ([`crate::proof`]).
//!
//! **Caveats.** The generator and the servers share the machine. Where the generator was busy all
//! the time, it was the bottleneck of that rate. etcd's client uses more CPU time than this
//! generator.

use crate::etcd_load::EtcdLoad;
use crate::measure::{BenchLoad, Sample};
use crate::others::{self, AppendOnly};
use crate::proof::count_syncs;
use crate::range::while_reading_ranges;
use crate::scrape::Scrape;
use crate::servers::{CpuLayout, Durability, WorkDir, number_at, status};
use crate::side::ComparedSide;
use crate::table::{ResultTable, Threshold, both};
use crate::tools::Tools;
use crate::{BenchResult, Options};
use bench::{Operation, Pacing};
use lab::process::{ServerProcess, disk_read_bytes};
use lab::stats::{ratio, rounds};
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of nodes of a cluster.
pub(crate) const NODES: usize = 3;
/// Background writes: connections, writes per second, and size of their values.
const WRITERS: usize = 16;
const WRITES_PER_SECOND: u64 = 10_000;
const WRITTEN_BYTES: usize = 1024;
/// Time from the stop of a node to the measurement. By then the other nodes know that it hangs.
const NOTICED_AFTER: Duration = Duration::from_secs(1);
/// Time from the continuation of a node to the next measurement. By then it has received the writes
/// that it missed.
const CAUGHT_UP_AFTER: Duration = Duration::from_secs(3);

/// Several sides under the same loads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparison {
    /// Scenario to which it belongs.
    pub(crate) scenario: &'static str,
    /// Name for `--only`.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Maximum number of keys; `--keys` is the other one.
    pub(crate) keys_max: u64,
    pub(crate) value_bytes: usize,
    pub(crate) sides: &'static [SideSpec],
    pub(crate) loads: &'static [LoadSpec],
    pub(crate) figures: &'static [FigureSpec],
}

/// A side, before its servers are started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideSpec {
    pub(crate) name: &'static str,
    /// Guarantee of a response.
    pub(crate) guarantee: &'static str,
    pub(crate) server: ServerSpec,
}

/// Servers of a side, with the settings that differ from the defaults.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ServerSpec {
    BareHyper,
    Veche {
        durability: Durability,
        memory: Option<&'static str>,
        flags: &'static [&'static str],
    },
    VecheCluster {
        memory: &'static str,
    },
    Redis(AppendOnly),
    Nginx,
    Etcd {
        nodes: usize,
        syncs: bool,
    },
    /// The servers of etcd of a previous side, with serializable reads.
    EtcdSerializable {
        of: usize,
    },
}

impl ServerSpec {
    /// A durable node with default settings.
    pub(crate) const VECHE: Self = Self::Veche { durability: Durability::Sync, memory: None, flags: &[] };
}

/// A load, before its rate is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadSpec {
    pub(crate) name: &'static str,
    pub(crate) operation: Operation,
    pub(crate) connections: usize,
    pub(crate) pace: Pace,
    pub(crate) meanwhile: Meanwhile,
}

/// Pace of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Closed,
    /// A constant rate: half of the throughput of the slowest side in a closed loop.
    Half,
}

/// Other events during a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    Nothing,
    /// Writes of larger values, which cause flushes and compactions.
    Writes,
    /// Ranges over all data, each at a limited rate.
    Ranges,
    /// The last node of the cluster is stopped.
    NodeStopped,
}

/// Quantity of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Metric {
    /// CPU time per response, in microseconds.
    Cpu,
    /// Responses per second.
    Rate,
    P50,
    P99,
    P999,
    /// Growth of a number in the status of the servers, at this path, per response.
    Counter(&'static str),
    /// Bytes read from the disk per response.
    DiskRead,
}

/// Indexes of a side and of a load.
pub(crate) type CellIndex = (usize, usize);

/// A figure: a quantity of one measurement, or its ratio to that of another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FigureSpec {
    pub(crate) title: &'static str,
    pub(crate) metric: Metric,
    pub(crate) cell: CellIndex,
    pub(crate) by: Option<CellIndex>,
    pub(crate) target: Threshold,
}

impl FigureSpec {
    /// The ratio of `cell` to `by`.
    pub(crate) const fn ratio(title: &'static str, metric: Metric, cell: CellIndex, by: CellIndex) -> Self {
        Self { title, metric, cell, by: Some(by), target: Threshold::None }
    }

    pub(crate) const fn at_least(self, least: f64) -> Self {
        Self { target: Threshold::AtLeast(least), ..self }
    }

    pub(crate) const fn at_most(self, most: f64) -> Self {
        Self { target: Threshold::AtMost(most), ..self }
    }

    fn cells(&self) -> impl Iterator<Item = CellIndex> {
        [self.cell].into_iter().chain(self.by)
    }

    fn counter(&self) -> Option<&'static str> {
        match self.metric {
            Metric::Counter(path) => Some(path),
            _ => None,
        }
    }
}

/// One round of a cell.
#[derive(Clone, Debug)]
struct Round {
    sample: Sample,
    /// Growth of status counters per response, by path.
    counters: BTreeMap<&'static str, f64>,
    disk_read: f64,
}

impl Round {
    fn value(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Cpu => self.sample.cpu_us,
            Metric::Rate => self.sample.per_second,
            Metric::P50 => self.sample.p50_us,
            Metric::P99 => self.sample.p99_us,
            Metric::P999 => self.sample.p999_us,
            Metric::Counter(path) => self.counters.get(path).copied().unwrap_or(f64::NAN),
            Metric::DiskRead => self.disk_read,
        }
    }
}

impl Metric {
    const fn unit(self) -> &'static str {
        match self {
            Self::Cpu | Self::P50 | Self::P99 | Self::P999 => "us",
            Self::Rate => "1/s",
            Self::Counter(_) => "per response",
            Self::DiskRead => "bytes",
        }
    }
}

/// Runs comparisons in one CPU layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComparisonRunner<'a> {
    pub(crate) options: &'a Options,
    pub(crate) work_dir: &'a WorkDir,
    pub(crate) tools: &'a Tools,
    pub(crate) layout: CpuLayout,
}

impl ComparisonRunner<'_> {
    /// Starts the sides, stores the data, measures, and adds the figures. Figures of sides that are
    /// not installed are omitted.
    pub(crate) fn run(&self, comparison: &Comparison, table: &mut ResultTable) -> BenchResult<()> {
        table.section(&format!("{}; {}", comparison.title, self.layout.title));
        let keys = self.options.keys().min(comparison.keys_max);
        let mut sides: Vec<Option<ComparedSide>> = Vec::new();
        for (number, spec) in comparison.sides.iter().enumerate() {
            let side = self.start(comparison, number, spec, &sides)?;
            if let Some(side) = &side
                && !matches!(spec.server, ServerSpec::Nginx | ServerSpec::EtcdSerializable { .. })
            {
                side.preload(self.layout, keys, comparison.value_bytes)?;
            }
            sides.push(side);
        }
        let of = |is_kind: fn(&ServerSpec) -> bool| {
            let found = comparison.sides.iter().position(|spec| is_kind(&spec.server));
            found.and_then(|number| sides[number].as_ref())
        };
        let hyper = of(|server| matches!(server, ServerSpec::BareHyper));
        if let (Some(hyper), Some(veche)) = (hyper, of(|server| matches!(server, ServerSpec::Veche { .. }))) {
            hyper.require_equal_heads(veche, comparison.value_bytes)?;
        }
        self.run_on(comparison, &sides, keys, table)
    }

    /// Measures the loads on sides that have the data already, and adds the figures.
    pub(crate) fn run_on(
        &self,
        comparison: &Comparison,
        sides: &[Option<ComparedSide>],
        keys: u64,
        table: &mut ResultTable,
    ) -> BenchResult<()> {
        let has_sides = |figure: &&FigureSpec| figure.cells().all(|(side, _)| sides[side].is_some());
        let figures: Vec<&FigureSpec> = comparison.figures.iter().filter(has_sides).collect();
        let mut measured: BTreeMap<CellIndex, Vec<Round>> = BTreeMap::new();
        for cell in figures.iter().flat_map(|figure| figure.cells()) {
            measured.entry(cell).or_default();
        }
        let counters: Vec<&str> = figures.iter().filter_map(|figure| figure.counter()).collect();
        let paces = self.paces(comparison, sides, keys, &measured)?;
        let flushes = |side: &ComparedSide| Scrape::of(side.first()).map(|scrape| scrape.jobs());
        let background = comparison.loads.iter().any(|load| load.meanwhile == Meanwhile::Writes);
        let before = if background { flushes(sides[0].as_ref().ok_or("no node")?)? } else { 0 };
        for round in 0..=self.options.rounds() {
            for (number, spec) in comparison.loads.iter().enumerate() {
                let with_load = |side: &usize| measured.contains_key(&(*side, number));
                let order: Vec<usize> = (0..sides.len()).filter(with_load).collect();
                for turn in 0..order.len() {
                    let side_number = order[(turn + round) % order.len()];
                    let Some(side) = &sides[side_number] else { continue };
                    let load = BenchLoad {
                        operation: spec.operation,
                        connections: spec.connections,
                        pacing: paces[number],
                        keys,
                        value_bytes: comparison.value_bytes,
                        seed: round as u64,
                    };
                    let one = self.round(side, spec.meanwhile, load, &counters)?;
                    print_round(round, side.name, spec.name, &one.sample);
                    if round > 0 {
                        measured.entry((side_number, number)).or_default().push(one);
                    }
                }
            }
        }
        for ((side, load), rounds) in &measured {
            let samples: Vec<Sample> = rounds.iter().map(|round| round.sample).collect();
            table.measured(comparison.sides[*side].name, comparison.loads[*load].name, &samples);
        }
        figures.iter().for_each(|figure| add_figure(figure, &measured, table));
        if background {
            match flushes(sides[0].as_ref().ok_or("no node")?)? - before {
                0 => table.note("NOT PROVEN: the node made no flush and no compaction".to_owned()),
                jobs => table.note(format!("{jobs} flushes and compactions during the measurements")),
            }
            return Ok(());
        }
        for side in sides.iter().flatten() {
            self.add_proof(comparison, side, keys, table)?;
        }
        Ok(())
    }

    /// Pace of each load.
    fn paces(
        &self,
        comparison: &Comparison,
        sides: &[Option<ComparedSide>],
        keys: u64,
        cells: &BTreeMap<CellIndex, Vec<Round>>,
    ) -> BenchResult<Vec<Pacing>> {
        let mut paces = Vec::new();
        for (number, spec) in comparison.loads.iter().enumerate() {
            if spec.pace == Pace::Closed {
                paces.push(Pacing::Closed);
                continue;
            }
            let LoadSpec { operation, connections, .. } = *spec;
            let value_bytes = comparison.value_bytes;
            let load =
                BenchLoad { operation, connections, pacing: Pacing::Closed, keys, value_bytes, seed: 0 };
            let mut slowest = f64::INFINITY;
            for (side, _) in cells.keys().filter(|(_, load)| *load == number) {
                let Some(side) = &sides[*side] else { continue };
                let top = side.measure(self.layout, self.options.seconds(), &[load])?;
                slowest = slowest.min(top.per_second);
            }
            println!("  {}: half of {slowest:.0}/s", spec.name);
            paces.push(Pacing::at(slowest / 2.0));
        }
        Ok(paces)
    }

    fn round(
        &self,
        side: &ComparedSide,
        meanwhile: Meanwhile,
        load: BenchLoad,
        paths: &[&'static str],
    ) -> BenchResult<Round> {
        let seconds = self.options.seconds();
        let measure = |loads: &[BenchLoad]| side.measure_until_idle(self.layout, seconds, loads);
        let before: Vec<f64> = paths.iter().map(|path| sum_of(side, path)).collect();
        let disk_before = disk_read_bytes(side.first().pid()).unwrap_or_default();
        let sample = match meanwhile {
            Meanwhile::Nothing => measure(&[load])?,
            Meanwhile::Writes => {
                let writes = BenchLoad {
                    operation: Operation::Put,
                    connections: WRITERS,
                    pacing: Pacing::Rate(WRITES_PER_SECOND),
                    value_bytes: WRITTEN_BYTES,
                    seed: !load.seed,
                    ..load
                };
                measure(&[load, writes])?
            }
            Meanwhile::Ranges => while_reading_ranges(side.first(), self.layout, || measure(&[load]))?.0?,
            Meanwhile::NodeStopped => {
                let last = side.servers.last().ok_or("no node")?;
                last.pause()?;
                std::thread::sleep(NOTICED_AFTER);
                // Idle nodes cannot be awaited: one is stopped.
                let sample = side.measure(self.layout, seconds, &[load]);
                last.resume()?;
                std::thread::sleep(CAUGHT_UP_AFTER);
                sample?
            }
        };
        let answers = sample.answers.max(1) as f64;
        let grown = |(path, before): (&&'static str, f64)| (*path, (sum_of(side, path) - before) / answers);
        let counters = paths.iter().zip(before).map(grown).collect();
        let disk_after = disk_read_bytes(side.first().pid()).unwrap_or_default();
        let disk_read = disk_after.saturating_sub(disk_before) as f64 / answers;
        Ok(Round { sample, counters, disk_read })
    }

    /// Adds the evidence for the guarantees of a side.
    fn add_proof(
        &self,
        comparison: &Comparison,
        side: &ComparedSide,
        keys: u64,
        table: &mut ResultTable,
    ) -> BenchResult<()> {
        let value_bytes = comparison.value_bytes;
        let write = comparison.loads.iter().find(|load| load.operation == Operation::Put);
        if let (Some(write), Some(strace)) = (write, &self.tools.strace)
            && side.synced_copies > 0
        {
            let LoadSpec { operation, connections, .. } = *write;
            let load =
                BenchLoad { operation, connections, pacing: Pacing::Closed, keys, value_bytes, seed: 0 };
            let counted = count_syncs(strace, side, self.layout, &load, self.work_dir.dir());
            let counted = counted.unwrap_or_else(|error| format!("NOT PROVEN: {error}"));
            table.note(format!("{}: {counted}", side.name));
        }
        let read_back = side.read_back(self.layout, keys, value_bytes)?;
        table.note(format!("{}: a response guarantees: {}; {read_back}", side.name, side.guarantee));
        let commands: Vec<&str> = side.servers.iter().map(ServerProcess::command).collect();
        table.add_details(&format!("commands of {}", side.name), commands.into());
        Ok(())
    }

    /// Starts the servers of a side. `None` if they are not installed.
    fn start(
        &self,
        comparison: &Comparison,
        number: usize,
        spec: &SideSpec,
        others: &[Option<ComparedSide>],
    ) -> BenchResult<Option<ComparedSide>> {
        let Self { work_dir, tools, layout, .. } = *self;
        // Each comparison and CPU layout has data directories of its own.
        let data = format!("{}-{}-{number}-{}", comparison.scenario, comparison.name, layout.server_threads);
        let side = |servers| ComparedSide::new(spec.name, spec.guarantee, servers);
        let keys = self.options.keys().min(comparison.keys_max);
        Ok(match spec.server {
            ServerSpec::BareHyper => Some(side(vec![work_dir.bare_hyper(layout, &[])?])),
            ServerSpec::Veche { durability, memory, flags } => {
                let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
                let node = work_dir.veche_with(&data, layout, durability, memory, &flags)?;
                let copies = u32::from(durability == Durability::Sync);
                Some(side(vec![node]).syncing(copies))
            }
            ServerSpec::VecheCluster { memory } => {
                let nodes = work_dir.cluster(&data, NODES, layout, Durability::Sync, memory)?;
                Some(side(nodes).syncing(2))
            }
            ServerSpec::Redis(append_only) => match &tools.redis {
                None => None,
                Some(tool) => {
                    let server = others::redis(work_dir, tool, layout, &data, append_only)?;
                    let copies = u32::from(append_only == AppendOnly::Always);
                    Some(side(vec![server]).syncing(copies))
                }
            },
            ServerSpec::Nginx => match &tools.nginx {
                None => None,
                Some(tool) => {
                    let server = others::nginx(work_dir, tool, layout, &data, keys, comparison.value_bytes)?;
                    Some(side(vec![server]))
                }
            },
            ServerSpec::Etcd { nodes, syncs } => match &tools.etcd {
                None => None,
                Some(tool) => {
                    let servers = others::etcd(work_dir, tool, layout, &data, nodes)?;
                    let leader = others::leader(&servers)?;
                    let connections = comparison.loads.iter().map(|load| load.connections).max();
                    let load = EtcdLoad::start(&tools.etcd_load, leader, layout, connections.unwrap_or(1))?;
                    let copies = if syncs { nodes as u32 / 2 + 1 } else { 0 };
                    Some(side(servers).driven_by(load).syncing(copies))
                }
            },
            ServerSpec::EtcdSerializable { of } => {
                others[of].as_ref().map(|etcd| etcd.serializable(spec.name, spec.guarantee))
            }
        })
    }
}

/// Sum of a number in the status of all servers of a side; 0 for servers without it.
fn sum_of(side: &ComparedSide, path: &str) -> f64 {
    let number = |server| status(server).ok().and_then(|status| number_at(&status, path));
    side.servers.iter().filter_map(number).sum()
}

fn print_round(round: usize, side: &str, load: &str, sample: &Sample) {
    println!(
        "  round {round}: {side:<30} {load:<34} {:>9.0}/s {:>7.2} us CPU, p99 {:>6.0} us, generator busy {:.0} %",
        sample.per_second,
        sample.cpu_us,
        sample.p99_us,
        sample.generator_busy * 100.0,
    );
}

fn add_figure(figure: &FigureSpec, measured: &BTreeMap<CellIndex, Vec<Round>>, table: &mut ResultTable) {
    let values = |cell: &CellIndex| -> Vec<f64> {
        measured[cell].iter().map(|round| round.value(figure.metric)).collect()
    };
    let own = values(&figure.cell);
    let Some(by) = &figure.by else {
        table.row(figure.title, figure.target, rounds(&own), figure.metric.unit().to_owned());
        return;
    };
    let by = values(by);
    // Data that is entirely in memory causes no disk reads, so the ratio is undefined.
    let value = ratio(&own, &by).filter(|ratio| ratio.median.is_finite());
    table.row(figure.title, figure.target, value, both(figure.metric.unit(), &own, &by));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparisons::COMPARISONS;
    use std::collections::BTreeSet;

    #[test]
    fn every_figure_names_a_side_and_a_load_of_its_comparison_and_each_is_used() {
        for comparison in &COMPARISONS {
            let cells: Vec<CellIndex> = comparison.figures.iter().flat_map(FigureSpec::cells).collect();
            let used = |index: fn(&CellIndex) -> usize| cells.iter().map(index).collect::<BTreeSet<usize>>();
            assert_eq!(used(|cell| cell.0), (0..comparison.sides.len()).collect(), "{}", comparison.title);
            assert_eq!(used(|cell| cell.1), (0..comparison.loads.len()).collect(), "{}", comparison.title);
        }
    }

    #[test]
    fn a_figure_is_the_median_of_the_ratios_of_its_rounds() {
        let round = |cpu_us| Round {
            sample: Sample { cpu_us, ..Sample::default() },
            counters: BTreeMap::new(),
            disk_read: 0.0,
        };
        let measured =
            BTreeMap::from([((0, 0), vec![round(1.0), round(9.0)]), ((1, 0), vec![round(2.0), round(3.0)])]);
        let mut table = ResultTable::new("scenario");
        table.section("section");
        let figure = FigureSpec::ratio("CPU", Metric::Cpu, (0, 0), (1, 0)).at_most(1.7);
        add_figure(&figure, &measured, &mut table);
        assert_eq!(table.missed(), ["section: CPU"], "(0.5 + 3) / 2 is more than 1.7");
        let undefined = FigureSpec::ratio("disk", Metric::DiskRead, (0, 0), (1, 0)).at_most(1.0);
        add_figure(&undefined, &measured, &mut table);
        assert_eq!(table.missed().len(), 1);
    }
}
