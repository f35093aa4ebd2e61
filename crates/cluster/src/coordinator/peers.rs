//! The other nodes as operations see them: who can be asked, and how much is under way there.
//!
//! What is under way at a peer is bounded in requests and in bytes. A peer at its bound counts as failed for one
//! more operation, so a slow one costs the others neither memory nor time.

use super::latency::Latency;
use crate::dial::Dialer;

/// A node, by what this thread does with it. This node has an entry too, of which only the latency is used.
#[derive(Debug)]
pub(super) struct Peer {
    /// The link to it.
    pub(super) dialer: Dialer,
    /// How fast it answers reads.
    pub(super) latency: Latency,
    requests: u32,
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
    Gone,
}

impl Peer {
    /// A peer without a link.
    pub(super) const fn new() -> Self {
        Self { dialer: Dialer::new(), latency: Latency::UNKNOWN, requests: 0, bytes: 0 }
    }

    /// Whether one more request fits. One alone always does, however large.
    pub(super) const fn has_room(&self, bytes: usize, requests_max: u32, bytes_max: usize) -> bool {
        let fits = bytes == 0 || self.bytes == 0 || self.bytes + bytes <= bytes_max;
        fits && self.requests < requests_max
    }

    /// Counts a request that is sent.
    pub(super) const fn begin(&mut self, bytes: usize) {
        self.requests += 1;
        self.bytes += bytes;
    }

    /// Counts a request that was answered or given up.
    ///
    /// # Panics
    /// When none was under way.
    pub(super) const fn end(&mut self, bytes: usize) {
        self.requests -= 1;
        self.bytes -= bytes;
    }
}
