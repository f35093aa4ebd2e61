//! The watcher of a change: bytes that move, fences, memory and disk space over time.
//!
//! **Mechanism.** A thread looks at the layout every [`POLL`] while the cluster changes. If a step
//! is in PREPARE, it scrapes the losing node until `veche_layout_fenced_epoch` has reached the
//! epoch of that phase. Once a second it looks at all nodes.
//!
//! **Caveats.** PREPARE counts as decided when the watched node shows it. Both ends of a time may
//! be late by an interval, so an interval is added to each time. A node that is dead fences
//! nothing; then all others are awaited.

use super::cluster::Cluster;
use super::layout::LayoutView;
use super::moved::CopyTracker;
use super::phases::{Phase, Progress};
use crate::scrape::Scrape;
use bench::StopFlag;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Interval of looking at the layout while it changes.
pub(super) const POLL: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);

/// The state of a cluster that the watcher, the load and the thread that changes it share.
#[derive(Debug, Default)]
pub(super) struct SharedProgress(Mutex<Progress>);

impl SharedProgress {
    /// The state as it was last seen.
    pub(super) fn get(&self) -> Progress {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the state. `change` does not panic.
    pub(super) fn update(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The findings of a watcher.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched {
    /// Times from PREPARE to the fence of the losing node, in milliseconds.
    pub(super) fences_ms: Vec<f64>,
    /// Number of steps in PREPARE whose fence was not seen before their phase ended.
    pub(super) fences_unseen: u64,
    /// Bytes that were copied, as the gaining nodes showed them.
    pub(super) moved_bytes: u64,
    /// Greatest space that all data directories occupied, in bytes.
    pub(super) disk_bytes_max: u64,
    /// Peaks of the resident memory by node, in bytes.
    pub(super) resident_max: BTreeMap<usize, u64>,
}

/// Steps in PREPARE, by the URL of the losing node and the epoch of the phase.
#[derive(Debug, Default)]
struct Fences {
    steps: BTreeMap<(String, u64), FenceState>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FenceState {
    /// PREPARE was seen at this time.
    Awaited(Instant),
    FencedAfter(Duration),
}

impl Fences {
    /// Looks at a layout. `is_fenced` returns whether the member at a URL has fenced an epoch.
    fn look(&mut self, layout: &LayoutView, now: Instant, is_fenced: impl Fn(&str, u64) -> bool) {
        let steps = layout.plan.iter().flat_map(|plan| &plan.steps).filter(|step| step.is_prepared());
        for step in steps {
            let key = (step.from.clone(), step.since_epoch);
            let state = self.steps.entry(key).or_insert(FenceState::Awaited(now));
            if let FenceState::Awaited(since) = *state
                && is_fenced(&step.from, step.since_epoch)
            {
                // The scrape takes time as well.
                *state = FenceState::FencedAfter(since.elapsed() + POLL);
            }
        }
    }

    fn times_ms(&self) -> Vec<f64> {
        let time = |state: &FenceState| match state {
            FenceState::FencedAfter(time) => Some(time.as_secs_f64() * 1e3),
            FenceState::Awaited(_) => None,
        };
        self.steps.values().filter_map(time).collect()
    }
}

/// Watches the cluster through the node `by` until `stop` is set.
pub(super) fn watch(cluster: &Cluster<'_>, by: usize, progress: &SharedProgress, stop: &StopFlag) -> Watched {
    let (mut watched, mut tracker, mut fences) =
        (Watched::default(), CopyTracker::default(), Fences::default());
    let mut next_second = Instant::now();
    while !stop.is_set() {
        if progress.get().phase == Phase::During
            && let Ok(layout) = cluster.layout(by)
        {
            fences.look(&layout, Instant::now(), |url, epoch| has_fenced(cluster, url, epoch));
            show(progress, &layout);
        }
        if Instant::now() >= next_second {
            next_second = Instant::now() + SECOND;
            look_at_all(cluster, &mut tracker, &mut watched);
            progress.update(|progress| progress.moved_bytes = tracker.bytes());
        }
        thread::sleep(POLL);
    }
    watched.fences_ms = fences.times_ms();
    watched.fences_unseen = (fences.steps.len() - watched.fences_ms.len()) as u64;
    watched.moved_bytes = tracker.bytes();
    watched
}

fn show(progress: &SharedProgress, layout: &LayoutView) {
    progress.update(|progress| {
        progress.epoch = progress.epoch.max(layout.epoch);
        let plan = layout.plan.as_ref();
        progress.copies_left = plan.and_then(|plan| plan.copies_left).unwrap_or(0);
        progress.steps = plan.map_or(0, |plan| plan.steps.len() as u64);
        progress.plan = plan.map_or_else(String::new, super::layout::PlanView::summary);
    });
}

/// Whether the member at `url` has fenced `epoch`; for one that does not run: all others.
fn has_fenced(cluster: &Cluster<'_>, url: &str, epoch: u64) -> bool {
    let running = cluster.running();
    let nodes = match cluster.find(url).filter(|node| running.contains(node)) {
        Some(node) => vec![node],
        None => running,
    };
    let fenced = |node: usize| {
        let scrape = Scrape::at(cluster.address(node));
        scrape.map_or(0.0, |scrape| scrape.sum("veche_layout_fenced_epoch", ""))
    };
    nodes.into_iter().all(|node| fenced(node) >= epoch as f64)
}

fn look_at_all(cluster: &Cluster<'_>, tracker: &mut CopyTracker, watched: &mut Watched) {
    for node in cluster.running() {
        if let Some(plan) = cluster.layout(node).ok().and_then(|layout| layout.plan) {
            tracker.look(&plan);
        }
        if let Some(resident) = cluster.resident(node) {
            let peak = watched.resident_max.entry(node).or_default();
            *peak = resident.peak.max(*peak);
        }
    }
    watched.disk_bytes_max = watched.disk_bytes_max.max(cluster.disk_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::layout::{PlanView, StepView};
    use super::*;

    fn layout(steps: &[(&str, u64, &str)]) -> LayoutView {
        let step = |&(from, since_epoch, phase): &(&str, u64, &str)| StepView {
            from: from.to_owned(),
            to: "http://d:1".to_owned(),
            phase: phase.to_owned(),
            since_epoch,
            copy: None,
        };
        let steps = steps.iter().map(step).collect();
        let plan = Some(PlanView { state: "running".to_owned(), copies_left: None, steps });
        LayoutView { epoch: 9, feature_level: 3, members: Vec::new(), plan }
    }

    #[test]
    fn each_prepare_is_timed_until_its_losing_node_has_fenced_it() {
        let (mut fences, now) = (Fences::default(), Instant::now());
        let both = layout(&[("http://a:1", 5, "prepare"), ("http://b:1", 5, "prepare")]);
        fences.look(&both, now, |_, _| false);
        assert!(fences.times_ms().is_empty());
        fences.look(&both, now, |url, epoch| url == "http://a:1" && epoch == 5);
        assert_eq!(fences.times_ms().len(), 1);
        let first = fences.times_ms()[0];
        assert!(first >= POLL.as_secs_f64() * 1e3, "an interval is added");
        fences.look(&layout(&[("http://a:1", 5, "prepare")]), now, |_, _| true);
        assert_eq!(fences.times_ms(), [first], "it counts once");
        fences.look(&layout(&[("http://a:1", 8, "prepare"), ("http://c:1", 8, "new")]), now, |_, _| true);
        assert_eq!((fences.times_ms().len(), fences.steps.len()), (2, 3), "b was not seen to fence");
    }
}
