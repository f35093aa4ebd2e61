//! Traffic counters of the links of one thread.

use cluster::{NODES_MAX, NodeIndex};
use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};

/// Traffic counters of one thread's links. Only that thread writes them, with relaxed ordering, so
/// a reader may see slightly old values.
#[derive(Debug)]
pub(crate) struct LinkCounters {
    dialed: AtomicU64,
    accepted: AtomicU64,
    write_calls: AtomicU64,
    /// Counters by the slot of the node at the other end.
    peers: Box<[PeerCounters]>,
}

/// Traffic counters of the links with one node.
#[derive(Debug, Default)]
struct PeerCounters {
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    messages_sent: AtomicU64,
    messages_received: AtomicU64,
    opened: AtomicU64,
    dials_failed: AtomicU64,
}

/// A reading of [`LinkCounters`], or the sum of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkCounts {
    /// Open links that this node dialed.
    pub(crate) dialed: u64,
    /// Open links that this node accepted.
    pub(crate) accepted: u64,
    pub(crate) write_calls: u64,
    /// Traffic with all peers together.
    pub(crate) all: PeerCounts,
}

/// Traffic of the links with one node, or with several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerCounts {
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
    /// Links opened, dialed or accepted.
    pub(crate) opened: u64,
    /// Failed dials.
    pub(crate) dials_failed: u64,
}

impl LinkCounters {
    /// Counters without a link.
    pub(crate) fn new() -> Self {
        Self {
            dialed: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            write_calls: AtomicU64::new(0),
            peers: (0..NODES_MAX).map(|_| PeerCounters::default()).collect(),
        }
    }

    /// Sets the numbers of open links.
    pub(crate) fn open(&self, dialed: usize, accepted: usize) {
        self.dialed.store(dialed as u64, Ordering::Relaxed);
        self.accepted.store(accepted as u64, Ordering::Relaxed);
    }

    pub(crate) fn opened(&self, with: NodeIndex) {
        add(&self.peer(with).opened, 1);
    }

    pub(crate) fn dial_failed(&self, to: NodeIndex) {
        add(&self.peer(to).dials_failed, 1);
    }

    pub(crate) fn wrote(&self, to: NodeIndex, bytes: usize) {
        add(&self.write_calls, 1);
        add(&self.peer(to).bytes_sent, bytes as u64);
    }

    pub(crate) fn read(&self, from: NodeIndex, bytes: usize) {
        add(&self.peer(from).bytes_received, bytes as u64);
    }

    pub(crate) fn sent(&self, to: NodeIndex) {
        add(&self.peer(to).messages_sent, 1);
    }

    pub(crate) fn received(&self, from: NodeIndex, messages: u64) {
        add(&self.peer(from).messages_received, messages);
    }

    pub(crate) fn counts(&self) -> LinkCounts {
        LinkCounts {
            dialed: self.dialed.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Relaxed),
            write_calls: self.write_calls.load(Ordering::Relaxed),
            all: self.peers.iter().map(PeerCounters::counts).fold(PeerCounts::default(), PeerCounts::add),
        }
    }

    /// Traffic of the links with one node.
    pub(crate) fn counts_with(&self, node: NodeIndex) -> PeerCounts {
        self.peer(node).counts()
    }

    fn peer(&self, node: NodeIndex) -> &PeerCounters {
        &self.peers[node.as_usize()]
    }
}

impl PeerCounters {
    fn counts(&self) -> PeerCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PeerCounts {
            bytes_sent: read(&self.bytes_sent),
            bytes_received: read(&self.bytes_received),
            messages_sent: read(&self.messages_sent),
            messages_received: read(&self.messages_received),
            opened: read(&self.opened),
            dials_failed: read(&self.dials_failed),
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
            all: self.all + other.all,
        }
    }
}

impl Add for PeerCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
            messages_sent: self.messages_sent + other.messages_sent,
            messages_received: self.messages_received + other.messages_received,
            opened: self.opened + other.opened,
            dials_failed: self.dials_failed + other.dials_failed,
        }
    }
}

/// Adds to a counter. Only one thread writes it, so a load and a store suffice.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}
