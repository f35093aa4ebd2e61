//! Servers under test: their command lines, data directories, start and end.

use crate::{BenchResult, Options};
use bench::fetch;
use lab::cgroup::ControlGroup;
use lab::process::ServerProcess;
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

/// Ports outside the ephemeral range.
const LASTING_PORTS: Range<u16> = 20_000..32_000;
const READY_WITHIN: Duration = Duration::from_secs(60);
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Assignment of cores and threads to the server and the generator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuLayout {
    pub(crate) title: &'static str,
    pub(crate) server_cores: &'static [usize],
    pub(crate) server_threads: usize,
    pub(crate) generator_cores: &'static [usize],
    pub(crate) generator_threads: usize,
}

impl CpuLayout {
    /// One I/O thread on core 0, the generator on core 1.
    pub(crate) const PINNED: Self = Self {
        title: "pinned: server on core 0 with one I/O thread, generator on core 1",
        server_cores: &[0],
        server_threads: 1,
        generator_cores: &[1],
        generator_threads: 1,
    };
    /// Two threads each, placed by the kernel.
    pub(crate) const UNPINNED: Self = Self {
        title: "unpinned: two I/O threads, two generator threads",
        server_cores: &[],
        server_threads: 2,
        generator_cores: &[],
        generator_threads: 2,
    };
}

/// Condition for acknowledging a write of veche.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    Sync,
    Os,
}

impl Durability {
    /// Value of `--durability`.
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Os => "os",
        }
    }
}

/// A node of a cluster, with the arguments of each of its starts.
#[derive(Clone, Debug)]
pub(crate) struct NodeSpec {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) args: Vec<String>,
}

/// Temporary directory of this run, with the programs under test. The directory is removed when
/// this is dropped.
#[derive(Debug)]
pub(crate) struct WorkDir {
    dir: PathBuf,
    veche: PathBuf,
    bare_hyper: PathBuf,
}

impl WorkDir {
    pub(crate) fn create(options: &Options) -> BenchResult<Self> {
        let dir = options.dir.join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&dir).map_err(|error| format!("{} cannot be made: {error}", dir.display()))?;
        let veche = program(options.veche.as_deref(), "veche")?;
        let bare_hyper = program(options.bare_hyper.as_deref(), "bare-hyper")?;
        Ok(Self { dir, veche, bare_hyper })
    }

    /// Starts bare hyper with these flags.
    pub(crate) fn bare_hyper(&self, layout: CpuLayout, flags: &[String]) -> BenchResult<ServerProcess> {
        let address = free_address()?;
        let mut args = vec!["--listen".to_owned(), address.to_string(), threads(layout)];
        args.extend_from_slice(flags);
        self.start("bare-hyper", &self.bare_hyper, &args, layout, address)
    }

    /// Starts veche on the data directory `name`, which may exist already.
    pub(crate) fn veche(
        &self,
        name: &str,
        layout: CpuLayout,
        durability: Durability,
        memory: Option<&str>,
    ) -> BenchResult<ServerProcess> {
        self.veche_with(name, layout, durability, memory, &[])
    }

    /// Starts veche as [`WorkDir::veche`] does, with further flags.
    pub(crate) fn veche_with(
        &self,
        name: &str,
        layout: CpuLayout,
        durability: Durability,
        memory: Option<&str>,
        flags: &[String],
    ) -> BenchResult<ServerProcess> {
        let (address, args) = self.veche_args(name, layout, durability, memory, flags)?;
        self.start(name, &self.veche, &args, layout, address)
    }

    /// Starts veche with default settings: only the address and the data directory are given.
    pub(crate) fn veche_with_defaults(
        &self,
        name: &str,
        data: &Path,
        layout: CpuLayout,
    ) -> BenchResult<ServerProcess> {
        let address = free_address()?;
        let args = ["serve".to_owned(), format!("--listen={address}"), format!("--data={}", data.display())];
        self.start(name, &self.veche, &args, layout, address)
    }

    /// Starts veche as [`WorkDir::veche`] does, inside a cgroup.
    pub(crate) fn veche_in_cgroup(
        &self,
        limit: &ControlGroup,
        name: &str,
        layout: CpuLayout,
        memory: &str,
    ) -> BenchResult<ServerProcess> {
        let (address, args) = self.veche_args(name, layout, Durability::Sync, Some(memory), &[])?;
        let (shell, args) = limit.command(&self.veche, &args);
        self.start(name, &shell, &args, layout, address)
    }

    /// Starts another server that accepts `--listen` and `--data`, inside a cgroup.
    pub(crate) fn other_in_cgroup(
        &self,
        limit: &ControlGroup,
        name: &str,
        layout: CpuLayout,
        program: &Path,
        flags: &[String],
    ) -> BenchResult<ServerProcess> {
        let address = free_address()?;
        let place = [format!("--listen={address}"), format!("--data={}", self.data(name).display())];
        let (shell, args) = limit.command(program, &[flags, &place].concat());
        self.start(name, &shell, &args, layout, address)
    }

    fn veche_args(
        &self,
        name: &str,
        layout: CpuLayout,
        durability: Durability,
        memory: Option<&str>,
        flags: &[String],
    ) -> BenchResult<(SocketAddr, Vec<String>)> {
        let address = free_address()?;
        let data = self.data(name);
        let mut args = vec!["serve".to_owned(), "--listen".to_owned(), address.to_string(), threads(layout)];
        args.push(format!("--data={}", data.display()));
        args.push(format!("--durability={}", durability.flag()));
        args.extend(memory.map(|memory| format!("--memory={memory}")));
        args.extend_from_slice(flags);
        Ok((address, args))
    }

    /// Starts a cluster of new nodes, and waits until all of them serve.
    pub(crate) fn cluster(
        &self,
        name: &str,
        nodes: usize,
        layout: CpuLayout,
        durability: Durability,
        memory: &str,
    ) -> BenchResult<Vec<ServerProcess>> {
        let addresses = (0..nodes).map(|_| free_address()).collect::<BenchResult<Vec<_>>>()?;
        let node_specs = self.node_specs(name, addresses, layout, durability, memory);
        let spawned =
            node_specs.into_iter().map(|member| Ok((self.spawn_node(&member, layout)?, member.name)));
        let spawned = spawned.collect::<BenchResult<Vec<_>>>()?;
        spawned.into_iter().map(|(server, name)| self.ready(server, &name)).collect()
    }

    /// Specifications of the nodes of a cluster. No node is started.
    pub(crate) fn node_specs(
        &self,
        name: &str,
        addresses: Vec<SocketAddr>,
        layout: CpuLayout,
        durability: Durability,
        memory: &str,
    ) -> Vec<NodeSpec> {
        let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
        let origin = format!("--cluster={}", urls.join(","));
        let node = |(i, address)| {
            self.node_spec(&format!("{name}-{i}"), address, &origin, layout, durability, memory)
        };
        addresses.into_iter().enumerate().map(node).collect()
    }

    /// Specification of a node that joins the cluster of `member`. It is not started.
    pub(crate) fn joining_spec(
        &self,
        name: &str,
        address: SocketAddr,
        member: SocketAddr,
        layout: CpuLayout,
        durability: Durability,
        memory: &str,
    ) -> NodeSpec {
        self.node_spec(name, address, &format!("--join=http://{member}"), layout, durability, memory)
    }

    /// Specification of a node. `origin` is the flag by which it knows its cluster.
    fn node_spec(
        &self,
        name: &str,
        address: SocketAddr,
        origin: &str,
        layout: CpuLayout,
        durability: Durability,
        memory: &str,
    ) -> NodeSpec {
        let mut args = vec!["serve".to_owned(), "--listen".to_owned(), address.to_string()];
        args.extend([threads(layout), origin.to_owned()]);
        args.push(format!("--data={}", self.data(name).display()));
        args.push(format!("--durability={}", durability.flag()));
        args.push(format!("--memory={memory}"));
        NodeSpec { name: name.to_owned(), address, args }
    }

    /// Starts a node of a cluster, without waiting for it.
    pub(crate) fn spawn_node(&self, member: &NodeSpec, layout: CpuLayout) -> BenchResult<ServerProcess> {
        self.spawn(&member.name, &self.veche, &member.args, layout, member.address)
    }

    fn start(
        &self,
        name: &str,
        program: &Path,
        args: &[String],
        layout: CpuLayout,
        address: SocketAddr,
    ) -> BenchResult<ServerProcess> {
        self.ready(self.spawn(name, program, args, layout, address)?, name)
    }

    /// Starts a server, without waiting for it.
    pub(crate) fn spawn(
        &self,
        name: &str,
        program: &Path,
        args: &[String],
        layout: CpuLayout,
        address: SocketAddr,
    ) -> BenchResult<ServerProcess> {
        println!("  starting {} {} on cores {:?}", program.display(), args.join(" "), layout.server_cores);
        Ok(ServerProcess::spawn(program, args, layout.server_cores, &self.log(name), address)?)
    }

    fn ready(&self, server: ServerProcess, name: &str) -> BenchResult<ServerProcess> {
        self.ready_when(server, name, |server| server.wait_until_ready(READY_WITHIN))
    }

    /// Waits until `is_ready` returns `true` for another kind of server.
    pub(crate) fn wait_for_other(
        &self,
        server: ServerProcess,
        name: &str,
        is_ready: impl Fn(SocketAddr) -> bool,
    ) -> BenchResult<ServerProcess> {
        self.ready_when(server, name, |server| server.wait_until(READY_WITHIN, is_ready))
    }

    fn ready_when(
        &self,
        mut server: ServerProcess,
        name: &str,
        wait: impl FnOnce(&mut ServerProcess) -> io::Result<Duration>,
    ) -> BenchResult<ServerProcess> {
        wait(&mut server).map_err(|error| {
            let said = fs::read_to_string(self.log(name)).unwrap_or_default();
            format!("{name}: {error}\n{said}")
        })?;
        Ok(server)
    }

    /// Path of the veche program.
    pub(crate) fn program(&self) -> &Path {
        &self.veche
    }

    /// Directory of this run.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Data directory of the node `name`.
    pub(crate) fn data(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// File to which the node `name` logs.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("{} cannot be removed: {error}", self.dir.display());
        }
    }
}

fn threads(layout: CpuLayout) -> String {
    format!("--threads={}", layout.server_threads)
}

fn program(given: Option<&Path>, name: &str) -> BenchResult<PathBuf> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name(name),
    };
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!("{} is not there: build it first", path.display()).into())
    }
}

/// An address that was free a moment ago.
pub(crate) fn free_address() -> BenchResult<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Addresses whose ports stay free while their nodes are down.
pub(crate) fn lasting_addresses(count: usize) -> BenchResult<Vec<SocketAddr>> {
    let Range { start, end } = LASTING_PORTS;
    let first = start + (std::process::id() % u32::from(end - start)) as u16;
    let free = (first..end).chain(start..first).filter_map(|port| {
        TcpListener::bind(("127.0.0.1", port)).ok().and_then(|listener| listener.local_addr().ok())
    });
    let free: Vec<SocketAddr> = free.take(count).collect();
    if free.len() == count { Ok(free) } else { Err("there are no free ports".into()) }
}

/// Fetches `/v0/status`; `null` if it is not JSON.
pub(crate) fn status(server: &ServerProcess) -> BenchResult<Value> {
    let answer = fetch(server.address(), "GET", "/v0/status", b"", STATUS_TIMEOUT)?;
    Ok(serde_json::from_slice(&answer.body).unwrap_or(Value::Null))
}

/// Number at a dotted path in `status`.
pub(crate) fn number_at(status: &Value, path: &str) -> Option<f64> {
    path.split('.').try_fold(status, |value, name| value.get(name))?.as_f64()
}

/// All numbers in `status` whose path contains one of `words`, with their paths.
pub(crate) fn numbers_about(status: &Value, words: &[&str]) -> Vec<(String, f64)> {
    let mut found = Vec::new();
    collect("", status, &mut found);
    found.retain(|(path, _)| words.iter().any(|word| path.contains(word)));
    found
}

fn collect(path: &str, value: &Value, found: &mut Vec<(String, f64)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect(&path, value, found);
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                collect(&format!("{path}.{i}"), item, found);
            }
        }
        Value::Number(number) => found.extend(number.as_f64().map(|number| (path.to_owned(), number))),
        _ => {}
    }
}
