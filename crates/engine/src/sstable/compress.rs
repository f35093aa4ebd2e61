//! Compression of blocks.

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
        let (codec, compressed_len) = match &mut self.state {
            State::None => return Ok((Codec::None, raw)),
            State::Lz4(table) => {
                reserve(&mut self.compressed, get_maximum_output_size(raw.len()));
                let len = compress_into_with_table(raw, &mut self.compressed, table)
                    .map_err(|error| io::Error::other(error.to_string()))?;
                (Codec::Lz4, len)
            }
            State::Zstd { level, context } => {
                let context = match context {
                    Some(context) => context,
                    None => context.insert(zstd::bulk::Compressor::new(*level)?),
                };
                reserve(&mut self.compressed, zstd::zstd_safe::compress_bound(raw.len()));
                (Codec::Zstd, context.compress_to_buffer(raw, self.compressed.as_mut_slice())?)
            }
        };
        if compressed_len > raw.len() - raw.len() / 8 {
            return Ok((Codec::None, raw));
        }
        Ok((codec, &self.compressed[..compressed_len]))
    }
}

/// Makes the buffer hold at least `len` bytes.
fn reserve(buffer: &mut Vec<u8>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
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
