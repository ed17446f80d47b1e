//! What became of changes. A client that is not told, as the server dies, asks the next one again: what has been carried out is not
//! carried out again, but answered.
//!
//! A client numbers the changes that it has under way (slots), and those of a slot one after the other, as in RFC 8881, 2.10.6. Of each slot the
//! last change is kept in a file, in a record that is written before the change is made, and after:
//!
//! ```text
//!   bytes   0..16    16..24     24..32              32..36   36..40              40..64
//!           mount    sequence   what is to be said  slot     error, 0, or below  zeros       little-endian
//! ```
//!
//! A write that travels in pieces over the lanes has no slot: each piece that has been stored is noted, and its client asks for them before it
//! sends the rest:
//!
//! ```text
//!   bytes   0..16    16..24     24..32              32..36   36..40              40..48    48..64
//!           mount    object     begin in the file   ones     zeros               end       zeros
//! ```
//!
//! The first record says which start of which machine the file is of, and whether it tells of all. It is not synced: it outlives the server, as the
//! changes do, and not its machine. What is not known is carried out, and then looked at: see [`Mounted::seems_done`](super::Mounted).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::grace::MountId;
use crate::limits::{PIECES_KNOWN_MAX, PIECES_OF_MOUNT_MAX, REPLIES_KNOWN_MAX, SLOTS_MAX};
use crate::message::{Slot, object, write_of};

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
    known: BTreeMap<MountId, OfMount>,
    /// How many there are, of all mounts.
    pieces: usize,
    /// Records of mounts that have gone, and how many there are in all.
    free: Vec<u64>,
    count: u64,
}

#[derive(Debug, Default)]
struct OfMount {
    changes: BTreeMap<u32, Kept>,
    /// By object.
    writes: BTreeMap<u64, Vec<Piece>>,
    pieces: usize,
}

/// Bytes of a write that have been stored.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Which record.
    place: u64,
    start: u64,
    end: u64,
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

/// It has not been carried out.
const UNDONE: i32 = -2;

/// Instead of a slot: of a piece.
const PIECE: u32 = u32::MAX;

/// How the first record begins, before the `boot_id`.
const MAGIC: &[u8] = b"longhaul replies 1 ";

/// Where it says, not with 0, that there may have been others.
const NOT_WHOLE: usize = RECORD - 1;

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
        let begun = file.and_then(|file| State::begin(file, header(boot), mounts));
        let state = begun.unwrap_or_else(|error| {
            let _ = std::fs::remove_file(path); // what it says is not all any more
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
        let kept = state.known.get(&mount).and_then(|of_mount| of_mount.changes.get(&slot.number));
        match kept.filter(|kept| kept.sequence == slot.sequence) {
            Some(Kept { error: BEGUN, .. }) => Before::Perhaps,
            Some(Kept { error: UNDONE, .. }) => Before::Never,
            Some(Kept { error: 0, said, .. }) => Before::Over(Ok(*said)),
            Some(Kept { error, .. }) => Before::Over(Err(Errno::from_raw_os_error(*error))),
            None if state.is_whole && !slot.rebooted => Before::Never,
            None => Before::Perhaps,
        }
    }

    /// A mount comes: what becomes of its changes is kept until it is forgotten.
    pub(super) fn attach(&self, mount: MountId) {
        self.state().known.entry(mount).or_default();
    }

    /// A change is about to be made. `None`: it is not kept what becomes of it.
    pub(super) fn change(&self, mount: MountId, slot: Slot) -> Option<Begun<'_>> {
        if slot.sequence == 0 || slot.number >= SLOTS_MAX {
            return None;
        }
        let is_next = |kept: &Kept| kept.sequence <= slot.sequence;
        self.keep(mount, slot, is_next, (0, BEGUN)).then_some(Begun { replies: self, mount, slot })
    }

    /// Writes a record, if the one before may go: its client may have given up waiting, and have made another change by that slot since.
    fn keep(
        &self,
        mount: MountId,
        Slot { number, sequence, .. }: Slot,
        may_go: impl FnOnce(&Kept) -> bool,
        (said, error): (u64, i32),
    ) -> bool {
        let mut state = self.state();
        let Some(before) = state.known.get(&mount).map(|of_mount| of_mount.changes.get(&number).copied())
        else {
            return false;
        };
        if state.file.is_none() || !before.as_ref().is_none_or(may_go) {
            return false;
        }
        let Some(place) = before.map(|kept| kept.place).or_else(|| state.room()) else {
            state.not_whole();
            return false;
        };
        let kept = Kept { place, sequence, said, error };
        state.known.entry(mount).or_default().changes.insert(number, kept);
        state.put(place, &kept.record(&mount, number));
        state.file.is_some()
    }

    /// Bytes of a write have been stored, from `start` to `end` in its file. Where there is no room to note that, they may be written once more.
    pub(super) fn stored(&self, mount: MountId, object: u64, (mut start, mut end): (u64, u64)) {
        let state = &mut *self.state();
        let Some(of_mount) = state.known.get(&mount).filter(|_| state.file.is_some()) else { return };
        let may_add = state.pieces < PIECES_KNOWN_MAX && of_mount.pieces < PIECES_OF_MOUNT_MAX;
        let before = of_mount.writes.get(&object).cloned().unwrap_or_default();
        // One record for what hangs together: a write that is there has one.
        let touches = |piece: &Piece| piece.start <= end && start <= piece.end;
        let (touching, mut pieces): (Vec<Piece>, Vec<Piece>) = before.into_iter().partition(touches);
        for piece in &touching {
            (start, end) = (start.min(piece.start), end.max(piece.end));
        }
        let place = match touching.first() {
            Some(piece) => Some(piece.place),
            None => may_add.then(|| state.room()).flatten(),
        };
        let Some(place) = place else { return };
        let piece = Piece { place, start, end };
        pieces.push(piece);
        let of_mount = state.known.entry(mount).or_default();
        of_mount.writes.insert(object, pieces);
        (of_mount.pieces, state.pieces) =
            (of_mount.pieces + 1 - touching.len(), state.pieces + 1 - touching.len());
        state.put(place, &piece.record(&mount, object));
        touching.iter().skip(1).for_each(|piece| state.void(piece.place));
    }

    /// What has been stored of a write: begins and ends in its file.
    pub(super) fn stored_of(&self, mount: MountId, object: u64) -> Vec<(u64, u64)> {
        let state = self.state();
        let pieces = state.known.get(&mount).and_then(|of_mount| of_mount.writes.get(&object));
        pieces.into_iter().flatten().map(|piece| (piece.start, piece.end)).collect()
    }

    /// The client knows what has become of an open file's writes below `below`; of all of them if that is `None`.
    pub(super) fn settled(&self, mount: MountId, file: u64, below: Option<u32>) {
        let state = &mut *self.state();
        let Some(of_mount) = state.known.get_mut(&mount) else { return };
        let Some(last) = below.map_or(Some(u32::MAX), |below| below.checked_sub(1)) else { return };
        let over: Vec<u64> =
            of_mount.writes.range(object(file, 0)..=object(file, last)).map(|(object, _)| *object).collect();
        let pieces: Vec<Piece> =
            over.iter().filter_map(|object| of_mount.writes.remove(object)).flatten().collect();
        of_mount.pieces -= pieces.len();
        state.pieces -= pieces.len();
        pieces.iter().for_each(|piece| state.void(piece.place));
    }

    /// A mount has come back with what it has open: of other files it does not ask any more.
    pub(super) fn settled_all_but(&self, mount: MountId, is_open: impl Fn(u64) -> bool) {
        let of_files = self.state().known.get(&mount).map(|of_mount| {
            of_mount.writes.keys().map(|object| write_of(*object).0).filter(|file| !is_open(*file)).collect()
        });
        let closed: BTreeSet<u64> = of_files.unwrap_or_default();
        closed.into_iter().for_each(|file| self.settled(mount, file, None));
    }

    /// A mount has gone, and does not come again.
    pub(super) fn forget(&self, mount: &MountId) {
        let mut state = self.state();
        let gone = state.known.remove(mount).unwrap_or_default();
        state.pieces -= gone.pieces;
        let pieces = gone.writes.values().flatten().map(|piece| piece.place);
        state.free.extend(gone.changes.values().map(|kept| kept.place).chain(pieces));
    }
}

impl Begun<'_> {
    /// It has been carried out, or has failed: so much is said if it is asked for again.
    pub(super) fn end(self, outcome: Result<u64, Errno>) {
        let (said, error) = match outcome {
            Ok(said) => (said, 0),
            Err(errno) => (0, errno.raw_os_error()),
        };
        self.keep((said, error));
    }

    /// It has not been carried out.
    pub(super) fn undo(self) {
        self.keep((0, UNDONE));
    }

    fn keep(&self, how: (u64, i32)) {
        self.replies.keep(self.mount, self.slot, |kept| kept.sequence == self.slot.sequence, how);
    }
}

impl State {
    fn begin(file: File, mut header: [u8; RECORD], mounts: &BTreeSet<MountId>) -> io::Result<Self> {
        let mut state = Self { is_whole: mounts.is_empty(), count: 1, ..Self::default() };
        let (mut record, length) = ([0; RECORD], file.metadata()?.len());
        if length >= RECORD as u64 {
            file.read_exact_at(&mut record, 0)?;
        }
        if record[..NOT_WHOLE] == header[..NOT_WHOLE] {
            state.is_whole |= record[NOT_WHOLE] == 0;
            state.count = length.div_ceil(RECORD as u64).min(REPLIES_KNOWN_MAX);
        } else {
            // The machine has been started again since, and clients say of what they asked for before that it is older. Else there was no
            // such file, though there were mounts.
            state.is_whole |= record.starts_with(MAGIC);
            file.set_len(0)?;
        }
        header[NOT_WHOLE] = (!state.is_whole).into();
        file.write_all_at(&header, 0)?;
        for place in 1..state.count {
            // The last one may have been cut off.
            let is_read = file.read_exact_at(&mut record, place * RECORD as u64).is_ok();
            match read(&record, place).filter(|(mount, _)| is_read && mounts.contains(mount)) {
                Some((mount, Record::Change(slot, kept))) => state.add(mount, slot, kept),
                Some((mount, Record::Piece(object, piece))) => {
                    let of_mount = state.known.entry(mount).or_default();
                    of_mount.writes.entry(object).or_default().push(piece);
                    (of_mount.pieces, state.pieces) = (of_mount.pieces + 1, state.pieces + 1);
                }
                None => state.free.push(place),
            }
        }
        state.file = Some(file);
        Ok(state)
    }

    /// What the file says. Of a mount that was forgotten and has come again it may have more than one record of a slot.
    fn add(&mut self, mount: MountId, slot: u32, kept: Kept) {
        let slots = &mut self.known.entry(mount).or_default().changes;
        let before = slots.get(&slot).copied();
        let (newer, older) = match before {
            Some(before) if before.sequence > kept.sequence => (before, Some(kept)),
            before => (kept, before),
        };
        slots.insert(slot, newer);
        self.free.extend(older.map(|kept| kept.place));
    }

    /// Writes a record.
    fn put(&mut self, place: u64, record: &[u8; RECORD]) {
        let written = self.file.as_ref().map(|file| file.write_all_at(record, place * RECORD as u64));
        if let Some(Err(error)) = written {
            self.give_up(&error);
        }
    }

    /// What a record said is of no use any more.
    fn void(&mut self, place: u64) {
        self.put(place, &[0; RECORD]);
        self.free.push(place);
    }

    /// A record that nobody has.
    fn room(&mut self) -> Option<u64> {
        let place = self.free.pop().or((self.count < REPLIES_KNOWN_MAX).then_some(self.count))?;
        self.count = self.count.max(place + 1);
        Some(place)
    }

    /// There is a change that is not kept.
    fn not_whole(&mut self) {
        if std::mem::replace(&mut self.is_whole, false)
            && let Some(Err(error)) = self.file.as_ref().map(|file| file.write_all_at(&[1], NOT_WHOLE as u64))
        {
            self.give_up(&error);
        }
    }

    /// Nothing is kept any more, and the next server knows that.
    fn give_up(&mut self, why: &io::Error) {
        self.is_whole = false;
        let Some(file) = self.file.take() else { return };
        tracing::warn!("replies cannot be kept ({why}): after a restart some changes may be made twice");
        let told = file.set_len(0).or_else(|_| file.write_all_at(&[1], NOT_WHOLE as u64));
        if let Err(error) = told {
            tracing::warn!(%error, "nor can that be told to the next server");
        }
    }
}

fn header(boot: &str) -> [u8; RECORD] {
    let mut header = [0; RECORD];
    let text = [MAGIC, boot.as_bytes()].concat();
    let length = text.len().min(NOT_WHOLE);
    header[..length].copy_from_slice(&text[..length]);
    header
}

/// What a record says.
enum Record {
    /// Of the last change of a slot.
    Change(u32, Kept),
    /// Of an object.
    Piece(u64, Piece),
}

impl Kept {
    fn record(&self, mount: &MountId, slot: u32) -> [u8; RECORD] {
        let mut record = record(mount, self.sequence, self.said, slot);
        record[36..40].copy_from_slice(&self.error.to_le_bytes());
        record
    }
}

impl Piece {
    fn record(&self, mount: &MountId, object: u64) -> [u8; RECORD] {
        let mut record = record(mount, object, self.start, PIECE);
        record[40..48].copy_from_slice(&self.end.to_le_bytes());
        record
    }
}

fn record(mount: &MountId, one: u64, other: u64, slot: u32) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..16].copy_from_slice(mount);
    record[16..24].copy_from_slice(&one.to_le_bytes());
    record[24..32].copy_from_slice(&other.to_le_bytes());
    record[32..36].copy_from_slice(&slot.to_le_bytes());
    record
}

fn read(record: &[u8; RECORD], place: u64) -> Option<(MountId, Record)> {
    let mount = MountId::try_from(&record[..16]).ok()?;
    let long = |at: usize| Some(u64::from_le_bytes(record[at..at + 8].try_into().ok()?));
    let short = |at: usize| Some(u32::from_le_bytes(record[at..at + 4].try_into().ok()?));
    let (one, other, slot, error) = (long(16)?, long(24)?, short(32)?, short(36)?.cast_signed());
    let said = if slot == PIECE {
        let piece = Piece { place, start: other, end: long(40)? };
        (piece.start < piece.end && error == 0).then_some(Record::Piece(one, piece))
    } else {
        let kept = Kept { place, sequence: one, said: other, error };
        let is_sound = slot < SLOTS_MAX && (UNDONE..4096).contains(&error); // errors of Linux, as the kernel has them
        is_sound.then_some(Record::Change(slot, kept))
    };
    Some((mount, said?))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const ONE: MountId = [1; 16];
    const OTHER: MountId = [2; 16];
    const BOOT: &str = "9a1c6b1e-8f0a-4b0e-9a52-6a4a2f0c8a11";

    fn slot(number: u32, sequence: u64) -> Slot {
        Slot { number, sequence, again: true, rebooted: false }
    }

    fn file() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("replies");
        (dir, file)
    }

    /// Of these mounts, which have all come.
    fn begin(file: &Path, mounts: &[MountId]) -> Replies {
        begin_in(BOOT, file, mounts)
    }

    fn begin_in(boot: &str, file: &Path, mounts: &[MountId]) -> Replies {
        let replies = Replies::begin(file, boot, &mounts.iter().copied().collect());
        [ONE, OTHER].into_iter().for_each(|mount| replies.attach(mount));
        replies
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
        // One that its client has given up waiting for comes late, and another has come by its slot.
        let next = begin(&file, &[ONE, OTHER]);
        let late = next.change(ONE, slot(6, 1)).unwrap();
        next.change(ONE, slot(6, 2)).unwrap().end(Ok(2));
        late.end(Ok(1));
        assert!(next.change(ONE, slot(6, 1)).is_none());
        assert_eq!(begin(&file, &[ONE]).before(ONE, slot(6, 2)), Before::Over(Ok(2)));
        // Who does not come again is forgotten, and others have its records.
        let length = file.metadata().unwrap().len();
        let next = begin(&file, &[ONE]);
        next.change(ONE, slot(9, 1)).unwrap().end(Ok(1));
        next.forget(&ONE);
        assert!(next.change(ONE, slot(0, 9)).is_none(), "it has not come");
        next.change(OTHER, slot(0, 1)).unwrap().end(Ok(2));
        assert_eq!(next.before(OTHER, slot(0, 1)), Before::Over(Ok(2)));
        assert_eq!(next.before(ONE, slot(0, 8)), Before::Never);
        assert_eq!(file.metadata().unwrap().len(), length);
    }

    #[test]
    fn what_a_mount_did_last_counts_however_often_it_was_given_up() {
        let (_dir, file) = file();
        let server = begin(&file, &[]);
        for sequence in 1..6 {
            server.attach(ONE);
            // In another order each time.
            for number in [sequence % 2, 1 - sequence % 2] {
                server.change(ONE, slot(number as u32, sequence)).unwrap().end(Ok(sequence));
            }
            let next = begin(&file, &[ONE]);
            assert_eq!(
                [0, 1].map(|number| next.before(ONE, slot(number, sequence))),
                [Before::Over(Ok(sequence)); 2]
            );
            server.forget(&ONE);
        }
        assert_eq!(file.metadata().unwrap().len(), 3 * RECORD as u64);
    }

    #[test]
    fn of_what_no_file_tells_nobody_says_that_it_has_not_been_begun() {
        let (_dir, file) = file();
        begin(&file, &[]).change(ONE, slot(0, 1)).unwrap().end(Ok(1));
        let whole = std::fs::read(&file).unwrap();
        // The machine has been started again; and the server, while mounts have not come.
        for _ in 0..2 {
            let again = begin_in("another", &file, &[ONE]);
            assert_eq!(again.before(ONE, Slot { rebooted: true, ..slot(0, 1) }), Before::Perhaps);
            // What is asked from then on is known.
            assert_eq!(again.before(ONE, slot(0, 2)), Before::Never);
            again.change(ONE, slot(1, 2)).unwrap().end(Ok(2));
            assert_eq!(again.before(ONE, slot(1, 2)), Before::Over(Ok(2)));
        }
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
    fn the_next_server_knows_which_pieces_of_a_write_have_been_stored() {
        let (_dir, file) = file();
        let first = begin(&file, &[]);
        let write = object(7, 3);
        // A first piece, one apart, what joins them, and some of it once more; and other writes.
        for piece in [(100, 200), (300, 400), (200, 300), (150, 250), (500, 600)] {
            first.stored(ONE, write, piece);
        }
        first.stored(ONE, object(7, 4), (0, 1));
        first.stored(OTHER, write, (0, u64::MAX));
        first.change(ONE, slot(0, 1)).unwrap().end(Ok(9));
        drop(first);
        for _ in 0..2 {
            let next = begin(&file, &[ONE, OTHER]);
            let mut stored = next.stored_of(ONE, write);
            stored.sort_unstable();
            assert_eq!(stored, [(100, 400), (500, 600)]);
            assert_eq!(next.stored_of(ONE, object(7, 4)), [(0, 1)]);
            assert_eq!(next.stored_of(OTHER, write), [(0, u64::MAX)]);
            assert_eq!(next.stored_of(OTHER, object(7, 4)), []);
            assert_eq!(next.before(ONE, slot(0, 1)), Before::Over(Ok(9)));
        }
        // The client knows what became of some, and does not ask again; then of all of a file's.
        let next = begin(&file, &[ONE, OTHER]);
        next.stored(ONE, object(8, 0), (5, 6));
        next.settled(ONE, 7, Some(0));
        assert_eq!(next.stored_of(ONE, write).len(), 2);
        next.settled(ONE, 7, Some(4));
        let length = file.metadata().unwrap().len();
        for server in [next, begin(&file, &[ONE, OTHER])] {
            assert_eq!(server.stored_of(ONE, write), []);
            assert_eq!(server.stored_of(ONE, object(7, 4)), [(0, 1)]);
            assert_eq!(server.stored_of(OTHER, write), [(0, u64::MAX)]);
            server.settled(ONE, 7, None);
            assert_eq!(server.stored_of(ONE, object(7, 4)), []);
            assert_eq!(server.stored_of(ONE, object(8, 0)), [(5, 6)]);
            // Others have the records.
            server.stored(OTHER, object(1, 1), (1, 2));
            server.settled(OTHER, 1, None);
        }
        assert_eq!(file.metadata().unwrap().len(), length);
        let next = begin(&file, &[ONE, OTHER]);
        next.stored(OTHER, object(9, 0), (5, 6));
        next.settled_all_but(OTHER, |file| file == 9);
        assert_eq!(
            (next.stored_of(OTHER, write), next.stored_of(OTHER, object(9, 0))),
            (vec![], vec![(5, 6)])
        );
        assert_eq!(next.stored_of(ONE, object(8, 0)), [(5, 6)]);
        let rebooted = begin_in("another", &file, &[ONE, OTHER]);
        assert_eq!(rebooted.stored_of(OTHER, object(9, 0)), [], "it may be lost");
    }

    #[test]
    fn pieces_leave_room_for_other_changes() {
        let (_dir, file) = file();
        let server = begin(&file, &[]);
        server.stored(ONE, object(1, 0), (0, 1));
        server.state().known.get_mut(&ONE).unwrap().pieces = PIECES_OF_MOUNT_MAX;
        server.stored(ONE, object(1, 0), (1, 2)); // it has a record
        server.stored(ONE, object(1, 1), (0, 1));
        assert_eq!(server.stored_of(ONE, object(1, 0)), [(0, 2)]);
        assert_eq!(server.stored_of(ONE, object(1, 1)), []);
        server.stored(OTHER, object(1, 1), (0, 1));
        assert_eq!(server.stored_of(OTHER, object(1, 1)), [(0, 1)]);
        server.state().pieces = PIECES_KNOWN_MAX;
        server.stored(OTHER, object(1, 2), (0, 1));
        assert_eq!(server.stored_of(OTHER, object(1, 2)), []);
        server.change(OTHER, slot(0, 1)).unwrap().end(Ok(1));
        let next = begin(&file, &[ONE, OTHER]);
        assert_eq!(next.before(OTHER, slot(0, 1)), Before::Over(Ok(1)));
        assert_eq!(next.stored_of(OTHER, object(1, 1)), [(0, 1)]);
        next.forget(&OTHER);
        assert_eq!(next.state().pieces, 1);
        // Nor is anything noted of a mount that is not here, or where there is no file.
        next.stored(OTHER, object(1, 1), (0, 1));
        Replies::default().stored(ONE, object(1, 1), (0, 1));
        assert_eq!(next.stored_of(OTHER, object(1, 1)), []);
    }

    #[test]
    fn what_could_not_be_kept_is_told_to_the_next_server() {
        let (_dir, file) = file();
        let first = begin(&file, &[]);
        first.change(ONE, slot(0, 1)).unwrap().end(Ok(1));
        // There is no room.
        first.state().count = REPLIES_KNOWN_MAX;
        assert!(first.change(ONE, slot(1, 1)).is_none());
        let next = begin(&file, &[ONE]);
        let known = [0, 1].map(|number| next.before(ONE, slot(number, 1)));
        assert_eq!(known, [Before::Over(Ok(1)), Before::Perhaps]);
        // The disk does not take it.
        next.state().give_up(&io::ErrorKind::StorageFull.into());
        assert!(next.change(ONE, slot(0, 2)).is_none());
        assert_eq!(next.before(OTHER, slot(0, 1)), Before::Perhaps);
        assert_eq!(begin(&file, &[ONE]).before(ONE, slot(0, 2)), Before::Perhaps);
        // Nor is there a file.
        let none = Replies::begin(Path::new("/proc/none"), BOOT, &BTreeSet::from([ONE]));
        none.attach(ONE);
        assert!(none.change(ONE, slot(0, 1)).is_none());
        assert_eq!(none.before(ONE, slot(0, 1)), Before::Perhaps);
    }
}
