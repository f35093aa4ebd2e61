//! `stress run --seconds N --seed S [--dir DIR]` executes a run. `stress round` is one process of a
//! run, and `stress verify` checks the directory of a run.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stress::driver::{Run, RunLimit};
use stress::plant::PlantedFault;
use stress::round::{Round, fail};
use stress::verify::check_directory;

const USAGE: &str = "stress run [--seconds N] [--seed S] [--dir DIR] [--plant NAME]\n\
    stress round --dir DIR --seed S --operations N [--die-after N] [--plant NAME]\n\
    stress verify --dir DIR";
const SECONDS: u64 = 60;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.split_first() {
        Some((command, rest)) => Arguments::parse(rest).and_then(|arguments| arguments.run(command)),
        None => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stress: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Arguments {
    dir: Option<PathBuf>,
    seed: Option<u64>,
    seconds: Option<u64>,
    operations: Option<u64>,
    die_after: Option<u64>,
    plant: Option<PlantedFault>,
}

impl Arguments {
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut arguments = Self::default();
        for pair in words.chunks(2) {
            let [name, value] = pair else { return Err(format!("{} needs a value\n{USAGE}", pair[0])) };
            let number = || value.parse::<u64>().map_err(|_| format!("{name}: {value} is not a number"));
            match name.as_str() {
                "--dir" => arguments.dir = Some(value.into()),
                "--seed" => arguments.seed = Some(number()?),
                "--seconds" => arguments.seconds = Some(number()?),
                "--operations" => arguments.operations = Some(number()?),
                "--die-after" => arguments.die_after = Some(number()?),
                "--plant" => arguments.plant = Some(PlantedFault::named(value).ok_or("no such plant")?),
                _ => return Err(format!("{name} is unknown\n{USAGE}")),
            }
        }
        Ok(arguments)
    }

    fn run(self, command: &str) -> Result<(), String> {
        match command {
            "run" => self.run_all(),
            "round" => {
                // A panic of any thread ends the process at once.
                std::panic::set_hook(Box::new(|panic| fail(&panic.to_string())));
                let round = Round {
                    dir: self.dir.ok_or(USAGE)?,
                    seed: self.seed.ok_or(USAGE)?,
                    operations: self.operations.ok_or(USAGE)?,
                    die_after: self.die_after,
                    plant: self.plant,
                };
                round.run()
            }
            "verify" => check_directory(&self.dir.ok_or(USAGE)?, true),
            _ => Err(USAGE.to_owned()),
        }
    }

    fn run_all(self) -> Result<(), String> {
        let seed = self.seed.unwrap_or_else(|| {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
        });
        let seconds = self.seconds.unwrap_or(SECONDS);
        // The directory of a failed run is kept as evidence.
        let dir = match self.dir {
            Some(dir) => dir,
            None => tempfile::Builder::new()
                .prefix("veche-stress-")
                .tempdir()
                .map_err(|error| error.to_string())?
                .keep(),
        };
        println!("seed {seed}, {seconds} s, in {}", dir.display());
        let run = Run {
            binary: std::env::current_exe().map_err(|error| error.to_string())?,
            dir: dir.clone(),
            seed,
            limit: RunLimit::Time(Duration::from_secs(seconds)),
            plant: self.plant,
        };
        let summary = run.run().map_err(|error| {
            format!(
                "{error}\nto repeat: cargo xtask stress --seconds {seconds} --seed {seed}; the files are in {}",
                dir.display()
            )
        })?;
        println!("{summary:?}");
        std::fs::remove_dir_all(&dir).map_err(|error| format!("cannot remove {}: {error}", dir.display()))
    }
}
