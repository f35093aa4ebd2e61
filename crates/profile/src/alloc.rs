//! Allocation profiles: which functions allocate memory, by sampling.
//!
//! **Promise.** Without a profile, an allocation costs one more load and branch. During a profile,
//! one allocation is sampled for every 512 KiB allocated, on average. Its weight stands for the
//! allocations that were not sampled: the expected value of each sum is correct, for any mix of
//! sizes.
//!
//! **Mechanism.** Each thread counts down the bytes to its next sample. The gaps are exponentially
//! distributed, so an allocation of `s` bytes is sampled with probability `1 - exp(-s/m)`, where
//! `m` is the mean gap. Its weight is `s / (1 - exp(-s/m))` bytes. The stack is walked by frame
//! pointers and pushed to a queue that neither locks nor allocates.
//!
//! **Caveats.** The profile counts bytes requested, not bytes still in use. A reallocation counts
//! for the bytes that it adds.

use crate::aggregate::{SampleAggregator, now_ns};
use crate::error::ProfileError;
use crate::periodic::{StopCondition, run_periodically};
use crate::queue::SampleHeader;
use crate::shared_queue::{self, QueueReader};
use crate::stack;
use crate::{Capture, CaptureKind};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Mean gap between two samples, in bytes.
const MEAN_BYTES: f64 = 512.0 * 1024.0;
/// Interval at which the recording thread drains the queue.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);
/// Prefixes of modules and functions that allocate on behalf of their callers. Their frames are
/// removed from the leaf end of each stack.
const ALLOCATOR_MODULES: [&str; 2] = ["profile::alloc::", "alloc::alloc::"];
const ALLOCATOR_FUNCTIONS: [&str; 2] = ["__rust_", "__rg_"];

/// Value of [`SESSION`] while no profile is recorded.
const OFF: u64 = 0;
/// Number of the profile that is being recorded.
static SESSION: AtomicU64 = AtomicU64::new(OFF);
/// Number of the most recent profile.
static LAST_SESSION: AtomicU64 = AtomicU64::new(OFF);
/// Whether an allocation was seen since this profile began.
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

/// Sampling state of one thread. It has no destructor, so it stays usable until the thread's
/// storage is freed.
struct ThreadSampler {
    /// Profile that the other fields belong to.
    session: Cell<u64>,
    /// Bytes until the next sample.
    bytes_left: Cell<i64>,
    random: Cell<u64>,
    /// Whether a sample is being taken. Allocations made by the sampling itself are not sampled.
    is_sampling: Cell<bool>,
    thread: Cell<u32>,
    /// Lowest and highest address of the thread's stack; `(0, 0)` until the first sample.
    stack_bounds: Cell<(usize, usize)>,
}

/// Global allocator that wraps another one and can be profiled.
#[derive(Debug, Default)]
pub struct SamplingAllocator<A>(A);

impl<A> SamplingAllocator<A> {
    /// Creates an allocator that delegates to `allocator`.
    pub const fn new(allocator: A) -> Self {
        Self(allocator)
    }
}

// SAFETY: the wrapped allocator does all the work. Reading the size neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for SamplingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        on_allocation(layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        on_allocation(layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        on_allocation(bytes.saturating_sub(layout.size()));
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { self.0.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { self.0.dealloc(memory, layout) }
    }
}

/// Records the allocations of this process for `span`, or until `cancelled` is set. Blocks the
/// calling thread.
///
/// # Errors
/// [`ProfileError::NoAllocator`] if the program's global allocator is not [`SamplingAllocator`];
/// [`ProfileError::Busy`] while another profile uses the queue.
pub fn record(span: Duration, cancelled: &AtomicBool) -> Result<Capture, ProfileError> {
    let reader = QueueReader::acquire()?;
    let mut aggregator = SampleAggregator::new(CaptureKind::Alloc);
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

/// Whether the function `name` belongs to the allocator, so that its caller is the interesting
/// frame.
fn is_allocator_frame(name: &str) -> bool {
    let function = name.rsplit("::").next().unwrap_or(name);
    ALLOCATOR_MODULES.iter().any(|module| name.starts_with(module))
        || ALLOCATOR_FUNCTIONS.iter().any(|begin| function.starts_with(begin))
}

/// A profile in progress. Sampling stops when it is dropped.
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
    // The thread-local storage of a thread that is ending may already be gone.
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
        // The first numbers of a freshly seeded generator resemble the seed.
        for _ in 0..8 {
            self.next_random();
        }
        self.bytes_left.set(draw_gap(self.next_random()));
    }

    /// Draws a number with xorshift64* (Marsaglia 2003; Vigna 2016).
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
        // SAFETY: the range is this thread's own stack, from this function's frame upwards.
        queue.push(header, |each| unsafe { stack::walk(frame, in_use, each) });
    }
}

/// Draws the number of bytes until the next sample, from the exponential distribution.
fn draw_gap(random: u64) -> i64 {
    // In (0, 1], so the logarithm is finite.
    let uniform = ((random >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-uniform.ln() * MEAN_BYTES) as i64
}

/// Bytes that a sampled allocation of `bytes` bytes stands for.
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
    fn allocator_frames_are_recognised_by_name() {
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
    fn allocations_are_attributed_to_their_function_with_their_bytes() {
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
