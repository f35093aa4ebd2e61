//! Hosts: machines with a disk and clocks, on which a process generation, dies and is started again.
//!
//! The process is the shipped one but for sockets, threads and the operating system; see [`process`].

pub(crate) mod clock;
pub(crate) mod disk;
pub(crate) mod handshake;
pub(crate) mod hidden_generation;
pub(crate) mod plant_state;
pub(crate) mod process;

use crate::Nanos;
use crate::world::Event;
use clock::HostClock;
use cluster::NodeIndex;
use disk::DiskFaults;
use env::MemFs;
use plant_state::PlantState;
use process::Process;
use std::time::Duration;

/// How a process came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// The process died; the machine goes on.
    Kill,
    /// The machine lost its power.
    PowerLoss,
}

/// A machine.
pub(crate) struct Host {
    /// The member of the cluster that its process stands for.
    pub(crate) member: NodeIndex,
    pub(crate) disk: MemFs,
    pub(crate) faults: DiskFaults,
    pub(crate) clock: HostClock,
    pub(crate) process: Option<Process>,
    /// Lives begun so far.
    pub(crate) generation: u64,
    /// How its last process ended; a machine without power resets no connections.
    pub(crate) end_cause: EndCause,
    /// How its process ends when it comes to where its disk stops it, and how long it stays down.
    pub(crate) planned_stop: (EndCause, Duration),
    /// The next start comes to its end after so many file operations.
    pub(crate) stop_next_start: Option<u64>,
    /// What its process has not seen yet because it stands still.
    pub(crate) paused: Option<Vec<Event>>,
    /// When its process went on that stood still.
    pub(crate) resumed: Nanos,
    /// When its disk was last filled.
    pub(crate) filled: Nanos,
    /// Shards that were set aside on its disk when its process last started.
    pub(crate) stale_shards: usize,
    /// How long its disk takes for a sync.
    pub(crate) sync_max: Duration,
    /// What planted bugs keep.
    pub(crate) plant_state: PlantState,
}
