//! The other servers: command lines that give each its best performance with the stated guarantees.

use crate::BenchResult;
use crate::servers::{CpuLayout, WorkDir, free_address};
use crate::tools::Tool;
use bench::keys::KeyNumber;
use bench::values::{ValueGenerator, ValueSizes};
use bench::{Protocol, fetch};
use lab::process::ServerProcess;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// Backend quota. etcd's default of 2 GiB would end a long run, because it keeps every revision
/// until it is told to compact.
const ETCD_QUOTA_BYTES: u64 = 8 << 30;

/// Mode of Redis's append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendOnly {
    /// Synced before the response, once per event-loop iteration for all clients.
    Always,
    /// Written before the response; the operating system decides when to sync.
    Os,
    /// No append-only file.
    Off,
}

/// Starts Redis without snapshots. Its log is rewritten when it has doubled, as by default.
pub(crate) fn redis(
    work_dir: &WorkDir,
    tool: &Tool,
    layout: CpuLayout,
    name: &str,
    append_only: AppendOnly,
) -> BenchResult<ServerProcess> {
    let address = free_address()?;
    let dir = ensure_dir(&work_dir.data(name))?;
    let (is_on, fsync) = match append_only {
        AppendOnly::Always => ("yes", "always"),
        AppendOnly::Os => ("yes", "no"),
        AppendOnly::Off => ("no", "no"),
    };
    let port = address.port().to_string();
    let args = ["--port", &port, "--bind", "127.0.0.1", "--dir", &dir, "--save", ""];
    let args = [&args[..], &["--appendonly", is_on, "--appendfsync", fsync]].concat();
    let server = work_dir.spawn(name, &tool.path, &owned(&args), layout, address)?;
    work_dir.wait_for_other(server.with_graceful_end().with_protocol(Protocol::Resp), name, |address| {
        let ping = || -> std::io::Result<bool> {
            let mut socket = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
            socket.set_read_timeout(Some(PROBE_TIMEOUT))?;
            socket.write_all(b"PING\r\n")?;
            let mut answer = [0; 7];
            socket.read_exact(&mut answer)?;
            Ok(&answer == b"+PONG\r\n")
        };
        ping().unwrap_or(false)
    })
}

/// Starts nginx with a file per key, without an access log. Files and connections stay open.
pub(crate) fn nginx(
    work_dir: &WorkDir,
    tool: &Tool,
    layout: CpuLayout,
    name: &str,
    keys: u64,
    value_bytes: usize,
) -> BenchResult<ServerProcess> {
    let address = free_address()?;
    let dir = fs::canonicalize(ensure_dir(&work_dir.data(name))?)?;
    let files = dir.join("files");
    fs::create_dir(&files)?;
    let values = ValueGenerator::standard(ValueSizes::Fixed(value_bytes));
    let mut value = Vec::new();
    for key in (0..keys).map(KeyNumber) {
        value.clear();
        values.append(key, &mut value);
        fs::write(files.join(String::from_utf8_lossy(&key.stored_key()).as_ref()), &value)?;
    }
    let configuration = dir.join("nginx.conf");
    fs::write(&configuration, nginx_configuration(&dir, address, layout.server_threads, keys))?;
    let dir = dir.display().to_string();
    let errors = format!("{dir}/error.log");
    let args = ["-p", &dir, "-e", &errors, "-c", &configuration.display().to_string()];
    let server = work_dir.spawn(name, &tool.path, &owned(&args), layout, address)?;
    work_dir.wait_for_other(server.with_graceful_end().with_protocol(Protocol::Files), name, |address| {
        fetch(address, "GET", "/0000000000000000", b"", PROBE_TIMEOUT)
            .is_ok_and(|answer| answer.status == 200)
    })
}

fn nginx_configuration(dir: &Path, address: SocketAddr, workers: usize, files: u64) -> String {
    let dir = dir.display();
    // By default the workers of root run as a user who may not read the directory.
    let user = if rustix::process::getuid().is_root() { "user root;\n" } else { "" };
    let open_files = 2 * files;
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|of| format!("    {of}_temp_path {dir}/{of};\n"))
        .concat();
    format!(
        "daemon off;
{user}pid {dir}/pid;
worker_processes {workers};
worker_rlimit_nofile 65536;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    open_file_cache max={open_files} inactive=1h;
    open_file_cache_valid 1h;
    default_type application/octet-stream;
{temporary}    server {{
        listen {address};
        root {dir}/files;
    }}
}}
"
    )
}

/// Starts an etcd cluster, and waits until all nodes serve.
pub(crate) fn etcd(
    work_dir: &WorkDir,
    tool: &Tool,
    layout: CpuLayout,
    name: &str,
    nodes: usize,
) -> BenchResult<Vec<ServerProcess>> {
    let addresses = || (0..nodes).map(|_| free_address()).collect::<BenchResult<Vec<_>>>();
    let (clients, peers) = (addresses()?, addresses()?);
    let member = |node: usize| format!("{name}-{node}");
    let cluster: Vec<String> =
        peers.iter().enumerate().map(|(node, peer)| format!("{}=http://{peer}", member(node))).collect();
    let mut servers = Vec::new();
    for (node, (client, peer)) in clients.into_iter().zip(peers).enumerate() {
        let started = EtcdMember { name: member(node), client, peer };
        servers.push((started.spawn(work_dir, tool, layout, &cluster.join(","), "new")?, started.name));
    }
    servers.into_iter().map(|(server, member)| wait_for_etcd(work_dir, server, &member)).collect()
}

/// A member of an etcd cluster.
#[derive(Clone, Debug)]
pub(crate) struct EtcdMember {
    pub(crate) name: String,
    /// Address for clients.
    pub(crate) client: SocketAddr,
    /// Address for the other members.
    pub(crate) peer: SocketAddr,
}

impl EtcdMember {
    /// Starts the member, without waiting for it. `cluster` has the names and URLs of all members,
    /// `state` is `new` or `existing`.
    pub(crate) fn spawn(
        &self,
        work_dir: &WorkDir,
        tool: &Tool,
        layout: CpuLayout,
        cluster: &str,
        state: &str,
    ) -> BenchResult<ServerProcess> {
        let Self { name, client, peer } = self;
        let args = [
            ("name", name.clone()),
            ("data-dir", work_dir.data(name).display().to_string()),
            ("listen-client-urls", format!("http://{client}")),
            ("advertise-client-urls", format!("http://{client}")),
            ("listen-peer-urls", format!("http://{peer}")),
            ("initial-advertise-peer-urls", format!("http://{peer}")),
            ("initial-cluster", cluster.to_owned()),
            ("initial-cluster-state", state.to_owned()),
            ("quota-backend-bytes", ETCD_QUOTA_BYTES.to_string()),
            ("log-level", "warn".to_owned()),
        ];
        let args = args.map(|(flag, value)| format!("--{flag}={value}"));
        Ok(work_dir.spawn(name, &tool.path, &args, layout, *client)?.with_graceful_end())
    }
}

fn wait_for_etcd(work_dir: &WorkDir, server: ServerProcess, member: &str) -> BenchResult<ServerProcess> {
    work_dir.wait_for_other(server, member, |address| {
        fetch(address, "GET", "/health", b"", PROBE_TIMEOUT).is_ok_and(|answer| answer.status == 200)
    })
}

/// The leader of the etcd nodes. Another node would forward each write to it.
pub(crate) fn leader(nodes: &[ServerProcess]) -> BenchResult<&ServerProcess> {
    const LEADS: &[u8] = b"\netcd_server_is_leader 1\n";
    for node in nodes {
        let metrics = fetch(node.address(), "GET", "/metrics", b"", PROBE_TIMEOUT)?.body;
        if metrics.windows(LEADS.len()).any(|window| window == LEADS) {
            return Ok(node);
        }
    }
    Err("none of etcd's nodes leads".into())
}

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

fn ensure_dir(dir: &Path) -> BenchResult<String> {
    fs::create_dir_all(dir)?;
    Ok(dir.display().to_string())
}
