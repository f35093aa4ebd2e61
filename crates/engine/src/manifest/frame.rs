//! Frames: the units in which a manifest is written and verified.
//!
//! A frame is valid when its checksum matches. The checksum also covers the number of the manifest
//! and the offset: intact bytes in the wrong place are not valid.

use crc_fast::{CrcAlgorithm, Digest};

/// Length of a frame header in bytes: checksum, payload length, kind.
pub(super) const HEADER_BYTES: usize = 4 + 4 + 1;
/// Greatest length of a payload, in bytes.
pub(super) const PAYLOAD_BYTES_MAX: usize = 256 << 20;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManifestFrameKind {
    /// An encoded edit.
    Edit = 1,
    /// Mark without payload: everything before it is durable.
    Mark = 2,
}

/// A valid frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ManifestFrame<'a> {
    pub(super) kind: ManifestFrameKind,
    pub(super) payload: &'a [u8],
}

impl ManifestFrame<'_> {
    /// Length of the frame in the file, in bytes.
    pub(super) fn len(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }
}

/// Appends a frame for `offset` in manifest `number`; `write` appends its payload.
pub(super) fn put(
    out: &mut Vec<u8>,
    number: u64,
    offset: u64,
    kind: ManifestFrameKind,
    write: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    write(out);
    let payload_bytes = out.len() - start - HEADER_BYTES;
    assert!(payload_bytes <= PAYLOAD_BYTES_MAX, "an edit of {payload_bytes} bytes");
    out[start + 4..start + 8].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
    out[start + 8] = kind as u8;
    let checksum = checksum(&out[start + 4..], number, offset);
    out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// Decodes the frame at the start of `bytes`, which are at `offset` of manifest `number`; `None`
/// when it is not valid.
pub(super) fn at(bytes: &[u8], number: u64, offset: u64) -> Option<ManifestFrame<'_>> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let [c0, c1, c2, c3, l0, l1, l2, l3, kind] = *header;
    let kind = match kind {
        1 => ManifestFrameKind::Edit,
        2 => ManifestFrameKind::Mark,
        _ => return None,
    };
    let payload_bytes = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let payload = rest.get(..payload_bytes).filter(|_| payload_bytes <= PAYLOAD_BYTES_MAX)?;
    let matches = checksum(&bytes[4..HEADER_BYTES + payload_bytes], number, offset)
        == u32::from_le_bytes([c0, c1, c2, c3]);
    matches.then_some(ManifestFrame { kind, payload })
}

fn checksum(bytes: &[u8], number: u64, offset: u64) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&number.to_le_bytes());
    digest.update(&offset.to_le_bytes());
    digest.update(bytes);
    digest.finalize() as u32
}
