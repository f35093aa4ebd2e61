//! Deterministic simulation of a whole cluster, in one thread and from one seed.
//!
//! **Promise.** A run drives the shipped `cluster`, `store`, `engine` and `wire`. Only sockets,
//! threads, clocks and the operating system are replaced. The same seed gives the same run, event
//! for event. A run lasts 60 seconds of virtual time, with thousands of client commands and at
//! least five faults. It ends with the first invariant that did not hold, or with none. A run with
//! a flood lasts 9 seconds, has no fault, and its clients ask for far more than the disks bear.
//! Four planted bugs have runs of some seconds, with faults in a fixed order.
//!
//! **Mechanism.** A [`Scenario`] is drawn from the seed: its faults, and its [`Dimension`]s, which
//! are traits of the world beside faults. Hosts live in a world with one event queue. Each host has
//! a disk in memory that loses unsynced data, clocks with errors, and a process that runs, ends and
//! is started again (`world`, `host`, [`network`]). Clients send commands and read ranges, and
//! operators change the layout record: they have data move, and hosts join, leave and be declared
//! dead (`workload`). The nemesis injects faults
//! (`nemesis`). A judge keeps the [`history`] and checks the invariants of [`check`], each of which
//! is one file. After the safety phase all faults end, and the cluster must become healthy within
//! bounded time ([`run`](fn@run)).
//!
//! A run may have one *kind of change* ([`FaultKind::CHANGES`]). Examples are a clock that steps by
//! years, a data directory that is rolled back, and a node that is absent for longer than deletes
//! are kept. [`Scenario::draw_with_fault`] requests one.
//!
//! Bugs are planted ([`Plant`]) between the state machines and the world, to show that the
//! invariants catch them.
//!
//! **Terms.** A *host* is a computer. It has a number and an address for ever. While its node is a
//! member of the cluster, it has a *slot*, which is the number of the node in messages and lists.
//! The slot of a removed node may be given to a node of another host. A *generation* is the number
//! of a process start on its host. A *state machine* is the node or one coordinator of a process.
//! It has no I/O of its own: it gets inputs and returns effects. A *step* is one input of a state
//! machine with the effects that it returns.
//!
//! **Caveats.** The simulation has one thread, so it does not find bugs between threads of a
//! process. Permanent bit rot is not simulated. No host that joined loses its disk, since an
//! operator replaces that by hand.

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
pub use run::{RunReport, run};
pub use scenario::{
    Dimension, Dimensions, FaultKind, FixedFaults, FloodLoad, LayoutChanges, MemberChanges, NarrowLinks,
    QuorumStyle, Scale, Scenario,
};
pub use time::Nanos;
pub use trace::Trace;
