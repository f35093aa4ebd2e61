//! `veche export`: write the entries of a node or cluster to a file.

use crate::Failure;
use crate::client;
use crate::interrupt::Interrupt;
use crate::node_url::NodeUrl;
use crate::output::{self, ReportForm, print_note};
use crate::progress::{Bytes, Count, Display, ProgressFlag};
use crate::quantity::{REPLICAS_MAX, whole};
use api::entries::Format;
use clap::ValueEnum;
use ctl::{Export, ExportReport, NodeAddress, PartialFile, RequestedQuorum};
use env::Env;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Write the entries of the whole cluster, or of a node, to a file.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArguments {
    /// Address of the node
    #[arg(long, env = "VECHE_URL", value_name = "URL", default_value = client::URL_DEFAULT)]
    url: NodeUrl,
    /// Only the entries that this node holds, not those of the whole cluster
    #[arg(long, conflicts_with_all = ["ack", "from_replicas"])]
    local: bool,
    /// The entries of the whole cluster, which is the default
    #[arg(long, hide = true, conflicts_with = "local")]
    cluster: bool,
    /// Number of replicas that must answer for each key [default: a majority]
    #[arg(long, value_name = "N", value_parser = whole::<u8>(1, REPLICAS_MAX))]
    ack: Option<u8>,
    /// Number of replicas of each key [default: that of the node]
    #[arg(long, value_name = "N", value_parser = whole::<u8>(1, REPLICAS_MAX))]
    from_replicas: Option<u8>,
    /// Only keys that begin with PREFIX
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<OsString>,
    /// First key [default: the first of all]
    #[arg(long, value_name = "KEY")]
    start: Option<OsString>,
    /// End of the keys, exclusive [default: none]
    #[arg(long, value_name = "KEY")]
    end: Option<OsString>,
    /// Maximum number of entries
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0, u64::MAX))]
    limit: Option<u64>,
    /// Keys and versions without values, a JSON object on each line
    #[arg(long, conflicts_with = "skip_future")]
    keys: bool,
    /// Print the number of entries, and write none
    #[arg(long, conflicts_with_all = ["keys", "skip_future", "compress", "to"])]
    count: bool,
    /// Format of the entries [default: binary; ndjson with --keys]
    #[arg(long)]
    format: Option<FileFormat>,
    /// Compression of the file [default: none]
    #[arg(long)]
    compress: Option<Compress>,
    /// Leave out entries whose versions are more than 10 s in the future, which a wrong clock
    /// issued
    #[arg(long, conflicts_with = "compress")]
    skip_future: bool,
    /// The file, which appears once it is complete; - is standard output
    #[arg(long, value_name = "FILE", required_unless_present = "count")]
    to: Option<OsString>,
    #[command(flatten)]
    report: ReportForm,
    #[command(flatten)]
    progress: ProgressFlag,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FileFormat {
    /// Records with lengths and checksums, ended by a count: docs/entries-format.md
    Binary,
    /// A JSON object on each line
    Ndjson,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Compress {
    /// Zstandard
    Zstd,
}

pub(crate) fn run(arguments: ExportArguments) -> Result<(), Failure> {
    let url = arguments.url.clone();
    let node = NodeAddress::new(url.authority());
    let (to, report, progress) = (arguments.to.clone(), arguments.report, arguments.progress);
    let export = arguments.into_export().map_err(Failure::usage)?;
    let interrupt = Interrupt::watch()?;
    let Some(to) = to else {
        let count =
            interrupt.run(async { ctl::count(&node, &export).await.map_err(|error| error.to_string()) })?;
        report.print(|| count.to_string(), || json!({ "entries": count }));
        return Ok(());
    };
    if to == "-" {
        let mut stdout = output::Stdout::open()?;
        let display = Display::new("exporting", progress);
        let exported = run_to(&interrupt, &node, &export, &mut stdout, display)?;
        // Standard output holds the entries.
        match report.is_json() {
            true => print_note!("{}", document(&exported, "-")),
            false => print_note!("{}", summary(&exported, "standard output")),
        }
        return Ok(());
    }
    let path = Path::new(&to);
    let mut file = PartialFile::create(&Env::os(), path).map_err(|error| error.to_string())?;
    let exported = run_to(&interrupt, &node, &export, &mut file, Display::new("exporting", progress))?;
    file.finish().map_err(|error| error.to_string())?;
    let to = path.display().to_string();
    report.print(|| summary(&exported, &to), || document(&exported, &to));
    Ok(())
}

fn run_to(
    interrupt: &Interrupt,
    node: &NodeAddress,
    export: &Export,
    to: &mut dyn Write,
    mut display: Display,
) -> Result<ExportReport, String> {
    interrupt
        .run(async { ctl::export(node, export, to, &mut display).await.map_err(|error| error.to_string()) })
}

fn document(exported: &ExportReport, to: &str) -> Value {
    json!({ "to": to, "entries": exported.entries, "bytes": exported.bytes, "left_out": exported.skipped })
}

fn summary(exported: &ExportReport, to: &str) -> String {
    let skipped = match exported.skipped {
        0 => String::new(),
        skipped => format!(", {skipped} left out, with versions in the future"),
    };
    let to = output::escape(to, char::is_control);
    format!("{to}: {}, {}{skipped}", Count(exported.entries, "entry"), Bytes(exported.bytes))
}

impl ExportArguments {
    fn into_export(self) -> Result<Export, String> {
        let quorum = RequestedQuorum { ack: self.ack, from: self.from_replicas };
        if self.keys && self.format == Some(FileFormat::Binary) {
            return Err(
                "--keys: the binary format has no entries without values; use --format ndjson".to_owned()
            );
        }
        Ok(Export {
            cluster: (!self.local).then_some(quorum),
            prefix: self.prefix.map(OsString::into_vec),
            keys: self.keys,
            start: self.start.map(OsString::into_vec),
            end: self.end.map(OsString::into_vec),
            limit: self.limit,
            format: match self.format {
                Some(FileFormat::Ndjson) => Format::Ndjson,
                None if self.keys => Format::Ndjson,
                None | Some(FileFormat::Binary) => Format::Binary,
            },
            zstd: matches!(self.compress, Some(Compress::Zstd)),
            skip_future: self.skip_future,
        })
    }
}
