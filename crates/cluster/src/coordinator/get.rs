//! Reads: ask the best replicas, and decide by the first `ack` answers.
//!
//! **Promise.** The next quorum read returns the result of this one, or something newer. For that,
//! the reply leaves only when enough nodes hold the newest of the first `ack` answers that a later
//! read cannot miss it (`read_repair`, also for the one exception). A read returns every
//! write that an overlapping quorum acknowledged, or a newer one, as long as `ack` replicas answer.
//!
//! **Mechanism.** One replica is asked for the cell, preferably this node, and the others for
//! version and kind, so reads move little data. When one fails, the next is asked at once. If the
//! newest version is held by a replica that was not asked for the cell, the cell is fetched from
//! there. A replica that names a version may be unable to read its value: then the next holder is
//! asked, and the read fails rather than return an older value. One read in a few asks all
//! replicas, to find differences that quorums alone would miss.
//!
//! While a swap of the partition runs, a read asks one of the two sets of replicas, and both sets
//! must hold what it returns. Replicas in both sets are asked first, because their answers count in
//! both.
//!
//! A cell may be impossible to store on enough replicas, because their disks are full or its
//! version is in the future. Such a cell is not returned: the read restarts without the replicas
//! that hold it. This node is not asked for a key that it has [refused](crate::RefusedKeys).
//!
//! **Caveats.** Whether the value is still live is decided by this node's clock when the reply
//! leaves.

use super::context::{OperationContext, RequestTarget};
use super::peers::{Availability, Peers, SUSPECTED_CLASS, Subject};
use super::read_answers::ReadAnswers;
use super::read_repair::{ReadRepair, Spread};
use super::request_number::Step;
use crate::quorum::{ReplicaSets, Tally};
use crate::replica_set::ReplicaSet;
use crate::{
    CommandFailure, Event, LayoutEpoch, Quorum, ReplicaFault, ReplicaOutcome, ReplicaRequest,
    ReplicaResponse, Reply, Shortfall, StoreFault, WaitTarget,
};
use limits::Deadline;
use std::time::Duration;
use stdx::Instant;

/// A read in progress.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) subject: Subject,
    pub(super) tally: Tally,
    /// The replicas that must hold what the read returns.
    pub(super) sets: ReplicaSets,
    pub(super) answers: ReadAnswers,
    pub(super) repair: ReadRepair,
    /// Replicas that were asked and have not answered, by the requested form.
    pub(super) open_cell: ReplicaSet,
    pub(super) open_meta: ReplicaSet,
    /// Replicas that could not read back the cell they hold.
    pub(super) damaged: ReplicaSet,
    /// Time at which the answer waited for is overdue.
    pub(super) overdue_at: Instant,
    times: ReadTimes,
    /// Replicas asked at the start that have not answered; their latency is measured.
    timed: ReplicaSet,
    /// Replicas that did not give their cell.
    unfetchable: ReplicaSet,
    busy: ReplicaSet,
    /// Replicas that could not be asked and count as failed until they can be:
    /// [`Read::reopen_available`].
    unavailable: ReplicaSet,
    /// The shortfall of the first newest cell, with which the read could not continue.
    spread_failure: Option<Shortfall>,
    /// The last fault of a store, which is the reason of a failure with one replica.
    fault: Option<Box<StoreFault>>,
    /// Time after which this node expects to have memory for the value that it could not read.
    lacks_memory: Option<Duration>,
    /// Epoch of the plan.
    pub(super) epoch: LayoutEpoch,
    /// Whether a replica has refused the plan because the partition has changed since. The read
    /// then waits for the new layout rather than fail.
    pub(super) is_stale: bool,
}

/// Start and deadline of a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadTimes {
    /// Time of the first request.
    pub(super) started: Instant,
    /// Time after which the result is not needed.
    pub(super) deadline: Instant,
}

impl Read {
    #[inline]
    pub(super) fn new(peers: &Peers, times: ReadTimes, subject: Subject, quorum: Quorum) -> Self {
        let quorum = peers.possible(quorum);
        Self {
            tally: Tally::of(quorum, peers.readers(&subject, quorum)),
            sets: peers.write_sets(&subject, quorum),
            answers: ReadAnswers::during(peers.swapped_replicas(&subject)),
            subject,
            repair: ReadRepair::default(),
            open_cell: ReplicaSet::EMPTY,
            open_meta: ReplicaSet::EMPTY,
            damaged: ReplicaSet::EMPTY,
            overdue_at: times.started,
            times,
            timed: ReplicaSet::EMPTY,
            unfetchable: ReplicaSet::EMPTY,
            busy: ReplicaSet::EMPTY,
            unavailable: ReplicaSet::EMPTY,
            spread_failure: None,
            fault: None,
            lacks_memory: None,
            epoch: peers.member.layout.newest_change(),
            is_stale: false,
        }
    }

    /// Sends the first requests.
    pub(super) fn begin(&mut self, cx: &mut OperationContext<'_>) {
        self.ask_quorum(cx);
        if self.tally.silent() != self.open() && cx.hedges.asks_all(cx.rng) {
            for replica_index in self.tally.silent().without(self.open()) {
                self.ask(cx, replica_index, Step::Meta);
            }
        }
        self.timed = self.open();
        cx.hedges.budget.earn();
        if self.tally.quorum().has_spare_in(self.tally.silent().union(self.unavailable).len()) {
            let waits = self.open().map(|replica_index| cx.peers.node(&self.subject, replica_index));
            let waits = waits.map(|node| cx.peers.states[node.as_usize()].latency.overdue_after());
            let wait = waits.max().unwrap_or_default();
            self.overdue_at = cx.hedges.queue.watch(cx.now.mono, wait, cx.id);
        }
    }

    /// Handles the outcome of one of its requests to a replica.
    pub(super) fn handle_outcome(
        &mut self,
        cx: &mut OperationContext<'_>,
        replica_index: u8,
        step: Step,
        outcome: ReplicaOutcome,
    ) {
        let was_open = match step {
            Step::Cell => self.open_cell.remove(replica_index),
            Step::Meta => self.open_meta.remove(replica_index),
            Step::Write { round } => {
                return self.handle_repair_outcome(cx, replica_index, round, &outcome);
            }
            Step::Hints { .. } | Step::SupersededCheck => false,
        };
        if !was_open {
            return;
        }
        let node = cx.peers.node(&self.subject, replica_index);
        cx.end_request(node, 0);
        if self.timed.remove(replica_index) {
            cx.peers.states[node.as_usize()].latency.observe(cx.now.mono - self.times.started);
        }
        let (meta, cell) = match outcome {
            Ok(ReplicaResponse::Cell(cell)) => (cell.as_ref().map(|cell| cell.meta), cell),
            Ok(ReplicaResponse::Meta(meta)) if step == Step::Meta => (meta, None),
            Err(fault) => return self.record_fault(replica_index, fault),
            Ok(response) => {
                assert!(node != cx.peers.member.me, "the store answered a read with {response:?}");
                return self.fail(replica_index);
            }
        };
        self.tally.ack(replica_index);
        if self.tally.acked().contains(replica_index)
            && self.answers.record(replica_index, meta, cell, cx.now.wall)
        {
            self.begin_round(cx);
        }
    }

    /// Fails the requests in flight at this replica, which will not be answered. Returns whether
    /// there were any.
    pub(super) fn fail_replica(&mut self, cx: &mut OperationContext<'_>, replica_index: u8) -> bool {
        let node = cx.peers.node(&self.subject, replica_index);
        let open = [self.open_cell.remove(replica_index), self.open_meta.remove(replica_index)];
        for _ in open.iter().filter(|was_open| **was_open) {
            cx.end_request(node, 0);
            self.fail(replica_index);
        }
        self.fail_repair(cx, replica_index) || open.contains(&true)
    }

    /// Replicas that were asked for their cell or version and have not answered.
    pub(super) fn open(&self) -> ReplicaSet {
        self.open_cell.union(self.open_meta)
    }

    /// Asks further replicas until the quorum can be reached. Returns the reply once the answers
    /// decide it.
    pub(super) fn advance(&mut self, cx: &mut OperationContext<'_>) -> Option<Reply> {
        if !self.tally.is_reached() {
            self.ask_quorum(cx);
            let is_decided = self.tally.is_impossible() && !self.is_stale;
            return is_decided.then(|| Reply::Failed(self.failure(cx.peers)));
        }
        let acks = self.tally.acks();
        let Some(newest) = self.answers.newest() else {
            return Some(Reply::Missing { acks });
        };
        // Equal answers may be of nodes that are not, or soon will not be, replicas of the cell.
        let has_other_replicas = self.has_two_sets() || self.tally.quorum().exceeds_replicas_of(newest.from);
        if self.answers.are_divergent() || has_other_replicas {
            match self.ensure_spread(cx) {
                Spread::Sufficient => {}
                Spread::InProgress => return None,
                Spread::Insufficient if self.is_stale => return None,
                Spread::Insufficient => {
                    self.spread_failure = Some(self.shortfall());
                    let goes_on = self.restart_without_holders(cx);
                    return (!goes_on).then(|| Reply::Failed(self.failure(cx.peers)));
                }
            }
        }
        if !newest.is_live_at(cx.now.wall) {
            return Some(Reply::Missing { acks });
        }
        if let Some(cell) = self.answers.take_cell() {
            return Some(self.found(cell));
        }
        let goes_on = self.fetch(cx) || self.is_stale;
        (!goes_on).then(|| Reply::Failed(self.failure(cx.peers)))
    }

    /// Ensures that the newest cell is requested; returns `false` if no replica can send it.
    pub(super) fn fetch(&mut self, cx: &mut OperationContext<'_>) -> bool {
        let is_asked = !self.open_cell.is_empty();
        if is_asked && cx.now.mono < self.overdue_at {
            return true;
        }
        self.fetch_elsewhere(cx) || is_asked
    }

    /// Asks one more replica for the newest cell; returns `false` if there is none.
    pub(super) fn fetch_elsewhere(&mut self, cx: &mut OperationContext<'_>) -> bool {
        let holders = self.answers.holders().without(self.unfetchable).without(self.open_cell);
        let others = self.tally.silent().without(self.open());
        let replica_index =
            self.best_replica(cx.peers, holders).or_else(|| self.best_replica(cx.peers, others));
        if let Some(replica_index) = replica_index {
            let node = cx.peers.node(&self.subject, replica_index);
            let wait = cx.peers.states[node.as_usize()].latency.overdue_after();
            self.overdue_at = cx.hedges.queue.watch(cx.now.mono, wait, cx.id);
            self.ask(cx, replica_index, Step::Cell);
        }
        replica_index.is_some()
    }

    /// Asks one more replica that has not been asked; returns `false` if there is none.
    pub(super) fn ask_another(&mut self, cx: &mut OperationContext<'_>) -> bool {
        let replica_index = self.best_replica(cx.peers, self.tally.silent().without(self.open()));
        if let Some(replica_index) = replica_index {
            let step = if self.answers.cell().is_some() { Step::Meta } else { Step::Cell };
            self.ask(cx, replica_index, step);
        }
        replica_index.is_some()
    }

    /// Asks one more replica for the missing answer, because an answer is overdue.
    pub(super) fn hedge(&mut self, cx: &mut OperationContext<'_>) {
        if cx.now.mono < self.overdue_at {
            // The answer that this was set for has come, and the read waits for another.
            return;
        }
        self.record_overdue_latencies(cx);
        self.reopen_available(cx.peers);
        if self.is_repairing() {
            return self.repair_elsewhere(cx);
        }
        if self.tally.is_reached() {
            if self.fetch_elsewhere(cx) {
                cx.outbox.emit(Event::Hedged);
            }
        } else if cx.hedges.budget.has_one() && self.ask_another(cx) {
            cx.hedges.budget.spend();
            cx.outbox.emit(Event::Hedged);
        }
    }

    /// Records the elapsed time as the latency of replicas that were asked at the start and have
    /// not answered.
    pub(super) fn record_overdue_latencies(&mut self, cx: &mut OperationContext<'_>) {
        for replica_index in self.timed.intersection(self.open()) {
            let node = cx.peers.node(&self.subject, replica_index);
            cx.peers.states[node.as_usize()].latency.observe(cx.now.mono - self.times.started);
        }
    }

    /// The target that the read waits for now, if there is any.
    pub(super) fn wait_target(&self, peers: &Peers) -> Option<WaitTarget> {
        peers.wait_target(&self.subject, self.awaited())
    }

    /// Stops waiting for answers.
    pub(super) fn abandon(&mut self, cx: &mut OperationContext<'_>) {
        for replica_index in std::mem::take(&mut self.open_cell).chain(std::mem::take(&mut self.open_meta)) {
            cx.end_request(cx.peers.node(&self.subject, replica_index), 0);
        }
        self.abandon_repair(cx);
    }

    /// The failure of the read, at the deadline or before.
    pub(super) fn failure(&mut self, peers: &Peers) -> CommandFailure {
        self.failure_for(peers, self.shortfall())
    }

    /// The failure of a read that has sent nothing, if the replicas that can be asked are too few.
    pub(super) fn fail_at_once(&mut self, peers: &Peers) -> Option<CommandFailure> {
        self.fail_unavailable(peers);
        self.tally.is_impossible().then(|| self.failure_for(peers, Shortfall::Unreachable))
    }

    /// The reason why a read that has sent requests cannot reply.
    fn shortfall(&self) -> Shortfall {
        match self.spread_failure {
            Some(spread_failure) => spread_failure,
            None if !self.tally.is_reached() => Shortfall::Unanswered,
            None if self.answers.cell().is_none() => Shortfall::NotFetched,
            None => Shortfall::NotSpread,
        }
    }

    fn failure_for(&mut self, peers: &Peers, shortfall: Shortfall) -> CommandFailure {
        if let Some(fault) = self.fault.take()
            && self.tally.quorum().has_one_replica()
        {
            return (*fault).into();
        }
        if let Some(retry_after) = self.lacks_memory
            && self.tally.is_reachable_if_recovered(self.own_replica(peers))
        {
            return CommandFailure::NoMemory { retry_after };
        }
        if self.tally.is_reachable_if_recovered(self.busy) || self.is_repair_busy() {
            return CommandFailure::Overloaded { retry_after: peers.retry_after() };
        }
        let is_refused = || {
            peers
                .refused_replica_index(&self.subject)
                .is_some_and(|replica_index| self.tally.failed().contains(replica_index))
        };
        match shortfall {
            Shortfall::Unreachable if is_refused() => self.tally.short(Shortfall::Refused),
            shortfall => self.tally.short(shortfall),
        }
    }

    /// This node among the replicas that were too busy.
    fn own_replica(&self, peers: &Peers) -> ReplicaSet {
        let is_own = |replica_index: &u8| peers.node(&self.subject, *replica_index) == peers.member.me;
        self.busy.filter(is_own).collect()
    }

    /// Counts replicas as failed that have not been asked and cannot be.
    fn fail_unavailable(&mut self, peers: &Peers) {
        if let Some(replica_index) = peers.refused_replica_index(&self.subject)
            && self.tally.silent().contains(replica_index)
        {
            self.tally.fail(replica_index);
        }
        for replica_index in self.tally.silent().without(self.open()) {
            match peers.can_read(peers.node(&self.subject, replica_index)) {
                Availability::Ready => continue,
                Availability::Busy => self.busy.insert(replica_index),
                Availability::Full | Availability::Unavailable => false,
            };
            self.tally.fail(replica_index);
            self.unavailable.insert(replica_index);
        }
    }

    /// Counts replicas as not asked that could not be asked and now can be: a peer that has just
    /// linked, or has just become read-eligible.
    pub(super) fn reopen_available(&mut self, peers: &Peers) {
        for replica_index in self.unavailable {
            if peers.can_read(peers.node(&self.subject, replica_index)) == Availability::Ready {
                self.unavailable.remove(replica_index);
                self.busy.remove(replica_index);
                self.tally.reopen(replica_index);
            }
        }
    }

    /// Asks the best replicas not asked yet, as many as the quorum needs.
    fn ask_quorum(&mut self, cx: &mut OperationContext<'_>) {
        while self.tally.needs_more_than(self.open()) {
            self.reopen_available(cx.peers);
            self.fail_unavailable(cx.peers);
            let Some(replica_index) = self.best_replica(cx.peers, self.tally.silent().without(self.open()))
            else {
                return;
            };
            let is_cell_coming = !self.open_cell.is_empty() || self.answers.cell().is_some();
            self.ask(cx, replica_index, if is_cell_coming { Step::Meta } else { Step::Cell });
        }
    }

    /// Restarts the read without the replicas that hold the newest cell, which cannot spread. Any
    /// `ack` other replicas are a quorum too, and if the cell was ever acknowledged or read, one of
    /// them holds it. Returns `false` if the others are too few.
    fn restart_without_holders(&mut self, cx: &mut OperationContext<'_>) -> bool {
        let holders = self.answers.holders();
        let Some(tally) = self.tally.restarted_without(holders).filter(|_| !holders.is_empty()) else {
            return false;
        };
        for replica_index in holders {
            self.fail_replica(cx, replica_index);
        }
        self.begin_round(cx);
        self.tally = tally;
        self.answers = ReadAnswers::during(self.answers.swap());
        self.ask_quorum(cx);
        !self.tally.is_impossible()
    }

    /// The best of these replicas to read from.
    fn best_replica(&self, peers: &Peers, replicas: ReplicaSet) -> Option<u8> {
        (replicas.map(|replica_index| (replica_index, peers.node(&self.subject, replica_index))))
            .filter(|&(_, node)| peers.can_read(node) == Availability::Ready)
            .min_by_key(|&(replica_index, node)| {
                let (class, latency) = peers.read_rank(node);
                (class >= SUSPECTED_CLASS, self.sets.swapped().contains(replica_index), class, latency)
            })
            .map(|(replica_index, _)| replica_index)
    }

    /// Whether a swap runs that changes the replicas of this read.
    pub(super) const fn has_two_sets(&self) -> bool {
        !self.sets.swapped().is_empty()
    }

    fn ask(&mut self, cx: &mut OperationContext<'_>, replica_index: u8, step: Step) {
        let key = self.subject.key.clone();
        let request = match step {
            Step::Cell => ReplicaRequest::Read { key },
            _ => ReplicaRequest::ReadMeta { key },
        };
        let open = if step == Step::Cell { &mut self.open_cell } else { &mut self.open_meta };
        open.insert(replica_index);
        let node = cx.peers.node(&self.subject, replica_index);
        let deadline = Deadline::at(self.times.deadline);
        cx.ask(RequestTarget { step, node, deadline, epoch: self.epoch }, request, 0);
    }

    fn record_fault(&mut self, replica_index: u8, fault: ReplicaFault) {
        match &fault {
            ReplicaFault::Store(StoreFault::Corrupt { .. } | StoreFault::Io { .. }) => {
                self.damaged.insert(replica_index)
            }
            fault if fault.is_busy() => self.busy.insert(replica_index),
            _ => false,
        };
        self.is_stale |= matches!(fault, ReplicaFault::StaleEpoch { .. });
        if let ReplicaFault::Store(fault) = fault {
            if let StoreFault::NoMemory { retry_after } = fault {
                self.lacks_memory = Some(retry_after);
            }
            self.fault = Some(Box::new(fault));
        }
        self.fail(replica_index);
    }

    fn fail(&mut self, replica_index: u8) {
        self.tally.fail(replica_index);
        self.unfetchable.insert(replica_index);
    }
}
