//! The server's end of a session about files.
//!
//! ```text
//! control channel -> answer (async) -> a worker with the user's rights -> system calls -> reply
//! lanes           -> mover with the user's rights -> pread / pwrite of an open file
//! ```

mod caller;
mod nodes;
mod open_files;
mod operations;
mod workers;

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use longhaul_transport::{Extent, Handler, Pieces, Session, SessionEnd, Stored, Withdrawn};
use prost::Message;
use rustix::io::Errno;

use crate::access::Access;
use crate::dir::Dir;
use crate::limits::SENDINGS_MAX;
use crate::message::{Ask, Attach, Attached, Attr, Caller, Content, Notice, Read, encode_reply, write_of};
use nodes::{Nodes, stat};
use open_files::{OpenFiles, Sending};
use operations::Mounted;
use workers::Workers;

/// The handler of a session about files, at the server.
pub struct FilesServer {
    access: Arc<dyn Access>,
    state: RwLock<State>,
    /// Transfers on their way to the client, by the client's numbers.
    sendings: Mutex<HashMap<u64, Arc<Sending>>>,
}

#[derive(Clone, Default)]
enum State {
    /// There is nothing to use yet.
    #[default]
    Before,
    Attached(Arc<Attachment>),
    /// What was open is closed, and the threads have ended.
    Over,
}

/// What a session has from its first request on.
struct Attachment {
    mounted: Arc<Mounted>,
    workers: Workers,
    session: Session,
    runtime: tokio::runtime::Handle,
}

impl std::fmt::Debug for FilesServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilesServer").finish_non_exhaustive()
    }
}

impl FilesServer {
    /// For a client that may reach what `access` says.
    #[must_use]
    pub fn new(access: Arc<dyn Access>) -> Arc<Self> {
        Arc::new(Self { access, state: RwLock::default(), sendings: Mutex::default() })
    }

    fn sendings(&self) -> MutexGuard<'_, HashMap<u64, Arc<Sending>>> {
        self.sendings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attachment(&self) -> Result<Arc<Attachment>, Errno> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Attached(attachment) => Ok(Arc::clone(attachment)),
            State::Before | State::Over => Err(Errno::NODEV),
        }
    }

    async fn answer(self: Arc<Self>, session: Session, body: Bytes) -> Bytes {
        match Ask::from_bytes(body) {
            Some(Ask::Attach(attach)) => encode_reply(Ok(self.attach(session, attach).await)),
            Some(Ask::Read(read)) => encode_reply(self.read(&session, read).await),
            Some(ask) => self.operate(ask).await,
            // Of a later version, or broken.
            None => encode_reply(Err::<Attr, _>(Errno::NOSYS)),
        }
    }

    async fn attach(&self, session: Session, attach: Attach) -> Attached {
        let refused = |refusal: String| Attached { refusal, ..Attached::default() };
        let begun = async {
            let cannot = |error: &dyn std::fmt::Display| format!("the server cannot begin: {error}");
            let workers = Workers::start(&self.access).map_err(|error| cannot(&error))?;
            let access = Arc::clone(&self.access);
            let found = workers.run(move || Ok(find(&*access, &attach.path))).await;
            let (mounted, top) = found.map_err(|error| cannot(&error))??;
            Ok::<_, String>((mounted, top, workers))
        };
        let (mounted, top, workers) = match begun.await {
            Ok(begun) => begun,
            Err(reason) => return refused(reason),
        };
        let attached = Attached {
            refusal: String::new(),
            top: Some(top),
            read_only: mounted.read_only,
            acts_for_all: mounted.acts_for_all,
            user: mounted.user,
        };
        let runtime = tokio::runtime::Handle::current();
        let attachment = Attachment { mounted: Arc::new(mounted), workers, session, runtime };
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        match *state {
            State::Before => *state = State::Attached(Arc::new(attachment)),
            State::Attached(_) => return refused("this session is attached already".to_owned()),
            State::Over => return refused("the session is over".to_owned()),
        }
        attached
    }

    /// Carries out what is one operation and no more.
    async fn operate(&self, ask: Ask) -> Bytes {
        let reply = async {
            let attachment = self.attachment()?;
            let mounted = Arc::clone(&attachment.mounted);
            attachment.workers.run(move || Ok(carry_out(&mounted, ask))).await
        };
        reply.await.unwrap_or_else(|error| encode_reply(Err::<Attr, _>(error)))
    }

    async fn read(&self, session: &Session, read: Read) -> Result<Content, Errno> {
        let attachment = self.attachment()?;
        let mounted = Arc::clone(&attachment.mounted);
        let (content, sending) = attachment.workers.run(move || mounted.read(read)).await?;
        if let Some(sending) = sending {
            {
                let mut sendings = self.sendings();
                if sendings.len() >= SENDINGS_MAX || sendings.contains_key(&read.transfer) {
                    return Err(Errno::BUSY);
                }
                sendings.insert(read.transfer, Arc::new(sending));
            }
            let (object, length) = (read.transfer, u64::from(content.on_lanes));
            session.lanes().push(Extent { object, offset: 0, length, whole: false }).await;
        }
        Ok(content)
    }

    /// So much of a transfer is over; it is forgotten with its last byte.
    fn done(&self, object: u64, bytes: u64) {
        let mut sendings = self.sendings();
        if sendings.get(&object).is_some_and(|sending| sending.done(bytes)) {
            sendings.remove(&object);
        }
    }
}

/// Finds what is to be mounted; called with the user's rights.
fn find(access: &dyn Access, path: &[u8]) -> Result<(Mounted, Attr), String> {
    let ((dir, below), read_only) = match access.resolve(path, true) {
        Ok(found) => (found, false),
        Err(_) => (access.resolve(path, false)?, true),
    };
    let mount = || Mounted::at(&dir.open_beneath(&below)?, read_only);
    mount().map_err(|error: std::io::Error| error.to_string())
}

impl Mounted {
    /// All below a directory, with the rights of the calling thread.
    fn at(top: &Dir, read_only: bool) -> std::io::Result<(Self, Attr)> {
        let top = top.fd()?;
        let nodes = Nodes::below(Arc::clone(&top))?;
        let stat = stat(&top)?;
        let top = Attr::of(&stat, nodes.number(&stat));
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let user = Caller { uid: uid.as_raw(), gid: gid.as_raw() };
        let files = OpenFiles::default();
        Ok((Self { nodes, files, read_only, user, acts_for_all: uid.is_root() }, top))
    }
}

fn carry_out(mounted: &Mounted, ask: Ask) -> Bytes {
    match ask {
        // Elsewhere: they need more than the files.
        Ask::Attach(_) | Ask::Read(_) => encode_reply(Err::<Attr, _>(Errno::NOSYS)),
        Ask::Lookup(ask) => encode_reply(mounted.look_up(&ask)),
        Ask::Forget(ask) => encode_reply(mounted.forget(&ask)),
        Ask::GetAttr(ask) => encode_reply(mounted.get_attr(ask)),
        Ask::SetAttr(ask) => encode_reply(mounted.set_attr(ask)),
        Ask::ReadLink(ask) => encode_reply(mounted.read_link(ask)),
        Ask::Make(ask) => encode_reply(mounted.make(&ask)),
        Ask::Create(ask) => encode_reply(mounted.create(&ask)),
        Ask::Remove(ask) => encode_reply(mounted.remove(&ask)),
        Ask::Rename(ask) => encode_reply(mounted.rename(&ask)),
        Ask::Link(ask) => encode_reply(mounted.link(&ask)),
        Ask::Open(ask) => encode_reply(mounted.open(ask)),
        Ask::Write(ask) => encode_reply(mounted.write(&ask)),
        Ask::Settle(ask) => encode_reply(mounted.settle(ask)),
        Ask::Sync(ask) => encode_reply(mounted.sync(ask)),
        Ask::Close(ask) => encode_reply(mounted.close(ask)),
        Ask::ReadDir(ask) => encode_reply(mounted.read_dir(ask)),
        Ask::StatFs(ask) => encode_reply(mounted.stat_fs(ask)),
        Ask::GetXattr(ask) => encode_reply(mounted.get_xattr(&ask)),
        Ask::SetXattr(ask) => encode_reply(mounted.set_xattr(&ask)),
        Ask::ListXattr(ask) => encode_reply(mounted.list_xattr(ask)),
        Ask::RemoveXattr(ask) => encode_reply(mounted.remove_xattr(&ask)),
        Ask::Allocate(ask) => encode_reply(mounted.allocate(ask)),
        Ask::Seek(ask) => encode_reply(mounted.seek(ask)),
        Ask::CopyRange(ask) => encode_reply(mounted.copy_range(ask)),
        Ask::SyncDir(ask) => encode_reply(mounted.sync_dir(ask)),
    }
}

impl Pieces for FilesServer {
    fn fill(&self, object: u64, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<(), Withdrawn> {
        let sending = self.sendings().get(&object).cloned().ok_or(Withdrawn)?;
        if sending.fill(offset, into) { Ok(()) } else { Err(Withdrawn) }
    }

    fn delivered(&self, extent: Extent) {
        self.done(extent.object, extent.length);
    }

    fn declined(&self, extent: Extent) {
        self.done(extent.object, extent.length);
        // The client still waits for bytes that cannot be read any more; if it does not, it passes this over.
        if let Ok(attachment) = self.attachment() {
            let notice = Notice { broken_transfer: extent.object };
            let session = attachment.session.clone();
            attachment.runtime.spawn(async move {
                let _ = session.request(notice.encode_to_vec().into()).await; // or the session is over
            });
        }
    }

    fn store(&self, object: u64, offset: u64, data: &[u8], _checksum: u64) -> Stored {
        let (file, write) = write_of(object);
        match self.attachment().and_then(|attachment| attachment.mounted.files.get(file)) {
            Ok(file) if file.store_piece(write, offset, data) => Stored::Kept,
            _ => Stored::Unwanted,
        }
    }

    fn enter_thread(&self) {
        self.access.enter_thread();
    }
}

impl Handler for FilesServer {
    fn request(
        self: Arc<Self>,
        session: Session,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = Bytes> + Send + 'static>> {
        Box::pin(self.answer(session, body))
    }

    fn ended(&self, _end: &SessionEnd) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = State::Over;
        self.sendings().clear();
    }
}

#[cfg(test)]
mod tests;
