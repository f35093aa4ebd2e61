//! The layout record and the file of votes: a magic number, a format version, and a checksum at the
//! end.

use super::{put, put_crc};

const HEADER: usize = 12;
const CHECKSUM: usize = 4;

/// Repairs the magic number, the format version and the checksum of a layout record.
pub fn layout_record(bytes: &[u8]) -> Vec<u8> {
    sealed(bytes, b"vechelay")
}

/// Repairs the magic number, the format version and the checksum of a file of votes.
pub fn votes(bytes: &[u8]) -> Vec<u8> {
    sealed(bytes, b"vechevot")
}

fn sealed(bytes: &[u8], magic: &[u8; 8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(HEADER + CHECKSUM), 0);
    put(&mut bytes, 0, magic);
    put(&mut bytes, 8, &1u32.to_le_bytes());
    let end = bytes.len() - CHECKSUM;
    put_crc(&mut bytes, 0..end, end);
    bytes
}
