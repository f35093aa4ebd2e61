//! Runs of the generator: their specification, and the threads that carry them out.

use crate::affinity::pin_current_thread;
use crate::clock::{RunClock, until};
use crate::connection::Connection;
use crate::driver::{Driver, TargetConnection, ThreadLane, ThreadResult};
use crate::keys::KeySpace;
use crate::protocol::Protocol;
use crate::recorder::{Recorder, SharedTimeline, second_of};
use crate::schedule::{Pacing, Schedule, ThreadShare};
use crate::stop::StopFlag;
use crate::target::Target;
use crate::threads::join_scoped;
use crate::timeline::Row;
use crate::workload::{Operation, Workload, WorkloadSpec};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{fmt, io, thread};
use stdx::Instant;

/// Time from the start of the clock to the first slot, in which all threads start.
const START_DELAY: Duration = Duration::from_millis(5);
/// Delay from the end of a second to its display. By then every thread has published its row.
const DISPLAY_DELAY: Duration = Duration::from_millis(120);

/// Connections that send the same kind of load at the same pace.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Name in reports.
    pub name: String,
    /// Connections over all threads; at least one per thread.
    pub connections: usize,
    /// Pacing of the requests.
    pub pacing: Pacing,
    /// With a rate: requests due within this interval start together. Zero: each request starts at
    /// its own time.
    pub burst: Duration,
    /// Requests to send.
    pub workload: WorkloadSpec,
    /// Number of requests after which the lane stops.
    pub requests: Option<u64>,
    /// Compare the values in responses with the expected bytes.
    pub verify: bool,
    /// Repeat a request until it has the expected status, as a preload needs.
    pub retry: bool,
    /// With a rate above the capacity of the servers: time that a request waits for its connection
    /// before it is abandoned, as a user would. Latencies then count from sending, because the wait
    /// before depends mainly on the number of connections. `None`: requests wait until the end of
    /// the run, and all of the wait counts.
    pub send_timeout: Option<Duration>,
    /// Time that a request waits for its response before it is abandoned. Its connection is reset
    /// and established again, so that the rate of requests may exceed that of responses. `None`:
    /// requests wait until the end of the run.
    pub answer_timeout: Option<Duration>,
}

/// Specification of a run.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// Servers. Connections are distributed over them evenly.
    pub targets: Vec<Target>,
    /// Number of generator threads.
    pub threads: usize,
    /// Cores for the threads, assigned round-robin; empty: not pinned.
    pub cores: Vec<usize>,
    /// Requests whose intended start lies within this time are not counted.
    pub warmup: Duration,
    /// Time to measure after the warm-up. `None`: until every lane has sent its requests.
    pub duration: Option<Duration>,
    /// Lanes of the run.
    pub lanes: Vec<Lane>,
}

/// Measurement of a lane.
#[derive(Debug)]
pub struct LaneResult {
    /// Name of the lane.
    pub name: String,
    /// Pacing of the lane.
    pub pacing: Pacing,
    /// Burst interval; see [`Lane::burst`].
    pub burst: Duration,
    /// Latencies, statuses and failures.
    pub recorder: Recorder,
    /// Measured time, without the warm-up and without the wait for the last responses.
    pub elapsed: Duration,
}

/// A second of the first lane that has ended.
#[derive(Debug)]
pub struct LiveSecond {
    /// Number of the second from the end of the warm-up; negative during the warm-up.
    pub second: i64,
    /// Part of the second that belongs to the run.
    pub covered: Duration,
    /// Responses and failures of the second.
    pub row: Row,
}

/// Callbacks of a run.
pub struct RunHooks<'a> {
    /// Flag that ends the run early.
    pub stop: &'a StopFlag,
    /// Called after each second of the run.
    pub on_second: &'a mut dyn FnMut(&LiveSecond),
}

impl LaneResult {
    /// Responses of any status per second.
    pub fn answers_per_second(&self) -> f64 {
        self.per_second(self.recorder.answers())
    }

    /// Responses per second that arrived during the measured time, but at most as many as were
    /// requested in it. Late responses after the end, and responses to requests of the warm-up,
    /// cannot make a rate look kept.
    pub fn arrived_per_second(&self) -> f64 {
        self.per_second(self.recorder.arrived().min(self.recorder.answers()))
    }

    /// Successful responses per second that arrived during the measured time.
    pub fn served_per_second(&self) -> f64 {
        self.per_second(self.recorder.arrived_served())
    }

    fn per_second(&self, count: u64) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { count as f64 / self.elapsed.as_secs_f64() }
    }
}

/// Reason why a run failed.
#[derive(Debug)]
pub enum LoadError {
    /// The specification is inconsistent.
    Spec(&'static str),
    /// A connection could not be established at the start.
    Connect {
        /// Address of the server.
        target: SocketAddr,
        /// Error of the socket.
        source: io::Error,
    },
    /// Epoll, timers or pinning failed.
    System(io::Error),
}

impl LoadError {
    pub(crate) fn epoll(errno: rustix::io::Errno) -> Self {
        Self::System(errno.into())
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spec(reason) => f.write_str(reason),
            Self::Connect { target, source } => write!(f, "no connection to {target}: {source}"),
            Self::System(source) => write!(f, "the generator failed: {source}"),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Spec(_) => None,
            Self::Connect { source, .. } | Self::System(source) => Some(source),
        }
    }
}

/// Carries out a run without hooks, as [`run_with_hooks`] does.
///
/// # Errors
/// As [`run_with_hooks`].
pub fn run(spec: &RunSpec) -> Result<Vec<LaneResult>, LoadError> {
    run_with_hooks(spec, RunHooks { stop: &StopFlag::default(), on_second: &mut |_| {} })
}

/// Carries out a run. Blocks until it is over. The results are in the order of the lanes.
///
/// # Errors
/// [`LoadError`] if nothing was measured. Failures of a server *during* the run are counted, and
/// are no error.
pub fn run_with_hooks(spec: &RunSpec, mut hooks: RunHooks<'_>) -> Result<Vec<LaneResult>, LoadError> {
    validate(spec)?;
    let targets: Arc<[Target]> = spec.targets.clone().into();
    let shared_timelines: Vec<Arc<SharedTimeline>> = spec.lanes.iter().map(|_| Arc::default()).collect();
    let prepared = prepare(spec, &targets)?;
    let clock = RunClock::start();
    let times = RunTimes::new(spec, clock.now() + START_DELAY);
    let run = Run { spec, targets, shared_timelines, clock, times };
    let drivers = prepared.into_iter().enumerate().map(|(i, lanes)| run.driver(hooks.stop, i, lanes));
    let drivers = drivers.collect::<Result<Vec<_>, _>>()?;
    let driven = run.drive(drivers, &mut hooks)?;
    let ended = driven.iter().map(|thread| thread.ended).max().unwrap_or(times.measured_from);
    let elapsed = ended - times.measured_from;
    let mut results = Vec::new();
    for (i, lane) in spec.lanes.iter().enumerate() {
        let mut recorder = run.recorder(i);
        driven.iter().for_each(|thread| recorder.merge(&thread.recorders[i]));
        let Lane { name, pacing, burst, .. } = lane;
        results.push(LaneResult { name: name.clone(), pacing: *pacing, burst: *burst, recorder, elapsed });
    }
    Ok(results)
}

fn validate(spec: &RunSpec) -> Result<(), LoadError> {
    if spec.threads == 0 || spec.lanes.is_empty() {
        return Err(LoadError::Spec("a run needs a thread and a lane"));
    }
    if spec.targets.is_empty() {
        return Err(LoadError::Spec("a run needs a target"));
    }
    if spec.lanes.iter().any(|lane| lane.connections < spec.threads) {
        return Err(LoadError::Spec("each thread needs a connection of each lane"));
    }
    let speaks = |lane: &Lane| {
        let WorkloadSpec { mix, protocol, .. } = lane.workload;
        Operation::ALL.into_iter().all(|operation| !mix.has(operation) || protocol.has(operation))
    };
    if !spec.lanes.iter().all(speaks) {
        return Err(LoadError::Spec("the protocol has no such operation"));
    }
    if spec.duration.is_none() && spec.lanes.iter().any(|lane| lane.requests.is_none()) {
        return Err(LoadError::Spec("a run without a duration needs a number of requests for each lane"));
    }
    Ok(())
}

/// Times of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunTimes {
    pub(crate) start: Instant,
    pub(crate) measured_from: Instant,
    pub(crate) end: Instant,
}

impl RunTimes {
    fn new(spec: &RunSpec, start: Instant) -> Self {
        let measured_from = start + spec.warmup;
        let end = spec.duration.map_or(Instant::from_nanos(u64::MAX), |duration| measured_from + duration);
        Self { start, measured_from, end }
    }
}

/// The part of a lane on one thread, before the run starts.
struct LaneSetup {
    workload: Workload,
    connections: Vec<TargetConnection>,
    requests_left: Option<Arc<AtomicU64>>,
}

/// Prepares each thread and lane: opens connections and computes key distributions, which may take
/// long.
fn prepare(spec: &RunSpec, targets: &[Target]) -> Result<Vec<Vec<LaneSetup>>, LoadError> {
    let mut threads: Vec<Vec<LaneSetup>> = (0..spec.threads).map(|_| Vec::new()).collect();
    for lane in &spec.lanes {
        let requests_left = lane.requests.map(|requests| Arc::new(AtomicU64::new(requests)));
        let space = KeySpace::new(lane.workload.keys);
        let mut opened = 0;
        for (i, thread) in threads.iter_mut().enumerate() {
            let count = share_of(lane.connections, i, spec.threads);
            let connections =
                (opened..opened + count).map(|number| connect(targets, lane.workload.protocol, number));
            thread.push(LaneSetup {
                workload: Workload::new(&lane.workload, space.clone(), targets, i as u64),
                connections: connections.collect::<Result<_, _>>()?,
                requests_left: requests_left.clone(),
            });
            opened += count;
        }
    }
    Ok(threads)
}

fn connect(targets: &[Target], protocol: Protocol, number: usize) -> Result<TargetConnection, LoadError> {
    let target = number % targets.len();
    let address = targets[target].address();
    let connection = Connection::open(address, protocol)
        .map_err(|source| LoadError::Connect { target: address, source })?;
    Ok(TargetConnection { target, connection })
}

/// State that all threads of a run share.
struct Run<'a> {
    spec: &'a RunSpec,
    targets: Arc<[Target]>,
    /// Shared timelines, by lane.
    shared_timelines: Vec<Arc<SharedTimeline>>,
    clock: RunClock,
    times: RunTimes,
}

impl Run<'_> {
    fn recorder(&self, lane: usize) -> Recorder {
        Recorder::new(self.times.measured_from, self.times.end, Arc::clone(&self.shared_timelines[lane]))
    }

    fn driver(&self, stop: &StopFlag, thread: usize, lanes: Vec<LaneSetup>) -> Result<Driver, LoadError> {
        let share = ThreadShare { index: thread as u64, of: self.spec.threads as u64 };
        let shares = lanes.into_iter().enumerate().map(|(i, prepared)| {
            let (lane, times) = (&self.spec.lanes[i], self.times);
            let schedule =
                Schedule::new(lane.pacing, prepared.connections.len(), share, times.start, times.end)
                    .in_bursts(lane.burst);
            let share =
                ThreadLane::new(lane, schedule, prepared.workload, self.recorder(i), prepared.requests_left);
            (share, prepared.connections)
        });
        Driver::new(Arc::clone(&self.targets), stop.clone(), self.clock, self.times, shares.collect())
    }

    /// Starts the threads, reports each second while they run, and returns their results.
    fn drive(&self, drivers: Vec<Driver>, hooks: &mut RunHooks<'_>) -> Result<Vec<ThreadResult>, LoadError> {
        let cores = &self.spec.cores;
        let (alive, all_done) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let spawn = |(i, driver): (usize, Driver)| {
                let core = (!cores.is_empty()).then(|| cores[i % cores.len()]);
                let alive = alive.clone();
                scope.spawn(move || {
                    let _alive = alive;
                    pin_current_thread(core.as_slice()).map_err(LoadError::System)?;
                    driver.run()
                })
            };
            let threads: Vec<_> = drivers.into_iter().enumerate().map(spawn).collect();
            drop(alive);
            self.show_seconds(&all_done, hooks);
            threads.into_iter().map(join_scoped).collect()
        })
    }

    /// Reports the seconds until all threads have ended.
    fn show_seconds(&self, all_done: &mpsc::Receiver<()>, hooks: &mut RunHooks<'_>) {
        let mut second = second_of(self.times.measured_from, self.times.start);
        loop {
            let ends = self.second_starts(second + 1);
            let wait = until(self.clock.now(), ends + DISPLAY_DELAY);
            let is_done = all_done.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
            let now = self.clock.now();
            let shown_to = if is_done { ends.min(now) } else { ends };
            let covered = shown_to.min(self.times.end) - self.second_starts(second).max(self.times.start);
            let row = self.shared_timelines[0].take_recent(second);
            // After the end there is something to report only if late responses arrived.
            if !covered.is_zero() || row != Row::default() {
                (hooks.on_second)(&LiveSecond { second, covered, row });
            }
            second += 1;
            if is_done && now < ends {
                return;
            }
        }
    }

    fn second_starts(&self, second: i64) -> Instant {
        let from = i128::from(self.times.measured_from.as_nanos());
        let nanos = from + i128::from(second) * 1_000_000_000;
        Instant::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}

fn share_of(connections: usize, thread: usize, threads: usize) -> usize {
    connections / threads + usize::from(thread < connections % threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_all_connections_evenly() {
        for (connections, threads) in [(1, 1), (64, 2), (7, 3), (3, 3)] {
            let shares: Vec<_> = (0..threads).map(|thread| share_of(connections, thread, threads)).collect();
            assert_eq!(shares.iter().sum::<usize>(), connections);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }
}
