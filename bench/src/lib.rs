//! Tools of the benchmarks: servers as processes, meters of CPU time, memory limits, and the bare
//! HTTP server that stores are compared with.
//!
//! The load generator is the crate `bench`, which is part of the product. `bench/README.md`
//! describes the scenarios.

#![warn(missing_docs)]

pub mod cgroup;
pub mod http_server;
pub mod pipeline;
pub mod process;
pub mod process_tree;
pub mod put_batch;
pub mod stats;
pub mod stream;
