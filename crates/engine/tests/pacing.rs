//! Overload on a slow disk. The accepted rate settles at the rate that the disk sustains. The
//! backlog stays bounded, excess writes are refused with a retry time, and every second has
//! accepted writes.
//!
//! One host steps everything in virtual time: each read and write advances the clock by the time
//! that the disk needs. So runs are deterministic, and the disk idles only when there is no work.

mod support;

use engine::{Batch, Engine, Error, Options, Progress};
use env::{Fault, FaultFs, FaultPlan, ManualClock, OperationKind};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{Cell, Instant, Rng};
use support::{DIR, World};

const VALUE_BYTES: usize = 2 << 10;
const KEYS: u64 = 4 << 10;
/// Budget of a step, in bytes, after which the host serves the other jobs.
const STEP_BYTES: u64 = 64 << 10;
const SYNC_TIME: Duration = Duration::from_millis(1);
/// Greatest number of tables in level 0 under overload, as a multiple of the number that triggers a
/// compaction.
const LEVEL0_MAX: f64 = 11.0;
/// A write waits for the pacer, and then for the running group and job.
const WAIT_MAX: Duration = Duration::from_millis(1_500);

/// Outcomes of writes, with their times.
#[derive(Default)]
struct Told {
    /// Time of each accepted write, and its latency.
    accepted: Vec<(Instant, Duration)>,
    refused: u64,
    retry_after: Vec<Duration>,
}

struct Flood {
    world: World,
    engine: Engine,
    disk: FaultFs,
    busy_nanos: Arc<AtomicU64>,
    told: Arc<Mutex<Told>>,
    next_write: Instant,
    numbers: Rng,
}

impl Flood {
    fn new(seed: u64, disk_rate: u64) -> Self {
        let mut world = World::new(seed);
        let disk = FaultFs::new(Arc::new(world.disk.clone()), FaultPlan::none());
        let env = world.env_over(Arc::new(disk.clone()));
        let options = Options {
            memory_bytes: 16 << 20,
            memtable_bytes: Some(256 << 10),
            table_bytes: 256 << 10,
            level1_bytes: 1 << 20,
            level_growth: 4,
            wal_segment_bytes: 256 << 10,
            ..Options::default()
        };
        let (engine, _) = Engine::open(env, Path::new(DIR), options).expect("open");
        let numbers = Rng::new(world.rng.below(u64::MAX));
        let (busy_nanos, told) = Default::default();
        let mut flood = Self { world, engine, disk, busy_nanos, told, next_write: Instant::ZERO, numbers };
        flood.set_disk_rate(disk_rate);
        flood
    }

    /// Sets the throughput of the disk, in bytes per second.
    fn set_disk_rate(&mut self, bytes_per_second: u64) {
        let (clock, busy) = (Arc::clone(&self.world.clock), Arc::clone(&self.busy_nanos));
        let wait: Arc<dyn Fn(Duration) + Send + Sync> = Arc::new(move |duration| {
            clock.advance(duration);
            busy.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
        });
        self.disk.set_plan(FaultPlan::on_operation(move |operation| {
            let duration = match operation.kind {
                OperationKind::Read | OperationKind::Write => {
                    Duration::from_secs_f64(operation.len as f64 / bytes_per_second as f64)
                }
                OperationKind::SyncData => SYNC_TIME,
                _ => return None,
            };
            Some(Fault::Delay { duration, wait: Arc::clone(&wait) })
        }));
    }

    fn now(&self) -> Instant {
        now(&self.world.clock)
    }

    /// Writes at `rate` per second for `lasts`. Returns the fraction of the time for which the disk
    /// was busy.
    fn run(&mut self, rate: u64, lasts: Duration) -> f64 {
        let (began, busy) = (self.now(), self.busy_nanos.load(Ordering::Relaxed));
        let between = Duration::from_secs(1) / u32::try_from(rate).expect("a rate");
        self.next_write = began;
        while self.now() < began + lasts {
            while self.next_write <= self.now() {
                self.submit();
                self.next_write = self.next_write + between;
            }
            if !self.step() {
                self.world.clock.advance(Duration::from_millis(1));
            }
            let level0 = self.engine.backlog().level0_fraction;
            assert!(level0 < LEVEL0_MAX, "level 0 at {level0} after {:?}", self.now() - began);
        }
        let busy = self.busy_nanos.load(Ordering::Relaxed) - busy;
        busy as f64 / (self.now() - began).as_nanos() as f64
    }

    fn submit(&mut self) {
        let key = self.numbers.below(KEYS).to_be_bytes();
        let mut value = vec![0; VALUE_BYTES];
        self.numbers.fill(&mut value);
        let mut batch = Batch::new();
        batch.put(&key, Cell::value(self.world.next_version(), 1, value.into()).as_ref());
        let (told, clock, submitted) = (Arc::clone(&self.told), Arc::clone(&self.world.clock), self.now());
        let done = move |result: Result<_, Error>| {
            let mut told = told.lock();
            match result {
                Ok(_) => told.accepted.push((now(&clock), now(&clock) - submitted)),
                Err(Error::Overloaded { retry_after }) => {
                    told.refused += 1;
                    told.retry_after.push(retry_after);
                }
                Err(error) => panic!("{error}"),
            }
        };
        self.engine.submit(batch, Box::new(done));
    }

    /// Makes one step. Returns whether there was work.
    fn step(&self) -> bool {
        let pauses = !self.engine.pause_before_group().is_zero();
        let committed = !pauses && self.engine.step_commit().expect("commit");
        let steps = [
            self.engine.step_flush(STEP_BYTES).expect("flush"),
            self.engine.step_compaction(0, STEP_BYTES).expect("compaction"),
            self.engine.step_upkeep(STEP_BYTES).expect("upkeep"),
        ];
        committed || steps.contains(&Progress::Worked)
    }

    fn take_told(&self) -> Told {
        std::mem::take(&mut self.told.lock())
    }
}

fn now(clock: &ManualClock) -> Instant {
    env::Clock::now(clock).mono
}

/// The longest interval without an accepted write.
fn longest_gap(told: &Told) -> Duration {
    let pairs = told.accepted.windows(2).map(|pair| pair[1].0 - pair[0].0);
    pairs.max().expect("writes are accepted")
}

/// Checks the outcomes of an overload of `lasts`. Returns the mean of accepted writes per second.
fn check_settled(told: &Told, lasts: Duration) -> f64 {
    assert!(longest_gap(told) < Duration::from_secs(1), "{:?} without a write", longest_gap(told));
    assert!(told.refused > 0, "more came than the disk bears");
    let sensible = Duration::from_secs(1)..=Duration::from_secs(30);
    assert!(told.retry_after.iter().all(|after| sensible.contains(after)));
    let mut waits: Vec<_> = told.accepted.iter().map(|(_, wait)| *wait).collect();
    waits.sort();
    let p99 = waits[waits.len() * 99 / 100];
    assert!(p99 < WAIT_MAX, "writes wait up to {p99:?}");
    told.accepted.len() as f64 / lasts.as_secs_f64()
}

#[test]
fn an_overload_settles_at_the_rate_that_the_disk_sustains() {
    let mut flood = Flood::new(1, 8 << 20);
    flood.run(2_000, Duration::from_secs(30));
    flood.take_told();
    let mut rates = Vec::new();
    for _ in 0..3 {
        let lasts = Duration::from_secs(15);
        let busy = flood.run(2_000, lasts);
        assert!(busy > 0.9, "the disk is busy for {busy} of the time");
        rates.push(check_settled(&flood.take_told(), lasts));
    }
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    assert!(rates.iter().all(|rate| (rate / mean - 1.0).abs() < 0.2), "{rates:?} a second");
    println!("accepted {rates:?} a second; {:?}", flood.engine.backlog());

    // A tenth of that rate is served at once again.
    flood.run(mean as u64 / 10, Duration::from_secs(2));
    flood.take_told();
    flood.run(mean as u64 / 10, Duration::from_secs(10));
    let told = flood.take_told();
    assert_eq!(told.refused, 0, "once the flood is over");
}

#[test]
fn a_disk_that_becomes_ten_times_slower_slows_an_overload_and_does_not_stop_it() {
    let mut flood = Flood::new(2, 60 << 20);
    flood.run(2_000, Duration::from_secs(10));
    flood.set_disk_rate(6 << 20);
    flood.run(2_000, Duration::from_secs(20));
    flood.take_told();
    let lasts = Duration::from_secs(20);
    let busy = flood.run(2_000, lasts);
    assert!(busy > 0.9, "the disk is busy for {busy} of the time");
    let rate = check_settled(&flood.take_told(), lasts);
    println!("accepted {rate} a second");
}

#[test]
fn a_burst_is_admitted_at_full_speed() {
    let mut flood = Flood::new(3, 8 << 20);
    flood.run(200, Duration::from_secs(1));
    flood.run(2_000, Duration::from_millis(200));
    flood.run(100, Duration::from_secs(5));
    let told = flood.take_told();
    assert_eq!(told.refused, 0, "half of what memtables may take");
}
