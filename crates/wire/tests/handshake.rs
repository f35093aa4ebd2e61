//! Two nodes of the same cluster open a link; all others get a reason.

use cluster::{
    ClusterId, ClusterOrigin, Incarnation, LayoutEpoch, LayoutRecord, NodeIndex, NodeSet, PeerHello,
    RecordHash, Requester, SyncState,
};
use proptest::prelude::*;
use std::sync::Arc;
use stdx::{Hlc, NodeTag};
use wire::handshake::{
    AcceptStep, Acceptor, ClusterDigest, DialStep, Dialer, HANDSHAKE_BYTES_MAX, HandshakeConfig,
    HandshakeError, LayoutStatement, NamedMember, ProtocolVersions, Secret, refusal,
};

const DIAL_NONCE: [u8; 32] = [0xd1; 32];
const ACCEPT_NONCE: [u8; 32] = [0xac; 32];
/// Length of a message's header in bytes.
const HEADER_LEN: usize = 8;

const LAYOUT: LayoutStatement = LayoutStatement {
    cluster: ClusterId([0xc1; 16]),
    epoch: LayoutEpoch::FIRST,
    hash: RecordHash([0xc2; 32]),
    default_from: 3,
    url: String::new(),
};
/// The versions of the release before layout records.
const BEFORE_RECORDS: ProtocolVersions = ProtocolVersions { min: 1, max: 3 };
/// The versions of the release before the epochs of plans.
const BEFORE_PLAN_EPOCHS: ProtocolVersions = ProtocolVersions { min: 1, max: 4 };

fn names() -> Vec<String> {
    ["http://a:1", "http://b:1", "http://c:1"].map(String::from).to_vec()
}

fn local(node: u8) -> HandshakeConfig {
    HandshakeConfig {
        hello: PeerHello {
            node: NodeIndex(node),
            tag: NodeTag(0x1000 + u64::from(node)),
            requester: Requester::Coordinator(node),
            incarnation: Incarnation(0x2000 + u64::from(node)),
            clock: Hlc::from_bits(0x3000),
            sync_state: SyncState::Settled,
        },
        digest: ClusterDigest::of(&names(), 4_096, 1),
        layout: LAYOUT.reached_at(&names()[usize::from(node)]),
        members: NodeSet::first(3),
        named: Arc::from([]),
        removed: Arc::from([]),
        secret: Secret::new("a long secret"),
        versions: ProtocolVersions::OURS,
    }
}

fn peer_hello(local: &HandshakeConfig, requester: Requester) -> PeerHello {
    PeerHello { requester, ..local.hello }
}

/// Outcome of a handshake in which node 0 dials node 1: the last step of each side.
struct Outcome {
    dialer: Result<DialStep, HandshakeError>,
    acceptor: Result<AcceptStep, HandshakeError>,
    /// All messages that were sent, in order.
    sent: Vec<Vec<u8>>,
}

impl Outcome {
    fn is_open(&self) -> bool {
        matches!(self.dialer, Ok(DialStep::Done { .. }))
    }

    fn is_authenticated(&self) -> bool {
        matches!(self.acceptor, Ok(AcceptStep::Authenticated(_)))
    }
}

/// Runs a handshake. `alter` receives the number and the bytes of each message before it arrives.
fn shake(dial: HandshakeConfig, accept: HandshakeConfig, alter: impl Fn(usize, &mut Vec<u8>)) -> Outcome {
    let (mut dialer, hello) = Dialer::start(dial, NodeIndex(1), DIAL_NONCE);
    let mut acceptor = Acceptor::new(accept, ACCEPT_NONCE);
    let mut outcome =
        Outcome { dialer: Ok(DialStep::NeedMore), acceptor: Ok(AcceptStep::NeedMore), sent: Vec::new() };
    let mut on_its_way = hello;
    for number in 0.. {
        alter(number, &mut on_its_way);
        outcome.sent.push(on_its_way.clone());
        let is_for_acceptor = number % 2 == 0;
        let next = match is_for_acceptor {
            true => {
                outcome.acceptor = acceptor.handle(&on_its_way);
                match &outcome.acceptor {
                    Ok(AcceptStep::Send(bytes)) => bytes.clone(),
                    Ok(AcceptStep::Authenticated(_)) => {
                        let (welcome, rest) = acceptor.admit();
                        assert_eq!(rest, []);
                        acceptor = Acceptor::new(local(1), ACCEPT_NONCE);
                        welcome
                    }
                    Ok(AcceptStep::NeedMore) => return outcome,
                    Err(error) => error.refusal_bytes().unwrap_or_default(),
                }
            }
            false => {
                outcome.dialer = dialer.handle(&on_its_way);
                match &outcome.dialer {
                    Ok(DialStep::Send(bytes)) => bytes.clone(),
                    Ok(_) => return outcome,
                    Err(error) => error.refusal_bytes().unwrap_or_default(),
                }
            }
        };
        if next.is_empty() {
            return outcome;
        }
        on_its_way = next;
    }
    unreachable!("a handshake ends")
}

fn refused_with(result: Result<impl std::fmt::Debug, HandshakeError>, words: &str) {
    match result {
        Err(HandshakeError::RefusedByPeer { reason }) => assert!(reason.contains(words), "{reason}"),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn nodes_of_one_cluster_learn_each_others_identity() {
    let outcome = shake(local(0), local(1), |_, _| ());
    let acceptor = peer_hello(&local(1), Requester::Node);
    assert_eq!(outcome.dialer, Ok(DialStep::Done { hello: acceptor, rest: vec![] }));
    let dialer = peer_hello(&local(0), Requester::Coordinator(0));
    assert_eq!(outcome.acceptor, Ok(AcceptStep::Authenticated(dialer)));
    assert!(outcome.sent.iter().all(|message| message.len() <= HANDSHAKE_BYTES_MAX));
}

#[test]
fn no_secret_on_both_sides_is_as_good_as_one() {
    let without = |node| HandshakeConfig { secret: Secret::new(""), ..local(node) };
    assert!(shake(without(0), without(1), |_, _| ()).is_open());
    let outcome = shake(without(0), local(1), |_, _| ());
    assert_eq!(outcome.dialer, Err(HandshakeError::AnotherSecret));
}

#[test]
fn another_secret_is_detected_by_the_dialer_and_reported() {
    let outcome = shake(HandshakeConfig { secret: Secret::new("other"), ..local(0) }, local(1), |_, _| ());
    assert_eq!(outcome.dialer, Err(HandshakeError::AnotherSecret));
    refused_with(outcome.acceptor, "different secrets");
}

#[test]
fn another_list_is_detected_by_the_acceptor_where_a_side_has_no_layout_record() {
    let mut other_names = names();
    other_names[2].push('1');
    let digests = [
        ClusterDigest::of(&other_names, 4_096, 1),
        ClusterDigest::of(&names()[..2], 4_096, 1),
        ClusterDigest::of(&names(), 2_048, 1),
        ClusterDigest::of(&names(), 4_096, 2),
    ];
    let (ours, before) = (local(1).digest, BEFORE_RECORDS);
    for digest in digests {
        for (dials, accepts) in [(before, local(1).versions), (local(0).versions, before)] {
            let dialer = HandshakeConfig { digest, versions: dials, ..local(0) };
            let outcome = shake(dialer, HandshakeConfig { versions: accepts, ..local(1) }, |_, _| ());
            assert_eq!(outcome.acceptor, Err(HandshakeError::AnotherList { ours, theirs: digest }));
            refused_with(outcome.dialer, &format!("({digest} here, {ours} there)"));
        }
        let outcome = shake(HandshakeConfig { digest, ..local(0) }, local(1), |_, _| ());
        assert!(outcome.is_open(), "the layout record counts, not the list");
    }
}

#[test]
fn another_layout_record_is_detected_by_the_dialer_and_reported_on_both_sides() {
    let second = LayoutStatement { epoch: LayoutEpoch(2), ..LAYOUT };
    let other = RecordHash([7; 32]);
    let foreign = LayoutStatement { cluster: ClusterId([7; 16]), ..LAYOUT };
    let another_record = |epoch| HandshakeError::AnotherRecord { epoch: LayoutEpoch(epoch) };
    for (dials, accepts, error, told) in [
        (
            LAYOUT,
            foreign.clone(),
            HandshakeError::AnotherCluster { ours: LAYOUT.cluster, theirs: foreign.cluster },
            "needs an empty --data",
        ),
        (LAYOUT, LayoutStatement { hash: other, ..LAYOUT }, another_record(1), "of epoch 1"),
        (second.clone(), LayoutStatement { hash: other, ..second.clone() }, another_record(2), "of epoch 2"),
        (
            second.clone(),
            LayoutStatement { hash: other, default_from: 5, ..second },
            another_record(2),
            "of epoch 2",
        ),
    ] {
        let dialer = HandshakeConfig { layout: dials.clone(), ..local(0) };
        let outcome = shake(dialer, HandshakeConfig { layout: accepts, ..local(1) }, |_, _| ());
        assert_eq!(outcome.dialer, Err(error));
        refused_with(outcome.acceptor, told);
    }
}

#[test]
fn nodes_of_one_cluster_link_across_epochs_and_with_their_own_defaults_in_epoch_1() {
    let later = LayoutStatement { epoch: LayoutEpoch(4), hash: RecordHash([7; 32]), ..LAYOUT };
    let own_default = LayoutStatement { hash: RecordHash([7; 32]), default_from: 5, ..LAYOUT };
    for layout in [later, own_default] {
        assert!(shake(local(0), HandshakeConfig { layout: layout.clone(), ..local(1) }, |_, _| ()).is_open());
        assert!(shake(HandshakeConfig { layout, ..local(0) }, local(1), |_, _| ()).is_open());
    }
}

#[test]
fn a_peer_without_layout_records_links_with_epoch_1_and_no_later_one() {
    let before = |node| HandshakeConfig { versions: BEFORE_RECORDS, ..local(node) };
    let at = |node, epoch| with_record(local(node), epoch, LayoutEpoch::FIRST);
    assert!(shake(before(0), at(1, 1), |_, _| ()).is_open());
    assert!(shake(at(0, 1), before(1), |_, _| ()).is_open());
    assert!(shake(at(0, 2), at(1, 2), |_, _| ()).is_open());
    let outcome = shake(before(0), at(1, 2), |_, _| ());
    let (epoch, needed, theirs) = (LayoutEpoch(2), 4, BEFORE_RECORDS);
    assert_eq!(outcome.acceptor, Err(HandshakeError::TooOldForRecord { epoch, needed, theirs }));
    refused_with(outcome.dialer, "install a release on it that speaks version 4");
    // The refusal of the earlier release itself.
    let outcome = shake(at(0, 2), before(1), |_, _| ());
    assert!(matches!(outcome.acceptor, Err(HandshakeError::AnotherProtocol { .. })));
    refused_with(outcome.dialer, "upgrade one release at a time");
}

#[test]
fn a_peer_that_tells_no_epochs_of_plans_links_until_a_partition_has_changed() {
    let before = |node| HandshakeConfig { versions: BEFORE_PLAN_EPOCHS, ..local(node) };
    let at = |node, epoch, changed| with_record(local(node), epoch, LayoutEpoch(changed));
    assert!(shake(before(0), at(1, 1, 1), |_, _| ()).is_open());
    assert!(shake(before(0), at(1, 2, 1), |_, _| ()).is_open());
    assert!(shake(at(0, 3, 2), at(1, 3, 2), |_, _| ()).is_open());
    let outcome = shake(before(0), at(1, 3, 2), |_, _| ());
    let (epoch, needed, theirs) = (LayoutEpoch(3), 5, BEFORE_PLAN_EPOCHS);
    assert_eq!(outcome.acceptor, Err(HandshakeError::TooOldForRecord { epoch, needed, theirs }));
    refused_with(outcome.dialer, "install a release on it that speaks version 5");
    assert!(!shake(at(0, 3, 2), before(1), |_, _| ()).is_open());
}

/// The config of a node whose layout record has this epoch, and this epoch of the last change of a
/// partition.
fn with_record(config: HandshakeConfig, epoch: u64, changed: LayoutEpoch) -> HandshakeConfig {
    let origin =
        ClusterOrigin { nodes: names(), partitions: 4, hash_version: 1, default_from: 3, tag: NodeTag(1) };
    let mut record = LayoutRecord::first(origin).expect("a small cluster");
    record.epoch = LayoutEpoch(epoch);
    record.changed[1] = changed;
    let versions = ProtocolVersions::with_record(&record);
    let layout = LayoutStatement { epoch: record.epoch, ..LAYOUT };
    HandshakeConfig { layout, versions, ..config }
}

/// The config of a node that holds a record of epoch 2, which names the ids of `local`.
fn named(node: u8) -> HandshakeConfig {
    let named = (0..3).zip(names()).map(|(node, url)| NamedMember {
        slot: NodeIndex(node),
        node_id: local(node).hello.tag,
        url,
    });
    let config = local(node);
    let layout = LayoutStatement { epoch: LayoutEpoch(2), ..config.layout };
    HandshakeConfig { layout, named: named.collect(), ..config }
}

fn moved(config: HandshakeConfig) -> HandshakeConfig {
    HandshakeConfig { layout: config.layout.clone().reached_at("http://moved:1"), ..config }
}

fn with_another_id(config: HandshakeConfig) -> HandshakeConfig {
    HandshakeConfig { hello: PeerHello { tag: NodeTag(0xdead), ..config.hello }, ..config }
}

#[test]
fn both_sides_learn_the_record_and_the_address_of_the_other() {
    let (dials, accepts) = (moved(named(0)), moved(named(1)));
    let (mut dialer, hello) = Dialer::start(dials.clone(), NodeIndex(1), DIAL_NONCE);
    let mut acceptor = Acceptor::new(accepts.clone(), ACCEPT_NONCE);
    let Ok(AcceptStep::Send(answer)) = acceptor.handle(&hello) else { panic!("no hello") };
    let Ok(DialStep::Send(proof)) = dialer.handle(&answer) else { panic!("no proof") };
    assert!(matches!(acceptor.handle(&proof), Ok(AcceptStep::Authenticated(_))));
    assert_eq!((dialer.statement(), acceptor.statement()), (Some(&accepts.layout), Some(&dials.layout)));
    assert_eq!(dials.layout.url, "http://moved:1");
}

#[test]
fn a_node_with_the_named_id_is_accepted_at_any_address() {
    assert!(shake(moved(named(0)), named(1), |_, _| ()).is_open());
    assert!(shake(named(0), moved(named(1)), |_, _| ()).is_open());
}

#[test]
fn a_node_with_another_id_is_accepted_at_the_address_of_the_record_only() {
    assert!(shake(with_another_id(named(0)), named(1), |_, _| ()).is_open(), "it has lost its disk");
    assert!(shake(named(0), with_another_id(named(1)), |_, _| ()).is_open());
    let is_refused = |error: &HandshakeError| matches!(error, HandshakeError::AnotherIdentity { .. });
    let outcome = shake(with_another_id(moved(named(0))), named(1), |_, _| ());
    assert!(outcome.acceptor.as_ref().is_err_and(is_refused), "{:?}", outcome.acceptor);
    refused_with(outcome.dialer, "start it with --self-url http://a:1");
    let outcome = shake(named(0), with_another_id(moved(named(1))), |_, _| ());
    assert!(outcome.dialer.as_ref().is_err_and(is_refused), "{:?}", outcome.dialer);
    refused_with(outcome.acceptor, "start it with --self-url http://b:1");
}

#[test]
fn a_node_with_a_newer_record_is_not_judged_by_an_older_one() {
    let newer = |config: HandshakeConfig| {
        let layout = LayoutStatement { epoch: LayoutEpoch(3), ..config.layout };
        HandshakeConfig { layout, named: Arc::from([]), ..config }
    };
    assert!(shake(newer(with_another_id(moved(named(0)))), named(1), |_, _| ()).is_open());
    assert!(shake(named(0), newer(with_another_id(moved(named(1)))), |_, _| ()).is_open());
}

#[test]
fn a_node_that_the_record_refuses_for_ever_learns_it_and_its_replacement_is_not_refused() {
    let newer = |config: HandshakeConfig| {
        let layout = LayoutStatement { epoch: LayoutEpoch(3), ..config.layout };
        HandshakeConfig { layout, ..config }
    };
    for removed in [named(0), moved(named(0)), newer(named(0))] {
        let outcome = shake(removed, without(0, named(1)), |_, _| ());
        let (node_id, epoch) = (NodeTag(0x1000), LayoutEpoch(2));
        let is_told = |error: &HandshakeError| match error {
            HandshakeError::Removed { node_id: told, epoch: in_epoch, proof: Some(_) } => {
                (*told, *in_epoch) == (node_id, epoch)
            }
            _ => false,
        };
        assert!(outcome.acceptor.as_ref().is_err_and(is_told), "{:?}", outcome.acceptor);
        assert_eq!(outcome.dialer, Err(HandshakeError::RemovedByPeer { epoch }));
    }
    assert!(shake(with_another_id(named(0)), without(0, named(1)), |_, _| ()).is_open());
}

/// The config of a node whose record refuses the id of `node` for ever.
fn without(node: u8, config: HandshakeConfig) -> HandshakeConfig {
    HandshakeConfig { removed: Arc::from([local(node).hello.tag]), ..config }
}

#[test]
fn a_node_refuses_to_link_to_one_that_its_record_refuses_for_ever() {
    let outcome = shake(without(1, named(0)), named(1), |_, _| ());
    let (node_id, epoch) = (NodeTag(0x1001), LayoutEpoch(2));
    assert_eq!(outcome.dialer, Err(HandshakeError::Removed { node_id, epoch, proof: None }));
    refused_with(outcome.acceptor, "start it with an empty --data");
}

/// Only the end of a node needs a proof. A forged refusal is like any other.
#[test]
fn a_refusal_for_ever_is_accepted_only_with_the_proof_of_this_handshake() {
    let refusal = shake(named(0), without(0, named(1)), |_, _| ()).sent.pop().expect("a refusal");
    let in_place_of_the_welcome = |forged: &[u8]| {
        shake(named(0), named(1), |number, message| {
            if number == 3 {
                *message = forged.to_vec();
            }
        })
        .dialer
    };
    let removed = Err(HandshakeError::RemovedByPeer { epoch: LayoutEpoch(2) });
    assert_eq!(in_place_of_the_welcome(&refusal), removed, "the hellos are the same");
    for at in [HEADER_LEN, refusal.len() - 1] {
        let mut forged = refusal.clone();
        forged[at] ^= 1;
        refused_with(in_place_of_the_welcome(&forged), "refused for ever");
    }
    let shorter = Acceptor::new(local(1), ACCEPT_NONCE).refuse(refusal::REMOVED);
    refused_with(in_place_of_the_welcome(&shorter), "refused for ever");
    let other = HandshakeConfig { secret: Secret::new("another secret"), ..named(0) };
    let of_other_secret = HandshakeConfig { secret: other.secret.clone(), ..without(0, named(1)) };
    let forged = shake(other, of_other_secret, |_, _| ()).sent.pop().expect("a refusal");
    refused_with(in_place_of_the_welcome(&forged), "refused for ever");
    let earlier =
        HandshakeConfig { hello: PeerHello { clock: Hlc::from_bits(9), ..named(0).hello }, ..named(0) };
    let forged = shake(earlier, without(0, named(1)), |_, _| ()).sent.pop().expect("a refusal");
    refused_with(in_place_of_the_welcome(&forged), "refused for ever");
}

#[test]
fn an_address_that_is_too_long_or_no_text_is_not_stated_or_refused() {
    let long = LAYOUT.reached_at(&"x".repeat(cluster::URL_BYTES_MAX + 1));
    assert_eq!(long.url, "");
    let with_url = |url: &str, node| HandshakeConfig {
        layout: LayoutStatement { url: url.into(), ..LAYOUT },
        ..local(node)
    };
    assert!(shake(local(0), with_url(&"x".repeat(cluster::URL_BYTES_MAX), 1), |_, _| ()).is_open());
    let outcome = shake(local(0), with_url("http://a\n:1", 1), |_, _| ());
    assert!(matches!(outcome.dialer, Err(HandshakeError::Malformed { .. })));
    let outcome = shake(with_url("http://a\n:1", 0), local(1), |_, _| ());
    assert!(matches!(outcome.acceptor, Err(HandshakeError::Malformed { .. })));
}

#[test]
fn a_list_is_the_same_in_any_order() {
    let mut names = names();
    names.reverse();
    names.push(names[0].clone());
    assert_eq!(ClusterDigest::of(&names, 4_096, 1), local(0).digest);
}

#[test]
fn another_node_than_the_dialed_one_is_refused() {
    let outcome = shake(local(0), local(2), |_, _| ());
    let (expected, found) = (NodeIndex(1), NodeIndex(2));
    assert_eq!(outcome.dialer, Err(HandshakeError::WrongNode { expected, found }));
    refused_with(outcome.acceptor, "slot 1 was dialed and slot 2 answered");
}

#[test]
fn a_node_that_dials_itself_is_refused() {
    let outcome = shake(local(1), local(1), |_, _| ());
    assert_eq!(outcome.acceptor, Err(HandshakeError::SameNode { node: NodeIndex(1) }));
    refused_with(outcome.dialer, "slot 1 met itself");
}

/// Rewrites a message as one of a release that speaks these versions only.
fn speak(message: &mut [u8], min: u8, max: u8) {
    message[HEADER_LEN..HEADER_LEN + 2].copy_from_slice(&[min, max]);
}

#[test]
fn another_protocol_is_reported_on_both_sides() {
    let outcome = shake(local(0), local(1), |number, message| {
        if number == 0 {
            speak(message, 6, 7);
            message.truncate(HEADER_LEN + 10);
            message[6..8].copy_from_slice(&10u16.to_le_bytes());
        }
    });
    assert!(matches!(outcome.acceptor, Err(HandshakeError::AnotherProtocol { theirs }) if theirs.min == 6));
    refused_with(outcome.dialer, "there, versions 1 to 5 can be spoken, here versions 6 to 7");
    let outcome = shake(local(0), local(1), |number, message| {
        if number == 1 {
            speak(message, 6, 6);
        }
    });
    assert!(matches!(outcome.dialer, Err(HandshakeError::AnotherProtocol { .. })));
    refused_with(outcome.acceptor, "upgrade one release at a time");
}

#[test]
fn a_newer_release_that_still_speaks_ours_is_accepted() {
    let (_, mut hello) = Dialer::start(local(0), NodeIndex(1), DIAL_NONCE);
    speak(&mut hello, 5, 6);
    let step = Acceptor::new(local(1), ACCEPT_NONCE).handle(&hello);
    assert!(matches!(step, Ok(AcceptStep::Send(_))));
}

#[test]
fn no_altered_byte_of_a_hello_or_a_proof_opens_a_link() {
    let lengths: Vec<usize> = shake(local(0), local(1), |_, _| ()).sent.iter().map(Vec::len).collect();
    assert_eq!(lengths.len(), 4);
    for (altered, len) in lengths.into_iter().enumerate() {
        for at in 0..len {
            for bit in [0x01, 0x80] {
                let outcome = shake(local(0), local(1), |number, message| {
                    if number == altered {
                        message[at] ^= bit;
                    }
                });
                assert!(!outcome.is_open(), "byte {at} of message {altered}");
                assert!(altered == 3 || !outcome.is_authenticated(), "byte {at} of message {altered}");
            }
        }
    }
}

#[test]
fn a_truncated_message_waits_for_more_bytes() {
    let sent = shake(local(0), local(1), |_, _| ()).sent;
    for (cut, message) in sent.iter().enumerate() {
        for len in 0..message.len() {
            let outcome = shake(local(0), local(1), |number, message| {
                if number == cut {
                    message.truncate(len);
                }
            });
            let waits = match cut % 2 == 0 {
                true => outcome.acceptor == Ok(AcceptStep::NeedMore),
                false => outcome.dialer == Ok(DialStep::NeedMore),
            };
            assert!(waits, "{len} bytes of message {cut}");
        }
    }
}

#[test]
fn a_handshake_byte_by_byte_is_the_same() {
    let (mut dialer, hello) = Dialer::start(local(0), NodeIndex(1), DIAL_NONCE);
    let mut acceptor = Acceptor::new(local(1), ACCEPT_NONCE);
    let accept = |acceptor: &mut Acceptor, bytes: &[u8]| {
        let steps: Vec<_> = bytes.iter().map(|byte| acceptor.handle(&[*byte]).unwrap()).collect();
        steps.into_iter().next_back().unwrap()
    };
    let AcceptStep::Send(answer) = accept(&mut acceptor, &hello) else { panic!("no hello") };
    let dial = |dialer: &mut Dialer, bytes: &[u8]| {
        let steps: Vec<_> = bytes.iter().map(|byte| dialer.handle(&[*byte]).unwrap()).collect();
        steps.into_iter().next_back().unwrap()
    };
    let DialStep::Send(proof) = dial(&mut dialer, &answer) else { panic!("no proof") };
    assert!(matches!(accept(&mut acceptor, &proof), AcceptStep::Authenticated(_)));
    assert_eq!(acceptor.handle(b"behind"), Ok(AcceptStep::NeedMore));
    let (welcome, rest) = acceptor.admit();
    assert_eq!(rest, b"behind");
    let Ok(DialStep::Done { rest, .. }) = dialer.handle(&[&welcome[..], b"frames"].concat()) else {
        panic!("not welcome")
    };
    assert_eq!(rest, b"frames");
}

#[test]
fn a_recorded_handshake_does_not_open_another_link() {
    let recorded = shake(local(0), local(1), |_, _| ()).sent;
    let mut acceptor = Acceptor::new(local(1), [0xff; 32]);
    assert!(matches!(acceptor.handle(&recorded[0]), Ok(AcceptStep::Send(_))));
    assert_eq!(acceptor.handle(&recorded[2]), Err(HandshakeError::AnotherSecret));
    let (mut dialer, _) = Dialer::start(local(0), NodeIndex(1), [0xff; 32]);
    assert_eq!(dialer.handle(&recorded[1]), Err(HandshakeError::AnotherSecret));
}

#[test]
fn a_reflected_message_is_not_accepted() {
    let (mut dialer, hello) = Dialer::start(local(0), NodeIndex(1), DIAL_NONCE);
    let mut reflected = hello.clone();
    assert!(matches!(dialer.handle(&hello), Err(HandshakeError::Malformed { .. })));
    // The dialer's hello as an acceptor's, with an arbitrary proof.
    reflected[4] = 2;
    reflected.extend_from_slice(&[0; 32]);
    let len = (reflected.len() - HEADER_LEN) as u16;
    reflected[6..8].copy_from_slice(&len.to_le_bytes());
    let (mut dialer, _) = Dialer::start(local(0), NodeIndex(1), DIAL_NONCE);
    assert_eq!(dialer.handle(&reflected), Err(HandshakeError::SameNode { node: NodeIndex(0) }));
    // The acceptor's proof as the dialer's.
    let mut acceptor = Acceptor::new(local(1), ACCEPT_NONCE);
    let Ok(AcceptStep::Send(answer)) = acceptor.handle(&hello) else { panic!("no hello") };
    let mut proof = [b"vHsk".as_slice(), &[3, 0, 32, 0]].concat();
    proof.extend_from_slice(&answer[answer.len() - 32..]);
    assert_eq!(acceptor.handle(&proof), Err(HandshakeError::AnotherSecret));
}

/// Node 3 is a member by the record of epoch 3, and by no other one.
#[test]
fn the_newest_record_decides_whether_the_dialer_is_a_member() {
    let with_record = |config: HandshakeConfig, epoch: u64| {
        let hash = RecordHash([epoch as u8; 32]);
        let layout = LayoutStatement { epoch: LayoutEpoch(epoch), hash, ..LAYOUT };
        let members = NodeSet::first(if epoch == 3 { 4 } else { 3 });
        let versions = with_record(config.clone(), epoch, LayoutEpoch::FIRST).versions;
        HandshakeConfig { layout, members, versions, ..config }
    };
    let fourth = HandshakeConfig { hello: PeerHello { node: NodeIndex(3), ..local(0).hello }, ..local(0) };
    let dial =
        |dials, accepts| shake(with_record(fourth.clone(), dials), with_record(local(1), accepts), |_, _| ());
    assert!(dial(3, 3).is_open());
    assert!(dial(2, 3).is_open(), "it can learn the record");
    let behind = dial(3, 2);
    let (node, ours, theirs) = (NodeIndex(3), LayoutEpoch(2), LayoutEpoch(3));
    assert_eq!(behind.acceptor, Err(HandshakeError::NotYetMember { node, ours, theirs }));
    let reason = refusal::NOT_YET.to_owned();
    assert_eq!(behind.dialer, Err(HandshakeError::RefusedByPeer { reason }));
    for (dials, accepts) in [(3, 4), (4, 4)] {
        let removed = dial(dials, accepts);
        let epoch = LayoutEpoch(accepts);
        assert_eq!(removed.acceptor, Err(HandshakeError::NoMember { node, epoch }));
        refused_with(removed.dialer, "was removed from the cluster");
    }
    let impossible = HandshakeConfig { hello: PeerHello { node: NodeIndex(64), ..fourth.hello }, ..fourth };
    let outcome = shake(with_record(impossible, 3), with_record(local(1), 2), |_, _| ());
    assert!(matches!(outcome.acceptor, Err(HandshakeError::Malformed { .. })), "no slot has this number");
}

#[test]
fn a_refusal_is_accepted_in_place_of_any_message() {
    let refusal = Acceptor::new(local(1), ACCEPT_NONCE).refuse("its identity\nis not known yet");
    let reason = "its identity is not known yet".to_owned();
    let expected = HandshakeError::RefusedByPeer { reason };
    for instead_of in 0..4 {
        let outcome = shake(local(0), local(1), |number, message| {
            if number == instead_of {
                *message = refusal.clone();
            }
        });
        let error = if instead_of % 2 == 0 { outcome.acceptor.err() } else { outcome.dialer.err() };
        assert_eq!(error.as_ref(), Some(&expected));
        assert_eq!(expected.refusal_bytes(), None);
    }
}

#[test]
fn every_error_is_one_sentence_that_fits_a_refusal() {
    let digest = local(0).digest;
    let errors = [
        HandshakeError::AnotherList { ours: digest, theirs: digest },
        HandshakeError::AnotherSecret,
        HandshakeError::TooOldForRecord { epoch: LayoutEpoch(2), needed: 4, theirs: BEFORE_RECORDS },
        HandshakeError::Removed { node_id: NodeTag(1), epoch: LayoutEpoch(2), proof: None },
        HandshakeError::RemovedByPeer { epoch: LayoutEpoch(2) },
        HandshakeError::AnotherIdentity {
            node: NodeIndex(1),
            named: NodeTag(1),
            url: "http://b:1".into(),
            found: NodeTag(2),
            found_url: "http://moved:1".into(),
        },
        HandshakeError::NoMember { node: NodeIndex(3), epoch: LayoutEpoch(2) },
        HandshakeError::NotYetMember { node: NodeIndex(3), ours: LayoutEpoch(2), theirs: LayoutEpoch(3) },
        HandshakeError::WrongNode { expected: NodeIndex(1), found: NodeIndex(2) },
        HandshakeError::SameNode { node: NodeIndex(1) },
        HandshakeError::Malformed { what: "x" },
        HandshakeError::RefusedByPeer { reason: "x".into() },
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.len() < 300 && !text.contains('\n') && !text.ends_with('.'), "{text}");
    }
}

#[test]
fn debug_output_does_not_contain_the_secret() {
    let text = format!("{:?}", Dialer::start(local(0), NodeIndex(1), DIAL_NONCE));
    assert!(!text.contains("long secret") && !text.contains("108, 111, 110, 103"), "{text}");
}

#[test]
fn a_message_over_the_limit_is_refused_at_its_header() {
    let header = [b"vHsk".as_slice(), &[1, 0], &(HANDSHAKE_BYTES_MAX as u16).to_le_bytes()].concat();
    let step = Acceptor::new(local(1), ACCEPT_NONCE).handle(&header);
    assert!(matches!(step, Err(HandshakeError::Malformed { .. })));
}

proptest! {
    #[test]
    fn arbitrary_bytes_open_no_link(mut bytes: Vec<u8>, kind in 1u8..9) {
        for with_header in [false, true] {
            if with_header {
                let len = (bytes.len() as u16).to_le_bytes();
                bytes.splice(..0, [b"vHsk".as_slice(), &[kind, 0], &len].concat());
            }
            let step = Acceptor::new(local(1), ACCEPT_NONCE).handle(&bytes);
            prop_assert!(matches!(step, Err(_) | Ok(AcceptStep::NeedMore)), "{:?}", step);
            let step = Dialer::start(local(0), NodeIndex(1), DIAL_NONCE).0.handle(&bytes);
            prop_assert!(matches!(step, Err(_) | Ok(DialStep::NeedMore)), "{:?}", step);
        }
    }
}
