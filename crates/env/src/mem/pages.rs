//! The bytes of a file in copy-on-write pages: copying a disk copies references.

use std::sync::{Arc, LazyLock};

const PAGE_BYTES: usize = 4096;

type Page = [u8; PAGE_BYTES];

/// The shared content of all pages that were never written.
static ZEROS: LazyLock<Arc<Page>> = LazyLock::new(|| Arc::new([0; PAGE_BYTES]));

/// A resizable sequence of bytes. The rest of the last page holds zeros.
#[derive(Clone, Default)]
pub(super) struct Pages {
    pages: Vec<Arc<Page>>,
    len: u64,
}

impl Pages {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Copies the bytes from `offset` into `buf`, and returns their number.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let there = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        for piece in pieces(offset, there) {
            let page = &self.pages[piece.page][piece.within..piece.within + piece.len];
            buf[piece.start..piece.start + piece.len].copy_from_slice(page);
        }
        there
    }

    /// Writes `bytes` at `offset`. A gap before it reads as zeros.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        self.set_len(self.len.max(offset + bytes.len() as u64));
        for piece in pieces(offset, bytes.len()) {
            let page = Arc::make_mut(&mut self.pages[piece.page]);
            page[piece.within..piece.within + piece.len]
                .copy_from_slice(&bytes[piece.start..piece.start + piece.len]);
        }
    }

    /// Truncates, or extends with zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        let tail = (len % PAGE_BYTES as u64) as usize;
        self.pages.resize_with(len.div_ceil(PAGE_BYTES as u64) as usize, || Arc::clone(&ZEROS));
        if len < self.len
            && tail != 0
            && let Some(last) = self.pages.last_mut()
        {
            Arc::make_mut(last)[tail..].fill(0);
        }
        self.len = len;
    }

    /// Extends with zeros to `len` bytes, if it is shorter.
    pub(super) fn cover(&mut self, len: u64) {
        self.set_len(self.len.max(len));
    }

    /// Replaces the pages of `len` bytes at `offset` by those of `from`, as far as both contain
    /// them.
    pub(super) fn share(&mut self, from: &Self, offset: u64, len: usize) {
        let shared = self.pages.len().min(from.pages.len());
        for piece in pieces(offset, len).take_while(|piece| piece.page < shared) {
            self.pages[piece.page] = Arc::clone(&from.pages[piece.page]);
        }
    }

    /// Flips one bit of a byte, if the byte exists.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) {
        let mut byte = [0];
        if self.read(&mut byte, offset) == 1 {
            self.write(&[byte[0] ^ (1 << bit)], offset);
        }
    }
}

/// The part of a range that lies in one page.
struct Piece {
    page: usize,
    within: usize,
    /// Its offset in the range.
    start: usize,
    len: usize,
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let at = offset + start as u64;
        let within = (at % PAGE_BYTES as u64) as usize;
        let piece = Piece {
            page: (at / PAGE_BYTES as u64) as usize,
            within,
            start,
            len: (PAGE_BYTES - within).min(len - start),
        };
        start += piece.len;
        (piece.len > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::Rng;

    fn bytes_of(pages: &Pages) -> Vec<u8> {
        let mut bytes = vec![0xee; pages.len() as usize + 1];
        assert_eq!(pages.read(&mut bytes, 0) as u64, pages.len());
        bytes.pop();
        bytes
    }

    #[test]
    fn pages_behave_as_a_vector() {
        let mut rng = Rng::new(7);
        for _ in 0..200 {
            let (mut pages, mut model) = (Pages::default(), Vec::new());
            for _ in 0..20 {
                let offset = rng.below(3 * PAGE_BYTES as u64) as usize;
                if rng.chance(0.3) {
                    pages.set_len(offset as u64);
                    model.resize(offset, 0);
                } else {
                    let mut bytes = vec![0; rng.below(2 * PAGE_BYTES as u64) as usize];
                    rng.fill(&mut bytes);
                    pages.write(&bytes, offset as u64);
                    model.resize(model.len().max(offset + bytes.len()), 0);
                    model[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
                assert!(bytes_of(&pages) == model);
            }
        }
    }

    #[test]
    fn a_copy_keeps_its_bytes() {
        let mut pages = Pages::default();
        pages.write(b"before", 0);
        let copy = pages.clone();
        pages.write(b"after!", 0);
        pages.set_len(3);
        assert_eq!((bytes_of(&copy), bytes_of(&pages)), (b"before".to_vec(), b"aft".to_vec()));
    }
}
