//! The floor: what HTTP itself costs on this machine, with hyper as veche uses it and next to nothing behind it.
//!
//! One listener; an accepted connection goes to the I/O thread with the fewest; each I/O thread has a tokio
//! `current_thread` runtime. `PUT` stores the body in a hash map, `GET` answers from it, with exactly the
//! header bytes that veche sends. With `--range-entries`, `/v0/entities` streams so many entries from memory, one a
//! chunk, the same bytes that veche sends for the benchmark's keys. Nothing is checked, nothing is durable: this is the
//! yardstick, not a server.

use bench::keys::KeyNumber;
use bench::values::{Sizes, Values};
use bytes::Bytes;
use clap::Parser;
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use socket2::{Domain, Socket, Type};
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::task::{Context, Poll};
use std::thread;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const VECHE_ACKS: HeaderName = HeaderName::from_static("veche-acks");
const ACKS: HeaderValue = HeaderValue::from_static("1/1");
const VERSION: HeaderValue = HeaderValue::from_static("\"0123456789abcdef0123456789abcdef\"");
const BACKLOG: i32 = 1024;
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// A bare hyper server that answers from a hash map.
#[derive(Parser)]
struct Options {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:8079")]
    listen: SocketAddr,
    /// I/O threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Entries of the range.
    #[arg(long, default_value_t = 0)]
    range_entries: u64,
    /// The length of their values.
    #[arg(long, default_value_t = 1024)]
    range_value_bytes: usize,
    /// Copy what is to be written into one buffer first, instead of writing many pieces in one call.
    #[arg(long)]
    flatten: bool,
}

type Map = RwLock<HashMap<Box<[u8]>, Bytes>>;

/// What is answered from.
struct Held {
    map: Map,
    range: Arc<[Bytes]>,
    flatten: bool,
}

fn main() -> io::Result<()> {
    let options = Options::parse();
    let listener = listen(options.listen)?;
    let held = Arc::new(Held {
        map: Map::default(),
        range: range(options.range_entries, options.range_value_bytes),
        flatten: options.flatten,
    });
    let threads: Vec<IoThread> = (0..options.threads.max(1)).map(|_| IoThread::start(held.clone())).collect();
    loop {
        let (socket, _) = listener.accept()?;
        let fewest = threads.iter().min_by_key(|thread| thread.open.load(Ordering::Relaxed));
        if let Some(thread) = fewest {
            thread.take(socket)?;
        }
    }
}

/// The entries that a preload of the benchmark stores, in the form of a range.
fn range(entries: u64, value_bytes: usize) -> Arc<[Bytes]> {
    let values = Values::of_all_runs(Sizes::Fixed(value_bytes));
    let entry = |number| {
        let mut entry = KeyNumber(number).stored().to_vec();
        entry.push(b'\n');
        values.append(KeyNumber(number), &mut entry);
        Bytes::from(entry)
    };
    (0..entries).map(entry).collect()
}

/// More connections at once than the default backlog of the standard library takes.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The way to an I/O thread, and how many connections it has.
struct IoThread {
    sockets: UnboundedSender<TcpStream>,
    open: Arc<AtomicUsize>,
}

impl IoThread {
    fn start(held: Arc<Held>) -> Self {
        let (sockets, receiver) = unbounded_channel();
        let open = Arc::new(AtomicUsize::new(0));
        let counter = open.clone();
        thread::spawn(move || serve(receiver, &held, &counter));
        Self { sockets, open }
    }

    fn take(&self, socket: TcpStream) -> io::Result<()> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        self.open.fetch_add(1, Ordering::Relaxed);
        self.sockets.send(socket).map_err(io::Error::other)
    }
}

fn serve(mut sockets: UnboundedReceiver<TcpStream>, held: &Arc<Held>, open: &Arc<AtomicUsize>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        while let Some(socket) = sockets.recv().await {
            let (held, open) = (held.clone(), open.clone());
            tokio::task::spawn_local(async move {
                if let Ok(socket) = tokio::net::TcpStream::from_std(socket) {
                    let service = service_fn(|request| answer(request, &held));
                    // A connection that breaks is no concern of the floor's.
                    let _ = http1::Builder::new()
                        // With it, hyper takes all of a body before it writes the first byte.
                        .pipeline_flush(held.range.is_empty())
                        .writev(!held.flatten)
                        .serve_connection(Io(socket), service)
                        .await;
                }
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
}

async fn answer(
    request: Request<Incoming>,
    held: &Held,
) -> Result<Response<Either<Full<Bytes>, RangeBody>>, Infallible> {
    if request.uri().path() == "/v0/entities" {
        let mut response = Response::new(Either::Right(RangeBody { entries: held.range.clone(), next: 0 }));
        response.headers_mut().insert(CONTENT_TYPE, OCTETS);
        return Ok(response);
    }
    Ok(answer_entity(request, &held.map).await.map(Either::Left))
}

async fn answer_entity(request: Request<Incoming>, map: &Map) -> Response<Full<Bytes>> {
    let key = request.uri().query().and_then(|query| query.strip_prefix("id=")).map(str::as_bytes);
    let Some(key) = key else { return Response::default() };
    if *request.method() == Method::GET {
        let value = map.read().expect("nothing panics under the lock").get(key).cloned();
        return value.map_or_else(not_found, found);
    }
    let key = Box::from(key);
    let Ok(body) = request.into_body().collect().await else { return not_found() };
    // A slice of hyper's buffer would keep all of it.
    let value = Bytes::copy_from_slice(&body.to_bytes());
    map.write().expect("nothing panics under the lock").insert(key, value);
    created()
}

fn found(value: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(value));
    let headers = response.headers_mut();
    headers.insert(ETAG, VERSION);
    headers.insert(VECHE_ACKS, ACKS);
    headers.insert(CONTENT_TYPE, OCTETS);
    response
}

fn created() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.insert(ETAG, VERSION);
    headers.insert(VECHE_ACKS, ACKS);
    response
}

fn not_found() -> Response<Full<Bytes>> {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NOT_FOUND;
    response.headers_mut().insert(VECHE_ACKS, ACKS);
    response
}

/// Entries, one a frame.
struct RangeBody {
    entries: Arc<[Bytes]>,
    next: usize,
}

impl Body for RangeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let entry = self.entries.get(self.next).cloned();
        self.next += 1;
        Poll::Ready(entry.map(|entry| Ok(Frame::data(entry))))
    }
}

/// Tokio's socket as hyper wants it.
struct Io(tokio::net::TcpStream);

impl hyper::rt::Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = {
            // SAFETY: `ReadBuf` never makes initialised bytes uninitialised again, and only what it says was
            // filled is advanced over.
            let mut buffer = ReadBuf::uninit(unsafe { into.as_mut() });
            match Pin::new(&mut self.0).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) => buffer.filled().len(),
                other => return other,
            }
        };
        // SAFETY: the socket filled that many bytes just now.
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
