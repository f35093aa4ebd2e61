//! The atomics of the memtable, in one splice, so that the schedule tests can put others under the same code.

pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
