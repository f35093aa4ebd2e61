//! Simulates an overload, then a part of its accepted rate for longer, on a machine whose
//! processors are busy with serving.
//!
//! One host steps everything in virtual time: each read and write on an injected disk advances the
//! clock by the time that the disk needs. Compaction gets the fraction of the time that a
//! low-priority thread gets, or, if it claims one, its share of a processor
//! ([`Engine::compaction_share`]). The low-priority thread leaves the disk to the log
//! ([`Engine::pause_after_compaction_step`]).

use crate::support::{DIR, World};
use engine::{Batch, Engine, Error, Options, Progress, StepTime};
use env::{Fault, FaultFs, FaultPlan, OperationKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{Cell, Instant, Rng};

const VALUE_BYTES: usize = 2 << 10;
const DISK_BYTES_PER_SECOND: u64 = 32 << 20;
const STEP_BYTES: u64 = 64 << 10;
/// Length of the windows of [`Second::busiest`].
const WINDOW: Duration = Duration::from_millis(500);

/// Parameters of the machine and the load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Number of keys, which are written in random order.
    pub(crate) keys: u64,
    /// Whether compaction claims its share of a processor after the overload, too.
    pub(crate) claims: bool,
    /// Fraction of the time that a low-priority thread gets under load.
    pub(crate) left: f64,
    /// Duration of the overload.
    pub(crate) flood: Duration,
    /// Fraction of the rate that the overload reached, for the rest of the time.
    pub(crate) rest_rate: f64,
    /// Duration of the rest.
    pub(crate) rest: Duration,
    /// Whether compaction leaves the disk to the log after the overload.
    pub(crate) pauses: bool,
}

/// Figures of one second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Second {
    /// Whether the second belongs to the overload.
    pub(crate) is_flood: bool,
    /// Writes that were accepted.
    pub(crate) accepted: u64,
    /// Writes that were refused.
    pub(crate) refused: u64,
    /// Compaction debt at the end of the second, in bytes.
    pub(crate) debt_bytes: u64,
    /// Greatest fraction of a window that compaction used.
    pub(crate) busiest: f64,
    /// Greatest share of a processor that compaction claimed.
    pub(crate) share_max: f64,
}

struct Machine {
    world: World,
    engine: Engine,
    load: Load,
    is_rest: bool,
    numbers: Rng,
    accepted: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    /// Processor time that compaction may still use, in seconds.
    allowed: f64,
    seen: Instant,
    /// End of the pause of compaction.
    paused_to: Instant,
    window: Window,
    share_max: f64,
}

/// Use of the disk by compaction.
struct Window {
    began: Instant,
    used: Duration,
    /// Greatest fraction of a window since it was last taken.
    busiest: f64,
}

impl Load {
    /// Runs the load. Returns the figures of each second.
    pub(crate) fn run(self) -> Vec<Second> {
        let mut machine = Machine::new(self);
        let mut seconds = machine.run(4_000, self.flood, true);
        let settled = &seconds[seconds.len() / 2..];
        let reached: u64 = settled.iter().map(|second| second.accepted).sum();
        machine.is_rest = true;
        let rate = reached as f64 / settled.len() as f64 * self.rest_rate;
        seconds.extend(machine.run(rate as u64, self.rest, false));
        seconds
    }
}

impl Machine {
    fn new(load: Load) -> Self {
        let world = World::new(1);
        let disk = FaultFs::new(Arc::new(world.disk.clone()), FaultPlan::none());
        let env = world.env_over(Arc::new(disk.clone()));
        let options = Options {
            memory_bytes: 16 << 20,
            memtable_bytes: Some(512 << 10),
            table_bytes: 512 << 10,
            level1_bytes: 2 << 20,
            level_growth: 4,
            wal_segment_bytes: 512 << 10,
            ..Options::default()
        };
        let clock = Arc::clone(&world.clock);
        let wait: Arc<dyn Fn(Duration) + Send + Sync> = Arc::new(move |duration| clock.advance(duration));
        disk.set_plan(FaultPlan::on_operation(move |operation| {
            let bytes = match operation.kind {
                OperationKind::Read | OperationKind::Write => operation.len as f64,
                _ => return None,
            };
            let duration = Duration::from_secs_f64(bytes / DISK_BYTES_PER_SECOND as f64);
            Some(Fault::Delay { duration, wait: Arc::clone(&wait) })
        }));
        let (engine, _) = Engine::open(env, Path::new(DIR), options).expect("open");
        let (accepted, refused) = Default::default();
        let mut machine = Self {
            world,
            engine,
            load,
            is_rest: false,
            numbers: Rng::new(2),
            accepted,
            refused,
            allowed: 0.0,
            seen: Instant::ZERO,
            paused_to: Instant::ZERO,
            window: Window { began: Instant::ZERO, used: Duration::ZERO, busiest: 0.0 },
            share_max: 0.0,
        };
        machine.seen = machine.now();
        machine.window.began = machine.seen;
        machine
    }

    fn now(&self) -> Instant {
        env::Clock::now(&*self.world.clock).mono
    }

    fn run(&mut self, rate: u64, lasts: Duration, is_flood: bool) -> Vec<Second> {
        let began = self.now();
        let between = Duration::from_secs(1) / u32::try_from(rate.max(1)).expect("a rate");
        let (mut next_write, mut seconds) = (began, Vec::new());
        while seconds.len() < lasts.as_secs() as usize {
            while next_write <= self.now() {
                self.submit();
                next_write = next_write + between;
            }
            if !self.step() {
                self.world.clock.advance(Duration::from_millis(1));
            }
            while self.now() >= began + Duration::from_secs(seconds.len() as u64 + 1) {
                seconds.push(Second {
                    is_flood,
                    accepted: self.accepted.swap(0, Ordering::Relaxed),
                    refused: self.refused.swap(0, Ordering::Relaxed),
                    debt_bytes: self.engine.backlog().debt_bytes,
                    busiest: std::mem::take(&mut self.window.busiest),
                    share_max: std::mem::take(&mut self.share_max),
                });
            }
        }
        seconds
    }

    fn submit(&mut self) {
        let key = self.numbers.below(self.load.keys).to_be_bytes();
        let mut value = vec![0; VALUE_BYTES];
        self.numbers.fill(&mut value);
        let mut batch = Batch::new();
        batch.put(&key, Cell::value(self.world.next_version(), 1, value.into()).as_ref());
        let (accepted, refused) = (Arc::clone(&self.accepted), Arc::clone(&self.refused));
        let done = move |result: Result<_, Error>| {
            let counter = match result {
                Ok(_) => &accepted,
                Err(Error::Overloaded { .. }) => &refused,
                Err(error) => panic!("{error}"),
            };
            counter.fetch_add(1, Ordering::Relaxed);
        };
        self.engine.submit(batch, Box::new(done));
    }

    /// Makes one step. Returns whether there was work.
    fn step(&mut self) -> bool {
        let pauses = !self.engine.pause_before_group().is_zero();
        let committed = !pauses && self.engine.step_commit().expect("commit");
        let flushed = self.engine.step_flush(STEP_BYTES).expect("flush");
        let upkept = self.engine.step_upkeep(STEP_BYTES).expect("upkeep");
        committed || [flushed, upkept, self.step_compaction()].contains(&Progress::Worked)
    }

    /// Steps compaction if it has a processor now.
    fn step_compaction(&mut self) -> Progress {
        let claims = !self.is_rest || self.load.claims;
        let share = self.engine.compaction_share();
        self.share_max = self.share_max.max(share);
        let claimed = if claims { share } else { 0.0 };
        let now = self.now();
        self.window.pass(now);
        let passed = (now - self.seen).as_secs_f64();
        self.seen = now;
        // Unused time is not saved up.
        self.allowed = (self.allowed + passed * self.load.left.max(claimed)).min(0.01);
        if self.allowed <= 0.0 || now < self.paused_to {
            return Progress::Idle;
        }
        let stepped = self.engine.step_compaction(0, STEP_BYTES).expect("compaction");
        let worked = self.now() - now;
        self.allowed -= worked.as_secs_f64();
        self.window.used += worked;
        if self.is_rest && self.load.pauses && claimed < self.load.left {
            self.paused_to = self.now()
                + self.engine.pause_after_compaction_step(StepTime {
                    elapsed: worked,
                    on_disk: worked,
                    ready: Duration::ZERO,
                });
        }
        stepped
    }
}

impl Window {
    /// Ends the window if it is over.
    fn pass(&mut self, now: Instant) {
        let passed = now - self.began;
        if passed >= WINDOW {
            self.busiest = self.busiest.max(self.used.as_secs_f64() / passed.as_secs_f64());
            (self.began, self.used) = (now, Duration::ZERO);
        }
    }
}
