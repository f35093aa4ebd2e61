//! Which threads are looked at.

use super::THREADS_MAX;
use crate::threads;
use std::collections::{HashMap, HashSet};
use std::io;

/// The threads that are looked at, each with what that takes.
pub(super) struct Followed<T> {
    threads: HashMap<u32, T>,
    /// Those that ran when they were listed last.
    running: HashSet<u32>,
    /// Those that could not be followed.
    refused: HashSet<u32>,
    /// The most that could not be followed although they ran.
    unseen: usize,
}

impl<T> Followed<T> {
    /// This thread, with what it takes.
    ///
    /// # Errors
    /// It cannot be followed: so none can.
    pub(super) fn begin(follow: impl FnOnce(u32) -> io::Result<T>) -> io::Result<Self> {
        let this = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let threads = HashMap::from([(this, follow(this)?)]);
        Ok(Self { threads, running: HashSet::from([this]), refused: HashSet::new(), unseen: 0 })
    }

    /// Looks who runs. Gives whether some of them are new.
    pub(super) fn list(&mut self) -> bool {
        self.running = threads::list().unwrap_or_default().into_iter().collect();
        // Who has ended since, could not be followed for that.
        self.refused.retain(|thread| self.running.contains(thread));
        self.unseen = self.unseen.max(self.refused.len());
        self.running.iter().any(|thread| self.is_new(*thread))
    }

    /// Follows those that are new.
    pub(super) fn follow(&mut self, follow: impl Fn(u32) -> io::Result<T>) {
        let new: Vec<u32> = self.running.iter().copied().filter(|thread| self.is_new(*thread)).collect();
        for thread in new {
            match follow(thread) {
                Ok(followed) if self.threads.len() < THREADS_MAX => {
                    self.threads.insert(thread, followed);
                }
                Ok(_) | Err(_) => {
                    self.refused.insert(thread);
                }
            }
        }
    }

    /// Does something with each, and leaves those that have ended.
    pub(super) fn visit(&mut self, mut each: impl FnMut(&mut T)) {
        self.threads.retain(|thread, followed| {
            each(followed);
            self.running.contains(thread)
        });
    }

    /// Leaves all.
    pub(super) fn clear(&mut self) {
        self.threads.clear();
    }

    /// How many threads could not be followed.
    pub(super) fn unseen(&self) -> usize {
        self.unseen
    }

    fn is_new(&self, thread: u32) -> bool {
        !self.threads.contains_key(&thread) && !self.refused.contains(&thread)
    }
}
