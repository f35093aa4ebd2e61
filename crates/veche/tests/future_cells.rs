//! Cells that a wrong clock left in a data directory, seen from outside: `verify` names them, and
//! an export or an import leaves them out.

mod common;

use cluster::{Key, NodeSet, ReplicaRequest, StoreId, StoreRequest};
use common::{Node, data_dir, run, veche};
use env::Env;
use std::path::Path;
use std::time::Duration;
use stdx::{Cell, Hlc, NodeTag, Version};
use store::{AWAY_MAX_DEFAULT, AfterAbsence, Membership, SNAPSHOT_AGE_DEFAULT, Store, StoreOptions};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Runs `veche` with these arguments, which succeeds. What it prints.
#[track_caller]
fn done(arguments: &[&str]) -> String {
    let mut command = veche();
    command.args(arguments);
    let (code, out, err) = run(command);
    assert_eq!(code, Some(0), "{out}{err}");
    out
}

/// Puts a value of next year into a directory that no node has open, past all that refuses it.
fn leave_future_value(data: &Path, key: &str) {
    let options = StoreOptions {
        engine: engine::Options { memory_bytes: 32 << 20, ..engine::Options::default() },
        membership: Membership::of(Vec::new()),
        new_tag: NodeTag(1),
        away_max: AWAY_MAX_DEFAULT,
        after_absence: AfterAbsence::Rebuild,
        snapshot_age: SNAPSHOT_AGE_DEFAULT,
    };
    let env = Env::os();
    let hlc = Hlc::at(env.clock.now().wall.saturating_add(YEAR));
    let (store, _) = Store::open(env, data, options).expect("no node has it");
    let cell = Cell::value(Version::new(hlc, NodeTag(7)), 1, "of next year".into());
    let key = Key::new(key.to_owned().into()).expect("a short key");
    let mut group = store.write_group();
    group.add(StoreId(1), &StoreRequest::Replica(ReplicaRequest::Write { key, cell, hints: NodeSet::EMPTY }));
    store.submit(group, |_, _| {});
    while store.engine().step_commit().expect("the disk works") {}
    store.close().expect("the disk works");
}

#[test]
fn cells_of_the_future_are_listed_and_left_out_on_the_way_to_a_new_cluster() {
    let (dir, data) = data_dir();
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let node = Node::start(&data);
    (0..5).for_each(|i| assert_eq!(node.put(&format!("k{i}"), format!("v{i}")).status, 201));
    node.stop();
    let data_text = text(&data);
    let sound = done(&["verify", "--data", &data_text]);
    assert!(!sound.contains("future"), "{sound}");

    leave_future_value(&data, "spoilt");
    let said = done(&["verify", "--data", &data_text]);
    assert!(said.contains("all as written"), "it is no damage: {said}");
    assert!(said.contains("1 cell has a version in the future, up to 3153"), "{said}");
    assert!(said.contains("  \"spoilt\": "), "{said}");

    let node = Node::start(&data);
    let url = format!("http://{}", node.address);
    assert_eq!(node.get("spoilt").text(), "of next year");
    for format in ["binary", "ndjson"] {
        let in_dir = |name: &str| text(&dir.path().join(format!("{name}.{format}")));
        let (all, past, twice) = (in_dir("all"), in_dir("past"), in_dir("twice"));
        let out = done(&["export", "--url", &url, "--format", format, "--to", &all]);
        assert!(out.contains("6 entries") && !out.contains("left out"), "{out}");
        let out = done(&["export", "--url", &url, "--format", format, "--skip-future", "--to", &past]);
        assert!(
            out.contains("5 entries") && out.contains("1 left out, with versions in the future"),
            "{out}"
        );
        for (file, skipped) in [(&all, true), (&past, false)] {
            let (_other_dir, other_data) = data_dir();
            let other = Node::start(&other_data);
            let other_url = format!("http://{}", other.address);
            let out = done(&["import", "--url", &other_url, "--skip-future", "--from", file]);
            assert!(out.contains("5 entries imported"), "{out}");
            assert_eq!(out.contains("1 left out, with versions in the future"), skipped, "{out}");
            assert_eq!((other.get("spoilt").status, other.get("k3").text()), (404, "v3".to_owned()));
            let out = done(&["export", "--url", &other_url, "--skip-future", "--to", &twice]);
            assert!(out.contains("5 entries") && !out.contains("left out"), "{out}");
            std::fs::remove_file(&twice).expect("it was written");
        }
    }
}
