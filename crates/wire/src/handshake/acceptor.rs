//! The side that was dialed.

use super::hello::{acceptor_hello, read};
use super::parcel::{HEADER_LEN, Kind, Parcels, pack, refused};
use super::secret::{Direction, PROOF_LEN};
use super::{HandshakeError, Local, NONCE_LEN};
use cluster::{PeerHello, Requester};

/// The side that was dialed. After an error it is of no more use.
#[derive(Debug)]
pub struct Acceptor {
    local: Local,
    nonce: [u8; NONCE_LEN],
    parcels: Parcels,
    state: State,
    /// Of the protocol, as far as is known.
    version: u8,
}

#[derive(Debug)]
enum State {
    /// The dialer has said nothing yet.
    Listens,
    /// It has said who it is, and is to prove it.
    Challenged { peer: PeerHello, dial: Vec<u8>, accept: Vec<u8> },
    /// It has proved it.
    Arrived,
}

/// What an acceptor wants next.
#[derive(Debug, PartialEq, Eq)]
pub enum AcceptStep {
    /// More bytes.
    NeedMore,
    /// These bytes sent; then more bytes.
    Send(Vec<u8>),
    /// To be told whether the link is let in: [`Acceptor::admit`] or [`Acceptor::refuse`].
    Arrived(PeerHello),
}

impl Acceptor {
    /// Waits for a dialer. The nonce is drawn for this handshake alone.
    pub fn new(local: Local, nonce: [u8; NONCE_LEN]) -> Self {
        let local = Local { hello: PeerHello { requester: Requester::Node, ..local.hello }, ..local };
        let version = local.versions.min;
        Self { local, nonce, parcels: Parcels::default(), state: State::Listens, version }
    }

    /// Takes in what the dialer sent. What comes after it arrived is kept for [`Acceptor::admit`].
    ///
    /// # Errors
    /// [`HandshakeError`]: the connection is to be closed, after the error's refusal has been sent.
    pub fn handle(&mut self, bytes: &[u8]) -> Result<AcceptStep, HandshakeError> {
        self.parcels.feed(bytes);
        match &self.state {
            State::Listens => match self.parcels.take_only(Kind::DialerHello)? {
                None => Ok(AcceptStep::NeedMore),
                Some(message) => self.challenge(message),
            },
            State::Challenged { peer, dial, accept } => match self.parcels.take(Kind::Proof)? {
                None => Ok(AcceptStep::NeedMore),
                Some(proof) => {
                    if !self.local.secret.verify(Direction::Dial, dial, accept, &proof[HEADER_LEN..]) {
                        return Err(HandshakeError::AnotherSecret);
                    }
                    let peer = *peer;
                    self.state = State::Arrived;
                    Ok(AcceptStep::Arrived(peer))
                }
            },
            State::Arrived => Ok(AcceptStep::NeedMore),
        }
    }

    fn challenge(&mut self, dial: Vec<u8>) -> Result<AcceptStep, HandshakeError> {
        let (peer, version) = read(&dial, &self.local)?;
        self.version = version;
        let mut message = acceptor_hello(&self.local, &self.nonce);
        let hello_len = message.len() - PROOF_LEN;
        let proof = self.local.secret.prove(Direction::Accept, &dial, &message[..hello_len]);
        message[hello_len..].copy_from_slice(&proof);
        self.state = State::Challenged { peer, dial, accept: message[..hello_len].to_vec() };
        Ok(AcceptStep::Send(message))
    }

    /// The version of the protocol that both sides speak, once the dialer has arrived.
    pub const fn version(&self) -> u8 {
        self.version
    }

    /// Lets the link in: what to send, and what came behind the handshake, the first bytes for the inbox.
    ///
    /// # Panics
    /// When the dialer has not arrived.
    pub fn admit(self) -> (Vec<u8>, Vec<u8>) {
        assert!(matches!(self.state, State::Arrived), "only who has proved to belong here is let in");
        (pack(Kind::Welcome, &[]), self.parcels.into_rest())
    }

    /// Does not let the link in: what to send before the connection is closed.
    pub fn refuse(self, reason: &str) -> Vec<u8> {
        refused(reason)
    }
}
