//! Hosts: computers with a disk and clocks, on which a process runs, ends and is started again.
//!
//! The process is the shipped one except for sockets, threads and the operating system: see
//! [`process`].

pub(crate) mod clock;
pub(crate) mod disk;
pub(crate) mod handshake;
pub(crate) mod hidden_generation;
pub(crate) mod layout_plants;
pub(crate) mod plant_state;
pub(crate) mod process;

use crate::Nanos;
use crate::world::event::WorldEvent;
use clock::HostClock;
use cluster::NodeIndex;
use disk::DiskFaults;
use env::MemFs;
use plant_state::PlantState;
use process::HostProcess;
use std::collections::BTreeSet;
use std::time::Duration;

/// Cause of the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// The process is killed; the host continues.
    Kill,
    /// The host loses power.
    PowerLoss,
}

/// A computer with a disk, clocks and at most one process.
pub(crate) struct Host {
    /// Slot of the member of the cluster that its process stands for, or stood for last.
    pub(crate) member: NodeIndex,
    /// Whether its node becomes a member by joining. The other nodes are members of the first
    /// record.
    pub(crate) joins: bool,
    /// Whether an operator has switched it off.
    pub(crate) is_off: bool,
    pub(crate) disk: MemFs,
    pub(crate) faults: DiskFaults,
    pub(crate) clock: HostClock,
    pub(crate) process: Option<HostProcess>,
    /// Whether its processes are of a release without the agreement on layout records.
    pub(crate) is_old: bool,
    /// Generation of the newest process; 0 before the first start.
    pub(crate) generation: u64,
    /// Time at which the last process ended.
    pub(crate) ended: Nanos,
    /// Cause of the last process end. A host without power resets no connections.
    pub(crate) end_cause: EndCause,
    /// Cause and downtime of the process end that its disk's faults or a drain cause.
    pub(crate) planned_stop: (EndCause, Duration),
    /// Number of file operations after which the next start is stopped.
    pub(crate) stop_next_start: Option<u64>,
    /// Events that the process has not received because it is paused.
    pub(crate) paused: Option<Vec<WorldEvent>>,
    /// Time at which the process last resumed.
    pub(crate) resumed: Nanos,
    /// Time at which the disk was last filled.
    pub(crate) filled: Nanos,
    /// Number of stale shards on the disk when the process last started: shards put aside after an
    /// absence.
    pub(crate) stale_shards: usize,
    /// Longest time that the disk takes for a sync.
    pub(crate) sync_max: Duration,
    /// Planted bug: the pairs of slots whose copies its processes have stated as complete.
    pub(crate) stated_copies: BTreeSet<(NodeIndex, NodeIndex)>,
    /// State of planted bugs.
    pub(crate) plant_state: PlantState,
}
