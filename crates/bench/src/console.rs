//! Output while a benchmark runs: one line per second, and a progress bar during the preload.
//!
//! Everything goes to standard error, so that the report can be redirected separately. If that is
//! not a terminal, the progress bar becomes a line every ten seconds.

use crate::load::LiveSecond;
use crate::timeline::{Row, is_ok};
use crate::units::{bytes, grouped, micros, span};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Lines after which the column headings are repeated.
const LINES_PER_HEAD: u64 = 20;
/// Without a terminal: seconds between two progress lines.
const SECONDS_PER_PROGRESS: u64 = 10;
const BAR_WIDTH: usize = 28;
/// Weight of the last second in the moving average of the rate, from which the remaining time is
/// estimated.
const LAST_SECOND_WEIGHT: f64 = 0.2;

/// Writer of progress to standard error.
#[derive(Debug)]
pub struct Console {
    is_quiet: bool,
    is_terminal: bool,
    lines: u64,
}

impl Console {
    /// Creates a console. If `is_quiet` is set, it prints nothing.
    pub fn new(is_quiet: bool) -> Self {
        Self { is_quiet, is_terminal: io::stderr().is_terminal(), lines: 0 }
    }

    /// Prints a line.
    pub fn say(&mut self, line: &str) {
        self.lines = 0;
        self.show(&format!("{line}\n"));
    }

    /// Prints the line of a second of the run.
    pub fn second(&mut self, second: &LiveSecond) {
        if self.lines.is_multiple_of(LINES_PER_HEAD) {
            self.show(&format!("{}\n", head()));
        }
        self.lines += 1;
        self.show(&format!("{}\n", live_line(second)));
    }

    /// Prints the progress of a preload.
    pub fn progress(&mut self, progress: &PreloadProgress) {
        let line = progress.line();
        if self.is_terminal {
            let end = if progress.is_complete() { "\n" } else { "" };
            self.show(&format!("\r{line}\x1b[K{end}"));
        } else if progress.is_complete() || progress.seconds.is_multiple_of(SECONDS_PER_PROGRESS) {
            self.show(&format!("{line}\n"));
        }
    }

    /// Writes to standard error. Errors are ignored, because there is nowhere to report them.
    fn show(&self, text: &str) {
        if !self.is_quiet {
            let mut out = io::stderr().lock();
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    }
}

fn head() -> String {
    let [time, rate, p50, p99, p999, max] = ["time", "answers/s", "p50", "p99", "p99.9", "max"];
    format!("{time:>8} {rate:>11} {p50:>9} {p99:>9} {p999:>9} {max:>9}  errors")
}

/// Formats a second as a line.
fn live_line(second: &LiveSecond) -> String {
    let row = &second.row;
    let time = match second.second {
        at if at < 0 => "warm-up".to_owned(),
        _ if second.covered.is_zero() => "late".to_owned(),
        at => format!("{} s", at + 1),
    };
    let covered = if second.covered.is_zero() { 1.0 } else { second.covered.as_secs_f64() };
    let rate = grouped((row.answers() as f64 / covered).round() as u64);
    let latency = |nanos: u64| {
        if row.latency.is_empty() { "-".to_owned() } else { micros(nanos as f64 / 1_000.0) }
    };
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| latency(row.latency.quantile(quantile)));
    let max = latency(row.latency.max_nanos());
    format!("{time:>8} {rate:>11} {p50:>9} {p99:>9} {p999:>9} {max:>9}  {}", errors(row))
}

fn errors(row: &Row) -> String {
    let refused = row.statuses.iter().filter(|(status, _)| !is_ok(**status));
    let refused = refused.map(|(status, count)| format!("{status}: {}", grouped(*count)));
    let failed =
        row.failures.iter().map(|(failure, count)| format!("{}: {}", failure.name(), grouped(*count)));
    let all: Vec<String> = refused.chain(failed).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

/// Progress of a preload.
#[derive(Clone, Copy, Debug)]
pub struct PreloadProgress {
    /// Keys to store.
    pub keys: u64,
    /// Keys stored so far.
    pub stored: u64,
    /// Mean size of a key with its value, in bytes.
    pub bytes_per_key: f64,
    seconds: u64,
    per_second: f64,
}

impl PreloadProgress {
    /// Creates the progress of a preload that has not stored any of `keys` yet.
    pub const fn new(keys: u64, bytes_per_key: f64) -> Self {
        Self { keys, stored: 0, bytes_per_key, seconds: 0, per_second: 0.0 }
    }

    /// Adds a second in which `stored` keys were stored.
    pub fn second(&mut self, stored: u64) {
        self.seconds += 1;
        self.stored += stored;
        let weight = if self.seconds == 1 { 1.0 } else { LAST_SECOND_WEIGHT };
        self.per_second += (stored as f64 - self.per_second) * weight;
    }

    /// Whether all keys are stored.
    pub const fn is_complete(&self) -> bool {
        self.stored >= self.keys
    }

    /// Formats the progress bar with the estimated remaining time.
    pub fn line(&self) -> String {
        let part = (self.stored as f64 / self.keys as f64).min(1.0);
        let filled = (part * BAR_WIDTH as f64) as usize;
        let bar: String = (0..BAR_WIDTH).map(|at| if at < filled { '#' } else { '.' }).collect();
        let rate = format!(
            "{}/s, {}/s",
            grouped(self.per_second as u64),
            bytes(self.per_second * self.bytes_per_key)
        );
        let end = if self.is_complete() {
            "done".to_owned()
        } else if self.per_second < 1.0 {
            "no estimate".to_owned()
        } else {
            let left = (self.keys - self.stored) as f64 / self.per_second;
            format!("{} left", span(Duration::from_secs(left.ceil() as u64)))
        };
        let (stored, keys) = (grouped(self.stored), grouped(self.keys));
        format!("preload [{bar}] {:>3.0} %  {stored} of {keys} keys, {rate}, {end}", part * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::Failure;

    #[test]
    fn a_second_is_a_line_under_its_head() {
        let mut row = Row::default();
        (0..500u64).for_each(|i| row.latency.record(1_000_000 + i));
        row.statuses = [(200, 490), (503, 10)].into();
        row.failures = [(Failure::Broken, 2)].into();
        let second = LiveSecond { second: 4, covered: Duration::from_millis(500), row };
        assert_eq!(head(), "    time   answers/s       p50       p99     p99.9       max  errors");
        assert_eq!(
            live_line(&second),
            "     5 s       1,000    1.00ms    1.00ms    1.00ms    1.00ms  503: 10, connection broken: 2"
        );
        let silent = LiveSecond { second: -1, covered: Duration::from_secs(1), row: Row::default() };
        assert_eq!(live_line(&silent), " warm-up           0         -         -         -         -  -");
    }

    #[test]
    fn progress_says_how_far_how_fast_and_how_long_still() {
        let mut progress = PreloadProgress::new(1_000_000, 1_024.0);
        progress.second(100_000);
        progress.second(100_000);
        assert_eq!(
            progress.line(),
            "preload [#####.......................]  20 %  200,000 of 1,000,000 keys, 100,000/s, 97.7 MiB/s, 8 s left"
        );
        (0..20).for_each(|_| progress.second(0));
        assert!(progress.line().contains("m 1") || progress.line().contains("s left"), "{}", progress.line());
        progress.second(800_000);
        assert!(progress.is_complete() && progress.line().ends_with("done"));
        assert!(PreloadProgress::new(5, 1.0).line().ends_with("no estimate"));
    }
}
