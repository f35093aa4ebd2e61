//! Writes that find the memtables full: few sequential writers wait for the flush, an overload is
//! refused at once.
//!
//! One host steps everything in virtual time. Its disk stalls for a while in the middle of each
//! flush.

mod support;

use engine::{Batch, Engine, Error, Options, Progress};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, Instant};
use support::{World, small_options};

const TICK: Duration = Duration::from_millis(1);
/// Longer than any write waits for space.
const WAIT_MAX: Duration = Duration::from_secs(1);
const VALUE_BYTES: usize = 2 << 10;
const MEMTABLE_BYTES: usize = 16 << 10;

/// Outcome and latency of each write.
type Told = Arc<Mutex<Vec<(Result<(), Error>, Duration)>>>;

struct Host {
    world: World,
    engine: Engine,
    told: Told,
    /// Duration of the disk stall in each flush.
    stands: Duration,
    flush_until: Option<Instant>,
}

impl Host {
    fn new(seed: u64, stands: Duration) -> Self {
        let world = World::new(seed);
        let options = Options { memtables_max: 2, ..small_options() };
        let engine = world.open(&options);
        Self { world, engine, told: Told::default(), stands, flush_until: None }
    }

    fn now(&self) -> Instant {
        env::Clock::now(&*self.world.clock).mono
    }

    fn submit(&mut self, value_bytes: usize) {
        let version = self.world.next_version();
        let key = self.world.rng.below(1_000).to_be_bytes();
        let mut batch = Batch::new();
        batch.put(&key, Cell::value(version, 1, vec![7; value_bytes].into()).as_ref());
        let (told, clock, submitted) = (Arc::clone(&self.told), Arc::clone(&self.world.clock), self.now());
        self.engine.submit(
            batch,
            Box::new(move |result| {
                let took = env::Clock::now(&*clock).mono - submitted;
                told.lock().push((result.map(|_| ()), took));
            }),
        );
    }

    fn memtables(&self) -> usize {
        self.engine.stats().memtables
    }

    fn flush(&mut self) {
        if self.memtables() == 1 {
            return;
        }
        let now = self.now();
        let Some(until) = self.flush_until else {
            // Not before all of the memtable is in the log.
            let begins = self.engine.step_flush(1).expect("a flush") == Progress::Worked;
            self.flush_until = begins.then(|| now + self.stands);
            return;
        };
        let before = self.memtables();
        while now >= until && self.memtables() == before {
            self.engine.step_flush(u64::MAX).expect("it goes on");
            self.flush_until = None;
        }
    }

    fn tick(&mut self) {
        self.flush();
        while self.engine.step_compaction(0, u64::MAX).expect("compaction") == Progress::Worked {}
        if self.engine.pause_before_group().is_zero() {
            while self.engine.step_commit().expect("commit") {}
        }
        self.world.clock.advance(TICK);
    }

    /// Has `writers` write sequentially, `writes` in all. Returns the outcomes.
    fn write(
        &mut self,
        writers: usize,
        writes: usize,
        value_bytes: usize,
    ) -> Vec<(Result<(), Error>, Duration)> {
        let mut begun = 0;
        while self.told.lock().len() < writes {
            while begun < writes && begun - self.told.lock().len() < writers {
                self.submit(value_bytes);
                begun += 1;
            }
            self.tick();
        }
        std::mem::take(&mut *self.told.lock())
    }
}

fn longest(told: &[(Result<(), Error>, Duration)]) -> Duration {
    told.iter().map(|(_, took)| *took).max().expect("there are some")
}

#[test]
fn few_sequential_writers_wait_for_each_flush_and_none_is_refused() {
    for (writers, value_bytes) in [(1, VALUE_BYTES), (4, VALUE_BYTES), (1, 5 * MEMTABLE_BYTES)] {
        let mut host = Host::new(1, Duration::from_millis(50));
        let told = host.write(writers, 300, value_bytes);
        assert!(told.iter().all(|(result, _)| result.is_ok()), "{writers} of {value_bytes} bytes");
        assert!(longest(&told) >= Duration::from_millis(40), "they met full memtables");
        assert!(longest(&told) < WAIT_MAX);
    }
}

#[test]
fn a_flood_is_refused_at_once_and_holds_little_memory() {
    let mut host = Host::new(2, Duration::from_millis(50));
    let (ticks, each) = (2_000, 20);
    for _ in 0..ticks {
        (0..each).for_each(|_| host.submit(VALUE_BYTES));
        host.tick();
        let held = host.engine.stats().memory.queue_bytes;
        assert!(held < 32 * MEMTABLE_BYTES as u64, "{held} bytes wait");
    }
    let told = std::mem::take(&mut *host.told.lock());
    let (accepted, refused): (Vec<_>, Vec<_>) = told.into_iter().partition(|(result, _)| result.is_ok());
    assert!(refused.len() > ticks * each / 2, "{} of {}", refused.len(), ticks * each);
    for (result, _) in &refused {
        let Err(Error::Overloaded { retry_after }) = result else { panic!("{result:?}") };
        assert!((1..=30).contains(&retry_after.as_secs()), "{retry_after:?}");
    }
    let late = refused.iter().filter(|(_, took)| !took.is_zero()).count();
    assert!(late < refused.len() / 100, "{late} of {} had to wait for it", refused.len());
    assert!(longest(&accepted) < WAIT_MAX, "{:?}", longest(&accepted));
    // One memtable per disk stall. The memtables are small, so the pacer delays some writes.
    let borne = ticks / 50 * (MEMTABLE_BYTES / VALUE_BYTES);
    assert!(accepted.len() > borne / 4, "{} of {borne}", accepted.len());
}

#[test]
fn stalled_writes_are_refused_after_the_time_limit_and_when_the_engine_closes() {
    let fill = |host: &mut Host| {
        while !host.engine.has_waiting_writes() {
            host.submit(VALUE_BYTES);
            while host.engine.step_commit().expect("commit") {}
        }
        host.told.lock().clear();
    };
    let mut host = Host::new(3, Duration::from_secs(86_400));
    fill(&mut host);
    let began = host.now();
    while host.told.lock().is_empty() {
        let pause = host.engine.pause_before_group();
        assert!(!pause.is_zero() || !host.engine.has_waiting_writes(), "the host is to look again");
        host.engine.step_commit().expect("commit");
        host.world.clock.advance(TICK);
    }
    let waited = host.now() - began;
    assert!((Duration::from_millis(500)..WAIT_MAX).contains(&waited), "{waited:?}");
    assert!(matches!(host.told.lock()[..], [(Err(Error::Overloaded { .. }), _)]));
    assert!(!host.engine.has_waiting_writes());

    let mut host = Host::new(4, Duration::from_secs(86_400));
    fill(&mut host);
    host.engine.close().expect("close");
    assert!(matches!(host.told.lock()[..], [(Err(Error::Overloaded { .. }), _)]));
}

/// Writes that the host cannot operate without, such as the bound of its clock.
#[test]
fn a_batch_that_bypasses_stalls_is_admitted_before_stalled_writes_and_with_full_memtables() {
    let mut host = Host::new(5, WAIT_MAX);
    while host.engine.stats().stalls.refused_overloaded == 0 {
        host.submit(VALUE_BYTES);
    }
    let version = host.world.next_version();
    let mut batch = Batch::new();
    batch.put_critical(b"bound", Cell::value(version, 1, vec![1].into()).as_ref());
    batch.bypass_stalls();
    host.told.lock().clear();
    let told = Arc::clone(&host.told);
    let completion = move |result: Result<_, Error>| told.lock().push((result.map(drop), Duration::ZERO));
    host.engine.submit(batch, Box::new(completion));
    while host.engine.step_commit().expect("commit") {}
    assert!(host.told.lock().iter().any(|(told, took)| told.is_ok() && took.is_zero()));
    assert!(host.engine.get(b"bound").expect("read").is_some());
}
