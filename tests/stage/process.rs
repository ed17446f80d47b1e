//! Processes that end with the test, whatever happens, and waiting for conditions.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longer than anything here takes on a slow machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// Waits until `condition` gives something.
///
/// # Panics
/// When it does not within `limit`.
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Fails the test unless packets take `expected_ms` there and back, by what ping(8) says: none takes less, and some take
/// hardly more. A busy machine adds to all of them for a while, but not for ever.
#[track_caller]
pub(crate) fn assert_rtt(expected_ms: f64, mut ping: impl FnMut() -> String) {
    const HARDLY_MS: f64 = 15.0;
    let deadline = Instant::now() + LIMIT;
    loop {
        let said = ping();
        let least = said.split("min/avg/max/mdev = ").nth(1).and_then(|rest| rest.split('/').next());
        let least: f64 = least.and_then(|ms| ms.parse().ok()).unwrap_or_else(|| panic!("{said}"));
        assert!(least >= expected_ms, "less than {expected_ms} ms: {said}");
        if least < expected_ms + HARDLY_MS {
            return;
        }
        assert!(Instant::now() < deadline, "never about {expected_ms} ms: {said}");
    }
}

/// A process under way, its words kept in files. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    began: Instant,
    out: PathBuf,
    err: PathBuf,
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None`: by a signal.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) took: Duration,
}

impl Running {
    /// Starts a command; `words` is where the files with its words go, under a name of its own.
    pub(crate) fn start(command: &mut Command, words: &Path) -> Self {
        let (out, err) = (words.with_extension("out"), words.with_extension("err"));
        command.stdin(Stdio::null());
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, began: Instant::now(), out, err }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// What it has said on standard error so far.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.err).unwrap()).into_owned()
    }

    /// Waits for a line on standard error.
    pub(crate) fn wait_to_say(&mut self, words: &str) {
        wait_for(&format!("`{words}` on standard error"), LIMIT, || {
            let said = self.said();
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() || said.contains(words), "ended without saying `{words}`:\n{said}");
            said.contains(words).then_some(())
        });
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// SIGKILL: it has no say in it.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, as an operator ends a server.
    pub(crate) fn stop(self) -> Ended {
        kill(self.pid(), Signal::SIGTERM).unwrap();
        self.wait()
    }

    pub(crate) fn wait(self) -> Ended {
        self.wait_up_to(LIMIT)
    }

    pub(crate) fn wait_up_to(mut self, limit: Duration) -> Ended {
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "still running after {limit:?}; it said:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        };
        let out = String::from_utf8_lossy(&std::fs::read(&self.out).unwrap()).into_owned();
        Ended { code: status.code(), out, err: self.said(), took: self.began.elapsed() }
    }

    /// Bytes of memory it has touched and holds.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = self.child.try_wait().ok().flatten();
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
        // Why a test failed may be known here alone.
        if std::thread::panicking() {
            eprintln!("{} ({ended:?}) said:\n{}", self.err.display(), self.said());
        }
    }
}

impl Ended {
    /// Its last word, with `--json`.
    pub(crate) fn json(&self) -> serde_json::Value {
        let line = self.out.lines().last().unwrap_or_default();
        serde_json::from_str(line)
            .unwrap_or_else(|_| panic!("no JSON in `{}`; it said:\n{}", self.out, self.err))
    }

    /// Fails the test, with what it said, unless it ended with `code`.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "exit code; it said:\n{}{}", self.out, self.err);
        self
    }

    /// Fails the test unless all of `words` were said on standard error.
    #[track_caller]
    pub(crate) fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.err.contains(word), "`{word}` is not in what it said:\n{}", self.err);
        }
        self
    }
}
