//! `veche layout plan | apply | pause | resume | cancel | limit | dead`: commands on the layout of
//! a cluster, each of which is one request to a node.

use crate::client::{self, CommandRequest, RequestLimits};
use crate::node_url::NodeUrl;
use crate::output::ReportForm;
use crate::progress::{Bytes, Count, Time};
use crate::quantity::{Size, whole};
use crate::table;
use serde_json::{Value, json};
use std::str::FromStr;
use std::time::Duration;

/// Limits of a request: a node answers a command within 10 seconds, and plans in less. The preview
/// of a plan names each pair of members.
const LIMITS: RequestLimits = RequestLimits { timeout: Duration::from_secs(30), answer_bytes_max: 4 << 20 };

/// The columns of the table of members in a preview.
const HEAD: [&str; 7] = ["member", "zone", "weight", "share", "then", "receives", "gives"];
/// The columns of the table of steps of the running change.
const STEP_HEAD: [&str; 6] = ["from", "to", "phase", "partitions", "since", "waits for"];
/// Time without progress of a change that is shown, at least, in seconds.
const SHOWN_WITHOUT_PROGRESS_SECONDS: u64 = 60;

/// Plan a change of the members, and show the data that it moves. The node keeps the plan until it
/// is applied or the next one is made. Without changes, the balance of the members is restored.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArguments {
    /// A node that is to hold data; give it several times, or separate them by commas
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    add: Vec<NodeUrl>,
    /// A member that is to leave
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    remove: Vec<NodeUrl>,
    /// A member that is to leave, and the node that takes its data over
    #[arg(long, value_name = "OLD=NEW", value_delimiter = ',')]
    replace: Vec<Assignment<NodeUrl>>,
    /// The replaced members do not come back: their data is copied from others
    #[arg(long, requires = "replace")]
    dead: bool,
    /// The weight of a member: its relative share of the data
    #[arg(long, value_name = "URL=NUMBER", value_delimiter = ',')]
    weight: Vec<Assignment<Weight>>,
    /// The zone of a member; an empty name makes it a zone of its own
    #[arg(long, value_name = "URL=NAME", value_delimiter = ',')]
    zone: Vec<Assignment<String>>,
    /// The rate at which data moves to and from each node, such as 200MiB/s
    #[arg(long, value_name = "RATE")]
    limit: Option<Rate>,
    #[command(flatten)]
    node: AskedNode,
}

/// Begin the change of a plan.
#[derive(Debug, clap::Args)]
pub(crate) struct ApplyArguments {
    /// Name of the plan, which `veche layout plan` prints
    #[arg(value_name = "PLAN")]
    plan: String,
    #[command(flatten)]
    node: AskedNode,
}

/// Set the rate at which data of the running change moves to and from each node.
#[derive(Debug, clap::Args)]
pub(crate) struct LimitArguments {
    /// A rate such as 200MiB/s, or `none`
    #[arg(value_name = "RATE")]
    rate: Limit,
    #[command(flatten)]
    node: AskedNode,
}

/// Record that members do not come back.
#[derive(Debug, clap::Args)]
pub(crate) struct DeadArguments {
    /// URLs of the members
    #[arg(value_name = "URL", required = true)]
    members: Vec<NodeUrl>,
    #[command(flatten)]
    node: AskedNode,
}

/// The node that is asked, and the form of its answer.
#[derive(Debug, clap::Args)]
pub(crate) struct AskedNode {
    /// Address of any node of the cluster
    #[arg(long, env = "VECHE_URL", value_name = "URL", default_value = client::URL_DEFAULT)]
    url: NodeUrl,
    #[command(flatten)]
    report: ReportForm,
}

/// A setting of a node: `URL=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Assignment<T> {
    url: NodeUrl,
    value: T,
}

impl<T: FromStr> FromStr for Assignment<T>
where
    T::Err: ToString,
{
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (url, value) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not of the form URL=VALUE"))?;
        let url = url.parse().map_err(|error: crate::node_url::NodeUrlError| error.to_string())?;
        let value = value.parse().map_err(|error: T::Err| error.to_string())?;
        Ok(Self { url, value })
    }
}

/// A weight of at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Weight(u16);

impl FromStr for Weight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        whole(1, u64::from(u16::MAX))(text).map(Self)
    }
}

/// A rate of at least one byte for each second: `200MiB/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate(u64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = text.trim().strip_suffix("/s").and_then(|size| size.parse::<Size>().ok());
        let rate = size.filter(|Size(bytes)| *bytes > 0);
        rate.map(|Size(bytes)| Self(bytes)).ok_or_else(|| format!("{text:?} is not a rate such as 200MiB/s"))
    }
}

/// A rate, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(Option<Rate>);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            text => text.parse().map(|rate| Self(Some(rate))).map_err(|error| format!("{error}, or none")),
        }
    }
}

pub(crate) fn plan(arguments: &PlanArguments) -> Result<(), String> {
    let node = &arguments.node;
    let document = send(node, &body_of_plan(arguments))?;
    node.report.print(|| preview(&document, &node.url), || document.clone());
    Ok(())
}

pub(crate) fn apply(arguments: &ApplyArguments) -> Result<(), String> {
    let command = json!({ "command": "apply", "plan": arguments.plan });
    change(&arguments.node, &command, "the change has begun: veche layout show follows it")
}

pub(crate) fn pause(node: &AskedNode) -> Result<(), String> {
    change(node, &json!({ "command": "pause" }), "the change is paused: no further step begins")
}

pub(crate) fn resume(node: &AskedNode) -> Result<(), String> {
    change(node, &json!({ "command": "resume" }), "the change goes on")
}

pub(crate) fn cancel(node: &AskedNode) -> Result<(), String> {
    let told = "the change is cancelled: it ends once its unfinished steps are taken back";
    change(node, &json!({ "command": "cancel" }), told)
}

pub(crate) fn limit(arguments: &LimitArguments) -> Result<(), String> {
    let Limit(rate) = arguments.rate;
    let bytes = rate.map(|Rate(bytes)| bytes);
    let told = match bytes {
        Some(bytes) => format!("data moves at most at {}/s to and from each node", Bytes(bytes)),
        None => "data moves without a limit".to_owned(),
    };
    change(&arguments.node, &json!({ "command": "limit", "bytes_per_second": bytes }), &told)
}

pub(crate) fn dead(arguments: &DeadArguments) -> Result<(), String> {
    let urls: Vec<_> = arguments.members.iter().map(NodeUrl::to_string).collect();
    let told = format!("recorded as dead: {}", urls.join(", "));
    change(&arguments.node, &json!({ "command": "declare-dead", "members": urls }), &told)
}

fn body_of_plan(arguments: &PlanArguments) -> Value {
    let PlanArguments { add, remove, replace, dead, weight, zone, limit, node: _ } = arguments;
    let urls = |urls: &[NodeUrl]| urls.iter().map(NodeUrl::to_string).collect::<Vec<_>>();
    let replace = replace.iter().map(
        |Assignment { url, value }| json!({ "old": url.to_string(), "new": value.to_string(), "dead": dead }),
    );
    let weight = weight
        .iter()
        .map(|Assignment { url, value: Weight(weight) }| json!({ "url": url.to_string(), "weight": weight }));
    let zone = zone.iter().map(|Assignment { url, value }| json!({ "url": url.to_string(), "zone": value }));
    json!({
        "command": "plan", "add": urls(add), "remove": urls(remove), "replace": replace.collect::<Vec<_>>(),
        "weight": weight.collect::<Vec<_>>(), "zone": zone.collect::<Vec<_>>(),
        "bytes_per_second": limit.map(|Rate(bytes)| bytes),
    })
}

/// Sends a command that changes the layout, and prints its effect.
fn change(node: &AskedNode, command: &Value, told: &str) -> Result<(), String> {
    let document = send(node, command)?;
    node.report.print(|| format!("epoch {}: {told}", document["epoch"]), || document.clone());
    Ok(())
}

/// Sends a command. Returns the document of its effect.
fn send(node: &AskedNode, command: &Value) -> Result<Value, String> {
    let url = &node.url;
    let request = CommandRequest { method: "POST", path: "/v0/layout", body: &command.to_string() };
    client::document_of(url, &request.send(url, &LIMITS)?)
}

/// The text of a preview.
fn preview(plan: &Value, url: &NodeUrl) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let name = plan["plan"].as_str().unwrap_or("?");
    let copies = number(&plan["copies_moved"]);
    let moved = match plan["bytes_moved"].as_u64() {
        Some(bytes) => format!("about {}", Bytes(bytes)),
        None => "of a size that this node cannot estimate, because it holds no data".to_owned(),
    };
    let time = match (plan["bytes_per_second"].as_u64(), plan["seconds_at_limit"].as_u64()) {
        (Some(rate), Some(seconds)) => {
            format!("; at {}/s for each node at least {}", Bytes(rate), Time(Duration::from_secs(seconds)))
        }
        (Some(rate), None) => format!("; at {}/s for each node", Bytes(rate)),
        (None, _) => "; without a limit of the rate".to_owned(),
    };
    let mut lines = vec![format!(
        "plan {name} for epoch {}: {copies} of {} copies of partitions move, {moved}{time}",
        plan["epoch"], plan["copies"]
    )];
    let members = plan["members"].as_array().map_or(&[][..], Vec::as_slice);
    lines.extend(table::lines(HEAD, members.iter().map(member_row)));
    let notes = plan["notes"].as_array().map_or(&[][..], Vec::as_slice);
    lines.extend(notes.iter().filter_map(Value::as_str).map(|note| format!("note: {note}")));
    lines.push(format!("to begin it: veche layout apply {name} --url {url}"));
    lines.join("\n")
}

fn member_row(member: &Value) -> [String; 7] {
    let share = |value: &Value| format!("{:.2} %", value.as_f64().unwrap_or(0.0) * 100.0);
    let amount = |partitions: &Value, bytes: &Value| match bytes.as_u64() {
        Some(bytes) => Bytes(bytes).to_string(),
        None => Count(partitions.as_u64().unwrap_or(0), "partition").to_string(),
    };
    [
        member["url"].as_str().unwrap_or("-").to_owned(),
        member["zone"].as_str().unwrap_or("-").to_owned(),
        member["weight"].to_string(),
        share(&member["share_before"]),
        if member["is_removed"] == true { "removed".to_owned() } else { share(&member["share_after"]) },
        amount(&member["partitions_gained"], &member["bytes_gained"]),
        amount(&member["partitions_lost"], &member["bytes_lost"]),
    ]
}

/// The lines about the running change. None if no change runs.
pub(crate) fn running(plan: &Value) -> Vec<String> {
    if !plan.is_object() {
        return Vec::new();
    }
    let time = |value: &Value| value.as_u64().map(|seconds| Time(Duration::from_secs(seconds)).to_string());
    let state = plan["state"].as_str().unwrap_or("running");
    let mut head = format!("change since epoch {}: {state}", plan["began"]);
    if let Some(left) = plan["copies_left"].as_u64() {
        head += &format!(", {left} copies of partitions left");
    }
    if let (Some(moved @ 1..), Some(seconds @ 1..)) =
        (plan["copies_moved"].as_u64(), plan["seconds"].as_u64())
    {
        head += &format!(", {moved} moved, {:.1}/s", moved as f64 / seconds as f64);
    }
    if let Some(left) = time(&plan["seconds_left"]) {
        head += &format!(", {left} left");
    }
    head += &match plan["bytes_per_second"].as_u64() {
        Some(rate) => format!(", at most {}/s for each node", Bytes(rate)),
        None => ", without a limit of the rate".to_owned(),
    };
    let steps = plan["steps"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let rows = steps.iter().map(|step| {
        [
            text(&step["from"]),
            text(&step["to"]),
            text(&step["phase"]),
            step["partitions"].to_string(),
            time(&step["seconds"]).unwrap_or_else(|| "-".to_owned()),
            text(&step["waits_for"]),
        ]
    });
    let mut lines = vec![head];
    if !steps.is_empty() {
        lines.extend(table::lines(STEP_HEAD, rows));
    }
    lines.extend(plan["waits_for"].as_str().map(|wait| format!("waits for {wait}")));
    if let Some(seconds @ SHOWN_WITHOUT_PROGRESS_SECONDS..) = plan["seconds_without_progress"].as_u64() {
        lines.push(format!("no progress for {}", Time(Duration::from_secs(seconds))));
    }
    let advice = plan["advice"].as_array().map_or(&[][..], Vec::as_slice);
    lines.extend(advice.iter().filter_map(Value::as_str).map(|line| format!("to do: {line}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Plan {
        #[command(flatten)]
        plan: PlanArguments,
    }

    fn parse(arguments: &[&str]) -> Result<Value, clap::Error> {
        let parsed = Plan::try_parse_from(["plan"].iter().chain(arguments))?;
        Ok(body_of_plan(&parsed.plan))
    }

    #[test]
    fn a_plan_is_sent_with_canonical_addresses() {
        let body = parse(&[
            "--add",
            "http://D:1,http://e",
            "--remove",
            "http://a:1",
            "--replace",
            "http://b:1=http://f:1",
            "--dead",
            "--weight",
            "http://c:1=2",
            "--zone",
            "http://c:1=west",
            "--zone",
            "http://g:1=",
            "--limit",
            "200MiB/s",
        ])
        .expect("a command line");
        let expected = json!({
            "command": "plan", "add": ["http://d:1", "http://e:80"], "remove": ["http://a:1"],
            "replace": [{ "old": "http://b:1", "new": "http://f:1", "dead": true }],
            "weight": [{ "url": "http://c:1", "weight": 2 }],
            "zone": [{ "url": "http://c:1", "zone": "west" }, { "url": "http://g:1", "zone": "" }],
            "bytes_per_second": 200 << 20,
        });
        assert_eq!(body, expected);
        let decoded = api::LayoutCommandRequest::decode(body.to_string().as_bytes());
        assert!(matches!(decoded, Ok(api::LayoutCommandRequest::Plan { changes, .. }) if changes.len() == 7));
        let empty = parse(&[]).expect("a command line").to_string();
        assert!(api::LayoutCommandRequest::decode(empty.as_bytes()).is_ok());
    }

    #[test]
    fn a_command_line_that_is_not_understood_is_refused() {
        for arguments in [
            &["--add", "d:1"][..],
            &["--replace", "http://b:1"],
            &["--replace", "http://b:1=f"],
            &["--dead"],
            &["--weight", "http://c:1=0"],
            &["--weight", "http://c:1=65536"],
            &["--weight", "http://c:1"],
            &["--zone", "west"],
            &["--limit", "200MiB"],
            &["--limit", "0MiB/s"],
            &["--limit", "none"],
        ] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
        assert_eq!("none".parse(), Ok(Limit(None)));
        assert_eq!("1kB/s".parse(), Ok(Limit(Some(Rate(1_000)))));
        assert!("fast".parse::<Limit>().is_err());
    }

    #[test]
    fn a_preview_is_a_table_with_the_command_that_applies_it() {
        let member = |url: &str, after, is_removed, gained, lost| {
            json!({
                "url": url, "zone": null, "weight": 1, "is_removed": is_removed, "share_before": 0.5,
                "share_after": after, "partitions_gained": gained, "partitions_lost": lost,
                "bytes_gained": gained << 20, "bytes_lost": lost << 20,
            })
        };
        let plan = json!({
            "plan": "00000000000000ab", "epoch": 4, "copies": 8, "copies_moved": 4, "bytes_moved": 4 << 20,
            "bytes_per_second": 1 << 20, "seconds_at_limit": 4,
            "members": [member("http://a:1", 1.0, false, 4, 0), member("http://b:1", 0.0, true, 0, 4)],
            "notes": ["one note"],
        });
        let url = "http://a:1".parse().expect("a URL");
        let expected = "\
plan 00000000000000ab for epoch 4: 4 of 8 copies of partitions move, about 4.0 MiB; at 1.0 MiB/s for each node at least 4 s
member      zone  weight  share    then      receives  gives
http://a:1  -     1       50.00 %  100.00 %  4.0 MiB   0 bytes
http://b:1  -     1       50.00 %  removed   0 bytes   4.0 MiB
note: one note
to begin it: veche layout apply 00000000000000ab --url http://a:1";
        assert_eq!(preview(&plan, &url), expected);
    }

    #[test]
    fn a_running_change_is_shown_with_its_rate_and_the_time_left() {
        assert_eq!(running(&Value::Null), Vec::<String>::new());
        let mut plan = json!({
            "began": 2, "state": "running", "bytes_per_second": null, "copies_left": 30, "copies_moved": 10,
            "seconds": 20, "seconds_left": 60,
            "steps": [{
                "from": "http://b:1", "to": "http://a:1", "phase": "prepare", "partitions": 2, "since_epoch": 2,
                "seconds": 61, "waits_for": "http://a:1 to copy the data",
            }],
        });
        let expected = [
            "change since epoch 2: running, 30 copies of partitions left, 10 moved, 0.5/s, 1 min 0 s left, without a limit of \
             the rate",
            "from        to          phase    partitions  since      waits for",
            "http://b:1  http://a:1  prepare  2           1 min 1 s  http://a:1 to copy the data",
        ];
        assert_eq!(running(&plan), expected);
        plan["waits_for"] = json!("http://c:1 to be filled by the others");
        plan["seconds_without_progress"] = json!(400);
        plan["advice"] = json!(["make room", "start the voters"]);
        let expected = [
            "waits for http://c:1 to be filled by the others",
            "no progress for 6 min 40 s",
            "to do: make room",
            "to do: start the voters",
        ];
        assert_eq!(running(&plan)[3..], expected);
        plan["seconds_without_progress"] = json!(59);
        (plan["waits_for"], plan["advice"]) = (Value::Null, json!([]));
        assert_eq!(running(&plan).len(), 3, "a moment is not worth a line");
        plan["steps"] = json!([]);
        plan["state"] = json!("paused");
        plan["seconds_left"] = Value::Null;
        assert_eq!(running(&plan).len(), 1);
    }
}
