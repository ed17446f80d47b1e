//! How fast a disk takes bytes and gives them back, sequentially.
//!
//! In a directory, a file without a name is written for a while, brought to the disk, and read again, past the page cache. Time and bytes
//! are bounded. Nobody else can open the file, and it is gone when it is closed, also where the program is killed. Who copies a file to
//! see what that takes gets one with a name, and removes it. Nothing here knows of networks.
#![allow(unsafe_code)] // sync_file_range, which rustix lacks

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use longhaul_transport::limits::ALIGNMENT;
use rustix::fs::{Advice, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::limits::{DISK_BYTES_MAX, DISK_CALL_BYTES, DISK_CALLS_BEHIND, DISK_FREE_SHARE};
use crate::memory::Memory;

/// What a disk did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Until all of it was on the disk.
    pub write: Moved,
    /// What had been written, or as much of it as the time allowed.
    pub read: Moved,
    /// Past the page cache; else through it, with the disk waited for.
    pub direct: bool,
}

/// Bytes in a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// How many.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Moved {
    /// Mbit/s.
    #[must_use]
    pub fn mbps(&self) -> f64 {
        self.bytes as f64 * 8e-6 / self.seconds.max(1e-9)
    }
}

/// Why a disk was not measured.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The directory, or the disk.
    #[error("{}", in_words(.0))]
    Io(#[from] io::Error),
    /// A part of what is free would be too little.
    #[error(
        "only {} MiB are free there, of which a measurement takes one in {DISK_FREE_SHARE} at the most; it needs {} MiB",
        .0 >> 20,
        DISK_CALL_BYTES >> 20
    )]
    TooSmall(u64),
    /// Nobody wants to know any more.
    #[error("the measurement was ended")]
    Ended,
}

impl From<Errno> for DiskError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// What a system call on a directory or a file in it means for whoever wants the disk measured.
#[must_use]
pub fn in_words(error: &io::Error) -> String {
    let words = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => "there is no such directory",
        Some(Errno::NOTDIR) => "it is not a directory",
        Some(Errno::ACCESS | Errno::PERM) => "no right to write there",
        Some(Errno::ROFS) => "the file system is read-only",
        Some(Errno::NOSPC) => "the file system is full",
        Some(Errno::DQUOT) => "the quota there is used up",
        Some(Errno::FBIG) => "files may not be so large there",
        Some(Errno::IO) => "the disk has an error (EIO)",
        _ => return error.to_string(),
    };
    words.to_owned()
}

/// Measures the disk below `dir`, for `time` each of writing and reading; a call that has begun is waited for. `is_wanted` is asked
/// between calls.
///
/// # Errors
/// [`DiskError`].
pub fn measure(dir: impl AsFd, time: Duration, is_wanted: &dyn Fn() -> bool) -> Result<Measured, DiskError> {
    // Who may not write there is told so, whatever is free.
    let mut scratch = Scratch::in_dir(&dir)?;
    let free = free_bytes(&dir)?;
    let calls = (free / DISK_FREE_SHARE).min(DISK_BYTES_MAX) / DISK_CALL_BYTES as u64;
    if calls == 0 {
        return Err(DiskError::TooSmall(free));
    }
    let mut memory = Memory::random(DISK_CALL_BYTES)?;
    let limits = Limits { calls, time, is_wanted };
    let write = scratch.write_somehow(&mut memory, &limits)?;
    let calls = write.bytes / DISK_CALL_BYTES as u64;
    let read = scratch.read(&mut memory, &Limits { calls, ..limits })?;
    Ok(Measured { write, read, direct: scratch.direct })
}

/// Makes a file in `dir`, of `bytes` that no disk can make fewer. When this returns it is on the disk, and not in the page cache, where the
/// file system can do without. `is_wanted` is asked between calls; whatever goes wrong, what is there of the file stays.
///
/// # Errors
/// [`DiskError`]; of a name that is there already, too.
pub fn fill(
    dir: impl AsFd,
    name: impl rustix::path::Arg,
    bytes: u64,
    is_wanted: &dyn Fn() -> bool,
) -> Result<(), DiskError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(0o600))?;
    let mut scratch = Scratch::of(file)?;
    let calls = bytes.div_ceil(DISK_CALL_BYTES as u64);
    let limits = Limits { calls, time: Duration::MAX, is_wanted };
    scratch.write_somehow(&mut Memory::random(DISK_CALL_BYTES)?, &limits)?;
    rustix::fs::ftruncate(&scratch.file, bytes)?;
    rustix::fs::fsync(&scratch.file)?;
    rustix::fs::fadvise(&scratch.file, 0, None, Advice::DontNeed)?;
    Ok(())
}

/// Bytes that are free in the file system of `dir`, for those without privileges.
///
/// # Errors
/// As fstatvfs(3).
pub fn free_bytes(dir: impl AsFd) -> Result<u64, DiskError> {
    let free = rustix::fs::fstatvfs(dir)?;
    Ok(free.f_bavail.saturating_mul(free.f_frsize))
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

/// How far it goes.
struct Limits<'a> {
    calls: u64,
    time: Duration,
    is_wanted: &'a dyn Fn() -> bool,
}

impl Limits<'_> {
    /// Whether another call follows those that have been made; the first does.
    fn allow(&self, made: u64, began: Instant) -> Result<bool, DiskError> {
        if !(self.is_wanted)() {
            return Err(DiskError::Ended);
        }
        Ok(made == 0 || (made < self.calls && began.elapsed() < self.time))
    }
}

/// Each page gets the number of its call, so that none has what another had.
fn number(memory: &mut Memory, call: u64) {
    for page in memory.chunks_exact_mut(ALIGNMENT) {
        page[..8].copy_from_slice(&call.to_le_bytes());
    }
}

/// A file that is written and read to see how fast that is.
struct Scratch {
    file: OwnedFd,
    direct: bool,
}

impl Scratch {
    /// Without a name.
    fn in_dir(dir: impl AsFd) -> Result<Self, Errno> {
        Self::of(nameless(dir)?)
    }

    fn of(file: OwnedFd) -> Result<Self, Errno> {
        let mut scratch = Self { file, direct: false };
        match scratch.set_direct(true) {
            // This file system has no way past the page cache.
            Ok(()) | Err(Errno::INVAL) => Ok(scratch),
            Err(error) => Err(error),
        }
    }

    /// Not at opening: a file that cannot be opened so may have been made all the same.
    fn set_direct(&mut self, direct: bool) -> Result<(), Errno> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?.difference(OFlags::DIRECT);
        let more = if direct { OFlags::DIRECT } else { OFlags::empty() };
        rustix::fs::fcntl_setfl(&self.file, flags | more)?;
        self.direct = direct;
        Ok(())
    }

    /// Past the page cache where that can be done, else through it.
    fn write_somehow(&mut self, memory: &mut Memory, limits: &Limits<'_>) -> Result<Moved, DiskError> {
        match self.write(memory, limits) {
            // It takes files past the page cache, and then does not, or wants a larger alignment.
            Err(DiskError::Io(error)) if self.direct && is_invalid(&error) => {
                self.set_direct(false)?;
                self.write(memory, limits)
            }
            written => written,
        }
    }

    fn write(&self, memory: &mut Memory, limits: &Limits<'_>) -> Result<Moved, DiskError> {
        let (began, mut made) = (Instant::now(), 0);
        while limits.allow(made, began)? {
            number(memory, made);
            let (mut rest, mut offset) = (&memory[..], made * DISK_CALL_BYTES as u64);
            while !rest.is_empty() {
                match rustix::io::pwrite(&self.file, rest, offset) {
                    Ok(0) => return Err(Errno::IO.into()),
                    Ok(written) => (rest, offset) = (&rest[written..], offset + written as u64),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if !self.direct {
                self.push_out(made);
            }
            made += 1;
        }
        rustix::fs::fdatasync(&self.file)?;
        Ok(Moved { bytes: made * DISK_CALL_BYTES as u64, seconds: began.elapsed().as_secs_f64() })
    }

    /// Has the kernel begin to write what a call has left in the page cache, and waits for what the calls before have: memory must not
    /// take for the disk what the time ends in.
    fn push_out(&self, call: u64) {
        let range = |call: u64, flags| {
            let (offset, length) = ((call * DISK_CALL_BYTES as u64).cast_signed(), DISK_CALL_BYTES as i64);
            // SAFETY: the file is open, and no memory is passed.
            unsafe { libc::sync_file_range(self.file.as_raw_fd(), offset, length, flags) };
        };
        // What goes wrong, fdatasync says as well.
        range(call, libc::SYNC_FILE_RANGE_WRITE);
        if let Some(before) = call.checked_sub(DISK_CALLS_BEHIND) {
            range(
                before,
                libc::SYNC_FILE_RANGE_WAIT_BEFORE
                    | libc::SYNC_FILE_RANGE_WRITE
                    | libc::SYNC_FILE_RANGE_WAIT_AFTER,
            );
        }
    }

    fn read(&self, memory: &mut Memory, limits: &Limits<'_>) -> Result<Moved, DiskError> {
        if !self.direct {
            rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)?;
        }
        let (began, mut made) = (Instant::now(), 0);
        while limits.allow(made, began)? {
            let (mut rest, mut offset) = (&mut memory[..], made * DISK_CALL_BYTES as u64);
            while !rest.is_empty() {
                match rustix::io::pread(&self.file, &mut *rest, offset) {
                    Ok(0) => return Err(Errno::IO.into()),
                    Ok(read) => (rest, offset) = (&mut rest[read..], offset + read as u64),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            made += 1;
        }
        Ok(Moved { bytes: made * DISK_CALL_BYTES as u64, seconds: began.elapsed().as_secs_f64() })
    }
}

/// Makes a file in `dir` that has no name, or none any more.
fn nameless(dir: impl AsFd) -> Result<OwnedFd, Errno> {
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o600));
    match rustix::fs::openat(&dir, ".", flags | OFlags::TMPFILE, mode) {
        // The file system has no such files, or the kernel does not know them.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => unnamed_at_once(dir, flags, mode),
        opened => opened,
    }
}

fn unnamed_at_once(dir: impl AsFd, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let mut number = [0; 16];
    if getrandom(&mut number[..], GetRandomFlags::empty())? < number.len() {
        return Err(Errno::IO);
    }
    let name = format!(".longhaul-probe-{:032x}", u128::from_ne_bytes(number));
    let file =
        rustix::fs::openat(&dir, &name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)?;
    rustix::fs::unlinkat(&dir, &name, AtFlags::empty())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::File;

    use super::*;

    fn measured(dir: &std::path::Path, time_ms: u64) -> Result<Measured, DiskError> {
        measure(File::open(dir).unwrap(), Duration::from_millis(time_ms), &|| true)
    }

    fn is_empty(dir: &std::path::Path) -> bool {
        std::fs::read_dir(dir).unwrap().next().is_none()
    }

    #[test]
    fn a_disk_is_written_and_read_and_nothing_is_left() {
        // On the disk of the build: /tmp may be memory.
        let temp = tempfile::tempdir_in(".").unwrap();
        let found = measured(temp.path(), 50).unwrap();
        for moved in [found.write, found.read] {
            assert!(moved.bytes >= DISK_CALL_BYTES as u64 && moved.bytes % DISK_CALL_BYTES as u64 == 0);
            assert!(moved.seconds > 0.0 && moved.mbps() > 0.0, "{found:?}");
        }
        assert!(found.read.bytes <= found.write.bytes);
        assert!(is_empty(temp.path()));
    }

    #[test]
    fn a_file_to_be_copied_has_its_size_and_no_byte_in_memory() {
        let temp = tempfile::tempdir_in(".").unwrap();
        let dir = File::open(temp.path()).unwrap();
        let bytes = DISK_CALL_BYTES as u64 + (3 << 20);
        fill(&dir, "f", bytes, &|| true).unwrap();
        let written = std::fs::read(temp.path().join("f")).unwrap();
        assert_eq!(written.len() as u64, bytes);
        // Neither holes nor anything that comes again.
        let mut pages: Vec<&[u8]> = written.chunks(ALIGNMENT).collect();
        pages.sort_unstable();
        assert!(pages.windows(2).all(|two| two[0] != two[1]));
        let again = fill(&dir, "f", bytes, &|| true);
        assert!(again.is_err(), "what is there already is left alone");
        assert!(matches!(fill(&dir, "g", bytes, &|| false), Err(DiskError::Ended)));
        assert!(free_bytes(&dir).unwrap() > 0);
    }

    #[test]
    fn through_the_page_cache_it_is_the_disk_as_well() {
        let temp = tempfile::tempdir_in(".").unwrap();
        let dir = File::open(temp.path()).unwrap();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = unnamed_at_once(&dir, flags, Mode::from_raw_mode(0o600)).unwrap();
        assert!(is_empty(temp.path()), "its name is gone as soon as it is open");
        let scratch = Scratch { file, direct: false };
        let mut memory = Memory::random(DISK_CALL_BYTES).unwrap();
        let limits = Limits { calls: 5, time: Duration::from_secs(60), is_wanted: &|| true };
        let bytes = 5 * DISK_CALL_BYTES as u64;
        assert_eq!(scratch.write(&mut memory, &limits).unwrap().bytes, bytes);
        assert_eq!(scratch.read(&mut memory, &limits).unwrap().bytes, bytes);
        // What was read last is what was written last.
        assert_eq!(memory[..8], 4u64.to_le_bytes());
    }

    #[test]
    fn it_ends_when_nobody_wants_it_any_more() {
        let temp = tempfile::tempdir_in(".").unwrap();
        let asked = Cell::new(0);
        let is_wanted = || {
            asked.set(asked.get() + 1);
            asked.get() < 3
        };
        let ended = measure(File::open(temp.path()).unwrap(), Duration::from_secs(3600), &is_wanted);
        assert!(matches!(ended, Err(DiskError::Ended)), "{ended:?}");
        assert!(asked.get() == 3 && is_empty(temp.path()));
    }

    #[test]
    fn pages_of_different_calls_differ() {
        let mut memory = Memory::random(DISK_CALL_BYTES).unwrap();
        number(&mut memory, 1);
        let one = memory.to_vec();
        number(&mut memory, 2);
        assert!(one.chunks(ALIGNMENT).zip(memory.chunks(ALIGNMENT)).all(|(one, other)| one != other));
        assert!(one.iter().filter(|byte| **byte == 0).count() < one.len() / 100);
    }

    /// A file system of memory, which only this thread and what it starts can see.
    fn with_small_disk(size: &str, more: nix::mount::MsFlags, job: impl FnOnce(&std::path::Path) + Send) {
        use nix::mount::{MsFlags, mount};
        use nix::sched::{CloneFlags, unshare};
        let temp = tempfile::tempdir_in(".").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS).unwrap();
                let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
                mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
                let options = format!("size={size}");
                mount(Some("tmpfs"), temp.path(), Some("tmpfs"), more, Some(options.as_str())).unwrap();
                job(temp.path());
            });
        });
    }

    #[test]
    fn a_tenth_of_what_is_free_is_the_most() {
        if !is_root("a_tenth_of_what_is_free_is_the_most") {
            return;
        }
        with_small_disk("100M", nix::mount::MsFlags::empty(), |disk| {
            assert_eq!(measured(disk, 3_600_000).unwrap().write.bytes, 2 * DISK_CALL_BYTES as u64);
        });
        with_small_disk("30M", nix::mount::MsFlags::empty(), |disk| {
            let error = measured(disk, 50).unwrap_err().to_string();
            assert!(error.starts_with("only 30 MiB are free there"), "{error}");
        });
        with_small_disk("30M", nix::mount::MsFlags::MS_RDONLY, |disk| {
            assert_eq!(measured(disk, 50).unwrap_err().to_string(), "the file system is read-only");
        });
    }

    #[test]
    fn a_disk_that_is_full_after_all_says_so() {
        if !is_root("a_disk_that_is_full_after_all_says_so") {
            return;
        }
        with_small_disk("10M", nix::mount::MsFlags::empty(), |disk| {
            let scratch = Scratch::in_dir(File::open(disk).unwrap()).unwrap();
            let limits = Limits { calls: 5, time: Duration::from_secs(60), is_wanted: &|| true };
            let error = scratch.write(&mut Memory::random(DISK_CALL_BYTES).unwrap(), &limits).unwrap_err();
            assert_eq!(error.to_string(), "the file system is full");
        });
    }

    /// As the tests of the whole binary tell it: by name, on standard error and in the list that `LONGHAUL_SKIPS` names;
    /// where nothing may be skipped it is a failure.
    fn is_root(test: &str) -> bool {
        use std::io::Write;
        if rustix::process::geteuid().is_root() {
            return true;
        }
        let strict = ["CI", "LONGHAUL_REQUIRE_ALL"].iter().any(|name| std::env::var_os(name).is_some());
        assert!(!strict, "{test} needs root; run the tests as root");
        let line = format!("SKIPPED {test}: needs root; run the tests as root\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        if let Some(list) = std::env::var_os("LONGHAUL_SKIPS") {
            let list = std::fs::OpenOptions::new().append(true).create(true).open(list);
            list.and_then(|mut list| list.write_all(line.as_bytes())).unwrap();
        }
        false
    }
}
