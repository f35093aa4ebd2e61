//! `veche serve`: run a node.

use crate::Failure;
use crate::allocator;
use crate::logging;
use crate::origin;
use crate::sd_notify::ServiceManager;
use crate::settings::{MachineProperties, Settings};
use clap::CommandFactory;
use env::{Env, os_process};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Run a node.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    settings: Settings,
    /// TOML file with settings, named like the flags; flags and VECHE_... variables override it
    #[arg(long, env = "VECHE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The variables in `names` that begin with `VECHE_` but are not settings of any subcommand. They
/// are no error: Kubernetes sets such variables for a service with the name veche.
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

pub(crate) fn run(arguments: ServeArguments) -> Result<(), Failure> {
    let config_file = arguments.config.clone();
    let named = |error| origin::name_setting(&crate::Arguments::command(), error, config_file.as_deref());
    let refused = |error| Failure::usage(named(error));
    arguments.settings.check_values().map_err(refused)?;
    if arguments.config.is_none() {
        arguments.settings.check_cluster().map_err(refused)?;
    }
    let file = arguments.config.as_deref().map(Settings::read).transpose()?;
    let settings = arguments.settings.or(file.unwrap_or_default());
    let (format, filter) = settings.logging();
    logging::start(format, filter)?;
    let unknown = unknown_variables(std::env::vars_os().map(|(name, _)| name));
    if !unknown.is_empty() {
        tracing::warn!(
            variables = unknown.join(" "),
            "these environment variables are not settings and have no effect"
        );
    }
    if let Err(error) = os_process::limit_huge_pages_to_madvise() {
        tracing::debug!(%error, "cannot limit huge pages to madvise");
    }
    let machine = MachineProperties {
        memory_bytes: os_process::total_memory_bytes(),
        cores: os_process::available_cores(),
        files_max: os_process::raise_open_file_limit()
            .map_err(|error| format!("cannot raise the limit of open files: {error}"))?,
    };
    settings.join().map_err(named)?;
    let config = settings.resolve(&machine).map_err(named)?;
    allocator::limit_resident_memory(config.memory_bytes())
        .map_err(|error| format!("cannot start the thread that limits memory: {error}"))?;
    let notifier = StateNotifier { manager: ServiceManager::from_environment() };
    server::run(config, Env::os(), &notifier).map_err(|error| Failure::from(error.to_string()))
}

/// Reports the state of the node on standard output and to the service manager.
struct StateNotifier {
    manager: ServiceManager,
}

impl server::LifecycleObserver for StateNotifier {
    fn on_listening(&self, address: SocketAddr) {
        // Read by a process that started the node with port 0. A missing reader does not stop the
        // node.
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
    fn unknown_variables_are_listed() {
        let names =
            ["PATH", "VECHE_MEMORY", "VECHE_URL", "VECHE_CONFIG", "VECHE_MEMROY", "VECHE_FOO", "veche_x"];
        assert_eq!(unknown_variables(names.into_iter().map(OsString::from)), ["VECHE_FOO", "VECHE_MEMROY"]);
    }
}
