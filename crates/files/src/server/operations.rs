//! The operations, each in a few system calls, on a thread with the user's rights.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::caller::as_caller;
use super::nodes::{Nodes, stat};
use super::open_files::{OpenFile, OpenFiles, Sending, write_all_at};
use crate::limits::{
    INLINE_BYTES_MAX, LISTING_BYTES, READ_BYTES_MAX, XATTR_LIST_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use crate::message::{
    Allocate, Attr, Caller, Close, Content, CopyRange, Count, Create, Created, FileSystem, Forget, GetAttr,
    GetXattr, Link, ListXattr, Listed, Listing, Lookup, Make, NewTime, Node, Nothing, Open, Opened, Read,
    ReadDir, ReadLink, Remove, RemoveXattr, Rename, Seek, SetAttr, SetXattr, Settle, StatFs, Sync, SyncDir,
    Write,
};
use crate::name::Name;

/// What a session is attached to.
#[derive(Debug)]
pub(super) struct Mounted {
    pub(super) nodes: Nodes,
    pub(super) files: OpenFiles,
    pub(super) read_only: bool,
    /// Whose rights this session's threads have.
    pub(super) user: Caller,
    /// The client's word is taken for who does something.
    pub(super) acts_for_all: bool,
}

/// What of open(2)'s flags a client may ask for. `O_DIRECT` is its own affair.
const OPEN_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::WRONLY)
    .union(OFlags::RDWR)
    .union(OFlags::APPEND)
    .union(OFlags::TRUNC)
    .union(OFlags::SYNC)
    .union(OFlags::DSYNC)
    .union(OFlags::NOATIME);

const SET_ID: u32 = 0o6000;

fn name(bytes: &Bytes) -> Result<Name, Errno> {
    if bytes.len() > crate::limits::NAME_BYTES_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    Name::new(bytes).map_err(|_| Errno::INVAL)
}

/// The path by which a system call finds what a descriptor stands for, also where it wants a path.
fn path_of(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

fn xattr_name(name: &Bytes) -> Result<&OsStr, Errno> {
    if name.is_empty() || name.contains(&0) {
        return Err(Errno::INVAL);
    }
    Ok(OsStr::from_bytes(name))
}

fn may_write(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR)
}

impl Mounted {
    fn to_write(&self) -> Result<(), Errno> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    fn attr(&self, fd: impl AsFd) -> Result<Attr, Errno> {
        let stat = stat(fd)?;
        Ok(Attr::of(&stat, self.nodes.number(&stat)))
    }

    /// What has this name now; the client is told of it.
    fn node(&self, parent: u64, name: &Name) -> Result<Node, Errno> {
        let (node, stat) = self.nodes.look_up(parent, name)?;
        Ok(Node { attr: Attr::of(&stat, node) })
    }

    pub(super) fn look_up(&self, ask: &Lookup) -> Result<Node, Errno> {
        self.node(ask.parent, &name(&ask.name)?)
    }

    pub(super) fn forget(&self, ask: &Forget) -> Result<Nothing, Errno> {
        for forgotten in &ask.nodes {
            self.nodes.forget(forgotten.node, forgotten.times);
        }
        Ok(Nothing {})
    }

    pub(super) fn get_attr(&self, ask: GetAttr) -> Result<Attr, Errno> {
        self.attr(&*self.nodes.fd(ask.node)?)
    }

    pub(super) fn set_attr(&self, ask: SetAttr) -> Result<Attr, Errno> {
        self.to_write()?;
        let fd = self.nodes.fd(ask.node)?;
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
        if let Some(mode) = ask.mode {
            rustix::fs::chmodat(CWD, path_of(&fd), Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
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
            rustix::fs::utimensat(&*fd, "", &times, AtFlags::EMPTY_PATH)?;
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

    pub(super) fn read_link(&self, ask: ReadLink) -> Result<Content, Errno> {
        let target = rustix::fs::readlinkat(&*self.nodes.fd(ask.node)?, "", Vec::new())?;
        Ok(Content { data: target.into_bytes().into(), on_lanes: 0 })
    }

    pub(super) fn make(&self, ask: &Make) -> Result<Node, Errno> {
        self.to_write()?;
        let (dir, name) = (self.nodes.fd(ask.parent)?, name(&ask.name)?);
        let (kind, mode) = (FileType::from_raw_mode(ask.mode), Mode::from_raw_mode(ask.mode & 0o7777));
        as_caller(self.acts_for_all, ask.caller, || match kind {
            FileType::Directory => rustix::fs::mkdirat(&*dir, name.as_os_str(), mode),
            FileType::Symlink => rustix::fs::symlinkat(&*ask.target, &*dir, name.as_os_str()),
            FileType::Unknown => Err(Errno::INVAL),
            kind => {
                let device = rustix::fs::makedev(ask.device_major, ask.device_minor);
                rustix::fs::mknodat(&*dir, name.as_os_str(), kind, mode, device)
            }
        })?;
        self.node(ask.parent, &name)
    }

    pub(super) fn create(&self, ask: &Create) -> Result<Created, Errno> {
        self.to_write()?;
        let (dir, name) = (self.nodes.fd(ask.parent)?, name(&ask.name)?);
        let asked = OFlags::from_bits_retain(ask.flags);
        let flags =
            (asked & (OPEN_FLAGS | OFlags::EXCL)) | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(ask.mode & 0o7777);
        let fd = as_caller(self.acts_for_all, ask.caller, || {
            rustix::fs::openat(&*dir, name.as_os_str(), flags | OFlags::NONBLOCK, mode)
        })?;
        let opened = stat(&fd)?;
        if FileType::from_raw_mode(opened.stx_mode.into()) != FileType::RegularFile {
            return Err(Errno::EXIST); // a pipe or device that was there
        }
        let node = self.nodes.tell(ask.parent, &name, &opened)?;
        let file = self.add_file(fd, node, flags, false)?;
        Ok(Created { node: Node { attr: Attr::of(&opened, node) }, file })
    }

    fn add_file(&self, fd: OwnedFd, node: u64, flags: OFlags, is_dir: bool) -> Result<u64, Errno> {
        let takes_pieces = may_write(flags) && !flags.contains(OFlags::APPEND);
        let file = self.files.add(OpenFile::new(fd, node, takes_pieces, is_dir))?;
        self.nodes.opened(node);
        Ok(file)
    }

    pub(super) fn remove(&self, ask: &Remove) -> Result<Nothing, Errno> {
        self.to_write()?;
        let (dir, name) = (self.nodes.fd(ask.parent)?, name(&ask.name)?);
        self.nodes.will_lose_name(&*dir, &name);
        let flags = if ask.is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let removed = rustix::fs::unlinkat(&*dir, name.as_os_str(), flags);
        if removed.is_err() {
            self.nodes.has_name(&*dir, ask.parent, &name);
        }
        removed.map(|()| Nothing {})
    }

    pub(super) fn rename(&self, ask: &Rename) -> Result<Nothing, Errno> {
        self.to_write()?;
        let (from, to) = (self.nodes.fd(ask.parent)?, self.nodes.fd(ask.new_parent)?);
        let (name, new_name) = (name(&ask.name)?, name(&ask.new_name)?);
        let flags = RenameFlags::from_bits_retain(ask.flags);
        if !(RenameFlags::EXCHANGE | RenameFlags::NOREPLACE).contains(flags) {
            return Err(Errno::INVAL);
        }
        self.nodes.will_lose_name(&*to, &new_name);
        let renamed = rustix::fs::renameat_with(&*from, name.as_os_str(), &*to, new_name.as_os_str(), flags);
        // Whatever has happened: both names are looked at, and lead to what has them.
        self.nodes.has_name(&*to, ask.new_parent, &new_name);
        self.nodes.has_name(&*from, ask.parent, &name);
        renamed.map(|()| Nothing {})
    }

    pub(super) fn link(&self, ask: &Link) -> Result<Node, Errno> {
        self.to_write()?;
        let (fd, dir, name) = (self.nodes.fd(ask.node)?, self.nodes.fd(ask.parent)?, name(&ask.name)?);
        rustix::fs::linkat(CWD, path_of(&fd), &*dir, name.as_os_str(), AtFlags::SYMLINK_FOLLOW)?;
        self.node(ask.parent, &name)
    }

    /// Opens what an `O_PATH` descriptor stands for.
    fn open_node(&self, fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
        // A device or a pipe would be this host's, not the client's.
        match FileType::from_raw_mode(stat(fd)?.stx_mode.into()) {
            FileType::RegularFile => {
                let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
                rustix::fs::openat(CWD, path_of(fd), flags, Mode::empty())
            }
            FileType::Directory if may_write(flags) => Err(Errno::ISDIR),
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::openat(fd, ".", flags, Mode::empty())
            }
            FileType::Symlink => Err(Errno::LOOP),
            _ => Err(Errno::NXIO),
        }
    }

    pub(super) fn open(&self, ask: Open) -> Result<Opened, Errno> {
        let flags = OFlags::from_bits_retain(ask.flags) & OPEN_FLAGS;
        if may_write(flags) || flags.contains(OFlags::TRUNC) {
            self.to_write()?;
        }
        let node_fd = self.nodes.fd(ask.node)?;
        let is_dir = FileType::from_raw_mode(stat(&node_fd)?.stx_mode.into()) == FileType::Directory;
        let fd = self.open_node(&node_fd, flags)?;
        Ok(Opened { file: self.add_file(fd, ask.node, flags, is_dir)? })
    }

    /// The bytes themselves where they are few; else what is to be sent over the lanes.
    pub(super) fn read(&self, ask: Read) -> Result<(Content, Option<Sending>), Errno> {
        let file = self.files.get(ask.file)?;
        let length = ask.length.min(READ_BYTES_MAX);
        // Asking for the size first spares a buffer for bytes that are not there, and for many that are.
        let available = stat(&file.fd)?.stx_size.saturating_sub(ask.offset).min(length.into());
        if available > INLINE_BYTES_MAX as u64 && ask.transfer != 0 {
            // That it may be read at all shows here, and not half way.
            rustix::io::pread(&file.fd, &mut [0_u8; 1], ask.offset)?;
            let sending = Sending { file, offset: ask.offset, left: AtomicU64::new(available) };
            return Ok((Content { data: Bytes::new(), on_lanes: available as u32 }, Some(sending)));
        }
        let wanted = (length as usize).min(INLINE_BYTES_MAX);
        let mut data = vec![0; wanted];
        let mut filled = 0;
        while filled < wanted {
            match rustix::io::pread(&file.fd, &mut data[filled..], ask.offset.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(_) if filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        data.truncate(filled);
        Ok((Content { data: data.into(), on_lanes: 0 }, None))
    }

    pub(super) fn write(&self, ask: &Write) -> Result<Count, Errno> {
        let file = self.files.get(ask.file)?;
        write_all_at(&file.fd, &ask.data, ask.offset)?;
        if ask.drops_set_id {
            self.drop_set_id(&file.fd)?;
        }
        Ok(Count { count: ask.data.len() as u64 })
    }

    pub(super) fn settle(&self, ask: Settle) -> Result<Nothing, Errno> {
        self.files.get(ask.file)?.settle(ask.below, ask.write).map(|()| Nothing {})
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
        rustix::fs::fsync(&self.files.get(ask.file)?.fd)?;
        Ok(Nothing {})
    }

    pub(super) fn close(&self, ask: Close) -> Result<Nothing, Errno> {
        let file = self.files.remove(ask.file)?;
        self.nodes.closed(file.node);
        Ok(Nothing {})
    }

    pub(super) fn read_dir(&self, ask: ReadDir) -> Result<Listing, Errno> {
        let file = self.files.get(ask.file)?;
        if !file.is_dir {
            return Err(Errno::NOTDIR);
        }
        let _alone = file.listing.lock().unwrap_or_else(PoisonError::into_inner);
        // Places in a directory are the file system's own, and may be any number of 63 bits.
        rustix::fs::seek(&file.fd, SeekFrom::Start(ask.from & i64::MAX as u64))?;
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut entries = RawDir::new(&file.fd, &mut buffer);
        let mut listing = Listing::default();
        let mut bytes = 0;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let (raw, next) = (entry.file_name().to_bytes(), entry.next_entry_cookie());
            let attr = match Name::new(raw) {
                // Its attributes are not asked for: they are another directory's.
                Err(_) if raw == b"." || raw == b".." => None,
                Err(_) => continue, // too long for a client
                Ok(name) => match self.nodes.look_up_in(&file.fd, file.node, &name) {
                    Ok((node, stat)) => Some(Attr::of(&stat, node)),
                    Err(Errno::NOENT) => continue, // gone since
                    Err(error) => return Err(error),
                },
            };
            let listed = Listed { name: Bytes::copy_from_slice(raw), attr, next };
            bytes += prost::Message::encoded_len(&listed) + 4;
            listing.entries.push(listed);
            if bytes > LISTING_BYTES {
                return Ok(listing);
            }
        }
        listing.at_end = true;
        Ok(listing)
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
        let (from, to) = (self.files.get(ask.from_file)?, self.files.get(ask.to_file)?);
        let (mut at, mut into) = (ask.from, ask.to);
        let length = ask.length.min(COPY_BYTES_MAX) as usize;
        let count = rustix::fs::copy_file_range(&from.fd, Some(&mut at), &to.fd, Some(&mut into), length)?;
        Ok(Count { count: count as u64 })
    }
}

/// What one copy at the server takes on, so that the thread comes back in a moment.
const COPY_BYTES_MAX: u64 = 64 << 20;
