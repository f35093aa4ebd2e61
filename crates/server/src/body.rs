//! Bodies of requests: whole in memory, or refused.
//!
//! **Promise.** A value is handed on only when all of its bytes came, and what takes no value is carried out only then.
//! What bodies hold in all connections
//! together is bounded ([`MemoryCategory::Bodies`], [`MemoryCategory::Writes`]), counted as the bytes arrive, until their requests are
//! answered; a body is held once. Bodies that come slowly keep no others from coming: those have room of their own that
//! come at once, and when memory is short, those that stand still are refused (`activity`).
//!
//! **Mechanism.** A body that is whole in the bytes that came with its head, as most are, is handed on as a
//! slice of hyper's buffer: the store copies it into its batch before the next read. Others are collected in a
//! buffer of their own, which grows with what has come: however long a body is announced to be, it takes what is there.

use crate::budget::{MemoryCategory, Reservation, ThreadBudget, ThreadReservation};
use crate::connection_activity::{ConnectionActivity, HoldsMemory};
use crate::counters::Refusal;
use crate::process::Process;
use api::Problem;
use bytes::Bytes;
use http::HeaderMap;
use http::header::EXPECT;
use http_body::Body;
use hyper::body::Incoming;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// The buffer of a body begins with this size, and doubles, ...
const BUFFER_BYTES_MIN: usize = 16 << 10;
/// ... but grows by no more than this at once: so much the system moves instead of copying it.
const BUFFER_GROWTH_MAX: usize = 4 << 20;
/// What of the body of a request that is refused is read over, so that its connection can go on.
const SKIPPED_BYTES_MAX: u64 = 64 << 10;
/// What a body takes beside its bytes and its pieces: the least buffer of the library, and the future that waits.
const BODY_OVERHEAD_BYTES: u64 = 16 << 10;

/// A value, and what it takes of the budget.
#[derive(Default)]
pub(crate) struct Value {
    pub(crate) bytes: Bytes,
    pub(crate) reservation: Option<BodyReservation>,
}

/// What a body takes of the budget until it is dropped: all that came at once of its thread's purse, else its own.
#[allow(dead_code, reason = "held, not looked at")]
pub(crate) enum BodyReservation {
    ThreadReservation(ThreadReservation),
    Reservation(Reservation),
}

/// What bodies are held to.
pub(crate) struct BodyRules<'a> {
    pub(crate) process: &'a Process,
    pub(crate) budget: &'a Rc<ThreadBudget>,
}

/// The body of a request, read once.
pub(crate) struct RequestBody {
    incoming: Incoming,
    /// The sender holds it back until it is told to go on, which reading it does.
    is_held_back: bool,
    is_ended: bool,
    /// It broke off, or is malformed.
    is_broken: bool,
    activity: Rc<ConnectionActivity>,
}

impl RequestBody {
    pub(crate) fn new(incoming: Incoming, headers: &HeaderMap, activity: &Rc<ConnectionActivity>) -> Self {
        let is_ended = incoming.is_end_stream();
        let is_held_back = !is_ended && headers.contains_key(EXPECT);
        Self { incoming, is_held_back, is_ended, is_broken: false, activity: Rc::clone(activity) }
    }

    /// Whether all of it was read. If not, the connection cannot go on after the answer.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// How many bytes it has, as far as is known.
    pub(crate) fn len_min(&self) -> usize {
        usize::try_from(self.incoming.size_hint().lower()).unwrap_or(usize::MAX)
    }

    /// The whole body.
    pub(crate) async fn collect(&mut self, rules: &BodyRules<'_>) -> Result<Value, Problem> {
        let Some(first) = self.next().await? else {
            return Ok(Value::default());
        };
        if self.is_ended && first.len() <= rules.process.rules.value_bytes_max {
            let reservation = rules.budget.reserve(first.len() as u64).ok_or_else(|| rules.refuse())?;
            return Ok(Value {
                bytes: first,
                reservation: Some(BodyReservation::ThreadReservation(reservation)),
            });
        }
        self.collect_rest(first, rules).await
    }

    async fn collect_rest(&mut self, first: Bytes, rules: &BodyRules<'_>) -> Result<Value, Problem> {
        let announced = self.incoming.size_hint().exact().map(|rest| rest as usize + first.len());
        let value_bytes_max = rules.process.rules.value_bytes_max;
        let len_max = announced.map_or(value_bytes_max, |len| len.min(value_bytes_max));
        let mut reservation = rules.process.memory.empty_reservation(MemoryCategory::Bodies);
        let _holding = HoldsMemory::begin(&self.activity, MemoryCategory::Bodies);
        let (mut buffer, mut piece_max) = (Vec::new(), 0);
        let mut piece = Some(first);
        while let Some(bytes) = piece {
            if buffer.len() + bytes.len() > value_bytes_max {
                return Err(Problem::value_too_large(value_bytes_max));
            }
            let capacity = grown(buffer.capacity(), buffer.len() + bytes.len(), len_max);
            // The library's buffer is as large as the largest piece that it has read.
            piece_max = bytes.len().max(piece_max);
            if !reservation.resize(BODY_OVERHEAD_BYTES + (capacity + piece_max) as u64) {
                return Err(rules.refuse());
            }
            buffer.reserve_exact(capacity - buffer.len());
            buffer.extend_from_slice(&bytes);
            // Let hyper have its buffer back before it reads on.
            drop(bytes);
            piece = self.next().await?;
        }
        Ok(Value { bytes: Bytes::from(buffer), reservation: Some(BodyReservation::Reservation(reservation)) })
    }

    /// Reads over a body that means nothing, to its end: what is asked for is done only once all of the request has come.
    pub(crate) async fn read_over(&mut self, bytes_max: usize) -> Result<(), Problem> {
        let mut bytes = self.len_min();
        let mut read = 0;
        while bytes <= bytes_max {
            let Some(piece) = self.next().await? else {
                return Ok(());
            };
            read += piece.len();
            bytes = bytes.max(read);
        }
        Err(Problem::body_too_large(bytes_max))
    }

    /// Reads over the body of a request that is refused, if it is small. A large one, or one that is held back, stays
    /// where it is.
    pub(crate) async fn skip(&mut self) -> Result<(), Problem> {
        let announced = self.incoming.size_hint().exact().unwrap_or(0);
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

    async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The next bytes, not empty; `None` at the end.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Problem>> {
        let polled = self.poll_incoming(context);
        // The sweep is to know that it is the client's turn.
        self.activity.waits_for_body.set(polled.is_pending());
        polled
    }

    fn poll_incoming(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Problem>> {
        if self.is_ended {
            return Poll::Ready(Ok(None));
        }
        // The library says once what is wrong, then that there is no more.
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
                    // Trailers mean nothing here.
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
        self.process.admission.refuse(Refusal::Bodies)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.activity.waits_for_body.set(false);
    }
}

/// The capacity of a buffer of this capacity once it is to hold `len` bytes, of `len_max` that may come.
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
    fn a_buffer_grows_with_what_comes_and_not_past_what_may() {
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
