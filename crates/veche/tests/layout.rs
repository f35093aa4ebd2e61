//! The contract of `/v0/layout` and of `veche layout show`, for a node on its own.

mod common;

use common::http::bare;
use common::{Node, data_dir, eventually, run, veche};
use serde_json::Value;

/// Commands on the layout of a node on its own that can have no effect, and the reason.
const REFUSED: [(&str, &[&str], &str); 7] = [
    (
        r#"{"command":"plan","add":["http://b:1"]}"#,
        &["plan", "--add", "http://b:1"],
        "The only member has no URL",
    ),
    (
        r#"{"command":"apply","plan":"0123456789abcdef"}"#,
        &["apply", "0123456789abcdef"],
        "does not keep the plan 0123456789abcdef",
    ),
    (r#"{"command":"pause"}"#, &["pause"], "No change is running"),
    (r#"{"command":"resume"}"#, &["resume"], "No change is running"),
    (r#"{"command":"cancel"}"#, &["cancel"], "No change is running"),
    (r#"{"command":"limit","bytes_per_second":1}"#, &["limit", "200MiB/s"], "No change is running"),
    (
        r#"{"command":"declare-dead","members":["http://b:1"]}"#,
        &["dead", "http://b:1"],
        "http://b:1 is not a member",
    ),
];

/// Waits until the node has raised the feature level of its cluster. Returns its layout.
#[track_caller]
fn complete_layout(node: &Node) -> Value {
    let mut layout = Value::Null;
    eventually("the feature level is raised", || {
        let found = node.connect().exchange(bare("GET", "/v0/layout"));
        layout = serde_json::from_str(&found.text()).expect("JSON");
        layout["feature_level"] == ::cluster::FEATURE_LEVEL_MAX_DEFAULT
    });
    layout
}

/// An empty JSON list.
const EMPTY: Value = Value::Array(Vec::new());

#[test]
fn a_node_shows_its_layout_record() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    complete_layout(&node);
    let found = connection.exchange(bare("GET", "/v0/layout"));
    assert_eq!((found.status, found.header("content-type")), (200, Some("application/json")));
    let layout: Value = serde_json::from_str(&found.text()).expect("JSON");
    let url = format!("http://{}", node.address);
    assert_eq!(layout["epoch"], 3);
    assert_eq!((&layout["default_from"], &layout["partitions"]), (&1.into(), &4_096.into()));
    assert_eq!(layout["cluster_id"].as_str().map(str::len), Some(32));
    assert_eq!(layout["hash"].as_str().map(str::len), Some(64));
    assert_eq!(layout["voters"], serde_json::json!([url]));
    assert!(layout["plan"].is_null() && layout.as_object().expect("an object").contains_key("plan"));
    let member = serde_json::json!({
        "url": url, "node_id": layout["members"][0]["node_id"], "slot": 0, "zone": null, "weight": 1, "state": "active", "share": 1.0,
        "health": "up", "epoch": 3,
    });
    assert_eq!((&layout["voters_unreachable"], &layout["members_behind"]), (&EMPTY, &EMPTY));
    assert_eq!(layout["members"], serde_json::json!([member]));

    let head = connection.exchange(bare("HEAD", "/v0/layout"));
    assert_eq!((head.status, head.body.len()), (200, 0));
    for method in ["PUT", "DELETE", "PATCH"] {
        let refused = connection.exchange(bare(method, "/v0/layout"));
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD, POST")), "{method}");
    }
    let options = connection.exchange(bare("OPTIONS", "/v0/layout"));
    assert_eq!((options.status, options.header("allow")), (204, Some("GET, HEAD, POST")));
    connection.exchange(bare("GET", "/v0/layout?x=1")).assert_problem(400, "takes no parameters");
}

#[test]
fn the_layout_record_of_a_node_survives_restarts() {
    let (_dir, data) = data_dir();
    let layout_of = |node: &Node| {
        let layout = complete_layout(node);
        (layout["cluster_id"].clone(), layout["members"][0]["node_id"].clone(), layout["hash"].clone())
    };
    let node = Node::start(&data);
    let before = layout_of(&node);
    drop(node);
    let again = Node::start(&data);
    assert_eq!(layout_of(&again), before);
    let (_other_dir, other) = data_dir();
    assert_ne!(layout_of(&Node::start(&other)).0, before.0, "two nodes on their own are two clusters");
}

#[test]
fn a_command_that_can_have_no_effect_is_refused_with_the_reason() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let before = complete_layout(&node);
    let mut connection = node.connect();
    let post = |body: &str| {
        format!("POST /v0/layout HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    for (body, _, reason) in REFUSED {
        connection.exchange(post(body)).assert_problem(409, reason);
    }
    connection.exchange(post("")).assert_problem(400, "not a command on the layout");
    connection.exchange(post(r#"{"command":"pause","x":1}"#)).assert_problem(400, "unknown field");
    connection
        .exchange("POST /v0/layout?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        .assert_problem(400, "no parameters");
    let large = post(&" ".repeat((64 << 10) + 1));
    connection.exchange(large).assert_problem(413, "at most 65536 bytes");
    let mut connection = node.connect();
    let unannounced = format!(
        "POST /v0/layout HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10001\r\n{}\r\n0\r\n\r\n",
        " ".repeat(0x1_0001)
    );
    connection.exchange(unannounced).assert_problem(413, "at most 65536 bytes");
    assert_eq!(complete_layout(&node), before, "nothing has changed");
}

#[test]
fn the_commands_that_change_the_layout_print_the_refusal_and_fail() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let url = format!("http://{}", node.address);
    complete_layout(&node);
    for (_, arguments, reason) in REFUSED {
        let mut command = veche();
        command.arg("layout").args(arguments).args(["--url", &url]);
        let (code, stdout, stderr) = run(command);
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains("answers 409: ") && stderr.contains(reason), "{stderr}");
    }
    let mut command = veche();
    command.args(["layout", "plan", "--dead", "--url", &url]);
    assert_eq!(run(command).0, Some(2));
}

#[test]
fn the_command_shows_the_layout_as_a_table_or_as_the_document() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let url = format!("http://{}", node.address);
    let shown = |arguments: &[&str]| {
        let mut command = veche();
        command.args(["layout", "show", "--url", &url]).args(arguments);
        let (code, stdout, stderr) = run(command);
        assert_eq!(code, Some(0), "{stderr}");
        stdout
    };
    let table = shown(&[]);
    assert!(table.starts_with("epoch ") && table.contains(", 1 member of cluster "), "{table}");
    assert!(table.contains(&url) && table.contains("active") && table.contains("100.00 %"), "{table}");
    let document: Value = serde_json::from_str(&shown(&["--json"])).expect("one JSON document");
    assert_eq!(document["members"][0]["url"], url);
}
