//! Turns a request into its response: decode, execute, encode.
//!
//! **Promise.** Every request gets a response. Its body, if it has one, was read to the end, or the
//! connection closes after the response.
//!
//! **Mechanism.** Most requests have no body, and most reads are answered from memory. Their
//! response is ready when [`Service::handle`] returns, so the future that hyper moves is small.
//! Only a request with a body or a streamed response allocates a future on the heap.

use crate::body::{BodyRules, RequestBody, Value};
use crate::checkpoint;
use crate::connection_activity::{ConnectionActivity, InFlightGuard};
use crate::driver::MachineDriver;
use crate::driver::coordinator_machine::CoordinatorMachine;
use crate::driver::executing::OpenScan;
use crate::layout;
use crate::layout_command;
use crate::messages::ControlMessage;
use crate::metrics::scrape;
use crate::profile;
use crate::read_execution::ReadExecution;
use crate::readiness;
use crate::response_memory::ResponseReservation;
use crate::status;
use crate::stream::CheckedStream;
use crate::streaming::ResponseBody;
use crate::streaming::batch::{BatchContext, StartedBatch};
use crate::streaming::range::{Form, RangeStartError, StartedRange};
use crate::thread::Thread;
use api::{
    BatchRequest, CheckpointRequest, DecodedRequest, EncodedResponse, EntityRangeRequest, EntityRequest,
    LAYOUT_BODY_BYTES_MAX, LayoutCommandRequest, Problem, ProfileRequest, RequestKind, ResponseContext,
    ServingState,
};
use bytes::Bytes;
use cluster::Command;
use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::mpsc;

const RETRY_AFTER: Duration = Duration::from_secs(1);

type HttpResponse = Response<ResponseBody>;

/// Answers the requests of one connection.
pub(crate) struct Service {
    pub(crate) thread: Rc<Thread>,
    pub(crate) activity: Rc<ConnectionActivity>,
    pub(crate) stream: Rc<RefCell<CheckedStream>>,
}

/// The rest of the work for a response.
pub(crate) enum Handling {
    /// The response is ready.
    Done(Option<HttpResponse>),
    /// The command is in flight.
    Executing {
        execution: Option<ReadExecution>,
        asked: ResponseContext,
        version: Version,
        service: Rc<Service>,
        _in_flight: InFlightGuard,
    },
    /// The request has a body, or its response is streamed.
    Long(Pin<Box<dyn Future<Output = HttpResponse>>>),
}

impl Future for Handling {
    type Output = Result<HttpResponse, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(match &mut *self {
            Self::Done(response) => response.take().expect("the future is not polled after it completed"),
            Self::Executing { execution, asked, version, service, .. } => {
                let waits = execution.as_mut().expect("the future is not polled after it completed");
                let values = &service.thread.read_values;
                let (reply, reservation) = ready!(waits.poll(context, values, &service.activity, asked));
                let encoded = api::encode(reply, asked);
                let (thread, status) = (&service.thread, encoded.response.status());
                service.record_status(asked.action.into(), status);
                let execution = execution.take().expect("the execution was polled in this call");
                thread.end(execution.into_execution(), status);
                respond_with(encoded, reservation, *version, true)
            }
            Self::Long(handling) => ready!(handling.as_mut().poll(context)),
        }))
    }
}

/// A request whose head was decoded, with the driver that executes it.
enum RoutedRequest<'a> {
    Encoded(EncodedResponse),
    Entity(&'a Rc<MachineDriver<CoordinatorMachine>>, EntityRequest),
    Range(&'a Rc<MachineDriver<CoordinatorMachine>>, EntityRangeRequest),
    Batch(&'a Rc<MachineDriver<CoordinatorMachine>>, BatchRequest),
    Checkpoint(CheckpointRequest),
    Profile(ProfileRequest),
    Repair,
    LayoutCommand,
    Metrics { is_head: bool },
}

impl Service {
    /// Answers `request`: begins at once, and returns the rest of the work.
    pub(crate) fn handle(self: &Rc<Self>, request: Request<Incoming>) -> Handling {
        self.activity.requests.set(self.activity.requests.get() + 1);
        let (parts, incoming) = request.into_parts();
        if incoming.is_end_stream() {
            let encoded = match self.route(&parts) {
                Ok(RoutedRequest::Entity(driver, entity)) => {
                    return self.execute(driver, entity, parts.version);
                }
                Ok(RoutedRequest::Encoded(encoded)) => Some(encoded),
                Ok(
                    RoutedRequest::Range(..)
                    | RoutedRequest::Batch(..)
                    | RoutedRequest::Checkpoint(..)
                    | RoutedRequest::Profile(..)
                    | RoutedRequest::Repair
                    | RoutedRequest::LayoutCommand
                    | RoutedRequest::Metrics { .. },
                ) => None,
                Err(problem) => Some(problem.to_response(parts.method == Method::HEAD)),
            };
            if let Some(encoded) = encoded {
                return Handling::Done(Some(self.respond(RequestKind::of(&parts), encoded, &parts, true)));
            }
        }
        Handling::Long(Box::pin(Rc::clone(self).handle_long(parts, incoming)))
    }

    /// Executes a request without a body.
    fn execute(
        self: &Rc<Self>,
        driver: &Rc<MachineDriver<CoordinatorMachine>>,
        entity: EntityRequest,
        version: Version,
    ) -> Handling {
        let kind = entity.action.into();
        let (command, asked) = self.command_of(entity, Bytes::new());
        let values = &self.thread.read_values;
        let mut execution = ReadExecution::begin(driver, &self.thread.memory_holders, command, &asked);
        match execution.take_now(values, &self.activity, &asked) {
            Some((reply, reservation)) => {
                let encoded = api::encode(reply, &asked);
                self.record_status(kind, encoded.response.status());
                Handling::Done(Some(respond_with(
                    encoded,
                    reservation,
                    version,
                    self.activity.close_order().is_none(),
                )))
            }
            None => Handling::Executing {
                execution: Some(execution),
                asked,
                version,
                service: Rc::clone(self),
                _in_flight: InFlightGuard::begin(&self.activity),
            },
        }
    }

    async fn handle_long(self: Rc<Self>, parts: Parts, incoming: Incoming) -> HttpResponse {
        let in_flight = InFlightGuard::begin(&self.activity);
        let mut body = RequestBody::new(incoming, &parts.headers, &self.activity);
        let result = match self.route(&parts) {
            Ok(RoutedRequest::Range(driver, range)) => {
                return self.answer_range(driver, range, &parts, body, in_flight).await;
            }
            Ok(RoutedRequest::Batch(driver, batch)) => {
                return self.answer_batch(driver, batch, &parts, body, in_flight).await;
            }
            Ok(routed) => self.answer_whole(routed, &mut body).await,
            Err(problem) => Err(problem),
        };
        let (encoded, reservation) = match result {
            Ok(encoded) => encoded,
            Err(problem) => {
                // The response reports the first problem already. A further one only ends the
                // connection.
                let _ = body.skip().await;
                (problem.to_response(parts.method == Method::HEAD), None)
            }
        };
        self.record_status(RequestKind::of(&parts), encoded.response.status());
        respond_with(encoded, reservation, parts.version, self.goes_on(body.is_ended()))
    }

    async fn answer_whole(
        &self,
        routed: RoutedRequest<'_>,
        body: &mut RequestBody,
    ) -> Result<(EncodedResponse, Option<ResponseReservation>), Problem> {
        if let RoutedRequest::Entity(driver, entity) = routed {
            return self.answer_entity(driver, entity, body).await;
        }
        if matches!(routed, RoutedRequest::LayoutCommand) {
            return Ok((self.answer_layout_command(body).await?, None));
        }
        self.read_over(body).await?;
        let Thread { process, clock, serving_state, stages, .. } = &*self.thread;
        let encoded = match routed {
            RoutedRequest::Encoded(encoded) => encoded,
            RoutedRequest::Checkpoint(checkpoint) => {
                let address = self.stream.borrow().peer_ip();
                let local = process.local.get().expect("a serving node has opened its store");
                let now = clock.now().mono;
                checkpoint::answer(&process.checkpoint_state, local, now, checkpoint, address).await?
            }
            RoutedRequest::Profile(profile) => {
                let must_end =
                    || serving_state.get() == ServingState::Draining || self.stream.borrow().has_left();
                let now = clock.now().mono;
                profile::answer(&process.profile_state, stages, now, profile, must_end).await?
            }
            RoutedRequest::Repair => begin_repair(&process.control)?,
            RoutedRequest::Metrics { is_head } => scrape::answer(process, is_head).await,
            RoutedRequest::Entity(..)
            | RoutedRequest::Range(..)
            | RoutedRequest::Batch(..)
            | RoutedRequest::LayoutCommand => {
                unreachable!("they are answered elsewhere")
            }
        };
        Ok((encoded, None))
    }

    /// Carries out a command on the layout after its body has arrived.
    async fn answer_layout_command(&self, body: &mut RequestBody) -> Result<EncodedResponse, Problem> {
        let collected = self.collect_within(body, LAYOUT_BODY_BYTES_MAX).await;
        let value = collected.map_err(|problem| match problem.status() {
            StatusCode::PAYLOAD_TOO_LARGE => LayoutCommandRequest::too_large(),
            _ => problem,
        })?;
        let request = LayoutCommandRequest::decode(&value.bytes)?;
        drop(value);
        let process = &self.thread.process;
        let local = process.local.get().expect("a serving node has opened its store");
        layout_command::answer(&process.layout_plans, local, &process.control, request).await
    }

    /// Executes a request for one entity after its body has arrived.
    async fn answer_entity(
        &self,
        driver: &Rc<MachineDriver<CoordinatorMachine>>,
        entity: EntityRequest,
        body: &mut RequestBody,
    ) -> Result<(EncodedResponse, Option<ResponseReservation>), Problem> {
        let takes_value = entity.takes_value();
        let value_len = if takes_value { body.len_min() } else { 0 };
        if let Some(retry_after) = self.thread.refuses(&entity, value_len) {
            self.thread.count_refused();
            return Err(Problem::overloaded(retry_after));
        }
        let value = match takes_value {
            true => self.collect(body).await?,
            false => self.read_over(body).await.map(|()| Value::default())?,
        };
        let (command, asked) = self.command_of(entity, value.bytes);
        let values = &self.thread.read_values;
        let mut execution = ReadExecution::begin(driver, &self.thread.memory_holders, command, &asked);
        let (reply, reservation) =
            poll_fn(|context| execution.poll(context, values, &self.activity, &asked)).await;
        drop(value.reservation);
        let encoded = api::encode(reply, &asked);
        self.thread.end(execution.into_execution(), encoded.response.status());
        Ok((encoded, reservation))
    }

    /// The command of a request, and the context of its response.
    fn command_of(&self, entity: EntityRequest, value: Bytes) -> (Command, ResponseContext) {
        let urls = || status::urls_of_replicas(&self.thread.process, &entity.key, entity.quorum.from());
        let located = if entity.locate { urls() } else { None };
        let (command, asked) = entity.into_command(value);
        (command, ResponseContext { located, ..asked })
    }

    /// Streams a range after its first page has arrived.
    async fn answer_range(
        &self,
        driver: &Rc<MachineDriver<CoordinatorMachine>>,
        range: EntityRangeRequest,
        parts: &Parts,
        mut body: RequestBody,
        in_flight: InFlightGuard,
    ) -> HttpResponse {
        let started = self.start_range(driver, &range, &mut body).await;
        let is_read = body.is_ended();
        let (started, form) = match started {
            Ok(started) => started,
            Err(encoded) => return self.respond(RequestKind::Range, encoded, parts, is_read),
        };
        let body = started.into_body(form, &self.activity, in_flight);
        self.stream(
            RequestKind::Range,
            api::encode_range_head(&range),
            parts,
            ResponseBody::Range(Box::new(body)),
            is_read,
        )
    }

    async fn start_range(
        &self,
        driver: &Rc<MachineDriver<CoordinatorMachine>>,
        range: &EntityRangeRequest,
        body: &mut RequestBody,
    ) -> Result<(StartedRange, Form), EncodedResponse> {
        self.read_over(body).await.map_err(|problem| problem.to_response(false))?;
        let ranges = &self.thread.ranges;
        let no_memory = || ranges.refuse().to_response(false);
        let range_memory = ranges.enter(&self.activity, range.format, range.coding).await;
        let range_memory = range_memory.ok_or_else(no_memory)?;
        let form = Form::of(range.content, range.format, range.coding).map_err(|error| {
            let detail =
                format!("There is no memory to compress the range: {error}. Ask for it uncompressed.");
            Problem::unavailable(RETRY_AFTER, detail).to_response(false)
        })?;
        let started = StartedRange::begin(OpenScan::begin(driver, range.scan.clone()), range_memory).await;
        let started = started.map_err(|why| match why {
            RangeStartError::Failed(failure) => api::encode_range_failure(failure),
            RangeStartError::NoMemory => no_memory(),
        })?;
        Ok((started, form))
    }

    /// Executes a batch and streams its results, beginning with the first one.
    async fn answer_batch(
        &self,
        driver: &Rc<MachineDriver<CoordinatorMachine>>,
        batch: BatchRequest,
        parts: &Parts,
        body: RequestBody,
        in_flight: InFlightGuard,
    ) -> HttpResponse {
        let context = BatchContext {
            driver,
            open: &self.thread.batches,
            stream: &self.stream,
            activity: &self.activity,
            recorder: &self.thread.recorder,
            entries: batch.entries,
            results: batch.results,
            scope: batch.scope,
            quorum: batch.quorum,
        };
        let started = StartedBatch::begin(body, context);
        match started.first_result().await {
            Ok(()) => {
                let holders = &self.thread.memory_holders;
                let body = started.into_body(&self.activity, in_flight, holders);
                let (head, body) = (api::encode_batch_head(&batch), ResponseBody::Batch(Box::new(body)));
                self.stream(RequestKind::Batch, head, parts, body, true)
            }
            Err(problem) => self.respond(RequestKind::Batch, problem.to_response(false), parts, false),
        }
    }

    /// The response with a streamed `body`. `goes_on` says whether the connection may be reused.
    fn stream(
        &self,
        kind: RequestKind,
        head: Response<()>,
        parts: &Parts,
        body: ResponseBody,
        goes_on: bool,
    ) -> HttpResponse {
        let knows_chunks = parts.version >= Version::HTTP_11;
        if !knows_chunks && let Err(error) = self.stream.borrow_mut().begin_close_delimited() {
            let detail = format!("The connection cannot signal whether the response is complete: {error}.");
            let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail);
            return self.respond(kind, problem.to_response(false), parts, false);
        }
        self.record_status(kind, head.status());
        finish(head.map(|()| body), parts.version, self.goes_on(goes_on && knows_chunks))
    }

    /// Decodes a request from its head.
    fn route(&self, parts: &Parts) -> Result<RoutedRequest<'_>, Problem> {
        let process = &self.thread.process;
        let local = || process.local.get().map(|local| &**local);
        match api::decode_head(parts, &self.thread.rules()) {
            Ok(DecodedRequest::Status { is_head }) => {
                Ok(RoutedRequest::Encoded(api::encode_status(&status::of(process), is_head)))
            }
            Ok(DecodedRequest::Ready(form)) => {
                let state = self.thread.serving_state.get();
                let obstacle = readiness::obstacle(state, local(), self.thread.rules().default_from);
                Ok(RoutedRequest::Encoded(api::encode_ready(obstacle, form)))
            }
            Ok(DecodedRequest::Options { allow }) => Ok(RoutedRequest::Encoded(api::encode_options(allow))),
            Ok(DecodedRequest::Root { is_head }) => {
                Ok(RoutedRequest::Encoded(api::encode_root(env!("CARGO_PKG_VERSION"), is_head)))
            }
            Ok(DecodedRequest::Metrics { is_head }) => Ok(RoutedRequest::Metrics { is_head }),
            Ok(DecodedRequest::Layout { is_head }) => {
                let now = self.thread.clock.now().mono;
                let document = layout::of(local(), &process.config.own_name(), now)?;
                Ok(RoutedRequest::Encoded(api::encode_layout(&document, is_head)))
            }
            Ok(DecodedRequest::Slow { is_head }) => {
                self.check_is_local()?;
                Ok(RoutedRequest::Encoded(api::encode_slow(&self.thread.stages.latest(), is_head)))
            }
            Ok(DecodedRequest::Profile(profile)) => {
                self.check_is_local().map(|()| RoutedRequest::Profile(profile))
            }
            // The remaining requests need the store. Until it is open, they all get the same
            // response, even malformed ones.
            Ok(DecodedRequest::Entity(entity)) => Ok(RoutedRequest::Entity(self.serving_driver()?, entity)),
            Ok(DecodedRequest::Range(range)) => Ok(RoutedRequest::Range(self.serving_driver()?, range)),
            Ok(DecodedRequest::Batch(batch)) => Ok(RoutedRequest::Batch(self.serving_driver()?, batch)),
            Ok(DecodedRequest::Checkpoint(checkpoint)) => {
                self.serving_driver().map(|_| RoutedRequest::Checkpoint(checkpoint))
            }
            Ok(DecodedRequest::Repair) => self.serving_driver().map(|_| RoutedRequest::Repair),
            Ok(DecodedRequest::LayoutCommand) => self.serving_driver().map(|_| RoutedRequest::LayoutCommand),
            Err(problem) => self.serving_driver().and(Err(problem)),
        }
    }

    /// The driver of this thread's coordinator.
    ///
    /// # Errors
    /// The response while the node starts.
    fn serving_driver(&self) -> Result<&Rc<MachineDriver<CoordinatorMachine>>, Problem> {
        let serving =
            self.thread.driver().filter(|_| self.thread.serving_state.get() != ServingState::Starting);
        serving.ok_or_else(Problem::starting)
    }

    /// Permits requests that show keys, or that slow down the node, to clients on this machine
    /// only.
    fn check_is_local(&self) -> Result<(), Problem> {
        if self.stream.borrow().is_from_this_machine() {
            return Ok(());
        }
        let detail =
            "This is only for clients on the machine of the node. Ask there, through a loopback address.";
        Err(Problem::new(StatusCode::FORBIDDEN, detail))
    }

    async fn collect(&self, body: &mut RequestBody) -> Result<Value, Problem> {
        self.collect_within(body, self.thread.rules().value_bytes_max).await
    }

    async fn collect_within(&self, body: &mut RequestBody, bytes_max: usize) -> Result<Value, Problem> {
        let rules = BodyRules {
            value_bytes_max: bytes_max,
            holders: &self.thread.memory_holders,
            thread_budget: &self.thread.writes,
            refusals: &self.thread.capacity_refusals,
        };
        body.collect(&rules).await.map_err(|problem| self.or_refusal(problem))
    }

    /// Reads and discards the body. A request is not executed before all of it arrived, even if its
    /// body is unused.
    async fn read_over(&self, body: &mut RequestBody) -> Result<(), Problem> {
        let bytes_max = self.thread.rules().value_bytes_max;
        body.read_over(bytes_max).await.map_err(|problem| self.or_refusal(problem))
    }

    /// Records the status of the response to a request of this kind.
    fn record_status(&self, kind: RequestKind, status: StatusCode) {
        self.stream.borrow_mut().record_status(kind, status);
    }

    /// Makes a response. The connection cannot be reused if unread body bytes precede the next
    /// request, or if it was ordered to finish, which hyper may not know yet.
    fn respond(
        &self,
        kind: RequestKind,
        encoded: EncodedResponse,
        parts: &Parts,
        body_is_ended: bool,
    ) -> HttpResponse {
        let status = encoded.response.status();
        self.record_status(kind, status);
        // A head without a length can be followed by a body, which is not a request. A CONNECT can
        // be followed by bytes for another server.
        let can_go_on =
            body_is_ended && status != StatusCode::LENGTH_REQUIRED && parts.method != Method::CONNECT;
        respond_with(encoded, None, parts.version, self.goes_on(can_go_on))
    }

    /// Whether the connection is reused after the response, if that is possible. If not, the
    /// response says so.
    fn goes_on(&self, can_go_on: bool) -> bool {
        let goes_on = can_go_on && self.activity.close_order().is_none();
        if !goes_on {
            self.stream.borrow_mut().take_no_more();
        }
        goes_on
    }

    /// Prefers the refusal of the head check, which knows better than the body why a body broke
    /// off.
    fn or_refusal(&self, problem: Problem) -> Problem {
        self.stream.borrow_mut().take_refusal().unwrap_or(problem)
    }
}

/// Asks the control thread for a pass of anti-entropy.
fn begin_repair(control: &mpsc::Sender<ControlMessage>) -> Result<EncodedResponse, Problem> {
    match control.try_send(ControlMessage::Repair) {
        Ok(()) => Ok(api::encode_repair_begun()),
        Err(_) => Err(Problem::unavailable(
            RETRY_AFTER,
            "The node has too many requests for its control thread. Try again.",
        )),
    }
}

/// The hyper response to a request of this version. `goes_on` says whether the connection is
/// reused.
fn respond_with(
    encoded: EncodedResponse,
    reservation: Option<ResponseReservation>,
    version: Version,
    goes_on: bool,
) -> HttpResponse {
    let EncodedResponse { response, reason } = encoded;
    let mut response = response.map(|body| ResponseBody::Whole(body, reservation.map(Box::new)));
    if let Some(reason) = reason {
        response.extensions_mut().insert(ReasonPhrase::from_static(reason.as_bytes()));
    }
    finish(response, version, goes_on)
}

fn finish(mut response: HttpResponse, version: Version, goes_on: bool) -> HttpResponse {
    if !goes_on {
        // Without the matching version, hyper would tell an HTTP/1.0 client to keep the connection
        // alive.
        *response.version_mut() = version;
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
