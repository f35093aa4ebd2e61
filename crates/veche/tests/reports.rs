//! What commands say to scripts and to people who wait: `--json`, `--progress`, completions, manual
//! pages.

mod common;

use common::{Node, data_dir, eventually, run, veche};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

/// The JSON document that a command prints, which ends with `code`.
#[track_caller]
fn report_of(code: i32, arguments: &[&str]) -> serde_json::Value {
    let mut command = veche();
    command.args(arguments);
    let (ended, stdout, stderr) = run(command);
    assert_eq!(ended, Some(code), "{arguments:?}: {stderr}");
    assert_eq!(stdout.lines().count(), 1, "{arguments:?}: {stdout}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {stdout}"))
}

#[track_caller]
fn assert_fields(report: &serde_json::Value, names: &[&str]) {
    let fields: Vec<&str> = report.as_object().expect("an object").keys().map(String::as_str).collect();
    let mut expected = names.to_vec();
    expected.sort_unstable();
    assert_eq!(fields, expected);
}

#[test]
fn every_command_reports_as_json() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    let url = &format!("http://{}", node.address);
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (backups, restored, exported, pictures) =
        (&path("backups"), &path("restored"), &path("all.veche"), &path("pictures"));

    assert_eq!(report_of(0, &["status", "--json", "--url", url])["state"], "serving");
    assert!(report_of(0, &["slow", "--json", "--url", url])["requests"].is_array());
    let layout = report_of(0, &["layout", "show", "--json", "--url", url]);
    let fields = [
        "cluster_id",
        "epoch",
        "hash",
        "feature_level",
        "partitions",
        "default_from",
        "members",
        "voters",
        "voters_unreachable",
        "voters_replaced",
        "members_behind",
        "plan",
    ];
    assert_fields(&layout, &fields);
    let repair = report_of(0, &["repair", "--json", "--url", url]);
    assert_fields(&repair, &["url", "compared", "cells_exchanged"]);

    let backup = report_of(0, &["backup", "--json", "--url", url, "--to", backups]);
    let fields = [
        "repository",
        "backup",
        "node",
        "files",
        "bytes",
        "files_copied",
        "bytes_copied",
        "files_replaced",
        "backups",
        "backups_removed",
        "files_removed",
        "damaged_tables",
    ];
    assert_fields(&backup, &fields);
    assert_eq!((&backup["backup"], &backup["backups"]), (&1.into(), &1.into()));
    let verified = report_of(0, &["verify", "--json", "--backup", backups]);
    assert_fields(&verified, &["repository", "ok", "damage", "backups", "files", "bytes", "unneeded_files"]);
    let fields = ["backup", "node", "taken_unix_ms", "files", "bytes", "ok"];
    let of_layout = ["layout_epoch", "placement_epoch", "layout_changing"];
    assert_fields(&verified["backups"][0], &[&fields[..], &of_layout].concat());
    let from_backup = report_of(0, &["restore", "--json", "--from", backups, "--data", restored]);
    let fields = ["data", "backup", "node", "taken_unix_ms", "files", "bytes"];
    assert_fields(&from_backup, &[&fields[..], &of_layout].concat());

    let export = report_of(0, &["export", "--json", "--url", url, "--to", exported]);
    assert_fields(&export, &["to", "entries", "bytes", "left_out"]);
    assert_eq!(export["entries"], 1);
    assert_eq!(report_of(0, &["export", "--json", "--url", url, "--count"])["entries"], 1);
    let import = report_of(0, &["import", "--json", "--url", url, "--from", exported]);
    let fields = [
        "url",
        "ok",
        "entries",
        "superseded",
        "left_out",
        "sent_again",
        "failed",
        "failures",
        "unknown",
        "ended_early",
    ];
    assert_fields(&import, &fields);
    assert_eq!((&import["ok"], &import["entries"]), (&true.into(), &1.into()));
    assert!(import["ended_early"].is_null());
    let whole = std::fs::read(exported).expect("an export");
    std::fs::write(exported, &whole[..whole.len() - 1]).expect("it can be written");
    let cut = report_of(1, &["import", "--json", "--url", url, "--from", exported]);
    assert_fields(&cut, &fields);
    let why = cut["ended_early"].as_str().expect("a sentence");
    assert!(why.contains("cut short"), "{why}");

    let profile = report_of(0, &["profile", "--json", "--target", url, "-s", "1", "-o", pictures]);
    let fields = ["kind", "ms", "total", "lost", "greatest_by_self", "greatest_by_total", "files"];
    assert_fields(&profile, &fields);
    let bench =
        report_of(0, &["bench", "--json", "-", "-q", "--url", url, "-n", "10", "-c", "1", "-k", "10"]);
    assert!(bench["format"].is_string());
    assert!(report_of(0, &["bench", "presets", "--json"])["presets"].is_array());
    node.stop();

    let data = data.to_str().expect("UTF-8");
    let fields = [
        "data",
        "ok",
        "damage",
        "node",
        "tables",
        "table_bytes",
        "cells",
        "log_records",
        "log_ending",
        "future_cells",
    ];
    assert_fields(&report_of(0, &["verify", "--json", "--data", data]), &fields);
    let damaged = format!("{data}/shard-000/CURRENT");
    std::fs::write(damaged, "nonsense").expect("it can be written");
    let damaged = report_of(1, &["verify", "--json", "--data", data]);
    assert_fields(&damaged, &["data", "ok", "damage"]);
    assert_eq!(damaged["ok"], false);
}

#[test]
fn progress_is_shown_without_a_terminal_only_when_it_is_asked_for() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    let url = &format!("http://{}", node.address);
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (backups, exported) = (&path("backups"), &path("all.veche"));
    let restored = [path("restored-1"), path("restored-2")];
    let commands = |restored| {
        [
            vec!["backup", "--url", url, "--to", backups],
            vec!["verify", "--backup", backups],
            vec!["restore", "--from", backups, "--data", restored],
            vec!["verify", "--data", restored],
            vec!["export", "--url", url, "--to", exported],
            vec!["import", "--url", url, "--from", exported],
        ]
    };
    let stderr_of = |arguments: &[&str]| {
        let mut command = veche();
        command.args(arguments);
        let (code, _, stderr) = run(command);
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        stderr
    };
    for arguments in commands(&restored[0]) {
        assert_eq!(stderr_of(&arguments), "", "{arguments:?}");
    }
    std::fs::remove_file(exported).expect("it is there");
    for mut arguments in commands(&restored[1]) {
        arguments.extend(["--progress", "always"]);
        let stderr = stderr_of(&arguments);
        assert!(stderr.contains("ing: "), "{arguments:?}: {stderr}");
    }
}

/// A terminal: the side of the program, and what it has shown so far.
fn terminal() -> (File, Arc<Mutex<String>>) {
    let mut master = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal"));
    grantpt(&master).expect("it can be used");
    unlockpt(&master).expect("it can be used");
    let name = ptsname(&master, Vec::new()).expect("it has a name");
    let slave =
        OpenOptions::new().read(true).write(true).open(name.to_str().expect("ASCII")).expect("it is there");
    let shown = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&shown);
    // Ends when the last process that has the terminal has ended.
    std::thread::spawn(move || {
        let mut bytes = [0; 4_096];
        while let Ok(len @ 1..) = master.read(&mut bytes) {
            kept.lock().expect("no panic").push_str(&String::from_utf8_lossy(&bytes[..len]));
        }
    });
    (slave, shown)
}

#[test]
fn a_terminal_shows_the_rate() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let (slave, shown) = terminal();
    let mut command = veche();
    command.args(["import", "--from", "-", "--url", &format!("http://{}", node.address)]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(slave)
        .spawn()
        .expect("the binary is there");
    let mut stdin = child.stdin.take().expect("piped");
    let line = "{\"key\":\"k\",\"value\":\"v\"}\n".repeat(100);
    eventually("the rate is shown", || {
        stdin.write_all(line.as_bytes()).expect("it reads");
        let shown = shown.lock().expect("no panic");
        shown.contains("importing: ") && shown.contains("iB/s")
    });
    drop(stdin);
    assert!(child.wait().expect("a child").success());
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let commands = [
        "serve",
        "status",
        "layout",
        "repair",
        "verify",
        "backup",
        "restore",
        "export",
        "import",
        "bench",
        "slow",
        "profile",
        "completions",
        "man",
    ];
    for shell in ["bash", "zsh", "fish"] {
        let mut command = veche();
        command.args(["completions", shell]);
        let (code, script, stderr) = run(command);
        assert_eq!(code, Some(0), "{stderr}");
        let missing = commands.iter().find(|name| !script.contains(**name));
        assert_eq!(missing, None, "{shell}");
        assert!(script.contains("drain-delay"), "{shell}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let pages = dir.path().join("man1");
    let mut command = veche();
    command.arg("man").arg(&pages);
    let (code, _, stderr) = run(command);
    assert_eq!(code, Some(0), "{stderr}");
    let page = |name: &str| std::fs::read_to_string(pages.join(format!("{name}.1"))).expect("it is there");
    for name in commands {
        assert!(page("veche").contains(&format!("veche\\-{name}(1)")), "{name} is listed");
        assert!(page(&format!("veche-{name}")).contains(".SH SYNOPSIS"), "{name} has a page");
    }
    assert!(page("veche-serve").contains("VECHE\\_LISTEN") || page("veche-serve").contains("VECHE_LISTEN"));
}
