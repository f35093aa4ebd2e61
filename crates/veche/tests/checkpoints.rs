//! Checkpoints over HTTP.

mod common;

use common::http::bare;
use common::{Node, data_dir};
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn checkpoints_are_made_and_removed() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    let post = "POST /v0/checkpoint HTTP/1.1\r\nHost: v\r\nContent-Length: 0\r\n\r\n";
    let made = node.exchange(post);
    assert_eq!(made.status, 201, "{made:?}");
    let made: Value = serde_json::from_slice(&made.body).expect("JSON");
    let path = Path::new(made["path"].as_str().expect("a path"));
    assert!(path.is_absolute() && path.is_dir(), "{made}");
    let remove = |name: &str| node.exchange(bare("DELETE", &format!("/v0/checkpoint?name={name}")));
    let name = made["name"].as_str().expect("a name");
    assert_eq!(remove(name).status, 202);
    assert!(!path.exists());
    remove(name).assert_problem(404, "no checkpoint");
    remove("..").assert_problem(400, "name");
    let named = "POST /v0/checkpoint?name=mine HTTP/1.1\r\nHost: v\r\nContent-Length: 0\r\n\r\n";
    let made = node.exchange(named);
    assert_eq!(made.status, 201, "{made:?}");
    let made: Value = serde_json::from_slice(&made.body).expect("JSON");
    assert_eq!(made["name"], "mine");
    node.exchange(named).assert_problem(409, "already");
    let listed: Value =
        serde_json::from_slice(&node.exchange(bare("GET", "/v0/checkpoint")).body).expect("JSON");
    assert_eq!(listed, json!({ "checkpoints": [made] }));
    let renew = |name: &str| {
        node.exchange(format!(
            "PUT /v0/checkpoint?name={name} HTTP/1.1\r\nHost: v\r\nContent-Length: 0\r\n\r\n"
        ))
    };
    assert_eq!(renew("mine").status, 202);
    renew("other").assert_problem(404, "no checkpoint");
    assert_eq!(remove("mine").status, 202);
    let kept: Vec<_> =
        std::iter::repeat_with(|| node.exchange(post)).take_while(|made| made.status == 201).collect();
    assert_eq!(kept.len(), 4, "there is a limit");
    let refused = node.exchange(post);
    refused.assert_problem(503, "4 checkpoints");
    let made: Vec<Value> =
        kept.iter().map(|made| serde_json::from_slice(&made.body).expect("JSON")).collect();
    let mut names: Vec<_> = made.iter().map(|made| made["name"].as_str().expect("a name")).collect();
    assert!(names.iter().all(|name| refused.text().contains(&format!("{name} (made "))), "{refused:?}");
    names.sort_unstable();
    refused.assert_problem(503, &format!("DELETE /v0/checkpoint?name={}", names[0]));
    assert!(refused.header("retry-after").is_some());
}

#[test]
fn making_them_in_a_loop_is_paced() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let make = "POST /v0/checkpoint?name=mine HTTP/1.1\r\nHost: v\r\nContent-Length: 0\r\n\r\n";
    let refused = (0..1_000).find_map(|_| {
        let made = node.exchange(make);
        assert!(matches!(made.status, 201 | 503), "{made:?}");
        node.exchange(bare("DELETE", "/v0/checkpoint?name=mine"));
        (made.status == 503).then_some(made)
    });
    let refused = refused.expect("far more than the bound allows");
    refused.assert_problem(503, "too often");
    let retry_after: u64 = refused.header("retry-after").expect("it says when").parse().expect("seconds");
    assert!((1..=10).contains(&retry_after));
}
