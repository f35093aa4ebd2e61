//! The layout record: a magic number, a format version that follows from the feature level, and a
//! checksum at the end.

use super::{put, put_crc};

/// Magic number, format version, id of the cluster, epoch, parent hash and feature level.
const HEADER: usize = 72;
const FEATURE_LEVEL: usize = 68;
/// The first feature level whose records have format 2.
const LEVEL_OF_PLANS: u8 = 3;
const CHECKSUM: usize = 4;

/// Repairs the magic number, the format version and the checksum.
pub fn layout_record(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(HEADER + CHECKSUM), 0);
    put(&mut bytes, 0, b"vechelay");
    let format: u32 = if bytes[FEATURE_LEVEL] >= LEVEL_OF_PLANS { 2 } else { 1 };
    put(&mut bytes, 8, &format.to_le_bytes());
    let end = bytes.len() - CHECKSUM;
    put_crc(&mut bytes, 0..end, end);
    bytes
}
