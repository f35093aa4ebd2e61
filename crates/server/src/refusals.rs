//! Refusals for lack of capacity: their counts, their texts and their `Retry-After`.
//!
//! **Promise.** A request that is refused for lack of capacity gets `503` with a `Retry-After` of 1
//! to 30 s. It is the predicted time until capacity is free: the work in flight, divided by the
//! rate at which such work completed recently.
//!
//! **Mechanism.** Admission is decided where the work is done: for writes by the coordinator of the
//! I/O thread (`limits::Admission`), for reads by the read pool, for connections by the
//! listener. After each batch of events, an I/O thread publishes here the time that its writes in
//! flight will take. Refusals elsewhere (of bodies, whose memory is held until their writes are
//! done, and of batches) use the longest of these times. Each thread writes its own cache line, so
//! requests of different threads do not contend.
//!
//! **Caveats.** A prediction covers the work that is known now. Requests that arrive later are not
//! included.

use crate::counters::{Counter, Refusal};
use api::Problem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::nanos;

/// Refusal counters, and the drain times that the I/O threads publish.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// Refusals by reason, except those that I/O threads count in their [`Share`].
    refused: [Counter; Refusal::ALL.len()],
    threads: Box<[Share]>,
}

/// Counters of one I/O thread. Only that thread writes them.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Share {
    drain_nanos: AtomicU64,
    refused_operations: AtomicU64,
}

impl Refusals {
    /// Counters for a process with `threads` I/O threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self { refused: Default::default(), threads: (0..threads).map(|_| Share::default()).collect() }
    }

    /// Counts a refusal and returns the response for it.
    pub(crate) fn refuse(&self, why: Refusal) -> Problem {
        self.count(why);
        problem(why, self.drain())
    }

    /// Counts a refusal whose response is made elsewhere.
    pub(crate) fn count(&self, why: Refusal) {
        self.refused[why as usize].count();
    }

    /// Number of refusals for this reason.
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

    /// Number of refusals for all reasons.
    pub(crate) fn refused_in_all(&self) -> u64 {
        Refusal::ALL.into_iter().map(|why| self.refused(why)).sum()
    }

    /// Time until the writes in flight are done, on the slowest thread.
    pub(crate) fn drain(&self) -> Duration {
        let longest = self.threads.iter().map(|share| get(&share.drain_nanos)).max();
        Duration::from_nanos(longest.unwrap_or(0))
    }

    /// Publishes the time until the writes in flight on `thread` are done. Only that thread calls
    /// this.
    pub(crate) fn note_drain(&self, thread: u8, drain: Duration) {
        self.threads[usize::from(thread)].drain_nanos.store(nanos(drain), Ordering::Relaxed);
    }

    /// Counts an operation that `thread` refused. Only that thread calls this.
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
    fn counts_of_threads_and_of_the_process_add_up() {
        let refusals = Refusals::new(2);
        (0..3).for_each(|_| refusals.count_operation(0));
        (0..5).for_each(|_| refusals.count_operation(1));
        refusals.refuse(Refusal::Operations);
        refusals.refuse(Refusal::Ranges);
        assert_eq!((refusals.refused(Refusal::Operations), refusals.refused(Refusal::Ranges)), (9, 1));
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
    fn retry_after_is_the_drain_time_of_the_slowest_thread() {
        let refusals = Refusals::new(2);
        let told = || {
            let bytes = refusals.refuse(Refusal::Bodies).to_http1_bytes(b"Sun, 06 Nov 1994 08:49:37 GMT");
            let text = String::from_utf8(bytes.to_vec()).expect("text").to_ascii_lowercase();
            text.lines()
                .find_map(|line| line.strip_prefix("retry-after: ").map(str::to_owned))
                .expect("the response has a Retry-After")
        };
        assert_eq!(told(), "1");
        refusals.note_drain(0, Duration::from_millis(2_300));
        refusals.note_drain(1, Duration::from_millis(700));
        assert_eq!(told(), "3");
        refusals.note_drain(0, Duration::from_secs(500));
        assert_eq!(told(), "30");
    }
}
