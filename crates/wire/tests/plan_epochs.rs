//! A request arrives with the epoch of its own plan, whatever was sent before or after it.

mod common;

use cluster::{LayoutEpoch, Message};
use common::{CLOCK, any_message, encode, encode_in, outbox, take_into, write_in};
use proptest::collection::vec;
use proptest::prelude::*;
use wire::{FRAME_HEADER_LEN, Inbox, InboxLimits, OutboxLimits, PushError};

/// Length of a marker behind its own length.
const MARKER_LEN: usize = 4 + 9;

/// Sends messages, and returns those that arrive. After each of them, up to `fills` frames leave.
fn transport(messages: &[Message], fills: &[usize]) -> Vec<Message> {
    let (mut outbox, mut inbox) = (outbox(), Inbox::new(InboxLimits::default()));
    let mut arrived = Vec::new();
    let mut fill = |outbox: &mut wire::Outbox| {
        let mut bytes = Vec::new();
        outbox.fill(CLOCK, &mut bytes, 1);
        inbox.feed(&bytes);
        take_into(&mut inbox, &mut arrived).unwrap();
    };
    for (message, fills) in messages.iter().zip(fills.iter().cycle()) {
        outbox.push(message).unwrap();
        (0..*fills).for_each(|_| fill(&mut outbox));
    }
    while !outbox.is_empty() {
        fill(&mut outbox);
    }
    arrived
}

fn sorted(mut messages: Vec<Message>) -> Vec<String> {
    messages.sort_by_key(|message| match message {
        Message::Request { id, .. } | Message::Answer { id, .. } => *id,
    });
    messages.iter().map(|message| format!("{message:?}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    /// Short and long writes of plans that get newer and older, with any interleaving of frames.
    #[test]
    fn a_request_arrives_with_the_epoch_of_its_own_plan(
        plans in vec((1..5u64, prop_oneof![1..100usize, 66_000..200_000usize]), 1..20),
        fills in vec(0..4usize, 1..5),
    ) {
        let messages: Vec<Message> =
            (0..).zip(plans).map(|(number, (epoch, len))| write_in(LayoutEpoch(epoch), number, len)).collect();
        prop_assert_eq!(sorted(transport(&messages, &fills)), sorted(messages));
    }

    #[test]
    fn messages_without_a_plan_arrive_among_markers(messages in vec(any_message(), 1..20)) {
        prop_assert_eq!(sorted(transport(&messages, &[0, 1])), sorted(messages));
    }
}

/// The behavior of a receiver that judges a request by the newest epoch which its link has told.
#[test]
fn a_long_request_is_not_judged_under_a_newer_epoch_that_its_link_has_told_meanwhile() {
    let (old, new) = (LayoutEpoch(2), LayoutEpoch(3));
    let sent = [write_in(old, 1, 300_000), write_in(new, 2, 10)];
    let arrived = transport(&sent, &[1]);
    let [long, short] = sent;
    assert_eq!(arrived, [short, long], "the short one overtakes the long one, and each keeps its epoch");
}

#[test]
fn short_requests_of_one_epoch_have_no_bytes_for_it() {
    let writes =
        |epoch| (0..1_000).map(|number| write_in(LayoutEpoch(epoch), number, 100)).collect::<Vec<_>>();
    let before = encode_in(4, &writes(1)).len();
    assert_eq!(encode(&writes(1)).len(), before, "the first layout needs no marker");
    assert_eq!(encode(&writes(7)).len(), before + MARKER_LEN, "a later one needs one marker");
    let both = [writes(7), writes(8)].concat();
    let without = encode_in(4, &[writes(1), writes(1)].concat()).len();
    assert_eq!(encode(&both).len(), without + 2 * MARKER_LEN, "and one for each change");
}

#[test]
fn a_request_that_does_not_fit_leaves_no_marker_behind() {
    let mut outbox = wire::Outbox::new(OutboxLimits { bytes_max: 1_000 });
    outbox.push(&write_in(LayoutEpoch(1), 1, 700)).unwrap();
    let before = outbox.bytes();
    assert_eq!(outbox.push(&write_in(LayoutEpoch(2), 2, 300)), Err(PushError::Full));
    assert_eq!(outbox.bytes(), before);
    let mut bytes = Vec::new();
    outbox.fill(CLOCK, &mut bytes, usize::MAX / 2);
    outbox.push(&write_in(LayoutEpoch(2), 3, 300)).unwrap();
    outbox.fill(CLOCK, &mut bytes, usize::MAX / 2);
    let arrived = common::decode(&bytes).unwrap();
    assert_eq!(arrived, [write_in(LayoutEpoch(1), 1, 700), write_in(LayoutEpoch(2), 3, 300)]);
}

#[test]
fn a_marker_of_another_length_is_an_error() {
    let marked = encode(&[write_in(LayoutEpoch(2), 1, 10)]);
    let at = FRAME_HEADER_LEN;
    assert_eq!(marked[at + 4], 0x0d, "the frame begins with a marker");
    for len in [1u8, 8, 10] {
        let mut bytes = marked.clone();
        bytes[at] = len;
        let checksum = crc_fast::crc32_iscsi(&bytes[4..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        assert!(common::decode(&bytes).is_err(), "{len}");
    }
}
