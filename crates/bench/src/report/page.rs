//! The report as a page: one file that needs no network, readable in light and dark, wide and narrow.
//!
//! The page carries the reports as JSON and draws them itself, for the width that there is. Without scripts it shows the
//! text of the report.

use super::{Report, Sheet, text};

const PAGE: &str = include_str!("page/page.html");
const GALLERY: &str = include_str!("page/gallery.html");
const PLAIN: &str = include_str!("page/plain.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// One page of these runs, laid over each other when they are several.
pub fn page(reports: &[Report]) -> String {
    let names: Vec<&str> = reports.iter().map(|report| report.name.as_str()).collect();
    let texts: Vec<String> = reports.iter().map(|report| text(report, false)).collect();
    let parts = [
        ("title", escape(&format!("veche bench: {}", names.join(", ")))),
        ("style", STYLE.trim_end().to_owned()),
        ("text", escape(&texts.join("\n"))),
        ("runs", json(reports)),
        ("script", SCRIPT.trim_end().to_owned()),
    ];
    fill(PAGE, &parts)
}

/// Runs of one load, to be laid over each other.
#[derive(Clone, Debug)]
pub struct Group {
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
pub fn gallery(title: &str, about: &str, sheet: &Sheet, groups: &[Group]) -> String {
    let sections: Vec<String> =
        groups.iter().enumerate().map(|(number, group)| section(number, group)).collect();
    let parts = [
        ("title", escape(title)),
        ("about", escape(about)),
        ("style", STYLE.trim_end().to_owned()),
        ("sheet", sheet.html()),
        ("groups", sections.join("\n")),
        ("script", SCRIPT.trim_end().to_owned()),
    ];
    fill(GALLERY, &parts)
}

fn section(number: usize, group: &Group) -> String {
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
    let json = serde_json::to_string(reports).expect("a report has no keys that JSON lacks");
    json.replace('<', "\\u003c")
}

/// A page without scripts, with the look of the others: `style` comes behind theirs, `body` is HTML.
pub fn plain_page(title: &str, style: &str, body: &str) -> String {
    let parts = [
        ("title", escape(title)),
        ("style", format!("{}\n{}", STYLE.trim_end(), style.trim_end())),
        ("body", body.trim_end().to_owned()),
    ];
    fill(PLAIN, &parts)
}

/// Puts the parts in their places. What was put in is not looked at again.
fn fill(template: &str, parts: &[(&str, String)]) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, behind) = after.split_once("}}").expect("a place is closed");
        let (_, part) = parts.iter().find(|(known, _)| *known == name).expect("a place has its part");
        out += before;
        out += part;
        rest = behind;
    }
    out + rest
}

/// Text as it may stand in HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
