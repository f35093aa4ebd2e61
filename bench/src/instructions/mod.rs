//! User instructions of a request, counted by callgrind.
//!
//! **Promise.** A figure is the number of instructions that all processes of a server execute in
//! user mode for one request, without those of an idle server. It does not depend on the clock
//! rate, on other programs or on the disk. So it shows differences that are lost in the noise of a
//! measurement by time.
//!
//! **Mechanism.** One connection sends one request after the other to a server under callgrind.
//! The counts are read before the requests, after them, and after a pause. The instructions of the
//! pause, scaled to the time of the requests, are those of an idle server.
//!
//! **Caveats.** Work in the kernel, cache misses and waiting are not counted. Under callgrind all
//! threads share one core, so a server with deadlines of milliseconds may do other work than
//! usual. Reads repeat within 0.5 %, writes within 3 %.

mod callgrind;

use crate::servers::{CpuLayout, Durability, WorkDir, free_address};
use crate::table::{ResultTable, Threshold};
use crate::{BenchResult, Options};
use bench::keys::KeyNumber;
use bench::values::{ValueGenerator, ValueSizes};
use bench::{HttpClient, fetch};
use callgrind::CountedProcess;
use lab::stats::{median, ratio, rounds};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// One I/O thread, placed by the kernel.
const LAYOUT: CpuLayout = CpuLayout {
    title: "one I/O thread each, under callgrind",
    server_cores: &[],
    server_threads: 1,
    generator_cores: &[],
    generator_threads: 1,
};
const MEMORY: &str = "256MiB";
/// Number of keys that are stored and read.
const KEYS: u64 = 1_000;
/// Key whose value is large.
const LARGE_KEY: u64 = KEYS;
const LARGE_BYTES: usize = 64 << 10;
const VALUE_BYTES: usize = 100;
/// Pause in which the instructions of an idle server are counted.
const PAUSE: Duration = Duration::from_secs(3);
/// Timeout of a request: a server under callgrind is slower by a factor of 50.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Options of the scenario.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct InstructionArguments {
    /// A program of an earlier build, which the server is compared with
    #[arg(long)]
    before: Option<PathBuf>,
}

/// Request of a load.
#[derive(Clone, Copy, Debug)]
enum Request {
    Get,
    GetLarge,
    Put,
    Delete,
    Range,
}

/// A load of a part.
struct Load {
    part: &'static str,
    title: &'static str,
    request: Request,
    /// Number of requests that are counted.
    requests: u64,
}

const LOADS: [Load; 8] = [
    Load { part: "one", title: "GET of 100 bytes", request: Request::Get, requests: 6_000 },
    Load { part: "one", title: "GET of 64 KiB", request: Request::GetLarge, requests: 600 },
    Load { part: "one", title: "PUT of 100 bytes", request: Request::Put, requests: 3_000 },
    Load { part: "one", title: "DELETE", request: Request::Delete, requests: 3_000 },
    Load { part: "one", title: "range of all entities", request: Request::Range, requests: 60 },
    Load { part: "three", title: "GET, 2 of 3", request: Request::Get, requests: 6_000 },
    Load { part: "three", title: "PUT, 2 of 3", request: Request::Put, requests: 3_000 },
    Load { part: "three", title: "DELETE, 2 of 3", request: Request::Delete, requests: 3_000 },
];

/// Nodes of one program.
struct CountedServer {
    nodes: Vec<CountedProcess>,
}

/// Measures, and adds the rows.
pub(crate) fn rows(
    options: &Options,
    arguments: &InstructionArguments,
    work_dir: &WorkDir,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let programs: Vec<&Path> =
        [Some(work_dir.program()), arguments.before.as_deref()].into_iter().flatten().collect();
    for (part, nodes, title) in [("one", 1, "one node"), ("three", 3, "three nodes, all of them counted")] {
        if !options.is_selected(part) {
            continue;
        }
        table.section(&format!("instructions per request; {title}; --durability os"));
        let loads: Vec<&Load> = LOADS.iter().filter(|load| load.part == part).collect();
        // By load, program and round.
        let mut counts = vec![vec![Vec::new(); programs.len()]; loads.len()];
        for round in 0..options.rounds.unwrap_or(if options.quick { 1 } else { 3 }) {
            for side in 0..programs.len() {
                let side = (side + round) % programs.len();
                let name = format!("{part}-{round}-{side}");
                let server = CountedServer::start(work_dir, programs[side], &name, nodes)?;
                for (load, counts) in loads.iter().zip(&mut counts) {
                    counts[side].push(server.count(options, load)?);
                }
            }
        }
        for (load, counts) in loads.iter().zip(&counts) {
            add_rows(table, load, counts);
        }
    }
    Ok(())
}

fn add_rows(table: &mut ResultTable, load: &Load, counts: &[Vec<f64>]) {
    let after = &counts[0];
    table.row(&format!("{}: instructions", load.title), Threshold::None, rounds(after), String::new());
    if let Some(before) = counts.get(1) {
        let note = format!("{:.0} / {:.0}", median(after), median(before));
        table.row(&format!("{}: after / before", load.title), Threshold::None, ratio(after, before), note);
    }
}

impl CountedServer {
    /// Starts `nodes` nodes of `program`, and stores the keys.
    fn start(work_dir: &WorkDir, program: &Path, name: &str, nodes: usize) -> BenchResult<Self> {
        let addresses = (0..nodes).map(|_| free_address()).collect::<BenchResult<Vec<_>>>()?;
        let specs = work_dir.node_specs(name, addresses, LAYOUT, Durability::Os, MEMORY);
        let spawned = specs.iter().map(|spec| CountedProcess::spawn(work_dir, program, spec, LAYOUT));
        let spawned = spawned.collect::<BenchResult<Vec<_>>>()?;
        let ready = spawned.into_iter().map(|node| node.ready(work_dir, is_ready));
        let server = Self { nodes: ready.collect::<BenchResult<_>>()? };
        let mut client = HttpClient::connect(server.address(), TIMEOUT)?;
        for key in 0..=LARGE_KEY {
            send(&mut client, Request::Put, key)?;
        }
        Ok(server)
    }

    fn address(&self) -> SocketAddr {
        self.nodes[0].address()
    }

    /// Instructions of one request of `load`.
    fn count(&self, options: &Options, load: &Load) -> BenchResult<f64> {
        let requests = if options.quick { load.requests / 20 } else { load.requests };
        let mut client = HttpClient::connect(self.address(), TIMEOUT)?;
        (0..requests / 10).try_for_each(|i| send(&mut client, load.request, i % KEYS))?;
        self.take()?;
        let begun = Instant::now();
        (0..requests).try_for_each(|i| send(&mut client, load.request, i % KEYS))?;
        let busy = self.take()?;
        let busy_time = begun.elapsed();
        let paused = Instant::now();
        std::thread::sleep(PAUSE);
        let idle = self.take()?;
        let idle = idle * busy_time.as_secs_f64() / paused.elapsed().as_secs_f64();
        if matches!(load.request, Request::Delete) {
            // The next loads find the keys again.
            (0..KEYS).try_for_each(|key| send(&mut client, Request::Put, key))?;
        }
        Ok((busy - idle) / requests as f64)
    }

    /// Instructions of all nodes since the last call.
    fn take(&self) -> BenchResult<f64> {
        let counts = self.nodes.iter().map(CountedProcess::take).collect::<BenchResult<Vec<u64>>>()?;
        Ok(counts.iter().sum::<u64>() as f64)
    }
}

/// Whether operations with the default quorum succeed.
fn is_ready(address: SocketAddr) -> bool {
    fetch(address, "GET", "/v0/ready", b"", TIMEOUT).is_ok_and(|answer| answer.status == 200)
}

/// Sends a request, whose response must be successful.
fn send(client: &mut HttpClient, request: Request, key: u64) -> BenchResult<()> {
    let (method, path, value) = match request {
        Request::Get => ("GET", entity(key), Vec::new()),
        Request::GetLarge => ("GET", entity(LARGE_KEY), Vec::new()),
        Request::Put => ("PUT", entity(key), value(key)),
        Request::Delete => ("DELETE", entity(key), Vec::new()),
        Request::Range => ("GET", "/v0/entities?start=k".to_owned(), Vec::new()),
    };
    match client.exchange(method, &path, &value)?.status {
        200..300 => Ok(()),
        status => Err(format!("{method} {path}: {status}").into()),
    }
}

fn entity(key: u64) -> String {
    format!("/v0/entity?id=k{key:06}")
}

fn value(key: u64) -> Vec<u8> {
    let len = if key == LARGE_KEY { LARGE_BYTES } else { VALUE_BYTES };
    let mut value = Vec::with_capacity(len);
    ValueGenerator::standard(ValueSizes::Fixed(len)).append(KeyNumber(key), &mut value);
    value
}
