//! Bytes that request bodies may hold, in all connections together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A budget of bytes.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    bytes: u64,
    left: AtomicU64,
}

/// Bytes taken from a budget; given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    budget: Arc<ByteBudget>,
    bytes: u64,
}

impl ByteBudget {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { bytes, left: AtomicU64::new(bytes) }
    }

    /// Bytes that are taken now.
    pub(crate) fn taken(&self) -> u64 {
        self.bytes - self.left.load(Ordering::Relaxed)
    }

    /// Begins to take bytes.
    pub(crate) fn begin(self: &Arc<Self>) -> Taken {
        Taken { budget: Arc::clone(self), bytes: 0 }
    }
}

impl Taken {
    /// Takes `bytes` more. `false`: so many are not left, and none were taken.
    #[must_use]
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        let taken = self
            .budget
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        if taken.is_ok() {
            self.bytes += bytes;
        }
        taken.is_ok()
    }

    /// Holds `bytes` from now on, more or fewer than before. `false`: so many more are not left, and it holds what it
    /// did.
    #[must_use]
    pub(crate) fn hold(&mut self, bytes: u64) -> bool {
        if let Some(more) = bytes.checked_sub(self.bytes) {
            return self.take(more);
        }
        self.budget.left.fetch_add(self.bytes - bytes, Ordering::Relaxed);
        self.bytes = bytes;
        true
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_refused_to_others_and_comes_back() {
        let budget = Arc::new(ByteBudget::new(10));
        let (mut a, mut b) = (budget.begin(), budget.begin());
        assert!(a.take(4) && b.take(6));
        assert!(!a.take(1));
        assert_eq!(a.budget.taken(), 10);
        drop(b);
        assert!(a.take(6) && !a.take(1));
        drop(a);
        assert!(budget.begin().take(10));
    }

    #[test]
    fn what_is_held_rises_and_falls() {
        let budget = Arc::new(ByteBudget::new(10));
        let mut held = budget.begin();
        assert!(held.hold(8) && !held.hold(11) && held.hold(3));
        assert!(budget.begin().take(7));
        drop(held);
        assert!(budget.begin().take(10));
    }
}
