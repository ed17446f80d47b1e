//! Openings for the fuzz targets in `fuzz/`: what reads bytes of peers and files, and is nobody else's business.
//!
//! Nothing is decided here: bytes go in, and what was understood comes out as plain data, or encoded anew.

use bytes::Bytes;
use longhaul_files::Xattr;
use prost::Message;

use crate::bundle;
use crate::journal::{self, JournalRecord};
use crate::limits::RANGES_MAX;
use crate::message::{
    Ask, Entry, Finished, Started, Wants, Watched, What, WireRange, check_ranges, to_wire_ranges,
};
use longhaul_files::RangeSet;

/// A request, written again.
#[must_use]
pub fn request(bytes: &[u8]) -> Option<Vec<u8>> {
    Ask::from_bytes(Bytes::copy_from_slice(bytes)).map(|ask| ask.into_bytes().to_vec())
}

/// Replies of all kinds, each written again.
#[must_use]
pub fn replies(bytes: &[u8]) -> [Option<Vec<u8>>; 4] {
    fn again<M: Message + Default>(bytes: &[u8]) -> Option<Vec<u8>> {
        M::decode(bytes).ok().map(|message| message.encode_to_vec())
    }
    [again::<Started>(bytes), again::<Wants>(bytes), again::<Finished>(bytes), again::<Watched>(bytes)]
}

/// An entry of an offer that was found good.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedEntry {
    /// Its number.
    pub id: u64,
    /// The number of its directory.
    pub parent: u64,
    /// `None`: the destination itself.
    pub name: Option<Vec<u8>>,
    /// It is, or ends, a directory.
    pub is_directory: bool,
    /// Size and stored ranges of a file.
    pub file: Option<(u64, Vec<(u64, u64)>)>,
    /// The target of a symbolic link.
    pub link_target: Option<Vec<u8>>,
    /// Permission bits.
    pub mode: u32,
    /// Of its time of change, below a second.
    pub modified_ns: u32,
    /// Its extended attributes.
    pub xattrs: Vec<Xattr>,
}

impl From<Entry> for OfferedEntry {
    fn from(entry: Entry) -> Self {
        let Entry { id, parent, name, what, meta } = entry;
        let is_directory = matches!(what, What::Dir | What::DirEnd);
        let (mut file, mut link_target) = (None, None);
        match what {
            What::File { size, data, .. } => file = Some((size, data)),
            What::Symlink { target } => link_target = Some(target),
            What::HardLink { .. } | What::Dir | What::DirEnd | What::Special { .. } => {}
        }
        Self {
            id,
            parent,
            name: name.map(|name| name.as_bytes().to_vec()),
            is_directory,
            file,
            link_target,
            mode: meta.mode,
            modified_ns: meta.modified.nanos,
            xattrs: meta.xattrs,
        }
    }
}

/// The entries of a request that is an offer and passes all checks.
#[must_use]
pub fn offer(bytes: &[u8]) -> Option<Vec<OfferedEntry>> {
    match Ask::from_bytes(Bytes::copy_from_slice(bytes))? {
        Ask::Offer(offer) => Some(offer.check().ok()?.into_iter().map(OfferedEntry::from).collect()),
        _ => None,
    }
}

/// The parts of a file of `size` bytes that a reply asks for, if they pass all checks.
#[must_use]
pub fn wanted_parts(bytes: &[u8], size: u64) -> Option<Vec<Vec<(u64, u64)>>> {
    let wants = Wants::decode(bytes).ok()?;
    wants.parts.iter().map(|part| check_ranges(&part.ranges, size).ok()).collect()
}

/// A file of a bundle; `None`: its sender could not read it.
pub type BundledFile = (u64, Option<Vec<u8>>);

/// The files of a bundle up to the first that cannot be understood, and whether that came.
#[must_use]
pub fn bundle(bytes: &[u8]) -> (Vec<BundledFile>, bool) {
    let mut files = Vec::new();
    for file in bundle::files(bytes) {
        let Ok(file) = file else { return (files, true) };
        files.push((file.file, file.bytes.map(<[u8]>::to_vec)));
    }
    (files, false)
}

/// Makes a bundle.
#[must_use]
pub fn make_bundle(files: &[BundledFile]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (id, content) in files {
        let length = content.as_ref().map_or(0, Vec::len) as u32;
        bundle::append(&mut bytes, *id, length, |place| {
            content.as_ref().inspect(|content| place.copy_from_slice(content)).is_some()
        });
    }
    bytes
}

/// A journal that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadJournal {
    /// Size of the file it is of.
    pub size: u64,
    /// Offset and length of each stored part.
    pub parts: Vec<(u64, u32)>,
    /// The parts as a set of ranges.
    pub ranges: Vec<(u64, u64)>,
    /// Bytes in that set.
    pub bytes: u64,
    /// What was understood, written again.
    pub again: Vec<u8>,
}

/// Reads a journal.
#[must_use]
pub fn journal(bytes: &[u8]) -> Option<ReadJournal> {
    let (head, records) = journal::read(bytes).ok()??;
    let records: Vec<JournalRecord> = records.collect();
    let mut again = head.encode().to_vec();
    again.extend(records.iter().flat_map(JournalRecord::encode));
    let mut set = RangeSet::default();
    records.iter().for_each(|record| set.insert(record.offset, record.offset + u64::from(record.length)));
    Some(ReadJournal {
        size: head.size,
        parts: records.iter().map(|record| (record.offset, record.length)).collect(),
        ranges: set.iter().collect(),
        bytes: set.bytes(),
        again,
    })
}

/// A journal of a file of `size` bytes with these parts stored, all of them with the same checksum.
#[must_use]
pub fn make_journal(size: u64, parts: &[(u64, u32)]) -> Vec<u8> {
    let modified = longhaul_files::Time { seconds: 1, nanos: 2 };
    let mut bytes = journal::JournalHead { boot: [3; 16], size, modified, mark: 0, run: 5 }.encode().to_vec();
    for &(offset, length) in parts {
        bytes.extend(JournalRecord { offset, length, checksum: 4 }.encode());
    }
    bytes
}

/// Puts ranges into a set (`true`) and takes them out of it (`false`): the ranges, and what taking out said.
#[must_use]
pub fn range_steps(steps: &[(bool, u64, u64)]) -> (Vec<(u64, u64)>, Vec<u64>) {
    let mut set = RangeSet::default();
    let mut removed = Vec::new();
    for &(add, start, end) in steps {
        if add {
            set.insert(start, end);
        } else {
            removed.push(set.remove(start, end));
        }
    }
    (set.iter().collect(), removed)
}

/// Ranges as they are sent, and whether their receiver takes them for those of a file of `size` bytes.
#[must_use]
pub fn sent_ranges(ranges: &[(u64, u64)], size: u64) -> (Vec<(u64, u64)>, bool) {
    let wire: Vec<WireRange> = to_wire_ranges(ranges.iter().copied(), RANGES_MAX);
    (wire.iter().map(|range| (range.start, range.end)).collect(), check_ranges(&wire, size).is_ok())
}
