//! Rate limit of checkpoint creation, fair between clients.
//!
//! **Promise.** [`BURST_MAX`] checkpoints can be created at once, then one per [`PACE`]. A client
//! that was refused and repeats its request at the time that it was given is served before all
//! requests that came later. A client in a loop delays others by one interval for each of its
//! places, and does not starve them.
//!
//! **Mechanism.** A token bucket ([`RateLimiter`]), and a line of refused clients in order of
//! arrival. Each client in the line has a reservation for one token: a request is granted if the
//! bucket holds more tokens than there are clients ahead of it. A client is known by its IP address
//! and the name of the requested checkpoint. A place ends when its client has not repeated the
//! request [`GRACE`] after the given time. Both the line and the places of one address are bounded.
//!
//! **Caveats.** A client that repeats its request under a new name each time takes a new place at
//! the end. Clients behind one proxy have one address, and share its places.

use limits::RateLimiter;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;
use stdx::Instant;

/// Capacity of the token bucket: checkpoints that can be created in a burst.
const BURST_MAX: u32 = 8;
/// Interval after which the token bucket gains a token.
const PACE: Duration = Duration::from_secs(10);
/// Time for which a place is kept after its client should have repeated the request.
/// `Retry-After` is rounded up to seconds, and the client needs time to connect.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum number of clients in the line.
const LINE_MAX: usize = 64;
/// Maximum number of places in the line for one address.
const PLACES_PER_ADDRESS_MAX: usize = 4;

/// A client that requests a checkpoint. Two requests with the same fields are the same client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointRequester {
    /// Address of the connection; `None` if it is closed already.
    pub(crate) address: Option<IpAddr>,
    /// Name of the requested checkpoint.
    pub(crate) name: Option<String>,
}

/// Reservation of a token, and with it a place in the line.
#[derive(Debug)]
struct Reservation {
    requester: CheckpointRequester,
    /// Time at which the place is lost.
    until: Instant,
}

/// Token bucket with a line of refused clients.
#[derive(Debug)]
pub(crate) struct CheckpointPace {
    /// Its credit is the tokens, [`PACE`] for each.
    bucket: RateLimiter,
    line: VecDeque<Reservation>,
}

impl CheckpointPace {
    pub(crate) fn new(now: Instant) -> Self {
        Self { bucket: RateLimiter::full(now, PACE * BURST_MAX), line: VecDeque::new() }
    }

    /// Returns the token of a checkpoint that was not created.
    pub(crate) fn refund(&self) {
        self.bucket.refund(PACE);
    }

    /// Takes a token for `requester`.
    ///
    /// # Errors
    /// The time until its token, if the bucket has none that is not reserved for others.
    pub(crate) fn take(&mut self, now: Instant, requester: &CheckpointRequester) -> Result<(), Duration> {
        self.line.retain(|place| now < place.until);
        let found = self.line.iter().position(|place| place.requester == *requester);
        let ahead = found.unwrap_or(self.line.len()) as u32;
        let (needed, credit) = (PACE * (ahead + 1), self.bucket.credit(now));
        if credit >= needed {
            self.bucket.charge(now, PACE, Duration::ZERO);
            found.map(|index| self.line.remove(index));
            return Ok(());
        }
        let retry_after = needed - credit;
        let until = now + retry_after + GRACE;
        match found {
            Some(index) => self.line[index].until = until,
            None if self.has_place_for(requester) => {
                self.line.push_back(Reservation { requester: requester.clone(), until });
            }
            None => {}
        }
        Err(retry_after)
    }

    fn has_place_for(&self, requester: &CheckpointRequester) -> bool {
        let of_address = self.line.iter().filter(|place| place.requester.address == requester.address);
        self.line.len() < LINE_MAX && of_address.count() < PLACES_PER_ADDRESS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(secs: u64) -> Instant {
        Instant::from_nanos(secs * 1_000_000_000)
    }

    fn client(last_byte: u8, name: &str) -> CheckpointRequester {
        let address = IpAddr::from(Ipv4Addr::new(10, 0, 0, last_byte));
        CheckpointRequester { address: Some(address), name: Some(name.to_owned()) }
    }

    /// A bucket that was emptied by `client`.
    fn emptied(client: &CheckpointRequester) -> CheckpointPace {
        let mut pace = CheckpointPace::new(at(100));
        (0..BURST_MAX).for_each(|number| assert_eq!(pace.take(at(100), client), Ok(()), "{number}"));
        pace
    }

    #[test]
    fn a_burst_is_followed_by_one_checkpoint_per_interval() {
        let one = client(1, "a");
        let mut pace = emptied(&one);
        assert_eq!(pace.take(at(104), &one), Err(Duration::from_secs(6)));
        pace.refund();
        assert_eq!(pace.take(at(104), &one), Ok(()), "the token was refunded");
        assert_eq!(pace.take(at(110), &one), Ok(()));
        assert_eq!(pace.take(at(110), &one), Err(PACE));
        let later = at(110) + PACE * BURST_MAX;
        (0..BURST_MAX).for_each(|number| assert_eq!(pace.take(later, &one), Ok(()), "{number}"));
        assert!(pace.take(later, &one).is_err(), "the bucket holds at most one burst");
    }

    /// A client asks each 100 ms, another one only at the times that it is given. Returns the
    /// seconds that the second one waits.
    fn seconds_beside_a_loop(
        looping: impl Fn(u64) -> CheckpointRequester,
        other: &CheckpointRequester,
    ) -> u64 {
        let mut pace = emptied(&looping(0));
        let (mut now, mut due) = (at(100), at(101));
        for round in 1..6_000 {
            let _ = pace.take(now, &looping(round));
            if now >= due {
                match pace.take(now, other) {
                    Ok(()) => return now.saturating_since(at(100)).as_secs(),
                    // `Retry-After` is in whole seconds.
                    Err(retry_after) => due = now + Duration::from_secs(retry_after.as_secs() + 1),
                }
            }
            now = now + SECOND / 10;
        }
        panic!("the client starves")
    }

    #[test]
    fn a_client_in_a_loop_does_not_starve_another_one() {
        for other in [client(1, "b"), client(2, "a"), client(2, "b")] {
            let seconds = seconds_beside_a_loop(|_| client(1, "a"), &other);
            assert!(seconds <= 22, "{other:?} waited for {seconds} s");
        }
        let renamed = |round: u64| client(1, &round.to_string());
        let seconds = seconds_beside_a_loop(renamed, &client(2, "b"));
        assert!(seconds <= 60, "beside a loop with new names, it waited for {seconds} s");
    }

    #[test]
    fn the_place_of_a_client_that_does_not_come_back_is_given_up() {
        let (gone, other) = (client(1, "a"), client(2, "b"));
        let mut pace = emptied(&client(3, "c"));
        assert_eq!(pace.take(at(100), &gone), Err(PACE));
        assert_eq!(pace.take(at(110), &other), Err(PACE), "the token is reserved");
        assert_eq!(pace.take(at(115), &other), Ok(()), "the reservation has ended");
    }

    #[test]
    fn the_line_is_bounded() {
        let mut pace = emptied(&client(0, ""));
        for address in 0..=255 {
            for name in 0..10 {
                assert!(pace.take(at(100), &client(address, &name.to_string())).is_err());
            }
        }
        assert_eq!(pace.line.len(), LINE_MAX);
        let of_first = pace.line.iter().filter(|place| place.requester.address == client(0, "").address);
        assert_eq!(of_first.count(), PLACES_PER_ADDRESS_MAX);
    }
}
