//! Planted bug: a node ignores which of its generations a peer remembers.

use super::process::Input;
use cluster::{Message, PeerAnswer, PeerRequest};

/// Removes from a heartbeat the generation of the receiver that the sender remembers.
pub(super) const fn hide(input: &mut Input) {
    if let Input::Message(
        _,
        Message::Request { request: PeerRequest::Heartbeat(payload), .. }
        | Message::Answer { answer: PeerAnswer::Heartbeat(payload), .. },
        _,
    ) = input
    {
        payload.remembered_generation_of_you = None;
    }
}
