//! The layout record and the file of votes: a magic number, a format version, and a checksum at the
//! end. The format of a layout record follows from its feature level.

use super::{put, put_crc};

/// Position of the feature level of a record, after magic number, format version, id of the
/// cluster, epoch and parent hash.
const FEATURE_LEVEL: usize = 68;
/// The first feature level whose records have format 2.
const LEVEL_OF_PLANS: u8 = 3;
const CHECKSUM: usize = 4;

/// Repairs the magic number, the format version and the checksum of a layout record.
pub fn layout_record(bytes: &[u8]) -> Vec<u8> {
    let has_plans = bytes.get(FEATURE_LEVEL).is_some_and(|level| *level >= LEVEL_OF_PLANS);
    sealed(bytes, b"vechelay", if has_plans { 2 } else { 1 })
}

/// Repairs the magic number, the format version and the checksum of a file of votes.
pub fn votes(bytes: &[u8]) -> Vec<u8> {
    sealed(bytes, b"vechevot", 1)
}

fn sealed(bytes: &[u8], magic: &[u8; 8], format: u32) -> Vec<u8> {
    const HEADER: usize = 12;
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(HEADER + CHECKSUM), 0);
    put(&mut bytes, 0, magic);
    put(&mut bytes, 8, &format.to_le_bytes());
    let end = bytes.len() - CHECKSUM;
    put_crc(&mut bytes, 0..end, end);
    bytes
}
