//! How far something is: a bar on a terminal, else a line now and then.

use crate::interrupt::Interrupt;
use crate::output::print_note;
use ctl::{Observer, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// A bar is drawn anew no more often.
const DRAW_EVERY: Duration = Duration::from_millis(50);
/// A line is written no more often.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Before that, a rate says nothing.
const RATE_AFTER: Duration = Duration::from_millis(500);

/// Shows progress on standard error.
pub(crate) struct Display {
    what: &'static str,
    /// When the first progress was told.
    begun: Option<Instant>,
    shown: Instant,
    bar: Option<ProgressBar>,
    interrupt: Option<Interrupt>,
}

impl Display {
    /// Of what is done, as "copying".
    pub(crate) fn new(what: &'static str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            bar.with_style(ProgressStyle::with_template("{msg}").expect("a template"))
        });
        Self { what, begun: None, shown: Instant::now(), bar, interrupt: None }
    }

    /// The same of what an interrupt is to end.
    pub(crate) fn until(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        self.bar.as_ref().inspect(|bar| bar.finish_and_clear());
    }

    fn show(&self, progress: &Progress, elapsed: Duration) {
        let line = format!("{}: {}", self.what, line(progress, elapsed));
        match (&self.bar, progress.bytes_total) {
            (None, _) => print_note!("{line}"),
            (Some(bar), total) => {
                const WITH_BAR: &str = "[{bar:30}] {msg}";
                let template = if total.is_some() { WITH_BAR } else { "{spinner} {msg}" };
                bar.set_style(
                    ProgressStyle::with_template(template).expect("a template").progress_chars("=> "),
                );
                bar.set_length(total.unwrap_or(0));
                bar.set_position(progress.bytes_done);
                bar.set_message(line);
            }
        }
    }
}

impl Observer for Display {
    fn on_progress(&mut self, progress: Progress) {
        let every = if self.bar.is_some() { DRAW_EVERY } else { LINE_EVERY };
        let begun = *self.begun.get_or_insert_with(Instant::now);
        if self.shown.elapsed() >= every {
            self.shown = Instant::now();
            self.show(&progress, begun.elapsed());
        }
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.as_ref().is_some_and(Interrupt::has_come)
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.end();
    }
}

/// What there is to say after so long.
fn line(progress: &Progress, elapsed: Duration) -> String {
    let Progress { bytes_done, bytes_total, entries_done } = *progress;
    let mut parts = vec![match bytes_total {
        Some(total) => format!("{} of {}", Bytes(bytes_done), Bytes(total)),
        None => Bytes(bytes_done).to_string(),
    }];
    if entries_done > 0 {
        parts.push(Count(entries_done, "entry").to_string());
    }
    if elapsed >= RATE_AFTER && bytes_done > 0 {
        let rate = bytes_done as f64 / elapsed.as_secs_f64();
        parts.push(format!("{}/s", Bytes(rate as u64)));
        if let Some(total) = bytes_total {
            let left = total.saturating_sub(bytes_done) as f64 / rate;
            parts.push(format!("{} left", Time(Duration::from_secs_f64(left.min(f64::from(u32::MAX))))));
        }
    }
    parts.join(", ")
}

/// A number of bytes, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match UNITS.iter().find(|(_, shift)| self.0 >> shift > 0) {
            Some((unit, shift)) => {
                let tenths = (u128::from(self.0) * 10) >> shift;
                write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
            }
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// So many things by this name, for people.
pub(crate) struct Count(pub(crate) u64, pub(crate) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, name) = self;
        match name.strip_suffix('y') {
            _ if *count == 1 => write!(f, "{count} {name}"),
            Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => write!(f, "{count} {stem}ies"),
            _ => write!(f, "{count} {name}s"),
        }
    }
}

/// A time, for people.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.0.as_secs();
        match (secs / 3600, secs / 60 % 60, secs % 60) {
            (0, 0, secs) => write!(f, "{secs} s"),
            (0, minutes, secs) => write!(f, "{minutes} min {secs} s"),
            (hours, minutes, _) => write!(f, "{hours} h {minutes} min"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_for_people() {
        let at = |bytes_done, bytes_total, entries_done| Progress { bytes_done, bytes_total, entries_done };
        let said = |progress: Progress, millis| line(&progress, Duration::from_millis(millis));
        assert_eq!(said(at(1_000, None, 1), 1_000), "1000 bytes, 1 entry, 1000 bytes/s");
        assert_eq!(said(at(0, Some(1 << 30), 0), 0), "0 bytes of 1.0 GiB");
        assert_eq!(
            said(at(512 << 20, Some(1 << 30), 0), 4_000),
            "512.0 MiB of 1.0 GiB, 128.0 MiB/s, 4 s left"
        );
        assert_eq!(
            said(at(1 << 20, Some(8 << 30), 0), 1_000),
            "1.0 MiB of 8.0 GiB, 1.0 MiB/s, 2 h 16 min left"
        );
        assert_eq!(said(at(3_000, None, 17), 1_000), "2.9 KiB, 17 entries, 2.9 KiB/s");
        assert_eq!(Bytes(1_023).to_string(), "1023 bytes");
        assert_eq!(Bytes(u64::MAX).to_string(), "16777215.9 TiB");
    }
}
