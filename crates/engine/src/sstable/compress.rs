//! Compression of blocks.
//!
//! Blocks of many cells are small, and are compressed through buffers that are used again and again. A block of one
//! huge cell is compressed into memory of its own, and where that would be in vain it is not even tried: a large value is
//! looked at here and there first.
//!
//! **Caveats.** A large value of which no piece shrinks is stored as it is, though it may repeat itself over more than
//! the length of a piece, which Zstandard would find.

use super::data_block::{HugeBlock, LARGE_BYTES};
use crate::Compression;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use std::cell::RefCell;
use std::io;

/// How a stored block is compressed, as written in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Codec {
    None = 0,
    Lz4 = 1,
    Zstd = 2,
}

impl Codec {
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        [Self::None, Self::Lz4, Self::Zstd].into_iter().find(|&codec| codec as u8 == byte)
    }
}

/// A large value is looked at in pieces of this size: LZ4 finds what repeats itself within half of it, ...
const SAMPLE_BYTES: usize = 128 << 10;
/// ... of which one in so many is tried.
const SAMPLE_EVERY: usize = 4;

/// Compresses the blocks of one table, one after the other, reusing its tables and buffers.
pub(super) struct Compressor {
    state: State,
    compressed: Vec<u8>,
}

enum State {
    None,
    Lz4(CompressTable),
    Zstd { level: i32, context: Option<zstd::bulk::Compressor<'static>> },
}

impl Compressor {
    pub(super) fn new(compression: Compression) -> Self {
        let state = match compression {
            Compression::None => State::None,
            Compression::Lz4 => State::Lz4(CompressTable::default()),
            Compression::Zstd(level) => State::Zstd { level, context: None },
        };
        Self { state, compressed: Vec::new() }
    }

    /// The bytes to store for `raw`: `raw` itself where compression saves less than an eighth, for then
    /// decompressing would cost more than it brings.
    pub(super) fn compress<'a>(&'a mut self, raw: &'a [u8]) -> io::Result<(Codec, &'a [u8])> {
        let Some(compressed_max) = self.compressed_max(raw.len()) else { return Ok((Codec::None, raw)) };
        if self.compressed.len() < compressed_max {
            self.compressed.resize(compressed_max, 0);
        }
        let (codec, len) = self.state.compress(raw, &mut self.compressed)?;
        match is_worth_it(len, raw.len()) {
            true => Ok((codec, &self.compressed[..len])),
            false => Ok((Codec::None, raw)),
        }
    }

    /// The bytes to store for a block of a single huge cell, in memory of their own; `None`: the block itself.
    pub(super) fn compress_huge(&mut self, block: &HugeBlock<'_>) -> io::Result<Option<(Codec, Vec<u8>)>> {
        let raw_len = block.parts().map(<[u8]>::len).iter().sum();
        let Some(compressed_max) = self.compressed_max(raw_len) else { return Ok(None) };
        if !self.may_shrink(block.value())? {
            return Ok(None);
        }
        // Zeroes that nobody writes to are not in memory.
        let mut compressed = vec![0; compressed_max];
        let (codec, len) = self.state.compress(&block.parts().concat(), &mut compressed)?;
        compressed.truncate(len);
        Ok(is_worth_it(len, raw_len).then_some((codec, compressed)))
    }

    /// Whether it is worth to compress `value` as a whole; of a large one by what becomes of some pieces of it.
    fn may_shrink(&mut self, value: &[u8]) -> io::Result<bool> {
        let mut pieces = value.chunks(SAMPLE_BYTES).step_by(SAMPLE_EVERY);
        let mut shrinks = value.len() < LARGE_BYTES;
        while !shrinks && let Some(piece) = pieces.next() {
            shrinks = self.compress(piece)?.0 != Codec::None;
        }
        Ok(shrinks)
    }

    /// The most that becomes of so many bytes; `None`: nothing is compressed.
    fn compressed_max(&self, raw_len: usize) -> Option<usize> {
        match &self.state {
            State::None => None,
            State::Lz4(_) => Some(get_maximum_output_size(raw_len)),
            State::Zstd { .. } => Some(zstd::zstd_safe::compress_bound(raw_len)),
        }
    }
}

impl State {
    /// Compresses `raw` into `out`, which has room for the most that may become of it. Gives the length there.
    fn compress(&mut self, raw: &[u8], out: &mut [u8]) -> io::Result<(Codec, usize)> {
        match self {
            Self::None => unreachable!("without compression there is no room to compress into"),
            Self::Lz4(table) => {
                let len = compress_into_with_table(raw, out, table);
                Ok((Codec::Lz4, len.map_err(|error| io::Error::other(error.to_string()))?))
            }
            Self::Zstd { level, context } => {
                let context = match context {
                    Some(context) => context,
                    None => context.insert(zstd::bulk::Compressor::new(*level)?),
                };
                Ok((Codec::Zstd, context.compress_to_buffer(raw, out)?))
            }
        }
    }
}

/// Whether compression saves an eighth at least.
fn is_worth_it(compressed_len: usize, raw_len: usize) -> bool {
    compressed_len <= raw_len - raw_len / 8
}

/// One byte of LZ4 cannot stand for more than this: a greater length is a lie that is not worth the memory.
const LZ4_RATIO_MAX: usize = 256;

thread_local! {
    /// A zstd context is large and slow to make; a reader needs one per thread, not per block.
    static ZSTD: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// The `raw_len` bytes that were compressed to `stored`; `None` when they were not.
pub(super) fn decompress(codec: Codec, stored: &[u8], raw_len: usize) -> Option<Vec<u8>> {
    match codec {
        Codec::None => (stored.len() == raw_len).then(|| stored.to_vec()),
        Codec::Lz4 if raw_len > stored.len().saturating_mul(LZ4_RATIO_MAX) => None,
        Codec::Lz4 => {
            let mut raw = vec![0; raw_len];
            (decompress_into(stored, &mut raw).ok()? == raw_len).then_some(raw)
        }
        Codec::Zstd => ZSTD.with_borrow_mut(|context| {
            let context = match context {
                Some(context) => context,
                None => context.insert(zstd::bulk::Decompressor::new().ok()?),
            };
            let mut raw = vec![0; raw_len];
            (context.decompress_to_buffer(stored, raw.as_mut_slice()).ok()? == raw_len).then_some(raw)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::{Cell, Hlc, NodeTag, Version};
    use xxhash_rust::xxh3::xxh3_64;

    /// Bytes that do not compress.
    fn noise(len: usize) -> Vec<u8> {
        (0..len).map(|at| xxh3_64(&at.to_le_bytes()) as u8).collect()
    }

    fn compressed(compression: Compression, value: Vec<u8>) -> Option<(Codec, usize)> {
        let cell = Cell::value(Version::new(Hlc::from_bits(7), NodeTag(1)), 1, value.into());
        let block = HugeBlock::of(b"key", cell.as_ref());
        let raw = block.parts().concat();
        let compressed = Compressor::new(compression).compress_huge(&block).expect("memory suffices");
        let compressed =
            compressed.map(|(codec, bytes)| (codec, bytes.len(), decompress(codec, &bytes, raw.len())));
        compressed.map(|(codec, len, back)| {
            assert_eq!(back.as_ref(), Some(&raw));
            (codec, len)
        })
    }

    #[test]
    fn a_huge_value_is_compressed_where_that_saves_an_eighth() {
        for len in [100 << 10, 3 << 20] {
            for (compression, codec) in [(Compression::Lz4, Codec::Lz4), (Compression::Zstd(1), Codec::Zstd)]
            {
                assert_eq!(compressed(compression, noise(len)), None, "{codec:?} of noise");
                let (used, shrunk) = compressed(compression, vec![1; len]).expect("it shrinks");
                assert!(used == codec && shrunk < len / 100, "{codec:?}: {shrunk}");
            }
            assert_eq!(compressed(Compression::None, vec![1; len]), None);
        }
    }

    #[test]
    fn a_large_value_that_shrinks_in_some_of_its_pieces_is_tried_as_a_whole() {
        let (noise, zeroes) = (noise(2 << 20), vec![0; 2 << 20]);
        for value in [[&*noise, &zeroes].concat(), [&*zeroes, &noise].concat()] {
            let (_, len) = compressed(Compression::Lz4, value).expect("it shrinks");
            assert!(len < (2 << 20) + (100 << 10), "{len}");
        }
        let repeated = noise[..50 << 10].repeat(60);
        assert!(
            compressed(Compression::Lz4, repeated).is_some(),
            "it repeats itself within the reach of LZ4"
        );
    }
}
