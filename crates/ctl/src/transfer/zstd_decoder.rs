//! Incremental Zstandard decompression.

use std::io;
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

/// First bytes of a Zstandard frame.
pub(super) const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Maximum size of a piece of output, in bytes.
const PIECE_BYTES: usize = 128 << 10;

/// Decompressor of a stream of concatenated frames.
pub(super) struct ZstdDecoder {
    decoder: Decoder<'static>,
    is_between_frames: bool,
}

impl ZstdDecoder {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { decoder: Decoder::new()?, is_between_frames: true })
    }

    /// Decompresses a piece, and passes the output to `each`.
    pub(super) fn feed<E: From<io::Error>>(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut input = InBuffer::around(piece);
        loop {
            let mut out = Vec::with_capacity(PIECE_BYTES);
            let mut output = OutBuffer::around(&mut out);
            let hint = self.decoder.run(&mut input, &mut output)?;
            let is_full = output.pos() == PIECE_BYTES;
            self.is_between_frames = hint == 0;
            if !out.is_empty() {
                each(out)?;
            }
            match (input.pos() == piece.len(), self.is_between_frames) {
                (true, true) => return Ok(()),
                (true, false) if !is_full => return Ok(()),
                (false, true) => self.decoder.reinit()?,
                (_, false) => {}
            }
        }
    }

    /// Whether the stream may end here, between two frames.
    pub(super) fn is_complete(&self) -> bool {
        self.is_between_frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decompress(pieces: &[&[u8]]) -> io::Result<(Vec<u8>, bool)> {
        let mut zstd = ZstdDecoder::new()?;
        let mut whole = Vec::new();
        for piece in pieces {
            zstd.feed(piece, |out| {
                whole.extend_from_slice(&out);
                io::Result::Ok(())
            })?;
        }
        Ok((whole, zstd.is_complete()))
    }

    #[test]
    fn frames_are_decompressed_for_any_split() {
        let text: Vec<u8> = (0..300_000u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
        let frame = zstd::encode_all(&text[..], 3).unwrap();
        let two = [&frame[..], &frame[..]].concat();
        for size in [1, 7, 1_000, two.len()] {
            let pieces: Vec<&[u8]> = two.chunks(size).collect();
            let (whole, is_complete) = decompress(&pieces).unwrap();
            assert!(is_complete && whole == [&text[..], &text[..]].concat(), "pieces of {size}");
        }
        let (_, is_complete) = decompress(&[&frame[..frame.len() - 1]]).unwrap();
        assert!(!is_complete, "it is cut");
        assert!(decompress(&[b"something else"]).is_err());
    }
}
