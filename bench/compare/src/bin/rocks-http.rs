//! RocksDB behind the HTTP server of the benchmarks, for comparison with veche on data larger than
//! memory.
//!
//! `load` stores the benchmark's keys and values, and lets compaction settle; `serve` answers reads
//! of them. A read that misses the cache blocks on the disk: on the connection's I/O thread, or
//! with `--reads pool` on a blocking thread of tokio. Which is faster depends on the disk, so both
//! are available.

use bench::keys::{KeyOrder, KeyPicker, KeySpace};
use bench::units::parse_bytes;
use bench::values::{ValueGenerator, ValueSizes};
use bytes::Bytes;
use clap::{Args, Parser, ValueEnum};
use compare::rocks::Rocks;
use compare::store::{Outcome, Settings, Store};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use lab::http_server::{Handler, HttpServer, found, key_of, not_found};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use stdx::Rng;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const BATCH: usize = 100;

/// RocksDB over HTTP.
#[derive(Parser)]
enum Command {
    /// Store the benchmark's data, settle, end.
    Load(Load),
    /// Answer `GET /v0/entity?id=`.
    Serve(Serve),
}

#[derive(Args)]
struct Place {
    /// Directory of the data.
    #[arg(long)]
    data: PathBuf,
    /// Memory for cache and memtables, divided as veche divides the same `--memory`.
    #[arg(long, value_parser = parse_bytes)]
    memory: u64,
    /// Size of a data block before compression; RocksDB's default if not given.
    #[arg(long)]
    block_bytes: Option<u32>,
}

#[derive(Args)]
struct Load {
    #[command(flatten)]
    place: Place,
    /// Number of keys.
    #[arg(long)]
    keys: u64,
    /// Size of each value.
    #[arg(long)]
    value_bytes: usize,
}

#[derive(Args)]
struct Serve {
    #[command(flatten)]
    place: Place,
    /// Address to listen on.
    #[arg(long)]
    listen: SocketAddr,
    /// I/O threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Thread that blocks on the disk.
    #[arg(long, value_enum, default_value_t = Reads::Inline)]
    reads: Reads,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reads {
    /// The I/O thread.
    Inline,
    /// A blocking thread of tokio's pool.
    Pool,
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Load(load) => load.run(),
        Command::Serve(serve) => serve.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rocks-http: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Place {
    fn open(&self) -> Outcome<Rocks> {
        let as_veche = engine::Options { memory_bytes: self.memory, ..engine::Options::default() };
        let settings = Settings {
            sync: false,
            memtable_bytes: as_veche.memtable_bytes(),
            cache_bytes: as_veche.cache_bytes(),
            block_bytes: self.block_bytes,
        };
        let rocks = Rocks::open(&self.data, &settings)?;
        println!("rocksdb: {}", rocks.describe());
        Ok(rocks)
    }
}

impl Load {
    fn run(&self) -> Outcome<()> {
        let rocks = self.place.open()?;
        let values = ValueGenerator::standard(ValueSizes::Fixed(self.value_bytes));
        let mut picker = KeyPicker::new(KeyOrder::Scattered, KeySpace::new(self.keys), Rng::new(1));
        let mut left = self.keys;
        while left > 0 {
            let count = left.min(BATCH as u64);
            let entry = |_| {
                let (key, mut value) = (picker.for_write(), Vec::with_capacity(self.value_bytes));
                values.append(key, &mut value);
                (key.stored_key().to_vec(), value)
            };
            rocks.put_batch(&(0..count).map(entry).collect::<Vec<_>>())?;
            left -= count;
        }
        rocks.settle()
    }
}

impl Serve {
    fn run(&self) -> Outcome<()> {
        let served = Arc::new(Served { rocks: Arc::new(self.place.open()?), reads: self.reads });
        let shell = HttpServer { threads: self.threads, ..HttpServer::default() };
        shell.serve(self.listen, &served).map(|never| match never {})?;
        Ok(())
    }
}

/// Handler with the open database.
struct Served {
    rocks: Arc<Rocks>,
    reads: Reads,
}

impl Handler for Served {
    type Body = Full<Bytes>;

    async fn handle(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let Some(key) = key_of(&request) else { return Response::default() };
        if *request.method() != Method::GET {
            return failed(StatusCode::METHOD_NOT_ALLOWED);
        }
        let value = match self.reads {
            Reads::Inline => read(&self.rocks, key),
            Reads::Pool => {
                let (rocks, key) = (self.rocks.clone(), Box::<[u8]>::from(key));
                let reading = tokio::task::spawn_blocking(move || read(&rocks, &key));
                reading.await.unwrap_or_else(|panic| Err(panic.into()))
            }
        };
        match value {
            Ok(value) => value.map_or_else(not_found, found),
            Err(error) => {
                eprintln!("a read failed: {error}");
                failed(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }
}

fn read(rocks: &Rocks, key: &[u8]) -> Outcome<Option<Bytes>> {
    let mut found = None;
    rocks.get(key, &mut |value| found = Some(Bytes::copy_from_slice(value)))?;
    Ok(found)
}

fn failed(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}
