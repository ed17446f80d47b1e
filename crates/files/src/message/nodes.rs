//! Messages about sessions, nodes and their names.

use bytes::Bytes;
use longhaul_transport::identity::IdRange;
use prost::Message;
use rustix::fs::{Statx, StatxTimestamp};

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
    /// What numbers the client's users have at the server, if it acts for all; none: the same.
    #[prost(message, repeated, tag = "8")]
    pub(crate) users: Vec<WireIdRange>,
    /// And its groups.
    #[prost(message, repeated, tag = "9")]
    pub(crate) groups: Vec<WireIdRange>,
}

impl Attached {
    /// Of users, and of groups.
    pub(crate) fn id_ranges(&self) -> [Vec<IdRange>; 2] {
        [&self.users, &self.groups].map(|ranges| ranges.iter().map(|range| (*range).into()).collect())
    }
}

/// See [`IdRange`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct WireIdRange {
    #[prost(uint32, tag = "1")]
    pub(crate) there: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) here: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) count: u32,
}

impl From<IdRange> for WireIdRange {
    fn from(IdRange { there, here, count }: IdRange) -> Self {
        Self { there, here, count }
    }
}

impl From<WireIdRange> for IdRange {
    fn from(WireIdRange { there, here, count }: WireIdRange) -> Self {
        Self { there, here, count }
    }
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
    /// The directory that it is in now, where that was changed for it.
    #[prost(message, optional, tag = "2")]
    pub(crate) dir: Option<Attr>,
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

/// Removes a name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Remove {
    #[prost(uint64, tag = "1")]
    pub(crate) parent: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) name: Bytes,
    #[prost(bool, tag = "3")]
    pub(crate) is_dir: bool,
    /// If it is that still. Else `ESTALE`, unless the name may stay if it is: then it does not.
    #[prost(message, optional, tag = "4")]
    pub(crate) untouched: Option<Untouched>,
    /// The client removes it later, or uses it again, if it can have the directory to itself.
    #[prost(bool, tag = "5")]
    pub(crate) may_stay: bool,
}

/// An empty file with one name, as it was made.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Untouched {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    #[prost(message, required, tag = "2")]
    pub(crate) modified: WireTime,
}

/// The node that has lost a name; 0: there was none.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Loser {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    /// The node that has got another; 0: none has.
    #[prost(uint64, tag = "2")]
    pub(crate) moved: u64,
    /// The directory that has lost a name, and the one that has got one, as they are now.
    #[prost(message, optional, tag = "3")]
    pub(crate) dir: Option<Attr>,
    #[prost(message, optional, tag = "4")]
    pub(crate) new_dir: Option<Attr>,
    /// The name has stayed, under this exclusive lease of the directory; 0: it has not.
    #[prost(uint64, tag = "5")]
    pub(crate) kept: u64,
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

/// Makes the names of a directory durable.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct SyncDir {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
}

/// May the leases be used on?
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Renew {}
