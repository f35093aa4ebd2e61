//! Messages arrive whole, in order and within the limits, or not at all.

mod common;

use bytes::Bytes;
use cluster::{
    Cut, HeartbeatPayload, Key, Message, NodeRequest, NodeResponse, Page, PeerAnswer, PeerRequest,
    PlanStatements, ReplicaFault, ReplicaResponse, StoreFault, SyncState, VALUE_BYTES_MAX_DEFAULT,
};
use common::{
    any_heartbeat_payload, any_message, decode, drain, encode, id, key, outbox, page_of, take_all, take_into,
    write,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;
use stdx::{Cell, CellMeta, Hlc, Instant, NodeTag, Version, WallTime};
use wire::{
    FRAGMENTED_MAX, FRAME_HEADER_LEN, FRAME_PAYLOAD_MAX, Inbox, InboxLimits, MESSAGE_BYTES_MAX, Outbox,
    OutboxLimits, PushError, PushOutcome, WireError,
};

/// A length above which messages are sent in fragments, and may be overtaken.
const SURELY_LONG: usize = 66_000;

fn heartbeat_payload(hints_for_you: u64) -> HeartbeatPayload {
    HeartbeatPayload {
        sent: Instant::ZERO,
        wall: WallTime::EPOCH_2020,
        sync_state: SyncState::Settled,
        draining: false,
        disk_full: false,
        hints_for_you,
        repair_pending: false,
        remembered_tag_of_you: None,
        remembered_generation_of_you: None,
        generation: None,
        default_from: None,
        layout: None,
        votes_forgotten: false,
        feature_level_max: 0,
        plan: PlanStatements::default(),
    }
}

fn heartbeat(number: u64) -> Message {
    Message::Request {
        id: id(number),
        request: PeerRequest::Node(NodeRequest::Heartbeat(heartbeat_payload(number))),
        within: None,
        epoch: cluster::LayoutEpoch::FIRST,
    }
}

fn sorted(mut messages: Vec<Message>) -> Vec<Message> {
    messages.sort_by_cached_key(|message| format!("{message:?}"));
    messages
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_message_arrives_as_it_was(message in any_message()) {
        prop_assert_eq!(decode(&encode(std::slice::from_ref(&message))), Ok(vec![message]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn all_messages_arrive_in_any_pieces(
        messages in vec(any_message(), 1..12),
        bytes_target in 1usize..200_000,
        piece in 1usize..100_000,
    ) {
        let mut outbox = outbox();
        messages.iter().for_each(|message| outbox.push(message).unwrap());
        let mut inbox = Inbox::new(InboxLimits::default());
        let mut arrived = Vec::new();
        for bytes in drain(&mut outbox, bytes_target).chunks(piece) {
            inbox.feed(bytes);
            take_into(&mut inbox, &mut arrived).unwrap();
        }
        prop_assert_eq!(outbox.bytes(), 0);
        prop_assert_eq!(sorted(arrived), sorted(messages));
    }

    #[test]
    fn arbitrary_bytes_are_messages_or_an_error(bytes in vec(any::<u8>(), 0..400)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn a_changed_payload_with_a_correct_checksum_is_messages_or_an_error(
        message in any_message(),
        at: prop::sample::Index,
        byte: u8,
    ) {
        let mut bytes = encode(&[message]);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        reseal(&mut bytes);
        let mut inbox = Inbox::new(InboxLimits::default());
        inbox.feed(&bytes);
        while let Ok(Some(_)) = inbox.next() {}
    }

    #[test]
    fn heartbeats_in_any_state_arrive(heartbeat_payload in any_heartbeat_payload()) {
        let message = Message::Answer { id: id(1), answer: PeerAnswer::Node(NodeResponse::Heartbeat(heartbeat_payload)) };
        prop_assert_eq!(decode(&encode(std::slice::from_ref(&message))), Ok(vec![message]));
    }
}

/// Writes the correct checksum into each frame of `bytes`, as far as they are frames.
fn reseal(bytes: &mut [u8]) {
    let mut rest = bytes;
    while rest.len() >= FRAME_HEADER_LEN {
        let len = FRAME_HEADER_LEN + u32::from_le_bytes(rest[16..20].try_into().unwrap()) as usize;
        if rest.len() < len {
            return;
        }
        let crc = crc_fast::crc32_iscsi(&rest[4..len]).to_le_bytes();
        rest[..4].copy_from_slice(&crc);
        rest = &mut rest[len..];
    }
}

#[test]
fn a_cut_anywhere_changes_nothing() {
    let messages = [write(1, 10), heartbeat(2), write(3, 0), write(4, SURELY_LONG)];
    let bytes = encode(&messages);
    let near_the_frames = (0..400).chain((bytes.len() - 1_100..bytes.len()).step_by(7));
    for cut in near_the_frames {
        let mut inbox = Inbox::new(InboxLimits::default());
        let mut arrived = Vec::new();
        for piece in [&bytes[..cut], &bytes[cut..]] {
            inbox.feed(piece);
            take_into(&mut inbox, &mut arrived).unwrap();
        }
        assert_eq!(sorted(arrived), sorted(messages.to_vec()), "cut at {cut}");
    }
}

#[test]
fn a_flipped_bit_is_detected_and_nothing_behind_it_is_returned() {
    let messages = [write(1, 10), heartbeat(2), write(3, 30)];
    let mut bytes = Vec::new();
    messages.iter().for_each(|message| bytes.extend(encode(std::slice::from_ref(message))));
    let end = bytes.len();
    // A length that was increased is detected when the bytes are there that it requires.
    bytes.extend(encode(&[write(4, 40_000)]));
    bytes.extend(encode(&[write(5, 40_000)]));
    for bit in 0..end * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let mut inbox = Inbox::new(InboxLimits::default());
        let mut arrived = Vec::new();
        inbox.feed(&flipped);
        let error = take_into(&mut inbox, &mut arrived).expect_err("a flipped bit passed");
        assert!(messages.starts_with(&arrived), "bit {bit} changed what arrived");
        assert_eq!(inbox.next(), Err(error), "the error is repeated");
    }
}

#[test]
fn every_prefix_of_a_stream_waits_for_more_bytes() {
    let bytes = encode(&[write(1, 200), heartbeat(2)]);
    for end in 0..bytes.len() {
        assert_eq!(decode(&bytes[..end]), Ok(vec![]), "{end}");
    }
}

#[test]
fn heartbeats_overtake_all_waiting_messages() {
    let mut outbox = outbox();
    outbox.push(&write(1, 1_000_000)).unwrap();
    (2..500).for_each(|number| outbox.push(&write(number, 1_000)).unwrap());
    let mut bytes = Vec::new();
    outbox.fill(common::CLOCK, &mut bytes, 1);
    outbox.push(&heartbeat(500)).unwrap();
    let begin = bytes.len();
    outbox.fill(common::CLOCK, &mut bytes, 1);
    assert_eq!(decode(&bytes[begin..]).unwrap()[0], heartbeat(500));
}

#[test]
fn short_messages_are_sent_between_the_fragments_of_long_ones() {
    let mut outbox = outbox();
    outbox.push(&write(1, 1_000_000)).unwrap();
    outbox.push(&write(2, 100_000)).unwrap();
    outbox.push(&write(3, 10)).unwrap();
    let mut inbox = Inbox::new(InboxLimits::default());
    inbox.feed(&drain(&mut outbox, 1));
    assert_eq!(take_all(&mut inbox), Ok(vec![write(3, 10), write(2, 100_000), write(1, 1_000_000)]));
}

#[test]
fn a_stream_of_short_messages_does_not_starve_a_long_one() {
    let mut outbox = outbox();
    outbox.push(&write(0, 1_000_000)).unwrap();
    let mut inbox = Inbox::new(InboxLimits::default());
    let mut arrived = Vec::new();
    let fills = (1..1_000).take_while(|number| {
        outbox.push(&write(*number, 1_000)).unwrap();
        let mut bytes = Vec::new();
        outbox.fill(common::CLOCK, &mut bytes, 1);
        inbox.feed(&bytes);
        take_into(&mut inbox, &mut arrived).unwrap();
        !arrived.contains(&write(0, 1_000_000))
    });
    assert!(fills.count() < 40);
}

#[test]
fn many_long_messages_stay_within_the_limits_of_the_receiver() {
    let lengths = [30 << 20, 30 << 20, 30 << 20, 100_000, 200_000, 300_000, 400_000, 64 << 20, 500_000];
    let messages: Vec<Message> = (0..).zip(lengths).map(|(number, len)| write(number, len)).collect();
    assert!(lengths.len() > FRAGMENTED_MAX && lengths.iter().sum::<usize>() > MESSAGE_BYTES_MAX);
    let mut outbox = outbox();
    messages.iter().for_each(|message| outbox.push(message).unwrap());
    let mut inbox = Inbox::new(InboxLimits::default());
    let (mut arrived, mut bytes) = (Vec::new(), Vec::new());
    while !outbox.is_empty() {
        bytes.clear();
        outbox.fill(common::CLOCK, &mut bytes, 256 << 10);
        assert!(bytes.len() <= (256 << 10) + FRAME_HEADER_LEN + FRAME_PAYLOAD_MAX);
        inbox.feed(&bytes);
        take_into(&mut inbox, &mut arrived).unwrap();
    }
    let number = |message: &Message| match message {
        Message::Request { id, .. } | Message::Answer { id, .. } => id.number,
    };
    arrived.sort_by_key(number);
    assert!(arrived == messages);
}

#[test]
fn a_full_outbox_still_accepts_heartbeats() {
    let mut outbox = Outbox::new(OutboxLimits { bytes_max: 10_000 });
    let taken = (0..).take_while(|number| outbox.push(&write(*number, 1_000)).is_ok()).count();
    assert!((8..10).contains(&taken) && outbox.bytes() <= 10_000);
    assert_eq!(outbox.push(&write(99, 100_000)), Err(PushError::Full));
    let heartbeats = (0..1_000).take_while(|number| outbox.push(&heartbeat(*number)).is_ok()).count();
    assert!((10..100).contains(&heartbeats));
    assert_eq!(decode(&drain(&mut outbox, 1)).unwrap().len(), taken + heartbeats);
    assert_eq!(outbox.push(&write(1, 100_000)), Ok(()), "one message has room, however long");
    assert_eq!(outbox.push(&write(1, 1)), Err(PushError::Full));
    assert_eq!(
        Outbox::new(OutboxLimits { bytes_max: usize::MAX }).push(&write(1, MESSAGE_BYTES_MAX)),
        Err(PushError::TooLong)
    );
}

#[test]
fn a_host_may_limit_an_outbox_and_an_inbox_further() {
    let mut outbox = outbox();
    assert_eq!(outbox.push_if(&write(1, 100_000), |bytes| bytes > 1_000_000), Err(PushError::Full));
    assert_eq!(outbox.bytes(), 0);
    let lens = [100_000, 200_000, 10, 300_000];
    for (number, len) in (0..).zip(lens) {
        let waits = outbox.bytes();
        let message = write(number, len);
        outbox.push_if(&message, |bytes| (waits + len..waits + len + 1_000).contains(&bytes)).unwrap();
    }
    let mut inbox = Inbox::new(InboxLimits::default());
    let mut arrived = Vec::new();
    for piece in drain(&mut outbox, 1).chunks(10_000) {
        inbox.feed(piece);
        while let Some(came) = inbox.next_if(|bytes| bytes < 350_000).unwrap() {
            arrived.extend(match came {
                wire::Incoming::Message(message) => Some(message),
                wire::Incoming::Clock(_) => None,
            });
        }
        assert!(inbox.fragmented_bytes() < 350_000);
    }
    let expected = [write(0, 100_000), write(1, 200_000), write(2, 10)];
    assert_eq!(
        sorted(arrived),
        sorted(expected.to_vec()),
        "what had no room is passed over, the rest is whole"
    );
    assert_eq!(inbox.fragmented_bytes(), 0);
}

#[test]
fn the_text_of_a_fault_is_truncated_to_its_limit() {
    let detail = "ü".repeat(5_000);
    let fault = PeerAnswer::Failed(ReplicaFault::Store(StoreFault::Io { detail }));
    let arrived = decode(&encode(&[Message::Answer { id: id(1), answer: fault }])).unwrap();
    let Message::Answer {
        answer: PeerAnswer::Failed(ReplicaFault::Store(StoreFault::Io { detail })), ..
    } = &arrived[0]
    else {
        panic!("{arrived:?}");
    };
    assert_eq!(*detail, "ü".repeat(512));
}

/// Only the node whose clients hold the memory can wait for it.
#[test]
fn a_peer_without_memory_counts_as_overloaded() {
    let retry_after = Duration::from_millis(1_500);
    let fault = |fault| PeerAnswer::Failed(ReplicaFault::Store(fault));
    let answer = fault(StoreFault::NoMemory { retry_after });
    let arrived = decode(&encode(&[Message::Answer { id: id(1), answer }])).unwrap();
    let answer = fault(StoreFault::Overloaded { retry_after });
    assert_eq!(arrived, [Message::Answer { id: id(1), answer }]);
}

#[test]
fn fragments_that_do_not_fit_are_refused() {
    let long = encode(&[write(1, 200_000)]);
    let first = &long[..FRAME_HEADER_LEN + FRAME_PAYLOAD_MAX];
    let twice = [first, first].concat();
    assert_eq!(decode(&twice), Err(WireError::Fragment), "a fragment came twice");
    let second = &long[first.len()..];
    assert_eq!(decode(second), Err(WireError::Fragment), "the first one is missing");
    let mut inbox = Inbox::new(InboxLimits { fragmented_bytes_max: 100_000 });
    inbox.feed(first);
    assert!(matches!(inbox.next(), Err(WireError::MessageLength { bytes: 200_000.. })));
    let mut many = Vec::new();
    for stream in 0..=FRAGMENTED_MAX as u32 {
        let begin = many.len();
        many.extend_from_slice(first);
        many[begin + FRAME_HEADER_LEN..begin + FRAME_HEADER_LEN + 4].copy_from_slice(&stream.to_le_bytes());
    }
    reseal(&mut many);
    assert_eq!(decode(&many), Err(WireError::TooManyFragmented));
}

#[test]
fn frames_of_another_kind_or_version_are_reported() {
    let bytes = encode(&[write(1, 10)]);
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        reseal(&mut bytes);
        decode(&bytes)
    };
    assert!(matches!(with(4, b'x'), Err(WireError::Magic { .. })));
    let next = wire::PROTOCOL_VERSION + 1;
    assert_eq!(with(6, next), Err(WireError::Version { found: next }));
    assert_eq!(with(7, 9), Err(WireError::FrameKind { kind: 9 }));
    assert_eq!(
        with(18, 2),
        Err(WireError::FrameLength { bytes: bytes.len() - FRAME_HEADER_LEN + (2 << 16) })
    );
    assert_eq!(with(FRAME_HEADER_LEN + 4, 0x77), Err(WireError::MessageKind { kind: 0x77 }));
}

fn page_answer(page: Page, rest: Option<Cut>) -> Message {
    Message::Answer { id: id(1), answer: PeerAnswer::Replica(ReplicaResponse::Page { page, rest }) }
}

/// A page of values with these lengths under ascending keys.
fn page_with(value_lens: &[usize]) -> Page {
    let version = Version::new(Hlc::from_bits(1), NodeTag(7));
    let entry = |(at, len): (u32, &usize)| {
        (key(&at.to_be_bytes()), Cell::value(version, 3, Bytes::from(vec![at as u8; *len])))
    };
    page_of(&(0..).zip(value_lens).map(entry).collect::<Vec<_>>())
}

#[test]
fn a_page_of_the_largest_entry_arrives() {
    let largest = Cell::value(Version::MAX, 64, Bytes::from(vec![5; VALUE_BYTES_MAX_DEFAULT]));
    let key = key(&[0xff; Key::LEN_MAX]);
    let rest = Some(Cut::After(key.clone()));
    let message = page_answer(page_of(&[(key, largest)]), rest);
    let arrived = decode(&encode(std::slice::from_ref(&message))).unwrap().remove(0);
    assert!(arrived == message);
}

#[test]
fn pages_of_about_the_length_of_a_frame_arrive() {
    for around in [FRAME_PAYLOAD_MAX - 200, FRAME_PAYLOAD_MAX, 2 * FRAME_PAYLOAD_MAX - 100] {
        for len in (around..around + 200).step_by(7) {
            let message = page_answer(page_with(&[0, 10, len]), None);
            assert!(decode(&encode(std::slice::from_ref(&message))) == Ok(vec![message]), "{len}");
        }
    }
    let many = page_answer(page_with(&[3; 20_000]), None);
    assert!(decode(&encode(std::slice::from_ref(&many))) == Ok(vec![many]));
}

/// Decodes a message whose encoding has `replacement` at the offset `at` behind its kind and id.
fn decode_with(message: &Message, at: usize, replacement: &[u8]) -> Result<Vec<Message>, WireError> {
    const FIELDS_AT: usize = FRAME_HEADER_LEN + 4 + 19;
    let mut bytes = encode(std::slice::from_ref(message));
    bytes[FIELDS_AT + at..][..replacement.len()].copy_from_slice(replacement);
    reseal(&mut bytes);
    decode(&bytes)
}

#[test]
fn inconsistent_pages_are_refused() {
    // 1: no cut; 4: count; then for each entry 1, 1, 16, 2: length of the key, 4: length of the
    // value; `key \n value`.
    let message = page_answer(page_with(&[1, 1]), None);
    let field = |at, replacement: &[u8]| match decode_with(&message, at, replacement) {
        Err(WireError::Field { field }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(0, &[3]), "side of a cut");
    assert_eq!(field(1, &u32::MAX.to_le_bytes()), "count of entries");
    assert_eq!(field(1, &[1]), "page", "heads of one entry, bytes of two");
    assert_eq!(field(5, &[4]), "kind of cell");
    assert_eq!(field(5, &[1]), "page", "a tombstone with a value");
    assert_eq!(field(6, &[0]), "count of replicas");
    assert_eq!(field(23, &[0, 0]), "page", "an empty key");
    assert_eq!(field(23, &[0xff; 2]), "page");
    assert_eq!(field(25, &[0xff; 4]), "page");
    assert_eq!(field(53 + 6, &[0, 0, 0, 0]), "page", "keys that do not ascend");
}

#[test]
fn invalid_scans_are_refused() {
    use cluster::{
        Incarnation, KeyRange, NodeIndex, Requester, ScanLimit, ScanRequest, ScanRoles, ScanTask, SnapshotId,
    };
    let request = ScanRequest {
        snapshot: SnapshotId { incarnation: Incarnation(1), requester: Requester::Node, number: 2 },
        range: KeyRange { from: Some(Cut::Before(key(b"b"))), to: Some(Cut::Before(key(b"b"))) },
        roles: ScanRoles { order: vec![NodeIndex(0), NodeIndex(1)], ack: 2, from: 2 },
        at: WallTime::EPOCH_2020,
        dead_since: WallTime::EPOCH_2020,
        task: ScanTask::Cells { limit: ScanLimit { entries: usize::MAX, bytes: usize::MAX } },
    };
    let message = Message::Request {
        id: id(1),
        request: PeerRequest::Scan(request.clone()),
        within: None,
        epoch: cluster::LayoutEpoch::FIRST,
    };
    // 4: the time left; then, counted from here, 18: snapshot; twice 1, 2, 1: a cut; 1: ack; 1:
    // from; 1: count; 2: nodes; 8; 8; 1: part; 4; 4.
    let field = |at: usize, replacement: &[u8]| match decode_with(&message, 4 + at, replacement) {
        Err(WireError::Field { field }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(8, &[0xff, 0xff]), "requester");
    assert_eq!(field(18, &[3]), "side of a cut");
    assert_eq!(field(18, &[2]), "range", "it ends before it begins");
    assert_eq!(field(19, &[0, 0]), "key");
    for quorum in [[0, 2], [3, 2], [2, 65], [0, 0]] {
        assert_eq!(field(26, &quorum), "roles of a scan", "{quorum:?}");
    }
    for nodes in [[1, 1], [64, 0], [0, 255]] {
        assert_eq!(field(29, &nodes), "roles of a scan", "{nodes:?}");
    }
    assert_eq!(field(47, &[2]), "task of a scan");
    assert_eq!(field(55, &[0x05]), "limit of a page");
    assert!(matches!(decode_with(&message, 4 + 28, &[0xff]), Err(WireError::Truncated)));

    let arrived = decode(&encode(&[message])).unwrap().remove(0);
    let Message::Request { request: PeerRequest::Scan(arrived), .. } = arrived else {
        panic!("another message arrived");
    };
    let limit = ScanLimit { entries: u32::MAX as usize, bytes: MESSAGE_BYTES_MAX };
    let expected = ScanRequest { task: ScanTask::Cells { limit }, ..request };
    assert_eq!(arrived, expected, "an unlimited bound arrives as the greatest one");
}

#[test]
fn an_answer_that_does_not_fit_becomes_a_refusal_and_an_acknowledgement_does_not() {
    let answer = |number, answer| Message::Answer { id: id(number), answer };
    let cell = |len: usize| {
        let meta = CellMeta::value(Version::new(Hlc::from_bits(1), NodeTag(1)), 3);
        PeerAnswer::Replica(ReplicaResponse::Cell(Some(Cell { meta, value: vec![7; len].into() })))
    };
    let mut outbox = Outbox::new(OutboxLimits { bytes_max: 200_000 });
    let first = answer(1, cell(150_000));
    assert_eq!(outbox.push_or_refuse(&first, |_| true), Ok(PushOutcome::Whole));
    let second = answer(2, cell(100_000));
    assert_eq!(outbox.push_or_refuse(&second, |_| true), Ok(PushOutcome::Refusal), "the outbox is full");
    let third = answer(3, cell(100));
    assert_eq!(outbox.push_or_refuse(&third, |_| false), Ok(PushOutcome::Refusal), "the host has no room");
    let stored = answer(4, PeerAnswer::Replica(ReplicaResponse::Written { superseded: false }));
    assert_eq!(
        outbox.push_or_refuse(&stored, |_| false),
        Err(PushError::Full),
        "an acknowledgement has no refusal"
    );
    let busy = |number| answer(number, PeerAnswer::Failed(ReplicaFault::Busy));
    let arrived = decode(&drain(&mut outbox, 1)).expect("whole");
    assert_eq!(sorted(arrived), sorted(vec![first, busy(2), busy(3)]));
}
