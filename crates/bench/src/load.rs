//! Runs: what to ask, of whom, for how long; and the threads that do it.

use crate::affinity::pin_current_thread;
use crate::clock::RunClock;
use crate::connection::Connection;
use crate::driver::{Driver, LaneShare};
use crate::keys::KeySpace;
use crate::recorder::Recorder;
use crate::schedule::{Pacing, Schedule, Share};
use crate::workload::{Workload, WorkloadSpec};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use std::{fmt, io, panic, thread};
use stdx::Instant;

/// From the start of the clock to the first slot: enough for every thread to be there.
const HEAD_START: Duration = Duration::from_millis(5);

/// Connections that ask for the same kind of thing at the same pace.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Its name in reports.
    pub name: String,
    /// Over all threads, and at least one for each.
    pub connections: usize,
    /// What starts a request.
    pub pacing: Pacing,
    /// What is asked.
    pub workload: WorkloadSpec,
    /// Stop after so many requests.
    pub requests: Option<u64>,
    /// Check the bytes of values.
    pub verify: bool,
    /// Send a request again until it gets the status it expects, as a preload must.
    pub retry: bool,
}

/// A run of the generator.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// The server.
    pub target: SocketAddr,
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
    /// Latencies, statuses, failures.
    pub recorder: Recorder,
    /// Time that was measured, without the warm-up.
    pub elapsed: Duration,
}

impl LaneResult {
    /// Answers of any status a second.
    pub fn answers_per_second(&self) -> f64 {
        self.recorder.answers() as f64 / self.elapsed.as_secs_f64()
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

/// Makes a run. Blocks until it is over; results are in the order of the lanes.
///
/// # Errors
/// [`LoadError`]: nothing was measured. A server that fails *during* a run is no error: it is counted.
pub fn run(spec: &RunSpec) -> Result<Vec<LaneResult>, LoadError> {
    check(spec)?;
    let prepared = prepare(spec)?;
    let clock = RunClock::start();
    let times = Times::new(spec, clock.now() + HEAD_START);
    let drivers = prepared.into_iter().enumerate().map(|(i, lanes)| driver(spec, clock, times, i, lanes));
    let drivers = drivers.collect::<Result<Vec<_>, _>>()?;
    let recorders = drive(spec, drivers)?;
    let ran = clock.now() - times.measured_from;
    let elapsed = spec.duration.map_or(ran, |duration| duration.min(ran));
    let mut results: Vec<LaneResult> = (spec.lanes.iter())
        .map(|lane| LaneResult {
            name: lane.name.clone(),
            recorder: Recorder::new(times.measured_from),
            elapsed,
        })
        .collect();
    for thread in &recorders {
        for (result, recorder) in results.iter_mut().zip(thread) {
            result.recorder.merge(recorder);
        }
    }
    Ok(results)
}

fn check(spec: &RunSpec) -> Result<(), LoadError> {
    if spec.threads == 0 || spec.lanes.is_empty() {
        return Err(LoadError::Spec("a run needs a thread and a lane"));
    }
    if spec.lanes.iter().any(|lane| lane.connections < spec.threads) {
        return Err(LoadError::Spec("each thread needs a connection of each lane"));
    }
    if spec.duration.is_none() && spec.lanes.iter().any(|lane| lane.requests.is_none()) {
        return Err(LoadError::Spec("a run without a duration needs a number of requests for each lane"));
    }
    Ok(())
}

fn drive(spec: &RunSpec, drivers: Vec<Driver>) -> Result<Vec<Vec<Recorder>>, LoadError> {
    thread::scope(|scope| {
        let spawn = |(i, driver): (usize, Driver)| {
            let core = (!spec.cores.is_empty()).then(|| spec.cores[i % spec.cores.len()]);
            scope.spawn(move || {
                pin_current_thread(core.as_slice()).map_err(LoadError::System)?;
                driver.run()
            })
        };
        let threads: Vec<_> = drivers.into_iter().enumerate().map(spawn).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
        };
        threads.into_iter().map(join).collect()
    })
}

/// The times of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) start: Instant,
    pub(crate) measured_from: Instant,
    pub(crate) end: Instant,
}

impl Times {
    fn new(spec: &RunSpec, start: Instant) -> Self {
        let measured_from = start + spec.warmup;
        let end = spec.duration.map_or(Instant::from_nanos(u64::MAX), |duration| measured_from + duration);
        Self { start, measured_from, end }
    }
}

/// A lane's share on one thread, before the clock runs.
struct Prepared {
    workload: Workload,
    connections: Vec<Connection>,
    tickets: Option<Arc<AtomicU64>>,
}

/// Everything that takes long, for each thread and lane.
fn prepare(spec: &RunSpec) -> Result<Vec<Vec<Prepared>>, LoadError> {
    let mut threads: Vec<Vec<Prepared>> = (0..spec.threads).map(|_| Vec::new()).collect();
    for lane in &spec.lanes {
        let tickets = lane.requests.map(|requests| Arc::new(AtomicU64::new(requests)));
        let space = KeySpace::new(lane.workload.keys);
        for (i, thread) in threads.iter_mut().enumerate() {
            let count = share_of(lane.connections, i, spec.threads);
            let connections = (0..count).map(|_| Connection::open(spec.target)).collect::<io::Result<_>>();
            thread.push(Prepared {
                workload: Workload::new(&lane.workload, space.clone(), spec.target.to_string(), i as u64),
                connections: connections
                    .map_err(|source| LoadError::Connect { target: spec.target, source })?,
                tickets: tickets.clone(),
            });
        }
    }
    Ok(threads)
}

fn driver(
    spec: &RunSpec,
    clock: RunClock,
    times: Times,
    thread: usize,
    lanes: Vec<Prepared>,
) -> Result<Driver, LoadError> {
    let share = Share { index: thread as u64, of: spec.threads as u64 };
    let shares = spec.lanes.iter().zip(lanes).map(|(lane, prepared)| {
        let schedule = Schedule::new(lane.pacing, prepared.connections.len(), share, times.start, times.end);
        let recorder = Recorder::new(times.measured_from);
        let share = LaneShare::new(lane, schedule, prepared.workload, recorder, prepared.tickets);
        (share, prepared.connections)
    });
    Driver::new(spec.target, clock, times, shares.collect())
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
