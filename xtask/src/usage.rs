//! What a process uses of the machine, from `/proc`.
//!
//! Its CPU time can still be read when it has ended and nobody has waited for it yet, and is complete then; its memory
//! only while it lives. The kernel's own maximum for children (`ru_maxrss`) would not do: a child inherits it from the
//! process that started it.

use std::fs;

use longhaul_report::Usage;

/// Of a process that lives.
pub(crate) fn of(pid: u32) -> Option<Usage> {
    Some(Usage { cpu_seconds: cpu_seconds(pid)?, peak_bytes: peak_bytes(pid)? })
}

/// CPU time of all its threads, those that have ended included.
pub(crate) fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(ticks(&stat)? as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Most memory that was resident since its program was started.
pub(crate) fn peak_bytes(pid: u32) -> Option<u64> {
    high_water(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// The processors' time since some moment, and how much of it this machine's host gave to others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processors {
    all: u64,
    stolen: u64,
}

impl Processors {
    /// From now on. `None` where the kernel does not tell.
    pub(crate) fn now() -> Option<Self> {
        processors(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The share that was stolen since.
    pub(crate) fn stolen(self) -> Option<f64> {
        Some(self.stolen_until(Self::now()?))
    }

    fn stolen_until(self, now: Self) -> f64 {
        // The kernel's counters may go back a little.
        let since = |now: u64, then: u64| now.saturating_sub(then) as f64;
        since(now.stolen, self.stolen) / since(now.all, self.all).max(1.0)
    }
}

/// The first line of proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal, and guest's, which is in user.
fn processors(stat: &str) -> Option<Processors> {
    let times = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let times: Vec<u64> = times.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    Some(Processors { all: times.iter().sum(), stolen: *times.get(7)? })
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
    fn a_zombie_has_no_memory() {
        let status = "Name:\tlonghaul\nVmPeak:\t  999 kB\nVmHWM:\t   20480 kB\nThreads:\t1\n";
        assert_eq!(high_water(status), Some(20 << 20));
        assert_eq!(high_water("Name:\tlonghaul\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn stolen_time_is_a_share_of_all() {
        let before = processors("cpu  100 0 50 800 10 0 5 35 7 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!((before.all, before.stolen), (1000, 35));
        let after = Processors { all: 1200, stolen: 85 };
        assert!((before.stolen_until(after) - 0.25).abs() < 1e-9);
        assert_eq!(before.stolen_until(before), 0.0);
        assert!(processors("cpu  1 2 3\n").is_none() && processors("").is_none());
        assert!(Processors::now().unwrap().stolen().unwrap() <= 1.0);
    }

    #[test]
    fn this_process_uses_something() {
        let own = of(std::process::id()).unwrap();
        assert!(own.peak_bytes > 100 << 10 && own.cpu_seconds >= 0.0, "{own:?}");
        assert_eq!(of(0), None);
    }
}
