//! `veche profile`: where a node spends processor time, allocates memory or waits, as flame graphs
//! and lists.

use crate::client::{self, CommandRequest, RequestLimits};
use crate::node_url::NodeUrl;
use crate::output::{self, ReportForm, print_note};
use crate::progress::{ProgressFlag, ProgressTarget};
use crate::quantity::whole;
use ::profile::{Capture, CaptureKind, FrameWeight, GreatestFrames};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Number of listed frames.
const LISTED: usize = 10;
/// Time for the node to resolve symbols after the profile, in addition to its duration.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Upper bound for the length of a profile, whose stacks and weights are bounded.
const ANSWER_BYTES_MAX: u64 = 512 << 20;
/// Interval between updates of the bar.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// Profile a running node on this machine, as flame graphs and lists.
///
/// Writes profile-KIND.svg (a flame graph), profile-KIND.html (an interactive one for any period)
/// and profile-KIND.json, and prints the frames with the greatest shares.
#[derive(Debug, clap::Args)]
pub(crate) struct ProfileArguments {
    /// Loopback address of the node
    #[arg(long, visible_alias = "url", env = "VECHE_URL", value_name = "URL", default_value = client::URL_DEFAULT)]
    target: NodeUrl,
    /// Duration in seconds, from 1 to 300
    #[arg(short, long, value_name = "N", default_value_t = 30, value_parser = whole::<u16>(1, 300))]
    seconds: u16,
    /// Kind of profile: cpu (processor time), alloc (memory allocations), wait (waiting times of
    /// requests) wait (what requests wait for)
    #[arg(short, long, default_value = "cpu")]
    kind: CaptureKind,
    /// Directory for the files
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    #[command(flatten)]
    report: ReportForm,
    #[command(flatten)]
    progress: ProgressFlag,
}

pub(crate) fn run(arguments: &ProfileArguments) -> Result<(), String> {
    let url = arguments.target.clone();
    make_directory(&arguments.out)?;
    let ProfileArguments { kind, seconds, .. } = *arguments;
    let bar = Bar::new(&format!("{kind} profile of {url}"), seconds, arguments.progress.target());
    let request = NodeProfileRequest { url, kind, seconds };
    let (done, taken) = mpsc::channel();
    std::thread::spawn(move || {
        let taken = request.send();
        // The receiver is gone if the program ends.
        let _ = done.send(taken);
    });
    let capture = loop {
        match taken.recv_timeout(DRAW_EVERY) {
            Ok(capture) => break capture?,
            Err(RecvTimeoutError::Timeout) => bar.draw(),
            Err(RecvTimeoutError::Disconnected) => {
                return Err("the profile ended early; this is a bug".into());
            }
        }
    };
    drop(bar);
    let files = save(&capture, &arguments.target.to_string(), &arguments.out)?;
    let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    arguments.report.print(
        || format!("{}\n\n{}", summary(&capture).trim_end(), files.join("\n")),
        || document(&capture, &files),
    );
    Ok(())
}

/// A request for a profile.
pub(crate) struct NodeProfileRequest {
    pub(crate) url: NodeUrl,
    pub(crate) kind: CaptureKind,
    pub(crate) seconds: u16,
}

impl NodeProfileRequest {
    /// Sends the request and waits for the profile.
    ///
    /// # Errors
    /// A sentence: the node does not answer, or refuses.
    pub(crate) fn send(&self) -> Result<Capture, String> {
        let Self { url, kind, seconds } = self;
        let limits = RequestLimits {
            timeout: TIMEOUT + Duration::from_secs((*seconds).into()),
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        let path = format!("/v0/profile?kind={kind}&seconds={seconds}");
        let answer = CommandRequest { method: "GET", path: &path, body: "" }.send(url, &limits)?;
        if answer.code != 200 {
            let problem: Value = serde_json::from_str(&answer.body).unwrap_or_default();
            let detail = problem["detail"].as_str().unwrap_or("without a reason");
            return Err(format!("{url} refuses the profile ({}): {detail}", answer.code));
        }
        Capture::from_json(answer.body.as_bytes()).map_err(|error| format!("{url}: {error}"))
    }
}

/// Writes the flame graphs and the profile into `dir`, which is created. Returns the file names.
///
/// # Errors
/// A sentence that names the file.
pub(crate) fn save(capture: &Capture, target: &str, dir: &Path) -> Result<Vec<PathBuf>, String> {
    make_directory(dir)?;
    let kind = capture.kind();
    let title = format!("veche {kind} profile: {target}");
    let files: [(&str, Vec<u8>); 3] = [
        ("svg", ::profile::flame_graph(capture, &title).into_bytes()),
        ("html", ::profile::page(capture, &title).into_bytes()),
        ("json", capture.to_json()),
    ];
    let save = |(extension, bytes): (&str, Vec<u8>)| {
        let path = dir.join(format!("profile-{kind}.{extension}"));
        output::write_file(&path, &bytes)?;
        Ok(path)
    };
    files.into_iter().map(save).collect()
}

/// Makes the directory `dir` unless it exists. Its parent must exist.
///
/// # Errors
/// A sentence that names the directory.
pub(crate) fn make_directory(dir: &Path) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if !dir.is_dir() => Err(format!("cannot make the directory {}: {error}", dir.display())),
        _ => Ok(()),
    }
}

/// A summary with the greatest frames.
fn summary(capture: &Capture) -> String {
    let total = capture.total();
    let seconds = f64::from(capture.slices()) * f64::from(capture.slice_ms()) / 1e3;
    let mut out = format!("{}: {} in {seconds:.0} s", capture.kind(), capture.kind().format_weight(total));
    if capture.lost() > 0 {
        // Writing to a string does not fail, here and below.
        let _ = write!(out, ", {} samples lost", capture.lost());
    }
    out.push('\n');
    for note in capture.notes() {
        let _ = writeln!(out, "note: {note}");
    }
    let GreatestFrames { by_self, by_total } = ::profile::greatest_frames(capture, LISTED);
    for (title, shares) in [("self", by_self), ("total, with all that it calls", by_total)] {
        let _ = writeln!(out, "\nGreatest by {title}");
        for FrameWeight { name, weight } in shares {
            let percent = 100.0 * weight as f64 / total.max(1) as f64;
            let _ = writeln!(out, "{percent:>6.1} %  {:>14}  {name}", capture.kind().format_weight(weight));
        }
    }
    out
}

fn document(capture: &Capture, files: &[String]) -> Value {
    let GreatestFrames { by_self, by_total } = ::profile::greatest_frames(capture, LISTED);
    let list = |shares: Vec<FrameWeight<'_>>| {
        shares
            .into_iter()
            .map(|share| json!({ "name": share.name, "weight": share.weight }))
            .collect::<Vec<_>>()
    };
    json!({
        "kind": capture.kind().to_string(),
        "ms": u64::from(capture.slices()) * u64::from(capture.slice_ms()),
        "total": capture.total(),
        "lost": capture.lost(),
        "greatest_by_self": list(by_self),
        "greatest_by_total": list(by_total),
        "files": files,
    })
}

/// Elapsed time of the profile: a bar on a terminal, or one line at the start.
struct Bar {
    bar: Option<ProgressBar>,
    begun: Instant,
    seconds: u16,
}

impl Bar {
    fn new(what: &str, seconds: u16, target: ProgressTarget) -> Self {
        let bar = (target == ProgressTarget::Terminal).then(|| {
            let bar = ProgressBar::with_draw_target(Some(seconds.into()), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos} of {len} s, {eta} left");
            bar.with_style(style.expect("a template").progress_chars("=> ")).with_message(what.to_owned())
        });
        if target == ProgressTarget::Lines {
            print_note!("{what}: {seconds} s");
        }
        Self { bar, begun: Instant::now(), seconds }
    }

    fn draw(&self) {
        let Some(bar) = &self.bar else { return };
        bar.set_position(self.begun.elapsed().as_secs().min(self.seconds.into()));
        if self.begun.elapsed() > Duration::from_secs(self.seconds.into()) {
            bar.set_message("the node resolves symbols");
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.as_ref().inspect(|bar| bar.finish_and_clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::profile::CaptureBuilder;
    use clap::Parser;

    #[test]
    fn the_node_is_given_by_target_or_url() {
        for flag in ["--target", "--url"] {
            let parsed = crate::Arguments::try_parse_from(["veche", "profile", flag, "http://127.0.0.1:1"]);
            let crate::Command::Profile(arguments) = parsed.expect("it is known").command else {
                panic!("it is another command");
            };
            assert_eq!(arguments.target.to_string(), "http://127.0.0.1:1", "{flag}");
        }
    }

    #[test]
    fn the_greatest_frames_are_listed() {
        let mut builder = CaptureBuilder::new(CaptureKind::Alloc, Duration::from_millis(100), 0);
        builder.add(0, ["veche-io-0", "server::read", "bytes::grow"], 3 << 20);
        builder.add(0, ["veche-io-0", "server::read"], 1 << 20);
        builder.add_lost(2);
        builder.add_note("Look.");
        let expected = "\
alloc: 4.0 MiB in 1 s, 2 samples lost
note: Look.

Greatest by self
  75.0 %         3.0 MiB  bytes::grow
  25.0 %         1.0 MiB  server::read

Greatest by total, with all that it calls
 100.0 %         4.0 MiB  server::read
  75.0 %         3.0 MiB  bytes::grow
";
        assert_eq!(summary(&builder.finish(10)), expected);
    }
}
