//! Where other threads leave the store's answers for an I/O thread.
//!
//! **Promise.** Whatever is put in is taken out once, and an I/O thread that sleeps is woken once for all that
//! came while it slept: a group of writes costs one wake, not one for each write.

use crate::stages::StoreTimes;
use cluster::{StoreId, StoreResponse};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The answers of the store to the requests of one I/O thread.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    came: Mutex<Vec<Answers>>,
    filled: Notify,
}

/// Answers that came together, and when the store was through with what of them.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) responses: Vec<(StoreId, StoreResponse)>,
    pub(crate) times: StoreTimes,
}

impl Inbox {
    /// Leaves answers. Called on any thread.
    pub(crate) fn put(&self, answers: Answers) {
        if answers.responses.is_empty() {
            return;
        }
        let was_empty = {
            let mut came = self.came.lock();
            came.push(answers);
            came.len() == 1
        };
        if was_empty {
            self.filled.notify_one();
        }
    }

    /// Waits for answers and takes all that are there. Called by one task.
    pub(crate) async fn take(&self) -> Vec<Answers> {
        loop {
            let came = std::mem::take(&mut *self.came.lock());
            if !came.is_empty() {
                return came;
            }
            self.filled.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn everything_that_is_put_in_is_taken_out_once() {
        const THREADS: u64 = 3;
        const PUTS: u64 = 2_000;
        let inbox = Arc::new(Inbox::default());
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let inbox = Arc::clone(&inbox);
                std::thread::spawn(move || {
                    for put in 0..PUTS {
                        let responses = vec![(StoreId(thread * PUTS + put), StoreResponse::Cell(None))];
                        inbox.put(Answers { responses, times: StoreTimes::Refused });
                    }
                })
            })
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut ids = Vec::new();
        runtime.block_on(async {
            while ids.len() < (THREADS * PUTS) as usize {
                let came = inbox.take().await.into_iter().flat_map(|answers| answers.responses);
                ids.extend(came.map(|(id, _)| id.0));
            }
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        ids.sort_unstable();
        assert_eq!(ids, (0..THREADS * PUTS).collect::<Vec<_>>());
    }
}
