//! Commands whose server is not a node, or does not answer.

mod common;

use common::{eventually, run, veche};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};

/// A server that answers each request with `answer`, and keeps the connection open without an
/// answer where that returns `None`. Returns its URL.
fn serve(answer: impl Fn(&str) -> Option<&'static str> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for mut stream in listener.incoming().map(|stream| stream.expect("a connection")) {
            let begin = read_head(&stream);
            match answer(&begin) {
                Some(body) => {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    let _ = stream.write_all(format!("{head}{body}").as_bytes());
                }
                None => held.push(stream),
            }
        }
    });
    url
}

/// Reads a head. Returns its first line.
fn read_head(stream: &TcpStream) -> String {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    lines.find(String::is_empty);
    first
}

#[test]
fn a_server_that_answers_everything_alike_is_no_node() {
    let dir = tempfile::tempdir().expect("a directory");
    let url = serve(|_| Some("{}"));
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["repair"],
        &["repair", "--json"],
        &["slow"],
        &["slow", "--json"],
        &["backup", "--to", "backups"],
    ] {
        let mut command = veche();
        command.args(arguments).args(["--url", &url]).current_dir(dir.path());
        let (code, stdout, stderr) = run(command);
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains("does not answer as a veche node does"), "{arguments:?}: {stderr}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0, "no repository was made");
}

#[test]
fn a_backup_of_an_unreachable_node_leaves_no_repository() {
    let dir = tempfile::tempdir().expect("a directory");
    let backups = dir.path().join("below/backups");
    let mut command = veche();
    command.args(["backup", "--url", "http://127.0.0.1:1", "--to"]).arg(&backups);
    let (code, _, stderr) = run(command);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("cannot be reached"), "{stderr}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0);
}

/// Ends a backup with a signal. Returns its exit code and standard error.
fn end(mut backup: Child, signal: Signal) -> (Option<i32>, String) {
    kill_process(Pid::from_child(&backup), signal).expect("it runs");
    eventually("the backup ends", || backup.try_wait().expect("a child").is_some());
    let output = backup.wait_with_output().expect("a child");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn one_signal_ends_a_backup_of_a_node_that_does_not_answer() {
    let status = r#"{"state":"serving","nodes":[]}"#;
    for (signal, answers_status) in [(Signal::TERM, false), (Signal::INT, false), (Signal::TERM, true)] {
        let dir = tempfile::tempdir().expect("a directory");
        let (asked, requests) = std::sync::mpsc::channel();
        let url = serve(move |begin| {
            let answer = (answers_status && begin.starts_with("GET /v0/status ")).then_some(status);
            if answer.is_none() {
                let _ = asked.send(());
            }
            answer
        });
        let mut command = veche();
        command.args(["backup", "--url", &url, "--to", "backups"]).current_dir(dir.path());
        let backup = command.stderr(Stdio::piped()).spawn().expect("the binary is there");
        requests.recv().expect("the server runs");
        let (code, stderr) = end(backup, signal);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("interrupted: no backup was added"), "{stderr}");
        assert_eq!(dir.path().join("backups").exists(), answers_status);
    }
}
