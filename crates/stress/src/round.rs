//! A round: one process, from its start to its end or kill.

use crate::client::{ClientThread, Session};
use crate::config::{SessionConfig, WriteOrder};
use crate::expected::Expected;
use crate::model::REGISTERS;
use crate::plant::{PlantFs, PlantedFault};
use crate::verify::{RunFiles, check_and_remove_checkpoints, check_and_settle};
use engine::{Engine, workers};
use env::{Env, OsClock};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use stdx::{Rng, WallTime};

/// Least number of operations of a session.
const SESSION_OPERATIONS_MIN: u64 = 200;
/// Greatest number of operations of a session beyond [`SESSION_OPERATIONS_MIN`].
const SESSION_OPERATIONS_SPREAD: u64 = 4_000;

/// Parameters of a round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Directory of the run.
    pub dir: PathBuf,
    /// Seed of the configurations and the operations.
    pub seed: u64,
    /// Number of operations after which the process ends by itself.
    pub operations: u64,
    /// Number of operations after which the process kills itself.
    pub die_after: Option<u64>,
    /// Planted fault of the file system.
    pub plant: Option<PlantedFault>,
}

impl Round {
    /// Runs sessions until all operations are done.
    ///
    /// # Errors
    /// A sentence: the engine has broken a promise. The configuration of the session follows it.
    pub fn run(&self) -> Result<(), String> {
        let files = RunFiles::new(&self.dir);
        let expected =
            Expected::open(&files.expected()).map_err(|error| format!("no expected state: {error}"))?;
        let begun_at = expected.operations();
        let mut rng = Rng::new(self.seed);
        let mut left = self.operations;
        let mut is_first = true;
        while left > 0 {
            let operations = (SESSION_OPERATIONS_MIN + rng.below(SESSION_OPERATIONS_SPREAD)).min(left);
            // A planted fault must be found by the check of the values, not by the check of the
            // log's end.
            let log_end = expected.log_end().filter(|_| self.plant.is_none());
            let config = SessionConfig::draw(&mut rng, log_end);
            let session = SessionPlan {
                operations,
                die_at: self.die_after.map(|operations| begun_at + operations),
                plant: self.plant,
                is_first,
                config: &config,
            };
            let ran = session.run(&files, &expected, &mut rng);
            ran.map_err(|error| format!("{error}\n  {config:?}\n  {self:?}"))?;
            left -= operations;
            is_first = false;
        }
        Ok(())
    }
}

/// Parameters of a session.
struct SessionPlan<'a> {
    operations: u64,
    die_at: Option<u64>,
    plant: Option<PlantedFault>,
    is_first: bool,
    config: &'a SessionConfig,
}

impl SessionPlan<'_> {
    fn env(&self) -> Env {
        match self.plant {
            Some(plant) => Env { fs: Arc::new(PlantFs::new(plant)), clock: Arc::new(OsClock::new()) },
            None => Env::os(),
        }
    }

    fn run(&self, files: &RunFiles, expected: &Expected, rng: &mut Rng) -> Result<(), String> {
        let SessionConfig { options, clients, compaction_threads, order, is_closed } = self.config;
        let opened = Engine::open(self.env(), &files.engine(), options.clone());
        let (engine, _) = opened.map_err(|error| format!("the engine does not open: {error}"))?;
        check_and_settle(&engine, expected)?;
        if self.is_first {
            check_and_remove_checkpoints(files, expected)?;
        }
        if *order == WriteOrder::Serial {
            let end_of_time = WallTime::from_micros_since_unix_epoch(u64::MAX >> 1);
            engine.set_horizon(end_of_time, end_of_time);
        }
        let on_poison = Box::new(|reason: &str| fail(&format!("the engine has stopped: {reason}")));
        let threads = workers::WorkerOptions { compaction_threads: *compaction_threads, on_poison };
        let running =
            workers::start(&engine, threads).map_err(|error| format!("cannot start threads: {error}"))?;
        let session = Session {
            engine: engine.clone(),
            expected,
            files,
            order: *order,
            writers: (0..REGISTERS).map(|_| Mutex::new(())).collect(),
            left: AtomicU64::new(self.operations),
            die_at: self.die_at,
        };
        let outcome = std::thread::scope(|scope| {
            let spawn = |_| {
                let client = ClientThread::new(&session, rng.fork());
                scope.spawn(|| client.run())
            };
            let threads: Vec<_> = (0..*clients).map(spawn).collect();
            let join =
                |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("panics end the process");
            threads.into_iter().try_for_each(join)
        });
        running.stop();
        if *is_closed {
            engine.close().map_err(|error| format!("the engine does not close: {error}"))?;
        }
        outcome
    }
}

/// Prints a message and ends the process with status 1.
pub fn fail(message: &str) -> ! {
    eprintln!("stress: {message}");
    std::process::exit(1)
}
