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

use crate::history::{ClientOutcome, CommandKind, IssuedCells, Operation};
use crate::{Nanos, Scenario};
use cluster::{Key, Quorum};
use std::collections::BTreeMap;
use stdx::{Version, WallTime};

/// What established a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactSource {
    /// An acknowledged write.
    Write,
    /// A reply to a read.
    Read,
}

/// So many of the first `from` replicas hold this version, or a greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What established it.
    pub source: FactSource,
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
pub struct SurvivalRule {
    /// In runs that lose data: holders that are needed, and of how many.
    pub survives_with: Option<(u8, u8)>,
}

impl SurvivalRule {
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
    rule: SurvivalRule,
    by_key: BTreeMap<Key, Vec<Fact>>,
}

impl Facts {
    /// No facts yet.
    pub const fn new(rule: SurvivalRule) -> Self {
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
    pub fn learn(&mut self, operation: &Operation, issued_cells: &IssuedCells, latest_wall: WallTime) {
        let Some((since, outcome)) = &operation.outcome else { return };
        let (ack, from) = (operation.quorum.ack(), operation.quorum.from());
        let fact = match outcome {
            ClientOutcome::Written { version } => {
                Some(Fact { source: FactSource::Write, since: *since, version: *version, holders: ack, from })
            }
            ClientOutcome::Found { version, .. } => {
                let stored_on = issued_cells.get(&operation.key, *version).map_or(1, |issued| issued.from);
                Some(fact_of_read(operation.quorum, *since, *version, stored_on))
            }
            ClientOutcome::Missing if operation.kind == CommandKind::Get => {
                self.fact_of_missing(operation, *since, issued_cells, latest_wall)
            }
            ClientOutcome::Missing | ClientOutcome::Failed { .. } | ClientOutcome::NoReply => None,
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

    fn fact_of_missing(
        &self,
        read: &Operation,
        since: Nanos,
        issued_cells: &IssuedCells,
        latest_wall: WallTime,
    ) -> Option<Fact> {
        let floor = self.floor(read, |_| true)?;
        let mut dead = issued_cells
            .range(&read.key, floor..)
            .filter(|(_, issued)| issued.is_dead_at(latest_wall))
            .peekable();
        let &(version, _) = dead.peek()?;
        let stored_on = dead.map(|(_, issued)| issued.from).min().unwrap_or(0);
        (version > floor).then(|| fact_of_read(read.quorum, since, version, stored_on))
    }
}

/// What a read has established by seeing a version that is for `stored_on` replicas.
const fn fact_of_read(quorum: Quorum, since: Nanos, version: Version, stored_on: u8) -> Fact {
    let holders = if stored_on < quorum.from() { 1 } else { quorum.ack() };
    Fact { source: FactSource::Read, since, version, holders, from: quorum.from() }
}

/// The newest version that binds a read which began then, with this quorum.
fn floor<'a>(facts: impl IntoIterator<Item = &'a Fact>, began: Nanos, quorum: Quorum) -> Option<Version> {
    let binds = |fact: &&Fact| {
        let from = fact.from.max(quorum.from());
        fact.since < began && fact.holders + quorum.ack() > from
    };
    facts.into_iter().filter(binds).map(|fact| fact.version).max()
}

/// Whether what a read was outcome is possible when nothing older than `floor` may be returned.
pub(super) fn respects(
    read: &Operation,
    floor: Version,
    issued_cells: &IssuedCells,
    latest_wall: WallTime,
) -> bool {
    match &read.outcome {
        Some((_, ClientOutcome::Found { version, .. })) => *version >= floor,
        Some((_, ClientOutcome::Missing)) => {
            issued_cells.range(&read.key, floor..).any(|(_, issued)| issued.is_dead_at(latest_wall))
        }
        _ => true,
    }
}
