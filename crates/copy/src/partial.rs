//! A large file on its way to its name: the partial file, its journal, and what an earlier run has left of them.
//!
//! ```text
//! .longhaul-<hash of the name>.part      the bytes, at their places
//! .longhaul-<hash of the name>.journal   which of them are there
//! ```
//!
//! The partial file is locked while somebody writes it. It gets its name when it is whole; until then nothing is ever
//! seen under that name but what was there before.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use longhaul_files::attr::attr_of;
use longhaul_files::{Dir, Kind, Name, Time};
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use crate::journal::{self, JournalHead, JournalRecord};
use crate::limits::{GAPS_MAX, JOURNAL_BYTES_MAX, JOURNALED_FILE_MIN};
use longhaul_files::RangeSet;

const PREFIX: &str = ".longhaul-";

/// Whether a name is that of a file of ours.
pub(crate) fn is_ours(name: &Name) -> bool {
    let bytes = name.as_bytes();
    bytes.starts_with(PREFIX.as_bytes())
        && [".part", ".journal", ".tmp"].iter().any(|suffix| bytes.ends_with(suffix.as_bytes()))
}

/// The names beside `name` that a copy has there until it is done, and leaves there when it is broken off, where `user` receives it.
#[must_use]
pub fn unfinished_names(name: &Name, user: u32) -> [Name; 2] {
    [".part", ".journal"].map(|suffix| name_of_users(name, user, suffix))
}

fn own_name(name: &Name, suffix: &str) -> Name {
    name_of_users(name, rustix::process::geteuid().as_raw(), suffix)
}

/// `.longhaul-<hash>-<user><suffix>`: short whatever the length of the name it stands for, and the same in the next run.
/// Two users who may both write in a directory have no name in common: one could not tell the other's from a dead one.
fn name_of_users(name: &Name, user: u32, suffix: &str) -> Name {
    let hash = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, name.as_bytes());
    // Letters, digits, `-` and `.`, 45 bytes at the most: always a name.
    Name::new(format!("{PREFIX}{hash:016x}-{user}{suffix}").as_bytes()).unwrap_or_else(|_| name.clone())
}

/// A name for what replaces something else, in the moment before it does. Random, so that no two copies, on whatever
/// hosts, use the same.
pub(crate) fn temporary_name() -> Name {
    let text = format!("{PREFIX}{:016x}.tmp", random());
    Name::new(text.as_bytes()).unwrap_or_else(|_| unreachable!("{text} is a name"))
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // Short requests are always granted in full once the system has started; before, zeros only mean a collision,
    // which is noticed.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

/// Which source a partial file is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceVersion {
    pub(crate) size: u64,
    pub(crate) modified: Time,
    /// Made of the time of its last change of any kind (ctime), so that one that is made anew with the same size and time
    /// of its bytes differs.
    pub(crate) mark: u32,
}

/// What an earlier run has left of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOver {
    /// The bytes that are there; empty: nothing of use.
    pub(crate) ranges: RangeSet,
    /// The journal that says so.
    run: u64,
}

/// What an earlier run has left of the file called `name`.
pub(crate) fn left_over(dir: &Dir, name: &Name, version: SourceVersion) -> LeftOver {
    // Whatever is wrong with the leftovers: they are of no use, and are replaced.
    read_left_over(dir, name, version).ok().flatten().unwrap_or_default()
}

fn read_left_over(dir: &Dir, name: &Name, version: SourceVersion) -> io::Result<Option<LeftOver>> {
    if version.size < JOURNALED_FILE_MIN || dir.attr(&own_name(name, ".journal"))?.is_none() {
        return Ok(None);
    }
    let journal = dir.open_file(&own_name(name, ".journal"))?;
    let part = dir.open_file(&own_name(name, ".part"))?;
    if !is_own(dir, &journal)? || !is_own(dir, &part)? || part.metadata()?.len() != version.size {
        return Ok(None);
    }
    let journal = BufReader::new(journal.take(JOURNAL_BYTES_MAX));
    let Some((head, records)) = journal::read(journal)? else { return Ok(None) };
    if (head.size, head.modified, head.mark) != (version.size, version.modified, version.mark) {
        return Ok(None);
    }
    // Since the machine's start nothing that was written can be missing.
    let trusted = boot_id().is_some_and(|boot| boot == head.boot);
    let mut ranges = RangeSet::default();
    for record in records {
        if ranges.count() > GAPS_MAX / 2 {
            break; // what is beyond is sent again
        }
        if trusted || has_checksum(&part, &record)? {
            ranges.insert(record.offset, record.offset + u64::from(record.length));
        }
    }
    Ok(Some(LeftOver { ranges, run: head.run }))
}

fn has_checksum(part: &File, record: &JournalRecord) -> io::Result<bool> {
    let mut bytes = vec![0; record.length as usize];
    part.read_exact_at(&mut bytes, record.offset)?;
    Ok(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &bytes) == record.checksum)
}

/// Whether a file in `dir` is this user's alone. Where others may write in the directory, they may have laid down one
/// of theirs, or another name of somebody's, to have it filled, or to change it later.
fn is_own(dir: &Dir, file: &File) -> io::Result<bool> {
    let (above, attr) = (dir.own_attr()?, attr_of(file)?);
    // Not every file system keeps owners: that a file's is another says nothing where only one may write.
    let of_us = attr.uid == rustix::process::geteuid().as_raw() || above.mode & 0o022 == 0;
    Ok(attr.kind == Kind::File && attr.links == 1 && of_us)
}

/// Which file it is: its file system and its number there.
pub(crate) type FileId = (u64, u64);

/// The partial file of `name`, when another copy is writing it.
pub(crate) fn held_by_another(dir: &Dir, name: &Name) -> io::Result<Option<FileId>> {
    let part = match dir.open_file(&own_name(name, ".part")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        part => part?,
    };
    match rustix::fs::flock(&part, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::AGAIN) => file_id(&part).map(Some),
        _ => Ok(None),
    }
}

fn file_id(file: &File) -> io::Result<FileId> {
    let attr = attr_of(file)?;
    Ok((attr.device, attr.inode))
}

/// A random number that the kernel draws at each start.
fn boot_id() -> Option<[u8; 16]> {
    static BOOT: OnceLock<Option<[u8; 16]>> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let hex: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let digits = std::str::from_utf8(&hex).ok()?;
        u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
    })
}

/// An open partial file.
#[derive(Debug)]
pub(crate) struct Partial {
    dir: Dir,
    name: Name,
    id: FileId,
    /// Through the page cache; holds the lock.
    pub(crate) buffered: Arc<File>,
    /// Past it.
    pub(crate) direct: Option<Arc<File>>,
    journal: Option<(File, u64)>,
}

/// Why a partial file could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartialError {
    #[error("another copy of it is under way")]
    Busy,
    #[error("another copy of it has come in between; run the copy again")]
    Overtaken,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Whoever only looks whether a file is locked locks it for a moment: so often, and so long apart, it is tried again.
const LOCK_ATTEMPTS: usize = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Opens, locks and gives the partial file called `name`: `None` when there is none.
fn lock_existing(dir: &Dir, name: &Name) -> Result<Option<File>, PartialError> {
    loop {
        let part = match dir.open_for_update(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            part => part?,
        };
        lock(&part)?;
        // Whoever held the lock may have given the file its final name: that one is nobody's to write to.
        if is_called(dir, name, &part)? {
            return Ok(Some(part));
        }
    }
}

/// Whether what could not be opened for writing is no partial file: a link, a pipe, what somebody else has put there.
fn is_no_file_of_ours(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::LOOP | Errno::NXIO | Errno::ACCESS | Errno::PERM | Errno::ISDIR))
}

fn is_called(dir: &Dir, name: &Name, file: &File) -> io::Result<bool> {
    let there = dir.attr(name)?.map(|attr| (attr.device, attr.inode));
    Ok(there == Some(file_id(file)?))
}

fn lock(part: &File) -> Result<(), PartialError> {
    for _ in 0..LOCK_ATTEMPTS {
        match rustix::fs::flock(part, FlockOperation::NonBlockingLockExclusive) {
            // Not every file system has locks, or has them switched on.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => return Ok(()),
            Err(Errno::AGAIN) => std::thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    Err(PartialError::Busy)
}

impl Partial {
    /// Opens, or makes, the partial file of `name` and gives it its size and room on the disk. The bytes in `left`
    /// will not be written again; `data` are the stored parts of the whole.
    pub(crate) fn open(
        dir: &Dir,
        name: &Name,
        version: SourceVersion,
        left: &LeftOver,
        data: &RangeSet,
        direct: bool,
    ) -> Result<Self, PartialError> {
        let part_name = own_name(name, ".part");
        let anew = left.ranges.is_empty();
        let (buffered, journal) =
            if anew { Self::begin(dir, name, version)? } else { Self::take_up(dir, name, left)? };
        let partial = Self {
            dir: dir.clone(),
            name: name.clone(),
            id: file_id(&buffered)?,
            buffered: Arc::new(buffered),
            direct: None,
            journal,
        };
        if let Err(error) = partial.take_room(version.size, data) {
            if anew {
                partial.discard();
            }
            return Err(error.into());
        }
        let direct = if direct { dir.open_direct(&part_name).ok() } else { None };
        let direct = direct.filter(|direct| file_id(direct).is_ok_and(|id| id == partial.id));
        Ok(Self { direct: direct.map(Arc::new), ..partial })
    }

    /// An empty partial file in place of whatever there is, unless another copy is writing that.
    fn begin(
        dir: &Dir,
        name: &Name,
        version: SourceVersion,
    ) -> Result<(File, Option<(File, u64)>), PartialError> {
        let part = Self::empty_part(dir, &own_name(name, ".part"))?;
        let journal_name = own_name(name, ".journal");
        dir.remove(&journal_name)?;
        if version.size < JOURNALED_FILE_MIN {
            return Ok((part, None));
        }
        let journal = dir.create_file(&journal_name)?;
        let boot = boot_id().unwrap_or_default();
        let SourceVersion { size, modified, mark } = version;
        let head = JournalHead { boot, size, modified, mark, run: random() };
        journal.write_all_at(&head.encode(), 0)?;
        Ok((part, Some((journal, journal::HEAD_BYTES as u64))))
    }

    fn empty_part(dir: &Dir, name: &Name) -> Result<File, PartialError> {
        // Each round that does not end it has met somebody else's step.
        for _ in 0..LOCK_ATTEMPTS {
            match lock_existing(dir, name) {
                Ok(Some(part)) if is_own(dir, &part)? => {
                    part.set_len(0)?;
                    return Ok(part);
                }
                Err(PartialError::Busy) => return Err(PartialError::Busy),
                // Of use to nobody: a link, a pipe, a file of somebody else's.
                Ok(Some(_)) => dir.remove(name).map(drop)?,
                Err(PartialError::Io(error)) if is_no_file_of_ours(&error) => dir.remove(name).map(drop)?,
                Err(error) => return Err(error),
                Ok(None) => match dir.create_file(name) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(error.into()),
                    Ok(part) => {
                        lock(&part)?;
                        if is_called(dir, name, &part)? {
                            return Ok(part);
                        }
                    }
                },
            }
        }
        Err(PartialError::Busy)
    }

    /// The partial file that an earlier run has left, if it still is what was found.
    fn take_up(dir: &Dir, name: &Name, left: &LeftOver) -> Result<(File, Option<(File, u64)>), PartialError> {
        let part = lock_existing(dir, &own_name(name, ".part"))?.ok_or(PartialError::Overtaken)?;
        let journal = match dir.open_for_update(&own_name(name, ".journal")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(PartialError::Overtaken),
            journal => journal?,
        };
        // A journal is only ever added to: as long as it is the same one, all that was found is there.
        let head = journal::read(&journal)?.map(|(head, _)| head);
        if head.is_none_or(|head| head.run != left.run) || !is_own(dir, &part)? || !is_own(dir, &journal)? {
            return Err(PartialError::Overtaken);
        }
        // Behind the last whole record.
        let records = journal.metadata()?.len().saturating_sub(journal::HEAD_BYTES as u64);
        let whole = records / journal::RECORD_BYTES as u64 * journal::RECORD_BYTES as u64;
        Ok((part, Some((journal, journal::HEAD_BYTES as u64 + whole))))
    }

    /// Gives the file its size and room on the disk: early word of a full disk, and few fragments. Holes stay holes.
    fn take_room(&self, size: u64, data: &RangeSet) -> io::Result<()> {
        self.buffered.set_len(size)?;
        for (start, end) in data.iter() {
            match rustix::fs::fallocate(&*self.buffered, FallocateFlags::empty(), start, end - start) {
                // Not every file system can; then the disk fills as it fills.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => break,
                taken => taken?,
            }
        }
        Ok(())
    }

    /// Notes that these bytes are stored.
    pub(crate) fn note(&mut self, record: &JournalRecord) -> io::Result<()> {
        if let Some((journal, end)) = &mut self.journal {
            journal.write_all_at(&record.encode(), *end)?;
            *end += journal::RECORD_BYTES as u64;
        }
        Ok(())
    }

    /// Which file it is.
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Whether a later run can go on from here.
    pub(crate) fn is_journaled(&self) -> bool {
        self.journal.is_some()
    }

    /// Gives the whole file its name and removes the journal.
    pub(crate) fn finish(self) -> io::Result<()> {
        // Without locks, another copy may have put its own there: that one is not whole.
        if !is_called(&self.dir, &own_name(&self.name, ".part"), &self.buffered)? {
            return Err(io::Error::other(PartialError::Overtaken));
        }
        self.dir.rename(&own_name(&self.name, ".part"), &self.name)?;
        if self.journal.is_some() {
            self.dir.remove(&own_name(&self.name, ".journal"))?;
        }
        Ok(())
    }

    /// Removes what is there of the file.
    pub(crate) fn discard(self) {
        // If it cannot be removed it is replaced by the next run.
        let _ = self.dir.remove(&own_name(&self.name, ".part"));
        let _ = self.dir.remove(&own_name(&self.name, ".journal"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: SourceVersion =
        SourceVersion { size: JOURNALED_FILE_MIN, modified: Time { seconds: 5, nanos: 6 }, mark: 7 };

    fn set(start: u64, end: u64) -> RangeSet {
        let mut set = RangeSet::default();
        set.insert(start, end);
        set
    }

    fn record(offset: u64, bytes: &[u8]) -> JournalRecord {
        let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes);
        JournalRecord { offset, length: bytes.len() as u32, checksum }
    }

    fn all() -> RangeSet {
        RangeSet::up_to(VERSION.size)
    }

    #[test]
    fn a_partial_file_is_taken_up_again_and_gets_its_name_when_whole() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open_path(temp.path()).unwrap();
        let name = Name::new(&[b'n'; 255]).unwrap();
        let mut partial = Partial::open(&dir, &name, VERSION, &LeftOver::default(), &all(), false).unwrap();
        partial.buffered.write_all_at(b"hello", 100).unwrap();
        partial.note(&record(100, b"hello")).unwrap();
        assert!(matches!(
            Partial::open(&dir, &name, VERSION, &LeftOver::default(), &all(), false),
            Err(PartialError::Busy)
        ));
        drop(partial);
        let left = left_over(&dir, &name, VERSION);
        assert_eq!(left.ranges, set(100, 105));
        // Of another version of the source nothing is of use.
        let other = SourceVersion { modified: Time { seconds: 5, nanos: 7 }, ..VERSION };
        assert!(left_over(&dir, &name, other).ranges.is_empty());
        let other = SourceVersion { mark: 8, ..VERSION };
        assert!(left_over(&dir, &name, other).ranges.is_empty());
        let mut partial = Partial::open(&dir, &name, VERSION, &left, &all(), false).unwrap();
        partial.note(&record(200, b"more")).unwrap();
        assert_eq!(left_over(&dir, &name, VERSION).ranges.bytes(), 9);
        partial.finish().unwrap();
        let names: Vec<_> = std::fs::read_dir(temp.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [name.as_os_str()]);
    }

    #[test]
    fn after_a_restart_of_the_machine_only_proved_bytes_count() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open_path(temp.path()).unwrap();
        let name = Name::new(b"f").unwrap();
        let mut partial = Partial::open(&dir, &name, VERSION, &LeftOver::default(), &all(), false).unwrap();
        partial.buffered.write_all_at(b"kept", 0).unwrap();
        partial.note(&record(0, b"kept")).unwrap();
        partial.note(&record(1000, b"lost")).unwrap();
        drop(partial);
        let journal = temp.path().join(own_name(&name, ".journal").as_os_str());
        let written = std::fs::read(&journal).unwrap();
        let (head, records) = journal::read(&written[..]).unwrap().unwrap();
        let mut bytes = JournalHead { boot: [0; 16], ..head }.encode().to_vec();
        bytes.extend(records.flat_map(|record| record.encode()));
        std::fs::write(&journal, bytes).unwrap();
        assert_eq!(left_over(&dir, &name, VERSION).ranges, set(0, 4));
    }

    #[test]
    fn leftovers_that_another_copy_has_taken_up_are_not_gone_on_with() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open_path(temp.path()).unwrap();
        let name = Name::new(b"f").unwrap();
        let open = |left: &LeftOver| Partial::open(&dir, &name, VERSION, left, &all(), false);
        let mut first = open(&LeftOver::default()).unwrap();
        first.buffered.write_all_at(b"kept", 0).unwrap();
        first.note(&record(0, b"kept")).unwrap();
        drop(first);
        let left = left_over(&dir, &name, VERSION);
        // Another copy begins anew, and leaves off: what was found is not there any more.
        drop(open(&LeftOver::default()).unwrap());
        assert!(matches!(open(&left), Err(PartialError::Overtaken)));
        // Another one ends: there is nothing to take up, and what has the final name stays as it is.
        let left = LeftOver { ranges: set(0, 4), ..left_over(&dir, &name, VERSION) };
        open(&LeftOver::default()).unwrap().finish().unwrap();
        assert!(matches!(open(&left), Err(PartialError::Overtaken)));
        assert_eq!(std::fs::metadata(temp.path().join("f")).unwrap().len(), VERSION.size);
    }

    #[test]
    fn a_partial_file_that_has_got_its_name_is_not_written_to() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open_path(temp.path()).unwrap();
        let name = Name::new(b"f").unwrap();
        let holder = Partial::open(&dir, &name, VERSION, &LeftOver::default(), &all(), false).unwrap();
        let rival = std::thread::scope(|scope| {
            let rival = scope.spawn(|| {
                // It waits for the lock meanwhile.
                Partial::open(&dir, &name, VERSION, &LeftOver::default(), &all(), false)
            });
            holder.buffered.write_all_at(b"whole", 0).unwrap();
            holder.finish().unwrap();
            rival.join().unwrap()
        });
        assert!(matches!(rival, Ok(_) | Err(PartialError::Busy)));
        assert_eq!(&std::fs::read(temp.path().join("f")).unwrap()[..5], b"whole");
    }

    #[test]
    fn what_others_may_have_laid_down_is_not_filled() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::set_permissions(temp.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let dir = Dir::open_path(temp.path()).unwrap();
        let name = Name::new(b"f").unwrap();
        let part = temp.path().join(own_name(&name, ".part").as_os_str());
        let victim = temp.path().join("victim");
        for is_link in [false, true] {
            std::fs::write(&victim, "precious").unwrap();
            let laid = if is_link {
                std::os::unix::fs::symlink(&victim, &part)
            } else {
                std::fs::hard_link(&victim, &part)
            };
            laid.unwrap();
            Partial::open(&dir, &name, VERSION, &LeftOver::default(), &all(), false).unwrap().discard();
            assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        }
    }

    #[test]
    fn a_file_that_another_copy_has_put_in_place_of_ours_does_not_get_the_name() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open_path(temp.path()).unwrap();
        let name = Name::new(b"f").unwrap();
        let partial = Partial::open(&dir, &name, VERSION, &LeftOver::default(), &all(), false).unwrap();
        let part = temp.path().join(own_name(&name, ".part").as_os_str());
        std::fs::remove_file(&part).unwrap();
        std::fs::write(&part, "not whole").unwrap();
        assert!(partial.finish().unwrap_err().to_string().contains("another copy"));
        assert!(!temp.path().join("f").exists());
    }

    #[test]
    fn only_our_own_names_are_ours() {
        let name = Name::new(b"x").unwrap();
        assert!(is_ours(&own_name(&name, ".part")) && is_ours(&temporary_name()));
        assert!(!is_ours(&name) && !is_ours(&Name::new(b".longhaul-notes").unwrap()));
        let own = unfinished_names(&name, rustix::process::geteuid().as_raw());
        assert_eq!(own, [own_name(&name, ".part"), own_name(&name, ".journal")]);
        assert_ne!(own, unfinished_names(&name, rustix::process::geteuid().as_raw() + 1));
    }
}
