//! Hosts: machines with a disk and clocks, on which a process lives, dies and is started again.
//!
//! The process is the shipped one but for sockets, threads and the operating system; see [`process`].

pub(crate) mod clock;
pub(crate) mod disk;
pub(crate) mod hidden;
pub(crate) mod planted;
pub(crate) mod process;
pub(crate) mod shake;

use crate::Nanos;
use crate::world::Event;
use clock::HostClock;
use cluster::NodeIndex;
use disk::DiskFaults;
use env::MemFs;
use planted::Planted;
use process::Process;
use std::time::Duration;

/// How a process came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
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
    pub(crate) lives: u64,
    /// How its last process ended; a machine without power resets no connections.
    pub(crate) ending: Ending,
    /// How its process ends when it comes to where its disk stops it, and how long it stays down.
    pub(crate) at_stop: (Ending, Duration),
    /// The next start comes to its end after so many file operations.
    pub(crate) stop_next_start: Option<u64>,
    /// What its process has not seen yet because it stands still.
    pub(crate) paused: Option<Vec<Event>>,
    /// When its process went on that stood still.
    pub(crate) resumed: Nanos,
    /// When its disk was last filled.
    pub(crate) filled: Nanos,
    /// Shards that were set aside on its disk when its process last started.
    pub(crate) set_aside: usize,
    /// How long its disk takes for a sync.
    pub(crate) sync_max: Duration,
    /// What planted bugs keep.
    pub(crate) planted: Planted,
}
