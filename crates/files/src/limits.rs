//! Every bound of this crate, with its derivation.

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

/// Bytes of one read that travel over the lanes: as much as the client asks for at a time.
pub const READ_BYTES_MAX: u32 = 16 << 20;

/// Transfers to the client at a time. Each is a queued extent and no buffer.
pub const SENDINGS_MAX: usize = 1024;

/// Nodes that a session's client may know. Some 200 bytes each: at most 400 MiB, of a client that keeps so many in use.
pub const NODES_MAX: usize = 2 << 20;

/// Of these, kept open at a time, beside those in use: an eighth of the 20,000 descriptors that a process may have on a
/// small machine.
pub const NODES_OPEN_MAX: usize = 2048;

/// Nodes of a session that have lost their name and are kept open until the client has forgotten them.
pub const NAMELESS_NODES_MAX: usize = 1024;

/// Files and directories that a session may have open.
pub const FILES_OPEN_MAX: usize = 4096;

/// Writes of one open file that may be on the lanes at a time.
pub const WRITES_OPEN_MAX: usize = 1024;

/// Threads of a session that wait for its disks.
pub const WORKERS_MAX: usize = 8;

/// Operations of a session that wait for such a thread; as many as the control channel carries out at a time.
pub const WORK_WAITING_MAX: usize = longhaul_transport::limits::REPLIES_KEPT_MAX;

/// The value of one extended attribute: what fits into a message. Linux' own limit is 64 KiB.
pub const XATTR_VALUE_BYTES_MAX: usize = INLINE_BYTES_MAX;

/// The names of one file's extended attributes, as above.
pub const XATTR_LIST_BYTES_MAX: usize = INLINE_BYTES_MAX;
