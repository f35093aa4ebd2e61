//! Metrics of a node, from `/metrics`.

use crate::BenchResult;
use bench::fetch;
use lab::process::ServerProcess;
use std::net::SocketAddr;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(2);

/// Samples of one scrape, in the text format of Prometheus.
#[derive(Clone, Debug)]
pub(crate) struct Scrape(String);

impl Scrape {
    /// Scrapes a node.
    pub(crate) fn of(server: &ServerProcess) -> BenchResult<Self> {
        Self::at(server.address())
    }

    /// Scrapes the node at an address.
    pub(crate) fn at(address: SocketAddr) -> BenchResult<Self> {
        let answer = fetch(address, "GET", "/metrics", b"", TIMEOUT)?;
        match answer.status {
            200 => Ok(Self(String::from_utf8(answer.body)?)),
            status => Err(format!("/metrics is answered with {status}").into()),
        }
    }

    /// Sum of the samples with this name whose labels contain `label`; 0 if there are none.
    pub(crate) fn sum(&self, name: &str, label: &str) -> f64 {
        let value = |line: &str| {
            let rest = line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '{']))?;
            let (labels, value) = rest.rsplit_once(' ')?;
            labels.contains(label).then_some(value)?.parse::<f64>().ok()
        };
        self.0.lines().filter_map(value).sum()
    }

    /// Compaction debt, in bytes.
    pub(crate) fn debt_bytes(&self) -> f64 {
        self.sum("veche_compaction_debt_bytes", "")
    }

    /// Number of flushes and compactions so far.
    pub(crate) fn jobs(&self) -> u64 {
        (self.sum("veche_flushes_total", "") + self.sum("veche_compactions_total", "")) as u64
    }

    /// Bytes of keys and values that were accepted.
    pub(crate) fn accepted_bytes(&self) -> f64 {
        self.sum("veche_accepted_bytes_total", "")
    }

    /// Bytes written to the log, by flushes and by compactions.
    pub(crate) fn written_bytes(&self) -> [f64; 3] {
        ["veche_wal_written_bytes_total", "veche_flushed_bytes_total", "veche_compaction_written_bytes_total"]
            .map(|name| self.sum(name, ""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_name_and_label() {
        let text = "# TYPE veche_level_tables gauge\nveche_level_tables{level=\"0\"} 3\n\
                    veche_level_tables{level=\"1\"} 4\nveche_level_tables_max 100\nveche_debt 1.5e3\n";
        let scrape = Scrape(text.to_owned());
        assert_eq!(scrape.sum("veche_level_tables", ""), 7.0);
        assert_eq!(scrape.sum("veche_level_tables", "level=\"0\""), 3.0);
        assert_eq!(scrape.sum("veche_debt", ""), 1500.0);
        assert_eq!(scrape.sum("veche_nothing", ""), 0.0);
    }
}
