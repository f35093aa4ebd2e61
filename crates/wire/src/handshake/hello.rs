//! Hellos: the fields with which each side introduces itself.
//!
//! ```text
//!  0  1  oldest version of the protocol that it speaks
//!  1  1  newest; the newest common version defines the fields from here on
//!  2  8  hash of the list of nodes
//! 10  1  number of nodes
//! 11  4  partitions
//! 15  4  version of the hash of keys
//! 19  1  node
//! 20  8  identity
//! 28  2  requester
//! 30  8  incarnation
//! 38  8  version clock
//! 46  1  sync state
//! 47 32  nonce
//! 79     since version 4, in the acceptor's hello: its statement of its layout record
//! ```

use super::framing::{HEADER_LEN, HandshakeMessageKind, pack};
use super::layout::{LAYOUTS_SINCE, LayoutStatement, STATEMENT_LEN_MAX};
use super::secret::PROOF_LEN;
use super::{ClusterDigest, HandshakeConfig, HandshakeError, NONCE_LEN, ProtocolVersions};
use crate::message::fields::{
    requester_from_number, requester_to_number, sync_state_from_number, sync_state_to_number,
};
use cluster::{Incarnation, LayoutEpoch, NODES_MAX, NodeIndex, PeerHello};
use stdx::codec::{Reader, Truncated};
use stdx::{Hlc, NodeTag};

/// Length of a hello in bytes.
const HELLO_LEN: usize = 47 + NONCE_LEN;

/// Encodes a dialer's hello as a message.
pub(super) fn dialer_hello(local: &HandshakeConfig, nonce: &[u8; NONCE_LEN]) -> Vec<u8> {
    pack(HandshakeMessageKind::DialerHello, &body(local, nonce))
}

/// Encodes an acceptor's hello as a message, with zeros in place of its proof.
pub(super) fn acceptor_hello(local: &HandshakeConfig, nonce: &[u8; NONCE_LEN], version: u8) -> Vec<u8> {
    let mut body = body(local, nonce);
    if version >= LAYOUTS_SINCE {
        local.layout.put(&mut body);
    }
    body.extend_from_slice(&[0; PROOF_LEN]);
    pack(HandshakeMessageKind::AcceptorHello, &body)
}

/// Splits an acceptor's hello into the message without its proof, and the proof.
pub(super) fn split_proof(message: &[u8]) -> Option<(&[u8], &[u8; PROOF_LEN])> {
    message.split_last_chunk()
}

fn body(local: &HandshakeConfig, nonce: &[u8; NONCE_LEN]) -> Vec<u8> {
    let ProtocolVersions { min, max } = local.versions;
    let mut out = Vec::with_capacity(HELLO_LEN + STATEMENT_LEN_MAX + PROOF_LEN);
    out.extend_from_slice(&[min, max]);
    out.extend_from_slice(&local.digest.list.to_le_bytes());
    out.push(local.digest.nodes);
    out.extend_from_slice(&local.digest.partitions.to_le_bytes());
    out.extend_from_slice(&local.digest.hash_version.to_le_bytes());
    out.push(local.hello.node.0);
    out.extend_from_slice(&local.hello.tag.0.to_le_bytes());
    out.extend_from_slice(&requester_to_number(local.hello.requester).to_le_bytes());
    out.extend_from_slice(&local.hello.incarnation.0.to_le_bytes());
    out.extend_from_slice(&local.hello.clock.to_bits().to_le_bytes());
    out.push(sync_state_to_number(local.hello.sync_state));
    out.extend_from_slice(nonce);
    out
}

/// Decodes the dialer's hello in `message` and checks it against `local`. Returns it with the
/// version of the protocol that both nodes speak. The caller verifies its proof.
pub(super) fn read_dialer(
    message: &[u8],
    local: &HandshakeConfig,
) -> Result<(PeerHello, u8), HandshakeError> {
    let mut reader = Reader::new(&message[HEADER_LEN..]);
    let read = read(&mut reader, local)?;
    if reader.is_empty() { Ok(read) } else { Err(IMPOSSIBLE) }
}

/// The content of an acceptor's hello.
pub(super) struct AcceptorHello {
    pub(super) peer: PeerHello,
    /// Version of the protocol that both nodes speak.
    pub(super) version: u8,
    /// The acceptor's layout record. `None` before version 4.
    pub(super) statement: Option<LayoutStatement>,
}

/// As [`read_dialer`], for the acceptor's hello. Since version 4 it also states the acceptor's
/// layout record, which is compared with that of `local`.
pub(super) fn read_acceptor(
    message: &[u8],
    local: &HandshakeConfig,
) -> Result<AcceptorHello, HandshakeError> {
    let mut reader = Reader::new(&message[HEADER_LEN..]);
    let (peer, version) = read(&mut reader, local)?;
    let mut statement = None;
    if version >= LAYOUTS_SINCE {
        let theirs = LayoutStatement::read(&mut reader).map_err(short)?.ok_or(IMPOSSIBLE)?;
        local.layout.check(&theirs)?;
        statement = Some(theirs);
    }
    if reader.is_empty() { Ok(AcceptorHello { peer, version, statement }) } else { Err(IMPOSSIBLE) }
}

/// Encodes the dialer's statement of its layout record, which its proof carries. Empty before
/// version 4.
pub(super) fn dialer_statement(local: &HandshakeConfig, version: u8) -> Vec<u8> {
    let mut statement = Vec::new();
    if version >= LAYOUTS_SINCE {
        local.layout.put(&mut statement);
    }
    statement
}

/// Decodes the dialer's statement. `None` before version 4.
pub(super) fn read_statement(bytes: &[u8], version: u8) -> Result<Option<LayoutStatement>, HandshakeError> {
    let mut reader = Reader::new(bytes);
    let statement = match version >= LAYOUTS_SINCE {
        true => Some(LayoutStatement::read(&mut reader).map_err(short)?.ok_or(IMPOSSIBLE)?),
        false => None,
    };
    if reader.is_empty() { Ok(statement) } else { Err(IMPOSSIBLE) }
}

/// Decodes the fields of all versions, up to the nonce.
fn read(reader: &mut Reader<'_>, local: &HandshakeConfig) -> Result<(PeerHello, u8), HandshakeError> {
    let theirs = versions(reader).map_err(short)?;
    let common = local.versions.common(theirs).ok_or(match theirs.max < local.versions.min {
        true if local.layout.epoch > LayoutEpoch::FIRST => {
            HandshakeError::TooOldForRecord { epoch: local.layout.epoch, needed: local.versions.min, theirs }
        }
        _ => HandshakeError::AnotherProtocol { theirs },
    })?;
    let theirs = digest(reader).map_err(short)?;
    let hello = peer(reader).map_err(short)?.ok_or(IMPOSSIBLE)?;
    reader.bytes(NONCE_LEN).map_err(short)?;
    if hello.node.as_usize() >= NODES_MAX {
        return Err(IMPOSSIBLE);
    }
    let is_own = hello.node == local.hello.node;
    // Since version 4 the layout records are compared, and tell whether the slot has a member.
    let has_records = common >= LAYOUTS_SINCE;
    if theirs != local.digest && (!has_records || is_own) {
        return Err(HandshakeError::AnotherList { ours: local.digest, theirs });
    }
    if !has_records && !local.members.contains(hello.node) {
        return Err(IMPOSSIBLE);
    }
    match is_own {
        true => Err(HandshakeError::SameNode { node: local.hello.node }),
        false => Ok((hello, common)),
    }
}

const IMPOSSIBLE: HandshakeError = HandshakeError::Malformed { what: "an impossible hello" };

fn short(Truncated: Truncated) -> HandshakeError {
    HandshakeError::Malformed { what: "a short hello" }
}

fn versions(reader: &mut Reader<'_>) -> Result<ProtocolVersions, Truncated> {
    Ok(ProtocolVersions { min: reader.u8()?, max: reader.u8()? })
}

fn digest(reader: &mut Reader<'_>) -> Result<ClusterDigest, Truncated> {
    Ok(ClusterDigest {
        list: reader.u64()?,
        nodes: reader.u8()?,
        partitions: reader.u32()?,
        hash_version: reader.u32()?,
    })
}

/// Decodes the peer's fields. `None`: the requester or the sync state is invalid.
fn peer(reader: &mut Reader<'_>) -> Result<Option<PeerHello>, Truncated> {
    let node = NodeIndex(reader.u8()?);
    let tag = NodeTag(reader.u64()?);
    let requester = requester_from_number(reader.u16()?);
    let incarnation = Incarnation(reader.u64()?);
    let clock = Hlc::from_bits(reader.u64()?);
    let sync_state = sync_state_from_number(reader.u8()?);
    Ok(requester.zip(sync_state).map(|(requester, sync_state)| PeerHello {
        node,
        tag,
        requester,
        incarnation,
        clock,
        sync_state,
    }))
}
