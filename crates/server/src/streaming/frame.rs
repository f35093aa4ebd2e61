//! What a response hands to the library at once.

use crate::budget::Reservation;
use crate::response_memory::ResponseReservation;
use bytes::{Buf, Bytes};
use std::io::IoSlice;
use std::rc::Rc;

/// Bytes on their way to the socket, and their room in the memory budget until they have left.
#[derive(Debug)]
pub(crate) struct ResponseFrame {
    bytes: Bytes,
    _memory: FrameMemory,
}

/// Whose room it is.
#[derive(Debug)]
enum FrameMemory {
    /// Its response's, or it needs none.
    Elsewhere,
    Value(#[allow(dead_code, reason = "held, not looked at")] Box<ResponseReservation>),
    Page(#[allow(dead_code, reason = "held, not looked at")] Rc<Reservation>),
}

impl ResponseFrame {
    /// A whole value.
    pub(super) fn of_value(bytes: Bytes, memory: Option<Box<ResponseReservation>>) -> Self {
        Self { bytes, _memory: memory.map_or(FrameMemory::Elsewhere, FrameMemory::Value) }
    }

    /// Some of a page.
    pub(super) fn of_page(bytes: Bytes, memory: Option<Rc<Reservation>>) -> Self {
        Self { bytes, _memory: memory.map_or(FrameMemory::Elsewhere, FrameMemory::Page) }
    }
}

impl From<Bytes> for ResponseFrame {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, _memory: FrameMemory::Elsewhere }
    }
}

impl Buf for ResponseFrame {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn chunks_vectored<'a>(&'a self, parts: &mut [IoSlice<'a>]) -> usize {
        self.bytes.chunks_vectored(parts)
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}
