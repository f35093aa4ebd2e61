//! The frame around every block on disk: compression, length, checksum.
//!
//! ```text
//! payload | tag u8 | raw length u32 | checksum u32
//! ```
//!
//! The tag is the kind of the block (upper four bits) and its compression (lower four). The checksum is the
//! CRC32C of all before it, with a hash of the table's id and the block's offset mixed in: an intact block
//! that stands where another belongs does not match.

use super::block::Malformed;
use super::compress::{Codec, Compressor, decompress};
use super::meta::TableId;
use std::borrow::Cow;
use std::io;

/// What a frame adds to its payload, in bytes.
pub(super) const FRAME_BYTES: usize = 9;
/// No block is larger before compression.
pub(super) const RAW_BYTES_MAX: usize = 1 << 30;

/// What is in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    Data = 1,
    Index = 2,
    Filter = 3,
    Meta = 4,
}

/// Where a frame belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) table: TableId,
    pub(super) offset: u64,
}

impl Place {
    /// 32 bits that another place shares with a probability of 2^-32.
    pub(super) fn mask(self) -> u32 {
        let mixed = (self.table.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.offset)
            .wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> 32) as u32
    }
}

/// Appends the frame of `raw` to `out`.
pub(super) fn seal(
    out: &mut Vec<u8>,
    kind: FrameKind,
    place: Place,
    raw: &[u8],
    compressor: &mut Compressor,
) -> io::Result<()> {
    assert!(raw.len() <= RAW_BYTES_MAX, "a block of {} bytes", raw.len());
    let start = out.len();
    let (codec, payload) = compressor.compress(raw)?;
    out.extend_from_slice(payload);
    out.push((kind as u8) << 4 | codec as u8);
    out.extend_from_slice(&(raw.len() as u32).to_le_bytes());
    let checksum = crc_fast::crc32_iscsi(&out[start..]) ^ place.mask();
    out.extend_from_slice(&checksum.to_le_bytes());
    Ok(())
}

/// The uncompressed payload of the frame `stored`.
pub(super) fn open(stored: Cow<'_, [u8]>, kind: FrameKind, place: Place) -> Result<Vec<u8>, Malformed> {
    let Some((covered, checksum)) = stored.split_last_chunk::<4>() else {
        return Err(Malformed("the block is shorter than its frame"));
    };
    if crc_fast::crc32_iscsi(covered) ^ place.mask() != u32::from_le_bytes(*checksum) {
        return Err(Malformed("the checksum does not match"));
    }
    let Some((payload, &[tag, ref raw_len @ ..])) = covered.split_last_chunk::<5>() else {
        return Err(Malformed("the block is shorter than its frame"));
    };
    let raw_len = u32::from_le_bytes(*raw_len) as usize;
    if tag >> 4 != kind as u8 {
        return Err(Malformed("the block is of another kind"));
    }
    let codec = Codec::from_byte(tag & 0x0f).ok_or(Malformed("the compression is unknown"))?;
    if raw_len > RAW_BYTES_MAX {
        return Err(Malformed("the length before compression is out of bounds"));
    }
    if let (Cow::Owned(_), Codec::None) = (&stored, codec) {
        return keep(stored.into_owned(), raw_len);
    }
    decompress(codec, payload, raw_len).ok_or(Malformed("the payload does not decompress"))
}

/// An uncompressed block that is owned already: its frame is cut off.
fn keep(mut stored: Vec<u8>, raw_len: usize) -> Result<Vec<u8>, Malformed> {
    if stored.len() != raw_len + FRAME_BYTES {
        return Err(Malformed("the length does not match the block"));
    }
    stored.truncate(raw_len);
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Compression;

    const PLACE: Place = Place { table: TableId(7), offset: 24 };

    fn sealed(raw: &[u8], compression: Compression) -> Vec<u8> {
        let mut out = Vec::new();
        seal(&mut out, FrameKind::Data, PLACE, raw, &mut Compressor::new(compression)).unwrap();
        out
    }

    #[test]
    fn frames_open_with_every_compression() {
        let raws = [Vec::new(), b"abc".to_vec(), vec![7; 100_000], (0..=255).collect()];
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3)] {
            for raw in &raws {
                let stored = sealed(raw, compression);
                assert_eq!(open(Cow::Borrowed(&stored), FrameKind::Data, PLACE).as_ref(), Ok(raw));
                assert_eq!(open(Cow::Owned(stored), FrameKind::Data, PLACE).as_ref(), Ok(raw));
            }
        }
    }

    #[test]
    fn an_intact_frame_at_another_place_is_refused() {
        let stored = sealed(b"some bytes", Compression::None);
        for place in [Place { offset: 25, ..PLACE }, Place { table: TableId(8), ..PLACE }] {
            assert!(open(Cow::Borrowed(&stored), FrameKind::Data, place).is_err(), "{place:?}");
        }
        assert!(open(Cow::Borrowed(&stored), FrameKind::Index, PLACE).is_err());
    }

    #[test]
    fn every_flipped_bit_is_found() {
        for compression in [Compression::None, Compression::Lz4] {
            let stored = sealed(&[3; 40], compression);
            for bit in 0..stored.len() * 8 {
                let mut flipped = stored.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(open(Cow::Owned(flipped), FrameKind::Data, PLACE).is_err(), "bit {bit}");
            }
        }
    }
}
