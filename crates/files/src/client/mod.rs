//! The client's end of a session about files: one call for each operation.

mod transfers;

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use longhaul_transport::{Extent, Handler, Pieces, Session, SessionEnd, Stored, Withdrawn};
use prost::Message;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::limits::{INLINE_BYTES_MAX, READ_BYTES_MAX, WRITES_OPEN_MAX};
use crate::message::{
    Allocate, Attach, Attached, Attr, Caller, Close, CopyRange, Create, FileSystem, Forget, Forgotten,
    GetAttr, GetXattr, Link, ListXattr, Listed, Lookup, Make, NewTime, Notice, Open, Operation, Read,
    ReadDir, ReadLink, Remove, RemoveXattr, Rename, Seek, SetAttr, SetXattr, Settle, StatFs, Sync, SyncDir,
    WireTime, Write, decode_reply, object,
};
use transfers::{Broken, Transfers};

/// The handler of a session about files, at the client: make it, connect with it, then [`Remote::attach`].
#[derive(Debug, Default)]
pub struct FilesClient {
    transfers: Transfers,
}

impl FilesClient {
    /// For one session.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }
}

impl Pieces for FilesClient {
    fn fill(&self, object: u64, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<(), Withdrawn> {
        self.transfers.fill(object, offset, into)
    }

    fn delivered(&self, extent: Extent) {
        self.transfers.settled(&extent, true);
    }

    fn declined(&self, extent: Extent) {
        self.transfers.settled(&extent, false);
    }

    fn store(&self, object: u64, offset: u64, data: &[u8], _checksum: u64) -> Stored {
        self.transfers.store(object, offset, data)
    }
}

impl Handler for FilesClient {
    fn request(
        self: Arc<Self>,
        _session: Session,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = Bytes> + Send + 'static>> {
        Box::pin(async move {
            if let Ok(notice) = Notice::decode(body) {
                self.transfers.give_up(notice.broken_transfer);
            }
            Bytes::new()
        })
    }

    fn ended(&self, _end: &SessionEnd) {
        self.transfers.end();
    }
}

/// Who asks for something, where the server takes the client's word for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl From<User> for Caller {
    fn from(User { uid, gid }: User) -> Self {
        Self { uid, gid }
    }
}

/// What times may be set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// That.
    To(WireTime),
}

impl From<SetTime> for NewTime {
    fn from(time: SetTime) -> Self {
        match time {
            SetTime::Now => Self { now: true, time: WireTime::default() },
            SetTime::To(time) => Self { now: false, time },
        }
    }
}

/// What is to be changed of a node, and by way of which open file (0: none).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The open file.
    pub file: u64,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change of its bytes.
    pub modified: Option<SetTime>,
    /// A new size takes set-user-id and set-group-id away.
    pub drops_set_id: bool,
}

/// Why there is nothing to use.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The server's own words.
    #[error("{0}")]
    Refused(String),
    /// The session.
    #[error(transparent)]
    Request(#[from] longhaul_transport::session::RequestError),
    /// The reply is none.
    #[error("the server answers, but not as one that serves files: it may be older")]
    Foreign,
}

/// What the client knows of an open file's writes over the lanes.
#[derive(Debug, Default)]
struct Writes {
    next: u32,
    under_way: std::collections::BTreeSet<u32>,
    /// As the server has been told.
    floor: u32,
}

/// The files of a server, from the directory on that the session is attached to. Clones are the same.
#[derive(Clone, Debug)]
pub struct Remote {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    session: Session,
    client: Arc<FilesClient>,
    top: Attr,
    read_only: bool,
    acts_for_all: bool,
    user: User,
    over: AtomicBool,
    writes: Mutex<HashMap<u64, Arc<Mutex<Writes>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a write is taken off the list when its writer gives up waiting, too.
struct UnderWay<'a> {
    writes: &'a Mutex<Writes>,
    number: u32,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        lock(self.writes).under_way.remove(&self.number);
    }
}

impl Remote {
    /// Attaches a session that was connected with `client` to a path of the server's: `export/path/below`.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn attach(
        session: Session,
        client: Arc<FilesClient>,
        path: &[u8],
    ) -> Result<Self, AttachError> {
        let attach = Attach { path: Bytes::copy_from_slice(path) };
        let reply = session.request(attach.ask().into_bytes()).await?;
        let attached: Attached = decode_reply(reply).map_err(|_| AttachError::Foreign)?;
        if !attached.refusal.is_empty() {
            return Err(AttachError::Refused(attached.refusal));
        }
        let Attached { top, read_only, acts_for_all, user: Caller { uid, gid }, .. } = attached;
        let top = top.ok_or(AttachError::Foreign)?;
        Ok(Self {
            inner: Arc::new(Inner {
                session,
                client,
                top,
                read_only,
                acts_for_all,
                user: User { uid, gid },
                over: AtomicBool::new(false),
                writes: Mutex::default(),
            }),
        })
    }

    /// The directory that the session is attached to, as it was then.
    #[must_use]
    pub fn top(&self) -> Attr {
        self.inner.top
    }

    /// Nothing may be changed.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.inner.read_only
    }

    /// The server acts with root's rights, and takes this end's word for who asks.
    #[must_use]
    pub fn acts_for_all(&self) -> bool {
        self.inner.acts_for_all
    }

    /// The server's user whose rights all operations have.
    #[must_use]
    pub fn user(&self) -> User {
        self.inner.user
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.inner.session
    }

    async fn call<O: Operation>(&self, operation: O) -> Result<O::Outcome, Errno> {
        match self.inner.session.request(operation.ask().into_bytes()).await {
            Ok(reply) => decode_reply(reply),
            Err(error) => {
                if !self.inner.over.swap(true, Ordering::SeqCst) {
                    tracing::error!(%error, "the server's files cannot be used any more");
                }
                Err(Errno::IO)
            }
        }
    }

    /// What has this name in a directory. It counts: see [`forget`](Self::forget).
    ///
    /// # Errors
    /// As stat(2), as for all operations.
    pub async fn look_up(&self, parent: u64, name: &[u8]) -> Result<Attr, Errno> {
        Ok(self.call(Lookup { parent, name: Bytes::copy_from_slice(name) }).await?.attr)
    }

    /// These nodes will not be asked about any more; with each, how often the server has told of it.
    pub async fn forget(&self, nodes: impl IntoIterator<Item = (u64, u64)>) {
        let nodes = nodes.into_iter().map(|(node, times)| Forgotten { node, times }).collect();
        let _ = self.call(Forget { nodes }).await; // the session is over: nothing is known there any more
    }

    /// What a node is.
    pub async fn attr(&self, node: u64) -> Result<Attr, Errno> {
        self.call(GetAttr { node }).await
    }

    /// Changes attributes.
    pub async fn set_attr(&self, node: u64, change: Change) -> Result<Attr, Errno> {
        let Change { file, mode, uid, gid, size, accessed, modified, drops_set_id } = change;
        let (accessed, modified) = (accessed.map(NewTime::from), modified.map(NewTime::from));
        self.call(SetAttr { node, file, mode, uid, gid, size, accessed, modified, drops_set_id }).await
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, node: u64) -> Result<Bytes, Errno> {
        Ok(self.call(ReadLink { node }).await?.data)
    }

    /// Makes a directory, pipe, socket, device file or plain file, by the kind in `mode`.
    pub async fn make(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        device: (u32, u32),
        caller: User,
    ) -> Result<Attr, Errno> {
        let (name, target) = (Bytes::copy_from_slice(name), Bytes::new());
        let (device_major, device_minor) = device;
        let make = Make { parent, name, mode, target, device_major, device_minor, caller: caller.into() };
        Ok(self.call(make).await?.attr)
    }

    /// Makes a symbolic link.
    pub async fn make_link(
        &self,
        parent: u64,
        name: &[u8],
        target: &[u8],
        caller: User,
    ) -> Result<Attr, Errno> {
        let make = Make {
            parent,
            name: Bytes::copy_from_slice(name),
            mode: rustix::fs::FileType::Symlink.as_raw_mode() | 0o777,
            target: Bytes::copy_from_slice(target),
            device_major: 0,
            device_minor: 0,
            caller: caller.into(),
        };
        Ok(self.call(make).await?.attr)
    }

    /// Makes a file and opens it.
    pub async fn create(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: OFlags,
        caller: User,
    ) -> Result<(Attr, u64), Errno> {
        let name = Bytes::copy_from_slice(name);
        let create = Create { parent, name, mode, flags: flags.bits(), caller: caller.into() };
        let created = self.call(create).await?;
        Ok((created.node.attr, created.file))
    }

    /// Removes a name.
    pub async fn remove(&self, parent: u64, name: &[u8], is_dir: bool) -> Result<(), Errno> {
        self.call(Remove { parent, name: Bytes::copy_from_slice(name), is_dir }).await.map(drop)
    }

    /// As renameat2(2).
    pub async fn rename(
        &self,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        let (name, new_name) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(new_name));
        self.call(Rename { parent, name, new_parent, new_name, flags }).await.map(drop)
    }

    /// Gives a node another name.
    pub async fn link(&self, node: u64, parent: u64, name: &[u8]) -> Result<Attr, Errno> {
        Ok(self.call(Link { node, parent, name: Bytes::copy_from_slice(name) }).await?.attr)
    }

    /// Opens a file or directory.
    pub async fn open(&self, node: u64, flags: OFlags) -> Result<u64, Errno> {
        Ok(self.call(Open { node, flags: flags.bits() }).await?.file)
    }

    /// Reads at most `length` bytes from `offset` on: fewer at the end of the file. 1 RTT, and the time of the bytes.
    pub async fn read(&self, file: u64, offset: u64, length: u32) -> Result<Bytes, Errno> {
        let length = length.min(READ_BYTES_MAX);
        if length as usize <= INLINE_BYTES_MAX {
            return Ok(self.call(Read { file, offset, length, transfer: 0 }).await?.data);
        }
        for _ in 0..READ_ATTEMPTS {
            let awaited = self.inner.client.transfers.expect(length as usize);
            let transfer = awaited.number;
            let content = self.call(Read { file, offset, length, transfer }).await?;
            if content.on_lanes == 0 {
                return Ok(content.data);
            }
            match awaited.bytes(content.on_lanes.into()).await {
                Ok(bytes) => return Ok(bytes.into()),
                // The file has become shorter meanwhile, most likely.
                Err(Broken::GivenUp) => {}
                Err(Broken::SessionOver) => break,
            }
        }
        Err(Errno::IO)
    }

    /// Writes, all of it or an error. `appends`: the file is open for that, and the server chooses the place. 1 RTT, and
    /// the time of the bytes.
    pub async fn write(
        &self,
        file: u64,
        offset: u64,
        data: Bytes,
        appends: bool,
        drops_set_id: bool,
    ) -> Result<(), Errno> {
        if data.len() <= INLINE_BYTES_MAX {
            return self.call(Write { file, offset, data, drops_set_id }).await.map(drop);
        }
        if appends || drops_set_id {
            // One part after the other, in order.
            let mut at = 0;
            while at < data.len() {
                let part = data.slice(at..data.len().min(at + INLINE_BYTES_MAX));
                let (offset, length) = (offset + at as u64, part.len());
                self.call(Write { file, offset, data: part, drops_set_id }).await?;
                at += length;
            }
            return Ok(());
        }
        self.write_over_lanes(file, offset, data).await
    }

    async fn write_over_lanes(&self, file: u64, offset: u64, data: Bytes) -> Result<(), Errno> {
        let writes = Arc::clone(lock(&self.inner.writes).entry(file).or_default());
        let (under_way, settle) = {
            let mut table = lock(&writes);
            let number = table.next;
            table.next = table.next.checked_add(1).ok_or(Errno::OVERFLOW)?;
            table.under_way.insert(number);
            let floor = table.under_way.first().copied().unwrap_or(number);
            let settle = floor - table.floor >= SETTLE_AFTER;
            if settle {
                table.floor = floor;
            }
            (UnderWay { writes: &writes, number }, settle.then_some(floor))
        };
        let length = data.len() as u64;
        let object = object(file, under_way.number);
        let done = self.inner.client.transfers.send(object, offset, data);
        let session = &self.inner.session;
        session.lanes().push(Extent { object, offset, length, whole: false }).await;
        if let Some(below) = settle {
            self.call(Settle { file, below, write: None }).await?;
        }
        match done.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Broken::GivenUp)) => {
                let write = Some(under_way.number);
                // It says why; if it does not, something is wrong.
                self.call(Settle { file, below: 0, write }).await.and(Err(Errno::IO))
            }
            Ok(Err(Broken::SessionOver)) | Err(_) => Err(Errno::IO),
        }
    }

    /// Makes a file's bytes durable, and all else of it unless `data_only`.
    pub async fn sync(&self, file: u64, data_only: bool) -> Result<(), Errno> {
        self.call(Sync { file, data_only }).await.map(drop)
    }

    /// Makes an open directory's names durable.
    pub async fn sync_dir(&self, file: u64) -> Result<(), Errno> {
        self.call(SyncDir { file }).await.map(drop)
    }

    /// Closes an open file or directory.
    pub async fn close(&self, file: u64) -> Result<(), Errno> {
        lock(&self.inner.writes).remove(&file);
        self.call(Close { file }).await.map(drop)
    }

    /// Names of an open directory from a place on, as [`Listed::next`] gives it; and whether these are the last.
    pub async fn read_dir(&self, file: u64, from: u64) -> Result<(Vec<Listed>, bool), Errno> {
        let listing = self.call(ReadDir { file, from }).await?;
        Ok((listing.entries, listing.at_end))
    }

    /// The file system that a node is on.
    pub async fn file_system(&self, node: u64) -> Result<FileSystem, Errno> {
        self.call(StatFs { node }).await
    }

    /// The value of an extended attribute.
    pub async fn xattr(&self, node: u64, name: &[u8]) -> Result<Bytes, Errno> {
        Ok(self.call(GetXattr { node, name: Bytes::copy_from_slice(name) }).await?.data)
    }

    /// Sets an extended attribute; `flags` as in setxattr(2).
    pub async fn set_xattr(&self, node: u64, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        if name.len() + value.len() > INLINE_BYTES_MAX {
            return Err(Errno::TOOBIG);
        }
        let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
        self.call(SetXattr { node, name, value, flags }).await.map(drop)
    }

    /// The names of all extended attributes, each with a NUL behind it.
    pub async fn list_xattr(&self, node: u64) -> Result<Bytes, Errno> {
        Ok(self.call(ListXattr { node }).await?.data)
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, node: u64, name: &[u8]) -> Result<(), Errno> {
        self.call(RemoveXattr { node, name: Bytes::copy_from_slice(name) }).await.map(drop)
    }

    /// As fallocate(2).
    pub async fn allocate(&self, file: u64, offset: u64, length: u64, mode: u32) -> Result<(), Errno> {
        self.call(Allocate { file, offset, length, mode }).await.map(drop)
    }

    /// The next hole, or the next bytes, from `offset` on.
    pub async fn seek(&self, file: u64, offset: u64, hole: bool) -> Result<u64, Errno> {
        Ok(self.call(Seek { file, offset, hole }).await?.count)
    }

    /// As copy_file_range(2): how many bytes, which may be fewer.
    pub async fn copy_range(
        &self,
        (from_file, from): (u64, u64),
        (to_file, to): (u64, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        Ok(self.call(CopyRange { from_file, from, to_file, to, length }).await?.count)
    }
}

/// A file may become shorter more than once while it is read.
const READ_ATTEMPTS: usize = 4;

/// Writes that are over when the server is told so: well before it has as many as it keeps.
const SETTLE_AFTER: u32 = WRITES_OPEN_MAX as u32 / 4;
