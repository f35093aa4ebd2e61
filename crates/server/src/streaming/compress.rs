//! Compression of streamed responses.
//!
//! After a flush, all input so far can be decompressed: a client never waits for bytes that are
//! buffered in a compressor.

use api::entries::Coding;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};

/// A fast level with a window of half a megabyte, since each open range may have a compressor.
const ZSTD_LEVEL: i32 = 1;

/// The compressor of a stream.
pub(super) enum StreamCompressor {
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
    Gzip(GzEncoder<Vec<u8>>),
}

impl StreamCompressor {
    /// Creates the compressor of a coding. `None` if the coding does not compress.
    pub(super) fn of(coding: Coding) -> io::Result<Option<Self>> {
        Ok(match coding {
            Coding::Identity => None,
            Coding::Zstd => Some(Self::Zstd(zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?)),
            Coding::Gzip => Some(Self::Gzip(GzEncoder::new(Vec::new(), Compression::fast()))),
        })
    }

    /// Appends bytes to the stream.
    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer().write_all(bytes)
    }

    /// Returns the output that is available; with `flush`, the output of all input so far.
    pub(super) fn take(&mut self, flush: bool) -> io::Result<Vec<u8>> {
        if flush {
            self.writer().flush()?;
        }
        Ok(std::mem::take(match self {
            Self::Zstd(encoder) => encoder.get_mut(),
            Self::Gzip(encoder) => encoder.get_mut(),
        }))
    }

    /// Ends the stream and returns the remaining output.
    pub(super) fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Zstd(encoder) => encoder.finish(),
            Self::Gzip(encoder) => encoder.finish(),
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Zstd(encoder) => encoder,
            Self::Gzip(encoder) => encoder,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// Decompresses `len` bytes from the beginning of a stream.
    fn decompress(coding: Coding, compressed: &[u8], len: usize) -> Vec<u8> {
        let mut plain = vec![0; len];
        match coding {
            Coding::Zstd => zstd::stream::read::Decoder::new(compressed)
                .and_then(|mut decoder| decoder.read_exact(&mut plain))
                .expect("zstd"),
            Coding::Gzip => flate2::read::GzDecoder::new(compressed).read_exact(&mut plain).expect("gzip"),
            Coding::Identity => plain.copy_from_slice(compressed),
        }
        plain
    }

    #[test]
    fn flushed_input_can_be_decompressed_before_the_end_of_the_stream() {
        for coding in [Coding::Zstd, Coding::Gzip] {
            let mut compressor = StreamCompressor::of(coding).expect("memory").expect("a compressor");
            let mut compressed = Vec::new();
            let mut plain = Vec::new();
            for i in 0..1_000_u32 {
                let piece = format!("{i} and {i}\n").repeat(10);
                compressor.push(piece.as_bytes()).expect("memory");
                plain.extend_from_slice(piece.as_bytes());
                compressed.extend(compressor.take(i % 100 == 99).expect("memory"));
                if i % 100 == 99 {
                    assert_eq!(decompress(coding, &compressed, plain.len()), plain);
                }
            }
            assert!(compressed.len() < plain.len() / 2);
            compressed.extend(compressor.finish().expect("memory"));
            assert_eq!(decompress(coding, &compressed, plain.len()), plain);
        }
        assert!(StreamCompressor::of(Coding::Identity).expect("memory").is_none());
    }
}
