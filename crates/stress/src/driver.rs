//! The driver: starts rounds, kills them, and checks what they leave.

use crate::expected::Expected;
use crate::plant::Plant;
use crate::verify::{RunFiles, check_directory};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use stdx::Rng;

/// How often the driver looks whether a round has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A round that has made no operation for so long hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);
/// Operations of a round that is not killed.
const OPERATIONS_MAX: u64 = 12_000;
/// The same where the rounds are counted: such runs are short.
const OPERATIONS_OF_SHORT: u64 = 2_000;
/// A round is killed after so long at most.
const KILLED_AFTER_MAX: Duration = Duration::from_millis(2_500);

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The binary with the subcommand `round`.
    pub binary: PathBuf,
    /// The directory of the run.
    pub dir: PathBuf,
    /// What is drawn from it: configurations, operations, the times of kills.
    pub seed: u64,
    /// When to stop.
    pub limit: RunLimit,
    /// A fault of the file system, to show that a run finds it.
    pub plant: Option<Plant>,
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub enum RunLimit {
    /// With the first round that ends after so long.
    Time(Duration),
    /// After so many rounds, which are killed after a number of operations and never after a time.
    Rounds(u64),
}

/// What a run has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Processes that were started.
    pub rounds: u64,
    /// Processes that were killed.
    pub kills: u64,
    /// Operations of all of them.
    pub operations: u64,
}

/// How a round ends.
#[derive(Clone, Copy, Debug)]
enum RoundEnd {
    /// By itself.
    Alone,
    /// It kills itself after so many operations.
    After(u64),
    /// It is killed at this time.
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
    /// Runs rounds until the limit, and a check of the directory after the last one and after some others.
    ///
    /// # Errors
    /// A sentence: the engine has broken a promise, or a process cannot be started. The directory is left as it is.
    pub fn run(&self) -> Result<Summary, String> {
        std::fs::create_dir_all(&self.dir)
            .map_err(|error| format!("cannot make {}: {error}", self.dir.display()))?;
        let mut rng = Rng::new(self.seed);
        let mut summary = Summary::default();
        let begun = Instant::now();
        loop {
            let is_over = match self.limit {
                RunLimit::Time(time) => begun.elapsed() >= time,
                RunLimit::Rounds(rounds) => summary.rounds >= rounds,
            };
            if is_over || rng.chance(0.2) {
                // With a planted fault the check of the values is to find it, not the one of the log's end.
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
        Ok(Summary { operations: expected.operations(), ..summary })
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
        // A round says little, and only at its end: it fits into the pipe.
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

/// A round that runs. It is killed when this is dropped.
struct RoundProcess {
    child: Child,
    /// Operations when the driver looked last.
    last: u64,
    /// When there were more of them for the last time.
    moved: Instant,
}

impl RoundProcess {
    /// What a round that has ended has written to its error output.
    fn said(&mut self) -> String {
        let mut said = String::new();
        let read = self.child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
        if matches!(read, Some(Ok(_))) { said } else { "its messages cannot be read".to_owned() }
    }

    /// Fails when the round makes no progress.
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
        // It has mostly ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
