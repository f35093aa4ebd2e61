//! Links between nodes.

use super::{halves, split_number};
use cluster::{
    ClusterId, Incarnation, LayoutEpoch, NodeIndex, NodeSet, PeerHello, RecordHash, Requester, SyncState,
};
use std::sync::Arc;
use stdx::{Hlc, NodeTag};
use wire::handshake::{
    AcceptStep, Acceptor, ClusterDigest, DialStep, Dialer, HandshakeConfig, LayoutStatement,
    ProtocolVersions, Secret,
};
use wire::{Inbox, InboxLimits, Incoming, WireError};

const LIMITS: InboxLimits = InboxLimits { fragmented_bytes_max: 1 << 20 };

/// Receives any bytes on a link, split in two at any position: no panic, and the split changes
/// nothing.
///
/// The bytes are tried as they are, as the payload of a frame with a correct checksum, and with
/// further bytes after that frame.
pub fn inbox(bytes: &[u8]) {
    let (at, bytes) = split_number(bytes);
    let (kind, bytes) = bytes.split_first().map_or((0, bytes), |(kind, rest)| (*kind, rest));
    let sealed = frame(kind, bytes);
    for bytes in [bytes, &sealed, &[&sealed[..], bytes].concat()] {
        assert_eq!(incoming(&[bytes]), incoming(&halves(bytes, at)));
    }
}

/// Returns the messages of `pieces`, which arrive in order, and the error that ends them.
fn incoming(pieces: &[&[u8]]) -> (Vec<Incoming>, Option<WireError>) {
    let mut inbox = Inbox::new(LIMITS);
    let mut all = Vec::new();
    for piece in pieces {
        inbox.feed(piece);
        loop {
            match inbox.next() {
                Ok(Some(came)) => all.push(came),
                Ok(None) => break,
                Err(error) => return (all, Some(error)),
            }
        }
    }
    (all, None)
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 4];
    frame.extend_from_slice(&[b'v', b'F', 1, 1 + kind % 2]);
    frame.extend_from_slice(&[0; 8]);
    frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    frame.extend_from_slice(payload);
    let crc = crc_fast::crc32_iscsi(&frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
    frame
}

/// Payloads of frames, one for each first byte.
pub fn inbox_seeds() -> Vec<Vec<u8>> {
    (0..48u8).map(|kind| [&[9, 0, kind % 2, kind][..], &[kind; 40]].concat()).collect()
}

/// Receives any bytes on either side of a handshake: no panic, and no peer is authenticated.
pub fn handshake(bytes: &[u8]) {
    let (at, bytes) = split_number(bytes);
    let (kind, bytes) = bytes.split_first().map_or((0, bytes), |(kind, rest)| (*kind, rest));
    let [first, second] = halves(bytes, at);
    let sealed = message(kind, first);
    for first in [first, &sealed] {
        let mut acceptor = Acceptor::new(local(1), [1; 32]);
        let mut dialer = Dialer::start(local(0), NodeIndex(1), [0; 32]).0;
        for bytes in [first, second] {
            assert!(!matches!(acceptor.handle(bytes), Ok(AcceptStep::Authenticated(_))));
            assert!(!matches!(dialer.handle(bytes), Ok(DialStep::Done { .. })));
        }
    }
    let _ = wire::upgrade::parse_response(first);
}

fn local(node: u8) -> HandshakeConfig {
    HandshakeConfig {
        hello: PeerHello {
            node: NodeIndex(node),
            tag: NodeTag(1),
            requester: Requester::Node,
            incarnation: Incarnation(1),
            clock: Hlc::ZERO,
            sync_state: SyncState::Settled,
        },
        digest: ClusterDigest::of(&["a".to_owned(), "b".to_owned()], 16, 1),
        layout: LayoutStatement {
            cluster: ClusterId([1; 16]),
            epoch: LayoutEpoch::FIRST,
            hash: RecordHash([2; 32]),
            default_from: 2,
            url: "http://a:1".to_owned(),
        },
        members: NodeSet::first(2),
        named: Arc::from([]),
        removed: Arc::from([]),
        secret: Secret::new("secret"),
        versions: ProtocolVersions::OURS,
    }
}

/// Returns a message of this kind with `bytes` as its body.
fn message(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let len = (bytes.len() as u16).to_le_bytes();
    [b"vHsk".as_slice(), &[1 + kind % 5, 0], &len, bytes].concat()
}

/// Bodies of each kind, and the hello of an acceptor without its proof: with it, an input could be
/// the recorded answer to the dialer.
pub fn handshake_seeds() -> Vec<Vec<u8>> {
    let bodies = (0..5u8).map(|kind| [&[200, 0, kind][..], &[kind; 120]].concat());
    let response =
        b"\xff\xff\0HTTP/1.1 101 Switching Protocols\r\nupgrade: veche\r\nconnection: upgrade\r\n\r\n";
    let (_, hello) = Dialer::start(local(0), NodeIndex(1), [0; 32]);
    let Ok(AcceptStep::Send(mut answer)) = Acceptor::new(local(1), [1; 32]).handle(&hello) else {
        unreachable!("both are of one cluster")
    };
    let proof_at = answer.len() - 32;
    answer[proof_at..].fill(0);
    let answer = [&[255, 255, 1], &answer[8..]].concat();
    bodies.chain([response.to_vec(), answer]).collect()
}
