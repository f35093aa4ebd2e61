//! What requests are made for.

/// What the store was asked for.
#[derive(Debug)]
pub(super) enum StorePurpose {
    Remember,
    RaiseClockBound,
}

/// What a peer was asked for.
#[derive(Debug)]
pub(super) enum AskPurpose {}
