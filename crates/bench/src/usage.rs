//! What a process uses of the machine, from `/proc`.
//!
//! Its CPU time can still be read when it has ended and nobody has waited for it yet, and is complete then; its memory
//! only while it lives. The kernel's own maximum for children (`ru_maxrss`) would not do: a child inherits it from the
//! process that started it.

use std::fs;

use longhaul_report::Usage;

/// Of a process that lives.
pub fn of(pid: u32) -> Option<Usage> {
    Some(Usage { cpu_seconds: cpu_seconds(pid)?, peak_bytes: peak_bytes(pid)? })
}

/// CPU time of all its threads, those that have ended included.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(ticks(&stat)? as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Most memory that was resident since its program was started.
pub fn peak_bytes(pid: u32) -> Option<u64> {
    high_water(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// What all processors have worked since the machine came up, in seconds; what its host took of them is no work.
pub fn machine_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    Some(busy_ticks(&stat)? as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// User, nice, system, irq and softirq of the first line of proc_stat(5).
fn busy_ticks(stat: &str) -> Option<u64> {
    let times = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(7);
    let times: Vec<u64> = times.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let [user, nice, system, _idle, _iowait, irq, softirq] = times[..] else { return None };
    Some(user + nice + system + irq + softirq)
}

/// `utime` and `stime`, the 14th and 15th fields of proc_pid_stat(5). The second is the program's name, which may hold
/// anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

/// `VmHWM` of proc_pid_status(5).
fn high_water(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stand_behind_a_name_that_may_hold_anything() {
        let stat = "7 (a) S 1) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 9 9 20 0 4 0 1 2 3";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("7 (a) S 1 7"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn idle_and_stolen_time_is_no_work() {
        assert_eq!(busy_ticks("cpu  100 1 50 800 10 2 5 35 7 0\ncpu0 1 2 3\n"), Some(158));
        assert_eq!(busy_ticks("cpu  1 2 3\n"), None);
        assert!(machine_seconds().unwrap() > 0.0);
    }

    #[test]
    fn a_zombie_has_no_memory() {
        let status = "Name:\tlonghaul\nVmPeak:\t  999 kB\nVmHWM:\t   20480 kB\nThreads:\t1\n";
        assert_eq!(high_water(status), Some(20 << 20));
        assert_eq!(high_water("Name:\tlonghaul\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn this_process_uses_something() {
        let own = of(std::process::id()).unwrap();
        assert!(own.peak_bytes > 100 << 10 && own.cpu_seconds >= 0.0, "{own:?}");
        assert_eq!(of(0), None);
    }
}
