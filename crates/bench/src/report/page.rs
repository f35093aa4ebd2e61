//! The report as a page: one file that needs no network, readable in light and dark, wide and narrow.
//!
//! The page carries the reports as JSON and draws them itself, for the width that there is. Without scripts it shows the
//! text of the report.

use super::{Report, text};

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// One page of these runs, laid over each other when they are several.
pub fn page(reports: &[Report]) -> String {
    let names: Vec<&str> = reports.iter().map(|report| report.name.as_str()).collect();
    let texts: Vec<String> = reports.iter().map(|report| text(report, false)).collect();
    let runs = serde_json::to_string(reports).expect("a report has no keys that JSON lacks");
    let parts = [
        ("title", escape(&format!("veche bench: {}", names.join(", ")))),
        ("style", STYLE.trim_end().to_owned()),
        ("text", escape(&texts.join("\n"))),
        // Nothing in a string may end the element.
        ("runs", runs.replace('<', "\\u003c")),
        ("script", SCRIPT.trim_end().to_owned()),
    ];
    fill(PAGE, &parts)
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

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
