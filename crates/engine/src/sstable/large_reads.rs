//! How much of large blocks is read at once.
//!
//! A large block is in memory twice while it is read, as it was stored and as it was written, and once when it is
//! handed to whoever asked for it. So that this is known to be little whatever is asked for, there are turns.

use parking_lot::{Condvar, Mutex};

/// So many bytes of large blocks are read at once; one that alone is larger is read alone.
const BYTES_MAX: u64 = 16 << 20;

/// The large blocks that are being read.
#[derive(Debug, Default)]
pub(crate) struct LargeReads {
    bytes: Mutex<u64>,
    freed: Condvar,
}

/// The turn of one that is read, until it is dropped.
#[derive(Debug)]
pub(super) struct LargeRead<'a> {
    reads: &'a LargeReads,
    bytes: u64,
}

impl LargeReads {
    /// Waits until a block of so many bytes may be read.
    pub(super) fn begin(&self, bytes: u64) -> LargeRead<'_> {
        let mut reading = self.bytes.lock();
        while *reading > 0 && *reading + bytes > BYTES_MAX {
            self.freed.wait(&mut reading);
        }
        *reading += bytes;
        LargeRead { reads: self, bytes }
    }
}

impl Drop for LargeRead<'_> {
    fn drop(&mut self) {
        *self.reads.bytes.lock() -= self.bytes;
        // Whoever waits for little may go on where whoever waits for much may not.
        self.reads.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn no_more_is_read_at_once_than_may_be_and_everyone_has_a_turn() {
        let (reads, reading) = (LargeReads::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for bytes in [1, 5 << 20, 9 << 20, BYTES_MAX, 3 * BYTES_MAX] {
                let (reads, reading) = (&reads, &reading);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let turn = reads.begin(bytes);
                        let at_once = reading.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        assert!(at_once <= BYTES_MAX || at_once == bytes, "{at_once}");
                        std::thread::yield_now();
                        reading.fetch_sub(bytes, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert_eq!(*reads.bytes.lock(), 0);
    }
}
