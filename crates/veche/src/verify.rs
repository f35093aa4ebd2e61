//! `veche verify`: check a data directory that no node has open, or a backup repository.

use crate::output::{print_line, print_note};
use crate::progress::{Bytes, Count, Display};
use crate::settings::DATA_DEFAULT;
use ctl::{Observer, Progress, Repository, RepositoryReport};
use env::Env;
use std::path::{Path, PathBuf};

/// Check every byte of a data directory that no node has open, or of a backup repository.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Data directory [default: ./veche-data]
    #[arg(long, env = "VECHE_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// Check the backups in this repository, and no data directory
    #[arg(long, value_name = "DIR")]
    backup: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    match &arguments.backup {
        Some(backup) => verify_backups(backup),
        None => verify_data(arguments.data.as_deref().unwrap_or(Path::new(DATA_DEFAULT))),
    }
}

fn verify_data(data: &Path) -> Result<(), String> {
    let mut display = Display::new("checking");
    let result = store::verify(&Env::os(), data, &mut |progress| {
        let (bytes_done, bytes_total) = (progress.bytes_done, Some(progress.bytes_total));
        display.on_progress(Progress { bytes_done, bytes_total, entries_done: 0 });
    });
    display.end();
    let (identity, verified) = result.map_err(|damage| match &damage[..] {
        [error] => error.to_string(),
        all => {
            list(all);
            format!("{}: {} files cannot be read back as they were written", data.display(), all.len())
        }
    })?;
    print_line!(
        "{}: node {:?}, {} of {} with {}, {} in the log: all as written",
        data.display(),
        identity.tag,
        Count(verified.tables as u64, "table"),
        Bytes(verified.table_bytes),
        Count(verified.cells, "cell"),
        Count(verified.wal_records, "record")
    );
    Ok(())
}

fn verify_backups(dir: &Path) -> Result<(), String> {
    let env = Env::os();
    let repository = Repository::open(&env, dir).map_err(|error| error.to_string())?;
    let mut display = Display::new("checking");
    let report = ctl::verify_repository(&env, &repository, &mut display);
    display.end();
    let report = report.map_err(|error| error.to_string())?;
    for line in lines_of(&report) {
        print_line!("{line}");
    }
    list(&report.damage);
    match report.damage.len() {
        0 => Ok(()),
        1 => {
            Err(format!("{}: 1 file is damaged; the backups that need it cannot be restored", dir.display()))
        }
        count => Err(format!(
            "{}: {count} files are damaged; the backups that need them cannot be restored",
            dir.display()
        )),
    }
}

/// Each file that is damaged.
fn list(damage: &[impl std::fmt::Display]) {
    for error in damage {
        print_note!("veche: {error}");
    }
}

fn lines_of(report: &RepositoryReport) -> Vec<String> {
    let backup = |(manifest, is_whole): &(ctl::Manifest, bool)| {
        format!(
            "backup {} of node {:016x}, {}: {}, {}: {}",
            manifest.number,
            manifest.node.0,
            ctl::utc(manifest.taken),
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
