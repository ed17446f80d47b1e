//! Processor time of this process, and what the host does beside it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
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

/// Time in which a thread ran, or could have run and waited for a processor, also after it has ended.
#[derive(Debug, Default)]
pub struct Busy {
    thread: AtomicU32,
    /// Nanoseconds, once it has ended.
    in_all: AtomicU64,
}

impl Busy {
    /// The thread that begins is the one that is asked about.
    pub fn begin(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), Relaxed);
    }

    /// It ends: by the thread itself.
    pub fn end(&self) {
        let nanoseconds = schedstat(self.thread.load(Relaxed)).unwrap_or(0);
        self.in_all.store(nanoseconds, Relaxed);
    }

    /// Seconds since the thread was made; 0 where the kernel does not say.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        let in_all = Some(self.in_all.load(Relaxed)).filter(|nanoseconds| *nanoseconds > 0);
        // It may end in between.
        let told = in_all.or_else(|| schedstat(self.thread.load(Relaxed)));
        told.unwrap_or_else(|| self.in_all.load(Relaxed)) as f64 / 1e9
    }
}

/// Nanoseconds; `None` where there is no such thread of this process, or the kernel does not say.
fn schedstat(thread: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    let mut nanoseconds = text.split_whitespace().map(str::parse::<u64>);
    let (ran, waited) = (nanoseconds.next()?.ok()?, nanoseconds.next()?.ok()?);
    ran.checked_add(waited)
}

/// What this host does with its cores, from when it was made.
#[derive(Clone, Debug, Default)]
pub struct Cores {
    before: Vec<Core>,
    /// Packets that the kernel has dropped.
    dropped: u64,
}

/// A core's time in ticks, since the host was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Core {
    all: u64,
    idle: u64,
    interrupts: u64,
}

impl Cores {
    /// Begins.
    #[must_use]
    pub fn start() -> Self {
        Self { before: cores(), dropped: dropped() }
    }

    /// What the interrupts of the network take of the core that has most of them, in percent; 0 where the kernel does not say.
    #[must_use]
    pub fn interrupts(&self) -> f64 {
        self.since().into_iter().map(|core| core.percent(core.interrupts)).fold(0.0, f64::max)
    }

    /// What is not idle of all of them, in percent, time that another machine took included; 0 where the kernel does not say.
    #[must_use]
    pub fn busy(&self) -> f64 {
        let sum = self.since().into_iter().fold(Core::default(), |sum, core| Core {
            all: sum.all + core.all,
            idle: sum.idle + core.idle,
            ..sum
        });
        sum.percent(sum.all - sum.idle)
    }

    /// Packets that the kernel has dropped because a core came too late to those before (`net.core.netdev_max_backlog`).
    #[must_use]
    pub fn dropped(&self) -> u64 {
        dropped().saturating_sub(self.dropped)
    }

    fn since(&self) -> Vec<Core> {
        let since = |(now, before): (Core, &Core)| {
            let all = now.all.saturating_sub(before.all);
            // A kernel may correct its idle time.
            let part = |now: u64, before: u64| now.saturating_sub(before).min(all);
            Core {
                all,
                idle: part(now.idle, before.idle),
                interrupts: part(now.interrupts, before.interrupts),
            }
        };
        cores().into_iter().zip(&self.before).map(since).collect()
    }
}

impl Core {
    /// Fewer ticks say nothing.
    fn percent(self, part: u64) -> f64 {
        if self.all < 20 { 0.0 } else { part as f64 * 100.0 / self.all as f64 }
    }
}

fn cores() -> Vec<Core> {
    std::fs::read_to_string("/proc/stat").map(|text| parse(&text)).unwrap_or_default()
}

/// Lines `cpu0 user nice system idle iowait irq softirq steal ...` of proc(5).
fn parse(stat: &str) -> Vec<Core> {
    let core = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        if !name.starts_with("cpu") || name == "cpu" {
            return None;
        }
        let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
        let sum = |part: std::ops::Range<usize>| Some(ticks.get(part)?.iter().sum());
        Some(Core { all: ticks.iter().sum(), idle: sum(3..5)?, interrupts: sum(5..7)? })
    };
    stat.lines().filter_map(core).collect()
}

/// 0 where the kernel does not say.
fn dropped() -> u64 {
    std::fs::read_to_string("/proc/net/softnet_stat").map(|text| parse_dropped(&text)).unwrap_or_default()
}

/// The second number of each core's line, hexadecimal.
fn parse_dropped(softnet_stat: &str) -> u64 {
    let of_core = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    softnet_stat.lines().filter_map(of_core).sum()
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
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_thread_that_works_is_busy() {
        let busy = Arc::new(Busy::default());
        assert_eq!(busy.seconds(), 0.0);
        let own = busy.clone();
        let worked = std::thread::spawn(move || {
            own.begin();
            while own.seconds() < 0.01 {
                std::hint::black_box(0);
            }
            own.end();
        });
        worked.join().unwrap();
        // It has ended, and its time is known.
        assert!(busy.seconds() >= 0.01);
    }

    #[test]
    fn cores_are_told_from_their_sum() {
        let text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 1\nintr 5\n";
        assert_eq!(parse(text), [Core { all: 36, idle: 9, interrupts: 13 }]);
        let cores = Cores::start();
        assert!(cores.interrupts() <= 100.0 && cores.busy() <= 100.0);
    }

    #[test]
    fn shares_are_of_what_has_passed_since() {
        let core = |all, idle, interrupts| Core { all, idle, interrupts };
        assert_eq!(core(100, 25, 50).percent(50), 50.0);
        assert_eq!(core(19, 0, 19).percent(19), 0.0, "too little time");
    }

    #[test]
    fn what_cores_have_dropped_is_added_up() {
        assert_eq!(parse_dropped("0000ff 00000010 0 0\n000001 0000000a 0 0\n"), 26);
        assert_eq!(parse_dropped("nonsense\n"), 0);
    }

    #[test]
    fn work_is_seen() {
        let watch = Watch::start();
        while watch.share().total == 0.0 {
            std::hint::black_box(0);
        }
        assert!(watch.share().total > 0.0);
    }
}
