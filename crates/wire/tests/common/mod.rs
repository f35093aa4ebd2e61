//! Arbitrary messages, and their transport from an outbox to an inbox.
#![allow(dead_code, reason = "each test uses a part")]

use bytes::Bytes;
use cluster::{
    ChainRequest, ChainResponse, ChainVote, CopyAnswer, CopyObstacle, CopyProgress, CopyRequest, Cut,
    EncodedRecord, Generation, GenerationReport, HeartbeatPayload, Incarnation, Key, KeyRange, LayoutEpoch,
    LayoutStamp, Message, MessageId, NODES_MAX, NodeIndex, NodeRequest, NodeResponse, NodeSet, Page,
    PageBuilder, PeerAnswer, PeerRequest, PlanStatements, ProposalBallot, RangeAnswer, RangeDigest,
    RangeRequest, ReplicaFault, ReplicaRequest, ReplicaResponse, Requester, ScanLimit, ScanRequest,
    ScanRoles, ScanTask, SnapshotId, StoreFault, SwapSet, SyncState,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::num::NonZeroU8;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Hlc, Instant, NodeTag, Version, WallTime};
use wire::{
    Inbox, InboxLimits, Incoming, MESSAGE_BYTES_MAX, Outbox, OutboxLimits, PROTOCOL_VERSION, WireError,
};

pub(crate) const CLOCK: Hlc = Hlc::from_bits(0x0123_4567_89ab_cdef);

pub(crate) fn key(bytes: &[u8]) -> Key {
    Key::new(Bytes::copy_from_slice(bytes)).unwrap()
}

pub(crate) fn id(number: u64) -> MessageId {
    MessageId { incarnation: Incarnation(0xfeed), requester: Requester::Coordinator(1), number }
}

/// A write of a value of this length.
pub(crate) fn write(number: u64, value_len: usize) -> Message {
    write_in(LayoutEpoch::FIRST, number, value_len)
}

/// A write of a value of this length, which was planned in an epoch.
pub(crate) fn write_in(epoch: LayoutEpoch, number: u64, value_len: usize) -> Message {
    let value: Vec<u8> = (0..value_len).map(|i| (i as u64 * 31 + number) as u8).collect();
    let cell = Cell::value(Version::new(Hlc::from_bits(number), NodeTag(7)), 3, value.into());
    Message::Request {
        id: id(number),
        request: PeerRequest::Replica(ReplicaRequest::Write {
            key: key(b"key"),
            cell,
            hints: NodeSet::EMPTY,
        }),
        within: None,
        epoch,
    }
}

pub(crate) fn outbox() -> Outbox {
    Outbox::new(OutboxLimits { bytes_max: usize::MAX / 2 })
}

/// All bytes of `outbox`, in as many calls as needed.
pub(crate) fn drain(outbox: &mut Outbox, bytes_target: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while !outbox.is_empty() {
        outbox.fill(CLOCK, &mut out, bytes_target);
    }
    out
}

/// All messages as frames.
pub(crate) fn encode(messages: &[Message]) -> Vec<u8> {
    encode_in(PROTOCOL_VERSION, messages)
}

/// All messages as frames of this version of the protocol.
pub(crate) fn encode_in(version: u8, messages: &[Message]) -> Vec<u8> {
    let mut outbox = outbox().speaking(version);
    messages.iter().for_each(|message| outbox.push(message).unwrap());
    drain(&mut outbox, usize::MAX / 2)
}

/// All messages of `inbox`. Checks the clocks of their frames.
pub(crate) fn take_all(inbox: &mut Inbox) -> Result<Vec<Message>, WireError> {
    let mut messages = Vec::new();
    take_into(inbox, &mut messages)?;
    Ok(messages)
}

/// Like `take`, but keeps the messages before an error.
pub(crate) fn take_into(inbox: &mut Inbox, messages: &mut Vec<Message>) -> Result<(), WireError> {
    while let Some(incoming) = inbox.next()? {
        match incoming {
            Incoming::Clock(clock) => assert_eq!(clock, CLOCK),
            Incoming::Message(message) => messages.push(message),
        }
    }
    Ok(())
}

/// Decodes all messages of `bytes`.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Message>, WireError> {
    let mut inbox = Inbox::new(InboxLimits::default());
    inbox.feed(bytes);
    take_all(&mut inbox)
}

pub(crate) fn any_message() -> impl Strategy<Value = Message> {
    prop_oneof![
        (any_id(), any_request(), option::of(1..=u64::from(u32::MAX)), any_plan_epoch()).prop_map(
            |(id, request, millis, epoch)| {
                let epoch = if request.is_planned() { epoch } else { LayoutEpoch::FIRST };
                Message::Request { id, request, within: millis.map(Duration::from_millis), epoch }
            }
        ),
        (any_id(), any_answer()).prop_map(|(id, answer)| Message::Answer { id, answer }),
    ]
}

fn any_requester() -> impl Strategy<Value = Requester> {
    prop_oneof![Just(Requester::Node), any::<u8>().prop_map(Requester::Coordinator)]
}

fn any_id() -> impl Strategy<Value = MessageId> {
    (any::<u64>(), any_requester(), any::<u64>()).prop_map(|(incarnation, requester, number)| MessageId {
        incarnation: Incarnation(incarnation),
        requester,
        number,
    })
}

fn any_request() -> impl Strategy<Value = PeerRequest> {
    prop_oneof![
        any_key().prop_map(|key| PeerRequest::Replica(ReplicaRequest::Read { key })),
        any_key().prop_map(|key| PeerRequest::Replica(ReplicaRequest::ReadMeta { key })),
        (any_key(), any_cell(), any_nodes())
            .prop_map(|(key, cell, hints)| PeerRequest::Replica(ReplicaRequest::Write { key, cell, hints })),
        (any_key(), any_version(), any_nodes()).prop_map(|(key, version, targets)| PeerRequest::Replica(
            ReplicaRequest::KeepHints { key, version, targets }
        )),
        any_heartbeat_payload().prop_map(|payload| NodeRequest::Heartbeat(payload).into()),
        any_range_request().prop_map(|range| NodeRequest::Range(range).into()),
        any_scan_request().prop_map(PeerRequest::Scan),
        any_snapshot()
            .prop_map(|snapshot| PeerRequest::Replica(ReplicaRequest::EndSnapshot { id: snapshot })),
        any_chain_request().prop_map(|request| NodeRequest::Chain(request).into()),
        Just(NodeRequest::ReadLayout.into()),
        (0..NODES_MAX as u8, option::of(any_key())).prop_map(|(loser, after)| {
            NodeRequest::Copy(CopyRequest { loser: NodeIndex(loser), after }).into()
        }),
    ]
}

fn any_chain_request() -> impl Strategy<Value = ChainRequest<EncodedRecord>> {
    prop_oneof![
        (any_epoch(), any_ballot()).prop_map(|(epoch, ballot)| ChainRequest::Prepare { epoch, ballot }),
        any_vote().prop_map(ChainRequest::Accept),
        any_record().prop_map(ChainRequest::Learn),
    ]
}

fn any_chain_response() -> impl Strategy<Value = ChainResponse<EncodedRecord>> {
    prop_oneof![
        (any_epoch(), any_ballot(), option::of(any_vote()))
            .prop_map(|(epoch, ballot, accepted)| ChainResponse::Promised { epoch, ballot, accepted }),
        (any_epoch(), any_ballot()).prop_map(|(epoch, ballot)| ChainResponse::Accepted { epoch, ballot }),
        (any_epoch(), any_ballot(), any_ballot())
            .prop_map(|(epoch, ballot, promised)| ChainResponse::Rejected { epoch, ballot, promised }),
        any_record().prop_map(ChainResponse::Holds),
        any_epoch().prop_map(|epoch| ChainResponse::IsBehind { epoch }),
        any_epoch().prop_map(|epoch| ChainResponse::Refused { epoch }),
    ]
}

/// Few epochs, so that some requests in succession have the same one.
fn any_plan_epoch() -> impl Strategy<Value = LayoutEpoch> {
    (1..4u64).prop_map(LayoutEpoch)
}

fn any_epoch() -> impl Strategy<Value = LayoutEpoch> {
    any::<u64>().prop_map(LayoutEpoch)
}

fn any_ballot() -> impl Strategy<Value = ProposalBallot> {
    (0..=ProposalBallot::ROUND_MAX, any::<u64>(), any::<u64>()).prop_map(|(round, proposer, incarnation)| {
        ProposalBallot { round, proposer: NodeTag(proposer), incarnation: Incarnation(incarnation) }
    })
}

/// Bytes of a record, which need not be one: the node decodes them.
fn any_record() -> impl Strategy<Value = EncodedRecord> {
    let len = prop_oneof![6 => 0usize..300, 1 => 60_000usize..300_000];
    len.prop_map(|len| EncodedRecord(vec![5; len].into()))
}

fn any_vote() -> impl Strategy<Value = ChainVote<EncodedRecord>> {
    (any_ballot(), any_record()).prop_map(|(ballot, record)| ChainVote { ballot, record })
}

fn any_answer() -> impl Strategy<Value = PeerAnswer> {
    prop_oneof![
        option::of(any_cell()).prop_map(|cell| PeerAnswer::Replica(ReplicaResponse::Cell(cell))),
        option::of(any_meta()).prop_map(|meta| PeerAnswer::Replica(ReplicaResponse::Meta(meta))),
        any::<bool>().prop_map(|superseded| PeerAnswer::Replica(ReplicaResponse::Written { superseded })),
        Just(PeerAnswer::Replica(ReplicaResponse::HintsKept)),
        any_heartbeat_payload().prop_map(|payload| PeerAnswer::Node(NodeResponse::Heartbeat(payload))),
        Just(PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Same))),
        (vec((any_key(), any_meta()), 0..8), option::of(any_key())).prop_map(|(entries, until)| {
            PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Versions { entries, until }))
        }),
        (vec((any_key(), any_cell()), 0..8), option::of(any_key())).prop_map(|(entries, until)| {
            PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Cells { entries, until }))
        }),
        (any_page(), option::of(any_cut()))
            .prop_map(|(page, rest)| PeerAnswer::Replica(ReplicaResponse::Page { page, rest })),
        Just(PeerAnswer::Replica(ReplicaResponse::SamePage)),
        Just(PeerAnswer::Replica(ReplicaResponse::SnapshotEnded)),
        any_chain_response().prop_map(|response| PeerAnswer::Node(NodeResponse::Chain(response))),
        any_record().prop_map(|record| PeerAnswer::Node(NodeResponse::Layout(record))),
        (vec((any_key(), any_cell()), 0..8), option::of(any_key()), any::<u64>()).prop_map(
            |(entries, until, nanos)| {
                let pause = Duration::from_nanos(nanos);
                PeerAnswer::Node(NodeResponse::Copied(CopyAnswer { entries, until, pause }))
            }
        ),
        any_fault().prop_map(PeerAnswer::Failed),
    ]
}

fn any_fault() -> impl Strategy<Value = ReplicaFault> {
    prop_oneof![
        Just(ReplicaFault::Store(StoreFault::Full)),
        any::<u64>().prop_map(|nanos| {
            ReplicaFault::Store(StoreFault::Overloaded { retry_after: Duration::from_nanos(nanos) })
        }),
        ".{0,40}".prop_map(|detail| ReplicaFault::Store(StoreFault::Corrupt { detail })),
        ".{0,40}".prop_map(|detail| ReplicaFault::Store(StoreFault::Io { detail })),
        Just(ReplicaFault::NotReadEligible),
        any_wall().prop_map(|wall| ReplicaFault::ClockAhead { wall }),
        Just(ReplicaFault::Busy),
        Just(ReplicaFault::NotServing),
    ]
}

fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        8 => vec(any::<u8>(), 1..40).prop_map(|bytes| key(&bytes)),
        1 => Just(key(&[9; Key::LEN_MAX])),
    ]
}

fn any_cell() -> impl Strategy<Value = Cell> {
    let value = prop_oneof![
        6 => vec(any::<u8>(), 0..100),
        1 => (60_000usize..70_000).prop_map(|len| vec![3; len]),
        1 => (100_000usize..300_000).prop_map(|len| vec![4; len]),
    ];
    (any_meta(), value).prop_map(|(meta, value)| match meta.kind {
        CellKind::Value => Cell { meta, value: value.into() },
        CellKind::Tombstone => Cell { meta, value: Bytes::new() },
    })
}

fn any_meta() -> impl Strategy<Value = CellMeta> {
    let kind = prop_oneof![Just(CellKind::Value), Just(CellKind::Tombstone)];
    (any_version(), kind, option::of(any_wall()), 1u8..)
        .prop_map(|(version, kind, expires_at, from)| CellMeta { version, kind, expires_at, from })
}

fn any_version() -> impl Strategy<Value = Version> {
    any::<(u64, u64)>().prop_map(|(hlc, tag)| Version::new(Hlc::from_bits(hlc), NodeTag(tag)))
}

fn any_nodes() -> impl Strategy<Value = NodeSet> {
    any::<u64>().prop_map(NodeSet::from_bits)
}

fn any_wall() -> impl Strategy<Value = WallTime> {
    any::<u64>().prop_map(WallTime::from_micros_since_unix_epoch)
}

pub(crate) fn any_heartbeat_payload() -> impl Strategy<Value = HeartbeatPayload> {
    let sync_state =
        prop_oneof![Just(SyncState::Unsettled), Just(SyncState::Rebuilding), Just(SyncState::Settled)];
    let plain = any::<(u64, bool, bool, u64, bool, u8, bool)>();
    let now = option::of((1..u64::MAX, any::<u64>()));
    let remembered = option::of(any::<(u64, u64, u64)>());
    let stamp = (1..u64::MAX, any::<u64>())
        .prop_map(|(epoch, fingerprint)| LayoutStamp { epoch: LayoutEpoch(epoch), fingerprint });
    let obstacle = prop_oneof![
        Just(CopyObstacle::Fence),
        Just(CopyObstacle::NotReadEligible),
        Just(CopyObstacle::Purge),
        Just(CopyObstacle::DiskFull),
        Just(CopyObstacle::Stalled),
        Just(CopyObstacle::Store),
        (0..NODES_MAX as u8).prop_map(|slot| CopyObstacle::Source { node: NodeIndex(slot) }),
    ];
    let copying = (any::<u64>(), option::of(obstacle));
    let copying = option::of(copying.prop_map(|(bytes, obstacle)| CopyProgress { bytes, obstacle }));
    let stated = (any::<(u64, [u64; 4], bool)>(), copying);
    let stated = stated.prop_map(|((fenced, words, is_purging), copying)| PlanStatements {
        fenced: Some(LayoutEpoch(fenced)).filter(|epoch| epoch.0 > 0),
        complete: SwapSet::from_words(&words).expect("256 swaps"),
        is_purging,
        copying,
    });
    let layout = (option::of(stamp), any::<u32>(), stated);
    (plain, any_wall(), sync_state, option::of(any::<u64>()), now, remembered, layout).prop_map(
        |(plain, wall, sync_state, tag, now, remembered, (layout, feature_level_max, stated))| {
            let (sent, draining, disk_full, hints_for_you, repair_pending, default_from, votes_forgotten) =
                plain;
            HeartbeatPayload {
                sent: Instant::from_nanos(sent),
                wall,
                sync_state,
                draining,
                disk_full,
                hints_for_you,
                repair_pending,
                remembered_tag_of_you: tag.map(NodeTag),
                remembered_generation_of_you: remembered.map(|(number, incarnation, bound)| Generation {
                    number,
                    incarnation: Incarnation(incarnation),
                    clock: Hlc::from_bits(bound),
                }),
                generation: now
                    .map(|(number, bound)| GenerationReport { number, clock: Hlc::from_bits(bound) }),
                default_from: NonZeroU8::new(default_from),
                feature_level_max: layout.map_or(0, |_| feature_level_max),
                plan: layout.map(|_| stated).unwrap_or_default(),
                layout,
                votes_forgotten,
            }
        },
    )
}

fn any_range_request() -> impl Strategy<Value = RangeRequest> {
    let digest = any::<(u64, u64)>().prop_map(|(keys, sum)| RangeDigest { keys, sum });
    (option::of(any_key()), option::of(any_key()), any::<u64>(), option::of(digest), any::<bool>()).prop_map(
        |(after, until, cutoff, digest, cells)| RangeRequest {
            after,
            until,
            cutoff: Hlc::from_bits(cutoff),
            digest,
            cells,
        },
    )
}

/// The page of these entries.
pub(crate) fn page_of(entries: &[(Key, Cell)]) -> Page {
    let mut builder = PageBuilder::with_capacity(0);
    entries.iter().for_each(|(key, cell)| builder.push(key.as_bytes(), cell.as_ref()));
    builder.finish()
}

fn any_page() -> impl Strategy<Value = Page> {
    vec((any_key(), any_cell()), 0..8).prop_map(|mut entries| {
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        entries.dedup_by(|(a, _), (b, _)| a == b);
        page_of(&entries)
    })
}

fn any_snapshot() -> impl Strategy<Value = SnapshotId> {
    (any::<u64>(), any_requester(), any::<u64>()).prop_map(|(incarnation, requester, number)| SnapshotId {
        incarnation: Incarnation(incarnation),
        requester,
        number,
    })
}

fn any_cut() -> impl Strategy<Value = Cut> {
    (any_key(), any::<bool>())
        .prop_map(|(key, is_before)| if is_before { Cut::Before(key) } else { Cut::After(key) })
}

fn any_key_range() -> impl Strategy<Value = KeyRange> {
    (option::of(any_cut()), option::of(any_cut())).prop_map(|(from, to)| match (&from, &to) {
        (Some(first), Some(last)) if first > last => KeyRange { from: to, to: from },
        _ => KeyRange { from, to },
    })
}

fn any_roles() -> impl Strategy<Value = ScanRoles> {
    let nodes: Vec<_> = (0..NODES_MAX as u8).map(NodeIndex).collect();
    let order = prop::sample::subsequence(nodes, 0..=NODES_MAX).prop_shuffle();
    let quorum = (1..=NODES_MAX as u8).prop_flat_map(|from| (1..=from, Just(from)));
    (order, quorum).prop_map(|(order, (ack, from))| ScanRoles { order, ack, from })
}

fn any_scan_task() -> impl Strategy<Value = ScanTask> {
    prop_oneof![
        (0..=u32::MAX as usize, 0..=MESSAGE_BYTES_MAX)
            .prop_map(|(entries, bytes)| ScanTask::Cells { limit: ScanLimit { entries, bytes } }),
        any::<(u64, u64)>().prop_map(|(keys, sum)| ScanTask::Check { digest: RangeDigest { keys, sum } }),
    ]
}

fn any_scan_request() -> impl Strategy<Value = ScanRequest> {
    (any_snapshot(), any_key_range(), any_roles(), any_wall(), any_wall(), any_scan_task()).prop_map(
        |(snapshot, range, roles, at, dead_since, task)| ScanRequest {
            snapshot,
            range,
            roles,
            at,
            dead_since,
            task,
        },
    )
}

pub(crate) fn version(number: u64) -> Version {
    Version::new(Hlc::from_bits(0x1112_1314_1516_1700 + number), NodeTag(0x2122_2324_2526_2728))
}

pub(crate) fn wall(micros: u64) -> WallTime {
    WallTime::from_micros_since_unix_epoch(micros)
}

fn ballot(round: u64) -> ProposalBallot {
    ProposalBallot { round, proposer: NodeTag(0x0a1a_2a3a), incarnation: Incarnation(0x4a5a_6a7a) }
}

fn record() -> EncodedRecord {
    EncodedRecord(Bytes::from_static(b"a layout record"))
}

/// The requests of the agreement on layout records, since version 4.
pub(crate) fn layout_requests() -> Vec<PeerRequest> {
    let chain = [
        ChainRequest::Prepare { epoch: LayoutEpoch(0x0b1b), ballot: ballot(0x2b3b) },
        ChainRequest::Accept(ChainVote { ballot: ballot(0x4b5b), record: record() }),
        ChainRequest::Learn(record()),
    ];
    let read = NodeRequest::ReadLayout.into();
    chain.into_iter().map(|request| NodeRequest::Chain(request).into()).chain([read]).collect()
}

/// The answers of the agreement on layout records, since version 4.
pub(crate) fn layout_answers() -> Vec<PeerAnswer> {
    let epoch = LayoutEpoch(0x0c1c);
    let chain = [
        ChainResponse::Promised { epoch, ballot: ballot(0x2c3c), accepted: None },
        ChainResponse::Promised {
            epoch,
            ballot: ballot(0x4c5c),
            accepted: Some(ChainVote { ballot: ballot(0x6c7c), record: record() }),
        },
        ChainResponse::Accepted { epoch, ballot: ballot(0x8c9c) },
        ChainResponse::Rejected { epoch, ballot: ballot(0xac), promised: ballot(0xbc) },
        ChainResponse::Holds(record()),
        ChainResponse::IsBehind { epoch },
        ChainResponse::Refused { epoch },
    ];
    let read = PeerAnswer::Node(NodeResponse::Layout(record()));
    chain.into_iter().map(|it| PeerAnswer::Node(NodeResponse::Chain(it))).chain([read]).collect()
}

/// The requests of a gaining node, since version 5.
pub(crate) fn copy_requests() -> Vec<PeerRequest> {
    let request = |after| NodeRequest::Copy(CopyRequest { loser: NodeIndex(63), after }).into();
    vec![request(None), request(Some(key(b"r")))]
}

/// The answers to a gaining node, since version 5.
pub(crate) fn copy_answers() -> Vec<PeerAnswer> {
    let live = Cell::value(version(9), 3, Bytes::from_static(b"moved"));
    let entries = vec![(key(b"s"), live), (key(b"t"), Cell::tombstone(version(10), 3))];
    let answer = |answer| PeerAnswer::Node(NodeResponse::Copied(answer));
    vec![
        answer(CopyAnswer { entries, until: Some(key(b"u")), pause: Duration::from_nanos(0x0d1d_2d3d) }),
        answer(CopyAnswer { entries: Vec::new(), until: None, pause: Duration::ZERO }),
    ]
}

/// A request of each kind but heartbeats and those since version 4, in each of its forms.
pub(crate) fn requests() -> Vec<PeerRequest> {
    let expiring = CellMeta { expires_at: Some(wall(0x6162_6364)), ..CellMeta::value(version(1), 3) };
    let cell = Cell { meta: expiring, value: Bytes::from_static(b"value") };
    vec![
        PeerRequest::Replica(ReplicaRequest::Read { key: key(b"a") }),
        PeerRequest::Replica(ReplicaRequest::ReadMeta { key: key(b"b") }),
        PeerRequest::Replica(ReplicaRequest::Write {
            key: key(b"c"),
            cell,
            hints: NodeSet::from_bits(0b110),
        }),
        PeerRequest::Replica(ReplicaRequest::Write {
            key: key(b"d"),
            cell: Cell::tombstone(version(2), 2),
            hints: NodeSet::EMPTY,
        }),
        PeerRequest::Replica(ReplicaRequest::KeepHints {
            key: key(b"e"),
            version: version(3),
            targets: NodeSet::first(64),
        }),
        PeerRequest::Node(NodeRequest::Range(RangeRequest {
            after: Some(key(b"f")),
            until: None,
            cutoff: Hlc::from_bits(0x7172_7374),
            digest: Some(RangeDigest { keys: 0x8182, sum: 0x9192_9394 }),
            cells: false,
        })),
        PeerRequest::Node(NodeRequest::Range(RangeRequest {
            after: None,
            until: Some(key(b"g")),
            cutoff: Hlc::MAX,
            digest: None,
            cells: true,
        })),
        PeerRequest::Scan(scan(
            KeyRange { from: Some(Cut::Before(key(b"l"))), to: Some(Cut::After(key(b"m"))) },
            ScanTask::Cells { limit: ScanLimit { entries: 0x0102, bytes: 0x0304 } },
        )),
        PeerRequest::Scan(scan(
            KeyRange::default(),
            ScanTask::Check { digest: RangeDigest { keys: 0x0506, sum: 0x0708_090a } },
        )),
        PeerRequest::Replica(ReplicaRequest::EndSnapshot { id: snapshot() }),
    ]
}

fn snapshot() -> SnapshotId {
    SnapshotId { incarnation: Incarnation(0xb1b2_b3b4), requester: Requester::Coordinator(2), number: 0xc1c2 }
}

fn scan(range: KeyRange, task: ScanTask) -> ScanRequest {
    let roles = ScanRoles { order: vec![NodeIndex(2), NodeIndex(0), NodeIndex(63)], ack: 2, from: 3 };
    let (at, dead_since) = (wall(0xd1d2_d3d4), wall(0xe1e2));
    ScanRequest { snapshot: snapshot(), range, roles, at, dead_since, task }
}

/// An answer of each kind but heartbeats and those since version 4, in each of its forms.
pub(crate) fn answers() -> Vec<PeerAnswer> {
    let dead =
        CellMeta { kind: CellKind::Tombstone, expires_at: Some(wall(7)), ..CellMeta::value(version(4), 1) };
    let live = Cell::value(version(5), 5, Bytes::from_static(b"live"));
    let detail = "a file is däm\u{e4}ged".to_owned();
    let mut answers = vec![
        PeerAnswer::Replica(ReplicaResponse::Cell(None)),
        PeerAnswer::Replica(ReplicaResponse::Cell(Some(live.clone()))),
        PeerAnswer::Replica(ReplicaResponse::Meta(None)),
        PeerAnswer::Replica(ReplicaResponse::Meta(Some(dead))),
        PeerAnswer::Replica(ReplicaResponse::Written { superseded: false }),
        PeerAnswer::Replica(ReplicaResponse::Written { superseded: true }),
        PeerAnswer::Replica(ReplicaResponse::HintsKept),
        PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Same)),
        PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Versions {
            entries: vec![(key(b"h"), dead), (key(b"i"), live.meta)],
            until: Some(key(b"i")),
        })),
        PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Cells {
            entries: vec![(key(b"j"), live.clone()), (key(b"k"), Cell::tombstone(version(6), 2))],
            until: None,
        })),
    ];
    let expiring = CellMeta { expires_at: Some(wall(8)), ..live.meta };
    let page = page_of(&[
        (key(b"n"), live),
        (key(b"o\n"), Cell { meta: dead, value: Bytes::new() }),
        (key(b"p"), Cell { meta: expiring, value: Bytes::from_static(b"\n") }),
    ]);
    answers.extend([
        PeerAnswer::Replica(ReplicaResponse::Page { page, rest: Some(Cut::After(key(b"q"))) }),
        PeerAnswer::Replica(ReplicaResponse::Page { page: page_of(&[]), rest: None }),
        PeerAnswer::Replica(ReplicaResponse::SamePage),
        PeerAnswer::Replica(ReplicaResponse::SnapshotEnded),
    ]);
    let faults = [
        ReplicaFault::Store(StoreFault::Full),
        ReplicaFault::Store(StoreFault::Overloaded { retry_after: Duration::from_millis(1_500) }),
        ReplicaFault::Store(StoreFault::Corrupt { detail: detail.clone() }),
        ReplicaFault::Store(StoreFault::Io { detail }),
        ReplicaFault::NotReadEligible,
        ReplicaFault::ClockAhead { wall: wall(0xa1a2_a3a4) },
        ReplicaFault::Busy,
        ReplicaFault::NotServing,
    ];
    answers.extend(faults.map(PeerAnswer::Failed));
    answers
}
