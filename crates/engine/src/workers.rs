//! Worker threads that step the jobs of an engine, for hosts that want them.
//!
//! One thread commits. One flushes and does the upkeep. The others compact, and the first of them
//! also heals. If scrubbing is enabled, one thread scrubs. All but the commit thread run at a lower
//! priority, so that background work does not take processor time from serving threads. One more
//! thread compacts at the priority of the serving threads, for a share of the time that grows with
//! the compaction debt ([`Engine::compaction_share`]). While the log is being synced, the
//! compaction threads at low priority pause between two steps, unless there is much debt. The
//! commit thread also paces: it pauses between two groups as the backlog requires.

use crate::Error;
use crate::engine::Engine;
use crate::jobs::Progress;
use crate::urgency::{self, StepTime};
use env::os_process::ThreadTime;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Idle time after which the closing record of the log is written.
const IDLE_AFTER: Duration = Duration::from_millis(500);
/// Longest time that an idle worker sleeps before it checks for work.
const IDLE_POLL: Duration = Duration::from_millis(200);
/// Pause before a failed job is retried.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Bytes of work per step: after each, a worker checks whether it should stop.
const STEP_BYTES: u64 = 1 << 20;
/// The same for compaction: the urgent thread and another one alternate on the same job, and syncs
/// of the log wait for the requests of a step.
const COMPACTION_STEP_BYTES: u64 = 256 << 10;
/// The same for a compaction thread that is starved of processor time: the urgent thread may wait
/// for it.
const STARVED_STEP_BYTES: u64 = 16 << 10;
/// Increments of the `nice` values of background threads.
const FLUSH_NICE: i32 = 5;
const COMPACTION_NICE: i32 = 15;
/// The lowest priority; disk schedulers respect it too.
const SCRUB_NICE: i32 = 19;
/// Longest time for which the scrub thread references a replaced table.
const SCRUB_POLL: Duration = Duration::from_secs(2);

/// Options of the workers.
pub struct WorkerOptions {
    /// Number of compactions that may run at once. At least 1.
    pub compaction_threads: usize,
    /// Called once, from a worker, with the reason when the engine stops taking writes for good.
    /// The process should end.
    pub on_poison: Box<dyn Fn(&str) + Send + Sync>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            compaction_threads: 1,
            on_poison: Box::new(|reason| tracing::error!(reason, "the store has stopped")),
        }
    }
}

impl std::fmt::Debug for WorkerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerOptions")
            .field("compaction_threads", &self.compaction_threads)
            .finish_non_exhaustive()
    }
}

/// Running workers. They stop when this is dropped.
#[derive(Debug)]
pub struct Workers {
    engine: Engine,
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts the workers of `engine`.
///
/// # Errors
/// When the system has no more threads.
pub fn start(engine: &Engine, options: WorkerOptions) -> io::Result<Workers> {
    let stopping = Arc::new(AtomicBool::new(false));
    let mut workers =
        Workers { engine: engine.clone(), stopping: Arc::clone(&stopping), threads: Vec::new() };
    let on_poison = Arc::new(PoisonHook { called: AtomicBool::new(false), call: options.on_poison });
    let mut spawn = |name: String, run: fn(&Worker)| {
        let worker = Worker {
            engine: engine.clone(),
            stopping: Arc::clone(&stopping),
            on_poison: Arc::clone(&on_poison),
            slot: workers.threads.len().saturating_sub(2),
        };
        let thread = std::thread::Builder::new().name(name);
        workers.threads.push(thread.spawn(move || worker.run(run))?);
        io::Result::Ok(())
    };
    spawn("veche-commit".to_owned(), Worker::commit)?;
    spawn("veche-flush".to_owned(), Worker::flush)?;
    for number in 0..options.compaction_threads.max(1) {
        spawn(format!("veche-compact-{number}"), Worker::compact)?;
    }
    spawn("veche-urgent".to_owned(), Worker::compact_urgently)?;
    if engine.options().scrub_period.is_some() {
        spawn("veche-scrub".to_owned(), Worker::scrub)?;
    }
    Ok(workers)
}

impl Workers {
    /// Lets each worker finish its step, and joins it.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.engine.shared.signals.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker of the store panicked");
            }
        }
    }
}

struct PoisonHook {
    called: AtomicBool,
    call: Box<dyn Fn(&str) + Send + Sync>,
}

struct Worker {
    engine: Engine,
    stopping: Arc<AtomicBool>,
    on_poison: Arc<PoisonHook>,
    /// Slot of the compaction that this worker steps.
    slot: usize,
}

impl Worker {
    fn run(&self, work: fn(&Self)) {
        self.engine.shared.signals.worker_started();
        work(self);
        self.engine.shared.signals.worker_stopped();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn commit(&self) {
        if let Err(error) = env::os_process::prefer_short_time_slices() {
            tracing::debug!(%error, "the commit thread runs with ordinary time slices");
        }
        while !self.is_stopping() {
            self.pace();
            // On scarce processors, other writers run first and join the group: fewer and larger
            // syncs. On idle processors the cost is one system call.
            std::thread::yield_now();
            match self.engine.step_commit() {
                Ok(true) => {}
                Ok(false) => {
                    if !self.engine.shared.signals.commit.wait(IDLE_AFTER) && !self.write_closing_record() {
                        return;
                    }
                }
                Err(error) => return self.poisoned(&error),
            }
        }
    }

    /// Writes the closing record after an idle period. Returns `false` when the engine has stopped.
    fn write_closing_record(&self) -> bool {
        match self.engine.step_idle() {
            Ok(()) => true,
            Err(error) => {
                self.poisoned(&error);
                false
            }
        }
    }

    fn pace(&self) {
        loop {
            let pause = self.engine.pause_before_group();
            if pause.is_zero() || self.is_stopping() {
                return;
            }
            std::thread::sleep(pause);
        }
    }

    fn flush(&self) {
        lower_priority(FLUSH_NICE);
        while !self.is_stopping() {
            let flushed = self.engine.step_flush(STEP_BYTES);
            let Some(flushed) = self.report(flushed, "flush") else { return };
            let upkept = self.engine.step_upkeep(STEP_BYTES);
            let Some(upkept) = self.report(upkept, "upkeep") else { return };
            if flushed == Progress::Idle && upkept == Progress::Idle {
                self.engine.shared.signals.flush.wait(self.engine.upkeep_due().unwrap_or(IDLE_POLL));
            }
        }
    }

    fn compact(&self) {
        lower_priority(COMPACTION_NICE);
        let mut starved_until = self.engine.now();
        while !self.is_stopping() {
            let Some(healed) = self.heal() else { return };
            let share = if self.slot == 0 { self.engine.compaction_share() } else { 0.0 };
            let is_starved = self.engine.now() < starved_until;
            if urgency::is_exclusive(share, is_starved) && healed == Progress::Idle {
                self.engine.shared.signals.compact.wait(IDLE_POLL);
                continue;
            }
            let step_bytes = if is_starved { STARVED_STEP_BYTES } else { COMPACTION_STEP_BYTES };
            let (began, before) = (self.engine.now(), env::os_process::current_thread_time());
            let stepped = self.engine.step_compaction(self.slot, step_bytes);
            let elapsed = self.engine.now() - began;
            let ThreadTime { running, ready } = env::os_process::current_thread_time().since(before);
            let step = StepTime { elapsed, on_disk: elapsed.saturating_sub(running + ready), ready };
            starved_until = starved_until.max(self.engine.now() + urgency::starved_for(step));
            match (self.report(stepped, "compaction"), healed) {
                (None, _) => return,
                (Some(Progress::Worked), _) => self.leave_disk_to_log(step),
                (Some(Progress::Idle), Progress::Worked) => {}
                (Some(Progress::Idle), Progress::Idle) => {
                    self.engine.shared.signals.compact.wait(IDLE_POLL);
                }
            }
        }
    }

    /// Pauses after a step of a compaction, if the log is being synced.
    fn leave_disk_to_log(&self, step: StepTime) {
        let pause = self.engine.pause_after_compaction_step(step);
        if !pause.is_zero() {
            let began = self.engine.now();
            self.engine.shared.signals.compaction_pause.wait(pause);
            self.engine.shared.background.note_compaction_pause(self.engine.now() - began);
        }
    }

    /// Steps the compaction in slot 0 at the priority of the serving threads, for its share of the
    /// time.
    fn compact_urgently(&self) {
        while !self.is_stopping() {
            let share = self.engine.compaction_share();
            if share == 0.0 {
                self.engine.shared.signals.debt.wait_until_notified();
                continue;
            }
            let (work, mut pause) = urgency::duty_cycle(share);
            let mut worked = Duration::ZERO;
            while worked < work && !self.is_stopping() {
                let began = self.engine.now();
                let stepped = self.engine.step_compaction(0, COMPACTION_STEP_BYTES);
                worked += self.engine.now() - began;
                match self.report(stepped, "compaction") {
                    Some(Progress::Worked) => {}
                    Some(Progress::Idle) => {
                        pause = IDLE_POLL;
                        break;
                    }
                    None => return,
                }
            }
            if !pause.is_zero() {
                self.engine.shared.signals.compaction_pause.wait(pause);
            }
        }
    }

    fn scrub(&self) {
        lower_priority(SCRUB_NICE);
        while !self.is_stopping() {
            let pause = self.engine.step_scrub();
            self.engine.shared.signals.scrub.wait(pause.min(SCRUB_POLL));
        }
    }

    fn heal(&self) -> Option<Progress> {
        let is_first = self.slot == 0;
        let stepped = if is_first { self.engine.step_healing(STEP_BYTES) } else { Ok(Progress::Idle) };
        self.report(stepped, "healing")
    }

    /// Handles the result of a step: logs an error and waits before the retry. Returns `None` when
    /// the engine has stopped.
    fn report(&self, stepped: Result<Progress, Error>, job: &str) -> Option<Progress> {
        match stepped {
            Ok(progress) => Some(progress),
            Err(error @ Error::Poisoned { .. }) => {
                self.poisoned(&error);
                None
            }
            Err(error) => {
                match error {
                    Error::Full { .. } => {
                        tracing::warn!(job, %error, "a background job waits for disk space");
                    }
                    Error::Exhausted { .. } => {
                        tracing::warn!(job, %error, "a background job waits for file descriptors");
                    }
                    _ => tracing::error!(job, %error, "a background job failed and will be retried"),
                }
                self.engine.shared.signals.retry.wait(RETRY_AFTER);
                Some(Progress::Idle)
            }
        }
    }

    fn poisoned(&self, error: &Error) {
        if !self.on_poison.called.swap(true, Ordering::SeqCst) {
            let reason = self.engine.poison().map_or_else(|| error.to_string(), str::to_owned);
            (self.on_poison.call)(&reason);
        }
    }
}

/// Lowers the priority of this thread. If the system refuses, background work runs at normal
/// priority.
fn lower_priority(nice: i32) {
    if let Err(error) = env::os_process::lower_current_thread_priority(nice) {
        tracing::debug!(%error, "cannot lower the priority of a background thread");
    }
}
