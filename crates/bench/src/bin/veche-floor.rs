//! The floor: what HTTP itself costs on this machine, with hyper as veche uses it and next to nothing behind it.
//!
//! One listener; an accepted connection goes to the I/O thread with the fewest; each I/O thread has a tokio
//! `current_thread` runtime. `PUT` stores the body in a hash map, `GET` answers from it, with exactly the
//! header bytes that veche sends. Nothing is checked, nothing is durable: this is the yardstick, not a server.

use bytes::Bytes;
use clap::Parser;
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
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
}

type Map = RwLock<HashMap<Box<[u8]>, Bytes>>;

fn main() -> io::Result<()> {
    let options = Options::parse();
    let listener = listen(options.listen)?;
    let map = Arc::new(Map::default());
    let threads: Vec<IoThread> = (0..options.threads.max(1)).map(|_| IoThread::start(map.clone())).collect();
    loop {
        let (socket, _) = listener.accept()?;
        let fewest = threads.iter().min_by_key(|thread| thread.open.load(Ordering::Relaxed));
        if let Some(thread) = fewest {
            thread.take(socket)?;
        }
    }
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
    fn start(map: Arc<Map>) -> Self {
        let (sockets, receiver) = unbounded_channel();
        let open = Arc::new(AtomicUsize::new(0));
        let counter = open.clone();
        thread::spawn(move || serve(receiver, &map, &counter));
        Self { sockets, open }
    }

    fn take(&self, socket: TcpStream) -> io::Result<()> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        self.open.fetch_add(1, Ordering::Relaxed);
        self.sockets.send(socket).map_err(io::Error::other)
    }
}

fn serve(mut sockets: UnboundedReceiver<TcpStream>, map: &Arc<Map>, open: &Arc<AtomicUsize>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        while let Some(socket) = sockets.recv().await {
            let (map, open) = (map.clone(), open.clone());
            tokio::task::spawn_local(async move {
                if let Ok(socket) = tokio::net::TcpStream::from_std(socket) {
                    let service = service_fn(|request| answer(request, &map));
                    // A connection that breaks is no concern of the floor's.
                    let _ = http1::Builder::new()
                        .pipeline_flush(true)
                        .serve_connection(Io(socket), service)
                        .await;
                }
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
}

async fn answer(request: Request<Incoming>, map: &Map) -> Result<Response<Full<Bytes>>, Infallible> {
    let key = request.uri().query().and_then(|query| query.strip_prefix("id=")).map(str::as_bytes);
    let Some(key) = key else { return Ok(Response::default()) };
    if *request.method() == Method::GET {
        let value = map.read().expect("nothing panics under the lock").get(key).cloned();
        return Ok(value.map_or_else(not_found, found));
    }
    let key = Box::from(key);
    let Ok(body) = request.into_body().collect().await else { return Ok(not_found()) };
    // A slice of hyper's buffer would keep all of it.
    let value = Bytes::copy_from_slice(&body.to_bytes());
    map.write().expect("nothing panics under the lock").insert(key, value);
    Ok(created())
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
