//! The one queue of this process, for the samples that its own threads take of themselves.

use crate::error::ProfileError;
use crate::gather::Gatherer;
use crate::samples::Samples;
use std::sync::{Mutex, MutexGuard, OnceLock};

static SAMPLES: OnceLock<Samples> = OnceLock::new();
static TURN: Mutex<()> = Mutex::new(());

/// The queue, if a profile has ever needed it. Takes no lock.
pub(crate) fn samples() -> Option<&'static Samples> {
    SAMPLES.get()
}

/// The right to read the queue, until it is dropped.
pub(crate) struct Reader {
    samples: &'static Samples,
    _turn: MutexGuard<'static, ()>,
}

impl Reader {
    /// Takes the right, and throws away what a former profile has left.
    pub(crate) fn take() -> Result<Self, ProfileError> {
        let turn = TURN.try_lock().map_err(|_| ProfileError::Busy)?;
        let samples = SAMPLES.get_or_init(Samples::new);
        samples.drain(|_, _| ());
        samples.take_lost();
        Ok(Self { samples, _turn: turn })
    }

    /// Hands over what is there.
    pub(crate) fn drain(&self, into: &mut Gatherer) {
        self.samples.drain(|tag, addresses| into.add(tag, addresses));
        into.lose(self.samples.take_lost());
    }
}

/// The tests that need the queue, one after another.
#[cfg(test)]
pub(crate) fn turn_of_test() -> impl Drop {
    static TESTS: Mutex<()> = Mutex::new(());
    TESTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
