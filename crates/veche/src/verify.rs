//! `veche verify`: verify a stopped node's data directory, or a backup repository.

use crate::backup::{document_with, placement_of};
use crate::output::{ReportForm, print_line, print_note};
use crate::progress::{Bytes, Count, Display, ProgressFlag};
use crate::settings::DATA_DEFAULT;
use ctl::{OperationProgress, ProgressObserver, Repository, RepositoryReport};
use engine::{LogEnd, LogTail};
use env::Env;
use serde_json::{Value, json};
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use stdx::WallTime;
use store::{FutureCells, IDENTITY_FILE, VerifiedDirectory};

/// Verify every byte of a stopped node's data directory, or of a backup repository.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArguments {
    /// Data directory [default: ./veche-data]
    #[arg(long, env = "VECHE_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// Verify the backups in this repository instead of a data directory
    #[arg(long, value_name = "DIR")]
    backup: Option<PathBuf>,
    #[command(flatten)]
    report: ReportForm,
    #[command(flatten)]
    progress: ProgressFlag,
}

pub(crate) fn run(arguments: &VerifyArguments) -> Result<(), String> {
    match &arguments.backup {
        Some(backup) => verify_backups(backup, arguments),
        None => verify_data(arguments.data.as_deref().unwrap_or(Path::new(DATA_DEFAULT)), arguments),
    }
}

/// Refuses a path that does not exist or is not a directory, and names the flag.
fn expect_directory(dir: &Path, flag: &str) -> Result<(), String> {
    match std::fs::metadata(dir) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(format!("{} is not a directory; name one with {flag}", dir.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("there is no directory {}; name another one with {flag}", dir.display()))
        }
        Err(error) => Err(format!("cannot read {}: {error}", dir.display())),
    }
}

/// Refuses a path that is not the data directory of a node, before a lock file is created there.
pub(crate) fn expect_data_directory(data: &Path) -> Result<(), String> {
    expect_directory(data, "--data")?;
    match data.join(IDENTITY_FILE).try_exists() {
        Ok(false) => Err(format!(
            "{} is not the data directory of a node: it has no file {IDENTITY_FILE}; name another one with --data",
            data.display()
        )),
        Ok(true) | Err(_) => Ok(()),
    }
}

fn verify_data(data: &Path, arguments: &VerifyArguments) -> Result<(), String> {
    expect_data_directory(data)?;
    let mut display = Display::new("checking", arguments.progress);
    let result = store::verify(&Env::os(), data, &mut |progress| {
        let (bytes_done, bytes_total) = (progress.bytes_done, Some(progress.bytes_total));
        display.on_progress(OperationProgress { bytes_done, bytes_total, entries_done: 0 });
    });
    display.end();
    let found = result.map_err(|damage| {
        if arguments.report.is_json() {
            let damage: Vec<_> = damage.iter().map(ToString::to_string).collect();
            print_line!("{}", json!({ "data": data.display().to_string(), "ok": false, "damage": damage }));
        }
        match &damage[..] {
            [error] => error.to_string(),
            all => {
                list(all);
                format!("{}: {} files are damaged, missing or cut short", data.display(), all.len())
            }
        }
    })?;
    arguments.report.print(|| text_of(data, &found), || document_of(data, &found));
    Ok(())
}

fn text_of(data: &Path, found: &VerifiedDirectory) -> String {
    let VerifiedDirectory { identity, data: verified, log_mark, future } = found;
    let mut lines = vec![format!(
        "{}: node {:016x}, {} of {} with {}, {} in the log: all as written\n{}",
        data.display(),
        identity.tag.0,
        Count(verified.tables as u64, "table"),
        Bytes(verified.table_bytes),
        Count(verified.cells, "cell"),
        Count(verified.wal_records, "record"),
        LogEnds(verified.log_tail, verified.log_end, *log_mark)
    )];
    if future.cells > 0 {
        lines.extend(lines_of_future(future));
    }
    lines.join("\n")
}

fn document_of(data: &Path, found: &VerifiedDirectory) -> Value {
    let VerifiedDirectory { identity, data: verified, future, .. } = found;
    json!({
        "data": data.display().to_string(),
        "ok": true,
        "damage": [],
        "node": format!("{:016x}", identity.tag.0),
        "tables": verified.tables,
        "table_bytes": verified.table_bytes,
        "cells": verified.cells,
        "log_records": verified.wal_records,
        "log_ending": match verified.log_tail {
            LogTail::Closed => "closed",
            LogTail::Open => "open",
            LogTail::Torn { .. } => "torn",
        },
        "future_cells": future.cells,
    })
}

/// Lines about cells whose versions lie in the future, which is not damage.
fn lines_of_future(future: &FutureCells) -> Vec<String> {
    let now = Env::os().clock.now().wall;
    let ahead = |wall: WallTime| format!("{} s", wall.saturating_since(now).as_secs());
    let latest = future.latest.map(ahead).unwrap_or_default();
    let mut lines = vec![format!(
        "{} in the future, up to {latest} ahead of this machine's clock: is the clock right? If it is, see \"Versions from \
         the future\" in docs/operations.md",
        match future.cells {
            1 => "1 cell has a version".to_owned(),
            cells => format!("{cells} cells have versions"),
        }
    )];
    lines.extend(future.listed.iter().map(|(key, version)| {
        format!("  \"{}\": {version}, {} ahead", key.as_bytes().escape_ascii(), ahead(version.hlc.wall()))
    }));
    if future.listed.len() == FutureCells::LISTED_MAX {
        lines.push(format!("  only the first {} keys are listed", FutureCells::LISTED_MAX));
    }
    lines
}

/// Describes the end of the log: its state, its position, and the mark of its durable end.
struct LogEnds(LogTail, Option<LogEnd>, Option<LogEnd>);

impl fmt::Display for LogEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(ending, end, mark) = *self;
        let Some(end) = end else { return f.write_str("the log has no segment") };
        match ending {
            LogTail::Closed => f.write_str("the log was closed"),
            LogTail::Open => f.write_str("the log was not closed: the process was stopped while it wrote"),
            LogTail::Torn { cut_bytes } => write!(
                f,
                "the log ends with {} of an interrupted, never acknowledged write, which the next start cuts",
                Bytes(cut_bytes)
            ),
        }?;
        write!(f, "; its last segment is {:016x}, with {} bytes of whole groups; ", end.segment.0, end.len)?;
        match mark {
            None => f.write_str("it has no mark of its durable end yet, which the next start makes"),
            Some(mark) if mark == end => f.write_str("it ends exactly at the mark of its durable end"),
            Some(mark) => write!(
                f,
                "the mark of its durable end is at byte {} of segment {:016x}",
                mark.len, mark.segment.0
            ),
        }
    }
}

fn verify_backups(dir: &Path, arguments: &VerifyArguments) -> Result<(), String> {
    expect_directory(dir, "--backup")?;
    let env = Env::os();
    let repository = Repository::open(&env, dir).map_err(|error| error.to_string())?;
    let mut display = Display::new("checking", arguments.progress);
    let report = ctl::verify_repository(&env, &repository, &mut display);
    display.end();
    let report = report.map_err(|error| error.to_string())?;
    arguments.report.print(|| lines_of(&report).join("\n"), || document_of_repository(dir, &report));
    list(&report.damage);
    match report.damage.len() {
        0 => Ok(()),
        1 => Err(format!("{}: 1 file is damaged; the backups that need it are not whole", dir.display())),
        count => Err(format!(
            "{}: {count} files are damaged; the backups that need them are not whole",
            dir.display()
        )),
    }
}

/// Prints each damaged file.
fn list(damage: &[impl fmt::Display]) {
    for error in damage {
        print_note!("veche: {error}");
    }
}

fn document_of_repository(dir: &Path, report: &RepositoryReport) -> Value {
    let backup =
        |(manifest, is_whole): &(ctl::BackupManifest, bool)| document_with(manifest, "ok", *is_whole);
    json!({
        "repository": dir.display().to_string(),
        "ok": report.damage.is_empty(),
        "damage": report.damage.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "backups": report.backups.iter().map(backup).collect::<Vec<_>>(),
        "files": report.objects,
        "bytes": report.bytes,
        "unneeded_files": report.unneeded,
    })
}

fn lines_of(report: &RepositoryReport) -> Vec<String> {
    let backup = |(manifest, is_whole): &(ctl::BackupManifest, bool)| {
        format!(
            "backup {} of node {:016x}, {}{}: {}, {}: {}",
            manifest.number,
            manifest.node.0,
            ctl::utc(manifest.taken),
            placement_of(manifest),
            Count(manifest.files.len() as u64, "file"),
            Bytes(manifest.bytes()),
            if *is_whole { "all as written" } else { "DAMAGED" }
        )
    };
    let mut lines: Vec<String> = report.backups.iter().map(backup).collect();
    lines.extend(report.newest.as_ref().map(|newest| {
        let (tables, cells) = (Count(newest.tables as u64, "table"), Count(newest.cells, "cell"));
        format!("the newest, block by block: {tables} with {cells}: all as written")
    }));
    lines.push(format!("{} of {} in all", Count(report.objects as u64, "file"), Bytes(report.bytes)));
    if report.unneeded > 0 {
        lines.push(format!(
            "{} of no backup: one that was interrupted left them, and the next uses or removes them",
            Count(report.unneeded as u64, "file")
        ));
    }
    lines
}
