//! The picture of a run: debt, rate, 99th percentile and refusals over time, as SVG.

use super::Second;
use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 150.0;
const MARGIN: f64 = 50.0;
/// Vertical distance of two panels.
const GAP: f64 = 40.0;
/// Maximum number of points of a line.
const POINTS_MAX: usize = 240;
const GRID_LINES: u32 = 4;
const MINUTE_S: usize = 60;
/// Distances of the labels of the time axis, in minutes, and the maximum number of distances.
const LABEL_STEPS: [usize; 6] = [1, 2, 5, 10, 30, 60];
const LABEL_STEPS_MAX: usize = 8;

/// A line over time.
struct Panel {
    title: &'static str,
    color: &'static str,
    of: fn(&Second) -> f64,
}

const PANELS: [Panel; 4] = [
    Panel { title: "compaction debt, GB", color: "#06c", of: |second| second.debt_bytes / 1e9 },
    Panel { title: "writes, thousands per second", color: "#080", of: |second| second.served as f64 / 1e3 },
    Panel { title: "p99 of the seconds, ms", color: "#a50", of: |second| second.p99_us / 1e3 },
    Panel { title: "refused writes per second", color: "#c33", of: |second| second.not_ok as f64 },
];

/// Draws the seconds of a run. The flood is grey.
pub(super) fn draw(seconds: &[Second]) -> String {
    let (width, height) = (WIDTH + 2.0 * MARGIN, (HEIGHT + GAP) * PANELS.len() as f64 + MARGIN);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' font-family='sans-serif' \
         font-size='12'>\n<rect width='{width}' height='{height}' fill='#fff'/>\n"
    );
    for (panel, number) in PANELS.iter().zip(0_u32..) {
        svg += &panel.draw(seconds, GAP + f64::from(number) * (HEIGHT + GAP));
    }
    let minutes = seconds.len() / MINUTE_S;
    let fits = |step: &usize| minutes / step <= LABEL_STEPS_MAX;
    let step = LABEL_STEPS.into_iter().find(fits).unwrap_or(minutes);
    for minute in (0..=minutes).step_by(step) {
        let x = x_of(minute * MINUTE_S, seconds);
        let _ = writeln!(
            svg,
            "<text x='{x:.0}' y='{:.0}' text-anchor='middle'>{minute} min</text>",
            height - MARGIN + 8.0
        );
    }
    svg + "</svg>\n"
}

impl Panel {
    fn draw(&self, seconds: &[Second], top: f64) -> String {
        let (points, max) = self.points(seconds);
        let y = |value: f64| top + HEIGHT - value / max * HEIGHT;
        let flood_s = seconds.iter().filter(|second| second.is_flood).count();
        let mut svg = format!(
            "<rect x='{MARGIN}' y='{top}' width='{:.1}' height='{HEIGHT}' fill='#eee'/>\n\
             <text x='{MARGIN}' y='{}'>{}</text>\n",
            x_of(flood_s, seconds) - MARGIN,
            top - 8.0,
            self.title
        );
        for line in 0..=GRID_LINES {
            let value = max * f64::from(line) / f64::from(GRID_LINES);
            let digits = if max < 10.0 { 1 } else { 0 };
            let _ = writeln!(
                svg,
                "<text x='{}' y='{:.0}' text-anchor='end'>{value:.digits$}</text>",
                MARGIN - 6.0,
                y(value) + 4.0
            );
        }
        let points: Vec<_> =
            points.iter().map(|(at, value)| format!("{:.1},{:.1}", x_of(*at, seconds), y(*value))).collect();
        let _ = writeln!(
            svg,
            "<polyline fill='none' stroke='{}' stroke-width='1.5' points='{}'/>",
            self.color,
            points.join(" ")
        );
        svg
    }

    /// Means of consecutive seconds, with the number of the first, and the greatest of them.
    fn points(&self, seconds: &[Second]) -> (Vec<(usize, f64)>, f64) {
        let each = seconds.len().div_ceil(POINTS_MAX).max(1);
        let mean = |(number, chunk): (usize, &[Second])| {
            (number * each, chunk.iter().map(self.of).sum::<f64>() / chunk.len() as f64)
        };
        let points: Vec<_> = seconds.chunks(each).enumerate().map(mean).collect();
        let max = points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        (points, if max > 0.0 { max } else { 1.0 })
    }
}

fn x_of(second: usize, seconds: &[Second]) -> f64 {
    MARGIN + second as f64 / seconds.len() as f64 * WIDTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_panel_has_a_line_within_its_bounds() {
        let second = |number: u64| Second { is_flood: number < 300, served: number, ..Second::default() };
        let svg = draw(&(0..1_200).map(second).collect::<Vec<_>>());
        assert_eq!(svg.matches("<polyline").count(), PANELS.len());
        assert!(svg.contains("20 min") && !svg.contains("NaN"));
    }
}
