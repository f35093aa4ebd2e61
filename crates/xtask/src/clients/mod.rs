//! `cargo xtask clients`: HTTP clients that people use hold the same conversation with a node, directly, behind nginx and
//! behind HAProxy.
//!
//! The conversation and the programs are in `bench/clients`, one for each client, with the configuration of the proxies.
//! Each program reports its steps; a step that it neither reports nor declares impossible is a failure, as is a
//! program that opens a connection for each request where it says that it keeps one.
//!
//! Needs the programs that [`programs`] names. A client or proxy that cannot be had fails the run, unless `--skip NAME`
//! names it. Everything listens on loopback, on free ports, and ends after [`PATIENCE`].

mod process;
mod programs;
mod route;

use process::{Outcome, Service, free_address, output_of, until};
use programs::{Program, STEPS};
use route::Route;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

pub(crate) const USAGE: &str = "--skip NAME,... --only NAME,...";

/// The longest time that one program may take, and one service to start.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest time for a build of a program or of the node.
const BUILD_PATIENCE: Duration = Duration::from_secs(900);
/// The connections that a program may open in a whole conversation without being suspected of opening one for each of
/// the 100 requests of its last step.
const CONNECTIONS_MAX: u64 = 60;

pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    match Choice::parse(arguments).and_then(|choice| check(&choice)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("clients: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Which programs and routes are wanted.
#[derive(Default)]
struct Choice {
    skipped: Vec<String>,
    /// Empty: all.
    only: Vec<String>,
}

impl Choice {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut choice = Self::default();
        while let Some(flag) = arguments.next() {
            let names = arguments.next().ok_or_else(|| format!("{flag} needs names; usage: {USAGE}"))?;
            let names = names.split(',').map(str::to_owned);
            match &flag[..] {
                "--skip" => choice.skipped.extend(names),
                "--only" => choice.only.extend(names),
                _ => return Err(format!("{flag} is not known; usage: {USAGE}")),
            }
        }
        let known: Vec<&str> = programs::names().chain(Route::ALL.iter().map(|route| route.name())).collect();
        let mut named = choice.skipped.iter().chain(&choice.only);
        match named.find(|name| !known.contains(&&name[..])) {
            Some(name) => Err(format!("{name} is not known; known are {}", known.join(", "))),
            None => Ok(choice),
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

/// Where things are.
struct Places {
    /// `bench/clients`.
    sources: PathBuf,
    /// For what is built; kept between runs.
    built: PathBuf,
    /// For this run alone.
    dir: PathBuf,
}

impl Places {
    fn make() -> Outcome<Self> {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        let absolute =
            |path: PathBuf| std::path::absolute(path).map_err(|error| format!("no such place: {error}"));
        let places = Self {
            sources: absolute(PathBuf::from("bench/clients"))?,
            built: absolute(target.join("clients"))?,
            dir: std::env::temp_dir().join(format!("veche-clients-{}", std::process::id())),
        };
        for dir in [&places.built, &places.dir] {
            std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        Ok(places)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn check(choice: &Choice) -> Outcome {
    let places = Places::make()?;
    let programs = prepare(choice, &places)?;
    let (node, address) = start_node(&places)?;
    let routes = Route::ALL.into_iter().filter(|route| choice.wants_route(*route));
    let routes =
        routes.map(|route| Ok((route, route.start(&places, address)?))).collect::<Outcome<Vec<_>>>()?;
    let mut failures = Vec::new();
    for (route, proxy) in &routes {
        for program in &programs {
            match converse(program, *route, proxy.as_ref().map_or(address, |proxy| proxy.address), address) {
                Ok(told) => println!("{:<9} {:<8} {told}", program.name, route.name()),
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

/// Builds what is wanted, and names all that cannot be had.
fn prepare(choice: &Choice, places: &Places) -> Outcome<Vec<Program>> {
    let (mut ready, mut missing) = (Vec::new(), Vec::new());
    for name in programs::names().filter(|name| choice.wants_program(name)) {
        match Program::prepare(name, places) {
            Ok(program) => ready.push(program),
            Err(error) => missing.push(format!("{name}: {error}")),
        }
    }
    for route in Route::ALL.into_iter().filter(|route| choice.wants_route(*route)) {
        if let Err(error) = route.find() {
            missing.push(format!("{}: {error}", route.name()));
        }
    }
    if missing.is_empty() {
        return Ok(ready);
    }
    Err(format!("these cannot be had; install them, or leave them out by --skip:\n{}", missing.join("\n")))
}

fn start_node(places: &Places) -> Outcome<(Service, SocketAddr)> {
    let mut build = Command::new("cargo");
    build.args(["build", "--locked", "--package", "veche"]);
    output_of(&mut build, BUILD_PATIENCE)?;
    let binary = places.built.with_file_name("debug").join("veche");
    let address = free_address()?;
    let mut command = Command::new(binary);
    command.args(["serve", "--listen", &address.to_string(), "--log", "warn", "--memory", "128MiB"]);
    command.arg("--data").arg(places.dir.join("node"));
    let node = Service::start(&mut command)?;
    until("the node serves", PATIENCE, || {
        process::status_of(address, "/v0/status").is_some_and(|code| code == 200)
    })?;
    Ok((node, address))
}

/// One program, one way. Returns what it said in short.
fn converse(program: &Program, route: Route, at: SocketAddr, node: SocketAddr) -> Outcome<String> {
    let before = accepted_connections(node)?;
    let prefix = format!("{}-{}", program.name, route.name());
    let mut command = program.command();
    command.arg(format!("http://{at}")).arg(prefix);
    let said = output_of(&mut command, PATIENCE)?;
    let connections = accepted_connections(node)? - before;
    let steps: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("ok ")).collect();
    let cannot: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("cannot ")).collect();
    let is_declared = |step: &str| cannot.iter().any(|line| line.starts_with(&format!("{step}: ")));
    if let Some(step) = STEPS.iter().find(|step| !steps.contains(*step) && !is_declared(step)) {
        return Err(format!("the step {step} is neither passed nor declared impossible:\n{said}"));
    }
    let keeps_alive = route == Route::Direct && program.is_one_process && steps.contains(&"keep_alive");
    if keeps_alive && connections > CONNECTIONS_MAX {
        return Err(format!("{connections} connections were opened, of which few would have been needed"));
    }
    let without =
        if cannot.is_empty() { String::new() } else { format!("; cannot {}", cannot.join("; cannot ")) };
    Ok(format!("{} steps, {connections} connections to the node{without}", steps.len()))
}

/// Connections of clients that the node has accepted since its start.
fn accepted_connections(node: SocketAddr) -> Outcome<u64> {
    let metrics = process::get(node, "/metrics").ok_or("the node does not tell its metrics")?;
    let line = metrics.lines().find_map(|line| line.strip_prefix("veche_connections_accepted_total "));
    line.and_then(|number| number.trim().parse().ok())
        .ok_or_else(|| "the node counts no connections".to_owned())
}

/// The path of a program that must be there.
fn find_program(name: &str) -> Outcome<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps servers where ordinary users do not look.
    let dirs = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let mut files = dirs.map(|dir| dir.join(name));
    files.find(|file| Path::is_file(file)).ok_or_else(|| format!("the program {name} is not installed"))
}
