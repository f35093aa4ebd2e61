//! CPU affinity of threads.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// Pins the calling thread to `cores`, and every thread and process that it starts afterwards.
/// Changes nothing if `cores` is empty.
///
/// # Errors
/// Errors of the kernel, for example if none of the cores exists or is permitted.
pub fn pin_current_thread(cores: &[usize]) -> io::Result<()> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for core in cores {
        if *core >= CpuSet::MAX_CPU {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("core {core} does not exist")));
        }
        set.set(*core);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Calls `work` with the calling thread pinned to `cores`, then restores its previous affinity.
/// Threads and processes that `work` starts stay pinned: a child process is bound before its first
/// thread exists.
///
/// # Errors
/// As [`pin_current_thread`], and those of `work`.
pub fn while_pinned<T>(cores: &[usize], work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = sched_getaffinity(None)?;
    pin_current_thread(cores)?;
    let result = work();
    sched_setaffinity(None, &before)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_for_a_while_puts_the_old_cores_back() {
        let cores = |set: CpuSet| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect::<Vec<_>>();
        let before = cores(sched_getaffinity(None).unwrap());
        let inside = while_pinned(&before[..1], || Ok(cores(sched_getaffinity(None)?))).unwrap();
        assert_eq!(inside, before[..1]);
        assert_eq!(cores(sched_getaffinity(None).unwrap()), before);
    }
}
