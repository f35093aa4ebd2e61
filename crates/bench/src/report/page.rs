//! The report as a page: one file that needs no network, readable in light and dark, wide and narrow.
//!
//! The page carries the reports as JSON and draws them itself, for the width that there is. Without scripts it shows the
//! text of the report.

use super::{Report, Sheet, text};
use ::page::fill;

pub use ::page::escape;

const PAGE: &str = include_str!("page/page.html");
const GALLERY: &str = include_str!("page/gallery.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// One page of these runs, laid over each other when they are several.
pub fn page(reports: &[Report]) -> String {
    let names: Vec<&str> = reports.iter().map(|report| report.name.as_str()).collect();
    let texts: Vec<String> = reports.iter().map(|report| text(report, false)).collect();
    let parts = [
        ("text", escape(&texts.join("\n"))),
        ("runs", json(reports)),
        ("script", SCRIPT.trim_end().to_owned()),
    ];
    ::page::page(&format!("veche bench: {}", names.join(", ")), STYLE, &fill(PAGE, &parts))
}

/// Runs of one load, to be laid over each other.
#[derive(Clone, Debug)]
pub struct PresetGroup {
    /// The load's name.
    pub title: String,
    /// What it is.
    pub about: String,
    /// What others have published for it.
    pub published: String,
    /// The runs; their names are what tells them apart.
    pub runs: Vec<Report>,
}

/// One page of many loads: first `sheet`, then the pictures of each.
pub fn gallery(title: &str, about: &str, sheet: &Sheet, groups: &[PresetGroup]) -> String {
    let sections: Vec<String> =
        groups.iter().enumerate().map(|(number, group)| section(number, group)).collect();
    let parts = [
        ("title", escape(title)),
        ("about", escape(about)),
        ("sheet", sheet.html()),
        ("groups", sections.join("\n")),
        ("script", SCRIPT.trim_end().to_owned()),
    ];
    ::page::page(title, STYLE, &fill(GALLERY, &parts))
}

fn section(number: usize, group: &PresetGroup) -> String {
    let [title, about, published] = [&group.title, &group.about, &group.published].map(|text| escape(text));
    let runs = json(&group.runs);
    format!(
        "<section class=\"group\" id=\"{title}\">\n<h2>{title}</h2>\n<p>{about}. <b>Others:</b> {published}</p>\n\
         <div class=\"brief\" data-runs=\"runs-{number}\"></div>\n\
         <script type=\"application/json\" id=\"runs-{number}\">{runs}</script>\n</section>"
    )
}

/// As it may stand in a page: nothing in a string may end the element.
fn json(reports: &[Report]) -> String {
    ::page::json(&serde_json::to_string(reports).expect("a report has no keys that JSON lacks"))
}

/// A page without scripts, with the look of the others: `style` comes behind theirs, `body` is HTML.
pub fn plain_page(title: &str, style: &str, body: &str) -> String {
    let style = format!("{}\n{style}", STYLE.trim_end());
    ::page::page(title, &style, &format!("<main>\n{}\n</main>", body.trim_end()))
}
