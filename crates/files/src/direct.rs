//! How many bytes reach the disk, and come from it: past the page cache where that is better, else through it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use longhaul_transport::limits::{ALIGNMENT, FRAME_PAYLOAD_MAX};
use rustix::io::Errno;

use crate::Dir;
use crate::cached::is_uncached;
use crate::dir::is_on_local_disk;
use crate::lease::FileId;
use crate::limits::{
    DIRECT_READ_FILE_MIN, DIRECT_READS_KNOWN_MAX, ROOM_LOOK_INTERVAL, THROTTLED_REST, THROTTLED_WRITE_MIN,
};

/// Whether writes past the page cache are best here. They spare the memory, and most of the processor's part; but a
/// disk with heads needs the kernel to put writes in order, which come interleaved from many lanes.
#[derive(Debug)]
pub struct DirectWrites {
    best: AtomicBool,
    /// Decide by what is seen.
    by_sight: bool,
    bytes: AtomicU64,
    took_ns: AtomicU64,
    /// As long as the page cache has that, they are not due.
    room: Option<Room>,
}

/// Slower than so many nanoseconds a byte (30 MB/s for each thread), over [`SIGHT_BYTES`], is a disk that seeks: between
/// two writes of 1 MiB it moves its heads for 10 ms, while each of the other threads waits for it.
const SEEKING_NS_PER_BYTE: u64 = 32;

/// So many that a disk or a processor that is held up for a tenth of a second does not pass for a disk that seeks.
const SIGHT_BYTES: u64 = 128 << 20;

impl DirectWrites {
    /// They are, or are not.
    #[must_use]
    pub fn fixed(best: bool) -> Self {
        Self { by_sight: false, ..Self::if_local(best) }
    }

    /// They may be below `base`, as far as that shows.
    #[must_use]
    pub fn below(base: &Dir) -> Self {
        Self::if_local(is_on_local_disk(base))
    }

    /// As [`below`](Self::below), for bytes that nobody waits to have on the disk: they go through the page cache as long as the
    /// kernel keeps them there anyway.
    #[must_use]
    pub fn for_lack_of_room(base: &Dir) -> Self {
        Self { room: Some(Room::default()), ..Self::below(base) }
    }

    fn if_local(best: bool) -> Self {
        Self {
            best: AtomicBool::new(best),
            by_sight: true,
            bytes: AtomicU64::new(0),
            took_ns: AtomicU64::new(0),
            room: None,
        }
    }

    /// Whether files should be opened for them.
    #[must_use]
    pub fn are_best(&self) -> bool {
        self.best.load(Ordering::Relaxed)
    }

    /// Whether the next bytes should be written so: they are best here, and the page cache has no room.
    #[must_use]
    pub fn are_due(&self) -> bool {
        self.are_best() && !self.room.as_ref().is_some_and(|room| room.is_there(Instant::now()))
    }

    /// Writes all of `data`: what is aligned past the page cache where that is open, the rest through it.
    ///
    /// # Errors
    /// As pwrite(2).
    pub fn write_at(
        &self,
        buffered: impl AsFd,
        direct: Option<impl AsFd>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Errno> {
        let began = Instant::now();
        let Some(direct) = direct.filter(|_| offset.is_multiple_of(ALIGNMENT as u64)) else {
            write_all_at(buffered, data, offset)?;
            if let Some(room) = &self.room {
                room.note(began, began.elapsed());
            }
            return Ok(());
        };
        let (straight, rest) = data.split_at(data.len() / ALIGNMENT * ALIGNMENT);
        match write_all_at(direct, straight, offset) {
            // A file system that opens files so and then wants a larger alignment.
            Err(Errno::INVAL) => write_all_at(&buffered, straight, offset)?,
            written => written?,
        }
        write_all_at(buffered, rest, offset + straight.len() as u64)?;
        self.note(data.len(), began.elapsed());
        Ok(())
    }

    fn note(&self, bytes: usize, took: Duration) {
        if !self.by_sight {
            return;
        }
        let took = self.took_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed) + took.as_nanos() as u64;
        let bytes = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if bytes >= SIGHT_BYTES {
            if took / bytes > SEEKING_NS_PER_BYTE && self.best.swap(false, Ordering::Relaxed) {
                tracing::info!("the disk is slow past the page cache: writing through it");
            }
            self.bytes.store(0, Ordering::Relaxed);
            self.took_ns.store(0, Ordering::Relaxed);
        }
    }
}

/// Room for dirty bytes in the page cache. The kernel begins to write to the disk when there are more than its
/// `dirty_background` limit (Linux, admin-guide/sysctl/vm), or after half a minute: until then they cost a copy, and no work
/// of the disk's while others come over the link. Beyond half of that limit each byte that comes has the disk write
/// one, and the copy is in vain.
#[derive(Debug, Default)]
struct Room(Mutex<Looked>);

#[derive(Debug, Default)]
struct Looked {
    /// Until then `is_there` is taken for true.
    good_until: Option<Instant>,
    is_there: bool,
}

impl Room {
    fn is_there(&self, now: Instant) -> bool {
        let mut looked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.good_until.is_none_or(|until| until <= now) {
            let words = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
            looked.is_there = has_room(&words).unwrap_or(false);
            looked.good_until = Some(now + ROOM_LOOK_INTERVAL);
        }
        looked.is_there
    }

    /// A write through the page cache `took` so long: a limit that counts elsewhere (of a control group, of a slow disk) may
    /// hold up writers before the one of the whole machine does.
    fn note(&self, now: Instant, took: Duration) {
        if took < THROTTLED_WRITE_MIN {
            return;
        }
        let mut looked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *looked = Looked { good_until: Some(now + took + THROTTLED_REST), is_there: false };
    }
}

/// What /proc/vmstat says of room; `None`: nothing.
fn has_room(vmstat: &str) -> Option<bool> {
    let pages = |name: &str| -> Option<u64> {
        vmstat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    };
    let dirty = pages("nr_dirty")?.saturating_add(pages("nr_writeback")?);
    Some(dirty < pages("nr_dirty_background_threshold")? / 2)
}

/// As pwrite(2), all of it.
///
/// # Errors
/// As that.
pub fn write_all_at(fd: impl AsFd, mut data: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !data.is_empty() {
        match rustix::io::pwrite(&fd, data, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                data = &data[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Which reads go past the page cache: the first of a long file's bytes. Most long files are read once, and their pages
/// would take the place of others; who reads bytes a second time has them kept for the third.
#[derive(Debug, Default)]
pub struct DirectReads {
    /// Of files, how many bytes have been asked for.
    asked: Mutex<HashMap<FileId, u64>>,
}

impl DirectReads {
    /// `bytes` of a file of `size` are asked for: whether for the first time.
    #[must_use]
    pub fn are_best(&self, file: FileId, size: u64, bytes: u64) -> bool {
        if size < DIRECT_READ_FILE_MIN {
            return false;
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.len() >= DIRECT_READS_KNOWN_MAX && !asked.contains_key(&file) {
            asked.clear(); // what is read now, begins anew
        }
        let asked = asked.entry(file).or_default();
        *asked = asked.saturating_add(bytes);
        *asked <= size
    }
}

/// Fills all of `into` from `offset` on: past the page cache where `direct` is open for that and none of the bytes are there.
///
/// # Errors
/// As preadv(2); [`UnexpectedEof`](io::ErrorKind::UnexpectedEof): the file is shorter.
pub fn read_at(
    buffered: impl AsFd,
    direct: Option<impl AsFd>,
    offset: u64,
    into: &mut [IoSliceMut<'_>],
) -> io::Result<()> {
    let length: usize = into.iter().map(|part| part.len()).sum();
    let fits = length <= FRAME_PAYLOAD_MAX && offset.is_multiple_of(ALIGNMENT as u64);
    if let Some(direct) = direct.filter(|_| fits)
        && is_uncached(&buffered, offset, length)
        && read_direct(direct, offset, length, into).is_ok()
    {
        return Ok(());
    }
    read_all_at(buffered, into, offset)
}

/// By way of memory that is fit for it, as `into` lies anyhow.
fn read_direct(fd: impl AsFd, offset: u64, length: usize, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
    thread_local! {
        static MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    MEMORY.with_borrow_mut(|memory| {
        memory.resize(FRAME_PAYLOAD_MAX + ALIGNMENT, 0);
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        let memory = &mut memory[start..start + length.next_multiple_of(ALIGNMENT)];
        // Less comes at the end of the file, else seldom: then the page cache it is.
        if rustix::io::pread(fd, &mut *memory, offset)? < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = &memory[..length];
        for part in into {
            let (here, later) = rest.split_at(part.len());
            part.copy_from_slice(here);
            rest = later;
        }
        Ok(())
    })
}

/// As preadv(2), all of it.
///
/// # Errors
/// As that; [`UnexpectedEof`](io::ErrorKind::UnexpectedEof): the file is shorter.
pub fn read_all_at(fd: impl AsFd, mut into: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
    while !into.is_empty() {
        match rustix::io::preadv(&fd, into, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                offset += read as u64;
                IoSliceMut::advance_slices(&mut into, read);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn bytes_are_the_same_past_the_page_cache_and_through_it() {
        let mut file = tempfile::NamedTempFile::new_in(".").unwrap();
        let bytes: Vec<u8> = (0..FRAME_PAYLOAD_MAX + 5000).map(|at| (at * 31 % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        file.as_file().sync_all().unwrap();
        let direct = rustix::fs::open(file.path(), OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).ok();
        let forget = || rustix::fs::fadvise(file.as_file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
        for (offset, length) in
            [(0, 100), (4096, FRAME_PAYLOAD_MAX), (4096, 20_000), (7, 100), (FRAME_PAYLOAD_MAX, 5000)]
        {
            forget();
            let mut parts = [vec![0; length / 3], vec![0; length - length / 3]];
            let mut into: Vec<_> = parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
            read_at(file.as_file(), direct.as_ref(), offset as u64, &mut into).unwrap();
            assert!(parts.concat() == bytes[offset..offset + length], "{offset} {length}");
        }
        let mut part = [0; 2];
        let past = read_at(
            file.as_file(),
            direct.as_ref(),
            bytes.len() as u64 - 1,
            &mut [IoSliceMut::new(&mut part)],
        );
        assert_eq!(past.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn the_page_cache_has_room_below_half_of_what_the_kernel_keeps() {
        let words = |dirty: u64, writeback: u64| {
            format!(
                "nr_dirty {dirty}\nnr_writeback {writeback}\nnr_writeback_temp 9999\nnr_dirty_threshold 4000\nnr_dirty_background_threshold 2000\n"
            )
        };
        assert_eq!(has_room(&words(600, 399)), Some(true));
        assert_eq!(has_room(&words(600, 400)), Some(false));
        assert_eq!(has_room("nr_dirty 1\nnr_writeback x\nnr_dirty_background_threshold 2000\n"), None);
        assert_eq!(has_room(""), None);
        let this_kernel = std::fs::read_to_string("/proc/vmstat").unwrap();
        assert!(has_room(&this_kernel).is_some(), "{this_kernel}");
    }

    /// It was looked for room just now, and will not be for an hour.
    fn looked(now: Instant, is_there: bool) -> Room {
        Room(Mutex::new(Looked { good_until: Some(now + Duration::from_secs(3600)), is_there }))
    }

    #[test]
    fn a_write_that_was_held_up_says_that_there_is_no_room() {
        let now = Instant::now();
        let room = looked(now, true);
        room.note(now, THROTTLED_WRITE_MIN / 2);
        assert!(room.is_there(now));
        room.note(now, THROTTLED_WRITE_MIN);
        assert!(!room.is_there(now + THROTTLED_REST));
        let until = room.0.lock().unwrap().good_until;
        assert_eq!(until, Some(now + THROTTLED_WRITE_MIN + THROTTLED_REST), "then it looks again");
    }

    #[test]
    fn without_room_writes_go_past_the_page_cache() {
        let now = Instant::now();
        let with =
            |best, is_there| DirectWrites { room: Some(looked(now, is_there)), ..DirectWrites::fixed(best) };
        assert!(with(true, false).are_due());
        assert!(!with(true, true).are_due() && with(true, true).are_best());
        assert!(DirectWrites::fixed(true).are_due());
        assert!(!with(false, false).are_due());
    }

    #[test]
    fn long_files_are_read_past_the_page_cache_once() {
        let (reads, size) = (DirectReads::default(), DIRECT_READ_FILE_MIN);
        let file = |inode| FileId { device: 1, inode, born: 0 };
        assert!(!reads.are_best(file(1), size - 1, 1));
        assert!((0..4).all(|_| reads.are_best(file(1), size, size / 4)));
        assert!(!reads.are_best(file(1), size, 1));
        assert!((2..2 * DIRECT_READS_KNOWN_MAX as u64).all(|inode| reads.are_best(file(inode), size, size)));
        assert!(reads.asked.lock().unwrap().len() <= DIRECT_READS_KNOWN_MAX);
    }
}
