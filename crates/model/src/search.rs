//! Exhaustive breadth-first search over the states of a model.
//!
//! **Promise.** [`search`] visits every state that a model can reach, or names the bound that
//! stopped it. A violation is reported with a shortest sequence of steps that leads to it. A model
//! names goals: a run that never reaches one of them is [reported](ModelReport::missed), so a model
//! that can do nothing does not pass. A state without a next step is a deadlock unless the model
//! [accepts](Model::may_end) it.
//!
//! **Mechanism.** The search keeps the states of the current depth, and for every state seen the
//! fingerprint of its canonical encoding and the fingerprint of the state before it. A
//! counterexample is found by running the model again along these fingerprints.
//!
//! **Caveats.** Two states with equal fingerprints count as one. With `n` states, the probability
//! that any state is missed is about `n * n / 2^65`: `3e-4` for 100 million.
//!
//! **Alternatives.** `stateright` 0.31 reduces by symmetry in its depth-first search only, which
//! finds no shortest counterexample. Its breadth-first search keeps the whole path of each pending
//! state and does not report deadlocks, and it depends on an HTTP server.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use xxhash_rust::xxh3::xxh3_64;

/// A system of states and steps.
pub trait Model {
    /// A state. Equal encodings mean equal states.
    type State: Copy;
    /// A step, displayed as one line of a counterexample.
    type Step: fmt::Display;

    /// The first state.
    fn start(&self) -> Self::State;

    /// Calls `next` with every step that is possible in `state`, and with the state after it.
    fn for_each_step(&self, state: &Self::State, next: &mut dyn FnMut(Self::Step, Self::State));

    /// Replaces a state by the representative of all states that behave alike.
    fn canonicalize(&self, state: &mut Self::State);

    /// Appends an encoding of a canonical state.
    fn encode(&self, state: &Self::State, bytes: &mut Vec<u8>);

    /// The promise that is broken in this state.
    fn violation(&self, state: &Self::State) -> Option<String>;

    /// Names of the goals that some states must reach. At most 64.
    fn goals(&self) -> Vec<&'static str>;

    /// The goals that this state reaches: bit `i` for goal `i`.
    fn reached(&self, state: &Self::State) -> u64;

    /// Whether nothing need happen after this state.
    fn may_end(&self, state: &Self::State) -> bool;
}

/// Limits of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchBounds {
    /// Number of states after which the search stops.
    pub states: usize,
    /// Number of steps from the first state after which the search stops.
    pub depth: usize,
}

/// The end of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every reachable state was visited.
    Complete,
    /// A bound stopped the search.
    Bounded,
    /// A promise is broken after these steps.
    Violated {
        /// The promise.
        promise: String,
        /// The steps, from the first state.
        steps: Vec<String>,
    },
    /// After these steps no step is possible.
    Deadlock {
        /// The steps, from the first state.
        steps: Vec<String>,
    },
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct ModelReport {
    /// The end of the search.
    pub outcome: Outcome,
    /// Number of states, without those that are equal by symmetry.
    pub states: usize,
    /// Number of steps between states.
    pub transitions: u64,
    /// Length of the longest shortest path.
    pub depth: usize,
    /// Goals that no state reached.
    pub missed: Vec<&'static str>,
}

impl ModelReport {
    /// Whether every state was visited, every goal reached and no promise broken.
    pub fn holds(&self) -> bool {
        self.outcome == Outcome::Complete && self.missed.is_empty()
    }

    /// Number of steps of the counterexample, if there is one.
    pub fn counterexample(&self) -> Option<usize> {
        match &self.outcome {
            Outcome::Violated { steps, .. } | Outcome::Deadlock { steps } => Some(steps.len()),
            Outcome::Complete | Outcome::Bounded => None,
        }
    }
}

impl fmt::Display for ModelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, transitions, depth, missed, .. } = self;
        write!(f, "{states} states, {transitions} transitions, depth {depth}: ")?;
        match &self.outcome {
            Outcome::Complete => write!(f, "complete, goals missed: {missed:?}"),
            Outcome::Bounded => write!(f, "stopped by a bound, goals missed: {missed:?}"),
            Outcome::Violated { promise, steps } => write!(f, "{promise}\n{}", steps.join("\n")),
            Outcome::Deadlock { steps } => write!(f, "deadlock\n{}", steps.join("\n")),
        }
    }
}

/// Fingerprint of the state before, by the fingerprint of a state.
type Parents = HashMap<u64, u64, BuildHasherDefault<FingerprintHasher>>;

/// Hashes a fingerprint to itself.
#[derive(Default)]
struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("fingerprints are integers");
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Visits all states of `model` within `bounds`.
pub fn search<M: Model>(model: &M, bounds: SearchBounds) -> ModelReport {
    let goals = model.goals();
    let (mut parents, mut bytes) = (Parents::default(), Vec::new());
    let mut first = model.start();
    let print = fingerprint(model, &mut first, &mut bytes);
    parents.insert(print, print);
    let (mut level, mut reached) = (vec![first], model.reached(&first));
    let mut report =
        ModelReport { outcome: Outcome::Complete, states: 1, transitions: 0, depth: 0, missed: Vec::new() };
    let mut broken = model.violation(&first).map(|promise| (print, promise));
    while !level.is_empty() && broken.is_none() {
        if report.states >= bounds.states || report.depth >= bounds.depth {
            report.outcome = Outcome::Bounded;
            break;
        }
        let mut next_level = Vec::new();
        for mut state in level {
            let from = fingerprint(model, &mut state, &mut bytes);
            let mut is_stuck = true;
            model.for_each_step(&state, &mut |_, mut next| {
                is_stuck = false;
                report.transitions += 1;
                let print = fingerprint(model, &mut next, &mut bytes);
                if parents.contains_key(&print) {
                    return;
                }
                parents.insert(print, from);
                reached |= model.reached(&next);
                if broken.is_none() {
                    broken = model.violation(&next).map(|promise| (print, promise));
                }
                next_level.push(next);
            });
            if is_stuck && !model.may_end(&state) {
                report.outcome = Outcome::Deadlock { steps: steps_to(model, &parents, from) };
                broken = broken.or(Some((from, String::new())));
            }
            if broken.is_some() {
                break;
            }
        }
        report.depth += 1;
        report.states = parents.len();
        level = next_level;
    }
    if let (Some((print, promise)), Outcome::Complete) = (broken, &report.outcome) {
        report.outcome = Outcome::Violated { promise, steps: steps_to(model, &parents, print) };
    }
    report.missed = (goals.iter().enumerate())
        .filter(|(index, _)| reached & 1 << index == 0)
        .map(|(_, goal)| *goal)
        .collect();
    report
}

fn fingerprint<M: Model>(model: &M, state: &mut M::State, bytes: &mut Vec<u8>) -> u64 {
    model.canonicalize(state);
    bytes.clear();
    model.encode(state, bytes);
    xxh3_64(bytes)
}

/// The steps from the first state to the state with the fingerprint `last`.
fn steps_to<M: Model>(model: &M, parents: &Parents, last: u64) -> Vec<String> {
    let mut prints = vec![last];
    while let Some(&print) = prints.last()
        && parents[&print] != print
    {
        prints.push(parents[&print]);
    }
    let (mut state, mut steps, mut bytes) = (model.start(), Vec::new(), Vec::new());
    for print in prints.into_iter().rev().skip(1) {
        let mut found = None;
        model.for_each_step(&state, &mut |step, next| {
            let mut representative = next;
            if found.is_none() && fingerprint(model, &mut representative, &mut bytes) == print {
                found = Some((step.to_string(), next));
            }
        });
        // The state is not replaced by its representative, so that each node keeps its name.
        let (step, next) = found.expect("the model repeats its steps");
        state = next;
        steps.push(step);
    }
    steps
}
