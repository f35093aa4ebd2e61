//! Read repair: sends the newest cell to replicas that answered with less.
//!
//! **Promise.** A read may reply with a cell that not all of its first answers had. Before it does,
//! `min(ack, from of the cell)` of its replicas hold the cell, so a later read of an overlapping
//! quorum cannot miss it. A cell goes to the replicas within its own `from`, and to those that
//! answered with an older cell of the key, to no others. It takes over the greatest `from` of
//! these, because a replica of an older version is a replica of the newest one too.
//!
//! A cell whose `from` is smaller than the read's may thus have no replica left to go to. Then
//! those of its replicas that cannot be reached are trusted to hold it, as they do if its write was
//! acknowledged by a quorum that overlaps with the read's. A replica that has answered is never
//! trusted.
//!
//! While a swap of the partition runs, all of this holds for the replicas before it and for those
//! after it. It also holds for equal answers: they may be of replicas that are too few in one of
//! the sets, and their write may never have been acknowledged.
//!
//! **Mechanism.** The answers tell which replicas hold the newest cell. Those that lack it are
//! written to; while these are too few, so are further replicas within its `from` and the read's.
//! When a still newer cell is found, a new round begins for it, and answers to the earlier round
//! are ignored. Differences found after the reply are repaired likewise, in the background. Reads
//! that find the same difference at once wait for one message (`repairs_in_flight`).
//!
//! A replica may name the version of a cell whose value it cannot read back. It is not counted
//! among those that hold the cell, and is sent the cell again.
//!
//! **Caveats.** No hints are kept for a failed repair: the next read finds the same difference.

use super::context::{FollowUp, OperationContext, RequestTarget};
use super::get::Read;
use super::latency::OVERDUE_MAX;
use super::peers::Availability;
use super::repairs_in_flight::CopyId;
use super::request_number::{self, Step, WRITE_ROUNDS_MAX};
use crate::quorum::CellReplicas;
use crate::replica_request::write_size;
use crate::replica_set::ReplicaSet;
use crate::{Event, ReplicaFault, ReplicaOutcome, ReplicaRequest, ReplicaResponse, Reply};
use limits::Deadline;
use stdx::{Cell, CellKind};

/// Greatest size in bytes of a value that is kept after the reply while an answer is outstanding. A
/// larger value is fetched again if it is needed. With the greatest number of replied operations,
/// that is 64 MiB.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// State of the repair of the newest cell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadRepair {
    round: u8,
    /// Whether this repair has been reported as an event.
    is_reported: bool,
    /// Replicas that were sent the cell and have not answered.
    open: ReplicaSet,
    /// Replicas that have stored it.
    stored: ReplicaSet,
    /// Replicas that cannot store it.
    failed: ReplicaSet,
    /// Those of `failed` that are only overloaded.
    busy: ReplicaSet,
    /// Replicas that have taken too long to be waited for.
    slow: ReplicaSet,
    /// Those of `open` that are to get the cell from another read: `repairs_in_flight`.
    followed: ReplicaSet,
    /// Size of each message, in bytes.
    bytes: usize,
}

/// Whether a read may reply with the newest cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// A later read cannot miss it.
    Sufficient,
    /// The cell is being fetched, or has been sent to enough replicas, which have not answered.
    InProgress,
    /// It cannot reach enough replicas.
    Insufficient,
}

impl Read {
    /// Ensures that the newest cell is stored where a later read cannot miss it.
    pub(super) fn ensure_spread(&mut self, cx: &mut OperationContext<'_>) -> Spread {
        if self.is_held_by_enough() || self.is_trusted() {
            return Spread::Sufficient;
        }
        let goes_on = self.repair_before_reply(cx);
        if self.is_trusted() {
            Spread::Sufficient
        } else if goes_on || self.may_be_trusted() {
            Spread::InProgress
        } else {
            Spread::Insufficient
        }
    }

    fn is_held_by_enough(&self) -> bool {
        self.cell_replicas(self.held()).suffice(self.tally.quorum())
    }

    /// Whether enough replicas hold the newest cell, if its unreachable replicas are trusted to
    /// hold it.
    pub(super) fn is_trusted(&self) -> bool {
        self.would_be_trusted_with(self.held())
    }

    /// As [`Read::is_trusted`], if those that were sent the cell store it.
    fn may_be_trusted(&self) -> bool {
        self.would_be_trusted_with(self.held().union(self.repair.open))
    }

    fn would_be_trusted_with(&self, held: ReplicaSet) -> bool {
        self.cell_replicas(held).suffice_with_trust(self.tally.quorum())
    }

    /// The replicas of the newest cell, if `held` hold it.
    fn cell_replicas(&self, held: ReplicaSet) -> CellReplicas {
        CellReplicas {
            cell_from: self.answers.newest_from(),
            held,
            answered: self.tally.acked(),
            out_of_reach: self.tally.failed().union(self.repair.failed).union(self.repair.slow),
            swap: self.answers.swap(),
        }
    }

    /// Replicas that hold the newest cell now. A replica that names its version and cannot read its
    /// value back is not one of them.
    fn held(&self) -> ReplicaSet {
        self.answers.holders().without(self.damaged).union(self.repair.stored)
    }

    /// Sends the newest cell to enough of the replicas that lack it; returns `false` if these are
    /// too few.
    fn repair_before_reply(&mut self, cx: &mut OperationContext<'_>) -> bool {
        let Some(cell) = self.answers.cell() else {
            return self.fetch(cx);
        };
        if !self.repair.is_reported {
            self.overdue_at = cx.hedges.queue.watch(cx.now.mono, OVERDUE_MAX, cx.id);
        }
        self.report_repair(cx, true);
        for replica_index in self.answers.stale_replicas().without(self.repair.tried()) {
            self.write(cx, replica_index, &cell);
        }
        let quorum = self.tally.quorum();
        while !self.cell_replicas(self.held().union(self.repair.open)).suffice(quorum) {
            if !self.write_to_another(cx, &cell) {
                return false;
            }
        }
        true
    }

    /// Sends the newest cell to another replica, because one takes too long to store it.
    pub(super) fn repair_elsewhere(&mut self, cx: &mut OperationContext<'_>) {
        self.repair.slow = self.repair.open;
        if let Some(cell) = self.answers.cell() {
            self.write_to_another(cx, &cell);
        }
    }

    /// Replicas that were asked, for their cell or to store the newest, and have not answered.
    pub(super) fn awaited(&self) -> ReplicaSet {
        self.open().union(self.repair.open)
    }

    /// Whether the reply waits for replicas to store the newest cell.
    pub(super) fn is_repairing(&self) -> bool {
        !self.repair.open.is_empty()
    }

    /// The reply with this cell, which is kept if it may still be needed.
    pub(super) fn found(&mut self, cell: Cell) -> Reply {
        let acks = self.tally.acks();
        let is_settled = self.open().is_empty() && self.to_repair().is_empty();
        if !is_settled && cell.value.len() <= KEPT_BYTES_MAX {
            self.answers.put_cell(cell.clone());
        }
        Reply::Found { cell, acks }
    }

    /// Does the work after the reply.
    pub(super) fn follow_up(&mut self, cx: &mut OperationContext<'_>) -> FollowUp {
        if !self.tally.is_reached() {
            self.abandon(cx);
            return FollowUp::Done;
        }
        self.repair_after_reply(cx);
        self.answers.drop_large(KEPT_BYTES_MAX);
        if self.open().union(self.repair.open).is_empty() { FollowUp::Done } else { FollowUp::AwaitsReplicas }
    }

    /// Handles the outcome of sending the newest cell to a replica.
    pub(super) fn handle_repair_outcome(
        &mut self,
        cx: &mut OperationContext<'_>,
        replica_index: u8,
        round: u8,
        outcome: &ReplicaOutcome,
    ) {
        if round != self.repair.round || !self.repair.open.remove(replica_index) {
            return;
        }
        self.end_repair_request(cx, replica_index);
        match outcome {
            Ok(ReplicaResponse::Written { .. }) => self.repair.stored.insert(replica_index),
            _ => self.repair.failed.insert(replica_index),
        };
        self.is_stale |= matches!(outcome, Err(ReplicaFault::StaleEpoch { .. }));
        if outcome.as_ref().is_err_and(ReplicaFault::is_busy) {
            self.repair.busy.insert(replica_index);
        }
    }

    /// Counts the repair of this replica as failed, because it will not answer. Returns whether it
    /// was sent anything.
    pub(super) fn fail_repair(&mut self, cx: &mut OperationContext<'_>, replica_index: u8) -> bool {
        let was_open = self.repair.open.remove(replica_index);
        if was_open {
            self.end_repair_request(cx, replica_index);
            self.repair.failed.insert(replica_index);
        }
        was_open
    }

    /// Begins a new round if a newer cell was found than the one sent so far.
    pub(super) fn begin_round(&mut self, cx: &mut OperationContext<'_>) {
        if self.repair.is_reported {
            self.abandon_repair(cx);
            self.repair = ReadRepair { round: self.repair.round + 1, ..ReadRepair::default() };
        }
    }

    /// Stops waiting for replicas that were sent the newest cell.
    pub(super) fn abandon_repair(&mut self, cx: &mut OperationContext<'_>) {
        for replica_index in std::mem::take(&mut self.repair.open) {
            self.end_repair_request(cx, replica_index);
        }
    }

    /// Counts the request that sends the cell to this replica as ended, if it is this read's own.
    fn end_repair_request(&mut self, cx: &mut OperationContext<'_>, replica_index: u8) {
        if !self.repair.followed.remove(replica_index) {
            cx.end_request(cx.peers.node(&self.subject, replica_index), self.repair.bytes);
        }
    }

    /// Whether the read cannot be answered only because replicas that lack the newest cell are too
    /// busy to store it.
    pub(super) fn is_repair_busy(&self) -> bool {
        self.tally.is_reached() && !self.repair.busy.is_empty()
    }

    /// Replicas that need the newest cell and have not been sent it.
    fn to_repair(&self) -> ReplicaSet {
        let damaged = self.damaged.intersection(self.answers.intended_replicas());
        self.answers.stale_replicas().union(damaged).without(self.repair.tried())
    }

    fn repair_after_reply(&mut self, cx: &mut OperationContext<'_>) {
        let replicas = self.to_repair();
        if replicas.is_empty() {
            return;
        }
        let Some(cell) = self.answers.cell() else {
            self.fetch(cx);
            return;
        };
        self.report_repair(cx, false);
        for replica_index in replicas {
            self.write(cx, replica_index, &cell);
        }
    }

    /// Sends the newest cell to one more of its replicas, whether or not that holds it already.
    fn write_to_another(&mut self, cx: &mut OperationContext<'_>, cell: &Cell) -> bool {
        let held = self.held().union(self.repair.tried());
        // A later read with the same `from` does not ask replicas beyond these.
        let others = self.answers.intended_replicas().intersection(self.sets.union()).without(held);
        // A replica in both sets counts in both.
        let (mut kept, mut swapped) =
            (others.without(self.sets.swapped()), others.intersection(self.sets.swapped()));
        kept.any(|replica_index| self.write(cx, replica_index, cell))
            || swapped.any(|replica_index| self.write(cx, replica_index, cell))
    }

    fn write(&mut self, cx: &mut OperationContext<'_>, replica_index: u8, cell: &Cell) -> bool {
        let node = cx.peers.node(&self.subject, replica_index);
        let bytes = write_size(&self.subject.key, cell);
        let is_value = cell.meta.kind == CellKind::Value;
        let is_refused = node == cx.peers.member.me && cx.peers.is_ahead(cx.now, cell.meta.version.hlc);
        let has_rounds = self.repair.round < WRITE_ROUNDS_MAX;
        let availability = cx.peers.can_write(node, bytes, is_value);
        if is_refused || !has_rounds || availability != Availability::Ready {
            self.repair.failed.insert(replica_index);
            if availability == Availability::Busy {
                self.repair.busy.insert(replica_index);
            }
            return false;
        }
        self.repair.open.insert(replica_index);
        self.repair.bytes = bytes;
        let step = Step::Write { round: self.repair.round };
        let key = self.subject.key.clone();
        let cell = cell.clone().with_from_of_at_least(self.answers.greatest_from());
        let id = CopyId { key: key.clone(), version: cell.meta.version, from: cell.meta.from, node };
        let number = request_number::number(cx.id, step);
        if cx.repairs.join_or_begin(cx.now.mono, id, number, (cx.id, step)) {
            self.repair.followed.insert(replica_index);
            return true;
        }
        let request = ReplicaRequest::Write { key, cell, hints: crate::NodeSet::EMPTY };
        cx.ask(RequestTarget { step, node, deadline: Deadline::NEVER, epoch: self.epoch }, request, bytes);
        true
    }

    fn report_repair(&mut self, cx: &mut OperationContext<'_>, blocking: bool) {
        if !self.repair.is_reported {
            self.repair.is_reported = true;
            cx.outbox.emit(Event::ReadRepaired { blocking });
        }
    }
}

impl ReadRepair {
    /// Replicas that were sent the newest cell, or cannot be.
    fn tried(&self) -> ReplicaSet {
        self.open.union(self.stored).union(self.failed)
    }
}
