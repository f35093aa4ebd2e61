//! Changes of the membership: a cluster while nodes join, leave, are replaced and restart.
//!
//! **Promise.** Each bound is printed with its measured value and a verdict. Latencies during a
//! change are compared with those before it in the same run, at a constant rate below the knee of
//! the same cluster. Failed operations are counted in all phases of a run.
//!
//! **Mechanism.** [`changes`] is the table of changes. Each has a new cluster, whose data is stored
//! before. [`load`] applies the load while a change is carried out, and [`watch`] looks at the
//! cluster meanwhile. [`moved`] computes the bytes that have to move from the layout records before
//! and after. [`idle`] measures a join without load, and [`etcd`] the same change beside etcd.
//!
//! **Caveats.** All nodes and the generator share one machine and one disk. A cluster below the
//! feature level of plans refuses to move data: the parts that need it are omitted, which is
//! printed. Cassandra is not compared.

mod changes;
mod cluster;
mod etcd;
mod idle;
mod layout;
mod load;
mod moved;
mod phases;
mod rows;
mod speeds;
mod watch;

use crate::data::{require_free_space, store_in_batches, wait_until_settled};
use crate::picture;
use crate::servers::WorkDir;
use crate::table::{ResultTable, Threshold};
use crate::{BenchResult, Options};
use bench::goal::Goal;
use bench::keys::KEY_LEN;
use bench::units::{bytes, parse_time};
use bench::{Pacing, StopFlag};
use changes::{CHANGES, ChangeRun, DOWN_BESIDES, MeasuredChange};
use cluster::{Cluster, NoPlans};
use lab::stats::rounds;
use load::{QuorumLoad, RunTimes};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const VALUE_BYTES: usize = 1024;
/// Fraction of the knee that is applied.
const KNEE_SHARE: f64 = 0.6;
/// Maximum disk space of a node by its data: its share after a join, former data, log, compaction.
const SPACE_AMPLIFICATION: f64 = 2.0;
/// Replicas of a key, each with all of its data.
const COPIES: f64 = 3.0;
const TRIAL: Duration = Duration::from_secs(3);
const TRIAL_QUICK: Duration = Duration::from_secs(1);
const CALM_QUICK: Duration = Duration::from_secs(5);
/// Time in which the others notice that a node was killed.
const DETECTION_TIME: Duration = Duration::from_secs(5);
const SETTLE_PATIENCE: Duration = Duration::from_secs(600);
const QUICK_BYTES: f64 = 2e7;

/// Parameters of the changes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ChangeArguments {
    /// Gigabytes of keys and values of the join without load
    #[arg(long, default_value_t = 10.0, value_parser = parse_gigabytes)]
    gigabytes: f64,
    /// Gigabytes of keys and values of the changes under load, and beside etcd
    #[arg(long, default_value_t = 1.0, value_parser = parse_gigabytes)]
    load_gigabytes: f64,
    /// Operations per second [default: 60 % of the knee, which is measured first]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Goal that the rate of the knee has to meet
    #[arg(long, value_name = "GOAL", default_value = "p99<50ms,errors=0")]
    goal: Goal,
    /// Time that is measured before and after a change
    #[arg(long, value_parser = parse_time, default_value = "60s")]
    calm: Duration,
    /// Maximum duration of a change
    #[arg(long, value_parser = parse_time, default_value = "2h")]
    patience: Duration,
    /// Another node is down when a change begins, and for this time; in the parts join and leave
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    one_down: Option<Duration>,
    /// `--memory` of each node
    #[arg(long, default_value = "512MiB")]
    memory: String,
    /// Write a picture of each change to this directory, as SVG
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
    /// Directory of etcd and its load program, as bench/run builds them
    #[arg(long, default_value = "bench/compare/etcd/bin")]
    etcd: PathBuf,
}

fn parse_gigabytes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(gigabytes) if (0.001..=10_000.0).contains(&gigabytes) => Ok(gigabytes),
        _ => Err(format!("{text:?} is not a number of gigabytes from 0.001 to 10000")),
    }
}

/// The scenario, with the sizes and durations of this run.
struct ChangeBench<'a> {
    work_dir: &'a WorkDir,
    arguments: &'a ChangeArguments,
    /// Bytes of keys and values of the join without load, and of all other parts.
    idle_bytes: f64,
    load_bytes: f64,
    trial: Duration,
    times: RunTimes,
    /// Set by Ctrl-C, so that servers and files are cleaned up.
    stop: StopFlag,
}

/// Measures, and adds the results.
pub(crate) fn run(
    options: &Options,
    arguments: &ChangeArguments,
    work_dir: &WorkDir,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let size = |gigabytes: f64| if options.quick { QUICK_BYTES } else { gigabytes * 1e9 };
    let calm = if options.quick { arguments.calm.min(CALM_QUICK) } else { arguments.calm };
    let bench = ChangeBench {
        work_dir,
        arguments,
        idle_bytes: size(arguments.gigabytes),
        load_bytes: size(arguments.load_gigabytes),
        trial: if options.quick { TRIAL_QUICK } else { TRIAL },
        times: RunTimes { calm, patience: arguments.patience, down_for: arguments.one_down },
        stop: StopFlag::on_interrupt()?,
    };
    for change in CHANGES.iter().filter(|change| options.is_selected(change.name)) {
        note_missing_plans(bench.add_change(change, table), table)?;
    }
    if options.is_selected("idle") {
        note_missing_plans(bench.add_idle_join(table), table)?;
    }
    if options.is_selected("etcd") {
        note_missing_plans(bench.add_etcd(table), table)?;
        table.note("Cassandra is not compared".to_owned());
    }
    Ok(())
}

/// Notes that a part was omitted because the cluster does not move data.
fn note_missing_plans(part: BenchResult<()>, table: &mut ResultTable) -> BenchResult<()> {
    match part {
        Err(error) if error.is::<NoPlans>() => {
            table.note(format!("omitted: {error}"));
            Ok(())
        }
        part => part,
    }
}

impl ChangeBench<'_> {
    fn load_of(&self, size: f64) -> QuorumLoad {
        let keys = (size / (KEY_LEN + VALUE_BYTES) as f64) as u64;
        QuorumLoad { keys: keys.max(1), value_bytes: VALUE_BYTES }
    }

    /// Starts a cluster that can change its layout, and stores every key.
    fn changeable_cluster(&self, name: &str, nodes: usize, load: QuorumLoad) -> BenchResult<Cluster<'_>> {
        let cluster = self.start_cluster(name, nodes, load)?;
        cluster.require_plans()?;
        self.store(&cluster, load)?;
        Ok(cluster)
    }

    fn start_cluster(&self, name: &str, nodes: usize, load: QuorumLoad) -> BenchResult<Cluster<'_>> {
        let stored = load.keys as f64 * (KEY_LEN + load.value_bytes) as f64;
        require_free_space(self.work_dir.dir(), (stored * COPIES * SPACE_AMPLIFICATION) as u64)?;
        Cluster::start(self.work_dir, name, nodes, &self.arguments.memory, &self.stop)
    }

    /// Stores every key, and waits until all nodes have settled.
    fn store(&self, cluster: &Cluster<'_>, load: QuorumLoad) -> BenchResult<()> {
        cluster.with_server(0, |server| store_in_batches(server, load.keys, load.value_bytes))?;
        self.settle(cluster)
    }

    fn settle(&self, cluster: &Cluster<'_>) -> BenchResult<()> {
        let settle = |node| cluster.with_server(node, |server| wait_until_settled(server, SETTLE_PATIENCE));
        cluster.running().into_iter().try_for_each(settle)
    }

    /// Measures a change of a new cluster under load, and adds its rows.
    fn add_change(&self, change: &MeasuredChange, table: &mut ResultTable) -> BenchResult<()> {
        let load = self.load_of(self.load_bytes);
        table.section(&format!("{}; {} of data", change.title, bytes(self.load_bytes)));
        let down_for = self.times.down_for.filter(|_| change.permits_one_down);
        if self.times.down_for.is_some() && down_for.is_none() {
            table.note("omitted with --one-down: quorums would be lost".to_owned());
            return Ok(());
        }
        let cluster = match change.moves_data() {
            true => self.changeable_cluster(change.name, change.nodes, load)?,
            false => {
                let cluster = self.start_cluster(change.name, change.nodes, load)?;
                self.store(&cluster, load)?;
                cluster
            }
        };
        let rate = match self.arguments.rate {
            Some(rate) => rate,
            None => self.rate_below_knee(&cluster, load, change.runs[0].entries, table)?,
        };
        let down = down_for.map(|_| DOWN_BESIDES);
        for node in change.dead.into_iter().chain(down) {
            cluster.kill(node)?;
            cluster.sleep(DETECTION_TIME)?;
        }
        for (number, run) in change.runs.iter().enumerate() {
            let name = format!("{}-{number}", change.name);
            let times = RunTimes { down_for, ..self.times };
            if !self.add_run(&cluster, change, run, &name, (load, rate, times), table)? {
                table.note(format!(
                    "a change of {} has not ended; the rest of this part is omitted",
                    change.name
                ));
                break;
            }
        }
        Ok(())
    }

    /// Measures the knee, and returns the rate that is applied.
    fn rate_below_knee(
        &self,
        cluster: &Cluster<'_>,
        load: QuorumLoad,
        entries: &[usize],
        table: &mut ResultTable,
    ) -> BenchResult<u64> {
        let knee = load.find_knee(cluster, entries, &self.arguments.goal, self.trial, &self.stop)?;
        let rate = ((knee as f64 * KNEE_SHARE) as u64).max(1);
        let note = format!("{rate}/s are applied");
        table.row("knee, operations/s", Threshold::None, rounds(&[knee as f64]), note);
        // The search has overloaded the nodes.
        self.settle(cluster)?;
        Ok(rate)
    }

    /// Measures one run, and adds its rows. Returns whether the change has ended.
    fn add_run(
        &self,
        cluster: &Cluster<'_>,
        change: &MeasuredChange,
        run: &ChangeRun,
        name: &str,
        (load, rate, times): (QuorumLoad, u64, RunTimes),
        table: &mut ResultTable,
    ) -> BenchResult<bool> {
        let by = run.entries[0];
        let (before, logged) = (cluster.record(by)?, cluster.logged_bytes());
        let measured = load.run_during(cluster, run, Pacing::Rate(rate), times, &self.stop)?;
        table.note(format!("{:?}, {rate} operations/s through nodes {:?}", run.steps, run.entries));
        rows::add_load_rows(&measured, table);
        let has_ended = measured.changed.is_ok();
        if run.moves_data() {
            let after = cluster.record(by)?;
            let dead = change.dead.map(|node| cluster.url(node));
            let by_partition = moved::bytes_by_partition(&before, load.keys, load.value_bytes);
            let least = moved::least_bytes(&before, &after, &by_partition, dead.as_deref());
            let moved = measured.watched.moved_bytes.max(cluster.logged_bytes() - logged);
            rows::add_moved_row(moved, Some(least).filter(|_| has_ended), table);
            rows::add_fence_row(&measured.watched, table);
        }
        if let Some(dir) = &self.arguments.pictures {
            fs::create_dir_all(dir)?;
            let path = dir.join(format!("change-{name}.svg"));
            fs::write(&path, picture::draw(&rows::PANELS, rows::is_grey, &measured.seconds))?;
            table.note(format!("picture: {}", path.display()));
        }
        table.add_details(name, serde_json::to_value(&measured.seconds)?);
        Ok(has_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_gigabytes_within_bounds() {
        assert_eq!(parse_gigabytes("0.5"), Ok(0.5));
        for text in ["0", "-1", "ten", "NaN", "inf"] {
            assert!(parse_gigabytes(text).is_err(), "{text}");
        }
    }
}
