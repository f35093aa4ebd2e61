//! Ctrl-C and `SIGTERM`, for what must clean up behind itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// What a shell takes for the end by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Whether somebody wants this process to end. The second time, it ends at once.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    came: Arc<AtomicBool>,
    woken: Arc<Notify>,
}

impl Interrupt {
    /// Watches from now on.
    pub(crate) fn watch() -> Result<Self, String> {
        let interrupt = Self::default();
        let watched = interrupt.clone();
        let failed = |error: std::io::Error| format!("cannot watch for signals: {error}");
        let runtime = runtime()?;
        let guard = runtime.enter();
        let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut term = signal(SignalKind::terminate()).map_err(failed)?;
        drop(guard);
        std::thread::spawn(move || {
            runtime.block_on(async {
                either(&mut int, &mut term).await;
                watched.came.store(true, Ordering::Relaxed);
                watched.woken.notify_one();
                either(&mut int, &mut term).await;
                std::process::exit(INTERRUPTED);
            });
        });
        Ok(interrupt)
    }

    pub(crate) fn has_come(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }

    /// Carries out `work`, unless that is interrupted.
    pub(crate) fn run<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        runtime()?.block_on(async {
            tokio::select! {
                done = work => done,
                () = self.woken.notified() => Err("interrupted".to_owned()),
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

async fn either(int: &mut Signal, term: &mut Signal) {
    tokio::select! {
        _ = int.recv() => {}
        _ = term.recv() => {}
    }
}
