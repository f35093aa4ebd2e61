//! Logs: to standard error, as text or as one JSON document a line.

use clap::ValueEnum;
use serde::Deserialize;
use std::io;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Begins to log what `filter` lets pass: a level, or directives such as `info,engine=debug`.
pub(crate) fn start(format: LogFormat, filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| format!("--log {filter:?} is not a level or a list of directives: {error}"))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false);
    match format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}
