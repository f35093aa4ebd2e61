//! Commands on the layout that other threads let the node carry out.
//!
//! **Promise.** Each command gets at most one outcome. A requester that hears none, because the
//! process ends, does not know whether the command has taken effect.

use super::MachineDriver;
use super::node_machine::NodeMachine;
use cluster::{CommandObstacle, LayoutCommand, LayoutCommandId, LayoutCommandOutcome, ProposeError};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A command, for the control thread.
pub(crate) struct RequestedCommand {
    pub(crate) command: LayoutCommand,
    /// Time in which it is to be decided.
    pub(crate) within: Duration,
    /// Receives the outcome.
    pub(crate) requester: oneshot::Sender<LayoutCommandOutcome>,
}

/// The requesters of the commands that have not ended.
#[derive(Debug, Default)]
pub(super) struct CommandRequesters {
    last: u64,
    waiting: BTreeMap<LayoutCommandId, oneshot::Sender<LayoutCommandOutcome>>,
}

impl CommandRequesters {
    fn add(&mut self, requester: oneshot::Sender<LayoutCommandOutcome>) -> LayoutCommandId {
        self.last += 1;
        let id = LayoutCommandId(self.last);
        self.waiting.insert(id, requester);
        id
    }

    /// Tells the requester of a command its outcome, if it still waits.
    pub(super) fn end(&mut self, id: LayoutCommandId, outcome: LayoutCommandOutcome) {
        match &outcome {
            LayoutCommandOutcome::Done { epoch, .. } => {
                tracing::info!(epoch = epoch.0, "a command on the layout has taken effect");
            }
            LayoutCommandOutcome::Refused(refusal) => {
                tracing::info!(%refusal, "a command on the layout was refused");
            }
            LayoutCommandOutcome::NotDecided(obstacle) => {
                tracing::warn!(%obstacle, "a command on the layout was not decided, and has no effect");
            }
            LayoutCommandOutcome::Unknown => tracing::warn!(
                "it is not known whether a command on the layout has taken effect: veche layout show tells"
            ),
        }
        if let Some(requester) = self.waiting.remove(&id) {
            let _ = requester.send(outcome);
        }
    }
}

impl MachineDriver<NodeMachine> {
    /// Has the node begin a command.
    pub(super) fn begin_layout_command(self: &Rc<Self>, requested: RequestedCommand) {
        let RequestedCommand { command, within, requester } = requested;
        self.run_machine(|core, now| {
            let machine = &mut core.machine;
            let id = machine.commands.add(requester);
            let begun = machine.node.begin_layout_command(now, id, command, within);
            if let Err(error) = begun {
                let obstacle = match error {
                    ProposeError::NoPart => CommandObstacle::NoPart,
                    _ => CommandObstacle::Busy,
                };
                machine.commands.end(id, LayoutCommandOutcome::NotDecided(obstacle));
            }
        });
    }
}
