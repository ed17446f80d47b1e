//! How long it takes a thread to wake another on another CPU.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Turns that are timed, after some that are not: 10 ms on most hosts.
const TURNS: usize = 200;
const FIRST_TURNS: usize = 20;

/// Who is not woken for so long will not be.
const PATIENCE: Duration = Duration::from_secs(1);

/// Half of what a byte takes there and back, between two threads that sleep until it comes: the middle of many. `None` with
/// one CPU.
pub(super) fn wake_time() -> Option<Duration> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let (here, there) = (cpus.next()?, cpus.next()?);
    between(here, there).ok().flatten()
}

fn between(here: usize, there: usize) -> io::Result<Option<Duration>> {
    let (near, far) = UnixStream::pair()?;
    for end in [&near, &far] {
        end.set_read_timeout(Some(PATIENCE))?;
    }
    let answering = thread::Builder::new().spawn(move || -> io::Result<()> {
        run_on(there)?;
        (0..FIRST_TURNS + TURNS).try_for_each(|_| {
            let mut byte = [0];
            (&far).read_exact(&mut byte)?;
            (&far).write_all(&byte)
        })
    })?;
    let asking = thread::Builder::new().spawn(move || -> io::Result<Vec<Duration>> {
        run_on(here)?;
        let turn = |_| {
            let begun = Instant::now();
            let mut byte = [0];
            (&near).write_all(&byte)?;
            (&near).read_exact(&mut byte)?;
            Ok(begun.elapsed())
        };
        (0..FIRST_TURNS + TURNS).map(turn).skip(FIRST_TURNS).collect()
    })?;
    let turns = asking.join();
    let _ = answering.join(); // what it has to say, the other one has missed
    let mut turns = turns.map_err(|_| io::Error::other("panicked"))??;
    turns.sort_unstable();
    Ok(turns.get(TURNS / 2).map(|turn| *turn / 2))
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
