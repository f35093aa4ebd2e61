//! Whether the process starts, serves or drains.

use api::ServingState;
use std::sync::atomic::{AtomicU8, Ordering};

/// The [`ServingState`] of a process, for all of its threads. It only advances. Each request reads
/// it, so no other value shares its cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct SharedServingState(AtomicU8);

const STARTING: u8 = 0;
const SERVING: u8 = 1;
const DRAINING: u8 = 2;

impl SharedServingState {
    pub(crate) fn get(&self) -> ServingState {
        match self.0.load(Ordering::Relaxed) {
            STARTING => ServingState::Starting,
            SERVING => ServingState::Serving,
            _ => ServingState::Draining,
        }
    }

    pub(crate) fn begin_serving(&self) {
        self.0.store(SERVING, Ordering::Relaxed);
    }

    pub(crate) fn begin_draining(&self) {
        self.0.store(DRAINING, Ordering::Relaxed);
    }
}
