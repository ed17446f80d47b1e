//! FUSE's terms and the protocol's: users, attributes, times, devices, locks, errors.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno as FuseErrno, FileAttr, FileType, INodeNo, TimeOrNow};
use longhaul_files::client::SetTime;
use longhaul_files::locks::LockKind;
use longhaul_files::message::{Attr, WireTime};
use rustix::fs::{FileType as Kind, OFlags};
use rustix::io::Errno;

/// How users' and groups' numbers of the server are shown here, and the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ids {
    /// The same on both hosts: the server acts for all.
    Same,
    /// The user (and group) that the server acts as is the one who has mounted it; so that nobody else is taken for one
    /// of them, the two numbers change places.
    One { uids: [u32; 2], gids: [u32; 2] },
}

impl Ids {
    fn swapped([one, other]: [u32; 2], id: u32) -> u32 {
        match id {
            id if id == one => other,
            id if id == other => one,
            id => id,
        }
    }

    pub(crate) fn uid(self, uid: u32) -> u32 {
        match self {
            Self::Same => uid,
            Self::One { uids, .. } => Self::swapped(uids, uid),
        }
    }

    pub(crate) fn gid(self, gid: u32) -> u32 {
        match self {
            Self::Same => gid,
            Self::One { gids, .. } => Self::swapped(gids, gid),
        }
    }

    /// What a node is, in FUSE's terms.
    pub(crate) fn attr(self, attr: &Attr) -> FileAttr {
        FileAttr {
            ino: INodeNo(attr.node),
            size: attr.size,
            blocks: attr.blocks,
            atime: system_time(attr.accessed),
            mtime: system_time(attr.modified),
            ctime: system_time(attr.changed),
            crtime: UNIX_EPOCH,
            kind: kind(attr.mode),
            perm: (attr.mode & 0o7777) as u16,
            nlink: attr.links,
            uid: self.uid(attr.uid),
            gid: self.gid(attr.gid),
            rdev: device_number(attr.device_major, attr.device_minor),
            blksize: attr.block_size,
            flags: 0,
        }
    }
}

pub(crate) fn fuse_errno(errno: Errno) -> FuseErrno {
    FuseErrno::from_i32(errno.raw_os_error())
}

pub(crate) fn system_time(time: WireTime) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let begin = if time.seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    begin.and_then(|begin| begin.checked_add(Duration::from_nanos(time.nanos.into()))).unwrap_or(UNIX_EPOCH)
}

pub(crate) fn wire_time(time: SystemTime) -> WireTime {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => WireTime { seconds: after.as_secs() as i64, nanos: after.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            match before.subsec_nanos() {
                0 => WireTime { seconds: -(before.as_secs() as i64), nanos: 0 },
                nanos => WireTime { seconds: -(before.as_secs() as i64) - 1, nanos: 1_000_000_000 - nanos },
            }
        }
    }
}

pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(wire_time(time)),
    }
}

pub(crate) fn kind(mode: u32) -> FileType {
    match Kind::from_raw_mode(mode) {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::RegularFile | Kind::Unknown => FileType::RegularFile,
    }
}

/// The kernel's way to write a device's number in FUSE (new_encode_dev).
pub(crate) fn device_number(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// And back.
pub(crate) fn device_parts(device: u32) -> (u32, u32) {
    ((device & 0xf_ff00) >> 8, (device & 0xff) | ((device >> 12) & 0xf_ff00))
}

/// Whether modes let a user read (4), write (2) and execute (1), as is wanted. Of the user's groups one is known.
pub(crate) fn may(attr: &FileAttr, uid: u32, gid: u32, wanted: u32) -> bool {
    let mode = u32::from(attr.perm);
    let bits = match () {
        () if uid == 0 && (attr.kind == FileType::Directory || mode & 0o111 != 0) => 0o7,
        () if uid == 0 => 0o6,
        () if uid == attr.uid => mode >> 6,
        () if gid == attr.gid => mode >> 3,
        // One of the groups that are not known may be the file's.
        () => mode | mode >> 3,
    };
    wanted & !bits == 0
}

/// `None`: no lock.
pub(crate) fn lock_kind(raw: i32) -> Option<LockKind> {
    match raw {
        libc::F_RDLCK => Some(LockKind::Shared),
        libc::F_WRLCK => Some(LockKind::Exclusive),
        _ => None,
    }
}

pub(crate) fn open_flags(raw: i32) -> OFlags {
    OFlags::from_bits_retain(raw as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_there_and_back() {
        for (seconds, nanos) in
            [(0, 0), (1, 5), (-1, 0), (-1, 999_999_999), (-2_000_000_000, 1), (4_000_000_000, 7)]
        {
            let time = WireTime { seconds, nanos };
            assert_eq!(wire_time(system_time(time)), time);
        }
    }

    #[test]
    fn device_numbers_go_there_and_back() {
        for (major, minor) in [(0, 0), (8, 1), (4095, 0xf_ffff), (1, 256)] {
            assert_eq!(device_parts(device_number(major, minor)), (major, minor));
        }
    }

    #[test]
    fn one_user_is_the_same_on_both_hosts_and_nobody_else_is() {
        let ids = Ids::One { uids: [1001, 500], gids: [1002, 600] };
        assert_eq!((ids.uid(1001), ids.uid(500), ids.uid(0)), (500, 1001, 0));
        assert_eq!((ids.gid(1002), ids.gid(600), ids.gid(7)), (600, 1002, 7));
        assert_eq!(Ids::Same.uid(1001), 1001);
    }
}
