//! Measures the cost of a message from an outbox to an inbox.
//!
//! `cargo run --release -p wire --example throughput`. Prints the best of several rounds on one
//! thread, per message. A round pushes a batch, fills it into a buffer, and takes it out on the
//! other side.

use bytes::Bytes;
use cluster::{
    Incarnation, Key, Message, MessageId, NodeSet, PeerAnswer, PeerRequest, ReplicaRequest, ReplicaResponse,
    Requester,
};
use std::hint::black_box;
#[expect(clippy::disallowed_types, reason = "time is what is measured")]
use std::time::Instant;
use stdx::{Cell, Hlc, NodeTag, Version};
use wire::{Inbox, InboxLimits, Incoming, Outbox, OutboxLimits};

const ROUNDS: usize = 400;
const BATCH: usize = 256;

fn main() {
    println!("{:<28} {:>8} {:>8} {:>8} {:>8}", "ns per message", "push", "fill", "feed", "next");
    for batch in [1, 16, BATCH] {
        println!("in batches of {batch}");
        report("read of a key of 16 bytes", batch, &read());
        report("write of 100 bytes", batch, &write(100));
        report("write of 4 KiB", batch, &write(4 << 10));
        report(
            "answer to a write",
            batch,
            &answer(PeerAnswer::Replica(ReplicaResponse::Written { superseded: false })),
        );
    }
    report("write of 16 MiB", 1, &write(16 << 20));
}

fn id() -> MessageId {
    MessageId { incarnation: Incarnation(1), requester: Requester::Coordinator(0), number: 7 }
}

fn key() -> Key {
    Key::new(Bytes::from_static(b"0123456789abcdef")).expect("16 bytes are a key")
}

fn read() -> Message {
    Message::Request {
        id: id(),
        request: PeerRequest::Replica(ReplicaRequest::Read { key: key() }),
        within: None,
        epoch: cluster::LayoutEpoch::FIRST,
    }
}

fn write(value_len: usize) -> Message {
    let cell = Cell::value(Version::new(Hlc::from_bits(1), NodeTag(1)), 3, vec![7; value_len].into());
    let request = PeerRequest::Replica(ReplicaRequest::Write { key: key(), cell, hints: NodeSet::EMPTY });
    Message::Request { id: id(), request, within: None, epoch: cluster::LayoutEpoch::FIRST }
}

fn answer(answer: PeerAnswer) -> Message {
    Message::Answer { id: id(), answer }
}

fn report(what: &str, batch: usize, message: &Message) {
    let mut outbox = Outbox::new(OutboxLimits { bytes_max: 64 << 20 });
    let mut inbox = Inbox::new(InboxLimits::default());
    let mut buffer = Vec::new();
    let mut best = [f64::MAX; 4];
    for _ in 0..ROUNDS {
        let costs = round(batch, message, &mut outbox, &mut inbox, &mut buffer);
        for (best, cost) in best.iter_mut().zip(costs) {
            *best = best.min(cost);
        }
    }
    let [push, fill, feed, next] = best;
    println!("  {what:<26} {push:>8.1} {fill:>8.1} {feed:>8.1} {next:>8.1}");
}

/// Cost of push, fill, feed and next in nanoseconds per message.
fn round(
    batch: usize,
    message: &Message,
    outbox: &mut Outbox,
    inbox: &mut Inbox,
    buffer: &mut Vec<u8>,
) -> [f64; 4] {
    let push = timed(batch, || {
        for _ in 0..batch {
            outbox.push(black_box(message)).expect("there is room");
        }
    });
    buffer.clear();
    let fill = timed(batch, || outbox.fill(Hlc::from_bits(1), buffer, usize::MAX / 2));
    let feed = timed(batch, || inbox.feed(black_box(buffer)));
    let mut messages = 0;
    let next = timed(batch, || {
        while let Some(came) = inbox.next().expect("nothing was damaged") {
            messages += usize::from(matches!(black_box(came), Incoming::Message(_)));
        }
    });
    assert_eq!(messages, batch);
    [push, fill, feed, next]
}

#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "time is what is measured")]
fn timed(batch: usize, run: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    run();
    begin.elapsed().as_nanos() as f64 / batch as f64
}
