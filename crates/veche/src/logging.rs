//! Logs: to standard error, as text or as one JSON document a line.
//!
//! **Promise.** The reader of the log may end at any time: lines that cannot be written are lost, and the process
//! goes on. A filter that is not understood is refused at the start, so that no spelling mistake silences errors.

use clap::ValueEnum;
use serde::Deserialize;
use std::io;
use tracing_subscriber::EnvFilter;

/// The level of what no directive names.
const LEVEL_DEFAULT: &str = "info";
/// The words for levels, with what `tracing` calls them.
const LEVELS: [(&str, &str); 7] = [
    ("off", "off"),
    ("error", "error"),
    ("warn", "warn"),
    ("warning", "warn"),
    ("info", "info"),
    ("debug", "debug"),
    ("trace", "trace"),
];

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Begins to log what `filter` lets pass: a level, directives such as `engine=debug`, or both.
///
/// # Errors
/// A sentence: the filter has a word that is neither a level nor `target=level`.
pub(crate) fn start(format: LogFormat, filter: &str) -> Result<(), String> {
    let directives = directives(filter).map_err(|word| {
        format!(
            "--log {filter:?}: {word:?} is neither a level (off, error, warn, info, debug, trace) nor a \
             directive such as engine=debug"
        )
    })?;
    let filter = EnvFilter::try_new(&directives).map_err(|error| format!("--log {filter:?}: {error}"))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        // Otherwise a line that cannot be written is reported with `eprintln!`, which panics.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}

/// The filter in the words of `tracing`, with a level for everything that no directive names.
///
/// # Errors
/// The word that is not understood.
fn directives(filter: &str) -> Result<String, String> {
    let mut level = LEVEL_DEFAULT;
    let mut targets = Vec::new();
    for word in filter.split(',').map(str::trim) {
        match word.split_once('=') {
            Some((target, of_target)) if is_target(target) => {
                let of_target = level_of(of_target).ok_or(word)?;
                targets.push(format!("{target}={of_target}"));
            }
            Some(_) => return Err(word.to_owned()),
            None => level = level_of(word).ok_or(word)?,
        }
    }
    targets.insert(0, level.to_owned());
    Ok(targets.join(","))
}

fn level_of(word: &str) -> Option<&'static str> {
    LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|&(_, level)| level)
}

fn is_target(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_directives_are_understood() {
        for (filter, expected) in [
            ("info", "info"),
            ("warning", "warn"),
            ("WARN", "warn"),
            ("off", "off"),
            ("info,engine=debug", "info,engine=debug"),
            ("engine=debug, server::links=warning", "info,engine=debug,server::links=warn"),
        ] {
            assert_eq!(directives(filter).as_deref(), Ok(expected), "{filter}");
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_and_named() {
        for (filter, word) in [
            ("warnign", "warnign"),
            ("", ""),
            ("info,verbose", "verbose"),
            ("engine=loud", "engine=loud"),
            ("=debug", "=debug"),
            ("engine[span]=debug", "engine[span]=debug"),
        ] {
            assert_eq!(directives(filter), Err(word.to_owned()), "{filter}");
        }
    }
}
