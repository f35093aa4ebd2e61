//! Output of commands: results on standard output, everything else on standard error.
//!
//! **Promise.** A closed standard output or standard error never makes a command panic. A command
//! whose standard output was closed by its reader ends at its next line, with the exit code that a
//! shell reports for `SIGPIPE`. A standard output that fails otherwise, on a full disk for example,
//! ends the command with an error.
//!
//! **Caveats.** A line for standard error that cannot be written is lost.

use serde_json::Value;
use std::borrow::Cow;
use std::fmt::Arguments;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// The form in which a command reports its result.
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

/// Whether this process was started with standard output closed (`>&-`).
///
/// Before `main`, the Rust runtime opens `/dev/null` in place of a closed standard stream: from
/// then on writes succeed, and their bytes are lost.
static STARTED_WITHOUT_STDOUT: AtomicBool = AtomicBool::new(false);

// SAFETY: The loader calls each function of this section once before `main` and before the runtime
// of Rust is set up. This one needs neither the runtime nor memory.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED_STDOUT: extern "C" fn() = note_closed_stdout;

extern "C" fn note_closed_stdout() {
    // SAFETY: `F_GETFD` has no argument and changes nothing. A closed descriptor is an error.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    STARTED_WITHOUT_STDOUT.store(flags == -1, Ordering::Relaxed);
}

/// Standard output as a stream of bytes. The process exits when the reader has closed the pipe.
pub(crate) struct Stdout(());

impl Stdout {
    /// Standard output.
    ///
    /// # Errors
    /// A sentence, if the process was started with standard output closed.
    pub(crate) fn open() -> Result<Self, String> {
        match STARTED_WITHOUT_STDOUT.load(Ordering::Relaxed) {
            true => Err("standard output is closed: redirect it to a file or a pipe".to_owned()),
            false => Ok(Self(())),
        }
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        std::io::stdout().write(bytes).inspect_err(end_without_reader)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stdout().flush().inspect_err(end_without_reader)
    }
}

fn end_without_reader(error: &std::io::Error) {
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(BROKEN_PIPE);
    }
}

/// Replaces or makes the file `path`, with the permissions that the umask leaves. A symbolic link
/// of that name is refused.
///
/// # Errors
/// A sentence that names the file.
pub(crate) fn write_public_file(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW);
    let written = options.open(path).and_then(|mut file| file.write_all(bytes));
    written.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => {
            format!("{} is a symbolic link, which is not followed: remove it, then try again", path.display())
        }
        _ => format!("{}: {error}", path.display()),
    })
}

/// Replaces or creates the file `path`, readable by its owner only. A symbolic link of that name is
/// replaced, not followed. A device or pipe is written to.
///
/// # Errors
/// A sentence that names the file.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let is_device = ["/dev", "/proc"].iter().any(|dir| path.starts_with(dir))
        || std::fs::metadata(path).is_ok_and(|found| !found.is_file());
    if is_device {
        return std::fs::write(path, bytes).map_err(failed);
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = Path::new(&name);
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(new).and_then(|mut file| {
            file.write_all(bytes)?;
            std::fs::rename(new, path)
        });
    written.map_err(|error| {
        // The incomplete file is useless.
        let _ = std::fs::remove_file(new);
        failed(error)
    })
}

/// Escapes control characters other than line feeds and tabs, which a terminal would interpret.
/// Names and answers of other machines may contain them.
fn escape_controls(line: Arguments<'_>) -> String {
    let line = line.to_string();
    match escape(&line, |c| c.is_control() && c != '\n' && c != '\t') {
        Cow::Borrowed(_) => line,
        Cow::Owned(escaped) => escaped,
    }
}

/// `text` with the chosen characters as escape sequences of Rust. It is borrowed if it has none.
pub(crate) fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match is_escaped(character) {
            true => escaped.extend(character.escape_default()),
            false => escaped.push(character),
        }
    }
    Cow::Owned(escaped)
}

/// Prints the help, the version or a refusal of the command line, and exits with the code of clap.
/// The code is 1 if standard output does not take the text.
pub(crate) fn exit_with(answer: &clap::Error) -> ! {
    let written = match answer.use_stderr() {
        true => answer.print().or(Ok(())),
        false => Stdout::open().map_err(std::io::Error::other).and_then(|mut stdout| {
            answer.print()?;
            stdout.flush()
        }),
    };
    end_unless_written(written);
    std::process::exit(answer.exit_code());
}

pub(crate) fn to_stdout(line: Arguments<'_>) {
    let line = escape_controls(line);
    let written = Stdout::open().map_err(std::io::Error::other).and_then(|mut stdout| {
        writeln!(stdout, "{line}")?;
        stdout.flush()
    });
    end_unless_written(written);
}

fn end_unless_written(written: std::io::Result<()>) {
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
    // A failure to write to standard error cannot be reported.
    let _ = writeln!(std::io::stderr().lock(), "{}", escape_controls(line));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn lines_have_no_terminal_control_characters() {
        assert_eq!(escape_controls(format_args!("a\tb\nc")), "a\tb\nc");
        assert_eq!(
            escape_controls(format_args!("red \u{1b}[31m, bell \u{7}")),
            "red \\u{1b}[31m, bell \\u{7}"
        );
    }

    #[test]
    fn a_file_that_is_written_is_private_and_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, path) = (dir.path().join("victim"), dir.path().join("report.json"));
        std::fs::write(&victim, "kept").unwrap();
        symlink(&victim, &path).unwrap();
        for text in ["first", "second"] {
            write_file(&path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
        let found = std::fs::symlink_metadata(&path).unwrap();
        assert!(found.is_file() && found.permissions().mode() & 0o777 == 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
    }
}
