//! A client whose root is nobody here (`root-squash`), though the server acts for all its users with root's rights.
//!
//! Who does something is the client's word, and what each of its users may do its kernel judges: such a client can act as any user of this
//! host. So it may do what some user could who is neither root nor in root's group, and nothing that only root could: [`Mounted::judge`] looks at
//! each operation before it is carried out, with whatever rights. A file's owner may change its mode, so that nothing is closed to him.

use std::io;

use rustix::fs::{FileType, OFlags, Statx};
use rustix::io::Errno;

use super::nodes::{stat, stat_at};
use super::operations::{Mounted, may_write, name};
use crate::dir::Dir;
use crate::message::{Ask, Caller, Create, Link, NewTime, Rename, SetAttr};
use crate::name::RelPath;

/// Bits of a class in a mode, as access(2) has them.
const READ: u16 = 4;
const WRITE: u16 = 2;
const SEARCH: u16 = 1;

/// Who root and its group are here (`nobody` and `nogroup`, on Debian).
const NOBODY: u32 = 65534;

const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;
const STICKY: u16 = 0o1000;

/// As who a client's user makes files.
pub(super) fn squashed(Caller { uid, gid }: Caller) -> Caller {
    let not_root = |id| if id == 0 { NOBODY } else { id };
    Caller { uid: not_root(uid), gid: not_root(gid) }
}

fn is_roots(stat: &Statx) -> bool {
    stat.stx_uid == 0
}

/// Whether it runs as root, or in root's group, whoever runs it. What writes to it takes that away, unless it has root's rights.
fn runs_as_root(stat: &Statx) -> bool {
    let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
    let (as_user, as_group) = (stat.stx_mode & SET_USER_ID != 0, stat.stx_mode & SET_GROUP_ID != 0);
    is_file && (as_user && is_roots(stat) || as_group && stat.stx_gid == 0)
}

/// Whether somebody who is not root may have this access.
fn may(stat: &Statx, access: u16) -> bool {
    let of = |class: u16| stat.stx_mode >> class & access == access;
    let is_open = !is_roots(stat) || of(0) || stat.stx_gid != 0 && of(3);
    is_open && !(access & WRITE != 0 && runs_as_root(stat))
}

fn unless(is_denied: bool, errno: Errno) -> Result<(), Errno> {
    if is_denied { Err(errno) } else { Ok(()) }
}

/// Goes to what is `below` a directory as somebody may who is not root. By links nobody goes: what they lead through would have to be looked
/// at, too.
pub(super) fn reach(dir: Dir, below: &RelPath) -> io::Result<Dir> {
    below.names().iter().try_fold(dir, |dir, name| {
        if !may(&stat(dir.fd()?)?, SEARCH) {
            let why = "only root may go there, and your key's root is nobody here";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        dir.open_dir(name)
    })
}

/// What opening a file like that wants.
fn access_of(flags: OFlags) -> u16 {
    let read = if flags.contains(OFlags::WRONLY) { 0 } else { READ };
    let write = if may_write(flags) || flags.contains(OFlags::TRUNC) { WRITE } else { 0 };
    read | write
}

/// Of chown(2), chmod(2) and utimensat(2), and truncate(2) of what is not open.
fn may_set(stat: &Statx, ask: &SetAttr) -> Result<(), Errno> {
    let gives_away = ask.uid.is_some_and(|uid| uid != stat.stx_uid);
    let to_roots_group = ask.gid.is_some_and(|gid| gid == 0 && gid != stat.stx_gid);
    let gid = ask.gid.unwrap_or(stat.stx_gid);
    let as_roots_group = gid == 0 && ask.mode.is_some_and(|mode| mode & u32::from(SET_GROUP_ID) != 0);
    unless(gives_away || to_roots_group || as_roots_group, Errno::PERM)?;
    let sets = |time: Option<NewTime>| time.is_some_and(|time| !time.now);
    let owns = ask.uid.or(ask.gid).or(ask.mode).is_some() || sets(ask.accessed) || sets(ask.modified);
    unless(owns && is_roots(stat), Errno::PERM)?;
    let touches = ask.accessed.or(ask.modified).is_some() || ask.size.is_some() && ask.file == 0;
    unless(touches && !may(stat, WRITE), Errno::ACCESS)
}

/// link(2) as /proc/sys/fs/protected_hardlinks has it.
fn may_link(stat: &Statx) -> bool {
    let runs_as_others =
        stat.stx_mode & SET_USER_ID != 0 || stat.stx_mode & (SET_GROUP_ID | 0o010) == SET_GROUP_ID | 0o010;
    let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
    !is_roots(stat) || is_file && !runs_as_others && may(stat, READ | WRITE)
}

/// Of extended attributes, by what their names begin with.
fn may_use_xattr(stat: &Statx, name: &[u8], changes: bool) -> Result<(), Errno> {
    let begins = |prefix: &[u8]| name.starts_with(prefix);
    match changes {
        _ if begins(b"user.") => unless(!may(stat, if changes { WRITE } else { READ }), Errno::ACCESS),
        _ if begins(b"trusted.") => Err(Errno::PERM),
        false => Ok(()),
        true if begins(b"system.posix_acl_") => unless(is_roots(stat), Errno::PERM),
        true => Err(Errno::PERM), // capabilities, labels
    }
}

impl Mounted {
    /// As who a client's user makes files.
    pub(super) fn maker(&self, caller: Caller) -> Caller {
        if self.squashes_root { squashed(caller) } else { caller }
    }

    /// The bits that a file is made with: one that is in root's group by its directory does not run so.
    pub(super) fn file_mode(&self, mode: u32) -> u32 {
        mode & 0o7777 & !(if self.squashes_root { u32::from(SET_GROUP_ID) } else { 0 })
    }

    /// Whether the client may have this carried out: `EACCES` or `EPERM` if only root could.
    pub(super) fn judge(&self, ask: &Ask) -> Result<(), Errno> {
        if !self.squashes_root {
            return Ok(());
        }
        match ask {
            Ask::Lookup(ask) => self.may_use(ask.parent, SEARCH),
            Ask::ReadDir(ask) => self.may_use(ask.node, READ | SEARCH),
            Ask::Open(ask) => self.may_use(ask.node, access_of(OFlags::from_bits_retain(ask.flags))),
            Ask::Create(ask) => self.may_create(ask),
            Ask::Make(ask) => {
                let is_device = FileType::from_raw_mode(ask.mode);
                let is_device = matches!(is_device, FileType::CharacterDevice | FileType::BlockDevice);
                unless(is_device, Errno::PERM)?;
                self.may_use(ask.parent, WRITE | SEARCH)
            }
            Ask::Remove(ask) => self.may_take_name(ask.parent, &ask.name).map(drop),
            Ask::Rename(ask) => self.may_rename(ask),
            Ask::Link(ask) => self.may_link(ask),
            Ask::SetAttr(ask) => may_set(&self.stat_of(ask.node)?, ask),
            Ask::GetXattr(ask) => may_use_xattr(&self.stat_of(ask.node)?, &ask.name, false),
            Ask::SetXattr(ask) => may_use_xattr(&self.stat_of(ask.node)?, &ask.name, true),
            Ask::RemoveXattr(ask) => may_use_xattr(&self.stat_of(ask.node)?, &ask.name, true),
            // Each by itself, as it is looked at: see `reclaim` and `whole_file`.
            Ask::Reclaim(_) | Ask::ReadWhole(_) => Ok(()),
            // What has been found may be looked at.
            Ask::GetAttr(_) | Ask::ReadLink(_) | Ask::StatFs(_) | Ask::ListXattr(_) | Ask::Map(_) => Ok(()),
            // What is open may be used as it was opened.
            Ask::Read(_)
            | Ask::Write(_)
            | Ask::Settle(_)
            | Ask::Acquire(_)
            | Ask::Sync(_)
            | Ask::Close(_)
            | Ask::Allocate(_)
            | Ask::Seek(_)
            | Ask::CopyRange(_)
            | Ask::PutLock(_)
            | Ask::StopWaiting(_) => Ok(()),
            Ask::Attach(_) | Ask::Forget(_) | Ask::SyncDir(_) | Ask::Renew(_) | Ask::EndReclaim(_) => Ok(()),
        }
    }

    /// Whether nodes may be looked for in a directory.
    pub(super) fn may_search(&self, dir: u64) -> bool {
        !self.squashes_root || self.may_use(dir, SEARCH).is_ok()
    }

    /// Whether a file may be read.
    pub(super) fn may_read(&self, node: u64) -> bool {
        !self.squashes_root || self.may_use(node, READ).is_ok()
    }

    /// Whether a file that has been opened by its name is one that may be used like that.
    pub(super) fn may_have_opened(&self, stat: &Statx, flags: OFlags) -> bool {
        !self.squashes_root || may(stat, access_of(flags))
    }

    /// Who is to set a file's mode and times: its owner, so that the kernel looks once more whose it is as it does so.
    pub(super) fn setter(&self, stat: &Statx) -> Option<Caller> {
        (self.squashes_root && !is_roots(stat))
            .then(|| squashed(Caller { uid: stat.stx_uid, gid: stat.stx_gid }))
    }

    fn stat_of(&self, node: u64) -> Result<Statx, Errno> {
        stat(&*self.nodes.fd(node)?)
    }

    fn may_use(&self, node: u64, access: u16) -> Result<(), Errno> {
        unless(!may(&self.stat_of(node)?, access), Errno::ACCESS)
    }

    fn may_create(&self, ask: &Create) -> Result<(), Errno> {
        self.may_use(ask.parent, SEARCH)?;
        match stat_at(&*self.nodes.fd(ask.parent)?, &name(&ask.name)?) {
            Ok(there) => unless(!may(&there, access_of(OFlags::from_bits_retain(ask.flags))), Errno::ACCESS),
            Err(_) => self.may_use(ask.parent, WRITE | SEARCH),
        }
    }

    /// A name may be taken away from a directory, or given to something else: what has it, if something does.
    fn may_take_name(&self, parent: u64, raw: &bytes::Bytes) -> Result<Option<Statx>, Errno> {
        let dir = self.stat_of(parent)?;
        unless(!may(&dir, WRITE | SEARCH), Errno::ACCESS)?;
        let there = stat_at(&*self.nodes.fd(parent)?, &name(raw)?).ok();
        let is_kept = dir.stx_mode & STICKY != 0 && is_roots(&dir);
        unless(is_kept && there.as_ref().is_some_and(is_roots), Errno::PERM)?;
        Ok(there)
    }

    fn may_rename(&self, ask: &Rename) -> Result<(), Errno> {
        let moved = [(ask.parent, &ask.name), (ask.new_parent, &ask.new_name)];
        for (parent, raw) in moved {
            let there = self.may_take_name(parent, raw)?;
            // Its `..` changes.
            let is_dir = |stat: &Statx| FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
            let is_kept = |stat: &Statx| is_dir(stat) && !may(stat, WRITE);
            unless(ask.parent != ask.new_parent && there.as_ref().is_some_and(is_kept), Errno::ACCESS)?;
        }
        Ok(())
    }

    fn may_link(&self, ask: &Link) -> Result<(), Errno> {
        self.may_use(ask.parent, WRITE | SEARCH)?;
        unless(!may_link(&self.stat_of(ask.node)?), Errno::PERM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file((uid, gid): (u32, u32), mode: u16) -> Statx {
        let mut stat = stat(std::fs::File::open("/").unwrap()).unwrap();
        (stat.stx_uid, stat.stx_gid, stat.stx_mode) = (uid, gid, 0o100_000 | mode);
        stat
    }

    #[test]
    fn what_only_root_could_use_is_closed() {
        for (ids, mode, access, expected) in [
            ((0, 0), 0o600, READ, false),
            ((0, 0), 0o640, READ, false), // nobody is in root's group
            ((0, 5), 0o640, READ, true),
            ((0, 5), 0o640, READ | WRITE, false),
            ((0, 5), 0o642, READ | WRITE, false), // one may read, another write
            ((0, 0), 0o644, READ, true),
            ((0, 0), 0o644, WRITE, false),
            ((0, 0), 0o755, SEARCH | READ, true),
            ((0, 0), 0o711, SEARCH | READ, false),
            ((7, 0), 0o000, READ | WRITE, true), // its owner may change that
            ((0, 5), 0o4775, WRITE, false),
            ((0, 5), 0o4775, READ, true),
            ((7, 0), 0o2777, WRITE, false),
            ((7, 5), 0o6777, WRITE, true),
        ] {
            assert_eq!(may(&file(ids, mode), access), expected, "{ids:?} {mode:o} {access}");
        }
    }

    #[test]
    fn what_only_root_could_change_stays() {
        let now = Some(NewTime { now: true, ..NewTime::default() });
        let then = Some(NewTime::default());
        let roots = file((0, 0), 0o666);
        let theirs = file((7, 7), 0o600);
        let of_roots_group = file((7, 0), 0o600);
        let none = SetAttr::default();
        for (stat, ask, expected) in [
            (&roots, SetAttr { mode: Some(0o777), ..none }, Err(Errno::PERM)),
            (&roots, SetAttr { uid: Some(0), ..none }, Err(Errno::PERM)),
            (&roots, SetAttr { accessed: then, ..none }, Err(Errno::PERM)),
            (&roots, SetAttr { accessed: now, size: Some(0), ..none }, Ok(())),
            (&file((0, 0), 0o644), SetAttr { modified: now, ..none }, Err(Errno::ACCESS)),
            (&file((0, 0), 0o644), SetAttr { size: Some(0), ..none }, Err(Errno::ACCESS)),
            (&file((0, 0), 0o644), SetAttr { size: Some(0), file: 3, ..none }, Ok(())),
            (&theirs, SetAttr { mode: Some(0o6755), accessed: then, ..none }, Ok(())),
            (&theirs, SetAttr { uid: Some(7), gid: Some(8), ..none }, Ok(())),
            (&theirs, SetAttr { uid: Some(8), ..none }, Err(Errno::PERM)),
            (&theirs, SetAttr { uid: Some(0), ..none }, Err(Errno::PERM)),
            (&theirs, SetAttr { gid: Some(0), ..none }, Err(Errno::PERM)),
            (&of_roots_group, SetAttr { gid: Some(0), mode: Some(0o755), ..none }, Ok(())),
            (&of_roots_group, SetAttr { mode: Some(0o2755), ..none }, Err(Errno::PERM)),
            (&of_roots_group, SetAttr { mode: Some(0o2755), gid: Some(7), ..none }, Ok(())),
        ] {
            assert_eq!(may_set(stat, &ask), expected, "{ask:?}");
        }
        for (stat, name, changes, is_allowed) in [
            (&theirs, &b"security.capability"[..], true, false),
            (&theirs, b"trusted.x", false, false),
            (&theirs, b"system.posix_acl_access", true, true),
            (&theirs, b"user.x", true, true),
            (&roots, b"system.posix_acl_access", true, false),
            (&roots, b"system.posix_acl_access", false, true),
            (&roots, b"user.x", true, true),
            (&file((0, 0), 0o644), b"user.x", true, false),
            (&file((0, 0), 0o600), b"user.x", false, false),
        ] {
            assert_eq!(may_use_xattr(stat, name, changes).is_ok(), is_allowed, "{name:?} {changes}");
        }
        assert!(may_link(&theirs) && may_link(&roots));
        assert!(!may_link(&file((0, 0), 0o644)) && !may_link(&file((0, 0), 0o4777)));
    }

    #[test]
    fn root_makes_files_as_nobody() {
        let caller = |uid, gid| Caller { uid, gid };
        assert_eq!(squashed(caller(0, 0)), caller(NOBODY, NOBODY));
        assert_eq!(squashed(caller(7, 0)), caller(7, NOBODY));
        assert_eq!(squashed(caller(7, 8)), caller(7, 8));
    }
}
