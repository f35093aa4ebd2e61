//! The frame around every block on disk: compression, length, checksum.
//!
//! ```text
//! payload | tag u8 | raw length u32 | checksum u32
//! ```
//!
//! The tag is the kind of the block (upper four bits) and its compression (lower four). The
//! checksum is the CRC32C of all bytes before it, combined with a hash of the table's id and the
//! block's offset: an intact block at a wrong location does not match.
//!
//! Apart from that hash the trailer is independent of the block's location. So a block can be
//! copied from one table to another in its stored form, under its original checksum
//! ([`StoredBlock`]). It is neither decompressed nor compressed again, and the next reader detects
//! damage that happened on the way.

use super::compress::{Codec, Compressor, decompress};
use super::malformed::Malformed;
use super::meta::TableId;
use std::borrow::Cow;
use std::io;

/// Length of a frame without its payload, in bytes.
pub(super) const FRAME_BYTES: usize = 9;
/// Bits of the tag that name the compression.
const CODEC_BITS: u8 = 0x0f;
/// Maximum size of a block before compression, in bytes.
pub(super) const RAW_BYTES_MAX: usize = 1 << 30;

/// Kind of block in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    Data = 1,
    Index = 2,
    Filter = 3,
    Meta = 4,
}

/// Where a frame is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameLocation {
    pub(super) table: TableId,
    pub(super) offset: u64,
}

impl FrameLocation {
    /// A hash that two locations share with a probability of 2^-32.
    pub(super) fn mask(self) -> u32 {
        let mixed = (self.table.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.offset)
            .wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> 32) as u32
    }
}

/// The trailer of a frame, without the part that depends on the location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    kind: FrameKind,
    codec: Codec,
    raw_len: u32,
    /// CRC32C of the payload and the fields above.
    crc: u32,
}

const TOO_SHORT: Malformed = Malformed("the block is shorter than its frame");

impl Trailer {
    /// Computes the trailer of a payload that is given in slices.
    pub(super) fn of(kind: FrameKind, codec: Codec, raw_len: usize, parts: &[&[u8]]) -> Self {
        assert!(raw_len <= RAW_BYTES_MAX, "a block of {raw_len} bytes");
        let mut trailer = Self { kind, codec, raw_len: raw_len as u32, crc: 0 };
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        parts.iter().for_each(|part| digest.update(part));
        digest.update(&trailer.covered());
        trailer.crc = digest.finalize() as u32;
        trailer
    }

    /// The bytes of the trailer that the checksum covers.
    fn covered(self) -> [u8; FRAME_BYTES - 4] {
        let [r0, r1, r2, r3] = self.raw_len.to_le_bytes();
        [(self.kind as u8) << 4 | self.codec as u8, r0, r1, r2, r3]
    }

    /// Encodes the trailer of a frame at `location`.
    pub(super) fn encode(self, location: FrameLocation) -> [u8; FRAME_BYTES] {
        let [tag, r0, r1, r2, r3] = self.covered();
        let [c0, c1, c2, c3] = (self.crc ^ location.mask()).to_le_bytes();
        [tag, r0, r1, r2, r3, c0, c1, c2, c3]
    }

    /// Checks a whole frame at `location` and returns its trailer.
    pub(super) fn check(stored: &[u8], kind: FrameKind, location: FrameLocation) -> Result<Self, Malformed> {
        let end = stored.last_chunk().ok_or(TOO_SHORT)?;
        Self::from_end(end, crc_fast::crc32_iscsi(&stored[..stored.len() - 4]), kind, location)
    }

    /// Decodes the trailer from the end of a frame at `location`. `crc` is the checksum of all
    /// bytes before the stored one.
    fn from_end(
        end: &[u8; FRAME_BYTES],
        crc: u32,
        kind: FrameKind,
        location: FrameLocation,
    ) -> Result<Self, Malformed> {
        let [tag, r0, r1, r2, r3, checksum @ ..] = *end;
        if crc ^ location.mask() != u32::from_le_bytes(checksum) {
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

    /// Memory for the decompressed payload, in bytes; 0 if the payload is not compressed.
    pub(super) fn decompressed_bytes(self) -> u64 {
        if self.is_compressed() { u64::from(self.raw_len) } else { 0 }
    }

    pub(super) fn is_compressed(self) -> bool {
        self.codec != Codec::None
    }

    /// Returns the decompressed payload of the frame `stored`, which has this trailer.
    pub(super) fn decompress_payload(self, stored: Cow<'_, [u8]>) -> Result<Vec<u8>, Malformed> {
        match stored {
            Cow::Owned(stored) if !self.is_compressed() => self.strip_trailer(stored),
            stored => decompress(self.codec, payload(&stored), self.raw_len as usize)
                .ok_or(Malformed("the payload does not decompress")),
        }
    }

    /// Returns the payload of an uncompressed frame without a copy.
    fn strip_trailer(self, mut stored: Vec<u8>) -> Result<Vec<u8>, Malformed> {
        if stored.len() != self.raw_len as usize + FRAME_BYTES {
            return Err(Malformed("the length does not match the block"));
        }
        stored.truncate(self.raw_len as usize);
        Ok(stored)
    }
}

/// Incremental check of a frame. It keeps no payload.
pub(super) struct FrameCheck {
    kind: FrameKind,
    location: FrameLocation,
    bytes: u64,
    seen: u64,
    digest: crc_fast::Digest,
    /// The last bytes of the frame seen so far.
    end: [u8; FRAME_BYTES],
}

impl FrameCheck {
    /// A check of a frame of `bytes` bytes.
    pub(super) fn new(kind: FrameKind, location: FrameLocation, bytes: u64) -> Self {
        let digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        Self { kind, location, bytes, seen: 0, digest, end: [0; FRAME_BYTES] }
    }

    /// Adds the next part of the frame.
    pub(super) fn update(&mut self, part: &[u8]) {
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

    /// Returns whether the frame is intact. All of it must have been added.
    pub(super) fn finish(self) -> Result<(), Malformed> {
        assert_eq!(self.seen, self.bytes, "all of a frame is checked");
        if self.bytes < FRAME_BYTES as u64 {
            return Err(TOO_SHORT);
        }
        Trailer::from_end(&self.end, self.digest.finalize() as u32, self.kind, self.location).map(drop)
    }
}

/// The payload of a frame.
pub(super) fn payload(stored: &[u8]) -> &[u8] {
    &stored[..stored.len().saturating_sub(FRAME_BYTES)]
}

/// Memory for decompression according to the last bytes of a frame. Only a hint: no checksum was
/// verified.
pub(super) fn claimed_decompressed_bytes(end: [u8; FRAME_BYTES]) -> u64 {
    let [tag, r0, r1, r2, r3, ..] = end;
    let is_compressed = tag & CODEC_BITS != Codec::None as u8;
    if is_compressed { u64::from(u32::from_le_bytes([r0, r1, r2, r3])) } else { 0 }
}

/// A block in its stored form, independent of its location: it can be written to another table
/// unchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredBlock<'a> {
    pub(super) payload: &'a [u8],
    pub(super) trailer: Trailer,
}

/// Appends the frame of `raw` to `out`.
pub(super) fn seal(
    out: &mut Vec<u8>,
    kind: FrameKind,
    location: FrameLocation,
    raw: &[u8],
    compressor: &mut Compressor,
) -> io::Result<()> {
    let (codec, payload) = compressor.compress(raw)?;
    let trailer = Trailer::of(kind, codec, raw.len(), &[payload]);
    out.extend_from_slice(payload);
    out.extend_from_slice(&trailer.encode(location));
    Ok(())
}

/// Checks the frame `stored` and returns its decompressed payload.
pub(super) fn open(
    stored: Cow<'_, [u8]>,
    kind: FrameKind,
    location: FrameLocation,
) -> Result<Vec<u8>, Malformed> {
    Trailer::check(&stored, kind, location)?.decompress_payload(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Compression;

    const LOCATION: FrameLocation = FrameLocation { table: TableId(7), offset: 24 };

    fn sealed(raw: &[u8], compression: Compression) -> Vec<u8> {
        let mut out = Vec::new();
        seal(&mut out, FrameKind::Data, LOCATION, raw, &mut Compressor::new(compression)).unwrap();
        out
    }

    #[test]
    fn frames_open_with_every_compression() {
        let raws = [Vec::new(), b"abc".to_vec(), vec![7; 100_000], (0..=255).collect()];
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3)] {
            for raw in &raws {
                let stored = sealed(raw, compression);
                assert_eq!(open(Cow::Borrowed(&stored), FrameKind::Data, LOCATION).as_ref(), Ok(raw));
                assert_eq!(open(Cow::Owned(stored), FrameKind::Data, LOCATION).as_ref(), Ok(raw));
            }
        }
    }

    #[test]
    fn an_intact_frame_at_a_wrong_location_is_refused() {
        let stored = sealed(b"some bytes", Compression::None);
        for location in
            [FrameLocation { offset: 25, ..LOCATION }, FrameLocation { table: TableId(8), ..LOCATION }]
        {
            assert!(open(Cow::Borrowed(&stored), FrameKind::Data, location).is_err(), "{location:?}");
        }
        assert!(open(Cow::Borrowed(&stored), FrameKind::Index, LOCATION).is_err());
    }

    #[test]
    fn a_stored_block_is_valid_at_a_new_location() {
        for compression in [Compression::None, Compression::Lz4] {
            let stored = sealed(&[5; 1_000], compression);
            let trailer = Trailer::check(&stored, FrameKind::Data, LOCATION).expect("it is intact");
            let location = FrameLocation { table: TableId(8), offset: 1_000_000 };
            let moved = [payload(&stored), &trailer.encode(location)].concat();
            assert_eq!(open(Cow::Owned(moved.clone()), FrameKind::Data, location), Ok(vec![5; 1_000]));
            assert!(open(Cow::Owned(moved), FrameKind::Data, LOCATION).is_err());
        }
    }

    #[test]
    fn the_decompressed_size_is_known_from_the_last_bytes() {
        for (compression, bytes) in [(Compression::None, 0), (Compression::Lz4, 100_000)] {
            let stored = sealed(&[7; 100_000], compression);
            let end = *stored.last_chunk().expect("a frame");
            assert_eq!(claimed_decompressed_bytes(end), bytes, "{compression:?}");
        }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        for compression in [Compression::None, Compression::Lz4] {
            let stored = sealed(&[3; 40], compression);
            for bit in 0..stored.len() * 8 {
                let mut flipped = stored.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(open(Cow::Owned(flipped), FrameKind::Data, LOCATION).is_err(), "bit {bit}");
            }
        }
    }
}
