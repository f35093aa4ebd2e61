//! A node that asks to be a member and a member of the same cluster prove their secret to each
//! other.

use cluster::{
    ClusterId, Incarnation, JoiningNode, LayoutEpoch, NodeIndex, NodeSet, PeerHello, RecordHash, Requester,
    SyncState, URL_BYTES_MAX,
};
use proptest::prelude::*;
use std::sync::Arc;
use stdx::{Hlc, NodeTag};
use wire::handshake::{
    ClusterDigest, HANDSHAKE_BYTES_MAX, HandshakeConfig, HandshakeError, JoinAcceptStep, JoinAcceptor,
    JoinDialer, JoinStep, LayoutStatement, ProtocolVersions, Secret,
};

const SECRET: &str = "a long secret";
const DIAL_NONCE: [u8; 32] = [0xd1; 32];
const ACCEPT_NONCE: [u8; 32] = [0xac; 32];

fn member() -> HandshakeConfig {
    HandshakeConfig {
        hello: PeerHello {
            node: NodeIndex(0),
            tag: NodeTag(0x1000),
            requester: Requester::Node,
            incarnation: Incarnation(1),
            clock: Hlc::ZERO,
            sync_state: SyncState::Settled,
        },
        digest: ClusterDigest::of(&["http://a:1".to_owned()], 4_096, 1),
        layout: LayoutStatement {
            cluster: ClusterId([0xc1; 16]),
            epoch: LayoutEpoch(3),
            hash: RecordHash([0xc2; 32]),
            default_from: 1,
            url: "http://a:1".to_owned(),
        },
        members: NodeSet::first(1),
        named: Arc::from([]),
        removed: Arc::from([]),
        secret: Secret::new(SECRET),
        versions: ProtocolVersions::OURS,
    }
}

fn node() -> JoiningNode {
    JoiningNode {
        id: NodeTag(0x2000),
        url: "http://b:1".to_owned(),
        zone: "west".to_owned(),
        weight: 2,
        feature_level_max: 3,
        member_url: "http://a:1".to_owned(),
    }
}

/// Outcome of a handshake: the last step of each side, and all messages.
struct Outcome {
    dialer: Result<JoinStep, HandshakeError>,
    acceptor: Result<JoinAcceptStep, HandshakeError>,
    sent: Vec<Vec<u8>>,
}

/// Runs a handshake, in which the member admits the node. `alter` receives the number and the bytes
/// of each message before it arrives.
fn shake(
    secret: &str,
    node: JoiningNode,
    member: HandshakeConfig,
    alter: impl Fn(usize, &mut Vec<u8>),
) -> Outcome {
    let (mut dialer, hello) = JoinDialer::start(Secret::new(secret), node, DIAL_NONCE);
    let mut acceptor = Some(JoinAcceptor::new(member, ACCEPT_NONCE));
    let mut outcome =
        Outcome { dialer: Ok(JoinStep::NeedMore), acceptor: Ok(JoinAcceptStep::NeedMore), sent: Vec::new() };
    let mut on_its_way = hello;
    for number in 0..4 {
        alter(number, &mut on_its_way);
        outcome.sent.push(on_its_way.clone());
        let next = match number % 2 {
            0 => {
                let mut asked = acceptor.take().expect("it waits");
                outcome.acceptor = asked.handle(&on_its_way);
                match &outcome.acceptor {
                    Ok(JoinAcceptStep::Send(bytes)) => {
                        acceptor = Some(asked);
                        bytes.clone()
                    }
                    Ok(JoinAcceptStep::Asked(_)) => asked.admit(),
                    Ok(JoinAcceptStep::NeedMore) => return outcome,
                    Err(error) => error.refusal_bytes().unwrap_or_default(),
                }
            }
            _ => {
                outcome.dialer = dialer.handle(&on_its_way);
                match &outcome.dialer {
                    Ok(JoinStep::Ask(bytes)) => bytes.clone(),
                    _ => return outcome,
                }
            }
        };
        if next.is_empty() {
            return outcome;
        }
        on_its_way = next;
    }
    outcome
}

#[test]
fn a_member_learns_what_the_node_states_and_the_node_its_cluster() {
    let outcome = shake(SECRET, node(), member(), |_, _| ());
    assert_eq!(outcome.acceptor, Ok(JoinAcceptStep::Asked(node())));
    assert_eq!(outcome.dialer, Ok(JoinStep::Done { rest: vec![] }));
    assert!(outcome.sent.iter().all(|message| message.len() <= HANDSHAKE_BYTES_MAX));
    let (mut dialer, hello) = JoinDialer::start(Secret::new(SECRET), node(), DIAL_NONCE);
    assert_eq!(dialer.member(), None);
    let Ok(JoinAcceptStep::Send(challenge)) = JoinAcceptor::new(member(), ACCEPT_NONCE).handle(&hello) else {
        panic!("no challenge")
    };
    assert!(matches!(dialer.handle(&challenge), Ok(JoinStep::Ask(_))));
    assert_eq!(dialer.member(), Some(&member().layout));
}

#[test]
fn the_bytes_behind_the_welcome_are_kept() {
    let outcome = shake(SECRET, node(), member(), |number, message| {
        if number == 3 {
            message.extend_from_slice(b"frames");
        }
    });
    assert_eq!(outcome.dialer, Ok(JoinStep::Done { rest: b"frames".to_vec() }));
}

#[test]
fn a_node_with_another_secret_states_nothing_and_a_member_accepts_nothing() {
    let outcome = shake("another secret", node(), member(), |_, _| ());
    assert_eq!(outcome.dialer, Err(HandshakeError::AnotherSecret));
    assert_eq!(outcome.sent.len(), 2, "the node has sent its hello only");
    // A node that does not look at the proof of the member.
    let (mut dialer, hello) = JoinDialer::start(Secret::new(SECRET), node(), DIAL_NONCE);
    let other = HandshakeConfig { secret: Secret::new("another secret"), ..member() };
    let Ok(JoinAcceptStep::Send(challenge)) = JoinAcceptor::new(member(), ACCEPT_NONCE).handle(&hello) else {
        panic!("no challenge")
    };
    let Ok(JoinStep::Ask(request)) = dialer.handle(&challenge) else { panic!("no request") };
    let mut acceptor = JoinAcceptor::new(other, ACCEPT_NONCE);
    acceptor.handle(&hello).expect("a hello proves nothing");
    assert_eq!(acceptor.handle(&request), Err(HandshakeError::AnotherSecret));
}

#[test]
fn no_altered_byte_makes_a_member() {
    let lengths: Vec<usize> = shake(SECRET, node(), member(), |_, _| ()).sent.iter().map(Vec::len).collect();
    for (altered, len) in lengths.into_iter().enumerate().take(3) {
        for at in 0..len {
            for bit in [0x01, 0x80] {
                let outcome = shake(SECRET, node(), member(), |number, message| {
                    if number == altered {
                        message[at] ^= bit;
                    }
                });
                let is_asked = matches!(outcome.acceptor, Ok(JoinAcceptStep::Asked(_)));
                assert!(!is_asked, "byte {at} of message {altered}");
            }
        }
    }
}

#[test]
fn a_request_is_not_valid_for_another_handshake() {
    let earlier = shake(SECRET, node(), member(), |_, _| ());
    let mut acceptor = JoinAcceptor::new(member(), [0xad; 32]);
    acceptor.handle(&earlier.sent[0]).expect("a hello proves nothing");
    assert_eq!(acceptor.handle(&earlier.sent[2]), Err(HandshakeError::AnotherSecret));
}

#[test]
fn a_node_without_a_common_protocol_is_told_so() {
    let versions = ProtocolVersions { min: 1, max: 3 };
    let outcome = shake(SECRET, node(), HandshakeConfig { versions, ..member() }, |_, _| ());
    assert!(matches!(outcome.acceptor, Err(HandshakeError::AnotherProtocol { .. })));
    assert!(matches!(outcome.dialer, Err(HandshakeError::RefusedByPeer { .. })));
}

#[test]
fn a_refusal_takes_the_place_of_a_challenge_or_a_welcome() {
    let refusal = JoinAcceptor::new(member(), ACCEPT_NONCE).refuse("no\nroom");
    let reason = "no room".to_owned();
    for instead_of in [1, 3] {
        let outcome = shake(SECRET, node(), member(), |number, message| {
            if number == instead_of {
                *message = refusal.clone();
            }
        });
        assert_eq!(outcome.dialer, Err(HandshakeError::RefusedByPeer { reason: reason.clone() }));
    }
}

/// The cluster refuses them with a sentence, so they have to arrive.
#[test]
fn texts_that_are_too_long_for_a_record_stay_too_long() {
    let long = JoiningNode {
        url: "u".repeat(5_000),
        zone: "z".repeat(5_000),
        member_url: "m".repeat(5_000),
        ..node()
    };
    let outcome = shake(SECRET, long, member(), |_, _| ());
    let Ok(JoinAcceptStep::Asked(asked)) = outcome.acceptor else { panic!("not asked") };
    let lens = [&asked.url, &asked.zone, &asked.member_url].map(String::len);
    assert_eq!(lens, [URL_BYTES_MAX + 1, cluster::ZONE_BYTES_MAX + 1, URL_BYTES_MAX + 1]);
    let lines = JoiningNode { zone: "two\nlines".to_owned(), ..node() };
    let outcome = shake(SECRET, lines, member(), |_, _| ());
    assert!(matches!(outcome.acceptor, Err(HandshakeError::Malformed { .. })));
}

proptest! {
    #[test]
    fn arbitrary_bytes_make_no_member(mut bytes: Vec<u8>, kind in 1u8..9) {
        for with_header in [false, true] {
            if with_header {
                let len = (bytes.len() as u16).to_le_bytes();
                bytes.splice(..0, [b"vHsk".as_slice(), &[kind, 0], &len].concat());
            }
            let mut acceptor = JoinAcceptor::new(member(), ACCEPT_NONCE);
            let first = acceptor.handle(&bytes);
            prop_assert!(!matches!(first, Ok(JoinAcceptStep::Asked(_))), "{:?}", first);
            if let Ok(JoinAcceptStep::Send(_)) = first {
                prop_assert!(!matches!(acceptor.handle(&bytes), Ok(JoinAcceptStep::Asked(_))));
            }
            let step = JoinDialer::start(Secret::new(SECRET), node(), DIAL_NONCE).0.handle(&bytes);
            prop_assert!(matches!(step, Err(_) | Ok(JoinStep::NeedMore)), "{:?}", step);
        }
    }
}
