//! A new layout: operations of the partitions that it changes are planned anew.
//!
//! **Promise.** An operation that has not replied keeps its version, quorum and deadline. Its
//! acknowledgements begin at zero, and no answer to a request of its former plan counts. No request
//! of a former plan is sent after [`Coordinator::handle_layout`]. If a write was sent to any
//! replica before, its failure says that it may have been stored. An operation that has replied is
//! never planned again.
//!
//! **Mechanism.** Two layouts are compared by the epochs of the last changes of their partitions.
//! The operations of changed partitions are stopped by the old layout, whose preference lists their
//! replica indices refer to. Each that has not replied gets another id and begins again by the new
//! layout. An answer to a former request names the former id, and finds nothing.
//!
//! A replica that has learned a layout before the coordinator refuses requests for its changed
//! partitions ([`StaleEpoch`](crate::ReplicaFault::StaleEpoch)). Such an operation does not fail
//! for lack of replicas. It waits for the layout until its deadline.
//!
//! Scans of the cluster are planned anew likewise, whichever partitions change: their roles are
//! those of all partitions (`scan`).
//!
//! A write that has replied ends: the hints that are missing are requested once, by the old layout.
//! A read that has replied ends without further repairs.
//!
//! **Members.** A layout may have other members. A node that has become a member is dialed once the
//! view shows it as up. A node that is a member no more is parted with: the link to it is hung up,
//! those accepted from it are [dismissed](LinkAction::Dismiss), and its state is forgotten. An
//! operation that counts on a position in the preference list behind those of the members that stay
//! is planned anew, even if its partition has not changed. If its quorum names more nodes than the
//! cluster has then, it takes all of them.
//!
//! **Caveats.** A hint whose request is lost is not requested again; anti-entropy finds the
//! difference.

use super::context::{Context, CoordinatorInput};
use super::get::{Read, ReadTimes};
use super::peers::CoordinatorPeer;
use super::put::Write;
use super::request_number::OperationId;
use super::{Coordinator, OperationState};
use crate::{Effect, Layout, LayoutEpoch, LinkAction, NodeIndex, NodeSet, PartitionId, Quorum, WaitTarget};
use std::sync::Arc;
use stdx::Now;

/// The operations whose plans a new layout invalidates.
#[derive(Clone, Copy)]
struct Invalidated<'a> {
    former: &'a Layout,
    layout: &'a Layout,
    /// Number of positions in each preference list before those of members that are gone or new.
    kept: u8,
}

impl<'a> Invalidated<'a> {
    fn new(former: &'a Layout, layout: &'a Layout, departed: NodeSet) -> Self {
        Self { former, layout, kept: former.len() - departed.len() }
    }

    fn is_changed(&self, partition: PartitionId) -> bool {
        self.layout.changed(partition) > self.former.changed(partition)
    }

    fn contains(&self, partition: PartitionId, quorum: Quorum) -> bool {
        quorum.from() > self.kept || self.is_changed(partition)
    }
}

impl Coordinator {
    /// Handles a newer layout of the cluster. An older one has no effect.
    ///
    /// # Panics
    /// If the layout has other partitions, or this node is no member of it: such a process ends.
    pub fn handle_layout(&mut self, now: Now, layout: Arc<Layout>) {
        let input = CoordinatorInput { now, source: WaitTarget::Nothing };
        self.begin_input(input);
        if !self.context.peers.member.is_followed_by(&layout) {
            return;
        }
        let former = Arc::clone(&self.context.peers.member.layout);
        let departed = former.departed(&layout);
        let invalidated = Invalidated::new(&former, &layout, departed);
        let stopped = self.stop_operations(now, invalidated);
        let partitions = layout.partitions();
        let is_changed = |key: &[u8]| invalidated.is_changed(PartitionId::of(key, partitions));
        self.context.repairs.forget_keys(|key| is_changed(key.as_bytes()));
        let held = self.replica.learn(&layout);
        let has_changed = layout.newest_change() > former.newest_change();
        self.context.peers.follow(layout);
        departed.iter().for_each(|node| self.part_with(input, node));
        for id in stopped {
            self.plan_anew(input, id);
        }
        if has_changed {
            self.plan_scans_anew(input);
        }
        for request in held {
            let (header, request) = request.resumed(now);
            if !departed.contains(header.origin.node) {
                self.handle_replica_request(now, header, request);
            }
        }
        self.dial(now);
        self.resume_parked(now);
        self.resume_link_waiters(now);
        self.resume_scans(input);
        self.finish_input(input);
    }

    /// Forgets a node that is a member no more. No operation counts on it.
    fn part_with(&mut self, input: CoordinatorInput, node: NodeIndex) {
        let Context { peers, outbox, repairs, .. } = &mut self.context;
        repairs.forget_node(node);
        if !peers.states[node.as_usize()].dialer.is_down() {
            outbox.effects.push_back(Effect::Link(LinkAction::HangUp(node)));
        }
        outbox.effects.push_back(Effect::Link(LinkAction::Dismiss(node)));
        self.fail_scan_requests(input, node);
        self.context.peers.states[node.as_usize()] = CoordinatorPeer::new();
    }

    /// The newest epoch that this thread has fenced: no request for a partition that changed in it
    /// or before is being carried out, or will be accepted, that was planned before that change.
    pub const fn fenced(&self) -> LayoutEpoch {
        self.replica.fenced()
    }

    /// Stops the operations whose plans are invalid. Returns those that have not replied; the
    /// others are removed.
    fn stop_operations(&mut self, now: Now, invalidated: Invalidated<'_>) -> Vec<OperationId> {
        let newest = invalidated.layout.newest_change();
        let mut stopped = Vec::new();
        for slot in 0..self.operations.slots() {
            let Some((id, operation)) = self.operations.at(slot) else { continue };
            let mut cx = self.context.of(now, id);
            match &mut operation.state {
                OperationState::Read(read)
                    if invalidated.contains(read.subject.partition, read.tally.quorum()) =>
                {
                    read.abandon(&mut cx);
                }
                OperationState::Write(write)
                    if invalidated.contains(write.subject.partition, write.tally.quorum()) =>
                {
                    if operation.replied {
                        operation.state.end(&mut cx);
                        operation.state.abandon(&mut cx);
                    } else {
                        write.stop(&mut cx);
                    }
                }
                // The plan is one of the new layout, too.
                OperationState::Read(read) => {
                    read.epoch = newest;
                    continue;
                }
                OperationState::Write(write) => {
                    write.epoch = newest;
                    continue;
                }
                // Without a plan, nothing was sent or stored.
                OperationState::Parked(_) | OperationState::WaitingForLinks(_) | OperationState::Starting => {
                    continue;
                }
            }
            if operation.replied {
                self.operations.remove(id);
            } else {
                stopped.push(id);
            }
        }
        stopped
    }

    /// Begins a stopped operation again, by the present layout.
    fn plan_anew(&mut self, input: CoordinatorInput, id: OperationId) {
        let id = self.operations.renew(id);
        let deadline = self.operations.deadline(id).expect("the operation is in the table");
        let operation = self.operations.get_mut(id).expect("the operation is in the table");
        operation.wait.end_span(input.source, input.now.mono);
        let planned = match std::mem::replace(&mut operation.state, OperationState::Starting) {
            OperationState::Read(Read { subject, tally, .. }) => {
                let times = ReadTimes { started: input.now.mono, deadline };
                let read = Read::new(&self.context.peers, times, subject, tally.quorum());
                self.try_begin_read(input.now, id, read)
            }
            OperationState::Write(write) => self.plan_write_anew(input, id, write),
            _ => unreachable!("only reads and writes are stopped"),
        };
        if let Err(failure) = planned {
            self.fail_operation(id, input.source, failure);
        }
    }

    fn plan_write_anew(
        &mut self,
        input: CoordinatorInput,
        id: OperationId,
        mut write: Write,
    ) -> Result<(), crate::CommandFailure> {
        let cell = write.plan_anew(&self.context.peers)?;
        self.operations.get_mut(id).expect("the operation is in the table").state =
            OperationState::Write(write);
        self.send_write(input.now, id, cell);
        Ok(())
    }
}
