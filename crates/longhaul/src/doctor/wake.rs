//! How long it takes a thread to wake another on another CPU.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Turns that are timed, after some that are not: 10 ms on most hosts.
const TURNS: usize = 200;
const FIRST_TURNS: usize = 20;

/// Longest that a turn, and all of them, may take: on a busy host there are fewer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Half of what a byte takes there and back, between two threads that sleep until it comes: the middle of many. `None` with
/// one CPU.
pub(super) fn wake_time() -> Option<Duration> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let (here, there) = (cpus.next()?, cpus.next()?);
    let mut turns = between(here, there).ok()?;
    turns.sort_unstable();
    Some(*turns.get(turns.len() / 2)? / 2)
}

fn between(here: usize, there: usize) -> io::Result<Vec<Duration>> {
    let (near, far) = UnixStream::pair()?;
    near.set_read_timeout(Some(PATIENCE))?;
    let answering = thread::Builder::new().spawn(move || -> io::Result<()> {
        run_on(there)?;
        let mut byte = [0];
        while (&far).read(&mut byte)? > 0 {
            (&far).write_all(&byte)?;
        }
        Ok(())
    })?;
    let asking = thread::Builder::new().spawn(move || {
        run_on(here)?;
        let all = Instant::now();
        let turn = |_| {
            let (begun, mut byte) = (Instant::now(), [0]);
            (&near).write_all(&byte)?;
            (&near).read_exact(&mut byte)?;
            Ok(begun.elapsed())
        };
        let in_time = (0..FIRST_TURNS + TURNS).take_while(|_| all.elapsed() < PATIENCE);
        in_time.map(turn).skip(FIRST_TURNS).collect()
    })?;
    let turns = asking.join();
    let _ = answering.join(); // what it has to say, the other one has missed
    turns.unwrap_or_else(|_| Err(io::Error::other("panicked")))
}

fn run_on(cpu: usize) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    Ok(sched_setaffinity(None, &only)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_woken() {
        let allowed = sched_getaffinity(None).unwrap();
        let Some(time) = wake_time() else {
            return assert!(allowed.count() < 2, "there are {} CPUs", allowed.count());
        };
        assert!(time > Duration::ZERO && time < PATIENCE, "{time:?}");
    }
}
