//! Waiting for threads.

use std::panic;
use std::thread::ScopedJoinHandle;

/// What a thread of a scope came to, once it has. Where it panicked, so does whoever waits, with what it said.
pub fn join_scoped<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
}
