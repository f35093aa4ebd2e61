//! The machine that a result was measured on.

use serde::{Deserialize, Serialize};
use std::fs;
use std::thread::available_parallelism;

/// Properties of a machine that results depend on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MachineInfo {
    /// Name of the processor.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Name and release of the kernel.
    pub kernel: String,
}

impl MachineInfo {
    /// Describes this machine. A property that cannot be read is given as unknown or 0.
    pub fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = memory.and_then(|text| text.trim().split(' ').next()?.parse::<u64>().ok());
        let uname = rustix::system::uname();
        Self {
            cpu: cpu.map_or("unknown", |(_, name)| name).to_owned(),
            cores: available_parallelism().map_or(0, usize::from),
            memory_bytes: kib.unwrap_or(0) * 1024,
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
        }
    }
}

impl std::fmt::Display for MachineInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gib = self.memory_bytes as f64 / f64::from(1 << 30);
        write!(f, "{}, {} cores, {gib:.1} GiB, {}", self.cpu, self.cores, self.kernel)
    }
}
