//! What waits to leave over a link.
//!
//! **Promise.** Messages leave in the order they were pushed, but for two kinds: heartbeats go first, so that a
//! link full of values never looks dead; and long messages leave piece by piece, so that they hold nobody up. An
//! outbox holds no more than its limit.
//!
//! **Mechanism.** Short messages are encoded when they are pushed, one behind the other, each behind its length;
//! [`Outbox::fill`] takes as many as fit into one frame with a single copy. Of a long message the value or page is kept
//! by reference and copied into its fragments as they leave. Frames of short messages and fragments take turns;
//! of the long messages the first [`FRAGMENTED_MAX`] take turns, as far as the other side has to put no more
//! than [`MESSAGE_BYTES_MAX`] together at once.
//!
//! Where there is no room for an answer with data, the answer that the sender is busy goes in its place. An asker that
//! heard nothing would wait until its deadline.
//!
//! **Caveats.** A long message can be passed by shorter ones that were pushed after it.

use crate::frame::{FRAME_PAYLOAD_MAX, FrameKind, put_frame};
use crate::message::{encode_head, len_max, tail};
use crate::reassembly::{FRAGMENT_DATA_MAX, FragmentHeader};
use crate::{FRAGMENTED_MAX, MESSAGE_BYTES_MAX, PROTOCOL_VERSION};
use bytes::Bytes;
use cluster::{Message, PeerAnswer, PeerRequest};
use std::collections::VecDeque;
use stdx::Hlc;

/// Bytes of heartbeats that wait, at most; what is over is refused. They have this room to themselves.
const HEARTBEAT_BYTES_MAX: usize = 4 << 10;

/// An empty outbox keeps no more room than this, in bytes.
const IDLE_BYTES_MAX: usize = 256 << 10;

/// The length of a message stands before it.
pub(crate) const LENGTH_LEN: usize = 4;

/// How much an outbox holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxLimits {
    /// Bytes of encoded messages, at most; but one message has room however long it is.
    pub bytes_max: usize,
}

/// No room for a message, or it is longer than [`MESSAGE_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too much waits to leave over this link")]
pub struct OutboxFull;

/// What an outbox took in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The message.
    Whole,
    /// The answer that the sender is busy, in place of the message.
    Refusal,
}

/// See the module.
#[derive(Debug)]
pub struct Outbox {
    limits: OutboxLimits,
    /// The version of the protocol that the other side understands.
    version: u8,
    heartbeats: Vec<u8>,
    short: ShortMessages,
    long: VecDeque<LongMessage>,
    /// What is left of the long messages, in bytes.
    long_bytes: usize,
    /// Names the next message that travels in fragments.
    next_stream: u32,
    /// A fragment is next, before short messages.
    is_fragments_turn: bool,
}

impl Outbox {
    /// An empty one, that speaks the newest version of the protocol.
    pub fn new(limits: OutboxLimits) -> Self {
        Self {
            limits,
            version: PROTOCOL_VERSION,
            heartbeats: Vec::new(),
            short: ShortMessages::default(),
            long: VecDeque::new(),
            long_bytes: 0,
            next_stream: 0,
            is_fragments_turn: false,
        }
    }

    /// The same, before anything was pushed, in the version of the protocol that both sides speak.
    #[must_use]
    pub fn speaking(self, version: u8) -> Self {
        Self { version, ..self }
    }

    /// Takes in a message.
    ///
    /// # Errors
    /// [`OutboxFull`]: nothing was taken in.
    pub fn push(&mut self, message: &Message) -> Result<(), OutboxFull> {
        self.push_if(message, |_| true)
    }

    /// As [`Outbox::push`]. `has_room` is asked, with the length of all that would wait then, heartbeats apart; if there
    /// is no room, that is as if the outbox were full.
    ///
    /// # Errors
    /// As [`Outbox::push`].
    pub fn push_if(
        &mut self,
        message: &Message,
        has_room: impl FnOnce(usize) -> bool,
    ) -> Result<(), OutboxFull> {
        if is_heartbeat(message) {
            return self.push_heartbeat(message);
        }
        let len_max = len_max(message);
        let waiting = self.short.bytes() + self.long_bytes;
        if len_max > MESSAGE_BYTES_MAX || (waiting > 0 && waiting + len_max > self.limits.bytes_max) {
            return Err(OutboxFull);
        }
        if !has_room(waiting + len_max) {
            return Err(OutboxFull);
        }
        if LENGTH_LEN + len_max <= FRAME_PAYLOAD_MAX {
            self.short.reserve(LENGTH_LEN + len_max);
            put_short(&mut self.short.bytes, message, self.version);
        } else {
            let long = LongMessage::new(message, len_max, self.version);
            self.long_bytes += long.left();
            self.long.push_back(long);
        }
        Ok(())
    }

    /// As [`Outbox::push_if`]; in place of an answer with data for which there is no room goes its
    /// [refusal](Message::refusal), which needs hardly any: `has_room` is not asked for it.
    ///
    /// # Errors
    /// As [`Outbox::push`]: there is no room for a refusal either, or the message has none.
    pub fn push_or_refuse(
        &mut self,
        message: &Message,
        has_room: impl FnOnce(usize) -> bool,
    ) -> Result<Pushed, OutboxFull> {
        match (self.push_if(message, has_room), message.refusal()) {
            (Ok(()), _) => Ok(Pushed::Whole),
            (Err(full), None) => Err(full),
            (Err(_), Some(refusal)) => self.push(&refusal).map(|()| Pushed::Refusal),
        }
    }

    fn push_heartbeat(&mut self, message: &Message) -> Result<(), OutboxFull> {
        if self.heartbeats.len() + LENGTH_LEN + len_max(message) > HEARTBEAT_BYTES_MAX {
            return Err(OutboxFull);
        }
        put_short(&mut self.heartbeats, message, self.version);
        Ok(())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// What waits, in bytes, without the headers of frames.
    pub fn bytes(&self) -> usize {
        self.heartbeats.len() + self.short.bytes() + self.long_bytes
    }

    /// Appends whole frames to `out` until they are at least `bytes_target` long or nothing waits any more. They
    /// are at most one frame longer.
    pub fn fill(&mut self, clock: Hlc, out: &mut Vec<u8>, bytes_target: usize) {
        let end = out.len() + bytes_target;
        while out.len() < end && !self.is_empty() {
            let has_short = !self.heartbeats.is_empty() || self.short.bytes() > 0;
            let is_fragment = match self.long.is_empty() {
                true => false,
                false => !has_short || (self.is_fragments_turn && self.heartbeats.is_empty()),
            };
            match is_fragment {
                true => self.put_fragment(clock, out),
                false => self.put_messages(clock, out),
            }
            self.is_fragments_turn = !is_fragment;
        }
    }

    fn put_messages(&mut self, clock: Hlc, out: &mut Vec<u8>) {
        put_frame(out, self.version, FrameKind::Messages, clock, |out| {
            out.extend_from_slice(&self.heartbeats);
            let room = FRAME_PAYLOAD_MAX - self.heartbeats.len();
            self.heartbeats.clear();
            self.short.take(out, room);
        });
    }

    fn put_fragment(&mut self, clock: Hlc, out: &mut Vec<u8>) {
        if self.long[0].stream.is_none() {
            self.long[0].stream = Some(self.next_stream);
            self.next_stream = self.next_stream.wrapping_add(1);
        }
        let long = &mut self.long[0];
        let sent = long.sent;
        put_frame(out, self.version, FrameKind::Fragment, clock, |out| long.put_fragment(out));
        self.long_bytes -= long.sent - sent;
        self.rotate();
    }

    /// Brings the long message to the front whose turn it is.
    fn rotate(&mut self) {
        if self.long[0].left() == 0 {
            self.long.pop_front();
            return;
        }
        for place in 1..self.travelling_together() {
            self.long.swap(place - 1, place);
        }
    }

    /// How many of the first long messages may travel at once.
    fn travelling_together(&self) -> usize {
        let mut bytes = 0;
        let fits = |long: &&LongMessage| {
            bytes += long.len();
            bytes <= MESSAGE_BYTES_MAX
        };
        self.long.iter().take(FRAGMENTED_MAX).take_while(fits).count()
    }
}

fn is_heartbeat(message: &Message) -> bool {
    match message {
        Message::Request { request, .. } => matches!(request, PeerRequest::Heartbeat(_)),
        Message::Answer { answer, .. } => matches!(answer, PeerAnswer::Heartbeat(_)),
    }
}

/// Appends a message behind its length.
fn put_short(out: &mut Vec<u8>, message: &Message, version: u8) {
    let begin = out.len();
    out.extend_from_slice(&[0; LENGTH_LEN]);
    if let Some(tail) = encode_head(out, message, version) {
        out.extend_from_slice(tail);
    }
    let len = (out.len() - begin - LENGTH_LEN) as u32;
    out[begin..begin + LENGTH_LEN].copy_from_slice(&len.to_le_bytes());
}

/// Encoded messages, each behind its length.
#[derive(Debug, Default)]
struct ShortMessages {
    bytes: Vec<u8>,
    /// Before it, all has left.
    begin: usize,
}

impl ShortMessages {
    fn bytes(&self) -> usize {
        self.bytes.len() - self.begin
    }

    /// Makes room; of what has left, once that is most of it.
    fn reserve(&mut self, len: usize) {
        if self.bytes.capacity() - self.bytes.len() < len && self.begin > self.bytes() {
            self.bytes.drain(..self.begin);
            self.begin = 0;
        }
        self.bytes.reserve(len);
    }

    /// Moves as many messages to `out` as fit into `room` bytes.
    fn take(&mut self, out: &mut Vec<u8>, room: usize) {
        let waiting = &self.bytes[self.begin..];
        let taken = if waiting.len() <= room { waiting.len() } else { whole_messages(waiting, room) };
        out.extend_from_slice(&waiting[..taken]);
        self.begin += taken;
        if self.begin == self.bytes.len() {
            self.begin = 0;
            self.bytes.clear();
            self.bytes.shrink_to(IDLE_BYTES_MAX);
        }
    }
}

/// The length of the first messages of `bytes` that fit into `room` bytes.
fn whole_messages(bytes: &[u8], room: usize) -> usize {
    let mut end = 0;
    loop {
        let length = bytes[end..].first_chunk().expect("a message stands behind its length");
        let next = end + LENGTH_LEN + u32::from_le_bytes(*length) as usize;
        if next > room {
            return end;
        }
        end = next;
    }
}

/// A message that leaves in fragments.
#[derive(Debug)]
struct LongMessage {
    /// All of it but its tail.
    head: Vec<u8>,
    /// The value or the bytes of a page that it ends with.
    tail: Bytes,
    sent: usize,
    /// Its name on the link, once it travels.
    stream: Option<u32>,
}

impl LongMessage {
    fn new(message: &Message, len_max: usize, version: u8) -> Self {
        let mut head = Vec::with_capacity(len_max - tail(message).map_or(0, Bytes::len));
        let tail = encode_head(&mut head, message, version).cloned().unwrap_or_default();
        Self { head, tail, sent: 0, stream: None }
    }

    fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    fn left(&self) -> usize {
        self.len() - self.sent
    }

    /// Appends the next fragment.
    fn put_fragment(&mut self, out: &mut Vec<u8>) {
        let stream = self.stream.expect("a message that travels has a name");
        FragmentHeader { stream, total: self.len() as u32, offset: self.sent as u32 }.put(out);
        let end = self.sent + self.left().min(FRAGMENT_DATA_MAX);
        let (head, tail) = (self.head.len(), self.tail.len());
        out.extend_from_slice(&self.head[self.sent.min(head)..end.min(head)]);
        out.extend_from_slice(&self.tail[self.sent.saturating_sub(head)..end.saturating_sub(head).min(tail)]);
        self.sent = end;
    }
}
