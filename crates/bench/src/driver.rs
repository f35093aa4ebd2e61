//! One generator thread: its connections, its epoll, its loop.
//!
//! Each turn releases the slots that are due, waits for answers until the next slot, and gives every
//! connection that became free its next request. A connection that was lost is made anew, without waiting for it. At
//! the end of the run, or when it is asked to stop, nothing starts any more; what is on its way may still be
//! answered for [`DRAIN`], then it is recorded as unanswered.

use crate::clock::{RunClock, until};
use crate::connection::{CONNECT_TIMEOUT, Connection, Lost};
use crate::load::{Lane, LoadError, Times};
use crate::recorder::{Failure, Outcome, Recorder};
use crate::response::Response;
use crate::schedule::Schedule;
use crate::stop::Stop;
use crate::target::Target;
use crate::workload::{Operation, Request, Workload};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::Instant;

/// How long answers are waited for after the end.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);
/// The same, when somebody waits for the end.
const DRAIN_OF_STOP: Duration = Duration::from_secs(1);
/// A thread looks up so often, however little happens: whether it is to stop, whether a second is over.
const TICK: Duration = Duration::from_millis(50);
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
    patience: Option<Duration>,
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
        let Lane { verify, retry, patience, .. } = *lane;
        let (exhausted, first_slot) = (false, 0);
        Self { schedule, workload, recorder, tickets, verify, retry, patience, exhausted, first_slot }
    }

    /// From when the latency of the request counts that a free connection should send at `now`, if there is one.
    fn take(&mut self, connection: usize, now: Instant) -> Option<Instant> {
        let Some(patience) = self.patience else { return self.schedule.take(connection, now) };
        loop {
            let intended = self.schedule.take(connection, now)?;
            if now - intended <= patience {
                return Some(now);
            }
            let operation = self.workload.next().operation;
            self.recorder.failure(operation, intended, now, Failure::Unsent);
        }
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
    target: usize,
    connection: Option<Connection>,
    connecting_since: Instant,
    in_flight: Option<InFlight>,
    again: Option<Request>,
    wants_write: bool,
    parked: bool,
}

/// A connection and the number of the target that it goes to.
#[derive(Debug)]
pub(crate) struct Aimed {
    pub(crate) target: usize,
    pub(crate) connection: Connection,
}

/// What a thread hands back.
#[derive(Debug)]
pub(crate) struct Driven {
    /// Of each lane.
    pub(crate) recorders: Vec<Recorder>,
    /// When nothing started any more.
    pub(crate) ended: Instant,
}

/// The state of a generator thread.
#[derive(Debug)]
pub(crate) struct Driver {
    targets: Arc<[Target]>,
    stop: Stop,
    stopped: bool,
    next_tick: Instant,
    due: Vec<usize>,
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
        targets: Arc<[Target]>,
        stop: Stop,
        clock: RunClock,
        times: Times,
        lanes: Vec<(LaneShare, Vec<Aimed>)>,
    ) -> Result<Self, LoadError> {
        let mut driver = Self {
            targets,
            stop,
            stopped: false,
            next_tick: times.start,
            due: Vec::new(),
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
            for (index, Aimed { target, connection }) in connections.into_iter().enumerate() {
                driver.watch(&connection, driver.slots.len(), EventFlags::IN)?;
                driver.slots.push(Slot {
                    lane,
                    index,
                    target,
                    connection: Some(connection),
                    connecting_since: Instant::ZERO,
                    in_flight: None,
                    again: None,
                    wants_write: false,
                    parked: false,
                });
            }
        }
        Ok(driver)
    }

    /// Drives to the end.
    pub(crate) fn run(mut self) -> Result<Driven, LoadError> {
        rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NANOS)).map_err(LoadError::epoll)?;
        let mut events = Vec::with_capacity(EVENTS_MAX);
        std::thread::sleep(until(self.clock.now(), self.times.start));
        let now = self.clock.now();
        (0..self.slots.len()).for_each(|slot| self.start(slot, now));
        loop {
            let now = self.clock.now();
            if now >= self.next_tick {
                self.tick(now);
            }
            self.unpark(now);
            self.release(now);
            if self.is_over(now) {
                break;
            }
            self.wait(now, &mut events)?;
            for event in events.drain(..) {
                self.handle(event.data.u64() as usize, event.flags);
            }
        }
        Ok(self.finish())
    }

    /// What need not be looked at each turn.
    fn tick(&mut self, now: Instant) {
        self.next_tick = now + TICK;
        self.lanes.iter_mut().for_each(|lane| lane.recorder.turn(now));
        if !self.stopped && self.stop.is_set() {
            self.stopped = true;
            self.times.end = self.times.end.min(now);
            for lane in &mut self.lanes {
                lane.schedule.end_by(now);
                lane.recorder.end_by(now);
            }
        }
        for slot in 0..self.slots.len() {
            let Slot { connection, connecting_since, .. } = &self.slots[slot];
            let connecting = connection.as_ref().is_some_and(Connection::is_connecting);
            if connecting && now - *connecting_since > CONNECT_TIMEOUT {
                self.fail(slot, Failure::Connect);
            }
        }
    }

    fn gives_up(&self) -> Instant {
        self.times.end + if self.stopped { DRAIN_OF_STOP } else { DRAIN }
    }

    fn is_over(&self, now: Instant) -> bool {
        let nothing_starts = now >= self.times.end || self.lanes.iter().all(|lane| lane.exhausted);
        let again = |slot: &Slot| slot.again.is_some();
        let nothing_comes = self.in_flight == 0 && (self.stopped || !self.slots.iter().any(again));
        (nothing_starts && nothing_comes) || now >= self.gives_up()
    }

    fn release(&mut self, now: Instant) {
        let mut due = std::mem::take(&mut self.due);
        for lane in &mut self.lanes {
            let first = lane.first_slot;
            lane.schedule.release(now, |connection| due.push(first + connection));
        }
        for slot in due.drain(..) {
            self.start(slot, now);
        }
        self.due = due;
    }

    fn unpark(&mut self, now: Instant) {
        while let Some(&(at, slot)) = self.parked.first().filter(|(at, _)| *at <= now) {
            self.parked.remove(&(at, slot));
            self.slots[slot].parked = false;
            self.start(slot, now);
        }
    }

    fn wait(&self, now: Instant, events: &mut Vec<epoll::Event>) -> Result<(), LoadError> {
        let end = if now < self.times.end { self.times.end } else { self.gives_up() };
        let slots = self.lanes.iter().filter_map(|lane| lane.schedule.next_release());
        let parked = self.parked.first().map(|(at, _)| *at);
        let wake = slots.chain(parked).chain([self.next_tick]).fold(end, Instant::min);
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
        let Some(intended) = lane.take(slot.index, now) else { return };
        let Some(request) = slot.again.take().or_else(|| lane.draw()) else { return };
        slot.in_flight = Some(InFlight { request, intended });
        self.in_flight += 1;
        if self.slots[i].connection.is_none() && self.reconnect(i, now).is_err() {
            self.fail(i, Failure::Connect);
            return;
        }
        let slot = &mut self.slots[i];
        let (workload, target) = (&self.lanes[slot.lane].workload, slot.target);
        let Some(connection) = slot.connection.as_mut() else { return };
        let sent = connection.send(|out| workload.encode(request, target, out));
        self.written(i, sent);
    }

    fn reconnect(&mut self, i: usize, now: Instant) -> Result<(), LoadError> {
        let target = &self.targets[self.slots[i].target];
        let protocol = self.lanes[self.slots[i].lane].workload.protocol();
        let connection = Connection::begin(target.address(), protocol)
            .map_err(|source| LoadError::Connect { target: target.address(), source })?;
        let is_connecting = connection.is_connecting();
        let flags = if is_connecting { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        self.watch(&connection, i, flags)?;
        let slot = &mut self.slots[i];
        (slot.wants_write, slot.connecting_since) = (is_connecting, now);
        slot.connection = Some(connection);
        Ok(())
    }

    /// Bytes were given to the socket. Asks for, or no longer for, the moment when it takes more. False: the connection
    /// was lost.
    fn written(&mut self, i: usize, sent: Result<bool, Lost>) -> bool {
        let slot = &mut self.slots[i];
        let Some(connection) = &slot.connection else { return false };
        let is_well = match sent {
            Ok(all) if slot.wants_write != all => true,
            Ok(all) => {
                slot.wants_write = !all;
                let flags = if all { EventFlags::IN } else { EventFlags::IN | EventFlags::OUT };
                epoll::modify(&self.poll, connection, EventData::new_u64(i as u64), flags).is_ok()
            }
            Err(_) => false,
        };
        if !is_well {
            let failure = if connection.is_connecting() { Failure::Connect } else { Failure::Broken };
            self.fail(i, failure);
        }
        is_well
    }

    fn handle(&mut self, i: usize, flags: EventFlags) {
        const ENDED: EventFlags = EventFlags::HUP.union(EventFlags::ERR);
        let slot = &mut self.slots[i];
        let Some(connection) = slot.connection.as_mut() else { return };
        if slot.wants_write && flags.intersects(EventFlags::OUT | ENDED) {
            let sent = connection.flush();
            if !self.written(i, sent) {
                return;
            }
        }
        if !flags.intersects(EventFlags::IN | ENDED) {
            return;
        }
        let slot = &mut self.slots[i];
        let Some(connection) = slot.connection.as_mut() else { return };
        let keep_body = self.lanes[slot.lane].verify;
        match connection.receive(&mut self.scratch, keep_body) {
            Ok(None) => {}
            Ok(Some(response)) => self.answered(i, response),
            Err(Lost::Broken) => self.fail(i, Failure::Broken),
            Err(Lost::Malformed) => self.fail(i, Failure::Malformed),
        }
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
        let entries = if request.operation == Operation::Range { response.chunks } else { 0 };
        let Response { status, body_bytes, .. } = response;
        let outcome = Outcome { status, wrong_value, body_bytes, entries };
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

    fn watch(&self, connection: &Connection, slot: usize, flags: EventFlags) -> Result<(), LoadError> {
        epoll::add(&self.poll, connection, EventData::new_u64(slot as u64), flags).map_err(LoadError::epoll)
    }

    fn finish(mut self) -> Driven {
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
            lane.recorder.finish();
        }
        let ended = self.times.end.min(now);
        Driven { recorders: self.lanes.into_iter().map(|lane| lane.recorder).collect(), ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeySpace;
    use crate::schedule::{Pacing, Share};
    use crate::workload::WorkloadSpec;

    #[test]
    fn requests_that_waited_too_long_are_given_up_and_latencies_count_from_the_sending() {
        let at = |millis: u64| Instant::ZERO + Duration::from_millis(millis);
        let (spec, targets) = (WorkloadSpec::default(), ["127.0.0.1:1".parse().unwrap()]);
        let lane = Lane {
            name: String::new(),
            connections: 1,
            pacing: Pacing::Rate(1_000),
            burst: Duration::ZERO,
            workload: spec,
            requests: None,
            verify: false,
            retry: false,
            patience: Some(Duration::from_millis(10)),
        };
        let schedule = Schedule::new(lane.pacing, 1, Share { index: 0, of: 1 }, at(0), at(1_000));
        let workload = Workload::new(&spec, KeySpace::new(spec.keys), &targets, 0);
        let recorder = Recorder::new(at(0), at(1_000), Arc::default());
        let mut share = LaneShare::new(&lane, schedule, workload, recorder, None);
        share.schedule.release(at(100), |_| {});
        assert_eq!(share.take(0, at(100)), Some(at(100)));
        assert_eq!(share.recorder.failures().get(&Failure::Unsent), Some(&90));
        assert_eq!(share.take(0, at(101)), Some(at(101)));
        assert_eq!(share.recorder.failures().get(&Failure::Unsent), Some(&90));
    }
}
