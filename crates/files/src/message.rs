//! What a client and a server say to each other about files, on the control channel. Protocol Buffers.
//!
//! ```text
//! client                                   server
//!   Attach {path} ------------------------->        the top of what will be used; once in a session
//!   an operation on nodes and open files -->
//!         <--------------------------------- an error number, or what it has come to
//!
//! more than INLINE_BYTES_MAX of a file's bytes travel on the data lanes:
//!   Read {open file, offset, transfer} ---->
//!         <--------------------------------- Bytes {how many}; object = transfer, from offset 0
//!   object = written object, from the place in the file; lanes say that they are stored
//! ```
//!
//! A **node** is a file, directory or link of the server's, by number ([`node_number`]). The client says how often it was told of a node when it forgets it (RFC 1813 has handles
//! for ever; FUSE counts).
//!
//! The reply to an operation is an error number of Linux or an outcome, and leases on what it tells of ([`crate::lease`]).

use bytes::Bytes;
use prost::{Message, Oneof};
use rustix::fs::{OFlags, Statx, StatxTimestamp};
use rustix::io::Errno;

use crate::lease::FileId;

/// The node that a session is attached to.
pub const TOP: u64 = 1;

/// The number that a file goes by, in a session whose top is `top`: the same in every session, and never another file's.
#[must_use]
pub fn node_number(file: FileId, top: FileId) -> u64 {
    if file == top {
        return TOP;
    }
    // The finalizer of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), over each
    // part: two of a billion files have the same number with a chance of 3 %, two that are in use at a time hardly ever.
    let mix = |state: u64, part: u64| {
        let mut z = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    match [file.device, file.inode, file.born].into_iter().fold(0, mix) {
        0 | TOP => u64::MAX,
        number => number,
    }
}

/// A request of the client's.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(
        oneof = "Ask",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, \
                               23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34"
    )]
    pub(crate) ask: Option<Ask>,
}

/// An operation, and the outcome that it has.
pub(crate) trait Operation {
    /// In statistics.
    const NAME: &'static str;

    type Outcome: Message + Default + Tells;

    fn ask(self) -> Ask;
}

/// What an outcome tells of, each time it counts.
pub(crate) trait Tells {
    fn told(&self) -> Vec<u64> {
        Vec::new()
    }
}

impl Tells for Nothing {}
impl Tells for Attr {}
impl Tells for Acquired {}
impl Tells for Mapped {}
impl Tells for Attached {}
impl Tells for Content {}
impl Tells for Opened {}
impl Tells for Count {}
impl Tells for Loser {}
impl Tells for FileSystem {}
impl Tells for LockState {}
impl Tells for Reclaimed {}

impl Tells for Node {
    fn told(&self) -> Vec<u64> {
        vec![self.attr.node]
    }
}

impl Tells for Created {
    fn told(&self) -> Vec<u64> {
        self.node.told()
    }
}

impl Tells for Listing {
    fn told(&self) -> Vec<u64> {
        self.entries.iter().filter_map(|entry| Some(entry.attr?.node)).collect()
    }
}

/// Declares the operations: their messages, outcomes and tags in [`Ask`].
macro_rules! operations {
    ($($tag:literal $operation:ident -> $outcome:ty,)*) => {
        /// The operations.
        #[derive(Clone, PartialEq, Oneof)]
        pub(crate) enum Ask {
            $(#[prost(message, tag = $tag)] $operation($operation),)*
        }

        #[cfg(test)]
        fn all() -> Vec<Ask> {
            vec![$(Ask::$operation($operation::default()),)*]
        }

        $(impl Operation for $operation {
            const NAME: &'static str = stringify!($operation);

            type Outcome = $outcome;

            fn ask(self) -> Ask {
                Ask::$operation(self)
            }
        })*
    };
}

operations! {
    "1" Attach -> Attached,
    "2" Lookup -> Node,
    "3" Forget -> Nothing,
    "4" GetAttr -> Attr,
    "5" SetAttr -> Attr,
    "6" ReadLink -> Content,
    "7" Make -> Node,
    "8" Create -> Created,
    "9" Remove -> Loser,
    "10" Rename -> Loser,
    "11" Link -> Node,
    "12" Open -> Opened,
    "13" Read -> Content,
    "14" Write -> Count,
    "15" Settle -> Nothing,
    "16" Sync -> Nothing,
    "17" Close -> Nothing,
    "18" ReadDir -> Listing,
    "19" StatFs -> FileSystem,
    "20" GetXattr -> Content,
    "21" SetXattr -> Nothing,
    "22" ListXattr -> Content,
    "23" RemoveXattr -> Nothing,
    "24" Allocate -> Nothing,
    "25" Seek -> Count,
    "26" CopyRange -> Count,
    "27" SyncDir -> Nothing,
    "28" Renew -> Nothing,
    "29" Acquire -> Acquired,
    "30" PutLock -> LockState,
    "31" StopWaiting -> Nothing,
    "32" Reclaim -> Reclaimed,
    "33" EndReclaim -> Nothing,
    "34" Map -> Mapped,
}

impl Ask {
    /// To carry it out once more later may undo what others have done in between.
    pub(crate) fn changes(&self) -> bool {
        match self {
            Self::Open(ask) => OFlags::from_bits_retain(ask.flags).contains(OFlags::TRUNC),
            Self::SetAttr(_)
            | Self::Make(_)
            | Self::Create(_)
            | Self::Remove(_)
            | Self::Rename(_)
            | Self::Link(_)
            | Self::Write(_)
            | Self::SetXattr(_)
            | Self::RemoveXattr(_)
            | Self::Allocate(_)
            | Self::CopyRange(_) => true,
            _ => false,
        }
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        Request { ask: Some(self) }.encode_to_vec().into()
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Option<Self> {
        Request::decode(bytes).ok()?.ask
    }
}

/// Leave to keep what has been learnt of a node, until it is broken.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Grant {
    /// The node.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// Of two grants the later has the larger number.
    #[prost(uint64, tag = "2")]
    pub serial: u64,
}

/// What an operation has come to.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Reply {
    /// An error of Linux; 0: none.
    #[prost(int32, tag = "1")]
    pub(crate) error: i32,
    /// Without an error.
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) outcome: Bytes,
    /// Of what the outcome, or the error, tells.
    #[prost(message, repeated, tag = "3")]
    pub(crate) grants: Vec<Grant>,
}

/// What the server says when the session is over there, and the client has not heard of it: no file system says it.
pub(crate) const SESSION_OVER: Errno = Errno::SHUTDOWN;

impl Reply {
    pub(crate) fn new(outcome: Result<impl Message, Errno>, grants: Vec<Grant>) -> Self {
        match outcome {
            Ok(outcome) => Self { error: 0, outcome: outcome.encode_to_vec().into(), grants },
            Err(errno) => Self { error: errno.raw_os_error(), outcome: Bytes::new(), grants },
        }
    }

    pub(crate) fn failed(errno: Errno) -> Self {
        Self { error: errno.raw_os_error(), ..Self::default() }
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// The outcome, and what it allows; `EPROTO` for what is no reply.
    pub(crate) fn read<T: Message + Default>(bytes: Bytes) -> (Result<T, Errno>, Vec<Grant>) {
        let Ok(reply) = Self::decode(bytes) else { return (Err(Errno::PROTO), Vec::new()) };
        let outcome = match reply.error {
            0 => T::decode(reply.outcome).map_err(|_| Errno::PROTO),
            // Linux' numbers for programs; the kernel takes no others from a file system.
            error @ 1..=511 => Err(Errno::from_raw_os_error(error)),
            _ => Err(Errno::PROTO),
        };
        (outcome, reply.grants)
    }
}

/// The server tells the client; the reply is empty, and means that it has been done.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Notice {
    /// A transfer that cannot be brought to its end: the file has become shorter, or cannot be read. 0: none.
    #[prost(uint64, tag = "1")]
    pub(crate) broken_transfer: u64,
    /// To be used no more.
    #[prost(message, repeated, tag = "2")]
    pub(crate) broken_leases: Vec<Grant>,
    /// Those who waited for locks and have them now, by the client's numbers.
    #[prost(uint64, repeated, tag = "3")]
    pub(crate) locked: Vec<u64>,
    /// Leases on pages: these are to be given back.
    #[prost(message, repeated, tag = "4")]
    pub(crate) broken_pages: Vec<Grant>,
}

/// What a client has done since it began. Not for the server: for whoever asks the client's host.
#[derive(Clone, PartialEq, Message)]
pub struct Statistics {
    /// Requests to the server, by operation.
    #[prost(message, repeated, tag = "1")]
    pub operations: Vec<OperationStatistics>,
    /// All of them.
    #[prost(uint64, tag = "2")]
    pub asked: u64,
    /// Questions that were answered under a lease.
    #[prost(uint64, tag = "3")]
    pub known: u64,
    /// Writes that nobody waited for.
    #[prost(uint64, tag = "4")]
    pub behind: u64,
    /// What the kernel has asked for; 0 without one.
    #[prost(uint64, tag = "5")]
    pub kernel_requests: u64,
    /// Bytes that came from the server for readers.
    #[prost(uint64, tag = "6")]
    pub received_bytes: u64,
    /// Bytes of writers that the server has stored.
    #[prost(uint64, tag = "7")]
    pub stored_bytes: u64,
    /// Bytes of files that are kept here now.
    #[prost(uint64, tag = "8")]
    pub kept_bytes: u64,
    /// Bytes that were written here and are not at the server yet.
    #[prost(uint64, tag = "9")]
    pub unsent_bytes: u64,
    /// How long the client may go on to use its leases, in milliseconds; 0: it may not.
    #[prost(uint64, tag = "10")]
    pub lease_ms: u64,
}

impl Statistics {
    /// As it travels.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// `None`: these bytes are something else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::decode(bytes).ok()
    }
}

/// An operation.
#[derive(Clone, PartialEq, Message)]
pub struct OperationStatistics {
    /// As in the protocol.
    #[prost(string, tag = "1")]
    pub name: String,
    /// How often.
    #[prost(uint64, tag = "2")]
    pub count: u64,
    /// Times until the answer, in microseconds: half of them are not longer.
    #[prost(uint64, tag = "3")]
    pub median_us: u64,
    /// 99 of 100.
    #[prost(uint64, tag = "4")]
    pub p99_us: u64,
    /// All of them.
    #[prost(uint64, tag = "5")]
    pub longest_us: u64,
}

/// The object on the lanes that is write number `write` of an open file. Its offsets are those in the file.
pub(crate) fn object(file: u64, write: u32) -> u64 {
    file << 32 | u64::from(write)
}

/// The file and the write of an object.
pub(crate) fn write_of(object: u64) -> (u64, u32) {
    (object >> 32, object as u32)
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Nothing {}

/// Begins.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attach {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) path: Bytes,
    /// 16 bytes that this client has chosen at random, the same in each of its sessions; none: it does not come again.
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) mount: Bytes,
}

/// What a session is attached to, or why it is not.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attached {
    /// In words; empty: it is.
    #[prost(string, tag = "1")]
    pub(crate) refusal: String,
    /// Nothing may be changed.
    #[prost(bool, tag = "2")]
    pub(crate) read_only: bool,
    /// The server acts with root's rights: it takes the client's word for who does something.
    #[prost(bool, tag = "3")]
    pub(crate) acts_for_all: bool,
    /// The user that the server acts as.
    #[prost(message, required, tag = "4")]
    pub(crate) user: Caller,
    /// What the client had to itself in a session before, and its locks, nobody else has seen or taken since.
    #[prost(bool, tag = "5")]
    pub(crate) may_reclaim: bool,
    /// This start of the server's machine: what was not synced before another is lost.
    #[prost(string, tag = "6")]
    pub(crate) boot: String,
    /// The directory itself: it is another where a file system has not been mounted at the server yet.
    #[prost(uint64, tag = "7")]
    pub(crate) top: u64,
}

/// Nodes that a client knows from a session before. Those above come before those below.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Reclaim {
    #[prost(message, repeated, tag = "1")]
    pub(crate) nodes: Vec<Place>,
}

/// Where a node was found last.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Place {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) parent: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) name: Bytes,
    /// How often it counts.
    #[prost(uint64, tag = "4")]
    pub(crate) times: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Reclaimed {
    /// These are not there any more.
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) lost: Vec<u64>,
}

/// A client has taken back what it had; `ETIMEDOUT`: too late, others have gone on meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct EndReclaim {}

/// A time to the nanosecond.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WireTime {
    /// Seconds since 1970, which may be negative.
    #[prost(sint64, tag = "1")]
    pub seconds: i64,
    /// And nanoseconds, below 1e9.
    #[prost(uint32, tag = "2")]
    pub nanos: u32,
}

/// What a node is (statx(2)).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Attr {
    /// The node.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// Kind and permission bits, as in `st_mode`.
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    /// Owner.
    #[prost(uint32, tag = "3")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "4")]
    pub gid: u32,
    /// Bytes.
    #[prost(uint64, tag = "5")]
    pub size: u64,
    /// Allocated 512-byte blocks.
    #[prost(uint64, tag = "6")]
    pub blocks: u64,
    /// Names it has.
    #[prost(uint32, tag = "7")]
    pub links: u32,
    /// What a device file stands for: major and minor number.
    #[prost(uint32, tag = "8")]
    pub device_major: u32,
    /// As above.
    #[prost(uint32, tag = "9")]
    pub device_minor: u32,
    /// Of I/O that suits the file system, in bytes.
    #[prost(uint32, tag = "10")]
    pub block_size: u32,
    /// Last access.
    #[prost(message, required, tag = "11")]
    pub accessed: WireTime,
    /// Last change of its bytes.
    #[prost(message, required, tag = "12")]
    pub modified: WireTime,
    /// Last change of anything.
    #[prost(message, required, tag = "13")]
    pub changed: WireTime,
    /// It has no extended attributes, nor ACLs.
    #[prost(bool, tag = "14")]
    pub no_xattrs: bool,
}

impl Attr {
    pub(crate) fn of(stat: &Statx, node: u64, no_xattrs: bool) -> Self {
        let time = |time: StatxTimestamp| WireTime { seconds: time.tv_sec, nanos: time.tv_nsec };
        Self {
            node,
            mode: stat.stx_mode.into(),
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            links: stat.stx_nlink,
            device_major: stat.stx_rdev_major,
            device_minor: stat.stx_rdev_minor,
            block_size: stat.stx_blksize,
            accessed: time(stat.stx_atime),
            modified: time(stat.stx_mtime),
            changed: time(stat.stx_ctime),
            no_xattrs,
        }
    }
}

/// A node that the client is told of: it counts.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Node {
    #[prost(message, required, tag = "1")]
    pub(crate) attr: Attr,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Lookup {
    #[prost(uint64, tag = "1")]
    pub(crate) parent: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) name: Bytes,
}

/// The client does not know these nodes any more, as often as it says.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Forget {
    #[prost(message, repeated, tag = "1")]
    pub(crate) nodes: Vec<Forgotten>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Forgotten {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) times: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct GetAttr {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
}

/// What a time is set to.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct NewTime {
    /// By the server's clock.
    #[prost(bool, tag = "1")]
    pub(crate) now: bool,
    #[prost(message, required, tag = "2")]
    pub(crate) time: WireTime,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct SetAttr {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    /// An open file of the node's, where one is at hand: what it may do need not be asked again. 0: none.
    #[prost(uint64, tag = "2")]
    pub(crate) file: u64,
    #[prost(uint32, optional, tag = "3")]
    pub(crate) mode: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    pub(crate) uid: Option<u32>,
    #[prost(uint32, optional, tag = "5")]
    pub(crate) gid: Option<u32>,
    #[prost(uint64, optional, tag = "6")]
    pub(crate) size: Option<u64>,
    #[prost(message, optional, tag = "7")]
    pub(crate) accessed: Option<NewTime>,
    #[prost(message, optional, tag = "8")]
    pub(crate) modified: Option<NewTime>,
    /// Who does it is not privileged: a new size takes set-user-id and set-group-id away.
    #[prost(bool, tag = "9")]
    pub(crate) drops_set_id: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct ReadLink {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
}

/// Who does it, where the server takes the client's word.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Caller {
    #[prost(uint32, tag = "1")]
    pub(crate) uid: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) gid: u32,
}

/// Makes a directory, link, pipe, socket, device file, or a file that is not opened.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Make {
    #[prost(uint64, tag = "1")]
    pub(crate) parent: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) name: Bytes,
    /// Kind and permission bits, as in `st_mode`; the caller's umask has been taken off.
    #[prost(uint32, tag = "3")]
    pub(crate) mode: u32,
    /// A symbolic link's.
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) target: Bytes,
    #[prost(uint32, tag = "5")]
    pub(crate) device_major: u32,
    #[prost(uint32, tag = "6")]
    pub(crate) device_minor: u32,
    #[prost(message, required, tag = "7")]
    pub(crate) caller: Caller,
}

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

/// Removes a name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Remove {
    #[prost(uint64, tag = "1")]
    pub(crate) parent: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) name: Bytes,
    #[prost(bool, tag = "3")]
    pub(crate) is_dir: bool,
}

/// The node that has lost a name; 0: there was none.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Loser {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    /// The node that has got another; 0: none has.
    #[prost(uint64, tag = "2")]
    pub(crate) moved: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Rename {
    #[prost(uint64, tag = "1")]
    pub(crate) parent: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) name: Bytes,
    #[prost(uint64, tag = "3")]
    pub(crate) new_parent: u64,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) new_name: Bytes,
    /// As in renameat2(2).
    #[prost(uint32, tag = "5")]
    pub(crate) flags: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Link {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) parent: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) name: Bytes,
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
}

/// Bytes, or a place in a file.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Count {
    #[prost(uint64, tag = "1")]
    pub(crate) count: u64,
}

/// Writes that went over the lanes: those below `below` are over, and the error, if any, of `write` is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Settle {
    #[prost(uint64, tag = "1")]
    pub(crate) file: u64,
    #[prost(uint32, tag = "2")]
    pub(crate) below: u32,
    #[prost(uint32, optional, tag = "3")]
    pub(crate) write: Option<u32>,
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

/// Names of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct ReadDir {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    /// [`Listed::next`] of the last that is known; 0: from the beginning.
    #[prost(uint64, tag = "2")]
    pub(crate) from: u64,
    /// Nobody has asked for them yet: the time of the last access stays as it is, where the server may leave it.
    #[prost(bool, tag = "3")]
    pub(crate) unasked: bool,
    /// Names of what cannot be looked at are wanted, too.
    #[prost(bool, tag = "4")]
    pub(crate) all_names: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Listing {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Listed>,
    /// There are no more.
    #[prost(bool, tag = "2")]
    pub(crate) at_end: bool,
}

/// A name, and the node that has it: it counts as a lookup where there are attributes. `.` and `..` have none, nor has what
/// cannot be looked at.
#[derive(Clone, PartialEq, Message)]
pub struct Listed {
    /// The name.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    /// What it is.
    #[prost(message, optional, tag = "2")]
    pub attr: Option<Attr>,
    /// Where to go on after it.
    #[prost(uint64, tag = "3")]
    pub next: u64,
    /// Of what cannot be looked at: the kind, as modes have it. 0: of anything else.
    #[prost(uint32, tag = "4")]
    pub kind: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct StatFs {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
}

/// statvfs(3).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct FileSystem {
    /// Blocks in all.
    #[prost(uint64, tag = "1")]
    pub blocks: u64,
    /// Free ones.
    #[prost(uint64, tag = "2")]
    pub free: u64,
    /// Free for those without privileges.
    #[prost(uint64, tag = "3")]
    pub available: u64,
    /// Files that there can be.
    #[prost(uint64, tag = "4")]
    pub files: u64,
    /// That can be made.
    #[prost(uint64, tag = "5")]
    pub files_free: u64,
    /// Bytes of a block.
    #[prost(uint64, tag = "6")]
    pub block_size: u64,
    /// Bytes of the unit that blocks are counted in.
    #[prost(uint64, tag = "7")]
    pub fragment_size: u64,
    /// Bytes that a name may have.
    #[prost(uint64, tag = "8")]
    pub name_max: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetXattr {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) name: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SetXattr {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) name: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) value: Bytes,
    /// As in setxattr(2).
    #[prost(uint32, tag = "4")]
    pub(crate) flags: u32,
}

/// All names, each with a NUL behind it.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct ListXattr {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RemoveXattr {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) name: Bytes,
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

/// Makes the names of a directory durable.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct SyncDir {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
}

/// May the leases be used on?
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Renew {}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_can_be_asked_for() {
        for ask in all() {
            assert_eq!(Ask::from_bytes(ask.clone().into_bytes()), Some(ask));
        }
    }

    #[test]
    fn objects_are_a_file_and_a_write() {
        assert_eq!(write_of(object(7, 9)), (7, 9));
        assert_eq!(write_of(object(u32::MAX.into(), u32::MAX)), (u32::MAX.into(), u32::MAX));
    }

    #[test]
    fn nodes_have_numbers_of_their_own() {
        let file = |device, inode, born| FileId { device, inode, born };
        let number = |device, inode, born| node_number(file(device, inode, born), file(2049, 1000, 5));
        assert_eq!(number(2049, 1000, 5), TOP);
        let numbers = [number(2049, 1, 5), number(2049, 1, 6), number(2050, 1, 5), number(2049, 2, 5)];
        let different: std::collections::BTreeSet<_> = numbers.into_iter().collect();
        assert_eq!(different.len(), 4);
        assert_eq!(
            number(2049, 1, 5),
            node_number(file(2049, 1, 5), file(1, 1, 1)),
            "in every session the same"
        );
    }

    #[test]
    fn replies_are_outcomes_or_errors() {
        let grants = vec![Grant { node: 7, serial: 9 }];
        let reply = Reply::new(Ok(Count { count: 7 }), grants.clone());
        assert_eq!(Reply::read(reply.into_bytes()), (Ok(Count { count: 7 }), grants.clone()));
        let reply = Reply::new(Err::<Count, _>(Errno::NOENT), grants.clone());
        assert_eq!(Reply::read::<Count>(reply.into_bytes()), (Err(Errno::NOENT), grants));
        for error in [-1, 512, i32::MIN] {
            let reply = Reply { error, ..Reply::default() };
            assert_eq!(Reply::read::<Count>(reply.into_bytes()).0, Err(Errno::PROTO));
        }
        assert_eq!(Reply::read::<Count>(Bytes::from_static(b"\xff")).0, Err(Errno::PROTO));
    }
}
