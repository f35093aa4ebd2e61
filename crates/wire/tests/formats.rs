//! The bytes of every released version are decoded, and those of the newest version are encoded
//! unchanged.

#![allow(clippy::disallowed_methods, reason = "the files are what is tested")]

mod common;

use cluster::{
    ChainRequest, ClusterId, CopyObstacle, CopyProgress, Generation, GenerationReport, HeartbeatPayload,
    Incarnation, LayoutEpoch, LayoutStamp, Message, NODES_MAX, NodeIndex, NodeRequest, NodeResponse, NodeSet,
    PeerAnswer, PeerHello, PeerRequest, PlanStatements, ProposalBallot, RecordHash, ReplicaFault, Requester,
    StoreFault, SwapSet, SyncState,
};
use common::{
    answers, copy_answers, copy_requests, decode, encode, encode_in, id, layout_answers, layout_requests,
    outbox, requests, wall, write, write_in,
};
use std::num::NonZeroU8;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Hlc, Instant, NodeTag};
use wire::handshake::{
    AcceptStep, Acceptor, ClusterDigest, DialStep, Dialer, HandshakeConfig, LayoutStatement,
    ProtocolVersions, Secret,
};
use wire::{PushError, WireError};

/// The bytes of a file. With `UPDATE` set, the file of the newest version is replaced by `written`.
fn pinned(name: &str, written: Option<&[u8]>) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(name);
    if let Some(written) = written.filter(|_| std::env::var_os("UPDATE").is_some()) {
        std::fs::write(&path, written).unwrap();
    }
    std::fs::read(path).unwrap()
}

fn heartbeat_payload(sync_state: SyncState, tag: Option<u64>) -> HeartbeatPayload {
    HeartbeatPayload {
        sent: Instant::from_nanos(0x3132_3334_3536),
        wall: wall(0x4142_4344_4546),
        sync_state,
        draining: tag.is_some(),
        disk_full: tag.is_none(),
        hints_for_you: 0x5152,
        repair_pending: false,
        remembered_tag_of_you: tag.map(NodeTag),
        remembered_generation_of_you: None,
        generation: None,
        default_from: None,
        layout: None,
        votes_forgotten: false,
        feature_level_max: 0,
        plan: PlanStatements::default(),
    }
}

/// The payload in this version: from 3 on with generations and the default number of replicas, from
/// 4 on with the layout record, from 5 on with a feature level and statements about its plan.
fn heartbeat_payload_in(version: u8, sync_state: SyncState, tag: Option<u64>) -> HeartbeatPayload {
    let remembered = Generation {
        number: 0xf1f2,
        incarnation: Incarnation(0xf3f4_f5f6),
        clock: Hlc::from_bits(0x0a0b_0c0d),
    };
    let now = GenerationReport { number: 0x1a1b, clock: Hlc::from_bits(0x2a2b_2c2d) };
    let stamp = LayoutStamp { epoch: LayoutEpoch(0x3a3b), fingerprint: 0x4a4b_4c4d_4e4f_5a5b };
    let mut complete = SwapSet::EMPTY;
    [1, 64, 70].into_iter().for_each(|index| complete.insert(index));
    let stated =
        PlanStatements { fenced: Some(LayoutEpoch(0x3939)), complete, is_purging: false, copying: None };
    match version {
        1 | 2 => heartbeat_payload(sync_state, tag),
        _ => HeartbeatPayload {
            remembered_generation_of_you: tag.map(|_| remembered),
            generation: tag.map(|_| now),
            default_from: NonZeroU8::new(if tag.is_some() { 5 } else { 0 }),
            layout: tag.map(|_| stamp).filter(|_| version >= 4),
            votes_forgotten: tag.is_some() && version >= 4,
            feature_level_max: tag.filter(|_| version >= 5).map_or(0, |_| 0x6061_6263),
            plan: tag.map(|_| stated).filter(|_| version >= 5).unwrap_or_default(),
            ..heartbeat_payload(sync_state, tag)
        },
    }
}

/// Time for which the requester waits, by the number of the request.
fn within(number: u64) -> Option<Duration> {
    [None, Some(Duration::from_millis(1)), Some(Duration::from_millis(0x0102_0304))][number as usize % 3]
}

/// Epoch of the plan of a request in this version, by its number: some in succession have the same
/// one, and some a lesser one than those before.
fn plan_epoch(version: u8, number: u64, request: &PeerRequest) -> LayoutEpoch {
    match version >= 5 && request.is_planned() {
        true => LayoutEpoch([1, 0x0102_0304_0506_0708, 2][number as usize / 2 % 3]),
        false => LayoutEpoch::FIRST,
    }
}

/// Every kind of message in each of its forms in this version of the protocol, in the order in
/// which they are sent.
fn messages(version: u8) -> Vec<Message> {
    let knows_time = version >= 2;
    let request = |number, request: PeerRequest| {
        let within = within(number).filter(|_| knows_time);
        let epoch = plan_epoch(version, number, &request);
        Message::Request { id: id(number), request, within, epoch }
    };
    let heartbeats = [
        request(
            1,
            PeerRequest::Node(NodeRequest::Heartbeat(heartbeat_payload_in(
                version,
                SyncState::Unsettled,
                None,
            ))),
        ),
        request(
            2,
            PeerRequest::Node(NodeRequest::Heartbeat(heartbeat_payload_in(
                version,
                SyncState::Rebuilding,
                Some(9),
            ))),
        ),
        Message::Answer {
            id: id(2),
            answer: PeerAnswer::Node(NodeResponse::Heartbeat(heartbeat_payload_in(
                version,
                SyncState::Settled,
                Some(8),
            ))),
        },
    ];
    let requests = (100..).zip(requests()).map(|(number, asked)| request(number, asked));
    let answers = (200..).zip(answers()).map(|(number, answer)| Message::Answer { id: id(number), answer });
    let layout_requests = (400..).zip(layout_requests()).map(|(number, asked)| request(number, asked));
    let layout_answers =
        (500..).zip(layout_answers()).map(|(number, answer)| Message::Answer { id: id(number), answer });
    let layout = layout_requests.chain(layout_answers).filter(|_| version >= 4);
    let copy_requests = (600..).zip(copy_requests()).map(|(number, asked)| request(number, asked));
    let copy_answers =
        (700..).zip(copy_answers()).map(|(number, answer)| Message::Answer { id: id(number), answer });
    let copies = copy_requests.chain(copy_answers).filter(|_| version >= 5);
    let expired = PeerAnswer::Failed(ReplicaFault::Store(StoreFault::Expired));
    let expired = knows_time.then_some(Message::Answer { id: id(299), answer: expired });
    let stale = PeerAnswer::Failed(ReplicaFault::StaleEpoch { epoch: LayoutEpoch(0x6a6b_6c6d) });
    let stale = (version >= 5).then_some(Message::Answer { id: id(298), answer: stale });
    let epoch_of_long = if version >= 5 { LayoutEpoch(0x7a7b_7c7d) } else { LayoutEpoch::FIRST };
    heartbeats
        .into_iter()
        .chain(requests)
        .chain(answers)
        .chain(expired)
        .chain(stale)
        .chain(layout)
        .chain(copies)
        .chain([write_in(epoch_of_long, 300, 66_000)])
        .collect()
}

#[test]
fn frames_of_version_1_are_read_and_written() {
    let pinned = pinned("frames-v1.bin", None);
    assert!(decode(&pinned).unwrap() == messages(1), "the file is decoded differently");
    assert!(encode_in(1, &messages(1)) == pinned, "the encoding differs from the released one");
}

#[test]
fn frames_of_version_2_are_read_and_written() {
    let pinned = pinned("frames-v2.bin", None);
    assert!(decode(&pinned).unwrap() == messages(2), "the file is decoded differently");
    assert!(encode_in(2, &messages(2)) == pinned, "the encoding differs from the released one");
}

#[test]
fn frames_of_version_3_are_read_and_written() {
    let pinned = pinned("frames-v3.bin", None);
    assert!(decode(&pinned).unwrap() == messages(3), "the file is decoded differently");
    assert!(encode_in(3, &messages(3)) == pinned, "the encoding differs from the released one");
}

#[test]
fn frames_of_version_4_are_read_and_written() {
    let pinned = pinned("frames-v4.bin", None);
    assert!(decode(&pinned).unwrap() == messages(4), "the file is decoded differently");
    assert!(encode_in(4, &messages(4)) == pinned, "the encoding differs from the released one");
}

#[test]
fn frames_of_version_5_are_read_and_written() {
    let written = encode_in(5, &messages(5));
    let pinned = pinned("frames-v5.bin", Some(&written));
    assert!(decode(&pinned).unwrap() == messages(5), "the file is decoded differently");
    assert!(written == pinned, "the encoding differs from the released one");
}

#[test]
fn messages_that_version_3_lacks_are_neither_sent_nor_read() {
    let requests = layout_requests().into_iter().map(|request| Message::Request {
        id: id(1),
        request,
        within: None,
        epoch: LayoutEpoch::FIRST,
    });
    let answers = layout_answers().into_iter().map(|answer| Message::Answer { id: id(1), answer });
    for message in requests.chain(answers) {
        for version in [1, 2, 3] {
            let mut outbox = outbox().speaking(version);
            assert_eq!(outbox.push(&message), Err(PushError::UnknownKind), "{message:?}");
            assert!(outbox.is_empty());
        }
        let frame = encode(&[message]);
        let in_version_3 = with_version(&frame, 3);
        assert!(matches!(decode(&in_version_3), Err(WireError::MessageKind { .. })));
    }
}

#[test]
fn version_4_carries_no_request_of_a_later_plan_and_gets_the_closest_fault() {
    let later = LayoutEpoch(2);
    for len in [10, 100_000] {
        let mut outbox = outbox().speaking(4);
        assert_eq!(outbox.push(&write_in(later, 1, len)), Err(PushError::UnknownKind));
        assert!(outbox.is_empty());
        assert_eq!(outbox.push(&write(2, len)), Ok(()));
    }
    let failed = |fault| Message::Answer { id: id(1), answer: PeerAnswer::Failed(fault) };
    let stale = failed(ReplicaFault::StaleEpoch { epoch: later });
    assert_eq!(decode(&encode_in(4, std::slice::from_ref(&stale))).unwrap(), [failed(ReplicaFault::Busy)]);
    let in_version_4 = with_version(&encode(&[stale]), 4);
    assert!(matches!(decode(&in_version_4), Err(WireError::Field { .. })));
    // The first message of the frame is a marker.
    let in_version_4 = with_version(&encode(&[write_in(later, 1, 10)]), 4);
    assert!(decode(&in_version_4).is_err());
}

/// The bytes of one frame as a frame of another version of the protocol.
fn with_version(frame: &[u8], version: u8) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    bytes[6] = version;
    let checksum = crc_fast::crc32_iscsi(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// A heartbeat with all that this version has.
fn full_heartbeat(version: u8) -> Message {
    let payload = heartbeat_payload_in(version, SyncState::Settled, Some(9));
    let request = PeerRequest::Node(NodeRequest::Heartbeat(payload));
    Message::Request { id: id(1), request, within: None, epoch: LayoutEpoch::FIRST }
}

#[test]
fn the_layout_record_of_a_heartbeat_is_left_out_before_version_4() {
    assert_eq!(decode(&encode_in(3, &[full_heartbeat(4)])).unwrap(), [full_heartbeat(3)]);
    assert_eq!(decode(&encode_in(4, &[full_heartbeat(4)])).unwrap(), [full_heartbeat(4)]);
}

#[test]
fn statements_about_the_plan_are_left_out_before_version_5() {
    assert_eq!(decode(&encode_in(4, &[full_heartbeat(5)])).unwrap(), [full_heartbeat(4)]);
    assert_eq!(decode(&encode_in(5, &[full_heartbeat(5)])).unwrap(), [full_heartbeat(5)]);
}

#[test]
fn statements_about_too_many_swaps_or_in_a_longer_form_are_refused() {
    // The number of words of complete swaps is before them at the end of the message.
    let words = |count: u8, words: &[u64]| {
        let frame = encode(&[full_heartbeat(5)]);
        let mut bytes = frame[..frame.len() - 17].to_vec();
        bytes.push(count);
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        let message_len = (bytes.len() - 24) as u32;
        bytes[16..20].copy_from_slice(&(message_len + 4).to_le_bytes());
        bytes[20..24].copy_from_slice(&message_len.to_le_bytes());
        with_version(&bytes, 5)
    };
    assert!(decode(&words(2, &[2, 65])).unwrap() == [full_heartbeat(5)]);
    assert!(decode(&words(4, &[0, 0, 0, 1])).is_ok());
    let refused = |bytes: &[u8]| matches!(decode(bytes), Err(WireError::Field { field: "complete swaps" }));
    assert!(refused(&words(5, &[1, 1, 1, 1, 1])), "more than a plan has");
    assert!(refused(&words(2, &[1, 0])), "a zero at the end");
}

#[test]
fn the_progress_of_copies_follows_the_complete_swaps() {
    let heartbeat = |obstacle| {
        let Message::Request { id, request, within, epoch } = full_heartbeat(5) else { unreachable!() };
        let PeerRequest::Node(NodeRequest::Heartbeat(mut payload)) = request else { unreachable!() };
        payload.plan.copying = Some(CopyProgress { bytes: 0x7172_7374, obstacle });
        let request = PeerRequest::Node(NodeRequest::Heartbeat(payload));
        Message::Request { id, request, within, epoch }
    };
    let source = |slot| Some(CopyObstacle::Source { node: NodeIndex(slot) });
    for (obstacle, end) in [
        (None, &[0x74, 0x73, 0x72, 0x71, 0, 0, 0, 0, 0][..]),
        (Some(CopyObstacle::DiskFull), &[0x74, 0x73, 0x72, 0x71, 0, 0, 0, 0, 4]),
        (source(9), &[0x74, 0x73, 0x72, 0x71, 0, 0, 0, 0, 7, 9]),
    ] {
        let bytes = encode_in(5, &[heartbeat(obstacle)]);
        assert!(bytes.ends_with(end), "{obstacle:?}: {bytes:?}");
        assert_eq!(decode(&bytes).unwrap(), [heartbeat(obstacle)]);
    }
    let too_great = encode_in(5, &[heartbeat(source(NODES_MAX as u8))]);
    assert!(matches!(decode(&too_great), Err(WireError::Field { field: "slot of a source" })));
}

#[test]
fn fields_that_version_2_lacks_are_left_out() {
    let heartbeat = |heartbeat_payload| Message::Request {
        id: id(1),
        request: PeerRequest::Node(NodeRequest::Heartbeat(heartbeat_payload)),
        within: None,
        epoch: LayoutEpoch::FIRST,
    };
    let sent = [heartbeat(heartbeat_payload_in(3, SyncState::Settled, Some(9)))];
    assert_eq!(
        decode(&encode_in(2, &sent)).unwrap(),
        [heartbeat(heartbeat_payload(SyncState::Settled, Some(9)))]
    );
    assert_eq!(decode(&encode_in(3, &sent)).unwrap(), sent);
}

#[test]
fn version_1_gets_its_closest_fault_and_no_time_left() {
    let expired = |fault| Message::Answer { id: id(1), answer: PeerAnswer::Failed(fault) };
    let sent = [expired(ReplicaFault::Store(StoreFault::Expired))];
    assert_eq!(decode(&encode_in(1, &sent)).unwrap(), [expired(ReplicaFault::Busy)]);
    let request = |within| Message::Request {
        id: id(1),
        request: requests().swap_remove(0),
        within,
        epoch: LayoutEpoch::FIRST,
    };
    let sent = [request(Some(Duration::from_millis(5)))];
    assert_eq!(decode(&encode_in(1, &sent)).unwrap(), [request(None)]);
}

#[test]
fn the_time_left_is_rounded_up_to_milliseconds() {
    let request = |within| Message::Request {
        id: id(1),
        request: requests().swap_remove(0),
        within: Some(within),
        epoch: LayoutEpoch::FIRST,
    };
    for (within, arrives) in [(0, 1_000), (1, 1_000), (1_000, 1_000), (1_001, 2_000)] {
        let sent = [request(Duration::from_micros(within))];
        assert_eq!(decode(&encode(&sent)).unwrap(), [request(Duration::from_micros(arrives))]);
    }
}

fn local(node: u8, versions: ProtocolVersions) -> HandshakeConfig {
    HandshakeConfig {
        hello: PeerHello {
            node: NodeIndex(node),
            tag: NodeTag(0xb1b2_b3b4_b5b6_b700 + u64::from(node)),
            requester: Requester::Coordinator(3),
            incarnation: Incarnation(0xc1c2_c3c4_c5c6_c700 + u64::from(node)),
            clock: Hlc::from_bits(0xd1d2_d3d4_d5d6_d7d8),
            sync_state: SyncState::Settled,
        },
        digest: ClusterDigest::of(&["http://a:1".to_owned(), "http://b:1".to_owned()], 4_096, 1),
        layout: LayoutStatement {
            cluster: ClusterId([0xa1; 16]),
            epoch: LayoutEpoch::FIRST,
            hash: RecordHash([0xa2; 32]),
            default_from: 2,
            url: format!("http://{}:1", if node == 0 { "a" } else { "b" }),
        },
        members: NodeSet::first(3),
        named: Arc::from([]),
        removed: Arc::from([]),
        secret: Secret::new("secret"),
        versions,
    }
}

/// The bytes of a handshake, and the version of the protocol that each side then speaks.
fn shake_hands(dials: ProtocolVersions, accepts: ProtocolVersions) -> (Vec<u8>, [u8; 2]) {
    let (mut dialer, hello) = Dialer::start(local(0, dials), NodeIndex(1), [0xe1; 32]);
    let mut acceptor = Acceptor::new(local(1, accepts), [0xf1; 32]);
    let Ok(AcceptStep::Send(answer)) = acceptor.handle(&hello) else { panic!("the hello is not answered") };
    let Ok(DialStep::Send(proof)) = dialer.handle(&answer) else { panic!("no proof is sent") };
    let Ok(AcceptStep::Authenticated(_)) = acceptor.handle(&proof) else { panic!("the proof is invalid") };
    let accepted = acceptor.version();
    let (welcome, _) = acceptor.admit();
    let Ok(DialStep::Done { .. }) = dialer.handle(&welcome) else { panic!("the link is not open") };
    let refused = Acceptor::new(local(1, accepts), [0; 32]).refuse("no");
    ([hello, answer, proof, welcome, refused].concat(), [dialer.version(), accepted])
}

const ONLY_1: ProtocolVersions = ProtocolVersions { min: 1, max: 1 };
const UP_TO_2: ProtocolVersions = ProtocolVersions { min: 1, max: 2 };
const UP_TO_3: ProtocolVersions = ProtocolVersions { min: 1, max: 3 };
const UP_TO_4: ProtocolVersions = ProtocolVersions { min: 1, max: 4 };
const OURS: ProtocolVersions = ProtocolVersions::OURS;

#[test]
fn a_handshake_of_version_1_is_understood_and_spoken() {
    let (written, versions) = shake_hands(ONLY_1, ONLY_1);
    assert!(pinned("handshake-v1.bin", None) == written, "other bytes are spoken than were released");
    assert_eq!(versions, [1, 1]);
}

#[test]
fn a_handshake_of_version_2_is_understood_and_spoken() {
    let (written, versions) = shake_hands(UP_TO_2, UP_TO_2);
    assert!(pinned("handshake-v2.bin", None) == written, "other bytes are spoken than were released");
    assert_eq!(versions, [2, 2]);
}

#[test]
fn a_handshake_of_version_3_is_understood_and_spoken() {
    let (written, versions) = shake_hands(UP_TO_3, UP_TO_3);
    assert!(pinned("handshake-v3.bin", None) == written, "other bytes are spoken than were released");
    assert_eq!(versions, [3, 3]);
}

#[test]
fn a_handshake_of_version_4_is_understood_and_spoken() {
    let (written, versions) = shake_hands(UP_TO_4, UP_TO_4);
    assert!(pinned("handshake-v4.bin", None) == written, "other bytes are spoken than were released");
    assert_eq!(versions, [4, 4]);
}

#[test]
fn a_handshake_of_version_5_is_understood_and_spoken() {
    let (written, versions) = shake_hands(OURS, OURS);
    assert!(
        pinned("handshake-v5.bin", Some(&written)) == written,
        "other bytes are spoken than were released"
    );
    assert_eq!(versions, [5, 5]);
}

#[test]
fn a_node_and_one_of_the_release_before_speak_what_both_know() {
    assert_eq!(shake_hands(OURS, UP_TO_4).1, [4, 4]);
    assert_eq!(shake_hands(UP_TO_4, OURS).1, [4, 4]);
    assert_eq!(shake_hands(OURS, UP_TO_3).1, [3, 3]);
    assert_eq!(shake_hands(UP_TO_3, OURS).1, [3, 3]);
    assert_eq!(shake_hands(OURS, UP_TO_2).1, [2, 2]);
    assert_eq!(shake_hands(UP_TO_2, OURS).1, [2, 2]);
    assert_eq!(shake_hands(OURS, ONLY_1).1, [1, 1]);
    assert_eq!(shake_hands(ONLY_1, OURS).1, [1, 1]);
}

#[test]
fn a_ballot_beyond_the_greatest_round_is_refused() {
    let prepare = |round| {
        let ballot = ProposalBallot { round, proposer: NodeTag(1), incarnation: Incarnation(2) };
        let request = NodeRequest::Chain(ChainRequest::Prepare { epoch: LayoutEpoch(2), ballot });
        Message::Request { id: id(1), request: request.into(), within: None, epoch: LayoutEpoch::FIRST }
    };
    let greatest = prepare(ProposalBallot::ROUND_MAX);
    assert_eq!(decode(&encode(std::slice::from_ref(&greatest))).unwrap(), [greatest]);
    let refused = decode(&encode(&[prepare(ProposalBallot::ROUND_MAX + 1)]));
    assert!(matches!(refused, Err(WireError::Field { .. })), "{refused:?}");
}
