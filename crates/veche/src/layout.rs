//! `veche layout`: show the layout of a cluster, change it, and recover it without its majority.

use crate::client;
use crate::layout_change::{self, ApplyArguments, AskedNode, DeadArguments, LimitArguments, PlanArguments};
use crate::node_url::NodeUrl;
use crate::output::{ReportForm, print_line};
use crate::settings::DATA_DEFAULT;
use crate::table;
use crate::verify::expect_data_directory;
use api::{LayoutDocument, NodeState, SeenMember};
use cluster::LayoutRecord;
use env::Env;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use store::{BEFORE_RECOVERY_SUFFIX, Recover, RecoveredLayout};

/// The columns of the table of members.
const HEAD: [&str; 10] =
    ["slot", "member", "node", "zone", "weight", "state", "health", "epoch", "voter", "share"];
/// The columns that a node adds to its record.
const OBSERVED: [&str; 2] = ["health", "epoch"];

/// Show the layout of a cluster, and change its members.
#[derive(Debug, clap::Args)]
pub(crate) struct LayoutArguments {
    #[command(subcommand)]
    command: LayoutCommand,
}

#[derive(Debug, clap::Subcommand)]
enum LayoutCommand {
    /// Show the layout record of a node: epoch, members and their shares of the data.
    Show(ShowArguments),
    /// Give the remaining nodes of a cluster a new layout record, if most voters are lost for good.
    Recover(RecoverArguments),
    /// Plan a change of the members, and show the data that it moves.
    Plan(PlanArguments),
    /// Begin the change of a plan.
    Apply(ApplyArguments),
    /// Begin no further step of the running change.
    Pause(AskedNode),
    /// Go on with the paused change.
    Resume(AskedNode),
    /// End the running change, and take back its unfinished steps.
    Cancel(AskedNode),
    /// Set the rate at which data of the running change moves.
    Limit(LimitArguments),
    /// Record that members do not come back.
    Dead(DeadArguments),
}

/// Give the remaining nodes of a cluster a new layout record, if most voters are lost for good. Run
/// it with the same --lost in the data directory of every remaining node, while all are stopped.
#[derive(Debug, clap::Args)]
struct RecoverArguments {
    /// Data directory of a stopped node
    #[arg(long, env = "VECHE_DATA", value_name = "DIR", default_value = DATA_DEFAULT)]
    data: PathBuf,
    /// A node that does not come back; give it several times, or separate them by commas
    #[arg(long, required = true, value_name = "URL", value_delimiter = ',')]
    lost: Vec<NodeUrl>,
    /// Confirm that the lost nodes never start again, and that writes they alone held are lost
    #[arg(long = "unsafe", required_unless_present = "dry_run")]
    is_confirmed: bool,
    /// Print the record that would be written, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    report: ReportForm,
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
    match &arguments.command {
        LayoutCommand::Show(arguments) => show(arguments),
        LayoutCommand::Recover(arguments) => recover(arguments),
        LayoutCommand::Plan(arguments) => layout_change::plan(arguments),
        LayoutCommand::Apply(arguments) => layout_change::apply(arguments),
        LayoutCommand::Pause(node) => layout_change::pause(node),
        LayoutCommand::Resume(node) => layout_change::resume(node),
        LayoutCommand::Cancel(node) => layout_change::cancel(node),
        LayoutCommand::Limit(arguments) => layout_change::limit(arguments),
        LayoutCommand::Dead(arguments) => layout_change::dead(arguments),
    }
}

fn recover(arguments: &RecoverArguments) -> Result<(), String> {
    let lost: Vec<_> = arguments.lost.iter().map(NodeUrl::to_string).collect();
    let data = &arguments.data;
    expect_data_directory(data)?;
    let recover = if arguments.dry_run { Recover::DryRun } else { Recover::Apply };
    let recovered =
        store::recover_layout(&Env::os(), data, &lost, recover).map_err(|error| error.to_string())?;
    let RecoveredLayout { former, record, kept } = &recovered;
    let document = document(record);
    let join = |urls: Vec<&str>| urls.join(", ");
    arguments.report.print(
        || {
            let verb = if arguments.dry_run { "would follow" } else { "follows" };
            format!(
                "{}: epoch {} of cluster {} {verb} epoch {} of cluster {}\n{}\n{}",
                data.display(),
                record.epoch,
                record.cluster,
                former.epoch,
                former.cluster,
                summary(&document),
                match arguments.dry_run {
                    true => "nothing was changed: repeat the command with --unsafe and without --dry-run"
                        .to_owned(),
                    false => format!(
                        "run the same command for all remaining nodes before one is started: {}\n{}",
                        join(recovered.remaining().collect()),
                        how_to_undo(data, kept)
                    ),
                }
            )
        },
        || {
            let mut document = document.clone();
            document["former_cluster_id"] = json!(former.cluster.to_string());
            document["remaining"] = json!(recovered.remaining().collect::<Vec<_>>());
            document["dry_run"] = json!(arguments.dry_run);
            document["kept"] = json!(kept_files(kept));
            document
        },
    );
    Ok(())
}

/// The record, without what only a running node knows: how it sees the members.
fn document(record: &LayoutRecord) -> Value {
    let unseen = SeenMember { health: NodeState::Unknown, epoch: None, is_named_heard: false };
    let shown = json!(LayoutDocument::of(record, "", |_| unseen));
    let names =
        ["cluster_id", "epoch", "hash", "feature_level", "partitions", "default_from", "members", "voters"];
    let mut document: Value = names.map(|name| (name.to_owned(), shown[name].clone())).into_iter().collect();
    for member in document["members"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        OBSERVED.iter().for_each(|name| drop(member.remove(*name)));
    }
    document
}

/// Names of the files with the former content.
fn kept_files(kept: &[&str]) -> Vec<String> {
    kept.iter().map(|name| format!("{name}{BEFORE_RECOVERY_SUFFIX}")).collect()
}

/// The sentence that says how the recovery is undone.
fn how_to_undo(data: &Path, kept: &[&str]) -> String {
    let moves = kept.iter().map(|name| {
        let path = data.join(name);
        let former = data.join(format!("{name}{BEFORE_RECOVERY_SUFFIX}"));
        format!("mv {} {}", stdx::shell_path(&former), stdx::shell_path(&path))
    });
    format!("to undo it, before any of them is started, on each: {}", moves.collect::<Vec<_>>().join(" && "))
}

fn show(arguments: &ShowArguments) -> Result<(), String> {
    let ShowArguments { url, json } = arguments;
    let answer = client::request(url, "GET", "/v0/layout")?;
    let document = client::document_of(url, &answer)?;
    print_line!("{}", if *json { answer.body } else { summary(&document) });
    Ok(())
}

fn summary(layout: &Value) -> String {
    let members = layout["members"].as_array().map_or(&[][..], Vec::as_slice);
    let head = format!(
        "epoch {}, {} of cluster {}: default_from {}, {} partitions, feature level {}\nhash {}",
        layout["epoch"],
        crate::progress::Count(members.len() as u64, "member"),
        text(&layout["cluster_id"]),
        layout["default_from"],
        layout["partitions"],
        layout["feature_level"],
        text(&layout["hash"]),
    );
    let is_observed = members.iter().any(|member| OBSERVED.iter().any(|name| !member[*name].is_null()));
    let voters = layout["voters"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = members.iter().map(|member| {
        [
            member["slot"].to_string(),
            text(&member["url"]),
            text(&member["node_id"]),
            text(&member["zone"]),
            member["weight"].to_string(),
            text(&member["state"]),
            text(&member["health"]),
            member["epoch"].as_u64().map_or_else(|| "-".to_owned(), |epoch| epoch.to_string()),
            if voters.contains(&member["url"]) { "yes".to_owned() } else { "no".to_owned() },
            member["share"].as_f64().map_or_else(String::new, |share| format!("{:.2} %", share * 100.0)),
        ]
    });
    let mut lines = vec![head];
    match is_observed {
        true => lines.extend(table::lines(HEAD, rows)),
        false => lines.extend(table::lines(recorded(HEAD), rows.map(recorded))),
    }
    lines.extend(urls(&layout["voters_unreachable"]).map(|urls| format!("voters out of reach: {urls}")));
    lines.extend(urls(&layout["voters_replaced"]).map(|urls| {
        format!(
            "another node has taken the place of {urls}: it is named once it is rebuilt and a majority of voters is in reach"
        )
    }));
    lines.extend(layout_change::running(&layout["plan"]));
    lines.extend(urls(&layout["members_behind"]).map(|urls| format!("members with an older record: {urls}")));
    lines.join("\n")
}

/// The cells of a row without the columns that a node adds to its record.
fn recorded<T>([slot, member, node, zone, weight, state, _, _, voter, share]: [T; 10]) -> [T; 8] {
    [slot, member, node, zone, weight, state, voter, share]
}

/// The URLs in a list, separated by commas; `None` if there are none.
fn urls(list: &Value) -> Option<String> {
    let urls: Vec<_> = list.as_array()?.iter().filter_map(Value::as_str).collect();
    (!urls.is_empty()).then(|| urls.join(", "))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::ClusterOrigin;
    use serde_json::json;
    use stdx::NodeTag;

    fn origin() -> ClusterOrigin {
        let nodes = ["http://a:1", "http://b:1"].map(String::from).to_vec();
        ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from: 2, tag: NodeTag(7) }
    }

    #[test]
    fn a_layout_is_a_table() {
        let member = |slot,
                      url,
                      node_id: Option<&str>,
                      zone: Option<&str>,
                      share,
                      health,
                      epoch: Option<u64>| {
            json!({
                "slot": slot, "url": url, "node_id": node_id, "zone": zone, "weight": 1, "state": "active",
                "share": share, "health": health, "epoch": epoch,
            })
        };
        let layout = json!({
            "cluster_id": "00ff", "epoch": 2, "hash": "abcd", "feature_level": 1, "default_from": 2, "partitions": 4096,
            "voters": ["http://b:1"], "voters_unreachable": ["http://b:1"], "members_behind": ["http://a:1"],
            "voters_replaced": ["http://b:1"],
            "members": [
                member(0, "http://a:1", None, None, 0.5, "up", Some(1)),
                member(1, "http://b:1", Some("00000000000000ab"), Some("west"), 0.4999, "unreachable", None),
            ],
        });
        let expected = "\
epoch 2, 2 members of cluster 00ff: default_from 2, 4096 partitions, feature level 1
hash abcd
slot  member      node              zone  weight  state   health       epoch  voter  share
0     http://a:1  -                 -     1       active  up           1      no     50.00 %
1     http://b:1  00000000000000ab  west  1       active  unreachable  -      yes    49.99 %
voters out of reach: http://b:1
another node has taken the place of http://b:1: it is named once it is rebuilt and a majority of voters is in reach
members with an older record: http://a:1";
        assert_eq!(summary(&layout), expected);
        let without_observations = document(&LayoutRecord::first(origin()).expect("two nodes"));
        let shown = summary(&without_observations);
        let head = "slot  member      node  zone  weight  state   voter  share";
        let row = "0     http://a:1  -     -     1       active  yes    50.00 %";
        assert!(shown.contains(head) && shown.contains(row), "{shown}");
        let older = json!({"epoch": 1, "members": [], "cluster_id": "00ff"});
        assert!(!summary(&older).contains("out of reach"), "a node of a release that does not say");
    }
}
