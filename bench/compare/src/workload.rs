//! Measurement of one store, in one process.
//!
//! Every phase does the same on every store, from the same seeds. Written data is verified before
//! reads are timed: a store that loses entries must not look fast.

use crate::scenario::Scenario;
use crate::store::{Kind, Outcome, Settings, Store};
use bench::keys::{KeyNumber, KeyOrder, KeyPicker, KeySpace};
use bench::values::{ValueGenerator, ValueSizes};
use serde::{Deserialize, Serialize};
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use stdx::Rng;

const BATCH: usize = 100;
const SHORT_SCAN: usize = 100;
const WRITER_COUNTS: [usize; 3] = [1, 4, 16];
const READER_COUNTS: [usize; 2] = [1, 2];
const CHECKED_KEYS: u64 = 1_000;
/// An operation that is bounded by time reads the clock once per this number of iterations.
const LOOK_EVERY: u64 = 16;

/// Job of a child process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub kind: Kind,
    pub dir: PathBuf,
    pub scenario: Scenario,
    /// Duration of each phase that is bounded by time, in seconds.
    pub seconds: f64,
    pub seed: u64,
    /// Cgroup to join.
    pub cgroup: Option<PathBuf>,
}

/// Results of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobReport {
    /// Options of the store.
    pub description: String,
    /// Pairs of phase and operations per second.
    pub rates: Vec<(String, f64)>,
}

/// Runs all phases of a job.
pub fn run(job: &Job) -> Outcome<JobReport> {
    let mut bench = Bench { job, rates: Vec::new(), description: String::new() };
    bench.fresh("sequential", false, |bench, store| {
        bench.fill("fill-sequential", store, KeyOrder::Sequential)
    })?;
    bench.fresh("batches", false, Bench::fill_in_batches)?;
    bench.fresh("main", false, Bench::main_data_set)?;
    for sync in [true, false] {
        for writers in WRITER_COUNTS {
            let name = format!("put-{}-x{writers}", if sync { "sync" } else { "os" });
            bench.fresh(&name, sync, |bench, store| bench.puts(&name, store, writers))?;
        }
    }
    Ok(JobReport { description: bench.description, rates: bench.rates })
}

struct Bench<'a> {
    job: &'a Job,
    rates: Vec<(String, f64)>,
    description: String,
}

impl Bench<'_> {
    /// Runs a phase on an empty store, which is removed afterwards.
    fn fresh(
        &mut self,
        name: &str,
        sync: bool,
        phase: impl FnOnce(&mut Self, &Arc<dyn Store>) -> Outcome<()>,
    ) -> Outcome<()> {
        let dir = self.job.dir.join(name);
        let settings = Settings { sync, ..self.job.scenario.settings.clone() };
        let store = self.job.kind.open(&dir, &settings)?;
        if self.description.is_empty() {
            self.description = store.describe();
        }
        let result = phase(self, &store);
        drop(store);
        remove(&dir)?;
        result.map_err(|error| format!("{} {name}: {error}", self.job.kind.name()).into())
    }

    fn main_data_set(&mut self, store: &Arc<dyn Store>) -> Outcome<()> {
        let begun = Instant::now();
        self.fill("fill-random", store, KeyOrder::Scattered)?;
        store.settle()?;
        self.rate("fill-random, settled", self.keys(), begun.elapsed());
        self.check(store.as_ref())?;
        self.overwrite(store.as_ref())?;
        store.settle()?;
        for readers in READER_COUNTS {
            // The first run warms the cache.
            for name in [String::new(), format!("read-hit-x{readers}")] {
                self.reads(&name, store, readers, KeyOrder::Uniform, true)?;
            }
        }
        self.reads("read-hit-zipf", store, 1, KeyOrder::Zipf, true)?;
        self.reads("read-miss", store, 1, KeyOrder::Uniform, false)?;
        self.scan_all(store.as_ref())?;
        self.short_scans(store)?;
        self.deletes(store.as_ref())
    }

    fn fill(&mut self, name: &str, store: &Arc<dyn Store>, order: KeyOrder) -> Outcome<()> {
        let (mut picker, mut value) = (self.picker(order, 0), Vec::new());
        let begun = Instant::now();
        for _ in 0..self.keys() {
            let key = picker.for_write();
            self.value(key, &mut value);
            store.put(&key.stored_key(), &value)?;
        }
        self.rate(name, self.keys(), begun.elapsed());
        Ok(())
    }

    fn fill_in_batches(&mut self, store: &Arc<dyn Store>) -> Outcome<()> {
        let mut picker = self.picker(KeyOrder::Scattered, 0);
        let begun = Instant::now();
        for _ in 0..self.keys() / BATCH as u64 {
            let entry = |_| {
                let (key, mut value) = (picker.for_write(), Vec::new());
                self.value(key, &mut value);
                (key.stored_key().to_vec(), value)
            };
            let entries: Vec<_> = (0..BATCH).map(entry).collect();
            store.put_batch(&entries)?;
        }
        self.rate("fill-random, batches of 100", self.keys(), begun.elapsed());
        Ok(())
    }

    fn overwrite(&mut self, store: &dyn Store) -> Outcome<()> {
        let (mut picker, mut value) = (self.picker(KeyOrder::Uniform, 1), Vec::new());
        let count = self.keys() / 2;
        let begun = Instant::now();
        for _ in 0..count {
            let key = picker.for_write();
            self.value(key, &mut value);
            store.put(&key.stored_key(), &value)?;
        }
        self.rate("overwrite", count, begun.elapsed());
        Ok(())
    }

    fn deletes(&mut self, store: &dyn Store) -> Outcome<()> {
        let mut picker = self.picker(KeyOrder::Scattered, 0);
        let count = self.keys() / 10;
        let begun = Instant::now();
        for _ in 0..count {
            store.delete(&picker.for_write().stored_key())?;
        }
        self.rate("delete", count, begun.elapsed());
        Ok(())
    }

    /// Compares a sample of values byte by byte, and checks that keys that were never written are
    /// missing.
    fn check(&self, store: &dyn Store) -> Outcome<()> {
        let (mut expected, mut right) = (Vec::new(), false);
        for sample in 0..CHECKED_KEYS.min(self.keys()) {
            let key = KeyNumber(sample * self.keys() / CHECKED_KEYS.min(self.keys()));
            self.value(key, &mut expected);
            let found = store.get(&key.stored_key(), &mut |value| right = value == expected)?;
            if !(found && right) || store.get(&key.missing_key(), &mut |_| {})? {
                return Err(format!("key {key:?} is not what was written").into());
            }
        }
        Ok(())
    }

    fn reads(
        &mut self,
        name: &str,
        store: &Arc<dyn Store>,
        readers: usize,
        order: KeyOrder,
        hit: bool,
    ) -> Outcome<()> {
        let (done, took) = self.timed(readers, |thread, stop, done| {
            let mut picker = self.picker(order, 10 + thread);
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..LOOK_EVERY {
                    let key = picker.for_read();
                    let text = if hit { key.stored_key() } else { key.missing_key() };
                    let found = store.get(&text, &mut |value| {
                        black_box(value);
                    })?;
                    if found != hit {
                        return Err(format!("key {key:?}: found {found}, stored {hit}").into());
                    }
                }
                done.fetch_add(LOOK_EVERY, Ordering::Relaxed);
            }
            Ok(())
        })?;
        if !name.is_empty() {
            self.rate(name, done, took);
        }
        Ok(())
    }

    fn puts(&mut self, name: &str, store: &Arc<dyn Store>, writers: usize) -> Outcome<()> {
        let (done, took) = self.timed(writers, |thread, stop, done| {
            let (mut picker, mut value) = (self.picker(KeyOrder::Uniform, 20 + thread), Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let key = picker.for_write();
                self.value(key, &mut value);
                store.put(&key.stored_key(), &value)?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })?;
        self.rate(name, done, took);
        Ok(())
    }

    fn scan_all(&mut self, store: &dyn Store) -> Outcome<()> {
        let begun = Instant::now();
        let mut last = Vec::new();
        let mut ordered = true;
        let found = store.scan(&[0], usize::MAX, &mut |key, value| {
            ordered &= last.as_slice() < key;
            last.clear();
            last.extend_from_slice(key);
            black_box(value);
        })?;
        self.rate("scan-all, entries", found as u64, begun.elapsed());
        if found as u64 != self.keys() || !ordered {
            return Err(format!("a scan of {} keys found {found}, in order: {ordered}", self.keys()).into());
        }
        Ok(())
    }

    fn short_scans(&mut self, store: &Arc<dyn Store>) -> Outcome<()> {
        let (done, took) = self.timed(1, |thread, stop, done| {
            let mut picker = self.picker(KeyOrder::Uniform, 30 + thread);
            while !stop.load(Ordering::Relaxed) {
                let found = store.scan(&picker.for_read().stored_key(), SHORT_SCAN, &mut |_, value| {
                    black_box(value);
                })?;
                black_box(found);
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })?;
        self.rate("scan-100, scans", done, took);
        Ok(())
    }

    /// Runs `work` on `threads` threads for the job's seconds. Returns the sum of their counts, and
    /// the elapsed time.
    fn timed(
        &self,
        threads: usize,
        work: impl Fn(u64, &AtomicBool, &AtomicU64) -> Outcome<()> + Sync,
    ) -> Outcome<(u64, Duration)> {
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let begun = Instant::now();
        let took = thread::scope(|scope| {
            let spawn = |thread: usize| {
                scope.spawn({
                    let (work, stop, done) = (&work, &stop, &done);
                    move || work(thread as u64, stop, done)
                })
            };
            let running: Vec<_> = (0..threads).map(spawn).collect();
            thread::sleep(Duration::from_secs_f64(self.job.seconds));
            stop.store(true, Ordering::Relaxed);
            for thread in running {
                thread.join().map_err(|_| "a thread panicked")??;
            }
            Outcome::Ok(begun.elapsed())
        })?;
        Ok((done.into_inner(), took))
    }

    fn rate(&mut self, name: &str, count: u64, took: Duration) {
        self.rates.push((name.to_owned(), count as f64 / took.as_secs_f64()));
    }

    fn keys(&self) -> u64 {
        self.job.scenario.keys
    }

    /// Keys of a phase and thread; all stores draw the same ones.
    fn picker(&self, order: KeyOrder, stream: u64) -> KeyPicker {
        KeyPicker::new(order, KeySpace::new(self.keys()), Rng::new(self.job.seed << 16 | stream))
    }

    fn value(&self, key: KeyNumber, out: &mut Vec<u8>) {
        out.clear();
        ValueGenerator { seed: 1, sizes: ValueSizes::Fixed(self.job.scenario.value_bytes) }.append(key, out);
    }
}

fn remove(dir: &Path) -> Outcome<()> {
    fs::remove_dir_all(dir).map_err(|error| format!("{} cannot be removed: {error}", dir.display()).into())
}
