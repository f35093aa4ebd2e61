//! Packets of connections: frames of the shipped `wire`.

use cluster::Message;
use std::fmt;
use stdx::Hlc;
use wire::{Inbox, InboxLimits, Incoming, Outbox, OutboxLimits, WireError};

/// Bound of the outbox, in bytes. It is greater than the output of any step.
const BYTES_MAX: usize = 1 << 30;

/// Whole frames: the output of one step of a state machine to one connection.
#[derive(Clone)]
pub struct Packet(Vec<u8>);

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Packet {
    /// Encodes messages of a sender whose version clock shows `clock`, over a link that speaks this
    /// version of the protocol.
    ///
    /// # Panics
    /// If one of them is longer than the greatest message, or the version lacks it.
    pub fn of(version: u8, clock: Hlc, messages: &[Message]) -> Self {
        let mut outbox = Outbox::new(OutboxLimits { bytes_max: BYTES_MAX }).speaking(version);
        for message in messages {
            outbox.push(message).expect("the outbox holds the output of a step");
        }
        let mut bytes = Vec::new();
        outbox.fill(clock, &mut bytes, BYTES_MAX);
        Self(bytes)
    }

    /// Decodes the messages, each with the sender's clock.
    ///
    /// # Errors
    /// Those of [`Inbox::next`]. Packets made by [`Packet::of`] have none.
    pub fn open(&self) -> Result<Vec<(Hlc, Message)>, WireError> {
        // Each packet is decoded by itself, since others may arrive before it or never.
        let mut inbox = Inbox::new(InboxLimits::default());
        inbox.feed(&self.0);
        let mut clock = Hlc::ZERO;
        let mut messages = Vec::new();
        while let Some(incoming) = inbox.next()? {
            match incoming {
                Incoming::Clock(shown) => clock = shown,
                Incoming::Message(message) => messages.push((clock, message)),
            }
        }
        Ok(messages)
    }
}
