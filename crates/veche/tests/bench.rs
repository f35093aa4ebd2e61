//! `veche bench` against a real node: its counts and its files.

mod common;

use common::{Node, data_dir, veche};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Output, Stdio};

fn bench(node: SocketAddr, arguments: &[&str], dir: &Path) -> Output {
    let target = format!("http://{node}");
    let mut command = veche();
    command.current_dir(dir).args(["bench", "--target", &target]).args(arguments);
    command.output().expect("the binary is there")
}

/// Standard output of a successful run.
#[track_caller]
fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("the file is there")).expect("JSON")
}

#[test]
fn a_rate_is_measured_and_told_in_every_form() {
    let (dir, data) = data_dir();
    // The generator waits five seconds for the last answers. A busy disk may take longer to sync.
    let node = Node::start_with(&data, &["--durability", "os"]);
    let address = node.address;
    let run =
        ["-m", "get=50,put=30,delete=10,get-missing=10", "-k", "500", "--preload", "-r", "400", "-c", "4"];
    let files =
        ["-d", "1s", "--warmup", "100ms", "--json", "a.json", "--html", "a.html", "--hgrm", "a.hgrm", "-L"];
    let output = bench(address, &[&run[..], &files].concat(), dir.path());
    let printed = text(&output);
    for part in
        ["Latency of all", "Latency of get-missing", "Detailed percentile spectrum of put", "(400 asked for"]
    {
        assert!(printed.contains(part), "{part:?} is not in {printed}");
    }
    let live = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(live.contains("500 of 500 keys") && live.contains("answers/s"), "{live}");

    let report = json(&dir.path().join("a.json"));
    let statuses = report["run"]["statuses"].as_object().expect("statuses");
    let answers: u64 = statuses.values().filter_map(Value::as_u64).sum();
    assert_eq!(answers, 400, "every slot was answered: {report}");
    assert!(["200", "201", "202", "404"].iter().all(|status| statuses.contains_key(*status)), "{statuses:?}");
    assert_eq!(statuses.len(), 4, "{statuses:?}");
    assert_eq!(report["load"]["preloaded"], 500);
    assert_eq!(report["servers"][0]["software"], format!("veche {}", env!("CARGO_PKG_VERSION")));

    let hgrm = std::fs::read_to_string(dir.path().join("a.hgrm")).expect("the file is there");
    assert!(hgrm.contains("Total count    =          400]"), "{hgrm}");
    let html = std::fs::read_to_string(dir.path().join("a.html")).expect("the file is there");
    assert!(html.starts_with("<!DOCTYPE html>") && html.trim_end().ends_with("</html>"));
    assert!(!html.contains("src=") && !html.contains("href="), "the page needs nothing else");
}

#[test]
fn a_rate_may_come_in_bursts() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let run = ["-k", "100", "--preload", "-r", "400", "--burst", "50ms", "-c", "20", "-d", "500ms"];
    let output =
        bench(node.address, &[&run[..], &["--warmup", "0", "--json", "a.json"]].concat(), dir.path());
    let printed = text(&output);
    assert!(printed.contains("(400 asked for, in bursts, "), "{printed}");
    let live = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(live.contains("400 requests/s in bursts each 50ms"), "{live}");
    let report = json(&dir.path().join("a.json"));
    assert_eq!((&report["run"]["answers"], &report["run"]["burst_s"]), (&200.into(), &0.05.into()));
}

#[test]
fn data_that_is_there_is_not_stored_again_and_is_checked() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let address = node.address;
    let load = ["--preload", "200", "-s", "10..50", "-n", "1000", "--warmup", "0", "--verify"];
    let first = bench(address, &load, dir.path());
    assert!(text(&first).contains("Statuses: 200: 1,000"), "{first:?}");
    let second = bench(address, &load, dir.path());
    let live = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(live.contains("all there") && !text(&second).contains("WRONG"), "{second:?}");
    // Of other sizes: other values, so the store is wrong for this load, and said to be.
    let other = bench(
        address,
        &["-k", "200", "-s", "60", "-n", "50", "-d", "20s", "--warmup", "0", "--verify"],
        dir.path(),
    );
    assert!(text(&other).contains("WRONG VALUES: 50"), "{other:?}");
}

#[test]
fn ranges_are_read_to_their_end_and_their_entries_counted() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let address = node.address;
    let ranges = ["-m", "range", "--limit", "7", "--preload", "100", "-k", "90", "-n", "60", "-d", "20s"];
    let output = bench(address, &[&ranges[..], &["--warmup", "0", "--json", "r.json"]].concat(), dir.path());
    text(&output);
    let run = &json(&dir.path().join("r.json"))["run"];
    assert_eq!((&run["statuses"]["200"], &run["entries"]), (&60.into(), &420.into()), "{run}");
}

#[test]
fn a_search_ends_in_a_report_and_runs_are_compared() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let address = node.address;
    let search = [
        "--find-max",
        "max<60s,errors=0",
        "--trial",
        "100ms",
        "-d",
        "200ms",
        "--warmup",
        "0",
        "-r",
        "100000",
    ];
    let output = bench(
        address,
        &[&search[..], &["-k", "10", "-c", "2", "-q", "--json", "s.json"]].concat(),
        dir.path(),
    );
    assert!(text(&output).contains("Knee: "), "{output:?}");
    assert!(output.stderr.is_empty(), "quiet is quiet: {output:?}");
    let trials = &json(&dir.path().join("s.json"))["search"]["trials"];
    assert!(trials.as_array().is_some_and(|trials| trials.len() > 1), "{trials}");

    let closed = bench(address, &["-k", "10", "-n", "100", "-d", "20s", "--json", "c.json"], dir.path());
    text(&closed);
    let mut compare = veche();
    compare.current_dir(dir.path()).args(["bench", "compare", "s.json", "c.json", "--html", "both.html"]);
    let table = text(&compare.output().expect("the binary is there"));
    assert!(table.contains("B/A") && table.contains("knee/s") && table.contains("get p99.9"), "{table}");
    let page = std::fs::read_to_string(dir.path().join("both.html")).expect("the file is there");
    assert!(page.contains("max&lt;60s") || page.contains("max\\u003c60s"), "both commands are told");
}

/// A run of an hour at 500/s, once its first seconds are over.
fn long_run(node: SocketAddr, dir: &Path) -> Child {
    let target = format!("http://{node}");
    let mut command = veche();
    command.current_dir(dir).args(["bench", "--target", &target, "-k", "10", "-r", "500", "-d", "1h"]);
    command.args(["--warmup", "0", "--json", "l.json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the binary is there")
}

/// Reads the output of `bench` up to a line that contains `part`.
fn read_to(stderr: &mut impl BufRead, part: &str) {
    let mut line = String::new();
    while !line.contains(part) {
        line.clear();
        assert!(stderr.read_line(&mut line).expect("UTF-8") > 0, "it ended before {part:?}");
    }
}

#[test]
fn ctrl_c_ends_a_run_with_a_report_also_of_a_server_that_died() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let mut run = long_run(node.address, dir.path());
    let mut stderr = BufReader::new(run.stderr.take().expect("piped"));
    read_to(&mut stderr, "2 s ");
    drop(node);
    read_to(&mut stderr, "no connection");
    let pid = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    // Unread output must not keep it from ending.
    std::io::copy(&mut stderr, &mut std::io::sink()).expect("the pipe");
    let printed = text(&run.wait_with_output().expect("it ends"));
    assert!(printed.contains("Interrupted") && printed.contains("Failed, no connection"), "{printed}");
    let report = json(&dir.path().join("l.json"));
    assert_eq!(report["interrupted"], true);
    assert!(report["run"]["statuses"]["404"].as_u64().is_some_and(|answers| answers > 500), "{report}");
}

#[test]
fn what_cannot_be_done_is_said_in_a_sentence() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let address = node.address;
    let failed = |arguments: &[&str], says: &str| {
        let output = bench(address, arguments, dir.path());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains(says), "{says:?} is not in {told}");
    };
    failed(&["--preset", "get-all"], "get-random-1g");
    failed(&["--find-max", "fast"], "p99<10ms");
    failed(&["-m", "fetch"], "get-missing");
    failed(&["--burst", "1ms"], "--burst needs --rate");
    failed(&["-d", "100ms", "--json", "no/such/place.json"], "no/such/place.json");
    std::fs::write(dir.path().join("x.json"), "{}").expect("a file");
    let output = veche().current_dir(dir.path()).args(["bench", "compare", "x.json", "x.json"]).output();
    let told = String::from_utf8(output.expect("the binary is there").stderr).expect("UTF-8");
    assert!(told.contains("x.json is not a report"), "{told}");
    node.stop();
    failed(&["-d", "1s"], "no connection");
}

#[test]
fn presets_are_listed_and_run_by_name() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let address = node.address;
    let mut list = veche();
    let listed = text(&list.args(["bench", "presets"]).output().expect("the binary is there"));
    let names: Vec<&str> = listed.lines().filter(|line| !line.starts_with(' ')).collect();
    assert!(names.len() >= 17 && names.contains(&"put-small-seq"), "{names:?}");
    let preset =
        ["--preset", "put-small-seq", "-r", "500", "-d", "500ms", "--warmup", "0", "--json", "p.json"];
    let output = bench(address, &preset, dir.path());
    assert!(text(&output).contains("Published by others"), "{output:?}");
    let report = json(&dir.path().join("p.json"));
    assert_eq!((&report["name"], &report["load"]["connections"]), (&"put-small-seq".into(), &1.into()));
    // 500 requests per second for half a second. A busy machine may not send all of them in
    // time; the report counts the unsent ones.
    let run = &report["run"];
    let created = run["statuses"]["201"].as_u64().expect("at least one value was created");
    let failures = run["failures"].as_object().expect("the failures are counted");
    let failed: u64 = failures.values().filter_map(Value::as_u64).sum();
    assert_eq!(created + failed, 250, "{run}");
}
