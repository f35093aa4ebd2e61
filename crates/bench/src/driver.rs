//! Event loop of a generator thread: its connections and its epoll instance.
//!
//! Each iteration releases the slots that are due, waits for responses until the next slot, and
//! sends the next request on each connection that became free. A lost connection is re-established
//! without blocking. A lane with [`Lane::answer_timeout`] abandons requests that wait too long, and
//! resets their connections. At the end of the run, or when it is asked to stop, no request starts
//! any more. Requests in flight may be answered for [`DRAIN_TIMEOUT`], then they are recorded as
//! unanswered.

use crate::clock::{RunClock, until};
use crate::connection::{CONNECT_TIMEOUT, Connection, ConnectionError};
use crate::load::{Lane, LoadError, RunTimes};
use crate::recorder::{Failure, Recorder, ResponseOutcome};
use crate::response::Response;
use crate::schedule::Schedule;
use crate::stop::StopFlag;
use crate::target::Target;
use crate::workload::{Operation, Request, Workload};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;
use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::Instant;

/// Time to wait for responses after the end of the run.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to wait for responses after the user asked to stop.
const DRAIN_TIMEOUT_STOPPED: Duration = Duration::from_secs(1);
/// Maximum interval between two checks for a stop request and for the end of a second.
const TICK: Duration = Duration::from_millis(50);
/// Delay before a failed connection is retried, and before a request is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(10);
const READ_BYTES: usize = 64 * 1024;
const EVENTS_MAX: usize = 512;
/// Timer slack of the thread. The kernel's default of 50 µs would be part of every latency at a low
/// rate.
const TIMER_SLACK_NANOS: NonZeroU64 = NonZeroU64::MIN;

/// The part of a lane that one thread drives.
#[derive(Debug)]
pub(crate) struct ThreadLane {
    pub(crate) schedule: Schedule,
    pub(crate) workload: Workload,
    pub(crate) recorder: Recorder,
    /// Requests still to be started, shared by all threads. `None`: no limit.
    pub(crate) requests_left: Option<Arc<AtomicU64>>,
    pub(crate) verify: bool,
    pub(crate) retry: bool,
    send_timeout: Option<Duration>,
    answer_timeout: Option<Duration>,
    is_exhausted: bool,
    first_client: usize,
}

impl ThreadLane {
    pub(crate) fn new(
        lane: &Lane,
        schedule: Schedule,
        workload: Workload,
        recorder: Recorder,
        requests_left: Option<Arc<AtomicU64>>,
    ) -> Self {
        let Lane { verify, retry, send_timeout, answer_timeout, .. } = *lane;
        let (is_exhausted, first_client) = (false, 0);
        Self {
            schedule,
            workload,
            recorder,
            requests_left,
            verify,
            retry,
            send_timeout,
            answer_timeout,
            is_exhausted,
            first_client,
        }
    }

    /// Claims a request for a free connection. Returns the time from which its latency counts, or
    /// `None` if no request is due at `now`.
    fn claim(&mut self, connection: usize, now: Instant) -> Option<Instant> {
        let Some(send_timeout) = self.send_timeout else { return self.schedule.claim(connection, now) };
        loop {
            let intended = self.schedule.claim(connection, now)?;
            if now - intended <= send_timeout {
                return Some(now);
            }
            let operation = self.workload.next().operation;
            self.recorder.failure(operation, intended, now, Failure::Unsent);
        }
    }

    fn draw_request(&mut self) -> Option<Request> {
        if let Some(requests_left) = &self.requests_left {
            let claimed =
                requests_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if claimed.is_err() {
                self.is_exhausted = true;
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
    number: u64,
}

/// A request that is abandoned at a time, unless it is answered by then.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    client: usize,
    /// [`InFlight::number`] of the request.
    number: u64,
}

#[derive(Debug)]
struct Client {
    lane: usize,
    index: usize,
    target: usize,
    connection: Option<Connection>,
    connecting_since: Instant,
    in_flight: Option<InFlight>,
    retry_request: Option<Request>,
    wants_write: bool,
    is_parked: bool,
}

/// A connection with the index of its target.
#[derive(Debug)]
pub(crate) struct TargetConnection {
    pub(crate) target: usize,
    pub(crate) connection: Connection,
}

/// Results of a generator thread.
#[derive(Debug)]
pub(crate) struct ThreadResult {
    /// Recorders, by lane.
    pub(crate) recorders: Vec<Recorder>,
    /// Time from which no request started any more.
    pub(crate) ended: Instant,
}

/// State of a generator thread.
#[derive(Debug)]
pub(crate) struct Driver {
    targets: Arc<[Target]>,
    stop: StopFlag,
    is_stopped: bool,
    next_tick: Instant,
    due: Vec<usize>,
    clock: RunClock,
    times: RunTimes,
    poll: OwnedFd,
    lanes: Vec<ThreadLane>,
    clients: Vec<Client>,
    parked: BTreeSet<(Instant, usize)>,
    /// Deadlines by lane. Those of a lane are in the order of their times.
    deadlines: Vec<VecDeque<Deadline>>,
    sent: u64,
    in_flight: usize,
    scratch: Vec<u8>,
    expected: Vec<u8>,
}

impl Driver {
    /// Creates the driver of these lanes, each with its open connections.
    pub(crate) fn new(
        targets: Arc<[Target]>,
        stop: StopFlag,
        clock: RunClock,
        times: RunTimes,
        lanes: Vec<(ThreadLane, Vec<TargetConnection>)>,
    ) -> Result<Self, LoadError> {
        let mut driver = Self {
            targets,
            stop,
            is_stopped: false,
            next_tick: times.start,
            due: Vec::new(),
            clock,
            times,
            poll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(LoadError::epoll)?,
            lanes: Vec::new(),
            clients: Vec::new(),
            parked: BTreeSet::new(),
            deadlines: Vec::new(),
            sent: 0,
            in_flight: 0,
            scratch: vec![0; READ_BYTES],
            expected: Vec::new(),
        };
        for (mut share, connections) in lanes {
            let lane = driver.lanes.len();
            share.first_client = driver.clients.len();
            driver.lanes.push(share);
            driver.deadlines.push(VecDeque::new());
            for (index, TargetConnection { target, connection }) in connections.into_iter().enumerate() {
                driver.register(&connection, driver.clients.len(), EventFlags::IN)?;
                driver.clients.push(Client {
                    lane,
                    index,
                    target,
                    connection: Some(connection),
                    connecting_since: Instant::ZERO,
                    in_flight: None,
                    retry_request: None,
                    wants_write: false,
                    is_parked: false,
                });
            }
        }
        Ok(driver)
    }

    /// Runs to the end of the run.
    pub(crate) fn run(mut self) -> Result<ThreadResult, LoadError> {
        rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NANOS)).map_err(LoadError::epoll)?;
        let mut events = Vec::with_capacity(EVENTS_MAX);
        std::thread::sleep(until(self.clock.now(), self.times.start));
        let now = self.clock.now();
        (0..self.clients.len()).for_each(|client| self.start(client, now));
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
            // A response that has arrived counts, even if it is read late.
            let is_all = events.len() < EVENTS_MAX;
            for event in events.drain(..) {
                self.on_event(event.data.u64() as usize, event.flags);
            }
            if is_all {
                self.abandon_late(self.clock.now());
            }
        }
        Ok(self.finish())
    }

    /// Periodic work that need not be done in every iteration: closes rows, checks for a stop
    /// request, and ends connection attempts that take too long.
    fn tick(&mut self, now: Instant) {
        self.next_tick = now + TICK;
        self.lanes.iter_mut().for_each(|lane| lane.recorder.advance_to(now));
        if !self.is_stopped && self.stop.is_set() {
            self.is_stopped = true;
            self.times.end = self.times.end.min(now);
            for lane in &mut self.lanes {
                lane.schedule.end_by(now);
                lane.recorder.end_by(now);
            }
        }
        for client in 0..self.clients.len() {
            let Client { connection, connecting_since, .. } = &self.clients[client];
            let connecting = connection.as_ref().is_some_and(Connection::is_connecting);
            if connecting && now - *connecting_since > CONNECT_TIMEOUT {
                self.fail(client, Failure::Connect);
            }
        }
    }

    fn drain_deadline(&self) -> Instant {
        self.times.end + if self.is_stopped { DRAIN_TIMEOUT_STOPPED } else { DRAIN_TIMEOUT }
    }

    fn is_over(&self, now: Instant) -> bool {
        let nothing_starts = now >= self.times.end || self.lanes.iter().all(|lane| lane.is_exhausted);
        let has_retry = |client: &Client| client.retry_request.is_some();
        let nothing_comes = self.in_flight == 0 && (self.is_stopped || !self.clients.iter().any(has_retry));
        (nothing_starts && nothing_comes) || now >= self.drain_deadline()
    }

    fn release(&mut self, now: Instant) {
        let mut due = std::mem::take(&mut self.due);
        for lane in &mut self.lanes {
            let first = lane.first_client;
            lane.schedule.release(now, |connection| due.push(first + connection));
        }
        for client in due.drain(..) {
            self.start(client, now);
        }
        self.due = due;
    }

    fn unpark(&mut self, now: Instant) {
        while let Some(&(at, client)) = self.parked.first().filter(|(at, _)| *at <= now) {
            self.parked.remove(&(at, client));
            self.clients[client].is_parked = false;
            self.start(client, now);
        }
    }

    /// Abandons the requests whose deadline has passed.
    fn abandon_late(&mut self, now: Instant) {
        for lane in 0..self.deadlines.len() {
            while let Some(deadline) = self.deadlines[lane].pop_front_if(|deadline| deadline.at <= now) {
                self.abandon(deadline, now);
            }
        }
    }

    fn abandon(&mut self, deadline: Deadline, now: Instant) {
        let client = &mut self.clients[deadline.client];
        let Some(InFlight { request, intended, .. }) =
            client.in_flight.take_if(|in_flight| in_flight.number == deadline.number)
        else {
            return;
        };
        self.in_flight -= 1;
        let is_connecting = client.connection.as_ref().is_some_and(Connection::is_connecting);
        let failure = if is_connecting { Failure::Connect } else { Failure::Unanswered };
        self.lanes[client.lane].recorder.failure(request.operation, intended, now, failure);
        if let Some(connection) = client.connection.take() {
            connection.reset();
        }
        self.start(deadline.client, now);
    }

    fn wait(&self, now: Instant, events: &mut Vec<epoll::Event>) -> Result<(), LoadError> {
        let end = if now < self.times.end { self.times.end } else { self.drain_deadline() };
        let releases = self.lanes.iter().filter_map(|lane| lane.schedule.next_release());
        let parked = self.parked.first().map(|(at, _)| *at);
        let deadlines = self.deadlines.iter().filter_map(|lane| Some(lane.front()?.at));
        let wake = releases.chain(parked).chain(deadlines).chain([self.next_tick]).fold(end, Instant::min);
        let timeout = Timespec::try_from(until(now, wake)).ok();
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(LoadError::epoll(error)),
        }
    }

    /// Sends the next request on client `i`, if it is free and a request is due.
    fn start(&mut self, i: usize, now: Instant) {
        let client = &mut self.clients[i];
        if client.in_flight.is_some() || client.is_parked {
            return;
        }
        let lane = &mut self.lanes[client.lane];
        let Some(intended) = lane.claim(client.index, now) else { return };
        let Some(request) = client.retry_request.take().or_else(|| lane.draw_request()) else { return };
        self.sent += 1;
        let number = self.sent;
        client.in_flight = Some(InFlight { request, intended, number });
        if let Some(timeout) = lane.answer_timeout {
            self.deadlines[client.lane].push_back(Deadline { at: now + timeout, client: i, number });
        }
        self.in_flight += 1;
        if self.clients[i].connection.is_none() && self.reconnect(i, now).is_err() {
            self.fail(i, Failure::Connect);
            return;
        }
        let client = &mut self.clients[i];
        let (workload, target) = (&self.lanes[client.lane].workload, client.target);
        let Some(connection) = client.connection.as_mut() else { return };
        let sent = connection.send(|out| workload.encode(request, target, out));
        self.after_send(i, sent);
    }

    fn reconnect(&mut self, i: usize, now: Instant) -> Result<(), LoadError> {
        let target = &self.targets[self.clients[i].target];
        let protocol = self.lanes[self.clients[i].lane].workload.protocol();
        let connection = Connection::start_connect(target.address(), protocol)
            .map_err(|source| LoadError::Connect { target: target.address(), source })?;
        let is_connecting = connection.is_connecting();
        let flags = if is_connecting { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        self.register(&connection, i, flags)?;
        let client = &mut self.clients[i];
        (client.wants_write, client.connecting_since) = (is_connecting, now);
        client.connection = Some(connection);
        Ok(())
    }

    /// Handles the result of a write: registers for writability, or deregisters. Returns `false` if
    /// the connection was lost.
    fn after_send(&mut self, i: usize, sent: Result<bool, ConnectionError>) -> bool {
        let client = &mut self.clients[i];
        let Some(connection) = &client.connection else { return false };
        let is_well = match sent {
            Ok(all) if client.wants_write != all => true,
            Ok(all) => {
                client.wants_write = !all;
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

    fn on_event(&mut self, i: usize, flags: EventFlags) {
        const ENDED: EventFlags = EventFlags::HUP.union(EventFlags::ERR);
        let client = &mut self.clients[i];
        let Some(connection) = client.connection.as_mut() else { return };
        if client.wants_write && flags.intersects(EventFlags::OUT | ENDED) {
            let sent = connection.flush();
            if !self.after_send(i, sent) {
                return;
            }
        }
        if !flags.intersects(EventFlags::IN | ENDED) {
            return;
        }
        let client = &mut self.clients[i];
        let Some(connection) = client.connection.as_mut() else { return };
        let keep_body = self.lanes[client.lane].verify;
        match connection.receive(&mut self.scratch, keep_body) {
            Ok(None) => {}
            Ok(Some(response)) => self.on_response(i, response),
            Err(ConnectionError::Broken) => self.fail(i, Failure::Broken),
            Err(ConnectionError::Malformed) => self.fail(i, Failure::Malformed),
        }
    }

    fn on_response(&mut self, i: usize, response: Response) {
        let now = self.clock.now();
        let client = &mut self.clients[i];
        let Some(InFlight { request, intended, .. }) = client.in_flight.take() else {
            client.connection = None;
            return;
        };
        self.in_flight -= 1;
        let lane = &mut self.lanes[client.lane];
        let checked = lane.verify && request.operation == Operation::Get && response.status == 200;
        let wrong_value = checked
            && client.connection.as_ref().is_some_and(|connection| {
                !lane.workload.is_value_of(request.key, connection.body(), &mut self.expected)
            });
        let entries = if request.operation == Operation::Range { response.chunks } else { 0 };
        let Response { status, body_bytes, .. } = response;
        let outcome = ResponseOutcome { status, wrong_value, body_bytes, entries };
        lane.recorder.answer(request.operation, intended, now, outcome);
        if !response.keep_alive {
            client.connection = None;
        }
        if lane.retry && response.status != request.operation.expected_status() {
            self.park(i, request, now);
        } else {
            self.start(i, now);
        }
    }

    /// Drops a lost connection, and records the failure of the request that it carried.
    fn fail(&mut self, i: usize, failure: Failure) {
        let now = self.clock.now();
        let client = &mut self.clients[i];
        client.connection = None;
        let Some(InFlight { request, intended, .. }) = client.in_flight.take() else { return };
        self.in_flight -= 1;
        let lane = &mut self.lanes[client.lane];
        lane.recorder.failure(request.operation, intended, now, failure);
        self.park(i, request, now);
    }

    fn park(&mut self, i: usize, request: Request, now: Instant) {
        let client = &mut self.clients[i];
        if self.lanes[client.lane].retry {
            client.retry_request = Some(request);
        }
        client.is_parked = true;
        self.parked.insert((now + RETRY_DELAY, i));
    }

    fn register(&self, connection: &Connection, client: usize, flags: EventFlags) -> Result<(), LoadError> {
        epoll::add(&self.poll, connection, EventData::new_u64(client as u64), flags).map_err(LoadError::epoll)
    }

    fn finish(mut self) -> ThreadResult {
        let now = self.clock.now();
        for client in &self.clients {
            if let Some(InFlight { request, intended, .. }) = client.in_flight {
                let recorder = &mut self.lanes[client.lane].recorder;
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
        ThreadResult { recorders: self.lanes.into_iter().map(|lane| lane.recorder).collect(), ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeySpace;
    use crate::load::{RunSpec, run};
    use crate::schedule::{Pacing, ThreadShare};
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
            send_timeout: Some(Duration::from_millis(10)),
            answer_timeout: None,
        };
        let schedule = Schedule::new(lane.pacing, 1, ThreadShare { index: 0, of: 1 }, at(0), at(1_000));
        let workload = Workload::new(&spec, KeySpace::new(spec.keys), &targets, 0);
        let recorder = Recorder::new(at(0), at(1_000), Arc::default());
        let mut share = ThreadLane::new(&lane, schedule, workload, recorder, None);
        share.schedule.release(at(100), |_| {});
        assert_eq!(share.claim(0, at(100)), Some(at(100)));
        assert_eq!(share.recorder.failures().get(&Failure::Unsent), Some(&90));
        assert_eq!(share.claim(0, at(101)), Some(at(101)));
        assert_eq!(share.recorder.failures().get(&Failure::Unsent), Some(&90));
    }

    /// The server accepts connections and never answers: the run ends only by abandonment.
    #[test]
    fn requests_without_an_answer_are_abandoned_and_their_connections_send_the_next_ones() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let lane = Lane {
            name: String::new(),
            connections: 4,
            pacing: Pacing::Closed,
            burst: Duration::ZERO,
            workload: WorkloadSpec::default(),
            requests: Some(20),
            verify: false,
            retry: false,
            send_timeout: None,
            answer_timeout: Some(Duration::from_millis(10)),
        };
        let spec = RunSpec {
            targets: vec![listener.local_addr().unwrap().into()],
            threads: 1,
            cores: Vec::new(),
            warmup: Duration::ZERO,
            duration: None,
            lanes: vec![lane],
        };
        let results = run(&spec).unwrap();
        let failures = results[0].recorder.failures();
        assert_eq!((results[0].recorder.answers(), failures.values().sum::<u64>()), (0, 20), "{failures:?}");
    }
}
