//! Named bounds in which nodes agree, and those in which each rule is needed.

use super::{NamingConfig, NamingRule};
use crate::SearchExtent;

/// All bounds, with a name for each.
pub fn bounds() -> Vec<(&'static str, SearchExtent, NamingConfig)> {
    let two = NamingConfig {
        voters: 2,
        rounds: [2, 1, 0],
        losses: 3,
        only_kept_disks_propose: false,
        without: None,
    };
    let three = NamingConfig { voters: 3, rounds: [1, 1, 0], losses: 2, ..two };
    let late_news = |config| NamingConfig {
        only_kept_disks_propose: true,
        without: Some(NamingRule::SuccessorIsHeard),
        ..config
    };
    let small = [
        ("naming: two voters, three ballots, three lost disks", two),
        ("naming: three voters, two ballots, two lost disks", three),
        ("naming: two voters, only kept disks propose, late news", late_news(two)),
        ("naming: three voters, only kept disks propose, late news", late_news(three)),
    ];
    let large = [
        ("naming: two voters, four ballots, four lost disks", {
            NamingConfig { rounds: [2, 2, 0], losses: 4, ..two }
        }),
        ("naming: three voters, two ballots, four lost disks", NamingConfig { losses: 4, ..three }),
        ("naming: three voters, three ballots, three lost disks", {
            NamingConfig { rounds: [1, 1, 1], losses: 3, ..three }
        }),
        ("naming: three voters, four ballots, three lost disks", {
            NamingConfig { rounds: [1, 2, 1], losses: 3, ..three }
        }),
        ("naming: three voters, three ballots, only kept disks propose, late news", {
            late_news(NamingConfig { rounds: [1, 1, 1], losses: 3, ..three })
        }),
    ];
    let of = |extent| move |(name, config)| (name, extent, config);
    let small = small.into_iter().map(of(SearchExtent::Small));
    small.chain(large.into_iter().map(of(SearchExtent::Large))).collect()
}

/// A small model without `rule`, in which the search finds a counterexample.
pub fn without(rule: NamingRule) -> NamingConfig {
    let three = NamingConfig {
        voters: 3,
        rounds: [1, 1, 0],
        losses: 2,
        only_kept_disks_propose: false,
        without: Some(rule),
    };
    match rule {
        NamingRule::AllVote => three,
        NamingRule::AllPromise => NamingConfig { rounds: [1, 1, 1], losses: 1, ..three },
        NamingRule::SuccessorIsHeard => NamingConfig { voters: 2, ..three },
        NamingRule::SuccessorEndsBallot => NamingConfig { losses: 3, ..three },
    }
}
