//! The frame around every block on disk: compression, length, checksum.
//!
//! ```text
//! payload | tag u8 | raw length u32 | checksum u32
//! ```
//!
//! The tag is the kind of the block (upper four bits) and its compression (lower four). The checksum is the
//! CRC32C of all before it, with a hash of the table's id and the block's offset mixed in: an intact block
//! that stands where another belongs does not match.
//!
//! But for that hash the trailer is the same wherever the block stands. So a block moves from one table to another as
//! it is stored, under the checksum it was first written with ([`Stored`]): it is neither unpacked for that nor
//! compressed again, and what damages it on the way is found by whoever reads it next.

use super::block::Malformed;
use super::compress::{Codec, Compressor, decompress};
use super::meta::TableId;
use std::borrow::Cow;
use std::io;

/// What a frame adds to its payload, in bytes.
pub(super) const FRAME_BYTES: usize = 9;
/// Where in the tag the compression is.
const CODEC_BITS: u8 = 0x0f;
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

/// What is behind a payload: all that does not depend on the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    kind: FrameKind,
    codec: Codec,
    raw_len: u32,
    /// Of the payload and what stands above.
    crc: u32,
}

const TOO_SHORT: Malformed = Malformed("the block is shorter than its frame");

impl Trailer {
    /// The trailer of a payload that is there in `parts`, one after the other.
    pub(super) fn of(kind: FrameKind, codec: Codec, raw_len: usize, parts: &[&[u8]]) -> Self {
        assert!(raw_len <= RAW_BYTES_MAX, "a block of {raw_len} bytes");
        let mut trailer = Self { kind, codec, raw_len: raw_len as u32, crc: 0 };
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        parts.iter().for_each(|part| digest.update(part));
        digest.update(&trailer.covered());
        trailer.crc = digest.finalize() as u32;
        trailer
    }

    /// What of it the checksum covers.
    fn covered(self) -> [u8; FRAME_BYTES - 4] {
        let [r0, r1, r2, r3] = self.raw_len.to_le_bytes();
        [(self.kind as u8) << 4 | self.codec as u8, r0, r1, r2, r3]
    }

    /// What is written behind the payload of a frame at `place`.
    pub(super) fn encode(self, place: Place) -> [u8; FRAME_BYTES] {
        let [tag, r0, r1, r2, r3] = self.covered();
        let [c0, c1, c2, c3] = (self.crc ^ place.mask()).to_le_bytes();
        [tag, r0, r1, r2, r3, c0, c1, c2, c3]
    }

    /// The trailer of a whole frame at `place`, which matches its payload.
    pub(super) fn check(stored: &[u8], kind: FrameKind, place: Place) -> Result<Self, Malformed> {
        let end = stored.last_chunk().ok_or(TOO_SHORT)?;
        Self::of_end(end, crc_fast::crc32_iscsi(&stored[..stored.len() - 4]), kind, place)
    }

    /// The trailer of a frame at `place` that ends like this, if `crc` is that of all before its checksum.
    fn of_end(end: &[u8; FRAME_BYTES], crc: u32, kind: FrameKind, place: Place) -> Result<Self, Malformed> {
        let [tag, r0, r1, r2, r3, checksum @ ..] = *end;
        if crc ^ place.mask() != u32::from_le_bytes(checksum) {
            return Err(Malformed("the checksum does not match"));
        }
        let raw_len = u32::from_le_bytes([r0, r1, r2, r3]);
        if tag >> 4 != kind as u8 {
            return Err(Malformed("the block is of another kind"));
        }
        let codec = Codec::from_byte(tag & CODEC_BITS).ok_or(Malformed("the compression is unknown"))?;
        if raw_len as usize > RAW_BYTES_MAX {
            return Err(Malformed("the length before compression is out of bounds"));
        }
        Ok(Self { kind, codec, raw_len, crc })
    }

    /// What unpacking takes beside what is stored, in bytes: nothing where nothing was compressed.
    pub(super) fn unpacking_bytes(self) -> u64 {
        if self.is_compressed() { u64::from(self.raw_len) } else { 0 }
    }

    pub(super) fn is_compressed(self) -> bool {
        self.codec != Codec::None
    }

    /// The uncompressed payload of the frame `stored`, of which this is the trailer.
    pub(super) fn unpack(self, stored: Cow<'_, [u8]>) -> Result<Vec<u8>, Malformed> {
        match stored {
            Cow::Owned(stored) if !self.is_compressed() => self.cut_off(stored),
            stored => decompress(self.codec, payload(&stored), self.raw_len as usize)
                .ok_or(Malformed("the payload does not decompress")),
        }
    }

    /// The payload of a frame that is not compressed and owned already.
    fn cut_off(self, mut stored: Vec<u8>) -> Result<Vec<u8>, Malformed> {
        if stored.len() != self.raw_len as usize + FRAME_BYTES {
            return Err(Malformed("the length does not match the block"));
        }
        stored.truncate(self.raw_len as usize);
        Ok(stored)
    }
}

/// A check of a frame that comes in parts. Nothing of it is kept.
pub(super) struct FrameCheck {
    kind: FrameKind,
    place: Place,
    bytes: u64,
    seen: u64,
    digest: crc_fast::Digest,
    /// Its last bytes, as far as they have come.
    end: [u8; FRAME_BYTES],
}

impl FrameCheck {
    /// Of a frame of so many bytes.
    pub(super) fn new(kind: FrameKind, place: Place, bytes: u64) -> Self {
        let digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        Self { kind, place, bytes, seen: 0, digest, end: [0; FRAME_BYTES] }
    }

    /// Takes the next part.
    pub(super) fn take(&mut self, part: &[u8]) {
        let covered = self.bytes.saturating_sub(4).saturating_sub(self.seen);
        let covered = usize::try_from(covered).unwrap_or(usize::MAX).min(part.len());
        self.digest.update(&part[..covered]);
        let part_end = self.seen + part.len() as u64;
        let end_from = self.bytes.saturating_sub(FRAME_BYTES as u64);
        for at in end_from.max(self.seen)..part_end.min(self.bytes) {
            self.end[(at - end_from) as usize] = part[(at - self.seen) as usize];
        }
        self.seen = part_end;
    }

    /// Whether it is what was written, now that all of it has come.
    pub(super) fn finish(self) -> Result<(), Malformed> {
        assert_eq!(self.seen, self.bytes, "all of a frame is checked");
        if self.bytes < FRAME_BYTES as u64 {
            return Err(TOO_SHORT);
        }
        Trailer::of_end(&self.end, self.digest.finalize() as u32, self.kind, self.place).map(drop)
    }
}

/// The payload of a frame.
pub(super) fn payload(stored: &[u8]) -> &[u8] {
    &stored[..stored.len().saturating_sub(FRAME_BYTES)]
}

/// What the last bytes of a frame say that unpacking takes beside what is stored, in bytes. To be believed no further:
/// no checksum was compared.
pub(super) fn claimed_unpacking_bytes(end: [u8; FRAME_BYTES]) -> u64 {
    let [tag, r0, r1, r2, r3, ..] = end;
    let is_compressed = tag & CODEC_BITS != Codec::None as u8;
    if is_compressed { u64::from(u32::from_le_bytes([r0, r1, r2, r3])) } else { 0 }
}

/// A block as it is stored, but for where: it can be written elsewhere as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<'a> {
    pub(super) payload: &'a [u8],
    pub(super) trailer: Trailer,
}

/// Appends the frame of `raw` to `out`.
pub(super) fn seal(
    out: &mut Vec<u8>,
    kind: FrameKind,
    place: Place,
    raw: &[u8],
    compressor: &mut Compressor,
) -> io::Result<()> {
    let (codec, payload) = compressor.compress(raw)?;
    let trailer = Trailer::of(kind, codec, raw.len(), &[payload]);
    out.extend_from_slice(payload);
    out.extend_from_slice(&trailer.encode(place));
    Ok(())
}

/// The uncompressed payload of the frame `stored`.
pub(super) fn open(stored: Cow<'_, [u8]>, kind: FrameKind, place: Place) -> Result<Vec<u8>, Malformed> {
    Trailer::check(&stored, kind, place)?.unpack(stored)
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
    fn a_stored_block_is_intact_at_another_place_too() {
        for compression in [Compression::None, Compression::Lz4] {
            let stored = sealed(&[5; 1_000], compression);
            let trailer = Trailer::check(&stored, FrameKind::Data, PLACE).expect("it is intact");
            let place = Place { table: TableId(8), offset: 1_000_000 };
            let moved = [payload(&stored), &trailer.encode(place)].concat();
            assert_eq!(open(Cow::Owned(moved.clone()), FrameKind::Data, place), Ok(vec![5; 1_000]));
            assert!(open(Cow::Owned(moved), FrameKind::Data, PLACE).is_err());
        }
    }

    #[test]
    fn what_unpacking_takes_is_known_from_the_last_bytes() {
        for (compression, bytes) in [(Compression::None, 0), (Compression::Lz4, 100_000)] {
            let stored = sealed(&[7; 100_000], compression);
            let end = *stored.last_chunk().expect("a frame");
            assert_eq!(claimed_unpacking_bytes(end), bytes, "{compression:?}");
        }
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
