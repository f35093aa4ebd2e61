//! Whether the process stood still for so long that its data is too old.
//!
//! **Promise.** A node of several does not go on with its data after it stood still for as long as a node may be away
//! at most ([`StoreOptions::away_max`](crate::StoreOptions::away_max)): because the process was stopped, or because the
//! machine was suspended. The node then counts as away: nothing moves the time in `alive` any more, the host ends
//! the process, and the next start judges the absence like any other (see `alive`). A step of the wall clock is not an
//! absence.
//!
//! **Mechanism.** The host asks about once a second ([`Store::check_presence`](crate::Store::check_presence)). The time
//! between two questions is measured by the monotonic clock, which goes on while a process is stopped, and by the time
//! since boot, which also goes on while a machine is suspended: the greater of the two counts. The wall clock
//! is only used where the time since boot is not known: then a step forward by that much cannot be told from a suspension,
//! and counts as one. That is the safe side: the node ends, and an operator who knows that it was a step starts
//! it with `--after-absence keep`.
//!
//! A node that stood still for less than that, but for longer than hints surely cover
//! ([`RESTART_MAX`]), is *behind* from then on, as after a start that follows such an absence: the time in `alive` moves
//! again when the node has exchanged all with its peers. The host has it owe them a repair
//! ([`Store::absences`](crate::Store::absences)).
//!
//! The time that the node lacked already when it stopped is added: what `alive` was behind the wall clock at the last
//! question. Without that, suspensions of a node that never catches up would not add up.
//!
//! **Caveats.** A hypervisor that pauses a machine may stop all of its clocks but the wall clock, which somebody sets
//! later: that looks like a step. An operator who resumes a machine after such a pause restarts the node. Until the
//! host asks, up to a second after the node went on, it may answer.

use crate::alive::{Alive, RESTART_MAX};
use crate::error::StoreError;
use cluster::NodeSet;
use env::Clock;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stdx::Now;

/// Between two questions less than this is no absence, whatever the node lacks.
const NOTICED_MIN: Duration = Duration::from_secs(60);

/// Watches how the clocks of one node go on.
pub(crate) struct Presence {
    clock: Arc<dyn Clock>,
    dir: PathBuf,
    away_max: Duration,
    peers: NodeSet,
    /// Absences that hints do not surely cover.
    absences: AtomicU64,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
enum State {
    /// The last reading of the clocks.
    Present { now: Now, since_boot: Option<Duration> },
    /// The node was away for so long, and stays so until it is started again.
    Away(Duration),
}

impl Presence {
    /// A node that is there now.
    pub(crate) fn new(clock: Arc<dyn Clock>, dir: &Path, away_max: Duration, peers: NodeSet) -> Self {
        let state = State::Present { now: clock.now(), since_boot: clock.since_boot() };
        let absences = AtomicU64::new(0);
        Self { clock, dir: dir.to_owned(), away_max, peers, absences, state: Mutex::new(state) }
    }

    /// How often the node was away, since it was opened, for longer than hints surely cover.
    pub(crate) fn absences(&self) -> u64 {
        self.absences.load(Ordering::Acquire)
    }

    /// Whether the node has been there since the last call.
    ///
    /// # Errors
    /// [`StoreError::StoodStill`], now and from then on; [`StoreError::Io`] and [`StoreError::AliveCorrupt`] of `alive`.
    pub(crate) fn check(&self, alive: &Alive) -> Result<(), StoreError> {
        // What is under the lock is whole after each statement.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Present { now: before, since_boot: boot_before } = *state {
            let (now, since_boot) = (self.clock.now(), self.clock.since_boot());
            let passed = time_between((before, boot_before), (now, since_boot));
            if passed >= self.away_max.min(NOTICED_MIN) {
                let missed = alive.away_for(before.wall)?.unwrap_or_default() + passed;
                if missed >= self.away_max {
                    *state = State::Away(missed);
                    return self.refuse(missed);
                }
                // Hints bring what was missed in less, as after a restart.
                if missed > RESTART_MAX && (passed > RESTART_MAX || alive.hears_all()) {
                    let absences = self.absences() + 1;
                    alive.fall_behind(self.peers, absences);
                    self.absences.store(absences, Ordering::Release);
                }
            }
            *state = State::Present { now, since_boot };
            return Ok(());
        }
        match *state {
            State::Away(missed) => self.refuse(missed),
            State::Present { .. } => Ok(()),
        }
    }

    fn refuse(&self, missed: Duration) -> Result<(), StoreError> {
        Err(StoreError::StoodStill { path: self.dir.clone(), missed_days: missed.as_secs() / (24 * 3600) })
    }
}

/// How much time has passed between two readings of the clocks.
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
