//! Steps of one node's wall clock, from seconds to years, in both directions.
//!
//! One clock at a time is wrong: veche's promises hold while the other clocks are correct. Peers
//! learn of a correction with the next heartbeat that is answered, so for [`KNOWN_AFTER`] a
//! corrected clock still counts as the wrong one. A step is undone after a while, or lasts until
//! the heal phase. Sometimes the process ends with the step, so that the node starts with a wrong
//! clock. A clock that is far ahead makes a node refuse to start, as after a long absence. The
//! operator then follows the manual: sets the clock right and starts the node again, with its data.

use super::Nemesis;
use super::fault_end::FaultEnd;
use crate::host::EndCause;
use crate::world::{World, WorldEvent};
use cluster::NodeIndex;
use std::time::Duration;

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

/// Sizes of steps, in seconds. The first is within the clock skew that nodes accept, the others are
/// not.
const STEPS: [u64; 10] = [3, 12, 25, 60, HOUR, DAY, 4 * DAY, 11 * DAY, 365 * DAY, 10 * 365 * DAY];
/// Time after which the peers that are not declared unreachable know of a correction.
const KNOWN_AFTER: Duration = Duration::from_secs(3);
/// Fraction of steps that are undone before the heal phase.
const UNDONE: f64 = 0.6;
/// Fraction of steps with which the process ends.
const WITH_A_RESTART: f64 = 0.3;

impl Nemesis {
    /// Draws the size of a step in microseconds; positive is forward.
    fn step_micros(&mut self) -> i64 {
        // At least three steps in ten are short.
        let index = if self.rng.chance(0.3) { 0 } else { self.rng.below(STEPS.len() as u64) as usize };
        let micros = STEPS[index] as i64 * 1_000_000;
        if self.rng.chance(0.6) { micros } else { -micros }
    }
}

impl World {
    /// Steps the clock of `node`, or of the node whose clock is wrong or just was.
    pub(super) fn step_clock(&mut self, node: NodeIndex, lasts: Duration) {
        let corrected = self.nemesis.changes.corrected.filter(|(_, at)| self.now < *at + KNOWN_AFTER);
        let wrong = self.nemesis.changes.stepped.or(corrected.map(|(node, _)| node));
        let node = wrong.unwrap_or(node);
        let micros = self.nemesis.step_micros();
        self.trace.note(self.now, || format!("the clock of {node:?} steps by {micros} microseconds"));
        self.nemesis.changes.stepped = Some(node);
        self.host(node).clock.step(micros);
        if self.nemesis.rng.chance(WITH_A_RESTART) {
            self.end_process(node, EndCause::Kill, Some(lasts / 4));
        }
        if self.nemesis.rng.chance(UNDONE) {
            self.after(lasts, WorldEvent::FaultEnd(FaultEnd::CorrectClock(node)));
        }
    }

    /// Undoes a step, unless the clock was set right since.
    pub(super) fn undo_step(&mut self, node: NodeIndex) {
        if self.nemesis.changes.stepped == Some(node) {
            self.set_clock_right(node);
        }
    }

    /// Sets the clock of a node right.
    pub(crate) fn set_clock_right(&mut self, node: NodeIndex) {
        if self.nemesis.changes.stepped.take_if(|stepped| *stepped == node).is_some() {
            self.nemesis.changes.corrected = Some((node, self.now));
        }
        self.host(node).clock.correct(0);
    }
}
