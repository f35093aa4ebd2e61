//! What reads that begin from now on must respect.
//!
//! A *fact* says that so many of the first `from` replicas of a key hold a version or a greater one. An
//! acknowledged write establishes it of `ack` replicas; a read that returned a version, too, for it has stored it there
//! before it replied. Only of a version with a smaller `from` than the read's it may have found one holder, and trusted
//! those that it could not reach. A read that found nothing where something was
//! established has seen something dead and at least as new; the least such cell that was issued counts.
//!
//! A read, or a scan, is bound by every fact whose holders must overlap with those it asks: `holders + ack > from`,
//! the larger `from` of the two operations. The `from` of the version itself does not count.

use crate::history::{Asked, Issue, Operation, Told};
use crate::{Nanos, Scenario};
use cluster::{Key, Quorum};
use std::collections::BTreeMap;
use stdx::{Version, WallTime};

/// What established a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// An acknowledged write.
    Write,
    /// A reply to a read.
    Read,
}

/// So many of the first `from` replicas hold this version, or a greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What established it.
    pub by: By,
    /// When it was certain.
    pub since: Nanos,
    /// Which version.
    pub version: Version,
    /// So many replicas, ...
    pub holders: u8,
    /// ... of the first so many.
    pub from: u8,
}

/// Which facts count: those that survive the loss of a disk need a majority of the default replicas.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// In runs that lose data: holders that are needed, and of how many.
    pub survives_with: Option<(u8, u8)>,
}

impl Rule {
    /// The rule for a scenario.
    pub fn of(scenario: &Scenario) -> Self {
        let survives_with = scenario.survives_with().map(|holders| (holders, scenario.default_from));
        Self { survives_with }
    }

    /// Whether what so many of the first `from` replicas hold is not lost in this run.
    pub fn survives(self, holders: u8, from: u8) -> bool {
        self.survives_with.is_none_or(|(needed, of)| holders >= needed && from == of)
    }
}

/// All facts of a run.
#[derive(Debug)]
pub struct Facts {
    rule: Rule,
    by_key: BTreeMap<Key, Vec<Fact>>,
}

impl Facts {
    /// No facts yet.
    pub const fn new(rule: Rule) -> Self {
        Self { rule, by_key: BTreeMap::new() }
    }

    /// Whether a write that was acknowledged with this quorum is not lost in this run.
    pub fn survives(&self, write: Quorum) -> bool {
        self.rule.survives(write.ack(), write.from())
    }

    /// The newest version that a read must respect by facts of the kind that `counts` names.
    pub fn floor(&self, read: &Operation, counts: impl Fn(&Fact) -> bool) -> Option<Version> {
        let facts = self.by_key.get(&read.key)?;
        floor(facts.iter().filter(|fact| counts(fact)), read.began, read.quorum)
    }

    /// The newest version of each key that a scan must respect which began then, with this quorum.
    pub fn floors(&self, began: Nanos, quorum: Quorum) -> BTreeMap<Key, Version> {
        let bound = |(key, facts): (&Key, &Vec<Fact>)| Some((key.clone(), floor(facts, began, quorum)?));
        self.by_key.iter().filter_map(bound).collect()
    }

    /// Learns from a command that has ended. `latest_wall` is the greatest that any clock has shown.
    pub fn learn(&mut self, operation: &Operation, issue: &Issue, latest_wall: WallTime) {
        let Some((since, told)) = &operation.told else { return };
        let (ack, from) = (operation.quorum.ack(), operation.quorum.from());
        let fact = match told {
            Told::Written { version } => {
                Some(Fact { by: By::Write, since: *since, version: *version, holders: ack, from })
            }
            Told::Found { version, .. } => {
                let stored_on = issue.get(&operation.key, *version).map_or(1, |issued| issued.from);
                Some(seen(operation.quorum, *since, *version, stored_on))
            }
            Told::Missing if operation.asked == Asked::Get => {
                self.seen_dead(operation, *since, issue, latest_wall)
            }
            Told::Missing | Told::Failed { .. } | Told::Nothing => None,
        };
        if let Some(fact) = fact.filter(|fact| self.rule.survives(fact.holders, fact.from)) {
            self.by_key.entry(operation.key.clone()).or_default().push(fact);
        }
    }

    /// Forgets what was established from `since` on: all nodes are as they were then.
    pub fn forget_since(&mut self, since: Nanos) {
        for facts in self.by_key.values_mut() {
            facts.retain(|fact| fact.since < since);
        }
    }

    fn seen_dead(
        &self,
        read: &Operation,
        since: Nanos,
        issue: &Issue,
        latest_wall: WallTime,
    ) -> Option<Fact> {
        let floor = self.floor(read, |_| true)?;
        let mut dead =
            issue.range(&read.key, floor..).filter(|(_, issued)| issued.is_dead_at(latest_wall)).peekable();
        let &(version, _) = dead.peek()?;
        let stored_on = dead.map(|(_, issued)| issued.from).min().unwrap_or(0);
        (version > floor).then(|| seen(read.quorum, since, version, stored_on))
    }
}

/// What a read has established by seeing a version that is for `stored_on` replicas.
const fn seen(quorum: Quorum, since: Nanos, version: Version, stored_on: u8) -> Fact {
    let holders = if stored_on < quorum.from() { 1 } else { quorum.ack() };
    Fact { by: By::Read, since, version, holders, from: quorum.from() }
}

/// The newest version that binds a read which began then, with this quorum.
fn floor<'a>(facts: impl IntoIterator<Item = &'a Fact>, began: Nanos, quorum: Quorum) -> Option<Version> {
    let binds = |fact: &&Fact| {
        let from = fact.from.max(quorum.from());
        fact.since < began && fact.holders + quorum.ack() > from
    };
    facts.into_iter().filter(binds).map(|fact| fact.version).max()
}

/// Whether what a read was told is possible when nothing older than `floor` may be returned.
pub(super) fn respects(read: &Operation, floor: Version, issue: &Issue, latest_wall: WallTime) -> bool {
    match &read.told {
        Some((_, Told::Found { version, .. })) => *version >= floor,
        Some((_, Told::Missing)) => {
            issue.range(&read.key, floor..).any(|(_, issued)| issued.is_dead_at(latest_wall))
        }
        _ => true,
    }
}
