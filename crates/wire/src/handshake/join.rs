//! The handshake of a node that asks to be a member.
//!
//! **Promise.** After it each side knows that the other one holds the same secret. The joining node
//! knows the cluster of the member before it states anything, and the member knows the statement of
//! the joining node unaltered. Neither is valid on another connection.
//!
//! **Mechanism.** The joining node has no slot and no layout record, so it cannot make a link. It
//! upgrades a connection to [`upgrade::JOIN_PROTOCOL`](crate::upgrade::JOIN_PROTOCOL):
//!
//! ```text
//! joining node                              member
//!   Hello { versions, nonce }        ->
//!                                    <-      Challenge { versions, nonce, record }, Proof
//!   Request { id, URL, .. }, Proof   ->
//!                                    <-      Welcome, and then the layout record
//! ```
//!
//! The proofs are those of a [link](super), with labels of their own. The member answers the
//! request once the layout record is decided that has the node as a member, and sends that record
//! in the frames of a link. `Refused` may take the place of any message of the member. A reason
//! that begins with [`JOIN_LATER`](super::refusal::JOIN_LATER) holds for the moment, others until
//! an operator has acted.
//!
//! ```text
//!  0  1  Hello: oldest version of the protocol that the node speaks
//!  1  1  newest version
//!  2 32  nonce
//!
//!  0  1  Challenge: oldest version of the protocol that the member speaks
//!  1  1  newest version
//!  2 32  nonce
//! 34     statement of its layout record and its address
//!
//!  0  8  Request: identity of the node's data directory
//!  8  4  greatest feature level of the layout records that it carries out
//! 12  2  weight
//! 14  2  length of the URL
//! 16  2  length of the zone
//! 18  2  length of the URL at which it has reached the member
//! 20     the URL, then the zone, then the URL of the member
//! ```

use super::framing::{HEADER_LEN, HandshakeBuffer, HandshakeMessageKind, pack, refused};
use super::hello::split_proof;
use super::layout::{LAYOUTS_SINCE, LayoutStatement};
use super::secret::{PROOF_LEN, ProofSender, Secret};
use super::{HandshakeConfig, HandshakeError, NONCE_LEN, ProtocolVersions};
use cluster::{JoiningNode, URL_BYTES_MAX, ZONE_BYTES_MAX};
use stdx::NodeTag;
use stdx::codec::{Reader, Truncated};

/// The side of the joining node. After an error it must not be used any more.
#[derive(Debug)]
pub struct JoinDialer {
    secret: Secret,
    node: JoiningNode,
    hello: Vec<u8>,
    buffer: HandshakeBuffer,
    /// The member's statement, and the common version, once the member is authenticated.
    member: Option<(LayoutStatement, u8)>,
}

/// Next step of a joining node.
#[derive(Debug, PartialEq, Eq)]
pub enum JoinStep {
    /// More bytes are needed.
    NeedMore,
    /// The member has proved that it belongs to the cluster in [`JoinDialer::member`]. Send these
    /// bytes, which ask for the membership, then feed more.
    Ask(Vec<u8>),
    /// The node is a member.
    Done {
        /// Bytes received after the handshake, which are the first ones for the inbox.
        rest: Vec<u8>,
    },
}

impl JoinDialer {
    /// Starts a handshake with a member. Also returns the first bytes to send. The nonce must be
    /// random and used for this handshake only.
    pub fn start(secret: Secret, node: JoiningNode, nonce: [u8; NONCE_LEN]) -> (Self, Vec<u8>) {
        let ProtocolVersions { min: _, max } = ProtocolVersions::OURS;
        let body = [&[LAYOUTS_SINCE, max], nonce.as_slice()].concat();
        let hello = pack(HandshakeMessageKind::JoinHello, &body);
        let dialer =
            Self { secret, node, hello: hello.clone(), buffer: HandshakeBuffer::default(), member: None };
        (dialer, hello)
    }

    /// Handles bytes that the member sent.
    ///
    /// # Errors
    /// [`HandshakeError`]: close the connection.
    pub fn handle(&mut self, bytes: &[u8]) -> Result<JoinStep, HandshakeError> {
        self.buffer.feed(bytes);
        if self.member.is_none() {
            return match self.buffer.take_only(HandshakeMessageKind::JoinChallenge)? {
                None => Ok(JoinStep::NeedMore),
                Some(message) => self.handle_challenge(&message),
            };
        }
        match self.buffer.take(HandshakeMessageKind::Welcome)? {
            None => Ok(JoinStep::NeedMore),
            Some(welcome) if welcome.len() > HEADER_LEN => {
                Err(HandshakeError::Malformed { what: "a welcome with a body" })
            }
            Some(_) => Ok(JoinStep::Done { rest: std::mem::take(&mut self.buffer).into_rest() }),
        }
    }

    /// The layout record and the address of the member, once it is authenticated.
    pub fn member(&self) -> Option<&LayoutStatement> {
        self.member.as_ref().map(|(statement, _)| statement)
    }

    fn handle_challenge(&mut self, message: &[u8]) -> Result<JoinStep, HandshakeError> {
        let (challenge, proof) =
            split_proof(message).filter(|(challenge, _)| challenge.len() >= HEADER_LEN).ok_or(SHORT)?;
        if !self.secret.verify(ProofSender::JoinAccept, &self.hello, challenge, proof) {
            return Err(HandshakeError::AnotherSecret);
        }
        let mut reader = Reader::new(&challenge[HEADER_LEN..]);
        let theirs = versions(&mut reader)?;
        let version = own_versions().common(theirs).ok_or(HandshakeError::AnotherProtocol { theirs })?;
        reader.bytes(NONCE_LEN).map_err(short)?;
        let statement = LayoutStatement::read(&mut reader).map_err(short)?.ok_or(IMPOSSIBLE)?;
        if !reader.is_empty() {
            return Err(IMPOSSIBLE);
        }
        self.member = Some((statement, version));
        let mut body = request(&self.node);
        let sender = ProofSender::JoinDial { request: &body };
        let proof = self.secret.prove(sender, &self.hello, challenge);
        body.extend_from_slice(&proof);
        Ok(JoinStep::Ask(pack(HandshakeMessageKind::JoinRequest, &body)))
    }
}

/// The side of the member. After an error it must not be used any more.
#[derive(Debug)]
pub struct JoinAcceptor {
    local: HandshakeConfig,
    nonce: [u8; NONCE_LEN],
    buffer: HandshakeBuffer,
    /// The hello of the node, and the challenge without its proof, once they were exchanged.
    exchanged: Option<(Vec<u8>, Vec<u8>)>,
    /// Version of the protocol, once it is agreed upon.
    version: u8,
}

/// Next step of a member.
#[derive(Debug, PartialEq, Eq)]
pub enum JoinAcceptStep {
    /// More bytes are needed.
    NeedMore,
    /// Send these bytes, then feed more.
    Send(Vec<u8>),
    /// The node has proved that it holds the secret, and asks to be a member. Call
    /// [`JoinAcceptor::admit`] or [`JoinAcceptor::refuse`].
    Asked(JoiningNode),
}

impl JoinAcceptor {
    /// Creates the side of a member. The nonce must be random and used for this handshake only.
    pub fn new(local: HandshakeConfig, nonce: [u8; NONCE_LEN]) -> Self {
        let version = local.versions.max;
        Self { local, nonce, buffer: HandshakeBuffer::default(), exchanged: None, version }
    }

    /// Handles bytes that the joining node sent.
    ///
    /// # Errors
    /// [`HandshakeError`]: send the error's refusal, then close the connection.
    pub fn handle(&mut self, bytes: &[u8]) -> Result<JoinAcceptStep, HandshakeError> {
        self.buffer.feed(bytes);
        let Some((hello, challenge)) = &self.exchanged else {
            return match self.buffer.take_only(HandshakeMessageKind::JoinHello)? {
                None => Ok(JoinAcceptStep::NeedMore),
                Some(hello) => self.challenge(hello),
            };
        };
        let Some(message) = self.buffer.take_only(HandshakeMessageKind::JoinRequest)? else {
            return Ok(JoinAcceptStep::NeedMore);
        };
        let (request, proof) = split_proof(&message[HEADER_LEN..]).ok_or(HandshakeError::AnotherSecret)?;
        if !self.local.secret.verify(ProofSender::JoinDial { request }, hello, challenge, proof) {
            return Err(HandshakeError::AnotherSecret);
        }
        Ok(JoinAcceptStep::Asked(read_request(request)?))
    }

    fn challenge(&mut self, hello: Vec<u8>) -> Result<JoinAcceptStep, HandshakeError> {
        let mut reader = Reader::new(&hello[HEADER_LEN..]);
        let theirs = versions(&mut reader)?;
        let ours = self.local.versions;
        self.version = ours.common(theirs).ok_or(HandshakeError::AnotherProtocol { theirs })?;
        reader.bytes(NONCE_LEN).map_err(short)?;
        if !reader.is_empty() {
            return Err(IMPOSSIBLE);
        }
        let mut body = [&[ours.min, ours.max], self.nonce.as_slice()].concat();
        self.local.layout.put(&mut body);
        body.extend_from_slice(&[0; PROOF_LEN]);
        let mut message = pack(HandshakeMessageKind::JoinChallenge, &body);
        let challenge = message[..message.len() - PROOF_LEN].to_vec();
        let proof = self.local.secret.prove(ProofSender::JoinAccept, &hello, &challenge);
        message[challenge.len()..].copy_from_slice(&proof);
        self.exchanged = Some((hello, challenge));
        Ok(JoinAcceptStep::Send(message))
    }

    /// Version of the protocol in whose frames the record is sent, once the node has asked.
    pub const fn version(&self) -> u8 {
        self.version
    }

    /// The bytes that tell the node that it is a member. The record follows them.
    ///
    /// # Panics
    /// If the node has not asked.
    pub fn admit(self) -> Vec<u8> {
        assert!(self.exchanged.is_some(), "only a node that has asked is admitted");
        pack(HandshakeMessageKind::Welcome, &[])
    }

    /// The bytes to send before the connection is closed.
    pub fn refuse(self, reason: &str) -> Vec<u8> {
        refused(reason)
    }
}

/// The versions of the protocol that have layout records.
const fn own_versions() -> ProtocolVersions {
    ProtocolVersions { min: LAYOUTS_SINCE, ..ProtocolVersions::OURS }
}

/// Encodes a request. Text that is too long for a record is cut: the member refuses the rest.
fn request(node: &JoiningNode) -> Vec<u8> {
    let JoiningNode { id, url, zone, weight, feature_level_max, member_url } = node;
    let cut = |text: &str, max: usize| text[..text.floor_char_boundary(max + 1)].to_owned();
    let texts = [cut(url, URL_BYTES_MAX), cut(zone, ZONE_BYTES_MAX), cut(member_url, URL_BYTES_MAX)];
    let mut out = Vec::new();
    out.extend_from_slice(&id.0.to_le_bytes());
    out.extend_from_slice(&feature_level_max.to_le_bytes());
    out.extend_from_slice(&weight.to_le_bytes());
    texts.iter().for_each(|text| out.extend_from_slice(&(text.len() as u16).to_le_bytes()));
    texts.iter().for_each(|text| out.extend_from_slice(text.as_bytes()));
    out
}

fn read_request(bytes: &[u8]) -> Result<JoiningNode, HandshakeError> {
    let mut reader = Reader::new(bytes);
    let mut fields = || {
        let id = NodeTag(reader.u64()?);
        let feature_level_max = reader.u32()?;
        let weight = reader.u16()?;
        let lens = [reader.u16()?, reader.u16()?, reader.u16()?];
        let mut texts = [const { None }; 3];
        for (found, len) in texts.iter_mut().zip(lens) {
            *found = text(reader.bytes(len.into())?);
        }
        let [Some(url), Some(zone), Some(member_url)] = texts else { return Ok(None) };
        let node = JoiningNode { id, url, zone, weight, feature_level_max, member_url };
        Ok::<_, Truncated>(Some(node).filter(|_| reader.is_empty()))
    };
    fields().map_err(short)?.ok_or(IMPOSSIBLE)
}

/// One line of text.
fn text(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.contains(char::is_control)).then(|| text.to_owned())
}

fn versions(reader: &mut Reader<'_>) -> Result<ProtocolVersions, HandshakeError> {
    let mut read = || Ok::<_, Truncated>(ProtocolVersions { min: reader.u8()?, max: reader.u8()? });
    read().map_err(short)
}

const SHORT: HandshakeError = HandshakeError::Malformed { what: "a short message" };
const IMPOSSIBLE: HandshakeError = HandshakeError::Malformed { what: "an impossible message of a join" };

const fn short(Truncated: Truncated) -> HandshakeError {
    SHORT
}
