//! A command under a time limit.
//!
//! The command gets a process group of its own and is ended through it, by number. A command at its limit is first
//! stopped, so that what it has done can be counted, and only then killed: SIGTERM would let it tidy up.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use longhaul_report::Usage;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::usage;

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on Ctrl-C and SIGTERM end what runs in order, instead of leaving links and servers behind.
pub fn note_interrupts() {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // Without it an interrupt ends this process at once: no worse than for any other program.
        let _ = signal_hook::flag::register(signal, Arc::clone(&INTERRUPTED));
    }
}

/// An error once the user has asked for the end.
pub fn check_interrupt() -> anyhow::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) { bail!("interrupted") } else { Ok(()) }
}

/// Waits, but not when the user has asked for the end.
pub fn rest(time: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        check_interrupt()?;
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
    Ok(())
}

/// A running command, and its group; both end when this is dropped.
#[derive(Debug)]
pub struct Limited {
    child: Child,
    group: Pid,
    began: Instant,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// From its start.
    pub seconds: f64,
    /// None: it was at its limit, and is stopped now.
    pub status: Option<ExitStatus>,
    /// Of the process itself, not of those it started. None when it was over too soon to be seen.
    pub usage: Option<Usage>,
}

/// How often the memory of a running command is read: its peak is what was last read.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Where a command's words go.
#[derive(Clone, Copy, Debug)]
pub enum Words<'a> {
    /// To this process's own standard error.
    Shown,
    /// To a file.
    Kept(&'a Path),
    /// What it says to a file, what it complains about to another.
    Apart {
        /// What it says.
        out: &'a Path,
        /// What it complains about.
        err: &'a Path,
    },
}

impl Limited {
    /// Starts a command with nothing on its standard input.
    pub fn start(command: &mut Command, words: Words<'_>) -> anyhow::Result<Self> {
        Self::start_fed(command, Stdio::null(), words)
    }

    /// Starts a command. An `input` that is piped stays open, and silent, until its end.
    pub fn start_fed(command: &mut Command, input: Stdio, words: Words<'_>) -> anyhow::Result<Self> {
        let create =
            |path: &Path| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        match words {
            Words::Shown => command.stdout(Stdio::from(std::io::stderr())).stderr(Stdio::inherit()),
            Words::Kept(path) => {
                let file = create(path)?;
                command.stdout(file.try_clone()?).stderr(file)
            }
            Words::Apart { out, err } => command.stdout(create(out)?).stderr(create(err)?),
        };
        let began = Instant::now();
        let child = command
            .stdin(input)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let group = Pid::from_child(&child);
        Ok(Self { child, group, began })
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for its end, but not beyond `limit` after its start.
    pub fn wait(&mut self, limit: Duration) -> anyhow::Result<Ended> {
        let process = pidfd_open(self.group, PidfdFlags::empty()).context("cannot watch the command")?;
        let mut peak_bytes = None;
        let usage = |pid: u32, peak_bytes: Option<u64>| {
            Some(Usage { cpu_seconds: usage::cpu_seconds(pid)?, peak_bytes: peak_bytes? })
        };
        loop {
            check_interrupt()?;
            // The kernel's maximum is of the program that runs now: what was read before `exec` is replaced.
            peak_bytes = usage::peak_bytes(self.id()).or(peak_bytes);
            let left = limit.saturating_sub(self.began.elapsed());
            let timeout = left.min(LOOK_EVERY).try_into().context("the limit is too long")?;
            let mut ready = [PollFd::new(&process, PollFlags::IN)];
            match poll(&mut ready, Some(&timeout)) {
                Ok(0) if left > LOOK_EVERY => {}
                Ok(0) => {
                    let seconds = self.began.elapsed().as_secs_f64();
                    let _ = kill_process_group(self.group, Signal::STOP); // ended this instant: as good
                    return Ok(Ended { seconds, status: None, usage: usage(self.id(), peak_bytes) });
                }
                Ok(_) => {
                    let seconds = self.began.elapsed().as_secs_f64();
                    let usage = usage(self.id(), peak_bytes); // before it is waited for, and its number is gone
                    return Ok(Ended { seconds, status: Some(self.child.wait()?), usage });
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for the command"),
            }
        }
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Its children may outlive it; when all are gone there is no such group, which is what is wanted.
        let _ = kill_process_group(self.group, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The last lines of a file of words, for an error.
pub fn last_words(path: &Path) -> String {
    const LINES: usize = 4;
    let text = std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = text.unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_ends_in_time_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo one; echo two >&2; exit 3"]);
        let mut run = Limited::start(&mut shell, Words::Kept(&log)).unwrap();
        let ended = run.wait(Duration::from_secs(60)).unwrap();
        assert_eq!(ended.status.and_then(|s| s.code()), Some(3));
        assert_eq!(last_words(&log), "one; two");
    }

    #[test]
    fn what_a_command_used_is_known_when_it_has_ended() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done"]);
        let mut run = Limited::start(&mut shell, Words::Kept(Path::new("/dev/null"))).unwrap();
        let ended = run.wait(Duration::from_secs(60)).unwrap();
        let usage = ended.usage.unwrap();
        assert!(usage.cpu_seconds > 0.0 && usage.cpu_seconds <= ended.seconds + 0.02, "{ended:?}");
        assert!(usage.peak_bytes > 100 << 10, "{ended:?}");
    }

    #[test]
    fn what_is_said_and_what_is_complained_about_are_kept_apart() {
        let dir = tempfile::tempdir().unwrap();
        let (out, err) = (dir.path().join("out"), dir.path().join("err"));
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo one; echo two >&2; read line || echo closed"]);
        let mut run =
            Limited::start_fed(&mut shell, Stdio::null(), Words::Apart { out: &out, err: &err }).unwrap();
        run.wait(Duration::from_secs(60)).unwrap();
        assert_eq!((last_words(&out).as_str(), last_words(&err).as_str()), ("one; closed", "two"));
        let mut waits = Command::new("cat");
        let mut held = Limited::start_fed(&mut waits, Stdio::piped(), Words::Kept(&out)).unwrap();
        assert!(held.wait(Duration::from_millis(200)).unwrap().status.is_none(), "its input stays open");
    }

    #[test]
    fn a_command_at_its_limit_is_stopped_and_its_whole_group_ends() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 300 & echo $!; wait"]);
        let mut run = Limited::start(&mut shell, Words::Kept(&log)).unwrap();
        wait_until("the grandchild is named", || std::fs::read(&log).unwrap().ends_with(b"\n"));
        let limit = run.began.elapsed() + Duration::from_millis(400);
        let ended = run.wait(limit).unwrap();
        let may_take = limit.as_secs_f64()..100.0;
        assert!(ended.status.is_none() && may_take.contains(&ended.seconds), "{ended:?}");
        let grandchild = last_words(&log);
        drop(run);
        let gone = || match std::fs::read_to_string(format!("/proc/{grandchild}/stat")) {
            Ok(stat) => stat.contains(") Z "), // nobody reaps it where there is no init
            Err(_) => true,
        };
        wait_until("the grandchild is gone", gone);
    }

    fn wait_until(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < deadline, "not in time: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
