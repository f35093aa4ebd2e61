//! Which threads are looked at.

use super::THREADS_MAX;
use crate::threads;
use std::collections::{HashMap, HashSet};
use std::io;

/// The threads that are looked at, each with what that takes.
pub(super) struct ThreadSet<T> {
    threads: HashMap<u32, T>,
    /// Those that ran when they were listed last.
    running: HashSet<u32>,
    /// Those that could not be attached.
    refused: HashSet<u32>,
    /// The most that could not be attached although they ran.
    unattached: usize,
}

impl<T> ThreadSet<T> {
    /// This thread, with what it takes.
    ///
    /// # Errors
    /// It cannot be attached: so none can.
    pub(super) fn new(attach: impl FnOnce(u32) -> io::Result<T>) -> io::Result<Self> {
        let this = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let threads = HashMap::from([(this, attach(this)?)]);
        Ok(Self { threads, running: HashSet::from([this]), refused: HashSet::new(), unattached: 0 })
    }

    /// Looks who runs. Gives whether some of them are new.
    pub(super) fn refresh(&mut self) -> bool {
        self.running = threads::list_ids().unwrap_or_default().into_iter().collect();
        // Who has ended since, could not be attached for that.
        self.refused.retain(|thread| self.running.contains(thread));
        self.unattached = self.unattached.max(self.refused.len());
        self.running.iter().any(|thread| self.is_new(*thread))
    }

    /// Follows those that are new.
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

    /// Does something with each, and leaves those that have ended.
    pub(super) fn visit(&mut self, mut each: impl FnMut(&mut T)) {
        self.threads.retain(|thread, attached| {
            each(attached);
            self.running.contains(thread)
        });
    }

    /// Leaves all.
    pub(super) fn clear(&mut self) {
        self.threads.clear();
    }

    /// How many threads could not be attached.
    pub(super) fn unattached(&self) -> usize {
        self.unattached
    }

    fn is_new(&self, thread: u32) -> bool {
        !self.threads.contains_key(&thread) && !self.refused.contains(&thread)
    }
}
