//! Ctrl-C and `SIGTERM` for commands that clean up before they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// Exit code that a shell reports for a process ended by Ctrl-C.
const EXIT_CODE: i32 = 130;

/// Signals within this time after the first are its duplicates: some programs send several at once.
const DUPLICATE_WINDOW: Duration = Duration::from_millis(500);

/// A request to end this process. The second signal ends it at once.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    is_requested: Arc<AtomicBool>,
    notify: Arc<Notify>,
}

impl Interrupt {
    /// Starts watching for signals on a thread.
    pub(crate) fn watch() -> Result<Self, String> {
        let interrupt = Self::default();
        let watched = interrupt.clone();
        let runtime = runtime()?;
        let first = runtime.block_on(async { Signals::watch() })?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                first.wait().await;
                watched.is_requested.store(true, Ordering::Relaxed);
                watched.notify.notify_one();
                tokio::time::sleep(DUPLICATE_WINDOW).await;
                if let Ok(second) = Signals::watch() {
                    second.wait().await;
                    std::process::exit(EXIT_CODE);
                }
            });
        });
        Ok(interrupt)
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.is_requested.load(Ordering::Relaxed)
    }

    /// Runs `work` until it completes or is interrupted.
    pub(crate) fn run<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        runtime()?.block_on(async {
            tokio::select! {
                done = work => done,
                () = self.notify.notified() => Err("interrupted".to_owned()),
            }
        })
    }
}

/// A runtime for the current thread.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the event loop: {error}"))
}

/// Listeners for Ctrl-C and `SIGTERM`.
struct Signals {
    int: Signal,
    term: Signal,
}

impl Signals {
    fn watch() -> Result<Self, String> {
        let watch = |kind| signal(kind).map_err(|error| format!("cannot watch for signals: {error}"));
        Ok(Self { int: watch(SignalKind::interrupt())?, term: watch(SignalKind::terminate())? })
    }

    /// Waits for either signal.
    async fn wait(mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
        }
    }
}
