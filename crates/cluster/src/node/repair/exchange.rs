//! Exchange: the cells that differ between this node and a peer are transferred, a few at a time.
//!
//! A peer that does not list a key may still hold a newer cell of it that was written for fewer
//! nodes than this node's older cell. That newer cell must then replace the older one here. So the
//! peer is first asked for its version of the key.
//!
//! A cell that replaces an older version takes over the greater `from` of the two, and cells of one
//! version take over the greatest. From then on a replica that held the older version, or was to
//! receive it, is a replica of the newer one, even after it loses its disk.
//!
//! A cell that the peer lacks is read here and written there; one that this node lacks is read
//! there and written here. The cell may be overwritten in between: then the newer one is
//! transferred if the receiver is its replica. A peer that holds many cells where this node holds
//! none is asked for more only as the known differences are exchanged.
//!
//! A cell of a peer whose version is further ahead than this node's clock accepts is not stored: it
//! would hide later writes.

use super::{ATTEMPTS_MAX, Chunk, DEFERRED_KEYS_MAX, Node, PassStage, Progress, Repair, RepairPass};
use crate::node::dispatch::{RequestPurpose, StorePurpose};
use crate::{Event, Key, NodeIndex, NodeSet, PeerAnswer, ReplicaRequest, ReplicaResponse, StoreResponse};
use std::collections::BTreeMap;
use stdx::{Cell, CellMeta, Now};

/// Maximum number of cells that are transferred at a time; each is in memory.
const IN_FLIGHT_MAX: usize = 16;
/// Maximum number of bytes of cells that are transferred at a time, estimated from recent sizes. A
/// single cell is always transferred.
const IN_FLIGHT_BYTES_MAX: usize = 4 << 20;
/// Estimated size of a cell in bytes before one has been transferred.
pub(super) const CELL_BYTES_INITIAL: usize = 1 << 20;
/// After a smaller cell the estimate falls by its fraction of one in this many.
const CELL_BYTES_DECAY: usize = 8;
/// Number of waiting transfers above which peers are not asked for the rest of a range. Each peer
/// may add the entries of one answer.
const TRANSFERS_WAITING_MAX: usize = 1_024;

/// A cell that is to be sent to a peer or fetched from it.
#[derive(Clone, Debug)]
pub(in crate::node) struct Transfer {
    pub(in crate::node) node: NodeIndex,
    pub(in crate::node) key: Key,
    pub(in crate::node) direction: Direction,
    /// The receiver holds an older cell, so this one may replace it on any node.
    pub(in crate::node) replaces: bool,
    /// The greatest `from` of the compared versions. The cell is transferred with at least this
    /// `from`.
    pub(in crate::node) from: u8,
    attempts: u8,
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum Direction {
    /// To the peer, unless the peer turns out to hold a newer version than this.
    CheckedPush(CellMeta),
    Push,
    Pull,
}

impl Repair {
    /// Updates the estimate with the size of a transferred cell in bytes.
    fn record_cell_size(&mut self, bytes: usize) {
        self.cell_bytes = bytes.max(self.cell_bytes - self.cell_bytes / CELL_BYTES_DECAY);
    }
}

impl Node {
    /// Finds the differences between the cells of this node and of a peer in the range behind
    /// `after` up to `until`.
    pub(super) fn compare_range(
        &mut self,
        now: Now,
        number: u64,
        node: NodeIndex,
        after: Option<&Key>,
        until: Option<&Key>,
        entries: Vec<(Key, CellMeta)>,
    ) {
        let is_within =
            |key: &Key| after.is_none_or(|after| key > after) && until.is_none_or(|until| key <= until);
        let theirs: BTreeMap<Key, CellMeta> = entries.into_iter().filter(|(key, _)| is_within(key)).collect();
        let Some(RepairPass { cutoff, stage: PassStage::Comparing(chunk), .. }) = &self.repair.pass else {
            return;
        };
        let transfer = |key: &Key, direction, replaces, from| Transfer {
            node,
            key: key.clone(),
            direction,
            replaces,
            from,
            attempts: 0,
        };
        let mut transfers = Vec::new();
        for (key, own) in chunk.own.iter().filter(|(key, _)| is_within(key)) {
            match theirs.get(key) {
                Some(its) if own.version.hlc <= *cutoff && is_older(its, own) => {
                    transfers.push(transfer(key, Direction::Push, true, own.from.max(its.from)));
                }
                None if self.is_exchanged(now, node, key, own, *cutoff) => {
                    transfers.push(transfer(key, Direction::CheckedPush(*own), false, own.from));
                }
                _ => {}
            }
        }
        for (key, its) in &theirs {
            let own = chunk.own.get(key);
            let from = own.map_or(its.from, |own| own.from.max(its.from));
            let is_ours = self.member.layout.is_intended_holder(self.member.me, key, from);
            if is_ours && own.is_none_or(|own| is_older(own, its)) {
                transfers.push(transfer(key, Direction::Pull, own.is_some(), from));
            }
        }
        if let Some(chunk) = self.repair.chunk(number) {
            chunk.transfers.extend(transfers);
        }
    }

    /// Starts transfers within the limits. Ends the chunk after the last one.
    pub(super) fn advance_exchange(&mut self, now: Now) {
        while let Some((number, transfer)) = self.next_transfer() {
            match transfer.direction {
                Direction::CheckedPush(_) if self.is_usable(transfer.node) => {
                    let (node, key) = (transfer.node, transfer.key.clone());
                    let purpose = RequestPurpose::CheckCell { pass: number, transfer };
                    self.outbox.request_peer(now.mono, node, purpose, ReplicaRequest::ReadMeta { key });
                }
                Direction::Push => {
                    let key = transfer.key.clone();
                    let purpose = StorePurpose::ReadCellToPush { pass: number, transfer };
                    self.outbox.request_store(purpose, ReplicaRequest::Read { key });
                }
                Direction::Pull if self.is_usable(transfer.node) => {
                    let (node, key) = (transfer.node, transfer.key.clone());
                    let purpose = RequestPurpose::PullCell { pass: number, transfer };
                    self.outbox.request_peer(now.mono, node, purpose, ReplicaRequest::Read { key });
                }
                Direction::CheckedPush(_) | Direction::Pull => self.end_transfer(number, transfer, false),
            }
        }
        self.continue_comparisons(now);
        let is_done =
            |chunk: &Chunk| chunk.open_peers.is_empty() && chunk.transfers.is_empty() && chunk.in_flight == 0;
        if let Some(RepairPass { stage: PassStage::Comparing(chunk), .. }) = &self.repair.pass
            && is_done(chunk)
        {
            self.end_compared_chunk(now);
        }
    }

    /// Handles a peer's answer with its version of a key that it did not list. `None`: there was no
    /// answer.
    pub(in crate::node) fn handle_check_answer(
        &mut self,
        number: u64,
        transfer: Transfer,
        answer: Option<&PeerAnswer>,
    ) {
        let (Direction::CheckedPush(own), Some(PeerAnswer::Replica(ReplicaResponse::Meta(its)))) =
            (transfer.direction, answer)
        else {
            return self.end_transfer(number, transfer, false);
        };
        let transfer = match its {
            Some(its) if is_older(&own, its) => Transfer {
                direction: Direction::Pull,
                replaces: true,
                from: own.from.max(its.from),
                ..transfer
            },
            Some(its) if is_older(its, &own) => Transfer {
                direction: Direction::Push,
                replaces: true,
                from: own.from.max(its.from),
                ..transfer
            },
            Some(_) => return self.release_transfer(number),
            None => Transfer { direction: Direction::Push, ..transfer },
        };
        if let Some(chunk) = self.repair.chunk(number) {
            chunk.in_flight -= 1;
            chunk.transfers.push_front(transfer);
        }
    }

    /// Handles the store's answer with a cell that a peer lacks.
    pub(in crate::node) fn handle_cell_read(
        &mut self,
        now: Now,
        number: u64,
        transfer: Transfer,
        response: StoreResponse,
    ) {
        let node = transfer.node;
        if !self.is_comparing(number) {
            return;
        }
        match response {
            StoreResponse::Replica(ReplicaResponse::Cell(Some(cell)))
                if self.is_transfer_allowed(node, &transfer, &cell) =>
            {
                let cell = cell.with_from_of_at_least(transfer.from);
                self.repair.record_cell_size(cell.value.len());
                if !self.is_usable(node) {
                    return self.end_transfer(number, transfer, false);
                }
                let key = transfer.key.clone();
                let request = ReplicaRequest::Write { key, cell, hints: NodeSet::EMPTY };
                self.outbox.request_peer(
                    now.mono,
                    node,
                    RequestPurpose::PushCell { pass: number, transfer },
                    request,
                );
            }
            // The cell was purged meanwhile, or overwritten by one that is not for this peer.
            StoreResponse::Replica(ReplicaResponse::Cell(_)) => self.release_transfer(number),
            StoreResponse::Failed(_) => self.end_transfer(number, transfer, false),
            response => unreachable!("the store answered Read with {response:?}"),
        }
    }

    /// Handles a peer's answer to a cell that it lacked. `None`: there was no answer.
    pub(in crate::node) fn handle_push_answer(
        &mut self,
        number: u64,
        transfer: Transfer,
        answer: Option<&PeerAnswer>,
    ) {
        let is_stored = matches!(answer, Some(PeerAnswer::Replica(ReplicaResponse::Written { .. })));
        self.end_transfer(number, transfer, is_stored);
    }

    /// Handles a peer's answer with a cell that this node lacks. `None`: there was no answer.
    pub(in crate::node) fn handle_pull_answer(
        &mut self,
        now: Now,
        number: u64,
        transfer: Transfer,
        answer: Option<PeerAnswer>,
    ) {
        if !self.is_comparing(number) {
            return;
        }
        match answer {
            // Treated like a cell past the cutoff, which the comparison leaves out.
            Some(PeerAnswer::Replica(ReplicaResponse::Cell(Some(cell))))
                if !self.member.clock.accepts(cell.meta.version.hlc, now) =>
            {
                self.outbox.emit_event(Event::CellRefused { node: transfer.node });
                self.release_transfer(number);
            }
            Some(PeerAnswer::Replica(ReplicaResponse::Cell(Some(cell))))
                if self.is_transfer_allowed(self.member.me, &transfer, &cell) =>
            {
                let cell = cell.with_from_of_at_least(transfer.from);
                self.repair.record_cell_size(cell.value.len());
                let request =
                    ReplicaRequest::Write { key: transfer.key.clone(), cell, hints: NodeSet::EMPTY };
                self.outbox
                    .request_store(StorePurpose::StoreReceivedCell { pass: number, transfer }, request);
            }
            Some(PeerAnswer::Replica(ReplicaResponse::Cell(_))) => self.release_transfer(number),
            _ => self.end_transfer(number, transfer, false),
        }
    }

    /// Handles the store's answer to the write of a peer's cell.
    pub(in crate::node) fn handle_received_cell_stored(
        &mut self,
        number: u64,
        transfer: Transfer,
        response: &StoreResponse,
    ) {
        let is_stored = matches!(response, StoreResponse::Replica(ReplicaResponse::Written { .. }));
        if let Some(chunk) = self.repair.chunk(number) {
            chunk.has_received_cells |= is_stored;
        }
        self.end_transfer(number, transfer, is_stored);
    }

    /// Requests the next part of the range from peers that have answered for a part, once few
    /// transfers are waiting.
    fn continue_comparisons(&mut self, now: Now) {
        let Some(RepairPass { number, stage: PassStage::Comparing(chunk), .. }) = &mut self.repair.pass
        else {
            return;
        };
        if chunk.transfers.len() > TRANSFERS_WAITING_MAX {
            return;
        }
        let number = *number;
        let go_on = |progress: &mut Progress| std::mem::take(&mut progress.is_continuation_due);
        let nodes: NodeSet = chunk
            .open_peers
            .iter_mut()
            .filter_map(|(&node, progress)| go_on(progress).then_some(node))
            .collect();
        nodes.iter().for_each(|node| self.request_comparison(now, number, node));
    }

    /// Whether the pass compares a chunk. If not, its transfers were planned by a former layout, or
    /// are not needed any more.
    fn is_comparing(&mut self, number: u64) -> bool {
        self.repair.chunk(number).is_some()
    }

    fn next_transfer(&mut self) -> Option<(u64, Transfer)> {
        let window = (IN_FLIGHT_BYTES_MAX / self.repair.cell_bytes.max(1)).clamp(1, IN_FLIGHT_MAX);
        let pass = self.repair.pass.as_mut()?;
        let PassStage::Comparing(chunk) = &mut pass.stage else { return None };
        if chunk.in_flight >= window {
            return None;
        }
        while let Some(transfer) = chunk.transfers.pop_front() {
            if !self.repair.deferred_keys.get(&transfer.node).is_some_and(|keys| keys.contains(&transfer.key))
            {
                chunk.in_flight += 1;
                return Some((pass.number, transfer));
            }
            pass.incomplete.insert(transfer.node);
        }
        None
    }

    /// Defers a key because the peer's link ended while the key was transferred. If
    /// [`DEFERRED_KEYS_MAX`] keys are deferred already, the keys are not the cause, and all of them
    /// are released.
    fn defer_key(&mut self, node: NodeIndex, key: Key) {
        let keys = self.repair.deferred_keys.entry(node).or_default();
        if keys.len() == DEFERRED_KEYS_MAX {
            keys.clear();
        }
        keys.push_back(key);
    }

    /// Whether a cell that may have been overwritten since the comparison may still be sent to
    /// `node`.
    fn is_transfer_allowed(&self, node: NodeIndex, transfer: &Transfer, cell: &Cell) -> bool {
        let from = cell.meta.from.max(transfer.from);
        transfer.replaces || self.member.layout.is_intended_holder(node, &transfer.key, from)
    }

    /// Ends a transfer: it has succeeded, is retried, or is left to the next pass.
    fn end_transfer(&mut self, number: u64, mut transfer: Transfer, is_stored: bool) {
        let node = transfer.node;
        self.release_transfer(number);
        let Some(pass) = self.repair.pass(number) else { return };
        if is_stored {
            pass.cells += 1;
            self.outbox.emit_event(Event::Repaired { node });
            return;
        }
        transfer.attempts += 1;
        if transfer.attempts == ATTEMPTS_MAX {
            pass.incomplete.insert(node);
        } else if !self.is_usable(node) {
            self.defer_key(node, transfer.key);
            self.exclude_peer(node);
        } else if let Some(chunk) = self.repair.chunk(number) {
            chunk.transfers.push_back(transfer);
        }
    }

    fn release_transfer(&mut self, number: u64) {
        if let Some(chunk) = self.repair.chunk(number) {
            chunk.in_flight -= 1;
        }
    }
}

/// Whether a cell is to be replaced by another one of its key: by a greater version, or by the same
/// version with a greater `from`.
fn is_older(cell: &CellMeta, other: &CellMeta) -> bool {
    let is_same = (cell.version, cell.kind) == (other.version, other.kind);
    cell.version < other.version || is_same && cell.from < other.from
}
