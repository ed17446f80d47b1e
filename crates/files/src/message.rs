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
//! Requests are carried out side by side, as they come; one that has to come after others that are under way says so (`Order`).
//!
//! The reply to an operation is an error number of Linux or an outcome, and leases on what it tells of ([`crate::lease`]).

mod files;
mod nodes;

use bytes::Bytes;
use prost::{Message, Oneof};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::lease::FileId;
pub(crate) use files::*;
pub use nodes::*;

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
                               23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35"
    )]
    pub(crate) ask: Option<Ask>,
    /// See [`Order`].
    #[prost(uint64, tag = "100")]
    pub(crate) number: u64,
    #[prost(uint32, tag = "101")]
    pub(crate) after: u32,
    /// See [`Slot`].
    #[prost(uint32, tag = "102")]
    pub(crate) slot: u32,
    #[prost(uint64, tag = "103")]
    pub(crate) sequence: u64,
    #[prost(bool, tag = "104")]
    pub(crate) again: bool,
    #[prost(bool, tag = "105")]
    pub(crate) rebooted: bool,
}

/// What a request has to do with others of the same session, which the server carries out side by side otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// Those that belong together have the same; 0: it stands alone.
    pub(crate) number: u64,
    /// It is carried out after so many others of that number, or, if these do not come, not at all: [`OUT_OF_ORDER`].
    pub(crate) after: u32,
}

/// By what a server knows a change that it is asked for once more: see [`Ask::changes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    /// No other change of the client's that is under way has the same.
    pub(crate) number: u32,
    /// Of two changes that have had it, the later has the larger number. 0: it has none.
    pub(crate) sequence: u64,
    /// It was asked for in a session before.
    pub(crate) again: bool,
    /// And at first before the server's machine was started as it is now.
    pub(crate) rebooted: bool,
}

/// An operation, and the outcome that it has.
pub(crate) trait Operation: Clone {
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
impl Tells for Settled {}
impl Tells for Content {}
impl Tells for Opened {}
impl Tells for Count {}
impl Tells for Written {} // of a node that the client knows
impl Tells for Loser {}
impl Tells for FileSystem {}
impl Tells for LockState {}
impl Tells for Reclaimed {}
impl Tells for WholeFiles {} // of nodes that the client knows

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
    "14" Write -> Written,
    "15" Settle -> Settled,
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
    "35" ReadWhole -> WholeFiles,
}

impl Ask {
    /// To carry it out once more later may undo what others have done in between: it has a [`Slot`].
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

    pub(crate) fn into_bytes(self, Order { number, after }: Order, slot: Slot) -> Bytes {
        let Slot { number: slot, sequence, again, rebooted } = slot;
        Request { ask: Some(self), number, after, slot, sequence, again, rebooted }.encode_to_vec().into()
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Option<(Self, Order, Slot)> {
        let Request { ask, number, after, slot: of_slot, sequence, again, rebooted } =
            Request::decode(bytes).ok()?;
        Some((ask?, Order { number, after }, Slot { number: of_slot, sequence, again, rebooted }))
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

/// What it says when it has not carried out a request, as those that were to come before it did not come; likewise.
pub(crate) const OUT_OF_ORDER: Errno = Errno::INPROGRESS;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_can_be_asked_for() {
        let slot = Slot { number: 7, sequence: u64::MAX, again: true, rebooted: true };
        let order = Order { number: u64::MAX, after: 3 };
        for (order, slot) in [(Order::default(), Slot::default()), (order, slot)] {
            for ask in all() {
                assert_eq!(Ask::from_bytes(ask.clone().into_bytes(order, slot)), Some((ask, order, slot)));
            }
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
