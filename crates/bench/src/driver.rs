//! One generator thread: its connections, its epoll, its loop.
//!
//! Each turn releases the slots that are due, waits for answers until the next slot, and gives every
//! connection that became free its next request. At the end of the run nothing starts any more; what is on
//! its way may still be answered for [`DRAIN`], then it is recorded as unanswered.

use crate::clock::{RunClock, until};
use crate::connection::{Connection, Lost};
use crate::load::{Lane, LoadError, Times};
use crate::recorder::{Failure, Outcome, Recorder};
use crate::response::Response;
use crate::schedule::Schedule;
use crate::workload::{Operation, Request, Workload};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::Instant;

/// How long answers are waited for after the end.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);
/// How long a connection rests that could not be made, or whose request is to be tried again.
const PAUSE: Duration = Duration::from_millis(10);
const READ_BYTES: usize = 64 * 1024;
const EVENTS_MAX: usize = 512;
/// The kernel's default of 50 µs would be in every latency of a low rate.
const TIMER_SLACK_NANOS: NonZeroU64 = NonZeroU64::MIN;

/// A lane's share on one thread.
#[derive(Debug)]
pub(crate) struct LaneShare {
    pub(crate) schedule: Schedule,
    pub(crate) workload: Workload,
    pub(crate) recorder: Recorder,
    /// Requests still to be started, over all threads. `None`: no limit.
    pub(crate) tickets: Option<Arc<AtomicU64>>,
    pub(crate) verify: bool,
    pub(crate) retry: bool,
    exhausted: bool,
    first_slot: usize,
}

impl LaneShare {
    pub(crate) fn new(
        lane: &Lane,
        schedule: Schedule,
        workload: Workload,
        recorder: Recorder,
        tickets: Option<Arc<AtomicU64>>,
    ) -> Self {
        let (verify, retry) = (lane.verify, lane.retry);
        Self { schedule, workload, recorder, tickets, verify, retry, exhausted: false, first_slot: 0 }
    }

    fn draw(&mut self) -> Option<Request> {
        if let Some(tickets) = &self.tickets {
            let taken =
                tickets.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if taken.is_err() {
                self.exhausted = true;
                return None;
            }
        }
        Some(self.workload.next())
    }
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    request: Request,
    intended: Instant,
}

#[derive(Debug)]
struct Slot {
    lane: usize,
    index: usize,
    connection: Option<Connection>,
    in_flight: Option<InFlight>,
    again: Option<Request>,
    wants_write: bool,
    parked: bool,
}

/// The state of a generator thread.
#[derive(Debug)]
pub(crate) struct Driver {
    target: SocketAddr,
    clock: RunClock,
    times: Times,
    poll: OwnedFd,
    lanes: Vec<LaneShare>,
    slots: Vec<Slot>,
    parked: BTreeSet<(Instant, usize)>,
    in_flight: usize,
    scratch: Vec<u8>,
    expected: Vec<u8>,
}

impl Driver {
    /// A driver of these lanes, each with its open connections.
    pub(crate) fn new(
        target: SocketAddr,
        clock: RunClock,
        times: Times,
        lanes: Vec<(LaneShare, Vec<Connection>)>,
    ) -> Result<Self, LoadError> {
        let mut driver = Self {
            target,
            clock,
            times,
            poll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(LoadError::epoll)?,
            lanes: Vec::new(),
            slots: Vec::new(),
            parked: BTreeSet::new(),
            in_flight: 0,
            scratch: vec![0; READ_BYTES],
            expected: Vec::new(),
        };
        for (mut share, connections) in lanes {
            let lane = driver.lanes.len();
            share.first_slot = driver.slots.len();
            driver.lanes.push(share);
            for (index, connection) in connections.into_iter().enumerate() {
                driver.watch(&connection, driver.slots.len())?;
                driver.slots.push(Slot {
                    lane,
                    index,
                    connection: Some(connection),
                    in_flight: None,
                    again: None,
                    wants_write: false,
                    parked: false,
                });
            }
        }
        Ok(driver)
    }

    /// Drives to the end. Returns what each lane measured.
    pub(crate) fn run(mut self) -> Result<Vec<Recorder>, LoadError> {
        rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NANOS)).map_err(LoadError::epoll)?;
        let mut events = Vec::with_capacity(EVENTS_MAX);
        std::thread::sleep(until(self.clock.now(), self.times.start));
        let now = self.clock.now();
        (0..self.slots.len()).for_each(|slot| self.start(slot, now));
        loop {
            let now = self.clock.now();
            self.unpark(now);
            self.release(now);
            if self.is_over(now) {
                break;
            }
            self.wait(now, &mut events)?;
            for event in events.drain(..) {
                self.handle(event.data.u64() as usize, event.flags)?;
            }
        }
        Ok(self.finish())
    }

    fn is_over(&self, now: Instant) -> bool {
        let nothing_starts = now >= self.times.end || self.lanes.iter().all(|lane| lane.exhausted);
        let nothing_comes = self.in_flight == 0 && self.slots.iter().all(|slot| slot.again.is_none());
        (nothing_starts && nothing_comes) || now >= self.times.end + DRAIN
    }

    fn release(&mut self, now: Instant) {
        for lane in 0..self.lanes.len() {
            let mut due = Vec::new();
            let first = self.lanes[lane].first_slot;
            self.lanes[lane].schedule.release(now, |connection| due.push(first + connection));
            for slot in due {
                self.start(slot, now);
            }
        }
    }

    fn unpark(&mut self, now: Instant) {
        while let Some(&(at, slot)) = self.parked.first().filter(|(at, _)| *at <= now) {
            self.parked.remove(&(at, slot));
            self.slots[slot].parked = false;
            self.start(slot, now);
        }
    }

    fn wait(&self, now: Instant, events: &mut Vec<epoll::Event>) -> Result<(), LoadError> {
        let end = if now < self.times.end { self.times.end } else { self.times.end + DRAIN };
        let slots = self.lanes.iter().filter_map(|lane| lane.schedule.next_release());
        let parked = self.parked.first().map(|(at, _)| *at);
        let wake = slots.chain(parked).chain([end]).min().unwrap_or(end);
        let timeout = Timespec::try_from(until(now, wake)).ok();
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(LoadError::epoll(error)),
        }
    }

    /// Gives a free connection its next request, if there is one.
    fn start(&mut self, i: usize, now: Instant) {
        let slot = &mut self.slots[i];
        if slot.in_flight.is_some() || slot.parked {
            return;
        }
        let lane = &mut self.lanes[slot.lane];
        let Some(intended) = lane.schedule.take(slot.index, now) else { return };
        let Some(request) = slot.again.take().or_else(|| lane.draw()) else { return };
        slot.in_flight = Some(InFlight { request, intended });
        self.in_flight += 1;
        if self.slots[i].connection.is_none() && self.reconnect(i).is_err() {
            self.fail(i, Failure::Connect);
            return;
        }
        let slot = &mut self.slots[i];
        let workload = &self.lanes[slot.lane].workload;
        let Some(connection) = slot.connection.as_mut() else { return };
        let sent = connection.send(|out| workload.encode(request, out));
        if !self.written(i, sent) {
            self.fail(i, Failure::Broken);
        }
    }

    fn reconnect(&mut self, i: usize) -> Result<(), LoadError> {
        let connection = Connection::open(self.target)
            .map_err(|source| LoadError::Connect { target: self.target, source })?;
        self.watch(&connection, i)?;
        self.slots[i].wants_write = false;
        self.slots[i].connection = Some(connection);
        Ok(())
    }

    /// Asks for, or no longer for, the moment when the socket takes more. False: the connection is lost.
    fn written(&mut self, i: usize, sent: Result<bool, Lost>) -> bool {
        let (slot, Ok(all)) = (&mut self.slots[i], sent) else { return false };
        if slot.wants_write != all {
            return true;
        }
        slot.wants_write = !all;
        let flags = if all { EventFlags::IN } else { EventFlags::IN | EventFlags::OUT };
        let Some(connection) = &slot.connection else { return false };
        epoll::modify(&self.poll, connection, EventData::new_u64(i as u64), flags).is_ok()
    }

    fn handle(&mut self, i: usize, flags: EventFlags) -> Result<(), LoadError> {
        let slot = &mut self.slots[i];
        let Some(connection) = slot.connection.as_mut() else { return Ok(()) };
        if slot.wants_write && flags.contains(EventFlags::OUT) {
            let sent = connection.flush();
            if !self.written(i, sent) {
                self.fail(i, Failure::Broken);
                return Ok(());
            }
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return Ok(());
        }
        let slot = &mut self.slots[i];
        let Some(connection) = slot.connection.as_mut() else { return Ok(()) };
        let keep_body = self.lanes[slot.lane].verify;
        match connection.receive(&mut self.scratch, keep_body) {
            Ok(None) => {}
            Ok(Some(response)) => self.answered(i, response),
            Err(Lost::Broken) => self.fail(i, Failure::Broken),
            Err(Lost::Malformed) => self.fail(i, Failure::Malformed),
        }
        Ok(())
    }

    fn answered(&mut self, i: usize, response: Response) {
        let now = self.clock.now();
        let slot = &mut self.slots[i];
        let Some(InFlight { request, intended }) = slot.in_flight.take() else {
            slot.connection = None;
            return;
        };
        self.in_flight -= 1;
        let lane = &mut self.lanes[slot.lane];
        let checked = lane.verify && request.operation == Operation::Get && response.status == 200;
        let wrong_value = checked
            && slot.connection.as_ref().is_some_and(|connection| {
                !lane.workload.is_value_of(request.key, connection.body(), &mut self.expected)
            });
        let outcome = Outcome { status: response.status, wrong_value };
        lane.recorder.answer(request.operation, intended, now, outcome);
        if !response.keep_alive {
            slot.connection = None;
        }
        if lane.retry && response.status != request.operation.expected_status() {
            self.park(i, request, now);
        } else {
            self.start(i, now);
        }
    }

    /// The connection is lost, and with it the request that it carried.
    fn fail(&mut self, i: usize, failure: Failure) {
        let now = self.clock.now();
        let slot = &mut self.slots[i];
        slot.connection = None;
        let Some(InFlight { request, intended }) = slot.in_flight.take() else { return };
        self.in_flight -= 1;
        let lane = &mut self.lanes[slot.lane];
        lane.recorder.failure(request.operation, intended, now, failure);
        self.park(i, request, now);
    }

    fn park(&mut self, i: usize, request: Request, now: Instant) {
        let slot = &mut self.slots[i];
        if self.lanes[slot.lane].retry {
            slot.again = Some(request);
        }
        slot.parked = true;
        self.parked.insert((now + PAUSE, i));
    }

    fn watch(&self, connection: &Connection, slot: usize) -> Result<(), LoadError> {
        epoll::add(&self.poll, connection, EventData::new_u64(slot as u64), EventFlags::IN)
            .map_err(LoadError::epoll)
    }

    fn finish(mut self) -> Vec<Recorder> {
        let now = self.clock.now();
        for slot in &self.slots {
            if let Some(InFlight { request, intended }) = slot.in_flight {
                let recorder = &mut self.lanes[slot.lane].recorder;
                recorder.failure(request.operation, intended, now, Failure::Unanswered);
            }
        }
        for lane in &mut self.lanes {
            while let Some(intended) = lane.schedule.abandon_one() {
                let operation = lane.workload.next().operation;
                lane.recorder.failure(operation, intended, now, Failure::Unsent);
            }
            lane.recorder.backlog_full(lane.schedule.refused());
        }
        self.lanes.into_iter().map(|lane| lane.recorder).collect()
    }
}
