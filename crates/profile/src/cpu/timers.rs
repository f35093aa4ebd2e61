//! Sampling by the threads themselves, driven by timers of their processor time.
//!
//! **Mechanism.** `timer_create(2)` on each thread's processor clock signals that thread. The
//! signal handler walks the stack of the interrupted code. Timers expire at kernel ticks; with
//! fewer than 1,000 ticks a second, the signal's overrun count states how many periods a sample
//! stands for.
//!
//! **Invariant.** The handler never reads beyond the stack that it walks. The bounds of all stacks
//! are read from `/proc/self/maps` whenever a thread is new, and published in a table. A table is
//! freed only when no handler is running.

use super::thread_set::ThreadSet;
use super::{PERIOD, Sampler};
use crate::aggregate::{SampleAggregator, now_ns};
use crate::error::ProfileError;
use crate::queue::SampleHeader;
use crate::shared_queue::{self, QueueReader};
use crate::stack;
use libc::{c_int, c_void, siginfo_t};
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

const SIGNAL: c_int = libc::SIGPROF;
const MAPS: &str = "/proc/self/maps";

/// Table of readable ranges, in order of address; null while no profile is recorded.
static MAPPED_RANGES: AtomicPtr<MappedRanges> = AtomicPtr::new(ptr::null_mut());
/// Number of signal handlers that are running.
static RUNNING_HANDLERS: AtomicUsize = AtomicUsize::new(0);

/// Readable and writable address ranges of this process, which include all stacks.
type MappedRanges = Vec<Range<usize>>;

/// A timer for each thread.
pub(super) struct TimerSampler {
    reader: QueueReader,
    timers: ThreadSet<Timer>,
}

impl TimerSampler {
    /// Starts to sample the existing threads.
    pub(super) fn begin() -> Result<Self, ProfileError> {
        let reader = QueueReader::acquire()?;
        handle_signal().map_err(|source| ProfileError::System { what: "cannot handle SIGPROF", source })?;
        // Call everything that the handler calls once, so that nothing is initialised inside a
        // handler.
        now_ns();
        let timers = ThreadSet::new(Timer::start).map_err(|source| ProfileError::System {
            what: "cannot make a timer of processor time",
            source,
        })?;
        let mut sampler = Self { reader, timers };
        sampler.attach_new_threads();
        Ok(sampler)
    }
}

impl Sampler for TimerSampler {
    fn attach_new_threads(&mut self) {
        let is_new = self.timers.refresh();
        if is_new || MAPPED_RANGES.load(Ordering::SeqCst).is_null() {
            publish(Some(Box::new(read_mapped_ranges())));
        }
        self.timers.attach_new(Timer::start);
    }

    fn drain(&mut self, into: &mut SampleAggregator) {
        self.reader.drain(into);
        self.timers.visit(|_| ());
    }

    fn unattached(&self) -> usize {
        self.timers.unattached()
    }
}

impl Drop for TimerSampler {
    fn drop(&mut self) {
        self.timers.clear();
        publish(None);
    }
}

/// A timer, deleted when this is dropped.
struct Timer(libc::timer_t);

impl Timer {
    /// Starts a timer of the processor time of `thread`.
    fn start(thread: u32) -> io::Result<Self> {
        // Encoding of a thread's clock: CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED.
        let clock = (!thread.cast_signed() << 3) | 4 | 2;
        // SAFETY: all-zero bytes are valid values of both types.
        let (mut event, mut timer): (libc::sigevent, libc::timer_t) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL;
        event.sigev_notify_thread_id = thread.cast_signed();
        // SAFETY: both references are valid during the call.
        check(unsafe { libc::timer_create(clock, &raw mut event, &raw mut timer) })?;
        let timer = Self(timer);
        let period =
            libc::timespec { tv_sec: 0, tv_nsec: libc::c_long::from(PERIOD.subsec_nanos().cast_signed()) };
        let spec = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the timer exists, the times are valid, and the previous setting is not requested.
        check(unsafe { libc::timer_settime(timer.0, 0, &raw const spec, ptr::null_mut()) })?;
        Ok(timer)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer was created by `start` and is deleted once.
        unsafe {
            libc::timer_delete(self.0);
        }
    }
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Installs the signal handler. It stays installed, because a signal may arrive after its timer was
/// deleted.
fn handle_signal() -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler has the signature that `SA_SIGINFO` requires, and calls only
    // async-signal-safe code.
    check(unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) })
}

/// Publishes a table to the handlers, and frees the previous one once no handler can use it.
fn publish(ranges: Option<Box<MappedRanges>>) {
    let new = ranges.map_or(ptr::null_mut(), Box::into_raw);
    let old = MAPPED_RANGES.swap(new, Ordering::SeqCst);
    if old.is_null() {
        return;
    }
    // A handler runs for some microseconds. Handlers that start now load the new table.
    while RUNNING_HANDLERS.load(Ordering::SeqCst) != 0 {
        std::thread::yield_now();
    }
    // SAFETY: the pointer came from a box, is no longer published, and no handler that loaded it is
    // running.
    drop(unsafe { Box::from_raw(old) });
}

/// Readable and writable ranges of this process, in ascending order.
fn read_mapped_ranges() -> MappedRanges {
    let maps = std::fs::read_to_string(MAPS).unwrap_or_default();
    maps.lines().filter_map(parse_range).collect()
}

/// Parses a line such as `7f00-7f80 rw-p 00000000 00:00 0 [stack]`. Returns `None` unless the range
/// is readable and writable.
fn parse_range(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    words.next()?.starts_with("rw").then_some(())?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

/// Fields of the kernel's `siginfo_t` for timers, which libc does not expose.
#[repr(C)]
struct TimerInfo {
    signal: c_int,
    error: c_int,
    code: c_int,
    _padding: c_int,
    timer: c_int,
    /// Number of further expirations since the signal was queued.
    overrun: c_int,
}

extern "C" fn handle(_: c_int, info: *mut siginfo_t, context: *mut c_void) {
    RUNNING_HANDLERS.fetch_add(1, Ordering::SeqCst);
    let ranges = MAPPED_RANGES.load(Ordering::SeqCst);
    if let (false, Some(queue)) = (ranges.is_null(), shared_queue::queue()) {
        // SAFETY: both pointers are valid during the call. `publish` frees the table only when no
        // handler is counted as running.
        let (info, registers, ranges) =
            unsafe { (&*info.cast::<TimerInfo>(), Registers::of(&*context.cast()), &*ranges) };
        let overrun = if info.code == libc::SI_TIMER { info.overrun.max(0).unsigned_abs() } else { 0 };
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let header = SampleHeader { at_ns: now_ns(), thread, weight: 1 + u64::from(overrun) };
        queue.push(header, |each| {
            if each(registers.instruction as u64) {
                let stack = stack_at(ranges, registers.stack);
                // SAFETY: this thread's stack is mapped, and does not change while the handler
                // runs.
                unsafe { stack::walk(registers.frame, stack, each) };
            }
        });
    }
    RUNNING_HANDLERS.fetch_sub(1, Ordering::SeqCst);
}

/// Range of the stack that is in use, from the stack pointer to the end of its mapping.
fn stack_at(ranges: &MappedRanges, pointer: usize) -> Range<usize> {
    let at = ranges.partition_point(|range| range.end <= pointer);
    // The main thread's stack may have grown downwards since the table was read.
    ranges.get(at).map_or(0..0, |range| pointer..range.end)
}

/// Registers of an interrupted thread.
struct Registers {
    instruction: usize,
    stack: usize,
    frame: usize,
}

impl Registers {
    #[cfg(target_arch = "x86_64")]
    fn of(context: &libc::ucontext_t) -> Self {
        let register = |number: c_int| context.uc_mcontext.gregs[number as usize] as usize;
        Self {
            instruction: register(libc::REG_RIP),
            stack: register(libc::REG_RSP),
            frame: register(libc::REG_RBP),
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn of(context: &libc::ucontext_t) -> Self {
        let registers = &context.uc_mcontext;
        Self {
            instruction: registers.pc as usize,
            stack: registers.sp as usize,
            frame: registers.regs[29] as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_ends_with_its_range() {
        let lines =
            ["1000-2000 r-xp 0 00:00 0 /bin/veche", "2000-3000 rw-p 0", "5000-6000 rw-p 0 [stack]", "?"];
        let ranges: MappedRanges = lines.into_iter().filter_map(parse_range).collect();
        let found = [0x2800, 0x2fff, 0x4ff0, 0x5000, 0x6000].map(|pointer| stack_at(&ranges, pointer));
        assert_eq!(found, [0x2800..0x3000, 0x2fff..0x3000, 0x4ff0..0x6000, 0x5000..0x6000, 0..0]);
    }
}
