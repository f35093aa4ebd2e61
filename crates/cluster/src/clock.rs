//! The version clock of a process.
//!
//! **Promise.** No value is issued twice, neither by two threads nor by two generations of the
//! process, and each is at least the wall time. A value issued after another one is greater. No
//! value is issued from a wall clock that the peers would reject, so this node stores no version
//! that its peers refuse.
//!
//! **Mechanism.** A hybrid logical clock in one atomic: the next value is the greater of the wall
//! time and the last value plus one. The counter within a microsecond carries into the
//! microseconds. Nothing is issued past a *bound*, which is made durable before it is raised in
//! memory. A restart begins at the durable bound, hence past every value that an earlier generation
//! can have issued, wherever the wall clock stands.
//!
//! The clock follows the wall clock up to a *ceiling*, which the node sets from its peers' wall
//! clocks (`node/wall_clock`). The ceiling is a [`ClockAnchor`]: it advances with the monotonic
//! clock, not with this node's wall clock. A step of the wall clock is therefore detected at the
//! next requested value, before any peer is heard. While the wall clock is past the ceiling, no
//! value is issued and no bound is requested. After a step back below the ceiling, values are
//! issued again at once from the last value: the step has advanced nothing.
//!
//! Clocks of other nodes are *observed*: later values are greater than those that the other nodes
//! had issued. A clock more than [`HybridClock::SKEW_MAX`] ahead of this node's wall clock is not
//! observed, because it would drag all others along. For the same reason a peer's cell with such a
//! version is not stored. These are all the paths by which a peer's cell reaches this node's store,
//! and where each of them checks the version:
//!
//! | path | check |
//! |---|---|
//! | writes, hints, read repair and anti-entropy sent by a peer | `replica`, at the request |
//! | read repair by this node's own coordinator | `coordinator/read_repair`, before it asks its own store |
//! | anti-entropy requested by this node | `node/repair/exchange`, at the answer of the peer |
//! | rebuilding and healing | `node/pull`, at the answer of the source |
//! | a refused key that is tried again | `node/refused_retries`, at the answer of the holder |
//! | `veche import` | none: entries are written anew, under new versions |
//! | `veche restore` | none: files are copied as they are; the start of the node checks them (`store`) |
//!
//! A start takes the durable bound, and the newest version on disk only where that is at most
//! [`HybridClock::SKEW_MAX`] ahead of the wall clock: [`HybridClock::start_of`].
//!
//! **Caveats.** A restart may begin up to [`HybridClock::RESERVATION`] ahead of the wall clock.
//! While clocks of a cluster are ahead of the wall clock, writes through different nodes are
//! ordered only by the values that the nodes have observed of each other. The reservation is
//! therefore small, a node that can reach a peer holds writes meanwhile (`node::readiness`), and
//! peers are not shown values that are merely reserved. A clean stop records the greatest value
//! issued, and the next start begins there. After an idle time longer than the reservation, the
//! first write waits for the bound.
//!
//! A node without peers, or one that can reach none of them at its start, follows its own wall
//! clock. A bound made durable under a wrong wall clock stays: versions of one tag never go back. A
//! node with peers then takes no writes until its wall clock has come near that bound. A node that
//! is rebuilt from its peers has another tag, and so another bound.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{ClockAnchor, Hlc, Instant, Now, WallTime};

/// Issues versions to all threads of a process: a hybrid logical clock with a durable bound.
#[derive(Debug)]
pub struct HybridClock {
    start: Hlc,
    issued: AtomicU64,
    bound: AtomicU64,
    /// A [`WallCeiling`] as bits.
    ceiling: AtomicU64,
}

/// The time up to which this node's wall clock is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WallCeiling {
    /// No limit: there are no peers that could refuse a version, or none that can be reached.
    Unlimited,
    /// Nothing is followed yet: peers may be reachable, and none of them has reported its time.
    Unheard,
    /// The time shown by a clock that has run from this anchor without a step.
    At(ClockAnchor),
}

/// The reason why no value was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TickError {
    /// The next value lies past the durable bound.
    #[error("the version clock has reached its durable bound")]
    Exhausted,
    /// No peer has reported its time yet: [`WallCeiling::Unheard`].
    #[error("no peer has told its time yet")]
    Unheard,
    /// The wall clock is past its ceiling: peers would refuse the value.
    #[error("the wall clock is further ahead than the peers believe")]
    Ahead,
}

impl WallCeiling {
    const UNLIMITED: u64 = u64::MAX;
    const UNHEARD: u64 = 0;

    fn to_bits(self) -> u64 {
        match self {
            Self::Unlimited => Self::UNLIMITED,
            Self::Unheard => Self::UNHEARD,
            Self::At(anchor) => anchor.wall_at_zero().micros_since_unix_epoch().clamp(1, Self::UNLIMITED - 1),
        }
    }

    const fn from_bits(bits: u64) -> Self {
        match bits {
            Self::UNLIMITED => Self::Unlimited,
            Self::UNHEARD => Self::Unheard,
            micros => Self::At(ClockAnchor::new(Now {
                mono: Instant::ZERO,
                wall: WallTime::from_micros_since_unix_epoch(micros),
            })),
        }
    }
}

impl HybridClock {
    /// Distance from the wall clock to the bound that is made durable.
    pub const RESERVATION: Duration = Duration::from_secs(1);
    /// Distance from the greatest issued value to the bound that is made durable, where issued
    /// values are ahead of the wall clock. Values then advance only as they are issued, 4,096 to a
    /// microsecond, and restarts in quick succession must not drive the clock away from the wall
    /// clock.
    pub const RESERVATION_AHEAD: Duration = Duration::from_millis(200);
    /// Greatest accepted distance by which a clock of another node is ahead of this node's wall
    /// clock.
    pub const SKEW_MAX: Duration = Duration::from_secs(10);

    /// Creates a clock that counts `start` as issued and may issue nothing until
    /// [`HybridClock::raise_bound`]. It follows any wall clock until [`HybridClock::set_ceiling`].
    ///
    /// `start` is the result of [`HybridClock::start_of`].
    pub const fn new(start: Hlc) -> Self {
        Self {
            start,
            issued: AtomicU64::new(start.to_bits()),
            bound: AtomicU64::new(start.to_bits()),
            ceiling: AtomicU64::new(WallCeiling::UNLIMITED),
        }
    }

    /// Start value of the clock of a process whose earlier generations made `bound` durable, and
    /// whose disk holds no version above `newest`.
    ///
    /// The bound alone prevents that versions are issued twice: earlier generations issued nothing
    /// past it. A version on disk past the bound comes from another node; the clock starts at or
    /// above it, so that later writes supersede it. A version further ahead of `wall` than any
    /// node's clock may be would drag this clock along, so it is ignored: writes to its key are
    /// superseded, and writes to all other keys go on.
    pub fn start_of(bound: Hlc, newest: Hlc, wall: WallTime) -> Hlc {
        if Self::is_ahead(newest, wall) { bound } else { bound.max(newest) }
    }

    /// Issues a value greater than all issued before, and not before the wall time.
    ///
    /// # Errors
    /// [`TickError`]; nothing was issued.
    #[inline]
    pub fn tick(&self, now: Now) -> Result<Hlc, TickError> {
        self.check_wall(now)?;
        let floor = Hlc::at(now.wall);
        let mut issued = self.issued();
        loop {
            let bound = self.bound();
            if issued >= bound || floor > bound {
                return Err(TickError::Exhausted);
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

    /// Checks that the wall clock may be followed.
    ///
    /// # Errors
    /// [`TickError`]: it may not be followed.
    #[inline]
    pub fn check_wall(&self, now: Now) -> Result<(), TickError> {
        match self.ceiling() {
            WallCeiling::Unlimited => Ok(()),
            WallCeiling::Unheard => Err(TickError::Unheard),
            WallCeiling::At(anchor) if now.wall <= anchor.expected_wall(now) => Ok(()),
            WallCeiling::At(_) => Err(TickError::Ahead),
        }
    }

    /// Observes a value that another node has issued: values issued from now on are greater.
    /// Returns `false`, and observes nothing, if it is too far ahead of the wall clock, or of its
    /// ceiling where that is less.
    #[inline]
    pub fn observe(&self, seen: Hlc, now: Now) -> bool {
        let is_accepted = self.accepts(seen, now);
        if is_accepted && seen > self.issued() {
            self.issued.fetch_max(seen.to_bits(), Ordering::Relaxed);
        }
        is_accepted
    }

    /// Whether another node's version is not too far ahead of the wall clock, or of its ceiling
    /// where that is less.
    #[inline]
    pub fn accepts(&self, seen: Hlc, now: Now) -> bool {
        let wall = match self.ceiling() {
            WallCeiling::Unlimited | WallCeiling::Unheard => now.wall,
            WallCeiling::At(anchor) => now.wall.min(anchor.expected_wall(now)),
        };
        !Self::is_ahead(seen, wall)
    }

    /// Whether `seen` is more than [`HybridClock::SKEW_MAX`] ahead of `wall`.
    #[inline]
    pub fn is_ahead(seen: Hlc, wall: WallTime) -> bool {
        seen.wall() > wall.saturating_add(Self::SKEW_MAX)
    }

    /// Sets the ceiling up to which the wall clock is followed.
    pub fn set_ceiling(&self, ceiling: WallCeiling) {
        let bits = ceiling.to_bits();
        if self.ceiling.load(Ordering::Relaxed) != bits {
            self.ceiling.store(bits, Ordering::Relaxed);
        }
    }

    /// The ceiling up to which the wall clock is followed.
    pub fn ceiling(&self) -> WallCeiling {
        WallCeiling::from_bits(self.ceiling.load(Ordering::Relaxed))
    }

    /// Allows values up to `bound`, which is durable now. A bound below the present one has no
    /// effect.
    pub fn raise_bound(&self, bound: Hlc) {
        self.bound.fetch_max(bound.to_bits(), Ordering::Relaxed);
    }

    /// The bound to make durable, if less than half of the reservation is left. `None` while the
    /// wall clock may not be followed: a bound outlives the process, and with it a wrong clock.
    #[inline]
    pub fn bound_wanted(&self, now: Now) -> Option<Hlc> {
        self.check_wall(now).ok()?;
        let (wall, issued) = (now.wall, self.issued().wall());
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

    /// The value at which this generation began: no value up to it is issued again.
    pub const fn start(&self) -> Hlc {
        self.start
    }

    /// The value to report to other nodes: the greatest issued or observed in this generation, or
    /// zero before there is one.
    pub fn shown(&self) -> Hlc {
        let issued = self.issued();
        if issued == self.start { Hlc::ZERO } else { issued }
    }

    /// The greatest value issued or observed in this generation behind which no later generation
    /// starts, however this one ends: it is not past the durable bound. Zero before there is one.
    pub fn secured(&self) -> Hlc {
        let secured = self.issued().min(self.bound());
        if secured > self.start { secured } else { Hlc::ZERO }
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

    /// A moment at which both clocks have advanced by `micros` microseconds.
    fn at(micros: u64) -> Now {
        Now { mono: Instant::from_nanos(micros * 1_000), wall: wall(micros) }
    }

    /// Ticks as the coordinator does, with a disk that never fails.
    fn tick_raising(clock: &HybridClock, now: Now) -> Hlc {
        if let Some(bound) = clock.bound_wanted(now) {
            clock.raise_bound(bound);
        }
        clock.tick(now).expect("the bound was raised")
    }

    proptest! {
        #[test]
        fn values_rise_for_any_sequence_of_wall_times(walls: Vec<u32>) {
            let clock = HybridClock::new(Hlc::ZERO);
            let mut last = Hlc::ZERO;
            for micros in walls {
                let now = at(u64::from(micros));
                let next = tick_raising(&clock, now);
                prop_assert!(next > last, "{next:?} after {last:?}");
                prop_assert!(next >= Hlc::at(now.wall));
                last = next;
            }
        }

        #[test]
        fn a_restart_begins_past_all_that_was_issued(walls in prop::collection::vec(0u64..20_000_000, 1..50)) {
            let mut durable_bound = Hlc::ZERO;
            let mut last = Hlc::ZERO;
            for generation in walls.chunks(7) {
                let clock = HybridClock::new(durable_bound);
                for &micros in generation {
                    if let Some(bound) = clock.bound_wanted(at(micros)) {
                        durable_bound = bound;
                        clock.raise_bound(bound);
                    }
                    let next = clock.tick(at(micros)).expect("the bound was raised");
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
        assert_eq!(clock.tick(at(0)), Err(TickError::Exhausted));
        clock.raise_bound(start.next());
        clock.raise_bound(Hlc::ZERO);
        assert_eq!(clock.tick(at(1_001)), Err(TickError::Exhausted), "the wall is past the bound");
        assert_eq!(clock.tick(at(0)), Ok(start.next()));
        assert_eq!(clock.tick(at(0)), Err(TickError::Exhausted));
        assert_eq!(clock.issued(), start.next());
    }

    #[test]
    fn the_bound_is_wanted_below_half_of_the_reservation() {
        let clock = HybridClock::new(Hlc::ZERO);
        let bound = clock.bound_wanted(at(0)).expect("nothing is reserved yet");
        assert_eq!(bound, Hlc::at(wall(1_000_000)));
        clock.raise_bound(bound);
        assert_eq!(clock.bound_wanted(at(500_000)), None);
        assert_eq!(clock.bound_wanted(at(500_001)), Some(Hlc::at(wall(1_500_001))));
    }

    #[test]
    fn restarts_in_quick_succession_stay_near_the_wall() {
        let mut durable_bound = Hlc::ZERO;
        for generation in 0..10 {
            let clock = HybridClock::new(durable_bound);
            let now = at(generation * 1_000);
            durable_bound = clock.bound_wanted(now).unwrap_or(durable_bound);
            clock.raise_bound(durable_bound);
            clock.tick(now).expect("the bound was raised");
        }
        assert!(durable_bound <= Hlc::at(wall(4_000_000)), "{:?}", durable_bound.wall());
    }

    #[test]
    fn reserved_values_are_not_shown_to_peers() {
        let start = Hlc::at(wall(2_000_000));
        let clock = HybridClock::new(start);
        assert_eq!(clock.shown(), Hlc::ZERO);
        assert!(clock.observe(Hlc::at(wall(1_000_000)), at(1_000_000)));
        assert_eq!(clock.shown(), Hlc::ZERO, "older than what this node may have issued itself");
        clock.raise_bound(Hlc::at(wall(3_000_000)));
        assert_eq!(clock.tick(at(1_000_000)), Ok(start.next()));
        assert_eq!(clock.shown(), start.next());
    }

    #[test]
    fn observed_values_are_exceeded_unless_they_are_far_ahead() {
        let clock = HybridClock::new(Hlc::ZERO);
        let seen = Hlc::at(wall(10_000_000));
        assert!(clock.observe(seen, at(0)));
        clock.raise_bound(clock.bound_wanted(at(0)).expect("the observed value is past the bound"));
        assert_eq!(clock.tick(at(0)), Ok(seen.next()));
        assert!(!clock.observe(Hlc::at(wall(10_000_001)), at(0)));
        assert_eq!(clock.issued(), seen.next());
    }

    /// A clock whose peers showed `wall(0)` when the monotonic clock was at zero, far below its
    /// bound.
    fn compared() -> HybridClock {
        let clock = HybridClock::new(Hlc::ZERO);
        clock.raise_bound(Hlc::at(wall(3_600_000_000_000)));
        let ceiling = wall(0).saturating_add(HybridClock::SKEW_MAX);
        clock.set_ceiling(WallCeiling::At(ClockAnchor::new(Now { mono: Instant::ZERO, wall: ceiling })));
        clock
    }

    /// The clocks after `micros` microseconds, during which the wall clock was set forward by an
    /// hour.
    fn stepped(micros: u64) -> Now {
        Now { wall: wall(micros + 3_600_000_000), ..at(micros) }
    }

    #[test]
    fn a_step_past_the_ceiling_advances_nothing_and_ends_with_the_step_back() {
        let clock = compared();
        let before = clock.tick(at(1_000)).expect("the clock is right");
        assert_eq!(clock.tick(stepped(2_000)), Err(TickError::Ahead));
        assert_eq!(clock.bound_wanted(stepped(3_600_000_000)), None);
        assert!(!clock.observe(Hlc::at(stepped(2_000).wall), stepped(2_000)), "others may have stepped too");
        assert_eq!(clock.issued(), before);
        assert_eq!(clock.tick(at(3_000)), Ok(Hlc::at(wall(3_000))));
    }

    #[test]
    fn the_ceiling_advances_with_the_monotonic_clock() {
        let clock = compared();
        assert_eq!(clock.tick(at(60_000_000)), Ok(Hlc::at(wall(60_000_000))));
        let ahead = |micros: u64| Now { wall: wall(70_000_000 + micros), ..at(60_000_000) };
        assert_eq!(clock.tick(ahead(1)), Err(TickError::Ahead));
        assert_eq!(clock.tick(ahead(0)), Ok(Hlc::at(wall(70_000_000))));
    }

    #[test]
    fn nothing_is_issued_before_a_peer_is_heard_unless_there_are_no_peers() {
        let clock = compared();
        clock.set_ceiling(WallCeiling::Unheard);
        assert_eq!(clock.tick(at(0)), Err(TickError::Unheard));
        assert!(clock.observe(Hlc::at(wall(1_000)), at(0)), "peers are judged by the wall clock");
        clock.set_ceiling(WallCeiling::Unlimited);
        assert_eq!(clock.tick(stepped(0)), Ok(Hlc::at(stepped(0).wall)));
    }

    #[test]
    fn a_version_from_the_future_does_not_advance_the_start() {
        let (bound, now) = (Hlc::at(wall(1_000)), wall(500));
        assert_eq!(HybridClock::start_of(bound, Hlc::at(wall(2_000)), now), Hlc::at(wall(2_000)));
        assert_eq!(HybridClock::start_of(bound, Hlc::at(wall(10_000_501)), now), bound);
        let far = Hlc::at(wall(3_600_000_000));
        assert_eq!(
            HybridClock::start_of(far, far.next(), now),
            far,
            "this node may have issued values up to its bound"
        );
    }

    #[test]
    fn a_full_counter_carries_into_the_microseconds() {
        let clock = HybridClock::new(Hlc::from_bits(Hlc::at(wall(7)).to_bits() + 0xfff));
        clock.raise_bound(Hlc::at(wall(9)));
        assert_eq!(clock.tick(at(7)), Ok(Hlc::at(wall(8))));
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
                .map(|_| scope.spawn(|| (0..TICKS).map(|i| clock.tick(at(i / 64))).collect::<Vec<_>>()))
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
