//! What a file is, besides its bytes: kind, permission bits, owner, times, extended attributes.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::limits::{XATTR_BYTES_MAX, XATTRS_MAX};

/// The kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// With bytes.
    File,
    /// With names.
    Dir,
    /// With a target.
    Symlink,
    /// A pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// A time to the nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970, which may be negative.
    pub seconds: i64,
    /// And nanoseconds, below 1e9.
    pub nanos: u32,
}

impl Time {
    fn to_timespec(self) -> Timespec {
        Timespec { tv_sec: self.seconds, tv_nsec: self.nanos.min(999_999_999).into() }
    }
}

/// What `lstat` says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// What it is.
    pub kind: Kind,
    /// Permission bits with set-user-id, set-group-id and sticky: the low 12 bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes, of a file or a link's target.
    pub size: u64,
    /// Allocated 512-byte blocks: fewer than the size needs mean holes.
    pub blocks: u64,
    /// Time of the last change of its bytes, or what was set as such.
    pub modified: Time,
    /// Time of the last change of anything, its names and attributes included: cannot be set but by the clock.
    pub changed: Time,
    /// Names it has.
    pub links: u64,
    /// The file system it is on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// What a device file stands for.
    pub special_device: u64,
}

impl Attr {
    /// From the kernel's answer.
    #[must_use]
    pub fn from_stat(stat: &Stat) -> Option<Self> {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Dir,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::CharDevice,
            FileType::BlockDevice => Kind::BlockDevice,
            FileType::Unknown => return None,
        };
        Some(Self {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
            modified: Time { seconds: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
            changed: Time { seconds: stat.st_ctime, nanos: stat.st_ctime_nsec as u32 },
            links: stat.st_nlink,
            device: stat.st_dev,
            inode: stat.st_ino,
            special_device: stat.st_rdev,
        })
    }

    /// Whether some of its bytes are not stored.
    #[must_use]
    pub fn may_have_holes(&self) -> bool {
        self.kind == Kind::File && self.blocks.saturating_mul(512) < self.size
    }

    /// Whether it is still the file, with the bytes, that it was when `earlier` was read: as far as the times tell,
    /// which on most file systems go in steps of some milliseconds.
    #[must_use]
    pub fn is_unchanged_since(&self, earlier: &Self) -> bool {
        let version = |attr: &Self| (attr.device, attr.inode, attr.size, attr.modified, attr.changed);
        // A new mode or name also counts as a change: who writes and sets `modified` back leaves no other trace.
        version(self) == version(earlier)
    }
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// With its namespace, as `user.comment`.
    pub name: Vec<u8>,
    /// Any bytes.
    pub value: Vec<u8>,
}

/// Reads the attributes of an open file.
///
/// # Errors
/// As `fstat(2)`.
pub fn attr_of(file: impl AsFd) -> io::Result<Attr> {
    let stat = rustix::fs::fstat(file)?;
    Attr::from_stat(&stat).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Sets permission bits.
///
/// # Errors
/// As `fchmod(2)`.
pub fn set_mode(file: impl AsFd, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode & 0o7777))?)
}

/// Sets the time of the last change; the time of the last access is left alone.
///
/// # Errors
/// As `futimens(2)`.
pub fn set_modified(file: impl AsFd, modified: Time) -> io::Result<()> {
    Ok(rustix::fs::futimens(file, &timestamps(modified))?)
}

pub(crate) fn timestamps(modified: Time) -> Timestamps {
    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    Timestamps { last_access: omit, last_modification: modified.to_timespec() }
}

/// Sets owner and group.
///
/// # Errors
/// As `fchown(2)`.
pub fn set_owner(file: impl AsFd, uid: u32, gid: u32) -> io::Result<()> {
    Ok(rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?)
}

/// Reads all extended attributes that this user may see; none where the file system has none.
///
/// # Errors
/// When they are more than [`XATTR_BYTES_MAX`], or as `flistxattr(2)`.
pub fn read_xattrs(file: impl AsFd) -> io::Result<Vec<Xattr>> {
    let file = file.as_fd();
    let mut list = Vec::with_capacity(XATTR_BYTES_MAX);
    match rustix::fs::flistxattr(file, spare_capacity(&mut list)) {
        Ok(_) => {}
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    }
    let mut xattrs = Vec::new();
    let mut bytes = list.len();
    for name in list.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        let mut value = Vec::with_capacity(XATTR_BYTES_MAX);
        match rustix::fs::fgetxattr(file, OsStr::from_bytes(name), spare_capacity(&mut value)) {
            Ok(_) => {}
            // Gone in between, or listed but not readable for this user (security.*, trusted.*).
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => continue,
            Err(error) => return Err(error.into()),
        }
        bytes += value.len();
        if bytes > XATTR_BYTES_MAX || xattrs.len() >= XATTRS_MAX {
            return Err(io::Error::other("its extended attributes are too large to be copied"));
        }
        value.shrink_to_fit();
        xattrs.push(Xattr { name: name.to_vec(), value });
    }
    Ok(xattrs)
}

/// Sets an extended attribute.
///
/// # Errors
/// As `fsetxattr(2)`.
pub fn set_xattr(file: impl AsFd, xattr: &Xattr) -> io::Result<()> {
    let name = CString::new(xattr.name.as_slice()).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(rustix::fs::fsetxattr(file, name, &xattr.value, XattrFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn bytes_written_under_an_old_time_are_a_change() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"before").unwrap();
        let earlier = attr_of(&file).unwrap();
        assert!(attr_of(&file).unwrap().is_unchanged_since(&earlier));
        // As often as it takes: the clock of the file system may go in steps.
        let begun = Instant::now();
        let later = loop {
            std::os::unix::fs::FileExt::write_all_at(&file, b"behind", 0).unwrap();
            set_modified(&file, earlier.modified).unwrap();
            let later = attr_of(&file).unwrap();
            if later.changed != earlier.changed {
                break later;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "the clock stands");
        };
        assert_eq!((later.size, later.modified), (earlier.size, earlier.modified));
        assert!(!later.is_unchanged_since(&earlier));
    }
}
