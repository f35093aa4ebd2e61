//! Requests of the node and of its peers, each with the part of the node that handles it.
//!
//! A request that the node makes is recorded with its purpose, which names the part that handles
//! the answer. A request of a peer is handled by the part of its kind; those to a replica are
//! carried out by the [`Replica`](crate::replica::Replica).

use super::Node;
use super::copying::PendingCopy;
use super::ranges::{PendingRange, RangeRequester};
use super::repair::Transfer;
use crate::replica::{ReplicaContext, RequestHeader};
use crate::{
    Destination, HintCount, Key, LinkId, MessageId, NodeIndex, NodeRequest, NodeResponse, PeerAnswer,
    PeerRequest, StoreResponse, SwapAttempt,
};
use bytes::Bytes;
use stdx::{Cell, Now, Version};

/// Purpose of a request to the store.
#[derive(Debug)]
pub(super) enum StorePurpose {
    StoreRecord,
    RaiseClockBound,
    /// Counts the hints for a peer, or reads them for delivery.
    ReadHints {
        target: NodeIndex,
    },
    ForgetHints {
        target: NodeIndex,
        deleted: HintCount,
    },
    /// Scans a range that a peer requested.
    ScanForPeer(PendingRange),
    /// Stores a cell that a pull read from a source.
    StorePulledCell {
        pull: u64,
        source: NodeIndex,
        key: Key,
        cell: Cell,
    },
    /// Scans a range that a gainer copies.
    ScanForCopy(Box<PendingCopy>),
    /// Stores cells that a copy read from the source with this number.
    StoreCopied {
        source: u64,
        name: Bytes,
    },
    /// Reads the cursors of copies, or removes the one with this name.
    LookAfterCursors {
        name: Bytes,
    },
    AbandonTable,
    /// Changes or reads the parts of partitions that this node owns.
    ChangeOwned,
    /// Reads a refused key that is being retried, to see whether this node holds a later version.
    ReadRefusedKey,
    /// Stores the cell of a refused key that a holder sent.
    StoreRefusedKey {
        holder: NodeIndex,
    },
    /// Scans a chunk for a pass of anti-entropy.
    ScanChunk {
        pass: u64,
    },
    ReadCellToPush {
        pass: u64,
        transfer: Transfer,
    },
    StoreReceivedCell {
        pass: u64,
        transfer: Transfer,
    },
}

/// Purpose of a request to a peer.
#[derive(Debug)]
pub(super) enum RequestPurpose {
    /// Delivers a hint: the newest cell of a key that the peer may lack in this version.
    DeliverHint {
        key: Key,
        version: Version,
    },
    /// Reads the cells of a range for a pull.
    PullRange {
        pull: u64,
    },
    /// Reads cells for a copy from its source with this number.
    ReadCopy {
        attempt: SwapAttempt,
        source: u64,
    },
    /// Reads the version or the cell that the peer holds of a refused key.
    RetryRefusedKey,
    /// Compares a range with the peer for a pass of anti-entropy. The following purposes belong to
    /// passes as well.
    CompareRange {
        pass: u64,
    },
    CheckCell {
        pass: u64,
        transfer: Transfer,
    },
    PushCell {
        pass: u64,
        transfer: Transfer,
    },
    PullCell {
        pass: u64,
        transfer: Transfer,
    },
    /// Asks the peer as a voter, or tells it of a decided layout record.
    Chain,
    ReadLayout,
}

impl Node {
    /// Handles a request of a peer.
    pub(super) fn handle_request(
        &mut self,
        now: Now,
        link: LinkId,
        header: RequestHeader,
        request: PeerRequest,
    ) {
        let RequestHeader { origin, id, epoch, .. } = header;
        match request {
            PeerRequest::Node(NodeRequest::Heartbeat(heartbeat)) => {
                self.handle_heartbeat(now, link, id, origin.node, heartbeat);
            }
            PeerRequest::Node(NodeRequest::Range(range)) => {
                self.handle_range_request(RangeRequester { node: origin.node, link, id, epoch }, range);
            }
            PeerRequest::Node(NodeRequest::Chain(request)) => {
                self.handle_chain_request(origin.node, link, id, request);
            }
            PeerRequest::Node(NodeRequest::Copy(request)) => {
                self.handle_copy_request(RangeRequester { node: origin.node, link, id, epoch }, request);
            }
            PeerRequest::Node(NodeRequest::ReadLayout) => self.handle_layout_request(link, id),
            request @ (PeerRequest::Replica(_) | PeerRequest::Scan(_)) => {
                let read_eligible = self.is_read_eligible();
                let effects = &mut self.outbox.effects;
                let context = ReplicaContext { now, read_eligible, refused: None, writes: None, effects };
                self.replica.handle_request(context, header, request);
            }
        }
    }

    /// Handles a request that was held until this node had learned the layout of its plan.
    pub(super) fn handle_held_request(&mut self, now: Now, header: RequestHeader, request: PeerRequest) {
        if let Destination::Accepted(link) = header.origin.link {
            self.handle_request(now, link, header, request);
        }
    }

    /// Handles the answer of a peer.
    pub(super) fn handle_answer(&mut self, now: Now, node: NodeIndex, id: MessageId, answer: PeerAnswer) {
        let Some(number) = self.outbox.own_request_number(id) else { return };
        if let PeerAnswer::Node(NodeResponse::Heartbeat(heartbeat)) = answer {
            self.handle_heartbeat_answer(now, node, number, heartbeat);
        } else if let Some(purpose) = self.outbox.complete_request(now.mono, node, number) {
            self.complete_request(now, node, purpose, Some(answer));
        }
    }

    /// Dispatches a peer's answer by the purpose of its request. `None`: there will be no answer.
    pub(super) fn complete_request(
        &mut self,
        now: Now,
        node: NodeIndex,
        purpose: RequestPurpose,
        answer: Option<PeerAnswer>,
    ) {
        match purpose {
            RequestPurpose::DeliverHint { key, version } => {
                self.handle_hint_answer(node, (key, version), answer.as_ref());
            }
            RequestPurpose::PullRange { pull } => self.handle_source_answer(now, pull, node, answer),
            RequestPurpose::ReadCopy { attempt, source } => {
                self.handle_copy_answer(now, node, (attempt, source), answer);
            }
            RequestPurpose::RetryRefusedKey => self.handle_holder_answer(now, node, answer),
            RequestPurpose::CompareRange { pass } => self.handle_compare_answer(now, pass, node, answer),
            RequestPurpose::CheckCell { pass, transfer } => {
                self.handle_check_answer(pass, transfer, answer.as_ref());
            }
            RequestPurpose::PushCell { pass, transfer } => {
                self.handle_push_answer(pass, transfer, answer.as_ref());
            }
            RequestPurpose::PullCell { pass, transfer } => {
                self.handle_pull_answer(now, pass, transfer, answer);
            }
            RequestPurpose::Chain => self.handle_chain_answer(now, node, answer),
            RequestPurpose::ReadLayout => self.handle_layout_answer(now, node, answer),
        }
    }

    /// Dispatches the store's response by the purpose of its request.
    pub(super) fn complete_store(&mut self, now: Now, purpose: StorePurpose, response: StoreResponse) {
        match purpose {
            StorePurpose::StoreRecord => self.handle_record_stored(now, response),
            StorePurpose::RaiseClockBound => self.handle_clock_bound_raised(now, response),
            StorePurpose::ReadHints { target } => self.handle_hints_read(now, target, response),
            StorePurpose::ForgetHints { target, deleted } => {
                self.handle_hints_forgotten(target, deleted, response);
            }
            StorePurpose::ScanForPeer(pending) => self.handle_range_scanned(now, &pending, response),
            StorePurpose::StorePulledCell { pull, source, key, cell } => {
                self.handle_pulled_cell_stored(now, pull, source, (key, cell), &response);
            }
            StorePurpose::ScanForCopy(pending) => self.handle_copy_scanned(now, *pending, response),
            StorePurpose::StoreCopied { source, name } => {
                self.handle_copied_stored(now, source, name, &response);
            }
            StorePurpose::LookAfterCursors { name } => self.handle_cursors(now, &name, response),
            StorePurpose::AbandonTable => self.handle_table_abandoned(&response),
            StorePurpose::ChangeOwned => self.handle_owned_changed(now, response),
            StorePurpose::ReadRefusedKey => self.handle_refused_key_read(now, &response),
            StorePurpose::StoreRefusedKey { holder } => {
                self.handle_refused_key_stored(now, holder, &response);
            }
            StorePurpose::ScanChunk { pass } => self.handle_chunk_scanned(now, pass, response),
            StorePurpose::ReadCellToPush { pass, transfer } => {
                self.handle_cell_read(now, pass, transfer, response);
            }
            StorePurpose::StoreReceivedCell { pass, transfer } => {
                self.handle_received_cell_stored(pass, transfer, &response);
            }
        }
    }
}
