//! The chores of the project, one command each. `cargo xtask` lists them.

mod netns;
mod simulate;

use std::process::{Command, ExitCode};

/// A chore: its name, what it does, and the commands it runs in order.
struct Chore {
    name: &'static str,
    does: &'static str,
    steps: &'static [Step],
}

/// One command, with what is added to its environment.
struct Step {
    command: &'static str,
    env: &'static [(&'static str, &'static str)],
}

const fn step(command: &'static str) -> Step {
    Step { command, env: &[] }
}

const LINTS: &[Step] = &[
    step("cargo fmt --all --check"),
    step("cargo clippy --workspace --all-targets --locked -- -D warnings"),
];

const DOCS: &[Step] = &[Step {
    command: "cargo doc --workspace --no-deps --locked",
    env: &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links")],
}];

const TESTS: &[Step] = &[step("cargo test --workspace --locked")];

const SWEEP: &[Step] = &[step("cargo run --quiet --locked --profile sim --package sim -- sweep 300")];

const CHORES: &[Chore] = &[
    Chore { name: "lint", does: "format and lints, warnings denied", steps: LINTS },
    Chore { name: "doc", does: "the documentation of all crates, warnings denied", steps: DOCS },
    Chore { name: "test", does: "all tests", steps: TESTS },
    Chore {
        name: "deny",
        does: "licences and advisories of dependencies (needs cargo-deny)",
        steps: &[step("cargo deny check")],
    },
    Chore {
        name: "static",
        does: "the static binary, in target/x86_64-unknown-linux-gnu/release/veche",
        steps: &[Step {
            command: "cargo build --release --locked --package veche --target x86_64-unknown-linux-gnu",
            env: &[("RUSTFLAGS", "-C target-feature=+crt-static -C force-frame-pointers=yes")],
        }],
    },
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("ci") => run_all([LINTS, DOCS, TESTS, SWEEP]),
        Some("netns") => netns::run(),
        Some(name) if simulate::CHORES.iter().any(|(chore, _)| *chore == name) => {
            simulate::run(name, arguments)
        }
        Some(name) => match CHORES.iter().find(|chore| chore.name == name) {
            Some(chore) => run_all([chore.steps]),
            None => usage(),
        },
        None => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "cargo xtask <chore>\n\n  {:<9} lint, doc, test, sweep 300: what continuous integration runs",
        "ci"
    );
    for chore in CHORES {
        eprintln!("  {:<9} {}", chore.name, chore.does);
    }
    eprintln!(
        "  {:<9} a cluster whose cables are cut, in network namespaces (needs root and iproute2)",
        "netns"
    );
    for (chore, does) in simulate::CHORES {
        eprintln!("  {chore:<9} {does}");
    }
    ExitCode::FAILURE
}

fn run_all<const N: usize>(groups: [&[Step]; N]) -> ExitCode {
    for step in groups.into_iter().flatten() {
        eprintln!("+ {}", step.command);
        let mut words = step.command.split(' ');
        let program = words.next().expect("a command has a program");
        let status = Command::new(program).args(words).envs(step.env.iter().copied()).status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => {
                eprintln!("failed ({status}): {}", step.command);
                return ExitCode::FAILURE;
            }
            Err(error) => {
                eprintln!("cannot run {program}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
