//! Writes: assign a version, send the cell to the replicas, count their acknowledgements.
//!
//! A write is blind: nothing is read before it. Whether its quorum can be reached is checked before
//! anything is sent; if not, nothing is sent. A replica whose clock is so far behind that it would
//! refuse the version counts as unavailable. While this node's wall clock is past its
//! [ceiling](HybridClock::check_wall), no version is issued: a write that peers refuse must not
//! leave a copy here that wins later.
//!
//! While a swap of the partition runs, the write goes to both sets of replicas and needs `ack` of
//! each. It keeps its value until the reply, so that it can be planned anew: `layout_change`.
//!
//! Replicas that cannot be asked, or are suspected, are named as targets of hints in the write to
//! one replica, the *hint holder*. A write that fails because replicas refused it reports one
//! reason, the first that applies: full disks, overload, this node's clock being ahead. Work after
//! the reply is in `late_replicas`.

use super::context::{OperationContext, RequestTarget};
use super::late_replicas::DeferredHints;
use super::peers::{Availability, Peers, Subject, WritePacing};
use super::request_number::Step;
use crate::quorum::Tally;
use crate::replica_request::write_size;
use crate::replica_set::ReplicaSet;
use crate::{
    CommandFailure, Event, LayoutEpoch, Lifetime, NodeSet, PeerState, Quorum, ReplicaFault, ReplicaOutcome,
    ReplicaRequest, ReplicaResponse, Reply, Shortfall, StoreFault,
};
use bytes::Bytes;
use limits::Deadline;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Version, WallTime};

/// A write that has no version yet.
#[derive(Debug)]
pub(super) struct WriteIntent {
    subject: Subject,
    kind: CellKind,
    expires_at: Option<WallTime>,
    value: Bytes,
    quorum: Quorum,
}

/// A write in progress.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) subject: Subject,
    pub(super) tally: Tally,
    pub(super) version: Version,
    /// Size of each of its messages, in bytes.
    pub(super) bytes: usize,
    /// Replicas that were asked and have not answered.
    pub(super) open: ReplicaSet,
    /// Replicas for which the hint holder keeps hints.
    pub(super) hinted: ReplicaSet,
    /// The hint holder, which keeps the hints once it has stored the cell.
    pub(super) holder: Option<u8>,
    pub(super) deferred_hints: DeferredHints,
    /// Failed replicas by reason: full disk, overload, version refused.
    disk_full: ReplicaSet,
    busy: ReplicaSet,
    clock_refused: ReplicaSet,
    /// The longest time after which a busy replica wants to be asked again.
    retry_after: Duration,
    superseded: bool,
    /// Whether some replica may have stored the cell although it did not acknowledge it.
    may_be_stored: bool,
    /// The fault of the only replica.
    fault: Option<Box<StoreFault>>,
    /// The cell, until the reply. `None` on a node that is alone.
    cell: Option<Cell>,
    /// Epoch of the plan.
    pub(super) epoch: LayoutEpoch,
    /// Whether a replica has refused the plan because the partition has changed since. The write
    /// then waits for the new layout.
    is_stale: bool,
}

/// The replicas that a write can ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct WritePlan {
    tally: Tally,
    disk_full: ReplicaSet,
    busy: ReplicaSet,
    /// Replicas that would refuse the version, because their clocks are too far behind.
    clock_refused: ReplicaSet,
    /// Replicas that can be asked, but are suspected.
    suspected: ReplicaSet,
    epoch: LayoutEpoch,
}

/// The requirements of a write on its replicas.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteRequirements<'a> {
    pub(super) subject: &'a Subject,
    pub(super) quorum: Quorum,
    /// Size of key and value, in bytes.
    pub(super) bytes: usize,
    pub(super) is_value: bool,
    pub(super) pacing: WritePacing,
}

/// Expiry of a value written at `wall`.
pub(super) fn expiry(wall: WallTime, lifetime: Lifetime) -> Result<Option<WallTime>, CommandFailure> {
    match lifetime {
        Lifetime::Forever => Ok(None),
        Lifetime::For(duration) => check_expiry(wall.saturating_add(duration)),
        Lifetime::Until(expires_at) => check_expiry(expires_at),
    }
}

fn check_expiry(expires_at: WallTime) -> Result<Option<WallTime>, CommandFailure> {
    if expires_at < WallTime::EXPIRY_END {
        Ok(Some(expires_at))
    } else {
        Err(CommandFailure::ExpiryTooLate { expires_at })
    }
}

impl WriteIntent {
    pub(super) fn value(
        subject: Subject,
        value: Bytes,
        expires_at: Option<WallTime>,
        quorum: Quorum,
    ) -> Self {
        Self { subject, kind: CellKind::Value, expires_at, value, quorum }
    }

    pub(super) fn tombstone(subject: Subject, quorum: Quorum) -> Self {
        Self { subject, kind: CellKind::Tombstone, expires_at: None, value: Bytes::new(), quorum }
    }

    pub(super) fn requirements(&self, pacing: WritePacing) -> WriteRequirements<'_> {
        let Self { subject, quorum, .. } = self;
        let bytes = subject.key.as_bytes().len() + self.value.len();
        WriteRequirements { subject, quorum: *quorum, bytes, is_value: self.kind == CellKind::Value, pacing }
    }

    pub(super) fn subject_and_quorum(&self) -> (&Subject, Quorum) {
        (&self.subject, self.quorum)
    }

    pub(super) fn into_parts(self, version: Version) -> (Subject, Cell) {
        let from = self.quorum.from();
        let meta = CellMeta { version, kind: self.kind, expires_at: self.expires_at, from };
        (self.subject, Cell { meta, value: self.value })
    }
}

/// The failure of a write that waited for a version in vain.
pub(super) fn no_version_failure(intent: &WriteIntent) -> CommandFailure {
    Tally::new(intent.quorum).short(Shortfall::NoVersion)
}

/// The failure of a write whose version too many replicas would refuse.
pub(super) fn clock_ahead_failure(intent: &WriteIntent) -> CommandFailure {
    CommandFailure::ClockAhead { acks: Tally::new(intent.quorum).acks(), maybe_stored: false }
}

/// The failure of a write that waited for a version, when this node's store could not make the
/// bound durable.
pub(super) fn no_version_failure_for(intent: &WriteIntent, fault: &StoreFault) -> CommandFailure {
    match fault {
        StoreFault::Full => CommandFailure::DiskFull {
            acks: Tally::new(intent.quorum).acks(),
            here: true,
            maybe_stored: false,
        },
        fault => fault.clone().into(),
    }
}

impl WritePlan {
    /// The replicas that can be asked; the failure if these are too few.
    pub(super) fn of(peers: &Peers, requirements: WriteRequirements<'_>) -> Result<Self, CommandFailure> {
        let plan = Self::survey(peers, requirements);
        if plan.tally.is_impossible() { Err(plan.failure(peers, requirements.subject)) } else { Ok(plan) }
    }

    /// The replicas that can be asked, which may be too few.
    fn survey(peers: &Peers, requirements: WriteRequirements<'_>) -> Self {
        let WriteRequirements { subject, quorum, bytes, is_value, pacing } = requirements;
        let quorum = peers.possible(quorum);
        let sets = peers.write_sets(subject, quorum);
        let (none, tally) = (ReplicaSet::EMPTY, Tally::of(quorum, sets));
        let (disk_full, busy, clock_refused, suspected) = (none, none, none, none);
        let epoch = peers.member.layout.newest_change();
        let mut plan = Self { tally, disk_full, busy, clock_refused, suspected, epoch };
        let is_local_log_busy = pacing == WritePacing::Unpaced && peers.is_local_log_busy(subject, quorum);
        for replica_index in sets.union() {
            let node = peers.node(subject, replica_index);
            match peers.admits_write(node, bytes, is_value, is_local_log_busy) {
                Availability::Ready if peers.view.refusing.contains(node) => {
                    plan.clock_refused.insert(replica_index)
                }
                Availability::Ready => {
                    if peers.view.peer(node).state == PeerState::Suspected {
                        plan.suspected.insert(replica_index);
                    }
                    continue;
                }
                Availability::Full => plan.disk_full.insert(replica_index),
                Availability::Busy => plan.busy.insert(replica_index),
                Availability::Unavailable => true,
            };
            plan.tally.fail(replica_index);
        }
        plan
    }

    fn failure(&self, peers: &Peers, subject: &Subject) -> CommandFailure {
        if self.tally.is_reachable_if_recovered(self.disk_full) {
            CommandFailure::DiskFull {
                acks: self.tally.acks(),
                here: peers.is_own_among(subject, self.disk_full),
                maybe_stored: false,
            }
        } else if self.tally.is_reachable_if_recovered(self.disk_full.union(self.busy)) {
            CommandFailure::Overloaded { retry_after: peers.retry_after() }
        } else if self
            .tally
            .is_reachable_if_recovered(self.disk_full.union(self.busy).union(self.clock_refused))
        {
            CommandFailure::ClockAhead { acks: self.tally.acks(), maybe_stored: false }
        } else {
            self.tally.short(Shortfall::Unreachable)
        }
    }
}

impl Write {
    pub(super) fn new(plan: WritePlan, subject: Subject, cell: &Cell) -> Self {
        let WritePlan { tally, disk_full, busy, clock_refused, suspected, epoch } = plan;
        Self {
            version: cell.meta.version,
            bytes: write_size(&subject.key, cell),
            subject,
            open: tally.silent(),
            tally,
            hinted: tally.failed().union(suspected),
            holder: None,
            deferred_hints: DeferredHints::default(),
            disk_full,
            busy,
            clock_refused,
            retry_after: Duration::ZERO,
            superseded: false,
            may_be_stored: false,
            fault: None,
            cell: None,
            epoch,
            is_stale: false,
        }
    }

    /// Stops the write for a new plan: no answer to its requests counts any more. Something may be
    /// stored if anything was sent.
    pub(super) fn stop(&mut self, cx: &mut OperationContext<'_>) {
        self.may_be_stored |= !self.tally.acked().union(self.open).is_empty();
        self.abandon(cx);
    }

    /// Plans the write anew, with the same version and quorum, and without acknowledgements.
    /// Returns the cell to send. The write fails without it, and if the replicas that can be asked
    /// are too few.
    pub(super) fn plan_anew(&mut self, peers: &Peers) -> Result<Cell, CommandFailure> {
        let cell = self.cell.take();
        let requirements = WriteRequirements {
            subject: &self.subject,
            quorum: self.tally.quorum(),
            bytes: self.bytes,
            is_value: cell.as_ref().is_some_and(|cell| cell.meta.kind == CellKind::Value),
            // It was admitted when it was submitted.
            pacing: WritePacing::Paced,
        };
        let plan = WritePlan::survey(peers, requirements);
        (self.tally, self.open) = (plan.tally, plan.tally.silent());
        self.hinted = plan.tally.failed().union(plan.suspected);
        (self.holder, self.deferred_hints) = (None, DeferredHints::default());
        (self.epoch, self.is_stale) = (plan.epoch, false);
        (self.disk_full, self.busy, self.clock_refused) = (plan.disk_full, plan.busy, plan.clock_refused);
        match cell.filter(|_| !self.tally.is_impossible()) {
            Some(cell) => Ok(cell),
            None => {
                self.open = ReplicaSet::EMPTY;
                Err(self.failure(peers))
            }
        }
    }

    /// Sends the write to all replicas that can be asked.
    pub(super) fn send(&mut self, cx: &mut OperationContext<'_>, deadline: Deadline, cell: Cell) {
        // A node that is alone has no plan but its own.
        if cx.peers.member.layout.len() > 1 {
            self.cell = Some(cell.clone());
        }
        let targets = cx.peers.nodes(&self.subject, self.hinted);
        self.holder = if targets.is_empty() { None } else { self.choose_holder(cx.peers) };
        let mut rest = self.open;
        let mut cell = Some(cell);
        while let Some(replica_index) = rest.next() {
            let cell = if rest.is_empty() { cell.take() } else { cell.clone() };
            let cell = cell.expect("only the last iteration takes the cell");
            let hints = if self.holder == Some(replica_index) { targets } else { NodeSet::EMPTY };
            let node = cx.peers.node(&self.subject, replica_index);
            self.may_be_stored |= node != cx.peers.member.me;
            let request = ReplicaRequest::Write { key: self.subject.key.clone(), cell, hints };
            let (step, epoch) = (Step::Write { round: 0 }, self.epoch);
            let target = RequestTarget { step, node, deadline, epoch };
            cx.ask(target, request, self.bytes);
        }
    }

    /// Chooses this node, else the first replica that is not suspected, else the first.
    fn choose_holder(&self, peers: &Peers) -> Option<u8> {
        let mut replicas = self.open;
        (replicas.find(|&replica_index| peers.node(&self.subject, replica_index) == peers.member.me))
            .or_else(|| self.open.without(self.hinted).first_index())
            .or_else(|| self.open.first_index())
    }

    /// Handles the outcome of one of its requests to a replica.
    pub(super) fn handle_outcome(
        &mut self,
        cx: &mut OperationContext<'_>,
        replica_index: u8,
        step: Step,
        outcome: ReplicaOutcome,
    ) {
        match step {
            Step::Write { .. } if self.open.remove(replica_index) => {
                cx.end_request(cx.peers.node(&self.subject, replica_index), self.bytes);
                self.record_outcome(cx.peers, replica_index, outcome);
            }
            Step::Hints { attempt } => self.handle_hints_outcome(cx, replica_index, attempt, &outcome),
            _ => {}
        }
    }

    /// Fails the requests in flight at this replica, which will not be answered. Returns whether
    /// there were any.
    pub(super) fn fail_replica(&mut self, cx: &mut OperationContext<'_>, replica_index: u8) -> bool {
        let was_open = self.open.remove(replica_index);
        if was_open {
            cx.end_request(cx.peers.node(&self.subject, replica_index), self.bytes);
            self.tally.fail(replica_index);
        }
        self.release_hint_keeper(cx, replica_index) || was_open
    }

    /// Counts the acknowledgement of a replica that has lost its disk as a failure. Returns whether
    /// it had given one.
    pub(super) fn revoke_ack(&mut self, replica_index: u8) -> bool {
        self.tally.revoke(replica_index)
    }

    /// The reply, once the answers decide it.
    pub(super) fn advance(&mut self, cx: &mut OperationContext<'_>) -> Option<Reply> {
        if self.tally.is_reached() {
            if self.superseded {
                cx.outbox.emit(Event::WriteSuperseded);
            }
            let Self { version, superseded, .. } = *self;
            self.cell = None;
            return Some(Reply::Written { version, superseded, acks: self.tally.acks() });
        }
        let is_decided = self.tally.is_impossible() && !self.is_stale;
        is_decided.then(|| Reply::Failed(self.failure(cx.peers)))
    }

    /// The failure of the write, at the deadline or before.
    pub(super) fn failure(&mut self, peers: &Peers) -> CommandFailure {
        self.cell = None;
        let maybe_stored = self.may_be_stored || !self.tally.acked().union(self.open).is_empty();
        if self.tally.is_reachable_if_recovered(self.disk_full) {
            let here = peers.is_own_among(&self.subject, self.disk_full);
            return CommandFailure::DiskFull { acks: self.tally.acks(), here, maybe_stored };
        }
        // While a swap runs there are two replicas, and the other one may have stored the write.
        if let Some(fault) = self.fault.take()
            && self.tally.quorum().has_one_replica()
            && !(maybe_stored && fault.is_busy())
        {
            return (*fault).into();
        }
        let acks = self.tally.acks();
        if self.tally.is_reachable_if_recovered(self.disk_full.union(self.busy)) {
            let retry_after = peers.retry_after().max(self.retry_after);
            CommandFailure::ReplicasOverloaded { acks, retry_after, maybe_stored }
        } else if self
            .tally
            .is_reachable_if_recovered(self.disk_full.union(self.busy).union(self.clock_refused))
        {
            CommandFailure::ClockAhead { acks, maybe_stored }
        } else {
            self.tally.short(if maybe_stored { Shortfall::MaybeStored } else { Shortfall::Unanswered })
        }
    }

    fn record_outcome(&mut self, peers: &Peers, replica_index: u8, outcome: ReplicaOutcome) {
        let is_own = peers.node(&self.subject, replica_index) == peers.member.me;
        match outcome {
            Ok(ReplicaResponse::Written { superseded }) => {
                self.superseded |= superseded;
                self.tally.ack(replica_index);
                return;
            }
            Err(ReplicaFault::Store(fault)) => self.note_fault(replica_index, fault, is_own),
            Err(ReplicaFault::ClockAhead { .. }) => {
                self.clock_refused.insert(replica_index);
            }
            Err(ReplicaFault::Busy) => {
                self.busy.insert(replica_index);
            }
            Err(ReplicaFault::NotReadEligible | ReplicaFault::NotServing) => {}
            Err(ReplicaFault::StaleEpoch { .. }) => self.is_stale = true,
            Ok(response) => assert!(!is_own, "the store answered a write with {response:?}"),
        }
        self.tally.fail(replica_index);
    }

    fn note_fault(&mut self, replica_index: u8, fault: StoreFault, is_own: bool) {
        if let StoreFault::Overloaded { retry_after } = fault {
            self.retry_after = self.retry_after.max(retry_after);
        }
        match &fault {
            StoreFault::Full => self.disk_full.insert(replica_index),
            fault if fault.is_busy() => self.busy.insert(replica_index),
            _ => {
                self.may_be_stored = true;
                true
            }
        };
        // For a peer, the message may be duplicated, and its copy admitted.
        if is_own || !fault.is_busy() {
            self.fault = Some(Box::new(fault));
        }
    }
}
