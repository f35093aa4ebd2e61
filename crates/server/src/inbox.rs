//! The queue through which other threads deliver the store's responses to an I/O thread.
//!
//! **Promise.** Each response is delivered once. A sleeping I/O thread is woken once for all
//! responses that arrive while it sleeps, so a commit group costs one wake-up, not one per write.
//! After the receiver is dropped, responses are discarded.

use crate::stages::StoreTimes;
use cluster::{StoreId, StoreResponse};
use engine::LargeReadPermit;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Responses of the store to the requests of one I/O thread.
#[derive(Debug, Default)]
pub(crate) struct ResponseInbox {
    state: Mutex<State>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct State {
    batches: Vec<StoreResponses>,
    is_closed: bool,
}

/// Responses that were delivered together, with the times of their stages in the store.
#[derive(Debug)]
pub(crate) struct StoreResponses {
    pub(crate) responses: Vec<(StoreId, StoreResponse)>,
    pub(crate) times: StoreTimes,
    /// Permit for a large value among the responses whose memory is not reserved yet.
    pub(crate) large_read: Option<LargeReadPermit>,
}

/// The receiving end of an inbox. Dropping it closes the inbox.
pub(crate) struct InboxReceiver<'a>(&'a ResponseInbox);

impl ResponseInbox {
    /// Delivers responses. Any thread may call this.
    pub(crate) fn put(&self, batch: StoreResponses) {
        if batch.responses.is_empty() {
            return;
        }
        let was_empty = {
            let mut state = self.state.lock();
            if state.is_closed {
                return;
            }
            state.batches.push(batch);
            state.batches.len() == 1
        };
        if was_empty {
            self.filled.notify_one();
        }
    }

    /// The receiving end. An inbox has one receiver in its lifetime.
    pub(crate) const fn receiver(&self) -> InboxReceiver<'_> {
        InboxReceiver(self)
    }
}

impl InboxReceiver<'_> {
    /// Waits for responses and takes all of them.
    pub(crate) async fn take(&self) -> Vec<StoreResponses> {
        loop {
            let batches = std::mem::take(&mut self.0.state.lock().batches);
            if !batches.is_empty() {
                return batches;
            }
            self.0.filled.notified().await;
        }
    }
}

impl Drop for InboxReceiver<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_closed = true;
        let _batches = std::mem::take(&mut state.batches);
        drop(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::ReplicaResponse;
    use std::sync::Arc;

    #[test]
    fn each_response_is_received_once() {
        const THREADS: u64 = 3;
        const PUTS: u64 = 2_000;
        let inbox = Arc::new(ResponseInbox::default());
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let inbox = Arc::clone(&inbox);
                std::thread::spawn(move || {
                    for put in 0..PUTS {
                        let responses = vec![(
                            StoreId(thread * PUTS + put),
                            StoreResponse::Replica(ReplicaResponse::Cell(None)),
                        )];
                        inbox.put(StoreResponses { responses, times: StoreTimes::Refused, large_read: None });
                    }
                })
            })
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut ids = Vec::new();
        runtime.block_on(async {
            let receiver = inbox.receiver();
            while ids.len() < (THREADS * PUTS) as usize {
                let batches = receiver.take().await.into_iter().flat_map(|batch| batch.responses);
                ids.extend(batches.map(|(id, _)| id.0));
            }
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        ids.sort_unstable();
        assert_eq!(ids, (0..THREADS * PUTS).collect::<Vec<_>>());
    }

    #[test]
    fn responses_are_discarded_after_the_receiver_is_dropped() {
        let inbox = ResponseInbox::default();
        let put = || {
            let responses = vec![(StoreId(0), StoreResponse::Replica(ReplicaResponse::Cell(None)))];
            inbox.put(StoreResponses { responses, times: StoreTimes::Refused, large_read: None });
        };
        let receiver = inbox.receiver();
        put();
        assert_eq!(inbox.state.lock().batches.len(), 1);
        drop(receiver);
        put();
        assert!(inbox.state.lock().batches.is_empty());
    }
}
