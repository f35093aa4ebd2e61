//! When requests are meant to start.
//!
//! **Promise.** With a rate, slot `k` of a run is meant to start at exactly `start + k / rate`, whatever the
//! server does; the slots go round the connections. A slot whose connection is still busy waits, and its
//! request's latency counts from the slot, not from the moment it could be sent at last. In bursts all slots of an
//! interval are meant to start at its beginning.
//!
//! **Mechanism.** [`Schedule::release`] counts the slots that are due; [`Schedule::claim`] gives a free
//! connection the oldest of its own. What waits is not kept but follows from two counts, so that any number of slots
//! may wait for a server that has stopped, at no cost in memory. In a closed loop there are no slots: a free
//! connection may always start, now.
//!
//! **Caveats.** A slot belongs to one connection from the start: one that hangs keeps its own slots waiting, as
//! the users behind it would, and no other takes them over.

use std::str::FromStr;
use std::time::Duration;
use stdx::Instant;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// What starts a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pacing {
    /// The answer to the one before.
    Closed,
    /// The clock: so many requests each second, over all connections of the lane.
    Rate(u64),
}

impl Pacing {
    /// So many requests each second, whole and at least one.
    pub fn at(per_second: f64) -> Self {
        Self::Rate((per_second as u64).max(1))
    }
}

impl FromStr for Pacing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) | Err(_) => Err(format!("{text:?} is no rate: a whole number of requests/s, at least 1")),
            Ok(rate) => Ok(Self::Rate(rate)),
        }
    }
}

/// Which of a lane's slots are this thread's: every `of`-th, from `index`.
#[derive(Clone, Copy, Debug)]
pub struct ThreadShare {
    /// This thread.
    pub index: u64,
    /// All threads.
    pub of: u64,
}

/// The schedule of one lane's connections on one thread.
#[derive(Debug)]
pub struct Schedule {
    rate: Option<u64>,
    start: Instant,
    end: Instant,
    share: ThreadShare,
    /// Intervals of bursts; zero: each slot has its own time.
    burst_nanos: u128,
    released: u64,
    /// Slots that each connection has claimed.
    claimed: Vec<u64>,
}

impl Schedule {
    /// A schedule that begins at `start`; at `end` nothing starts any more.
    ///
    /// # Panics
    /// Without connections.
    pub fn new(pacing: Pacing, connections: usize, share: ThreadShare, start: Instant, end: Instant) -> Self {
        assert!(connections > 0, "a schedule needs a connection");
        let rate = match pacing {
            Pacing::Closed => None,
            Pacing::Rate(rate) => Some(rate),
        };
        Self { rate, start, end, share, burst_nanos: 0, released: 0, claimed: vec![0; connections] }
    }

    /// The same, with what is due within each such interval together at its beginning.
    #[must_use]
    pub fn in_bursts(self, interval: Duration) -> Self {
        Self { burst_nanos: interval.as_nanos(), ..self }
    }

    /// Hands every slot that is due at `now` to its connection, and calls `due` with that connection.
    pub fn release(&mut self, now: Instant, mut due: impl FnMut(usize)) {
        while self.next_release().is_some_and(|intended| intended <= now) {
            due((self.released % self.connections()) as usize);
            self.released += 1;
        }
    }

    /// The intended start of the request that a free connection should send at `now`, if there is one.
    pub fn claim(&mut self, connection: usize, now: Instant) -> Option<Instant> {
        let Some(rate) = self.rate else { return (now < self.end).then_some(now) };
        let slot = self.claimed[connection] * self.connections() + connection as u64;
        if slot >= self.released {
            return None;
        }
        self.claimed[connection] += 1;
        self.time_of(slot, rate)
    }

    /// When the next slot is due. `None` in a closed loop and after the last slot.
    pub fn next_release(&self) -> Option<Instant> {
        self.time_of(self.released, self.rate?).filter(|intended| *intended < self.end)
    }

    /// Takes a slot that still waits, on any connection.
    pub fn abandon_one(&mut self) -> Option<Instant> {
        self.rate?;
        let waits = |connection: &usize| {
            self.claimed[*connection] * self.connections() + (*connection as u64) < self.released
        };
        let connection = (0..self.claimed.len()).find(waits)?;
        self.claim(connection, self.end)
    }

    /// Nothing starts any more at `now` or later, where that is sooner than was planned.
    pub fn end_by(&mut self, now: Instant) {
        self.end = self.end.min(now);
    }

    const fn connections(&self) -> u64 {
        self.claimed.len() as u64
    }

    /// The intended start of this thread's slot of that number. `None` past the end of the clock.
    fn time_of(&self, slot: u64, rate: u64) -> Option<Instant> {
        let nanos = u128::from(slot * self.share.of + self.share.index) * NANOS_PER_SECOND / u128::from(rate);
        let early = nanos.checked_rem(self.burst_nanos).unwrap_or(0);
        Some(self.start + Duration::from_nanos(u64::try_from(nanos - early).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Recorder, ResponseOutcome};
    use crate::workload::Operation;
    use std::sync::Arc;

    const ALONE: ThreadShare = ThreadShare { index: 0, of: 1 };

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// Runs one connection in virtual time against a server that answers in `service` but not at all in
    /// `1 s .. 1.5 s`, for two seconds in all.
    fn against_a_stall(pacing: Pacing, service: Duration) -> Recorder {
        let mut schedule = Schedule::new(pacing, 1, ALONE, at(0), at(2_000));
        let mut recorder = Recorder::new(at(0), at(2_000), Arc::default());
        let mut now = at(0);
        loop {
            schedule.release(now, |_| {});
            if let Some(intended) = schedule.claim(0, now) {
                now = now + service;
                if now > at(1_000) && now < at(1_500) {
                    now = at(1_500);
                }
                recorder.answer(Operation::Get, intended, now, ResponseOutcome::of_status(200));
            } else if let Some(next) = schedule.next_release() {
                now = next;
            } else {
                return recorder;
            }
        }
    }

    #[test]
    fn a_stall_is_charged_to_every_request_that_was_meant_to_start_in_it() {
        let recorder = against_a_stall(Pacing::Rate(1_000), Duration::from_micros(100));
        let latency = recorder.latency();
        assert_eq!(latency.len(), 2_000);
        // 500 slots fell into the stall; their waits are spread evenly over its length, and the queue they
        // left drains ten times as fast as it grew.
        let beyond_100_ms = latency.count_between(100_000_000, u64::MAX);
        assert!((400..470).contains(&beyond_100_ms), "{beyond_100_ms} requests waited 100 ms");
        assert!((498_000_000..502_000_000).contains(&latency.max()), "{}", latency.max());
    }

    /// The mistake that the schedule is there to avoid, as the closed loop makes it.
    #[test]
    fn a_closed_loop_sees_the_same_stall_once() {
        let latency = against_a_stall(Pacing::Closed, Duration::from_micros(100)).latency();
        assert_eq!(latency.count_between(10_000_000, u64::MAX), 1);
    }

    #[test]
    fn slots_of_all_threads_together_are_the_rate_and_none_is_the_end_or_later() {
        let mut slots = Vec::new();
        for index in 0..3 {
            let share = ThreadShare { index, of: 3 };
            let mut schedule = Schedule::new(Pacing::Rate(7), 2, share, at(100), at(1_100));
            schedule.release(at(5_000), |_| {});
            slots.extend(std::iter::from_fn(|| schedule.abandon_one()));
        }
        slots.sort();
        let expected: Vec<Instant> =
            (0..7).map(|k| at(100) + Duration::from_nanos(k * 1_000_000_000 / 7)).collect();
        assert_eq!(slots, expected);
    }

    #[test]
    fn what_is_due_within_an_interval_starts_together_at_its_beginning_and_the_rate_stays() {
        let schedule = Schedule::new(Pacing::Rate(2_500), 8, ALONE, at(100), at(110));
        let mut schedule = schedule.in_bursts(Duration::from_millis(2));
        assert_eq!(schedule.next_release(), Some(at(100)));
        schedule.release(at(100), |_| {});
        assert_eq!(schedule.next_release(), Some(at(102)));
        schedule.release(at(1_000), |_| {});
        let mut slots: Vec<_> = std::iter::from_fn(|| schedule.abandon_one()).collect();
        slots.sort();
        let bursts: Vec<_> = (0..5).flat_map(|burst| [at(100 + 2 * burst); 5]).collect();
        assert_eq!(slots, bursts);
    }

    #[test]
    fn slots_go_round_the_connections_and_a_busy_one_keeps_its_own() {
        let mut schedule = Schedule::new(Pacing::Rate(1_000), 2, ALONE, at(0), at(10));
        let mut due = Vec::new();
        schedule.release(at(3), |connection| due.push(connection));
        assert_eq!(due, [0, 1, 0, 1]);
        assert_eq!(schedule.claim(1, at(3)), Some(at(1)));
        assert_eq!(schedule.claim(1, at(3)), Some(at(3)));
        assert_eq!(schedule.claim(1, at(3)), None);
        assert_eq!(schedule.claim(0, at(3)), Some(at(0)));
    }

    #[test]
    fn slots_that_nobody_took_are_abandoned_each_once_however_many_there_are() {
        let mut schedule = Schedule::new(Pacing::Rate(1_000), 3, ALONE, at(0), at(200_000));
        schedule.release(at(100_000), |_| {});
        assert_eq!(schedule.claim(1, at(100_000)), Some(at(1)));
        schedule.end_by(at(100_000));
        let mut left: Vec<Instant> = std::iter::from_fn(|| schedule.abandon_one()).collect();
        left.sort();
        assert!(left.into_iter().eq((0..=100_000).filter(|millis| *millis != 1).map(at)));
        schedule.release(at(150_000), |_| panic!("a slot past the end"));
    }
}
