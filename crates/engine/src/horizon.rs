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
//! does so for the first time nothing is dead. A compaction uses the horizon at its start.
//!
//! **Caveats.** A standalone engine trusts the clock at its opening.

use env::Clock;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::{SteadyWall, WallTime};

/// Source of the horizon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HorizonSource {
    /// The wall clock of the engine's environment. A forward step counts after
    /// [`SteadyWall::HOLD`], one hour.
    #[default]
    Clock,
    /// The host, with [`Engine::set_horizon`](crate::Engine::set_horizon).
    Host,
}

/// The horizon of an engine.
#[derive(Debug)]
pub(crate) enum HorizonClock {
    Own(Mutex<SteadyWall>),
    /// Both in microseconds since the Unix epoch.
    OfHost {
        wall: AtomicU64,
        exchanged_to: AtomicU64,
    },
}

impl HorizonClock {
    pub(crate) fn new(source: HorizonSource, clock: &dyn Clock) -> Self {
        match source {
            HorizonSource::Clock => Self::Own(Mutex::new(SteadyWall::new(clock.now()))),
            HorizonSource::Host => Self::OfHost { wall: AtomicU64::new(0), exchanged_to: AtomicU64::new(0) },
        }
    }

    /// The present horizon.
    pub(crate) fn wall(&self, clock: &dyn Clock) -> WallTime {
        match self {
            Self::Own(steady) => steady.lock().observe(clock.now()),
            Self::OfHost { wall, .. } => WallTime::from_micros_since_unix_epoch(wall.load(Ordering::Relaxed)),
        }
    }

    /// The time up to which the replicas have exchanged all deletes. A standalone engine has no
    /// replicas.
    pub(crate) fn exchanged_to(&self) -> WallTime {
        let micros = match self {
            Self::Own(_) => u64::MAX,
            Self::OfHost { exchanged_to, .. } => exchanged_to.load(Ordering::Relaxed),
        };
        WallTime::from_micros_since_unix_epoch(micros)
    }

    /// Sets both times.
    ///
    /// # Panics
    /// When the source is not [`HorizonSource::Host`].
    pub(crate) fn set(&self, now: WallTime, exchanged: WallTime) {
        match self {
            Self::Own(_) => panic!("the engine was opened with the horizon of its own clock"),
            Self::OfHost { wall, exchanged_to } => {
                wall.store(now.micros_since_unix_epoch(), Ordering::Relaxed);
                exchanged_to.store(exchanged.micros_since_unix_epoch(), Ordering::Relaxed);
            }
        }
    }
}
