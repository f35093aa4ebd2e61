//! Fairness: one closed-loop client among 63 pipelined ones.
//!
//! Its fair share is the rate of each of 64 equal clients: the node's throughput with 64
//! closed-loop connections, divided by 64.

use super::{CONNECTIONS, OverloadBench};
use crate::BenchResult;
use crate::measure::{Sample, measure};
use crate::servers::CpuLayout;
use crate::table::{ResultTable, Threshold};
use bench::threads::join_scoped;
use bench::values::ValueSizes;
use bench::{Mix, Operation, Pacing, StopFlag, WorkloadSpec};
use lab::pipeline::{PipelineCounts, PipelinedClients};
use lab::process::ServerProcess;
use lab::stats::rounds;
use std::thread;
use std::time::Duration;

/// Loads of the pipelined clients.
const FLOODS: [(Operation, &str); 3] = [
    (Operation::Get, "GETs"),
    (Operation::Put, "PUTs of 2 KiB"),
    (Operation::Range, "ranges of 100 entries"),
];
const WRITTEN_BYTES: usize = 2048;
/// Time before the measurement, in which the flood starts.
const FLOOD_LEAD: Duration = Duration::from_millis(500);
const SHARE_MIN: f64 = 0.8;

impl OverloadBench<'_> {
    pub(super) fn add_fairness(&self, table: &mut ResultTable) -> BenchResult<()> {
        let demand = self.reads();
        let server = self.node(&demand)?;
        let alike = self.apply_load(&server, &demand, CONNECTIONS, Pacing::Closed)?;
        let fair = alike.served_per_second / CONNECTIONS as f64;
        table.row(
            "fair share, GET/s",
            Threshold::None,
            rounds(&[fair]),
            format!(
                "{:.0}/s of {CONNECTIONS} clients that wait for their responses",
                alike.served_per_second
            ),
        );
        for (operation, what) in FLOODS {
            let (sample, got) = self.measure_among(&server, operation)?;
            let note = format!(
                "{:.0}/s, p99 {:.1} ms; the others: {:.0}/s, {:.0}/s refused, {} connections ended; generator busy {:.0} %",
                sample.per_second,
                sample.p99_us / 1e3,
                got.served as f64 / self.duration.as_secs_f64(),
                got.refused as f64 / self.duration.as_secs_f64(),
                got.disconnects,
                sample.generator_busy * 100.0
            );
            let value = rounds(&[sample.per_second / fair]);
            table.row(
                &format!("GET/s of the waiting client among {what} / fair share"),
                Threshold::AtLeast(SHARE_MIN),
                value,
                note,
            );
        }
        Ok(())
    }

    /// Measures the closed-loop client, and approximately the pipelined clients meanwhile.
    fn measure_among(
        &self,
        server: &ServerProcess,
        flood: Operation,
    ) -> BenchResult<(Sample, PipelineCounts)> {
        let value_bytes = if flood == Operation::Put { WRITTEN_BYTES } else { self.reads().value_bytes };
        let greedy = PipelinedClients {
            target: server.address().into(),
            connections: CONNECTIONS - 1,
            cores: self.layout.generator_cores.to_vec(),
            workload: WorkloadSpec {
                mix: Mix::only(flood),
                keys: self.keys,
                sizes: ValueSizes::Fixed(value_bytes),
                ..WorkloadSpec::default()
            },
        };
        let stop = StopFlag::default();
        let layout = CpuLayout { generator_threads: 1, ..self.layout };
        let load = self.load(&self.reads(), 1, Pacing::Closed);
        let (sample, got) = thread::scope(|scope| {
            let greedy = scope.spawn(|| greedy.run(&stop));
            thread::sleep(FLOOD_LEAD);
            let sample = measure(server, layout, self.duration.as_secs_f64(), &[load]);
            stop.set();
            (sample, join_scoped(greedy))
        });
        Ok((sample?, got?))
    }
}
