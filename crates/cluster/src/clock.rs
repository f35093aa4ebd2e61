//! The one version clock of a process.
//!
//! **Promise.** No value is issued twice, not by two threads and not by two lives of the process, and each is
//! at least what the wall clock shows. A value issued after another one is greater.
//!
//! **Mechanism.** A hybrid logical clock in one atomic: the next value is the wall time or one more than the
//! last, whichever is greater; the counter of a microsecond carries into the microseconds. Nothing is issued
//! past a *bound* that is durable before it is raised here, and a restart begins at the durable bound, so it
//! is past everything that its former life can have issued, whatever the wall clock says by then.
//!
//! Clocks of other nodes are *observed*: what is issued after is greater than what they had issued. One that is
//! more than [`HybridClock::SKEW_MAX`] ahead of this node's wall clock is not, for it would drag all others along.
//!
//! **Caveats.** A restart may begin up to [`HybridClock::RESERVATION`] ahead of the wall clock. While clocks of a
//! cluster are ahead of the wall, writes through different nodes are ordered only by what the nodes have heard of
//! each other; so the reservation is small, a node with peers waits it out before it serves, and does not show
//! peers what it has merely reserved. After an idle time longer than that, the first write waits for the bound.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{Hlc, WallTime};

/// Issues versions to all threads of a process. See the module.
#[derive(Debug)]
pub struct HybridClock {
    start: Hlc,
    issued: AtomicU64,
    bound: AtomicU64,
}

/// The next value lies past the durable bound; nothing was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the version clock has reached its durable bound")]
pub struct ClockExhausted;

impl HybridClock {
    /// How far ahead the bound is made durable.
    pub const RESERVATION: Duration = Duration::from_secs(1);
    /// How far the bound is made durable ahead of what was issued, where that is ahead of the wall clock: then
    /// values advance only as they are issued, 4,096 to a microsecond, and restarts in quick succession must not
    /// drive the clock away from the wall.
    pub const RESERVATION_AHEAD: Duration = Duration::from_millis(200);
    /// A clock of another node further ahead of this node's wall clock than this is not believed.
    pub const SKEW_MAX: Duration = Duration::from_secs(10);

    /// A clock that counts `start` as issued and may issue nothing until [`HybridClock::raise_bound`].
    ///
    /// `start` is the greater of the durable bound and the newest version found on disk.
    pub const fn new(start: Hlc) -> Self {
        Self { start, issued: AtomicU64::new(start.to_bits()), bound: AtomicU64::new(start.to_bits()) }
    }

    /// A value greater than all issued before, and not before `wall`.
    ///
    /// # Errors
    /// [`ClockExhausted`] when that lies past the bound.
    #[inline]
    pub fn tick(&self, wall: WallTime) -> Result<Hlc, ClockExhausted> {
        let floor = Hlc::at(wall);
        let mut issued = self.issued();
        loop {
            let bound = self.bound();
            if issued >= bound || floor > bound {
                return Err(ClockExhausted);
            }
            let next = issued.next().max(floor);
            match self.issued.compare_exchange_weak(
                issued.to_bits(),
                next.to_bits(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(next),
                Err(now_issued) => issued = Hlc::from_bits(now_issued),
            }
        }
    }

    /// Takes note of a value that another node has issued: values issued from now on are greater. `false`, and
    /// nothing is noted, when it is too far ahead of `wall`.
    #[inline]
    pub fn observe(&self, seen: Hlc, wall: WallTime) -> bool {
        let believed = !Self::is_ahead(seen, wall);
        if believed && seen > self.issued() {
            self.issued.fetch_max(seen.to_bits(), Ordering::Relaxed);
        }
        believed
    }

    /// Whether `seen` is further ahead of `wall` than is believed.
    #[inline]
    pub fn is_ahead(seen: Hlc, wall: WallTime) -> bool {
        seen.wall() > wall.saturating_add(Self::SKEW_MAX)
    }

    /// Allows values up to `bound`, which is durable now. A lower bound than the present one changes nothing.
    pub fn raise_bound(&self, bound: Hlc) {
        self.bound.fetch_max(bound.to_bits(), Ordering::Relaxed);
    }

    /// The bound to make durable, when less than half of the reservation is left at `wall`.
    #[inline]
    pub fn bound_wanted(&self, wall: WallTime) -> Option<Hlc> {
        let issued = self.issued().wall();
        let needed = wall
            .saturating_add(Self::RESERVATION / 2)
            .max(issued.saturating_add(Self::RESERVATION_AHEAD / 2));
        (self.bound().wall() < needed).then(|| {
            let by_wall = wall.saturating_add(Self::RESERVATION);
            Hlc::at(by_wall.max(issued.saturating_add(Self::RESERVATION_AHEAD)))
        })
    }

    /// The greatest value issued so far.
    pub fn issued(&self) -> Hlc {
        Hlc::from_bits(self.issued.load(Ordering::Relaxed))
    }

    /// What this life began with: nothing up to it is issued (again).
    pub const fn start(&self) -> Hlc {
        self.start
    }

    /// What other nodes are to hear: the greatest value issued or observed in this life, and nothing before there
    /// is one.
    pub fn shown(&self) -> Hlc {
        let issued = self.issued();
        if issued == self.start { Hlc::ZERO } else { issued }
    }

    /// The greatest value that may be issued.
    pub fn bound(&self) -> Hlc {
        Hlc::from_bits(self.bound.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wall(micros: u64) -> WallTime {
        WallTime::EPOCH_2020.saturating_add_micros(micros)
    }

    /// What the coordinator does, with a disk that never fails.
    fn tick_raising(clock: &HybridClock, wall: WallTime) -> Hlc {
        if let Some(bound) = clock.bound_wanted(wall) {
            clock.raise_bound(bound);
        }
        clock.tick(wall).expect("the bound was raised")
    }

    proptest! {
        #[test]
        fn values_rise_whatever_the_wall_clock_does(walls: Vec<u32>) {
            let clock = HybridClock::new(Hlc::ZERO);
            let mut last = Hlc::ZERO;
            for micros in walls {
                let wall = wall(u64::from(micros));
                let next = tick_raising(&clock, wall);
                prop_assert!(next > last, "{next:?} after {last:?}");
                prop_assert!(next >= Hlc::at(wall));
                last = next;
            }
        }

        #[test]
        fn a_restart_begins_past_all_that_was_issued(walls in prop::collection::vec(0u64..20_000_000, 1..50)) {
            let mut durable_bound = Hlc::ZERO;
            let mut last = Hlc::ZERO;
            for life in walls.chunks(7) {
                let clock = HybridClock::new(durable_bound);
                for &micros in life {
                    if let Some(bound) = clock.bound_wanted(wall(micros)) {
                        durable_bound = bound;
                        clock.raise_bound(bound);
                    }
                    let next = clock.tick(wall(micros)).expect("the bound was raised");
                    prop_assert!(next > last && next <= durable_bound);
                    last = next;
                }
            }
        }
    }

    #[test]
    fn nothing_is_issued_past_the_bound() {
        let start = Hlc::at(wall(1_000));
        let clock = HybridClock::new(start);
        assert_eq!(clock.tick(wall(0)), Err(ClockExhausted));
        clock.raise_bound(start.next());
        clock.raise_bound(Hlc::ZERO);
        assert_eq!(clock.tick(wall(1_001)), Err(ClockExhausted), "the wall is past the bound");
        assert_eq!(clock.tick(wall(0)), Ok(start.next()));
        assert_eq!(clock.tick(wall(0)), Err(ClockExhausted));
        assert_eq!(clock.issued(), start.next());
    }

    #[test]
    fn the_bound_is_wanted_below_half_of_the_reservation() {
        let clock = HybridClock::new(Hlc::ZERO);
        let bound = clock.bound_wanted(wall(0)).expect("nothing is reserved yet");
        assert_eq!(bound, Hlc::at(wall(1_000_000)));
        clock.raise_bound(bound);
        assert_eq!(clock.bound_wanted(wall(500_000)), None);
        assert_eq!(clock.bound_wanted(wall(500_001)), Some(Hlc::at(wall(1_500_001))));
    }

    #[test]
    fn restarts_in_quick_succession_stay_near_the_wall() {
        let mut durable_bound = Hlc::ZERO;
        for life in 0..10 {
            let clock = HybridClock::new(durable_bound);
            let at = wall(life * 1_000);
            durable_bound = clock.bound_wanted(at).unwrap_or(durable_bound);
            clock.raise_bound(durable_bound);
            clock.tick(at).expect("the bound was raised");
        }
        assert!(durable_bound <= Hlc::at(wall(4_000_000)), "{:?}", durable_bound.wall());
    }

    #[test]
    fn what_is_merely_reserved_is_not_shown() {
        let start = Hlc::at(wall(2_000_000));
        let clock = HybridClock::new(start);
        assert_eq!(clock.shown(), Hlc::ZERO);
        assert!(clock.observe(Hlc::at(wall(1_000_000)), wall(1_000_000)));
        assert_eq!(clock.shown(), Hlc::ZERO, "older than what this node may have issued itself");
        clock.raise_bound(Hlc::at(wall(3_000_000)));
        assert_eq!(clock.tick(wall(1_000_000)), Ok(start.next()));
        assert_eq!(clock.shown(), start.next());
    }

    #[test]
    fn what_another_node_issued_is_passed_unless_it_is_far_ahead() {
        let clock = HybridClock::new(Hlc::ZERO);
        let seen = Hlc::at(wall(10_000_000));
        assert!(clock.observe(seen, wall(0)));
        clock.raise_bound(clock.bound_wanted(wall(0)).expect("what was seen is past the bound"));
        assert_eq!(clock.tick(wall(0)), Ok(seen.next()));
        assert!(!clock.observe(Hlc::at(wall(10_000_001)), wall(0)));
        assert_eq!(clock.issued(), seen.next());
    }

    #[test]
    fn a_full_counter_carries_into_the_microseconds() {
        let clock = HybridClock::new(Hlc::from_bits(Hlc::at(wall(7)).to_bits() + 0xfff));
        clock.raise_bound(Hlc::at(wall(9)));
        assert_eq!(clock.tick(wall(7)), Ok(Hlc::at(wall(8))));
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the claim is about threads")]
    fn threads_never_share_a_value() {
        const THREADS: u64 = 4;
        const TICKS: u64 = 20_000;
        let clock = HybridClock::new(Hlc::ZERO);
        clock.raise_bound(Hlc::at(wall(1_000_000)));
        let mut values: Vec<Hlc> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| scope.spawn(|| (0..TICKS).map(|i| clock.tick(wall(i / 64))).collect::<Vec<_>>()))
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("no panic"))
                .map(Result::unwrap)
                .collect()
        });
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len() as u64, THREADS * TICKS);
    }
}
