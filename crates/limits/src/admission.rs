//! Admission to a resource by the predicted wait.
//!
//! **Promise.** Each operation asks for admission with the delay that it tolerates. Then the
//! operations in flight stay near the number that the resource completes in that time, for any
//! resource and without configuration. Some operations are always admitted, because otherwise the
//! rate could not be measured.
//!
//! **Mechanism.** Little's law: the delay is the work in flight divided by the rate of completion.
//! The rate is measured over the last one to two [`WINDOW`]s of the time in which work was in
//! flight; idle time says nothing about the rate. It is kept in operations and in bytes, and the
//! lesser of the two predictions counts. Otherwise a large value after small ones, or small ones
//! after large ones, would be mistaken for a slow disk.
//!
//! Batched work is completed faster the more of it there is ([`Admission::batched`]). The rate
//! at low load therefore says little about high load, and as much work as one small batch holds is
//! always admitted. So is a burst, for [`BURST_TIME`] after nothing was in flight. A moment without
//! work within a flood does not begin a new burst: if there was work for longer than
//! [`BURST_TIME`], an equally long rest must come first.
//!
//! **Caveats.** A resource that takes longer than the tolerated delay even for the least work gets
//! one small batch at a time.
//!
//! Sources: J. D. C. Little, "A proof for the queuing formula L = λW", 1961; Nichols and Jacobson,
//! "Controlling queue delay", 2012, on telling a burst from a standing queue.

use std::time::Duration;
use stdx::{Instant, nanos};

/// Length of a measurement window, in time with work in flight.
const WINDOW: Duration = Duration::from_millis(100);
/// A rate measured over less time than this is ignored.
const MEASURED_MIN: Duration = Duration::from_millis(1);
/// Bytes that an operation counts for in addition to its own.
const OPERATION_BYTES: u64 = 64;

/// Longest duration of a burst.
const BURST_TIME: Duration = Duration::from_millis(100);
/// Bound of a burst of batched work: it holds less than each of these.
const BATCHED_BURST: Load = Load { operations: 4_096, bytes: 16 << 20 };
/// Bound of a small batch, which is always admitted.
const BATCHED_LEAST: Load = Load { operations: 256, bytes: 256 << 10 };
/// Bound of a burst of sequential work.
const SEQUENTIAL_BURST: Load = Load { operations: 256, bytes: u64::MAX };
const SEQUENTIAL_LEAST: Load = Load { operations: 16, bytes: u64::MAX };
/// Operations of any size are admitted while fewer than this number are in flight.
const OPERATIONS_MIN: u64 = 4;

/// The admission to one resource, by its work in flight and its measured rate.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Bound of the work admitted in a burst; `least` bounds the work that is always admitted.
    burst: Load,
    least: Load,
    in_flight: Load,
    /// Time at which an operation began while nothing was in flight, after a rest if one was due.
    busy_since: Instant,
    /// Time at which the last operation in flight ended.
    idle_since: Instant,
    /// Time of the last input.
    last_input: Instant,
    current: Window,
    previous: Window,
}

/// Operations, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    operations: u64,
    bytes: u64,
}

/// Work completed during some time with work in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    done: Load,
    busy_nanos: u64,
}

impl Admission {
    /// Admission to a resource that completes work in batches, each of all work waiting.
    pub const fn batched() -> Self {
        Self::new(BATCHED_BURST, BATCHED_LEAST)
    }

    /// Admission to a resource that completes operations one by one, or a few at a time.
    pub const fn sequential() -> Self {
        Self::new(SEQUENTIAL_BURST, SEQUENTIAL_LEAST)
    }

    const fn new(burst: Load, least: Load) -> Self {
        let none = Window { done: Load::NONE, busy_nanos: 0 };
        let (busy_since, idle_since, last_input) = (Instant::ZERO, Instant::ZERO, Instant::ZERO);
        Self {
            burst,
            least,
            in_flight: Load::NONE,
            busy_since,
            idle_since,
            last_input,
            current: none,
            previous: none,
        }
    }

    /// Records that an operation of `bytes` bytes begins.
    #[inline]
    pub fn begin(&mut self, now: Instant, bytes: usize) {
        self.advance(now);
        if self.in_flight.operations == 0 && self.is_rested(now) {
            self.busy_since = now;
        }
        self.in_flight.operations += 1;
        self.in_flight.bytes += bytes as u64 + OPERATION_BYTES;
    }

    /// Records that an operation of `bytes` bytes has ended.
    ///
    /// # Panics
    /// If no operation of that size is in flight.
    #[inline]
    pub fn end(&mut self, now: Instant, bytes: usize) {
        let bytes = bytes as u64 + OPERATION_BYTES;
        assert!(
            self.in_flight.operations > 0 && self.in_flight.bytes >= bytes,
            "no such operation is in flight"
        );
        self.advance(now);
        self.in_flight.operations -= 1;
        self.in_flight.bytes -= bytes;
        if self.in_flight.operations == 0 {
            self.idle_since = now;
        }
        self.current.done.operations += 1;
        self.current.done.bytes += bytes;
    }

    /// Whether one more operation is expected to wait no longer than `within`.
    #[inline]
    pub fn admits(&self, within: Duration) -> bool {
        let Load { operations, .. } = self.in_flight;
        operations < OPERATIONS_MIN
            || self.in_flight.is_within(self.least)
            || (self.is_burst() && self.in_flight.is_within(self.burst))
            || self.wait().is_some_and(|wait| wait <= within)
    }

    /// Number of further operations that would wait no longer than `within`, if they are as large
    /// as the last ones. All operations in flight together take at most one `share`th of the total,
    /// so that others are admitted as well.
    pub fn capacity(&self, within: Duration, share: u64) -> usize {
        let Window { done, busy_nanos } = self.measured();
        let by_rate = u128::from(done.operations) * within.as_nanos() / u128::from(busy_nanos.max(1));
        let most = if self.is_burst() { self.burst } else { self.least }.operations;
        let by_rate = if busy_nanos < nanos(MEASURED_MIN) { 0 } else { by_rate as u64 };
        (by_rate.max(most) / share).saturating_sub(self.in_flight.operations) as usize
    }

    /// Expected time until the work in flight is done.
    pub fn drain_time(&self) -> Duration {
        if self.in_flight.operations == 0 {
            return Duration::ZERO;
        }
        // If nothing was completed yet, the work takes at least as long again.
        self.wait().unwrap_or(self.last_input - self.busy_since)
    }

    /// Advances the measurement to `now`.
    #[inline]
    pub fn advance(&mut self, now: Instant) {
        let passed = nanos(now - self.last_input);
        if passed == 0 {
            return;
        }
        self.last_input = now;
        if self.in_flight.operations > 0 {
            // Operations that end at this time belong to the window before it.
            if self.current.busy_nanos >= nanos(WINDOW) {
                self.previous = std::mem::take(&mut self.current);
            }
            self.current.busy_nanos += passed;
        }
    }

    /// Operations in flight.
    pub fn operations(&self) -> usize {
        self.in_flight.operations as usize
    }

    /// Whether an operation that begins while nothing is in flight begins a burst.
    fn is_rested(&self, now: Instant) -> bool {
        let was_brief = self.idle_since.saturating_since(self.busy_since) < BURST_TIME;
        was_brief || now.saturating_since(self.idle_since) >= BURST_TIME
    }

    fn is_burst(&self) -> bool {
        self.last_input - self.busy_since < BURST_TIME
    }

    /// Expected delay of one more operation; `None` if no rate is known.
    fn wait(&self) -> Option<Duration> {
        let Window { done, busy_nanos } = self.measured();
        if done.operations == 0 || busy_nanos < nanos(MEASURED_MIN) {
            return None;
        }
        let wait = |in_flight, done| u128::from(in_flight) * u128::from(busy_nanos) / u128::from(done);
        let by_operations = wait(self.in_flight.operations, done.operations);
        let by_bytes = wait(self.in_flight.bytes, done.bytes);
        Some(Duration::from_nanos(u64::try_from(by_operations.min(by_bytes)).unwrap_or(u64::MAX)))
    }

    fn measured(&self) -> Window {
        let (a, b) = (self.previous, self.current);
        let done =
            Load { operations: a.done.operations + b.done.operations, bytes: a.done.bytes + b.done.bytes };
        Window { done, busy_nanos: a.busy_nanos + b.busy_nanos }
    }
}

impl Load {
    const NONE: Self = Self { operations: 0, bytes: 0 };

    const fn is_within(self, bounds: Self) -> bool {
        self.operations < bounds.operations && self.bytes < bounds.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_millis(100);
    const MILLIS: Duration = Duration::from_millis(1);

    /// Models a disk that completes `rate` operations per millisecond in order, while ten times as
    /// many are requested.
    fn flood(
        delay: &mut Admission,
        mut now: Instant,
        millis: u64,
        rate: usize,
        bytes: usize,
    ) -> (Instant, u64) {
        let mut refused = 0;
        for _ in 0..millis {
            for _ in 0..10 * rate {
                match delay.admits(TARGET) {
                    true => delay.begin(now, bytes),
                    false => refused += 1,
                }
            }
            now = now + MILLIS;
            (0..rate.min(delay.operations())).for_each(|_| delay.end(now, bytes));
        }
        (now, refused)
    }

    #[test]
    fn work_in_flight_approaches_what_completes_in_the_tolerated_delay() {
        for (rate, bytes) in [(5, 2_000), (50, 100), (400, 100), (10, 100_000)] {
            let mut delay = Admission::batched();
            let (_, refused) = flood(&mut delay, Instant::ZERO, 2_000, rate, bytes);
            let wait = delay.operations() as f64 / rate as f64;
            let least = if bytes < 1_000 { BATCHED_LEAST.operations as f64 / rate as f64 } else { 0.0 };
            assert!(
                (80.0..=120.0_f64.max(least + 10.0)).contains(&wait),
                "at {rate} operations per ms an operation waits {wait} ms"
            );
            assert!(refused > 0);
            assert!(
                (delay.drain_time().as_secs_f64() * 1_000.0 / wait - 1.0).abs() < 0.2,
                "{:?}",
                delay.drain_time()
            );
        }
    }

    #[test]
    fn a_disk_that_becomes_slow_is_detected_soon() {
        let mut delay = Admission::batched();
        let (now, _) = flood(&mut delay, Instant::ZERO, 1_000, 100, 1_000);
        let (now, _) = flood(&mut delay, now, 1_500, 10, 1_000);
        assert!(delay.operations() <= 1_200, "{}", delay.operations());
        let (_, _) = flood(&mut delay, now, 500, 100, 1_000);
        assert!(delay.operations() >= 5_000, "and as fast again: {}", delay.operations());
    }

    #[test]
    fn a_burst_is_admitted_and_a_standstill_is_not() {
        let mut delay = Admission::batched();
        let mut came = 0;
        while delay.admits(TARGET) {
            delay.begin(Instant::ZERO, 100);
            came += 1;
        }
        assert_eq!((came, delay.capacity(TARGET, 1)), (BATCHED_BURST.operations, 0));
        (0..came / 4 * 3).for_each(|_| delay.end(Instant::ZERO, 100));
        assert_eq!(delay.capacity(TARGET, 2), BATCHED_BURST.operations as usize / 4);
        (0..came / 4 * 3).for_each(|_| delay.begin(Instant::ZERO, 100));
        let later = Instant::ZERO + Duration::from_secs(3);
        (0..came).for_each(|_| delay.end(later, 100));
        let mut came = 0;
        delay.begin(later, 100);
        delay.advance(later + Duration::from_secs(1));
        while delay.admits(TARGET) && came < 100_000 {
            delay.begin(later + Duration::from_secs(1), 100);
            came += 1;
        }
        assert_eq!(came + 1, BATCHED_LEAST.operations, "nothing was completed for a second");
    }

    /// Models a disk that completes each batch at once, after the time of its bytes. Ten times as
    /// much is requested as it sustains.
    #[test]
    fn a_flood_in_batches_has_one_burst() {
        const BYTES: usize = 5_000;
        let mut delay = Admission::batched();
        let (mut now, mut longest) = (Instant::ZERO, Duration::ZERO);
        let (mut group, mut waiting, mut ends) = (0, 0, now);
        for milli in 0..5_000 {
            for _ in 0..2 {
                if delay.admits(TARGET) {
                    delay.begin(now, BYTES);
                    waiting += 1;
                }
            }
            now = now + MILLIS;
            if now >= ends {
                (0..group).for_each(|_| delay.end(now, BYTES));
                group = std::mem::take(&mut waiting);
                let takes = MILLIS * (group * BYTES / 1_000) as u32;
                ends = now + takes;
                longest = if milli > 2_000 { longest.max(takes) } else { longest };
            }
        }
        assert!(longest > Duration::ZERO && longest <= 3 * TARGET, "a group took {longest:?}");
    }

    #[test]
    fn large_values_after_small_ones_are_not_mistaken_for_a_slow_disk() {
        let mut delay = Admission::batched();
        let mut now = Instant::ZERO;
        for _ in 0..1_000 {
            delay.begin(now, 100);
            now = now + MILLIS / 5;
            delay.end(now, 100);
        }
        for _ in 0..8 {
            assert!(delay.admits(TARGET));
            delay.begin(now, 16 << 20);
        }
        delay.advance(now + 20 * MILLIS);
        assert!(delay.admits(TARGET), "a small one behind them");
        assert!(delay.drain_time() < TARGET);
    }
}
