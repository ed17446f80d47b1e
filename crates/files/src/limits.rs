//! Every bound of this crate, with its derivation.

use std::time::Duration;

/// Bytes in a name: NAME_MAX of Linux. Some file systems take more (FAT: 255 characters); such a name is an error.
pub const NAME_BYTES_MAX: usize = 255;

/// Bytes in a relative path that is read as one text: PATH_MAX, as much as a system call takes.
pub const PATH_BYTES_MAX: usize = 4096;

/// Directories below one another that a copy goes down: PATH_MAX at two bytes a level, a name of one byte and its
/// slash; deeper ones no program reaches by one path.
pub const DEPTH_MAX: usize = PATH_BYTES_MAX / 2;

/// Directories kept open per tree, beside its top; one that is closed is opened again by way of its parents. Half of
/// the 1024 descriptors that a process may have by default, which is room for one tree. It does not bound the process:
/// each source of a copy, and each session of a server, has a tree of its own.
pub const OPEN_DIRS_MAX: usize = 512;

/// All extended attributes of one file together, names and values: eight times the block of 4 KiB that ext4 has for
/// them by default. XFS holds more.
pub const XATTR_BYTES_MAX: usize = 32 << 10;

/// Extended attributes of one file: at 128 bytes each, as many as [`XATTR_BYTES_MAX`] holds.
pub const XATTRS_MAX: usize = 256;

/// Bytes of a file that travel in one message of the control channel: its 64 KiB less what is said beside them.
pub const INLINE_BYTES_MAX: usize = 60 << 10;

/// Bytes of names and attributes in one part of a listing; the last entry may go beyond it, by a name's length.
pub const LISTING_BYTES: usize = 60 << 10;

/// Pieces of fewer bytes are written by way of the page cache: what a disk takes 0.1 ms for each time is worth it from some
/// 100 KiB on.
pub const DIRECT_BYTES_MIN: usize = 128 << 10;

/// How often a server that writes looks for room in the page cache: what comes meanwhile over 100 Gbit/s is 250 MB.
pub const ROOM_LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A piece that takes so long into the page cache was held up by the kernel, which pauses writers for up to 200 ms each time
/// (mm/page-writeback.c, `MAX_PAUSE`); a thread that waits for its turn on a busy processor is sooner there.
pub const THROTTLED_WRITE_MIN: Duration = Duration::from_millis(200);

/// So long no room is looked for after that.
pub const THROTTLED_REST: Duration = Duration::from_secs(1);

/// Files from that length on are read past the page cache at first: as long as what a client reads by way of its own pages, and more
/// than programs read again and again.
pub const DIRECT_READ_FILE_MIN: u64 = 64 << 20;

/// Files of which it is known how much has been read so: 32 bytes each.
pub const DIRECT_READS_KNOWN_MAX: usize = 16 << 10;

/// Bytes of one read that travel over the lanes: as much as the client asks for at a time.
pub const READ_BYTES_MAX: u32 = 16 << 20;

/// Transfers to the client at a time. Each is a queued extent and no buffer.
pub const SENDINGS_MAX: usize = 1024;

/// Nodes that a session's client may know. Some 200 bytes each: at most 400 MiB, of a client that keeps so many in use.
pub const NODES_MAX: usize = 2 << 20;

/// Of the descriptors that a process may have, one in so many is for nodes that sessions keep open and do not use.
pub const DESCRIPTORS_FOR_NODES: usize = 4;

/// Nodes that one session keeps open at a time, beside those in use.
pub const NODES_OPEN_MAX: usize = 2048;

/// Files up to this length are kept open as soon as they have been looked up: what is replaced again and again is short, and a disk
/// has to keep what is open after it has been removed: 120 MiB for [`NODES_OPEN_MAX`] of them, if they do not grow.
pub const KEPT_WHEN_FOUND_MAX: u64 = INLINE_BYTES_MAX as u64;

/// Nodes of a session that have lost their name and are kept open until the client has forgotten them.
pub const NAMELESS_NODES_MAX: usize = 1024;

/// Files and directories that a session may have open.
pub const FILES_OPEN_MAX: usize = 4096;

/// Writes of one open file that may be on the lanes at a time.
pub const WRITES_OPEN_MAX: usize = 1024;

/// Threads of a session that wait for its disks.
pub const WORKERS_MAX: usize = 8;

/// Of these, one in so many at the most waits until a file is on the disk: that takes as long as the disk takes for all that
/// was written to it, and others would wait for no reason. There are two threads at least. Likewise of those that read small files
/// ahead.
pub const WORKERS_FOR_SYNCS: usize = 2;

/// Operations of a session that wait for such a thread; as many as the control channel carries out at a time.
pub const WORK_WAITING_MAX: usize = longhaul_transport::limits::REQUESTS_AT_ONCE_MAX;

/// The value of one extended attribute: what fits into a message. Linux' own limit is 64 KiB.
pub const XATTR_VALUE_BYTES_MAX: usize = INLINE_BYTES_MAX;

/// The names of one file's extended attributes, as above.
pub const XATTR_LIST_BYTES_MAX: usize = INLINE_BYTES_MAX;

/// Leases of a session: one for each node that it may know.
pub const LEASES_MAX: usize = NODES_MAX;

/// How long a server that has been started again waits for the mounts of the one before: they try every second, each
/// attempt for 10 s at most.
pub const GRACE_MAX: Duration = Duration::from_secs(30);

/// Mounts that a server knows after its next start, 33 bytes of a file each.
pub const MOUNTS_KNOWN_MAX: usize = 64 << 10;

/// Changes that a client may have under way and is told of once, whatever becomes of the server: as many as may be under way.
pub const SLOTS_MAX: u32 = longhaul_transport::limits::CONTROL_STREAMS_MAX;

/// Records of those, of all mounts: 64 bytes of a file each, 16 MiB, and as much memory.
pub const REPLIES_KNOWN_MAX: u64 = 256 << 10;

/// Such records of writes that travel in pieces, of all mounts: the rest is for other changes. A write has one when all of it is stored, until its
/// client has been told and says so.
pub const PIECES_KNOWN_MAX: usize = REPLIES_KNOWN_MAX as usize / 2;

/// And of one mount: enough for 32 files that are written to at a time.
pub const PIECES_OF_MOUNT_MAX: usize = 32 * WRITES_OPEN_MAX;

/// Locks of programs that a client may have or wait for, some 100 bytes each.
pub const LOCKS_MAX: usize = 16 << 10;

/// How long a client uses its leases after it has *sent* the last question whether it may that was answered with yes.
/// Links are down for seconds now and then; whoever waits for a change behind a dead client waits longer than this.
pub const LEASE_TERM: Duration = Duration::from_secs(20);

/// How often a client asks.
pub const RENEW_EVERY: Duration = Duration::from_secs(5);

/// A client that has not answered a break for so long gets no more yes.
pub const OVERDUE_AFTER: Duration = Duration::from_secs(5);

/// A client that has not answered a break for so long is fenced. The last yes it may have got was sent
/// [`OVERDUE_AFTER`] after the break, to a question that was sent before; [`LEASE_TERM`] after that it has stopped, and
/// 5 s are for clocks that differ.
pub const FENCE_AFTER: Duration = Duration::from_secs(30);

const _: () = assert!(OVERDUE_AFTER.as_secs() + LEASE_TERM.as_secs() < FENCE_AFTER.as_secs());

/// A client that has much to tell before it gives a lease up is waited for so long, if it goes on: half of
/// [`CACHE_BYTES`] over 7 Mbit/s.
pub const TELLING_MAX: Duration = Duration::from_secs(300);

/// What a program writes to a file that it makes, at more bytes a second, is not kept in the mount's memory where the kernel has it, too. At
/// such rates processors are what is short, and each MiB of new memory is 256 page faults; and what the kernel gives up is soon here again.
pub const KEPT_TWICE_RATE_MAX: u64 = 256 << 20;

/// How long nobody gets a file to itself after another has wanted to see it: two who both use a file do not take it from
/// each other all the time.
pub const CONTENTION_PAUSE: Duration = Duration::from_secs(1);

/// How long a client keeps to itself what it has written, when nobody asks: as much is lost with a client that dies.
pub const WRITE_BEHIND: Duration = Duration::from_secs(1);

/// Bytes that are written to a file one after the other are sent in parts of this size.
pub const WRITE_PART_BYTES: usize = 1 << 20;

/// Of a part that is not whole yet some is sent ahead in multiples of this: longer than what goes in a message.
pub const WRITE_PIECE_BYTES: usize = 64 << 10;

const _: () = assert!(WRITE_PIECE_BYTES > INLINE_BYTES_MAX);

/// Such parts of a file that may begin before they are sent: of a long write(2) some pieces are under way at a time, and come in any order.
pub const TAILS_MAX: usize = 4;

/// Such parts on their way to the server at a time: as many blocks as may be on their way here, and half of what the
/// server takes of one open file before a write waits.
pub const PARTS_UNDER_WAY_MAX: usize = BLOCKS_COMING_MAX;

const _: () = assert!(PARTS_UNDER_WAY_MAX <= WRITES_OPEN_MAX / 2);

/// Directories, and files with several names, in which changes are noticed: the kernel keeps a mark and the file itself
/// for each, some 1.5 KiB.
pub const WATCHED_FILES_MAX: usize = 128 << 10;

/// Where there is no room for more marks, how often it is looked at whether those that are there serve somebody: at all names,
/// with all leases at rest, for some 100 ms.
pub const WATCHED_PAUSE: Duration = Duration::from_secs(60);

/// Names in them that are known, some 100 bytes each.
pub const WATCHED_NAMES_MAX: usize = 2 << 20;

/// Directories in which the server is told of what programs open there.
pub const OPENS_WATCHED_MAX: usize = 64;

/// How long a name that was removed at a client stays at the server, when nobody asks, for who makes the same again there: between two
/// runs of `git status` in a tree of 80,000 files.
pub const SPARE_TERM: Duration = Duration::from_secs(20);

/// Such names of one client.
pub const SPARES_MAX: usize = 64;

/// Directories whose names may be changed at the same time.
pub const NAME_LOCKS: usize = 64;

/// Parts in which a client fetches and keeps a file: one piece on a lane.
pub const BLOCK_BYTES: usize = 1 << 20;

/// Of a file that is read from its beginning, this much is fetched ahead at first.
pub const READ_AHEAD_FIRST: u64 = 4 << 20;

/// Or so many bytes for each second of a round trip: half of what 1 Gbit/s has on its way.
pub const READ_AHEAD_FIRST_RATE: u64 = 64_000_000;

/// Or so many times what was asked for at once: programs that read a megabyte at a time read on, most of them.
pub const READ_AHEAD_CALLS: u64 = 32;

/// Or, for who asks for half a block at once or more, so many bytes for each second of a round trip: five times what 1 Gbit/s has on its way.
/// While lanes begin, the first block takes seven round trips, and until it has come nothing more is asked for; later, half of
/// this has to last for as long as a lane takes to send again what it has lost.
pub const READ_AHEAD_RATE: u64 = 640_000_000;

/// And at most: the bandwidth-delay product of 10 Gbit/s x 200 ms.
pub const READ_AHEAD_MAX: u64 = 256 << 20;

/// Whoever comes to something further on in a file is taken to read on, if that is no further than so many bytes for each second of a
/// round trip: he would wait two of them and some until he is read ahead for, and 1 Gbit/s carries what is in between in that time.
pub const READ_OVER_RATE: u64 = 320_000_000;

/// Of a file that is read in even jumps, so many of the places that come next are asked for at first.
pub const JUMPS_AHEAD_FIRST: u64 = 4;

/// And at most: a quarter of the requests that others leave.
pub const JUMPS_AHEAD_MAX: u64 = 256;

/// What a request of its own costs beside its bytes, at least as much as that many of them: where less is in between, all is
/// fetched.
pub const JUMP_COST_BYTES: u64 = 64 << 10;

/// Of the bytes that a client keeps, one in so many is for what is asked for so: it is read once.
pub const JUMPS_SHARE: usize = 8;

/// Bytes of files that a client keeps unless told otherwise: twice what is fetched ahead for one reader.
pub const CACHE_BYTES: usize = 2 * READ_AHEAD_MAX as usize;

/// Blocks of all files that are on their way to a client at a time.
pub const BLOCKS_COMING_MAX: usize = READ_AHEAD_MAX as usize / BLOCK_BYTES;

const _: () = assert!(BLOCKS_COMING_MAX <= SENDINGS_MAX);

/// Files that somebody reads one after the other, as much as one message holds, are asked for ahead of him at first;
/// twice as much each time he has read half of it.
pub const SWEEP_FIRST: u64 = INLINE_BYTES_MAX as u64;

/// And at most, and no more than one in so many of the bytes that a client keeps: five times what 1 Gbit/s x 100 ms has on its way.
pub const SWEEP_MAX: u64 = 64 << 20;

/// As above.
pub const SWEEP_SHARE: usize = 4;

/// Longer ones are not asked for so: whoever opens one that is on its way waits for all of it.
pub const SWEPT_FILE_MAX: u64 = 4 << 20;

/// Small ones in one message.
pub const WHOLE_FILES_MAX: usize = 256;

/// What such a one takes of a message beside its bytes: attributes, a lease, and what is said around them.
pub const WHOLE_FILE_COST: usize = 256;

/// Such messages, and longer files, on their way at a time: a quarter of the requests that others leave.
pub const WHOLE_FILES_COMING_MAX: usize = 256;

/// Whoever has been taken to read on so many times (2 to the power of that) in vain is not looked at as often as that: it takes
/// a search of his directory's listing each time.
pub const SWEEP_PATIENCE: u32 = 10;

/// Directories above one another that he is followed through.
pub const SWEEP_DEPTH_MAX: usize = 64;

/// Names of one directory that a client reads: as many as a copy takes of one.
pub const LISTING_ENTRIES_MAX: usize = 4 << 20;

/// Names that somebody looks up in a directory, and that are not known, before it is listed for him.
pub const LOOKS_FIRST: u32 = 2;

/// Not if it is larger, by its own account: a thousand names or two.
pub const LISTED_UNASKED_BYTES_MAX: u64 = 64 << 10;

/// Directories that are listed ahead of somebody who walks through a tree, at first; and twice as many after each that he
/// has come to.
pub const LISTINGS_AHEAD_FIRST: usize = 4;

/// And at most, but twice as many with those in directories that he is in: with 16 names each, as source trees have, some
/// 10 MiB.
pub const LISTINGS_AHEAD_MAX: usize = 1024;

/// Of these, on their way at a time: a quarter of the requests that others leave.
pub const LISTINGS_COMING_MAX: usize = 64;

/// Directories that he may come to, 8 bytes each.
pub const LISTINGS_TO_COME_MAX: usize = 64 << 10;

/// Requests of a client's that may wait for others, such as for a lease that another is to give up: some of those that the control
/// channel takes are left for what others wait for.
pub const ORDINARY_REQUESTS_MAX: usize = longhaul_transport::limits::CONTROL_STREAMS_MAX as usize - 64;

/// How long a request waits at the server for those that it is to be carried out after. They were sent together, and a session brings all
/// of them; where one was over in between they may have come in that, and the request is asked once more.
pub const ORDER_WAIT_MAX: Duration = Duration::from_secs(5);

/// Numbers of requests that others are to come after, and have not: some 200 bytes each. As many as a client may have under way.
pub const ORDERS_KNOWN_MAX: usize = longhaul_transport::limits::CONTROL_STREAMS_MAX as usize;

/// Breaks that a client remembers for the sake of answers under way, some 50 bytes each.
pub const BREAKS_KNOWN_MAX: usize = 64 << 10;

/// Ranges of one write over the lanes that have come out of order: pieces are of 64 KiB and more.
pub const WRITE_RANGES_MAX: usize = 1024;

/// Files from this length on are read by way of the kernel's pages, where they are here. Shorter ones are read in a few requests anyway.
pub const LONG_BYTES: u64 = 16 << 20;

/// Of its blocks, as many as one in so many may have to be fetched: the kernel asks for less at a time than a program that reads past
/// its pages.
pub const MISSING_SHARE: u64 = 8;

/// Of the blocks that a client keeps, one in so many has to make room soon: it is stored to the kernel's pages before.
pub const LEAVING_SHARE: usize = 8;

/// And at most so many: they are looked through each time that a block comes.
pub const LEAVING_MAX: usize = 64;

/// Ranges of a file that the kernel may have pages of, told apart: beyond that the file is taken as a whole. 16 bytes each, and some for the tree.
pub const PAGES_GIVEN_MAX: usize = 1000;

/// Names that have been changed here since a directory was listed, and not looked up since: beyond that it is as if it had not been listed.
/// Some 100 bytes each.
pub const NAMES_BUT_FOR_MAX: usize = 1 << 16;
