//! What differs between this node and a peer is exchanged, a few cells at once.
//!
//! A key that the peer does not tell of it may hold all the same: newer, and for fewer nodes than this node's older
//! cell, which that one must then replace. So the peer is asked first. A cell that replaces an older version takes over
//! the greater `from` of the two, and cells of one version take over the greatest: a replica that held or was owed the
//! older version is one of the newer from then on, also when its disk is lost. A cell that the peer lacks is read here and written there; one that this node lacks is read there and written
//! here. In between it may have been overwritten: then the newer one goes the way, if it is to. A peer that holds much
//! where this node holds nothing is asked for more of it only as what is known to differ has been exchanged.
//!
//! A cell of a peer whose version is further ahead than this node believes is not stored: it would hide later writes.

use super::{Chunk, HINDERED_MAX, Node, Pass, Progress, Repair, Stage, TRIES_MAX};
use crate::node::purpose::{AskPurpose, StorePurpose};
use crate::{Event, Key, NodeIndex, NodeSet, PeerAnswer, PeerRequest, StoreRequest, StoreResponse};
use std::collections::BTreeMap;
use stdx::{Cell, CellMeta, Now};

/// Cells that are exchanged at once; each is in memory.
const UNDER_WAY_MAX: usize = 16;
/// The bytes of cells that are exchanged at once, by the size of recent ones. One cell alone always goes.
const UNDER_WAY_BYTES: usize = 4 << 20;
/// The size of a cell before one has been seen.
pub(super) const CELL_BYTES_FIRST: usize = 1 << 20;
/// After a smaller cell, the size that is expected falls by this part.
const FORGOTTEN_PART: usize = 8;
/// While more than this wait, peers are not asked for the rest of a range; each may add what one answer holds.
const WAITING_MAX: usize = 1_024;

/// A cell that is to go to a peer, or to come from it.
#[derive(Clone, Debug)]
pub(in crate::node) struct Transfer {
    pub(in crate::node) node: NodeIndex,
    pub(in crate::node) key: Key,
    pub(in crate::node) way: Way,
    /// The receiver holds an older cell, which this one may replace wherever it is.
    pub(in crate::node) replaces: bool,
    /// The greatest `from` of the versions that were compared. The cell goes with at least this one.
    pub(in crate::node) from: u8,
    tries: u8,
}

/// In which direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum Way {
    /// To the peer, unless it holds something newer than this.
    Offer(CellMeta),
    Push,
    Pull,
}

impl Repair {
    /// Takes note of the size of a cell that is exchanged, in bytes.
    fn expect_cells_of(&mut self, bytes: usize) {
        self.cell_bytes = bytes.max(self.cell_bytes - self.cell_bytes / FORGOTTEN_PART);
    }
}

impl Node {
    /// Finds what differs between what this node and a peer hold behind `after` up to `until`.
    pub(super) fn compare(
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
        let Some(Pass { cutoff, stage: Stage::Comparing(chunk), .. }) = &self.repair.pass else { return };
        let transfer = |key: &Key, way, replaces, from| Transfer {
            node,
            key: key.clone(),
            way,
            replaces,
            from,
            tries: 0,
        };
        let mut transfers = Vec::new();
        for (key, own) in chunk.own.iter().filter(|(key, _)| is_within(key)) {
            match theirs.get(key) {
                Some(its) if own.version.hlc <= *cutoff && is_behind(its, own) => {
                    transfers.push(transfer(key, Way::Push, true, own.from.max(its.from)));
                }
                None if self.is_exchanged(now, node, key, own, *cutoff) => {
                    transfers.push(transfer(key, Way::Offer(*own), false, own.from));
                }
                _ => {}
            }
        }
        for (key, its) in &theirs {
            let own = chunk.own.get(key);
            let from = own.map_or(its.from, |own| own.from.max(its.from));
            let is_ours = self.member.layout.is_replica(self.member.me, key, from);
            if is_ours && own.is_none_or(|own| is_behind(own, its)) {
                transfers.push(transfer(key, Way::Pull, own.is_some(), from));
            }
        }
        if let Some(chunk) = self.repair.chunk(number) {
            chunk.transfers.extend(transfers);
        }
    }

    /// Begins transfers as long as there is room; ends the chunk after the last.
    pub(super) fn advance_exchange(&mut self, now: Now) {
        while let Some((number, transfer)) = self.next_transfer() {
            match transfer.way {
                Way::Offer(_) if self.is_usable(transfer.node) => {
                    let (node, key) = (transfer.node, transfer.key.clone());
                    let purpose = AskPurpose::OfferCell { pass: number, transfer };
                    self.outbox.ask(now.mono, node, purpose, PeerRequest::ReadMeta { key });
                }
                Way::Push => {
                    let key = transfer.key.clone();
                    let purpose = StorePurpose::ReadToPush { pass: number, transfer };
                    self.outbox.store(purpose, StoreRequest::Read { key });
                }
                Way::Pull if self.is_usable(transfer.node) => {
                    let (node, key) = (transfer.node, transfer.key.clone());
                    let purpose = AskPurpose::PullCell { pass: number, transfer };
                    self.outbox.ask(now.mono, node, purpose, PeerRequest::ReadCell { key });
                }
                Way::Offer(_) | Way::Pull => self.transferred(number, transfer, false),
            }
        }
        self.ask_for_rests(now);
        let is_done =
            |chunk: &Chunk| chunk.open.is_empty() && chunk.transfers.is_empty() && chunk.under_way == 0;
        if let Some(Pass { stage: Stage::Comparing(chunk), .. }) = &self.repair.pass
            && is_done(chunk)
        {
            self.end_chunk_of_pass(now);
        }
    }

    /// A peer has said what it holds of a key that it did not tell of, or has not.
    pub(in crate::node) fn cell_offered(
        &mut self,
        number: u64,
        transfer: Transfer,
        answer: Option<&PeerAnswer>,
    ) {
        let (Way::Offer(own), Some(PeerAnswer::Meta(its))) = (transfer.way, answer) else {
            return self.transferred(number, transfer, false);
        };
        let transfer = match its {
            Some(its) if is_behind(&own, its) => {
                Transfer { way: Way::Pull, replaces: true, from: own.from.max(its.from), ..transfer }
            }
            Some(its) if is_behind(its, &own) => {
                Transfer { way: Way::Push, replaces: true, from: own.from.max(its.from), ..transfer }
            }
            Some(_) => return self.dropped(number),
            None => Transfer { way: Way::Push, ..transfer },
        };
        if let Some(chunk) = self.repair.chunk(number) {
            chunk.under_way -= 1;
            chunk.transfers.push_front(transfer);
        }
    }

    /// The store has read a cell that a peer lacks.
    pub(in crate::node) fn read_to_push(
        &mut self,
        now: Now,
        number: u64,
        transfer: Transfer,
        response: StoreResponse,
    ) {
        let node = transfer.node;
        match response {
            StoreResponse::Cell(Some(cell)) if self.may_go(node, &transfer, &cell) => {
                let cell = cell.with_from_of_at_least(transfer.from);
                self.repair.expect_cells_of(cell.value.len());
                if !self.is_usable(node) {
                    return self.transferred(number, transfer, false);
                }
                let key = transfer.key.clone();
                let request = PeerRequest::Write { key, cell, hints: NodeSet::EMPTY };
                self.outbox.ask(now.mono, node, AskPurpose::PushCell { pass: number, transfer }, request);
            }
            // It was purged meanwhile, or overwritten for other nodes.
            StoreResponse::Cell(_) => self.dropped(number),
            StoreResponse::Failed(_) => self.transferred(number, transfer, false),
            response => unreachable!("the store answered Read with {response:?}"),
        }
    }

    /// A peer has stored a cell that it lacked, or has not.
    pub(in crate::node) fn cell_pushed(
        &mut self,
        number: u64,
        transfer: Transfer,
        answer: Option<&PeerAnswer>,
    ) {
        let is_stored = matches!(answer, Some(PeerAnswer::Written { .. }));
        self.transferred(number, transfer, is_stored);
    }

    /// A peer has sent a cell that this node lacks, or has not.
    pub(in crate::node) fn cell_pulled(
        &mut self,
        now: Now,
        number: u64,
        transfer: Transfer,
        answer: Option<PeerAnswer>,
    ) {
        match answer {
            // As if it were past the cutoff, which leaves such cells out wherever they are told of.
            Some(PeerAnswer::Cell(Some(cell))) if !self.member.clock.accepts(cell.meta.version.hlc, now) => {
                self.outbox.event(Event::CellRefused { node: transfer.node });
                self.dropped(number);
            }
            Some(PeerAnswer::Cell(Some(cell))) if self.may_go(self.member.me, &transfer, &cell) => {
                let cell = cell.with_from_of_at_least(transfer.from);
                self.repair.expect_cells_of(cell.value.len());
                let request = StoreRequest::Write { key: transfer.key.clone(), cell, hints: NodeSet::EMPTY };
                self.outbox.store(StorePurpose::StoreLearned { pass: number, transfer }, request);
            }
            Some(PeerAnswer::Cell(_)) => self.dropped(number),
            _ => self.transferred(number, transfer, false),
        }
    }

    /// The store has taken a cell of a peer, or has not.
    pub(in crate::node) fn learned(&mut self, number: u64, transfer: Transfer, response: &StoreResponse) {
        let is_stored = matches!(response, StoreResponse::Written { .. });
        if let Some(chunk) = self.repair.chunk(number) {
            chunk.learned |= is_stored;
        }
        self.transferred(number, transfer, is_stored);
    }

    /// Asks those peers on that have answered for a part of the range, once there is room for what they may say.
    fn ask_for_rests(&mut self, now: Now) {
        let Some(Pass { number, stage: Stage::Comparing(chunk), .. }) = &mut self.repair.pass else { return };
        if chunk.transfers.len() > WAITING_MAX {
            return;
        }
        let number = *number;
        let go_on = |progress: &mut Progress| std::mem::take(&mut progress.is_to_go_on);
        let nodes: NodeSet =
            chunk.open.iter_mut().filter_map(|(&node, progress)| go_on(progress).then_some(node)).collect();
        nodes.iter().for_each(|node| self.ask_range(now, number, node));
    }

    fn next_transfer(&mut self) -> Option<(u64, Transfer)> {
        let window = (UNDER_WAY_BYTES / self.repair.cell_bytes.max(1)).clamp(1, UNDER_WAY_MAX);
        let pass = self.repair.pass.as_mut()?;
        let Stage::Comparing(chunk) = &mut pass.stage else { return None };
        if chunk.under_way >= window {
            return None;
        }
        while let Some(transfer) = chunk.transfers.pop_front() {
            if !self.repair.hindered.get(&transfer.node).is_some_and(|keys| keys.contains(&transfer.key)) {
                chunk.under_way += 1;
                return Some((pass.number, transfer));
            }
            pass.incomplete.insert(transfer.node);
        }
        None
    }

    /// The link of a peer ended while a key was exchanged with it. Past [`HINDERED_MAX`] keys it is not these that end it.
    fn hinder(&mut self, node: NodeIndex, key: Key) {
        let keys = self.repair.hindered.entry(node).or_default();
        if keys.len() == HINDERED_MAX {
            keys.clear();
        }
        keys.push_back(key);
    }

    /// Whether a cell that may have been overwritten since it was compared is still to go to `node`.
    fn may_go(&self, node: NodeIndex, transfer: &Transfer, cell: &Cell) -> bool {
        let from = cell.meta.from.max(transfer.from);
        transfer.replaces || self.member.layout.is_replica(node, &transfer.key, from)
    }

    /// A transfer has ended, or is to be tried again, or is left for the next pass.
    fn transferred(&mut self, number: u64, mut transfer: Transfer, is_stored: bool) {
        let node = transfer.node;
        self.dropped(number);
        let Some(pass) = self.repair.pass(number) else { return };
        if is_stored {
            pass.cells += 1;
            self.outbox.event(Event::Repaired { node });
            return;
        }
        transfer.tries += 1;
        if transfer.tries == TRIES_MAX {
            pass.incomplete.insert(node);
        } else if !self.is_usable(node) {
            self.hinder(node, transfer.key);
            self.leave_out(node);
        } else if let Some(chunk) = self.repair.chunk(number) {
            chunk.transfers.push_back(transfer);
        }
    }

    fn dropped(&mut self, number: u64) {
        if let Some(chunk) = self.repair.chunk(number) {
            chunk.under_way -= 1;
        }
    }
}

/// Whether one cell of a key is to be replaced by another: by a greater version, or by the same one with a greater `from`.
fn is_behind(cell: &CellMeta, other: &CellMeta) -> bool {
    let is_same = (cell.version, cell.kind) == (other.version, other.kind);
    cell.version < other.version || is_same && cell.from < other.from
}
