//! Bounded queue of stacks, for producers that may neither block nor allocate: a signal handler and
//! the allocator.
//!
//! **Promise.** A push takes no lock, allocates nothing and terminates, regardless of the code that
//! it interrupts. If the queue is full, the sample is counted as lost.
//!
//! **Mechanism.** Vyukov's bounded MPMC queue: each slot carries a sequence number that states its
//! owner. All words of a slot are atomics, so that a slot is filled in place. One reader drains the
//! queue every few milliseconds.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Maximum number of addresses of a stack. Those nearest to the root are dropped first.
pub(crate) const ADDRESSES_MAX: usize = 128;
/// Capacity in samples. The queue takes 1 MiB with its stacks; it is allocated by the first profile
/// and kept.
const SAMPLES_MAX: usize = 1_024;

/// Metadata of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampleHeader {
    /// Time of the sample, in nanoseconds of the monotonic clock.
    pub(crate) at_ns: u64,
    /// Thread id of the system.
    pub(crate) thread: u32,
    pub(crate) weight: u64,
}

/// Bounded queue of samples.
#[derive(Debug)]
pub(crate) struct SampleQueue {
    slots: Box<[Slot]>,
    head: AtomicUsize,
    tail: AtomicUsize,
    lost: AtomicU64,
}

#[derive(Debug)]
struct Slot {
    /// Equal to a position of the queue: free for that position. One more: filled.
    sequence: AtomicUsize,
    at_ns: AtomicU64,
    thread: AtomicU64,
    weight: AtomicU64,
    len: AtomicUsize,
    addresses: [AtomicU64; ADDRESSES_MAX],
}

impl SampleQueue {
    pub(crate) fn new() -> Self {
        let slot = |position| Slot {
            sequence: AtomicUsize::new(position),
            at_ns: AtomicU64::new(0),
            thread: AtomicU64::new(0),
            weight: AtomicU64::new(0),
            len: AtomicUsize::new(0),
            addresses: [const { AtomicU64::new(0) }; ADDRESSES_MAX],
        };
        Self {
            slots: (0..SAMPLES_MAX).map(slot).collect(),
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Adds a sample. `walk` passes the addresses of its stack from the leaf to the root, and stops
    /// when its callback returns `false`.
    pub(crate) fn push(&self, header: SampleHeader, walk: impl FnOnce(&mut dyn FnMut(u64) -> bool)) {
        let Some((position, slot)) = self.claim() else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let mut len = 0;
        walk(&mut |address| {
            slot.addresses[len].store(address, Ordering::Relaxed);
            len += 1;
            len < ADDRESSES_MAX
        });
        slot.at_ns.store(header.at_ns, Ordering::Relaxed);
        slot.thread.store(u64::from(header.thread), Ordering::Relaxed);
        slot.weight.store(header.weight, Ordering::Relaxed);
        slot.len.store(len, Ordering::Relaxed);
        slot.sequence.store(position + 1, Ordering::Release);
    }

    /// Removes all samples and passes them to `each`. Only one reader may call this at a time.
    pub(crate) fn drain(&self, mut each: impl FnMut(SampleHeader, &[u64])) {
        let mut addresses = [0; ADDRESSES_MAX];
        loop {
            let position = self.tail.load(Ordering::Relaxed);
            let slot = &self.slots[position % self.slots.len()];
            if slot.sequence.load(Ordering::Acquire) != position + 1 {
                return;
            }
            let len = slot.len.load(Ordering::Relaxed);
            for (to, from) in addresses.iter_mut().zip(&slot.addresses[..len]) {
                *to = from.load(Ordering::Relaxed);
            }
            let header = SampleHeader {
                at_ns: slot.at_ns.load(Ordering::Relaxed),
                thread: slot.thread.load(Ordering::Relaxed) as u32,
                weight: slot.weight.load(Ordering::Relaxed),
            };
            slot.sequence.store(position + self.slots.len(), Ordering::Release);
            self.tail.store(position + 1, Ordering::Relaxed);
            each(header, &addresses[..len]);
        }
    }

    /// Number of samples lost since the last call.
    pub(crate) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }

    fn claim(&self) -> Option<(usize, &Slot)> {
        let mut position = self.head.load(Ordering::Relaxed);
        loop {
            let slot = &self.slots[position % self.slots.len()];
            let sequence = slot.sequence.load(Ordering::Acquire);
            if sequence == position {
                let claimed = self.head.compare_exchange_weak(
                    position,
                    position + 1,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                match claimed {
                    Ok(_) => return Some((position, slot)),
                    Err(now) => position = now,
                }
            } else if sequence < position {
                return None;
            } else {
                position = self.head.load(Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;

    fn header(weight: u64) -> SampleHeader {
        SampleHeader { at_ns: 1, thread: 7, weight }
    }

    #[test]
    fn pushed_samples_are_drained_in_order() {
        let samples = SampleQueue::new();
        samples.push(header(3), |address| {
            let _ = address(5) && address(6);
        });
        samples.push(header(4), |address| while address(9) {});
        let mut out = Vec::new();
        samples.drain(|header, addresses| out.push((header, addresses.to_vec())));
        assert_eq!(out, [(header(3), vec![5, 6]), (header(4), vec![9; ADDRESSES_MAX])]);
    }

    #[test]
    fn samples_beyond_the_capacity_are_counted() {
        let samples = SampleQueue::new();
        for round in 0..3 {
            for weight in 0..SAMPLES_MAX as u64 + 5 {
                samples.push(header(weight), |_| ());
            }
            let mut next = 0;
            samples.drain(|header, _| {
                assert_eq!(header.weight, next, "round {round}");
                next += 1;
            });
            assert_eq!((next, samples.take_lost()), (SAMPLES_MAX as u64, 5));
        }
    }

    #[test]
    fn concurrently_pushed_samples_are_drained_once_or_counted_as_lost() {
        const EACH: u64 = 20_000;
        let (samples, done) = (SampleQueue::new(), AtomicBool::new(false));
        let mut seen = HashSet::new();
        let mut see = |header: SampleHeader, addresses: &[u64]| {
            assert!(addresses.len() == 3 && addresses.iter().all(|address| *address == header.weight));
            assert!(seen.insert(header.weight));
        };
        std::thread::scope(|scope| {
            let pushing: Vec<_> = (0..4)
                .map(|thread| {
                    let samples = &samples;
                    scope.spawn(move || {
                        for weight in thread * EACH..(thread + 1) * EACH {
                            samples.push(header(weight), |address| {
                                let _ = address(weight) && address(weight) && address(weight);
                            });
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                pushing.into_iter().for_each(|thread| thread.join().unwrap());
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                samples.drain(&mut see);
            }
        });
        samples.drain(&mut see);
        assert_eq!(seen.len() as u64 + samples.take_lost(), 4 * EACH);
    }
}
