//! Clusters of real processes on real disks, seen from outside.
//!
//! Each test starts nodes of its own on free ports, with directories of its own, and does to them
//! what happens to nodes: kills, hangs, losses. What a node itself holds is looked at in its data
//! directory when it does not run.

#[path = "../common/mod.rs"]
mod common;

mod agreement;
mod changes;
mod command_line;
mod damaged;
mod directories;
mod faults;
mod full_disks;
mod handoff;
mod harness;
mod history;
mod linearizability;
mod membership;
mod metrics;
mod missed;
mod placement;
mod probe;
mod quorums;
mod ranges;
mod rebuild;
mod rolling;
