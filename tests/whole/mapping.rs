//! Files that are mapped into memory, on several mounts.
#![allow(unsafe_code)] // memory that others change is read and written byte by byte

use std::ffi::c_void;
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::mman::{MapFlags, MsFlags, ProtFlags, mmap, msync, munmap};

use crate::mounting::Mounted;
use crate::stage::process::{LIMIT, wait_for};
use crate::stage::{Need, Stage};

/// A file in memory, shared with whoever else has it there.
pub(crate) struct Mapping {
    at: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: it is memory, and used by atomic operations alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(file: &File, bytes: usize, is_written: bool) -> Self {
        let mut may = ProtFlags::PROT_READ;
        may.set(ProtFlags::PROT_WRITE, is_written);
        // SAFETY: at a place of the kernel's choosing.
        let at = unsafe { mmap(None, NonZeroUsize::new(bytes).unwrap(), may, MapFlags::MAP_SHARED, file, 0) };
        Self { at: at.unwrap(), bytes }
    }

    /// A word of eight bytes.
    fn word(&self, number: usize) -> &AtomicU64 {
        assert!((number + 1) * 8 <= self.bytes);
        // SAFETY: inside, aligned, and as long as `self`.
        unsafe { self.at.cast::<AtomicU64>().add(number).as_ref() }
    }

    pub(crate) fn get(&self, number: usize) -> u64 {
        self.word(number).load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self, number: usize, value: u64) {
        self.word(number).store(value, Ordering::SeqCst);
    }

    /// How many of its pages the kernel has.
    pub(crate) fn pages_there(&self) -> usize {
        let mut pages = vec![0_u8; self.bytes.div_ceil(4096)];
        // SAFETY: it is mapped, and there is a byte for each page.
        let known = unsafe { libc::mincore(self.at.as_ptr(), self.bytes, pages.as_mut_ptr()) };
        assert_eq!(known, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    fn sync(&self) {
        // SAFETY: it is mapped.
        unsafe { msync(self.at, self.bytes, MsFlags::MS_SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is mapped, and nobody uses it any more.
        unsafe { munmap(self.at, self.bytes) }.unwrap();
    }
}

fn open(mounted: &Mounted<'_>, writes: bool) -> File {
    File::options().read(true).write(writes).open(mounted.path("f")).unwrap()
}

fn word_at(file: &File, number: usize) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, number as u64 * 8).unwrap();
    u64::from_ne_bytes(bytes)
}

fn set_word_at(file: &File, number: usize, value: u64) {
    file.write_all_at(&value.to_ne_bytes(), number as u64 * 8).unwrap();
}

/// Of the file.
const BYTES: usize = 4 << 20;

#[test]
fn mapped_memory_shows_what_another_mount_has_written() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let _server = stage.serve();
    fs::write(stage.path("far/f"), vec![0; BYTES]).unwrap();
    let [reader, writer] = ["one", "other"].map(|name| Mounted::new(&stage, name, &[]));
    let seen = Mapping::new(&open(&reader, false), BYTES, false);
    let file = open(&writer, true);
    let places = [0, 1, BYTES / 16, BYTES / 8 - 1];
    for value in 1..20 {
        for place in places {
            set_word_at(&file, place, value);
            assert_eq!(seen.get(place), value);
        }
    }
    // Also what goes over the lanes, while all of it is in memory there.
    for value in 20..24_u64 {
        let words: Vec<u8> = std::iter::repeat_n(value.to_ne_bytes(), BYTES / 8).flatten().collect();
        file.write_all_at(&words, 0).unwrap();
        for place in (0..BYTES / 8).step_by(512) {
            assert_eq!(seen.get(place), value);
        }
    }
    // And what shortens it.
    file.set_len(4096).unwrap();
    file.set_len(BYTES as u64).unwrap();
    assert_eq!((seen.get(0), seen.get(600)), (23, 0));
    // At the server itself: a moment later.
    let at_server = File::options().write(true).open(stage.path("far/f")).unwrap();
    set_word_at(&at_server, 5, 99);
    wait_for("a change at the server to be seen", LIMIT, || (seen.get(5) == 99).then_some(()));
    drop(seen);
    drop(file);
    reader.stop_having_known(0);
    writer.stop_having_known(0);
}

#[test]
fn another_mount_reads_what_was_written_to_mapped_memory() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let _server = stage.serve();
    fs::write(stage.path("far/f"), vec![0; BYTES]).unwrap();
    let [one, other] = ["one", "other"].map(|name| Mounted::new(&stage, name, &[]));
    let memory = Mapping::new(&open(&one, true), BYTES, true);
    let [reads, writes] = [false, true].map(|writes| open(&other, writes));
    for value in 1..20 {
        memory.set(3, value);
        memory.set(BYTES / 16, value);
        assert_eq!((word_at(&reads, 3), word_at(&reads, BYTES / 16)), (value, value));
        // Neither takes the other's away.
        set_word_at(&writes, 4, value);
        assert_eq!((memory.get(4), memory.get(3)), (value, value));
    }
    memory.set(7, 7);
    memory.sync();
    assert_eq!(word_at(&File::open(stage.path("far/f")).unwrap(), 7), 7, "msync has told");
    // Much of it.
    (0..BYTES / 8).for_each(|place| memory.set(place, place as u64));
    let seen = fs::read(other.path("f")).unwrap();
    assert!((0..BYTES / 8).all(|place| seen[place * 8..][..8] == (place as u64).to_ne_bytes()));
    drop((memory, reads, writes));
    one.stop_having_known(0);
    other.stop_having_known(0);
}

/// A descriptor for appending is no reason to append pages.
#[test]
fn what_is_stored_to_mapped_memory_goes_to_its_place() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 2ms --rate 1Gbit");
    let _server = stage.serve();
    fs::write(stage.path("far/f"), vec![0; BYTES]).unwrap();
    let mounted = Mounted::new(&stage, "one", &[]);
    let file = File::options().read(true).append(true).open(mounted.path("f")).unwrap();
    let memory = Mapping::new(&file, BYTES, true);
    memory.set(3, 7);
    memory.sync();
    let at_server = File::open(stage.path("far/f")).unwrap();
    assert_eq!((word_at(&at_server, 3), at_server.metadata().unwrap().len()), (7, BYTES as u64));
    drop((memory, file));
    mounted.stop_having_known(0);
}

#[test]
fn mapped_memory_shows_what_is_written_beside_it() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 2ms --rate 1Gbit");
    let _server = stage.serve();
    fs::write(stage.path("far/f"), vec![0; BYTES]).unwrap();
    let mounted = Mounted::new(&stage, "one", &[]);
    // Each write goes to the server.
    let mut options = File::options();
    let file = options.write(true).custom_flags(OFlag::O_DSYNC.bits()).open(mounted.path("f")).unwrap();
    let seen = Mapping::new(&open(&mounted, false), BYTES, false);
    let newest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        // Somebody who loads all the while has pages filled while bytes are written.
        scope.spawn(|| {
            while newest.load(Ordering::SeqCst) < 500 {
                let (least, value) = (newest.load(Ordering::SeqCst), seen.get(3));
                assert!(value >= least, "{value} after {least}");
            }
        });
        for value in 1..=500 {
            set_word_at(&file, 3, value);
            newest.store(value, Ordering::SeqCst);
        }
    });
    drop((seen, file));
    mounted.stop_having_known(0);
}

/// Leases last 20 s at the most: then their pages are gone, though nobody could be told to give them back.
#[test]
fn mapped_memory_of_a_mount_that_is_cut_off_does_not_go_on_to_show_the_past() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit --outage 25s+60s/600s");
    let begun = Instant::now();
    let _server = stage.serve();
    fs::write(stage.path("far/f"), vec![0; BYTES]).unwrap();
    let mounted = Mounted::new(&stage, "one", &[]);
    let seen = Mapping::new(&open(&mounted, false), BYTES, false);
    assert_eq!(seen.get(5), 0);
    std::thread::sleep(Duration::from_secs(26).saturating_sub(begun.elapsed()));
    set_word_at(&File::options().write(true).open(stage.path("far/f")).unwrap(), 5, 99);
    assert_eq!(seen.get(5), 0, "it is cut off, and may go on for now");
    std::thread::sleep(Duration::from_secs(70).saturating_sub(begun.elapsed()));
    // It waits until the link is there again.
    assert_eq!(seen.get(5), 99);
    drop(seen);
    mounted.stop_having_known(0);
}

#[test]
fn two_mounts_share_memory() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let _server = stage.serve();
    fs::write(stage.path("far/f"), vec![0; BYTES]).unwrap();
    let mounts = ["one", "other"].map(|name| Mounted::new(&stage, name, &[]));
    let memory = mounts.each_ref().map(|mounted| Mapping::new(&open(mounted, true), BYTES, true));
    let begun = Instant::now();
    let rounds = 20;
    // Each answers the other, in pages of their own: what has been seen once is not unseen, and nothing is lost.
    std::thread::scope(|scope| {
        for (me, memory) in memory.iter().enumerate() {
            scope.spawn(move || {
                let (mine, theirs) = (me * 1024, (1 - me) * 1024);
                let (mut said, mut heard) = (0, 0);
                while said < rounds {
                    let seen = memory.get(theirs);
                    assert!(seen >= heard, "{seen} after {heard}");
                    assert!(begun.elapsed() < LIMIT, "{said} of {rounds}");
                    heard = seen;
                    // The first begins, the other answers.
                    if heard + 1 - me as u64 > said {
                        said += 1;
                        memory.set(mine, said);
                    }
                }
            });
        }
    });
    memory.iter().for_each(|memory| assert_eq!((memory.get(0), memory.get(1024)), (rounds, rounds)));
    drop(memory);
    mounts.into_iter().for_each(|mounted| mounted.stop_having_known(0));
}
