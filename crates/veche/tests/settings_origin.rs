//! Errors about settings name the flag, variable or file that the operator wrote, and flags that
//! exclude each other are refused.

mod common;

use common::{Node, data_dir, run, veche};
use std::path::Path;

/// The refusal of a start of `veche serve`.
#[track_caller]
fn refusal(code: i32, variables: &[(&str, &str)], config: Option<&Path>) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = veche();
    command.args(["serve", "--data"]).arg(dir.path().join("data")).envs(variables.iter().copied());
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    let (ended, _, stderr) = run(command);
    assert_eq!(ended, Some(code), "{variables:?}: {stderr}");
    stderr
}

#[test]
fn an_invalid_variable_is_named() {
    for (variable, value, flag) in [
        ("VECHE_MEMORY", "much", "--memory"),
        ("VECHE_MEMORY", "1MiB", "--memory"),
        ("VECHE_THREADS", "0", "--threads"),
        ("VECHE_THREADS", "256", "--threads"),
        ("VECHE_DURABILITY", "fast", "--durability"),
        ("VECHE_LISTEN", "http://127.0.0.1:1", "--listen \""),
        ("VECHE_DEFAULT_FROM", "2", "--default-from"),
    ] {
        let stderr = refusal(2, &[(variable, value)], None);
        assert!(stderr.contains(variable) && !stderr.contains(flag), "{variable}={value}: {stderr}");
    }
}

#[test]
fn an_invalid_setting_of_a_file_is_named_with_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("veche.toml");
    for (line, name) in [("threads = 256", "threads"), ("value_max = 0", "value-max")] {
        std::fs::write(&file, line).expect("a file");
        let stderr = refusal(1, &[], Some(&file));
        let named = format!("veche: {name} in {} ", file.display());
        assert!(stderr.contains(&named) && !stderr.contains("--"), "{line}: {stderr}");
    }
}

#[test]
fn verify_refuses_a_data_directory_beside_a_repository() {
    let dir = tempfile::tempdir().expect("a directory");
    let verify = |arguments: &[&str], data: Option<&str>| {
        let mut command = veche();
        command.arg("verify").args(arguments).current_dir(dir.path());
        data.map(|data| command.env("VECHE_DATA", data));
        run(command)
    };
    let (code, _, stderr) = verify(&["--data", "x", "--backup", "y"], None);
    assert!(code == Some(2) && stderr.contains("--data and --backup"), "{code:?}: {stderr}");
    let (code, _, stderr) = verify(&["--backup", "y"], Some("x"));
    assert!(code == Some(1) && stderr.contains("there is no directory y"), "{code:?}: {stderr}");
}

#[test]
fn the_report_of_an_export_is_one_line() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let mut command = veche();
    command.args(["export", "--url", &format!("http://{}", node.address), "--to"]);
    command.arg(dir.path().join("all\nforged\t\u{1b}[31m"));
    let (code, stdout, stderr) = run(command);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains(r"all\nforged\t\u{1b}[31m: 0 entries"), "{stdout:?}");
    node.stop();
}
