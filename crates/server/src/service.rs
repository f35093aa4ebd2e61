//! From a request to its response: decode, execute, encode.
//!
//! **Promise.** There is a response to every request, and its body, if it has one, was read to the end or the
//! connection closes after it.
//!
//! **Mechanism.** Most requests have no body, and most reads are answered from memory: their response is there
//! when [`Service::handle`] returns, so the future that hyper moves about is small. Only a request with a body
//! gets a future of its own on the heap.

use crate::body::{BodyRules, RequestBody, Value};
use crate::driver::Driver;
use crate::driver::coordinating::{Coordinating, Execution};
use crate::driver::presiding::FromThreads;
use crate::process::Process;
use crate::status;
use crate::stream::CheckedStream;
use crate::thread::Thread;
use crate::vitals::Vitals;
use api::{Answer, Asked, Decoded, Entity, Problem, ServingState};
use bytes::Bytes;
use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

const RETRY_AFTER: Duration = Duration::from_secs(1);

type HttpResponse = Response<Full<Bytes>>;

/// Answers the requests of one connection.
pub(crate) struct Service {
    pub(crate) thread: Rc<Thread>,
    pub(crate) vitals: Rc<Vitals>,
    pub(crate) stream: Rc<RefCell<CheckedStream>>,
}

/// What is left to do for a response.
pub(crate) enum Handling {
    /// Nothing.
    Done(Option<HttpResponse>),
    /// The command is under way.
    Executing { execution: Execution, asked: Asked, _under_way: UnderWay },
    /// There is a body.
    WithBody(Pin<Box<dyn Future<Output = HttpResponse>>>),
}

impl Future for Handling {
    type Output = Result<HttpResponse, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(match &mut *self {
            Self::Done(response) => response.take().expect("not polled after its end"),
            Self::Executing { execution, asked, .. } => {
                let reply = ready!(Pin::new(execution).poll(context));
                respond_with(api::encode(reply, asked), true)
            }
            Self::WithBody(handling) => ready!(handling.as_mut().poll(context)),
        }))
    }
}

/// What a head asks for, where it is to be had.
enum Begun<'a> {
    Answered(Answer),
    Entity(&'a Rc<Driver<Coordinating>>, Entity),
}

impl Service {
    /// Begins to answer `request`.
    pub(crate) fn handle(self: &Rc<Self>, request: Request<Incoming>) -> Handling {
        self.vitals.requests.set(self.vitals.requests.get() + 1);
        let (parts, incoming) = request.into_parts();
        if !incoming.is_end_stream() {
            let under_way = UnderWay::begin(&self.vitals);
            return Handling::WithBody(Box::pin(
                Rc::clone(self).handle_with_body(parts, incoming, under_way),
            ));
        }
        match self.begin(&parts) {
            Ok(Begun::Answered(answer)) => Handling::Done(Some(self.respond(answer, true))),
            Ok(Begun::Entity(driver, entity)) => self.execute(driver, entity),
            Err(problem) => {
                let answer = problem.to_answer(parts.method == Method::HEAD);
                Handling::Done(Some(self.respond(answer, true)))
            }
        }
    }

    /// Executes what has no body.
    fn execute(&self, driver: &Rc<Driver<Coordinating>>, entity: Entity) -> Handling {
        let (command, asked) = entity.into_command(Bytes::new());
        let mut execution = driver.execute(command);
        match execution.take_now() {
            Some(reply) => Handling::Done(Some(self.respond(api::encode(reply, &asked), true))),
            None => Handling::Executing { execution, asked, _under_way: UnderWay::begin(&self.vitals) },
        }
    }

    async fn handle_with_body(
        self: Rc<Self>,
        parts: Parts,
        incoming: Incoming,
        _under_way: UnderWay,
    ) -> HttpResponse {
        let mut body = RequestBody::new(incoming, &parts.headers, &self.vitals);
        let answer = match self.answer_with_body(&parts, &mut body).await {
            Ok(answer) => answer,
            Err(problem) => {
                // What is wrong was said already; more of it only ends the connection.
                let _ = self.skip(&mut body).await;
                problem.to_answer(parts.method == Method::HEAD)
            }
        };
        self.respond(answer, body.is_ended())
    }

    async fn answer_with_body(&self, parts: &Parts, body: &mut RequestBody<'_>) -> Result<Answer, Problem> {
        match self.begin(parts)? {
            Begun::Answered(answer) => {
                self.skip(body).await?;
                Ok(answer)
            }
            Begun::Entity(driver, entity) => {
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
        }
    }

    /// What the head alone tells.
    fn begin(&self, parts: &Parts) -> Result<Begun<'_>, Problem> {
        let process = &self.thread.process;
        let decoded = api::decode_head(parts, &process.rules);
        if let Ok(Decoded::Status { is_head }) = decoded {
            return Ok(Begun::Answered(api::encode_status(&status::of(process), is_head)));
        }
        let starting = || Problem::unavailable(RETRY_AFTER, "The node is starting. Try again in a moment.");
        let driver = self.thread.driver().filter(|_| process.state() != ServingState::Starting);
        let driver = driver.ok_or_else(starting)?;
        match decoded? {
            Decoded::Entity(entity) => Ok(Begun::Entity(driver, entity)),
            Decoded::Repair => begin_repair(process).map(Begun::Answered),
            Decoded::Status { .. } => unreachable!("answered above"),
            Decoded::Range(_) | Decoded::Batch(_) | Decoded::Checkpoint(_) => {
                Err(Problem::bad_request("Ranges, batches and checkpoints are not served by this build."))
            }
        }
    }

    async fn collect(&self, body: &mut RequestBody<'_>) -> Result<Value, Problem> {
        let process = &self.thread.process;
        let rules = BodyRules {
            value_bytes_max: process.rules.value_bytes_max,
            budget: &process.body_budget,
            counters: &process.counters,
        };
        body.collect(&rules).await.map_err(|problem| self.or_refusal(problem))
    }

    async fn skip(&self, body: &mut RequestBody<'_>) -> Result<(), Problem> {
        body.skip().await.map_err(|problem| self.or_refusal(problem))
    }

    /// A connection with the rest of a body before the next request cannot go on, nor does one that is to finish:
    /// hyper has yet to hear of it where the request came after the order.
    fn respond(&self, answer: Answer, body_is_ended: bool) -> HttpResponse {
        respond_with(answer, body_is_ended && self.vitals.order().is_none())
    }

    /// The head check knows better than the body why a body broke off.
    fn or_refusal(&self, problem: Problem) -> Problem {
        self.stream.borrow_mut().take_refusal().unwrap_or(problem)
    }
}

/// Leaves the wish for a pass of anti-entropy with the control thread.
fn begin_repair(process: &Process) -> Result<Answer, Problem> {
    match process.control.try_send(FromThreads::Repair) {
        Ok(()) => Ok(api::encode_repair_begun()),
        Err(_) => Err(Problem::unavailable(RETRY_AFTER, "Too much is asked of the node. Try again.")),
    }
}

/// The response for hyper. After it the connection goes on, or not.
fn respond_with(answer: Answer, goes_on: bool) -> HttpResponse {
    let Answer { response, reason } = answer;
    let mut response = response.map(Full::new);
    if let Some(reason) = reason {
        response.extensions_mut().insert(ReasonPhrase::from_static(reason.as_bytes()));
    }
    if !goes_on {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Tells the sweep that a request is under way.
pub(crate) struct UnderWay(Rc<Vitals>);

impl UnderWay {
    fn begin(vitals: &Rc<Vitals>) -> Self {
        vitals.handling.set(true);
        Self(Rc::clone(vitals))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.handling.set(false);
    }
}
