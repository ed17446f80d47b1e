//! The time after a start of the server in which clients of the one before take back what they had: files that they had
//! open, locks, and files that they had to themselves. Whoever else asks for something waits.
//!
//! Who the clients are is kept in a file. The grace is over when all of them have come, or after [`GRACE_MAX`]; who comes
//! later is told that it has lost what it had.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use super::replies::Replies;
use crate::limits::{GRACE_MAX, MOUNTS_KNOWN_MAX};

/// A mount, by a number that it has chosen at random and that only it and the server know.
pub(super) type MountId = [u8; 16];

/// See the module.
#[derive(Debug)]
pub(super) struct Grace {
    /// This start of its machine: what was not synced before another is lost.
    pub(super) boot: String,
    /// What has become of what they asked for.
    pub(super) replies: Replies,
    until: Instant,
    state: Mutex<State>,
    over: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// Nothing is kept without a file.
    file: Option<PathBuf>,
    /// Clients of the server before that have not come yet.
    expected: BTreeSet<MountId>,
    /// Clients of this one, and how many sessions each has: the last may not have heard that it is over.
    here: BTreeMap<MountId, u32>,
    /// The server is about to end: whoever leaves now will come again.
    stopping: bool,
}

impl Grace {
    /// With the file of clients, if there is one.
    pub(super) fn begin(file: Option<PathBuf>) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let expected = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        let expected: BTreeSet<MountId> = expected
            .iter()
            .flat_map(|text| text.lines())
            .filter_map(from_hex)
            .take(MOUNTS_KNOWN_MAX)
            .collect();
        if !expected.is_empty() {
            tracing::info!(
                "{} mounts of the server before are waited for, for {GRACE_MAX:?} at most",
                expected.len()
            );
        }
        let over = watch::channel(expected.is_empty()).0;
        let boot = boot.trim().to_owned();
        let replies = file.as_ref().map(|file| Replies::begin(&beside(file, ".replies"), &boot, &expected));
        let replies = replies.unwrap_or_default();
        let state = Mutex::new(State { file, expected, ..State::default() });
        Self { boot, replies, until: Instant::now() + GRACE_MAX, state, over }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A mount comes. Whether it may take back what it had.
    pub(super) fn attach(&self, mount: MountId) -> bool {
        let mut state = self.state();
        let was_here = state.expected.contains(&mount);
        if state.here.len() < MOUNTS_KNOWN_MAX {
            let sessions = state.here.entry(mount).or_default();
            *sessions += 1;
            self.replies.attach(mount);
            if *sessions == 1 && !was_here {
                state.save();
            }
        }
        was_here && !*self.over.borrow()
    }

    /// It has taken back what it had; false: not in time.
    pub(super) fn has_reclaimed(&self, mount: MountId) -> bool {
        let mut state = self.state();
        let in_time = state.expected.remove(&mount);
        if in_time && state.expected.is_empty() {
            tracing::info!("all mounts have come back");
            self.over.send_replace(true);
        }
        in_time
    }

    /// Its session is over: what it had is gone, unless that is because the server ends.
    pub(super) fn leave(&self, mount: MountId) {
        let mut state = self.state();
        if state.stopping {
            return;
        }
        let Some(sessions) = state.here.get_mut(&mount) else { return };
        *sessions -= 1;
        if *sessions == 0 {
            state.here.remove(&mount);
            if !state.expected.contains(&mount) {
                state.save();
                self.replies.forget(&mount);
            }
        }
    }

    /// Whether the server is about to end: what clients have is theirs still.
    pub(super) fn is_stopping(&self) -> bool {
        self.state().stopping
    }

    /// The server is about to end.
    pub(super) fn stop(&self) {
        self.state().stopping = true;
    }

    /// Waits until everybody may do everything.
    pub(super) async fn until_over(&self) {
        if *self.over.borrow() {
            return;
        }
        let mut over = self.over.subscribe();
        let in_time = tokio::time::timeout_at(self.until, over.wait_for(|over| *over)).await.is_ok();
        if !in_time {
            let mut state = self.state();
            if !self.over.send_replace(true) {
                tracing::warn!("{} mounts have not come back: what they had is lost", state.expected.len());
                let lost = std::mem::take(&mut state.expected);
                state.save();
                lost.iter()
                    .filter(|mount| !state.here.contains_key(*mount))
                    .for_each(|mount| self.replies.forget(mount));
            }
        }
    }
}

impl State {
    /// Clients rely on it when they are told that they are attached.
    fn save(&self) {
        let Some(file) = &self.file else { return };
        let mounts: BTreeSet<&MountId> = self.here.keys().chain(&self.expected).collect();
        let text: String = mounts.into_iter().map(|mount| hex(mount) + "\n").collect();
        let new = beside(file, ".new");
        let saved = || {
            let mut writing = std::fs::File::create(&new)?;
            rustix::fs::fchmod(&writing, rustix::fs::Mode::from_raw_mode(0o600))?;
            writing.write_all(text.as_bytes())?;
            writing.sync_data()?;
            std::fs::rename(&new, file)?;
            match file.parent().filter(|dir| !dir.as_os_str().is_empty()) {
                Some(dir) => std::fs::File::open(dir)?.sync_all(),
                None => Ok(()),
            }
        };
        if let Err(error) = saved() {
            tracing::warn!(%error, "{} cannot be written: after a restart mounts lose what they have", file.display());
        }
    }
}

/// A file of the same name, and more.
fn beside(file: &Path, more: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(more);
    name.into()
}

fn hex(mount: &MountId) -> String {
    mount.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(line: &str) -> Option<MountId> {
    let number = u128::from_str_radix(line, 16).ok().filter(|_| line.len() == 32)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: MountId = [1; 16];
    const OTHER: MountId = [0xf2; 16];

    fn file() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mounts");
        (dir, file)
    }

    fn is_over(grace: &Grace) -> bool {
        *grace.over.borrow()
    }

    #[tokio::test]
    async fn who_was_there_is_waited_for() {
        let (_dir, file) = file();
        let first = Grace::begin(Some(file.clone()));
        assert!(is_over(&first), "there was nobody");
        assert!(!first.attach(ONE) && !first.attach(OTHER));
        first.attach([3; 16]);
        first.leave([3; 16]);
        // Killed, or ended in order: those who are there come again.
        first.stop();
        first.leave(OTHER);
        let second = Grace::begin(Some(file.clone()));
        assert_eq!(first.boot, second.boot);
        assert!(!is_over(&second));
        assert!(!second.attach([4; 16]), "it had nothing");
        assert!(second.attach(ONE));
        assert!(second.has_reclaimed(ONE));
        assert!(!second.has_reclaimed(ONE), "there is nothing to take back any more");
        assert!(!is_over(&second));
        // Killed before the other has come.
        let third = Grace::begin(Some(file));
        assert!(third.attach(OTHER) && third.attach(ONE) && third.attach([4; 16]));
        for mount in [ONE, [4; 16], OTHER] {
            assert!(!is_over(&third));
            third.has_reclaimed(mount);
        }
        third.until_over().await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_come_in_time_has_lost_what_it_had() {
        let (_dir, file) = file();
        Grace::begin(Some(file.clone())).attach(ONE);
        let grace = Grace::begin(Some(file.clone()));
        assert!(grace.attach(ONE));
        grace.until_over().await;
        assert!(!grace.has_reclaimed(ONE), "too late");
        grace.leave(ONE);
        // A new session while the old one has not been missed.
        assert!(!grace.attach(ONE) && !grace.attach(ONE));
        grace.leave(ONE);
        assert!(is_over(&Grace::begin(None)));
        // It is a client like any other from then on.
        assert!(Grace::begin(Some(file)).attach(ONE));
    }

    #[test]
    fn a_file_that_is_something_else_names_nobody() {
        let (_dir, file) = file();
        std::fs::write(&file, "words\n+1\n00\n\u{fffd}\n").unwrap();
        let grace = Grace::begin(Some(file));
        assert!(is_over(&grace));
        assert_eq!(from_hex(&hex(&OTHER)), Some(OTHER));
    }
}
