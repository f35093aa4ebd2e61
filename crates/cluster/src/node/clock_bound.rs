//! The durable bound of the version clock, which is raised ahead of demand.
//!
//! A write that finds the clock at its bound waits for the store. So the node raises the bound at
//! its start, and keeps it ahead for [`IDLE_AFTER`] after the clock last moved. An idle node causes
//! no disk writes; the first write after an idle period waits for one sync. A node that has peers
//! and can reach none of them does not raise the bound either. Its clock may be wrong, and a bound
//! from a wrong clock must not become durable without a write that needs it.

use super::Node;
use super::dispatch::StorePurpose;
use crate::{StoreRequest, StoreResponse, WallCeiling};
use std::time::Duration;
use stdx::{Hlc, Instant, Now};

/// Time without an issued or observed version after which the clock counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(60);
/// Time between a failure to raise the bound and the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// State of the durable bound of the version clock.
#[derive(Debug)]
pub(super) struct ClockBound {
    issued: Hlc,
    moved_at: Instant,
    in_flight: bool,
    retry_at: Instant,
    /// The stored bound may be lost with a damaged table, so it is to be stored again.
    is_renewal_pending: bool,
}

impl ClockBound {
    pub(super) const fn new(now: Instant) -> Self {
        Self { issued: Hlc::ZERO, moved_at: now, in_flight: false, retry_at: now, is_renewal_pending: false }
    }

    pub(super) const fn renew(&mut self) {
        self.is_renewal_pending = true;
    }

    pub(super) const fn is_renewal_pending(&self) -> bool {
        self.is_renewal_pending
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
        let is_idle = now.mono - bound.moved_at > IDLE_AFTER && !bound.is_renewal_pending;
        let is_unchecked = self.member.layout.len() > 1 && clock.ceiling() == WallCeiling::Unlimited;
        if is_idle
            || is_unchecked && !bound.is_renewal_pending
            || bound.in_flight
            || now.mono < bound.retry_at
        {
            return;
        }
        let renewed = || bound.is_renewal_pending.then(|| clock.bound());
        if let Some(wanted) = clock.bound_wanted(now).or_else(renewed) {
            bound.in_flight = true;
            self.outbox.request_store(
                StorePurpose::RaiseClockBound,
                StoreRequest::RaiseClockBound { bound: wanted },
            );
        }
    }

    pub(super) fn handle_clock_bound_raised(&mut self, now: Now, response: StoreResponse) {
        self.clock_bound.in_flight = false;
        match response {
            StoreResponse::ClockBoundRaised { bound } => {
                self.clock_bound.is_renewal_pending = false;
                self.member.clock.raise_bound(bound);
            }
            StoreResponse::Failed(_) => self.clock_bound.retry_at = now.mono + RETRY_AFTER,
            response => unreachable!("the store answered RaiseClockBound with {response:?}"),
        }
    }
}
