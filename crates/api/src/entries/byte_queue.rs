//! Queue of the pieces of a byte stream.

use bytes::{Buf, Bytes};
use std::collections::VecDeque;

/// Pieces of a byte stream that were fed and not read yet.
///
/// Bytes that are taken from within one piece are a slice of it. Incomplete ones are copied, so
/// that small pieces do not keep alive the large buffers of which they are slices.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    /// Pieces; none of them is empty.
    queue: VecDeque<Bytes>,
    /// First bytes of a requested length that is not complete yet.
    partial: Vec<u8>,
}

impl ByteQueue {
    pub(super) fn feed(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.queue.push_back(piece);
        }
    }

    /// Number of bytes that are not read yet.
    pub(super) fn len(&self) -> usize {
        self.partial.len() + self.queue.iter().map(Bytes::len).sum::<usize>()
    }

    /// First piece; empty if everything was read. Must not be called between calls of
    /// [`ByteQueue::take`] that returned `None` and the one that returns the bytes.
    #[inline]
    pub(super) fn front(&self) -> &[u8] {
        debug_assert!(self.partial.is_empty(), "a call of `take` is incomplete");
        self.queue.front().map_or(&[], |piece| piece)
    }

    /// Skips bytes of [`ByteQueue::front`].
    #[inline]
    pub(super) fn advance(&mut self, len: usize) {
        let Some(front) = self.queue.front_mut() else { return };
        front.advance(len);
        if front.is_empty() {
            self.queue.pop_front();
        }
    }

    /// Takes the next `N` bytes once they are complete. Until then each call must request the same
    /// length.
    #[inline]
    pub(super) fn take_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        if self.partial.is_empty()
            && let Some(bytes) = self.queue.front().and_then(|front| front.first_chunk::<N>())
        {
            let bytes = *bytes;
            self.advance(N);
            return Some(bytes);
        }
        let bytes = self.gather(N)?;
        Some(*bytes.first_chunk().expect("`gather` returns N bytes"))
    }

    /// Takes the next `len` bytes once they are complete. Until then each call must request the
    /// same length.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Option<Bytes> {
        if self.partial.is_empty()
            && let Some(front) = self.queue.front_mut()
            && front.len() > len
        {
            return Some(front.split_to(len));
        }
        if self.partial.is_empty() && self.queue.front().is_some_and(|front| front.len() == len) {
            return self.queue.pop_front();
        }
        self.gather(len)
    }

    /// Moves the available part of `len` bytes into `partial`. Returns the bytes once they are
    /// complete.
    fn gather(&mut self, len: usize) -> Option<Bytes> {
        // Untouched memory is not resident, so a length without its bytes costs no memory.
        self.partial.reserve_exact(len - self.partial.len());
        while self.partial.len() < len {
            let front = self.queue.front()?;
            let moved = front.len().min(len - self.partial.len());
            self.partial.extend_from_slice(&front[..moved]);
            self.advance(moved);
        }
        Some(std::mem::take(&mut self.partial).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(of: &[&'static str]) -> ByteQueue {
        let mut pieces = ByteQueue::default();
        of.iter().for_each(|piece| pieces.feed(Bytes::from_static(piece.as_bytes())));
        pieces
    }

    #[test]
    fn bytes_within_one_piece_are_a_slice_of_it() {
        let whole = Bytes::from(b"abcdef".to_vec());
        let mut pieces = ByteQueue::default();
        pieces.feed(whole.clone());
        assert_eq!(pieces.take_array(), Some(*b"ab"));
        let taken = pieces.take(3).expect("the bytes are complete");
        assert_eq!(taken.as_ptr(), whole[2..].as_ptr());
        assert_eq!(pieces.take(1).expect("the bytes are complete"), "f");
        assert_eq!(pieces.len(), 0);
    }

    #[test]
    fn bytes_of_several_pieces_are_joined() {
        let mut pieces = pieces(&["a", "", "bc", "d"]);
        assert_eq!(pieces.take(3).expect("the bytes are complete"), "abc");
        assert_eq!(pieces.take_array::<2>(), None);
        assert_eq!(pieces.len(), 1);
        pieces.feed(Bytes::from_static(b"ef"));
        assert_eq!(pieces.take_array(), Some(*b"de"));
        assert_eq!(pieces.front(), b"f");
        assert_eq!(pieces.take(0).expect("no bytes are always complete"), "");
    }
}
