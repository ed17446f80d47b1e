//! The files that a session has open.

use std::collections::{BTreeMap, HashMap};
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::coherence::Change;
use super::operations::path_of;
use crate::cached::is_uncached;
use crate::direct::{DirectWrites, read_at, write_all_at};
use crate::limits::{DIRECT_BYTES_MIN, FILES_OPEN_MAX, WRITE_RANGES_MAX, WRITES_OPEN_MAX};
use crate::ranges::RangeSet;

/// An open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) fd: OwnedFd,
    pub(super) node: u64,
    /// One may write at places of one's own choosing: it is open for writing, and not for appending.
    pub(super) takes_pieces: bool,
    /// It is being changed as long as it is open for writing.
    change: Option<Arc<Change>>,
    writes: Mutex<Writes>,
    written: Condvar,
    /// The same file, to write past the page cache; `None` where that cannot be.
    direct: OnceLock<Option<OwnedFd>>,
    /// And to read so.
    direct_read: OnceLock<Option<OwnedFd>>,
    /// Bytes that were there when it was opened: these may be in the page cache.
    old_bytes: u64,
}

/// What has come of writes that travel in pieces. A piece may come twice, the second time long after its write is
/// over and another has changed the same bytes: then it must not be applied.
#[derive(Debug, Default)]
struct Writes {
    /// Those below are over.
    floor: u32,
    under_way: BTreeMap<u32, Arriving>,
}

#[derive(Debug, Default)]
struct Arriving {
    /// In the file.
    stored: RangeSet,
    /// Being stored by another thread.
    claimed: RangeSet,
    failure: Option<Errno>,
}

/// What is to be done with a piece.
enum Claim {
    Store,
    Known,
    Refused,
}

impl OpenFile {
    pub(super) fn new(fd: OwnedFd, node: u64, takes_pieces: bool, change: Option<Arc<Change>>) -> Self {
        let (writes, written) = (Mutex::default(), Condvar::new());
        let (direct, direct_read) = (OnceLock::new(), OnceLock::new());
        let old_bytes = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_size as u64);
        Self { fd, node, takes_pieces, change, writes, written, direct, direct_read, old_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, Writes> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It may be written to.
    pub(super) fn is_written(&self) -> bool {
        self.change.is_some()
    }

    /// Opens the file once more.
    fn again(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let synced = rustix::fs::fcntl_getfl(&self.fd)? & (OFlags::SYNC | OFlags::DSYNC);
        let flags = OFlags::CLOEXEC | OFlags::NOCTTY | synced | flags;
        rustix::fs::openat(CWD, path_of(&self.fd), flags, Mode::empty())
    }

    /// The file, opened so that writes go past the page cache.
    fn direct(&self) -> Option<&OwnedFd> {
        // Its user may not be allowed to do that again: then the page cache it is.
        self.direct.get_or_init(|| self.again(OFlags::WRONLY | OFlags::DIRECT).ok()).as_ref()
    }

    /// The file, opened so that reads do.
    fn direct_read(&self) -> Option<&OwnedFd> {
        self.direct_read.get_or_init(|| self.again(OFlags::RDONLY | OFlags::DIRECT).ok()).as_ref()
    }

    /// Writes. `in_place`: there, also if the file is open for appending.
    pub(super) fn write(&self, data: &[u8], offset: u64, in_place: bool) -> Result<(), Errno> {
        if in_place && rustix::fs::fcntl_getfl(&self.fd)?.contains(OFlags::APPEND) {
            // Linux appends whatever pwrite(2) says: seldom enough to open it each time.
            return write_all_at(self.again(OFlags::WRONLY)?, data, offset);
        }
        write_all_at(&self.fd, data, offset)
    }

    /// Stores a piece of write number `write`; `Some(true)`: it has been stored before. `None`: it, and the rest of that
    /// write, is not wanted.
    pub(super) fn store_piece(
        &self,
        write: u32,
        offset: u64,
        data: &[u8],
        how: &DirectWrites,
    ) -> Option<bool> {
        let end = offset.saturating_add(data.len() as u64);
        match self.claim(write, offset, end) {
            Claim::Known => return Some(true),
            Claim::Refused => return None,
            Claim::Store => {}
        }
        let is_long = data.len() >= DIRECT_BYTES_MIN && how.are_due();
        // Pages that are there would have to be written and thrown away first.
        let pays = is_long && (offset >= self.old_bytes || is_uncached(&self.fd, offset, data.len()));
        let direct = if pays { self.direct() } else { None };
        let result = how.write_at(&self.fd, direct, offset, data);
        let mut writes = self.lock();
        if let Some(arriving) = writes.under_way.get_mut(&write) {
            arriving.claimed.remove(offset, end);
            match result {
                Ok(()) => arriving.stored.insert(offset, end),
                Err(error) => arriving.failure = Some(error),
            }
        }
        drop(writes);
        self.written.notify_all();
        result.is_ok().then_some(false)
    }

    /// Nothing more of a write is taken; see [`settle`](Self::settle).
    pub(super) fn refuse(&self, write: u32, why: Errno) {
        let mut writes = self.lock();
        let is_known = writes.under_way.contains_key(&write);
        if write >= writes.floor && (is_known || writes.under_way.len() < WRITES_OPEN_MAX) {
            writes.under_way.entry(write).or_default().failure.get_or_insert(why);
        }
    }

    fn claim(&self, write: u32, start: u64, end: u64) -> Claim {
        let mut writes = self.lock();
        if !self.takes_pieces {
            return Claim::Refused;
        }
        loop {
            if write < writes.floor {
                return Claim::Known;
            }
            if writes.under_way.len() >= WRITES_OPEN_MAX && !writes.under_way.contains_key(&write) {
                return Claim::Refused;
            }
            let arriving = writes.under_way.entry(write).or_default();
            if arriving.stored.contains(start, end) {
                return Claim::Known;
            }
            if arriving.failure.is_some() || arriving.stored.count() >= WRITE_RANGES_MAX {
                return Claim::Refused;
            }
            if !arriving.claimed.overlaps(start, end) {
                arriving.claimed.insert(start, end);
                return Claim::Store;
            }
            // A copy of the piece is being stored: whether that works decides for this one, too.
            writes = self.written.wait(writes).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes below `below` are over; says what of `write` is stored, and what went wrong with it.
    pub(super) fn settle(&self, below: u32, write: Option<u32>) -> (RangeSet, Option<Errno>) {
        let mut writes = self.lock();
        let arriving = write.and_then(|write| writes.under_way.get(&write));
        let come = arriving.map(|arriving| (arriving.stored.clone(), arriving.failure)).unwrap_or_default();
        if below > writes.floor {
            writes.floor = below;
            writes.under_way = writes.under_way.split_off(&below);
        }
        drop(writes);
        self.written.notify_all();
        come
    }
}

/// A part of a file on its way to the client over the lanes.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) file: Arc<OpenFile>,
    /// Where it begins in the file.
    pub(super) offset: u64,
    /// It is read past the page cache, as far as it is not there.
    pub(super) direct: bool,
    /// Bytes that neither have arrived nor have been given up.
    pub(super) left: AtomicU64,
}

impl Sending {
    /// Fills `into` from `offset` on; false when the file has become shorter, or cannot be read.
    pub(super) fn fill(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> bool {
        let direct = if self.direct { self.file.direct_read() } else { None };
        read_at(&self.file.fd, direct, self.offset.saturating_add(offset), into).is_ok()
    }

    /// So many bytes need not be sent any more; true when these were the last.
    pub(super) fn done(&self, bytes: u64) -> bool {
        self.left.fetch_sub(bytes, Ordering::SeqCst) == bytes
    }
}

/// All of them, by number.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    table: Mutex<HashMap<u64, Arc<OpenFile>>>,
}

impl OpenFiles {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<OpenFile>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By a number of the client's; true: it was not open under it already, by a request that is asked once more.
    pub(super) fn add(&self, number: u64, file: OpenFile) -> Result<bool, Errno> {
        // The upper half of an object's number on the lanes: see `object`.
        if number == 0 || number > u64::from(u32::MAX) {
            return Err(Errno::INVAL);
        }
        let mut table = self.lock();
        if let Some(known) = table.get(&number) {
            return if known.node == file.node { Ok(false) } else { Err(Errno::INVAL) };
        }
        if table.len() >= FILES_OPEN_MAX {
            return Err(Errno::NFILE);
        }
        table.insert(number, Arc::new(file));
        Ok(true)
    }

    pub(super) fn get(&self, number: u64) -> Result<Arc<OpenFile>, Errno> {
        self.lock().get(&number).cloned().ok_or(Errno::BADF)
    }

    /// Whether a node is open for writing.
    pub(super) fn is_written(&self, node: u64) -> bool {
        self.lock().values().any(|file| file.node == node && file.is_written())
    }

    pub(super) fn remove(&self, number: u64) -> Result<Arc<OpenFile>, Errno> {
        self.lock().remove(&number).ok_or(Errno::BADF)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn open_file(takes_pieces: bool) -> (OpenFile, std::fs::File) {
        let file = tempfile::tempfile().unwrap();
        let fd = file.try_clone().unwrap().into();
        (OpenFile::new(fd, 7, takes_pieces, None), file)
    }

    fn buffered() -> DirectWrites {
        DirectWrites::fixed(false)
    }

    fn bytes(file: &std::fs::File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn a_piece_that_comes_again_does_not_undo_a_later_write() {
        let (open, file) = open_file(true);
        assert!(open.store_piece(0, 0, b"old", &buffered()).is_some());
        assert!(open.store_piece(1, 0, b"new", &buffered()).is_some());
        assert!(
            open.store_piece(0, 0, b"old", &buffered()).is_some(),
            "it has been stored: the sender is told so"
        );
        assert_eq!(bytes(&file), b"new");
        // Another part of it is still due.
        assert!(open.store_piece(0, 3, b"er", &buffered()).is_some());
        assert_eq!(bytes(&file), b"newer");
        assert_eq!(open.settle(2, Some(0)), (RangeSet::up_to(5), None));
        assert!(open.store_piece(1, 0, b"xxx", &buffered()).is_some());
        assert_eq!(bytes(&file), b"newer", "what the client knows to be over is not applied");
    }

    /// Where the file system of the tests' scratch files can do that, past the page cache; else they come by the other way.
    #[test]
    fn pieces_past_the_page_cache_are_the_same_bytes() {
        let (open, file) = open_file(true);
        let direct = DirectWrites::fixed(true);
        let whole: Vec<u8> = (0..3 * DIRECT_BYTES_MIN + 1000).map(|at| (at % 251) as u8).collect();
        let cuts = [0, DIRECT_BYTES_MIN, 2 * DIRECT_BYTES_MIN + 7, whole.len()];
        // The page cache has something of it, too.
        assert_eq!(open.store_piece(0, 0, &vec![1; 3 * DIRECT_BYTES_MIN], &buffered()), Some(false));
        for (number, cut) in cuts.windows(2).enumerate().rev() {
            let stored = open.store_piece(number as u32 + 1, cut[0] as u64, &whole[cut[0]..cut[1]], &direct);
            assert_eq!(stored, Some(false));
        }
        assert_eq!(bytes(&file), whole);
        // Over bytes that were there: in the page cache, and not any more.
        for number in 1..3 {
            let open = OpenFile::new(file.try_clone().unwrap().into(), 7, true, None);
            let data = vec![number as u8; DIRECT_BYTES_MIN + 5];
            assert_eq!(open.store_piece(number, 4096, &data, &direct), Some(false));
            let expected = [&whole[..4096], &data, &whole[4096 + data.len()..]].concat();
            assert!(bytes(&file) == expected, "{number}");
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }

    #[test]
    fn a_write_that_fails_says_why() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let open = OpenFile::new(full.into(), 7, true, None);
        assert_eq!(open.store_piece(3, 0, b"x", &buffered()), None);
        assert_eq!(open.store_piece(3, 5, b"x", &buffered()), None, "the rest is not wanted");
        assert_eq!(open.settle(0, Some(3)).1, Some(Errno::NOSPC));
        assert_eq!(open.settle(4, Some(3)).1, Some(Errno::NOSPC));
        assert_eq!(open.settle(4, Some(3)).1, None);
    }

    #[test]
    fn what_was_stored_before_a_write_failed_stays_known() {
        let (open, file) = open_file(true);
        assert_eq!(open.store_piece(1, 10, b"first", &buffered()), Some(false));
        open.refuse(1, Errno::AGAIN);
        assert_eq!(open.store_piece(1, 15, b"second", &buffered()), None);
        assert_eq!(open.store_piece(1, 10, b"first", &buffered()), Some(true), "it is there");
        let (stored, failure) = open.settle(0, Some(1));
        assert_eq!((stored.iter().collect::<Vec<_>>(), failure), (vec![(10, 15)], Some(Errno::AGAIN)));
        assert_eq!(&bytes(&file)[10..], b"first");
    }

    #[test]
    fn pieces_go_only_where_places_are_the_client_s() {
        let (open, _) = open_file(false);
        assert_eq!(open.store_piece(0, 0, b"x", &buffered()), None);
    }

    #[test]
    fn writes_under_way_are_bounded() {
        let (open, _) = open_file(true);
        for write in 0..WRITES_OPEN_MAX as u32 {
            assert!(open.store_piece(write, 0, b"x", &buffered()).is_some());
        }
        assert_eq!(open.store_piece(u32::MAX, 0, b"x", &buffered()), None);
        open.settle(1, None);
        assert!(open.store_piece(u32::MAX, 0, b"x", &buffered()).is_some());
    }

    #[test]
    fn copies_of_a_piece_that_come_at_once_are_stored_once() {
        let (open, file) = open_file(true);
        let data = vec![1; 1 << 20];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for write in 0..20 {
                        assert!(open.store_piece(write, 0, &data, &buffered()).is_some());
                        // Over for whoever has been told that it is stored: then this is the newest.
                        file.write_all_at(&[2], write.into()).unwrap();
                    }
                });
            }
        });
        assert_eq!(bytes(&file)[19], 2, "nobody was still storing");
    }
}
