//! What the node counted and measured, for `GET /metrics`.
//!
//! **Promise.** A scrape adds up and writes what was recorded anyway; it keeps no I/O thread from its work, and is
//! answered in every state of the node. What `GET /v0/status` says as well is read from the same counters. With
//! `--metrics off` nothing is recorded that only a scrape would show.
//!
//! **Mechanism.** I/O threads record in cells of their own ([`Recorder`]). A scrape runs on a thread that may wait, since
//! it asks the system for this and that; more than [`SCRAPES_MAX`] at once wait for each other. It is written family by
//! family: [`requests`], [`peers`], [`storage`], [`system`]. Names and meanings are in `docs/metrics.md`, which a test
//! compares with what is written.
//!
//! **Caveats.** Cells are read one by one while others write them: a sum may show a request that its histogram does not
//! show yet.

mod exposition;
mod peers;
mod recorder;
mod requests;
mod storage;
mod system;

use crate::local::Local;
use crate::process::Process;
use api::EncodedResponse;
use cluster::NodeIndex;
use exposition::Exposition;
use http::StatusCode;
use recorder::RequestMetrics;
pub(crate) use recorder::{Outcome, Recorder};
use std::sync::Arc;
use std::time::Duration;
use stdx::histogram::Histogram;
use stdx::{Now, nanos};
use tokio::sync::Semaphore;

/// Scrapes that are written at once; others wait.
const SCRAPES_MAX: usize = 2;

/// What is recorded, where it is to be.
pub(crate) struct Metrics {
    threads: Box<[Arc<RequestMetrics>]>,
    /// By node: from a heartbeat to its answer.
    round_trips: Box<[Histogram]>,
    read_waits: Arc<ReadWaits>,
    scrapes: Arc<Semaphore>,
}

/// How long reads wait for a thread that may wait for the disk.
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
    /// Of so many threads, in a node among so many.
    pub(crate) fn new(threads: usize, nodes: usize) -> Self {
        Self {
            threads: (0..threads).map(|_| Arc::new(RequestMetrics::new())).collect(),
            round_trips: (0..nodes).map(|_| Histogram::new()).collect(),
            read_waits: Arc::default(),
            scrapes: Arc::new(Semaphore::new(SCRAPES_MAX)),
        }
    }

    /// Where the I/O thread of this number records.
    pub(crate) fn of_thread(&self, number: u8) -> Arc<RequestMetrics> {
        Arc::clone(&self.threads[usize::from(number)])
    }

    /// Where waits for threads that read from disk are recorded.
    pub(crate) fn read_waits(&self) -> Arc<ReadWaits> {
        Arc::clone(&self.read_waits)
    }

    /// A heartbeat to `node` was answered.
    pub(crate) fn record_round_trip(&self, node: NodeIndex, took: Duration) {
        self.round_trips[node.as_usize()].record(nanos(took));
    }
}

/// The node at the moment of a scrape.
struct MetricsSource<'a> {
    process: &'a Process,
    metrics: &'a Metrics,
    /// Once the store is open.
    local: Option<&'a Local>,
    now: Now,
}

/// The answer to `GET /metrics`.
pub(crate) async fn answer(process: &Arc<Process>, is_head: bool) -> EncodedResponse {
    let Some(metrics) = &process.metrics else {
        return api::encode_no_metrics(is_head);
    };
    let scrapes = Arc::clone(&metrics.scrapes);
    let turn = scrapes.acquire_owned().await.expect("it is not closed");
    let process = Arc::clone(process);
    let written = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        process.metrics.as_ref().map(|metrics| write(&process, metrics)).unwrap_or_default()
    });
    match written.await {
        Ok(text) => api::encode_metrics(text, is_head),
        Err(error) => {
            tracing::error!(%error, "metrics could not be written");
            let detail = "The metrics could not be written; this is a bug. See the log of the node.";
            api::Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).to_response(is_head)
        }
    }
}

fn write(process: &Process, metrics: &Metrics) -> String {
    let local = process.local.get().map(|local| &**local);
    let source = MetricsSource { process, metrics, local, now: process.clock.now() };
    let mut out = Exposition::default();
    system::write(&mut out, &source);
    requests::write(&mut out, &source);
    peers::write(&mut out, &source);
    storage::write(&mut out, &source);
    out.into_text()
}
