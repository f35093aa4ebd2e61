//! What a node says at `/metrics`: the format, the numbers, the document and the dashboard.

mod common;

use common::exposition::Scrape;
use common::http::{bare, delete};
use common::{Node, data_dir, eventually};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[track_caller]
fn scrape(node: &Node) -> Scrape {
    let answer = node.exchange(bare("GET", "/metrics"));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4"));
    Scrape::read(answer.text().as_str()).unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// The names in the tables of `docs/metrics.md`, and their types.
fn documented() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(root().join("docs/metrics.md")).expect("it is there");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `veche_"));
    rows.filter_map(|row| {
        let mut cells = row.split(" | ");
        let name = format!("veche_{}", cells.next()?.strip_suffix('`')?);
        Some((name, cells.next()?.to_owned()))
    })
    .collect()
}

#[test]
fn every_request_is_counted_once_by_operation_and_status() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "2"]);
    let before = scrape(&node);
    for i in 0..20 {
        assert_eq!(node.put(&format!("k{i}"), "value").status, 201);
    }
    for i in 0..30 {
        assert_eq!(node.get(&format!("k{i}")).status, if i < 20 { 200 } else { 404 });
    }
    for _ in 0..3 {
        assert_eq!(node.exchange(bare("HEAD", "/v0/entity?id=k1")).status, 200);
        assert_eq!(node.exchange(delete("k2")).status, 202);
        assert_eq!(node.exchange(bare("GET", "/v0/entity?id=")).status, 400);
        assert_eq!(node.exchange(bare("PATCH", "/v0/entity?id=a")).status, 405);
        assert_eq!(node.exchange(bare("GET", "/nowhere")).status, 400);
        assert_eq!(node.exchange(bare("POST", "/metrics")).status, 405);
        assert_eq!(node.exchange(bare("GET", "/metrics?name=x")).status, 400);
    }
    // What is no HTTP does not come as far as to have an operation.
    assert_eq!(node.exchange("GET /v0/status HTTP/1.1\r\nHost: v\r\nHost\r\n\r\n").status, 400);
    let mut connection = node.connect();
    connection.send(bare("GET", "/v0/entities?start=k"));
    assert_eq!((connection.head().status, connection.chunks().len()), (200, 19));
    let entries = "{\"key\":\"b1\",\"value\":\"1\"}\n{\"key\":\"b2\",\"value\":\"2\"}\n{\"key\":\"b1\",\"delete\":true}\n";
    connection.send(format!(
        "POST /v0/entities HTTP/1.1\r\nHost: v\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{entries}",
        entries.len()
    ));
    assert_eq!(connection.head().status, 200);
    let results = String::from_utf8(connection.chunks().concat()).expect("JSON");
    let after = scrape(&node);
    after.assert_rises_from(&before);
    let expected = [
        ("put", "201", 20.0),
        ("get", "200", 20.0),
        ("get", "404", 10.0),
        ("get", "400", 3.0),
        ("head", "200", 3.0),
        ("delete", "202", 3.0),
        ("other", "405", 6.0),
        ("other", "400", 4.0),
        ("metrics", "400", 3.0),
        ("metrics", "200", 1.0),
        ("range", "200", 1.0),
        ("batch", "200", 1.0),
        ("batch_entry", "201", 2.0),
        ("batch_entry", "202", 1.0),
    ];
    for (operation, status, count) in expected {
        let labels = [("operation", operation), ("status", status)];
        assert_eq!(after.get("veche_requests_total", &labels), count, "{operation} {status}: {results}");
    }
    let statuses = after.sum("veche_requests_total", &[("operation", "status")]);
    let told: f64 = expected.iter().map(|(_, _, count)| count).sum();
    assert_eq!(after.sum("veche_requests_total", &[]), told + statuses, "nothing else is counted");
    let timed = [
        ("put", "2xx", 20.0),
        ("get", "2xx", 20.0),
        ("get", "4xx", 10.0),
        ("head", "2xx", 3.0),
        ("delete", "2xx", 3.0),
        ("range", "2xx", 1.0),
        ("batch_entry", "2xx", 3.0),
    ];
    for (operation, status, count) in timed {
        let labels = [("operation", operation), ("status", status)];
        assert_eq!(after.get("veche_request_seconds_count", &labels), count, "{operation} {status}");
    }
    let timed: f64 = timed.iter().map(|(_, _, count)| count).sum();
    assert_eq!(after.sum("veche_request_seconds_count", &[]), timed, "nothing else is timed");
    assert!(after.sum("veche_request_seconds_sum", &[("operation", "put")]) > 0.0, "the disk takes its time");
    assert_eq!(after.sum("veche_quorum_wait_seconds_count", &[]), 0.0, "there is one replica");
}

#[test]
fn the_store_tells_what_it_did() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let before = scrape(&node);
    for i in 0..10 {
        assert_eq!(node.put(&format!("k{i}"), [b'x'; 1_000]).status, 201);
    }
    let after = scrape(&node);
    after.assert_rises_from(&before);
    let rise = |name: &str| after.sum(name, &[]) - before.sum(name, &[]);
    // The bound of the version clock may be stored as well, beside the writes of users.
    assert!(
        (10.0..15.0).contains(&rise("veche_accepted_cells_total")),
        "{}",
        rise("veche_accepted_cells_total")
    );
    assert!((10_020.0..11_000.0).contains(&rise("veche_accepted_bytes_total")));
    assert!(rise("veche_wal_written_bytes_total") > rise("veche_accepted_bytes_total"));
    assert_eq!(rise("veche_wal_group_cells_sum"), rise("veche_accepted_cells_total"));
    assert_eq!(rise("veche_wal_group_cells_count"), rise("veche_wal_group_bytes_count"));
    assert!(rise("veche_wal_sync_seconds_count") >= 10.0 && rise("veche_wal_sync_seconds_sum") > 0.0);
    assert_eq!(after.get("veche_memory_budget_bytes", &[]), f64::from(64 << 20));
    assert!(after.sum("veche_memory_bytes", &[]) > 10_000.0);
    assert!(
        after.get("veche_process_threads", &[]) >= 3.0 && after.get("veche_process_open_files", &[]) >= 3.0
    );
    assert!(rise("veche_process_cpu_seconds_total") > 0.0 && rise("veche_uptime_seconds") > 0.0);
}

#[test]
fn a_status_and_a_scrape_tell_the_same() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k&ack=2", "v").status, 400);
    assert_eq!(node.put("k", "v").status, 201);
    let (status, scrape) = (node.status(), scrape(&node));
    let number = |at: &Value| at.as_f64().expect("a number");
    assert_eq!(number(&status["requests"]["refused"]), scrape.sum("veche_refused_total", &[]));
    assert_eq!(number(&status["requests"]["superseded"]), scrape.get("veche_writes_superseded_total", &[]));
    assert_eq!(number(&status["queues"]["operations_max"]), scrape.get("veche_operations_max", &[]));
    let memory = &status["storage"]["memory"];
    assert_eq!(number(&memory["budget_bytes"]), scrape.get("veche_memory_budget_bytes", &[]));
}

#[test]
fn the_warnings_of_the_status_are_counted() {
    for (durability, expected) in [("sync", 0.0), ("os", 1.0)] {
        let (_dir, data) = data_dir();
        let node = Node::start_with(&data, &["--durability", durability]);
        assert_eq!(node.status()["warnings"].as_array().map(Vec::len), Some(expected as usize));
        assert_eq!(scrape(&node).get("veche_warnings", &[]), expected, "{durability}");
    }
}

#[test]
fn connections_are_counted_as_they_come() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let before = scrape(&node);
    let silent = node.connect();
    let after = scrape(&node);
    let name = "veche_connections_accepted_total";
    assert_eq!(after.get(name, &[]) - before.get(name, &[]), 2.0, "the scrape's own among them");
    assert!(after.get("veche_connections", &[]) >= 2.0);
    drop(silent);
}

#[test]
fn a_head_is_without_body_and_a_node_that_stops_still_tells() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--drain-delay", "20s"]);
    let head = node.exchange(bare("HEAD", "/metrics"));
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert!(
        head.header("content-length").is_some_and(|len| len.parse::<usize>().is_ok_and(|len| len > 10_000))
    );
    node.terminate();
    eventually("the node stops", || node.exchange(bare("GET", "/v0/status")).status == 503);
    let scrape = scrape(&node);
    assert_eq!(scrape.get("veche_state", &[("state", "draining")]), 1.0);
    assert_eq!(scrape.get("veche_state", &[("state", "serving")]), 0.0);
}

#[test]
fn without_metrics_there_is_no_such_page() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--metrics", "off"]);
    assert_eq!(node.put("k", "v").status, 201);
    let answer = node.exchange(bare("GET", "/metrics"));
    assert_eq!(answer.status, 404, "{answer:?}");
    assert!(answer.text().contains("--metrics on"), "{answer:?}");
    node.stop();
}

#[test]
fn what_is_told_is_documented_and_the_other_way_round() {
    let (_dir, data) = data_dir();
    let told = scrape(&Node::start(&data)).types;
    assert_eq!(told, documented());
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let text = std::fs::read_to_string(root().join("ops/grafana/veche.json")).expect("it is there");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 38));
    let panels = dashboard["panels"].as_array().expect("panels");
    let rows = panels.iter().filter(|panel| panel["type"] == "row").count();
    assert_eq!(rows, 8);
    let mut ids = BTreeSet::new();
    let mut asked = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: its id is there twice");
        if panel["type"] == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            let expression = target["expr"].as_str().expect("an expression");
            let names = metrics_in(expression);
            assert!(!names.is_empty(), "{title}: {expression}");
            assert_eq!(
                expression.matches("{instance=~\"$instance\"").count(),
                names.len(),
                "{title}: {expression}"
            );
            asked.extend(names);
        }
    }
    let documented = documented();
    for name in &asked {
        let stems = ["_bucket", "_sum", "_count"].iter().filter_map(|suffix| name.strip_suffix(suffix));
        let is_histogram = |stem: &str| documented.get(stem).is_some_and(|kind| kind == "histogram");
        let is_known = documented.get(name).is_some_and(|kind| kind != "histogram")
            || stems.into_iter().any(is_histogram);
        assert!(is_known, "{name} is not in docs/metrics.md");
    }
    assert!(asked.len() > 50, "{asked:?}");
    for name in alarms() {
        assert!(asked.contains(&name), "there is an alarm for {name}, and nothing to look at");
    }
}

/// The metrics that `docs/operations.md` has alarms for.
fn alarms() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs/operations.md")).expect("it is there");
    let (_, section) = text.split_once("## What each alarm means").expect("the section of alarms");
    let (section, _) = section.split_once("\n## ").expect("a section behind it");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    let names: Vec<String> = rows.flat_map(metrics_in).collect();
    assert!(names.len() > 15, "{names:?}");
    names
}

/// The names of metrics in an expression, each as often as it is there.
fn metrics_in(expression: &str) -> Vec<String> {
    let words = expression.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    words.filter(|word| word.starts_with("veche_")).map(str::to_owned).collect()
}

#[test]
fn what_the_format_does_not_allow_is_found() {
    let family = "# HELP a A.\n# TYPE a counter\n";
    let histogram = "# HELP h H.\n# TYPE h histogram\n";
    assert!(Scrape::read(&format!("{family}a{{x=\"\\\"1\\\\\\n\"}} 1\na 2\n")).is_ok());
    assert!(
        Scrape::read(&format!(
            "{histogram}h_bucket{{le=\"1\"}} 1\nh_bucket{{le=\"+Inf\"}} 2\nh_sum 3\nh_count 2\n"
        ))
        .is_ok()
    );
    let wrong = [
        "a 1\n".to_owned(),
        format!("{family}a 1"),
        format!("{family}b 1\n"),
        format!("{family}a 1\na 1\n"),
        format!("{family}a 1 1\n"),
        format!("{family}a one\n"),
        format!("{family}a -1\n"),
        format!("{family}a{{}} 1\n"),
        format!("{family}a{{x=1}} 1\n"),
        format!("{family}a{{x=\"1\",x=\"2\"}} 1\n"),
        format!("{family}a{{x=\"\\t\"}} 1\n"),
        format!("{family}a 1\n{family}a{{x=\"1\"}} 1\n"),
        "# TYPE a counter\na 1\n".to_owned(),
        format!("{histogram}h 1\n"),
        format!("{histogram}h_bucket{{le=\"1\"}} 1\nh_sum 1\nh_count 1\n"),
        format!("{histogram}h_bucket{{le=\"1\"}} 2\nh_bucket{{le=\"+Inf\"}} 1\nh_sum 1\nh_count 1\n"),
        format!(
            "{histogram}h_bucket{{le=\"2\"}} 1\nh_bucket{{le=\"1\"}} 1\nh_bucket{{le=\"+Inf\"}} 1\nh_sum 1\nh_count 1\n"
        ),
        format!("{histogram}h_bucket{{le=\"+Inf\"}} 1\nh_sum 1\nh_count 2\n"),
        format!("{histogram}h_bucket{{le=\"+Inf\"}} 1\nh_count 1\n"),
    ];
    for text in wrong {
        assert!(Scrape::read(&text).is_err(), "{text}");
    }
}
