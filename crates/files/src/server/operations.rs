//! The operations, each in a few system calls, on a thread with the user's rights.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Statx,
    Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::time::ClockId;

use super::caller::as_caller;
use super::coherence::{Change, Coherence, Gate};
use super::grace::{Grace, MountId};
use super::nodes::{Nodes, file_id, stat, stat_at};
use super::open_files::{OpenFile, OpenFiles, Sending};
use crate::direct::{DirectReads, DirectWrites};
use crate::lease::{Client, FileId};
use crate::limits::{
    INLINE_BYTES_MAX, KEPT_WHEN_FOUND_MAX, NAME_LOCKS, READ_BYTES_MAX, WHOLE_FILE_COST, WHOLE_FILES_MAX,
    WRITE_RANGES_MAX, XATTR_LIST_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use crate::message::{
    Acquire, Acquired, Allocate, Attr, Caller, Close, Content, CopyRange, Count, Create, Created, FileSystem,
    Forget, GetAttr, GetXattr, Grant, Link, ListXattr, Lookup, Loser, Make, NewTime, Node, Nothing, Open,
    Opened, Place, Read, ReadLink, ReadWhole, Reclaim, Reclaimed, Remove, RemoveXattr, Rename, SESSION_OVER,
    Seek, SetAttr, SetXattr, Settle, Settled, StatFs, Sync, SyncDir, TOP, Untouched, WholeFile, WholeFiles,
    WireTime, Write, Written, object,
};
use crate::name::Name;

/// What a session is attached to.
#[derive(Debug)]
pub(super) struct Mounted {
    pub(super) coherence: Arc<Coherence>,
    pub(super) client: Client,
    pub(super) gate: Arc<Gate>,
    /// Of directories whose names are being changed.
    pub(super) names: Arc<NameLocks>,
    pub(super) grace: Arc<Grace>,
    /// The client, if it may come again.
    pub(super) mount: Option<MountId>,
    /// It may take back what it had.
    pub(super) may_reclaim: bool,
    pub(super) nodes: Nodes,
    pub(super) files: OpenFiles,
    pub(super) direct: DirectWrites,
    pub(super) direct_reads: Arc<DirectReads>,
    pub(super) read_only: bool,
    /// Whose rights this session's threads have.
    pub(super) user: Caller,
    /// The client's word is taken for who does something.
    pub(super) acts_for_all: bool,
    /// But not for its root: see [`squash`](super::squash).
    pub(super) squashes_root: bool,
}

/// Operations that change names in the same directory are carried out one after the other: what has a name does not
/// change between being looked at and being changed. Of several directories the locks are taken in one order.
#[derive(Debug)]
pub(super) struct NameLocks([Mutex<()>; NAME_LOCKS]);

impl Default for NameLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl NameLocks {
    pub(super) fn lock(&self, dirs: &[FileId]) -> Vec<MutexGuard<'_, ()>> {
        let places: BTreeSet<usize> = dirs.iter().map(|dir| dir.inode as usize % NAME_LOCKS).collect();
        places.into_iter().map(|place| self.0[place].lock().unwrap_or_else(PoisonError::into_inner)).collect()
    }
}

/// What of open(2)'s flags a client may ask for. `O_DIRECT` is its own affair.
pub(super) const OPEN_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::WRONLY)
    .union(OFlags::RDWR)
    .union(OFlags::APPEND)
    .union(OFlags::TRUNC)
    .union(OFlags::SYNC)
    .union(OFlags::DSYNC)
    .union(OFlags::NOATIME);

const SET_ID: u32 = 0o6000;

pub(super) fn name(bytes: &Bytes) -> Result<Name, Errno> {
    if bytes.len() > crate::limits::NAME_BYTES_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    Name::new(bytes).map_err(|_| Errno::INVAL)
}

/// The path by which a system call finds what a descriptor stands for, also where it wants a path.
pub(super) fn path_of(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

fn xattr_name(name: &Bytes) -> Result<&OsStr, Errno> {
    if name.is_empty() || name.contains(&0) {
        return Err(Errno::INVAL);
    }
    Ok(OsStr::from_bytes(name))
}

/// Whether a count of extended attributes says that there are none.
fn is_none(bytes: Result<usize, Errno>) -> bool {
    matches!(bytes, Ok(0) | Err(Errno::OPNOTSUPP))
}

fn read_inline(fd: &OwnedFd, offset: u64, wanted: usize) -> Result<Bytes, Errno> {
    let mut data = vec![0; wanted];
    let mut filled = 0;
    while filled < wanted {
        match rustix::io::pread(fd, &mut data[filled..], offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(_) if filled > 0 => break,
            Err(error) => return Err(error),
        }
    }
    data.truncate(filled);
    Ok(data.into())
}

pub(super) fn may_write(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR)
}

impl Mounted {
    fn to_write(&self) -> Result<(), Errno> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Notes a lease on what will be read next of a node, if the client may have one. `in_dir`: the directory in which
    /// changes are noticed, and its name there.
    fn grant(
        &self,
        node: u64,
        stat: &Statx,
        in_dir: Option<(FileId, &Name)>,
        grants: &mut Vec<Grant>,
    ) -> Result<(), Errno> {
        let is_dir = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
        let file = file_id(stat);
        // A directory's names, and other names of a file, are not in that directory.
        let own_mark = is_dir || stat.stx_nlink > 1;
        if (in_dir.is_some() || node == TOP)
            && (!own_mark || self.coherence.watch_file(file, &*self.nodes.fd(node)?))
            && let Some(serial) = self.coherence.grant(self.client, file)
            && self.coherence.covers(file, in_dir, own_mark)
        {
            grants.push(Grant { node, serial });
        }
        Ok(())
    }

    fn attr(&self, fd: impl AsFd) -> Result<Attr, Errno> {
        let stat = stat(&fd)?;
        let no_xattrs = is_none(rustix::fs::listxattr_query(path_of(&fd)));
        Ok(Attr::of(&stat, self.nodes.number(&stat), no_xattrs))
    }

    /// What a node is, and leave to keep it.
    pub(super) fn attr_of(&self, node: u64, grants: &mut Vec<Grant>) -> Result<Attr, Errno> {
        self.grant_node(node, grants)?;
        self.attr(&*self.nodes.fd(node)?)
    }

    pub(super) fn grant_node(&self, node: u64, grants: &mut Vec<Grant>) -> Result<(), Errno> {
        let file = self.nodes.file(node)?;
        // The directory may be gone: then the file has no name there.
        let in_dir = self.nodes.place(node).and_then(|(parent, name)| {
            let dir = self.watched_dir(parent).ok().flatten();
            dir.filter(|dir| self.coherence.watch_name(*dir, &name, file)).map(|dir| (dir, name))
        });
        let in_dir = in_dir.as_ref().map(|(dir, name)| (*dir, name));
        self.grant(node, &stat(&*self.nodes.fd(node)?)?, in_dir, grants)
    }

    /// The directory, if changes that are made directly in it will be noticed.
    pub(super) fn watched_dir(&self, dir: u64) -> Result<Option<FileId>, Errno> {
        let file = self.nodes.file(dir)?;
        Ok(self.coherence.watch_file(file, &*self.nodes.fd(dir)?).then_some(file))
    }

    /// What has this name now; the client is told of it.
    pub(super) fn node(&self, parent: u64, name: &Name, grants: &mut Vec<Grant>) -> Result<Node, Errno> {
        let dir = self.watched_dir(parent)?;
        Ok(Node { attr: self.named(&*self.nodes.fd(parent)?, parent, dir, name, grants)?, dir: None })
    }

    /// What a directory is after a change of its names: a client that alone has changed it need not ask.
    pub(super) fn changed_dir(&self, dir: u64) -> Option<Attr> {
        self.attr(&*self.nodes.fd(dir).ok()?).ok()
    }

    /// The same in a directory that is open. `watched`: it is that, and changes in it are noticed.
    pub(super) fn named(
        &self,
        dir: &OwnedFd,
        parent: u64,
        watched: Option<FileId>,
        name: &Name,
        grants: &mut Vec<Grant>,
    ) -> Result<Attr, Errno> {
        let mut stat = stat_at(dir, name)?;
        let mut node = self.nodes.tell(parent, name, &stat)?;
        if let Some(watched) = watched {
            // First the lease, then what it is about; which file that is shows only by looking.
            let before = file_id(&stat);
            let in_dir = self.coherence.watch_name(watched, name, before).then_some((watched, name));
            let count = grants.len();
            // Gone again, perhaps: that shows below.
            let _ = self.grant(node, &stat, in_dir, grants);
            let again = stat_at(dir, name);
            let is_same = again.as_ref().is_ok_and(|again| file_id(again) == before);
            if !is_same {
                grants.truncate(count);
                self.untell(node);
            }
            stat = again?;
            if !is_same {
                node = self.nodes.tell(parent, name, &stat)?;
            }
        }
        let mut path = OsString::from(path_of(dir));
        path.push("/");
        path.push(name.as_os_str());
        Ok(Attr::of(&stat, node, is_none(rustix::fs::llistxattr_query(path))))
    }

    pub(super) fn look_up(&self, ask: &Lookup, grants: &mut Vec<Grant>) -> Result<Node, Errno> {
        let name = name(&ask.name)?;
        // That there is no such name is worth keeping, too.
        self.grant_node(ask.parent, grants)?;
        let found = self.node(ask.parent, &name, grants)?;
        if found.attr.size <= KEPT_WHEN_FOUND_MAX {
            // What is asked next is of this file or link, though another may have its name by then. If one has already, that shows.
            let _ = self.nodes.fd(found.attr.node);
        }
        Ok(found)
    }

    pub(super) fn forget(&self, ask: &Forget) -> Result<Nothing, Errno> {
        for forgotten in &ask.nodes {
            self.forget_node(forgotten.node, forgotten.times);
        }
        Ok(Nothing {})
    }

    fn forget_node(&self, node: u64, times: u64) {
        self.nodes.forget(node, times, |file| self.coherence.forgotten(self.client, file));
    }

    /// The client does not hear of a node that it was to be told of: what is to come of it is an error.
    pub(super) fn untell(&self, node: u64) {
        self.forget_node(node, 1);
    }

    pub(super) fn get_attr(&self, ask: GetAttr, grants: &mut Vec<Grant>) -> Result<Attr, Errno> {
        self.attr_of(ask.node, grants)
    }

    pub(super) fn set_attr(&self, ask: SetAttr) -> Result<Attr, Errno> {
        self.to_write()?;
        let fd = self.nodes.fd(ask.node)?;
        // -1 would mean "leave it"; and what an open file may is said of itself alone.
        if [ask.uid, ask.gid].contains(&Some(u32::MAX))
            || ask.file != 0 && self.files.get(ask.file)?.node != ask.node
        {
            return Err(Errno::INVAL);
        }
        if ask.uid.is_some() || ask.gid.is_some() {
            let (uid, gid) = (ask.uid.map(Uid::from_raw), ask.gid.map(Gid::from_raw));
            rustix::fs::chownat(&*fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(size) = ask.size {
            match ask.file {
                0 => rustix::fs::ftruncate(self.open_node(&fd, OFlags::WRONLY)?, size)?,
                file => rustix::fs::ftruncate(&self.files.get(file)?.fd, size)?,
            }
            if ask.drops_set_id {
                self.drop_set_id(&fd)?;
            }
        }
        let setter = self.setter(&stat(&*fd)?);
        let (is_another, setter) = (setter.is_some(), setter.unwrap_or_default());
        if let Some(mode) = ask.mode {
            let mode = Mode::from_raw_mode(mode & 0o7777);
            as_caller(is_another, setter, || rustix::fs::chmodat(CWD, path_of(&fd), mode, AtFlags::empty()))?;
        }
        if ask.accessed.is_some() || ask.modified.is_some() {
            let time = |time: Option<NewTime>| match time {
                None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
                Some(NewTime { now: true, .. }) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
                Some(NewTime { time, .. }) => {
                    Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.min(999_999_999).into() }
                }
            };
            let times = Timestamps { last_access: time(ask.accessed), last_modification: time(ask.modified) };
            as_caller(is_another, setter, || rustix::fs::utimensat(&*fd, "", &times, AtFlags::EMPTY_PATH))?;
        }
        self.attr(&*fd)
    }

    /// Takes set-user-id, and set-group-id where it means that, away, as the kernel does when somebody without
    /// privileges writes: this thread may have them.
    fn drop_set_id(&self, fd: impl AsFd) -> Result<(), Errno> {
        let mode = u32::from(stat(&fd)?.stx_mode);
        let group_may_execute = mode & 0o010 != 0;
        let drops = mode & if group_may_execute { SET_ID } else { 0o4000 };
        if drops != 0 && FileType::from_raw_mode(mode) == FileType::RegularFile {
            let mode = Mode::from_raw_mode(mode & 0o7777 & !drops);
            rustix::fs::chmodat(CWD, path_of(fd), mode, AtFlags::empty())?;
        }
        Ok(())
    }

    pub(super) fn read_link(&self, ask: ReadLink, grants: &mut Vec<Grant>) -> Result<Content, Errno> {
        self.grant_node(ask.node, grants)?;
        let target = rustix::fs::readlinkat(&*self.nodes.fd(ask.node)?, "", Vec::new())?;
        Ok(Content { data: target.into_bytes().into(), on_lanes: 0 })
    }

    pub(super) fn make(&self, ask: &Make, grants: &mut Vec<Grant>) -> Result<Node, Errno> {
        self.to_write()?;
        let (dir, name) = (self.nodes.fd(ask.parent)?, name(&ask.name)?);
        let kind = FileType::from_raw_mode(ask.mode);
        let is_dir = kind == FileType::Directory;
        let mode = Mode::from_raw_mode(if is_dir { ask.mode & 0o7777 } else { self.file_mode(ask.mode) });
        as_caller(self.acts_for_all, self.maker(ask.caller), || match kind {
            FileType::Directory => rustix::fs::mkdirat(&*dir, name.as_os_str(), mode),
            FileType::Symlink => rustix::fs::symlinkat(&*ask.target, &*dir, name.as_os_str()),
            FileType::Unknown => Err(Errno::INVAL),
            kind => {
                let device = rustix::fs::makedev(ask.device_major, ask.device_minor);
                rustix::fs::mknodat(&*dir, name.as_os_str(), kind, mode, device)
            }
        })?;
        Ok(Node { dir: self.changed_dir(ask.parent), ..self.node(ask.parent, &name, grants)? })
    }

    pub(super) fn create(
        &self,
        ask: &Create,
        grants: &mut Vec<Grant>,
    ) -> Result<(Created, Arc<Change>), Errno> {
        let asked = OFlags::from_bits_retain(ask.flags) & (OPEN_FLAGS | OFlags::EXCL);
        self.create_with(ask, asked | OFlags::CREATE, grants)
    }

    /// The same with these flags of open(2).
    pub(super) fn create_with(
        &self,
        ask: &Create,
        flags: OFlags,
        grants: &mut Vec<Grant>,
    ) -> Result<(Created, Arc<Change>), Errno> {
        self.to_write()?;
        let (dir, name) = (self.nodes.fd(ask.parent)?, name(&ask.name)?);
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(self.file_mode(ask.mode));
        // What turns out to be another than was looked at before is not emptied.
        let late = if self.squashes_root { flags & OFlags::TRUNC } else { OFlags::empty() };
        let fd = as_caller(self.acts_for_all, self.maker(ask.caller), || {
            rustix::fs::openat(&*dir, name.as_os_str(), flags.difference(late) | OFlags::NONBLOCK, mode)
        })?;
        let opened = stat(&fd)?;
        if FileType::from_raw_mode(opened.stx_mode.into()) != FileType::RegularFile {
            return Err(Errno::EXIST); // a pipe or device that was there
        }
        if !self.may_have_opened(&opened, flags) {
            return Err(Errno::ACCESS);
        }
        if !late.is_empty() {
            rustix::fs::ftruncate(&fd, 0)?;
        }
        let attr = self.named(&dir, ask.parent, self.watched_dir(ask.parent)?, &name, grants)?;
        if flags.contains(OFlags::TRUNC) {
            self.coherence.noticed_pages([file_id(&opened)]); // it may have been there
        }
        // Somebody may have found it already.
        let change = Arc::new(self.coherence.change(self.client, [file_id(&opened)]));
        let add = || {
            self.add_file(ask.file, fd, attr.node, flags, Some(Arc::clone(&change)))?;
            let exclusive = self.exclusive(file_id(&opened), flags);
            let mode = stat(&self.files.get(ask.file)?.fd)?.stx_mode.into();
            let node = Node { attr: Attr { mode, ..attr }, dir: self.changed_dir(ask.parent) };
            Ok(Created { node, exclusive })
        };
        let created = add().inspect_err(|_| self.untell(attr.node))?;
        Ok((created, change))
    }

    /// Makes the lease on a file that is being opened exclusive: its number; 0: it is not.
    fn exclusive(&self, file: FileId, flags: OFlags) -> u64 {
        if !may_write(flags) {
            return 0;
        }
        self.coherence.make_exclusive(self.client, file).unwrap_or(0)
    }

    /// The same for one that is open.
    pub(super) fn acquire(&self, ask: Acquire, grants: &mut Vec<Grant>) -> Result<Acquired, Errno> {
        let file = self.files.get(ask.file)?;
        self.grant_node(file.node, grants)?;
        let exclusive = self.coherence.make_exclusive(self.client, self.nodes.file(file.node)?);
        // What it is now it stays, as long as the lease is there.
        Ok(Acquired { exclusive: exclusive.unwrap_or(0), mode: stat(&file.fd)?.stx_mode.into() })
    }

    fn add_file(
        &self,
        number: u64,
        fd: OwnedFd,
        node: u64,
        flags: OFlags,
        change: Option<Arc<Change>>,
    ) -> Result<(), Errno> {
        let takes_pieces = may_write(flags) && !flags.contains(OFlags::APPEND);
        if self.files.add(number, OpenFile::new(fd, node, takes_pieces, change))? {
            // It has a descriptor for as long as it is open, if its name is taken away meanwhile.
            let _ = self.nodes.fd(node);
            self.nodes.opened(node);
        }
        Ok(())
    }

    pub(super) fn end_reclaim(&self) -> Result<Nothing, Errno> {
        let in_time = self.mount.is_some_and(|mount| {
            self.grace.replies.settled_all_but(mount, |file| self.files.get(file).is_ok());
            self.grace.has_reclaimed(mount)
        });
        if in_time || !self.may_reclaim { Ok(Nothing {}) } else { Err(Errno::TIMEDOUT) }
    }

    pub(super) fn reclaim(&self, ask: &Reclaim) -> Result<Reclaimed, Errno> {
        let is_there = |place: &Place| self.may_search(place.parent) && self.nodes.reclaim(place);
        let lost = ask.nodes.iter().filter(|place| !is_there(place));
        Ok(Reclaimed { lost: lost.map(|place| place.node).collect() })
    }

    pub(super) fn remove(&self, ask: &Remove, grants: &mut Vec<Grant>) -> Result<Loser, Errno> {
        self.to_write()?;
        let (dir, name) = (self.nodes.fd(ask.parent)?, name(&ask.name)?);
        if let Some(untouched) = ask.untouched {
            let is_it = stat_at(&*dir, &name).is_ok_and(|stat| self.is_untouched(&stat, untouched));
            if is_it && ask.may_stay {
                if let Some(kept) = self.keep_alone(ask.parent, &dir, grants) {
                    let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse); // as file systems have it
                    let now = WireTime { seconds: now.tv_sec, nanos: now.tv_nsec as u32 };
                    let dir =
                        self.changed_dir(ask.parent).map(|dir| Attr { modified: now, changed: now, ..dir });
                    return Ok(Loser { node: untouched.node, dir, kept, ..Loser::default() });
                }
            } else if !is_it && !ask.may_stay {
                return Err(Errno::STALE);
            }
        }
        self.nodes.will_lose_name(&*dir, &name);
        let loser = stat_at(&*dir, &name).map_or(0, |stat| self.nodes.number(&stat));
        let flags = if ask.is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let removed = rustix::fs::unlinkat(&*dir, name.as_os_str(), flags);
        if removed.is_err() {
            self.nodes.has_name(&*dir, ask.parent, &name);
        }
        removed.map(|()| Loser { node: loser, dir: self.changed_dir(ask.parent), ..Loser::default() })
    }

    fn is_untouched(&self, stat: &Statx, Untouched { node, modified }: Untouched) -> bool {
        let attr = Attr::of(stat, self.nodes.number(stat), true);
        let is_file = FileType::from_raw_mode(attr.mode) == FileType::RegularFile;
        is_file && (attr.node, attr.modified, attr.size, attr.links) == (node, modified, 0, 1)
    }

    /// Lets a client have to itself what names there are in a directory that it may change: the lease.
    fn keep_alone(&self, dir: u64, fd: &OwnedFd, grants: &mut Vec<Grant>) -> Option<u64> {
        let may = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(fd, ".", may, AtFlags::EACCESS).ok()?;
        self.grant_node(dir, grants).ok()?;
        self.coherence.keep_exclusive(self.client, self.nodes.file(dir).ok()?, fd)
    }

    pub(super) fn rename(&self, ask: &Rename) -> Result<Loser, Errno> {
        self.to_write()?;
        let (from, to) = (self.nodes.fd(ask.parent)?, self.nodes.fd(ask.new_parent)?);
        let (name, new_name) = (name(&ask.name)?, name(&ask.new_name)?);
        let flags = RenameFlags::from_bits_retain(ask.flags);
        if !(RenameFlags::EXCHANGE | RenameFlags::NOREPLACE).contains(flags) {
            return Err(Errno::INVAL);
        }
        self.nodes.will_lose_name(&*to, &new_name);
        let loser = stat_at(&*to, &new_name).map_or(0, |stat| self.nodes.number(&stat));
        let moved = stat_at(&*from, &name).map_or(0, |stat| self.nodes.number(&stat));
        let renamed = rustix::fs::renameat_with(&*from, name.as_os_str(), &*to, new_name.as_os_str(), flags);
        // Whatever has happened: both names are looked at, and lead to what has them.
        self.nodes.has_name(&*to, ask.new_parent, &new_name);
        self.nodes.has_name(&*from, ask.parent, &name);
        if renamed.is_ok() {
            // The asker's own leases, too: changes that others make under the new name would not be noticed.
            let moved = [(&*to, &new_name), (&*from, &name)];
            let moved = moved.iter().filter_map(|(dir, name)| Some(file_id(&stat_at(dir, name).ok()?)));
            self.coherence.noticed(moved);
        }
        let dirs = || (self.changed_dir(ask.parent), self.changed_dir(ask.new_parent));
        renamed.map(|()| dirs()).map(|(dir, new_dir)| Loser { node: loser, moved, dir, new_dir, kept: 0 })
    }

    pub(super) fn link(&self, ask: &Link, grants: &mut Vec<Grant>) -> Result<Node, Errno> {
        self.to_write()?;
        let (fd, dir, name) = (self.nodes.fd(ask.node)?, self.nodes.fd(ask.parent)?, name(&ask.name)?);
        rustix::fs::linkat(CWD, path_of(&fd), &*dir, name.as_os_str(), AtFlags::SYMLINK_FOLLOW)?;
        // As with a rename.
        self.coherence.noticed([self.nodes.file(ask.node)?]);
        Ok(Node { dir: self.changed_dir(ask.parent), ..self.node(ask.parent, &name, grants)? })
    }

    /// Opens the file that an `O_PATH` descriptor stands for.
    fn open_node(&self, fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
        // A device or a pipe would be this host's, not the client's.
        match FileType::from_raw_mode(stat(fd)?.stx_mode.into()) {
            FileType::RegularFile => {
                let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
                rustix::fs::openat(CWD, path_of(fd), flags, Mode::empty())
            }
            FileType::Directory => Err(Errno::ISDIR),
            FileType::Symlink => Err(Errno::LOOP),
            _ => Err(Errno::NXIO),
        }
    }

    /// `change`: of a file that is opened for writing, for as long as it is open.
    pub(super) fn open(
        &self,
        ask: Open,
        change: Option<Arc<Change>>,
        grants: &mut Vec<Grant>,
    ) -> Result<Opened, Errno> {
        let flags = OFlags::from_bits_retain(ask.flags) & OPEN_FLAGS;
        if may_write(flags) || flags.contains(OFlags::TRUNC) {
            self.to_write()?;
        }
        let fd = self.open_node(&*self.nodes.fd(ask.node)?, flags)?;
        // Others may take back that they have it to themselves.
        if !ask.reclaims || may_write(flags) {
            self.grant_node(ask.node, grants)?;
        }
        // What it is from then on.
        let exclusive = self.exclusive(self.nodes.file(ask.node)?, flags);
        let attr = self.attr(&fd)?;
        let is_read = !flags.contains(OFlags::WRONLY);
        let content = match is_read && !ask.reclaims && attr.size <= INLINE_BYTES_MAX as u64 {
            true => {
                Some(read_inline(&fd, 0, INLINE_BYTES_MAX)?).filter(|data| data.len() as u64 == attr.size)
            }
            false => None,
        };
        self.add_file(ask.file, fd, ask.node, flags, change.filter(|_| may_write(flags)))?;
        Ok(Opened { attr: Some(attr), content, exclusive })
    }

    /// The bytes themselves where they are few; else what is to be sent over the lanes.
    pub(super) fn read(&self, ask: Read) -> Result<(Content, Option<Sending>), Errno> {
        let file = self.files.get(ask.file)?;
        let length = ask.length.min(READ_BYTES_MAX);
        // Asking for the size first spares a buffer for bytes that are not there, and for many that are.
        let stat = stat(&file.fd)?;
        let available = stat.stx_size.saturating_sub(ask.offset).min(length.into());
        if available > INLINE_BYTES_MAX as u64 && ask.transfer != 0 {
            let direct = self.direct.are_best()
                && self.direct_reads.are_best(file_id(&stat), stat.stx_size, available);
            // That it may be read at all shows here, and not half way; and a byte that is read brings others into the page cache.
            rustix::io::pread(&file.fd, &mut [0_u8; 1][usize::from(direct)..], ask.offset)?;
            let sending = Sending { file, offset: ask.offset, direct, left: AtomicU64::new(available) };
            return Ok((Content { data: Bytes::new(), on_lanes: available as u32 }, Some(sending)));
        }
        let data = read_inline(&file.fd, ask.offset, (length as usize).min(INLINE_BYTES_MAX))?;
        Ok((Content { data, on_lanes: 0 }, None))
    }

    /// Those files that nobody is in the way of: the client has a lease on what it is told, and may keep it.
    pub(super) fn read_whole(&self, ask: &ReadWhole, grants: &mut Vec<Grant>) -> WholeFiles {
        let (mut files, mut room) = (Vec::new(), INLINE_BYTES_MAX);
        for &node in ask.nodes.iter().take(WHOLE_FILES_MAX) {
            let before = grants.len();
            match self.whole_file(node, room.saturating_sub(WHOLE_FILE_COST), grants) {
                Some(file) => {
                    room -= file.content.len() + WHOLE_FILE_COST;
                    files.push(file);
                }
                None => grants.truncate(before),
            }
        }
        WholeFiles { files }
    }

    fn whole_file(&self, node: u64, room: usize, grants: &mut Vec<Grant>) -> Option<WholeFile> {
        let before = grants.len();
        if !self.may_read(node) {
            return None;
        }
        // First the lease: there is none where another client has the file open for writing, or is changing it.
        self.grant_node(node, grants).ok()?;
        if grants.len() == before || !self.coherence.has_no_pages(self.nodes.file(node).ok()?) {
            return None;
        }
        let fd = self.nodes.fd(node).ok()?;
        // As for a listing that nobody has asked for.
        let open = |more| self.open_node(&fd, OFlags::RDONLY | more);
        let fd = open(OFlags::NOATIME).or_else(|_| open(OFlags::empty())).ok()?;
        let attr = self.attr(&fd).ok()?;
        let size = usize::try_from(attr.size).ok().filter(|size| *size <= room)?;
        let content = read_inline(&fd, 0, size).ok().filter(|content| content.len() == size)?;
        Some(WholeFile { attr, content })
    }

    pub(super) fn write(&self, ask: &Write) -> Result<Written, Errno> {
        let file = self.files.get(ask.file)?;
        // What it takes to write in place, or away from a file's mode, is done with this thread's rights, not by what was opened.
        if !file.is_written() {
            return Err(Errno::BADF);
        }
        let _open = self.gate.enter().ok_or(SESSION_OVER)?;
        file.write(&ask.data, ask.offset, ask.later)?;
        self.coherence.progress(self.client);
        if ask.drops_set_id {
            self.drop_set_id(&file.fd)?;
        }
        Ok(Written { attr: ask.tells.then(|| self.attr(&file.fd).ok()).flatten() })
    }

    pub(super) fn settle(&self, ask: Settle) -> Result<Settled, Errno> {
        let (here, failure) = self.files.get(ask.file)?.settle(ask.below, ask.write);
        let mut stored: Vec<(u64, u64)> = here.iter().collect();
        if let Some(mount) = self.mount {
            let replies = &self.grace.replies;
            // In a session before this one it had another number.
            if stored.is_empty() {
                stored = ask
                    .write
                    .map(|write| replies.stored_of(mount, object(ask.file, write)))
                    .unwrap_or_default();
            }
            replies.settled(mount, ask.file, Some(ask.below));
        }
        // Each takes 20 bytes of the message at the most.
        let stored =
            stored.into_iter().take(WRITE_RANGES_MAX).flat_map(|(start, end)| [start, end]).collect();
        match failure {
            None | Some(Errno::AGAIN) => Ok(Settled { stored, meets_pages: failure.is_some() }),
            Some(errno) => Err(errno),
        }
    }

    /// A piece of a write has been stored: the next server is to know that.
    pub(super) fn stored_piece(&self, object: u64, offset: u64, length: usize) {
        if let Some(mount) = self.mount {
            self.grace.replies.stored(mount, object, (offset, offset.saturating_add(length as u64)));
        }
    }

    pub(super) fn sync(&self, ask: Sync) -> Result<Nothing, Errno> {
        let file = self.files.get(ask.file)?;
        if ask.data_only {
            rustix::fs::fdatasync(&file.fd)?
        } else {
            rustix::fs::fsync(&file.fd)?
        }
        Ok(Nothing {})
    }

    pub(super) fn sync_dir(&self, ask: SyncDir) -> Result<Nothing, Errno> {
        rustix::fs::fsync(self.open_dir(ask.node, OFlags::empty())?)?;
        Ok(Nothing {})
    }

    pub(super) fn open_dir(&self, node: u64, more: OFlags) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // By `.` in it only those could who may look names up in it.
        rustix::fs::openat(CWD, path_of(&*self.nodes.fd(node)?), flags | more, Mode::empty())
    }

    pub(super) fn close(&self, ask: Close) -> Result<Nothing, Errno> {
        if let Some(mount) = self.mount {
            self.grace.replies.settled(mount, ask.file, None); // also where it was open in a session before this one only
        }
        let file = self.files.remove(ask.file)?;
        self.close_locks(ask.file, file.node);
        self.nodes.closed(file.node);
        Ok(Nothing {})
    }

    pub(super) fn stat_fs(&self, ask: StatFs) -> Result<FileSystem, Errno> {
        let fs = rustix::fs::fstatvfs(&*self.nodes.fd(ask.node)?)?;
        Ok(FileSystem {
            blocks: fs.f_blocks,
            free: fs.f_bfree,
            available: fs.f_bavail,
            files: fs.f_files,
            files_free: fs.f_ffree,
            block_size: fs.f_bsize,
            fragment_size: fs.f_frsize,
            name_max: fs.f_namemax,
        })
    }

    pub(super) fn get_xattr(&self, ask: &GetXattr) -> Result<Content, Errno> {
        let fd = self.nodes.fd(ask.node)?;
        let mut value = Vec::with_capacity(XATTR_VALUE_BYTES_MAX);
        match rustix::fs::getxattr(path_of(&fd), xattr_name(&ask.name)?, spare_capacity(&mut value)) {
            Ok(_) => Ok(Content { data: value.into(), on_lanes: 0 }),
            Err(Errno::RANGE) => Err(Errno::TOOBIG),
            Err(error) => Err(error),
        }
    }

    pub(super) fn set_xattr(&self, ask: &SetXattr) -> Result<Nothing, Errno> {
        self.to_write()?;
        let fd = self.nodes.fd(ask.node)?;
        let flags = XattrFlags::from_bits(ask.flags).ok_or(Errno::INVAL)?;
        rustix::fs::setxattr(path_of(&fd), xattr_name(&ask.name)?, &ask.value, flags)?;
        Ok(Nothing {})
    }

    pub(super) fn list_xattr(&self, ask: ListXattr) -> Result<Content, Errno> {
        let fd = self.nodes.fd(ask.node)?;
        let mut names = Vec::with_capacity(XATTR_LIST_BYTES_MAX);
        match rustix::fs::listxattr(path_of(&fd), spare_capacity(&mut names)) {
            Ok(_) => Ok(Content { data: names.into(), on_lanes: 0 }),
            Err(Errno::RANGE) => Err(Errno::TOOBIG),
            Err(error) => Err(error),
        }
    }

    pub(super) fn remove_xattr(&self, ask: &RemoveXattr) -> Result<Nothing, Errno> {
        self.to_write()?;
        rustix::fs::removexattr(path_of(&self.nodes.fd(ask.node)?), xattr_name(&ask.name)?)?;
        Ok(Nothing {})
    }

    pub(super) fn allocate(&self, ask: Allocate) -> Result<Nothing, Errno> {
        let _open = self.gate.enter().ok_or(SESSION_OVER)?;
        let flags = FallocateFlags::from_bits(ask.mode).ok_or(Errno::OPNOTSUPP)?;
        rustix::fs::fallocate(&self.files.get(ask.file)?.fd, flags, ask.offset, ask.length)?;
        Ok(Nothing {})
    }

    pub(super) fn seek(&self, ask: Seek) -> Result<Count, Errno> {
        let file = self.files.get(ask.file)?;
        let to = if ask.hole { SeekFrom::Hole(ask.offset) } else { SeekFrom::Data(ask.offset) };
        Ok(Count { count: rustix::fs::seek(&file.fd, to)? })
    }

    pub(super) fn copy_range(&self, ask: CopyRange) -> Result<Count, Errno> {
        let _open = self.gate.enter().ok_or(SESSION_OVER)?;
        let (from, to) = (self.files.get(ask.from_file)?, self.files.get(ask.to_file)?);
        let (mut at, mut into) = (ask.from, ask.to);
        let length = ask.length.min(COPY_BYTES_MAX) as usize;
        let count = rustix::fs::copy_file_range(&from.fd, Some(&mut at), &to.fd, Some(&mut into), length)?;
        Ok(Count { count: count as u64 })
    }
}

/// What one copy at the server takes on, so that the thread comes back in a moment.
const COPY_BYTES_MAX: u64 = 64 << 20;
