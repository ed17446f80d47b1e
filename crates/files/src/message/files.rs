//! Messages about open files: their bytes, pages and locks.

use bytes::Bytes;
use prost::Message;

use super::{Attr, Caller, Node};

/// Makes a file and opens it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Create {
    #[prost(uint64, tag = "1")]
    pub(crate) parent: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) name: Bytes,
    #[prost(uint32, tag = "3")]
    pub(crate) mode: u32,
    /// As in open(2).
    #[prost(uint32, tag = "4")]
    pub(crate) flags: u32,
    #[prost(message, required, tag = "5")]
    pub(crate) caller: Caller,
    /// See [`Open`].
    #[prost(uint64, tag = "6")]
    pub(crate) file: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Created {
    #[prost(message, required, tag = "1")]
    pub(crate) node: Node,
    /// See [`Acquired`].
    #[prost(uint64, tag = "3")]
    pub(crate) exclusive: u64,
}

/// The client would like to have to itself a file that it has open for writing.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Acquire {
    #[prost(uint64, tag = "1")]
    pub(crate) file: u64,
}

/// As long as the client has the lease of this number, it need not tell at once what it writes to the open file; 0: it
/// has to.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Acquired {
    #[prost(uint64, tag = "1")]
    pub(crate) exclusive: u64,
    /// Kind and permission bits, as in `st_mode`.
    #[prost(uint32, tag = "2")]
    pub(crate) mode: u32,
}

/// The client's kernel is to keep pages of a file: see [`pages`](crate::pages).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Map {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    /// They may be written to in memory.
    #[prost(bool, tag = "2")]
    pub(crate) alone: bool,
}

/// The lease's number; 0: the client is giving back what it has.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Mapped {
    #[prost(uint64, tag = "1")]
    pub(crate) serial: u64,
    /// They may be: only who has the file open for writing gets that.
    #[prost(bool, tag = "2")]
    pub(crate) alone: bool,
}

/// Opens a file.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Open {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    /// As in open(2).
    #[prost(uint32, tag = "2")]
    pub(crate) flags: u32,
    /// The client's number for the open file, by which it uses it: the same in each of its sessions.
    #[prost(uint64, tag = "3")]
    pub(crate) file: u64,
    /// It was open in a session before.
    #[prost(bool, tag = "4")]
    pub(crate) reclaims: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Opened {
    /// As it was opened.
    #[prost(message, optional, tag = "2")]
    pub(crate) attr: Option<Attr>,
    /// All bytes of a small file that is opened for reading.
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(crate) content: Option<Bytes>,
    /// See [`Acquired`].
    #[prost(uint64, tag = "4")]
    pub(crate) exclusive: u64,
}

/// Small files, ahead of somebody who reads one after the other: what can be read at once and kept, and fits into one message.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReadWhole {
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) nodes: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WholeFiles {
    #[prost(message, repeated, tag = "1")]
    pub(crate) files: Vec<WholeFile>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WholeFile {
    #[prost(message, required, tag = "1")]
    pub(crate) attr: Attr,
    /// All its bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) content: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Read {
    #[prost(uint64, tag = "1")]
    pub(crate) file: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) offset: u64,
    #[prost(uint32, tag = "3")]
    pub(crate) length: u32,
    /// 0: the bytes come with the reply.
    #[prost(uint64, tag = "4")]
    pub(crate) transfer: u64,
}

/// Some bytes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Content {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) data: Bytes,
    /// So many come over the lanes.
    #[prost(uint32, tag = "2")]
    pub(crate) on_lanes: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Write {
    #[prost(uint64, tag = "1")]
    pub(crate) file: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) offset: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) data: Bytes,
    /// Who does it is not privileged: set-user-id and set-group-id go away.
    #[prost(bool, tag = "4")]
    pub(crate) drops_set_id: bool,
    /// Nobody waits for it: pages that are written back, or what was written before.
    #[prost(bool, tag = "5")]
    pub(crate) later: bool,
    /// The answer is to say what the file is then.
    #[prost(bool, tag = "6")]
    pub(crate) tells: bool,
    /// The file is open for appending: the server chooses the place.
    #[prost(bool, tag = "7")]
    pub(crate) appends: bool,
}

/// What has come of a write.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Written {
    /// If that was asked for.
    #[prost(message, optional, tag = "2")]
    pub(crate) attr: Option<Attr>,
}

/// Bytes, or a place in a file.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Count {
    #[prost(uint64, tag = "1")]
    pub(crate) count: u64,
}

/// Writes that went over the lanes: those below `below` are over, and what has become of `write` is asked for: its error, if any, or what is
/// stored of it.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Settle {
    #[prost(uint64, tag = "1")]
    pub(crate) file: u64,
    #[prost(uint32, tag = "2")]
    pub(crate) below: u32,
    #[prost(uint32, optional, tag = "3")]
    pub(crate) write: Option<u32>,
}

/// What a server has stored of a write since its machine was started: it, or one before it.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Settled {
    /// Places in the file: begins and ends, in turns.
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) stored: Vec<u64>,
    /// No more of it was, as somebody has the file's pages in memory: they come back for whoever asks another way.
    #[prost(bool, tag = "2")]
    pub(crate) meets_pages: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Sync {
    #[prost(uint64, tag = "1")]
    pub(crate) file: u64,
    /// As fdatasync(2).
    #[prost(bool, tag = "2")]
    pub(crate) data_only: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Close {
    #[prost(uint64, tag = "1")]
    pub(crate) file: u64,
}

/// fallocate(2).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Allocate {
    #[prost(uint64, tag = "1")]
    pub(crate) file: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) offset: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) length: u64,
    #[prost(uint32, tag = "4")]
    pub(crate) mode: u32,
}

/// lseek(2) to the next hole, or to the next bytes.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Seek {
    #[prost(uint64, tag = "1")]
    pub(crate) file: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) offset: u64,
    /// To a hole; else to bytes.
    #[prost(bool, tag = "3")]
    pub(crate) hole: bool,
}

/// copy_file_range(2).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct CopyRange {
    #[prost(uint64, tag = "1")]
    pub(crate) from_file: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) from: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) to_file: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) to: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) length: u64,
}

/// A lock on some bytes of an open file: put there, taken away, or looked for.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct PutLock {
    #[prost(uint64, tag = "1")]
    pub(crate) file: u64,
    /// Whose, by the client's numbers.
    #[prost(uint64, tag = "2")]
    pub(crate) owner: u64,
    /// The client's process.
    #[prost(uint32, tag = "3")]
    pub(crate) pid: u32,
    #[prost(enumeration = "LockWish", tag = "4")]
    pub(crate) wish: i32,
    #[prost(uint64, tag = "5")]
    pub(crate) start: u64,
    /// The last byte.
    #[prost(uint64, tag = "6")]
    pub(crate) last: u64,
    /// 0: nobody waits for it. Else a number of the client's that is told when it is there.
    #[prost(uint64, tag = "7")]
    pub(crate) wait: u64,
    /// Only whether it could be put there.
    #[prost(bool, tag = "8")]
    pub(crate) only_looks: bool,
    /// It was there in a session before.
    #[prost(bool, tag = "9")]
    pub(crate) reclaims: bool,
}

/// What becomes of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum LockWish {
    Unlocked = 0,
    Shared = 1,
    Exclusive = 2,
}

/// What has become of a wish for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LockState {
    /// It is there, or could be.
    #[prost(bool, tag = "1")]
    pub(crate) done: bool,
    /// It is waited for. Neither: somebody's lock is in the way.
    #[prost(bool, tag = "2")]
    pub(crate) waits: bool,
    /// That one, of another client's process perhaps.
    #[prost(uint32, tag = "3")]
    pub(crate) pid: u32,
    #[prost(bool, tag = "4")]
    pub(crate) is_exclusive: bool,
    #[prost(uint64, tag = "5")]
    pub(crate) start: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) last: u64,
}

/// Nobody waits for a lock any more; `ENOENT`: it has been given.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct StopWaiting {
    #[prost(uint64, tag = "1")]
    pub(crate) wait: u64,
}
