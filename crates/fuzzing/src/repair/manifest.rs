//! The manifest: a header, then frames.

use super::{put, put_crc, u32_at, u64_at};
use crc_fast::{CrcAlgorithm, Digest};

const HEADER: usize = 24;
const FRAME_HEADER: usize = 9;

/// Repairs the header and each frame. A frame of kind 0 ends the manifest and stays unchanged.
pub fn manifest(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(HEADER), 0);
    put(&mut bytes, 0, b"vechemft");
    put(&mut bytes, 8, &1u32.to_le_bytes());
    put_crc(&mut bytes, 0..20, 20);
    let number = u64_at(&bytes, 12);
    let mut at = HEADER;
    while at + FRAME_HEADER <= bytes.len() && bytes[at + 8] != 0 {
        let rest = bytes.len() - at - FRAME_HEADER;
        let len = (u32_at(&bytes, at + 4) as usize).min(rest);
        put(&mut bytes, at + 4, &(len as u32).to_le_bytes());
        bytes[at + 8] = 1 + (bytes[at + 8] - 1) % 2;
        let end = at + FRAME_HEADER + len;
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&number.to_le_bytes());
        digest.update(&(at as u64).to_le_bytes());
        digest.update(&bytes[at + 4..end]);
        put(&mut bytes, at, &(digest.finalize() as u32).to_le_bytes());
        at = end;
    }
    bytes
}
