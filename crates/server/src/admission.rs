//! Refusals: counted, and with the time after which there will be room.
//!
//! **Promise.** Whatever is refused for lack of room is told so with `503`, and with a `Retry-After` that is the
//! predicted time until there is room: what is under way when it is refused, at the rate at which such work was done
//! lately. It is 1 to 30 s.
//!
//! **Mechanism.** What may come in is decided where the work is: writes by the coordinator of the thread
//! (`cluster::DelayEstimator`), reads by the pool that carries them out, connections by the listener. Each I/O thread leaves here, at
//! the end of what it was brought, how long its writes under way will take; refusals that are made elsewhere (of bodies,
//! which are held until their writes are done, and of batches) read the longest of these. Each thread writes its own line
//! of memory, so the way of a request shares none.
//!
//! **Caveats.** A prediction is of the work that is known. What will come in the meantime is not.

use crate::counters::{Counter, Refusal};
use api::Problem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::nanos;

/// See the module.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Without those that threads count by themselves.
    refused: [Counter; Refusal::ALL.len()],
    threads: Box<[Share]>,
}

/// What one I/O thread writes, and nobody else.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Share {
    drain_nanos: AtomicU64,
    refused_operations: AtomicU64,
}

impl Admission {
    /// Of so many I/O threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self { refused: Default::default(), threads: (0..threads).map(|_| Share::default()).collect() }
    }

    /// Refuses something for this reason: counts it, and says it.
    pub(crate) fn refuse(&self, why: Refusal) -> Problem {
        self.count(why);
        problem(why, self.drain())
    }

    /// Counts a refusal that is said elsewhere.
    pub(crate) fn count(&self, why: Refusal) {
        self.refused[why as usize].count();
    }

    /// What was refused for this reason.
    pub(crate) fn refused(&self, why: Refusal) -> u64 {
        let by_threads = match why {
            Refusal::Operations => self.threads.iter().map(|share| get(&share.refused_operations)).sum(),
            Refusal::Connections
            | Refusal::Bodies
            | Refusal::Ranges
            | Refusal::Replies
            | Refusal::Batches => 0,
        };
        self.refused[why as usize].get() + by_threads
    }

    /// What was refused for any reason.
    pub(crate) fn refused_in_all(&self) -> u64 {
        Refusal::ALL.into_iter().map(|why| self.refused(why)).sum()
    }

    /// How long the writes under way will take.
    pub(crate) fn drain(&self) -> Duration {
        let longest = self.threads.iter().map(|share| get(&share.drain_nanos)).max();
        Duration::from_nanos(longest.unwrap_or(0))
    }

    /// How long the writes under way on this thread will take. Called by that thread alone.
    pub(crate) fn note_drain(&self, thread: u8, drain: Duration) {
        self.threads[usize::from(thread)].drain_nanos.store(nanos(drain), Ordering::Relaxed);
    }

    /// This thread has refused an operation. Called by that thread alone.
    pub(crate) fn count_operation(&self, thread: u8) {
        let count = &self.threads[usize::from(thread)].refused_operations;
        count.store(get(count) + 1, Ordering::Relaxed);
    }
}

fn get(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

fn problem(why: Refusal, retry_after: Duration) -> Problem {
    let detail = match why {
        Refusal::Connections => {
            "The node has no room for another connection, or for a long request head on this one. Nothing was done. Try again \
             after the time in Retry-After. If this happens often, keep fewer connections open, or raise the node's limit of \
             open files or its --memory."
        }
        Refusal::Bodies => {
            "The node is short of memory: there is no room for the body of this request now. Nothing was stored. Try again \
             after the time in Retry-After. If this happens often, send fewer large values at a time, or raise --memory."
        }
        Refusal::Ranges => {
            "The node has no room for another range: as many are sent as it has memory for. Nothing was read. Try again after \
             the time in Retry-After. If this happens often, read fewer ranges at a time, or raise --memory."
        }
        Refusal::Replies => {
            "The node is short of memory: there is no room for this value on its way out now. Try again after the time in \
             Retry-After. If this happens often, read fewer large values at a time, or raise --memory."
        }
        Refusal::Batches => {
            "The node is short of memory: there is no room for the next entries of this batch now. Entries without a result \
             were not stored. Send them again after the time in Retry-After. If this happens often, send fewer batches at a \
             time, or raise --memory."
        }
        Refusal::Operations => return Problem::overloaded(retry_after),
    };
    Problem::unavailable(retry_after, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_count_and_what_others_count_is_one_sum() {
        let admission = Admission::new(2);
        (0..3).for_each(|_| admission.count_operation(0));
        (0..5).for_each(|_| admission.count_operation(1));
        admission.refuse(Refusal::Operations);
        admission.refuse(Refusal::Ranges);
        assert_eq!((admission.refused(Refusal::Operations), admission.refused(Refusal::Ranges)), (9, 1));
    }

    #[test]
    fn a_refusal_for_lack_of_memory_says_what_to_do() {
        for why in
            [Refusal::Connections, Refusal::Bodies, Refusal::Ranges, Refusal::Replies, Refusal::Batches]
        {
            let problem = problem(why, Duration::ZERO);
            let detail = problem.detail();
            for says in ["memory", "Retry-After", "raise", "If this happens often"] {
                assert!(detail.contains(says), "{why:?}: {detail}");
            }
        }
    }

    #[test]
    fn the_slowest_thread_says_when_to_come_again() {
        let admission = Admission::new(2);
        let told = || {
            let bytes = admission.refuse(Refusal::Bodies).to_http1_bytes(b"Sun, 06 Nov 1994 08:49:37 GMT");
            let text = String::from_utf8(bytes.to_vec()).expect("text").to_ascii_lowercase();
            text.lines()
                .find_map(|line| line.strip_prefix("retry-after: ").map(str::to_owned))
                .expect("it is told")
        };
        assert_eq!(told(), "1");
        admission.note_drain(0, Duration::from_millis(2_300));
        admission.note_drain(1, Duration::from_millis(700));
        assert_eq!(told(), "3");
        admission.note_drain(0, Duration::from_secs(500));
        assert_eq!(told(), "30");
    }
}
