//! Corrects the checksums of arbitrary bytes, as far as they resemble a file of a format.
//!
//! The layouts are those of `docs/storage-format/`. A repair changes checksums, magic numbers, and
//! the fields that locate a part in its file. All other bytes stay as the fuzzer made them. A
//! repair never fails: it stops where no part begins.

mod layout;
mod manifest;
mod table;
mod wal;

pub use layout::{layout_record, votes};
pub use manifest::manifest;
pub use table::table;
pub use wal::{wal_record, wal_segment};

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

fn put_crc(bytes: &mut [u8], covered: std::ops::Range<usize>, at: usize) {
    let crc = crc_fast::crc32_iscsi(&bytes[covered]);
    put(bytes, at, &crc.to_le_bytes());
}
