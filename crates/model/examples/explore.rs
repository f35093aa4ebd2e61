//! Runs the models in their large bounds, or in all bounds whose names contain an argument.
//!
//! `cargo run --release -p model --example explore -- [--states N] [NAME...]`

use model::search::{Model, SearchBounds, search};
use model::{SearchExtent, chain, naming, swap};
use std::process::ExitCode;

/// Number of states after which a run stops: about 4 GiB of memory.
const STATES: usize = 80_000_000;

/// The arguments, and whether any run has failed.
struct Exploration {
    bounds: SearchBounds,
    names: Vec<String>,
    has_failed: bool,
}

impl Exploration {
    fn run<M: Model>(&mut self, bounds: Vec<(&'static str, SearchExtent, M)>) {
        for (name, extent, model) in bounds {
            let is_chosen = match self.names.is_empty() {
                true => extent == SearchExtent::Large,
                false => self.names.iter().any(|part| name.contains(part.as_str())),
            };
            if is_chosen {
                let report = search(&model, self.bounds);
                println!("{name}: {report}");
                self.has_failed |= report.counterexample().is_some() || !report.missed.is_empty();
            }
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let mut bounds = SearchBounds { states: STATES, depth: usize::MAX };
    if arguments.next_if(|argument| argument == "--states").is_some() {
        let Some(states) = arguments.next().and_then(|number| number.parse().ok()) else {
            eprintln!("--states needs a number");
            return ExitCode::FAILURE;
        };
        bounds.states = states;
    }
    let mut exploration = Exploration { bounds, names: arguments.collect(), has_failed: false };
    exploration.run(chain::bounds());
    exploration.run(naming::bounds());
    exploration.run(swap::bounds());
    if exploration.has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
