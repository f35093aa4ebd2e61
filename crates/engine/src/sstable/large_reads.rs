//! A limit on the memory of large block reads in progress.
//!
//! **Promise.** The memory of large blocks that are being read, in stored and decompressed form
//! together, is bounded by 16 MiB or by the largest single block. Permits are granted in order of
//! request: a request waits only for earlier ones.
//!
//! **Mechanism.** A weighted FIFO semaphore. A reader requests a permit for its bytes and waits
//! until all earlier requests were granted and the sum of outstanding permits leaves enough of the
//! limit. The permit is released when the block is read, or, with a host that reads on behalf of
//! clients, when the host drops it ([`ReadMemory`](super::ReadMemory)).
//!
//! **Caveats.** Small requests also wait behind large ones.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// Limit of outstanding permits, in bytes. A request that exceeds it is granted when no other
/// permit is outstanding.
const BYTES_MAX: u64 = 16 << 20;

/// Limits the large reads in progress.
#[derive(Debug, Default)]
pub(crate) struct LargeReadLimit {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Sum of the outstanding permits, in bytes.
    bytes: u64,
    /// Number of requests so far.
    requested: u64,
    /// Number of granted requests: always the earliest ones.
    granted: u64,
}

/// A permit to read or copy a large block. It is released when dropped.
#[derive(Debug)]
pub struct LargeReadPermit {
    reads: Arc<LargeReadLimit>,
    bytes: u64,
}

impl LargeReadLimit {
    /// Waits for a permit for `bytes`. A thread that holds a permit must not wait for another one.
    pub(super) fn acquire(self: &Arc<Self>, bytes: u64) -> LargeReadPermit {
        let mut state = self.state.lock();
        let number = state.requested;
        state.requested += 1;
        while state.granted < number || !state.has_room_for(bytes) {
            self.changed.wait(&mut state);
        }
        state.granted += 1;
        state.bytes += bytes;
        drop(state);
        // The limit may admit the next request, too.
        self.changed.notify_all();
        LargeReadPermit { reads: Arc::clone(self), bytes }
    }

    /// The numbers of requests and of grants so far.
    #[cfg(test)]
    pub(super) fn requested_and_granted(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.requested, state.granted)
    }
}

impl State {
    const fn has_room_for(&self, bytes: u64) -> bool {
        self.bytes == 0 || self.bytes + bytes <= BYTES_MAX
    }
}

impl LargeReadPermit {
    /// Bytes that this permit covers.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for LargeReadPermit {
    fn drop(&mut self) {
        self.reads.state.lock().bytes -= self.bytes;
        self.reads.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn permits_never_exceed_the_limit_and_every_request_is_granted() {
        let (reads, reading) = (Arc::<LargeReadLimit>::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for bytes in [1, 5 << 20, 9 << 20, BYTES_MAX, 3 * BYTES_MAX] {
                let (reads, reading) = (&reads, &reading);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let permit = reads.acquire(bytes);
                        let at_once = reading.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        assert!(at_once <= BYTES_MAX || at_once == bytes, "{at_once}");
                        std::thread::yield_now();
                        reading.fetch_sub(bytes, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        assert_eq!(reads.state.lock().bytes, 0);
    }

    /// Waits until `requested` permits were requested.
    fn wait_for(reads: &LargeReadLimit, requested: u64) {
        while reads.requested_and_granted().0 < requested {
            std::thread::yield_now();
        }
    }

    #[test]
    fn permits_are_granted_in_order_of_request_independent_of_size() {
        let (reads, order) = (Arc::<LargeReadLimit>::default(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            let first = reads.acquire(BYTES_MAX / 2);
            for (at, bytes) in [BYTES_MAX, 1, 2, 3 * BYTES_MAX, 3].into_iter().enumerate() {
                let (reads, order) = (&reads, &order);
                scope.spawn(move || {
                    let _permit = reads.acquire(bytes);
                    order.lock().push(bytes);
                });
                wait_for(reads, at as u64 + 2);
            }
            assert_eq!(reads.requested_and_granted().1, 1, "the small request is behind the large one");
            drop(first);
        });
        // The two small reads run concurrently, so their order is not determined.
        let mut order = order.into_inner();
        order[1..3].sort_unstable();
        assert_eq!(order, [BYTES_MAX, 1, 2, 3 * BYTES_MAX, 3]);
    }
}
