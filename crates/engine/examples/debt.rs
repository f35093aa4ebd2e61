//! Plots compaction debt during ten minutes of overload and half an hour at half that rate, on a
//! busy machine in virtual time.
//!
//! `cargo run --release -p engine --example debt > docs/img/debt.svg`

#[path = "../tests/support/half_load.rs"]
mod half_load;
#[path = "../tests/support/mod.rs"]
mod support;

use half_load::{Load, Second};
use std::fmt::Write as _;
use std::time::Duration;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;
const MARGIN: f64 = 40.0;

fn main() {
    let (flood, half) = (Duration::from_secs(600), Duration::from_secs(1_800));
    let load =
        |claims| Load { keys: 16 << 10, claims, left: 0.08, flood, rest_rate: 0.5, rest: half, pauses: true };
    let runs = [false, true].map(|claims| load(claims).run());
    for (name, run) in ["without", "with"].iter().zip(&runs) {
        let rest = || run.iter().filter(|second| !second.is_flood).skip(60);
        let (refused, written): (u64, u64) =
            (rest().map(|s| s.refused).sum(), rest().map(|s| s.accepted).sum());
        let most = |of: fn(&Second) -> f64| rest().map(of).fold(0.0, f64::max) * 100.0;
        let (disk, share) = (most(|second| second.busiest), most(|second| second.share_max));
        eprintln!("{name} a share: from a minute after the flood, {refused} refused, {written} accepted");
        eprintln!("  claimed at most {share:.0} % of a processor, used at most {disk:.0} % of the disk");
    }
    println!("{}", picture(&runs, flood));
}

fn picture(runs: &[Vec<Second>; 2], flood: Duration) -> String {
    let seconds = runs[0].len() as f64;
    let debt_max = runs.iter().flatten().map(|second| second.debt_bytes).max().unwrap_or(1) as f64;
    let x = |second: f64| MARGIN + second / seconds * WIDTH;
    let y = |bytes: f64| MARGIN + HEIGHT - bytes / debt_max * HEIGHT;
    let (width, height) = (WIDTH + 2.0 * MARGIN, HEIGHT + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' font-family='sans-serif' font-size='12'>\n\
         <rect width='{width}' height='{height}' fill='#fff'/>\n\
         <rect x='{MARGIN}' y='{MARGIN}' width='{}' height='{HEIGHT}' fill='#eee'/>\n\
         <text x='{MARGIN}' y='28'>compaction debt in MiB: flood of 10 min (grey), half of it for 30 min</text>\n",
        x(flood.as_secs_f64()) - MARGIN,
    );
    for part in 0..=4 {
        let bytes = debt_max * f64::from(part) / 4.0;
        let mib = bytes / f64::from(1 << 20);
        let _ = writeln!(
            svg,
            "<text x='{}' y='{:.0}' text-anchor='end'>{mib:.0}</text>",
            MARGIN - 6.0,
            y(bytes) + 4.0
        );
    }
    for minute in (0..=40).step_by(10) {
        let at = x(f64::from(minute) * 60.0);
        let _ = writeln!(
            svg,
            "<text x='{at:.0}' y='{:.0}' text-anchor='middle'>{minute} min</text>",
            height - 20.0
        );
    }
    for (run, (color, name)) in runs.iter().zip([("#c33", "low priority only"), ("#06c", "with its share")]) {
        let means: Vec<_> = run.chunks(10).map(mean).collect();
        let at = |(i, bytes): (usize, &f64)| format!("{:.1},{:.1}", x(i as f64 * 10.0), y(*bytes));
        let points: Vec<_> = means.iter().enumerate().map(at).collect();
        let points = points.join(" ");
        let _ =
            writeln!(svg, "<polyline fill='none' stroke='{color}' stroke-width='1.5' points='{points}'/>");
        let last = means.last().copied().unwrap_or(0.0);
        let _ = writeln!(
            svg,
            "<text x='{}' y='{:.0}' text-anchor='end' fill='{color}'>{name}</text>",
            MARGIN + WIDTH,
            y(last) - 8.0
        );
    }
    svg + "</svg>"
}

fn mean(seconds: &[Second]) -> f64 {
    seconds.iter().map(|second| second.debt_bytes as f64).sum::<f64>() / seconds.len() as f64
}
