//! Threads that step the jobs of an engine, for hosts that want them.
//!
//! One thread commits, one flushes and does the upkeep, the others compact, the first of them also heals; if the host
//! wants it, one scrubs. All but the first run at a lower priority, so that work which nobody waits for does not take
//! the processor from those who serve. One more thread compacts at the priority of those who serve, for a share of the
//! time that grows with what compaction owes (see [`urgency`]). The commit thread paces: between two groups it pauses as
//! long as the backlog asks for.

use crate::Error;
use crate::engine::Engine;
use crate::jobs::Progress;
use crate::urgency;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// After so long without a write the closing record of the log is written.
const IDLE_AFTER: Duration = Duration::from_millis(500);
/// A worker without work looks for some at least so often.
const IDLE_POLL: Duration = Duration::from_millis(200);
/// A job that failed is tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// A worker looks at least so often, in bytes of work, whether it should stop.
const STEP_BYTES: u64 = 1 << 20;
/// The same of who compacts in a hurry, and of those who compact beside it: they take turns.
const URGENT_STEP_BYTES: u64 = 256 << 10;
/// How far the priority of background threads is lowered, on the scale of `nice`.
const FLUSH_NICE: i32 = 5;
const COMPACTION_NICE: i32 = 15;
/// The least of all; schedulers of disks follow it.
const SCRUB_NICE: i32 = 19;
/// A table that was replaced is held by who scrubs for no longer than this.
const SCRUB_POLL: Duration = Duration::from_secs(2);

/// What the host chooses.
pub struct WorkerOptions {
    /// How many compactions may run at once. At least 1.
    pub compaction_threads: usize,
    /// Called once, from a worker, when the engine stops taking writes for good, with the reason. The process
    /// should end.
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
    /// Lets each worker finish its step, and waits for it.
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
    /// Which of the compactions that may run at once.
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
            tracing::debug!(%error, "the commit thread takes turns like any other");
        }
        while !self.is_stopping() {
            self.pace();
            // Where cores are short, those who are about to bring more go first: the group is larger, the syncs are
            // fewer. Where nobody waits for this core it costs a system call.
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

    /// Nothing was written for a while.
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
        while !self.is_stopping() {
            let Some(healed) = self.heal() else { return };
            let share = if self.slot == 0 { self.engine.compaction_share() } else { 0.0 };
            if urgency::is_exclusive(share) && healed == Progress::Idle {
                self.engine.shared.signals.compact.wait(IDLE_POLL);
                continue;
            }
            let step_bytes = if share > 0.0 { URGENT_STEP_BYTES } else { STEP_BYTES };
            let stepped = self.engine.step_compaction(self.slot, step_bytes);
            let Some(compacted) = self.report(stepped, "compaction") else { return };
            if healed == Progress::Idle && compacted == Progress::Idle {
                self.engine.shared.signals.compact.wait(IDLE_POLL);
            }
        }
    }

    /// Steps the compaction in the first slot, at the priority of those who serve, for its share of the time.
    fn compact_urgently(&self) {
        while !self.is_stopping() {
            let share = self.engine.compaction_share();
            let (work, mut pause) = urgency::duty_cycle(share);
            let mut worked = Duration::ZERO;
            while worked < work && !self.is_stopping() {
                let began = self.engine.now();
                let stepped = self.engine.step_compaction(0, URGENT_STEP_BYTES);
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
                self.engine.shared.signals.urgent_compaction.wait(pause);
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

    /// What a step did; a failed one is told, and tried again later. `None` when the engine has stopped.
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
                        tracing::warn!(job, %error, "background work waits for room on the disk");
                    }
                    Error::Exhausted { .. } => {
                        tracing::warn!(job, %error, "background work waits for file descriptors");
                    }
                    _ => tracing::error!(job, %error, "background work failed and will be tried again"),
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

/// Where the system does not allow it, background work competes on equal terms.
fn lower_priority(nice: i32) {
    if let Err(error) = env::os_process::lower_current_thread_priority(nice) {
        tracing::debug!(%error, "cannot lower the priority of a background thread");
    }
}
