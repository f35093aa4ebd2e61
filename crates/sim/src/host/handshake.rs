//! The shipped handshake between a dialer and an acceptor.

use crate::host::process::HostProcess;
use cluster::{DialFailure, JoiningNode, NodeIndex, PeerHello, Requester};
use std::sync::Arc;
use stdx::Rng;
use wire::handshake::{
    AcceptStep, Acceptor, ClusterDigest, DialStep, Dialer, HandshakeConfig, HandshakeError, JoinAcceptStep,
    JoinAcceptor, JoinDialer, JoinStep, NONCE_LEN, ProtocolVersions, Secret, refusal,
};

/// Secret of all hosts.
const SECRET: &[u8] = b"known to all hosts of this world";

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
        secret: Secret::new(SECRET),
        versions: process.versions,
    }
}

/// Why a dialer has no link after this error, as in the server.
pub(crate) fn failure_of(error: &HandshakeError) -> DialFailure {
    match error {
        HandshakeError::RefusedByPeer { reason } if reason == refusal::NOT_YET => DialFailure::Refused,
        HandshakeError::RemovedByPeer { epoch } => DialFailure::Removed { epoch: *epoch },
        _ => DialFailure::Rejected,
    }
}

/// Exchanges the messages by which a node asks a member to make it a member too. Returns the
/// request as the member knows it.
pub(crate) fn ask_to_join(
    node: JoiningNode,
    member: HandshakeConfig,
    rng: &mut Rng,
) -> Result<JoiningNode, HandshakeError> {
    let (mut dialer, first) = JoinDialer::start(Secret::new(SECRET), node, nonce(rng));
    let mut acceptor = JoinAcceptor::new(member, nonce(rng));
    let mut to_acceptor = first;
    loop {
        let to_dialer = match acceptor.handle(&to_acceptor)? {
            JoinAcceptStep::Asked(node) => return Ok(node),
            JoinAcceptStep::Send(bytes) => bytes,
            JoinAcceptStep::NeedMore => unreachable!("whole messages are handed over"),
        };
        to_acceptor = match dialer.handle(&to_dialer)? {
            JoinStep::Ask(bytes) => bytes,
            step => unreachable!("the member has not answered yet: {step:?}"),
        };
    }
}

fn nonce(rng: &mut Rng) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    rng.fill(&mut nonce);
    nonce
}

impl PendingHandshake {
    /// Exchanges messages up to the decision of the acceptor's node. Returns the dialer's hello
    /// message too, or the error of the dialer if a side refuses the other one.
    pub(crate) fn new(
        dialer: HandshakeConfig,
        acceptor: HandshakeConfig,
        expected: NodeIndex,
        rng: &mut Rng,
    ) -> Result<(Self, PeerHello), HandshakeError> {
        let (mut dialer, first) = Dialer::start(dialer, expected, nonce(rng));
        let mut acceptor = Acceptor::new(acceptor, nonce(rng));
        let mut to_acceptor = first;
        loop {
            let to_dialer = match acceptor.handle(&to_acceptor) {
                Ok(AcceptStep::Authenticated(hello)) => return Ok((Self { dialer, acceptor }, hello)),
                Ok(AcceptStep::Send(bytes)) => bytes,
                Ok(AcceptStep::NeedMore) => unreachable!("whole messages are handed over"),
                Err(error) => {
                    let refused = error.refusal_bytes().and_then(|bytes| dialer.handle(&bytes).err());
                    return Err(refused.unwrap_or(error));
                }
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
