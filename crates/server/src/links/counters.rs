//! What passes over the links of one thread.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};

/// What passed over the links of one thread. Written by it alone; relaxed, so a reader may see it a little late.
#[derive(Debug, Default)]
pub(crate) struct LinkCounters {
    dialed: AtomicU64,
    accepted: AtomicU64,
    write_calls: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    messages_sent: AtomicU64,
    messages_received: AtomicU64,
}

/// A reading of [`LinkCounters`], or the sum of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkCounts {
    /// Open links that were dialed.
    pub(crate) dialed: u64,
    /// Open links that were accepted.
    pub(crate) accepted: u64,
    pub(crate) write_calls: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
}

impl LinkCounters {
    /// So many links are open now.
    pub(crate) fn open(&self, dialed: usize, accepted: usize) {
        self.dialed.store(dialed as u64, Ordering::Relaxed);
        self.accepted.store(accepted as u64, Ordering::Relaxed);
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        add(&self.write_calls, 1);
        add(&self.bytes_sent, bytes as u64);
    }

    pub(crate) fn read(&self, bytes: usize) {
        add(&self.bytes_received, bytes as u64);
    }

    pub(crate) fn sent(&self) {
        add(&self.messages_sent, 1);
    }

    pub(crate) fn received(&self, messages: u64) {
        add(&self.messages_received, messages);
    }

    pub(crate) fn counts(&self) -> LinkCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LinkCounts {
            dialed: read(&self.dialed),
            accepted: read(&self.accepted),
            write_calls: read(&self.write_calls),
            bytes_sent: read(&self.bytes_sent),
            bytes_received: read(&self.bytes_received),
            messages_sent: read(&self.messages_sent),
            messages_received: read(&self.messages_received),
        }
    }
}

impl Add for LinkCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            dialed: self.dialed + other.dialed,
            accepted: self.accepted + other.accepted,
            write_calls: self.write_calls + other.write_calls,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
            messages_sent: self.messages_sent + other.messages_sent,
            messages_received: self.messages_received + other.messages_received,
        }
    }
}

/// One thread writes, so a load and a store will do.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}
