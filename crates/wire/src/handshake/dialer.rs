//! The dialing side of a handshake.

use super::framing::{HEADER_LEN, HandshakeBuffer, HandshakeMessageKind, pack};
use super::hello::{AcceptorHello, dialer_hello, dialer_statement, read_acceptor, split_proof};
use super::secret::ProofSender;
use super::{HandshakeConfig, HandshakeError, LayoutStatement, NONCE_LEN, RemovalProof};
use cluster::{NodeIndex, PeerHello};

/// The dialing side of a handshake. After an error it must not be used any more.
#[derive(Debug)]
pub struct Dialer {
    local: HandshakeConfig,
    expected: NodeIndex,
    /// The hello that was sent.
    hello: Vec<u8>,
    /// The acceptor's hello without its proof, once it is authenticated.
    accept: Vec<u8>,
    buffer: HandshakeBuffer,
    /// The authenticated peer.
    peer: Option<PeerHello>,
    /// Version of the protocol: the oldest one until the acceptor's hello has arrived.
    version: u8,
    /// The acceptor's statement of its layout record.
    statement: Option<LayoutStatement>,
}

/// Next step of a dialer.
#[derive(Debug, PartialEq, Eq)]
pub enum DialStep {
    /// More bytes are needed.
    NeedMore,
    /// Send these bytes, then feed more.
    Send(Vec<u8>),
    /// The link is open.
    Done {
        /// The authenticated peer.
        hello: PeerHello,
        /// Bytes received after the handshake, which are the first ones for the inbox.
        rest: Vec<u8>,
    },
}

impl Dialer {
    /// Starts a handshake with the node `expected`. Also returns the first bytes to send. The nonce
    /// must be random and used for this handshake only.
    pub fn start(local: HandshakeConfig, expected: NodeIndex, nonce: [u8; NONCE_LEN]) -> (Self, Vec<u8>) {
        let hello = dialer_hello(&local, &nonce);
        let version = local.versions.min;
        let buffer = HandshakeBuffer::default();
        let dialer = Self {
            local,
            expected,
            hello: hello.clone(),
            accept: Vec::new(),
            buffer,
            peer: None,
            version,
            statement: None,
        };
        (dialer, hello)
    }

    /// Handles bytes that the acceptor sent.
    ///
    /// # Errors
    /// [`HandshakeError`]: send the error's refusal, then close the connection.
    pub fn handle(&mut self, bytes: &[u8]) -> Result<DialStep, HandshakeError> {
        self.buffer.feed(bytes);
        match self.peer {
            None => match self.buffer.take_only(HandshakeMessageKind::AcceptorHello)? {
                None => Ok(DialStep::NeedMore),
                Some(message) => self.handle_hello(&message),
            },
            Some(hello) => match self.take_welcome()? {
                None => Ok(DialStep::NeedMore),
                Some(welcome) if welcome.len() > HEADER_LEN => {
                    Err(HandshakeError::Malformed { what: "a welcome with a body" })
                }
                Some(_) => Ok(DialStep::Done { hello, rest: std::mem::take(&mut self.buffer).into_rest() }),
            },
        }
    }

    /// Version of the protocol that both sides speak, once the link is open.
    pub const fn version(&self) -> u8 {
        self.version
    }

    /// The layout record and the address of the acceptor, once the link is open. `None` before
    /// version 4.
    pub const fn statement(&self) -> Option<&LayoutStatement> {
        self.statement.as_ref()
    }

    fn take_welcome(&mut self) -> Result<Option<Vec<u8>>, HandshakeError> {
        let taken = self.buffer.take(HandshakeMessageKind::Welcome);
        if let (Err(HandshakeError::RefusedByPeer { reason }), Some(theirs)) = (&taken, &self.statement)
            && RemovalProof::is_in(reason, &self.local.secret, &self.hello, &self.accept)
        {
            return Err(HandshakeError::RemovedByPeer { epoch: theirs.epoch });
        }
        taken
    }

    fn handle_hello(&mut self, message: &[u8]) -> Result<DialStep, HandshakeError> {
        let (hello, proof) =
            split_proof(message).filter(|(hello, _)| hello.len() >= HEADER_LEN).ok_or(NO_PROOF)?;
        let AcceptorHello { peer, version, statement } = read_acceptor(hello, &self.local)?;
        let HandshakeConfig { secret, layout, named, removed, .. } = &self.local;
        if !secret.verify(ProofSender::Accept, &self.hello, hello, proof) {
            return Err(HandshakeError::AnotherSecret);
        }
        if peer.node != self.expected {
            return Err(HandshakeError::WrongNode { expected: self.expected, found: peer.node });
        }
        if let Some(theirs) = &statement {
            layout.check_removed(removed, &peer, || None)?;
            layout.check_identity(named, &peer, theirs)?;
        }
        self.accept = hello.to_vec();
        self.peer = Some(peer);
        self.version = version;
        self.statement = statement;
        let mut body = dialer_statement(&self.local, version);
        let proof = secret.prove(ProofSender::Dial { statement: &body }, &self.hello, hello);
        body.extend_from_slice(&proof);
        Ok(DialStep::Send(pack(HandshakeMessageKind::Proof, &body)))
    }
}

const NO_PROOF: HandshakeError = HandshakeError::Malformed { what: "a hello without proof" };
