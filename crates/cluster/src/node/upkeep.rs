//! The version clock's durable bound, raised also while nobody writes.
//!
//! A write that finds the clock at its bound waits for the store. So the bound is raised at the start, and kept
//! ahead for a while after the clock last issued or observed anything. A node that is idle for longer leaves its
//! disk alone; the first write after that waits for one sync. So does the first write of a node that has peers and can
//! reach none of them: its clock may be wrong, and a bound is not made durable for nothing but a wrong clock.

use super::Node;
use super::purpose::StorePurpose;
use crate::{StoreRequest, StoreResponse, WallCeiling};
use std::time::Duration;
use stdx::{Hlc, Instant, Now};

/// A clock that has not moved for so long is idle.
const IDLE_AFTER: Duration = Duration::from_secs(60);
/// Between a failure to raise the bound and the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct ClockBound {
    issued: Hlc,
    moved_at: Instant,
    under_way: bool,
    retry_at: Instant,
    /// What was stored may be lost: it is stored again.
    is_to_be_renewed: bool,
}

impl ClockBound {
    pub(super) const fn new(now: Instant) -> Self {
        Self { issued: Hlc::ZERO, moved_at: now, under_way: false, retry_at: now, is_to_be_renewed: false }
    }

    pub(super) const fn renew(&mut self) {
        self.is_to_be_renewed = true;
    }

    pub(super) const fn is_to_be_renewed(&self) -> bool {
        self.is_to_be_renewed
    }
}

impl Node {
    pub(super) fn raise_clock_bound(&mut self, now: Now) {
        let clock = &self.member.clock;
        let bound = &mut self.clock_bound;
        let issued = clock.issued();
        if issued != bound.issued {
            bound.issued = issued;
            bound.moved_at = now.mono;
        }
        let is_idle = now.mono - bound.moved_at > IDLE_AFTER && !bound.is_to_be_renewed;
        let is_unchecked = self.peers.len() > 1 && clock.ceiling() == WallCeiling::Unlimited;
        if is_idle || is_unchecked && !bound.is_to_be_renewed || bound.under_way || now.mono < bound.retry_at
        {
            return;
        }
        let renewed = || bound.is_to_be_renewed.then(|| clock.bound());
        if let Some(wanted) = clock.bound_wanted(now).or_else(renewed) {
            bound.under_way = true;
            self.outbox.store(StorePurpose::RaiseClockBound, StoreRequest::RaiseClockBound { bound: wanted });
        }
    }

    pub(super) fn clock_bound_raised(&mut self, now: Now, response: StoreResponse) {
        self.clock_bound.under_way = false;
        match response {
            StoreResponse::ClockBoundRaised { bound } => {
                self.clock_bound.is_to_be_renewed = false;
                self.member.clock.raise_bound(bound);
            }
            StoreResponse::Failed(_) => self.clock_bound.retry_at = now.mono + RETRY_AFTER,
            response => unreachable!("the store answered RaiseClockBound with {response:?}"),
        }
    }
}
