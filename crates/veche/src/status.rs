//! `veche status`: show the state of a node and its cluster.

use crate::client::{self, NodeReport};
use crate::node_url::NodeUrl;
use crate::output::print_line;
use crate::table;
use serde_json::Value;

/// Show the state of a node. Exit code 0: the node serves.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArguments {
    /// Address of the node
    #[arg(long, env = "VECHE_URL", value_name = "URL", default_value = client::URL_DEFAULT)]
    url: NodeUrl,
    /// Print the whole JSON document of the node
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &StatusArguments) -> Result<(), String> {
    let url = &arguments.url;
    let NodeReport { answer, status } = client::fetch_status(url)?;
    if arguments.json {
        print_line!("{}", answer.body);
    } else {
        print_line!("{}", summary(url, &status));
    }
    match (answer.code, status["state"].as_str()) {
        (200, _) => Ok(()),
        (_, Some(state)) => Err(format!("{url} does not serve: it is {state}")),
        (code, None) => Err(format!("{url} does not serve: it answers {code}")),
    }
}

fn summary(url: &NodeUrl, status: &Value) -> String {
    let quorum = &status["default_quorum"];
    let mut lines = vec![format!(
        "{url}: {}, version {}, up {} s, ack/from {}/{}",
        text(&status["state"]),
        text(&status["version"]),
        status["uptime_ms"].as_u64().unwrap_or(0) / 1_000,
        number(&quorum["ack"]),
        number(&quorum["from"]),
    )];
    let nodes = status["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    if nodes.len() > 1 {
        lines.extend(node_table(nodes));
    }
    lines.extend(progress(&status["cluster"]["repair"]));
    if status["cluster"]["ready"] == false {
        lines.push(format!(
            "not ready: operations with the default quorum {}/{} cannot succeed here now; {url}/v0/ready says why",
            number(&quorum["ack"]),
            number(&quorum["from"])
        ));
    }
    for warning in status["warnings"].as_array().into_iter().flatten() {
        lines.push(format!("warning: {}", text(warning)));
    }
    lines.join("\n")
}

/// The progress of a pass over all keys, as a sentence; `None` if no pass is running.
pub(crate) fn progress(repair: &Value) -> Option<String> {
    let permille = repair["permille"].as_u64()?;
    let what = match (&repair["rebuilding"], &repair["healing"]) {
        (rebuilding, _) if *rebuilding == true => "rebuilding this node",
        (_, healing) if *healing == true => "healing a damaged table",
        _ => "comparing replicas",
    };
    Some(format!(
        "{what}: {}.{} % of the keys passed, {} cells exchanged",
        permille / 10,
        permille % 10,
        number(&repair["cells"])
    ))
}

/// A header line and one line for each node.
fn node_table(nodes: &[Value]) -> Vec<String> {
    const HEAD: [&str; 7] = ["node", "state", "standing", "hints kept", "dropped", "clock", "round trip"];
    table::lines(HEAD, nodes.iter().map(node_row))
}

fn node_row(node: &Value) -> [String; 7] {
    let is_self = node["self"] == true;
    let is_known = is_self || !["unreachable", "unknown"].iter().any(|state| node["state"] == *state);
    let sync_state = if is_known { text(&node["standing"]) } else { "unknown".to_owned() };
    let about_others = |cell: String| if is_self { String::new() } else { cell };
    [
        text(&node["url"]),
        state(node),
        sync_state,
        about_others(number(&node["hints"])),
        about_others(number(&node["hints_dropped"])),
        about_others(node["clock_ahead_ms"].as_i64().map_or_else(unknown, |millis| format!("{millis:+} ms"))),
        about_others(node["round_trip_us"].as_f64().map_or_else(unknown, |micros| {
            const MICROS_PER_MILLI: f64 = 1_000.0;
            format!("{:.1} ms", micros / MICROS_PER_MILLI)
        })),
    ]
}

fn state(node: &Value) -> String {
    let mut state = if node["self"] == true { "this node".to_owned() } else { text(&node["state"]) };
    if node["disk_full"] == true {
        state.push_str(", disk full");
    }
    state
}

fn unknown() -> String {
    "?".to_owned()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(unknown, str::to_owned)
}

fn number(value: &Value) -> String {
    value.as_u64().map_or_else(unknown, |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cluster_is_a_table() {
        let status = json!({
            "version": "0.1.0", "state": "serving", "uptime_ms": 61_500,
            "nodes": [
                {"url": "http://a:1", "self": true, "state": "up", "standing": "settled"},
                {"url": "http://b:1", "self": false, "state": "unreachable", "standing": "unsettled", "hints": 12,
                 "hints_dropped": 3, "clock_ahead_ms": -4, "round_trip_us": null},
                {"url": "http://c:1", "self": false, "state": "up", "standing": "rebuilding", "hints": 0,
                 "hints_dropped": 0, "clock_ahead_ms": 7, "round_trip_us": 1_250},
            ],
            "cluster": {"ready": false, "repair": {"rebuilding": false, "permille": 125, "cells": 9}},
            "default_quorum": {"ack": 2, "from": 3},
            "warnings": ["Look."],
        });
        let url: NodeUrl = "http://a:1".parse().unwrap();
        let expected = "\
http://a:1: serving, version 0.1.0, up 61 s, ack/from 2/3
node        state        standing    hints kept  dropped  clock  round trip
http://a:1  this node    settled
http://b:1  unreachable  unknown     12          3        -4 ms  ?
http://c:1  up           rebuilding  0           0        +7 ms  1.2 ms
comparing replicas: 12.5 % of the keys passed, 9 cells exchanged
not ready: operations with the default quorum 2/3 cannot succeed here now; http://a:1/v0/ready says why
warning: Look.";
        assert_eq!(summary(&url, &status), expected);
    }

    #[test]
    fn a_node_on_its_own_is_a_line() {
        let status = json!({
            "version": "0.1.0", "state": "starting", "uptime_ms": 1, "nodes": [{"url": "http://a:1", "self": true}],
            "cluster": null, "default_quorum": {"ack": 1, "from": 1}, "warnings": [],
        });
        let url: NodeUrl = "http://a:1".parse().unwrap();
        assert_eq!(summary(&url, &status), "http://a:1: starting, version 0.1.0, up 0 s, ack/from 1/1");
    }
}
