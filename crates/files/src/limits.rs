//! Every bound of this crate, with its derivation.

/// Bytes in a name (NAME_MAX of Linux' file systems).
pub const NAME_BYTES_MAX: usize = 255;

/// Bytes in a relative path from a peer: PATH_MAX, so that errors can name it to other programs.
pub const PATH_BYTES_MAX: usize = 4096;

/// Directories below one another that a walk should go down: PATH_MAX (4096 bytes) at two bytes a level, a name of one
/// byte and its slash; deeper ones no program reaches by one path.
pub const DEPTH_MAX: usize = 2048;

/// Directories kept open per tree; one that is closed is opened again by way of its parents. Half of the 1024
/// descriptors that a process may have by default.
pub const OPEN_DIRS_MAX: usize = 512;

/// All extended attributes of one file together: what ext4 holds in a block by default is 4 KiB, XFS more.
pub const XATTR_BYTES_MAX: usize = 32 << 10;

/// Extended attributes of one file.
pub const XATTRS_MAX: usize = 256;
