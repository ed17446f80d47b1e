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
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use longhaul_files::{Dir, Name, Time};
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use crate::journal::{self, JournalHead, JournalRecord};
use crate::limits::{JOURNAL_BYTES_MAX, JOURNALED_FILE_MIN};
use crate::ranges::RangeSet;

const PREFIX: &str = ".longhaul-";

/// Whether a name is that of a file of ours.
pub(crate) fn is_ours(name: &Name) -> bool {
    let bytes = name.as_bytes();
    bytes.starts_with(PREFIX.as_bytes())
        && [".part", ".journal", ".tmp"].iter().any(|suffix| bytes.ends_with(suffix.as_bytes()))
}

/// `.longhaul-<hash><suffix>`: short whatever the length of the name it stands for, and the same in the next run.
fn own_name(name: &Name, suffix: &str) -> Name {
    let hash = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, name.as_bytes());
    // Letters, digits, `-` and `.`, 34 bytes: always a name.
    Name::new(format!("{PREFIX}{hash:016x}{suffix}").as_bytes()).unwrap_or_else(|_| name.clone())
}

/// A name for a small file that replaces another, in the moment before it does.
pub(crate) fn temporary_name(number: u64) -> Name {
    let text = format!("{PREFIX}{}-{number}.tmp", std::process::id());
    Name::new(text.as_bytes()).unwrap_or_else(|_| unreachable!("{text} is a name"))
}

/// Which source a partial file is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceVersion {
    pub(crate) size: u64,
    pub(crate) modified: Time,
}

/// What an earlier run has left of the file called `name`: the ranges that are there. Empty: nothing of use.
pub(crate) fn left_over(dir: &Dir, name: &Name, version: SourceVersion) -> RangeSet {
    // Whatever is wrong with the leftovers: they are of no use, and are replaced.
    read_left_over(dir, name, version).unwrap_or_default()
}

fn read_left_over(dir: &Dir, name: &Name, version: SourceVersion) -> io::Result<RangeSet> {
    let mut ranges = RangeSet::default();
    if version.size < JOURNALED_FILE_MIN || dir.attr(&own_name(name, ".journal"))?.is_none() {
        return Ok(ranges);
    }
    let mut bytes = Vec::new();
    dir.open_file(&own_name(name, ".journal"))?.take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes)?;
    let Some((head, records)) = journal::read(&bytes) else { return Ok(ranges) };
    if (head.size, head.modified) != (version.size, version.modified) {
        return Ok(ranges);
    }
    let part = dir.open_file(&own_name(name, ".part"))?;
    if part.metadata()?.len() != version.size {
        return Ok(ranges);
    }
    // Since the machine's start nothing that was written can be missing.
    let trusted = boot_id().is_some_and(|boot| boot == head.boot);
    for record in records {
        if trusted || has_checksum(&part, &record)? {
            ranges.insert(record.offset, record.offset + u64::from(record.length));
        }
    }
    Ok(ranges)
}

fn has_checksum(part: &File, record: &JournalRecord) -> io::Result<bool> {
    let mut bytes = vec![0; record.length as usize];
    part.read_exact_at(&mut bytes, record.offset)?;
    Ok(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &bytes) == record.checksum)
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
    let attr = longhaul_files::attr::attr_of(file)?;
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
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Partial {
    /// Opens, or makes, the partial file of `name` and gives it its size and room on the disk. `present` is what
    /// [`left_over`] found and will not be written again.
    pub(crate) fn open(
        dir: &Dir,
        name: &Name,
        version: SourceVersion,
        present: &RangeSet,
        data: &RangeSet,
        direct: bool,
    ) -> Result<Self, PartialError> {
        let part_name = own_name(name, ".part");
        let buffered = dir.create_file(&part_name, false)?;
        match rustix::fs::flock(&buffered, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(Errno::AGAIN) => return Err(PartialError::Busy),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let journal = if present.is_empty() {
            buffered.set_len(0)?;
            Self::start_journal(dir, name, version)?
        } else {
            let journal = dir.create_file(&own_name(name, ".journal"), false)?;
            let end = journal.metadata()?.len();
            // Behind the last whole record.
            let whole = (end.saturating_sub(journal::HEAD_BYTES as u64)) / journal::RECORD_BYTES as u64;
            Some((journal, journal::HEAD_BYTES as u64 + whole * journal::RECORD_BYTES as u64))
        };
        let partial = Self {
            dir: dir.clone(),
            name: name.clone(),
            buffered: Arc::new(buffered),
            direct: None,
            journal,
        };
        match partial.take_room(version.size, data) {
            Err(error) if present.is_empty() => {
                partial.discard();
                Err(error.into())
            }
            Err(error) => Err(error.into()),
            Ok(()) => {
                let direct = if direct { dir.open_direct(&part_name).ok() } else { None };
                Ok(Self { direct: direct.map(Arc::new), ..partial })
            }
        }
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

    fn start_journal(dir: &Dir, name: &Name, version: SourceVersion) -> io::Result<Option<(File, u64)>> {
        let journal_name = own_name(name, ".journal");
        if version.size < JOURNALED_FILE_MIN {
            dir.remove(&journal_name)?;
            return Ok(None);
        }
        let journal = dir.create_file(&journal_name, false)?;
        journal.set_len(0)?;
        let boot = boot_id().unwrap_or_default();
        let head = JournalHead { boot, size: version.size, modified: version.modified };
        journal.write_all_at(&head.encode(), 0)?;
        Ok(Some((journal, journal::HEAD_BYTES as u64)))
    }

    /// Notes that these bytes are stored.
    pub(crate) fn note(&mut self, record: &JournalRecord) -> io::Result<()> {
        if let Some((journal, end)) = &mut self.journal {
            journal.write_all_at(&record.encode(), *end)?;
            *end += journal::RECORD_BYTES as u64;
        }
        Ok(())
    }

    /// Whether its file is this one.
    pub(crate) fn is(&self, id: FileId) -> bool {
        file_id(&self.buffered).is_ok_and(|own| own == id)
    }

    /// Whether a later run can go on from here.
    pub(crate) fn is_journaled(&self) -> bool {
        self.journal.is_some()
    }

    /// Gives the whole file its name and removes the journal.
    pub(crate) fn finish(self) -> io::Result<()> {
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
        SourceVersion { size: JOURNALED_FILE_MIN, modified: Time { seconds: 5, nanos: 6 } };

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
        let mut partial = Partial::open(&dir, &name, VERSION, &RangeSet::default(), &all(), false).unwrap();
        partial.buffered.write_all_at(b"hello", 100).unwrap();
        partial.note(&record(100, b"hello")).unwrap();
        assert!(matches!(
            Partial::open(&dir, &name, VERSION, &RangeSet::default(), &all(), false),
            Err(PartialError::Busy)
        ));
        drop(partial);
        let left = left_over(&dir, &name, VERSION);
        assert_eq!(left, set(100, 105));
        // Of another version of the source nothing is of use.
        let other = SourceVersion { modified: Time { seconds: 5, nanos: 7 }, ..VERSION };
        assert!(left_over(&dir, &name, other).is_empty());
        let mut partial = Partial::open(&dir, &name, VERSION, &left, &all(), false).unwrap();
        partial.note(&record(200, b"more")).unwrap();
        assert_eq!(left_over(&dir, &name, VERSION).bytes(), 9);
        partial.finish().unwrap();
        let names: Vec<_> = std::fs::read_dir(temp.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [name.as_os_str()]);
    }

    #[test]
    fn after_a_restart_of_the_machine_only_proved_bytes_count() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open_path(temp.path()).unwrap();
        let name = Name::new(b"f").unwrap();
        let mut partial = Partial::open(&dir, &name, VERSION, &RangeSet::default(), &all(), false).unwrap();
        partial.buffered.write_all_at(b"kept", 0).unwrap();
        partial.note(&record(0, b"kept")).unwrap();
        partial.note(&record(1000, b"lost")).unwrap();
        drop(partial);
        let journal = temp.path().join(own_name(&name, ".journal").as_os_str());
        let mut bytes = std::fs::read(&journal).unwrap();
        let (head, records) = journal::read(&bytes).unwrap();
        bytes = JournalHead { boot: [0; 16], ..head }.encode().to_vec();
        bytes.extend(records.iter().flat_map(JournalRecord::encode));
        std::fs::write(&journal, bytes).unwrap();
        assert_eq!(left_over(&dir, &name, VERSION), set(0, 4));
    }

    #[test]
    fn only_our_own_names_are_ours() {
        let name = Name::new(b"x").unwrap();
        assert!(is_ours(&own_name(&name, ".part")) && is_ours(&temporary_name(3)));
        assert!(!is_ours(&name) && !is_ours(&Name::new(b".longhaul-notes").unwrap()));
    }
}
