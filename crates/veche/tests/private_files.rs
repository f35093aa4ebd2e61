//! Files that hold data are their owner's alone, and a backup copies only what it asked for.

mod common;

use common::http::{bare, exchange};
use common::{Node, data_dir, run, veche};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The binary, started with an umask that takes no right away.
fn careless_veche() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_veche")]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VECHE_")) {
        command.env_remove(name);
    }
    command
}

/// Starts a node on `data` with such an umask.
fn start(data: &Path) -> Node {
    let mut command = careless_veche();
    command.env("VECHE_MEMORY", "64MiB").env("VECHE_REQUEST_TIMEOUT", common::REQUEST_TIMEOUT);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data);
    Node::spawn(command)
}

/// Runs a subcommand with such an umask; it must succeed.
#[track_caller]
fn done(arguments: &[&str]) -> String {
    let mut command = careless_veche();
    command.args(arguments);
    let (code, out, err) = run(command);
    assert_eq!(code, Some(0), "{arguments:?}: {out}{err}");
    out
}

/// Runs a subcommand that must fail; the sentence.
#[track_caller]
fn refused(arguments: &[&str]) -> String {
    let mut command = veche();
    command.args(arguments);
    let (code, out, err) = run(command);
    assert_eq!(code, Some(1), "{arguments:?}: {out}{err}");
    err
}

/// All that is below `path`, and itself.
fn tree(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    if path.is_dir() {
        for entry in std::fs::read_dir(path).expect("a directory") {
            found.extend(tree(&entry.expect("an entry").path()));
        }
    }
    found
}

#[track_caller]
fn assert_private(path: &Path) {
    for path in tree(path) {
        let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
        let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(metadata.permissions().mode() & 0o777, expected, "{}", path.display());
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of a test")
}

#[test]
fn a_manual_page_is_not_written_through_a_symbolic_link() {
    let dir = tempfile::tempdir().expect("a directory");
    let (pages, victim) = (dir.path().join("man"), dir.path().join("victim"));
    done(&["man", text(&pages)]);
    done(&["man", text(&pages)]);
    let page = pages.join("veche-serve.1");
    assert!(std::fs::read_to_string(&page).expect("a page").contains("veche"));
    std::fs::write(&victim, "kept").expect("a file");
    std::fs::remove_file(&page).expect("it is there");
    symlink(&victim, &page).expect("a link");
    let says = refused(&["man", text(&pages)]);
    assert!(says.contains("veche-serve.1 is a symbolic link, which is not followed"), "{says}");
    assert_eq!(std::fs::read_to_string(&victim).expect("a file"), "kept");
}

#[test]
fn an_export_does_not_replace_a_dangling_symbolic_link() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let (target, link) = (dir.path().join("not-there"), dir.path().join("export"));
    symlink(&target, &link).expect("a link");
    let says = refused(&["export", "--url", &format!("http://{}", node.address), "--to", text(&link)]);
    assert!(says.contains("exists already"), "{says}");
    assert!(std::fs::symlink_metadata(&link).expect("it stays").is_symlink() && !target.exists());
    node.stop();
}

#[test]
fn what_nodes_and_commands_make_is_for_its_owner_alone_whatever_the_umask() {
    let (dir, data) = data_dir();
    let (backups, restored, export) =
        (dir.path().join("backups"), dir.path().join("restored"), dir.path().join("export"));
    let node = start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    assert_eq!(node.exchange(bare("POST", "/v0/checkpoint?name=kept")).status, 201);
    let url = format!("http://{}", node.address);
    done(&["backup", "--url", &url, "--to", text(&backups)]);
    done(&["export", "--url", &url, "--to", text(&export)]);
    assert_private(&data);
    node.stop();
    assert_private(&data);
    done(&["restore", "--from", text(&backups), "--data", text(&restored)]);
    for path in [&backups, &restored, &export] {
        assert_private(path);
    }
    let node = start(&restored);
    assert_eq!(node.get("k").text(), "v");
    node.stop();
    assert_private(&restored);
}

#[test]
fn a_directory_that_others_may_use_is_served_with_a_warning() {
    let (_dir, data) = data_dir();
    let node = start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    assert!(!node.stop().contains("chmod"), "its own directory is private");
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let node = start(&data);
    assert_eq!(node.get("k").text(), "v");
    let log = node.stop();
    assert!(log.contains(&format!("chmod -R go= {}", text(&data))), "{log}");
    let mode = std::fs::metadata(&data).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o755, "an operator may have meant it");
}

#[test]
fn an_export_does_not_write_through_a_link_that_somebody_planted() {
    let (dir, data) = data_dir();
    let node = start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    let (victim, export) = (dir.path().join("victim"), dir.path().join("export"));
    std::fs::write(&victim, "precious").expect("written");
    symlink(&victim, dir.path().join("export.partial")).expect("a link");
    done(&["export", "--url", &format!("http://{}", node.address), "--to", text(&export)]);
    assert_eq!(std::fs::read_to_string(&victim).expect("it is there"), "precious");
    assert!(std::fs::symlink_metadata(&export).expect("it is there").is_file());
    node.stop();
}

#[test]
fn a_restore_reads_plain_files_alone_and_waits_for_no_pipe() {
    let (dir, data) = data_dir();
    let backups = dir.path().join("backups");
    let node = start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    done(&["backup", "--url", &format!("http://{}", node.address), "--to", text(&backups)]);
    node.stop();
    let is_table = |path: &PathBuf| text(path).contains(".sst-");
    let object = tree(&backups.join("objects")).into_iter().find(is_table).expect("a table");
    let restored = dir.path().join("restored");
    let restore = ["restore", "--from", text(&backups), "--data", text(&restored)];

    let kept = dir.path().join("kept");
    std::fs::rename(&object, &kept).expect("moved");
    let made = Command::new("mkfifo").arg(&object).status().expect("mkfifo is there");
    assert!(made.success());
    let refusal = refused(&restore);
    assert!(refusal.contains("not a regular file") && refusal.contains(text(&object)), "{refusal}");
    assert!(!restored.exists(), "nothing is left");

    std::fs::remove_file(&object).expect("removed");
    symlink(&kept, &object).expect("a link");
    let refusal = refused(&restore);
    assert!(refusal.contains("symbolic link") && refusal.contains(text(&object)), "{refusal}");

    std::fs::remove_file(&object).expect("removed");
    std::fs::rename(&kept, &object).expect("moved back");
    done(&restore);
}

/// Answers as a hostile node would, until the test ends: to requests for its status as any node
/// does, to requests for a checkpoint with `answer`, which is told the name.
fn hostile_node(answer: impl Fn(&str) -> String + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.expect("a connection");
            let mut lines = BufReader::new(socket.try_clone().expect("a second handle")).lines();
            let request = lines.next().expect("a request").expect("UTF-8");
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let name = request.split_once("name=").and_then(|(_, rest)| rest.split(' ').next());
            let (status, body) = match name {
                Some(name) if request.starts_with("POST") => ("201 Created", answer(name)),
                Some(_) => ("202 Accepted", String::new()),
                None => ("200 OK", r#"{"state":"serving","nodes":[]}"#.to_owned()),
            };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = socket.write_all((head + &body).as_bytes());
        }
    });
    url
}

#[test]
fn a_backup_reads_the_checkpoint_it_asked_for_and_follows_no_link() {
    let (dir, data) = data_dir();
    let node = start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    let kept = exchange(node.address, bare("POST", "/v0/checkpoint?name=kept"));
    assert_eq!(kept.status, 201);
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "secret").expect("written");
    let backups = dir.path().join("backups");
    let refusal_of = |answer: Box<dyn Fn(&str) -> String + Send>| {
        let refusal = refused(&["backup", "--url", &hostile_node(answer), "--to", text(&backups)]);
        let objects = tree(&backups.join("objects"));
        assert!(objects.iter().all(|object| !object.is_file()), "{objects:?}");
        refusal
    };
    let named = |name: &str, path: &Path| format!("{{\"name\":\"{name}\",\"path\":\"{}\"}}", path.display());

    // Another directory.
    let other = data.join("checkpoints/kept");
    let refusal = refusal_of(Box::new(move |name| named(name, &other)));
    assert!(refusal.contains("not the directory of the requested checkpoint"), "{refusal}");
    // A link in place of the checkpoint.
    let checkpoints = data.join("checkpoints");
    let place = checkpoints.clone();
    let refusal = refusal_of(Box::new(move |name| {
        symlink(place.join("kept"), place.join(name)).expect("a link");
        named(name, &place.join(name))
    }));
    assert!(refusal.contains("symbolic link"), "{refusal}");
    // A link in the checkpoint.
    let refusal = refusal_of(Box::new(move |name| {
        let place = checkpoints.join(name);
        std::fs::create_dir(&place).expect("made");
        std::fs::copy(checkpoints.join("kept/identity"), place.join("identity")).expect("copied");
        symlink(&secret, place.join("shadow")).expect("a link");
        named(name, &place)
    }));
    assert!(refusal.contains("symbolic link"), "{refusal}");
    node.stop();
}

#[test]
fn a_line_to_be_pasted_quotes_what_a_shell_would_take_apart() {
    let (dir, data) = data_dir();
    let backups = dir.path().join("backups");
    let node = start(&data);
    done(&["backup", "--url", &format!("http://{}", node.address), "--to", text(&backups)]);
    node.stop();
    let restored = dir.path().join("it's new; $(touch x)");
    let out = done(&["restore", "--from", text(&backups), "--data", text(&restored)]);
    let line = out.lines().last().expect("it says how to go on");
    let command = line.strip_prefix("start it with: ").expect("a command").split(", and its").next();
    // The shell that would be pasted into tells what it makes of it.
    let words = format!("set -- {}; printf '%s\\n' \"$4\"", command.expect("a command"));
    let told = Command::new("sh").args(["-c", &words]).output().expect("a shell");
    assert_eq!(String::from_utf8(told.stdout).expect("UTF-8"), format!("{}\n", text(&restored)));
}
