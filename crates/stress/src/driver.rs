//! The driver: starts rounds, kills them, and checks the directory.

use crate::expected::Expected;
use crate::plant::PlantedFault;
use crate::verify::{RunFiles, check_directory};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use stdx::Rng;

/// Interval at which the driver checks whether a round has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time without an operation after which a round counts as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(120);
/// Operations of a round that is not killed.
const OPERATIONS_MAX: u64 = 12_000;
/// Operations of a round in a run of a fixed number of rounds, which is short.
const OPERATIONS_OF_SHORT: u64 = 2_000;
/// Greatest time after which a round is killed.
const KILLED_AFTER_MAX: Duration = Duration::from_millis(2_500);

/// A stress run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Path of the binary with the subcommand `round`.
    pub binary: PathBuf,
    /// Directory of the run.
    pub dir: PathBuf,
    /// Seed of the configurations, the operations and the times of kills.
    pub seed: u64,
    /// End of the run.
    pub limit: RunLimit,
    /// Planted fault of the file system, which the run must find.
    pub plant: Option<PlantedFault>,
}

/// Condition that ends a run.
#[derive(Clone, Copy, Debug)]
pub enum RunLimit {
    /// The run ends with the first round that ends after this time.
    Time(Duration),
    /// The run ends after this number of rounds, which are killed after a number of operations and
    /// never after a time.
    Rounds(u64),
}

/// Work done by a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunSummary {
    /// Number of processes started.
    pub rounds: u64,
    /// Number of processes killed.
    pub kills: u64,
    /// Number of operations of all processes.
    pub operations: u64,
}

/// How a round ends.
#[derive(Clone, Copy, Debug)]
enum RoundEnd {
    /// The round ends by itself.
    Alone,
    /// The round kills itself after this number of operations.
    After(u64),
    /// The driver kills the round after this time.
    At(Duration),
}

impl RoundEnd {
    fn draw(rng: &mut Rng, limit: RunLimit) -> Self {
        match (rng.below(10), limit) {
            (0..2, _) => Self::Alone,
            (2..6, RunLimit::Time(_)) => Self::After(1 + rng.below(OPERATIONS_MAX / 4)),
            (_, RunLimit::Rounds(_)) => Self::After(1 + rng.below(OPERATIONS_OF_SHORT)),
            _ => Self::At(KILLED_AFTER_MAX.mul_f64(rng.unit() * rng.unit())),
        }
    }
}

impl Run {
    /// Runs rounds until the limit. Checks the directory after the last round and after some
    /// others.
    ///
    /// # Errors
    /// A sentence: the engine has broken a promise, or a process cannot be started. The directory
    /// is kept.
    pub fn run(&self) -> Result<RunSummary, String> {
        std::fs::create_dir_all(&self.dir)
            .map_err(|error| format!("cannot make {}: {error}", self.dir.display()))?;
        let mut rng = Rng::new(self.seed);
        let mut summary = RunSummary::default();
        let begun = Instant::now();
        loop {
            let is_over = match self.limit {
                RunLimit::Time(time) => begun.elapsed() >= time,
                RunLimit::Rounds(rounds) => summary.rounds >= rounds,
            };
            if is_over || rng.chance(0.2) {
                // A planted fault must be found by the check of the values, not by the check of the
                // log's end.
                let checked = check_directory(&self.dir, self.plant.is_none());
                checked.map_err(|error| format!("after {summary:?}: {error}"))?;
            }
            if is_over {
                break;
            }
            let end = RoundEnd::draw(&mut rng, self.limit);
            let killed = self.round(rng.next_u64(), end);
            summary.kills += u64::from(killed.map_err(|error| format!("after {summary:?}: {error}"))?);
            summary.rounds += 1;
        }
        let expected = open_expected(&self.dir)?;
        Ok(RunSummary { operations: expected.operations(), ..summary })
    }

    /// Runs a round. Returns whether it was killed.
    fn round(&self, seed: u64, end: RoundEnd) -> Result<bool, String> {
        let mut command = Command::new(&self.binary);
        command.arg("round").arg("--dir").arg(&self.dir).args(["--seed", &seed.to_string()]);
        let operations = match self.limit {
            RunLimit::Time(_) => OPERATIONS_MAX,
            RunLimit::Rounds(_) => OPERATIONS_OF_SHORT,
        };
        command.args(["--operations", &operations.to_string()]);
        if let RoundEnd::After(operations) = end {
            command.args(["--die-after", &operations.to_string()]);
        }
        if let Some(plant) = self.plant {
            command.args(["--plant", plant.name()]);
        }
        // A round writes little to its error output, and only at its end, so the output fits into
        // the pipe.
        let child = command.stderr(Stdio::piped()).spawn();
        let child = child.map_err(|error| format!("cannot start {}: {error}", self.binary.display()))?;
        let mut round = RoundProcess { child, last: 0, moved: Instant::now() };
        let expected = open_expected(&self.dir)?;
        let begun = Instant::now();
        loop {
            let ended = round.child.try_wait().map_err(|error| format!("cannot wait: {error}"))?;
            if let Some(status) = ended {
                let is_killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
                let is_as_planned = status.success() || is_killed && !matches!(end, RoundEnd::Alone);
                if is_as_planned {
                    return Ok(is_killed);
                }
                let said = round.said();
                return Err(format!("the round of seed {seed} ended with {status} ({end:?}): {said}"));
            }
            if matches!(end, RoundEnd::At(time) if begun.elapsed() >= time) {
                round.child.kill().map_err(|error| format!("cannot kill: {error}"))?;
            }
            round.look(&expected).map_err(|error| format!("the round of seed {seed} {error}"))?;
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn open_expected(dir: &Path) -> Result<Expected, String> {
    Expected::open(&RunFiles::new(dir).expected()).map_err(|error| format!("no expected state: {error}"))
}

/// Process of a round. It is killed when this value is dropped.
struct RoundProcess {
    child: Child,
    /// Number of operations at the last check.
    last: u64,
    /// Time of the last check that found new operations.
    moved: Instant,
}

impl RoundProcess {
    /// Error output of a round that has ended.
    fn said(&mut self) -> String {
        let mut said = String::new();
        let read = self.child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
        if matches!(read, Some(Ok(_))) { said } else { "its messages cannot be read".to_owned() }
    }

    /// Returns an error if the round makes no progress.
    fn look(&mut self, expected: &Expected) -> Result<(), String> {
        let operations = expected.operations();
        if operations != self.last {
            (self.last, self.moved) = (operations, Instant::now());
        }
        if self.moved.elapsed() < HANGS_AFTER {
            return Ok(());
        }
        Err(format!("hangs: no operation has ended for {HANGS_AFTER:?}"))
    }
}

impl Drop for RoundProcess {
    fn drop(&mut self) {
        // The process has mostly ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
