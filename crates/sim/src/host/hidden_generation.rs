//! Planted bug: a node ignores which of its generations a peer remembers.

use super::process::ProcessInput;
use cluster::{Message, NodeRequest, NodeResponse, PeerAnswer, PeerRequest};

/// Removes from a heartbeat the generation of the receiver that the sender remembers.
pub(super) const fn hide(input: &mut ProcessInput) {
    if let ProcessInput::Message(
        _,
        Message::Request { request: PeerRequest::Node(NodeRequest::Heartbeat(payload)), .. }
        | Message::Answer { answer: PeerAnswer::Node(NodeResponse::Heartbeat(payload)), .. },
        _,
    ) = input
    {
        payload.remembered_generation_of_you = None;
    }
}
