//! What is under way on all threads, for those who look at the node.

use crate::links::{LinkCounters, LinkCounts, PeerCounts};
use cluster::NodeIndex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What is under way on one I/O thread. Written by it; relaxed, so a reader may see it a little late.
#[derive(Debug)]
pub(crate) struct Load {
    /// Connections, from the moment they are handed to the thread.
    pub(crate) connections: AtomicUsize,
    /// Commands without a reply.
    pub(crate) operations: AtomicUsize,
    /// It was sent an eviction and has not begun with it.
    pub(crate) is_evicting: AtomicBool,
    /// What passes over its links.
    pub(crate) links: Arc<LinkCounters>,
}

/// What is under way on all threads.
#[derive(Debug)]
pub(crate) struct Gauges {
    threads: Vec<Arc<Load>>,
    /// The control thread's.
    control_links: Arc<LinkCounters>,
}

impl Gauges {
    /// Of so many threads, in a node among so many.
    pub(crate) fn new(threads: usize, nodes: usize) -> Self {
        let links = || Arc::new(LinkCounters::new(nodes));
        let load = || Load {
            connections: 0.into(),
            operations: 0.into(),
            is_evicting: false.into(),
            links: links(),
        };
        Self { threads: (0..threads).map(|_| Arc::new(load())).collect(), control_links: links() }
    }

    pub(crate) fn of_thread(&self, number: u8) -> Arc<Load> {
        Arc::clone(&self.threads[usize::from(number)])
    }

    pub(crate) fn control_links(&self) -> Arc<LinkCounters> {
        Arc::clone(&self.control_links)
    }

    /// What passed over all links.
    pub(crate) fn links(&self) -> LinkCounts {
        let threads = self.threads.iter().map(|load| load.links.counts());
        threads.fold(self.control_links.counts(), |sum, counts| sum + counts)
    }

    /// What passed over the links with one node.
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
