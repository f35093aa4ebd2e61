//! Reads of much more data than memory, compared with RocksDB behind the same HTTP server.
//!
//! Both stores receive the same keys and values, settle, and are closed. Each is then opened in a
//! cgroup of its own that bounds all of its memory, page cache included. They are read in
//! interleaved rounds, while the other one is idle. RocksDB serves reads in the fastest of the ways
//! in [`READ_MODES`].
//!
//! **Caveats.** Values compress to half their size, so a gigabyte of data takes little more than
//! half of that on disk. Both block caches are sized by [`LargeArguments::memory`]; the rest of the
//! cgroup's memory is page cache.

use crate::comparison::ComparisonRunner;
use crate::comparisons::LARGE;
use crate::data::{drop_page_cache, require_free_space, store_in_batches, wait_until_settled};
use crate::measure::{BenchLoad, Sample, measure};
use crate::scrape::Scrape;
use crate::servers::{CpuLayout, WorkDir};
use crate::side::ComparedSide;
use crate::table::ResultTable;
use crate::tools::Tools;
use crate::{BenchResult, Options};
use bench::keys::KEY_LEN;
use bench::units::{bytes, parse_bytes};
use bench::{Operation, Pacing, StopFlag};
use lab::cgroup::ControlGroup;
use lab::process::{ServerProcess, disk_read_bytes};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const LAYOUT: CpuLayout = CpuLayout::PINNED;
const VECHE: &str = "large-veche";
const ROCKS: &str = "large-rocks";
const VALUE_BYTES: usize = 1024;
const CONNECTIONS: usize = 64;
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
pub(crate) struct LargeArguments {
    /// All memory of a store's process, page cache included [default: 2GiB]
    #[arg(long)]
    limit: Option<String>,
    /// `--memory` of veche, and the same division of it for RocksDB [default: 1GiB]
    #[arg(long)]
    memory: Option<String>,
    /// Use RocksDB's default size of data blocks instead of veche's
    #[arg(long)]
    own_blocks: bool,
    /// RocksDB behind HTTP [default: rocks-http beside this program]
    #[arg(long)]
    rocks: Option<PathBuf>,
}

/// Size of veche's data blocks, in bytes.
const BLOCK_BYTES: u32 = 16 << 10;

/// Constant parameters of the comparison.
struct LargeBench<'a> {
    options: &'a Options,
    arguments: &'a LargeArguments,
    work_dir: &'a WorkDir,
    rocks: &'a Path,
    limit_bytes: u64,
    memory: String,
    keys: u64,
}

/// A server in its cgroup. The server is dropped first: a cgroup that contains processes cannot be
/// removed.
struct ConfinedServer {
    server: ServerProcess,
    limit: ControlGroup,
}

/// Measures, and adds the rows.
pub(crate) fn rows(
    options: &Options,
    arguments: &LargeArguments,
    work_dir: &WorkDir,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let rocks = match &arguments.rocks {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("rocks-http"),
    };
    if !rocks.is_file() {
        return Err(format!("{} does not exist: build bench/compare first", rocks.display()).into());
    }
    let [limit, memory] = if options.quick { ["256MiB", "64MiB"] } else { ["2GiB", "1GiB"] };
    let bench = LargeBench {
        options,
        arguments,
        work_dir,
        rocks: &rocks,
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
    bench.warm(&veche.server)?;
    bench.warm(&rocks.server)?;
    // The groups are dropped after the servers.
    let (veche, _veche_limit) = (veche.server, veche.limit);
    let (rocks, _rocks_limit) = (rocks.server, rocks.limit);
    let sides = [
        ComparedSide::new("veche", "the latest value", vec![veche]),
        ComparedSide::new("RocksDB over HTTP", "the latest value", vec![rocks]),
    ];
    let cache = Scrape::of(sides[0].first())?.sum("veche_cache_bytes", "");
    table.note(format!("RocksDB: {}; veche's cache holds {}", READ_MODES[mode].0, bytes(cache)));
    let runner = ComparisonRunner { options, work_dir, tools: &Tools::default(), layout: LAYOUT };
    runner.run_on(&LARGE, &sides.map(Some), bench.keys, table)
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
        let (shell, args) = limit.command(self.rocks, &args);
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
            let top = self.reads(&rocks.server, 0)?;
            println!("  RocksDB, {name}: {:.0} GET/s, {:.1} us CPU", top.per_second, top.cpu_us);
            rates.push(top.per_second);
            drop(rocks);
            drop_page_cache(&self.work_dir.data(ROCKS))?;
        }
        let best = (0..READ_MODES.len()).max_by(|a, b| rates[*a].total_cmp(&rates[*b]));
        Ok(best.expect("there is at least one mode"))
    }

    /// Reads until the block cache and the page cache are as full as they will be.
    fn warm(&self, server: &ServerProcess) -> BenchResult<()> {
        let mut left = 3.0 * self.limit_bytes as f64;
        for seed in 100.. {
            let before = disk_read_bytes(server.pid())?;
            self.reads(server, seed)?;
            let read = (disk_read_bytes(server.pid())? - before) as f64;
            left -= read;
            // Data that is entirely in memory cannot get warmer.
            if left <= 0.0 || read < self.limit_bytes as f64 / 1_000.0 || self.options.quick {
                break;
            }
        }
        Ok(())
    }

    fn reads(&self, server: &ServerProcess, seed: u64) -> BenchResult<Sample> {
        let load = BenchLoad {
            operation: Operation::Get,
            connections: CONNECTIONS,
            pacing: Pacing::Closed,
            keys: self.keys,
            value_bytes: VALUE_BYTES,
            seed,
        };
        measure(server, LAYOUT, self.options.seconds(), &[load])
    }

    fn veche(&self) -> BenchResult<ConfinedServer> {
        let limit = self.limit("veche")?;
        let server = self.work_dir.veche_in_cgroup(&limit, VECHE, LAYOUT, &self.memory)?;
        Ok(ConfinedServer { server, limit })
    }

    fn rocks(&self, mode: usize) -> BenchResult<ConfinedServer> {
        let (_, threads, reads) = READ_MODES[mode];
        let limit = self.limit("rocks")?;
        let mut flags = vec!["serve".to_owned(), format!("--threads={threads}"), format!("--reads={reads}")];
        flags.extend(self.rocks_flags());
        let server = self.work_dir.other_in_cgroup(&limit, ROCKS, LAYOUT, self.rocks, &flags)?;
        Ok(ConfinedServer { server, limit })
    }

    fn rocks_flags(&self) -> Vec<String> {
        let blocks = (!self.arguments.own_blocks).then(|| format!("--block-bytes={BLOCK_BYTES}"));
        std::iter::once(format!("--memory={}", self.memory)).chain(blocks).collect()
    }

    fn limit(&self, name: &str) -> BenchResult<ControlGroup> {
        let made = ControlGroup::with_memory(&format!("bench-{name}"), self.limit_bytes);
        made.map_err(|error| format!("no memory cgroup: {error}; without one this measures nothing").into())
    }
}
