//! A client that holds memory, and the bytes of its address.

use crate::connection_limit::ClientAddress;
use limits::MemoryCategory;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::Waker;

/// A client is stalled after this number of consecutive sweeps without enough progress
/// (`connection_activity`).
pub(crate) const STALLED_SWEEPS: u32 = 2;

/// A client that holds memory.
#[derive(Debug)]
pub(crate) struct MemoryHolder {
    client: ClientAddress,
    category: MemoryCategory,
    bytes: AtomicU64,
    /// Bytes of all holders of this address, these included.
    of_address: Arc<HeldBytes>,
    /// Consecutive sweeps in which the client was slow.
    slow_sweeps: AtomicU32,
    is_evicted: AtomicBool,
    /// Wakes the connection.
    waker: Option<Waker>,
}

/// Bytes that the clients of one address hold, by category.
#[derive(Debug, Default)]
pub(super) struct HeldBytes([AtomicU64; MemoryCategory::ALL.len()]);

impl HeldBytes {
    /// Bytes of this category; `None`: of all categories.
    pub(super) fn bytes(&self, scope: Option<MemoryCategory>) -> u64 {
        match scope {
            Some(category) => self.0[category as usize].load(Ordering::Relaxed),
            None => self.0.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum(),
        }
    }

    /// Replaces the part of one holder, in one step.
    fn replace(&self, category: MemoryCategory, before: u64, after: u64) {
        self.0[category as usize].fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl MemoryHolder {
    /// A holder of 0 bytes, whose bytes are added to `of_address`.
    pub(super) fn new(
        client: ClientAddress,
        category: MemoryCategory,
        of_address: Arc<HeldBytes>,
        waker: Option<Waker>,
    ) -> Self {
        let (bytes, slow_sweeps, is_evicted) = Default::default();
        Self { client, category, bytes, of_address, slow_sweeps, is_evicted, waker }
    }

    pub(super) const fn client(&self) -> ClientAddress {
        self.client
    }

    pub(crate) const fn category(&self) -> MemoryCategory {
        self.category
    }

    /// Bytes that the client holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Publishes the bytes that the client holds.
    pub(crate) fn note_bytes(&self, bytes: u64) {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        self.of_address.replace(self.category, before, bytes);
    }

    /// Publishes the number of consecutive sweeps in which the client was slow.
    pub(crate) fn note_slow(&self, sweeps: u32) {
        self.slow_sweeps.store(sweeps, Ordering::Relaxed);
    }

    pub(super) fn slow_sweeps(&self) -> u32 {
        self.slow_sweeps.load(Ordering::Relaxed)
    }

    /// Whether the client is to lose its memory.
    pub(crate) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Relaxed)
    }

    pub(super) fn is_slow(&self) -> bool {
        self.slow_sweeps() >= STALLED_SWEEPS
    }

    pub(super) fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}
