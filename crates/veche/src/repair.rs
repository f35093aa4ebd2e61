//! `veche repair`: start a comparison of a node's data with the other replicas, and follow it.

use crate::client;
use crate::node_url::NodeUrl;
use crate::output::ReportForm;
use crate::progress::{ProgressFlag, ShareDisplay};
use crate::status::progress;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Interval between two status requests.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The command fails after this time without an answer, or without a running repair before the end.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Compare the data of a node with the other replicas, and exchange the differences. Ends when all
/// keys are compared.
#[derive(Debug, clap::Args)]
pub(crate) struct RepairArguments {
    /// Address of the node
    #[arg(long, env = "VECHE_URL", value_name = "URL", default_value = client::URL_DEFAULT)]
    url: NodeUrl,
    #[command(flatten)]
    report: ReportForm,
    #[command(flatten)]
    progress: ProgressFlag,
}

pub(crate) fn run(arguments: &RepairArguments) -> Result<(), String> {
    let url = &arguments.url;
    let before = client::fetch_status(url)?.status;
    if before["nodes"].as_array().is_none_or(|nodes| nodes.len() < 2) {
        arguments.report.print(
            || format!("{url} is a single node: there are no replicas to compare with"),
            || json!({ "url": url.to_string(), "compared": false, "cells_exchanged": 0 }),
        );
        return Ok(());
    }
    let answer = client::request(url, "POST", "/v0/repair")?;
    if answer.code != 202 {
        return Err(format!("{url} answers {}: {}", answer.code, answer.body));
    }
    let cells = follow(url, &before["cluster"]["repaired_at_ms"], ShareDisplay::new(arguments.progress))?;
    arguments.report.print(
        || format!("{url}: all keys are compared; {cells} cells exchanged at the last report"),
        || json!({ "url": url.to_string(), "compared": true, "cells_exchanged": cells }),
    );
    Ok(())
}

/// URLs of the peers that the node cannot reach.
fn unreachable_peers(status: &Value) -> Vec<&str> {
    let nodes = status["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let unreachable = nodes.iter().filter(|node| node["self"] != true && node["state"] == "unreachable");
    unreachable.filter_map(|node| node["url"].as_str()).collect()
}

/// Polls the node until a pass ends after the one that ended at `ended_before`. Returns the number
/// of exchanged cells from the last progress report.
fn follow(url: &NodeUrl, ended_before: &Value, mut display: ShareDisplay) -> Result<u64, String> {
    let mut last_progress = Instant::now();
    let mut cells = 0;
    loop {
        std::thread::sleep(POLL_INTERVAL);
        let report = client::fetch_status(url);
        let cluster = report.as_ref().map_or(&Value::Null, |report| &report.status["cluster"]);
        let repair = &cluster["repair"];
        if let Some(line) = progress(repair) {
            last_progress = Instant::now();
            cells = repair["cells"].as_u64().unwrap_or(cells);
            display.on_share(repair["permille"].as_u64().unwrap_or(0), &line);
        } else if !cluster.is_null() && cluster["repaired_at_ms"] != *ended_before {
            return Ok(cells);
        } else if last_progress.elapsed() > STALL_TIMEOUT {
            let status = report?.status;
            let unreachable = unreachable_peers(&status);
            let why = match unreachable.is_empty() {
                true => "see its log".to_owned(),
                false => format!("it cannot reach {}", unreachable.join(", ")),
            };
            return Err(format!("{url} ended the repair before all keys were compared: {why}; try again"));
        }
    }
}
