//! Scans: ranges of entries of this node or of the cluster, page by page.
//!
//! **Promise.** Each command of a scan gets exactly one [`Reply`], even if messages are lost,
//! repeated or late, and whenever the scan is closed. The pages' keys ascend, each key occurs once,
//! and a page without entries is the last one. An entry that was stored before the scan began and
//! did not change meanwhile is returned; one that was deleted before is not. A scan that cannot
//! keep this promise fails; it never ends early as if it were complete.
//!
//! **Mechanism.** Scans have a table of their own, apart from operations, because a scan has no
//! deadline as a whole: only its requests have one. The stores that it reads keep a snapshot for
//! it, under one id everywhere; `in_flight` tracks the requests at each store, and releases the
//! snapshots in the end. Pages begin small, so that the first one leaves at once, and grow. A
//! reader that stops reading stops the scan: at most one page of each store is read ahead.
//!
//! A scan of the cluster is planned by one layout. Nodes that know a newer one refuse its requests
//! ([`StaleEpoch`](crate::ReplicaFault::StaleEpoch)); it then waits for that layout. When the
//! layout of this node changes, the scan goes on behind its last page, with roles of the new layout
//! and with new snapshots.
//!
//! Scans of this node alone are in `local`, scans of the cluster in `cluster`, with their `roles`,
//! `sources`, `checks` and `window`s. Keys on which replicas disagree are read by ordinary reads
//! (`key_reads`), which are in the table of operations; they may use a share of it, and wait while
//! it is full. However much replicas differ, no more keys are read than the next page needs, and no
//! more differences are kept than a few answers name.
//!
//! **Caveats.** A scan that is closed while a store reads for it is kept until the answer has come:
//! otherwise a late request could take the snapshot anew.

mod checks;
mod cluster;
mod in_flight;
mod key_reads;
mod local;
mod page_sizes;
mod request_state;
mod roles;
mod scan_context;
mod sources;
mod window;

use super::Coordinator;
use super::context::{Context, CoordinatorInput, ReplyTo};
use super::scan_reads::{QueuedRead, ScanReadResult};
use crate::{
    CommandFailure, Event, NodeIndex, ReplicaOutcome, ReplicaResponse, Reply, RequestId, Scan, ScanId,
    ScanScope, SnapshotId, WaitTarget,
};
use cluster::ClusterScan;
use in_flight::InFlightRequests;
use local::LocalScan;
use roles::RoleAssignmentCache;
use scan_context::{LostParticipant, ScanContext};
use std::collections::{BTreeMap, BTreeSet};
use stdx::{Instant, Now};

/// Greatest number of scans of a coordinator; one more is refused.
const SCANS_MAX: usize = 1_024;
/// Divisor of the greatest number of operations: the share of reads for scans.
const READS_DIVISOR: u16 = 4;

/// The scans of a coordinator.
#[derive(Debug, Default)]
pub(super) struct Scans {
    slots: Vec<Option<OpenScan>>,
    free: Vec<u16>,
    names: BTreeMap<ScanId, u16>,
    /// Scans with the time at which each is due.
    due: BTreeSet<(Instant, u16)>,
    role_assignments: RoleAssignmentCache,
    /// Number of snapshot ids issued so far.
    snapshots: u64,
    /// Number of scans that wait for a reply.
    waiting: usize,
    /// Reads for scans in the table of operations.
    reads: u16,
}

/// A scan from its first command to the answer to its last request.
#[derive(Debug)]
struct OpenScan {
    name: ScanId,
    /// The command that waits for its reply.
    reader: Option<RequestId>,
    in_flight: InFlightRequests,
    state: ScanState,
    due: Option<Instant>,
}

/// State of a scan.
#[derive(Debug)]
enum ScanState {
    Local(Box<LocalScan>),
    Cluster(Box<ClusterScan>),
    /// The scan is over, but some stores have not answered yet. Their answers are awaited until
    /// this deadline.
    Closing {
        until: Instant,
    },
}

impl Coordinator {
    /// Ends a scan that is not needed any more; does nothing if it is over. A command that waits
    /// for its reply gets it now.
    pub fn close_scan(&mut self, now: Now, id: ScanId) {
        let input = CoordinatorInput { now, source: WaitTarget::Nothing };
        let Some(&slot) = self.scans.names.get(&id) else {
            return;
        };
        self.reply_to_reader(input, slot, Reply::Failed(CommandFailure::Closed));
        self.close(input, slot);
    }

    pub(super) fn submit_scan(&mut self, input: CoordinatorInput, to: RequestId, name: ScanId, scan: Scan) {
        assert!(!self.scans.names.contains_key(&name), "{name:?} is open");
        if self.scans.len() == SCANS_MAX {
            self.context.outbox.emit(Event::Refused);
            let retry_after = self.context.peers.retry_after();
            return self.context.reply(input, to, Reply::Failed(CommandFailure::Overloaded { retry_after }));
        }
        if scan.range.is_empty() || scan.limit == Some(0) {
            return self.context.reply(input, to, Reply::Page { page: Default::default(), is_last: true });
        }
        let slot = self.scans.insert(&self.context, name);
        let Scan { range, limit, scope } = scan;
        let state = match scope {
            ScanScope::Node => Ok(ScanState::Local(Box::new(LocalScan::new(range, limit)))),
            ScanScope::Cluster(quorum) => {
                let (_, mut cx) = self.scans.open(slot, input, &mut self.context);
                ClusterScan::new(&mut cx, range, limit, quorum).map(|scan| ScanState::Cluster(Box::new(scan)))
            }
        };
        match state {
            Ok(state) => {
                self.scans.find(slot).expect("it was just inserted").state = state;
                self.attach_reader(input, slot, to);
            }
            Err(failure) => {
                self.context.reply(input, to, Reply::Failed(failure));
                self.close(input, slot);
            }
        }
    }

    pub(super) fn submit_next_page(&mut self, input: CoordinatorInput, to: RequestId, name: ScanId) {
        let slot = *self.scans.names.get(&name).expect("pages are requested of open scans");
        self.attach_reader(input, slot, to);
    }

    /// Handles the outcome of a request of a scan; that of an abandoned request is ignored.
    pub(super) fn handle_scan_outcome(
        &mut self,
        input: CoordinatorInput,
        slot: u16,
        serial: u64,
        outcome: ReplicaOutcome,
    ) {
        let Some(scan) = self.scans.find(slot) else {
            return;
        };
        let waits = scan.reader.is_some();
        let (state, mut cx) = self.scans.open(slot, input, &mut self.context);
        let Some((request, outcome)) = cx.take_outcome(serial, outcome) else {
            return;
        };
        match state {
            ScanState::Local(local) => local.handle_outcome(&mut cx, serial, outcome, waits),
            ScanState::Cluster(cluster) => cluster.handle_outcome(&mut cx, serial, outcome),
            ScanState::Closing { .. } => {
                if let Ok(ReplicaResponse::Page { rest: None, .. }) = outcome
                    && request.node == cx.peers.member.me
                    && request.snapshot == cx.in_flight.snapshot()
                {
                    cx.in_flight.forget_snapshot(request.node);
                }
            }
        }
        self.advance_scan(input, slot);
    }

    /// Runs the scans that are due.
    pub(super) fn run_due_scans(&mut self, input: CoordinatorInput) {
        while let Some(slot) = self.scans.take_due(input.now.mono) {
            let (state, mut cx) = self.scans.open(slot, input, &mut self.context);
            match state {
                ScanState::Local(local) => local.handle_due(&mut cx),
                ScanState::Cluster(cluster) => cluster.handle_due(&mut cx),
                ScanState::Closing { .. } => cx.abandon(),
            }
            let input = CoordinatorInput { source: cx.source, ..input };
            self.advance_scan(input, slot);
        }
    }

    /// Starts queued reads of scans while the table has space for them, and passes results to their
    /// scans.
    pub(super) fn run_queued_reads(&mut self, input: CoordinatorInput) {
        loop {
            if let Some(ScanReadResult { slot, serial, reply }) = self.context.scan_reads.results.pop_front()
            {
                self.scans.reads -= 1;
                if let Some(OpenScan { state: ScanState::Cluster(cluster), .. }) = self.scans.find(slot) {
                    cluster.handle_read(input.now.mono, serial, reply);
                    self.advance_scan(input, slot);
                }
                continue;
            }
            let share = (self.context.peers.limits.operations_max / READS_DIVISOR).max(1);
            if self.scans.reads == share || self.operations.is_full() {
                return;
            }
            let Some(QueuedRead { slot, serial, key, quorum }) = self.context.scan_reads.queued.pop_front()
            else {
                return;
            };
            if self.scans.wants_read(slot, serial) {
                self.scans.reads += 1;
                self.submit_get(input, ReplyTo::Scan { slot, serial }, key, quorum);
            }
        }
    }

    /// Retries scans that wait for links.
    pub(super) fn resume_scans(&mut self, input: CoordinatorInput) {
        for slot in self.scans.open_slots() {
            let (state, mut cx) = self.scans.open(slot, input, &mut self.context);
            if let ScanState::Cluster(cluster) = state {
                cluster.resume(&mut cx);
                self.advance_scan(input, slot);
            }
        }
    }

    /// Plans the scans of the cluster anew, by the present layout.
    pub(super) fn plan_scans_anew(&mut self, input: CoordinatorInput) {
        for slot in self.scans.open_slots() {
            if !self.scans.is_gathering(slot) {
                continue;
            }
            let snapshot = self.scans.next_snapshot(&self.context);
            let (state, mut cx) = self.scans.open(slot, input, &mut self.context);
            cx.in_flight.renew_snapshot(snapshot);
            if let ScanState::Cluster(cluster) = state {
                cluster.plan_anew(&mut cx);
            }
            self.advance_scan(input, slot);
        }
    }

    /// Continues scans without a node, because the link to it has ended.
    pub(super) fn fail_scan_requests(&mut self, input: CoordinatorInput, node: NodeIndex) {
        for slot in self.scans.open_slots() {
            let (state, mut cx) = self.scans.open(slot, input, &mut self.context);
            cx.forget_node(node);
            if let ScanState::Cluster(cluster) = state {
                cluster.replace_participant(&mut cx, LostParticipant { node, fault: None });
            }
            self.advance_scan(input, slot);
        }
    }

    /// Continues scans without nodes that are not read-eligible.
    pub(super) fn drop_ineligible_participants(&mut self, input: CoordinatorInput) {
        for slot in self.scans.open_slots() {
            let (state, mut cx) = self.scans.open(slot, input, &mut self.context);
            let ScanState::Cluster(cluster) = state else {
                continue;
            };
            for node in cx.peers.member.layout.nodes() {
                if !cx.peers.view.peer(node).read_eligible {
                    cluster.replace_participant(&mut cx, LostParticipant { node, fault: None });
                }
            }
            self.advance_scan(input, slot);
        }
    }

    fn attach_reader(&mut self, input: CoordinatorInput, slot: u16, to: RequestId) {
        let scan = self.scans.find(slot).expect("it is open");
        assert!(scan.reader.is_none(), "a scan has one reader");
        scan.reader = Some(to);
        self.scans.waiting += 1;
        self.advance_scan(input, slot);
    }

    /// Replies if the next page is ready, and starts further requests.
    fn advance_scan(&mut self, input: CoordinatorInput, slot: u16) {
        loop {
            let waits = self.scans.find(slot).expect("the scan is open").reader.is_some();
            let (state, mut cx) = self.scans.open(slot, input, &mut self.context);
            let reply = match state {
                ScanState::Local(local) => local.advance(&mut cx, waits),
                ScanState::Cluster(cluster) => cluster.advance(&mut cx, waits),
                ScanState::Closing { .. } => None,
            };
            let Some(reply) = reply else {
                break;
            };
            let is_over = matches!(reply, Reply::Failed(_) | Reply::Page { is_last: true, .. });
            self.reply_to_reader(input, slot, reply);
            if is_over {
                return self.close(input, slot);
            }
        }
        self.finish_or_reschedule(input, slot);
    }

    fn reply_to_reader(&mut self, input: CoordinatorInput, slot: u16, reply: Reply) {
        let scan = self.scans.find(slot).expect("the scan is open");
        if let Some(to) = scan.reader.take() {
            self.scans.waiting -= 1;
            self.context.reply(input, to, reply);
        }
    }

    /// Ends a scan except for its requests in flight.
    fn close(&mut self, input: CoordinatorInput, slot: u16) {
        let scan = self.scans.find(slot).expect("the scan is open");
        scan.state = ScanState::Closing { until: input.now.mono + self.context.peers.limits.request_timeout };
        let name = scan.name;
        self.scans.names.remove(&name);
        self.context.scan_reads.queued.retain(|wanted| wanted.slot != slot);
        self.finish_or_reschedule(input, slot);
    }

    /// Removes a closed scan without requests, and schedules any other.
    fn finish_or_reschedule(&mut self, input: CoordinatorInput, slot: u16) {
        let timeout = self.context.peers.limits.request_timeout;
        let (state, mut cx) = self.scans.open(slot, input, &mut self.context);
        let is_over = matches!(state, ScanState::Closing { .. });
        cx.release_snapshots(is_over);
        let is_done = is_over && cx.in_flight.is_empty();
        let due = match state {
            _ if is_done => None,
            ScanState::Local(local) => local.due(timeout),
            ScanState::Cluster(cluster) => cluster.due(input.now.mono, timeout),
            ScanState::Closing { until } => Some(*until),
        };
        self.scans.set_due(slot, due);
        if is_done {
            self.scans.remove(slot);
        }
    }
}

impl Scans {
    /// Time at which the next scan is due.
    #[inline]
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Number of commands that wait for their reply.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn insert(&mut self, context: &Context, name: ScanId) -> u16 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u16
        });
        let in_flight = InFlightRequests::new(slot, self.next_snapshot(context));
        let state = ScanState::Closing { until: Instant::ZERO };
        self.slots[usize::from(slot)] = Some(OpenScan { name, reader: None, in_flight, state, due: None });
        self.names.insert(name, slot);
        slot
    }

    /// A new snapshot id; no other snapshot has it.
    fn next_snapshot(&mut self, context: &Context) -> SnapshotId {
        let (incarnation, requester) = (context.peers.member.incarnation, context.outbox.requester());
        let number = self.snapshots;
        self.snapshots += 1;
        SnapshotId { incarnation, requester, number }
    }

    fn remove(&mut self, slot: u16) {
        self.slots[usize::from(slot)] = None;
        self.free.push(slot);
    }

    fn find(&mut self, slot: u16) -> Option<&mut OpenScan> {
        self.slots.get_mut(usize::from(slot))?.as_mut()
    }

    /// The slots in use.
    fn open_slots(&self) -> Vec<u16> {
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, scan)| scan.is_some()).map(|(slot, _)| slot as u16).collect()
    }

    /// The state of an open scan, and its context.
    fn open<'a>(
        &'a mut self,
        slot: u16,
        input: CoordinatorInput,
        context: &'a mut Context,
    ) -> (&'a mut ScanState, ScanContext<'a>) {
        let Self { slots, role_assignments, .. } = self;
        let scan = slots[usize::from(slot)].as_mut().expect("the scan is open");
        let Context { peers, outbox, scan_reads, .. } = context;
        let cx = ScanContext {
            now: input.now,
            source: input.source,
            peers,
            outbox,
            reads: scan_reads,
            role_assignments,
            in_flight: &mut scan.in_flight,
        };
        (&mut scan.state, cx)
    }

    /// Whether this is a scan of the cluster that reads pages.
    fn is_gathering(&mut self, slot: u16) -> bool {
        let scan = self.find(slot);
        scan.is_some_and(|scan| matches!(&scan.state, ScanState::Cluster(cluster) if cluster.is_gathering()))
    }

    fn wants_read(&mut self, slot: u16, serial: u64) -> bool {
        let scan = self.find(slot);
        scan.is_some_and(
            |scan| matches!(&scan.state, ScanState::Cluster(cluster) if cluster.wants_read(serial)),
        )
    }

    fn take_due(&mut self, now: Instant) -> Option<u16> {
        let &(at, slot) = self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.remove(&(at, slot));
        self.find(slot).expect("due scans are open").due = None;
        Some(slot)
    }

    fn set_due(&mut self, slot: u16, due: Option<Instant>) {
        let scan = self.slots[usize::from(slot)].as_mut().expect("the scan is open");
        if scan.due != due {
            let before = std::mem::replace(&mut scan.due, due);
            before.map(|at| self.due.remove(&(at, slot)));
            due.map(|at| self.due.insert((at, slot)));
        }
    }
}
