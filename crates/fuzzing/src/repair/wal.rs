//! The write-ahead log: segments of groups of records.

use super::{put, put_crc, u32_at, u64_at};

const SEGMENT_HEADER: usize = 512;
const GROUP_HEADER: usize = 48;
const RECORD_HEADER: usize = 12;

/// Makes one record of all bytes.
pub fn wal_record(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(RECORD_HEADER), 0);
    let len = bytes.len();
    seal_record(&mut bytes, 0, len);
    bytes
}

fn seal_record(bytes: &mut [u8], at: usize, end: usize) {
    put(bytes, at + 4, &((end - at - RECORD_HEADER) as u32).to_le_bytes());
    put_crc(bytes, at + 4..end, at);
}

/// Repairs the header, each group and each record. A group whose first byte is 0 is an interrupted
/// write that ends the segment: it stays unchanged, with all bytes after it.
pub fn wal_segment(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(SEGMENT_HEADER), 0);
    put(&mut bytes, 0, b"vecheWAL");
    put(&mut bytes, 8, &1u32.to_le_bytes());
    put_crc(&mut bytes, 0..48, 48);
    let mut at = SEGMENT_HEADER;
    while at + GROUP_HEADER <= bytes.len() && bytes[at] != 0 {
        at = repair_group(&mut bytes, at);
    }
    bytes
}

/// Repairs the group at `at`. Returns the offset of its end.
fn repair_group(bytes: &mut [u8], at: usize) -> usize {
    let claimed = (u64_at(bytes, at + 24) as usize).min(bytes.len() - at - GROUP_HEADER);
    let records = u32_at(bytes, at + 12);
    let (mut end, group_end) = (at + GROUP_HEADER, at + GROUP_HEADER + claimed);
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let mut repaired = 0;
    while repaired < records && end + RECORD_HEADER <= group_end {
        let len = (u32_at(bytes, end + 4) as usize).min(group_end - end - RECORD_HEADER);
        let record_end = end + RECORD_HEADER + len;
        seal_record(bytes, end, record_end);
        digest.update(&bytes[end..end + 4]);
        (end, repaired) = (record_end, repaired + 1);
    }
    let epoch = u64_at(bytes, 24);
    let durable = u64_at(bytes, at + 32).min(at as u64);
    put(bytes, at, b"vGRP");
    put(bytes, at + 4, &epoch.to_le_bytes());
    put(bytes, at + 12, &repaired.to_le_bytes());
    put(bytes, at + 16, &(at as u64).to_le_bytes());
    put(bytes, at + 24, &((end - at - GROUP_HEADER) as u64).to_le_bytes());
    put(bytes, at + 32, &durable.to_le_bytes());
    put(bytes, at + 40, &(digest.finalize() as u32).to_le_bytes());
    put_crc(bytes, at..at + 44, at + 44);
    end
}
