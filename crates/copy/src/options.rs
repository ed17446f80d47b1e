//! What a copy does and keeps, as the person who starts it says; both ends know it.

use prost::Message;

/// Which destination files are left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Existing {
    /// Those of equal size and time of change.
    SkipEqual = 0,
    /// Also those that are newer.
    SkipNewer = 1,
    /// None.
    Replace = 2,
    /// All that are there.
    SkipAll = 3,
}

/// When files are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Sync {
    /// Large files before they get their name, the rest together at the end.
    End = 0,
    /// Every file before it gets its name.
    Each = 1,
    /// Never: the system writes them when it likes.
    Never = 2,
}

/// How large files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Writing {
    /// Past the page cache where the destination is a local disk without moving parts.
    Auto = 0,
    /// Past the page cache.
    Direct = 1,
    /// Through the page cache.
    Buffered = 2,
}

/// The options of a copy.
#[derive(Clone, PartialEq, Message)]
pub struct CopyOptions {
    /// Directories with all that is in them; without it they are passed over.
    #[prost(bool, tag = "1")]
    pub recursive: bool,
    /// Exact permission bits and, where the receiving side may, owners.
    #[prost(bool, tag = "2")]
    pub preserve: bool,
    /// Extended attributes, POSIX access lists among them.
    #[prost(bool, tag = "3")]
    pub xattrs: bool,
    /// Files with several names stay one file.
    #[prost(bool, tag = "4")]
    pub hard_links: bool,
    /// Pipes, sockets and device files.
    #[prost(bool, tag = "5")]
    pub specials: bool,
    /// What links lead to, instead of links.
    #[prost(bool, tag = "6")]
    pub follow_links: bool,
    /// See [`Existing`].
    #[prost(enumeration = "Existing", tag = "7")]
    pub existing: i32,
    /// See [`Sync`].
    #[prost(enumeration = "Sync", tag = "8")]
    pub sync: i32,
    /// See [`Writing`].
    #[prost(enumeration = "Writing", tag = "9")]
    pub writing: i32,
    /// Only say what would be done.
    #[prost(bool, tag = "10")]
    pub dry_run: bool,
    /// Patterns of what stays behind; see [`Excludes`](crate::Excludes).
    #[prost(string, repeated, tag = "11")]
    pub excludes: Vec<String>,
    /// The destination is a directory that must be there, whatever it looks like.
    #[prost(bool, tag = "12")]
    pub into_directory: bool,
}
