//! What became of changes. A client that is not told, as the server dies, asks the next one again: what has been carried out is not
//! carried out again, but answered.
//!
//! A client numbers the changes that it has under way (slots), and those of a slot one after the other, as in RFC 8881, 2.10.6. Of each slot the
//! last change is kept in a file, in a record that is written before the change is made, and after:
//!
//! ```text
//!   bytes   0..16    16..24     24..32              32..36   36..40              40..64
//!           mount    sequence   what is to be said  slot     error, 0, or BEGUN  zeros       little-endian
//! ```
//!
//! The first record says which start of which machine the file is of. It is not synced: it outlives the server, as the changes do, and not its
//! machine. What is not known is carried out, and then looked at: see [`Mounted::seems_done`](super::Mounted).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::grace::MountId;
use crate::limits::{REPLIES_KNOWN_MAX, SLOTS_MAX};
use crate::message::Slot;

/// What is known of a change that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// It has not been begun.
    Never,
    /// It may have been carried out.
    Perhaps,
    /// It was: what else is to be said, or the error.
    Over(Result<u64, Errno>),
}

/// See the module. Without a file nothing is kept: clients do not come again then.
#[derive(Debug, Default)]
pub(super) struct Replies(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    file: Option<File>,
    /// What is not in it has not been begun.
    is_whole: bool,
    known: BTreeMap<MountId, BTreeMap<u32, Kept>>,
    /// Records of mounts that have gone, and how many there are in all.
    free: Vec<u64>,
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    /// Which record.
    place: u64,
    sequence: u64,
    said: u64,
    error: i32,
}

const RECORD: usize = 64;

/// Instead of an error: how it went is not known.
const BEGUN: i32 = -1;

/// A change that has been begun.
#[derive(Debug)]
pub(super) struct Begun<'a> {
    replies: &'a Replies,
    mount: MountId,
    slot: Slot,
}

impl Replies {
    /// What the server before has left in the file, of these mounts.
    pub(super) fn begin(path: &Path, boot: &str, mounts: &BTreeSet<MountId>) -> Self {
        let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let begun = file.and_then(|file| State::begin(file, &header(boot), mounts));
        let state = begun.unwrap_or_else(|error| {
            tracing::warn!(%error, "{} cannot be used: after a restart some changes may be made twice", path.display());
            State::default()
        });
        Self(Mutex::new(state))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has become of a change that a mount asks for.
    pub(super) fn before(&self, mount: MountId, slot: Slot) -> Before {
        if slot.sequence == 0 || !slot.again {
            return Before::Never;
        }
        let state = self.state();
        let kept = state.known.get(&mount).and_then(|slots| slots.get(&slot.number));
        match kept.filter(|kept| kept.sequence == slot.sequence) {
            Some(Kept { error: BEGUN, .. }) => Before::Perhaps,
            Some(Kept { error: 0, said, .. }) => Before::Over(Ok(*said)),
            Some(Kept { error, .. }) => Before::Over(Err(Errno::from_raw_os_error(*error))),
            None if state.is_whole => Before::Never,
            None => Before::Perhaps,
        }
    }

    /// A change is about to be made. `None`: it is not kept what becomes of it.
    pub(super) fn change(&self, mount: MountId, slot: Slot) -> Option<Begun<'_>> {
        let is_kept = slot.sequence != 0 && slot.number < SLOTS_MAX && self.keep(mount, slot, 0, BEGUN);
        is_kept.then_some(Begun { replies: self, mount, slot })
    }

    fn keep(&self, mount: MountId, Slot { number, sequence, .. }: Slot, said: u64, error: i32) -> bool {
        let mut state = self.state();
        if state.file.is_none() {
            return false;
        }
        let before = state.known.get(&mount).and_then(|slots| slots.get(&number));
        let Some(place) = before.map(|kept| kept.place).or_else(|| state.room()) else {
            state.give_up("there are too many");
            return false;
        };
        state.known.entry(mount).or_default().insert(number, Kept { place, sequence, said, error });
        let mut record = [0; RECORD];
        record[..16].copy_from_slice(&mount);
        record[16..24].copy_from_slice(&sequence.to_le_bytes());
        record[24..32].copy_from_slice(&said.to_le_bytes());
        record[32..36].copy_from_slice(&number.to_le_bytes());
        record[36..40].copy_from_slice(&error.to_le_bytes());
        let written = state.file.as_ref().map(|file| file.write_all_at(&record, place * RECORD as u64));
        if let Some(Err(error)) = written {
            state.give_up(&error.to_string());
        }
        state.file.is_some()
    }

    /// A mount has gone, and does not come again.
    pub(super) fn forget(&self, mount: &MountId) {
        let mut state = self.state();
        let gone = state.known.remove(mount).unwrap_or_default();
        state.free.extend(gone.values().map(|kept| kept.place));
    }
}

impl Begun<'_> {
    /// It has been carried out, or has failed: so much is said if it is asked for again.
    pub(super) fn end(self, outcome: Result<u64, Errno>) {
        let (said, error) = match outcome {
            Ok(said) => (said, 0),
            Err(errno) => (0, errno.raw_os_error()),
        };
        self.replies.keep(self.mount, self.slot, said, error);
    }

    /// It has not been carried out.
    pub(super) fn undo(self) {
        self.replies.keep(self.mount, Slot { sequence: 0, ..self.slot }, 0, 0);
    }
}

impl State {
    fn begin(file: File, header: &[u8; RECORD], mounts: &BTreeSet<MountId>) -> io::Result<Self> {
        let mut state = Self { is_whole: true, count: 1, ..Self::default() };
        let (mut record, mut is_of_this_start) = ([0; RECORD], false);
        if file.metadata()?.len() >= RECORD as u64 {
            file.read_exact_at(&mut record, 0)?;
            is_of_this_start = record == *header;
        }
        if is_of_this_start {
            state.count = file.metadata()?.len().div_ceil(RECORD as u64).min(REPLIES_KNOWN_MAX);
        } else {
            // Nobody who comes again was known to a server that kept such a file, or its machine has been started again since.
            state.is_whole = mounts.is_empty();
            file.set_len(0)?;
            file.write_all_at(header, 0)?;
        }
        for place in 1..state.count {
            // The last one may have been cut off.
            let is_read = file.read_exact_at(&mut record, place * RECORD as u64).is_ok();
            match read(&record).filter(|(mount, ..)| is_read && mounts.contains(mount)) {
                Some((mount, slot, kept)) => {
                    let kept = Kept { place, ..kept };
                    state.known.entry(mount).or_default().insert(slot, kept);
                }
                None => state.free.push(place),
            }
        }
        state.file = Some(file);
        Ok(state)
    }

    /// A record that nobody has.
    fn room(&mut self) -> Option<u64> {
        let place = self.free.pop().or((self.count < REPLIES_KNOWN_MAX).then_some(self.count))?;
        self.count = self.count.max(place + 1);
        Some(place)
    }

    /// Nothing is kept any more, and the next server knows that.
    fn give_up(&mut self, why: &str) {
        tracing::warn!("replies cannot be kept ({why}): after a restart some changes may be made twice");
        if let Some(file) = self.file.take() {
            let _ = file.set_len(0); // room on the disk, too
        }
        self.is_whole = false;
    }
}

fn header(boot: &str) -> [u8; RECORD] {
    let mut header = [0; RECORD];
    let text = format!("longhaul replies 1 {boot}");
    let length = text.len().min(RECORD);
    header[..length].copy_from_slice(&text.as_bytes()[..length]);
    header
}

fn read(record: &[u8; RECORD]) -> Option<(MountId, u32, Kept)> {
    let mount = MountId::try_from(&record[..16]).ok()?;
    let long = |at: usize| Some(u64::from_le_bytes(record[at..at + 8].try_into().ok()?));
    let short = |at: usize| Some(u32::from_le_bytes(record[at..at + 4].try_into().ok()?));
    let (slot, error) = (short(32)?, short(36)?.cast_signed());
    let is_sound = slot < SLOTS_MAX && (BEGUN..4096).contains(&error); // errors of Linux, as the kernel has them
    is_sound.then_some((mount, slot, Kept { place: 0, sequence: long(16)?, said: long(24)?, error }))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const ONE: MountId = [1; 16];
    const OTHER: MountId = [2; 16];
    const BOOT: &str = "9a1c6b1e-8f0a-4b0e-9a52-6a4a2f0c8a11";

    fn slot(number: u32, sequence: u64) -> Slot {
        Slot { number, sequence, again: true }
    }

    fn file() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("replies");
        (dir, file)
    }

    fn begin(file: &Path, mounts: &[MountId]) -> Replies {
        Replies::begin(file, BOOT, &mounts.iter().copied().collect())
    }

    #[test]
    fn the_next_server_knows_what_has_been_carried_out_and_what_has_not() {
        let (_dir, file) = file();
        let first = begin(&file, &[]);
        for (number, outcome) in [Ok(0), Ok(u64::MAX), Err(Errno::EXIST)].into_iter().enumerate() {
            first.change(ONE, slot(number as u32, 7)).unwrap().end(outcome);
        }
        first.change(ONE, slot(3, 1)).unwrap();
        first.change(ONE, slot(4, 1)).unwrap().undo();
        first.change(OTHER, slot(0, 1)).unwrap().end(Ok(5));
        // A later one of the same slot.
        first.change(ONE, slot(0, 8)).unwrap().end(Ok(9));
        drop(first);
        for _ in 0..2 {
            let next = begin(&file, &[ONE, OTHER]);
            assert_eq!(next.before(ONE, slot(0, 8)), Before::Over(Ok(9)));
            assert_eq!(next.before(ONE, slot(0, 7)), Before::Never, "nobody asks for it any more");
            assert_eq!(next.before(ONE, slot(1, 7)), Before::Over(Ok(u64::MAX)));
            assert_eq!(next.before(ONE, slot(2, 7)), Before::Over(Err(Errno::EXIST)));
            assert_eq!(next.before(ONE, slot(3, 1)), Before::Perhaps);
            assert_eq!(next.before(ONE, slot(4, 1)), Before::Never);
            assert_eq!(next.before(ONE, slot(5, 1)), Before::Never);
            assert_eq!(next.before(OTHER, slot(0, 1)), Before::Over(Ok(5)));
            let first_time = Slot { again: false, ..slot(1, 7) };
            assert_eq!(next.before(ONE, first_time), Before::Never);
        }
        // Who does not come again is forgotten, and others have its records.
        let length = file.metadata().unwrap().len();
        let next = begin(&file, &[ONE]);
        next.change(ONE, slot(9, 1)).unwrap().end(Ok(1));
        next.forget(&ONE);
        next.change(OTHER, slot(0, 1)).unwrap().end(Ok(2));
        assert_eq!(next.before(OTHER, slot(0, 1)), Before::Over(Ok(2)));
        assert_eq!(next.before(ONE, slot(0, 8)), Before::Never);
        assert_eq!(file.metadata().unwrap().len(), length);
    }

    #[test]
    fn of_what_no_file_tells_nobody_says_that_it_has_not_been_begun() {
        let (_dir, file) = file();
        begin(&file, &[]).change(ONE, slot(0, 1)).unwrap().end(Ok(1));
        let whole = std::fs::read(&file).unwrap();
        let mounts = BTreeSet::from([ONE]);
        // The machine has been started again.
        let again = Replies::begin(&file, "another", &mounts);
        assert_eq!(again.before(ONE, slot(0, 1)), Before::Perhaps);
        // From then on it is known; what is older is not.
        again.change(ONE, slot(0, 2)).unwrap().end(Ok(2));
        assert_eq!(again.before(ONE, slot(0, 2)), Before::Over(Ok(2)));
        // Removed, empty, another's, or cut off.
        std::fs::remove_file(&file).unwrap();
        assert_eq!(begin(&file, &[ONE]).before(ONE, slot(0, 1)), Before::Perhaps);
        for bytes in [&b""[..], &[0xff; 1000], &whole[..40]] {
            std::fs::write(&file, bytes).unwrap();
            assert_eq!(begin(&file, &[ONE]).before(ONE, slot(0, 1)), Before::Perhaps, "{bytes:?}");
        }
        std::fs::write(&file, &whole[..100]).unwrap();
        assert_eq!(begin(&file, &[ONE]).before(ONE, slot(0, 1)), Before::Never, "it was not begun");
        let mut foreign = whole;
        foreign[RECORD + 16..].fill(0xfe);
        std::fs::write(&file, &foreign).unwrap();
        let next = begin(&file, &[ONE]);
        next.change(ONE, slot(0, 1)).unwrap().end(Ok(3));
        assert_eq!(begin(&file, &[ONE]).before(ONE, slot(0, 1)), Before::Over(Ok(3)));
        // What cannot be kept.
        assert!(Replies::default().change(ONE, slot(0, 1)).is_none());
        assert!(next.change(ONE, slot(SLOTS_MAX, 1)).is_none() && next.change(ONE, slot(0, 0)).is_none());
    }

    #[test]
    fn a_full_disk_is_told_to_the_next_server() {
        let (_dir, file) = file();
        let first = begin(&file, &[]);
        first.change(ONE, slot(0, 1)).unwrap().end(Ok(1));
        // As it is from then on.
        first.state().file = Some(File::options().read(true).open(&file).unwrap());
        assert!(first.change(ONE, slot(0, 2)).is_none());
        assert!(first.change(ONE, slot(0, 3)).is_none());
        assert_eq!(first.before(OTHER, slot(0, 1)), Before::Perhaps);
    }
}
