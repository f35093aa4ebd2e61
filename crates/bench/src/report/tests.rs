use super::*;
use crate::recorder::{ResponseOutcome, SharedTimeline};
use std::sync::Arc;
use std::time::Duration;
use stdx::Instant;

/// A run of three seconds: gets of one millisecond, one slow put per second, and refusals in the
/// second second.
fn report(scale: u64) -> Report {
    let shared_timeline = Arc::new(SharedTimeline::default());
    let at = |micros: u64| Instant::from_nanos(micros * 1_000);
    let mut recorder = Recorder::new(at(0), at(3_000_000), shared_timeline);
    for i in 0..3_000u64 {
        let intended = i * 1_000;
        let status = if (1_000..1_010).contains(&i) { 503 } else { 200 };
        let (operation, took) =
            if i % 1_000 == 500 { (Operation::Put, 50_000) } else { (Operation::Get, 1_000) };
        let outcome = ResponseOutcome { body_bytes: 100, ..ResponseOutcome::of_status(status) };
        recorder.answer(operation, at(intended), at(intended + took * scale), outcome);
    }
    recorder.failure(Operation::Get, at(2_999_000), at(3_000_500), Failure::Broken);
    recorder.finish();
    let elapsed = Duration::from_secs(3);
    let result = LaneResult {
        name: "lane".to_owned(),
        pacing: Pacing::Rate(1_000),
        burst: Duration::ZERO,
        recorder,
        elapsed,
    };
    let trials = vec![
        TrialReport {
            rate: 1_000,
            arrived_per_s: 1_000.0,
            held: true,
            p50_us: 9.0,
            ..TrialReport::default()
        },
        TrialReport { rate: 2_000, why: vec!["p99 20.00ms".to_owned()], ..TrialReport::default() },
    ];
    Report {
        format: FORMAT.to_owned(),
        name: "</script><b>\"name\" & co".to_owned(),
        command: "veche bench -r 1000".to_owned(),
        published: Some("1k/s".to_owned()),
        search: Some(SearchReport {
            goal: "p99 < 10 ms".to_owned(),
            trials,
            knee: Some(1_000),
            working_point: None,
        }),
        run: LaneReport::new(&result),
        ..Report::default()
    }
}

#[test]
fn a_report_survives_its_json() {
    let report = report(1);
    let json = serde_json::to_string(&report).unwrap();
    let again: Report = serde_json::from_str(&json).unwrap();
    assert_eq!(json, serde_json::to_string(&again).unwrap());
    assert!(serde_json::from_str::<Report>("[1]").is_err());
}

#[test]
fn a_lane_is_reported_by_operation_and_over_time() {
    let run = report(1).run;
    let counts: Vec<(&str, u64)> =
        run.latency.iter().map(|(name, latency)| (name.as_str(), latency.count)).collect();
    assert_eq!(counts, [("all", 3_000), ("get", 2_997), ("put", 3)]);
    assert_eq!(run.errors(), 11);
    let rows: Vec<(u64, u64, u64)> =
        run.timeline.rows.iter().map(|row| (row.second, row.answers, row.not_ok)).collect();
    assert_eq!(rows, [(0, 999, 0), (1, 1_000, 10), (2, 1_000, 0), (3, 1, 1)]);
    assert_eq!(run.timeline.rows[1].errors, BTreeMap::from([("503".to_owned(), 10)]));
    let heat: u64 = run.timeline.heat.columns.iter().flatten().map(|(_, count)| count).sum();
    assert_eq!(heat, 3_000);
    let p50 = run.overall().and_then(|latency| latency.at(50.0)).unwrap();
    assert!((p50 - 1_000.0).abs() < 1.0, "{p50}");
}

#[test]
fn the_text_contains_all_results() {
    let text = text(&report(1), true);
    for line in [
        "Highest rate that holds p99 < 10 ms:",
        "       1,000        1,000      9.0us      0.0us      0.0us      0.0us  yes",
        "       2,000            0      0.0us      0.0us      0.0us      0.0us  no       p99 20.00ms",
        "Knee: 1,000/s. Working point: none.",
        "lane: 3,000 answers in 3.00 s, 293 KiB read",
        "    50.000%     1.00ms",
        "  Statuses: 200: 2,990, 503: 10",
        "  Failed, connection broken: 1",
        "Requests/sec:     999.67   (1,000 asked for, 99.97 % kept)",
        "  Detailed percentile spectrum of get, in milliseconds:",
        "       1       1000       10     1.00ms     1.00ms     1.00ms    50.00ms",
        "Published by others for this load, on machines of their own: 1k/s",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn a_comparison_has_the_ratio_of_the_second_to_the_first() {
    let table = comparison(&report(1), &report(2));
    let line = table.lines().find(|line| line.starts_with("get p50")).unwrap();
    assert!(line.contains("1.00ms") && line.contains("2.00ms") && line.ends_with("2.00"), "{line}");
    assert!(table.contains("knee/s"), "{table}");
}

#[test]
fn a_page_is_well_formed_and_needs_nothing_from_elsewhere() {
    let page = page(&[report(1), report(2)]);
    assert!(page.starts_with("<!DOCTYPE html>"));
    assert_balanced(&page);
    for from_elsewhere in ["http:", "https:", "src=", "href=", "url(", "@import", "fetch(", "{{"] {
        assert!(!page.contains(from_elsewhere), "the page holds {from_elsewhere}");
    }
    let runs = page.split_once("id=\"runs\">").unwrap().1.split_once("</script>").unwrap().0;
    let runs: Vec<Report> = serde_json::from_str(runs).unwrap();
    assert_eq!(runs[1].name, report(2).name, "the page's data is all of the reports");
    assert!(page.contains("&lt;/script&gt;"), "text of the server and the user is escaped");
}

/// Asserts that every opened element is closed, in order.
fn assert_balanced(page: &str) {
    const VOID: [&str; 2] = ["meta", "br"];
    let (mut open, mut rest): (Vec<&str>, _) = (Vec::new(), page);
    while let Some((_, after)) = rest.split_once('<') {
        let (tag, behind) = after.split_once('>').expect("a tag ends");
        rest = behind;
        let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap_or_default();
        if tag.starts_with('!') || VOID.contains(&name) {
            continue;
        }
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "</{name}> closes nothing");
            continue;
        }
        open.push(name);
        if name == "script" || name == "style" {
            rest = &rest[rest.find(&format!("</{name}>")).expect("the element ends")..];
        }
    }
    assert_eq!(open, Vec::<&str>::new(), "not closed");
}
