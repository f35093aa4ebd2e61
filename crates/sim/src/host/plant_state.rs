//! Planted bugs, implemented between the shipped state machines and the world.

use crate::Plant;
use crate::history::ClientOperation;
use cluster::{
    Command, CommandFailure, Cut, Effect, HybridClock, Key, Layout, Message, NodeIndex, NodeRequest,
    NodeResponse, NodeSet, Page, PageBuilder, PageContent, PageRequest, PeerAnswer, PeerRequest, Quorum,
    QuorumChoice, RangeAnswer, ReplicaRequest, ReplicaResponse, Reply, Requester, ScanRequest, ScanRoles,
    ScanTask, SnapshotId, StoreFault, StoreId, StoreRequest, StoreResponse,
};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU8;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, CellRef, NodeTag, Now, Version};

/// State of a planted bug on a host, for one generation of its process.
#[derive(Debug, Default)]
pub(crate) struct PlantState {
    /// Cell that arrived last, for each key.
    last: BTreeMap<Key, Cell>,
    /// Writes that were answered before they were durable.
    early_answers: BTreeSet<(Requester, StoreId)>,
    /// Start of each resumed scan after a takeover, and the roles of its nodes.
    resumed: BTreeMap<SnapshotId, (ScanRoles, Option<Cut>)>,
    /// Number of pages requested from the store.
    pages: u64,
    /// Number of replies to commands.
    replies: u64,
    /// Whether a write has found the disk full.
    was_full: bool,
    /// Whether a command was refused for overload.
    was_busy: bool,
    /// Versions that reads have written back to a replica.
    written_back: BTreeSet<Version>,
    /// True versions of cells whose versions were hidden from a pull, by the key and version that
    /// the state machine was given.
    hidden_versions: BTreeMap<(Key, Version), Version>,
}

/// Returns the command that the planted bug executes in place of `command`.
pub(crate) fn alter_command(plant: Option<Plant>, command: Command, nodes: u8) -> Command {
    match (plant, command) {
        (Some(Plant::ReadOfOne), Command::Get { key, quorum }) => {
            Command::Get { key, quorum: with_ack(quorum, 1, nodes) }
        }
        (Some(Plant::QuorumOffByOne), Command::Put { key, value, lifetime, quorum }) => {
            Command::Put { key, value, lifetime, quorum: with_ack(quorum, quorum.ack() - 1, nodes) }
        }
        (Some(Plant::QuorumOffByOne), Command::Delete { key, quorum }) => {
            Command::Delete { key, quorum: with_ack(quorum, quorum.ack() - 1, nodes) }
        }
        (Some(Plant::SlowReplicaAwaited), Command::Put { key, value, lifetime, quorum }) => {
            Command::Put { key, value, lifetime, quorum: with_ack(quorum, quorum.from(), nodes) }
        }
        (_, command) => command,
    }
}

/// Returns the reply that the planted bug makes of one. It claims that as many replicas answered as
/// the client requested.
pub(crate) fn alter_reply<'a>(
    plant: Option<Plant>,
    reply: &'a Reply,
    operation: Option<&ClientOperation>,
) -> std::borrow::Cow<'a, Reply> {
    let mut altered = std::borrow::Cow::Borrowed(reply);
    if let (Some(Plant::ReadOfOne | Plant::QuorumOffByOne), Some(operation)) = (plant, operation)
        && let Reply::Found { acks, .. } | Reply::Missing { acks } | Reply::Written { acks, .. } =
            altered.to_mut()
    {
        acks.got = acks.got.max(operation.quorum.ack());
    }
    altered
}

fn with_ack(quorum: Quorum, ack: u8, nodes: u8) -> Quorum {
    let choice = QuorumChoice { ack: Some(u32::from(ack.max(1))), from: Some(u32::from(quorum.from())) };
    choice
        .resolve(NonZeroU8::new(nodes).expect("a cluster has at least one node"), nodes)
        .expect("a smaller ack is a quorum too")
}

impl PlantState {
    /// Lets a planted bug change a read of the store, or answer it at once.
    pub(crate) fn alter_read(
        &mut self,
        plant: Option<Plant>,
        request: &mut StoreRequest,
    ) -> Option<StoreResponse> {
        match (plant?, request) {
            (Plant::SnapshotsKept, StoreRequest::Replica(ReplicaRequest::EndSnapshot { .. })) => {
                Some(StoreResponse::Replica(ReplicaResponse::SnapshotEnded))
            }
            (Plant::SnapshotPerPage, StoreRequest::ReadPage(page)) => {
                self.pages += 1;
                page.snapshot.number += self.pages << 32;
                None
            }
            _ => None,
        }
    }

    /// Lets a planted bug change a request to a peer.
    pub(crate) fn alter_peer_request(&mut self, plant: Option<Plant>, message: &mut Message) {
        let (Some(Plant::TakeoverSkips), Message::Request { request: PeerRequest::Scan(part), .. }) =
            (plant, message)
        else {
            return;
        };
        let resumed = self.resumed.entry(part.snapshot).or_insert_with(|| (part.roles.clone(), None));
        if resumed.0 != part.roles {
            *resumed = (part.roles.clone(), part.range.from.clone());
        }
        if let (_, Some(cut)) = resumed
            && part.range.from.as_ref() == Some(cut)
        {
            part.range.from = Some(behind_next(cut));
        }
    }

    /// Returns the answer that a planted bug gives in place of the peer to which a read writes
    /// back.
    pub(crate) fn answer_write_back(
        &mut self,
        plant: Option<Plant>,
        requester: Requester,
        message: &Message,
        tag: NodeTag,
    ) -> Option<PeerAnswer> {
        let Message::Request { request: PeerRequest::Replica(ReplicaRequest::Write { cell, .. }), .. } =
            message
        else {
            return None;
        };
        let version = cell.meta.version;
        let is_write_back = requester != Requester::Node && version.tag != tag;
        let is_too_small = plant == Some(Plant::WriteBackTooSmall) && is_write_back;
        (is_too_small && !self.written_back.insert(version))
            .then_some(PeerAnswer::Replica(ReplicaResponse::Written { superseded: false }))
    }

    /// Lets a planted bug hide from a pull that versions are too far ahead of `clock`.
    pub(crate) fn hide_future_versions(
        &mut self,
        plant: Option<Plant>,
        now: Now,
        clock: &HybridClock,
        message: &mut Message,
    ) {
        let (
            Some(Plant::PullsUnchecked),
            Message::Answer {
                answer: PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Cells { entries, .. })),
                ..
            },
        ) = (plant, message)
        else {
            return;
        };
        for (key, cell) in entries {
            let version = cell.meta.version;
            if !clock.accepts(version.hlc, now) {
                cell.meta.version = Version::new(clock.issued(), version.tag);
                self.hidden_versions.insert((key.clone(), cell.meta.version), version);
            }
        }
    }

    /// Restores the version that a planted bug has hidden from the state machine, in a write to the
    /// store.
    pub(crate) fn restore_versions(&mut self, request: &mut StoreRequest) {
        if let StoreRequest::Replica(ReplicaRequest::Write { key, cell, .. }) = request
            && let Some(version) = self.hidden_versions.get(&(key.clone(), cell.meta.version))
        {
            cell.meta.version = *version;
        }
    }

    /// Lets a planted bug change a write to the store, or answer it at once.
    pub(crate) fn alter_write(
        &mut self,
        plant: Option<Plant>,
        request: &mut StoreRequest,
    ) -> Option<StoreResponse> {
        match (plant?, request) {
            (Plant::HintLost, StoreRequest::Replica(ReplicaRequest::Write { hints, .. })) => {
                *hints = NodeSet::EMPTY;
                None
            }
            (Plant::DiskFullNeverEnds, StoreRequest::Replica(ReplicaRequest::Write { cell, .. }))
                if self.was_full && cell.meta.kind == CellKind::Value =>
            {
                Some(StoreResponse::Failed(StoreFault::Full))
            }
            (Plant::OverloadNeverEnds, StoreRequest::Replica(ReplicaRequest::Write { .. }))
                if self.was_busy =>
            {
                Some(StoreResponse::Failed(StoreFault::Overloaded { retry_after: Duration::from_secs(1) }))
            }
            (Plant::PendingRepairForgotten, StoreRequest::PersistRecord { record }) => {
                record.repair_pending = NodeSet::EMPTY;
                None
            }
            (Plant::HintLost, StoreRequest::Replica(ReplicaRequest::KeepHints { .. })) => {
                Some(StoreResponse::Replica(ReplicaResponse::HintsKept))
            }
            (Plant::LastArrivalWins, StoreRequest::Replica(ReplicaRequest::Write { key, cell, .. })) => {
                self.last.insert(key.clone(), cell.clone());
                None
            }
            (Plant::ReadBeforeSync, StoreRequest::Replica(ReplicaRequest::Write { key, cell, .. })) => {
                let supersedes =
                    self.last.get(key).is_none_or(|last| cell.as_ref().supersedes(&last.as_ref()));
                if supersedes {
                    self.last.insert(key.clone(), cell.clone());
                }
                None
            }
            _ => None,
        }
    }

    /// Returns the answer to a write that is given before the write is durable, if there is one.
    pub(crate) fn early_answer(
        &mut self,
        plant: Option<Plant>,
        id: (Requester, StoreId),
        request: &StoreRequest,
    ) -> Option<StoreResponse> {
        let is_early = plant == Some(Plant::AckBeforeSync)
            && matches!(request, StoreRequest::Replica(ReplicaRequest::Write { .. }));
        is_early.then(|| {
            self.early_answers.insert(id);
            StoreResponse::Replica(ReplicaResponse::Written { superseded: false })
        })
    }

    /// Returns the answer to a write that the planted bug makes of `response`.
    pub(crate) fn alter_write_answer(
        &mut self,
        plant: Option<Plant>,
        response: StoreResponse,
    ) -> StoreResponse {
        match (plant, &response) {
            (Some(Plant::DiskFullAcknowledged), StoreResponse::Failed(StoreFault::Full)) => {
                StoreResponse::Replica(ReplicaResponse::Written { superseded: false })
            }
            (Some(Plant::DiskFullNeverEnds), StoreResponse::Failed(StoreFault::Full)) => {
                self.was_full = true;
                response
            }
            _ => response,
        }
    }

    /// Whether a planted bug makes the host refuse values.
    pub(crate) const fn refuses_values(&self) -> bool {
        self.was_full
    }

    /// Whether a write was answered before it was durable. Such a write is not answered again.
    pub(crate) fn take_early_answer(&mut self, id: (Requester, StoreId)) -> bool {
        self.early_answers.remove(&id)
    }

    /// Returns the answer to a read that the planted bug makes of `response`.
    pub(crate) fn alter_read_answer(
        &self,
        plant: Option<Plant>,
        request: &StoreRequest,
        response: StoreResponse,
    ) -> StoreResponse {
        match (plant, request) {
            (Some(Plant::LastArrivalWins), StoreRequest::Replica(ReplicaRequest::Read { key })) => self
                .last
                .get(key)
                .map_or(response, |last| StoreResponse::Replica(ReplicaResponse::Cell(Some(last.clone())))),
            (Some(Plant::ReadBeforeSync), StoreRequest::Replica(ReplicaRequest::Read { key })) => {
                match (self.last.get(key), &response) {
                    (Some(last), StoreResponse::Replica(ReplicaResponse::Cell(Some(cell))))
                        if cell.as_ref().supersedes(&last.as_ref()) =>
                    {
                        response
                    }
                    (Some(last), StoreResponse::Replica(ReplicaResponse::Cell(_))) => {
                        StoreResponse::Replica(ReplicaResponse::Cell(Some(last.clone())))
                    }
                    _ => response,
                }
            }
            (Some(Plant::LastArrivalWins), StoreRequest::Replica(ReplicaRequest::ReadMeta { key })) => self
                .last
                .get(key)
                .map_or(response, |last| StoreResponse::Replica(ReplicaResponse::Meta(Some(last.meta)))),
            (Some(Plant::ReadBeforeSync), StoreRequest::Replica(ReplicaRequest::ReadMeta { key })) => {
                match (self.last.get(key), &response) {
                    (Some(last), StoreResponse::Replica(ReplicaResponse::Meta(Some(meta))))
                        if meta.rank() > last.meta.rank() =>
                    {
                        response
                    }
                    (Some(last), StoreResponse::Replica(ReplicaResponse::Meta(_))) => {
                        StoreResponse::Replica(ReplicaResponse::Meta(Some(last.meta)))
                    }
                    _ => response,
                }
            }
            (Some(Plant::FullPageIsLast), StoreRequest::ReadPage(page_request))
                if is_of_source(page_request) =>
            {
                match response {
                    StoreResponse::Replica(ReplicaResponse::Page { page, .. }) => {
                        StoreResponse::Replica(ReplicaResponse::Page { page, rest: None })
                    }
                    response => response,
                }
            }
            (Some(Plant::TombstonesShown), StoreRequest::ReadPage(_)) => match response {
                StoreResponse::Replica(ReplicaResponse::Page { page, rest }) => {
                    StoreResponse::Replica(ReplicaResponse::Page { page: without_tombstones(&page), rest })
                }
                response => response,
            },
            _ => response,
        }
    }

    /// Returns how many times this reply is sent: once, except with planted bugs.
    pub(crate) fn reply_count(&mut self, plant: Option<Plant>, reply: &Reply) -> u8 {
        self.was_busy |= matches!(
            reply,
            Reply::Failed(
                CommandFailure::Overloaded { .. }
                    | CommandFailure::NoMemory { .. }
                    | CommandFailure::ReplicasOverloaded { .. }
            )
        );
        const EVERY: u64 = 50;
        self.replies += 1;
        match plant {
            Some(Plant::TwoReplies) if self.replies.is_multiple_of(EVERY) => 2,
            Some(Plant::NoReply) if self.replies.is_multiple_of(EVERY) => 0,
            _ => 1,
        }
    }
}

/// Whether a page contains the cells of a source, in a scan of the cluster.
const fn is_of_source(page: &PageRequest) -> bool {
    matches!(page.content, PageContent::Cells { versions_only: false, .. })
}

/// A cut that is one or a few keys behind `cut`.
fn behind_next(cut: &Cut) -> Cut {
    let mut bytes = cut.key().as_bytes().to_vec();
    if let (Cut::After(_), Some(last)) = (cut, bytes.last_mut()) {
        *last = last.saturating_add(1);
    }
    Cut::After(Key::new(bytes.into()).expect("the length of a valid key"))
}

/// The page with empty values in place of tombstones.
fn without_tombstones(page: &Page) -> Page {
    let mut builder = PageBuilder::with_capacity(page.bytes().len());
    for entry in page.entries() {
        let meta = CellMeta { kind: CellKind::Value, ..entry.cell.meta };
        builder.push(entry.key, CellRef { meta, ..entry.cell });
    }
    builder.finish()
}

/// Outcome of a message that a state machine sends.
pub(crate) enum SendOutcome {
    /// The message is sent.
    Unchanged,
    /// The message is dropped, and the sender gets this answer.
    Answered(Box<PeerAnswer>),
    /// The message is sent, and also to this node.
    Duplicated(NodeIndex),
}

/// Lets a planted bug interfere with a message that is sent.
pub(crate) fn alter_send(
    plant: Option<Plant>,
    effect: &Effect,
    tag: NodeTag,
    layout: &Layout,
) -> SendOutcome {
    let (Some(plant), Effect::Send { message: Message::Request { request, .. }, .. }) = (plant, effect)
    else {
        return SendOutcome::Unchanged;
    };
    match (plant, request) {
        (Plant::HintLost, PeerRequest::Replica(ReplicaRequest::KeepHints { .. })) => {
            SendOutcome::Answered(Box::new(PeerAnswer::Replica(ReplicaResponse::HintsKept)))
        }
        (Plant::ReadRepairSkipped, PeerRequest::Replica(ReplicaRequest::Write { cell, .. }))
            if cell.meta.version.tag != tag =>
        {
            SendOutcome::Answered(Box::new(PeerAnswer::Replica(ReplicaResponse::Written {
                superseded: false,
            })))
        }
        (Plant::RepairSkipped, PeerRequest::Node(NodeRequest::Range(range))) if range.digest.is_some() => {
            SendOutcome::Answered(Box::new(PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Same))))
        }
        (Plant::RebuildSkipped, PeerRequest::Node(NodeRequest::Range(range))) if range.cells => {
            SendOutcome::Answered(Box::new(PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Cells {
                entries: Vec::new(),
                until: None,
            }))))
        }
        (Plant::ScanChecksIgnored, PeerRequest::Scan(ScanRequest { task: ScanTask::Check { .. }, .. })) => {
            SendOutcome::Answered(Box::new(PeerAnswer::Replica(ReplicaResponse::SamePage)))
        }
        (Plant::ExtraReplica, PeerRequest::Replica(ReplicaRequest::Write { key, cell, .. }))
            if cell.meta.version.tag == tag =>
        {
            let list = layout.replicas(key, layout.len());
            list.get(usize::from(cell.meta.from))
                .map_or(SendOutcome::Unchanged, |next| SendOutcome::Duplicated(*next))
        }
        _ => SendOutcome::Unchanged,
    }
}
