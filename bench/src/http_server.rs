//! HTTP server around a handler: hyper as veche uses it, behind which stores are compared.
//!
//! There is one listener. An accepted connection is assigned to the I/O thread with the fewest
//! connections; each I/O thread has a tokio `current_thread` runtime. [`found`], [`created`] and
//! [`not_found`] have exactly the header bytes of veche's responses. This is a yardstick, not a
//! production server: nothing is bounded, and requests that are not for an entity are not refused.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use socket2::{Domain, Socket, Type};
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

const VECHE_ACKS: HeaderName = HeaderName::from_static("veche-acks");
const ACKS: HeaderValue = HeaderValue::from_static("1/1");
const VERSION: HeaderValue = HeaderValue::from_static("\"0123456789abcdef0123456789abcdef\"");
const BACKLOG: i32 = 1024;
/// Media type of values and ranges.
pub const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Handler of requests.
pub trait Handler: Send + Sync + 'static {
    /// Body of its responses.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + 'static;

    /// Handles one request. Other connections of the thread make progress while it awaits, but not
    /// while it computes.
    fn handle(&self, request: Request<Incoming>) -> impl Future<Output = Response<Self::Body>>;
}

/// Settings of the server.
#[derive(Clone, Copy, Debug)]
pub struct HttpServer {
    /// Number of I/O threads; at least one.
    pub threads: usize,
    /// Whether hyper collects the responses to pipelined requests. If so, it takes all of a body
    /// before it writes the first byte.
    pub pipeline_flush: bool,
    /// Whether hyper writes many buffers in one call. If not, it copies them into one buffer first.
    pub writev: bool,
}

impl Default for HttpServer {
    fn default() -> Self {
        Self { threads: 1, pipeline_flush: true, writev: true }
    }
}

impl HttpServer {
    /// Serves requests until accepting fails.
    ///
    /// # Errors
    /// Errors of the listener.
    pub fn serve<A: Handler>(self, address: SocketAddr, handler: &Arc<A>) -> io::Result<Infallible> {
        let listener = listen(address)?;
        let threads: Vec<IoThread> =
            (0..self.threads.max(1)).map(|_| IoThread::start(self, handler.clone())).collect();
        loop {
            let (socket, _) = listener.accept()?;
            let fewest = threads.iter().min_by_key(|thread| thread.open.load(Ordering::Relaxed));
            if let Some(thread) = fewest {
                thread.assign(socket)?;
            }
        }
    }
}

/// Key in the query of a request.
pub fn key_of<B>(request: &Request<B>) -> Option<&[u8]> {
    request.uri().query().and_then(|query| query.strip_prefix("id=")).map(str::as_bytes)
}

/// Response `200` with a value.
pub fn found(value: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(value));
    let headers = response.headers_mut();
    headers.insert(ETAG, VERSION);
    headers.insert(VECHE_ACKS, ACKS);
    headers.insert(CONTENT_TYPE, OCTETS);
    response
}

/// Response `201`.
pub fn created() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.insert(ETAG, VERSION);
    headers.insert(VECHE_ACKS, ACKS);
    response
}

/// Response `404`.
pub fn not_found() -> Response<Full<Bytes>> {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NOT_FOUND;
    response.headers_mut().insert(VECHE_ACKS, ACKS);
    response
}

/// Listens with a longer backlog than the standard library's, for many simultaneous connections.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Handle of an I/O thread, with the number of its connections.
struct IoThread {
    sockets: UnboundedSender<TcpStream>,
    open: Arc<AtomicUsize>,
}

impl IoThread {
    fn start<A: Handler>(server: HttpServer, handler: Arc<A>) -> Self {
        let (sockets, receiver) = unbounded_channel();
        let open = Arc::new(AtomicUsize::new(0));
        let counter = open.clone();
        thread::spawn(move || serve(server, receiver, &handler, &counter));
        Self { sockets, open }
    }

    fn assign(&self, socket: TcpStream) -> io::Result<()> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        self.open.fetch_add(1, Ordering::Relaxed);
        self.sockets.send(socket).map_err(io::Error::other)
    }
}

fn serve<A: Handler>(
    server: HttpServer,
    mut sockets: UnboundedReceiver<TcpStream>,
    handler: &Arc<A>,
    open: &Arc<AtomicUsize>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        while let Some(socket) = sockets.recv().await {
            let (handler, open) = (handler.clone(), open.clone());
            tokio::task::spawn_local(async move {
                if let Ok(socket) = tokio::net::TcpStream::from_std(socket) {
                    let handler = &*handler;
                    let service =
                        service_fn(
                            |request| async move { Ok::<_, Infallible>(handler.handle(request).await) },
                        );
                    // A broken connection is of no interest here.
                    let _ = http1::Builder::new()
                        .pipeline_flush(server.pipeline_flush)
                        .writev(server.writev)
                        .serve_connection(Io(socket), service)
                        .await;
                }
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
}

/// Adapter from tokio's socket to hyper's I/O traits.
struct Io(tokio::net::TcpStream);

impl hyper::rt::Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = {
            // SAFETY: `ReadBuf` never makes initialised bytes uninitialised again, and the cursor
            // is advanced only over the bytes that it reports as filled.
            let mut buffer = ReadBuf::uninit(unsafe { into.as_mut() });
            match Pin::new(&mut self.0).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) => buffer.filled().len(),
                other => return other,
            }
        };
        // SAFETY: the socket has just filled this number of bytes.
        unsafe { into.advance(read) };
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
