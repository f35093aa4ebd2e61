//! Any bytes at either side of a handshake: no panic, and nobody is let in.
#![no_main]

use cluster::{Asker, Incarnation, NodeIndex, PeerHello, Standing};
use stdx::{Hlc, NodeTag};
use wire::handshake::{AcceptStep, Acceptor, ClusterDigest, DialStep, Dialer, Local, ProtocolVersions, Secret};

fn local(node: u8) -> Local {
    Local {
        hello: PeerHello {
            node: NodeIndex(node),
            tag: NodeTag(1),
            asker: Asker::Node,
            incarnation: Incarnation(1),
            clock: Hlc::ZERO,
            standing: Standing::Settled,
        },
        digest: ClusterDigest::of(&["a".to_owned(), "b".to_owned()], 16, 1),
        secret: Secret::new("secret"),
        versions: ProtocolVersions::OURS,
    }
}

/// `bytes` as the body of a message of this kind.
fn message(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let len = (bytes.len() as u16).to_le_bytes();
    [b"vHsk".as_slice(), &[1 + kind % 5, 0], &len, bytes].concat()
}

libfuzzer_sys::fuzz_target!(|input: (u8, &[u8], &[u8])| {
    let (kind, first, second) = input;
    let sealed = message(kind, first);
    for first in [first, &sealed] {
        let mut acceptor = Acceptor::new(local(1), [1; 32]);
        let mut dialer = Dialer::start(local(0), NodeIndex(1), [0; 32]).0;
        for bytes in [first, second] {
            assert!(!matches!(acceptor.handle(bytes), Ok(AcceptStep::Arrived(_))));
            assert!(!matches!(dialer.handle(bytes), Ok(DialStep::Done { .. })));
        }
    }
    let _ = wire::upgrade::parse_response(first);
});
