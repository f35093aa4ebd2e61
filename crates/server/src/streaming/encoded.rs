//! Encoding of a range as a stream of entries, optionally compressed.

use super::compress::StreamCompressor;
use api::RangeContent;
use api::entries::{Coding, EntryEncoder, Format};
use bytes::Bytes;
use cluster::Page;
use std::io;

/// A frame is sent once it has this size in bytes.
const FRAME_BYTES: usize = 64 << 10;

/// Encodes pages into frames.
pub(crate) struct EntryStream {
    encoder: EntryEncoder,
    is_of_keys: bool,
    /// Encoded entries that are neither compressed nor sent yet.
    uncompressed: Vec<u8>,
    compressor: Option<StreamCompressor>,
}

impl EntryStream {
    /// Creates a stream of entries or keys in `format`.
    ///
    /// # Errors
    /// The compressor cannot be created.
    pub(crate) fn new(content: RangeContent, format: Format, coding: Coding) -> io::Result<Self> {
        Ok(Self {
            encoder: EntryEncoder::new(format),
            is_of_keys: content == RangeContent::Keys,
            uncompressed: Vec::new(),
            compressor: StreamCompressor::of(coding)?,
        })
    }

    /// Encodes entries of `page` from index `at` on, until a frame is full. Returns the frame and
    /// the number of bytes encoded into it. `None` if the page is exhausted and no output is
    /// pending.
    pub(super) fn next(&mut self, page: &Page, at: &mut usize) -> io::Result<(Option<Bytes>, usize)> {
        let mut taken = 0;
        while *at < page.len() {
            while *at < page.len() && self.uncompressed.len() < FRAME_BYTES {
                match self.is_of_keys {
                    true => self.encoder.put_key(page.entry(*at), &mut self.uncompressed),
                    false => self.encoder.put(page.entry(*at), &mut self.uncompressed),
                }
                *at += 1;
            }
            taken += self.uncompressed.len();
            // The end of a page is flushed: the client may have to wait for the next page.
            let frame = self.take_frame(*at == page.len())?;
            if !frame.is_empty() {
                return Ok((Some(frame), taken));
            }
        }
        Ok((None, taken))
    }

    /// Ends the stream and returns the last frame, which may be empty.
    pub(super) fn finish(mut self) -> io::Result<Bytes> {
        self.encoder.end(&mut self.uncompressed);
        let Some(mut compressor) = self.compressor else {
            return Ok(Bytes::from(self.uncompressed));
        };
        compressor.push(&self.uncompressed)?;
        compressor.finish().map(Bytes::from)
    }

    fn take_frame(&mut self, flush: bool) -> io::Result<Bytes> {
        let Some(compressor) = &mut self.compressor else {
            return Ok(Bytes::from(std::mem::take(&mut self.uncompressed)));
        };
        compressor.push(&self.uncompressed)?;
        self.uncompressed.clear();
        // Releases the buffer of a large entry.
        self.uncompressed.shrink_to(2 * FRAME_BYTES);
        compressor.take(flush).map(Bytes::from)
    }
}
