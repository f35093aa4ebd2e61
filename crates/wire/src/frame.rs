//! Frames: a header, followed by whole messages or by a fragment of one.
//!
//! ```text
//!  0  4  CRC32C of all following bytes, payload included
//!  4  2  magic
//!  6  1  protocol version
//!  7  1  kind: 1 messages, 2 fragment
//!  8  8  the sender's version clock
//! 16  4  length of the payload
//! 20     payload
//! ```

use crate::{PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, WireError};
use crc_fast::crc32_iscsi;
use stdx::Hlc;

/// Length of a frame's header in bytes.
pub const FRAME_HEADER_LEN: usize = 20;

/// Maximum length of a frame's payload in bytes.
pub const FRAME_PAYLOAD_MAX: usize = 64 << 10;

/// Magic bytes of every frame; as text: `vF`.
const MAGIC: u16 = u16::from_le_bytes(*b"vF");

/// Offset of the first byte that the checksum covers.
const CHECKED_FROM: usize = 4;

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameContent {
    /// Whole messages, each preceded by its length.
    Messages = 1,
    /// A fragment of one message.
    Fragment = 2,
}

/// A frame whose checksum matched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: FrameContent,
    /// Version of the protocol that the frame is encoded in.
    pub(crate) version: u8,
    pub(crate) clock: Hlc,
    pub(crate) payload: &'a [u8],
}

/// Appends a frame with the payload that `put` appends.
pub(crate) fn put_frame(
    out: &mut Vec<u8>,
    version: u8,
    kind: FrameContent,
    clock: Hlc,
    put: impl FnOnce(&mut Vec<u8>),
) {
    let begin = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_LEN]);
    put(out);
    let frame = &mut out[begin..];
    let payload_len = frame.len() - FRAME_HEADER_LEN;
    assert!(payload_len <= FRAME_PAYLOAD_MAX, "a payload of {payload_len} bytes exceeds the limit");
    frame[4..6].copy_from_slice(&MAGIC.to_le_bytes());
    frame[6] = version;
    frame[7] = kind as u8;
    frame[8..16].copy_from_slice(&clock.to_bits().to_le_bytes());
    frame[16..20].copy_from_slice(&(payload_len as u32).to_le_bytes());
    let crc = crc32_iscsi(&frame[CHECKED_FROM..]);
    frame[..CHECKED_FROM].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes the frame at the start of `bytes`. `None`: the frame is incomplete.
///
/// # Errors
/// [`WireError`]. A damaged header is detected before the payload has arrived.
pub(crate) fn first_frame(bytes: &[u8]) -> Result<Option<Frame<'_>>, WireError> {
    let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER_LEN>() else { return Ok(None) };
    let magic = u16::from_le_bytes([header[4], header[5]]);
    if magic != MAGIC {
        return Err(WireError::Magic { found: magic });
    }
    if !(PROTOCOL_VERSION_MIN..=PROTOCOL_VERSION).contains(&header[6]) {
        return Err(WireError::Version { found: header[6] });
    }
    let [.., a, b, c, d] = *header;
    let payload_len = u32::from_le_bytes([a, b, c, d]) as usize;
    if payload_len > FRAME_PAYLOAD_MAX {
        return Err(WireError::FrameLength { bytes: payload_len });
    }
    let Some(payload) = rest.get(..payload_len) else { return Ok(None) };
    let [e, f, g, h, ..] = *header;
    if crc32_iscsi(&bytes[CHECKED_FROM..FRAME_HEADER_LEN + payload_len]) != u32::from_le_bytes([e, f, g, h]) {
        return Err(WireError::Checksum);
    }
    let kind = match header[7] {
        1 => FrameContent::Messages,
        2 => FrameContent::Fragment,
        kind => return Err(WireError::FrameKind { kind }),
    };
    let clock = u64::from_le_bytes(*header[8..].first_chunk().expect("a header is longer than that"));
    Ok(Some(Frame { kind, version: header[6], clock: Hlc::from_bits(clock), payload }))
}
