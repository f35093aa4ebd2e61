//! Joining of threads.

use std::panic;
use std::thread::ScopedJoinHandle;

/// Joins a scoped thread and returns its result. Resumes its panic, if it panicked.
pub fn join_scoped<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
}
