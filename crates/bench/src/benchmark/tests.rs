use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reaction of a test server to its n-th request.
type Behaviour = fn(u64) -> Reaction;

enum Reaction {
    Answer(&'static str),
    HangUp,
}

const OK: Reaction = Reaction::Answer("200 OK");

/// Starts a server whose threads end with their connections.
fn server(behaviour: Behaviour) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let count = Arc::new(AtomicU64::new(0));
        for socket in listener.incoming().flatten() {
            let count = Arc::clone(&count);
            std::thread::spawn(move || serve(&socket, behaviour, &count));
        }
    });
    address
}

fn serve(mut socket: &TcpStream, behaviour: Behaviour, count: &AtomicU64) -> Option<()> {
    let mut reader = BufReader::new(socket);
    loop {
        let (mut line, mut length, mut is_load) = (String::new(), 0, true);
        while line != "\r\n" {
            line.clear();
            (reader.read_line(&mut line).ok()? > 0).then_some(())?;
            is_load &= !line.starts_with("GET /v0/status");
            length =
                line.strip_prefix("Content-Length: ").map_or(length, |text| text.trim().parse().unwrap());
        }
        reader.read_exact(&mut vec![0; length]).ok()?;
        let reaction = if is_load { behaviour(count.fetch_add(1, Ordering::Relaxed)) } else { OK };
        match reaction {
            Reaction::Answer(status) => {
                let answer = format!("HTTP/1.1 {status}\r\nServer: test/1\r\nContent-Length: 3\r\n\r\nabc");
                socket.write_all(answer.as_bytes()).ok()?;
            }
            Reaction::HangUp => return None,
        }
    }
}

fn plan(addresses: &[SocketAddr]) -> BenchPlan {
    BenchPlan {
        name: "test".to_owned(),
        command: "veche bench".to_owned(),
        version: "0".to_owned(),
        published: None,
        targets: addresses.iter().copied().map(Target::from).collect(),
        connections: 4,
        threads: 2,
        cores: Vec::new(),
        pacing: Pacing::Rate(1_000),
        burst: Duration::ZERO,
        workload: WorkloadSpec { keys: 100, ..WorkloadSpec::default() },
        preload: None,
        warmup: Duration::from_millis(100),
        duration: Some(Duration::from_millis(300)),
        requests: None,
        verify: false,
        search: None,
        pids: Vec::new(),
    }
}

fn run(plan: &BenchPlan) -> Report {
    benchmark(plan, &StopFlag::default(), &mut Console::new(true)).unwrap()
}

/// Number of responses and failures.
fn counted(report: &Report) -> u64 {
    report.run.statuses.values().chain(report.run.failures.values()).sum()
}

#[test]
fn every_slot_of_a_rate_is_accounted_for_with_any_server() {
    let behaviours: [Behaviour; 3] = [
        |_| OK,
        |i| Reaction::Answer(if i % 3 == 0 { "503 Busy" } else { "507 Full" }),
        |i| if i % 5 == 4 { Reaction::HangUp } else { OK },
    ];
    for behaviour in behaviours {
        let report = run(&plan(&[server(behaviour)]));
        assert_eq!(counted(&report), 300, "{:?}", report.run);
        assert_eq!(report.servers[0].software, "test/1");
    }
}

#[test]
fn refusals_and_broken_connections_are_counted_separately() {
    let report =
        run(&plan(&[server(|i| if i % 2 == 0 { Reaction::HangUp } else { Reaction::Answer("503 Busy") })]));
    assert!(report.run.statuses.keys().eq(&[503]), "{:?}", report.run);
    assert!(report.run.failures.contains_key(&crate::recorder::Failure::Broken), "{:?}", report.run);
    assert_eq!(report.run.errors(), 300);
}

#[test]
fn all_targets_get_their_share() {
    let good = server(|_| OK);
    let refusing = server(|_| Reaction::Answer("503 Busy"));
    let report = run(&plan(&[good, refusing]));
    assert_eq!((report.run.statuses[&200], report.run.statuses[&503]), (150, 150));
}

#[test]
fn bodies_are_verified_on_request() {
    let report = run(&BenchPlan { verify: true, ..plan(&[server(|_| OK)]) });
    assert_eq!((report.run.wrong_values, report.run.body_bytes), (300, 900));
}

#[test]
fn a_stop_ends_a_run_with_its_results_so_far() {
    let stop = StopFlag::default();
    stop.set();
    let plan = BenchPlan { duration: Some(Duration::from_secs(3_600)), ..plan(&[server(|_| OK)]) };
    let report = benchmark(&plan, &stop, &mut Console::new(true)).unwrap();
    assert!(report.interrupted);
}

#[test]
fn a_missing_server_is_an_error_and_not_a_report() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let outcome = benchmark(&plan(&[address]), &StopFlag::default(), &mut Console::new(true));
    assert!(matches!(outcome, Err(BenchError::Load(LoadError::Connect { .. }))));
}

#[test]
fn a_preload_stores_every_key_once_through_refusals() {
    let address = server(|i| Reaction::Answer(if i % 4 == 0 { "503 Busy" } else { "201 Created" }));
    let preload = Some(Preload { keys: 500, always: true });
    let report = run(&BenchPlan { preload, ..plan(&[address]) });
    assert_eq!(report.load.preloaded, Some(500));
}

#[test]
fn a_search_ends_with_a_knee_and_a_report_of_the_working_point() {
    let search = SearchPlan { goal: "errors=0".parse().unwrap(), trial: Duration::from_millis(50) };
    // The server refuses every request from the twentieth on, so no later rate holds.
    let address = server(|i| Reaction::Answer(if i < 20 { "200 OK" } else { "503 Busy" }));
    let plan = BenchPlan {
        search: Some(search),
        pacing: Pacing::Rate(64),
        warmup: Duration::ZERO,
        duration: Some(Duration::from_millis(100)),
        ..plan(&[address])
    };
    let search = run(&plan).search.unwrap();
    assert!(search.trials.len() > 3 && search.trials.iter().any(|trial| !trial.held), "{search:?}");
    assert_eq!(search.working_point, None);
}

#[test]
fn times_are_written_as_the_calendar_has_them() {
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_399, "2000-02-28T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_767_225_599, "2025-12-31T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
    ] {
        assert_eq!(rfc3339(Duration::from_secs(seconds)), text);
    }
}
