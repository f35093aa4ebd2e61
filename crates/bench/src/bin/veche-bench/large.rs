//! Reads of much more data than memory, compared with RocksDB behind the same HTTP server.
//!
//! Both stores receive the same keys and values, settle, and are closed. Each is then opened in a
//! cgroup of its own that bounds all of its memory, page cache included. They are read in
//! interleaved rounds, while the other one is idle. RocksDB serves reads in the fastest of the ways
//! in [`READ_MODES`].
//!
//! **Caveats.** Values compress to half their size, so a gigabyte of data takes little more than
//! half of that on disk. Both block caches are sized by [`Arguments::memory`]; the rest of the
//! cgroup's memory is page cache.

use crate::data::{drop_page_cache, require_free_space, store_in_batches, wait_until_settled};
use crate::measure::{Load, Sample, measure, verify};
use crate::scrape::Scrape;
use crate::servers::{CpuLayout, WorkDir};
use crate::table::{ResultTable, Threshold};
use crate::{BenchResult, Options};
use bench::cgroup::MemoryLimit;
use bench::keys::KEY_LEN;
use bench::process::{ServerProcess, disk_read_bytes};
use bench::stats::{median, ratio};
use bench::units::{bytes, parse_bytes};
use bench::{Operation, Pacing, StopFlag};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const LAYOUT: CpuLayout = CpuLayout::PINNED;
const VECHE: &str = "large-veche";
const ROCKS: &str = "large-rocks";
const VALUE_BYTES: usize = 1024;
const CONNECTIONS: usize = 64;
/// Fraction of the slower store's top rate at which latencies are measured.
const CALM: f64 = 0.5;
/// Number of reads that are verified before the measurement.
const VERIFIED: u64 = 2_000;
/// Maximum ratio of table size to live data while the tables are written.
const SPACE_AMPLIFICATION: f64 = 1.3;
const SETTLE_PATIENCE: Duration = Duration::from_secs(1_800);

/// Ways in which RocksDB can serve reads: a name, I/O threads, and the thread that blocks on the
/// disk.
const READ_MODES: [(&str, usize, &str); 3] = [
    ("inline, one I/O thread", 1, "inline"),
    ("inline, an I/O thread for each connection", CONNECTIONS, "inline"),
    ("a pool of threads behind one I/O thread", 1, "pool"),
];

/// Settings of both stores.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// All memory of a store's process, page cache included [default: 2GiB]
    #[arg(long)]
    limit: Option<String>,
    /// `--memory` of veche, and the same division of it for RocksDB [default: 1GiB]
    #[arg(long)]
    memory: Option<String>,
    /// Use RocksDB's default size of data blocks instead of veche's
    #[arg(long)]
    own_blocks: bool,
    /// RocksDB behind HTTP
    #[arg(long, default_value = "bench/compare/target/release/rocks-http")]
    rocks: PathBuf,
}

/// Size of veche's data blocks, in bytes.
const BLOCK_BYTES: u32 = 16 << 10;

/// Constant parameters of the comparison.
struct LargeBench<'a> {
    options: &'a Options,
    arguments: &'a Arguments,
    work_dir: &'a WorkDir,
    limit_bytes: u64,
    memory: String,
    keys: u64,
}

/// A server in its cgroup. The server is dropped first: a cgroup that contains processes cannot be
/// removed.
struct ConfinedServer {
    server: ServerProcess,
    _limit: MemoryLimit,
}

/// Measurement of one store in one round.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// Closed loop.
    top: Sample,
    /// Constant rate.
    calm: Sample,
    read_bytes: f64,
}

/// Measures, and adds the rows.
pub(crate) fn rows(
    options: &Options,
    arguments: &Arguments,
    work_dir: &WorkDir,
    table: &mut ResultTable,
) -> BenchResult<()> {
    if !arguments.rocks.is_file() {
        return Err(format!("{} is not there: build bench/compare first", arguments.rocks.display()).into());
    }
    let [limit, memory] = if options.quick { ["256MiB", "64MiB"] } else { ["2GiB", "1GiB"] };
    let bench = LargeBench {
        options,
        arguments,
        work_dir,
        limit_bytes: parse_bytes(arguments.limit.as_deref().unwrap_or(limit))?,
        memory: arguments.memory.clone().unwrap_or_else(|| memory.to_owned()),
        keys: options.big_keys(),
    };
    let data_bytes = bench.keys as f64 * (KEY_LEN + VALUE_BYTES) as f64;
    require_free_space(work_dir.dir(), (2.0 * data_bytes * SPACE_AMPLIFICATION) as u64)?;
    // Ctrl-C ends the servers, which makes this command fail and clean up.
    let _caught = StopFlag::on_interrupt()?;
    table.section(&format!(
        "GET at random over {}, {CONNECTIONS} connections, in a cgroup of {}; {}",
        bytes(data_bytes),
        bytes(bench.limit_bytes as f64),
        LAYOUT.title
    ));
    bench.load_veche()?;
    bench.load_rocks()?;
    let mode = bench.fastest_mode()?;
    let rocks = bench.rocks(mode)?;
    let veche = bench.veche()?;
    bench.compare(&veche.server, &rocks.server, mode, table)
}

impl LargeBench<'_> {
    fn load_veche(&self) -> BenchResult<()> {
        let veche = self.veche()?;
        store_in_batches(&veche.server, self.keys, VALUE_BYTES)?;
        wait_until_settled(&veche.server, SETTLE_PATIENCE)?;
        // Data in memtables is in the log, and is flushed to tables when the store is opened again.
        drop(veche);
        let veche = self.veche()?;
        wait_until_settled(&veche.server, SETTLE_PATIENCE)?;
        drop(veche);
        drop_page_cache(&self.work_dir.data(VECHE))
    }

    fn load_rocks(&self) -> BenchResult<()> {
        let limit = self.limit("load")?;
        let data = self.work_dir.data(ROCKS);
        let mut args = vec!["load".to_owned(), format!("--data={}", data.display())];
        args.extend([format!("--keys={}", self.keys), format!("--value-bytes={VALUE_BYTES}")]);
        args.extend(self.rocks_flags());
        let (shell, args) = limit.command(&self.arguments.rocks, &args);
        let status = Command::new(shell).args(args).stdin(Stdio::null()).status()?;
        if !status.success() {
            return Err(format!("loading RocksDB: {status}").into());
        }
        drop_page_cache(&data)
    }

    /// Index of the read mode in which RocksDB has the highest throughput.
    fn fastest_mode(&self) -> BenchResult<usize> {
        let mut rates = Vec::new();
        for (mode, (name, ..)) in READ_MODES.iter().enumerate() {
            let rocks = self.rocks(mode)?;
            self.warm(&rocks.server)?;
            let top = self.reads(&rocks.server, Pacing::Closed, 0)?;
            println!("  RocksDB, {name}: {:.0} GET/s, {:.1} us CPU", top.per_second, top.cpu_us);
            rates.push(top.per_second);
            drop(rocks);
            drop_page_cache(&self.work_dir.data(ROCKS))?;
        }
        let best = (0..READ_MODES.len()).max_by(|a, b| rates[*a].total_cmp(&rates[*b]));
        Ok(best.expect("there is at least one mode"))
    }

    fn compare(
        &self,
        veche: &ServerProcess,
        rocks: &ServerProcess,
        mode: usize,
        table: &mut ResultTable,
    ) -> BenchResult<()> {
        let sides = [veche, rocks];
        let mut tops = Vec::new();
        for server in sides {
            verify(server, LAYOUT, self.load(Pacing::Closed, 7), VERIFIED)?;
            self.warm(server)?;
            tops.push(self.reads(server, Pacing::Closed, 0)?.per_second);
        }
        let calm = Pacing::at(tops[0].min(tops[1]) * CALM);
        println!("  latencies at {calm:?}");
        let mut measured: [Vec<Round>; 2] = [Vec::new(), Vec::new()];
        for round in 0..self.options.rounds() {
            for turn in 0..sides.len() {
                let side = (turn + round) % sides.len();
                let one = self.round(sides[side], calm, round as u64 + 1)?;
                println!(
                    "  round {round}: {:<8} {:>7.0}/s {:>6.2} us CPU, {:>6.0} B of disk a GET; p50 {:.0} p99 {:.0} us",
                    ["veche", "RocksDB"][side],
                    one.top.per_second,
                    one.top.cpu_us,
                    one.read_bytes,
                    one.calm.p50_us,
                    one.calm.p99_us
                );
                measured[side].push(one);
            }
        }
        let cache = Scrape::of(veche)?.sum("veche_cache_bytes", "");
        let note = format!("RocksDB: {}; veche's cache holds {}", READ_MODES[mode].0, bytes(cache));
        add_rows(table, &measured, calm, &note);
        Ok(())
    }

    fn round(&self, server: &ServerProcess, calm: Pacing, seed: u64) -> BenchResult<Round> {
        let before = disk_read_bytes(server.pid())?;
        let top = self.reads(server, Pacing::Closed, seed)?;
        let read = disk_read_bytes(server.pid())? - before;
        let calm = self.reads(server, calm, seed)?;
        Ok(Round { top, calm, read_bytes: read as f64 / top.answers.max(1) as f64 })
    }

    /// Reads until the block cache and the page cache are as full as they will be.
    fn warm(&self, server: &ServerProcess) -> BenchResult<()> {
        let mut left = 3.0 * self.limit_bytes as f64;
        for seed in 100.. {
            let before = disk_read_bytes(server.pid())?;
            self.reads(server, Pacing::Closed, seed)?;
            let read = (disk_read_bytes(server.pid())? - before) as f64;
            left -= read;
            // Data that is entirely in memory cannot get warmer.
            if left <= 0.0 || read < self.limit_bytes as f64 / 1_000.0 || self.options.quick {
                break;
            }
        }
        Ok(())
    }

    fn reads(&self, server: &ServerProcess, pacing: Pacing, seed: u64) -> BenchResult<Sample> {
        measure(server, LAYOUT, self.options.seconds(), &[self.load(pacing, seed)])
    }

    fn load(&self, pacing: Pacing, seed: u64) -> Load {
        Load {
            operation: Operation::Get,
            connections: CONNECTIONS,
            pacing,
            keys: self.keys,
            value_bytes: VALUE_BYTES,
            seed,
        }
    }

    fn veche(&self) -> BenchResult<ConfinedServer> {
        let limit = self.limit("veche")?;
        let server = self.work_dir.veche_in_cgroup(&limit, VECHE, LAYOUT, &self.memory)?;
        Ok(ConfinedServer { server, _limit: limit })
    }

    fn rocks(&self, mode: usize) -> BenchResult<ConfinedServer> {
        let (_, threads, reads) = READ_MODES[mode];
        let limit = self.limit("rocks")?;
        let mut flags = vec!["serve".to_owned(), format!("--threads={threads}"), format!("--reads={reads}")];
        flags.extend(self.rocks_flags());
        let server = self.work_dir.other_in_cgroup(&limit, ROCKS, LAYOUT, &self.arguments.rocks, &flags)?;
        Ok(ConfinedServer { server, _limit: limit })
    }

    fn rocks_flags(&self) -> Vec<String> {
        let blocks = (!self.arguments.own_blocks).then(|| format!("--block-bytes={BLOCK_BYTES}"));
        std::iter::once(format!("--memory={}", self.memory)).chain(blocks).collect()
    }

    fn limit(&self, name: &str) -> BenchResult<MemoryLimit> {
        let made = MemoryLimit::new(&format!("bench-{name}"), self.limit_bytes);
        made.map_err(|error| format!("no memory cgroup: {error}; without one this measures nothing").into())
    }
}

fn add_rows(table: &mut ResultTable, [veche, rocks]: &[Vec<Round>; 2], calm: Pacing, note: &str) {
    let of = |rounds: &[Round], value: fn(&Round) -> f64| -> Vec<f64> { rounds.iter().map(value).collect() };
    let mut row = |measure: &str, target, [above, below]: [Vec<f64>; 2], unit: &str| {
        let [one, other] = [&above, &below].map(|values| median(values));
        // Data that is entirely in memory causes no disk reads, so the ratio is undefined.
        let value = ratio(&above, &below).filter(|ratio| ratio.median.is_finite());
        table.row(measure, target, value, format!("{unit}: {one:.1} / {other:.1}"));
    };
    let both = |value: fn(&Round) -> f64| [of(veche, value), of(rocks, value)];
    let [ours, theirs] = both(|round| round.top.cpu_us);
    row(
        "GET: requests/s, veche / RocksDB",
        Threshold::AtLeast(1.0),
        both(|round| round.top.per_second),
        &format!("{note}; 1/s"),
    );
    row("GET: CPU/request, RocksDB / veche", Threshold::None, [theirs, ours], "us");
    row("GET: bytes from disk, veche / RocksDB", Threshold::None, both(|round| round.read_bytes), "bytes");
    let at = format!("{calm:?}; us");
    row(
        "GET at half the slower's rate: p50, veche / RocksDB",
        Threshold::None,
        both(|round| round.calm.p50_us),
        &at,
    );
    row(
        "GET at half the slower's rate: p99, veche / RocksDB",
        Threshold::None,
        both(|round| round.calm.p99_us),
        &at,
    );
}
