//! How long a newcomer would wait for a resource: what is under way there, by the rate at which such work is done.
//!
//! **Promise.** A flow that is asked before each newcomer keeps what is under way near what the resource does in the
//! time that the newcomer may wait, whatever the resource: nothing is configured. Something always comes in, or its
//! rate would never be known.
//!
//! **Mechanism.** Little's law: the wait is the work under way divided by the rate. The rate is measured over the last
//! [`WINDOW`] to twice that, of the time in which there was any work: idle time says nothing. It is kept in operations
//! and in bytes, and the lesser of the two predictions counts: a large value after small ones, and small ones after large, would
//! else be taken for a slow disk.
//!
//! What is done in groups is done faster the more of it there is ([`DelayEstimator::in_groups`]). So the rate of few says little of
//! many, and as much as one small group holds comes in anyway; as does a burst, for [`BURST_TIME`] from the time at which
//! nothing was under way. After that it is no burst. A moment without work within a flood does not begin the next burst:
//! where there was work for longer than [`BURST_TIME`], as long a rest must come first.
//!
//! **Caveats.** A resource that takes longer than a newcomer may wait even for the least work gets one small group at a
//! time. (J. D. C. Little, "A proof for the queuing formula L = λW", 1961; Nichols and Jacobson, "Controlling queue delay", 2012,
//! on telling a burst from a queue that stands.)

use std::time::Duration;
use stdx::{Instant, nanos};

/// A window of the rate, in time with work.
const WINDOW: Duration = Duration::from_millis(100);
/// The rate of less time than this is none.
const MEASURED_MIN: Duration = Duration::from_millis(1);
/// What an operation counts as beside its own bytes.
const OPERATION_BYTES: u64 = 64;

/// How long a burst may last.
const BURST_TIME: Duration = Duration::from_millis(100);
/// What a burst may hold: less than each of these.
const BURST: Load = Load { operations: 4_096, bytes: 16 << 20 };
/// What a small group holds: the same.
const GROUP: Load = Load { operations: 256, bytes: 256 << 10 };
/// The same of what is done one by one.
const BURST_OF_ONES: Load = Load { operations: 256, bytes: u64::MAX };
const FEW: Load = Load { operations: 16, bytes: u64::MAX };
/// So many operations come in whatever they hold.
const OPERATIONS_MIN: u64 = 4;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct DelayEstimator {
    /// What comes in from idle, and always.
    burst: Load,
    least: Load,
    under_way: Load,
    /// When something came and nothing was under way, after a rest if one was due.
    busy_since: Instant,
    /// When the last operation under way ended.
    idle_since: Instant,
    /// When something was seen last.
    seen: Instant,
    current: Window,
    former: Window,
}

/// Operations, and what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    operations: u64,
    bytes: u64,
}

/// What was done in some time with work.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    done: Load,
    busy_nanos: u64,
}

impl DelayEstimator {
    /// Of what is done in groups, as many at a time as there are.
    pub const fn batched() -> Self {
        Self::new(BURST, GROUP)
    }

    /// Of what is done one by one, or a few at a time.
    pub const fn sequential() -> Self {
        Self::new(BURST_OF_ONES, FEW)
    }

    const fn new(burst: Load, least: Load) -> Self {
        let none = Window { done: Load::NONE, busy_nanos: 0 };
        let (busy_since, idle_since, seen) = (Instant::ZERO, Instant::ZERO, Instant::ZERO);
        Self {
            burst,
            least,
            under_way: Load::NONE,
            busy_since,
            idle_since,
            seen,
            current: none,
            former: none,
        }
    }

    /// An operation that holds so many bytes begins.
    #[inline]
    pub fn begin(&mut self, now: Instant, bytes: usize) {
        self.advance(now);
        if self.under_way.operations == 0 && self.is_rested(now) {
            self.busy_since = now;
        }
        self.under_way.operations += 1;
        self.under_way.bytes += bytes as u64 + OPERATION_BYTES;
    }

    /// An operation that holds so many bytes has ended.
    ///
    /// # Panics
    /// When none has begun.
    #[inline]
    pub fn end(&mut self, now: Instant, bytes: usize) {
        let bytes = bytes as u64 + OPERATION_BYTES;
        assert!(self.under_way.operations > 0 && self.under_way.bytes >= bytes, "it ends twice");
        self.advance(now);
        self.under_way.operations -= 1;
        self.under_way.bytes -= bytes;
        if self.under_way.operations == 0 {
            self.idle_since = now;
        }
        self.current.done.operations += 1;
        self.current.done.bytes += bytes;
    }

    /// Whether a newcomer would wait no longer than `within`, as far as is known.
    #[inline]
    pub fn admits(&self, within: Duration) -> bool {
        let Load { operations, .. } = self.under_way;
        operations < OPERATIONS_MIN
            || self.under_way.is_within(self.least)
            || (self.is_burst() && self.under_way.is_within(self.burst))
            || self.wait().is_some_and(|wait| wait <= within)
    }

    /// How many operations more would wait no longer than `within`, if they are as large as the last ones; of all that may
    /// be under way no more than one in `share`, so that others find room as well.
    pub fn capacity(&self, within: Duration, share: u64) -> usize {
        let Window { done, busy_nanos } = self.measured();
        let by_rate = u128::from(done.operations) * within.as_nanos() / u128::from(busy_nanos.max(1));
        let most = if self.is_burst() { self.burst } else { self.least }.operations;
        let by_rate = if busy_nanos < nanos(MEASURED_MIN) { 0 } else { by_rate as u64 };
        (by_rate.max(most) / share).saturating_sub(self.under_way.operations) as usize
    }

    /// How long what is under way will take.
    pub fn drain_time(&self) -> Duration {
        if self.under_way.operations == 0 {
            return Duration::ZERO;
        }
        // Where nothing was done yet, it takes at least as long again.
        self.wait().unwrap_or(self.seen - self.busy_since)
    }

    /// Time has passed.
    #[inline]
    pub fn advance(&mut self, now: Instant) {
        let passed = nanos(now - self.seen);
        if passed == 0 {
            return;
        }
        self.seen = now;
        if self.under_way.operations > 0 {
            // What ends at one time is of the time before it.
            if self.current.busy_nanos >= nanos(WINDOW) {
                self.former = std::mem::take(&mut self.current);
            }
            self.current.busy_nanos += passed;
        }
    }

    /// Operations under way.
    pub fn operations(&self) -> usize {
        self.under_way.operations as usize
    }

    /// Whether what comes after nothing was under way begins a burst.
    fn is_rested(&self, now: Instant) -> bool {
        let was_brief = self.idle_since.saturating_since(self.busy_since) < BURST_TIME;
        was_brief || now.saturating_since(self.idle_since) >= BURST_TIME
    }

    fn is_burst(&self) -> bool {
        self.seen - self.busy_since < BURST_TIME
    }

    /// How long a newcomer would wait; `None`: nothing is known.
    fn wait(&self) -> Option<Duration> {
        let Window { done, busy_nanos } = self.measured();
        if done.operations == 0 || busy_nanos < nanos(MEASURED_MIN) {
            return None;
        }
        let wait = |under_way, done| u128::from(under_way) * u128::from(busy_nanos) / u128::from(done);
        let by_operations = wait(self.under_way.operations, done.operations);
        let by_bytes = wait(self.under_way.bytes, done.bytes);
        Some(Duration::from_nanos(u64::try_from(by_operations.min(by_bytes)).unwrap_or(u64::MAX)))
    }

    fn measured(&self) -> Window {
        let (a, b) = (self.former, self.current);
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

    /// A disk that does so many operations in a millisecond, in order, ten times as many of which are asked for.
    fn flood(
        delay: &mut DelayEstimator,
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
    fn what_is_under_way_comes_near_what_is_done_in_the_time_that_may_pass() {
        for (rate, bytes) in [(5, 2_000), (50, 100), (400, 100), (10, 100_000)] {
            let mut delay = DelayEstimator::batched();
            let (_, refused) = flood(&mut delay, Instant::ZERO, 2_000, rate, bytes);
            let wait = delay.operations() as f64 / rate as f64;
            let least = if bytes < 1_000 { GROUP.operations as f64 / rate as f64 } else { 0.0 };
            assert!(
                (80.0..=120.0_f64.max(least + 10.0)).contains(&wait),
                "at {rate} in 1 ms a newcomer waits {wait} ms"
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
    fn a_disk_that_becomes_slow_is_known_as_slow_soon() {
        let mut delay = DelayEstimator::batched();
        let (now, _) = flood(&mut delay, Instant::ZERO, 1_000, 100, 1_000);
        let (now, _) = flood(&mut delay, now, 1_500, 10, 1_000);
        assert!(delay.operations() <= 1_200, "{}", delay.operations());
        let (_, _) = flood(&mut delay, now, 500, 100, 1_000);
        assert!(delay.operations() >= 5_000, "and as fast again: {}", delay.operations());
    }

    #[test]
    fn a_burst_is_let_in_and_a_stand_still_is_not() {
        let mut delay = DelayEstimator::batched();
        let mut came = 0;
        while delay.admits(TARGET) {
            delay.begin(Instant::ZERO, 100);
            came += 1;
        }
        assert_eq!((came, delay.capacity(TARGET, 1)), (BURST.operations, 0));
        (0..came / 4 * 3).for_each(|_| delay.end(Instant::ZERO, 100));
        assert_eq!(delay.capacity(TARGET, 2), BURST.operations as usize / 4);
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
        assert_eq!(came + 1, GROUP.operations, "nothing was done for a second");
    }

    /// A disk that ends each group at once, after the time of its bytes. Ten times as much comes as it bears.
    #[test]
    fn a_flood_in_groups_has_one_burst() {
        const BYTES: usize = 5_000;
        let mut delay = DelayEstimator::batched();
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
    fn large_values_after_small_ones_are_no_slow_disk() {
        let mut delay = DelayEstimator::batched();
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
