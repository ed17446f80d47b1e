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
