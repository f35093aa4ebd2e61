//! The bytes of a stream, in the pieces they came in.

use bytes::{Buf, Bytes};
use std::collections::VecDeque;

/// The pieces that were fed and not read yet.
///
/// What is taken whole out of one piece is a slice of it. What is not there whole yet moves into memory of its own, so
/// that small pieces do not keep alive the large buffers that they are slices of.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    /// None of them is empty.
    queue: VecDeque<Bytes>,
    /// The beginning of what was asked for and is not there whole.
    partial: Vec<u8>,
}

impl ByteQueue {
    pub(super) fn feed(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.queue.push_back(piece);
        }
    }

    /// How many bytes wait to be read.
    pub(super) fn len(&self) -> usize {
        self.partial.len() + self.queue.iter().map(Bytes::len).sum::<usize>()
    }

    /// The next bytes, as many as lie together; none when all is read. Not amid [`ByteQueue::take`].
    #[inline]
    pub(super) fn front(&self) -> &[u8] {
        debug_assert!(self.partial.is_empty(), "a part of them was asked for");
        self.queue.front().map_or(&[], |piece| piece)
    }

    /// Passes over bytes of the [`ByteQueue::front`].
    #[inline]
    pub(super) fn advance(&mut self, len: usize) {
        let Some(front) = self.queue.front_mut() else { return };
        front.advance(len);
        if front.is_empty() {
            self.queue.pop_front();
        }
    }

    /// The next `N` bytes, once they are there. ResponseContext again with the same length until then.
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
        Some(*bytes.first_chunk().expect("so many were gathered"))
    }

    /// The next `len` bytes, once they are there. ResponseContext again with the same length until then.
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

    /// Moves what there is of `len` bytes into `partial`; all of them, once they are there.
    fn gather(&mut self, len: usize) -> Option<Bytes> {
        // No memory is touched before the bytes come.
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
    fn what_lies_in_one_piece_is_a_slice_of_it() {
        let whole = Bytes::from(b"abcdef".to_vec());
        let mut pieces = ByteQueue::default();
        pieces.feed(whole.clone());
        assert_eq!(pieces.take_array(), Some(*b"ab"));
        let taken = pieces.take(3).expect("it is there");
        assert_eq!(taken.as_ptr(), whole[2..].as_ptr());
        assert_eq!(pieces.take(1).expect("it is there"), "f");
        assert_eq!(pieces.len(), 0);
    }

    #[test]
    fn what_lies_in_several_is_put_together() {
        let mut pieces = pieces(&["a", "", "bc", "d"]);
        assert_eq!(pieces.take(3).expect("it is there"), "abc");
        assert_eq!(pieces.take_array::<2>(), None);
        assert_eq!(pieces.len(), 1);
        pieces.feed(Bytes::from_static(b"ef"));
        assert_eq!(pieces.take_array(), Some(*b"de"));
        assert_eq!(pieces.front(), b"f");
        assert_eq!(pieces.take(0).expect("nothing is always there"), "");
    }
}
