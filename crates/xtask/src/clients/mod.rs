//! `cargo xtask clients`: common HTTP clients hold the same conversation with a node, directly,
//! behind nginx and behind HAProxy.
//!
//! `bench/clients` contains the conversation, with one program per client, and the configuration of
//! the proxies. Each program reports its steps. A step that a program neither reports nor declares
//! impossible is a failure. A program that claims to reuse its connection, and opens one per
//! request, is a failure too.
//!
//! The command needs the programs that [`programs`] names. A missing client or proxy fails the run,
//! unless `--skip NAME` names it. All processes listen on free loopback ports, and end after
//! [`TIMEOUT`].

mod process;
mod programs;
mod route;

use process::{ProcessResult, ServiceProcess, free_address, output_of, until};
use programs::{Program, STEPS};
use route::Route;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

pub(crate) const USAGE: &str = "--skip NAME,... --only NAME,...";

/// Timeout of one program, and of the start of one service.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of the build of a program or of the node.
const BUILD_TIMEOUT: Duration = Duration::from_secs(900);
/// Maximum number of connections in one conversation of a program that reuses connections. Its last
/// step alone makes 100 requests.
const CONNECTIONS_MAX: u64 = 60;

pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    match Selection::parse(arguments).and_then(|selection| check(&selection)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("clients: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The selected programs and routes.
#[derive(Default)]
struct Selection {
    skipped: Vec<String>,
    /// Empty selects all.
    only: Vec<String>,
}

impl Selection {
    fn parse(mut arguments: impl Iterator<Item = String>) -> ProcessResult<Self> {
        let mut selection = Self::default();
        while let Some(flag) = arguments.next() {
            let names = arguments.next().ok_or_else(|| format!("{flag} needs names; usage: {USAGE}"))?;
            let names = names.split(',').map(str::to_owned);
            match &flag[..] {
                "--skip" => selection.skipped.extend(names),
                "--only" => selection.only.extend(names),
                _ => return Err(format!("{flag} is not known; usage: {USAGE}")),
            }
        }
        let known: Vec<&str> = programs::names().chain(Route::ALL.iter().map(|route| route.name())).collect();
        let mut named = selection.skipped.iter().chain(&selection.only);
        match named.find(|name| !known.contains(&&name[..])) {
            Some(name) => Err(format!("{name} is not known; known are {}", known.join(", "))),
            None => Ok(selection),
        }
    }

    fn wants_program(&self, name: &str) -> bool {
        let is_only = |name: &str| self.only.iter().any(|only| only == name);
        let names_programs = programs::names().any(is_only);
        !self.skipped.iter().any(|skipped| skipped == name) && (!names_programs || is_only(name))
    }

    fn wants_route(&self, route: Route) -> bool {
        let is_only = |route: &Route| self.only.iter().any(|only| only == route.name());
        let names_routes = Route::ALL.iter().any(is_only);
        !self.skipped.iter().any(|skipped| skipped == route.name()) && (!names_routes || is_only(&route))
    }
}

/// Directories of the run.
struct Directories {
    /// `bench/clients`.
    sources: PathBuf,
    /// Build output, kept between runs.
    built: PathBuf,
    /// Temporary directory of this run.
    dir: PathBuf,
}

impl Directories {
    fn make() -> ProcessResult<Self> {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        let absolute =
            |path: PathBuf| std::path::absolute(path).map_err(|error| format!("no such place: {error}"));
        let directories = Self {
            sources: absolute(PathBuf::from("bench/clients"))?,
            built: absolute(target.join("clients"))?,
            dir: std::env::temp_dir().join(format!("veche-clients-{}", std::process::id())),
        };
        for dir in [&directories.built, &directories.dir] {
            std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        Ok(directories)
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn check(selection: &Selection) -> ProcessResult {
    let directories = Directories::make()?;
    let programs = prepare(selection, &directories)?;
    let (node, address) = start_node(&directories)?;
    let routes = Route::ALL.into_iter().filter(|route| selection.wants_route(*route));
    let routes = routes
        .map(|route| Ok((route, route.start(&directories, address)?)))
        .collect::<ProcessResult<Vec<_>>>()?;
    let mut failures = Vec::new();
    for (route, proxy) in &routes {
        for program in &programs {
            match converse(program, *route, proxy.as_ref().map_or(address, |proxy| proxy.address), address) {
                Ok(summary) => println!("{:<9} {:<8} {summary}", program.name, route.name()),
                Err(error) => {
                    println!("{:<9} {:<8} FAILED", program.name, route.name());
                    failures.push(format!("{} {}: {error}", program.name, route.name()));
                }
            }
        }
    }
    drop((routes, node));
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Builds the selected programs. The error lists all missing clients and proxies.
fn prepare(selection: &Selection, directories: &Directories) -> ProcessResult<Vec<Program>> {
    let (mut ready, mut missing) = (Vec::new(), Vec::new());
    for name in programs::names().filter(|name| selection.wants_program(name)) {
        match Program::prepare(name, directories) {
            Ok(program) => ready.push(program),
            Err(error) => missing.push(format!("{name}: {error}")),
        }
    }
    for route in Route::ALL.into_iter().filter(|route| selection.wants_route(*route)) {
        if let Err(error) = route.find() {
            missing.push(format!("{}: {error}", route.name()));
        }
    }
    if missing.is_empty() {
        return Ok(ready);
    }
    Err(format!("these cannot be had; install them, or leave them out by --skip:\n{}", missing.join("\n")))
}

fn start_node(directories: &Directories) -> ProcessResult<(ServiceProcess, SocketAddr)> {
    let mut build = Command::new("cargo");
    build.args(["build", "--locked", "--package", "veche"]);
    output_of(&mut build, BUILD_TIMEOUT)?;
    let binary = directories.built.with_file_name("debug").join("veche");
    let address = free_address()?;
    let mut command = Command::new(binary);
    command.args(["serve", "--listen", &address.to_string(), "--log", "warn", "--memory", "128MiB"]);
    command.arg("--data").arg(directories.dir.join("node"));
    let node = ServiceProcess::start(&mut command)?;
    until("the node serves", TIMEOUT, || {
        process::status_of(address, "/v0/status").is_some_and(|code| code == 200)
    })?;
    Ok((node, address))
}

/// Runs one program over one route. Returns a summary of its output.
fn converse(program: &Program, route: Route, at: SocketAddr, node: SocketAddr) -> ProcessResult<String> {
    let before = accepted_connections(node)?;
    let prefix = format!("{}-{}", program.name, route.name());
    let mut command = program.command();
    command.arg(format!("http://{at}")).arg(prefix);
    let output = output_of(&mut command, TIMEOUT)?;
    let connections = accepted_connections(node)? - before;
    let steps: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix("ok ")).collect();
    let cannot: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix("cannot ")).collect();
    let is_declared = |step: &str| cannot.iter().any(|line| line.starts_with(&format!("{step}: ")));
    if let Some(step) = STEPS.iter().find(|step| !steps.contains(*step) && !is_declared(step)) {
        return Err(format!("the step {step} is neither passed nor declared impossible:\n{output}"));
    }
    let keeps_alive = route == Route::Direct && program.is_one_process && steps.contains(&"keep_alive");
    if keeps_alive && connections > CONNECTIONS_MAX {
        return Err(format!("{connections} connections were opened, of which few would have been needed"));
    }
    let without =
        if cannot.is_empty() { String::new() } else { format!("; cannot {}", cannot.join("; cannot ")) };
    Ok(format!("{} steps, {connections} connections to the node{without}", steps.len()))
}

/// Client connections that the node has accepted since its start.
fn accepted_connections(node: SocketAddr) -> ProcessResult<u64> {
    let metrics = process::get(node, "/metrics").ok_or("the node does not tell its metrics")?;
    let line = metrics.lines().find_map(|line| line.strip_prefix("veche_connections_accepted_total "));
    line.and_then(|number| number.trim().parse().ok())
        .ok_or_else(|| "the node counts no connections".to_owned())
}

/// Finds the path of an installed program.
fn find_program(name: &str) -> ProcessResult<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian installs servers outside of the `PATH` of ordinary users.
    let dirs = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let mut files = dirs.map(|dir| dir.join(name));
    files.find(|file| Path::is_file(file)).ok_or_else(|| format!("the program {name} is not installed"))
}
