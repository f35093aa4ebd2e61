//! Commands: `fuzzing seeds DIR` writes the seeds of each target to a directory of its name, as
//! libFuzzer reads them. `fuzzing run TARGET FILE` runs one input without a fuzzer.

use fuzzing::TARGETS;
use std::io;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["seeds", dir] => write_seeds(Path::new(dir)),
        ["run", target, file] => run(target, Path::new(file)),
        _ => Err(io::Error::other("fuzzing seeds DIR\nfuzzing run TARGET FILE")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn write_seeds(dir: &Path) -> io::Result<()> {
    for target in TARGETS {
        let dir = dir.join(target.name);
        std::fs::create_dir_all(&dir)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(dir.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}

fn run(name: &str, file: &Path) -> io::Result<()> {
    let target = TARGETS.into_iter().find(|target| target.name == name);
    let target = target.ok_or_else(|| io::Error::other(format!("there is no target {name}")))?;
    (target.run)(&std::fs::read(file)?);
    Ok(())
}
