//! The durable bound of the version clock: raised before it is reached; writes wait if it was
//! reached.
//!
//! The process's clock issues versions only up to a durable bound. While writes keep coming, the
//! bound is raised in time. If it was reached (by the first write, or the first after an idle
//! time), writes are *parked* until the store has raised the bound. A parked write has no version,
//! and nothing of it is sent or stored. Each keeps its deadline, and a failed raise fails them all.
//! So does a wall clock that is found past its ceiling while they wait.
//!
//! Writes are also parked while the node *holds writes* (`node::readiness`), until a view ends
//! that.

use super::put::{self, WriteIntent};
use super::request_number::{OperationId, own_store_id};
use super::{Coordinator, OperationState};
use crate::{CommandFailure, Event, Reply, StoreFault, StoreRequest, StoreResponse, TickError, WaitTarget};
use limits::Deadline;
use std::collections::VecDeque;
use std::time::Duration;
use stdx::{Hlc, Now};

/// A wall clock further behind the issued versions than this was set back; a restart alone leaves
/// it at most [`HybridClock::RESERVATION`](crate::HybridClock::RESERVATION) behind.
const CLOCK_BEHIND_MIN: Duration = Duration::from_secs(4);

/// The writes that wait for the bound, and the request that raises it; one at a time.
#[derive(Debug, Default)]
pub(super) struct ParkedWrites {
    started: u64,
    in_flight: bool,
    /// Writes that wait, oldest first; all of them are in the table.
    parked: VecDeque<OperationId>,
    /// The wall clock was set back, and this has been reported.
    is_behind: bool,
}

impl ParkedWrites {
    /// Makes a write wait.
    pub(super) fn park(&mut self, id: OperationId) {
        self.parked.push_back(id);
    }

    /// Takes out the write that has waited longest.
    pub(super) fn unpark(&mut self) -> Option<OperationId> {
        self.parked.pop_front()
    }
}

impl Coordinator {
    /// Handles the answer to the request that raises the clock's bound.
    pub(super) fn handle_bound_raised(&mut self, now: Now, response: StoreResponse) {
        assert!(self.bound.in_flight, "no raise of the bound is in flight");
        self.bound.in_flight = false;
        match response {
            StoreResponse::ClockBoundRaised { bound } => {
                self.context.peers.member.clock.raise_bound(bound);
                self.resume_parked(now);
                self.resume_link_waiters(now);
            }
            StoreResponse::Failed(fault) => self.fail_parked(&fault),
            response => unreachable!("the store answered a raise of the clock's bound with {response:?}"),
        }
    }

    /// Keeps the bound ahead of the clock, after a write was submitted.
    pub(super) fn maintain_clock_bound(&mut self, now: Now) {
        self.raise_bound_in_time(now);
        if !self.bound.parked.is_empty() && !self.bound.in_flight {
            // Another thread has raised the bound since the clock refused: no answer will come
            // here.
            self.resume_parked(now);
        }
    }

    /// The next version, unless the clock has reached its bound or the node holds writes.
    pub(super) fn tick(&self, now: Now) -> Result<Hlc, TickError> {
        match self.context.peers.member.clock.check_wall(now) {
            Ok(()) if self.context.peers.view.holds_writes => Err(TickError::Exhausted),
            _ => self.context.peers.member.clock.tick(now),
        }
    }

    /// Reports once that the wall clock was set back.
    pub(super) fn report_clock_setback(&mut self, now: Now, issued: Hlc) {
        let is_behind = now.wall.saturating_add(CLOCK_BEHIND_MIN) < issued.wall();
        if is_behind && !self.bound.is_behind {
            self.context.outbox.emit(Event::ClockBehind { issued });
        }
        self.bound.is_behind = is_behind;
    }

    pub(super) fn resume_parked(&mut self, now: Now) {
        while let Some(&id) = self.bound.parked.front() {
            match self.tick(now) {
                Ok(hlc) => {
                    self.bound.parked.pop_front();
                    self.resume_write(now, id, hlc);
                }
                Err(TickError::Ahead) => return self.end_parked(put::clock_ahead_failure),
                Err(TickError::Exhausted | TickError::Unheard) => break,
            }
        }
        if !self.bound.parked.is_empty() {
            self.raise_bound_in_time(now);
        }
    }

    fn fail_parked(&mut self, fault: &StoreFault) {
        self.end_parked(|intent| put::no_version_failure_for(intent, fault));
    }

    fn end_parked(&mut self, failure_of: impl Fn(&WriteIntent) -> CommandFailure) {
        while let Some(id) = self.bound.parked.pop_front() {
            let mut operation = self.operations.remove(id).expect("parked writes are in the table");
            let OperationState::Parked(intent) = &operation.state else {
                unreachable!("only parked writes wait for the bound");
            };
            let failure = failure_of(intent);
            let wait = operation.wait.take(WaitTarget::ClockBound);
            self.context.reply_after(wait, operation.to, Reply::Failed(failure));
        }
    }

    fn raise_bound_in_time(&mut self, now: Now) {
        if self.bound.in_flight {
            return;
        }
        if let Some(bound) = self.context.peers.member.clock.bound_wanted(now) {
            let id = own_store_id(self.bound.started);
            self.bound.started += 1;
            self.bound.in_flight = true;
            self.context.outbox.store(id, StoreRequest::RaiseClockBound { bound }, Deadline::NEVER);
        }
    }
}
