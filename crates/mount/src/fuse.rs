//! FUSE's requests as calls of the files client. Each is answered by a task of its own: the threads that read the
//! kernel's requests never wait.
//!
//! The kernel keeps no bytes of files (`FOPEN_DIRECT_IO`) but those that are mapped, and long files' that are read from memory only;
//! these it gives back when it is told to. It keeps no names or attributes beyond the request that asked for them. What may be kept, the files client keeps, under leases:
//! it is asked each time.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno as FuseErrno, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use longhaul_files::client::{Change, HowWritten, LockHeld, LockRange, User, only_reads};
use longhaul_files::locks::LockKind;
use longhaul_files::message::Attr;
use longhaul_files::{Listed, Remote, Statistics, TOP};
use rustix::fs::FileType as Kind;
use rustix::io::Errno;
use tokio::runtime::Handle;

use crate::awake::Awake;
use crate::signal::has_signal;
use crate::translate::{Ids, device_parts, fuse_errno, lock_kind, may, open_flags, set_time};

/// The extended attribute of a mount's top that has [`Statistics`], encoded; no file at the server has it.
pub const STATISTICS: &str = "user.longhaul.statistics";

/// Nothing is known beyond the request that asked.
const TTL: Duration = Duration::ZERO;

/// Bytes of one read(2) or write(2) that the kernel passes on in one request: 256 pages are its limit for users'
/// file systems, unless fs.fuse.max_pages_limit says otherwise.
const REQUEST_BYTES: u32 = 1 << 20;

/// Requests of the kernel's own (of mapped files, and direct I/O in the background) that it makes at a time. Among these are pages that
/// are written back because other requests wait for them: so it is not kept from any.
const BACKGROUND_REQUESTS: u16 = u16::MAX;

/// The file system.
#[derive(Debug)]
pub(crate) struct Fuse {
    shared: Arc<Shared>,
    runtime: Handle,
    awake: Option<Awake>,
}

#[derive(Debug)]
struct Shared {
    remote: Remote,
    ids: Ids,
    /// Directories that are being read, by the handle that the kernel has.
    listings: Mutex<HashMap<u64, Option<Arc<Vec<Listed>>>>>,
    last_listing: AtomicU64,
    /// What the kernel has asked for.
    requests: AtomicU64,
}

impl Fuse {
    pub(crate) fn new(remote: Remote, ids: Ids, runtime: Handle, awake: Option<Awake>) -> Self {
        let (listings, last_listing, requests) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        let shared = Arc::new(Shared { remote, ids, listings, last_listing, requests });
        Self { shared, runtime, awake }
    }

    /// Who asks, as the server numbers users.
    fn user(&self, request: &Request) -> User {
        self.shared.ids.user(request.uid(), request.gid())
    }

    /// Counts a request that is answered at once.
    fn count(&self) {
        let before = self.shared.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(awake) = &self.awake {
            awake.request(before + 1);
        }
    }

    /// Answers a request in a task of its own.
    fn answer<F: Future<Output = ()> + Send + 'static>(&self, answer: impl FnOnce(Arc<Shared>) -> F) {
        self.count();
        self.runtime.spawn(answer(Arc::clone(&self.shared)));
    }
}

impl Shared {
    fn entry(&self, result: Result<Attr, Errno>, reply: ReplyEntry) {
        match result {
            Ok(attr) => reply.entry(&TTL, &self.ids.attr(&attr), Generation(0)),
            Err(error) => reply.error(fuse_errno(error)),
        }
    }

    fn attr(&self, result: Result<Attr, Errno>, reply: ReplyAttr) {
        match result {
            Ok(attr) => reply.attr(&TTL, &self.ids.attr(&attr)),
            Err(error) => reply.error(fuse_errno(error)),
        }
    }

    fn listings(&self) -> MutexGuard<'_, HashMap<u64, Option<Arc<Vec<Listed>>>>> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory as it was when its reading began.
    async fn listing(&self, node: u64, handle: u64, begins: bool) -> Result<Arc<Vec<Listed>>, Errno> {
        let known = self.listings().get(&handle).cloned().flatten();
        match known {
            Some(listing) if !begins => Ok(listing),
            _ => {
                let listing = self.remote.read_dir(node).await?;
                self.listings().insert(handle, Some(Arc::clone(&listing)));
                Ok(listing)
            }
        }
    }
}

fn empty(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(fuse_errno(error)),
    }
}

/// An attribute's value, or how long it is.
fn xattr(result: Result<Bytes, Errno>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(FuseErrno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(fuse_errno(error)),
    }
}

/// Past the pages that the kernel has of a file, and several writers of it at a time; or by way of them. A reader leaves them there,
/// as they are told of others' changes: who reads next may come to them.
fn how_opened(by_pages: bool, only_reads: bool) -> FopenFlags {
    let way = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
    let way = if by_pages { FopenFlags::empty() } else { way };
    if only_reads { way | FopenFlags::FOPEN_KEEP_CACHE } else { way }
}

impl Filesystem for Fuse {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each is of use by itself, and not all kernels have all.
        for wish in [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
        ] {
            if let Err(missing) = config.add_capabilities(wish) {
                tracing::debug!(?missing, "this kernel's FUSE cannot do that");
            }
        }
        // Where this host's kernel judges, it has to know access control lists, too: with one, a mode's bits of the group say what others
        // than its members may have.
        if matches!(self.shared.ids, Ids::All(_))
            && let Err(missing) = config.add_capabilities(InitFlags::FUSE_POSIX_ACL)
        {
            tracing::warn!(
                ?missing,
                "this kernel's FUSE does not know access control lists: modes alone count"
            );
        }
        let _ = config.set_max_write(REQUEST_BYTES); // the nearest that works stays
        let _ = config.set_max_background(BACKGROUND_REQUESTS); // as above
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.answer(|shared| async move {
            let result = shared.remote.look_up(parent.0, name.as_bytes()).await;
            shared.entry(result, reply);
        });
    }

    fn forget(&self, _request: &Request, node: INodeNo, times: u64) {
        self.shared.remote.forget(node.0, times);
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _file: Option<FileHandle>, reply: ReplyAttr) {
        // Not worth a task.
        if let Some(attr) = self.shared.remote.known_attr(node.0) {
            self.count();
            return self.shared.attr(Ok(attr), reply);
        }
        self.answer(|shared| async move {
            let result = shared.remote.attr(node.0).await;
            shared.attr(result, reply);
        });
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let drops_set_id = request.uid() != 0;
        self.answer(|shared| async move {
            let ids = &shared.ids;
            let (far_uid, far_gid) = (uid.map(|uid| ids.far_uid(uid)), gid.map(|gid| ids.far_gid(gid)));
            if far_uid == Some(None) || far_gid == Some(None) {
                return reply.error(FuseErrno::EINVAL); // it has no number there
            }
            let (uid, gid) = (far_uid.flatten(), far_gid.flatten());
            let change = Change {
                file: file.map_or(0, |file| file.0),
                mode,
                uid,
                gid,
                size,
                accessed: accessed.map(set_time),
                modified: modified.map(set_time),
                drops_set_id,
            };
            let result = shared.remote.set_attr(node.0, change).await;
            shared.attr(result, reply);
        });
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        self.answer(|shared| async move {
            match shared.remote.read_link(node.0).await {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(fuse_errno(error)),
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (name, user) = (name.to_owned(), self.user(request));
        self.answer(|shared| async move {
            let device = device_parts(device);
            let result = shared.remote.make(parent.0, name.as_bytes(), mode, device, user).await;
            shared.entry(result, reply);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let (name, user) = (name.to_owned(), self.user(request));
        self.answer(|shared| async move {
            let mode = Kind::Directory.as_raw_mode() | (mode & 0o7777);
            let result = shared.remote.make(parent.0, name.as_bytes(), mode, (0, 0), user).await;
            shared.entry(result, reply);
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.answer(|shared| async move {
            empty(shared.remote.remove(parent.0, name.as_bytes(), false).await, reply);
        });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.answer(|shared| async move {
            empty(shared.remote.remove(parent.0, name.as_bytes(), true).await, reply);
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, target, user) = (name.to_owned(), target.to_owned(), self.user(request));
        self.answer(|shared| async move {
            let target = target.as_os_str().as_bytes();
            let result = shared.remote.make_link(parent.0, name.as_bytes(), target, user).await;
            shared.entry(result, reply);
        });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        self.answer(|shared| async move {
            let from = (parent.0, name.as_bytes());
            let to = (new_parent.0, new_name.as_bytes());
            empty(shared.remote.rename(from, to, flags.bits()).await, reply);
        });
    }

    fn link(&self, _request: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.answer(|shared| async move {
            let result = shared.remote.link(node.0, parent.0, name.as_bytes()).await;
            shared.entry(result, reply);
        });
    }

    fn open(&self, _request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.answer(|shared| async move {
            let flags = open_flags(flags.0);
            match shared.remote.open(node.0, flags).await {
                Ok((file, by_pages)) => {
                    reply.opened(FileHandle(file), how_opened(by_pages, only_reads(flags)))
                }
                Err(error) => reply.error(fuse_errno(error)),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, user) = (name.to_owned(), self.user(request));
        self.answer(|shared| async move {
            let created =
                shared.remote.create(parent.0, name.as_bytes(), mode, open_flags(flags), user).await;
            match created {
                Ok((attr, file, by_pages)) => {
                    let (attr, how) = (shared.ids.attr(&attr), how_opened(by_pages, false));
                    reply.created(&TTL, &attr, Generation(0), FileHandle(file), how);
                }
                Err(error) => reply.error(fuse_errno(error)),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // Nobody's read(2): the kernel fills pages.
        if owner.is_none() {
            return self.answer(|shared| async move {
                let fill = |bytes: Result<Bytes, Errno>| match bytes {
                    Ok(bytes) => reply.data(&bytes),
                    Err(error) => reply.error(fuse_errno(error)),
                };
                shared.remote.read_pages(file.0, offset, size, fill).await;
            });
        }
        if let Some(data) = self.shared.remote.read_known(file.0, offset, size) {
            self.count();
            return reply.data(&data);
        }
        self.answer(|shared| async move {
            match shared.remote.read(file.0, offset, size).await {
                Ok(data) => reply.data(&data),
                Err(error) => reply.error(fuse_errno(error)),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let length = data.len() as u32;
        let drops_set_id = how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        // What is mapped into memory is written back with whatever flags: nobody waits for that.
        let is_mapped = how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let flags = if is_mapped { 0 } else { flags.0 as u32 };
        let how = HowWritten { drops_set_id, flags, later: is_mapped };
        if self.shared.remote.write_at_once(file.0, offset, data, how) {
            self.count();
            return reply.written(length);
        }
        let data = self.shared.remote.buffer(data);
        self.answer(|shared| async move {
            match shared.remote.write(file.0, offset, data, how).await {
                Ok(()) => reply.written(length),
                Err(error) => reply.error(fuse_errno(error)),
            }
        });
    }

    /// Each close(2): what was written is there for everybody when it returns.
    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.answer(|shared| async move {
            let flushed = shared.remote.flush(file.0).await;
            shared.remote.unlock_all(file.0, owner.0).await;
            empty(flushed, reply);
        });
    }

    fn getlk(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let range = LockRange { owner: owner.0, pid, kind: lock_kind(kind), start, last };
        self.answer(|shared| async move {
            match shared.remote.lock_in_the_way(file.0, range).await {
                Ok(None) => reply.locked(start, last, libc::F_UNLCK, 0),
                Ok(Some(LockHeld { pid, kind, start, last })) => {
                    let kind = if kind == LockKind::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
                    reply.locked(start, last, kind, pid);
                }
                Err(error) => reply.error(fuse_errno(error)),
            }
        });
    }

    /// Locks of fcntl(2) and of flock(2), which cannot be told apart here: fuser does not pass the flag on.
    fn setlk(
        &self,
        request: &Request,
        _node: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        pid: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let range = LockRange { owner: owner.0, pid, kind: lock_kind(kind), start, last };
        let thread = request.pid();
        self.answer(|shared| async move {
            let remote = &shared.remote;
            let put = if waits && range.kind.is_some() {
                remote.lock_waiting(file.0, range, has_signal(thread)).await
            } else {
                remote.lock(file.0, range).await
            };
            empty(put, reply);
        });
    }

    fn release(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.count();
        self.shared.remote.close(file.0);
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.answer(|shared| async move {
            empty(shared.remote.sync(file.0, data_only).await, reply);
        });
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = self.shared.last_listing.fetch_add(1, Ordering::Relaxed) + 1;
        self.shared.listings().insert(handle, None);
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    /// Places in a directory are those in its listing.
    fn readdirplus(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.answer(|shared| async move {
            let listing = match shared.listing(node.0, handle.0, offset == 0).await {
                Ok(listing) => listing,
                Err(error) => return reply.error(fuse_errno(error)),
            };
            let rest = listing.iter().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX));
            for (place, entry) in rest {
                // Of `.` and `..` the kernel takes the name and the kind; and of what is said to be the top, which is in no
                // directory. (So it does with number 0; but then programs pass the name over.)
                let (node, mode) = match entry.kind {
                    0 => (node.0, Kind::Directory.as_raw_mode()),
                    kind => (TOP, kind),
                };
                let attr = entry.attr.unwrap_or(Attr { node, mode, ..Attr::default() });
                let (name, attr) = (OsStr::from_bytes(&entry.name), shared.ids.attr(&attr));
                if reply.add(attr.ino, place as u64 + 1, name, &TTL, &attr, Generation(0)) {
                    break; // it is full
                }
                if let Some(attr) = entry.attr {
                    shared.remote.tell(attr.node);
                }
            }
            reply.ok();
        });
    }

    fn releasedir(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.shared.listings().remove(&handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.answer(|shared| async move {
            empty(shared.remote.sync_dir(node.0).await, reply);
        });
    }

    fn statfs(&self, _request: &Request, node: INodeNo, reply: ReplyStatfs) {
        self.answer(|shared| async move {
            match shared.remote.file_system(node.0).await {
                Ok(fs) => reply.statfs(
                    fs.blocks,
                    fs.free,
                    fs.available,
                    fs.files,
                    fs.files_free,
                    fs.block_size as u32,
                    fs.name_max as u32,
                    fs.fragment_size as u32,
                ),
                Err(error) => reply.error(fuse_errno(error)),
            }
        });
    }

    fn setxattr(
        &self,
        _request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (name.to_owned(), value.to_vec());
        self.answer(|shared| async move {
            empty(shared.remote.set_xattr(node.0, name.as_bytes(), &value, flags as u32).await, reply);
        });
    }

    fn getxattr(&self, _request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if node.0 == TOP && name.as_bytes() == STATISTICS.as_bytes() {
            let kernel_requests = self.shared.requests.load(Ordering::Relaxed);
            let statistics = Statistics { kernel_requests, ..self.shared.remote.statistics() };
            return xattr(Ok(statistics.to_bytes()), size, reply);
        }
        let name = name.to_owned();
        self.answer(|shared| async move {
            xattr(shared.remote.xattr(node.0, name.as_bytes()).await, size, reply);
        });
    }

    fn listxattr(&self, _request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(|shared| async move {
            xattr(shared.remote.list_xattr(node.0).await, size, reply);
        });
    }

    fn removexattr(&self, _request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.answer(|shared| async move {
            empty(shared.remote.remove_xattr(node.0, name.as_bytes()).await, reply);
        });
    }

    /// Asked where the kernel does not judge by itself: what modes say; the server judges when it comes to it.
    fn access(&self, request: &Request, node: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let (uid, gid) = (request.uid(), request.gid());
        self.answer(|shared| async move {
            let attr = match shared.remote.attr(node.0).await {
                Ok(attr) => shared.ids.attr(&attr),
                Err(error) => return reply.error(fuse_errno(error)),
            };
            let wanted = u32::try_from(mask.bits()).unwrap_or(0) & 0o7;
            if wanted & 0o2 != 0 && shared.remote.is_read_only() {
                return reply.error(FuseErrno::EROFS);
            }
            if may(&attr, uid, gid, wanted) { reply.ok() } else { reply.error(FuseErrno::EACCES) }
        });
    }

    fn ioctl(
        &self,
        _request: &Request,
        _node: INodeNo,
        _file: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(FuseErrno::ENOTTY);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.answer(|shared| async move {
            empty(shared.remote.allocate(file.0, offset, length, mode as u32).await, reply);
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Ok(from) = u64::try_from(offset) else { return reply.error(FuseErrno::ENXIO) };
        let hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return reply.error(FuseErrno::EINVAL),
        };
        self.answer(|shared| async move {
            match shared.remote.seek(file.0, from, hole).await {
                Ok(place) => reply.offset(i64::try_from(place).unwrap_or(i64::MAX)),
                Err(error) => reply.error(fuse_errno(error)),
            }
        });
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _from_node: INodeNo,
        from_file: FileHandle,
        from: u64,
        _to_node: INodeNo,
        to_file: FileHandle,
        to: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.answer(|shared| async move {
            match shared.remote.copy_range((from_file.0, from), (to_file.0, to), length).await {
                Ok(bytes) => reply.written(u32::try_from(bytes).unwrap_or(u32::MAX)),
                Err(error) => reply.error(fuse_errno(error)),
            }
        });
    }
}

/// Of lseek(2).
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
