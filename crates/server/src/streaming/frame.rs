//! Frames of a response body, as passed to hyper.

use crate::response_memory::ResponseReservation;
use bytes::{Buf, Bytes};
use limits::Reservation;
use std::io::IoSlice;
use std::rc::Rc;

/// A frame, which keeps its memory reservation until its bytes have been written.
#[derive(Debug)]
pub(crate) struct ResponseFrame {
    bytes: Bytes,
    _memory: FrameMemory,
}

/// The owner of a frame's memory reservation.
#[derive(Debug)]
enum FrameMemory {
    /// The response holds the reservation, or the frame needs none.
    Elsewhere,
    Value(#[allow(dead_code, reason = "held, not looked at")] Box<ResponseReservation>),
    Page(#[allow(dead_code, reason = "held, not looked at")] Rc<Reservation>),
}

impl ResponseFrame {
    /// Creates the frame of a whole value.
    pub(super) fn of_value(bytes: Bytes, memory: Option<Box<ResponseReservation>>) -> Self {
        Self { bytes, _memory: memory.map_or(FrameMemory::Elsewhere, FrameMemory::Value) }
    }

    /// Creates a frame that is a slice of a page.
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
