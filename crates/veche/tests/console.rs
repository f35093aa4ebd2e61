//! Standard output and standard error that end before the process does, and what the command line
//! takes.

mod common;

use common::{Node, eventually, http, run, veche};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The exit code that a shell reports for a process that `SIGPIPE` ended.
const BROKEN_PIPE: i32 = 141;

fn serve(data: &Path) -> Command {
    let mut command = veche();
    command.env("VECHE_MEMORY", "64MiB");
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data);
    command
}

/// The writing end of a pipe whose reader has ended.
fn no_reader() -> Stdio {
    let (_, writer) = std::io::pipe().expect("a pipe");
    writer.into()
}

/// Starts the node without a reader of its log, and reads its address.
fn start_without_log_reader(mut command: Command) -> (Child, SocketAddr) {
    let mut child = command.stdout(Stdio::piped()).stderr(no_reader()).spawn().expect("the binary is there");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("UTF-8");
    let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}"));
    (child, address.parse().expect("an address"))
}

#[test]
fn a_node_goes_on_when_the_reader_of_its_log_has_ended() {
    for format in ["text", "json"] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = serve(dir.path());
        command.args(["--log", "debug", "--log-format", format]);
        let (mut child, address) = start_without_log_reader(command);
        eventually("the node serves", || {
            http::exchange(address, http::bare("GET", "/v0/status")).status == 200
        });
        assert_eq!(http::exchange(address, http::put("k", "v")).status, 201);
        assert_eq!(http::exchange(address, http::get("k")).status, 200);
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        let status = child.wait().expect("a child");
        assert_eq!(status.code(), Some(0), "{status}");
    }
}

/// The exit code of a command whose standard output and standard error have no reader from the
/// start.
fn code_without_readers(mut command: Command) -> Option<i32> {
    let status = command.stdout(no_reader()).stderr(no_reader()).status().expect("the binary is there");
    status.code()
}

#[test]
fn no_subcommand_panics_when_its_output_has_no_reader() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let node = Node::start(&data);
    let url = format!("http://{}", node.address);
    let backups = dir.path().join("backups");
    let backups = backups.to_str().expect("UTF-8");
    let exported = dir.path().join("all.veche");
    let exported = exported.to_str().expect("UTF-8");
    let ended = [Some(0), Some(1), Some(2), Some(BROKEN_PIPE)];
    for arguments in [
        vec!["--help"],
        vec!["serve", "--nonsense"],
        vec!["status", "--url", &url],
        vec!["status", "--json", "--url", &url],
        vec!["status", "--url", "http://127.0.0.1:1"],
        vec!["layout", "show", "--url", &url],
        vec!["slow", "--url", &url],
        vec!["repair", "--url", &url],
        vec!["backup", "--url", &url, "--to", backups],
        vec!["verify", "--backup", backups],
        vec!["export", "--url", &url, "--to", exported],
        vec!["export", "--url", &url, "--to", "-"],
        vec!["import", "--url", &url, "--from", exported],
        vec!["bench", "presets"],
        vec!["bench", "--url", &url, "-d", "100ms", "-c", "1", "-k", "10"],
    ] {
        let mut command = veche();
        command.args(&arguments);
        let code = code_without_readers(command);
        assert!(ended.contains(&code), "{arguments:?} ended with {code:?}");
    }
    let mut presets = veche();
    presets.args(["bench", "presets"]);
    assert_eq!(code_without_readers(presets), Some(BROKEN_PIPE), "the list had no reader");
    assert_eq!(http::exchange(node.address, http::put("k", "v")).status, 201);
    let mut export = veche();
    export.args(["export", "--url", &url, "--to", "-"]);
    assert_eq!(code_without_readers(export), Some(BROKEN_PIPE), "the entries had no reader");
    node.stop();
    let mut verify = veche();
    verify.args(["verify", "--data"]).arg(&data);
    assert_eq!(code_without_readers(verify), Some(BROKEN_PIPE), "the result had no reader");
}

#[test]
fn an_export_to_a_closed_standard_output_fails_with_a_sentence() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    let url = format!("http://{}", node.address);
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" >&-", env!("CARGO_BIN_EXE_veche")]);
    command.args(["export", "--url", &url, "--to", "-"]);
    let (code, _, stderr) = run(command);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("veche: standard output is closed"), "{stderr}");
    let mut command = veche();
    assert_eq!(node.put("k", "v").status, 201);
    command.args(["export", "--url", &url, "--to", "-", "--format", "ndjson", "--progress", "always"]);
    let (code, _, stderr) = run(command);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("1 entry, size unknown"), "{stderr}");
    node.stop();
}

#[test]
fn a_line_feed_in_a_path_does_not_forge_a_log_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data\n2026-01-01T00:00:00Z ERROR forged\u{1b}[31m");
    std::fs::create_dir(&data).expect("a directory");
    std::fs::set_permissions(&data, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its mode");
    let log = Node::start(&data).stop();
    assert!(log.contains("forged"), "the path is logged: {log}");
    assert!(!log.contains("\n2026-01-01T00:00:00Z") && !log.contains('\u{1b}'), "{log:?}");
}

#[test]
fn a_mistyped_log_level_is_refused_and_named() {
    let dir = tempfile::tempdir().expect("a directory");
    for word in ["warnign", "engine=loud"] {
        let mut command = serve(dir.path());
        command.args(["--log", word]);
        let output = command.output().expect("the binary is there");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("{word:?} is neither a level")), "{stderr}");
    }
}

#[test]
fn the_word_warning_is_a_level() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_with(dir.path(), &["--log", "warning", "--durability", "os"]);
    let log = node.stop();
    assert!(log.contains("WARN"), "{log:?}");
    assert!(!log.contains("INFO"), "{log:?}");
}

#[test]
fn a_port_alone_listens_on_all_addresses() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = veche();
    command.env("VECHE_MEMORY", "64M");
    command.args(["serve", "--listen", ":0", "--data"]).arg(dir.path());
    let (mut child, address) = start_without_log_reader(command);
    assert!(address.ip().is_unspecified(), "{address}");
    let loopback = SocketAddr::from(([127, 0, 0, 1], address.port()));
    eventually("the node serves", || http::exchange(loopback, http::bare("GET", "/v0/status")).status == 200);
    child.kill().expect("it runs");
    child.wait().expect("a child");
}

#[test]
fn a_count_of_zero_is_refused_in_plain_words() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = serve(dir.path());
    command.args(["--threads", "0"]);
    let output = command.output().expect("the binary is there");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("\"0\" is not a whole number of at least 1"), "{stderr}");
}

/// Words of the toml crate or of Rust that must not be shown to users.
const FOREIGN_WORDS: [&str; 9] =
    ["non-zero", "digit found", "untagged", "variant", "u8", "u64", "..=", "Some(", "None"];

#[test]
fn refusals_of_settings_use_no_words_of_the_programming_language() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("veche.toml");
    for line in [
        "default-from = 300",
        "default-from = \"x\"",
        "threads = 0",
        "memory = true",
        "memory = -5",
        "durability = \"fast\"",
        "no-such-setting = 1",
    ] {
        std::fs::write(&file, line).expect("a file");
        let mut command = serve(dir.path());
        command.arg("--config").arg(&file);
        let (code, _, stderr) = run(command);
        assert_eq!(code, Some(1), "{line}: {stderr}");
        // A random name of the directory may contain "u8".
        let text = stderr.replace(&file.display().to_string(), "FILE");
        let foreign = FOREIGN_WORDS.iter().find(|word| text.contains(**word));
        assert_eq!(foreign, None, "{line}: {stderr}");
    }
    for arguments in [
        vec!["serve", "--default-from", "300"],
        vec!["serve", "--threads", "0"],
        vec!["export", "--to", "x", "--ack", "300"],
        vec!["export", "--to", "x", "--limit", "x"],
        vec!["import", "--from", "x", "--from-replicas", "0"],
        vec!["profile", "--seconds", "0"],
        vec!["bench", "--keys", "0"],
        vec!["bench", "--requests", "x"],
        vec!["bench", "--connections", "0"],
        vec!["bench", "--ack", "99999999999999999999"],
    ] {
        let mut command = veche();
        command.args(&arguments);
        let (code, _, stderr) = run(command);
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains("is not a whole number"), "{arguments:?}: {stderr}");
        let foreign = FOREIGN_WORDS.iter().find(|word| stderr.contains(**word));
        assert_eq!(foreign, None, "{arguments:?}: {stderr}");
    }
}

#[test]
fn verify_says_when_there_is_no_such_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("missing");
    for flag in ["--data", "--backup"] {
        let mut command = veche();
        command.args(["verify", flag]).arg(&missing);
        let (code, _, stderr) = run(command);
        assert_eq!(code, Some(1), "{stderr}");
        let expected = format!("there is no directory {}; name another one with {flag}", missing.display());
        assert!(stderr.contains(&expected), "{stderr}");
    }
    let mut command = veche();
    command.args(["verify", "--data"]).arg(dir.path());
    let (code, _, stderr) = run(command);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("is not the data directory of a node"), "{stderr}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0, "nothing is left behind");
}

#[test]
fn fields_of_json_log_lines_are_plain_values() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_with(dir.path(), &["--log-format", "json"]);
    node.put("k", "v");
    let log = node.stop();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("a JSON document")).collect();
    let line_of = |message: &str| {
        let found = lines.iter().find(|line| line["fields"]["message"] == message);
        &found.unwrap_or_else(|| panic!("no line says {message:?}: {log}"))["fields"]
    };
    let serving = line_of("serving");
    assert_eq!(serving["durability"], "sync");
    assert_eq!(serving["recovered_cells"], 0);
    assert_eq!(line_of("told to stop: draining")["delay_ms"], 0);
    for line in &lines {
        for (name, value) in line["fields"].as_object().expect("fields") {
            let text = value.as_str().unwrap_or_default();
            assert!(!text.contains(" {") && !text.contains("Some("), "{name} is {text:?}");
        }
    }
}

/// Runs `veche` under a shell that redirects its standard output.
fn redirected(arguments: &[&str], to: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new("sh");
    let script = format!("exec \"$0\" \"$@\" {to}");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_veche")]).args(arguments);
    run(command)
}

#[test]
fn a_text_that_cannot_be_written_is_a_failure() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    let url = format!("http://{}", node.address);
    for arguments in [
        &["--version"][..],
        &["serve", "--help"],
        &["help"],
        &["status", "--url", &url],
        &["bench", "presets"],
        &["bench", "presets", "--json"],
    ] {
        for to in [">/dev/full", ">&-"] {
            let (code, _, stderr) = redirected(arguments, to);
            assert_eq!(code, Some(1), "{arguments:?} {to}: {stderr}");
            assert!(
                stderr.starts_with("veche: cannot write to standard output: "),
                "{arguments:?}: {stderr}"
            );
        }
        let (code, stdout, stderr) = redirected(arguments, "");
        assert!(code == Some(0) && !stdout.is_empty(), "{arguments:?}: {stderr}");
    }
    node.stop();
}

#[test]
fn a_command_line_that_cannot_succeed_ends_with_code_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    for arguments in [
        &["--threads", "0"][..],
        &["--threads", "256"],
        &["--memory=-5"],
        &["--memory", "1MiB"],
        &["--default-from", "0"],
        &["--default-from", "2"],
        &["--listen", "127.0.0.1"],
        &["--listen", "127.0.0.1:x"],
        &["--listen", ":99999"],
        &["--listen", "http://127.0.0.1:18130"],
        &["--listen", "127.0.0.1/8:18130"],
        &["--value-max", "20MiB", "--memory", "64MiB"],
        &["--peer-listen", "127.0.0.1"],
        &["--cluster", "foo"],
        &["--cluster", "http://a:1,http://a:1"],
        &["--self-url", "http://a:1"],
        &["--log", "blah"],
        &["--value-max", "0"],
        &["--value-max", "1GiB"],
        &["--request-timeout", "0s"],
        &["--request-timeout", "999999999h"],
        &["--request-timeout", "61m"],
    ] {
        let mut command = veche();
        command.arg("serve").args(arguments).arg("--data").arg(&data);
        let (code, _, stderr) = run(command);
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        let flag = arguments[0].split_once('=').map_or(arguments[0], |(flag, _)| flag);
        assert!(stderr.contains(flag), "{arguments:?}: {stderr}");
        assert!(!data.exists(), "{arguments:?}");
    }
    for url in ["127.0.0.1:9101", "", "https://a:1"] {
        for arguments in [
            &["status"][..],
            &["layout", "show"],
            &["slow"],
            &["repair"],
            &["profile"],
            &["backup", "--to", "x"],
            &["export", "--to", "x"],
            &["import", "--from", "x"],
        ] {
            let mut command = veche();
            command.args(arguments).args(["--url", url]).current_dir(dir.path());
            let (code, _, stderr) = run(command);
            assert_eq!(code, Some(2), "{arguments:?} --url {url:?}: {stderr}");
        }
    }
    // The file of settings is not the command line.
    let file = dir.path().join("veche.toml");
    for line in ["threads = 256", "default-from = 2", "value-max = 0"] {
        std::fs::write(&file, line).expect("a file");
        let mut command = veche();
        command.args(["serve", "--config"]).arg(&file).arg("--data").arg(&data);
        let (code, _, stderr) = run(command);
        assert_eq!(code, Some(1), "{line}: {stderr}");
    }
}

#[test]
fn a_refusal_names_what_is_wrong_with_the_path() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let (code, _, stderr) = run(serve(&file));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("it is not a directory"), "{stderr}");

    let mut import = veche();
    import.args(["import", "--from"]).arg(dir.path());
    let (code, stdout, stderr) = run(import);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("it is a directory"), "{stderr}");

    let missing = dir.path().join("missing");
    let mut profile = veche();
    profile.args(["profile", "--url", "http://127.0.0.1:1", "--out"]).arg(missing.join("below"));
    let (code, _, stderr) = run(profile);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("cannot make the directory") && !missing.exists(), "{stderr}");
}

#[test]
fn a_memory_budget_beyond_the_memory_of_the_machine_is_warned_of() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = Node::start_with(dir.path(), &["--memory", "10TiB"]).stop();
    assert!(log.contains("--memory is more than the memory of this machine"), "{log}");
}
