//! `veche repair`: have a node compare all it holds with the other replicas, and watch it do so.

use crate::client;
use crate::node_url::NodeUrl;
use crate::output::print_line;
use crate::status::progress;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Between two looks at the node.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Progress is told no more often.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// A node that does not answer for so long, or has nothing under way without having finished, is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Compare what a node holds with the other replicas, and exchange what differs. Ends when all keys were passed.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Address of the node
    #[arg(long, env = "VECHE_URL", value_name = "URL", default_value = client::URL_DEFAULT)]
    url: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let url: NodeUrl = arguments.url.parse().map_err(|error| format!("--url: {error}"))?;
    let before = client::fetch_status(&url)?.status;
    if before["nodes"].as_array().is_none_or(|nodes| nodes.len() < 2) {
        print_line!("{url} is a node on its own: there is nothing to compare with");
        return Ok(());
    }
    let answer = client::ask(&url, "POST", "/v0/repair")?;
    if answer.code != 202 {
        return Err(format!("{url} answers {}: {}", answer.code, answer.body));
    }
    follow(&url, &before["cluster"]["repaired_at_ms"])
}

/// Watches until a pass has ended after the one that ended at `ended_before`.
fn follow(url: &NodeUrl, ended_before: &Value) -> Result<(), String> {
    let (mut seen_well, mut told) = (Instant::now(), Instant::now());
    let mut cells = 0;
    loop {
        std::thread::sleep(LOOK_EVERY);
        let report = client::fetch_status(url);
        let cluster = report.as_ref().map_or(&Value::Null, |report| &report.status["cluster"]);
        let repair = &cluster["repair"];
        if let Some(line) = progress(repair) {
            seen_well = Instant::now();
            cells = repair["cells"].as_u64().unwrap_or(cells);
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                print_line!("{line}");
            }
        } else if !cluster.is_null() && cluster["repaired_at_ms"] != *ended_before {
            print_line!("{url}: all keys were passed; {cells} cells exchanged when last looked at");
            return Ok(());
        } else if seen_well.elapsed() > PATIENCE {
            report?;
            return Err(format!("{url} has stopped before all keys were passed; see its log, and try again"));
        }
    }
}
