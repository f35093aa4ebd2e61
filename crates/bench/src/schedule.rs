//! Schedule of requests: their intended start times.
//!
//! **Promise.** With a rate, slot `k` of a run starts at exactly `start + k / rate`, regardless of
//! the server. Slots are assigned to the connections round-robin. A slot whose connection is busy
//! waits, and the latency of its request counts from the slot, not from the time of sending. With
//! bursts, all slots of an interval start at its beginning.
//!
//! **Mechanism.** [`Schedule::release`] counts the slots that are due. [`Schedule::claim`] gives a
//! free connection its oldest slot. Waiting slots are not stored but follow from two counts, so any
//! number of slots can wait for a stalled server without using memory. A closed loop has no slots:
//! a free connection may always start, now.
//!
//! **Caveats.** A slot belongs to one connection from the start. A connection that hangs delays its
//! own slots, as the users behind it would be delayed; no other connection takes them over.

use std::str::FromStr;
use std::time::Duration;
use stdx::Instant;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Pacing of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pacing {
    /// Closed loop: the response to the previous request starts the next one.
    Closed,
    /// Open loop: this number of requests per second, over all connections of the lane.
    Rate(u64),
}

impl Pacing {
    /// Rate of `per_second` requests per second, rounded down, at least one.
    pub fn at(per_second: f64) -> Self {
        Self::Rate((per_second as u64).max(1))
    }
}

impl FromStr for Pacing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) | Err(_) => {
                Err(format!("{text:?} is not a rate: a whole number of requests/s, at least 1"))
            }
            Ok(rate) => Ok(Self::Rate(rate)),
        }
    }
}

/// The slots of a lane that one thread drives: every `of`-th slot, starting at `index`.
#[derive(Clone, Copy, Debug)]
pub struct ThreadShare {
    /// Index of the thread.
    pub index: u64,
    /// Number of threads.
    pub of: u64,
}

/// Schedule of one lane's connections on one thread.
#[derive(Debug)]
pub struct Schedule {
    rate: Option<u64>,
    start: Instant,
    end: Instant,
    share: ThreadShare,
    /// Burst interval; zero: each slot has its own time.
    burst_nanos: u128,
    released: u64,
    /// Number of claimed slots, by connection.
    claimed: Vec<u64>,
}

impl Schedule {
    /// Creates a schedule that begins at `start`. No request starts at `end` or later.
    ///
    /// # Panics
    /// If `connections` is 0.
    pub fn new(pacing: Pacing, connections: usize, share: ThreadShare, start: Instant, end: Instant) -> Self {
        assert!(connections > 0, "a schedule needs a connection");
        let rate = match pacing {
            Pacing::Closed => None,
            Pacing::Rate(rate) => Some(rate),
        };
        Self { rate, start, end, share, burst_nanos: 0, released: 0, claimed: vec![0; connections] }
    }

    /// Moves the slots within each `interval` to its beginning.
    #[must_use]
    pub fn in_bursts(self, interval: Duration) -> Self {
        Self { burst_nanos: interval.as_nanos(), ..self }
    }

    /// Releases the slots that are due at `now`, and calls `due` with the connection of each.
    pub fn release(&mut self, now: Instant, mut due: impl FnMut(usize)) {
        while self.next_release().is_some_and(|intended| intended <= now) {
            due((self.released % self.connections()) as usize);
            self.released += 1;
        }
    }

    /// Claims the oldest waiting slot of a free connection. Returns its intended start, or `None`
    /// if no slot is due at `now`.
    pub fn claim(&mut self, connection: usize, now: Instant) -> Option<Instant> {
        let Some(rate) = self.rate else { return (now < self.end).then_some(now) };
        let slot = self.claimed[connection] * self.connections() + connection as u64;
        if slot >= self.released {
            return None;
        }
        self.claimed[connection] += 1;
        self.time_of(slot, rate)
    }

    /// Time of the next slot. `None` in a closed loop and after the last slot.
    pub fn next_release(&self) -> Option<Instant> {
        self.time_of(self.released, self.rate?).filter(|intended| *intended < self.end)
    }

    /// Claims a slot that still waits, on any connection.
    pub fn abandon_one(&mut self) -> Option<Instant> {
        self.rate?;
        let waits = |connection: &usize| {
            self.claimed[*connection] * self.connections() + (*connection as u64) < self.released
        };
        let connection = (0..self.claimed.len()).find(waits)?;
        self.claim(connection, self.end)
    }

    /// Ends the schedule at `now`, if that is earlier than planned.
    pub fn end_by(&mut self, now: Instant) {
        self.end = self.end.min(now);
    }

    const fn connections(&self) -> u64 {
        self.claimed.len() as u64
    }

    /// Intended start of this thread's slot with the number `slot`. `None` beyond the range of the
    /// clock.
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

    /// Runs one connection in virtual time for two seconds. The server responds in `service`, but
    /// not between 1 s and 1.5 s.
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
        // 500 slots fall into the stall. Their waits are uniformly distributed over its length, and
        // the queue drains ten times as fast as it grew.
        let beyond_100_ms = latency.count_between(100_000_000, u64::MAX);
        assert!((400..470).contains(&beyond_100_ms), "{beyond_100_ms} requests waited 100 ms");
        assert!((498_000_000..502_000_000).contains(&latency.max()), "{}", latency.max());
    }

    /// The error that the schedule avoids: coordinated omission in a closed loop.
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
    fn slots_of_a_burst_interval_start_at_its_beginning_and_the_rate_stays() {
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
    fn unclaimed_slots_are_abandoned_exactly_once() {
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
