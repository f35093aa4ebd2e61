//! The horizon: the time against which compaction compares expiry times and grace periods.
//!
//! **Promise.** A wall clock that was just set wrong makes compaction delete nothing. Cells that
//! expired, or whose grace period ended, before the horizon are dead; all other cells are kept. The
//! horizon does not affect which values a reader sees.
//!
//! A tombstone also stays while a replica may not have received it: until the host reports that the
//! replicas have exchanged all deletes up to its time, even long after the end of its grace period.
//!
//! **Mechanism.** A standalone engine ([`HorizonSource::Clock`]) uses the wall clock of the
//! process; a forward step of the clock counts only after it has lasted an hour ([`SteadyWall`]). A
//! host that compares several clocks ([`HorizonSource::Host`]) sets the horizon itself; before it
//! does so for the first time nothing is dead. A standalone engine becomes one of a host when the
//! host sets the horizon: a node that was alone gets its first peer. A compaction uses the horizon
//! at its start.
//!
//! **Caveats.** A standalone engine trusts the clock at its opening.

use env::Clock;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stdx::{SteadyWall, WallTime};

/// Source of the horizon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HorizonSource {
    /// The wall clock of the engine's environment. A forward step counts after
    /// [`SteadyWall::HOLD`], one hour. It counts until the host first sets the horizon.
    #[default]
    Clock,
    /// The host, with [`Engine::set_horizon`](crate::Engine::set_horizon).
    Host,
}

/// The horizon of an engine.
#[derive(Debug)]
pub(crate) struct HorizonClock {
    /// The clock of a standalone engine.
    own: Mutex<SteadyWall>,
    /// Whether the host sets the horizon.
    is_of_host: AtomicBool,
    /// The times of the host, in microseconds since the Unix epoch.
    wall: AtomicU64,
    exchanged_to: AtomicU64,
}

impl HorizonClock {
    pub(crate) fn new(source: HorizonSource, clock: &dyn Clock) -> Self {
        Self {
            own: Mutex::new(SteadyWall::new(clock.now())),
            is_of_host: AtomicBool::new(source == HorizonSource::Host),
            wall: AtomicU64::new(0),
            exchanged_to: AtomicU64::new(0),
        }
    }

    /// The present horizon.
    pub(crate) fn wall(&self, clock: &dyn Clock) -> WallTime {
        match self.is_of_host.load(Ordering::Acquire) {
            true => WallTime::from_micros_since_unix_epoch(self.wall.load(Ordering::Relaxed)),
            false => self.own.lock().observe(clock.now()),
        }
    }

    /// The time up to which the replicas have exchanged all deletes. A standalone engine has no
    /// replicas.
    pub(crate) fn exchanged_to(&self) -> WallTime {
        let micros = match self.is_of_host.load(Ordering::Acquire) {
            true => self.exchanged_to.load(Ordering::Relaxed),
            false => u64::MAX,
        };
        WallTime::from_micros_since_unix_epoch(micros)
    }

    /// Sets both times. The host sets them from then on, also for an engine that was opened with
    /// [`HorizonSource::Clock`].
    pub(crate) fn set(&self, now: WallTime, exchanged: WallTime) {
        self.wall.store(now.micros_since_unix_epoch(), Ordering::Relaxed);
        self.exchanged_to.store(exchanged.micros_since_unix_epoch(), Ordering::Relaxed);
        self.is_of_host.store(true, Ordering::Release);
    }
}
