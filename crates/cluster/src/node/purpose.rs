//! What requests are made for.

use crate::{HintCount, Key, NodeIndex};
use stdx::Version;

/// What the store was asked for.
#[derive(Debug)]
pub(super) enum StorePurpose {
    Remember,
    RaiseClockBound,
    /// To count a peer's hints, or to deliver them.
    ReadHints {
        target: NodeIndex,
    },
    ForgetHints {
        target: NodeIndex,
        gone: HintCount,
    },
}

/// What a peer was asked for.
#[derive(Debug)]
pub(super) enum AskPurpose {
    /// The newest cell of a key that it may lack in this version.
    DeliverHint { key: Key, version: Version },
}
