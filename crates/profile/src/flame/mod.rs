//! Flame graph of a profile (Gregg 2016), with the roots on top.
//!
//! **Promise.** One SVG file that shows everything without scripts, for example as an image in a
//! document. Opened on its own, a click enlarges a frame to the full width, and a search highlights
//! matching frames and states their share.
//!
//! **Caveats.** Frames narrower than [`WIDTH_MIN`] pixels are not drawn.

mod tree;

use crate::capture::Capture;
use crate::html::escape;
use std::fmt::Write;
use tree::{FrameNode, FrameTree};

const SCRIPT: &str = include_str!("flame.js");
const STYLE: &str = include_str!("flame.css");

/// Width of the picture. All lengths are in pixels.
const WIDTH: f64 = 1200.0;
const WIDTH_MIN: f64 = 0.4;
const MARGIN: f64 = 10.0;
const HEAD_HEIGHT: f64 = 56.0;
const ROW_HEIGHT: f64 = 17.0;
/// Width of a letter.
const LETTER_WIDTH: f64 = 6.7;
/// Narrower frames have no label.
const TEXT_WIDTH_MIN: f64 = 24.0;

/// Draws the flame graph of `capture` as SVG, under `title`.
pub fn flame_graph(capture: &Capture, title: &str) -> String {
    let tree = FrameTree::of(capture);
    let depth = tree.drawn_depth(WIDTH_MIN / (WIDTH - 2.0 * MARGIN));
    let height = HEAD_HEIGHT + f64::from(depth) * ROW_HEIGHT + MARGIN;
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11">
<style>{STYLE}</style>
<rect class="ground" width="100%" height="100%"/>
<text class="title" x="{MARGIN}" y="22">{title}</text>
<text class="note" x="{MARGIN}" y="42">{subtitle}</text>
<text class="button" id="back" x="{middle}" y="22" visibility="hidden">whole profile</text>
<text class="button" id="search" x="{right}" y="22" text-anchor="end" visibility="hidden">search</text>
<text class="note" id="found" x="{right}" y="42" text-anchor="end"></text>
<g id="frames">
"#,
        title = escape(title),
        subtitle = escape(&subtitle(capture)),
        middle = WIDTH / 2.0,
        right = WIDTH - MARGIN,
    );
    draw(&mut out, capture, &tree, tree.root(), Position { x: 0.0, row: 0 });
    let _ = write!(out, "</g>\n<script><![CDATA[\n{SCRIPT}]]></script>\n</svg>\n");
    out
}

/// One-line summary: kind, total, duration and lost samples.
fn subtitle(capture: &Capture) -> String {
    let seconds = f64::from(capture.slices()) * f64::from(capture.slice_ms()) / 1e3;
    let lost = if capture.lost() > 0 { format!(", {} samples lost", capture.lost()) } else { String::new() };
    format!("{}: {} in {seconds:.0} s{lost}", capture.kind(), capture.kind().format_weight(capture.total()))
}

#[derive(Clone, Copy)]
struct Position {
    /// Distance from the left edge of the frames, in pixels.
    x: f64,
    row: u32,
}

fn draw(out: &mut String, capture: &Capture, tree: &FrameTree, node: &FrameNode, position: Position) {
    let width = (WIDTH - 2.0 * MARGIN) * tree.share(node);
    if width < WIDTH_MIN {
        return;
    }
    let name = node.name.map_or("all", |name| &capture.names()[name as usize]);
    let (x, y) = (MARGIN + position.x, HEAD_HEIGHT + f64::from(position.row) * ROW_HEIGHT);
    let share = 100.0 * tree.share(node);
    let _ = writeln!(
        out,
        r#"<g><title>{name} ({amount}, {share:.2} %)</title><rect x="{x:.2}" y="{y}" width="{width:.2}" height="{height}" fill="{color}"/><text x="{text_x:.2}" y="{text_y}">{text}</text></g>"#,
        name = escape(name),
        amount = capture.kind().format_weight(node.weight),
        height = ROW_HEIGHT - 1.0,
        color = color(name),
        text_x = x + 3.0,
        text_y = y + 12.0,
        text = escape(&fit_label(name, width)),
    );
    let mut x = position.x;
    for child in tree.children(node) {
        draw(out, capture, tree, child, Position { x, row: position.row + 1 });
        x += (WIDTH - 2.0 * MARGIN) * tree.share(child);
    }
}

/// The name, shortened to the letters that fit into `width` pixels.
fn fit_label(name: &str, width: f64) -> String {
    let letters = ((width - 6.0) / LETTER_WIDTH) as usize;
    if width < TEXT_WIDTH_MIN {
        String::new()
    } else if name.chars().count() <= letters {
        name.to_owned()
    } else {
        name.chars().take(letters.saturating_sub(1)).chain(['…']).collect()
    }
}

/// Fill colour of a frame. Each crate has its own hue, none of them near the colour of search
/// results. Kernel frames are dull red, frames without a crate grey.
fn color(name: &str) -> String {
    if name.ends_with("_[k]") || name == "[kernel]" {
        return "hsl(8 42% 74%)".to_owned();
    }
    if name.starts_with('[') || name.starts_with('(') || !name.contains("::") {
        return "hsl(50 8% 82%)".to_owned();
    }
    let library = name.trim_start_matches(['<', '&', '[']).split("::").next().unwrap_or(name);
    // FNV-1a, as in `page.js`.
    let hash = library
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("hsl({} 58% {}%)", 24 + hash % 230, 72 + (hash >> 16) % 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CaptureBuilder, CaptureKind};
    use std::time::Duration;

    fn capture() -> Capture {
        let mut builder = CaptureBuilder::new(CaptureKind::Cpu, Duration::from_millis(100), 0);
        builder.add(0, ["io-0", "a::read<T>", "b::sum"], 60);
        builder.add(3, ["io-0", "a::read<T>"], 20);
        builder.add(3, ["io-1", "read_[k]"], 20);
        builder.add(3, ["io-1", "too::narrow"], 0);
        builder.finish(10)
    }

    #[test]
    fn each_frame_is_as_wide_as_its_share() {
        let svg = flame_graph(&capture(), "a & b");
        let widths = |name: &str| {
            let (_, after) = svg.split_once(&format!("<title>{name} (")).expect(name);
            let (_, after) = after.split_once("width=\"").unwrap();
            after.split_once('"').unwrap().0.parse::<f64>().unwrap()
        };
        let shares = ["all", "io-0", "a::read&lt;T&gt;", "b::sum", "io-1", "read_[k]"].map(widths);
        assert_eq!(shares, [1180.0, 944.0, 944.0, 708.0, 236.0, 236.0]);
        assert!(svg.contains("a &amp; b") && svg.contains("(60 samples, 60.00 %)"));
        assert!(svg.contains("cpu: 100 samples in 1 s"));
        assert!(!svg.contains("narrow"));
    }

    #[test]
    fn an_empty_profile_has_a_picture() {
        let capture = CaptureBuilder::new(CaptureKind::Wait, Duration::from_millis(100), 0).finish(10);
        assert!(flame_graph(&capture, "nothing").contains("wait: 0.0 ns in 1 s"));
    }

    #[test]
    fn labels_are_cut_to_the_width_of_their_frame() {
        assert_eq!(fit_label("server::read", 20.0), "");
        assert_eq!(fit_label("server::read", 60.0), "server:…");
        assert_eq!(fit_label("server::read", 100.0), "server::read");
    }
}
