//! `veche backup`: add a backup of a running node to a repository.

use crate::client;
use crate::interrupt::{self, Interrupt};
use crate::node_url::NodeUrl;
use crate::output::{ReportForm, print_note};
use crate::progress::{Bytes, Count, Display, ProgressFlag};
use crate::quantity::{AtLeastOne, Span};
use ctl::{
    AddedBackup, BackupManifest, BackupNumber, BackupOptions, BackupReport, CtlError, NodeAddress,
    RetentionReport,
};
use env::Env;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Back up a running node to a repository on the same machine. Tables of earlier backups are not
/// copied again.
#[derive(Debug, clap::Args)]
pub(crate) struct BackupArguments {
    /// Address of the node
    #[arg(long, env = "VECHE_URL", value_name = "URL", default_value = client::URL_DEFAULT)]
    url: NodeUrl,
    /// The repository: a directory for the backups of this one node; created if missing
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Afterwards, remove all but the newest N backups
    #[arg(long, value_name = "N")]
    keep: Option<AtLeastOne>,
    /// Longest time to wait for a node that refuses a checkpoint for now
    #[arg(long, value_name = "TIME", default_value = "5m")]
    wait_max: Span,
    #[command(flatten)]
    report: ReportForm,
    #[command(flatten)]
    progress: ProgressFlag,
}

pub(crate) fn run(arguments: &BackupArguments) -> Result<(), String> {
    let url = arguments.url.clone();
    let interrupt = Interrupt::watch()?;
    let mut display = Display::new("copying", arguments.progress).until(&interrupt);
    let (env, node) = (Env::os(), NodeAddress::new(url.authority()));
    let options = BackupOptions { keep: arguments.keep.map(AtLeastOne::get), wait_max: arguments.wait_max.0 };
    let backing_up = ctl::back_up(&env, &node, &arguments.to, options, &mut display);
    let done = interrupt::runtime()?.block_on(backing_up);
    display.end();
    let done = done.map_err(|error| match error {
        CtlError::Cancelled => "interrupted: no backup was added".to_owned(),
        other => other.to_string(),
    })?;
    arguments.report.print(|| text_of(&arguments.to, &done), || document_of(&arguments.to, &done));
    let BackupReport { added, damaged_tables, checkpoint_left, .. } = done;
    for error in &added.unreadable {
        print_note!(
            "veche: warning: {error}; that backup cannot be restored, and no old backup is removed while its \
             manifest is there; to give that backup up, remove the file"
        );
    }
    if let Some(error) = checkpoint_left {
        print_note!(
            "veche: the node still keeps the checkpoint of this backup; the next backup removes it: {error}"
        );
    }
    match &damaged_tables[..] {
        [] => Ok(()),
        damaged => Err(damaged_summary(added.manifest.number, damaged)),
    }
}

fn text_of(repository: &Path, done: &BackupReport) -> String {
    let BackupReport { added, removed, backups, .. } = done;
    let mut lines = vec![summary(added)];
    if added.objects_replaced > 0 {
        lines.push(format!(
            "{} in the repository had a wrong length or tail and got the node's contents again",
            Count(added.objects_replaced as u64, "damaged file")
        ));
    }
    let RetentionReport { backups: backups_removed, objects } = removed;
    if *backups_removed > 0 {
        lines.push(format!(
            "{backups_removed} older backups were removed, with {objects} files that only they needed"
        ));
    }
    lines.push(format!("{} holds {}", repository.display(), Count(*backups as u64, "backup")));
    lines.join("\n")
}

fn document_of(repository: &Path, done: &BackupReport) -> Value {
    let BackupReport { added, removed, backups, damaged_tables, .. } = done;
    json!({
        "repository": repository.display().to_string(),
        "backup": added.manifest.number.0,
        "node": format!("{:016x}", added.manifest.node.0),
        "files": added.manifest.files.len(),
        "bytes": added.manifest.bytes(),
        "files_copied": added.files_copied,
        "bytes_copied": added.bytes_copied,
        "files_replaced": added.objects_replaced,
        "backups": backups,
        "backups_removed": removed.backups,
        "files_removed": removed.objects,
        "damaged_tables": damaged_tables.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
    })
}

/// What JSON documents say about a backup, and one more field.
pub(crate) fn document_with(manifest: &BackupManifest, name: &str, value: impl Into<Value>) -> Value {
    let mut document = json!({
        "backup": manifest.number.0,
        "node": format!("{:016x}", manifest.node.0),
        "taken_unix_ms": manifest.taken.millis_since_unix_epoch(),
        "files": manifest.files.len(),
        "bytes": manifest.bytes(),
    });
    if let Some(layout) = &manifest.layout {
        document["layout_epoch"] = layout.epoch.into();
        document["placement_epoch"] = layout.placement_epoch.into();
        document["layout_changing"] = layout.is_changing.into();
    }
    document[name] = value.into();
    document
}

/// What lines about a backup add if data has moved between nodes before it; otherwise nothing.
pub(crate) fn placement_of(manifest: &BackupManifest) -> String {
    match &manifest.layout {
        Some(layout) if layout.is_changing => {
            format!(", placement epoch {}, while a change of the layout was running", layout.placement_epoch)
        }
        Some(layout) if layout.placement_epoch > 1 => format!(", placement epoch {}", layout.placement_epoch),
        _ => String::new(),
    }
}

/// The error for a backup that contains damaged tables.
fn damaged_summary(number: BackupNumber, damaged: &[PathBuf]) -> String {
    let paths: Vec<_> = damaged.iter().map(|path| path.display().to_string()).collect();
    format!(
        "backup {number} was added, but it contains {} of the node: {}. Keep an older backup until the node has repaired \
         them (docs/operations.md, a failing disk), then make another backup",
        Count(paths.len() as u64, "damaged table"),
        paths.join(", ")
    )
}

fn summary(added: &AddedBackup) -> String {
    let AddedBackup { manifest, files_copied, bytes_copied, .. } = added;
    format!(
        "backup {} of node {:016x}: {} files, {}; {} of that in {files_copied} files had to be copied",
        manifest.number,
        manifest.node.0,
        manifest.files.len(),
        Bytes(manifest.bytes()),
        Bytes(*bytes_copied)
    )
}
