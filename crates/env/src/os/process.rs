//! Limits, usage and scheduling of the current process.
//!
//! The memory size is the memory that the process may use. It is the minimum of the machine's
//! memory and of the limits of all control groups that contain the process. Versions 1 and 2 of the
//! interface are supported (kernel `admin-guide/cgroup-v2.rst`, `memory.max`;
//! `cgroup-v1/memory.rst`, `memory.limit_in_bytes`).

use rustix::io::retry_on_intr;
use rustix::param::page_size;
use rustix::process::{Resource, Rlimit, getpriority_process, getrlimit, setpriority_process, setrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::system::sysinfo;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

/// Time slice of a thread that prefers short ones, in nanoseconds: the minimum that Linux accepts.
const SHORT_SLICE_NANOS: u64 = 100_000;
/// Niceness of the lowest priority.
const NICE_MAX: i32 = 19;
/// Mount point of the control groups.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// Raises the limit of open files to the hard limit, and returns it.
pub fn raise_open_file_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    // The kernel bounds this limit by `fs.nr_open`; `None` would mean no bound.
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// Bytes of memory that this process may use: the machine's memory, or the lower limit of a control
/// group.
pub fn total_memory_bytes() -> u64 {
    let machine = sysinfo();
    // The type of this field depends on the machine's word size.
    #[allow(clippy::useless_conversion)]
    let machine_bytes = u64::from(machine.totalram).saturating_mul(u64::from(machine.mem_unit));
    let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = cgroup_limit_bytes(Path::new(CGROUP_ROOT), &membership);
    limit.map_or(machine_bytes, |limit| limit.min(machine_bytes))
}

/// Cores that this process may use, by its affinity and the quota of its control group; at least 1.
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Adds `increment` to the niceness of the calling thread, up to 19, the lowest priority. On Linux,
/// each thread has its own niceness. A new thread begins with that of its creator.
pub fn lower_current_thread_priority(increment: i32) -> io::Result<()> {
    let nice = getpriority_process(None)?.saturating_add(increment).min(NICE_MAX);
    Ok(setpriority_process(None, nice)?)
}

/// Gives the calling thread short time slices. It runs soon after its wake-up, before running
/// threads with ordinary slices. Its share of the processor stays the same.
///
/// On Linux this is a short slice of the EEVDF scheduler (Stoica and Abdel-Wahab, 1995;
/// `sched_setattr(2)`, `sched_runtime`, since Linux 6.12).
///
/// # Errors
/// If the system does not allow it. The slice is then unchanged.
pub fn prefer_short_time_slices() -> io::Result<()> {
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        sched_nice: getpriority_process(None)?,
        sched_runtime: SHORT_SLICE_NANOS,
        ..SchedAttr::default()
    };
    // SAFETY: the kernel reads `size` bytes at the pointer, which is a live `SchedAttr` of that
    // size, and writes nothing.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Limits transparent huge pages to the ranges that this process requests them for (`madvise(2)`).
/// Elsewhere, the resident memory is then the memory that was written, instead of up to 2 MiB
/// around each written byte.
///
/// # Errors
/// If the system does not support it, such as Linux before 6.18. The setting is then unchanged. It
/// is unnecessary if the system's own setting is `madvise`.
pub fn limit_huge_pages_to_madvise() -> io::Result<()> {
    const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
    const NONE: libc::c_ulong = 0;
    // SAFETY: this option takes four numbers and touches no memory.
    let result =
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1 as libc::c_ulong, EXCEPT_ADVISED, NONE, NONE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The first version of `struct sched_attr`. Policy 0 is the ordinary one.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    sched_policy: u32,
    sched_flags: u64,
    sched_nice: i32,
    sched_priority: u32,
    sched_runtime: u64,
    sched_deadline: u64,
    sched_period: u64,
}

/// Use of processors by a thread. For the rest of the time it waited for something else: a device,
/// a lock or a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// Time for which it ran.
    pub running: Duration,
    /// Time for which it was ready to run and had no processor; 0 if the system does not report it.
    pub ready: Duration,
}

impl ThreadTime {
    /// The use since an earlier reading of the same thread.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            running: self.running.saturating_sub(earlier.running),
            ready: self.ready.saturating_sub(earlier.ready),
        }
    }
}

/// Returns the use of processors by the calling thread since its start.
pub fn current_thread_time() -> ThreadTime {
    let ran = clock_gettime(ClockId::ThreadCPUTime);
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    ThreadTime {
        running: Duration::new(ran.tv_sec as u64, ran.tv_nsec as u32),
        ready: run_delay(&stat).unwrap_or_default(),
    }
}

/// Bytes of resident memory of this process; 0 if the system does not report it.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    resident_pages(&statm).unwrap_or(0).saturating_mul(page_size() as u64)
}

/// Resource usage of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since the start of the process, in user and kernel mode.
    pub cpu: Duration,
    /// Bytes of resident memory.
    pub resident_bytes: u64,
    /// Number of threads.
    pub threads: u64,
    /// Number of open files and sockets.
    pub open_files: u64,
    /// Maximum number of open files and sockets.
    pub open_files_max: u64,
}

/// Returns the current resource usage of this process; 0 for values that the system does not
/// report. Its cost grows with the number of open files.
pub fn usage() -> Usage {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let listed = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    Usage {
        cpu: Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32),
        resident_bytes: resident_bytes(),
        threads: threads(&stat).unwrap_or(0),
        // One of them is the directory being listed.
        open_files: listed.saturating_sub(1),
        open_files_max: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
    }
}

/// Returns 64 bits of the system's entropy. Waits for the entropy pool of a machine that has just
/// booted.
///
/// # Panics
/// If the kernel has no `getrandom` (before Linux 3.17): node ids would not be unique without it.
pub fn entropy_u64() -> u64 {
    let mut bytes = [0; 8];
    let filled = retry_on_intr(|| getrandom(&mut bytes[..], GetRandomFlags::empty()));
    // The kernel fulfils requests of up to 256 bytes completely (getrandom(2)).
    assert_eq!(filled, Ok(bytes.len()), "the kernel must give entropy");
    u64::from_ne_bytes(bytes)
}

/// The 20th field of `/proc/self/stat`, `num_threads`. The second field, a name in brackets, may
/// contain blanks and brackets.
fn threads(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_ascii_whitespace().nth(17)?.parse().ok()
}

/// The second field of `/proc/thread-self/schedstat`, in nanoseconds.
fn run_delay(schedstat: &str) -> Option<Duration> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// The second field of `/proc/self/statm`.
fn resident_pages(statm: &str) -> Option<u64> {
    statm.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The minimum memory limit of the groups in `membership` (the text of `/proc/self/cgroup`) and of
/// their ancestors. Groups that are not visible from inside a container are skipped: its root
/// directory is the container's own.
fn cgroup_limit_bytes(root: &Path, membership: &str) -> Option<u64> {
    membership.lines().filter_map(|line| line_limit_bytes(root, line)).min()
}

/// The minimum limit along one line of `/proc/self/cgroup`: `id:controllers:path`. The controllers
/// are empty in version 2.
fn line_limit_bytes(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (mount, file) = if controllers.is_empty() {
        (root.to_path_buf(), "memory.max")
    } else if controllers.split(',').any(|controller| controller == "memory") {
        (root.join("memory"), "memory.limit_in_bytes")
    } else {
        return None;
    };
    let group = mount.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|group| group.starts_with(&mount));
    groups.filter_map(|group| limit_in(&group.join(file))).min()
}

/// The number in a limit file; `None` for `max` and for a missing file.
fn limit_in(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn usage_reports_threads_files_time_and_memory() {
        let before = usage();
        let file = fs::File::open("/proc/self/stat").unwrap();
        let thread = std::thread::spawn(std::thread::park);
        let with_both = usage();
        assert!(with_both.threads > 1, "{with_both:?}");
        assert!(with_both.open_files > 3 && with_both.open_files < with_both.open_files_max, "{with_both:?}");
        assert!(with_both.cpu > before.cpu && with_both.resident_bytes > 1 << 12, "{with_both:?}");
        thread.thread().unpark();
        thread.join().unwrap();
        drop(file);
        assert_eq!(threads("1 (a) b (c) S 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21"), Some(20));
        assert_eq!(threads("nonsense"), None);
    }

    #[test]
    fn the_machine_has_memory_cores_files_and_entropy() {
        assert!(total_memory_bytes() > 1 << 20);
        assert!(resident_bytes() > 1 << 12 && resident_bytes() < total_memory_bytes());
        assert!(available_cores() >= 1);
        assert_ne!(entropy_u64(), entropy_u64());
        let limit = raise_open_file_limit().unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, Some(limit));
    }

    #[test]
    fn a_thread_that_sleeps_neither_runs_nor_is_ready() {
        let begun = current_thread_time();
        while current_thread_time().since(begun).running.is_zero() {}
        let nap = Duration::from_secs(2);
        let (slept, before) = (std::time::Instant::now(), current_thread_time());
        std::thread::sleep(nap);
        let ThreadTime { running, ready } = current_thread_time().since(before);
        let waited = slept.elapsed().saturating_sub(running + ready);
        assert!(waited >= nap / 2, "{waited:?}");
        assert_eq!(run_delay("17 2000 3\n"), Some(Duration::from_micros(2)));
        assert_eq!(run_delay(""), None);
    }

    #[test]
    fn a_thread_is_lowered_alone() {
        let before = nice_of_thread();
        let lowered = std::thread::spawn(move || {
            let increments = [3, 4, 100];
            increments.map(|increment| {
                lower_current_thread_priority(increment).unwrap();
                nice_of_thread()
            })
        });
        let expected = [before + 3, before + 7, NICE_MAX].map(|nice| nice.min(NICE_MAX));
        assert_eq!(lowered.join().unwrap(), expected);
        assert_eq!(nice_of_thread(), before);
    }

    fn nice_of_thread() -> i32 {
        getpriority_process(None).expect("a thread may read its own niceness")
    }

    #[test]
    fn short_time_slices_leave_the_niceness_as_it_is() {
        let before = nice_of_thread();
        let result = prefer_short_time_slices();
        assert_eq!(nice_of_thread(), before, "{result:?}");
    }

    #[test]
    fn the_least_limit_on_the_way_up_counts_in_version_2() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("pod/box")).unwrap();
        fs::write(root.path().join("pod/box/memory.max"), "max\n").unwrap();
        fs::write(root.path().join("pod/memory.max"), "4096\n").unwrap();
        assert_eq!(cgroup_limit_bytes(root.path(), "0::/pod/box\n"), Some(4096));
        assert_eq!(cgroup_limit_bytes(root.path(), "0::/\n"), None);
    }

    #[test]
    fn the_memory_controller_counts_in_version_1() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("memory")).unwrap();
        fs::write(root.path().join("memory/memory.limit_in_bytes"), "8192\n").unwrap();
        let membership = "5:cpu,cpuacct:/\n4:memory:/docker/not-visible-here\n";
        assert_eq!(cgroup_limit_bytes(root.path(), membership), Some(8192));
    }

    #[test]
    fn a_strange_membership_limits_nothing() {
        let root = tempfile::tempdir().unwrap();
        for membership in ["", "0", "0:", "::", "0::/../..", "0::\n\n"] {
            assert_eq!(cgroup_limit_bytes(root.path(), membership), None, "{membership:?}");
        }
    }
}
