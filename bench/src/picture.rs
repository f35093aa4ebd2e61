//! The picture of a run: figures of each second over time, one panel below the other, as SVG.

use std::fmt::Write;
use std::ops::Range;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 150.0;
const MARGIN: f64 = 50.0;
/// Vertical distance of two panels.
const GAP: f64 = 40.0;
/// Maximum number of points of a line.
const POINTS_MAX: usize = 240;
const GRID_LINES: u32 = 4;
const MINUTE_S: usize = 60;
/// Distances of the labels of the time axis, in seconds, and the maximum number of distances.
const LABEL_STEPS: [usize; 8] = [10, 30, 60, 120, 300, 600, 1_800, 3_600];
const LABEL_STEPS_MAX: usize = 8;

/// A line over time, of seconds of the type `S`.
pub(crate) struct Panel<S> {
    pub(crate) title: &'static str,
    pub(crate) color: &'static str,
    /// Value of a second.
    pub(crate) of: fn(&S) -> f64,
}

/// Draws the seconds of a run. Those for which `is_grey` holds have a grey background.
pub(crate) fn draw<S>(panels: &[Panel<S>], is_grey: fn(&S) -> bool, seconds: &[S]) -> String {
    let (width, height) = (WIDTH + 2.0 * MARGIN, (HEIGHT + GAP) * panels.len() as f64 + MARGIN);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' font-family='sans-serif' \
         font-size='12'>\n<rect width='{width}' height='{height}' fill='#fff'/>\n"
    );
    let grey = runs(seconds, is_grey);
    for (panel, number) in panels.iter().zip(0_u32..) {
        svg += &panel.draw(seconds, &grey, GAP + f64::from(number) * (HEIGHT + GAP));
    }
    let step = label_step(seconds.len());
    for second in (0..=seconds.len()).step_by(step) {
        let x = x_of(second, seconds.len());
        let label =
            if step < MINUTE_S { format!("{second} s") } else { format!("{} min", second / MINUTE_S) };
        let _ = writeln!(
            svg,
            "<text x='{x:.0}' y='{:.0}' text-anchor='middle'>{label}</text>",
            height - MARGIN + 8.0
        );
    }
    svg + "</svg>\n"
}

impl<S> Panel<S> {
    fn draw(&self, seconds: &[S], grey: &[Range<usize>], top: f64) -> String {
        let (points, max) = self.points(seconds);
        let x = |second: usize| x_of(second, seconds.len());
        let y = |value: f64| top + HEIGHT - value / max * HEIGHT;
        let mut svg = String::new();
        for run in grey {
            let (left, width) = (x(run.start), x(run.end) - x(run.start));
            let _ = writeln!(
                svg,
                "<rect x='{left:.1}' y='{top}' width='{width:.1}' height='{HEIGHT}' fill='#eee'/>"
            );
        }
        let _ = writeln!(svg, "<text x='{MARGIN}' y='{}'>{}</text>", top - 8.0, self.title);
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
            points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
        let _ = writeln!(
            svg,
            "<polyline fill='none' stroke='{}' stroke-width='1.5' points='{}'/>",
            self.color,
            points.join(" ")
        );
        svg
    }

    /// Means of consecutive seconds, with the number of the first, and the greatest of them.
    fn points(&self, seconds: &[S]) -> (Vec<(usize, f64)>, f64) {
        let each = seconds.len().div_ceil(POINTS_MAX).max(1);
        let mean = |(number, chunk): (usize, &[S])| {
            (number * each, chunk.iter().map(self.of).sum::<f64>() / chunk.len() as f64)
        };
        let points: Vec<_> = seconds.chunks(each).enumerate().map(mean).collect();
        let max = points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        (points, if max > 0.0 { max } else { 1.0 })
    }
}

/// The longest runs of consecutive seconds for which `is_in` holds.
fn runs<S>(seconds: &[S], is_in: fn(&S) -> bool) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for number in (0..seconds.len()).filter(|number| is_in(&seconds[*number])) {
        match runs.last_mut().filter(|run| run.end == number) {
            Some(run) => run.end += 1,
            None => runs.push(number..number + 1),
        }
    }
    runs
}

/// Distance of two labels of the time axis, in seconds.
fn label_step(seconds: usize) -> usize {
    let fits = |step: &usize| seconds / step <= LABEL_STEPS_MAX;
    LABEL_STEPS.into_iter().find(fits).unwrap_or(seconds)
}

fn x_of(second: usize, seconds: usize) -> f64 {
    MARGIN + second as f64 / seconds.max(1) as f64 * WIDTH
}

#[cfg(test)]
mod tests {
    use super::*;

    const PANELS: [Panel<u64>; 2] = [
        Panel { title: "number", color: "#06c", of: |second| *second as f64 },
        Panel { title: "nothing", color: "#080", of: |_| 0.0 },
    ];

    #[test]
    fn each_panel_has_a_line_within_its_bounds() {
        let svg = draw(&PANELS, |second| *second < 300, &(0..1_200).collect::<Vec<_>>());
        assert_eq!(svg.matches("<polyline").count(), PANELS.len());
        assert_eq!(svg.matches("fill='#eee'").count(), PANELS.len(), "one run of grey seconds");
        assert!(svg.contains("20 min") && !svg.contains("NaN"));
    }

    #[test]
    fn grey_seconds_may_lie_anywhere_and_short_runs_are_labelled_in_seconds() {
        assert_eq!(runs(&[0, 1, 1, 0, 1_u64], |second| *second == 1), [1..3, 4..5]);
        assert_eq!(runs(&[0_u64; 3], |second| *second == 1), []);
        assert!(draw(&PANELS, |_| false, &(0..45).collect::<Vec<_>>()).contains("40 s"));
        assert!(!draw(&PANELS, |_| true, &[]).contains("NaN"));
    }
}
