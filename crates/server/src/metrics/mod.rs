//! The node's metrics, for `GET /metrics`.
//!
//! **Promise.** A scrape only adds up and formats values that are recorded anyway. The warnings of
//! the status are the exception: they are made in order to be counted. A scrape does not block an
//! I/O thread, and is answered in every state of the node. Figures that `GET /v0/status` also shows
//! are read from the same counters. With `--metrics off`, values that only a scrape shows are not
//! recorded.
//!
//! **Mechanism.** Each I/O thread records in cells of its own ([`RequestRecorder`]). A [`scrape`]
//! runs on a blocking thread, since it makes system calls. Scrapes beyond [`SCRAPES_MAX`] wait for
//! earlier ones. The families are written by [`requests`], [`peers`], [`storage`] and [`system`].
//! Their names and meanings are in `docs/metrics.md`, which a test compares with the output.
//!
//! **Caveats.** Cells are read one by one during concurrent writes: a counter may include a request
//! that its histogram does not include yet.

mod exposition;
mod peers;
mod recorder;
mod requests;
pub(crate) mod scrape;
mod source;
mod storage;
mod system;

use cluster::{NODES_MAX, NodeIndex};
use recorder::RequestMetrics;
pub(crate) use recorder::{CommandOutcome, RequestRecorder};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use stdx::histogram::Histogram;
use stdx::nanos;
use tokio::sync::Semaphore;

/// Maximum number of concurrent scrapes; further ones wait.
const SCRAPES_MAX: usize = 2;

/// The recorded metrics of a process with `--metrics on`.
pub(crate) struct Metrics {
    threads: Box<[Arc<RequestMetrics>]>,
    /// Round-trip times of heartbeats, by node.
    round_trips: Box<[OnceLock<Histogram>]>,
    read_waits: Arc<ReadWaits>,
    scrapes: Arc<Semaphore>,
}

/// Times that reads wait in the queue of the read pool.
#[derive(Debug, Default)]
pub(crate) struct ReadWaits {
    points: Histogram,
    pages: Histogram,
}

impl ReadWaits {
    pub(crate) fn record(&self, is_of_page: bool, waited: Duration) {
        let histogram = if is_of_page { &self.pages } else { &self.points };
        histogram.record(nanos(waited));
    }
}

impl Metrics {
    /// Creates the metrics of a process with `threads` I/O threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads: (0..threads).map(|_| Arc::new(RequestMetrics::new())).collect(),
            round_trips: (0..NODES_MAX).map(|_| OnceLock::new()).collect(),
            read_waits: Arc::default(),
            scrapes: Arc::new(Semaphore::new(SCRAPES_MAX)),
        }
    }

    /// Returns the cells of I/O thread `number`.
    pub(crate) fn of_thread(&self, number: u8) -> Arc<RequestMetrics> {
        Arc::clone(&self.threads[usize::from(number)])
    }

    /// Returns the histograms of waits for the read pool.
    pub(crate) fn read_waits(&self) -> Arc<ReadWaits> {
        Arc::clone(&self.read_waits)
    }

    /// Round-trip times of heartbeats to `node`.
    fn round_trips(&self, node: NodeIndex) -> &Histogram {
        self.round_trips[node.as_usize()].get_or_init(Histogram::new)
    }

    /// Records the round-trip time of a heartbeat to `node`.
    pub(crate) fn record_round_trip(&self, node: NodeIndex, took: Duration) {
        self.round_trips(node).record(nanos(took));
    }
}
