//! Exhaustive models of changing a cluster while it serves.
//!
//! **Promise.** Within its bounds, each model visits every order of events: messages that are
//! delayed, reordered and lost, coordinators that are stale, nodes that lose their disks or are cut
//! off. The promises of `docs/consistency.md` hold in every state, and each rule of the design is
//! needed: without it the search finds a counterexample.
//!
//! | module | is |
//! |---|---|
//! | [`swap`] | the exchange of two replicas of one partition: x loses its place, g gains it |
//! | [`chain`] | agreement on layout records: one instance of Paxos for each epoch |
//! | [`naming`] | agreement on the first record that names ids, while voters lose their disks |
//! | [`mod@search`] | the breadth-first search |
//!
//! **Caveats.** A model is not the code. It has one key, few operations and few epochs. Time,
//! clocks, scans and overload are not in it.

pub mod chain;
pub mod naming;
pub mod search;
pub mod swap;

/// The extent of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchExtent {
    /// A bound for `cargo test`: the search takes seconds.
    Small,
    /// A bound for `cargo xtask night`: the search takes minutes.
    Large,
}
