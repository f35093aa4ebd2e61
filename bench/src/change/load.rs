//! The load on a cluster, its knee, and runs during which the cluster changes.
//!
//! **Promise.** A run measures before, during and after the steps of a change without a pause, at
//! one constant rate. A latency counts from the intended start of its operation. Each operation
//! that is refused, fails or is answered with `504` counts as failed, in all phases.
//!
//! **Mechanism.** The generator sends reads and writes with the default quorum. Meanwhile one
//! thread carries out the steps, and one watches ([`super::watch`]). The generator's hook stores
//! the responses of each second with the state of the cluster.
//!
//! **Caveats.** The generator does not keep the bodies of failures: the first reason is the status
//! or the kind of the failure. Generator, nodes and watcher share the machine.

use super::changes::ChangeRun;
use super::cluster::{Cluster, LAYOUT};
use super::phases::{Phase, Second, failure_of};
use super::watch::{SharedProgress, Watched, watch};
use crate::BenchResult;
use crate::measure::BenchLoad;
use bench::goal::{Goal, Observation};
use bench::recorder::{Failure, Recorder};
use bench::search::{RateSearch, SETTLE_DIVISOR, SearchStep};
use bench::threads::join_scoped;
use bench::timeline::is_ok;
use bench::{
    Lane, LaneResult, LiveSecond, Operation, Pacing, Protocol, RunHooks, RunSpec, StopFlag, run_with_hooks,
};
use std::thread;
use std::time::{Duration, Instant};

const CONNECTIONS: usize = 64;
const MIX: &str = "get=50,put=50";
/// Start of the search for the knee, as a fraction of the closed loop's throughput.
const START: f64 = 0.7;
/// Maximum number of trials of the search.
const TRIALS_MAX: u32 = 26;
/// Connections to new processes warm up for this time before a measurement counts.
const WARMUP: Duration = Duration::from_secs(2);

/// The load on a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuorumLoad {
    pub(super) keys: u64,
    pub(super) value_bytes: usize,
}

/// Durations of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunTimes {
    /// Time before and after the change.
    pub(super) calm: Duration,
    /// Maximum duration of a step that moves data.
    pub(super) patience: Duration,
    /// Time for which a node is down during the change; `None`: no node is.
    pub(super) down_for: Option<Duration>,
}

/// A run during which the cluster changed.
pub(super) struct LoadedRun {
    pub(super) seconds: Vec<Second>,
    /// Duration of the change, or the reason why it did not end.
    pub(super) changed: Result<Duration, String>,
    pub(super) watched: Watched,
    pub(super) failures: Failures,
}

/// Failed operations of a run, without those of the warm-up.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures {
    pub(super) count: u64,
    /// Operations that were answered with `504`.
    pub(super) not_enough_replicas: u64,
    /// The first failure, and its second.
    pub(super) first: Option<String>,
}

impl QuorumLoad {
    fn lane(&self, pacing: Pacing) -> BenchResult<Lane> {
        let load = BenchLoad {
            operation: Operation::Put,
            connections: CONNECTIONS,
            pacing,
            keys: self.keys,
            value_bytes: self.value_bytes,
            seed: 1,
        };
        let mut lane = load.lane("quorum operations", Protocol::Entities);
        lane.workload.mix = MIX.parse()?;
        Ok(lane)
    }

    fn spec(
        &self,
        cluster: &Cluster<'_>,
        entries: &[usize],
        pacing: Pacing,
        duration: Duration,
    ) -> BenchResult<RunSpec> {
        Ok(RunSpec {
            targets: entries.iter().map(|node| cluster.address(*node).into()).collect(),
            threads: LAYOUT.generator_threads,
            cores: LAYOUT.generator_cores.to_vec(),
            warmup: WARMUP,
            duration: Some(duration),
            lanes: vec![self.lane(pacing)?],
        })
    }

    /// Searches for the highest rate that meets the goal, in operations per second.
    pub(super) fn find_knee(
        &self,
        cluster: &Cluster<'_>,
        entries: &[usize],
        goal: &Goal,
        trial: Duration,
        stop: &StopFlag,
    ) -> BenchResult<u64> {
        let top = self.measure(cluster, entries, Pacing::Closed, trial, stop)?;
        let mut search = RateSearch::new((top.served_per_second() * START) as u64);
        let mut held = None;
        for _ in 0..TRIALS_MAX {
            let SearchStep::Try(rate) = search.step() else { break };
            let result = self.measure(cluster, entries, Pacing::Rate(rate), trial, stop)?;
            let broken = goal.violations(&Observation::of(&result, rate));
            println!("  {rate}/s: {}", if broken.is_empty() { "held".to_owned() } else { broken.join(", ") });
            if broken.is_empty() {
                held = held.max(Some(rate));
            }
            search.record_verdict(broken.is_empty());
            thread::sleep(trial / SETTLE_DIVISOR);
        }
        held.ok_or_else(|| format!("no rate meets {goal}").into())
    }

    fn measure(
        &self,
        cluster: &Cluster<'_>,
        entries: &[usize],
        pacing: Pacing,
        duration: Duration,
        stop: &StopFlag,
    ) -> BenchResult<LaneResult> {
        let spec = self.spec(cluster, entries, pacing, duration)?;
        let mut results = run_with_hooks(&spec, RunHooks { stop, on_second: &mut |_| {} })?;
        if stop.is_set() { Err("interrupted".into()) } else { Ok(results.swap_remove(0)) }
    }

    /// Applies the load at a constant rate, and carries out the steps of a change meanwhile.
    pub(super) fn run_during(
        &self,
        cluster: &Cluster<'_>,
        run: &ChangeRun,
        pacing: Pacing,
        times: RunTimes,
        interrupted: &StopFlag,
    ) -> BenchResult<LoadedRun> {
        let by = run.entries[0];
        let (stop, progress) = (StopFlag::default(), SharedProgress::default());
        let epoch = cluster.layout(by)?.epoch;
        progress.update(|progress| progress.epoch = epoch);
        // The thread that carries out the steps ends the run.
        let longest = times.calm * 2 + times.patience * run.steps.len() as u32;
        let spec = self.spec(cluster, run.entries, pacing, longest)?;

        let (mut seconds, mut first) = (Vec::new(), None);
        let mut begins = progress.get();
        let mut look = |live: &LiveSecond| {
            let ends = progress.get();
            if live.second >= 0 {
                let second = Second::new(&live.row, &begins, &ends);
                let failure = || failure_of(&live.row).map(|reason| describe(&reason, live.second, &second));
                first = first.take().or_else(failure);
                report(live.second, &second);
                seconds.push(second);
            }
            begins = ends;
            if interrupted.is_set() {
                stop.set();
            }
        };
        let (results, changed, watched) = thread::scope(|scope| {
            let watcher = scope.spawn(|| watch(cluster, by, &progress, &stop));
            let changing = scope.spawn(|| {
                let changed = change_between_calms(cluster, run, times, &progress);
                stop.set();
                changed
            });
            let results = run_with_hooks(&spec, RunHooks { stop: &stop, on_second: &mut look });
            let changed = join_scoped(changing);
            stop.set();
            (results, changed, join_scoped(watcher))
        });
        let result = results?.swap_remove(0);
        if interrupted.is_set() {
            return Err("interrupted".into());
        }
        let failures = Failures { first, ..Failures::of(&result.recorder) };
        Ok(LoadedRun { seconds, changed, watched, failures })
    }
}

/// Carries out the steps between two times of calm. Returns the duration of the steps.
fn change_between_calms(
    cluster: &Cluster<'_>,
    run: &ChangeRun,
    times: RunTimes,
    progress: &SharedProgress,
) -> Result<Duration, String> {
    let carry_out = || -> BenchResult<Duration> {
        cluster.sleep(WARMUP + times.calm)?;
        progress.update(|progress| progress.phase = Phase::During);
        let begun = Instant::now();
        run.carry_out(cluster, times.down_for, times.patience)?;
        let took = begun.elapsed();
        progress.update(|progress| {
            (progress.phase, progress.steps, progress.copies_left) = (Phase::After, 0, 0);
            progress.plan.clear();
        });
        cluster.sleep(times.calm)?;
        Ok(took)
    };
    carry_out().map_err(|error| error.to_string())
}

impl Failures {
    fn of(recorder: &Recorder) -> Self {
        let failed = recorder.statuses().iter().filter(|(status, _)| !is_ok(**status));
        // The end of the run leaves requests unsent whose connection is busy.
        let unanswered = recorder.failures().iter().filter(|(failure, _)| **failure != Failure::Unsent);
        let count = failed.map(|(_, count)| count).chain(unanswered.map(|(_, count)| count)).sum();
        Self { count, not_enough_replicas: recorder.with_status(504), first: None }
    }

    /// The failures in words.
    pub(super) fn summary(&self) -> String {
        let Self { count, not_enough_replicas, first } = self;
        match first {
            Some(first) => format!("{not_enough_replicas} of them 504; the first: {first}"),
            None if *count > 0 => "after the last second".to_owned(),
            None => String::new(),
        }
    }
}

fn describe(reason: &str, number: i64, second: &Second) -> String {
    let (phase, plan) = (second.progress.phase, &second.progress.plan);
    let plan = if plan.is_empty() { String::new() } else { format!(", {plan}") };
    format!("{reason} in second {number} ({phase:?}, epoch {}{plan})", second.progress.epoch)
}

/// Prints every tenth second, and those with failures.
fn report(number: i64, second: &Second) {
    if number % 10 != 0 && second.not_ok == 0 {
        return;
    }
    println!(
        "  {number:>5} s {:>8}/s, {:>4} failed, p99 {:>8.0} us, epoch {:>4}, moved {:>9}, {} copies left {}",
        second.served,
        second.not_ok,
        second.p99_us,
        second.progress.epoch,
        bench::units::bytes(second.progress.moved_bytes as f64),
        second.progress.copies_left,
        second.progress.plan
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::recorder::ResponseOutcome;
    use std::sync::Arc;

    fn at(millis: u64) -> stdx::Instant {
        stdx::Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn refusals_timeouts_and_broken_connections_are_failed_operations_and_unsent_ones_are_not() {
        let mut recorder = Recorder::new(at(0), at(2_000), Arc::default());
        for status in [200, 201, 404, 503, 504, 504] {
            recorder.answer(Operation::Get, at(1), at(2), ResponseOutcome::of_status(status));
        }
        for failure in [Failure::Broken, Failure::Unanswered, Failure::Unsent] {
            recorder.failure(Operation::Put, at(1), at(2), failure);
        }
        let failures = Failures::of(&recorder);
        assert_eq!((failures.count, failures.not_enough_replicas), (5, 2));
        let first = Some("status 503 in second 7".to_owned());
        let told = Failures { first, ..failures }.summary();
        assert_eq!(told, "2 of them 504; the first: status 503 in second 7");
        assert_eq!(Failures::default().summary(), "");
    }
}
