//! The other nodes as operations see them: who can be asked, and how much is under way there.
//!
//! What is under way at a peer is bounded in requests and in bytes, and by the time that it takes there (`admission`). A
//! peer at its bound counts as failed for one more operation, so a slow one costs the others neither memory nor time.

use super::latency::LatencyEstimate;
use crate::DelayEstimator;
use crate::dial::Dialer;
use stdx::{Instant, NodeTag};

/// A node, by what this thread does with it. This node has an entry too, of which only the latency is used.
#[derive(Debug)]
pub(super) struct Peer {
    /// The link to it.
    pub(super) dialer: Dialer,
    /// The identity of its data directory, as of the last link to it.
    pub(super) tag: Option<NodeTag>,
    /// How fast it answers reads.
    pub(super) latency: LatencyEstimate,
    /// What is under way there, and how fast it is done.
    pub(super) delay: DelayEstimator,
    bytes: usize,
}

/// Whether a node can be asked for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// It can.
    Ready,
    /// It has no room on its disk.
    Full,
    /// Too much is under way there.
    Busy,
    /// There is no link to it, or its answer would not count.
    Unavailable,
}

impl Peer {
    /// A peer without a link.
    pub(super) fn new() -> Self {
        let (dialer, delay) = (Dialer::new(), DelayEstimator::batched());
        Self { dialer, tag: None, latency: LatencyEstimate::UNKNOWN, delay, bytes: 0 }
    }

    /// Whether one more request fits. One alone always does, however large.
    pub(super) fn has_room(&self, bytes: usize, requests_max: u32, bytes_max: usize) -> bool {
        let fits = bytes == 0 || self.bytes == 0 || self.bytes + bytes <= bytes_max;
        fits && self.delay.operations() < requests_max as usize
    }

    /// Counts a request that is sent.
    pub(super) fn begin(&mut self, now: Instant, bytes: usize) {
        self.delay.begin(now, bytes);
        self.bytes += bytes;
    }

    /// Counts a request that was answered or given up.
    ///
    /// # Panics
    /// When none was under way.
    pub(super) fn end(&mut self, now: Instant, bytes: usize) {
        self.delay.end(now, bytes);
        self.bytes -= bytes;
    }
}
