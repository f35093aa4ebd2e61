//! The side that dials.

use super::hello::{dialer_hello, read, split_proof};
use super::parcel::{HEADER_LEN, Kind, Parcels, pack};
use super::secret::Direction;
use super::{HandshakeError, Local, NONCE_LEN};
use cluster::{NodeIndex, PeerHello};

/// The side that dials. After an error it is of no more use.
#[derive(Debug)]
pub struct Dialer {
    local: Local,
    expected: NodeIndex,
    /// The message that it began with.
    hello: Vec<u8>,
    parcels: Parcels,
    /// Who answered, once that is proved.
    peer: Option<PeerHello>,
    /// Of the protocol, as far as is known.
    version: u8,
}

/// What a dialer wants next.
#[derive(Debug, PartialEq, Eq)]
pub enum DialStep {
    /// More bytes.
    NeedMore,
    /// These bytes sent; then more bytes.
    Send(Vec<u8>),
    /// Nothing more: the link is open.
    Done {
        /// Who is at the other end.
        hello: PeerHello,
        /// What came behind the handshake: the first bytes for the inbox.
        rest: Vec<u8>,
    },
}

impl Dialer {
    /// Dials the node `expected`; with the first bytes to send. The nonce is drawn for this handshake alone.
    pub fn start(local: Local, expected: NodeIndex, nonce: [u8; NONCE_LEN]) -> (Self, Vec<u8>) {
        let hello = dialer_hello(&local, &nonce);
        let version = local.versions.min;
        let parcels = Parcels::default();
        let dialer = Self { local, expected, hello: hello.clone(), parcels, peer: None, version };
        (dialer, hello)
    }

    /// Takes in what the acceptor sent.
    ///
    /// # Errors
    /// [`HandshakeError`]: the connection is to be closed, after the error's refusal has been sent.
    pub fn handle(&mut self, bytes: &[u8]) -> Result<DialStep, HandshakeError> {
        self.parcels.feed(bytes);
        match self.peer {
            None => match self.parcels.take_only(Kind::AcceptorHello)? {
                None => Ok(DialStep::NeedMore),
                Some(message) => self.answered(&message),
            },
            Some(hello) => match self.parcels.take(Kind::Welcome)? {
                None => Ok(DialStep::NeedMore),
                Some(welcome) if welcome.len() > HEADER_LEN => {
                    Err(HandshakeError::Malformed { what: "a welcome with a body" })
                }
                Some(_) => Ok(DialStep::Done { hello, rest: std::mem::take(&mut self.parcels).into_rest() }),
            },
        }
    }

    /// The version of the protocol that both sides speak, once the link is open.
    pub const fn version(&self) -> u8 {
        self.version
    }

    fn answered(&mut self, message: &[u8]) -> Result<DialStep, HandshakeError> {
        let (hello, proof) =
            split_proof(message).filter(|(hello, _)| hello.len() >= HEADER_LEN).ok_or(NO_PROOF)?;
        let (peer, version) = read(hello, &self.local)?;
        let Local { secret, .. } = &self.local;
        if !secret.verify(Direction::Accept, &self.hello, hello, proof) {
            return Err(HandshakeError::AnotherSecret);
        }
        if peer.node != self.expected {
            return Err(HandshakeError::WrongNode { expected: self.expected, found: peer.node });
        }
        self.peer = Some(peer);
        self.version = version;
        Ok(DialStep::Send(pack(Kind::Proof, &secret.prove(Direction::Dial, &self.hello, hello))))
    }
}

const NO_PROOF: HandshakeError = HandshakeError::Malformed { what: "a hello without proof" };
