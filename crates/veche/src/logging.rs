//! Logs on standard error, as text or as one JSON document per line.
//!
//! **Promise.** The process outlives the reader of its log: records that cannot be written are
//! lost. An invalid filter is refused at start, so that a spelling mistake does not silence errors.
//! A text record is one line: control characters in it, for example in a path, are written as
//! escape sequences, so that a name on disk cannot forge a record or send commands to a terminal.

use crate::output;
use clap::ValueEnum;
use serde::Deserialize;
use std::borrow::Cow;
use std::io::{self, Write};
use tracing_subscriber::EnvFilter;

/// The level of targets that no directive names.
const LEVEL_DEFAULT: &str = "info";
/// Each accepted level name with its name in `tracing`.
const LEVELS: [(&str, &str); 7] = [
    ("off", "off"),
    ("error", "error"),
    ("warn", "warn"),
    ("warning", "warn"),
    ("info", "info"),
    ("debug", "debug"),
    ("trace", "trace"),
];

/// Format of log records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Checks a filter of the log.
///
/// # Errors
/// A sentence that names the word of `filter` that is neither a level nor `target=level`.
pub(crate) fn check_filter(filter: &str) -> Result<(), String> {
    filter_of(filter).map(drop)
}

fn filter_of(filter: &str) -> Result<String, String> {
    directives(filter).map_err(|word| {
        format!(
            "--log {filter:?}: {word:?} is neither a level (off, error, warn, info, debug, trace) nor a \
             directive such as engine=debug"
        )
    })
}

/// Starts logging. `filter` is a comma-separated list of at most one level and any number of
/// directives such as `engine=debug`.
///
/// # Errors
/// That of [`check_filter`].
pub(crate) fn start(format: LogFormat, filter: &str) -> Result<(), String> {
    let directives = filter_of(filter)?;
    let filter = EnvFilter::try_new(&directives).map_err(|error| format!("--log {filter:?}: {error}"))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        // Without this, a failed write is reported by `eprintln!`, which panics.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => lines.with_writer(|| RecordWriter(io::stderr())).init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}

/// Writes text records, with their control characters escaped.
///
/// `tracing_subscriber` passes each record in one call, ended by a line feed.
struct RecordWriter<W>(W);

impl<W: Write> Write for RecordWriter<W> {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(record);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        match output::escape(line, char::is_control) {
            Cow::Borrowed(_) => self.0.write_all(record),
            Cow::Owned(escaped) => self.0.write_all((escaped + "\n").as_bytes()),
        }?;
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The filter in the syntax of `tracing`, with a level for all targets that no directive names.
///
/// # Errors
/// The invalid word.
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
    fn a_text_record_is_one_line_without_control_characters() {
        let written = |record: &str| {
            let mut out = Vec::new();
            RecordWriter(&mut out).write_all(record.as_bytes()).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written("INFO store: opened path=/data/é\n"), "INFO store: opened path=/data/é\n");
        assert_eq!(
            written("INFO opened path=/a\nERROR forged \u{1b}[31m\u{9b}\r\n"),
            "INFO opened path=/a\\nERROR forged \\u{1b}[31m\\u{9b}\\r\n"
        );
    }

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
