//! The chores of the project, one command each. `cargo xtask` lists them.

mod ci;
mod clients;
mod netns;
mod night;
mod nightly;
mod seed;
mod simulate;
mod steps;
mod stress;
mod tidy;

use std::process::ExitCode;
use steps::{ChoreStep, run_all};

/// A chore that is a list of steps.
struct Chore {
    name: &'static str,
    does: &'static str,
    steps: fn() -> Vec<ChoreStep>,
}

const CHORES: [Chore; 5] = [
    Chore { name: "lint", does: "format, style (tidy) and lints, warnings denied", steps: ci::lints },
    Chore { name: "doc", does: "the documentation of all crates, warnings denied", steps: ci::docs },
    Chore { name: "test", does: "all tests", steps: || vec![ci::tests(), ci::benchmark_tests()] },
    Chore {
        name: "deny",
        does: "licences and advisories of dependencies (needs cargo-deny)",
        steps: || vec![ChoreStep::new("cargo deny check")],
    },
    Chore {
        name: "static",
        does: "the static binary, in target/x86_64-unknown-linux-gnu/release/veche",
        steps: static_binary,
    },
];

fn static_binary() -> Vec<ChoreStep> {
    let build = "cargo build --release --locked --package veche --target x86_64-unknown-linux-gnu";
    let flags = "-C target-feature=+crt-static -C force-frame-pointers=yes";
    // The container image copies its empty data directory from there: see
    // ops/container/Containerfile.
    let image_root = ChoreStep::new("mkdir -p target/x86_64-unknown-linux-gnu/release/image-root/data");
    vec![ChoreStep::new(build).with("RUSTFLAGS", flags), image_root]
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("ci") => ci::run(),
        Some("night") => night::run(arguments),
        Some("netns") => netns::run(),
        Some("clients") => clients::run(arguments),
        Some("stress") => stress::run(arguments),
        Some("tidy") => tidy::run(arguments),
        Some(name) if nightly::CHORES.iter().any(|(chore, _)| *chore == name) => {
            nightly::run(name, arguments)
        }
        Some(name) if simulate::CHORES.iter().any(|(chore, _)| *chore == name) => {
            simulate::run(name, arguments)
        }
        Some(name) => match CHORES.iter().find(|chore| chore.name == name) {
            Some(chore) => run_all(&(chore.steps)()),
            None => usage(),
        },
        None => usage(),
    }
}

fn usage() -> ExitCode {
    let line = |name: &str, does: &str| eprintln!("  {name:<9} {does}");
    eprintln!("cargo xtask <chore>\n");
    line(
        "ci",
        "the checks of continuous integration: lint, doc, test, and a sweep of 500 seeds derived from the commit",
    );
    line("tidy", &format!("style of prose and names, `path:line: rule: message`: {}", tidy::USAGE));
    line("night", &format!("the checks that take hours: {}", night::USAGE));
    CHORES.iter().for_each(|chore| line(chore.name, chore.does));
    line("netns", "a cluster in network namespaces whose cables are cut (needs root and iproute2)");
    line(
        "stress",
        "threads on an engine in processes that are killed at random times: [--seconds N] [--seed S] [--dir DIR]",
    );
    nightly::CHORES.iter().for_each(|(name, does)| line(name, does));
    line(
        "clients",
        &format!(
            "ten HTTP clients hold one conversation with a node, directly and behind proxies: {}",
            clients::USAGE
        ),
    );
    simulate::CHORES.iter().for_each(|(name, does)| line(name, does));
    ExitCode::FAILURE
}
