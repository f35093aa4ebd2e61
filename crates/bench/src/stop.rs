//! Early end of a run, with the measurements so far.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Exit code of an interrupted program: by convention 128 plus the signal number.
const EXIT_INTERRUPTED: i32 = 130;

/// Flag that ends all threads of a run. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct StopFlag {
    is_set: Arc<AtomicBool>,
}

impl StopFlag {
    /// Sets the flag.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
    }

    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Creates a flag that the first Ctrl-C sets. The second Ctrl-C exits the process.
    ///
    /// # Errors
    /// The signal handler cannot be installed.
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
