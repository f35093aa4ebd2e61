//! Interactive page of a profile: one HTML file that needs no network.
//!
//! The page embeds the capture as JSON. Its script draws a heat map over time, and the flame graph
//! and the ranked frames of the selected time. Without scripts it shows the ranked frames of the
//! whole profile.

use crate::capture::Capture;
use crate::greatest::greatest_frames;
use crate::html::{document, escape, escape_json, fill};

const BODY: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Number of frames that are listed without scripts.
const LISTED_MAX: usize = 20;

/// Renders the page of `capture`, under `title`.
pub fn page(capture: &Capture, title: &str) -> String {
    let json = String::from_utf8(capture.to_json()).expect("JSON is UTF-8");
    let parts = [
        ("text", escape(&list_frames(capture))),
        ("capture", escape_json(&json)),
        ("script", SCRIPT.trim_end().to_owned()),
    ];
    document(title, STYLE, &fill(BODY, &parts))
}

fn list_frames(capture: &Capture) -> String {
    let frames = greatest_frames(capture, LISTED_MAX).by_total;
    let lines =
        frames.iter().map(|share| format!("{} {}", capture.kind().format_weight(share.weight), share.name));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CaptureBuilder, CaptureKind};
    use std::time::Duration;

    #[test]
    fn the_page_carries_the_capture_whole_and_harmless() {
        let mut builder = CaptureBuilder::new(CaptureKind::Wait, Duration::from_millis(100), 0);
        builder.add(0, ["put", "</script><b>{{style}}"], 2_500_000);
        let capture = builder.finish(1);
        let page = page(&capture, "wait of <a>");
        let (_, after) = page.split_once(r#"<script type="application/json" id="capture">"#).unwrap();
        let (json, _) = after.split_once("</script>").unwrap();
        assert_eq!(Capture::from_json(json.as_bytes()).unwrap(), capture);
        assert!(page.contains("<title>wait of &lt;a&gt;</title>"));
        assert!(page.contains("2.5 ms &lt;/script&gt;&lt;b&gt;{{style}}"));
    }
}
