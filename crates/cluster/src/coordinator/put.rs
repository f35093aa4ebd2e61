//! Writes: give the cell a version, hand it to the replica.
//!
//! A write is blind: nothing is read before it. Its version comes from the process's clock, which issues only up
//! to a durable bound. While writes flow, the bound is raised before it is reached. Where it was reached (the
//! first write, or the first after an idle time) writes are *parked*, without a version and not yet with the
//! store, until the store has raised it; each still has its deadline, and a failed raise fails them all.

use super::table::own_store_id;
use super::{Coordinator, Work};
use crate::{
    ClockExhausted, Effect, Event, Failure, Key, Lifetime, NodeSet, Quorum, Reply, RequestId, StoreRequest,
    StoreResponse,
};
use bytes::Bytes;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Hlc, Now, Version, WallTime};

/// A wall clock that is further behind the issued versions than this was set back; a restart alone leaves it
/// at most [`HybridClock::RESERVATION`](crate::HybridClock::RESERVATION) behind.
const CLOCK_BEHIND_MIN: Duration = Duration::from_secs(4);

/// A write that has no version yet.
#[derive(Debug)]
pub(super) struct WriteIntent {
    key: Key,
    kind: CellKind,
    expires_at: Option<WallTime>,
    from: u8,
    value: Bytes,
}

/// The request to the store to raise the clock's bound; one at a time.
#[derive(Debug, Default)]
pub(super) struct BoundRaise {
    started: u64,
    under_way: bool,
}

impl WriteIntent {
    pub(super) fn value(key: Key, value: Bytes, expires_at: Option<WallTime>, quorum: Quorum) -> Self {
        Self { key, kind: CellKind::Value, expires_at, from: quorum.from(), value }
    }

    pub(super) fn tombstone(key: Key, quorum: Quorum) -> Self {
        Self { key, kind: CellKind::Tombstone, expires_at: None, from: quorum.from(), value: Bytes::new() }
    }

    fn into_request(self, version: Version) -> StoreRequest {
        let meta = CellMeta { version, kind: self.kind, expires_at: self.expires_at, from: self.from };
        StoreRequest::Write { key: self.key, cell: Cell { meta, value: self.value }, hints: NodeSet::EMPTY }
    }
}

/// When a value written at `wall` expires.
pub(super) fn expiry(wall: WallTime, lifetime: Lifetime) -> Result<Option<WallTime>, Failure> {
    match lifetime {
        Lifetime::Forever => Ok(None),
        Lifetime::For(duration) => match wall.saturating_add(duration) {
            expires_at if expires_at < WallTime::EXPIRY_END => Ok(Some(expires_at)),
            expires_at => Err(Failure::ExpiryTooLate { expires_at }),
        },
    }
}

impl Coordinator {
    pub(super) fn submit_write(&mut self, now: Now, to: RequestId, intent: WriteIntent, quorum: Quorum) {
        match self.clock.tick(now.wall) {
            Ok(hlc) => {
                let version = Version::new(hlc, self.tag);
                let id = self.operations.insert(self.operation(now, to, quorum, Work::Write(version)));
                self.store(id.store_id(), intent.into_request(version));
                self.watch_clock(now, hlc);
            }
            Err(ClockExhausted) => {
                let work = Work::Parked(Box::new(intent));
                let id = self.operations.insert(self.operation(now, to, quorum, work));
                self.parked.push_back(id);
            }
        }
        self.raise_bound_in_time(now);
        if !self.parked.is_empty() && !self.bound_raise.under_way {
            // Another thread has raised the bound since the clock refused: no answer will come here.
            self.resume_parked(now);
        }
    }

    /// Takes the answer to the request that raises the clock's bound.
    pub(super) fn handle_bound_raised(&mut self, now: Now, response: StoreResponse) {
        assert!(self.bound_raise.under_way, "nobody asked to raise the bound");
        self.bound_raise.under_way = false;
        match response {
            StoreResponse::ClockBoundRaised { bound } => {
                self.clock.raise_bound(bound);
                self.resume_parked(now);
            }
            StoreResponse::Failed(fault) => self.fail_parked(&fault.into()),
            response => unreachable!("the store answered a raise of the clock's bound with {response:?}"),
        }
    }

    fn resume_parked(&mut self, now: Now) {
        while let Some(&id) = self.parked.front() {
            let Ok(hlc) = self.clock.tick(now.wall) else {
                break;
            };
            self.parked.pop_front();
            let version = Version::new(hlc, self.tag);
            let operation = self.operations.get_mut(id).expect("parked writes are under way");
            let Work::Parked(intent) = std::mem::replace(&mut operation.work, Work::Write(version)) else {
                unreachable!("only parked writes are in the queue of parked writes");
            };
            self.store(id.store_id(), intent.into_request(version));
        }
        if !self.parked.is_empty() {
            self.raise_bound_in_time(now);
        }
    }

    fn fail_parked(&mut self, failure: &Failure) {
        while let Some(id) = self.parked.pop_front() {
            let operation = self.operations.remove(id).expect("parked writes are under way");
            self.reply(operation.to, Reply::Failed(failure.clone()));
        }
    }

    fn raise_bound_in_time(&mut self, now: Now) {
        if self.bound_raise.under_way {
            return;
        }
        if let Some(bound) = self.clock.bound_wanted(now.wall) {
            let id = own_store_id(self.bound_raise.started);
            self.bound_raise = BoundRaise { started: self.bound_raise.started + 1, under_way: true };
            self.store(id, StoreRequest::RaiseClockBound { bound });
        }
    }

    /// Says once when the wall clock was set back.
    fn watch_clock(&mut self, now: Now, issued: Hlc) {
        let is_behind = now.wall.saturating_add(CLOCK_BEHIND_MIN) < issued.wall();
        if is_behind && !self.clock_is_behind {
            self.effects.push_back(Effect::Event(Event::ClockBehind { issued }));
        }
        self.clock_is_behind = is_behind;
    }
}
