//! What the process knows of itself and of the machine it runs on.
//!
//! Memory is what a container may use, not what the machine has: the least of the machine's and of every
//! limit of a control group above this process, in versions 1 and 2 of the interface (kernel
//! `admin-guide/cgroup-v2.rst`, `memory.max`; `cgroup-v1/memory.rst`, `memory.limit_in_bytes`).

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

/// The slice of a thread that prefers short turns, in nanoseconds: the least that Linux takes.
const SHORT_TURN_NANOS: u64 = 100_000;
/// Where control groups are mounted.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// Lets this process open as many files as its hard limit allows, and gives that number.
pub fn raise_open_file_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    // The kernel bounds this limit by `fs.nr_open`; `None` would mean that it does not.
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// Bytes of memory this process may use: the machine's, or less where a control group says so.
pub fn total_memory_bytes() -> u64 {
    let machine = sysinfo();
    // The type of this field is the machine word's.
    #[allow(clippy::useless_conversion)]
    let machine_bytes = u64::from(machine.totalram).saturating_mul(u64::from(machine.mem_unit));
    let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = cgroup_limit_bytes(Path::new(CGROUP_ROOT), &membership);
    limit.map_or(machine_bytes, |limit| limit.min(machine_bytes))
}

/// Cores this process may use, by its affinity and the quota of its control group; at least 1.
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Sets the niceness of the calling thread, from -20 (first) to 19 (last). On Linux it is a thread's own.
pub fn lower_current_thread_priority(nice: i32) -> io::Result<()> {
    Ok(setpriority_process(None, nice)?)
}

/// Has the calling thread run soon after it is woken, before threads that are at work with turns of ordinary
/// length, in return for shorter turns of its own. Its share of the processor stays the same.
///
/// On Linux this is a short slice of the EEVDF scheduler (Stoica and Abdel-Wahab, 1995; `sched_setattr(2)`,
/// `sched_runtime`, since Linux 6.12).
///
/// # Errors
/// When the system does not allow it; nothing has changed then.
pub fn prefer_short_turns() -> io::Result<()> {
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        sched_nice: getpriority_process(None)?,
        sched_runtime: SHORT_TURN_NANOS,
        ..SchedAttr::default()
    };
    // SAFETY: the kernel reads `size` bytes at the pointer, which is a live `SchedAttr` of that size, and
    // writes nothing.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the system give this process huge pages where it asks for them only (`madvise(2)`): elsewhere what is resident is
/// then what was written, and not up to 2 MiB around each byte of it.
///
/// # Errors
/// When the system does not know it, as Linux before 6.18; nothing has changed then. Where the system's own setting is
/// `madvise`, it is so anyway.
pub fn take_huge_pages_only_where_asked() -> io::Result<()> {
    const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
    const NONE: libc::c_ulong = 0;
    // SAFETY: this option takes four numbers and touches no memory.
    let result =
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1 as libc::c_ulong, EXCEPT_ADVISED, NONE, NONE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `struct sched_attr` as of its first version. Policy 0 is the ordinary one.
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

/// Bytes of memory this process has in use now; 0 when the system does not say.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    resident_pages(&statm).unwrap_or(0).saturating_mul(page_size() as u64)
}

/// What this process takes of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time of processors that it has used since its start, in itself and in the system on its behalf.
    pub cpu: Duration,
    /// Bytes of memory it has in use.
    pub resident_bytes: u64,
    /// Its threads.
    pub threads: u64,
    /// Files and sockets it has open.
    pub open_files: u64,
    /// How many of these it may have.
    pub open_files_max: u64,
}

/// What this process takes of the machine now; 0 for what the system does not say. The more files are open the longer
/// it takes.
pub fn usage() -> Usage {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let listed = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    Usage {
        cpu: Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32),
        resident_bytes: resident_bytes(),
        threads: threads(&stat).unwrap_or(0),
        // One of them is the list itself.
        open_files: listed.saturating_sub(1),
        open_files_max: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
    }
}

/// 64 bits of the system's entropy. Waits for the entropy pool of a machine that has just booted.
///
/// # Panics
/// When the kernel has no `getrandom` (before Linux 3.17): without it no two nodes can be told apart.
pub fn entropy_u64() -> u64 {
    let mut bytes = [0; 8];
    let filled = retry_on_intr(|| getrandom(&mut bytes[..], GetRandomFlags::empty()));
    // Requests of up to 256 bytes are answered whole (getrandom(2)).
    assert_eq!(filled, Ok(bytes.len()), "the kernel must give entropy");
    u64::from_ne_bytes(bytes)
}

/// The 20th field of `/proc/self/stat`, `num_threads`. The second, a name in brackets, may hold blanks and brackets.
fn threads(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_ascii_whitespace().nth(17)?.parse().ok()
}

/// The second field of `/proc/self/statm`.
fn resident_pages(statm: &str) -> Option<u64> {
    statm.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The least memory limit of the groups in `membership` (the text of `/proc/self/cgroup`) and of those above
/// them. Groups that are not visible from inside a container are passed over: the root it sees is its own.
fn cgroup_limit_bytes(root: &Path, membership: &str) -> Option<u64> {
    membership.lines().filter_map(|line| line_limit_bytes(root, line)).min()
}

/// The least limit along one line of `/proc/self/cgroup`: `id:controllers:path`, without controllers for
/// version 2.
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

/// The number in a limit file; `None` for `max` and for a file that is not there.
fn limit_in(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_the_process_takes_of_the_machine_is_told() {
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
    fn a_thread_is_lowered_alone() {
        let before = nice_of_thread();
        let lowered = std::thread::spawn(move || {
            lower_current_thread_priority(19).unwrap();
            nice_of_thread()
        });
        assert_eq!(lowered.join().unwrap(), 19);
        assert_eq!(nice_of_thread(), before);
    }

    fn nice_of_thread() -> i32 {
        getpriority_process(None).expect("a thread may read its own niceness")
    }

    #[test]
    fn short_turns_leave_the_niceness_as_it_is() {
        let before = nice_of_thread();
        let result = prefer_short_turns();
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
