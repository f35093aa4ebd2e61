//! Reports as HTML pages: one file that needs no network, for light and dark themes and any width.
//!
//! The page embeds the reports as JSON, and its script draws them for the available width. Without
//! scripts it shows the report as text.

use super::{Report, Sheet, text};
use ::page::fill;

pub use ::page::escape;

const PAGE: &str = include_str!("page/page.html");
const GALLERY: &str = include_str!("page/gallery.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Renders one page of these reports. Several reports are drawn in the same charts.
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

/// Runs of one load, drawn in the same charts.
#[derive(Clone, Debug)]
pub struct PresetGroup {
    /// Name of the load.
    pub title: String,
    /// Description of the load.
    pub about: String,
    /// Published results of others for this load.
    pub published: String,
    /// Runs, distinguished by their names.
    pub runs: Vec<Report>,
}

/// Renders one page of several loads: `sheet` first, then the charts of each load.
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

/// JSON as it may be embedded in a page: no string can end its element.
fn json(reports: &[Report]) -> String {
    ::page::json(&serde_json::to_string(reports).expect("a report has no keys that JSON lacks"))
}

/// Renders a page without scripts in the same style. `style` is appended to the common style;
/// `body` is HTML.
pub fn plain_page(title: &str, style: &str, body: &str) -> String {
    let style = format!("{}\n{style}", STYLE.trim_end());
    ::page::page(title, &style, &format!("<main>\n{}\n</main>", body.trim_end()))
}
