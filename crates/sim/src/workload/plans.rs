//! Operators that have data move between the members.
//!
//! At random times, an operator asks a node to begin a plan, to pause, resume or cancel the running
//! one, or to limit its rate. Plans come from other weights and zones of members. A node may refuse
//! a command, for example because a plan is running.

use crate::scenario::Dimension;
use crate::world::{World, WorldEvent};
use cluster::{
    LayoutCommand, LayoutRecord, NodeIndex, PlacementChange, PlacementPlan, PlannedChange, RateLimit,
    Requester,
};
use std::sync::Arc;
use std::time::Duration;
use stdx::Rng;

/// Bounds of the time for which a command is tried.
pub(super) const WITHIN_MIN: Duration = Duration::from_millis(200);
pub(super) const WITHIN_MAX: Duration = Duration::from_secs(2);
/// Rate at which data of a plan moves, as a power of two in bytes per second, is less than this.
const LIMIT_MAX: u64 = 22;
/// Greatest weight that a plan gives to a member.
pub(super) const WEIGHT_MAX: u64 = 6;

impl World {
    /// Schedules the commands of the scenario at random times within `within`.
    pub(crate) fn begin_plan_commands(&mut self, within: Duration) {
        for _ in 0..self.scenario.dimensions.plan_commands() {
            let delay = Duration::from_nanos(1 + self.layout_rng().below(within.as_nanos() as u64));
            self.after(delay, WorldEvent::CommandLayout);
        }
        self.begin_member_changes(within);
    }

    /// Gives a node a command on a plan.
    pub(crate) fn command_layout(&mut self) {
        if self.nemesis.is_over() {
            return;
        }
        if let Some(changes) = self.scenario.dimensions.member_changes() {
            return self.change_members(changes);
        }
        let node = self.draw_proposer();
        let is_paused = self.hosts[node.as_usize()].paused.is_some();
        let endpoint = self.endpoint(node, Requester::Node).filter(|_| !is_paused);
        let (Some(endpoint), Some(record)) = (endpoint, self.adopted_layout(node)) else { return };
        let spread = (WITHIN_MAX - WITHIN_MIN).as_nanos() as u64;
        let within = WITHIN_MIN + Duration::from_nanos(self.layout_rng().below(spread));
        let limit_min = self.limit_min();
        if let Some(command) = draw_command(&record, limit_min, self.layout_rng()) {
            self.give_layout_command(endpoint, command, within);
        }
    }

    /// Least rate at which data of a plan moves, as a power of two in bytes per second. A large
    /// value passes within some seconds.
    pub(super) fn limit_min(&self) -> u64 {
        const WITHIN_SECONDS: u64 = 4;
        let of_values = u64::from((self.scenario.value_bytes_max / WITHIN_SECONDS).max(1).ilog2()) + 1;
        of_values.max(if self.scenario.dimensions.has(Dimension::LargeValues) { 18 } else { 10 })
    }

    /// Has a node resume the running plan.
    pub(crate) fn resume_plan(&mut self, node: NodeIndex) {
        if let Some(endpoint) = self.endpoint(node, Requester::Node) {
            self.give_layout_command(endpoint, LayoutCommand::Resume, WITHIN_MAX);
        }
    }
}

fn draw_command(record: &Arc<LayoutRecord>, limit_min: u64, rng: &mut Rng) -> Option<LayoutCommand> {
    match record.plan.is_none() {
        true => draw_plan(record, rng).map(|change| LayoutCommand::Begin(Box::new(change))),
        false => Some(draw_control(limit_min, rng)),
    }
}

/// A command on the running plan. `limit_min`: least rate at which its data moves, as a power of
/// two in bytes per second.
pub(super) fn draw_control(limit_min: u64, rng: &mut Rng) -> LayoutCommand {
    match rng.below(6) {
        0 | 1 => LayoutCommand::Cancel,
        2 => LayoutCommand::Pause,
        3 => LayoutCommand::Limit(None),
        4 => LayoutCommand::Limit(RateLimit::new(1 << (limit_min + rng.below(LIMIT_MAX - limit_min)))),
        _ => LayoutCommand::Resume,
    }
}

/// A plan for other weights and zones of one or two members.
fn draw_plan(record: &Arc<LayoutRecord>, rng: &mut Rng) -> Option<PlannedChange> {
    let mut changes = Vec::new();
    let first = rng.below(record.members.len() as u64) as usize;
    for offset in 0..=rng.below(2) as usize {
        let url = record.members.get((first + offset) % record.members.len())?.url.clone();
        changes.push(match rng.below(4) {
            0 => PlacementChange::Zone { url, zone: format!("zone-{}", rng.below(3)) },
            _ => PlacementChange::Weight { url, weight: 1 + rng.below(WEIGHT_MAX) as u16 },
        });
    }
    let plan = PlacementPlan::new(record, &changes).ok()?;
    Some(PlannedChange { base: Arc::clone(record), plan, rate_limit: None })
}
