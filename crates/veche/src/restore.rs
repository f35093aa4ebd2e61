//! `veche restore`: restore a data directory from a backup.

use crate::backup::document_with;
use crate::interrupt::Interrupt;
use crate::output::ReportForm;
use crate::progress::{Bytes, Count, Display, ProgressFlag};
use ctl::{BackupManifest, BackupNumber, CtlError, Repository};
use env::Env;
use serde_json::Value;
use std::path::{Path, PathBuf};
use stdx::{shell_path, shell_word};
use store::{AfterRestore, DirectoryCluster};

/// Restore a data directory from a backup. Every checksum is verified.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArguments {
    /// The repository
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Number of the backup [default: the newest]
    #[arg(long, value_name = "NUMBER")]
    backup: Option<String>,
    /// Target: an empty or new directory
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// For one node of a cluster whose other nodes have run since the backup: its answers count
    /// once it has caught up from them
    #[arg(long, conflicts_with = "whole_cluster")]
    peers_went_on: bool,
    /// For a cluster of which every node is restored now, each from its own backup
    #[arg(long)]
    whole_cluster: bool,
    /// With --whole-cluster, if data has moved between nodes before: the placement epoch that the
    /// backups of all nodes have
    #[arg(long, value_name = "EPOCH", requires = "whole_cluster")]
    placement_epoch: Option<u64>,
    #[command(flatten)]
    report: ReportForm,
    #[command(flatten)]
    progress: ProgressFlag,
}

pub(crate) fn run(arguments: &RestoreArguments) -> Result<(), String> {
    let env = Env::os();
    let repository = Repository::open(&env, &arguments.from).map_err(|error| error.to_string())?;
    let wanted = arguments.backup.as_deref().map(str::parse::<BackupNumber>).transpose();
    let wanted =
        wanted.map_err(|_| "--backup must be the number of a backup, such as 000003 or 3".to_owned())?;
    let manifest = repository.find(wanted).and_then(|number| repository.manifest(number));
    let manifest = manifest.map_err(|error| with_readable_backup(&repository, &error))?;
    let after = arguments.after_restore(&manifest)?;
    if arguments.whole_cluster {
        ctl::check_whole_cluster(&repository, &manifest, arguments.placement_epoch)
            .map_err(|refusal| refusal.to_string())?;
    }

    let interrupt = Interrupt::watch()?;
    let mut display = Display::new("copying", arguments.progress).until(&interrupt);
    let restored = ctl::restore(&env, &repository, &manifest, &arguments.data, after, &mut display);
    display.end();
    restored.map_err(|error| match error {
        CtlError::Cancelled => format!("interrupted: nothing is left in {}", arguments.data.display()),
        other => other.to_string(),
    })?;
    arguments.report.print(|| text_of(arguments, &manifest), || document_of(arguments, &manifest));
    Ok(())
}

fn text_of(arguments: &RestoreArguments, manifest: &BackupManifest) -> String {
    let data = arguments.data.display().to_string();
    format!(
        "{data}: node {:016x} as of backup {}, {}, {}: all as written\n{}",
        manifest.node.0,
        manifest.number,
        Count(manifest.files.len() as u64, "file"),
        Bytes(manifest.bytes()),
        start_command(manifest, &arguments.data)
    )
}

fn document_of(arguments: &RestoreArguments, manifest: &BackupManifest) -> Value {
    document_with(manifest, "data", arguments.data.display().to_string())
}

/// Describes the error of a damaged backup, and names the newest backup with a readable manifest.
fn with_readable_backup(repository: &Repository, error: &CtlError) -> String {
    let CtlError::Damaged { .. } = error else { return error.to_string() };
    let there = repository.backups().unwrap_or_default();
    let readable = there.into_iter().rev().find(|number| repository.manifest(*number).is_ok());
    match readable {
        Some(number) => {
            format!("{error}; restore another backup: --backup {} is the newest that can be read", number.0)
        }
        None => format!("{error}; no backup of {} can be read", repository.dir().display()),
    }
}

impl RestoreArguments {
    /// The decision about the peers since the backup.
    fn after_restore(&self, manifest: &BackupManifest) -> Result<AfterRestore, String> {
        match (manifest.has_peers(), self.peers_went_on, self.whole_cluster) {
            (true, true, _) => Ok(AfterRestore::Rebuild),
            (true, _, true) | (false, false, false) => Ok(AfterRestore::Keep),
            (true, false, false) => Err(format!(
                "this is a backup of one of {} nodes, and it depends on what the others did since. If they ran, give \
                 --peers-went-on: the node catches up from them before its answers count. If every node is restored now, \
                 each from its own backup, give --whole-cluster with each of them",
                manifest.nodes.len()
            )),
            (false, ..) => {
                Err("this is a backup of a single node, which has no peers: leave out --peers-went-on and --whole-cluster"
                    .to_owned())
            }
        }
    }
}

/// The command line that starts the restored node. A directory with a layout record needs no list:
/// the record has the present addresses, and the manifest those of the first start.
fn start_command(manifest: &BackupManifest, data: &Path) -> String {
    let has_record = DirectoryCluster::find(&Env::os(), data)
        .is_ok_and(|found| matches!(found, DirectoryCluster::Recorded(_) | DirectoryCluster::Named(_)));
    let data = shell_path(data);
    if manifest.has_peers() && !has_record {
        let nodes = shell_word(manifest.nodes.join(",").as_bytes());
        let own = shell_word(manifest.own.as_bytes());
        format!(
            "start it with: veche serve --data {data} --cluster {nodes} --self-url {own}, and its other flags"
        )
    } else {
        format!("start it with: veche serve --data {data}, and its other flags")
    }
}
