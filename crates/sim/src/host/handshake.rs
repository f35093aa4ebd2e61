//! The shipped handshake between a dialer and an acceptor.

use crate::host::process::HostProcess;
use cluster::{ClusterId, LayoutEpoch, NodeIndex, PeerHello, RecordHash, Requester};
use std::sync::Arc;
use stdx::Rng;
use wire::handshake::{
    AcceptStep, Acceptor, ClusterDigest, DialStep, Dialer, HandshakeConfig, HandshakeError, LayoutStatement,
    NONCE_LEN, ProtocolVersions, Secret,
};

/// The layout record of every host: simulated clusters stay in epoch 1.
const LAYOUT: LayoutStatement = LayoutStatement {
    cluster: ClusterId([1; 16]),
    epoch: LayoutEpoch::FIRST,
    hash: RecordHash([1; 32]),
    default_from: 1,
    url: String::new(),
};

/// A handshake that waits for the decision of the acceptor's node.
pub(crate) struct PendingHandshake {
    dialer: Dialer,
    acceptor: Acceptor,
}

/// Local side of a handshake of a state machine.
pub(crate) fn local(
    process: &HostProcess,
    requester: Requester,
    names: &[String],
    partitions: u32,
) -> HandshakeConfig {
    let member = &process.member;
    HandshakeConfig {
        hello: PeerHello {
            node: member.me,
            tag: member.tag,
            requester,
            incarnation: member.incarnation,
            clock: member.clock.shown(),
            sync_state: process.node.status().sync_state.in_hello(),
        },
        digest: ClusterDigest::of(names, partitions, store::HASH_VERSION),
        layout: LAYOUT,
        named: Arc::from([]),
        secret: Secret::new(*b"known to all hosts of this world"),
        versions: ProtocolVersions::OURS,
    }
}

impl PendingHandshake {
    /// Exchanges messages up to the decision of the acceptor's node. Returns the dialer's hello
    /// message too.
    pub(crate) fn new(
        dialer: HandshakeConfig,
        acceptor: HandshakeConfig,
        expected: NodeIndex,
        rng: &mut Rng,
    ) -> Result<(Self, PeerHello), HandshakeError> {
        let mut nonce = || {
            let mut nonce = [0; NONCE_LEN];
            rng.fill(&mut nonce);
            nonce
        };
        let (mut dialer, first) = Dialer::start(dialer, expected, nonce());
        let mut acceptor = Acceptor::new(acceptor, nonce());
        let mut to_acceptor = first;
        loop {
            let to_dialer = match acceptor.handle(&to_acceptor)? {
                AcceptStep::Authenticated(hello) => return Ok((Self { dialer, acceptor }, hello)),
                AcceptStep::Send(bytes) => bytes,
                AcceptStep::NeedMore => unreachable!("whole messages are handed over"),
            };
            to_acceptor = match dialer.handle(&to_dialer)? {
                DialStep::Send(bytes) => bytes,
                step => unreachable!("the acceptor has not sent a welcome: {step:?}"),
            };
        }
    }

    /// Completes the handshake after the acceptor's node has admitted the link. Returns the
    /// acceptor's hello message.
    pub(crate) fn admit(self) -> Result<PeerHello, HandshakeError> {
        let Self { mut dialer, acceptor } = self;
        let (welcome, _) = acceptor.admit();
        match dialer.handle(&welcome)? {
            DialStep::Done { hello, .. } => Ok(hello),
            step => unreachable!("a welcome is the end of a handshake: {step:?}"),
        }
    }
}
