//! The atomics of the memtable, re-exported so that the schedule tests can replace them.

pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
