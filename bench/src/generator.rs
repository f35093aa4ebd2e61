//! The generators: CPU time per request of `veche bench` and of wrk, against the same server.
//!
//! wrk is a closed loop, as `veche bench` is without a rate: both send as fast as the server
//! answers. wrk has no constant rate, but a script can make it wait before each request, at least
//! one millisecond. The result is a rate in bursts, because its timers have that resolution.
//!
//! `veche bench` is then run at the same rate, in bursts of a millisecond and evenly. It has to
//! keep the rate: neither its core nor the server's is saturated then, so a shortfall is its own.
//!
//! wrk requests the same key repeatedly, unless a script draws one for each request; `veche bench`
//! always draws. CPU time is that of the whole process, including its start.

use crate::BenchResult;
use crate::comparison::ComparisonRunner;
use crate::measure::{Sample, preload};
use crate::table::{ResultTable, Threshold, both};
use bench::affinity::while_pinned;
use bench::keys::{KeyNumber, KeyOrder};
use lab::process::ServerProcess;
use lab::process_tree::reaped_by;
use lab::stats::{ratio, rounds};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const CONNECTIONS: usize = 64;
const VALUE_BYTES: usize = 100;
/// wrk script that waits a millisecond before each request.
const WAITING: &str = "function delay() return 1 end\n";
/// wrk's CPU time per request divided by that of `veche bench`, which may use one and a half times
/// as much.
const COST_RATIO_MIN: f64 = 0.667;
const RATE_ERROR_MAX: f64 = 0.001;

/// The generators in the order of a round. A rate is that of the last of wrk's.
const GENERATORS: [(Tool, &str, &str); 6] = [
    (Tool::Wrk(None), "wrk", "closed loop, one key"),
    (Tool::Wrk(Some("draw.lua")), "wrk with a script", "closed loop, draws keys"),
    (Tool::Bench(&[]), "veche bench", "closed loop, draws keys"),
    (Tool::Wrk(Some("wait.lua")), "wrk with a delay", "waits 1 ms before each request, one key"),
    (Tool::Bench(&["--rate=RATE", "--burst=1ms"]), "veche bench --burst 1ms", "the same rate, in bursts"),
    (Tool::Bench(&["--rate=RATE"]), "veche bench --rate", "the same rate, evenly spaced"),
];
const WRK: usize = 0;
const WRK_DRAWING: usize = 1;
const BENCH: usize = 2;
const WRK_WAITING: usize = 3;
const BENCH_BURSTS: usize = 4;
const BENCH_EVEN: usize = 5;

/// Figures: the CPU time of the first generator divided by that of the second.
const FIGURES: [(&str, usize, usize, Threshold); 4] = [
    ("closed loop: CPU, wrk / veche bench", WRK, BENCH, Threshold::AtLeast(COST_RATIO_MIN)),
    ("closed loop: CPU, wrk with a script / veche bench", WRK_DRAWING, BENCH, Threshold::None),
    ("rate in bursts: CPU, wrk / veche bench", WRK_WAITING, BENCH_BURSTS, Threshold::AtLeast(COST_RATIO_MIN)),
    ("rate, evenly spaced: CPU, wrk / veche bench", WRK_WAITING, BENCH_EVEN, Threshold::None),
];

/// A generator: wrk with a script, or `veche bench` with further flags.
#[derive(Clone, Copy, Debug)]
enum Tool {
    Wrk(Option<&'static str>),
    Bench(&'static [&'static str]),
}

impl ComparisonRunner<'_> {
    /// Compares the generators, if wrk is installed.
    pub(crate) fn generators(&self, table: &mut ResultTable) -> BenchResult<()> {
        let Some(wrk) = &self.tools.wrk else { return Ok(()) };
        table.section(&format!(
            "the CPU time of the generator, GET x64 from bare hyper; {}",
            self.layout.title
        ));
        let server = self.work_dir.bare_hyper(self.layout, &[])?;
        preload(&server, self.layout, KeyOrder::Sequential, self.options.keys(), VALUE_BYTES)?;
        fs::write(self.work_dir.dir().join("draw.lua"), lua_script(self.options.keys()))?;
        fs::write(self.work_dir.dir().join("wait.lua"), WAITING)?;
        let mut samples: [Vec<Sample>; GENERATORS.len()] = Default::default();
        let mut errors = Vec::new();
        for round in 0..=self.options.rounds() {
            let mut rate = 0.0;
            for ((tool, name, about), samples) in GENERATORS.into_iter().zip(&mut samples) {
                let (sample, error) = match tool {
                    Tool::Wrk(script) => (self.run_wrk(&wrk.path, &server, script)?, None),
                    Tool::Bench(flags) => self.run_bench(&server, flags, rate)?,
                };
                if matches!(tool, Tool::Wrk(_)) {
                    rate = sample.per_second;
                }
                println!(
                    "  round {round}: {name:<24} {about:<40} {:>6.2} us/request, {:.0}/s",
                    sample.cpu_us, sample.per_second
                );
                if round > 0 {
                    samples.push(sample);
                    errors.extend(error);
                }
            }
        }
        for ((_, name, about), samples) in GENERATORS.into_iter().zip(&samples) {
            table.measured(name, about, samples);
        }
        let cpu = |at: usize| samples[at].iter().map(|sample| sample.cpu_us).collect::<Vec<f64>>();
        for (title, over, under, target) in FIGURES {
            let (over, under) = (cpu(over), cpu(under));
            table.row(title, target, ratio(&over, &under), both("us", &over, &under));
        }
        let target = Threshold::AtMost(RATE_ERROR_MAX);
        table.row("error of the requested rate, as a fraction", target, rounds(&errors), String::new());
        Ok(())
    }

    /// Duration in seconds; wrk accepts only whole ones.
    fn whole_seconds(&self) -> u64 {
        (self.options.seconds().round() as u64).max(1)
    }

    fn run_wrk(&self, program: &Path, server: &ServerProcess, script: Option<&str>) -> BenchResult<Sample> {
        let mut args = vec![format!("-t{}", self.layout.generator_threads), format!("-c{CONNECTIONS}")];
        args.push(format!("-d{}s", self.whole_seconds()));
        args.extend(script.map(|script| format!("-s{}", self.work_dir.dir().join(script).display())));
        let key = KeyNumber(0).stored_key();
        args.push(format!("http://{}/v0/entity?id={}", server.address(), String::from_utf8_lossy(&key)));
        let (output, cpu_s) = self.run_generator(program, &args)?;
        let (requests, per_second) = wrk_result(&output).ok_or_else(|| format!("wrk printed:\n{output}"))?;
        Ok(self.sample(cpu_s, requests, per_second))
    }

    /// Runs `veche bench`. Also returns the relative error of its rate, if it has one.
    fn run_bench(
        &self,
        server: &ServerProcess,
        flags: &[&str],
        rate: f64,
    ) -> BenchResult<(Sample, Option<f64>)> {
        let json = self.work_dir.dir().join("veche-bench.json");
        let mut args = vec![
            "bench".to_owned(),
            format!("--target=http://{}", server.address()),
            "--mix=get".to_owned(),
            format!("--keys={}", self.options.keys()),
            format!("--connections={CONNECTIONS}"),
            format!("--threads={}", self.layout.generator_threads),
            format!("--duration={}s", self.whole_seconds()),
            "--warmup=0s".to_owned(),
            format!("--json={}", json.display()),
        ];
        args.extend(flags.iter().map(|flag| flag.replace("RATE", &format!("{rate:.0}"))));
        let (output, cpu_s) = self.run_generator(self.work_dir.program(), &args)?;
        let report: Value = serde_json::from_slice(&fs::read(json)?)?;
        let number = |name: &str| report["run"][name].as_f64();
        let (answers, per_second) = number("answers")
            .zip(number("answers_per_s"))
            .ok_or_else(|| format!("veche bench has no answers:\n{output}"))?;
        let error = number("asked_per_s").zip(number("arrived_per_s"));
        let error = error.map(|(requested, arrived)| (arrived / requested - 1.0).abs());
        Ok((self.sample(cpu_s, answers, per_second), error))
    }

    fn sample(&self, cpu_s: f64, requests: f64, per_second: f64) -> Sample {
        let cpu_us = cpu_s * 1e6 / requests;
        let busy = cpu_us * per_second / 1e6 / self.layout.generator_threads as f64;
        Sample::of_rate(cpu_us, per_second, busy, requests as u64)
    }

    /// Runs a generator to its end. Returns its output, and the CPU time that it used in seconds.
    fn run_generator(&self, program: &Path, args: &[String]) -> BenchResult<(String, f64)> {
        let before = reaped_by(std::process::id())?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = while_pinned(self.layout.generator_cores, || command.spawn())?;
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if !output.status.success() {
            return Err(format!("{} {}: {}\n{text}", program.display(), args.join(" "), output.status).into());
        }
        Ok((text, (reaped_by(std::process::id())? - before).as_secs_f64()))
    }
}

/// wrk script that draws keys as `veche bench` does: even numbers, 16 hexadecimal digits.
fn lua_script(keys: u64) -> String {
    format!(
        "math.randomseed(1)
request = function()
    return wrk.format(\"GET\", string.format(\"/v0/entity?id=%016x\", 2 * math.random(0, {keys} - 1)))
end
"
    )
}

/// Parses the number of requests, and requests per second.
fn wrk_result(said: &str) -> Option<(f64, f64)> {
    if said.contains("Non-2xx") || said.contains("Socket errors") {
        return None;
    }
    let requests = said.lines().find_map(|line| line.trim().split_once(" requests in "))?.0;
    let rate = said.lines().find_map(|line| line.strip_prefix("Requests/sec:"))?;
    Some((requests.parse().ok()?, rate.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "Running 1s test @ http://127.0.0.1:1/\n  1 threads and 64 connections\n  \
                        58244 requests in 1.10s, 20.11MB read\nRequests/sec:  52949.09\nTransfer/sec:     18.28MB\n";

    #[test]
    fn the_output_of_wrk_is_parsed_unless_a_request_failed() {
        assert_eq!(wrk_result(SAID), Some((58_244.0, 52_949.09)));
        assert_eq!(wrk_result(&format!("{SAID}  Non-2xx or 3xx responses: 1\n")), None);
        assert_eq!(wrk_result(""), None);
    }
}
