//! Bodies of requests: whole in memory, or refused.
//!
//! **Promise.** A value is handed on only when all of its bytes came. What bodies hold in all connections
//! together is bounded, counted as the bytes arrive; a body is held once.
//!
//! **Mechanism.** A body that is whole in the bytes that came with its head, as most are, is handed on as a
//! slice of hyper's buffer: the store copies it into its batch before the next read. Others are collected in a
//! buffer of their own, of the announced length where that is known: the system gives its pages as they are
//! written.

use crate::budget::{ByteBudget, Taken};
use crate::vitals::Vitals;
use api::Problem;
use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

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
}

/// The whole body.
pub(crate) async fn collect(
    body: &mut Incoming,
    vitals: &Vitals,
    rules: &BodyRules<'_>,
) -> Result<Value, Problem> {
    let _waits = WaitsForBody::begin(vitals);
    if body.is_end_stream() {
        return Ok(Value::default());
    }
    let Some(first) = next(body).await? else {
        return Ok(Value::default());
    };
    if body.is_end_stream() && first.len() <= rules.value_bytes_max {
        return Ok(Value { bytes: first, taken: None });
    }
    collect_rest(body, first, rules).await
}

async fn collect_rest(body: &mut Incoming, first: Bytes, rules: &BodyRules<'_>) -> Result<Value, Problem> {
    let announced = body.size_hint().exact().map(|rest| rest as usize + first.len());
    let mut taken = rules.budget.begin();
    let mut buffer =
        Vec::with_capacity(announced.map_or(BUFFER_BYTES_MIN, |len| len.min(rules.value_bytes_max)));
    let mut next_piece = Some(first);
    while let Some(piece) = next_piece {
        if buffer.len() + piece.len() > rules.value_bytes_max {
            return Err(Problem::value_too_large(rules.value_bytes_max));
        }
        if !taken.take(piece.len() as u64) {
            return Err(no_room());
        }
        buffer.extend_from_slice(&piece);
        // Let hyper have its buffer back before it reads on.
        drop(piece);
        next_piece = next(body).await?;
    }
    Ok(Value { bytes: Bytes::from(buffer), taken: Some(taken) })
}

/// Reads over a body that nobody wants, if it is small. A large one, or one that its sender holds back until it is
/// told to go on, stays where it is: the connection cannot go on then.
pub(crate) async fn skip(body: &mut Incoming, vitals: &Vitals, is_held_back: bool) -> Result<(), Problem> {
    let announced = body.size_hint().exact().unwrap_or(0);
    if is_held_back || announced > SKIPPED_BYTES_MAX {
        return Ok(());
    }
    let _waits = WaitsForBody::begin(vitals);
    let mut skipped = 0;
    while skipped <= SKIPPED_BYTES_MAX && !body.is_end_stream() {
        match next(body).await? {
            Some(bytes) => skipped += bytes.len() as u64,
            None => break,
        }
    }
    Ok(())
}

/// The next bytes of the body, not empty; `None` at its end.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Problem> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return Ok(None),
            Some(Err(_)) => return Err(cut_short()),
            Some(Ok(frame)) => {
                // Trailers mean nothing here.
                let bytes = frame.into_data().unwrap_or_default();
                if !bytes.is_empty() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

fn cut_short() -> Problem {
    Problem::bad_request(
        "The body ended before it was complete, or its chunks are malformed. Nothing was stored. Send it again.",
    )
}

fn no_room() -> Problem {
    Problem::unavailable(
        Duration::from_secs(1),
        "The bodies of requests under way take all the memory set aside for them. Nothing was stored. Try again.",
    )
}

/// Tells the sweep that it is the client's turn.
struct WaitsForBody<'a>(&'a Vitals);

impl<'a> WaitsForBody<'a> {
    fn begin(vitals: &'a Vitals) -> Self {
        vitals.waits_for_body.set(true);
        Self(vitals)
    }
}

impl Drop for WaitsForBody<'_> {
    fn drop(&mut self) {
        self.0.waits_for_body.set(false);
    }
}
