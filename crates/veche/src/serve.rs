//! `veche serve`: run a node.

use crate::allocator;
use crate::logging;
use crate::sd_notify::ServiceManager;
use crate::settings::{Machine, Settings};
use clap::CommandFactory;
use env::{Env, os_process};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

/// More copies of a key than this are rarely wanted when nobody asked for them.
const DEFAULT_FROM_COMMON: u8 = 5;

/// Run a node.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// TOML file with settings, named as the flags are; flags and VECHE_... variables win over it
    #[arg(long, env = "VECHE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Those of these environment variables that look like settings of some subcommand and are none. No error: Kubernetes sets
/// such for every service by the name of veche.
fn unknown_variables(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let command = crate::Arguments::command();
    let arguments = command.get_subcommands().flat_map(clap::Command::get_arguments);
    let known: BTreeSet<&OsStr> = arguments.filter_map(clap::Arg::get_env).collect();
    let unknown =
        names.filter(|name| !known.contains(&**name)).map(|name| name.to_string_lossy().into_owned());
    let mut unknown: Vec<String> = unknown.filter(|name| name.starts_with("VECHE_")).collect();
    unknown.sort_unstable();
    unknown
}

pub(crate) fn run(arguments: Arguments) -> Result<(), String> {
    let file = arguments.config.as_deref().map(Settings::read).transpose()?;
    let settings = arguments.settings.or(file.unwrap_or_default());
    let (format, filter) = settings.logging();
    logging::start(format, filter)?;
    let unknown = unknown_variables(std::env::vars_os().map(|(name, _)| name));
    if !unknown.is_empty() {
        tracing::warn!(
            variables = unknown.join(" "),
            "these environment variables are no settings and do nothing"
        );
    }
    if let Err(error) = os_process::limit_huge_pages_to_madvise() {
        tracing::debug!(%error, "memory may come in huge pages");
    }
    let machine = Machine {
        memory_bytes: os_process::total_memory_bytes(),
        cores: os_process::available_cores(),
        files_max: os_process::raise_open_file_limit()
            .map_err(|error| format!("cannot raise the limit of open files: {error}"))?,
    };
    let config = settings.resolve(&machine)?;
    if config.default_from > DEFAULT_FROM_COMMON {
        tracing::warn!(
            default_from = config.default_from,
            "each key is kept on so many nodes unless a request says otherwise; --default-from 3 is what most need"
        );
    }
    allocator::limit_resident_memory(config.memory_bytes())
        .map_err(|error| format!("cannot start the thread that looks after memory: {error}"))?;
    let notifier = StateNotifier { manager: ServiceManager::from_environment() };
    server::run(config, Env::os(), &notifier).map_err(|error| error.to_string())
}

/// Tells standard output and the service manager how far the node is.
struct StateNotifier {
    manager: ServiceManager,
}

impl server::Observer for StateNotifier {
    fn on_listening(&self, address: SocketAddr) {
        // The process that started this one with port 0 reads it. A standard output without a reader is no reason to stop.
        let _ = writeln!(std::io::stdout(), "listening on {address}");
    }

    fn on_serving(&self) {
        self.manager.ready();
    }

    fn on_stopping(&self) {
        self.manager.stopping();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_are_no_settings_are_told() {
        let names =
            ["PATH", "VECHE_MEMORY", "VECHE_URL", "VECHE_CONFIG", "VECHE_MEMROY", "VECHE_FOO", "veche_x"];
        assert_eq!(unknown_variables(names.into_iter().map(OsString::from)), ["VECHE_FOO", "VECHE_MEMROY"]);
    }
}
