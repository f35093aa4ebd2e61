//! Tables: frames that the tail and the indexes refer to.

use super::{put, put_crc, u32_at, u64_at};
use std::ops::Range;

const HEADER: usize = 24;
const TAIL: usize = 48;
/// Bytes of a frame's trailer: tag, length before compression, checksum.
const TRAILER: usize = 9;
/// Bytes after the entries of an index: number of entries, number of columns, length of the prefix.
const INDEX_TRAILER: usize = 7;
/// Maximum size of a block after decompression, in bytes. A fuzzer is meant to find faults, not
/// large allocations.
const RAW_BYTES_MAX: u32 = 1 << 20;
const DATA: u8 = 1;
const INDEX: u8 = 2;
const FILTER: u8 = 3;
const META: u8 = 4;

/// Repairs the header, the tail, and each frame that the indexes refer to.
pub fn table(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(HEADER + TAIL), 0);
    let tail = bytes.len() - TAIL;
    let id: [u8; 8] = bytes[tail + 24..tail + 32].try_into().expect("eight bytes");
    put(&mut bytes, 0, b"vechesst");
    // Version 2 stays version 2: it has more to verify.
    let format = if u32_at(&bytes, tail + 36) == 2 { 2u32 } else { 1 };
    put(&mut bytes, 8, &format.to_le_bytes());
    put(&mut bytes, 12, &id);
    put_crc(&mut bytes, 0..20, 20);
    let extent_at = |at: usize| {
        let (offset, len) = (u64_at(&bytes, at), u32_at(&bytes, at + 8));
        let (start, end) = (offset, offset.saturating_add(u64::from(len)));
        (start, end)
    };
    let (top, meta) = (extent_at(tail), extent_at(tail + 12));
    let mut file = File { bytes, id: u64::from_le_bytes(id), limit: tail };
    file.seal(meta, META);
    let mut partition = HEADER as u64;
    for columns in file.index(top, 3) {
        let [filter, index, end] = columns[..] else { continue };
        if filter < index {
            file.seal((filter, index), FILTER);
        }
        let mut start = partition;
        for columns in file.index((index, end), 1) {
            file.seal((start, columns[0]), DATA);
            start = columns[0];
        }
        partition = end;
    }
    // Last, because a frame may have overlapped it.
    let mut bytes = file.bytes;
    put_crc(&mut bytes, tail..tail + 32, tail + 32);
    put(&mut bytes, tail + 36, &format.to_le_bytes());
    put(&mut bytes, tail + 40, b"vechesst");
    bytes
}

struct File {
    bytes: Vec<u8>,
    id: u64,
    /// Offset of the tail.
    limit: usize,
}

impl File {
    /// Repairs the frame between two offsets. Returns the range of its payload, if it is not
    /// compressed.
    fn seal(&mut self, (start, end): (u64, u64), kind: u8) -> Option<Range<usize>> {
        let (start, end) = (usize::try_from(start).ok()?, usize::try_from(end).ok()?);
        if start < HEADER || end > self.limit || end.checked_sub(start)? < TRAILER {
            return None;
        }
        let payload = start..end - TRAILER;
        let codec = self.bytes[payload.end] & 0x0f;
        let raw_len = match codec {
            0 => payload.len() as u32,
            _ => u32_at(&self.bytes, payload.end + 1).min(RAW_BYTES_MAX),
        };
        self.bytes[payload.end] = kind << 4 | codec;
        put(&mut self.bytes, payload.end + 1, &raw_len.to_le_bytes());
        let mask =
            (self.id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ start as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let crc = crc_fast::crc32_iscsi(&self.bytes[start..end - 4]) ^ (mask >> 32) as u32;
        put(&mut self.bytes, end - 4, &crc.to_le_bytes());
        (codec == 0).then_some(payload)
    }

    /// Repairs the frame of an index. Returns the numbers of its entries, as far as they can be
    /// decoded.
    fn index(&mut self, extent: (u64, u64), columns: usize) -> Vec<Vec<u64>> {
        let Some(payload) = self.seal(extent, INDEX) else { return Vec::new() };
        let Some(trailer) = payload.end.checked_sub(INDEX_TRAILER).filter(|at| *at >= payload.start) else {
            return Vec::new();
        };
        let entries = u32_at(&self.bytes, trailer) as usize;
        let numbers = payload.start.saturating_add(entries.saturating_mul(12));
        let number = |nth: usize| {
            let at = numbers.checked_add(nth * 8).filter(|at| at + 8 <= trailer)?;
            Some(u64_at(&self.bytes, at))
        };
        let entry = |entry: usize| (0..columns).map(|column| number(entry * columns + column)).collect();
        (0..entries).map_while(entry).collect()
    }
}
