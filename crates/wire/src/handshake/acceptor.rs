//! The accepting side of a handshake.

use super::framing::{HEADER_LEN, HandshakeBuffer, HandshakeMessageKind, pack, refused};
use super::hello::{acceptor_hello, read_dialer, read_statement, split_proof};
use super::secret::{PROOF_LEN, ProofSender};
use super::{HandshakeConfig, HandshakeError, LayoutStatement, NONCE_LEN, RemovalProof};
use cluster::{PeerHello, Requester};

/// The accepting side of a handshake. After an error it must not be used any more.
#[derive(Debug)]
pub struct Acceptor {
    local: HandshakeConfig,
    nonce: [u8; NONCE_LEN],
    buffer: HandshakeBuffer,
    state: State,
    /// Version of the protocol: the oldest one until the dialer's hello has arrived.
    version: u8,
    /// The dialer's statement of its layout record.
    statement: Option<LayoutStatement>,
}

#[derive(Debug)]
enum State {
    /// Waits for the dialer's hello.
    AwaitingHello,
    /// The acceptor's hello was sent, and the dialer's proof is outstanding.
    AwaitingProof { peer: PeerHello, dial: Vec<u8>, accept: Vec<u8> },
    /// The dialer has proved its hello.
    Authenticated,
}

/// Next step of an acceptor.
#[derive(Debug, PartialEq, Eq)]
pub enum AcceptStep {
    /// More bytes are needed.
    NeedMore,
    /// Send these bytes, then feed more.
    Send(Vec<u8>),
    /// The dialer is authenticated. Call [`Acceptor::admit`] or [`Acceptor::refuse`].
    Authenticated(PeerHello),
}

impl Acceptor {
    /// Creates an acceptor that waits for a dialer. The nonce must be random and used for this
    /// handshake only.
    pub fn new(local: HandshakeConfig, nonce: [u8; NONCE_LEN]) -> Self {
        let local =
            HandshakeConfig { hello: PeerHello { requester: Requester::Node, ..local.hello }, ..local };
        let version = local.versions.min;
        Self {
            local,
            nonce,
            buffer: HandshakeBuffer::default(),
            state: State::AwaitingHello,
            version,
            statement: None,
        }
    }

    /// Handles bytes that the dialer sent. Bytes after its proof are kept for [`Acceptor::admit`].
    ///
    /// # Errors
    /// [`HandshakeError`]: send the error's refusal, then close the connection.
    pub fn handle(&mut self, bytes: &[u8]) -> Result<AcceptStep, HandshakeError> {
        self.buffer.feed(bytes);
        match &self.state {
            State::AwaitingHello => match self.buffer.take_only(HandshakeMessageKind::DialerHello)? {
                None => Ok(AcceptStep::NeedMore),
                Some(message) => self.challenge(message),
            },
            State::AwaitingProof { peer, dial, accept } => {
                match self.buffer.take(HandshakeMessageKind::Proof)? {
                    None => Ok(AcceptStep::NeedMore),
                    Some(message) => {
                        let (statement, proof) =
                            split_proof(&message[HEADER_LEN..]).ok_or(HandshakeError::AnotherSecret)?;
                        let HandshakeConfig { secret, layout, members, named, removed, .. } = &self.local;
                        if !secret.verify(ProofSender::Dial { statement }, dial, accept, proof) {
                            return Err(HandshakeError::AnotherSecret);
                        }
                        let peer = *peer;
                        let statement = read_statement(statement, self.version)?;
                        if let Some(theirs) = &statement {
                            let proof = || Some(RemovalProof::new(secret, dial, accept));
                            layout.check_removed(removed, &peer, proof)?;
                            layout.check_member(*members, &peer, theirs)?;
                            layout.check_identity(named, &peer, theirs)?;
                        }
                        self.statement = statement;
                        self.state = State::Authenticated;
                        Ok(AcceptStep::Authenticated(peer))
                    }
                }
            }
            State::Authenticated => Ok(AcceptStep::NeedMore),
        }
    }

    fn challenge(&mut self, dial: Vec<u8>) -> Result<AcceptStep, HandshakeError> {
        let (peer, version) = read_dialer(&dial, &self.local)?;
        self.version = version;
        let mut message = acceptor_hello(&self.local, &self.nonce, version);
        let hello_len = message.len() - PROOF_LEN;
        let proof = self.local.secret.prove(ProofSender::Accept, &dial, &message[..hello_len]);
        message[hello_len..].copy_from_slice(&proof);
        self.state = State::AwaitingProof { peer, dial, accept: message[..hello_len].to_vec() };
        Ok(AcceptStep::Send(message))
    }

    /// Version of the protocol that both sides speak, once the dialer is authenticated.
    pub const fn version(&self) -> u8 {
        self.version
    }

    /// The layout record and the address of the dialer, once it is authenticated. `None` before
    /// version 4.
    pub const fn statement(&self) -> Option<&LayoutStatement> {
        self.statement.as_ref()
    }

    /// Admits the link. Returns the bytes to send, and the bytes received after the handshake,
    /// which are the first ones for the inbox.
    ///
    /// # Panics
    /// If the dialer is not authenticated.
    pub fn admit(self) -> (Vec<u8>, Vec<u8>) {
        assert!(matches!(self.state, State::Authenticated), "only an authenticated dialer is admitted");
        (pack(HandshakeMessageKind::Welcome, &[]), self.buffer.into_rest())
    }

    /// Refuses the link. Returns the bytes to send before the connection is closed.
    pub fn refuse(self, reason: &str) -> Vec<u8> {
        refused(reason)
    }
}
