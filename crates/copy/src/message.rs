//! What the two ends of a copy say to each other on the control channel. Protocol Buffers.
//!
//! ```text
//! client                                   server
//!   Listed {names} ----------------------->         where a list of files is long, in parts, before or beside Start
//!   Start {direction, paths, options} --->          the server becomes receiver (push) or sender (pull)
//!                                     <--- Started
//!
//! sender                                   receiver
//!   Offer {entries} ----------------------->        many at a time, answered in any order
//!         <--------------------------------- Wants  and then bytes on the lanes
//!   Failed {files that cannot be read} ---->
//!   End {number of offers} ---------------->        answered when all is in its place; or why it cannot go on
//!         <--------------------------------- Finished
//!
//! server -> client: Problems {what went wrong there}, all that it knows of before it sends End or Finished
//! client -> server: Problems {}, answered when the client has been told all of the server's
//! client -> server: Watch -> Watched {buffers of the server}, for a trace
//! ```

use bytes::Bytes;
use longhaul_files::limits::XATTRS_MAX;
use longhaul_files::{Kind, Name, Time, Xattr};
use prost::{Message, Oneof};

use crate::limits::{LINK_TARGET_BYTES_MAX, OFFER_ENTRIES_MAX, RANGES_MAX};
use crate::options::CopyOptions;

/// A request of either end.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(oneof = "Ask", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub(crate) ask: Option<Ask>,
}

/// The requests.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Ask {
    #[prost(message, tag = "1")]
    Start(Start),
    #[prost(message, tag = "2")]
    Offer(Offer),
    #[prost(message, tag = "3")]
    Failed(Failed),
    #[prost(message, tag = "4")]
    End(End),
    #[prost(message, tag = "5")]
    Problems(Problems),
    #[prost(message, tag = "6")]
    Watch(Watch),
    #[prost(message, tag = "7")]
    Listed(Listed),
}

impl Ask {
    pub(crate) fn into_bytes(self) -> Bytes {
        Request { ask: Some(self) }.encode_to_vec().into()
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Option<Self> {
        Request::decode(bytes).ok()?.ask
    }
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Direction {
    /// From the client to the server.
    Push = 0,
    /// From the server to the client.
    Pull = 1,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Start {
    #[prost(enumeration = "Direction", tag = "1")]
    pub(crate) direction: i32,
    /// Push: the one destination. Pull: the sources.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(crate) paths: Vec<Bytes>,
    #[prost(message, optional, tag = "3")]
    pub(crate) options: Option<CopyOptions>,
    /// Push: more than one source, or one that is not to be renamed.
    #[prost(bool, tag = "4")]
    pub(crate) many: bool,
    /// Pull: only those in so many [`Listed`], relative to the one source; 0: all.
    #[prost(uint32, tag = "5")]
    pub(crate) listed_parts: u32,
}

/// A part of a list of files.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Listed {
    /// Counted from 0.
    #[prost(uint32, tag = "1")]
    pub(crate) part: u32,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(crate) paths: Vec<Bytes>,
}

/// The answer to a start.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Started {
    /// Empty: yes.
    #[prost(string, tag = "1")]
    pub(crate) refusal: String,
}

/// Files that the sender has.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Offer {
    /// Counted from 0; the receiver takes them in order.
    #[prost(uint64, tag = "1")]
    pub(crate) number: u64,
    #[prost(message, repeated, tag = "2")]
    pub(crate) entries: Vec<WireEntry>,
}

/// Kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum WireKind {
    Nothing = 0,
    File = 1,
    Dir = 2,
    Symlink = 3,
    Fifo = 4,
    Socket = 5,
    CharDevice = 6,
    BlockDevice = 7,
    /// No more entries will name the directory `id` as their parent.
    DirEnd = 8,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireEntry {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    /// The directory's id; 0: the destination itself.
    #[prost(uint64, tag = "2")]
    pub(crate) parent: u64,
    /// Empty, for a directory below 0: the destination itself.
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) name: Bytes,
    #[prost(enumeration = "WireKind", tag = "4")]
    pub(crate) kind: i32,
    #[prost(uint32, tag = "5")]
    pub(crate) mode: u32,
    #[prost(uint32, tag = "6")]
    pub(crate) uid: u32,
    #[prost(uint32, tag = "7")]
    pub(crate) gid: u32,
    #[prost(uint64, tag = "8")]
    pub(crate) size: u64,
    #[prost(sint64, tag = "9")]
    pub(crate) modified_s: i64,
    #[prost(uint32, tag = "10")]
    pub(crate) modified_ns: u32,
    #[prost(uint64, tag = "11")]
    pub(crate) special_device: u64,
    #[prost(bytes = "bytes", tag = "12")]
    pub(crate) target: Bytes,
    /// Another name of the file with this id.
    #[prost(uint64, tag = "13")]
    pub(crate) hard_link_to: u64,
    /// Others will be offered as hard links to it.
    #[prost(bool, tag = "14")]
    pub(crate) has_hard_links: bool,
    #[prost(message, repeated, tag = "15")]
    pub(crate) xattrs: Vec<WireXattr>,
    /// The stored parts of a file with holes; empty: all of it.
    #[prost(message, repeated, tag = "16")]
    pub(crate) data: Vec<WireRange>,
    /// A file's: made of the time of its last change of any kind. What has arrived of another is of no use.
    #[prost(fixed32, tag = "17")]
    pub(crate) mark: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireXattr {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct WireRange {
    #[prost(uint64, tag = "1")]
    pub(crate) start: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) end: u64,
}

/// What the receiver says to the entries of an offer.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Wants {
    /// One [`Want`] for each entry.
    #[prost(enumeration = "Want", repeated, tag = "1")]
    pub(crate) wants: Vec<i32>,
    /// For those that are wanted in part, in the same order.
    #[prost(message, repeated, tag = "2")]
    pub(crate) parts: Vec<WireRanges>,
    /// The copy is over: nothing is wanted any more.
    #[prost(bool, tag = "3")]
    pub(crate) over: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireRanges {
    #[prost(message, repeated, tag = "1")]
    pub(crate) ranges: Vec<WireRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Want {
    /// Done, or nothing to do.
    Nothing = 0,
    /// It is there already and equal.
    HasIt = 1,
    /// All bytes.
    All = 2,
    /// Only the bytes in the next of `parts`.
    Part = 3,
    /// It cannot be taken; the reason comes as a problem.
    Cannot = 4,
}

/// Files the sender could not read after all.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Failed {
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) files: Vec<u64>,
}

/// The sender has offered all it has.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct End {
    #[prost(uint64, tag = "1")]
    pub(crate) offers: u64,
    /// Problems there so far.
    #[prost(uint64, tag = "2")]
    pub(crate) problems: u64,
    /// Not empty: the sender cannot go on, and why.
    #[prost(string, tag = "3")]
    pub(crate) failure: String,
}

/// The receiver's last word.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Finished {
    /// All is in its place, or told as a problem; an empty message says that it is not.
    #[prost(bool, tag = "1")]
    pub(crate) whole: bool,
    /// Problems there.
    #[prost(uint64, tag = "2")]
    pub(crate) problems: u64,
}

/// What went wrong at the server, for the person at the client.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Problems {
    #[prost(message, repeated, tag = "1")]
    pub(crate) problems: Vec<WireProblem>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireProblem {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) path: Bytes,
    #[prost(string, tag = "2")]
    pub(crate) reason: String,
}

/// Asks for the state of the server's buffers.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Watch {}

/// The state of the server's buffers.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Watched {
    /// Bytes in the receive queues of the lanes' sockets.
    #[prost(uint64, tag = "1")]
    pub(crate) socket_bytes: u64,
    /// Bytes received and not yet handled.
    #[prost(uint64, tag = "2")]
    pub(crate) inbox_bytes: u64,
    /// Bytes of the host's page cache that are not on disk yet.
    #[prost(uint64, tag = "3")]
    pub(crate) dirty_bytes: u64,
    /// Microseconds spent storing, summed over the movers.
    #[prost(uint64, tag = "4")]
    pub(crate) storing_us: u64,
    /// Microseconds spent reading, summed over the movers.
    #[prost(uint64, tag = "5")]
    pub(crate) reading_us: u64,
    /// Payload bytes received.
    #[prost(uint64, tag = "6")]
    pub(crate) received_bytes: u64,
    /// Bytes of files that were written past the page cache: it has none of them.
    #[prost(uint64, tag = "7")]
    pub(crate) past_cache_bytes: u64,
}

/// An entry that has been checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) parent: u64,
    /// `None`: the destination itself.
    pub(crate) name: Option<Name>,
    pub(crate) what: What,
    pub(crate) meta: Meta,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    File { size: u64, has_hard_links: bool, data: Vec<(u64, u64)>, mark: u32 },
    HardLink { to: u64 },
    Dir,
    DirEnd,
    Symlink { target: Vec<u8> },
    Special { kind: Kind, device: u64 },
}

/// What is kept of a file besides its bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Meta {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Time,
    pub(crate) xattrs: Vec<Xattr>,
}

/// An offer or answer that breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's message breaks the protocol")]
pub(crate) struct BadMessage;

impl Offer {
    /// Checks all that comes from the peer.
    pub(crate) fn check(self) -> Result<Vec<Entry>, BadMessage> {
        if self.entries.len() > OFFER_ENTRIES_MAX {
            return Err(BadMessage);
        }
        self.entries.into_iter().map(WireEntry::check).collect()
    }
}

impl Meta {
    /// What its extended attributes take of memory.
    pub(crate) fn xattr_bytes(&self) -> usize {
        let each = |xattr: &Xattr| size_of::<Xattr>() + xattr.name.len() + xattr.value.len();
        self.xattrs.iter().map(each).sum()
    }
}

impl WireEntry {
    fn check(self) -> Result<Entry, BadMessage> {
        let kind = WireKind::try_from(self.kind).map_err(|_| BadMessage)?;
        let name = match (&self.name[..], kind, self.parent) {
            (b"", WireKind::DirEnd, _) | (b"", WireKind::Dir, 0) => None,
            (name, ..) => Some(Name::new(name).map_err(|_| BadMessage)?),
        };
        if self.id == 0 || self.modified_ns > 999_999_999 || self.target.len() > LINK_TARGET_BYTES_MAX {
            return Err(BadMessage);
        }
        // What has no name is a directory, whatever else it claims to be.
        if (name.is_none() && self.hard_link_to > 0) || self.xattrs.len() > XATTRS_MAX {
            return Err(BadMessage);
        }
        let special = |kind| What::Special { kind, device: self.special_device };
        let what = match kind {
            WireKind::Nothing => return Err(BadMessage),
            _ if self.hard_link_to > 0 => What::HardLink { to: self.hard_link_to },
            WireKind::File => {
                let data = check_ranges(&self.data, self.size)?;
                What::File { size: self.size, has_hard_links: self.has_hard_links, data, mark: self.mark }
            }
            WireKind::Dir => What::Dir,
            WireKind::DirEnd => What::DirEnd,
            WireKind::Symlink if self.target.is_empty() || self.target.contains(&0) => {
                return Err(BadMessage);
            }
            WireKind::Symlink => What::Symlink { target: self.target.to_vec() },
            WireKind::Fifo => special(Kind::Fifo),
            WireKind::Socket => special(Kind::Socket),
            WireKind::CharDevice => special(Kind::CharDevice),
            WireKind::BlockDevice => special(Kind::BlockDevice),
        };
        let xattrs = self.xattrs.into_iter();
        let meta = Meta {
            mode: self.mode & 0o7777,
            uid: self.uid,
            gid: self.gid,
            modified: Time { seconds: self.modified_s, nanos: self.modified_ns },
            xattrs: xattrs.map(|x| Xattr { name: x.name.to_vec(), value: x.value.to_vec() }).collect(),
        };
        Ok(Entry { id: self.id, parent: self.parent, name, what, meta })
    }
}

/// In order, disjoint, not empty, within `size`; no list means all of it.
pub(crate) fn check_ranges(ranges: &[WireRange], size: u64) -> Result<Vec<(u64, u64)>, BadMessage> {
    if ranges.len() > RANGES_MAX || size > i64::MAX as u64 {
        return Err(BadMessage);
    }
    let mut at = 0;
    for range in ranges {
        if range.start < at || range.end <= range.start || range.end > size {
            return Err(BadMessage);
        }
        at = range.end;
    }
    Ok(ranges.iter().map(|r| (r.start, r.end)).collect())
}

/// Makes wire ranges, at most `max` of them: what is beyond becomes one, gaps included.
pub(crate) fn to_wire_ranges(ranges: impl Iterator<Item = (u64, u64)>, max: usize) -> Vec<WireRange> {
    let mut wire: Vec<WireRange> = Vec::new();
    for (start, end) in ranges {
        if wire.len() < max {
            wire.push(WireRange { start, end });
        } else if let Some(last) = wire.last_mut() {
            last.end = end;
        }
    }
    wire
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(kind: WireKind) -> WireEntry {
        WireEntry {
            id: 5,
            name: Bytes::from_static(b"n"),
            kind: kind.into(),
            size: 100,
            ..WireEntry::default()
        }
    }

    #[test]
    fn entries_that_would_do_harm_are_refused() {
        let bad = |change: fn(&mut WireEntry)| {
            let mut entry = entry(WireKind::File);
            change(&mut entry);
            assert!(entry.check().is_err());
        };
        assert!(entry(WireKind::File).check().is_ok());
        bad(|e| e.name = Bytes::from_static(b".."));
        bad(|e| e.name = Bytes::from_static(b"a/b"));
        bad(|e| e.name = Bytes::new());
        bad(|e| e.id = 0);
        bad(|e| e.kind = 99);
        bad(|e| e.kind = 0);
        bad(|e| e.modified_ns = 1_000_000_000);
        bad(|e| e.kind = WireKind::Symlink.into());
        bad(|e| e.data = vec![WireRange { start: 50, end: 101 }]);
        bad(|e| e.data = vec![WireRange { start: 50, end: 60 }, WireRange { start: 55, end: 70 }]);
        bad(|e| e.size = u64::MAX);
        bad(|e| e.xattrs = vec![WireXattr::default(); XATTRS_MAX + 1]);
    }

    #[test]
    fn another_name_of_a_file_is_a_name() {
        for kind in [WireKind::Dir, WireKind::DirEnd] {
            let nameless = WireEntry { name: Bytes::new(), ..entry(kind) };
            assert!(nameless.clone().check().is_ok());
            assert!(WireEntry { hard_link_to: 4, ..nameless }.check().is_err());
        }
    }

    #[test]
    fn too_many_ranges_become_one() {
        let wire = to_wire_ranges((0..5000).map(|i| (i * 10, i * 10 + 5)), RANGES_MAX);
        assert_eq!(wire.len(), RANGES_MAX);
        assert_eq!(wire.last().unwrap().end, 4999 * 10 + 5);
        assert!(check_ranges(&wire, 50_000).is_ok());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(Ask::Offer(offer)) = Ask::from_bytes(bytes.into()) {
                let _ = offer.check();
            }
        }
    }
}
