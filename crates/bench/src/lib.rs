//! Load generator: sends HTTP requests to a server, and measures latencies and CPU time per
//! request.
//!
//! **Promise.** A latency counts from the *intended* start of its request. A server that stalls is
//! charged for every request that the stall delayed, not only for the one in flight (Tene's
//! "coordinated omission"). The same seed draws the same keys in the same order. The bytes of a
//! value follow from its key, so that any response can be verified.
//!
//! **Mechanism.** [`benchmark`](benchmark()) carries out a [`BenchPlan`]: it stores data, measures
//! or searches, and makes a [`Report`]. It uses [`run`], which starts generator threads, pinned on
//! request. Each thread owns its connections and one epoll instance. There is no async runtime and
//! no channel, because the generator shares the machine with the server under test.
//!
//! A run consists of [`Lane`]s. A lane has a number of connections, a [`Pacing`] (closed loop, or
//! slots at a constant rate) and a [`WorkloadSpec`] (operations, keys, values). A second lane
//! generates background load; it shares no connection with the first. The parts that make decisions
//! are pure and tested in virtual time: [`schedule`], [`response`], [`keys`], [`values`], [`goal`],
//! [`search`]. A [`Protocol`] defines the bytes on the connection; comparisons use it to drive
//! servers other than veche.
//!
//! **Memory** is bounded: histograms have a fixed size, a timeline has at most
//! [`timeline::ROWS_MAX`] rows, and waiting slots are counted, not stored.
//!
//! **Caveats.** Each connection has one request in flight. Linux only.

#![warn(missing_docs)]

pub mod affinity;
mod benchmark;
mod client;
mod clock;
mod connection;
mod console;
pub mod cpu;
mod driver;
pub mod goal;
pub mod keys;
mod load;
pub mod machine;
pub mod presets;
mod protocol;
pub mod recorder;
pub mod report;
pub mod response;
pub mod schedule;
pub mod search;
mod stop;
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
pub use workload::{Mix, Operation, QuorumOverride, RangeScope, WorkloadSpec, encode_requests};
