//! `veche layout`: show the layout of a cluster.

use crate::client;
use crate::node_url::NodeUrl;
use crate::output::print_line;
use crate::table;
use serde_json::Value;

/// Show the layout of a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct LayoutArguments {
    #[command(subcommand)]
    command: LayoutCommand,
}

#[derive(Debug, clap::Subcommand)]
enum LayoutCommand {
    /// Show the layout record of a node: epoch, members and their shares of the data.
    Show(ShowArguments),
}

/// Show the layout record of a node: epoch, members and their shares of the data.
#[derive(Debug, clap::Args)]
struct ShowArguments {
    /// Address of any node of the cluster
    #[arg(long, env = "VECHE_URL", value_name = "URL", default_value = client::URL_DEFAULT)]
    url: NodeUrl,
    /// Print the whole JSON document of the node
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &LayoutArguments) -> Result<(), String> {
    let LayoutCommand::Show(ShowArguments { url, json }) = &arguments.command;
    let answer = client::request(url, "GET", "/v0/layout")?;
    let document: Value = serde_json::from_str(&answer.body)
        .map_err(|_| format!("{url} does not answer as a veche node does"))?;
    if answer.code != 200 {
        return Err(format!("{url} answers {}: {}", answer.code, document["detail"].as_str().unwrap_or("?")));
    }
    print_line!("{}", if *json { answer.body } else { summary(&document) });
    Ok(())
}

fn summary(layout: &Value) -> String {
    let members = layout["members"].as_array().map_or(&[][..], Vec::as_slice);
    let head = format!(
        "epoch {}, {} of cluster {}: default_from {}, {} partitions",
        layout["epoch"],
        crate::progress::Count(members.len() as u64, "member"),
        text(&layout["cluster_id"]),
        layout["default_from"],
        layout["partitions"],
    );
    const HEAD: [&str; 8] = ["slot", "member", "node", "zone", "weight", "state", "voter", "share"];
    let voters = layout["voters"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = members.iter().map(|member| {
        [
            member["slot"].to_string(),
            text(&member["url"]),
            text(&member["node_id"]),
            text(&member["zone"]),
            member["weight"].to_string(),
            text(&member["state"]),
            if voters.contains(&member["url"]) { "yes".to_owned() } else { "no".to_owned() },
            member["share"].as_f64().map_or_else(String::new, |share| format!("{:.2} %", share * 100.0)),
        ]
    });
    [head].into_iter().chain(table::lines(HEAD, rows)).collect::<Vec<_>>().join("\n")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_layout_is_a_table() {
        let member = |slot, url, node_id: Option<&str>, zone: Option<&str>, share| {
            json!({
                "slot": slot, "url": url, "node_id": node_id, "zone": zone, "weight": 1, "state": "active",
                "share": share,
            })
        };
        let layout = json!({
            "cluster_id": "00ff", "epoch": 2, "default_from": 2, "partitions": 4096, "voters": ["http://b:1"],
            "members": [
                member(0, "http://a:1", None, None, 0.5),
                member(1, "http://b:1", Some("00000000000000ab"), Some("west"), 0.4999),
            ],
        });
        let expected = "\
epoch 2, 2 members of cluster 00ff: default_from 2, 4096 partitions
slot  member      node              zone  weight  state   voter  share
0     http://a:1  -                 -     1       active  no     50.00 %
1     http://b:1  00000000000000ab  west  1       active  yes    49.99 %";
        assert_eq!(summary(&layout), expected);
    }
}
