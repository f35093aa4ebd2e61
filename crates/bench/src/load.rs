//! Runs: what to ask, of whom, for how long; and the threads that do it.

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

/// From the start of the clock to the first slot: enough for every thread to be there.
const START_DELAY: Duration = Duration::from_millis(5);
/// A second is shown so long after its end: by then every thread has handed in its row.
const DISPLAY_DELAY: Duration = Duration::from_millis(120);

/// Connections that ask for the same kind of thing at the same pace.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Its name in reports.
    pub name: String,
    /// Over all threads, and at least one for each.
    pub connections: usize,
    /// What starts a request.
    pub pacing: Pacing,
    /// With a rate: what is due within so long starts together. Zero: each request at its own time.
    pub burst: Duration,
    /// What is asked.
    pub workload: WorkloadSpec,
    /// StopFlag after so many requests.
    pub requests: Option<u64>,
    /// Check the bytes of values.
    pub verify: bool,
    /// Send a request again until it gets the status it expects, as a preload must.
    pub retry: bool,
    /// With a rate that is meant to be more than the servers take: how long a request waits for its connection before it
    /// is given up, as its user would. Latencies then count from the sending, as the wait before says more about the
    /// number of connections. `None`: requests wait to the end of the run, and all that they wait counts.
    pub send_timeout: Option<Duration>,
}

/// A run of the generator.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// The servers. Connections are spread over them evenly.
    pub targets: Vec<Target>,
    /// Generator threads.
    pub threads: usize,
    /// Cores for the generator threads, given out in turn; none: not pinned.
    pub cores: Vec<usize>,
    /// Requests that are meant to start before this has passed are not counted.
    pub warmup: Duration,
    /// From the end of the warm-up. `None`: until every lane has sent its requests.
    pub duration: Option<Duration>,
    /// What is asked.
    pub lanes: Vec<Lane>,
}

/// What one lane measured.
#[derive(Debug)]
pub struct LaneResult {
    /// Its name.
    pub name: String,
    /// What it was asked to keep up.
    pub pacing: Pacing,
    /// What of it started together; see [`Lane::burst`].
    pub burst: Duration,
    /// Latencies, statuses, failures.
    pub recorder: Recorder,
    /// Time that was measured, without the warm-up and without the wait for the last answers.
    pub elapsed: Duration,
}

/// A second that is over, of the first lane.
#[derive(Debug)]
pub struct LiveSecond {
    /// From the end of the warm-up; below 0 in the warm-up.
    pub second: i64,
    /// How much of it belongs to the run.
    pub covered: Duration,
    /// What came in it.
    pub row: Row,
}

/// Who looks on while a run lasts.
pub struct RunHooks<'a> {
    /// Ends the run early.
    pub stop: &'a StopFlag,
    /// Is shown each second when it is over.
    pub on_second: &'a mut dyn FnMut(&LiveSecond),
}

impl LaneResult {
    /// Answers of any status a second.
    pub fn answers_per_second(&self) -> f64 {
        self.per_second(self.recorder.answers())
    }

    /// Answers a second that came while the run was measured, but no more than were asked for in that time: neither late
    /// answers after the end nor those that the warm-up had left behind make a rate look kept.
    pub fn arrived_per_second(&self) -> f64 {
        self.per_second(self.recorder.arrived().min(self.recorder.answers()))
    }

    /// Answers a second that did what was asked, of those that came while the run was measured.
    pub fn served_per_second(&self) -> f64 {
        self.per_second(self.recorder.arrived_served())
    }

    fn per_second(&self, count: u64) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { count as f64 / self.elapsed.as_secs_f64() }
    }
}

/// A run could not be made.
#[derive(Debug)]
pub enum LoadError {
    /// The run contradicts itself.
    Spec(&'static str),
    /// A connection could not be made at the start.
    Connect {
        /// The server.
        target: SocketAddr,
        /// Why.
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
            Self::System(source) => write!(f, "the generator's own machinery: {source}"),
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

/// Makes a run that nobody watches. See [`run_with_hooks`].
///
/// # Errors
/// As [`run_with_hooks`].
pub fn run(spec: &RunSpec) -> Result<Vec<LaneResult>, LoadError> {
    run_with_hooks(spec, RunHooks { stop: &StopFlag::default(), on_second: &mut |_| {} })
}

/// Makes a run. Blocks until it is over; results are in the order of the lanes.
///
/// # Errors
/// [`LoadError`]: nothing was measured. A server that fails *during* a run is no error: it is counted.
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

/// The times of a run.
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

/// A lane's share on one thread, before the clock runs.
struct LaneSetup {
    workload: Workload,
    connections: Vec<TargetConnection>,
    requests_left: Option<Arc<AtomicU64>>,
}

/// Everything that takes long, for each thread and lane.
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

/// What all threads of a run have in common.
struct Run<'a> {
    spec: &'a RunSpec,
    targets: Arc<[Target]>,
    /// Of each lane.
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

    /// Starts the threads, shows each second while they last, and takes what they hand back.
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

    /// Until all threads are done.
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
            // After the end there is something to show only when late answers came.
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
