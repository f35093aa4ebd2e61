//! Ending a run early, with what it measured so far.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The exit code of a program that was interrupted, by custom 128 and the signal's number.
const EXIT_INTERRUPTED: i32 = 130;

/// Tells all threads of a run to end. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct StopFlag {
    is_set: Arc<AtomicBool>,
}

impl StopFlag {
    /// Asks for the end.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
    }

    /// Whether the end was asked for.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// One that the first Ctrl-C sets; the second ends the process.
    ///
    /// # Errors
    /// When signals cannot be watched.
    pub fn on_interrupt() -> io::Result<Self> {
        let stop = Self::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let interrupts = {
            let _guard = runtime.enter();
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?
        };
        let set = stop.clone();
        thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
            let mut interrupts = interrupts;
            runtime.block_on(async {
                if interrupts.recv().await.is_some() {
                    set.set();
                }
                if interrupts.recv().await.is_some() {
                    std::process::exit(EXIT_INTERRUPTED);
                }
            });
        })?;
        Ok(stop)
    }
}
