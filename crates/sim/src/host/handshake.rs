//! The shipped handshake between a dialer and an acceptor.

use crate::host::process::HostProcess;
use cluster::{NodeIndex, PeerHello, Requester};
use std::sync::Arc;
use stdx::Rng;
use wire::handshake::{
    AcceptStep, Acceptor, ClusterDigest, DialStep, Dialer, HandshakeConfig, HandshakeError, NONCE_LEN,
    ProtocolVersions, Secret,
};

/// Versions of the protocol of a release without the agreement on layout records.
pub(super) const OLD_VERSIONS: ProtocolVersions = ProtocolVersions { max: 3, ..ProtocolVersions::OURS };

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
        layout: process.statement.clone(),
        members: process.member.layout.members(),
        named: Arc::clone(&process.named),
        removed: Arc::clone(&process.removed),
        secret: Secret::new(*b"known to all hosts of this world"),
        versions: process.versions,
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
    /// acceptor's hello message, and the version of the protocol that both speak.
    pub(crate) fn admit(self) -> Result<(PeerHello, u8), HandshakeError> {
        let Self { mut dialer, acceptor } = self;
        let (welcome, _) = acceptor.admit();
        match dialer.handle(&welcome)? {
            DialStep::Done { hello, .. } => Ok((hello, dialer.version())),
            step => unreachable!("a welcome is the end of a handshake: {step:?}"),
        }
    }
}
