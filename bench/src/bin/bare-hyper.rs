//! Bare hyper: the cost of HTTP itself on this machine, with hyper as veche uses it and a hash map
//! behind it.
//!
//! The server is [`lab::http_server`]. `PUT` stores the body in a hash map, and `GET` answers
//! from it, with exactly the header bytes of veche. With `--range-entries`, `/v0/entities` streams
//! that number of entries from memory, one per chunk, with the same bytes that veche sends for the
//! benchmark's keys. Nothing is validated, nothing is durable: this is a yardstick, not a
//! production server.

use bench::keys::KeyNumber;
use bench::values::{ValueGenerator, ValueSizes};
use bytes::Bytes;
use clap::Parser;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use lab::http_server::{Handler, HttpServer, OCTETS, created, found, key_of, not_found};
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, RwLock};
use std::task::{Context, Poll};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A bare hyper server that answers from a hash map.
#[derive(Parser)]
struct Options {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:8079")]
    listen: SocketAddr,
    /// Number of I/O threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Number of entries of the range.
    #[arg(long, default_value_t = 0)]
    range_entries: u64,
    /// Size of their values, in bytes.
    #[arg(long, default_value_t = 1024)]
    range_value_bytes: usize,
    /// Copy each response into one buffer first, instead of writing many buffers in one call.
    #[arg(long)]
    flatten: bool,
}

type Map = RwLock<HashMap<Box<[u8]>, Bytes>>;

/// Data of the server.
struct MapStore {
    map: Map,
    range: Arc<[Bytes]>,
}

fn main() -> io::Result<()> {
    let options = Options::parse();
    let range = range(options.range_entries, options.range_value_bytes);
    let server =
        HttpServer { threads: options.threads, pipeline_flush: range.is_empty(), writev: !options.flatten };
    let store = Arc::new(MapStore { map: Map::default(), range });
    server.serve(options.listen, &store).map(|never| match never {})
}

/// Encodes the entries that a preload of the benchmark stores, in the format of a range.
fn range(entries: u64, value_bytes: usize) -> Arc<[Bytes]> {
    let values = ValueGenerator::standard(ValueSizes::Fixed(value_bytes));
    let entry = |number| {
        let mut entry = KeyNumber(number).stored_key().to_vec();
        entry.push(b'\n');
        values.append(KeyNumber(number), &mut entry);
        Bytes::from(entry)
    };
    (0..entries).map(entry).collect()
}

impl Handler for MapStore {
    type Body = Either<Full<Bytes>, RangeBody>;

    async fn handle(&self, request: Request<Incoming>) -> Response<Self::Body> {
        if request.uri().path() == "/v0/entities" {
            let mut response =
                Response::new(Either::Right(RangeBody { entries: self.range.clone(), next: 0 }));
            response.headers_mut().insert(CONTENT_TYPE, OCTETS);
            return response;
        }
        answer_entity(request, &self.map).await.map(Either::Left)
    }
}

async fn answer_entity(request: Request<Incoming>, map: &Map) -> Response<Full<Bytes>> {
    let Some(key) = key_of(&request) else { return Response::default() };
    if *request.method() == Method::GET {
        let value = map.read().expect("nothing panics under the lock").get(key).cloned();
        return value.map_or_else(not_found, found);
    }
    let key = Box::from(key);
    let Ok(body) = request.into_body().collect().await else { return not_found() };
    // A slice would keep all of hyper's buffer alive.
    let value = Bytes::copy_from_slice(&body.to_bytes());
    map.write().expect("nothing panics under the lock").insert(key, value);
    created()
}

/// Entries, one per frame.
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
