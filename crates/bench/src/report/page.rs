//! Reports as HTML pages: one file that needs no network, for light and dark themes and any width.
//!
//! The page embeds the reports as JSON, and its script draws them for the available width. Without
//! scripts it shows the report as text.

use super::{Report, text};
use profile::html::{document, escape, escape_json, fill};

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Renders one page of these reports. Several reports are drawn in the same charts.
pub fn page(reports: &[Report]) -> String {
    let names: Vec<&str> = reports.iter().map(|report| report.name.as_str()).collect();
    let texts: Vec<String> = reports.iter().map(|report| text(report, false)).collect();
    let json = serde_json::to_string(reports).expect("a report has no keys that JSON lacks");
    let parts = [
        ("text", escape(&texts.join("\n"))),
        ("runs", escape_json(&json)),
        ("script", SCRIPT.trim_end().to_owned()),
    ];
    document(&format!("veche bench: {}", names.join(", ")), STYLE, &fill(PAGE, &parts))
}
