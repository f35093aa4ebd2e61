//! Named bounds in which the chain holds its promises, and those in which it needs each rule.

use super::{ChainConfig, ChainRule};
use crate::SearchExtent;

/// All bounds, with a name for each.
pub fn bounds() -> Vec<(&'static str, SearchExtent, ChainConfig)> {
    let one = ChainConfig { rounds: [2, 0], restarts: 0, losses: 0, retires: false, without: None };
    let two = ChainConfig { rounds: [1, 1], retires: true, ..one };
    let small = [
        ("chain: one epoch, two ballots each", one),
        ("chain: one epoch, one ballot each, restarts and a lost disk", {
            ChainConfig { rounds: [1, 0], restarts: 2, losses: 1, ..one }
        }),
        ("chain: a removed voter is switched off at once, and no disk is lost", {
            ChainConfig { rounds: [1, 0], retires: true, without: Some(ChainRule::RetiresLate), ..one }
        }),
    ];
    let large = [
        ("chain: one epoch, two ballots each, a restart", ChainConfig { restarts: 1, ..one }),
        ("chain: one epoch, two ballots each, a lost disk", ChainConfig { losses: 1, ..one }),
        ("chain: two epochs, a removed voter", two),
        ("chain: two epochs, a removed voter, a restart", ChainConfig { restarts: 1, ..two }),
        ("chain: two epochs, a removed voter, a lost disk", ChainConfig { losses: 1, ..two }),
        ("chain: two epochs, two ballots each in the first", ChainConfig { rounds: [2, 1], ..two }),
    ];
    let of = |extent| move |(name, config)| (name, extent, config);
    small
        .into_iter()
        .map(of(SearchExtent::Small))
        .chain(large.into_iter().map(of(SearchExtent::Large)))
        .collect()
}

/// A small chain without `rule`, in which the search finds a counterexample.
pub fn without(rule: ChainRule) -> ChainConfig {
    let one = ChainConfig { rounds: [2, 0], restarts: 0, losses: 0, retires: false, without: Some(rule) };
    let two = ChainConfig { rounds: [1, 1], ..one };
    match rule {
        ChainRule::DurableBallot => ChainConfig { restarts: 1, ..one },
        ChainRule::LostDiskDoesNotVote => ChainConfig { losses: 1, ..one },
        ChainRule::DecidedByMajority => two,
        // A removed voter may be switched off at once here, without the loss of a disk.
        ChainRule::OneVoterAtATime => ChainConfig { retires: true, rounds: [1, 0], ..two },
        ChainRule::RetiresLate => ChainConfig { retires: true, losses: 1, rounds: [1, 0], ..two },
        _ => one,
    }
}
