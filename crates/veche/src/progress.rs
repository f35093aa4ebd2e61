//! Progress on standard error: a bar on a terminal, elsewhere nothing or, with `--progress always`,
//! lines.
//!
//! **Promise.** Each long command shows its rate and the remaining time. For exports and for
//! imports from standard input the total is unknown: they show "size unknown" in place of the time.

use crate::interrupt::Interrupt;
use crate::output::print_note;
use clap::ValueEnum;
use ctl::{CtlError, OperationProgress, ProgressObserver};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Minimum interval between two updates of a bar.
const DRAW_EVERY: Duration = Duration::from_millis(50);
/// Minimum interval between two lines.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// No rate is shown before this time has passed.
const RATE_AFTER: Duration = Duration::from_millis(500);

/// The flag `--progress`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ProgressFlag {
    /// Show progress on standard error: auto (on a terminal), always (elsewhere as lines), never
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    progress: ProgressWhen,
}

/// Condition for showing progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProgressWhen {
    Auto,
    Always,
    Never,
}

impl ProgressFlag {
    /// The target that the flag and the kind of standard error select.
    pub(crate) fn target(self) -> ProgressTarget {
        match (self.progress, std::io::stderr().is_terminal()) {
            (ProgressWhen::Auto | ProgressWhen::Always, true) => ProgressTarget::Terminal,
            (ProgressWhen::Always, false) => ProgressTarget::Lines,
            (ProgressWhen::Auto, false) | (ProgressWhen::Never, _) => ProgressTarget::Nowhere,
        }
    }
}

/// Target of progress reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgressTarget {
    Nowhere,
    /// Lines on standard error, at most one per [`LINE_EVERY`].
    Lines,
    /// A bar on the terminal.
    Terminal,
}

/// Shows progress on standard error.
pub(crate) struct Display {
    activity: &'static str,
    target: ProgressTarget,
    /// Time of the first progress report.
    begun: Option<Instant>,
    shown: Instant,
    /// The latest progress, if it was not shown yet.
    unshown: Option<OperationProgress>,
    bar: Option<ProgressBar>,
    interrupt: Option<Interrupt>,
}

impl Display {
    /// A display of an activity such as "copying".
    pub(crate) fn new(activity: &'static str, flag: ProgressFlag) -> Self {
        let target = flag.target();
        let bar = (target == ProgressTarget::Terminal).then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            bar.with_style(ProgressStyle::with_template("{msg}").expect("a template"))
        });
        Self { activity, target, begun: None, shown: Instant::now(), unshown: None, bar, interrupt: None }
    }

    /// Makes [`ProgressObserver::is_cancelled`] follow `interrupt`.
    pub(crate) fn until(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// Removes the bar, or writes the final line.
    pub(crate) fn end(&mut self) {
        self.bar.as_ref().inspect(|bar| bar.finish_and_clear());
        if let (ProgressTarget::Lines, Some(last), Some(begun)) =
            (self.target, self.unshown.take(), self.begun)
        {
            self.show(&last, begun.elapsed());
        }
    }

    /// Whether the next update is due.
    fn is_due(&mut self) -> bool {
        let every = match self.target {
            ProgressTarget::Nowhere => return false,
            ProgressTarget::Lines => LINE_EVERY,
            ProgressTarget::Terminal => DRAW_EVERY,
        };
        let is_due = self.shown.elapsed() >= every;
        if is_due {
            self.shown = Instant::now();
        }
        is_due
    }

    fn show(&self, progress: &OperationProgress, elapsed: Duration) {
        let line = format!("{}: {}", self.activity, line(progress, elapsed));
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

impl ProgressObserver for Display {
    fn on_progress(&mut self, progress: OperationProgress) {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        if self.is_due() {
            self.unshown = None;
            self.show(&progress, begun.elapsed());
        } else {
            self.unshown = Some(progress);
        }
    }

    fn on_wait(&mut self, refused: &CtlError, time: Duration) {
        let line = format!("waiting {} s: {refused}", time.as_secs_f64().ceil());
        match (&self.bar, self.target) {
            (Some(bar), _) => bar.set_message(line),
            (None, ProgressTarget::Lines) => print_note!("{line}"),
            (None, _) => {}
        }
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.as_ref().is_some_and(Interrupt::is_requested)
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.end();
    }
}

/// Shows the progress of a node's task, which the node reports in thousandths.
pub(crate) struct ShareDisplay {
    target: ProgressTarget,
    begun: Instant,
    /// The first reported share, in thousandths.
    first: Option<u64>,
    shown: Option<Instant>,
    bar: Option<ProgressBar>,
}

impl ShareDisplay {
    pub(crate) fn new(flag: ProgressFlag) -> Self {
        let target = flag.target();
        let bar = (target == ProgressTarget::Terminal).then(|| {
            let bar = ProgressBar::with_draw_target(Some(1_000), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("[{bar:30}] {msg}").expect("a template");
            bar.with_style(style.progress_chars("=> "))
        });
        Self { target, begun: Instant::now(), first: None, shown: None, bar }
    }

    /// Shows that `permille` thousandths are done. `text` describes the task.
    pub(crate) fn on_share(&mut self, permille: u64, text: &str) {
        let first = *self.first.get_or_insert(permille);
        let text = match rate_of_share(
            permille.saturating_sub(first),
            1_000 - permille.min(1_000),
            self.begun.elapsed(),
        ) {
            Some(rate) => format!("{text}, {rate}"),
            None => text.to_owned(),
        };
        match &self.bar {
            Some(bar) => {
                bar.set_position(permille);
                bar.set_message(text);
            }
            None if self.target == ProgressTarget::Lines
                && self.shown.is_none_or(|shown| shown.elapsed() >= LINE_EVERY) =>
            {
                self.shown = Some(Instant::now());
                print_note!("{text}");
            }
            None => {}
        }
    }
}

impl Drop for ShareDisplay {
    fn drop(&mut self) {
        self.bar.as_ref().inspect(|bar| bar.finish_and_clear());
    }
}

/// The rate and the remaining time, after `done` thousandths took `elapsed` and `left` remain.
fn rate_of_share(done: u64, left: u64, elapsed: Duration) -> Option<String> {
    if done == 0 || elapsed < RATE_AFTER {
        return None;
    }
    let per_second = done as f64 / elapsed.as_secs_f64();
    let time = Duration::from_secs_f64((left as f64 / per_second).min(f64::from(u32::MAX)));
    Some(format!("{:.1} %/s, {} left", per_second / 10.0, Time(time)))
}

/// The text of a progress report after `elapsed`.
fn line(progress: &OperationProgress, elapsed: Duration) -> String {
    let OperationProgress { bytes_done, bytes_total, entries_done } = *progress;
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
    if bytes_total.is_none() {
        parts.push("size unknown".to_owned());
    }
    parts.join(", ")
}

/// Formats a number of bytes with a binary unit.
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

/// Formats a count and a noun, with its plural.
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

/// Formats a duration in hours, minutes and seconds.
pub(crate) struct Time(pub(crate) Duration);

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
    fn a_share_has_a_rate_and_a_remaining_time() {
        let said = |done, left, secs| rate_of_share(done, left, Duration::from_secs(secs));
        assert_eq!(said(100, 900, 10).as_deref(), Some("1.0 %/s, 1 min 30 s left"));
        assert_eq!(said(0, 900, 10), None);
        assert_eq!(said(100, 900, 0), None);
    }

    #[test]
    fn progress_is_human_readable() {
        let at = |bytes_done, bytes_total, entries_done| OperationProgress {
            bytes_done,
            bytes_total,
            entries_done,
        };
        let said = |progress: OperationProgress, millis| line(&progress, Duration::from_millis(millis));
        assert_eq!(said(at(1_000, None, 1), 1_000), "1000 bytes, 1 entry, 1000 bytes/s, size unknown");
        assert_eq!(said(at(0, Some(1 << 30), 0), 0), "0 bytes of 1.0 GiB");
        assert_eq!(
            said(at(512 << 20, Some(1 << 30), 0), 4_000),
            "512.0 MiB of 1.0 GiB, 128.0 MiB/s, 4 s left"
        );
        assert_eq!(
            said(at(1 << 20, Some(8 << 30), 0), 1_000),
            "1.0 MiB of 8.0 GiB, 1.0 MiB/s, 2 h 16 min left"
        );
        assert_eq!(said(at(3_000, None, 17), 1_000), "2.9 KiB, 17 entries, 2.9 KiB/s, size unknown");
        assert_eq!(Bytes(1_023).to_string(), "1023 bytes");
        assert_eq!(Bytes(u64::MAX).to_string(), "16777215.9 TiB");
    }
}
