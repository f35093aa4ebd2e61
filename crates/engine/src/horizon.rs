//! The horizon: the time by which compaction judges expiry and grace periods.
//!
//! **Promise.** Compaction deletes nothing because of a wall clock that was just set wrong. What expired, or whose
//! grace period ended, before the horizon is dead; all other cells are kept as they are. The horizon decides nothing
//! else: which values a reader sees is the reader's matter.
//!
//! A tombstone also stays while a replica may not have heard of it: until the host says that the replicas have exchanged
//! all deletes up to its time, however long ago its grace period ended.
//!
//! **Mechanism.** Where the engine stands alone ([`HorizonSource::Clock`]) the horizon is the wall clock of the process,
//! less steps forward until the clock has kept them for an hour ([`SteadyWall`]). A host that knows more clocks than
//! its own ([`HorizonSource::Host`]) sets the horizon; before it does so for the first time nothing is dead. A
//! compaction uses the horizon of the moment at which it began.
//!
//! **Caveats.** An engine that stands alone believes the clock that it is opened with.

use env::Clock;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::{SteadyWall, WallTime};

/// Who says by which time cells are judged to be dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HorizonSource {
    /// The wall clock of the engine's environment; a step forward counts after one hour ([`SteadyWall::HOLD`]).
    #[default]
    Clock,
    /// The host, with [`Engine::set_horizon`](crate::Engine::set_horizon).
    Host,
}

/// The horizon of an engine.
#[derive(Debug)]
pub(crate) enum HorizonClock {
    Own(Mutex<SteadyWall>),
    /// Both in microseconds since 1970.
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

    /// The horizon now.
    pub(crate) fn wall(&self, clock: &dyn Clock) -> WallTime {
        match self {
            Self::Own(steady) => steady.lock().observe(clock.now()),
            Self::OfHost { wall, .. } => WallTime::from_micros_since_unix_epoch(wall.load(Ordering::Relaxed)),
        }
    }

    /// The time up to which the replicas have exchanged all deletes. An engine that stands alone has no replicas.
    pub(crate) fn exchanged_to(&self) -> WallTime {
        let micros = match self {
            Self::Own(_) => u64::MAX,
            Self::OfHost { exchanged_to, .. } => exchanged_to.load(Ordering::Relaxed),
        };
        WallTime::from_micros_since_unix_epoch(micros)
    }

    /// # Panics
    /// When the horizon is not the host's.
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
