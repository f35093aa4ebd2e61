//! Request bodies: complete in memory, or refused.
//!
//! **Promise.** A value is handed on only after all of its bytes arrived. A request that takes no
//! value is executed only after its whole body arrived, too. The memory of all request bodies
//! together is bounded ([`MemoryCategory::Bodies`], [`MemoryCategory::Writes`]). It is counted as
//! the bytes arrive and stays reserved until the requests are answered. A body is in memory once.
//! Slow bodies do not block others: bodies that arrive with their heads have a budget of their own.
//! When memory is short, stalled bodies are refused (`connection_activity`), those of an address
//! with more than its share first (`memory_holders`).
//!
//! **Mechanism.** Most bodies arrive in the same read as their heads. They are handed on as a slice
//! of hyper's buffer, which the store copies into its batch before the next read. Other bodies are
//! collected in a buffer of their own that grows with the bytes received. The announced length does
//! not allocate memory.

use crate::connection_activity::{ConnectionActivity, HoldsMemory};
use crate::counters::Refusal;
use crate::memory_holders::MemoryHolders;
use crate::refusals::Refusals;
use api::Problem;
use bytes::Bytes;
use http::HeaderMap;
use http::header::EXPECT;
use http_body::Body;
use hyper::body::Incoming;
use limits::{MemoryCategory, Reservation, ThreadBudget, ThreadReservation};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Smallest buffer of a collected body, in bytes. The buffer doubles from there.
const BUFFER_BYTES_MIN: usize = 16 << 10;
/// Largest growth of a buffer at once, in bytes. The system moves an allocation of this size
/// instead of copying it.
const BUFFER_GROWTH_MAX: usize = 4 << 20;
/// Largest body of a refused request that is read and discarded, in bytes, so that its connection
/// can be reused.
const SKIPPED_BYTES_MAX: u64 = 64 << 10;
/// Memory of a collected body beside its buffer and its chunks, in bytes: hyper's smallest buffer,
/// and the future that waits.
const BODY_OVERHEAD_BYTES: u64 = 16 << 10;

/// A complete value with its memory reservation.
#[derive(Default)]
pub(crate) struct Value {
    pub(crate) bytes: Bytes,
    pub(crate) reservation: Option<BodyReservation>,
}

/// Memory reservation of a body. A body that arrived with its head reserves from the thread's
/// budget, any other directly from the process budget.
#[allow(dead_code, reason = "held for its drop")]
pub(crate) enum BodyReservation {
    ThreadReservation(ThreadReservation),
    Reservation(Reservation),
}

/// Limits and budgets that apply to a body.
pub(crate) struct BodyRules<'a> {
    pub(crate) value_bytes_max: usize,
    pub(crate) holders: &'a Arc<MemoryHolders>,
    /// Budget for bodies that arrive with their heads.
    pub(crate) thread_budget: &'a Rc<ThreadBudget>,
    pub(crate) refusals: &'a Refusals,
}

/// The body of a request, read once.
pub(crate) struct RequestBody {
    incoming: Incoming,
    /// The client waits for `100 Continue`, which hyper sends at the first read of the body.
    is_held_back: bool,
    is_ended: bool,
    /// The body ended early or is malformed.
    is_broken: bool,
    activity: Rc<ConnectionActivity>,
}

impl RequestBody {
    pub(crate) fn new(incoming: Incoming, headers: &HeaderMap, activity: &Rc<ConnectionActivity>) -> Self {
        let is_ended = incoming.is_end_stream();
        let is_held_back = !is_ended && headers.contains_key(EXPECT);
        Self { incoming, is_held_back, is_ended, is_broken: false, activity: Rc::clone(activity) }
    }

    /// Whether the whole body was read. If not, the connection cannot be reused after the response.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Lower bound of the remaining length, in bytes.
    pub(crate) fn len_min(&self) -> usize {
        usize::try_from(self.incoming.size_hint().lower()).unwrap_or(usize::MAX)
    }

    /// Collects the whole body.
    ///
    /// # Errors
    /// The response for a value that is too large, a body that breaks off, or a lack of memory.
    pub(crate) async fn collect(&mut self, rules: &BodyRules<'_>) -> Result<Value, Problem> {
        let value_bytes_max = rules.value_bytes_max;
        let too_large = || Problem::value_too_large(value_bytes_max);
        let Some(first) = self.next_within(value_bytes_max, too_large).await? else {
            return Ok(Value::default());
        };
        if self.is_ended && first.len() <= value_bytes_max {
            let reservation = rules.thread_budget.reserve(first.len() as u64);
            let reservation = reservation.ok_or_else(|| rules.refuse())?;
            return Ok(Value {
                bytes: first,
                reservation: Some(BodyReservation::ThreadReservation(reservation)),
            });
        }
        self.collect_rest(first, rules).await
    }

    async fn collect_rest(&mut self, first: Bytes, rules: &BodyRules<'_>) -> Result<Value, Problem> {
        let announced = self.incoming.size_hint().exact().map(|rest| rest as usize + first.len());
        let value_bytes_max = rules.value_bytes_max;
        let len_max = announced.map_or(value_bytes_max, |len| len.min(value_bytes_max));
        let holding = HoldsMemory::begin(&self.activity, MemoryCategory::Bodies, 0, rules.holders);
        let mut reservation = holding.entry().empty_reservation();
        let (mut buffer, mut piece_max) = (Vec::new(), 0);
        let mut piece = Some(first);
        while let Some(bytes) = piece {
            if buffer.len() + bytes.len() > value_bytes_max {
                return Err(Problem::value_too_large(value_bytes_max));
            }
            let capacity = grown(buffer.capacity(), buffer.len() + bytes.len(), len_max);
            // hyper's buffer is as large as the largest chunk that it has read.
            piece_max = bytes.len().max(piece_max);
            let with_overhead = |capacity| BODY_OVERHEAD_BYTES + (capacity + piece_max) as u64;
            let (needed, wanted) = (with_overhead(capacity), with_overhead(announced.unwrap_or(capacity)));
            if !holding.entry().grow_or_wait(&mut reservation, needed, wanted).await {
                return Err(rules.refuse());
            }
            buffer.reserve_exact(capacity - buffer.len());
            buffer.extend_from_slice(&bytes);
            // Returns the buffer to hyper before it reads on.
            drop(bytes);
            let too_large = || Problem::value_too_large(value_bytes_max);
            piece = self.next_within(value_bytes_max - buffer.len(), too_large).await?;
        }
        Ok(Value { bytes: Bytes::from(buffer), reservation: Some(BodyReservation::Reservation(reservation)) })
    }

    /// Reads and discards a body that the request does not need, so that the request is executed
    /// only after it arrived completely.
    ///
    /// # Errors
    /// The response for a body above `bytes_max`, or for one that breaks off.
    pub(crate) async fn read_over(&mut self, bytes_max: usize) -> Result<(), Problem> {
        let mut bytes = self.len_min();
        let mut read = 0;
        while bytes <= bytes_max {
            let too_large = || Problem::body_too_large(bytes_max);
            let Some(piece) = self.next_within(bytes_max - read, too_large).await? else {
                return Ok(());
            };
            read += piece.len();
            bytes = bytes.max(read);
        }
        Err(Problem::body_too_large(bytes_max))
    }

    /// Reads and discards the body of a refused request if it is small. A large body, or one that
    /// waits for `100 Continue`, is left unread.
    pub(crate) async fn skip(&mut self) -> Result<(), Problem> {
        let announced_chunk = self.activity.announced_bytes.get();
        let announced = self.incoming.size_hint().exact().unwrap_or(announced_chunk);
        if self.is_held_back || announced > SKIPPED_BYTES_MAX {
            return Ok(());
        }
        let mut skipped = 0;
        while skipped <= SKIPPED_BYTES_MAX {
            match self.next().await? {
                Some(bytes) => skipped += bytes.len() as u64,
                None => break,
            }
        }
        Ok(())
    }

    /// The next chunk of a body that may have `left` more bytes. A chunk that announces more is
    /// refused before it arrives.
    async fn next_within(
        &mut self,
        left: usize,
        too_large: impl Fn() -> Problem,
    ) -> Result<Option<Bytes>, Problem> {
        poll_fn(|context| match self.poll_next(context) {
            Poll::Pending if self.activity.announced_bytes.get() > left as u64 => {
                Poll::Ready(Err(too_large()))
            }
            polled => polled,
        })
        .await
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The next chunk, never empty; `None` at the end.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Problem>> {
        let polled = self.poll_incoming(context);
        // Tells the sweep that the node waits for the client.
        self.activity.waits_for_body.set(polled.is_pending());
        polled
    }

    fn poll_incoming(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Problem>> {
        if self.is_ended {
            return Poll::Ready(Ok(None));
        }
        // hyper reports the error once and then the end of the body.
        if self.is_broken {
            return Poll::Ready(Err(cut_short()));
        }
        self.is_held_back = false;
        loop {
            match ready!(Pin::new(&mut self.incoming).poll_frame(context)) {
                None => {
                    self.is_ended = true;
                    return Poll::Ready(Ok(None));
                }
                Some(Err(_)) => {
                    self.is_broken = true;
                    return Poll::Ready(Err(cut_short()));
                }
                Some(Ok(frame)) => {
                    // Trailers have no meaning here.
                    let bytes = frame.into_data().unwrap_or_default();
                    self.is_ended = self.incoming.is_end_stream();
                    if !bytes.is_empty() {
                        return Poll::Ready(Ok(Some(bytes)));
                    }
                }
            }
        }
    }
}

impl BodyRules<'_> {
    fn refuse(&self) -> Problem {
        self.refusals.refuse(Refusal::Bodies)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.activity.waits_for_body.set(false);
    }
}

/// New capacity of a buffer of `capacity` bytes that is to hold `len` of at most `len_max` bytes.
fn grown(capacity: usize, len: usize, len_max: usize) -> usize {
    if len <= capacity {
        return capacity;
    }
    let growth = capacity.clamp(BUFFER_BYTES_MIN, BUFFER_GROWTH_MAX);
    (capacity + growth).min(len_max).max(len)
}

fn cut_short() -> Problem {
    Problem::bad_request(
        "The body ended before it was complete, or its chunks are malformed. Nothing was stored. Send it again.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_grows_with_its_contents_and_not_past_the_limit() {
        const LEN_MAX: usize = 21 << 20;
        let (mut capacity, mut growths) = (0, 0);
        for len in (0..=LEN_MAX).step_by(1_000).chain([LEN_MAX]) {
            let next = grown(capacity, len, LEN_MAX);
            assert!((len..=LEN_MAX).contains(&next) && next >= capacity);
            assert!(next <= (2 * len).max(BUFFER_BYTES_MIN) && next - len.min(next) <= BUFFER_GROWTH_MAX);
            growths += usize::from(next > capacity);
            capacity = next;
        }
        assert!(growths < 15, "{growths}");
        assert_eq!(grown(0, 100, 100), 100);
    }
}
