//! FUSE's terms and the protocol's: users, attributes, times, devices, locks, errors.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno as FuseErrno, FileAttr, FileType, INodeNo, TimeOrNow};
use longhaul_files::IdRange;
use longhaul_files::client::{SetTime, User};
use longhaul_files::locks::LockKind;
use longhaul_files::message::{Attr, WireTime};
use rustix::fs::{FileType as Kind, OFlags};
use rustix::io::Errno;

/// How users' and groups' numbers of the server are shown here, and the other way round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ids {
    /// The server acts for all, and has given these ranges of users and of groups; none: the same on both hosts.
    All([Vec<IdRange>; 2]),
    /// The user (and group) that the server acts as is the one who has mounted it; so that nobody else is taken for one
    /// of them, the two numbers change places.
    One { uids: [u32; 2], gids: [u32; 2] },
}

/// Who has no number on the other host. Nobody else is that, not even user `nobody`: files of people without a number here would be his.
const UNKNOWN: u32 = u32::MAX - 1;

impl Ids {
    fn swapped([one, other]: [u32; 2], id: u32) -> u32 {
        match id {
            id if id == one => other,
            id if id == other => one,
            id => id,
        }
    }

    /// The server's number of a user of this host; `None`: it has none.
    pub(crate) fn far_uid(&self, uid: u32) -> Option<u32> {
        match self {
            Self::All([users, _]) => far_id(users, uid),
            Self::One { uids, .. } => Some(Self::swapped(*uids, uid)),
        }
    }

    /// And of a group.
    pub(crate) fn far_gid(&self, gid: u32) -> Option<u32> {
        match self {
            Self::All([_, groups]) => far_id(groups, gid),
            Self::One { gids, .. } => Some(Self::swapped(*gids, gid)),
        }
    }

    /// Who asks, as the server numbers users.
    pub(crate) fn user(&self, uid: u32, gid: u32) -> User {
        User { uid: self.far_uid(uid).unwrap_or(UNKNOWN), gid: self.far_gid(gid).unwrap_or(UNKNOWN) }
    }

    fn near(&self, (uid, gid): (u32, u32)) -> (u32, u32) {
        match self {
            Self::All([users, groups]) => (near_id(users, uid), near_id(groups, gid)),
            Self::One { uids, gids } => (Self::swapped(*uids, uid), Self::swapped(*gids, gid)),
        }
    }

    /// What a node is, in FUSE's terms.
    pub(crate) fn attr(&self, attr: &Attr) -> FileAttr {
        let (uid, gid) = self.near((attr.uid, attr.gid));
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
            uid,
            gid,
            rdev: device_number(attr.device_major, attr.device_minor),
            blksize: attr.block_size,
            flags: 0,
        }
    }
}

/// Where in `ranges` a number is: after the first of one, as `first` has it.
fn find(ranges: &[IdRange], id: u32, first: impl Fn(&IdRange) -> u32) -> Option<(&IdRange, u32)> {
    let within = |range| Some((range, id.checked_sub(first(range)).filter(|after| *after < range.count)?));
    ranges.iter().find_map(within)
}

/// Of the server's ranges, in which this host is "there". Root is root, unless they say something else.
fn far_id(ranges: &[IdRange], id: u32) -> Option<u32> {
    match find(ranges, id, |range| range.there) {
        Some((range, after)) => range.here.checked_add(after),
        None => (ranges.is_empty() || id == 0).then_some(id),
    }
}

fn near_id(ranges: &[IdRange], id: u32) -> u32 {
    let near = match find(ranges, id, |range| range.here) {
        Some((range, after)) => range.there.checked_add(after),
        None => (ranges.is_empty() || id == 0).then_some(id),
    };
    near.unwrap_or(UNKNOWN)
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
        let far = |uid, gid| (ids.far_uid(uid).unwrap(), ids.far_gid(gid).unwrap());
        assert_eq!([far(1001, 1002), far(500, 600), far(0, 7)], [(500, 600), (1001, 1002), (0, 7)]);
        assert_eq!(ids.near((500, 600)), (1001, 1002));
    }

    #[test]
    fn users_of_ranges_are_others_there_and_the_rest_are_nobody() {
        let range = |there, here, count| IdRange { there, here, count };
        let ids = Ids::All([vec![range(1000, 2000, 3), range(5, 6, 1)], Vec::new()]);
        let far = |uid| ids.far_uid(uid);
        assert_eq!([far(1000), far(1002), far(1003), far(2000)], [Some(2000), Some(2002), None, None]);
        assert_eq!([far(5), far(6), far(0), far(u32::MAX)], [Some(6), None, Some(0), None]);
        assert_eq!(
            [2000, 2002, 2003, 1000, 6, 0].map(|uid| ids.near((uid, 8)).0),
            [1000, 1002, UNKNOWN, UNKNOWN, 5, 0]
        );
        assert_eq!(ids.user(7, 8), User { uid: UNKNOWN, gid: 8 });
        // Whatever a server says.
        let ids = Ids::All([vec![range(10, u32::MAX - 1, u32::MAX), range(u32::MAX, 0, 0)], Vec::new()]);
        assert_eq!((ids.far_uid(12), ids.near((5, 0)).0), (None, UNKNOWN));
        let same = Ids::All(Default::default());
        assert_eq!((same.far_uid(1001), same.near((7, 8))), (Some(1001), (7, 8)));
    }
}
