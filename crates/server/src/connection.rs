//! A client connection, from its first byte to its close.
//!
//! **Promise.** A client can read the last response. The server closes its write side first and
//! then reads and discards the client's input for a bounded time. A socket that is closed with
//! unread input would reset the connection, and the response would be lost. Many clients send a
//! whole value before they read the response.
//!
//! A stopping node answers requests that are on their way. A connection that has not had a request
//! yet, or on which one has begun, gets [`REQUEST_TIME`] for it. Other connections are closed once
//! they are idle.
//!
//! **Mechanism.** The stream itself answers requests on the fast path. For other requests, hyper's
//! state and buffers are created and then dropped when the stream waits for the next request. An
//! idle connection is therefore cheap, regardless of the requests that it has served. Service by
//! hyper ends when the client closes the connection, at an error, or where the head check reports
//! the end of input. Then the refusal, if there is one, is written after hyper's responses. A
//! connection of a peer leaves this module before its first request and becomes a link
//! (`links::accept`).

use crate::connection_activity::{CloseOrder, ConnectionActivity};
use crate::connection_limit::ConnectionPermit;
use crate::counters::CloseReason;
use crate::service::Service;
use crate::socket;
use crate::stream::{CheckedStream, StreamHandle};
use crate::thread::Thread;
use api::{Problem, RequestKind};
use bytes::Bytes;
use http::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Longest time for which input is discarded after the last response.
const LINGER_TIME: Duration = Duration::from_secs(5);
/// Time limit for the client to receive the last response.
const LAST_RESPONSE_TIME: Duration = Duration::from_secs(2);

/// Most bytes of a request that hyper buffers before it has parsed the head: more than a head may
/// have.
const HYPER_BUFFER_BYTES_MAX: usize = 128 << 10;

/// Time for which a stopping node waits for a request that may be on its way.
const REQUEST_TIME: Duration = Duration::from_millis(500);

/// The outcome of serving a connection with hyper.
enum ConnectionEnd {
    /// hyper ended without an error.
    Served,
    /// A response broke off, or the socket failed.
    Broken,
    /// The client was too slow.
    TooSlow,
    /// The connection is closed without a further response.
    Cut(CloseReason),
}

/// Serves a connection until it ends or turns out to be a peer's.
pub(crate) async fn serve(stream: std::net::TcpStream, permit: ConnectionPermit, thread: Rc<Thread>) {
    let served = serve_socket(stream, &permit, &thread).await;
    drop(permit);
    thread.connection_ended();
    match served {
        Ok(None) => {}
        Ok(Some((socket, received))) => thread.accept_peer_of_client(socket, received).await,
        Err(error) => tracing::debug!(%error, "a connection broke off"),
    }
}

/// Serves a socket. Returns the socket of a peer with the bytes received so far; `None` for a
/// client.
async fn serve_socket(
    stream: std::net::TcpStream,
    permit: &ConnectionPermit,
    thread: &Rc<Thread>,
) -> io::Result<Option<(TcpStream, Vec<u8>)>> {
    let entry = thread.connections.register(permit.client(), Instant::now());
    if permit.is_reserved() {
        entry.activity.order_close(CloseOrder::Finish);
    }
    let socket = TcpStream::from_std(stream)?;
    socket.set_nodelay(true)?;
    let activity = Rc::clone(&entry.activity);
    let stream = CheckedStream::new(socket, Rc::clone(thread), Rc::clone(&activity));
    let stream = Rc::new(RefCell::new(stream));
    let ended = serve_http(&stream, thread, &activity).await;
    match ended {
        ConnectionEnd::Served | ConnectionEnd::Broken => {}
        ConnectionEnd::TooSlow => thread.counters.count_cut(CloseReason::SlowRequest),
        ConnectionEnd::Cut(why) => thread.counters.count_cut(why),
    }
    let mut stream = Rc::into_inner(stream).expect("hyper has dropped its handle").into_inner();
    if stream.is_peer() {
        return Ok(Some(stream.into_parts()));
    }
    if stream.ends_by_reset(matches!(ended, ConnectionEnd::Served))? {
        return Ok(None);
    }
    let last_response = match ended {
        ConnectionEnd::Cut(_) => return Ok(None),
        ConnectionEnd::TooSlow => Some(too_slow()),
        ConnectionEnd::Served | ConnectionEnd::Broken => stream.take_refusal(),
    };
    if let Some(problem) = &last_response {
        thread.recorder.record_status(RequestKind::Other, problem.status());
    }
    let lingers = last_response.is_some() || stream.may_get_more();
    let last_response =
        last_response.map(|problem| problem.to_http1_bytes(&thread.date.at(thread.clock.now().wall)));
    send_last_response(stream.socket(), last_response).await?;
    if lingers {
        poll_fn(|context| stream.poll_pause(context)).await;
        tokio::time::timeout(LINGER_TIME, socket::linger(stream.socket())).await??;
    }
    Ok(None)
}

async fn serve_http(
    stream: &Rc<RefCell<CheckedStream>>,
    thread: &Rc<Thread>,
    activity: &Rc<ConnectionActivity>,
) -> ConnectionEnd {
    let service = Rc::new(Service {
        thread: Rc::clone(thread),
        activity: Rc::clone(activity),
        stream: Rc::clone(stream),
    });
    let new_connection = || {
        let service = Rc::clone(&service);
        http1::Builder::new()
            .half_close(true)
            .header_read_timeout(None)
            .max_buf_size(HYPER_BUFFER_BYTES_MAX)
            .serve_connection(
                StreamHandle(Rc::clone(stream)),
                service_fn(move |request| service.handle(request)),
            )
    };
    let mut hyper_connection = None;
    let mut finishing = false;
    let mut request_time = None;
    poll_fn(move |context| {
        activity.register_waker(context.waker());
        activity.obey_memory_eviction();
        match activity.close_order() {
            Some(CloseOrder::Cut) if activity.is_idle() => {
                return Poll::Ready(ConnectionEnd::Cut(CloseReason::Idle));
            }
            Some(CloseOrder::Cut) => return Poll::Ready(ConnectionEnd::Cut(CloseReason::Stalled)),
            // A refusal cannot be sent in the middle of a response.
            Some(CloseOrder::Refuse) if activity.responding.get() => {
                return Poll::Ready(ConnectionEnd::Cut(CloseReason::Stalled));
            }
            Some(CloseOrder::Refuse) => return Poll::Ready(ConnectionEnd::TooSlow),
            Some(CloseOrder::CloseIfIdle) if activity.awaits_head() && !stream.borrow().has_input() => {
                return Poll::Ready(ConnectionEnd::Cut(CloseReason::Evicted));
            }
            Some(CloseOrder::CloseIfIdle) => activity.withdraw_close_if_idle(),
            Some(CloseOrder::Finish) => {}
            None if thread.shares.has_short_batches() && activity.skip_owed_slice() => {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            None => {}
        }
        // Requests on the fast path are answered without hyper, whose state does not exist
        // meanwhile.
        let connection = loop {
            let polled = stream.borrow_mut().poll_fast_path(context);
            match polled {
                Poll::Pending => {
                    hyper_connection = None;
                    return Poll::Pending;
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    tracing::debug!(%error, "a connection broke");
                    return Poll::Ready(ConnectionEnd::Broken);
                }
            }
            let connection = hyper_connection.get_or_insert_with(|| Box::new(new_connection()));
            if let Poll::Ready(served) = Pin::new(&mut **connection).poll(context) {
                return Poll::Ready(after(served));
            }
            // After hyper's response, the stream checks the next request again, once other
            // connections had their time slices.
            let mut stream = stream.borrow_mut();
            if !stream.can_use_fast_path() {
                if stream.is_stuck() {
                    context.waker().wake_by_ref();
                }
                break hyper_connection.as_mut().expect("hyper was polled in this iteration");
            }
            if stream.end_hyper_slice() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        };
        if finishing || activity.close_order() != Some(CloseOrder::Finish) {
            return Poll::Pending;
        }
        if activity.is_idle() && stream.borrow().has_input() {
            // A request has arrived that the runtime has not reported yet. It is answered first.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if activity.can_receive_request() {
            let ends = request_time.get_or_insert_with(|| Box::pin(tokio::time::sleep(REQUEST_TIME)));
            ready!(ends.as_mut().poll(context));
        }
        finishing = true;
        Pin::new(&mut **connection).graceful_shutdown();
        Pin::new(&mut **connection).poll(context).map(after)
    })
    .await
}

fn after(served: hyper::Result<()>) -> ConnectionEnd {
    match served {
        Ok(()) => ConnectionEnd::Served,
        Err(error) => {
            tracing::debug!(%error, "hyper ended a connection");
            ConnectionEnd::Broken
        }
    }
}

/// Sends the last response, if there is one, and closes the write side.
async fn send_last_response(socket: &mut TcpStream, last_response: Option<Bytes>) -> io::Result<()> {
    let sent = async {
        if let Some(last_response) = last_response {
            socket.write_all(&last_response).await?;
        }
        socket.shutdown().await
    };
    tokio::time::timeout(LAST_RESPONSE_TIME, sent).await?
}

fn too_slow() -> Problem {
    Problem::new(
        StatusCode::REQUEST_TIMEOUT,
        "The request came too slowly. Nothing was stored. Send it again, without pauses.",
    )
}
