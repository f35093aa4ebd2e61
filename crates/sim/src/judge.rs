//! The judge of a run: keeps its history, and checks each invariant as soon as it can be checked.

use crate::check::facts::{Facts, SurvivalRule};
use crate::check::monotonic_writes::MonotonicWrites;
use crate::check::observed_clocks::ObservedClocks;
use crate::check::slow_disk::SlowDisk;
use crate::check::{
    InvariantViolation, acks, clock_bound, deadlines, expiry, monotonic_reads, no_resurrection,
    nothing_stored, one_reply, one_snapshot, quorum_reads, ranges, removed_nodes, replica_sets, slow_disk,
    unique_versions, validity,
};
use crate::history::{
    AgreementHistory, ClientOperation, ClientOutcome, CommandKind, DurableVersions, History, IssuedCells,
    ScanEnd, ScanHistory,
};
use crate::network::Endpoint;
use crate::world::members::{host_of, slot_in};
use crate::{Nanos, Scenario};
use cluster::{
    CommandFailure, Key, Layout, NodeIndex, PartitionId, Reply, RequestId, ScanId, ScanScope, Shortfall,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, CellMeta, Version, WallTime};
use store::StoreError;

/// Records the events of a run and checks the invariants.
pub(crate) struct Judge {
    pub(crate) history: History,
    pub(crate) scans: ScanHistory,
    pub(crate) issued_cells: IssuedCells,
    pub(crate) durable: DurableVersions,
    pub(crate) observed_clocks: ObservedClocks,
    pub(crate) facts: Facts,
    pub(crate) agreement: AgreementHistory,
    ledger: acks::Ledger,
    monotonic_writes: MonotonicWrites,
    snapshot_age: Duration,
    /// The layouts that nodes have had, one for each placement.
    layouts: Vec<Arc<Layout>>,
    /// Greatest time that a correct wall clock has shown.
    pub(crate) latest_wall: WallTime,
    in_flight: BTreeMap<NodeIndex, BTreeSet<RequestId>>,
    /// Times at which processes of each node have ended.
    process_ends: BTreeMap<NodeIndex, Vec<Nanos>>,
    /// Periods in which disks were slow.
    pub(crate) slow_disks: Vec<SlowDisk>,
    /// Whether slow disks are the only faults of the run.
    one_slow_disk: bool,
    /// Periods whose acknowledged writes were undone, because all nodes were restored to their
    /// state at the beginning of the period.
    undone_periods: Vec<RangeInclusive<Nanos>>,
    /// Processes of nodes that have learned that they were removed: hosts and generations.
    removed: BTreeSet<(NodeIndex, u64)>,
    /// Number of hints dropped.
    pub(crate) hints_dropped: u64,
    /// First violation of the run.
    pub(crate) violation: Option<InvariantViolation>,
}

impl ClientOutcome {
    /// Outcome that a reply gives to a client.
    pub(crate) fn of(reply: &Reply) -> Self {
        match reply {
            Reply::Found { cell, .. } => {
                Self::Found { version: cell.meta.version, value: cell.value.clone() }
            }
            Reply::Missing { .. } => Self::Missing,
            Reply::Page { .. } => unreachable!("pages answer scans"),
            Reply::Written { version, .. } => Self::Written { version: *version },
            Reply::Failed(failure) => {
                let is_not_stored = match failure {
                    CommandFailure::NotEnoughReplicas { shortfall, .. } => {
                        *shortfall != Shortfall::MaybeStored
                    }
                    CommandFailure::ClockAhead { maybe_stored, .. }
                    | CommandFailure::ReplicasOverloaded { maybe_stored, .. } => !maybe_stored,
                    failure => matches!(
                        failure,
                        CommandFailure::ExpiryTooLate { .. }
                            | CommandFailure::Overloaded { .. }
                            | CommandFailure::NoMemory { .. }
                    ),
                };
                Self::Failed { is_not_stored, reason: format!("{failure:?}") }
            }
        }
    }
}

impl Judge {
    pub(crate) fn new(scenario: &Scenario, layout: Arc<Layout>) -> Self {
        Self {
            history: History::default(),
            scans: ScanHistory::default(),
            issued_cells: IssuedCells::default(),
            durable: DurableVersions::default(),
            observed_clocks: ObservedClocks::default(),
            facts: Facts::new(SurvivalRule::of(scenario)),
            agreement: AgreementHistory::default(),
            ledger: acks::Ledger::default(),
            monotonic_writes: MonotonicWrites::default(),
            snapshot_age: scenario.snapshot_age,
            layouts: vec![layout],
            latest_wall: WallTime::EPOCH_2020,
            in_flight: BTreeMap::new(),
            process_ends: BTreeMap::new(),
            slow_disks: Vec::new(),
            one_slow_disk: scenario.one_slow_disk,
            undone_periods: Vec::new(),
            removed: BTreeSet::new(),
            hints_dropped: 0,
            violation: None,
        }
    }

    /// Records a layout that a node has adopted.
    pub(crate) fn note_layout(&mut self, layout: &Arc<Layout>) {
        let hosts = |layout: &Layout| layout.names().iter().map(|name| host_of(name)).collect::<Vec<_>>();
        let is_same = |known: &Arc<Layout>| {
            let mut partitions = (0..layout.partitions()).map(PartitionId);
            known.newest_change() == layout.newest_change()
                && hosts(known) == hosts(layout)
                && partitions.all(|it| known.preference_list(it) == layout.preference_list(it))
        };
        if !self.layouts.iter().any(is_same) {
            self.layouts.push(Arc::clone(layout));
        }
    }

    /// Whether the node of a host has had the same place in the list of `key` by all layouts,
    /// without a swap.
    fn keeps_place(&self, host: NodeIndex, key: &Key) -> bool {
        let place = |layout: &Arc<Layout>| {
            let slot = slot_in(layout, host)?;
            (1..=layout.len()).find(|from| layout.is_intended_holder(slot, key, *from))
        };
        self.layouts.iter().all(|layout| place(layout) == place(&self.layouts[0]))
    }

    /// Records a command that begins.
    pub(crate) fn begin(&mut self, operation: ClientOperation) {
        self.in_flight.entry(operation.node).or_default().insert(operation.id);
        self.monotonic_writes.begin(&operation);
        self.history.begin(operation);
    }

    /// Records the outcome of a command. `wall` is the time that the wall clock of the answering
    /// node showed.
    pub(crate) fn end(&mut self, id: RequestId, at: Nanos, outcome: ClientOutcome, wall: Option<WallTime>) {
        let ended = self.history.end(id, at, outcome);
        if let Err(violation) = one_reply::check(id, ended) {
            return self.fail(violation);
        }
        let operation = ended.expect("the check above passed").clone();
        self.in_flight.entry(operation.node).or_default().remove(&id);
        if let Err(violation) = self.monotonic_writes.end(&operation) {
            return self.fail(violation);
        }
        if operation.kind == CommandKind::Get
            && let Err(violation) = self.check_read(&operation, wall)
        {
            return self.fail(violation);
        }
        if self.one_slow_disk
            && let Err(violation) = slow_disk::check(&operation, &self.slow_disks)
        {
            return self.fail(violation);
        }
        let latest_wall = self.latest_for(wall);
        self.facts.learn(&operation, &self.issued_cells, latest_wall);
    }

    /// Greatest wall time by which an answer may decide about expiry: the answering node uses its
    /// own clock, even if that clock is wrong.
    fn latest_for(&self, wall: Option<WallTime>) -> WallTime {
        wall.map_or(self.latest_wall, |wall| wall.max(self.latest_wall))
    }

    /// Checks the reply to a command that is about to be sent.
    pub(crate) fn reply(&mut self, to: RequestId, reply: &Reply) {
        let checked = (self.history.get(to))
            .map_or(Ok(()), |operation| acks::check(&self.layouts, operation, reply, &self.ledger));
        if let Err(violation) = checked {
            self.fail(violation);
        }
    }

    /// Records that a node has made a version of a key durable.
    ///
    /// `member` is the member of the cluster that the node's process stands for. If two processes
    /// stand for one member, the acknowledgements of both count, and the other process is rebuilt
    /// once it is alone.
    pub(crate) fn note_durable(
        &mut self,
        node: NodeIndex,
        member: NodeIndex,
        key: Key,
        at: Nanos,
        version: Version,
    ) {
        self.ledger.note_durable(member, version);
        self.durable.note(node, key, at, version);
    }

    /// Records that a node lost its data directory and starts with an empty one.
    pub(crate) fn note_empty_directory(&mut self, node: NodeIndex) {
        self.durable.lose_all(node);
        self.monotonic_writes.forget(node);
        self.agreement.note_lost(node);
    }

    /// Records that a node has another data directory, which may hold a part of the versions that
    /// the node made durable.
    pub(crate) fn note_changed_directory(&mut self, node: NodeIndex) {
        self.durable.lose_some(node);
        self.monotonic_writes.forget(node);
        self.agreement.note_lost(node);
    }

    /// Records that the directory of `to` is a copy of the present directory of `of`.
    pub(crate) fn note_copied_directory(&mut self, of: NodeIndex, to: NodeIndex) {
        self.durable.copy(of, to);
        self.monotonic_writes.forget(to);
        self.agreement.note_copied(to);
    }

    /// Records that a host has an empty directory, for a node that is to join.
    pub(crate) fn note_fresh_directory(&mut self, host: NodeIndex) {
        self.durable.lose_all(host);
        self.monotonic_writes.forget(host);
        if self.agreement.voter(host).is_some() {
            self.agreement.note_lost(host);
        }
    }

    /// Records that a process has learned that its node was removed.
    pub(crate) fn note_removed(&mut self, endpoint: Endpoint) {
        self.removed.insert((endpoint.node, endpoint.generation));
    }

    /// Whether the node of a host was ever removed.
    pub(crate) fn was_removed(&self, host: NodeIndex) -> bool {
        self.removed.range((host, 0)..=(host, u64::MAX)).next().is_some()
    }

    /// Checks that a process may reply to a client.
    pub(crate) fn check_replier(&mut self, endpoint: Endpoint) {
        let has_learned = self.removed.contains(&(endpoint.node, endpoint.generation));
        self.note(removed_nodes::check(endpoint, has_learned));
    }

    /// Records the reply to a page command. Returns the scan if it is still open.
    pub(crate) fn page(&mut self, to: RequestId, at: Nanos, reply: &Reply) -> Option<ScanId> {
        let call = self.scans.answer(to, at);
        if let Err(violation) = one_reply::check_page(to, call.as_ref(), reply) {
            self.fail(violation);
            return None;
        }
        let id = call.expect("the check above passed").scan;
        if let Some(end) = self.scans.note_page(id, at, reply) {
            self.end_scan(id, at, end);
        }
        self.scans.is_open(id).then_some(id)
    }

    /// Records the end of a scan, if it had not ended before.
    pub(crate) fn end_scan(&mut self, id: ScanId, at: Nanos, end: ScanEnd) {
        if self.scans.end(id, at, end)
            && let Err(violation) = self.check_scan(id)
        {
            self.fail(violation);
        }
    }

    fn check_scan(&self, id: ScanId) -> Result<(), InvariantViolation> {
        let record = self.scans.get(id);
        for seen in &record.seen {
            self.writer_of(&seen.value).map_or(Ok(()), nothing_stored::check)?;
        }
        let keeps = |key: &Key| self.keeps_place(record.node, key);
        let floors = match record.scan.scope {
            ScanScope::Node => {
                let mut durable = self.durable.newest_before(record.node, record.began);
                durable.retain(|key, _| keeps(key));
                durable
            }
            ScanScope::Cluster(quorum) => self.facts.floors(record.began, quorum),
        };
        let latest_wall = self.latest_for(Some(record.greatest_wall));
        ranges::check(record, &floors, &self.issued_cells, latest_wall)?;
        let is_short = record.page_times.is_some_and(|(_, last)| last - record.began < self.snapshot_age);
        if record.scan.scope == ScanScope::Node && is_short && !record.lost_snapshot {
            one_snapshot::check(record, &self.durable, &self.issued_cells, keeps)?;
        }
        Ok(())
    }

    fn check_read(&self, read: &ClientOperation, wall: Option<WallTime>) -> Result<(), InvariantViolation> {
        let (facts, issued_cells, latest_wall) = (&self.facts, &self.issued_cells, self.latest_for(wall));
        validity::check(read, issued_cells)?;
        if let Some((_, ClientOutcome::Found { value, .. })) = &read.outcome {
            self.writer_of(value).map_or(Ok(()), nothing_stored::check)?;
        }
        wall.map_or(Ok(()), |wall| expiry::check(read, issued_cells, wall))?;
        no_resurrection::check(read, facts, issued_cells, latest_wall)?;
        quorum_reads::check(read, facts, issued_cells, latest_wall)?;
        monotonic_reads::check(read, facts, issued_cells, latest_wall)
    }

    /// Command that wrote a value.
    fn writer_of(&self, value: &[u8]) -> Option<&ClientOperation> {
        let id = RequestId(u64::from_be_bytes(*value.first_chunk()?));
        self.history.get(id)
    }

    /// Checks a version that some replica holds.
    pub(crate) fn check_held_version(&self, key: &Key, version: Version) -> Result<(), InvariantViolation> {
        let value = self.issued_cells.get(key, version).map(|issued| &issued.value);
        value.and_then(|value| self.writer_of(value)).map_or(Ok(()), nothing_stored::check)
    }

    /// Checks a command that must have its reply by now.
    pub(crate) fn reply_due(&mut self, id: RequestId, now: Nanos) {
        let Some(operation) = self.history.get(id) else { return };
        if let Err(violation) = deadlines::check(operation, now) {
            self.fail(violation);
        }
    }

    /// Checks a page command that must have its reply by now.
    pub(crate) fn page_due(&mut self, id: RequestId, now: Nanos) {
        let Some(call) = self.scans.get_call(id) else { return };
        if let Err(violation) = deadlines::check_page(call, now) {
            self.fail(violation);
        }
    }

    /// Records a cell that a coordinator of `node` issues.
    pub(crate) fn note_issued(&mut self, node: NodeIndex, key: &Key, cell: &Cell) {
        if let Err(violation) = self.check_issued(node, key, cell) {
            self.fail(violation);
        }
    }

    fn check_issued(&mut self, node: NodeIndex, key: &Key, cell: &Cell) -> Result<(), InvariantViolation> {
        let version = cell.meta.version;
        if unique_versions::check(&mut self.issued_cells, key, cell)? {
            clock_bound::check(key, version, self.latest_wall)?;
            self.observed_clocks.check(node, key, version)?;
        }
        Ok(())
    }

    /// Records a cell that the store of a node is asked to store.
    pub(crate) fn note_write_request(&mut self, node: NodeIndex, key: &Key, meta: &CellMeta) {
        self.ledger.give(node, key, meta.version);
        let checked = replica_sets::check(&self.layouts, &self.issued_cells, node, key, meta)
            .and_then(|()| clock_bound::check(key, meta.version, self.latest_wall));
        if let Err(violation) = checked {
            self.fail(violation);
        }
    }

    /// Records that all nodes were restored at `now` to their state at `since`. Writes acknowledged
    /// in between are not promised to survive.
    pub(crate) fn note_cluster_restore(&mut self, since: Nanos, now: Nanos) {
        self.facts.forget_since(since);
        self.undone_periods.push(since..=now);
    }

    /// Whether a write was acknowledged in a period that a restore of all nodes has undone.
    pub(crate) fn is_undone(&self, write: &ClientOperation) -> bool {
        let at = write.outcome.as_ref().map(|(at, _)| *at);
        at.is_some_and(|at| self.undone_periods.iter().any(|times| times.contains(&at)))
    }

    /// Checks the error of a process that could not start. A full or failing disk may cause it, and
    /// damaged data may not.
    pub(crate) fn start_failed(&mut self, node: NodeIndex, error: &StoreError) {
        use engine::Error::{Full, Io, Poisoned};
        let is_plain = matches!(
            error,
            StoreError::Io { .. } | StoreError::Engine(Full { .. } | Io { .. } | Poisoned { .. })
        );
        if !is_plain {
            self.fail(InvariantViolation::new("recovery", format!("{node:?} does not start: {error}")));
        }
    }

    /// Records that the process of a node has ended.
    pub(crate) fn process_ended(&mut self, node: NodeIndex, at: Nanos) {
        self.process_ends.entry(node).or_default().push(at);
        self.observed_clocks.forget(node);
    }

    /// Whether a process of the node ended between `from` and `until`.
    fn has_ended(&self, node: NodeIndex, from: Nanos, until: Nanos) -> bool {
        self.process_ends
            .get(&node)
            .is_some_and(|process_ends| process_ends.iter().any(|at| (from..=until).contains(at)))
    }

    /// Whether no process of `node` ended between the beginning of a write and `long` after its
    /// outcome.
    ///
    /// `long` counts from the outcome, since a paused process takes a command long after the client
    /// sent it, and answers later still.
    pub(crate) fn has_outlived(&self, node: NodeIndex, write: &ClientOperation, long: Duration) -> bool {
        let last_word = write.outcome.as_ref().map_or(write.began, |(at, _)| *at);
        !self.has_ended(node, write.began, last_word + long)
    }

    /// Commands that a node has not answered.
    pub(crate) fn in_flight_at(&self, node: NodeIndex) -> Vec<RequestId> {
        self.in_flight.get(&node).into_iter().flatten().copied().collect()
    }

    /// Records that a node dropped a snapshot to free memory.
    pub(crate) fn note_lost_snapshot(&mut self, node: NodeIndex) {
        self.scans.note_lost_snapshot(node);
    }

    /// Records a time that the wall clock of a node shows, and whether that clock is wrong.
    pub(crate) fn observe_wall(&mut self, node: NodeIndex, wall: WallTime, is_wrong: bool) {
        if !is_wrong {
            self.latest_wall = self.latest_wall.max(wall);
        }
        self.scans.observe_wall(node, wall);
    }

    /// Records the result of a check.
    pub(crate) fn note(&mut self, checked: Result<(), InvariantViolation>) {
        if let Err(violation) = checked {
            self.fail(violation);
        }
    }

    /// Records a violation. The first one of a run counts.
    pub(crate) fn fail(&mut self, violation: InvariantViolation) {
        self.violation.get_or_insert(violation);
    }
}
