//! A contest: the same load on several sides in interleaved rounds, and how veche compares.

use super::proof::count_syncs;
use super::report::{Contest, Figures, Ratio};
use super::side::{LoadSpec, READ_BACK, Side, SideSample};
use super::tools::Tools;
use crate::BenchResult;
use crate::servers::{CpuLayout, WorkDir};
use crate::table::Threshold;
use bench::Operation;

/// Environment and length of contests.
#[derive(Debug)]
pub(crate) struct ComparisonRunner<'a> {
    pub(crate) work_dir: &'a WorkDir,
    pub(crate) tools: &'a Tools,
    pub(crate) layout: CpuLayout,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) keys: u64,
}

/// A side that veche is compared with, and the thresholds that veche has to reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rival<'a> {
    pub(crate) side: &'a Side,
    pub(crate) cpu: Threshold,
    pub(crate) rate: Threshold,
}

impl<'a> Rival<'a> {
    /// Creates a rival without thresholds.
    pub(crate) const fn of(side: &'a Side) -> Self {
        Self { side, cpu: Threshold::None, rate: Threshold::None }
    }

    pub(crate) const fn cpu(self, target: Threshold) -> Self {
        Self { cpu: target, ..self }
    }

    pub(crate) const fn rate(self, target: Threshold) -> Self {
        Self { rate: target, ..self }
    }
}

/// Order of the sides in a round. Each round starts with the next side.
pub(crate) fn rotated_order(round: usize, sides: usize) -> impl Iterator<Item = usize> {
    (0..sides).map(move |turn| (turn + round) % sides)
}

impl ComparisonRunner<'_> {
    /// Runs a contest between `ours` and `rivals`. All sides have the data already.
    pub(crate) fn run_contest(
        &self,
        title: &str,
        about: &str,
        spec: LoadSpec,
        ours: &Side,
        rivals: &[Rival<'_>],
    ) -> BenchResult<Contest> {
        println!("  {title}");
        let sides: Vec<&Side> = [ours].into_iter().chain(rivals.iter().map(|rival| rival.side)).collect();
        let mut figures: Vec<Figures> = sides.iter().map(|side| side.figures()).collect();
        // The first round pays for one-time costs: fresh pages, cold caches, compilation.
        for round in 0..=self.rounds {
            for i in rotated_order(round, sides.len()) {
                let sample = sides[i].measure_until_idle(self.layout, spec, self.seconds, round as u64)?;
                print_sample(round, &sides[i].name, &sample);
                if round > 0 {
                    figures[i].add(sample.cpu_us, sample.per_second, sample.generator_busy);
                }
            }
        }
        for (side, figures) in sides.iter().zip(&mut figures) {
            figures.proof = self.proof(side, spec)?;
        }
        let (ours, others) = figures.split_first().ok_or("a contest without sides")?;
        let pairs = || rivals.iter().zip(others);
        let cpu = pairs().map(|(rival, other)| Ratio::cpu(ours, other, rival.cpu));
        let rate = pairs().map(|(rival, other)| Ratio::rate(ours, other, rival.rate));
        let ratios = cpu.chain(rate).collect();
        Ok(Contest { title: title.to_owned(), about: about.to_owned(), sides: figures, ratios })
    }

    fn proof(&self, side: &Side, spec: LoadSpec) -> BenchResult<Vec<String>> {
        let mut proof = Vec::new();
        if spec.operation == Operation::Put
            && let Some(strace) = &self.tools.strace
        {
            let counted = count_syncs(strace, side, self.layout, spec, self.work_dir.dir());
            proof.push(counted.unwrap_or_else(|error| format!("NOT PROVEN: {error}")));
        }
        side.read_back(self.layout, spec)?;
        proof.push(format!("{READ_BACK} values read back were right"));
        proof.iter().for_each(|proof| println!("  {}: {proof}", side.name));
        Ok(proof)
    }
}

fn print_sample(round: usize, name: &str, sample: &SideSample) {
    println!(
        "  round {round}: {name:<34} {:>9.0}/s {:>7.2} us CPU/request, generator busy {:.0} %",
        sample.per_second,
        sample.cpu_us,
        sample.generator_busy * 100.0,
    );
}

impl Side {
    fn figures(&self) -> Figures {
        let commands = self.servers.iter().map(|server| server.command().to_owned()).collect();
        Figures::new(&self.name, &self.keeps, commands)
    }
}
