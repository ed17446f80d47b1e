//! Processor time of this process.

use std::time::Instant;

/// The share of one processor that a process took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// All of it, in percent of one processor: above 100 with several threads.
    pub total: f64,
    /// In the program.
    pub user: f64,
    /// In the kernel, on its behalf.
    pub system: f64,
}

/// Measures from when it was made.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    began: Instant,
    user_s: f64,
    system_s: f64,
}

impl Watch {
    /// Begins.
    #[must_use]
    pub fn start() -> Self {
        let (user_s, system_s) = spent();
        Self { began: Instant::now(), user_s, system_s }
    }

    /// Since the beginning.
    #[must_use]
    pub fn share(&self) -> Share {
        let (user_s, system_s) = spent();
        let percent = 100.0 / self.began.elapsed().as_secs_f64().max(1e-9);
        let (user, system) = ((user_s - self.user_s) * percent, (system_s - self.system_s) * percent);
        Share { total: user + system, user, system }
    }
}

/// Seconds of all threads so far, in the program and in the kernel.
#[allow(unsafe_code)] // rustix has no getrusage
fn spent() -> (f64, f64) {
    // SAFETY: all zeros is a valid `rusage`, which is plain data.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` outlives the call; where the call failed it would stay zero.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_seen() {
        let watch = Watch::start();
        while watch.share().total == 0.0 {
            std::hint::black_box(0);
        }
        assert!(watch.share().total > 0.0);
    }
}
