//! What a response hands to the library at once.

use crate::budget::Taken;
use crate::reply_room::ReplyRoom;
use bytes::{Buf, Bytes};
use std::io::IoSlice;
use std::rc::Rc;

/// Bytes on their way to the socket, and their room in the memory budget until they have left.
#[derive(Debug)]
pub(crate) struct ResponseFrame {
    bytes: Bytes,
    _room: Room,
}

/// Whose room it is.
#[derive(Debug)]
enum Room {
    /// Its response's, or it needs none.
    Elsewhere,
    Value(#[allow(dead_code, reason = "held, not looked at")] Box<ReplyRoom>),
    Page(#[allow(dead_code, reason = "held, not looked at")] Rc<Taken>),
}

impl ResponseFrame {
    /// A whole value.
    pub(super) fn of_value(bytes: Bytes, room: Option<Box<ReplyRoom>>) -> Self {
        Self { bytes, _room: room.map_or(Room::Elsewhere, Room::Value) }
    }

    /// Some of a page.
    pub(super) fn of_page(bytes: Bytes, room: Option<Rc<Taken>>) -> Self {
        Self { bytes, _room: room.map_or(Room::Elsewhere, Room::Page) }
    }
}

impl From<Bytes> for ResponseFrame {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, _room: Room::Elsewhere }
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
