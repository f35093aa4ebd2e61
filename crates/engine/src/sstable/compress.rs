//! Compression of blocks.
//!
//! Blocks of many cells are small and are compressed through reused buffers. The block of an
//! oversized cell is compressed into a buffer of its own. For a large value a few samples are
//! compressed first, and an incompressible value is stored as it is.
//!
//! **Caveats.** A large value none of whose samples shrinks is stored uncompressed, even if it
//! repeats itself at a distance longer than a sample, which Zstandard would find.

use super::data_block::{LARGE_BYTES, OversizedBlock};
use crate::Compression;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use std::cell::RefCell;
use std::io;

/// Compression of a stored block, as encoded in its frame.
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

/// Size of a sample of a large value, in bytes. LZ4 finds repetitions within half of it.
const SAMPLE_BYTES: usize = 128 << 10;
/// One chunk in this number is sampled.
const SAMPLE_EVERY: usize = 4;

/// Compresses the blocks of one table in sequence and reuses its tables and buffers.
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

    /// Returns the bytes to store for `raw`: `raw` itself if compression saves less than an eighth,
    /// because decompressing would cost more than that saves.
    pub(super) fn compress<'a>(&'a mut self, raw: &'a [u8]) -> io::Result<(Codec, &'a [u8])> {
        let Some(compressed_max) = self.compressed_max(raw.len()) else { return Ok((Codec::None, raw)) };
        if self.compressed.len() < compressed_max {
            self.compressed.resize(compressed_max, 0);
        }
        let (codec, len) = self.state.compress(raw, &mut self.compressed)?;
        match saves_an_eighth(len, raw.len()) {
            true => Ok((codec, &self.compressed[..len])),
            false => Ok((Codec::None, raw)),
        }
    }

    /// Returns the compressed form of the block of one oversized cell, in a buffer of its own;
    /// `None` if the block is stored as it is.
    pub(super) fn compress_oversized(
        &mut self,
        block: &OversizedBlock<'_>,
    ) -> io::Result<Option<(Codec, Vec<u8>)>> {
        let raw_len = block.parts().map(<[u8]>::len).iter().sum();
        let Some(compressed_max) = self.compressed_max(raw_len) else { return Ok(None) };
        if !self.may_shrink(block.value())? {
            return Ok(None);
        }
        // Zeroed memory that is never written is not resident.
        let mut compressed = vec![0; compressed_max];
        let (codec, len) = self.state.compress(&block.parts().concat(), &mut compressed)?;
        compressed.truncate(len);
        Ok(saves_an_eighth(len, raw_len).then_some((codec, compressed)))
    }

    /// Whether compressing `value` is worth trying. For a large value, some samples decide.
    fn may_shrink(&mut self, value: &[u8]) -> io::Result<bool> {
        let mut pieces = value.chunks(SAMPLE_BYTES).step_by(SAMPLE_EVERY);
        let mut shrinks = value.len() < LARGE_BYTES;
        while !shrinks && let Some(piece) = pieces.next() {
            shrinks = self.compress(piece)?.0 != Codec::None;
        }
        Ok(shrinks)
    }

    /// Maximum length of the compressed form of `raw_len` bytes; `None` if nothing is compressed.
    fn compressed_max(&self, raw_len: usize) -> Option<usize> {
        match &self.state {
            State::None => None,
            State::Lz4(_) => Some(get_maximum_output_size(raw_len)),
            State::Zstd { .. } => Some(zstd::zstd_safe::compress_bound(raw_len)),
        }
    }
}

impl State {
    /// Compresses `raw` into `out`, which has space for the maximum length. Returns the codec and
    /// the compressed length.
    fn compress(&mut self, raw: &[u8], out: &mut [u8]) -> io::Result<(Codec, usize)> {
        match self {
            Self::None => unreachable!("no compression is configured"),
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

/// Whether compression saves at least an eighth.
fn saves_an_eighth(compressed_len: usize, raw_len: usize) -> bool {
    compressed_len <= raw_len - raw_len / 8
}

/// Maximum expansion of one LZ4 byte. A greater claimed length is invalid, and no memory is
/// allocated for it.
const LZ4_RATIO_MAX: usize = 256;

thread_local! {
    /// A zstd context is large and slow to create, so each reading thread keeps one.
    static ZSTD: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Decompresses `stored` to `raw_len` bytes; `None` if that is not its length or the data is
/// invalid.
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
        let block = OversizedBlock::of(b"key", cell.as_ref());
        let raw = block.parts().concat();
        let compressed = Compressor::new(compression).compress_oversized(&block).expect("memory suffices");
        let compressed =
            compressed.map(|(codec, bytes)| (codec, bytes.len(), decompress(codec, &bytes, raw.len())));
        compressed.map(|(codec, len, back)| {
            assert_eq!(back.as_ref(), Some(&raw));
            (codec, len)
        })
    }

    #[test]
    fn an_oversized_value_is_compressed_if_that_saves_an_eighth() {
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
    fn a_large_value_with_a_compressible_sample_is_compressed() {
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
