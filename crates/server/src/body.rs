//! Bodies of requests: whole in memory, or refused.
//!
//! **Promise.** A value is handed on only when all of its bytes came. What bodies hold in all connections
//! together is bounded, counted as the bytes arrive; a body is held once.
//!
//! **Mechanism.** A body that is whole in the bytes that came with its head, as most are, is handed on as a
//! slice of hyper's buffer: the store copies it into its batch before the next read. Others are collected in a
//! buffer of their own, of the announced length where that is known: the system gives its pages as they are
//! written.

use crate::admission::Admission;
use crate::budget::{ByteBudget, Taken};
use crate::counters::Refusal;
use crate::vitals::Vitals;
use api::Problem;
use bytes::Bytes;
use http::HeaderMap;
use http::header::EXPECT;
use http_body::Body;
use hyper::body::Incoming;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A body of unknown length begins with a buffer of this size.
const BUFFER_BYTES_MIN: usize = 64 << 10;
/// What of an unwanted body is read over, so that its connection can go on.
const SKIPPED_BYTES_MAX: u64 = 64 << 10;

/// A value, and what it takes of the budget.
#[derive(Default)]
pub(crate) struct Value {
    pub(crate) bytes: Bytes,
    pub(crate) taken: Option<Taken>,
}

/// What bodies are held to.
pub(crate) struct BodyRules<'a> {
    pub(crate) value_bytes_max: usize,
    pub(crate) budget: &'a Arc<ByteBudget>,
    pub(crate) admission: &'a Admission,
}

/// The body of a request, read once.
pub(crate) struct RequestBody {
    incoming: Incoming,
    /// The sender holds it back until it is told to go on, which reading it does.
    is_held_back: bool,
    is_ended: bool,
    vitals: Rc<Vitals>,
}

impl RequestBody {
    pub(crate) fn new(incoming: Incoming, headers: &HeaderMap, vitals: &Rc<Vitals>) -> Self {
        let is_ended = incoming.is_end_stream();
        let is_held_back = !is_ended && headers.contains_key(EXPECT);
        Self { incoming, is_held_back, is_ended, vitals: Rc::clone(vitals) }
    }

    /// Whether all of it was read. If not, the connection cannot go on after the answer.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// The whole body.
    pub(crate) async fn collect(&mut self, rules: &BodyRules<'_>) -> Result<Value, Problem> {
        let Some(first) = self.next().await? else {
            return Ok(Value::default());
        };
        if self.is_ended && first.len() <= rules.value_bytes_max {
            return Ok(Value { bytes: first, taken: None });
        }
        self.collect_rest(first, rules).await
    }

    async fn collect_rest(&mut self, first: Bytes, rules: &BodyRules<'_>) -> Result<Value, Problem> {
        let announced = self.incoming.size_hint().exact().map(|rest| rest as usize + first.len());
        let capacity = announced.map_or(BUFFER_BYTES_MIN, |len| len.min(rules.value_bytes_max));
        let mut buffer = Vec::with_capacity(capacity);
        let mut taken = rules.budget.begin();
        let mut piece = Some(first);
        while let Some(bytes) = piece {
            if buffer.len() + bytes.len() > rules.value_bytes_max {
                return Err(Problem::value_too_large(rules.value_bytes_max));
            }
            if !taken.take(bytes.len() as u64) {
                return Err(rules.admission.refuse(Refusal::Bodies));
            }
            buffer.extend_from_slice(&bytes);
            // Let hyper have its buffer back before it reads on.
            drop(bytes);
            piece = self.next().await?;
        }
        Ok(Value { bytes: Bytes::from(buffer), taken: Some(taken) })
    }

    /// Reads over a body that nobody wants, if it is small. A large one, or one that is held back, stays where it
    /// is.
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
        self.vitals.waits_for_body.set(polled.is_pending());
        polled
    }

    fn poll_incoming(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Problem>> {
        if self.is_ended {
            return Poll::Ready(Ok(None));
        }
        self.is_held_back = false;
        loop {
            match ready!(Pin::new(&mut self.incoming).poll_frame(context)) {
                None => {
                    self.is_ended = true;
                    return Poll::Ready(Ok(None));
                }
                Some(Err(_)) => return Poll::Ready(Err(cut_short())),
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

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.vitals.waits_for_body.set(false);
    }
}

fn cut_short() -> Problem {
    Problem::bad_request(
        "The body ended before it was complete, or its chunks are malformed. Nothing was stored. Send it again.",
    )
}
