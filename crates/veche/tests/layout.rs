//! The contract of `/v0/layout` and of `veche layout show`, for a node on its own.

mod common;

use common::http::bare;
use common::{Node, data_dir, eventually, run, veche};
use serde_json::Value;

/// An empty JSON list.
const EMPTY: Value = Value::Array(Vec::new());

#[test]
fn a_node_shows_its_layout_record() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    eventually("the record names the id of the node", || {
        let found = connection.exchange(bare("GET", "/v0/layout"));
        serde_json::from_str::<Value>(&found.text()).expect("JSON")["members"][0]["node_id"].is_string()
    });
    let found = connection.exchange(bare("GET", "/v0/layout"));
    assert_eq!((found.status, found.header("content-type")), (200, Some("application/json")));
    let layout: Value = serde_json::from_str(&found.text()).expect("JSON");
    let url = format!("http://{}", node.address);
    assert_eq!(layout["epoch"], 2);
    assert_eq!((&layout["default_from"], &layout["partitions"]), (&1.into(), &4_096.into()));
    assert_eq!(layout["cluster_id"].as_str().map(str::len), Some(32));
    assert_eq!(layout["hash"].as_str().map(str::len), Some(64));
    assert_eq!(layout["voters"], serde_json::json!([url]));
    assert!(layout["plan"].is_null() && layout.as_object().expect("an object").contains_key("plan"));
    let member = serde_json::json!({
        "url": url, "node_id": layout["members"][0]["node_id"], "slot": 0, "zone": null, "weight": 1, "state": "active", "share": 1.0,
        "health": "up", "epoch": 2,
    });
    assert_eq!((&layout["voters_unreachable"], &layout["members_behind"]), (&EMPTY, &EMPTY));
    assert_eq!(layout["members"], serde_json::json!([member]));

    let head = connection.exchange(bare("HEAD", "/v0/layout"));
    assert_eq!((head.status, head.body.len()), (200, 0));
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        let refused = connection.exchange(bare(method, "/v0/layout"));
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")), "{method}");
    }
    let options = connection.exchange(bare("OPTIONS", "/v0/layout"));
    assert_eq!((options.status, options.header("allow")), (204, Some("GET, HEAD")));
    connection.exchange(bare("GET", "/v0/layout?x=1")).assert_problem(400, "takes no parameters");
}

#[test]
fn the_layout_record_of_a_node_survives_restarts() {
    let (_dir, data) = data_dir();
    let layout_of = |node: &Node| {
        let layout = || {
            let found = node.connect().exchange(bare("GET", "/v0/layout"));
            serde_json::from_str::<Value>(&found.text()).expect("JSON")
        };
        eventually("the record names the node", || layout()["members"][0]["node_id"].is_string());
        let layout = layout();
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
