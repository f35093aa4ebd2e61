//! Chores that need nightly Rust: Miri, ThreadSanitizer, libFuzzer.
//!
//! The other chores do not need it. If a component is missing, the chore prints the command that
//! installs it.

use crate::steps::{ChoreStep, run_all};
use std::process::{Command, ExitCode, Stdio};

/// The names and descriptions of this module's chores.
pub(crate) const CHORES: [(&str, &str); 3] = [
    ("miri", "the memtable and its memory under Miri: [--seeds N] schedules (needs nightly Rust)"),
    ("tsan", "tests with threads under ThreadSanitizer: [--seconds N] of stress (needs nightly Rust)"),
    ("fuzz", "the fuzz targets: [--seconds N] of each [--target NAME] (needs nightly Rust, cargo-fuzz)"),
];

const TARGETS: [&str; 13] = [
    "decode",
    "engine",
    "entries",
    "head_check",
    "layout_record",
    "manifest",
    "results",
    "table",
    "votes",
    "wal_record",
    "wal_segment",
    "wire_handshake",
    "wire_inbox",
];
/// ThreadSanitizer needs an instrumented standard library, which needs an explicit target.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// Maximum time of one input, in seconds. A slower input is a fault.
const INPUT_SECONDS_MAX: u32 = 30;

/// Arguments of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    seeds: Option<u32>,
    seconds: Option<u32>,
    target: Option<String>,
}

impl Arguments {
    /// Parses the command line.
    ///
    /// # Errors
    /// A message, if an argument is unknown or its value is not a number.
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self::default();
        while let Some(name) = words.next() {
            let value = words.next().ok_or_else(|| format!("{name} needs a value"))?;
            let number = || value.parse().map_err(|_| format!("{name}: {value} is not a number"));
            match name.as_str() {
                "--seeds" => arguments.seeds = Some(number()?),
                "--seconds" => arguments.seconds = Some(number()?),
                "--target" if TARGETS.contains(&value.as_str()) => arguments.target = Some(value),
                "--target" => return Err(format!("there is no target {value}: {}", TARGETS.join(" "))),
                _ => return Err(format!("{name} is unknown")),
            }
        }
        Ok(arguments)
    }
}

/// Runs the chore of this name.
pub(crate) fn run(chore: &str, words: impl Iterator<Item = String>) -> ExitCode {
    let steps = Arguments::parse(words).and_then(|arguments| match chore {
        "miri" => miri(&arguments),
        "tsan" => tsan(&arguments),
        _ => fuzz(&arguments),
    });
    match steps {
        Ok(steps) => run_all(&steps),
        Err(error) => {
            eprintln!("{chore}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The steps for `cargo xtask night`, and messages for chores that are not installed.
pub(crate) fn night() -> (Vec<ChoreStep>, Vec<String>) {
    let arguments = Arguments { seeds: Some(64), seconds: Some(300), target: None };
    let (mut steps, mut missing) = (Vec::new(), Vec::new());
    for chore in [miri, tsan, fuzz] {
        match chore(&arguments) {
            Ok(chore) => steps.extend(chore),
            Err(error) => missing.push(error),
        }
    }
    (steps, missing)
}

fn miri(arguments: &Arguments) -> Result<Vec<ChoreStep>, String> {
    needs("miri", &["miri", "--version"], "rustup toolchain install nightly --component miri,rust-src")?;
    // Tests read the clock and save failing cases in files, so isolation is off.
    let flags = format!("-Zmiri-disable-isolation -Zmiri-many-seeds=0..{}", arguments.seeds.unwrap_or(16));
    let test = |what: &str| {
        let step = ChoreStep::new(format!("cargo +nightly miri test --locked --package engine {what}"));
        step.with("MIRIFLAGS", &*flags)
    };
    Ok(vec![test("--lib memtable::"), test("--test memtable_threads")])
}

fn tsan(arguments: &Arguments) -> Result<Vec<ChoreStep>, String> {
    needs_std_source()?;
    let seconds = arguments.seconds.unwrap_or(60);
    let cargo = |what: &str| {
        let step = ChoreStep::new(format!("cargo +nightly {what}"));
        // A separate directory keeps the other builds valid.
        step.with("RUSTFLAGS", "-Zsanitizer=thread").with("CARGO_TARGET_DIR", target_dir("tsan"))
    };
    let built = format!("-Zbuild-std --target {PLATFORM} --locked --package");
    Ok(vec![
        cargo(&format!("test {built} engine --test memtable_threads --test concurrency --test commit")),
        cargo(&format!("test {built} engine --test checkpoint --test pinned_blocks --test scrub")),
        cargo(&format!("test {built} server --test node")),
        cargo(&format!("run {built} stress -- run --seconds {seconds}")),
    ])
}

fn fuzz(arguments: &Arguments) -> Result<Vec<ChoreStep>, String> {
    needs(
        "cargo-fuzz",
        &["fuzz", "--version"],
        "rustup toolchain install nightly && cargo install cargo-fuzz",
    )?;
    let seconds = arguments.seconds.unwrap_or(60);
    let mut steps = vec![ChoreStep::new("cargo run --quiet --locked --package fuzzing -- seeds fuzz/corpus")];
    let is_chosen = |target: &&&str| arguments.target.as_ref().is_none_or(|chosen| chosen == **target);
    steps.extend(TARGETS.iter().filter(is_chosen).map(|target| {
        let limits = format!("-max_total_time={seconds} -timeout={INPUT_SECONDS_MAX}");
        // AddressSanitizer makes scripts of the engine twenty times slower. Miri checks the unsafe
        // code instead.
        let run = ChoreStep::new(format!("cargo +nightly fuzz run --sanitizer none {target} -- {limits}"));
        run.with("CARGO_TARGET_DIR", target_dir("fuzz"))
    }));
    Ok(steps)
}

/// The target directory of builds with other flags.
fn target_dir(name: &str) -> String {
    let parent = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    std::path::absolute(format!("{parent}/{name}")).map_or(parent, |path| path.display().to_string())
}

/// Checks that `cargo +nightly` runs with these arguments. The error contains the command that
/// installs `tool`.
fn needs(tool: &str, arguments: &[&str], install: &str) -> Result<(), String> {
    let mut command = Command::new("cargo");
    command.arg("+nightly").args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(format!("{tool} of nightly Rust is not installed: {install}")),
    }
}

fn needs_std_source() -> Result<(), String> {
    let missing = || {
        "the source of the standard library of nightly Rust is not installed: \
         rustup toolchain install nightly --component rust-src"
            .to_owned()
    };
    let output =
        Command::new("rustc").args(["+nightly", "--print", "sysroot"]).output().map_err(|_| missing())?;
    let root = String::from_utf8(output.stdout).map_err(|_| missing())?;
    let source = std::path::Path::new(root.trim()).join("lib/rustlib/src/rust/library/std");
    if output.status.success() && source.is_dir() { Ok(()) } else { Err(missing()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_taken_by_their_names_and_unknown_targets_are_refused() {
        let parse = |line: &str| Arguments::parse(line.split_whitespace().map(str::to_owned));
        let all = parse("--seeds 3 --seconds 9 --target table").expect("all are known");
        assert_eq!(all, Arguments { seeds: Some(3), seconds: Some(9), target: Some("table".to_owned()) });
        for line in ["--seeds", "--seeds x", "--target moon", "--moon 1"] {
            assert!(parse(line).is_err(), "{line:?} is taken");
        }
    }

    #[test]
    fn every_fuzz_target_has_a_file() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
        let entries = std::fs::read_dir(&dir).expect("the directory of the targets");
        let mut files: Vec<String> = entries
            .map(|entry| entry.expect("a file").file_name().to_string_lossy().replace(".rs", ""))
            .collect();
        files.sort();
        assert_eq!(files, TARGETS);
    }
}
