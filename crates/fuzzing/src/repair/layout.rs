//! The layout record: a magic number, a format version, and a checksum at the end.

use super::{put, put_crc};

const HEADER: usize = 12;
const CHECKSUM: usize = 4;

/// Repairs the magic number, the format version and the checksum.
pub fn layout_record(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(HEADER + CHECKSUM), 0);
    put(&mut bytes, 0, b"vechelay");
    put(&mut bytes, 8, &1u32.to_le_bytes());
    let end = bytes.len() - CHECKSUM;
    put_crc(&mut bytes, 0..end, end);
    bytes
}
