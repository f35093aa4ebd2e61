//! The load generator: HTTP requests at a server, latencies and CPU per request out.
//!
//! **Promise.** A latency is counted from the moment at which the request was *meant* to start, so that a
//! server that stalls is charged for every request that the stall kept waiting, not only for the one that
//! happened to be on its way (Tene's "coordinated omission"). The same seed asks for the same keys in the
//! same order, and the bytes under a key follow from the key, so that any answer can be checked.
//!
//! **Mechanism.** [`benchmark`](benchmark()) carries out a [`BenchPlan`]: it stores data, measures or searches, and makes a
//! [`Report`]. Below it, [`run`] starts generator threads, pinned when asked. Each owns its connections and one
//! epoll: no runtime, no channel, because the generator shares the machine with the server that it measures.
//! What a thread drives is a list of [`Lane`]s: so many connections, a [`Pacing`] (closed loop, or slots at
//! a constant rate), and a [`WorkloadSpec`] (operations, keys, values). A second lane makes background load
//! without a connection in common with the first. The parts that decide anything are pure and tested
//! with virtual time: [`schedule`], [`response`], [`keys`], [`values`], [`goal`], [`search`]. What is spoken with a server is
//! a [`Protocol`]: the comparisons drive others than veche.
//!
//! **Memory** is bounded: histograms of a fixed size, at most [`timeline::ROWS_MAX`] rows, and slots that wait are
//! counted, not kept.
//!
//! **Caveats.** One request in flight a connection; only [`pipeline`] sends without waiting, and it measures nothing but
//! counts. Linux only.

#![warn(missing_docs)]

pub mod affinity;
pub mod batch;
mod benchmark;
pub mod cgroup;
mod client;
mod clock;
mod connection;
mod console;
mod driver;
pub mod goal;
pub mod http_server;
pub mod keys;
mod load;
pub mod machine;
pub mod pipeline;
pub mod presets;
pub mod process;
pub mod process_tree;
mod protocol;
pub mod recorder;
pub mod report;
pub mod response;
pub mod schedule;
pub mod search;
pub mod stats;
mod stop;
pub mod stream;
mod target;
pub mod threads;
pub mod timeline;
pub mod units;
pub mod values;
mod workload;
pub mod zipf;

pub use benchmark::{BenchError, BenchPlan, Preload, SearchPlan, benchmark, benchmark_with_hook};
pub use client::{HttpClient, HttpResponse, fetch};
pub use console::Console;
pub use load::{Lane, LaneResult, LiveSecond, LoadError, RunHooks, RunSpec, run, run_with_hooks};
pub use protocol::Protocol;
pub use report::Report;
pub use schedule::Pacing;
pub use stop::StopFlag;
pub use target::Target;
pub use workload::{Mix, Operation, QuorumOverride, RangeScope, WorkloadSpec};
