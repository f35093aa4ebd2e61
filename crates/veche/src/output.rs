//! Lines for people and scripts: results on standard output, everything else on standard error.
//!
//! **Promise.** A closed standard output or standard error never makes a command panic. A command whose standard
//! output was closed by its reader ends at its next line, with the exit code that a shell reports for `SIGPIPE`. A
//! standard output that fails otherwise, on a full disk for example, ends the command with an error.
//!
//! **Caveats.** A line for standard error that cannot be written is lost.

use serde_json::Value;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// The exit code that a shell reports for a process that `SIGPIPE` ended.
const BROKEN_PIPE: i32 = 128 + 13;

/// Writes a line to standard output, as `println!` does.
macro_rules! print_line {
    ($($words:tt)*) => { $crate::output::to_stdout(format_args!($($words)*)) };
}

/// Writes a line to standard error, as `eprintln!` does.
macro_rules! print_note {
    ($($words:tt)*) => { $crate::output::to_stderr(format_args!($($words)*)) };
}

pub(crate) use {print_line, print_note};

/// How a command reports its result.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ReportForm {
    /// Print the result as one JSON document; docs/command-line.md lists its fields
    #[arg(long)]
    json: bool,
}

impl ReportForm {
    /// Prints the lines of `text`, or `document` as one line of JSON.
    pub(crate) fn print(self, text: impl FnOnce() -> String, document: impl FnOnce() -> Value) {
        if self.json {
            print_line!("{}", document());
        } else {
            print_line!("{}", text());
        }
    }

    pub(crate) const fn is_json(self) -> bool {
        self.json
    }
}

pub(crate) fn to_stdout(line: Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(BROKEN_PIPE),
        Err(error) => {
            to_stderr(format_args!("veche: cannot write to standard output: {error}"));
            std::process::exit(1);
        }
    }
}

pub(crate) fn to_stderr(line: Arguments<'_>) {
    // There is no other place where this failure could be reported.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
