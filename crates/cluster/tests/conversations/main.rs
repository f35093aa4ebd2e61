//! Conversations with a cluster: each file below `tests/conversations/` states a claim in its first
//! line, then gives commands and the occurrences that follow from them.
//!
//! `UPDATE=1 cargo test -p cluster --test conversations` writes the actual occurrences into the
//! files. The commands are listed in `docs/testing.md`.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test reads its scripts from files, and its settings from the environment"
)]

#[path = "../world/mod.rs"]
mod world;

mod commands;
mod describe;
mod faults;
mod names;
mod parse;
mod player;

use player::Player;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A claim is proved in a short conversation.
const LINES_MAX: usize = 80;

#[test]
fn each_conversation_goes_as_it_is_written() {
    let update = std::env::var_os("UPDATE").is_some();
    let wanted = std::env::var("CONVERSATION").unwrap_or_default();
    let mut failures = String::new();
    let scripts = scripts();
    assert!(scripts.len() >= 100, "only {} scripts", scripts.len());
    for path in scripts.iter().filter(|path| path.to_string_lossy().contains(&wanted)) {
        let script = std::fs::read_to_string(path).expect("a script");
        check_form(path, &script);
        match play(&script) {
            Err(error) => writeln!(failures, "{}: {error}", path.display()).expect("a string"),
            Ok(played) if played == script => {}
            Ok(played) if update => std::fs::write(path, &played).expect("the script is written"),
            Ok(played) => {
                let difference = similar::TextDiff::from_lines(&script, &played);
                let name = format!("{} as written", path.display());
                let difference = difference.unified_diff().header(&name, "as it goes").to_string();
                writeln!(failures, "{difference}").expect("a string");
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}\nUPDATE=1 rewrites the files: read the difference first.\n");
}

/// Panics if a script does not begin with its claim, or is long.
fn check_form(path: &Path, script: &str) {
    assert!(script.starts_with("# "), "{} does not begin with its claim", path.display());
    let lines = script.lines().count();
    assert!(lines <= LINES_MAX, "{} has {lines} lines, more than {LINES_MAX}", path.display());
}

/// Plays a script, and returns it with the occurrences. A panic of the world is an error of the
/// script.
fn play(script: &str) -> Result<String, String> {
    let played = std::panic::catch_unwind(|| goldenscript::generate(&mut Player::default(), script));
    match played {
        Ok(played) => played.map_err(|error| error.to_string()),
        Err(_) => Err("the world panicked, as shown above".to_owned()),
    }
}

/// The scripts, in the order of their paths.
fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conversations");
    let mut scripts: Vec<PathBuf> = entries(&folder)
        .filter(|path| path.is_dir())
        .flat_map(|subject| entries(&subject).collect::<Vec<_>>())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    scripts.sort();
    scripts
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
}
