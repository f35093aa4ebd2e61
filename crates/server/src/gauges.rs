//! Gauges of all threads, for the status and the metrics.

use crate::links::{LinkCounters, LinkCounts, PeerCounts};
use cluster::NodeIndex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Gauges of one I/O thread. The thread writes them with relaxed ordering, so a reader may see
/// slightly old values.
#[derive(Debug)]
pub(crate) struct ThreadGauges {
    /// Open connections, counted from the moment when they are handed to the thread.
    pub(crate) connections: AtomicUsize,
    /// Commands in flight.
    pub(crate) operations: AtomicUsize,
    /// An eviction was sent to the thread, which has not begun it yet.
    pub(crate) is_evicting: AtomicBool,
    /// Traffic of the thread's links.
    pub(crate) links: Arc<LinkCounters>,
}

/// Gauges of all threads.
#[derive(Debug)]
pub(crate) struct Gauges {
    threads: Vec<Arc<ThreadGauges>>,
    /// Links of the control thread.
    control_links: Arc<LinkCounters>,
}

impl Gauges {
    /// Gauges of a node with `threads` I/O threads.
    pub(crate) fn new(threads: usize) -> Self {
        let links = || Arc::new(LinkCounters::new());
        let load = || ThreadGauges {
            connections: 0.into(),
            operations: 0.into(),
            is_evicting: false.into(),
            links: links(),
        };
        Self { threads: (0..threads).map(|_| Arc::new(load())).collect(), control_links: links() }
    }

    pub(crate) fn of_thread(&self, number: u8) -> Arc<ThreadGauges> {
        Arc::clone(&self.threads[usize::from(number)])
    }

    pub(crate) fn control_links(&self) -> Arc<LinkCounters> {
        Arc::clone(&self.control_links)
    }

    /// Traffic of all links.
    pub(crate) fn links(&self) -> LinkCounts {
        let threads = self.threads.iter().map(|load| load.links.counts());
        threads.fold(self.control_links.counts(), |sum, counts| sum + counts)
    }

    /// Traffic of the links with one node.
    pub(crate) fn links_with(&self, node: NodeIndex) -> PeerCounts {
        let threads = self.threads.iter().map(|load| load.links.counts_with(node));
        threads.fold(self.control_links.counts_with(node), |sum, counts| sum + counts)
    }

    pub(crate) fn connections(&self) -> u64 {
        self.threads.iter().map(|load| load.connections.load(Ordering::Relaxed) as u64).sum()
    }

    pub(crate) fn operations(&self) -> u64 {
        self.threads.iter().map(|load| load.operations.load(Ordering::Relaxed) as u64).sum()
    }
}
