//! How far a copy has come, for whoever shows it; and what went wrong, for whoever tells it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{Notify, mpsc, watch};

use crate::limits::{PROBLEM_TEXT_MAX, PROBLEMS_TOLD_MAX};

/// Counters of one end; they only grow.
#[derive(Debug, Default)]
pub struct Progress {
    /// Files found in the sources: all but directories.
    pub found_files: AtomicU64,
    /// Their bytes.
    pub found_bytes: AtomicU64,
    /// All sources have been read through.
    pub all_found: AtomicBool,
    /// Files that are in their place, or, at the sender, whose bytes are there.
    pub done_files: AtomicU64,
    /// Bytes that have arrived.
    pub done_bytes: AtomicU64,
    /// Files that were there already and equal.
    pub skipped_files: AtomicU64,
    /// Their bytes, and those that an earlier run had brought.
    pub skipped_bytes: AtomicU64,
    /// Problems so far.
    pub problems: AtomicU64,
}

/// A point in time of [`Progress`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // as in `Progress`
pub struct ProgressNow {
    pub found_files: u64,
    pub found_bytes: u64,
    pub all_found: bool,
    pub done_files: u64,
    pub done_bytes: u64,
    pub skipped_files: u64,
    pub skipped_bytes: u64,
    pub problems: u64,
}

impl Progress {
    /// The counters now.
    #[must_use]
    pub fn now(&self) -> ProgressNow {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProgressNow {
            found_files: get(&self.found_files),
            found_bytes: get(&self.found_bytes),
            all_found: self.all_found.load(Ordering::Relaxed),
            done_files: get(&self.done_files),
            done_bytes: get(&self.done_bytes),
            skipped_files: get(&self.skipped_files),
            skipped_bytes: get(&self.skipped_bytes),
            problems: get(&self.problems),
        }
    }
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Something that was not copied, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which file, as its side of the copy calls it.
    pub path: PathBuf,
    /// What happened, and where it helps what to do.
    pub reason: String,
}

impl Problem {
    /// As it travels: never longer than a message takes. Of a long path the end says more.
    fn clipped(self) -> Self {
        let bytes = self.path.as_os_str().as_bytes();
        let path = match bytes.len().checked_sub(PROBLEM_TEXT_MAX) {
            None | Some(0) => self.path,
            Some(beyond) => PathBuf::from(OsStr::from_bytes(&[b"...", &bytes[beyond..]].concat())),
        };
        let mut reason = self.reason;
        reason.truncate(reason.floor_char_boundary(PROBLEM_TEXT_MAX));
        Self { path, reason }
    }
}

/// Where problems go.
#[derive(Clone, Debug)]
pub(crate) struct Problems {
    told: mpsc::UnboundedSender<Problem>,
    progress: Arc<Progress>,
    /// Of the peer's problems, how many it has told.
    peers: Arc<AtomicU64>,
    /// At a server, whose problems travel to the client.
    passing: Option<Arc<Passing>>,
}

/// How far a server's problems have come on their way to the client.
#[derive(Debug, Default)]
struct Passing {
    told: AtomicU64,
    passed: watch::Sender<u64>,
    hurry: Notify,
}

impl Problems {
    /// The place where they come out. No more than [`PROBLEMS_TOLD_MAX`] do; the rest is only counted.
    pub(crate) fn new(progress: Arc<Progress>) -> (Self, mpsc::UnboundedReceiver<Problem>) {
        let (told, receiver) = mpsc::unbounded_channel();
        (Self { told, progress, peers: Arc::default(), passing: None }, receiver)
    }

    /// As [`new`](Self::new), where those that come out are passed on to the client.
    pub(crate) fn for_client(progress: Arc<Progress>) -> (Self, mpsc::UnboundedReceiver<Problem>) {
        let (problems, receiver) = Self::new(progress);
        (Self { passing: Some(Arc::default()), ..problems }, receiver)
    }

    /// So many more have reached the client.
    pub(crate) fn note_passed(&self, count: u64) {
        if let Some(passing) = &self.passing {
            passing.passed.send_modify(|passed| *passed = passed.saturating_add(count));
        }
    }

    /// Resolves when somebody waits for all to be passed on.
    pub(crate) async fn hurry(&self) {
        match &self.passing {
            Some(passing) => passing.hurry.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the client has all that were told so far. An end that is told only afterwards leaves none behind.
    pub(crate) async fn all_passed(&self) {
        let Some(passing) = &self.passing else { return };
        let told = passing.told.load(Ordering::SeqCst);
        let mut passed = passing.passed.subscribe();
        if *passed.borrow_and_update() < told {
            passing.hurry.notify_one();
            let _ = passed.wait_for(|passed| *passed >= told).await; // the sender lives in `self`
        }
    }

    pub(crate) fn tell(&self, path: impl Into<PathBuf>, reason: impl std::fmt::Display) {
        let before = self.progress.problems.fetch_add(1, Ordering::Relaxed);
        if before < PROBLEMS_TOLD_MAX {
            let problem = Problem { path: path.into(), reason: reason.to_string() }.clipped();
            if let Some(passing) = &self.passing {
                passing.told.fetch_add(1, Ordering::SeqCst);
            }
            let _ = self.told.send(problem); // nobody listens any more: the copy has been given up
        }
    }

    /// Tells a problem of the peer's.
    pub(crate) fn tell_of_peer(&self, path: PathBuf, reason: &str) {
        self.peers.fetch_add(1, Ordering::SeqCst);
        self.tell(path, reason);
    }

    /// The peer's own count of its problems, at its end: none is passed over because it was not told by itself.
    pub(crate) fn check_peers(&self, count: u64) {
        let told = self.peers.fetch_max(count, Ordering::SeqCst);
        if told < count {
            self.tell(PathBuf::new(), format!("{} further problems at the far end", count - told));
        }
    }

    /// How many so far.
    pub(crate) fn count(&self) -> u64 {
        self.progress.problems.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_fits_a_message_and_keeps_the_end_of_its_path() {
        let path = PathBuf::from("d/".repeat(10_000) + "name");
        let problem = Problem { path, reason: "\u{fc}".repeat(10_000) }.clipped();
        assert!(
            problem.path.as_os_str().len() <= PROBLEM_TEXT_MAX + 3
                && problem.reason.len() <= PROBLEM_TEXT_MAX
        );
        assert!(problem.path.ends_with("d/name"));
        let short = Problem { path: "p".into(), reason: "r".into() };
        assert_eq!(short.clone().clipped(), short);
    }

    #[test]
    fn problems_of_the_peer_that_it_did_not_tell_are_told_as_one() {
        let (problems, mut told) = Problems::new(Arc::default());
        problems.tell_of_peer("a".into(), "broken");
        problems.check_peers(1);
        assert!(told.try_recv().is_ok() && told.try_recv().is_err());
        problems.check_peers(3);
        assert!(told.try_recv().unwrap().reason.starts_with("2 further"));
    }
}
