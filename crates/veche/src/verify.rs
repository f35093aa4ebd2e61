//! `veche verify`: check a data directory that no node has open.

use crate::settings::DATA_DEFAULT;
use env::Env;
use std::path::PathBuf;

/// Progress is told each time so many bytes more were checked.
const TELL_EVERY_BYTES: u64 = 256 << 20;

/// Check every byte of a data directory that no node has open.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Data directory
    #[arg(long, env = "VECHE_DATA", value_name = "DIR", default_value = DATA_DEFAULT)]
    data: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let mut told_bytes = 0;
    let result = store::verify(&Env::os(), &arguments.data, &mut |progress| {
        if progress.bytes_done >= told_bytes + TELL_EVERY_BYTES {
            told_bytes = progress.bytes_done;
            println!("{} of {} MiB checked", progress.bytes_done >> 20, progress.bytes_total >> 20);
        }
    });
    let (identity, verified) = result.map_err(|error| error.to_string())?;
    println!(
        "{}: node {:?}, {} tables of {} MiB with {} cells, {} records in the log: all as written",
        arguments.data.display(),
        identity.tag,
        verified.tables,
        verified.table_bytes >> 20,
        verified.cells,
        verified.wal_records
    );
    Ok(())
}
