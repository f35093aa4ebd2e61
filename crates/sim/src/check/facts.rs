//! Lower bounds on the versions that reads may return.
//!
//! A *fact* states that `holders` of the first `from` replicas of a key hold a version or a greater
//! one.
//!
//! - An acknowledged write establishes a fact with `ack` holders.
//! - A read that returned a version establishes one too, because it stores the version on `ack`
//!   replicas before it replies. If the version has a smaller `from` than the read, the fact has
//!   one holder. The read may have found only that one, and have relied on replicas that it could
//!   not reach.
//! - A read that found nothing, although a fact existed, has seen a dead cell that is at least as
//!   new. The oldest such cell that was issued counts.
//!
//! A read or a scan is bound by every fact whose holders must overlap with the replicas that it
//! asks. That is the case if `holders + ack > from`, with the larger `from` of the two operations.
//! The `from` of the version itself does not count.

use crate::history::{ClientOperation, ClientOutcome, CommandKind, IssuedCells};
use crate::{Nanos, Scenario};
use cluster::{Key, Quorum};
use std::collections::BTreeMap;
use stdx::{Version, WallTime};

/// Kind of operation that established a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactSource {
    /// An acknowledged write.
    Write,
    /// A reply to a read.
    Read,
}

/// Statement that `holders` of the first `from` replicas hold `version` or a greater version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Operation that established the fact.
    pub source: FactSource,
    /// Time from which the fact is certain.
    pub since: Nanos,
    /// Version that the replicas hold, at least.
    pub version: Version,
    /// Number of replicas that hold the version.
    pub holders: u8,
    /// Number of replicas among which the holders are.
    pub from: u8,
}

/// Condition under which a fact survives the data losses of a run.
///
/// The loss of a disk is survived only by cells on a majority of the default replicas.
#[derive(Clone, Copy, Debug)]
pub struct SurvivalRule {
    /// In runs that lose data: the number of holders needed, and the `from` that the operation must
    /// have.
    pub survives_with: Option<(u8, u8)>,
}

impl SurvivalRule {
    /// Returns the rule for a scenario.
    pub fn of(scenario: &Scenario) -> Self {
        let survives_with = scenario.survives_with().map(|holders| (holders, scenario.default_from));
        Self { survives_with }
    }

    /// Whether a version on `holders` of the first `from` replicas survives this run.
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
    /// Creates an empty set of facts.
    pub const fn new(rule: SurvivalRule) -> Self {
        Self { rule, by_key: BTreeMap::new() }
    }

    /// Whether a write that was acknowledged with this quorum survives this run.
    pub fn survives(&self, write: Quorum) -> bool {
        self.rule.survives(write.ack(), write.from())
    }

    /// Newest version that binds `read`, over the facts for which `counts` is true.
    pub fn floor(&self, read: &ClientOperation, counts: impl Fn(&Fact) -> bool) -> Option<Version> {
        let facts = self.by_key.get(&read.key)?;
        floor(facts.iter().filter(|fact| counts(fact)), read.began, read.quorum)
    }

    /// Newest version from `source` that binds `read` and that `read` does not respect.
    pub fn missed(
        &self,
        read: &ClientOperation,
        source: FactSource,
        issued_cells: &IssuedCells,
        latest_wall: WallTime,
    ) -> Option<Version> {
        let floor = self.floor(read, |fact| fact.source == source)?;
        (!respects(read, floor, issued_cells, latest_wall)).then_some(floor)
    }

    /// Newest version of each key that binds a scan with this quorum that began at `began`.
    pub fn floors(&self, began: Nanos, quorum: Quorum) -> BTreeMap<Key, Version> {
        let bound = |(key, facts): (&Key, &Vec<Fact>)| Some((key.clone(), floor(facts, began, quorum)?));
        self.by_key.iter().filter_map(bound).collect()
    }

    /// Adds the fact that a finished command establishes. `latest_wall` is the greatest time that
    /// any wall clock has shown.
    pub fn learn(&mut self, operation: &ClientOperation, issued_cells: &IssuedCells, latest_wall: WallTime) {
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

    /// Removes the facts established at `since` or later, after all nodes were restored to their
    /// state at `since`.
    pub fn forget_since(&mut self, since: Nanos) {
        for facts in self.by_key.values_mut() {
            facts.retain(|fact| fact.since < since);
        }
    }

    fn fact_of_missing(
        &self,
        read: &ClientOperation,
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

/// Fact established by a read that saw a version whose cell is for `stored_on` replicas.
const fn fact_of_read(quorum: Quorum, since: Nanos, version: Version, stored_on: u8) -> Fact {
    let holders = if stored_on < quorum.from() { 1 } else { quorum.ack() };
    Fact { source: FactSource::Read, since, version, holders, from: quorum.from() }
}

/// Newest version that binds a read with this quorum that began at `began`.
fn floor<'a>(facts: impl IntoIterator<Item = &'a Fact>, began: Nanos, quorum: Quorum) -> Option<Version> {
    let binds = |fact: &&Fact| {
        let from = fact.from.max(quorum.from());
        fact.since < began && fact.holders + quorum.ack() > from
    };
    facts.into_iter().filter(binds).map(|fact| fact.version).max()
}

/// Whether the outcome of a read is possible if nothing older than `floor` may be returned.
pub(super) fn respects(
    read: &ClientOperation,
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
