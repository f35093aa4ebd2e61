//! Detection of long pauses of the process.
//!
//! **Promise.** A node with peers does not continue with its data after a pause as long as the
//! maximum absence ([`StoreOptions::away_max`](crate::StoreOptions::away_max)), whether the process
//! was stopped or the machine suspended. The node then counts as absent: the time in `alive` does
//! not move any more, the host ends the process, and the next start judges the absence like any
//! other (see `alive_mark`). A step of the wall clock is not an absence.
//!
//! **Mechanism.** The host calls [`Store::check_for_pause`](crate::Store::check_for_pause) about
//! once a second. The time between two calls is the greater of two measurements: by the monotonic
//! clock, which continues while a process is stopped, and by the time since boot, which also
//! continues while a machine is suspended. The wall clock is used only if the time since boot is
//! unknown. Then a step forward by that much cannot be distinguished from a suspension and counts
//! as one. That is the safe side: the node ends, and an operator who knows that it was a step
//! starts it with `--after-absence keep`.
//!
//! After a shorter pause that hints do not certainly cover ([`RESTART_MAX`]), the node is *behind*,
//! as after a start that follows such an absence. The time in `alive` moves again when the node has
//! exchanged all data with its peers. The host schedules a repair
//! ([`Store::absences`](crate::Store::absences)).
//!
//! The time by which `alive` was behind the wall clock at the previous check is added. Otherwise,
//! suspensions of a node that never catches up would not add up.
//!
//! **Caveats.** A hypervisor that pauses a machine may stop all of its clocks but the wall clock,
//! which is set later: that looks like a step. An operator who resumes a machine after such a pause
//! restarts the node. Until the host's next check, up to a second after the node continues, it may
//! answer.

use crate::alive_mark::{AliveMark, RESTART_MAX};
use crate::error::StoreError;
use cluster::NodeSet;
use env::Clock;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stdx::Now;

/// Minimum time between two checks that counts as an absence, independent of the time that the node
/// was behind before.
const NOTICED_MIN: Duration = Duration::from_secs(60);

/// Observes the progress of the clocks of one node.
pub(crate) struct PauseDetector {
    clock: Arc<dyn Clock>,
    dir: PathBuf,
    away_max: Duration,
    peers: Mutex<NodeSet>,
    /// Number of absences that hints do not certainly cover.
    absences: AtomicU64,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
enum State {
    /// The previous reading of the clocks.
    Running { now: Now, since_boot: Option<Duration> },
    /// The node was absent for this long, and stays so until it is started again.
    PausedTooLong(Duration),
}

impl PauseDetector {
    /// Returns a detector for a node that runs now.
    pub(crate) fn new(clock: Arc<dyn Clock>, dir: &Path, away_max: Duration, peers: NodeSet) -> Self {
        let state = State::Running { now: clock.now(), since_boot: clock.since_boot() };
        let absences = AtomicU64::new(0);
        let (dir, peers, state) = (dir.to_owned(), Mutex::new(peers), Mutex::new(state));
        Self { clock, dir, away_max, peers, absences, state }
    }

    /// Begins to observe a node that was alone and gets these peers. It has missed nothing before.
    pub(crate) fn begin(&self, peers: NodeSet) {
        let now = State::Running { now: self.clock.now(), since_boot: self.clock.since_boot() };
        *self.peers.lock().unwrap_or_else(PoisonError::into_inner) = peers;
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Number of absences since the store was opened that were longer than hints certainly cover.
    pub(crate) fn absences(&self) -> u64 {
        self.absences.load(Ordering::Acquire)
    }

    /// Checks whether the process was paused since the last call.
    ///
    /// # Errors
    /// [`StoreError::PausedTooLong`], from the first time on; [`StoreError::Io`] and
    /// [`StoreError::AliveCorrupt`] of `alive`.
    pub(crate) fn check(&self, alive: &AliveMark) -> Result<(), StoreError> {
        // The data under the lock is consistent after each statement, so a poisoned lock is usable.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Running { now: before, since_boot: boot_before } = *state {
            let (now, since_boot) = (self.clock.now(), self.clock.since_boot());
            let passed = time_between((before, boot_before), (now, since_boot));
            if passed >= self.away_max.min(NOTICED_MIN) {
                let missed = alive.absence_at(before.wall)?.unwrap_or_default() + passed;
                if missed >= self.away_max {
                    *state = State::PausedTooLong(missed);
                    return self.refuse(missed);
                }
                // Hints cover a shorter absence, as after a restart.
                if missed > RESTART_MAX && (passed > RESTART_MAX || alive.is_caught_up()) {
                    let absences = self.absences() + 1;
                    let peers = *self.peers.lock().unwrap_or_else(PoisonError::into_inner);
                    alive.set_behind_unrecorded(peers, absences);
                    self.absences.store(absences, Ordering::Release);
                }
            }
            *state = State::Running { now, since_boot };
            return Ok(());
        }
        match *state {
            State::PausedTooLong(missed) => self.refuse(missed),
            State::Running { .. } => Ok(()),
        }
    }

    fn refuse(&self, missed: Duration) -> Result<(), StoreError> {
        Err(StoreError::PausedTooLong { path: self.dir.clone(), missed_days: missed.as_secs() / (24 * 3600) })
    }
}

/// Time between two readings of the clocks.
fn time_between(before: (Now, Option<Duration>), after: (Now, Option<Duration>)) -> Duration {
    let awake = after.0.mono.saturating_since(before.0.mono);
    let with_suspension = match (before.1, after.1) {
        (Some(before), Some(after)) => after.saturating_sub(before),
        _ => {
            let micros = |now: Now| now.wall.micros_since_unix_epoch();
            Duration::from_micros(micros(after.0).saturating_sub(micros(before.0)))
        }
    };
    awake.max(with_suspension)
}
