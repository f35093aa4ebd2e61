//! A range as a stream of entries, compressed or not.

use super::compress::Compressor;
use api::RangeContent;
use api::entries::{Coding, EntryEncoder, Format};
use bytes::Bytes;
use cluster::Page;
use std::io;

/// A frame begins to be sent when it has so many bytes.
const FRAME_BYTES: usize = 64 << 10;

/// Makes frames of pages.
pub(crate) struct EntryStream {
    encoder: EntryEncoder,
    is_of_keys: bool,
    /// Entries as they are written, not sent yet and not compressed.
    fast_path: Vec<u8>,
    compressor: Option<Compressor>,
}

impl EntryStream {
    /// A stream of entries or keys in `format`.
    ///
    /// # Errors
    /// There is no memory for a compressor.
    pub(crate) fn new(content: RangeContent, format: Format, coding: Coding) -> io::Result<Self> {
        Ok(Self {
            encoder: EntryEncoder::new(format),
            is_of_keys: content == RangeContent::Keys,
            fast_path: Vec::new(),
            compressor: Compressor::of(coding)?,
        })
    }

    /// Writes the entries of `page` from the one at `at` on, as many as make a frame: the frame, and how much went into
    /// it. No frame: all that was written until now is sent.
    pub(super) fn next(&mut self, page: &Page, at: &mut usize) -> io::Result<(Option<Bytes>, usize)> {
        let mut taken = 0;
        while *at < page.len() {
            while *at < page.len() && self.fast_path.len() < FRAME_BYTES {
                match self.is_of_keys {
                    true => self.encoder.put_key(page.entry(*at), &mut self.fast_path),
                    false => self.encoder.put(page.entry(*at), &mut self.fast_path),
                }
                *at += 1;
            }
            taken += self.fast_path.len();
            // A page is flushed as a whole: its reader may have to wait for the next.
            let frame = self.take_frame(*at == page.len())?;
            if !frame.is_empty() {
                return Ok((Some(frame), taken));
            }
        }
        Ok((None, taken))
    }

    /// The last frame, which may be empty.
    pub(super) fn finish(mut self) -> io::Result<Bytes> {
        self.encoder.end(&mut self.fast_path);
        let Some(mut compressor) = self.compressor else {
            return Ok(Bytes::from(self.fast_path));
        };
        compressor.push(&self.fast_path)?;
        compressor.finish().map(Bytes::from)
    }

    fn take_frame(&mut self, flush: bool) -> io::Result<Bytes> {
        let Some(compressor) = &mut self.compressor else {
            return Ok(Bytes::from(std::mem::take(&mut self.fast_path)));
        };
        compressor.push(&self.fast_path)?;
        self.fast_path.clear();
        // A large entry leaves no large buffer behind.
        self.fast_path.shrink_to(2 * FRAME_BYTES);
        compressor.take(flush).map(Bytes::from)
    }
}
