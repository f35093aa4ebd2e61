//! The report as an HTML page: bars of each side's figures, and of their ratios to veche on a
//! logarithmic scale.

use super::report::{ComparisonReport, Contest, Figures, Ratio};
use crate::table::MISSED;
use bench::report::{escape, plain_page};
use bench::stats::RoundStats;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
/// Minimum extent of the ratio scale to each side, in doublings.
const DOUBLINGS_MIN: f64 = 1.0;

/// Renders the page of a report.
pub(crate) fn page(report: &ComparisonReport) -> String {
    let (reached, all) = report.reached();
    let mut body = format!(
        "<header><h1>veche beside others</h1>\n<p>{}</p>\n<p>Medians of {} rounds of {} s in which the sides take turns, \
         after one that does not count; thin lines reach from the least round to the greatest. Compare within a run only.</p>\n\
         <p><b>{reached} of {all} targets reached.</b> Run by <code>{}</code></p></header>\n",
        escape(&report.machine.to_string()),
        report.rounds,
        report.seconds,
        escape(&report.command)
    );
    for section in &report.sections {
        write(&mut body, format_args!("<h2 class=\"layout\">{}</h2>\n", escape(section.layout)));
        section.contests.iter().for_each(|contest| body += &contest_html(contest));
    }
    for (title, facts) in report.facts() {
        write(&mut body, format_args!("<section><h2>{title}</h2>\n<ul>\n"));
        facts.iter().for_each(|fact| body += &fact_html(fact));
        body += "</ul></section>\n";
    }
    plain_page("veche beside others", STYLE, &body)
}

/// Renders a fact; a command between backticks becomes code.
fn fact_html(fact: &str) -> String {
    let class = if fact.starts_with("NOT ") || fact.contains(": NOT ") { " class=\"missed\"" } else { "" };
    match fact.strip_prefix('`').and_then(|fact| fact.strip_suffix('`')) {
        Some(command) => format!("<li{class}><code>{}</code></li>\n", escape(command)),
        None => format!("<li{class}>{}</li>\n", escape(fact)),
    }
}

fn write(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a String cannot fail");
}

fn contest_html(contest: &Contest) -> String {
    let cpu =
        bars(&contest.sides, "CPU per request, µs: less is better", |side| side.cpu, |us| format!("{us:.1}"));
    let rate = bars(
        &contest.sides,
        "requests/s: more is better",
        |side| side.rate,
        |rate| bench::units::grouped(rate.round() as u64),
    );
    format!(
        "<section>\n<h2>{}</h2>\n<p>{}</p>\n<div class=\"pair\">{cpu}{rate}</div>\n{}\n<details><summary>Numbers</summary>\n\
         <div class=\"scroll\">{}</div>\n<div class=\"scroll\">{}</div></details>\n</section>\n",
        escape(&contest.title),
        escape(&contest.about),
        ratios(&contest.ratios),
        contest.sides_sheet().html(),
        contest.ratios_sheet().html(),
    )
}

/// Renders one bar per side, all on the scale of the longest bar.
fn bars(
    sides: &[Figures],
    title: &str,
    value: impl Fn(&Figures) -> Option<RoundStats>,
    show: impl Fn(f64) -> String,
) -> String {
    let most = sides.iter().filter_map(&value).fold(f64::MIN_POSITIVE, |most, rounds| most.max(rounds.max));
    let mut out = format!("<div class=\"bars\"><h3>{title}</h3>\n");
    for (number, side) in sides.iter().enumerate() {
        let Some(RoundStats { median, min, max }) = value(side) else { continue };
        let part = |value: f64| 100.0 * value / most;
        let class = if number == 0 { "ours" } else { "other" };
        write(
            &mut out,
            format_args!(
                "<div class=\"name\">{}<small>{}</small></div><div class=\"track\"><i class=\"{class}\" \
                 style=\"width:{:.2}%\"></i><u style=\"left:{:.2}%;width:{:.2}%\"></u></div><div class=\"value\">{}</div>\n",
                escape(&side.name),
                escape(&side.keeps),
                part(median),
                part(min),
                part(max - min),
                show(median),
            ),
        );
    }
    out + "</div>"
}

/// Renders one bar per ratio, from 1 to its value.
fn ratios(ratios: &[Ratio]) -> String {
    let of_scale = |ratio: &&Ratio| ratio.is_of_scale();
    let doublings = ratios
        .iter()
        .filter(of_scale)
        .filter_map(|ratio| ratio.value)
        .fold(DOUBLINGS_MIN, |most, RoundStats { min, max, .. }| {
            most.max(min.log2().abs()).max(max.log2().abs())
        });
    let place = |value: f64| 50.0 + 50.0 * (value.log2() / doublings).clamp(-1.0, 1.0);
    let mut out = "<div class=\"bars ratios\"><h3>How ours compares: right of the middle it is the better one; the scale is of doublings, the dashed mark the target</h3>\n".to_owned();
    for ratio in ratios {
        let Some(RoundStats { median, min, max }) = ratio.value else { continue };
        let target = ratio.target.number().filter(|_| ratio.is_of_scale());
        let mark =
            target.map_or(String::new(), |target| format!("<s style=\"left:{:.2}%\"></s>", place(target)));
        let bar = if ratio.is_of_scale() {
            let (from, to) = (place(median.min(1.0)), place(median.max(1.0)));
            let class = if median < 1.0 { "behind" } else { "ours" };
            format!(
                "<i class=\"{class}\" style=\"left:{from:.2}%;width:{:.2}%\"></i><u style=\"left:{:.2}%;width:{:.2}%\"></u>",
                to - from,
                place(min),
                place(max) - place(min)
            )
        } else {
            String::new()
        };
        let verdict = ratio.verdict();
        let class = if verdict == MISSED { "missed" } else { "" };
        write(
            &mut out,
            format_args!(
                "<div class=\"name\">{}<small>{}</small></div><div class=\"track one\">{bar}{mark}</div><div class=\"value\">\
                 <b>{median:.3}</b> <small>{min:.3}..{max:.3}</small> <small class=\"{class}\">{} {verdict}</small></div>\n",
                escape(&ratio.against),
                escape(ratio.measure),
                escape(&ratio.target.to_string()),
            ),
        );
    }
    out + "</div>"
}

impl Ratio {
    /// Whether the ratio fits the logarithmic scale around 1.
    fn is_of_scale(&self) -> bool {
        self.value.is_some_and(|value| value.min > 0.01)
    }
}
