//! `veche import`: write the entries of a file to a node.

use crate::client;
use crate::interrupt::Interrupt;
use crate::node_url::NodeUrl;
use crate::output::{ReportForm, print_note};
use crate::progress::{Count, Display, ProgressFlag};
use crate::quantity::{REPLICAS_MAX, whole};
use ctl::{FailedEntry, Import, ImportReport, NodeAddress, RequestedQuorum};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, stdin};
use std::path::Path;

/// Write the entries of a file to a node or cluster. The format is recognized: binary or JSON
/// lines, compressed by zstd or not.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArguments {
    /// Address of the node; of a cluster, any of its nodes
    #[arg(long, env = "VECHE_URL", value_name = "URL", default_value = client::URL_DEFAULT)]
    url: NodeUrl,
    /// The file; - is standard input
    #[arg(long, value_name = "FILE")]
    from: OsString,
    /// Number of replicas that must store each entry [default: that of the node]
    #[arg(long, value_name = "N", value_parser = whole::<u8>(1, REPLICAS_MAX))]
    ack: Option<u8>,
    /// Number of nodes that store each entry [default: that of the node]
    #[arg(long, value_name = "N", value_parser = whole::<u8>(1, REPLICAS_MAX))]
    from_replicas: Option<u8>,
    /// Leave out entries whose versions are more than 10 s in the future, which a wrong clock
    /// issued
    #[arg(long)]
    skip_future: bool,
    #[command(flatten)]
    report: ReportForm,
    #[command(flatten)]
    progress: ProgressFlag,
}

pub(crate) fn run(arguments: &ImportArguments) -> Result<(), String> {
    let url = arguments.url.clone();
    let node = NodeAddress::new(url.authority());
    let quorum = RequestedQuorum { ack: arguments.ack, from: arguments.from_replicas };
    let import = arguments.open(quorum)?;
    let interrupt = Interrupt::watch()?;
    let mut display = Display::new("importing", arguments.progress);
    let imported = interrupt.run(async { Ok(ctl::import(&node, import, &mut display).await) })?;
    display.end();
    arguments.report.print(|| format!("{url}: {}", summary(&imported)), || document(&url, &imported));
    imported.failures.iter().for_each(|failure| print_note!("veche: {}", line_of(failure)));
    let ImportReport { failed, failures, unknown, ended_early, .. } = imported;
    let unlisted = failed - failures.len() as u64;
    if unlisted > 0 {
        print_note!("veche: and {unlisted} more");
    }
    let unknown = match unknown {
        0 => String::new(),
        unknown => format!("; whether {unknown} more entries were written is unknown"),
    };
    match ended_early {
        Some(error) => Err(format!("not all was imported: {error}{unknown}")),
        None if failed > 0 => Err(format!("{failed} entries were not imported")),
        None => Ok(()),
    }
}

impl ImportArguments {
    fn open(&self, quorum: RequestedQuorum) -> Result<Import, String> {
        let skip_future = self.skip_future;
        if self.from == "-" {
            let from: Box<dyn Read + Send> = Box::new(stdin());
            return Ok(Import {
                from,
                name: "standard input".to_owned(),
                bytes_total: None,
                quorum,
                skip_future,
            });
        }
        let path = Path::new(&self.from);
        let refused = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
        let file = File::open(path).map_err(refused)?;
        let metadata = file.metadata().map_err(refused)?;
        if metadata.is_dir() {
            return Err(format!("cannot read {}: it is a directory; name a file of entries", path.display()));
        }
        let bytes_total = metadata.is_file().then_some(metadata.len());
        Ok(Import {
            from: Box::new(file),
            name: path.display().to_string(),
            bytes_total,
            quorum,
            skip_future,
        })
    }
}

fn summary(imported: &ImportReport) -> String {
    let mut parts = vec![format!("{} imported", Count(imported.entries, "entry"))];
    let also = [
        (imported.superseded, "of them found something newer there"),
        (imported.skipped, "left out, with versions in the future"),
        (imported.sent_again, "were sent again after the node had been busy"),
        (imported.failed, "failed"),
    ];
    parts.extend(
        also.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")),
    );
    parts.join(", ")
}

fn document(url: &NodeUrl, imported: &ImportReport) -> Value {
    let failure = |failure: &FailedEntry| {
        let key = failure.key.escape_ascii().to_string();
        json!({ "key_escaped": key, "status": failure.status, "detail": failure.detail })
    };
    json!({
        "url": url.to_string(),
        "ok": imported.failed == 0 && imported.ended_early.is_none(),
        "entries": imported.entries,
        "superseded": imported.superseded,
        "left_out": imported.skipped,
        "sent_again": imported.sent_again,
        "failed": imported.failed,
        "failures": imported.failures.iter().map(failure).collect::<Vec<_>>(),
        "unknown": imported.unknown,
        "ended_early": imported.ended_early.as_ref().map(ToString::to_string),
    })
}

fn line_of(failure: &FailedEntry) -> String {
    format!("\"{}\": {}, {}", failure.key.escape_ascii(), failure.status, failure.detail)
}
