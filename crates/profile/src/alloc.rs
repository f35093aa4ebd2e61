//! Where memory is asked for.
//!
//! **Promise.** While no profile is taken, an allocation costs one load and a branch more. While one is, a sample is taken
//! every 512 KiB on average, of whichever allocation reaches it, and stands for what was allocated unseen: in the mean, the
//! sums are right, whatever the sizes.
//!
//! **Mechanism.** Each thread counts down the bytes to its next sample. The gaps are drawn from the exponential distribution,
//! so that an allocation of `s` bytes is seen with the probability `1 - exp(-s/m)`, `m` being the mean; it then stands for
//! `s / (1 - exp(-s/m))` bytes. The stack is walked by frame pointers into a queue that takes no lock and no memory.
//!
//! **Caveats.** What is counted is what was asked for, not what is still held. A reallocation counts for what it adds.

use crate::aggregate::{SampleAggregator, now_ns};
use crate::error::ProfileError;
use crate::periodic::{StopCondition, run_periodically};
use crate::queue::SampleHeader;
use crate::shared_queue::{self, QueueReader};
use crate::stack;
use crate::{Capture, Kind};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The mean of the bytes between two queue.
const MEAN_BYTES: f64 = 512.0 * 1024.0;
/// How often queue are taken out of the queue.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);
/// Who is_allocator_frame for others, as the names of their modules and functions begin: they are left out at the leaf.
const ALLOCATOR_MODULES: [&str; 2] = ["profile::alloc::", "alloc::alloc::"];
const ALLOCATOR_FUNCTIONS: [&str; 2] = ["__rust_", "__rg_"];

/// No profile is taken.
const OFF: u64 = 0;
/// The number of the profile that is taken.
static SESSION: AtomicU64 = AtomicU64::new(OFF);
/// The number of the last one.
static LAST_SESSION: AtomicU64 = AtomicU64::new(OFF);
/// An allocation was seen since this profile began.
static HAS_SEEN_ALLOCATION: AtomicBool = AtomicBool::new(false);

thread_local! {
    static THREAD_SAMPLER: ThreadSampler = const {
        ThreadSampler {
            session: Cell::new(OFF),
            bytes_left: Cell::new(0),
            random: Cell::new(0),
            is_sampling: Cell::new(false),
            thread: Cell::new(0),
            stack_bounds: Cell::new((0, 0)),
        }
    };
}

/// What a thread keeps for itself. Has no destructor, so that it is there as long as the thread is.
struct ThreadSampler {
    /// The profile that the rest is of.
    session: Cell<u64>,
    /// Bytes until the next sample.
    bytes_left: Cell<i64>,
    random: Cell<u64>,
    /// A sample is being taken: what that would allocate is not sampled.
    is_sampling: Cell<bool>,
    thread: Cell<u32>,
    /// Its bounds.
    stack_bounds: Cell<(usize, usize)>,
}

/// An allocator of which profiles can be taken.
#[derive(Debug, Default)]
pub struct SamplingAllocator<A>(A);

impl<A> SamplingAllocator<A> {
    /// Allocates as `allocator` does.
    pub const fn new(allocator: A) -> Self {
        Self(allocator)
    }
}

// SAFETY: all is done by the allocator within; looking at the size neither is_allocator_frame nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for SamplingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        on_allocation(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        on_allocation(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        on_allocation(bytes.saturating_sub(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.dealloc(memory, layout) }
    }
}

/// Takes queue of what this process is_allocator_frame for so long, or until `cancelled`.
///
/// # Errors
/// The program has another allocator, or another profile of the kind is being taken.
pub fn record(span: Duration, cancelled: &AtomicBool) -> Result<Capture, ProfileError> {
    let reader = QueueReader::acquire()?;
    let mut aggregator = SampleAggregator::new(Kind::Alloc);
    let session = Session::begin();
    drop(std::hint::black_box(Box::new(session.0)));
    if !HAS_SEEN_ALLOCATION.load(Ordering::Relaxed) {
        return Err(ProfileError::NoAllocator);
    }
    run_periodically(DRAIN_INTERVAL, StopCondition { span, cancelled }, || reader.drain(&mut aggregator));
    drop(session);
    reader.drain(&mut aggregator);
    Ok(aggregator.finish(is_allocator_frame))
}

/// Whether it is_allocator_frame for whoever called it.
fn is_allocator_frame(name: &str) -> bool {
    let function = name.rsplit("::").next().unwrap_or(name);
    ALLOCATOR_MODULES.iter().any(|module| name.starts_with(module))
        || ALLOCATOR_FUNCTIONS.iter().any(|begin| function.starts_with(begin))
}

/// Samples are taken until it is dropped.
struct Session(u64);

impl Session {
    fn begin() -> Self {
        let number = LAST_SESSION.fetch_add(1, Ordering::Relaxed) + 1;
        HAS_SEEN_ALLOCATION.store(false, Ordering::Relaxed);
        SESSION.store(number, Ordering::Release);
        Self(number)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        SESSION.store(OFF, Ordering::Relaxed);
    }
}

#[inline(always)]
fn on_allocation(bytes: usize) {
    let session = SESSION.load(Ordering::Relaxed);
    if session != OFF {
        count_down(session, bytes);
    }
}

#[inline(never)]
fn count_down(session: u64, bytes: usize) {
    let frame = stack::frame_pointer();
    // A thread that is ending may have nothing of its sampler any more.
    let _ = THREAD_SAMPLER.try_with(|sampler| {
        if sampler.session.get() != session {
            sampler.begin(session);
        }
        let left = sampler.bytes_left.get().saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        sampler.bytes_left.set(left);
        if left < 0 && !sampler.is_sampling.replace(true) {
            sampler.sample(bytes, frame);
            sampler.bytes_left.set(draw_gap(sampler.next_random()));
            sampler.is_sampling.set(false);
        }
    });
}

impl ThreadSampler {
    fn begin(&self, session: u64) {
        HAS_SEEN_ALLOCATION.store(true, Ordering::Relaxed);
        if self.thread.get() == 0 {
            self.thread.set(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        }
        self.session.set(session);
        self.random.set((u64::from(self.thread.get()) << 32 ^ now_ns()) | 1);
        // The first draws of a fresh generator resemble its seed.
        for _ in 0..8 {
            self.next_random();
        }
        self.bytes_left.set(draw_gap(self.next_random()));
    }

    /// Marsaglia's xorshift64, multiplied (Vigna 2016).
    fn next_random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    #[cold]
    fn sample(&self, bytes: usize, frame: usize) {
        let Some(queue) = shared_queue::queue() else { return };
        if self.stack_bounds.get() == (0, 0) {
            let stack = stack::own_stack();
            self.stack_bounds.set((stack.start, stack.end));
        }
        let (_, end) = self.stack_bounds.get();
        let header = SampleHeader { at_ns: now_ns(), thread: self.thread.get(), weight: weight(bytes) };
        let in_use = &raw const header as usize..end;
        // SAFETY: it is this thread's sampler stack, from this function's frame upwards.
        queue.push(header, |each| unsafe { stack::walk(frame, in_use, each) });
    }
}

/// How many bytes until the next sample.
fn draw_gap(random: u64) -> i64 {
    // In (0, 1]: the logarithm is finite.
    let uniform = ((random >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-uniform.ln() * MEAN_BYTES) as i64
}

/// How many bytes an allocation that was seen stands for.
fn weight(bytes: usize) -> u64 {
    let bytes = bytes as f64;
    (bytes / -(-bytes / MEAN_BYTES).exp_m1()).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::System;

    #[global_allocator]
    static ALLOCATOR: SamplingAllocator<System> = SamplingAllocator::new(System);

    #[inline(never)]
    fn allocate_a_lot(bytes_each: usize, times: usize) {
        for _ in 0..times {
            drop(std::hint::black_box(Vec::<u8>::with_capacity(bytes_each)));
        }
    }

    #[test]
    fn allocators_are_known_by_their_names() {
        for name in
            ["profile::alloc::count_down", "__rustc::__rust_alloc", "veche::__rust_realloc", "__rg_alloc"]
        {
            assert!(is_allocator_frame(name), "{name}");
        }
        for name in ["alloc::raw_vec::finish_grow", "engine::__rust::run", "profile::aggregate::add"] {
            assert!(!is_allocator_frame(name), "{name}");
        }
    }

    #[test]
    fn gaps_and_weights_fit_together() {
        let sampler = ThreadSampler {
            session: Cell::new(1),
            bytes_left: Cell::new(0),
            random: Cell::new(0x1234_5678_9abc_def1),
            is_sampling: Cell::new(false),
            thread: Cell::new(1),
            stack_bounds: Cell::new((0, 0)),
        };
        for bytes in [16u64, 4_096, 300_000, 5 << 20] {
            let (mut left, mut seen, mut total) = (draw_gap(sampler.next_random()), 0, 0);
            while total < 4u64 << 30 {
                total += bytes;
                left -= bytes as i64;
                if left < 0 {
                    seen += weight(bytes as usize);
                    left = draw_gap(sampler.next_random());
                }
                if bytes == 16 && total > 256 << 20 {
                    break;
                }
            }
            let off = seen as f64 / total as f64 - 1.0;
            assert!(off.abs() < 0.15, "{bytes}: {seen} of {total}");
        }
    }

    #[test]
    fn who_allocates_is_seen_and_for_how_much() {
        const TOTAL: u64 = 256 << 20;
        let _turn = shared_queue::lock_for_test();
        let (done, ready) = (AtomicBool::new(false), std::sync::Barrier::new(2));
        let capture = std::thread::scope(|scope| {
            let recording = scope.spawn(|| {
                ready.wait();
                record(Duration::from_secs(60), &done)
            });
            ready.wait();
            while SESSION.load(Ordering::Acquire) == OFF {
                std::thread::yield_now();
            }
            allocate_a_lot(64 << 10, (TOTAL >> 16) as usize);
            done.store(true, Ordering::Relaxed);
            recording.join().unwrap().unwrap()
        });
        let of_ours =
            |stack: &&crate::Stack| capture.names_of(stack).any(|name| name.ends_with("allocate_a_lot"));
        let seen: u64 = capture.stacks().iter().filter(of_ours).map(crate::Stack::total).sum();
        assert!((seen as f64 / TOTAL as f64 - 1.0).abs() < 0.3, "{seen} of {TOTAL}: {capture:?}");
        let leaves = capture.stacks().iter().filter_map(|stack| capture.names_of(stack).next_back());
        assert!(leaves.into_iter().all(|leaf| !is_allocator_frame(leaf)));
    }
}
