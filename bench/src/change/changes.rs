//! The changes that are measured under load.

use super::cluster::Cluster;
use super::layout::LayoutChange;
use crate::BenchResult;
use std::time::Duration;

/// Node that is down besides, with `--one-down`. It receives no load.
pub(super) const DOWN_BESIDES: usize = 2;

/// A change of a new cluster, measured under load. Nodes are named by their numbers.
pub(super) struct MeasuredChange {
    /// Name for `--only`.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// Number of nodes before the change. The next node is spare.
    pub(super) nodes: usize,
    /// A member that is killed before the measurement, and does not come back.
    pub(super) dead: Option<usize>,
    /// Whether quorums remain while [`DOWN_BESIDES`] is down.
    pub(super) permits_one_down: bool,
    /// The runs of the load, with the steps that are carried out during each.
    pub(super) runs: &'static [ChangeRun],
}

/// A run of the load.
pub(super) struct ChangeRun {
    /// Nodes that receive the load. No step stops one of them: a client would have to switch to
    /// another node.
    pub(super) entries: &'static [usize],
    pub(super) steps: &'static [ChangeStep],
}

/// A step of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeStep {
    /// Starts the spare node with `--join`.
    Join(usize),
    /// Moves data to a member that has joined.
    Add(usize),
    /// Moves all data off a member.
    Remove(usize),
    /// Moves the data of a dead member to one that has joined.
    Replace { dead: usize, by: usize },
    /// Ends a node by `SIGTERM`, and starts it again.
    Restart(usize),
}

use ChangeStep::{Add, Join, Remove, Replace, Restart};

pub(super) const CHANGES: [MeasuredChange; 4] = [
    MeasuredChange {
        name: "join",
        title: "a node joins: 3 to 4 nodes",
        nodes: 3,
        dead: None,
        permits_one_down: true,
        runs: &[ChangeRun { entries: &[0, 1], steps: &[Join(3), Add(3)] }],
    },
    MeasuredChange {
        name: "leave",
        title: "a node leaves: 4 to 3 nodes",
        nodes: 4,
        dead: None,
        permits_one_down: true,
        runs: &[ChangeRun { entries: &[0, 1], steps: &[Remove(3)] }],
    },
    MeasuredChange {
        name: "replace",
        title: "a dead node is replaced: 2 of 3 nodes are up",
        nodes: 3,
        dead: Some(2),
        permits_one_down: false,
        runs: &[ChangeRun { entries: &[0, 1], steps: &[Join(3), Replace { dead: 2, by: 3 }] }],
    },
    MeasuredChange {
        name: "restart",
        title: "rolling restart of 3 nodes",
        nodes: 3,
        dead: None,
        permits_one_down: false,
        runs: &[
            ChangeRun { entries: &[0], steps: &[Restart(1), Restart(2)] },
            ChangeRun { entries: &[1], steps: &[Restart(0)] },
        ],
    },
];

impl MeasuredChange {
    /// Whether a step moves data.
    pub(super) fn moves_data(&self) -> bool {
        self.runs.iter().any(ChangeRun::moves_data)
    }
}

impl ChangeRun {
    /// Whether a step moves data.
    pub(super) fn moves_data(&self) -> bool {
        self.steps.iter().any(|step| step.moves_data())
    }

    /// Carries out the steps. With `down_for`, the node [`DOWN_BESIDES`] is down, and starts after
    /// this time. `patience` bounds a step that moves data.
    pub(super) fn carry_out(
        &self,
        cluster: &Cluster<'_>,
        down_for: Option<Duration>,
        patience: Duration,
    ) -> BenchResult<()> {
        let by = self.entries[0];
        for step in self.steps {
            println!("  {step:?}");
            match (*step, step.layout_change(cluster)) {
                (Join(node), _) => cluster.start_node(node)?,
                (Restart(node), _) => cluster.restart(node)?,
                (_, Some(change)) => {
                    let epoch = cluster.begin(by, &change)?;
                    if let Some(time) = down_for {
                        cluster.sleep(time)?;
                        cluster.start_node(DOWN_BESIDES)?;
                    }
                    cluster.wait_for_change(by, epoch, patience)?;
                }
                (Add(_) | Remove(_) | Replace { .. }, None) => {}
            }
        }
        Ok(())
    }
}

impl ChangeStep {
    /// The change of the layout that moves data. `None`: the step moves none.
    fn layout_change(self, cluster: &Cluster<'_>) -> Option<LayoutChange> {
        Some(match self {
            Add(node) => LayoutChange::Add(cluster.url(node)),
            Remove(node) => LayoutChange::Remove(cluster.url(node)),
            Replace { dead, by } => LayoutChange::ReplaceDead(cluster.url(dead), cluster.url(by)),
            Join(_) | Restart(_) => return None,
        })
    }

    /// Whether the step moves data.
    const fn moves_data(self) -> bool {
        matches!(self, Add(_) | Remove(_) | Replace { .. })
    }

    /// The node that the step stops.
    #[cfg(test)]
    fn stopped(self) -> Option<usize> {
        match self {
            Restart(node) => Some(node),
            // A removed node stops serving.
            Remove(node) => Some(node),
            Join(_) | Add(_) | Replace { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_step_stops_a_node_that_receives_the_load() {
        for change in &CHANGES {
            for run in change.runs {
                let stopped = run.steps.iter().filter_map(|step| step.stopped()).chain(change.dead);
                let mut stopped = stopped.chain(change.permits_one_down.then_some(DOWN_BESIDES));
                assert!(stopped.all(|node| !run.entries.contains(&node)), "{}", change.name);
            }
        }
    }

    #[test]
    fn a_rolling_restart_restarts_every_node_once() {
        let restart = CHANGES.iter().find(|change| change.name == "restart").unwrap();
        let mut stopped: Vec<_> =
            restart.runs.iter().flat_map(|run| run.steps).filter_map(|step| step.stopped()).collect();
        stopped.sort_unstable();
        assert_eq!(stopped, (0..restart.nodes).collect::<Vec<_>>());
    }

    #[test]
    fn only_the_spare_node_joins() {
        for change in &CHANGES {
            for step in change.runs.iter().flat_map(|run| run.steps) {
                let joins = match *step {
                    Join(node) | Add(node) | Replace { by: node, .. } => Some(node),
                    Remove(_) | Restart(_) => None,
                };
                assert!(joins.is_none_or(|node| node == change.nodes), "{}", change.name);
            }
        }
    }
}
