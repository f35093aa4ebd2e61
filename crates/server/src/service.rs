//! From a request to its response: decode, execute, encode.
//!
//! A read that the memory answers is ready when the future is polled for the first time, so hyper writes the
//! response in the same turn in which it read the request.

use crate::body::{BodyRules, RequestBody, Value};
use crate::driver::Driver;
use crate::status;
use crate::stream::CheckedStream;
use crate::thread::Thread;
use crate::vitals::Vitals;
use api::{Answer, Decoded, Entity, Problem};
use bytes::Bytes;
use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Answers the requests of one connection.
pub(crate) struct Service {
    pub(crate) thread: Rc<Thread>,
    pub(crate) vitals: Rc<Vitals>,
    pub(crate) stream: Rc<RefCell<CheckedStream>>,
}

impl Service {
    /// The response to `request`; there always is one.
    pub(crate) async fn handle(
        self: Rc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let _handling = Handling::begin(&self.vitals);
        let (parts, incoming) = request.into_parts();
        let mut body = RequestBody::new(incoming, &parts.headers, &self.vitals);
        let answer = match self.respond(&parts, &mut body).await {
            Ok(answer) => answer,
            Err(problem) => {
                // What is wrong was said already; more of it only ends the connection.
                let _ = self.skip(&mut body).await;
                problem.to_answer(parts.method == Method::HEAD)
            }
        };
        Ok(respond_with(answer, body.is_ended()))
    }

    async fn respond(&self, parts: &Parts, body: &mut RequestBody<'_>) -> Result<Answer, Problem> {
        let process = &self.thread.process;
        let decoded = api::decode_head(parts, &process.rules);
        if let Ok(Decoded::Status { is_head }) = decoded {
            self.skip(body).await?;
            return Ok(api::encode_status(&status::of(process), is_head));
        }
        let Some(driver) = self.thread.driver() else {
            return Err(Problem::unavailable(RETRY_AFTER, "The node is starting. Try again in a moment."));
        };
        match decoded? {
            Decoded::Entity(entity) => self.execute(driver, entity, body).await,
            Decoded::Status { .. } => unreachable!("answered above"),
        }
    }

    async fn execute(
        &self,
        driver: &Rc<Driver>,
        entity: Entity,
        body: &mut RequestBody<'_>,
    ) -> Result<Answer, Problem> {
        let value = if entity.takes_value() {
            self.collect(body).await?
        } else {
            self.skip(body).await?;
            Value::default()
        };
        let (command, asked) = entity.into_command(value.bytes);
        let reply = driver.execute(command).await;
        drop(value.taken);
        Ok(api::encode(reply, &asked))
    }

    async fn collect(&self, body: &mut RequestBody<'_>) -> Result<Value, Problem> {
        let process = &self.thread.process;
        let rules =
            BodyRules { value_bytes_max: process.rules.value_bytes_max, budget: &process.body_budget };
        body.collect(&rules).await.map_err(|problem| self.or_refusal(problem))
    }

    async fn skip(&self, body: &mut RequestBody<'_>) -> Result<(), Problem> {
        if body.is_ended() {
            return Ok(());
        }
        body.skip().await.map_err(|problem| self.or_refusal(problem))
    }

    /// The head check knows better than the body why a body broke off.
    fn or_refusal(&self, problem: Problem) -> Problem {
        self.stream.borrow_mut().take_refusal().unwrap_or(problem)
    }
}

/// The response for hyper. A connection with the rest of a body before the next request cannot go on.
fn respond_with(answer: Answer, body_is_ended: bool) -> Response<Full<Bytes>> {
    let Answer { response, reason } = answer;
    let mut response = response.map(Full::new);
    if let Some(reason) = reason {
        response.extensions_mut().insert(ReasonPhrase::from_static(reason.as_bytes()));
    }
    if !body_is_ended {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Tells the sweep that a request is being handled.
struct Handling<'a>(&'a Vitals);

impl<'a> Handling<'a> {
    fn begin(vitals: &'a Vitals) -> Self {
        vitals.requests.set(vitals.requests.get() + 1);
        vitals.handling.set(true);
        Self(vitals)
    }
}

impl Drop for Handling<'_> {
    fn drop(&mut self) {
        self.0.handling.set(false);
    }
}
