//! The set of threads that a sampler observes.

use super::THREADS_MAX;
use crate::threads;
use std::collections::{HashMap, HashSet};
use std::io;

/// Threads of this process, each with its sampler of type `T`.
pub(super) struct ThreadSet<T> {
    threads: HashMap<u32, T>,
    /// Threads that existed at the last refresh.
    running: HashSet<u32>,
    /// Threads to which no sampler could be attached.
    refused: HashSet<u32>,
    /// Greatest number of running threads that had no sampler at the same time.
    unattached: usize,
}

impl<T> ThreadSet<T> {
    /// Creates a set that contains the calling thread.
    ///
    /// # Errors
    /// No sampler can be attached to the calling thread, and therefore to no other.
    pub(super) fn new(attach: impl FnOnce(u32) -> io::Result<T>) -> io::Result<Self> {
        let this = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let threads = HashMap::from([(this, attach(this)?)]);
        Ok(Self { threads, running: HashSet::from([this]), refused: HashSet::new(), unattached: 0 })
    }

    /// Lists the running threads again. Returns whether some of them are new.
    pub(super) fn refresh(&mut self) -> bool {
        self.running = threads::list_ids().unwrap_or_default().into_iter().collect();
        // A thread that has ended since was refused only because it was ending.
        self.refused.retain(|thread| self.running.contains(thread));
        self.unattached = self.unattached.max(self.refused.len());
        self.running.iter().any(|thread| self.is_new(*thread))
    }

    /// Attaches a sampler to each new thread.
    pub(super) fn attach_new(&mut self, attach: impl Fn(u32) -> io::Result<T>) {
        let new: Vec<u32> = self.running.iter().copied().filter(|thread| self.is_new(*thread)).collect();
        for thread in new {
            match attach(thread) {
                Ok(attached) if self.threads.len() < THREADS_MAX => {
                    self.threads.insert(thread, attached);
                }
                Ok(_) | Err(_) => {
                    self.refused.insert(thread);
                }
            }
        }
    }

    /// Calls `each` for every sampler, then drops the samplers of threads that have ended.
    pub(super) fn visit(&mut self, mut each: impl FnMut(&mut T)) {
        self.threads.retain(|thread, attached| {
            each(attached);
            self.running.contains(thread)
        });
    }

    /// Drops all samplers.
    pub(super) fn clear(&mut self) {
        self.threads.clear();
    }

    /// Greatest number of running threads without a sampler.
    pub(super) fn unattached(&self) -> usize {
        self.unattached
    }

    fn is_new(&self, thread: u32) -> bool {
        !self.threads.contains_key(&thread) && !self.refused.contains(&thread)
    }
}
