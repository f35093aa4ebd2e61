//! Peers as operations see them: availability and requests in flight.
//!
//! The requests in flight at a peer are bounded in number, in bytes, and by their expected delay
//! (`admission`). A peer at its bound counts as failed for one more operation, so a slow peer costs
//! the others neither memory nor time.

use super::latency::LatencyEstimate;
use crate::DelayEstimator;
use crate::dial::DialSchedule;
use stdx::{Instant, NodeTag};

/// This thread's state of a node. This node has an entry too, of which only the latency is used.
#[derive(Debug)]
pub(super) struct CoordinatorPeer {
    /// The link to it.
    pub(super) dialer: DialSchedule,
    /// Identity of its data directory, as of the last link to it.
    pub(super) tag: Option<NodeTag>,
    /// Its read latency.
    pub(super) latency: LatencyEstimate,
    /// Estimates its delay from the requests in flight.
    pub(super) delay: DelayEstimator,
    bytes: usize,
}

/// Whether a node can be asked for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// It can be asked.
    Ready,
    /// Its disk is full.
    Full,
    /// Too many requests are in flight there.
    Busy,
    /// There is no link to it, or it is not read-eligible.
    Unavailable,
}

impl CoordinatorPeer {
    /// Creates a peer without a link.
    pub(super) fn new() -> Self {
        let (dialer, delay) = (DialSchedule::new(), DelayEstimator::batched());
        Self { dialer, tag: None, latency: LatencyEstimate::UNKNOWN, delay, bytes: 0 }
    }

    /// Whether one more request fits. A request that would be alone always does, however large.
    pub(super) fn can_fit(&self, bytes: usize, requests_max: u32, bytes_max: usize) -> bool {
        let fits = bytes == 0 || self.bytes == 0 || self.bytes + bytes <= bytes_max;
        fits && self.delay.operations() < requests_max as usize
    }

    /// Counts a request that is sent.
    pub(super) fn begin(&mut self, now: Instant, bytes: usize) {
        self.delay.begin(now, bytes);
        self.bytes += bytes;
    }

    /// Counts a request that was answered or abandoned.
    ///
    /// # Panics
    /// If none was in flight.
    pub(super) fn end(&mut self, now: Instant, bytes: usize) {
        self.delay.end(now, bytes);
        self.bytes -= bytes;
    }
}
