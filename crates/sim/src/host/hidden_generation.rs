//! PlantState bugs that hide from a process what its peers say.

use super::process::Input;
use cluster::{Message, PeerAnswer, PeerRequest};

/// Hides from a node which of its generation a peer remembers.
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
