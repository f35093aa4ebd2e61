//! The commands of README.md are run as they are printed, and their output is compared with the
//! page.
//!
//! Each fenced block of the page is run, in the order of the page and in one shell, or is named in
//! [`NOT_RUN`]. In a `console` block the lines behind `$ ` are commands, and the lines below them
//! their standard output. The output of an `sh` block is compared with the `text` block behind it,
//! if there is one.
//!
//! In the place of the release build that the page speaks of is the binary of this test: at
//! `target/release/veche`, and behind a `cargo` that knows `run --release --` only. Values that
//! differ from run to run are compared by their form: see [`is_alike`]. The ports of the page are
//! used if they are free, and replaced by others of four digits if they are not. A lock keeps other
//! runs of this test away.

mod common;

use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// Blocks that are not run, by their first line.
const NOT_RUN: [(&str, &str); 3] = [
    ("cargo test --workspace", "it would run itself"),
    ("cargo xtask static", "it is a release build"),
    (
        "$ target/release/veche profile --seconds 20 --kind cpu --out pictures",
        "tests/profiles.rs takes profiles",
    ),
];

/// The ports of the page.
const PORTS: [u16; 9] = [8080, 8081, 8082, 8083, 8091, 8092, 8093, 8094, 8095];

/// A fenced block.
struct Block {
    language: String,
    lines: Vec<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block { language: language.to_owned(), lines: Vec::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.lines.push(line.to_owned()),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// The commands of a console block, each with the output that is expected.
fn exchanges(lines: &[String]) -> Vec<(String, String)> {
    let mut exchanges: Vec<(String, String)> = Vec::new();
    let mut here_document_end: Option<String> = None;
    for line in lines {
        if let Some(command) = line.strip_prefix("$ ") {
            here_document_end = command.split_once("<<").map(|(_, end)| end.to_owned());
            exchanges.push((command.to_owned(), String::new()));
            continue;
        }
        let (command, output) = exchanges.last_mut().expect("a console block begins with a command");
        match &here_document_end {
            Some(end) => {
                command.push('\n');
                command.push_str(line);
                if line == end {
                    here_document_end = None;
                }
            }
            None => {
                output.push_str(line);
                output.push('\n');
            }
        }
    }
    exchanges
}

/// One shell for the whole page. Its child processes end with it.
struct Shell {
    child: Child,
    stdin: ChildStdin,
    /// The lines of its standard output.
    lines: Receiver<String>,
}

impl Shell {
    fn start(dir: &Path, port: u16) -> Self {
        let mut command = Command::new("bash");
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VECHE_")) {
            command.env_remove(name);
        }
        let path = std::env::var("PATH").expect("there is one");
        command.env("PATH", format!("{}:{path}", dir.join("bin").display())).env("HOME", dir);
        // The page relies on the default of both, unless its ports are taken.
        if port != PORTS[0] {
            let address = format!("127.0.0.1:{port}");
            command.env("VECHE_LISTEN", &address).env("VECHE_URL", format!("http://{address}"));
        }
        command.env("VECHE_MEMORY", "64MiB").env("VECHE_REQUEST_TIMEOUT", common::REQUEST_TIMEOUT);
        command.args(["--noprofile", "--norc"]).current_dir(dir).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("bash is there");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            // The receiver is gone when the test has ended.
            stdout
                .lines()
                .map_while(Result::ok)
                .take_while(|line| sender.send(line.clone()).is_ok())
                .for_each(drop);
        });
        let mut shell = Self { child, stdin, lines };
        // Should this test be killed, the shell reads the end of its input, and ends all that it
        // has started.
        shell.run("trap 'kill -9 0' EXIT");
        shell
    }

    /// Standard output of `commands`.
    fn run(&mut self, commands: &str) -> String {
        const END: &str = "the end of these commands";
        write!(self.stdin, "{commands}\necho; echo '{END}'\n").expect("the shell reads");
        let mut output = String::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("these commands do not end: {commands}\n{output}"));
            if line == END {
                return output.trim_end().to_owned();
            }
            output.push_str(&line);
            output.push('\n');
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The shell and all that it started are one process group.
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Whether `got` equals the output on the page, except for versions, node tags, times and measured
/// values.
fn is_alike(expected: &str, got: &str) -> bool {
    expected.trim_end().lines().count() == got.lines().count()
        && expected.lines().zip(got.lines()).all(|(expected, got)| is_line_alike(expected, got))
}

fn is_line_alike(expected: &str, got: &str) -> bool {
    if let (Some(_), Some(date)) = (expected.strip_prefix("date: "), got.strip_prefix("date: ")) {
        return date.ends_with(" GMT");
    }
    // Sizes of backups, and measured values.
    let is_measured = ["backup 0", "./restored: node", "all.veche: ", "http://127.0.0.1:", "node  "];
    let is_measured = is_measured.iter().any(|start| expected.starts_with(start));
    let (expected, got) = (words(expected, is_measured), words(got, is_measured));
    expected.len() == got.len()
        && expected
            .iter()
            .zip(&got)
            .all(|(expected, got)| expected == got || is_word_alike(expected, got, is_measured))
}

/// Splits text into words of letters and digits, and separators. Columns of a table may be wider.
fn words(line: &str, is_measured: bool) -> Vec<String> {
    let line =
        if is_measured { line.split_whitespace().collect::<Vec<_>>().join(" ") } else { line.to_owned() };
    let mut words: Vec<String> = Vec::new();
    for character in line.chars() {
        match words.last_mut() {
            Some(word) if character.is_alphanumeric() && word.ends_with(char::is_alphanumeric) => {
                word.push(character);
            }
            // A decimal number is one word where it may differ.
            Some(word) if is_measured && is_part_of_number(word, character) => word.push(character),
            _ => words.push(character.to_string()),
        }
    }
    words
}

fn is_part_of_number(word: &str, next: char) -> bool {
    let digits = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    match word.strip_suffix('.') {
        Some(whole) => digits(whole) && next.is_ascii_digit(),
        None => digits(word) && next == '.',
    }
}

fn is_word_alike(expected: &str, got: &str, is_measured: bool) -> bool {
    let is_hex = |word: &str| word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_number =
        |word: &str| word.bytes().all(|byte| byte.is_ascii_digit() || (is_measured && byte == b'.'));
    let is_unit = |word: &str| ["bytes", "KiB", "MiB"].contains(&word);
    let is_sign = |word: &str| ["+", "-"].contains(&word);
    let same_len = expected.len() == got.len();
    let is_version_or_tag = same_len && [16, 32].contains(&got.len()) && is_hex(expected) && is_hex(got);
    let is_unix_ms = same_len && got.len() == 13 && is_number(expected) && is_number(got);
    let is_measure = (is_number(expected) && is_number(got))
        || (is_unit(expected) && is_unit(got))
        || (is_sign(expected) && is_sign(got));
    is_version_or_tag || is_unix_ms || (is_measured && is_measure)
}

/// The page with free ports. An open lock file keeps other processes from running this test.
fn with_free_ports(page: &str) -> (String, File) {
    let lock = File::create(std::env::temp_dir().join("veche-readme-ports.lock")).expect("a file");
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("a lock");
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    if PORTS.iter().all(|port| is_free(*port)) {
        return (page.to_owned(), lock);
    }
    // Four digits, since the width of tables depends on it; a decade for each that the page has.
    let mut decades = (200..999).map(|decade| decade * 10).filter(|first| (*first..first + 10).all(is_free));
    let [first, second] = [(); 2].map(|()| decades.next().expect("ports are free"));
    let of_first_decade = PORTS.iter().filter(|port| **port < 8090);
    let moved = of_first_decade.fold(page.to_owned(), |page, port| {
        page.replace(&port.to_string(), &(first + port % 10).to_string())
    });
    (moved.replace("127.0.0.1:809", &format!("127.0.0.1:{}", second / 10)), lock)
}

/// The places where the page has the release build.
fn install(dir: &Path) {
    let release = dir.join("target/release");
    std::fs::create_dir_all(&release).expect("a directory");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_veche"), release.join("veche")).expect("a link");
    std::fs::create_dir(dir.join("bin")).expect("a directory");
    let cargo = dir.join("bin/cargo");
    let script =
        "#!/bin/sh\n[ \"$1 $2 $3\" = 'run --release --' ] && shift 3 && exec target/release/veche \"$@\"\n";
    std::fs::write(&cargo, script).expect("a file");
    std::fs::set_permissions(&cargo, PermissionsExt::from_mode(0o755)).expect("a mode");
}

/// Runs a command until its output is as expected. Only a command that asks a node how it is is
/// repeated.
fn check_exchange(shell: &mut Shell, command: &str, expected: &str) {
    let begun = Instant::now();
    loop {
        let got = shell.run(command);
        if is_alike(expected, &got) {
            return;
        }
        let may_change = command.contains(" status ") && begun.elapsed() < PATIENCE;
        assert!(may_change, "$ {command}\nthe page shows:\n{expected}\nbut it prints:\n{got}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_readme_does_what_it_says() {
    let page = include_str!("../../../README.md");
    let (page, _lock) = with_free_ports(page);
    let dir = tempfile::tempdir().expect("a directory");
    install(dir.path());
    let port = page.split("127.0.0.1:").nth(1).expect("there is a port")[..4].parse().expect("a port");
    let mut shell = Shell::start(dir.path(), port);
    let blocks = blocks(&page);
    assert!(blocks.len() > NOT_RUN.len());
    let mut not_run = 0;
    for (at, block) in blocks.iter().enumerate() {
        let first = &block.lines[0];
        if NOT_RUN.iter().any(|(line, _)| first == line) {
            not_run += 1;
            continue;
        }
        match &block.language[..] {
            // It runs in another terminal.
            "sh" if first.ends_with("-- serve") => {
                let ready =
                    format!("until curl -sf http://127.0.0.1:{port}/v0/ready; do sleep 0.1; done >/dev/null");
                shell.run(&format!("{first} >serve.log 2>&1 &\n{ready}"));
            }
            "sh" => {
                let got = shell.run(&block.lines.join("\n"));
                match blocks.get(at + 1).filter(|next| next.language == "text") {
                    Some(expected) => {
                        let expected = expected.lines.join("\n");
                        assert!(
                            is_alike(&expected, &got),
                            "the page shows:\n{expected}\nbut it prints:\n{got}"
                        );
                    }
                    None => assert_eq!(got, "", "{first}"),
                }
            }
            "text" => assert_eq!(blocks[at - 1].language, "sh", "it is the output of the block before it"),
            "console" => {
                for (command, expected) in exchanges(&block.lines) {
                    check_exchange(&mut shell, &command, &expected);
                }
            }
            other => {
                panic!("a block of {other:?} that begins with {first:?} is neither run nor named in NOT_RUN")
            }
        }
    }
    assert_eq!(not_run, NOT_RUN.len(), "NOT_RUN names a block that is not there");
}

#[test]
fn a_line_that_says_something_else_is_not_alike() {
    let version = "etag: \"0c5b8b25302ab000d34908ba5df6e1b8\"";
    assert!(is_alike(version, "etag: \"0c5e3034d58eb00088464a830152fef9\""));
    assert!(!is_alike(version, "etag: \"0c5e3034d58eb000\""));
    assert!(!is_alike("veche-acks: 2/3", "veche-acks: 3/3"));
    assert!(!is_alike("HTTP/1.1 201 Created", "HTTP/1.1 200 OK"));
    assert!(!is_alike("a", "a\nb"));
    let status = "http://127.0.0.1:8081  up         settled   0           0        +0 ms  0.2 ms";
    assert!(is_alike(status, "http://127.0.0.1:8081  up  settled  0  0  -1 ms  12.5 ms"));
    assert!(!is_alike(status, "http://127.0.0.1:8081  up  unsettled  0  0  +0 ms  0.2 ms"));
    let backup = "backup 000002 of node 88464a830152fef9: 5 files, 1.2 KiB; 758 bytes of that in 4 files had to be copied";
    assert!(is_alike(backup, &backup.replace("758 bytes", "1.0 KiB").replace("1.2 KiB", "998 bytes")));
    assert!(!is_alike(backup, &backup.replace("had to be copied", "were copied")));
}
