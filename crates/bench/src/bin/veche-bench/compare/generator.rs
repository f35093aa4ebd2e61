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

use super::contest::ComparisonRunner;
use super::report::{Contest, Figures, Ratio};
use crate::BenchResult;
use crate::measure::preload;
use crate::table::Threshold;
use bench::affinity::while_pinned;
use bench::keys::{KeyNumber, KeyOrder};
use bench::process::ServerProcess;
use bench::process_tree::reaped_by;
use bench::stats::rounds;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const CONNECTIONS: usize = 64;
const VALUE_BYTES: usize = 100;
/// wrk script that waits a millisecond before each request.
const WAITING: &str = "function delay() return 1 end\n";
/// The same bursts as wrk's.
const BURST: &str = "--burst=1ms";
/// wrk's CPU time per request divided by that of `veche bench`, which may use one and a half times
/// as much.
const COST_RATIO_MIN: f64 = 0.667;
const RATE_ERROR_MAX: f64 = 0.001;

/// Measurement of a generator in a round.
struct GeneratorSample {
    cpu_us: f64,
    per_second: f64,
}

impl ComparisonRunner<'_> {
    /// Compares the generators. `None`: wrk is not installed.
    pub(crate) fn generators(&self) -> BenchResult<Option<Contest>> {
        let Some(wrk) = &self.tools.wrk else { return Ok(None) };
        let server = self.work_dir.floor(self.layout)?;
        preload(&server, self.layout, KeyOrder::Sequential, self.keys, VALUE_BYTES)?;
        let script = self.work_dir.dir().join("draw.lua");
        fs::write(&script, lua_script(self.keys))?;
        let waiting = self.work_dir.dir().join("wait.lua");
        fs::write(&waiting, WAITING)?;
        let plain = self.wrk_args(&server, None);
        let scripted = self.wrk_args(&server, Some(&script));
        let waiting = self.wrk_args(&server, Some(&waiting));
        let json = self.work_dir.dir().join("veche-bench.json");
        let closed = self.bench_args(&server, &json);
        let mut ours = figures("veche bench", "closed loop, draws keys", self.work_dir.program(), &closed);
        let mut bursts =
            Figures::new("veche bench --rate --burst 1ms", "the rate of wrk with a delay", vec![]);
        let mut paced =
            Figures::new("veche bench --rate", "the same rate, each request at its own time", vec![]);
        let mut other = figures("wrk", "closed loop, one key", &wrk.path, &plain);
        let mut drawing = figures("wrk with a script", "closed loop, draws keys", &wrk.path, &scripted);
        let mut slow =
            figures("wrk with a delay", "waits 1 ms before a request, one key", &wrk.path, &waiting);
        let mut errors = Vec::new();
        for round in 0..=self.rounds {
            let of_wrk = self.run_wrk(&wrk.path, &plain)?;
            let of_drawing = self.run_wrk(&wrk.path, &scripted)?;
            let (of_ours, _) = self.run_bench(&closed, &json)?;
            let of_slow = self.run_wrk(&wrk.path, &waiting)?;
            let rated = [&closed[..], &[format!("--rate={:.0}", of_slow.per_second)]].concat();
            let (of_bursts, error_of_bursts) =
                self.run_bench(&[&rated[..], &[BURST.to_owned()]].concat(), &json)?;
            let (of_paced, error) = self.run_bench(&rated, &json)?;
            println!(
                "  round {round}: us/request wrk {:.2} ({:.0}/s), with a script {:.2}, veche bench {:.2} ({:.0}/s)",
                of_wrk.cpu_us, of_wrk.per_second, of_drawing.cpu_us, of_ours.cpu_us, of_ours.per_second,
            );
            println!(
                "  at {:.0}/s: wrk {:.2}, veche bench in bursts {:.2} ({:.4} % off), evenly {:.2} ({:.4} % off)",
                of_slow.per_second,
                of_slow.cpu_us,
                of_bursts.cpu_us,
                error_of_bursts * 100.0,
                of_paced.cpu_us,
                error * 100.0,
            );
            if round > 0 {
                ours.add_sample(&of_ours, self);
                bursts.add_sample(&of_bursts, self);
                paced.add_sample(&of_paced, self);
                other.add_sample(&of_wrk, self);
                drawing.add_sample(&of_drawing, self);
                slow.add_sample(&of_slow, self);
                errors.push(error.max(error_of_bursts));
            }
        }
        let least = Threshold::AtLeast(COST_RATIO_MIN);
        let cost = |name: &str, ours: &Figures, other: &Figures, target| {
            let ratio = Ratio::cpu(ours, other, target);
            Ratio { against: format!("{}, for {name}", ratio.against), ..ratio }
        };
        let ratios = vec![
            cost("a closed loop", &ours, &other, least),
            cost("a closed loop", &ours, &drawing, Threshold::None),
            cost("a rate in bursts", &bursts, &slow, least),
            cost("a rate, evenly", &paced, &slow, Threshold::None),
            Ratio {
                against: "the rate that was asked for".to_owned(),
                measure: "rate error: what was missing or too much, as a part",
                target: Threshold::AtMost(RATE_ERROR_MAX),
                value: rounds(&errors),
            },
        ];
        Ok(Some(Contest {
            title: "the generator: GET, 64 connections".to_owned(),
            about: "CPU of the generator, not of the server, which is bare hyper for all; less is better"
                .to_owned(),
            sides: vec![ours, other, drawing, bursts, paced, slow],
            ratios,
        }))
    }

    /// Duration in seconds; wrk accepts only whole ones.
    fn whole_seconds(&self) -> u64 {
        (self.seconds.round() as u64).max(1)
    }

    fn wrk_args(&self, server: &ServerProcess, script: Option<&Path>) -> Vec<String> {
        let mut args = vec![format!("-t{}", self.layout.generator_threads), format!("-c{CONNECTIONS}")];
        args.push(format!("-d{}s", self.whole_seconds()));
        args.extend(script.map(|script| format!("-s{}", script.display())));
        let key = KeyNumber(0).stored_key();
        args.push(format!("http://{}/v0/entity?id={}", server.address(), String::from_utf8_lossy(&key)));
        args
    }

    fn bench_args(&self, server: &ServerProcess, json: &Path) -> Vec<String> {
        vec![
            "bench".to_owned(),
            format!("--target=http://{}", server.address()),
            "--mix=get".to_owned(),
            format!("--keys={}", self.keys),
            format!("--connections={CONNECTIONS}"),
            format!("--threads={}", self.layout.generator_threads),
            format!("--duration={}s", self.whole_seconds()),
            "--warmup=0s".to_owned(),
            format!("--json={}", json.display()),
        ]
    }

    fn run_wrk(&self, program: &Path, args: &[String]) -> BenchResult<GeneratorSample> {
        let (said, cpu_s) = self.run_generator(program, args)?;
        let (requests, per_second) = wrk_result(&said).ok_or_else(|| format!("wrk said:\n{said}"))?;
        Ok(GeneratorSample { cpu_us: cpu_s * 1e6 / requests, per_second })
    }

    /// Runs `veche bench`. Also returns the relative error of its rate.
    fn run_bench(&self, args: &[String], json: &Path) -> BenchResult<(GeneratorSample, f64)> {
        let (said, cpu_s) = self.run_generator(self.work_dir.program(), args)?;
        let report: Value = serde_json::from_slice(&fs::read(json)?)?;
        let number = |name: &str| report["run"][name].as_f64();
        let (answers, per_second) = number("answers")
            .zip(number("answers_per_s"))
            .ok_or_else(|| format!("veche bench has no answers:\n{said}"))?;
        let error = number("asked_per_s").zip(number("arrived_per_s"));
        let error = error.map_or(0.0, |(asked, arrived)| (arrived / asked - 1.0).abs());
        Ok((GeneratorSample { cpu_us: cpu_s * 1e6 / answers, per_second }, error))
    }

    /// Runs a generator to its end. Returns its output, and the CPU time that it used in seconds.
    fn run_generator(&self, program: &Path, args: &[String]) -> BenchResult<(String, f64)> {
        let before = reaped_by(std::process::id())?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = while_pinned(self.layout.generator_cores, || command.spawn())?;
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if !output.status.success() {
            return Err(format!("{} {}: {}\n{said}", program.display(), args.join(" "), output.status).into());
        }
        Ok((said, (reaped_by(std::process::id())? - before).as_secs_f64()))
    }
}

impl Figures {
    fn add_sample(&mut self, sample: &GeneratorSample, runner: &ComparisonRunner<'_>) {
        let busy = sample.cpu_us * sample.per_second / 1e6 / runner.layout.generator_threads as f64;
        self.add(sample.cpu_us, sample.per_second, busy);
    }
}

fn figures(name: &str, keeps: &str, program: &Path, args: &[String]) -> Figures {
    Figures::new(name, keeps, vec![format!("{} {}", program.display(), args.join(" "))])
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
