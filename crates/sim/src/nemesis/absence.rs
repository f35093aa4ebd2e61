//! Nodes that are absent for longer than deletes are kept.
//!
//! A *suspended* process, as in a suspended virtual machine, does nothing. When it continues, all
//! events that it missed arrive at once. Its monotonic clock either stood still meanwhile, as
//! Linux's does, or went on. Its wall clock is correct. A process that is *down* for as long is
//! started again.

use super::fault_end::FaultEnd;
use crate::host::EndCause;
use crate::world::{World, WorldEvent};
use cluster::NodeIndex;
use std::time::Duration;

impl World {
    /// Draws the length of an absence, longer than the grace period of tombstones.
    fn absence(&mut self) -> Duration {
        let grace = self.scenario.grace;
        grace + self.nemesis.up_to(grace)
    }

    /// Whether the process of this node runs and no data loss of any node is unrepaired.
    fn may_go_away(&mut self, node: NodeIndex) -> bool {
        !self.has_lost_data() && self.host(node).process.is_some() && self.host(node).paused.is_none()
    }

    pub(super) fn suspend(&mut self, node: NodeIndex) {
        let lasts = self.absence();
        if !self.may_go_away(node) {
            return self.postpone_fault();
        }
        let stands = self.nemesis.rng.chance(0.6);
        self.trace
            .note(self.now, || format!("{node:?} is suspended for {lasts:?}, monotonic clock: {stands}"));
        self.nemesis.note_change(node);
        self.pause(node);
        if stands {
            let at = self.now;
            self.host(node).clock.suspend(at);
        }
        self.pause_faults_for(lasts);
        self.after(lasts, WorldEvent::FaultEnd(FaultEnd::Resume(node)));
    }

    pub(super) fn stop_for_long(&mut self, node: NodeIndex) {
        let lasts = self.absence();
        if !self.may_go_away(node) {
            return self.postpone_fault();
        }
        self.nemesis.note_change(node);
        self.pause_faults_for(lasts);
        self.end_process(node, EndCause::Kill, Some(lasts));
    }
}
