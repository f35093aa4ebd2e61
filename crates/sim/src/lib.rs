//! The whole cluster in one thread, in a world made of a seed.
//!
//! **Promise.** A run drives the shipped `cluster`, `store`, `engine` and `wire`: only sockets, threads, clocks and the
//! operating system are replaced. The same seed gives the same run, event for event. Each run is 60 seconds of
//! its own time, with thousands of commands of clients and at least five faults, and ends in the first
//! invariant that did not hold, or in none. A run with a flood is 9 seconds in which clients ask for far more than
//! disks bear, and has no fault. Two planted bugs have runs of some seconds, with faults in a fixed order.
//!
//! **Mechanism.** A [`Scenario`] is drawn from the seed: its faults, and its [`Dimension`]s, which are traits of the world
//! beside faults. Hosts stand in a world with one queue of events; each
//! has a disk in memory that loses what was not synced, clocks that err, and a process that generation and dies
//! (`world`, `host`, [`network`]). Clients ask for keys and read ranges (`workload`), the nemesis strikes
//! (`nemesis`), and a judge keeps the [`history`] and has the invariants of [`check`] looked at, one a file.
//! After the safety phase everything is mended, and the cluster must come to rest within bounded time
//! ([`run`](fn@run)).
//!
//! A run may have one *kind of change* ([`FaultKind::CHANGES`]): a clock that steps by years, a data directory that comes
//! back as it was before, a node that was away for longer than deletes are kept. [`Scenario::draw_with_fault`] asks for one.
//!
//! Bugs are planted ([`Plant`]) between the machines and the world, to see that each is caught.
//!
//! **Caveats.** One thread: what goes wrong between threads of a process is not seen here. Bits that rot on a
//! disk for good, and a node list that changes, are not simulated.

pub mod check;
#[cfg(test)]
mod directed;
pub mod history;
mod host;
mod judge;
mod nemesis;
pub mod network;
pub mod packet;
mod plant;
mod run;
mod scenario;
mod time;
mod trace;
mod workload;
mod world;

pub use plant::Plant;
pub use run::{Report, run};
pub use scenario::{
    Dimension, Dimensions, FaultKind, FixedFaults, FloodLoad, NarrowLinks, QuorumStyle, Scale, Scenario,
};
pub use time::Nanos;
pub use trace::Trace;
