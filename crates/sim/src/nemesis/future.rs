//! Cells from a clock that was ahead, which exist on disks already.
//!
//! Nodes issue no such versions and refuse those of others. So this fault writes a cell into the
//! stores of two nodes without their state machines, as an earlier release could have left it
//! there. Then a third node loses its disk and is rebuilt from them. The cell is so far ahead that
//! it must be refused for a while, and so near that it is accepted before the run ends.

use crate::check::clock_bound;
use crate::history::{ClientOperation, CommandKind};
use crate::host::process::HostProcess;
use crate::network::Endpoint;
use crate::workload;
use crate::world::{World, WorldEvent};
use cluster::{Key, NodeIndex, NodeSet, ReplicaRequest, RequestId, Requester, StoreId, StoreRequest};
use std::time::Duration;
use stdx::{Cell, Hlc, Version};
use store::WriteGroup;

/// Greatest distance of the cell's version from the accepted bound.
const PAST_MAX: Duration = Duration::from_secs(15);

impl World {
    /// Writes a cell from the future to two nodes, and takes the disk of a third.
    pub(super) fn store_future_cell(&mut self, node: NodeIndex, down: Duration) {
        let nodes = self.scenario.nodes;
        let others = [1, 2].map(|steps| NodeIndex((node.0 + steps) % nodes));
        let runs = |world: &mut Self, node| world.host(node).process.is_some();
        if self.has_lost_data() || !others.into_iter().all(|other| runs(self, other)) {
            return self.postpone_fault();
        }
        let ahead = clock_bound::AHEAD_MAX + Duration::from_secs(1) + self.nemesis.up_to(PAST_MAX);
        let wall = self.judge.latest_wall.saturating_add(ahead);
        let id = self.judge.history.next_id();
        // After a plan, two nodes may share no partition.
        let Some(key) = self.key_of_replicas(id, &others) else { return self.postpone_fault() };
        let tag = self.host(others[0]).process.as_ref().expect("the process runs").member.tag;
        let value = id.0.to_be_bytes().to_vec().into();
        let cell = Cell::value(Version::new(Hlc::at(wall), tag), self.scenario.default_from, value);
        self.trace.note(self.now, || format!("{key:?} is on {others:?} as {cell:?}"));
        self.note_write(id, others[0], &key, &cell);
        for other in others {
            self.put_into_store(other, &key, &cell);
        }
        self.lose_disk(node, down);
    }

    /// Finds a key that these nodes are to hold, or the first of them if a key has one replica.
    /// Earlier releases left cells on the replicas of their keys, and anti-entropy moves no others.
    fn key_of_replicas(&self, id: RequestId, nodes: &[NodeIndex]) -> Option<Key> {
        let from = self.scenario.default_from;
        let wanted = &nodes[..nodes.len().min(usize::from(from))];
        let keys = (0..10_000).map(|i| Key::new(format!("future-{}-{i}", id.0).into()).expect("a short key"));
        let layout = self.layout();
        let is_theirs = |key: &Key| {
            let replicas = layout.replicas(key, from);
            wanted.iter().all(|node| replicas.contains(node))
        };
        keys.into_iter().find(is_theirs)
    }

    /// Records for the judge that a client wrote this cell and got no reply.
    pub(crate) fn note_write(&mut self, id: RequestId, node: NodeIndex, key: &Key, cell: &Cell) {
        let (nodes, from) = (self.scenario.nodes, self.scenario.default_from);
        let quorum = workload::quorum(1, from, nodes);
        let (key, kind) = (key.clone(), CommandKind::Put { ttl: None });
        self.judge.begin(ClientOperation {
            id,
            node,
            kind,
            key: key.clone(),
            quorum,
            began: self.now,
            outcome: None,
        });
        self.judge.end(id, self.now, crate::history::ClientOutcome::NoReply, None);
        self.judge.issued_cells.note(&key, cell).expect("the version is unique");
    }

    pub(crate) fn put_into_store(&mut self, node: NodeIndex, key: &Key, cell: &Cell) {
        let Some(endpoint) = self.endpoint(node, Requester::Node) else { return };
        let request = StoreRequest::Replica(ReplicaRequest::Write {
            key: key.clone(),
            cell: cell.clone(),
            hints: NodeSet::EMPTY,
        });
        let process = self.process(endpoint).expect("the process runs");
        let mut group: WriteGroup = process.write_group();
        group.add(StoreId(0), &request);
        if begin_commit(process, group) {
            self.at(self.now, WorldEvent::Commit(Endpoint { requester: Requester::Node, ..endpoint }));
        }
    }
}

/// Submits a group of writes to the store and discards the answers. Returns whether a commit must
/// be scheduled.
fn begin_commit(process: &mut HostProcess, group: WriteGroup) -> bool {
    process.store.submit(group, |_, _| {});
    !std::mem::replace(&mut process.is_committing, true)
}
