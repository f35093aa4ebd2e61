//! How much of large blocks is read at once.
//!
//! **Promise.** What large blocks take in memory while they are read, as they are stored and as they are unpacked, is
//! known to be little, whatever is asked for. Nobody waits for a turn longer than those need who came before.
//!
//! **Mechanism.** Who reads says first how much that takes, and waits until all who came before have begun and there is
//! room beside those who are not done.
//!
//! A turn ends when the block was read; with a host that reads for others, when it says so ([`consent`](super::consent)).
//!
//! **Caveats.** What is little waits too behind what is much.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// So many bytes are taken at once for large blocks that are read; one that alone takes more is read alone.
const BYTES_MAX: u64 = 16 << 20;

/// The large blocks that are being read.
#[derive(Debug, Default)]
pub(crate) struct LargeReads {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What those take whose turn it is.
    bytes: u64,
    /// How many have come.
    came: u64,
    /// How many of them have begun: always those who came first.
    began: u64,
}

/// The turn of one that is read, or that is copied, until it is dropped.
#[derive(Debug)]
pub struct LargeRead {
    reads: Arc<LargeReads>,
    bytes: u64,
}

impl LargeReads {
    /// Waits for a turn to take so many bytes. Whoever holds one must not wait for another.
    pub(super) fn wait(self: &Arc<Self>, bytes: u64) -> LargeRead {
        let mut state = self.state.lock();
        let number = state.came;
        state.came += 1;
        while state.began < number || !state.has_room_for(bytes) {
            self.changed.wait(&mut state);
        }
        state.began += 1;
        state.bytes += bytes;
        drop(state);
        // There may be room for the next one too.
        self.changed.notify_all();
        LargeRead { reads: Arc::clone(self), bytes }
    }

    /// How many have come, and how many of them have begun.
    #[cfg(test)]
    pub(super) fn came_and_began(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.came, state.began)
    }
}

impl State {
    const fn has_room_for(&self, bytes: u64) -> bool {
        self.bytes == 0 || self.bytes + bytes <= BYTES_MAX
    }
}

impl LargeRead {
    /// How many bytes it is for.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for LargeRead {
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
    fn no_more_is_read_at_once_than_may_be_and_everyone_has_a_turn() {
        let (reads, reading) = (Arc::<LargeReads>::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for bytes in [1, 5 << 20, 9 << 20, BYTES_MAX, 3 * BYTES_MAX] {
                let (reads, reading) = (&reads, &reading);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let turn = reads.wait(bytes);
                        let at_once = reading.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        assert!(at_once <= BYTES_MAX || at_once == bytes, "{at_once}");
                        std::thread::yield_now();
                        reading.fetch_sub(bytes, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert_eq!(reads.state.lock().bytes, 0);
    }

    /// Waits until so many have asked for a turn.
    fn wait_for(reads: &LargeReads, came: u64) {
        while reads.came_and_began().0 < came {
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_comes_first_has_the_first_turn_however_little_the_others_want() {
        let (reads, order) = (Arc::<LargeReads>::default(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            let first = reads.wait(BYTES_MAX / 2);
            for (at, bytes) in [BYTES_MAX, 1, 2, 3 * BYTES_MAX, 3].into_iter().enumerate() {
                let (reads, order) = (&reads, &order);
                scope.spawn(move || {
                    let _turn = reads.wait(bytes);
                    order.lock().push(bytes);
                });
                wait_for(reads, at as u64 + 2);
            }
            assert_eq!(reads.came_and_began().1, 1, "there is room for what is little, but it came later");
            drop(first);
        });
        // Of those that are read together, any may be noted first.
        let mut order = order.into_inner();
        order[1..3].sort_unstable();
        assert_eq!(order, [BYTES_MAX, 1, 2, 3 * BYTES_MAX, 3]);
    }
}
