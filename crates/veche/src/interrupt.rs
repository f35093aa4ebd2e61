//! Ctrl-C and `SIGTERM`, for what must clean up behind itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// What a shell takes for the end by Ctrl-C.
const EXIT_CODE: i32 = 130;

/// Signals that come together, as some programs send them, are one.
const DUPLICATE_WINDOW: Duration = Duration::from_millis(500);

/// Whether somebody wants this process to end. The second time, it ends at once.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    is_requested: Arc<AtomicBool>,
    notify: Arc<Notify>,
}

impl Interrupt {
    /// Watches from now on.
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

    /// Carries out `work`, unless that is interrupted.
    pub(crate) fn run<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        runtime()?.block_on(async {
            tokio::select! {
                done = work => done,
                () = self.notify.notified() => Err("interrupted".to_owned()),
            }
        })
    }
}

/// One for this thread.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot begin to work: {error}"))
}

/// Ctrl-C and `SIGTERM`, from when they are watched.
struct Signals {
    int: Signal,
    term: Signal,
}

impl Signals {
    fn watch() -> Result<Self, String> {
        let watch = |kind| signal(kind).map_err(|error| format!("cannot watch for signals: {error}"));
        Ok(Self { int: watch(SignalKind::interrupt())?, term: watch(SignalKind::terminate())? })
    }

    /// Waits for one.
    async fn wait(mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
        }
    }
}
