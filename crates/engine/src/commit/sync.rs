//! The locks of a batch's outcome, re-exported so that the schedule tests can replace them.

pub(super) use parking_lot::Mutex;
pub(super) use std::sync::OnceLock;
