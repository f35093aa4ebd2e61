//! Framing of the handshake messages.
//!
//! ```text
//!  0  4  magic
//!  4  1  kind: 1 dialer's hello, 2 acceptor's hello, 3 proof, 4 welcome, 5 refused; of a join
//!        6 hello, 7 challenge, 8 request
//!  5  1  zero
//!  6  2  length of the body
//!  8     body
//! ```

use super::HandshakeError;

/// Maximum length of a handshake message in bytes.
pub const HANDSHAKE_BYTES_MAX: usize = 4 << 10;

/// Length of a message's header in bytes.
pub(super) const HEADER_LEN: usize = 8;

const MAGIC: [u8; 4] = *b"vHsk";

/// Maximum number of bytes of a reason that are sent.
const REASON_BYTES_MAX: usize = 1_024;

/// Kind of a handshake message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum HandshakeMessageKind {
    DialerHello = 1,
    AcceptorHello = 2,
    Proof = 3,
    Welcome = 4,
    Refused = 5,
    JoinHello = 6,
    JoinChallenge = 7,
    JoinRequest = 8,
}

/// Encodes a message.
pub(super) fn pack(kind: HandshakeMessageKind, body: &[u8]) -> Vec<u8> {
    let len = HEADER_LEN + body.len();
    assert!(len <= HANDSHAKE_BYTES_MAX, "a handshake message of {len} bytes exceeds the limit");
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[kind as u8, 0]);
    bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Encodes a refusal with its reason.
pub(super) fn refused(reason: &str) -> Vec<u8> {
    pack(HandshakeMessageKind::Refused, &reason.as_bytes()[..reason.floor_char_boundary(REASON_BYTES_MAX)])
}

/// Buffer of received handshake bytes.
#[derive(Debug, Default)]
pub(super) struct HandshakeBuffer {
    bytes: Vec<u8>,
}

impl HandshakeBuffer {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the first message, header included, which must be of this kind. `None`: it is
    /// incomplete.
    pub(super) fn take(&mut self, kind: HandshakeMessageKind) -> Result<Option<Vec<u8>>, HandshakeError> {
        let begins_right = self.bytes.iter().zip(MAGIC).all(|(byte, magic)| *byte == magic);
        if !begins_right {
            return Err(HandshakeError::Malformed { what: "it begins with wrong bytes" });
        }
        let Some(&[_, _, _, _, found, zero, low, high]) = self.bytes.first_chunk() else { return Ok(None) };
        let len = HEADER_LEN + usize::from(u16::from_le_bytes([low, high]));
        if zero != 0 || len > HANDSHAKE_BYTES_MAX {
            return Err(HandshakeError::Malformed { what: "a message exceeds the limit" });
        }
        if found != kind as u8 && found != HandshakeMessageKind::Refused as u8 {
            return Err(HandshakeError::Malformed { what: "a message out of turn" });
        }
        if self.bytes.len() < len {
            return Ok(None);
        }
        let rest = self.bytes.split_off(len);
        let message = std::mem::replace(&mut self.bytes, rest);
        match found == HandshakeMessageKind::Refused as u8 {
            true => Err(HandshakeError::RefusedByPeer { reason: printable(&message[HEADER_LEN..]) }),
            false => Ok(Some(message)),
        }
    }

    /// Like [`HandshakeBuffer::take`], for a message after which the other side sends nothing until
    /// it is answered.
    pub(super) fn take_only(
        &mut self,
        kind: HandshakeMessageKind,
    ) -> Result<Option<Vec<u8>>, HandshakeError> {
        let message = self.take(kind)?;
        match message.is_some() && !self.bytes.is_empty() {
            true => Err(HandshakeError::Malformed { what: "a message out of turn" }),
            false => Ok(message),
        }
    }

    /// The bytes behind the handshake.
    pub(super) fn into_rest(self) -> Vec<u8> {
        self.bytes
    }
}

/// Replaces control characters in text from outside, so that it can be logged.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().take(REASON_BYTES_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
