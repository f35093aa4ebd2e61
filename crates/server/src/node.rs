//! What the I/O threads of a node share once the store is open.

use crate::read_pool::ReadPool;
use cluster::HybridClock;
use std::sync::Arc;
use store::Store;

/// What the I/O threads of a node share once the store is open.
pub(crate) struct Node {
    pub(crate) store: Store,
    pub(crate) version_clock: Arc<HybridClock>,
    pub(crate) reads: ReadPool,
}
