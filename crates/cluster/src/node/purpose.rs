//! What requests are made for.

use super::ranges::RangeAsked;
use super::repair::Transfer;
use crate::{HintCount, Key, NodeIndex};
use stdx::{Cell, Version};

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
    /// A peer asked for it.
    AnswerRange(RangeAsked),
    /// A cell of a source of a pull.
    StorePulled {
        pull: u64,
        source: NodeIndex,
        key: Key,
        cell: Cell,
    },
    GiveUp,
    /// Whether the key that is retried holds a later version here.
    ReadRefused,
    /// The cell of the key that is retried, which this peer gave.
    StoreRefused {
        holder: NodeIndex,
    },
    /// Of a pass of anti-entropy.
    ScanChunk {
        pass: u64,
    },
    ReadToPush {
        pass: u64,
        transfer: Transfer,
    },
    StoreLearned {
        pass: u64,
        transfer: Transfer,
    },
}

/// What a peer was asked for.
#[derive(Debug)]
pub(super) enum AskPurpose {
    /// The newest cell of a key that it may lack in this version.
    DeliverHint {
        key: Key,
        version: Version,
    },
    /// All that it holds of a range.
    PullRange {
        pull: u64,
    },
    /// What it holds of the refused key that is retried.
    AskRefused,
    /// Whether it holds the same in a range; of a pass of anti-entropy, as what follows.
    CompareRange {
        pass: u64,
    },
    OfferCell {
        pass: u64,
        transfer: Transfer,
    },
    PushCell {
        pass: u64,
        transfer: Transfer,
    },
    PullCell {
        pass: u64,
        transfer: Transfer,
    },
}
