//! `veche slow`: list the slow requests of a node on this machine, and where their time went.

use crate::client;
use crate::node_url::NodeUrl;
use crate::output::print_line;
use crate::progress::Count;
use serde_json::Value;

const MICROS_PER_MILLI: f64 = 1_000.0;
/// A stage that took less than 1 / `SHOWN_SHARE` of the request is not shown.
const SHOWN_SHARE: u64 = 100;

/// List the slow requests of a node on this machine, the latest first, and where their time went.
#[derive(Debug, clap::Args)]
pub(crate) struct SlowArguments {
    /// Loopback address of the node; the node refuses clients of other machines
    #[arg(long, env = "VECHE_URL", value_name = "URL", default_value = client::URL_DEFAULT)]
    url: NodeUrl,
    /// Print the whole JSON document of the node
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &SlowArguments) -> Result<(), String> {
    let url = &arguments.url;
    let answer = client::request(url, "GET", "/v0/slow")?;
    let document = client::document_of(url, &answer)?;
    if !document["requests"].is_array() || !document["threshold_ms"].is_u64() {
        return Err(client::not_a_node(url));
    }
    print_line!("{}", if arguments.json { answer.body } else { list(&document) });
    Ok(())
}

fn list(document: &Value) -> String {
    let requests = document["requests"].as_array().map_or(&[][..], Vec::as_slice);
    let left_out = document["left_out"].as_u64().unwrap_or(0);
    let mut lines = vec![match document["threshold_ms"].as_u64() {
        Some(0) => "slow requests are not recorded: the node runs with --slow-request 0s".to_owned(),
        Some(millis) => {
            let slow = Count(requests.len() as u64, "slow request");
            match left_out {
                0 => format!("{slow} ({millis} ms or longer)"),
                _ => format!("{slow} ({millis} ms or longer); {left_out} more came too fast to be kept"),
            }
        }
        None => "?".to_owned(),
    }];
    lines.extend(requests.iter().map(line));
    lines.join("\n")
}

/// One line for a request: its time, operation, status, key and longest stages.
fn line(request: &Value) -> String {
    let took = request["took_us"].as_u64().unwrap_or(0);
    let stages = request["stages"].as_array().into_iter().flatten().filter_map(|stage| {
        let part = stage["took_us"].as_u64()?;
        (part * SHOWN_SHARE >= took)
            .then(|| format!("{} {}", stage["stage"].as_str().unwrap_or("?"), millis(part)))
    });
    format!(
        "{:>12}  {:<6} {} {}: {}",
        millis(took),
        request["operation"].as_str().unwrap_or("?"),
        request["status"].as_u64().unwrap_or(0),
        request["key"].as_str().unwrap_or("?"),
        stages.collect::<Vec<_>>().join(", ")
    )
}

fn millis(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / MICROS_PER_MILLI)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_slow_request_is_a_line_with_its_longest_stages() {
        let document = json!({
            "threshold_ms": 100, "left_out": 2,
            "requests": [{
                "ended_unix_ms": 1, "operation": "put", "key": "user:7", "key_bytes": 6, "status": 201,
                "took_us": 150_000,
                "stages": [
                    { "stage": "commit queue", "took_us": 20_000 }, { "stage": "sync", "took_us": 129_900 },
                    { "stage": "thread", "took_us": 100 },
                ],
            }],
        });
        assert_eq!(
            list(&document),
            "1 slow request (100 ms or longer); 2 more came too fast to be kept\n    \
             150.0 ms  put    201 user:7: commit queue 20.0 ms, sync 129.9 ms"
        );
        let off = json!({ "threshold_ms": 0, "left_out": 0, "requests": [] });
        assert_eq!(list(&off), "slow requests are not recorded: the node runs with --slow-request 0s");
        let none = json!({ "threshold_ms": 1, "left_out": 0, "requests": [] });
        assert_eq!(list(&none), "0 slow requests (1 ms or longer)");
    }
}
