//! What this machine's own host leaves of its processors: where it gives their time to others, nothing that is measured
//! here can be trusted.

use std::fs;

/// The processors' time since some moment, and how much of it this machine's host gave to others.
#[derive(Clone, Copy, Debug)]
pub struct Processors {
    all: u64,
    stolen: u64,
}

impl Processors {
    /// From now on. `None` where the kernel does not tell.
    #[must_use]
    pub fn now() -> Option<Self> {
        processors(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The share that was stolen since, of 1.
    #[must_use]
    pub fn stolen(self) -> Option<f64> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
