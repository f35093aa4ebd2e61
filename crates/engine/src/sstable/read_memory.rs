//! The memory of the large blocks of one read.
//!
//! **Promise.** A large block is read only after the [`ReadMemory`] of its read covers it. If the
//! host has passed a reservation, that reservation covers the value first, or the block is not
//! read. A block that was read counts against the limit of concurrent large reads until the host
//! takes the permit and has accounted for the block or freed it. So memory outside of any account
//! is bounded, even if the response takes long to reach its client.
//!
//! **Mechanism.** All large blocks of a read share one reservation and one permit of
//! [`LargeReadLimit`], of the size of the largest block.
//!
//! **Caveats.** Of earlier blocks of the read at most one value of that size may be left, as with a
//! key that several tables contain. A read that reaches a larger block releases its permit and
//! waits for a larger one.

use super::large_reads::{LargeReadLimit, LargeReadPermit};
use crate::Error;
use limits::{MEMORY_RETRY_AFTER, Reservation};
use parking_lot::Mutex;
use std::sync::Arc;

/// The memory of one read: of a key, or of a page of a range. A thread has at most one at a time
/// that holds a permit.
#[derive(Debug, Default)]
pub struct ReadMemory(Mutex<HeldMemory>);

/// The memory that a read holds.
#[derive(Debug, Default)]
pub struct HeldMemory {
    /// The reservation that the host has passed, grown to the largest value.
    pub reservation: Option<Reservation>,
    /// The permit of the large blocks, if any were read. The sum of all permits is bounded.
    pub permit: Option<LargeReadPermit>,
    /// Size of a value that was not read because the reservation could not cover it; 0: none.
    pub refused_bytes: u64,
}

impl ReadMemory {
    /// The memory of a read whose large values are to be covered by `reservation`. Without one
    /// ([`ReadMemory::default`]) no value is refused.
    pub fn reserving(reservation: Reservation) -> Self {
        Self(Mutex::new(HeldMemory { reservation: Some(reservation), ..HeldMemory::default() }))
    }

    /// Takes the memory that the read holds.
    pub fn take(&self) -> HeldMemory {
        std::mem::take(&mut *self.0.lock())
    }

    /// Covers a block of `bytes`, of which `left_bytes` remain in use after it was read. Waits for
    /// a permit.
    pub(crate) fn cover(
        &self,
        reads: &Arc<LargeReadLimit>,
        bytes: u64,
        left_bytes: u64,
    ) -> Result<(), Error> {
        let mut held = self.0.lock();
        if held.reservation.as_mut().is_some_and(|reservation| !reservation.cover(left_bytes)) {
            held.refused_bytes = left_bytes;
            return Err(Error::NoRoom { retry_after: MEMORY_RETRY_AFTER });
        }
        if held.permit.as_ref().is_none_or(|permit| permit.bytes() < bytes) {
            // Released first: two reads that each hold a permit could wait for each other.
            held.permit = None;
            held.permit = Some(reads.acquire(bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limits::{Budget, LargestValue, MemoryCategory};

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_read_has_one_permit_until_its_host_drops_it() {
        let reads = Arc::<LargeReadLimit>::default();
        let budget = Arc::new(Budget::new(64 * MIB, 0, LargestValue::default()));
        let memory = ReadMemory::reserving(budget.empty_reservation(MemoryCategory::Replies));
        for (bytes, reserved) in [(12, 6), (5, 6), (12, 6), (16, 8)] {
            // None of them waits for the permit of its own read.
            memory.cover(&reads, bytes * MIB, bytes * MIB / 2).expect("free memory");
            assert_eq!(budget.reserved_bytes(MemoryCategory::Replies), reserved * MIB);
        }
        assert_eq!(reads.requested_and_granted(), (2, 2));
        let held = memory.take();
        let others = Arc::clone(&reads);
        let other = std::thread::spawn(move || drop(others.acquire(1)));
        while reads.requested_and_granted().0 < 3 {
            std::thread::yield_now();
        }
        assert_eq!(reads.requested_and_granted().1, 2, "the host holds the permit");
        drop(held);
        other.join().expect("the permit is granted");
        assert_eq!(budget.reserved_bytes(MemoryCategory::Replies), 0);
    }

    #[test]
    fn a_refused_read_does_not_wait_for_a_permit() {
        let reads = Arc::<LargeReadLimit>::default();
        let _all_of_it = reads.acquire(16 * MIB);
        let budget = Arc::new(Budget::new(0, 0, LargestValue::default()));
        let mut other = budget.empty_reservation(MemoryCategory::Replies);
        assert!(other.cover(MIB), "one value is read in overcommit");
        let memory = ReadMemory::reserving(budget.empty_reservation(MemoryCategory::Replies));
        let refused = memory.cover(&reads, 2 * MIB, MIB);
        assert!(matches!(refused, Err(Error::NoRoom { retry_after }) if retry_after == MEMORY_RETRY_AFTER));
        let held = memory.take();
        assert_eq!((held.permit.is_none(), held.refused_bytes), (true, MIB));
        assert!(ReadMemory::default().take().permit.is_none(), "nothing large was read");
    }
}
