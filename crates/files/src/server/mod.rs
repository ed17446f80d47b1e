//! The server's end of a session about files.
//!
//! ```text
//! control channel -> answer (async) -> a worker with the user's rights -> system calls -> reply
//! lanes           -> mover with the user's rights -> pread / pwrite of an open file
//! ```

mod again;
mod caller;
mod coherence;
mod grace;
mod listing;
mod locking;
mod nodes;
mod open_files;
mod operations;
mod order;
mod replies;
mod squash;
mod touched;
mod watch;
mod workers;

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use longhaul_transport::identity::IdRange;
use longhaul_transport::{Extent, Handler, Pieces, Session, SessionEnd, Stored, Withdrawn};
use prost::Message;
use rustix::io::Errno;
use tokio::sync::Semaphore;

use crate::access::{Access, ForAll};
use crate::dir::Dir;
use crate::direct::{DirectReads, DirectWrites};
use crate::lease::FileId;
use crate::limits::SENDINGS_MAX;
use crate::message::{
    Ask, Attach, Attached, Caller, Content, Map, Mapped, Nothing, Notice, OUT_OF_ORDER, Read, Reply,
    SESSION_OVER, Slot, WireIdRange, node_number, write_of,
};
use crate::pages::Use;
use again::carry_out_once;
pub use coherence::Changing;
use coherence::{Change, Coherence, Using};
use grace::{Grace, MountId};
use nodes::Nodes;
use open_files::{OpenFiles, Sending};
use operations::{Mounted, NameLocks};
use order::CarriedOut;
pub(crate) use watch::noticed_in;
use workers::Workers;

/// The handler of a session about files, at the server.
pub struct FilesServer {
    access: Arc<dyn Access>,
    shared: Arc<Shared>,
    state: RwLock<State>,
    /// Transfers on their way to the client, by the client's numbers.
    sendings: Mutex<HashMap<u64, Arc<Sending>>>,
    carried_out: CarriedOut,
}

/// What all sessions of a server share.
#[derive(Debug)]
pub struct Shared {
    coherence: Arc<Coherence>,
    names: Arc<NameLocks>,
    grace: Arc<Grace>,
    /// Descriptors of nodes.
    may_keep: Arc<Semaphore>,
    direct_reads: Arc<DirectReads>,
}

impl Shared {
    /// For one server; called on its runtime. `mounts`: a file of its own that tells the next one which mounts there are:
    /// without it, they lose at a restart what only they know.
    #[must_use]
    pub fn new(mounts: Option<PathBuf>) -> Arc<Self> {
        let grace = Arc::new(Grace::begin(mounts));
        let coherence = Coherence::new(Arc::clone(&grace));
        let may_keep = nodes::descriptors_to_keep();
        Arc::new(Self { coherence, names: Arc::default(), grace, may_keep, direct_reads: Arc::default() })
    }

    /// The server is about to end: mounts whose sessions end now come again.
    pub fn stop(&self) {
        self.grace.stop();
    }

    /// As long as the returned lives, something else in this process changes files, such as a copy: that is noticed like
    /// what other programs do.
    #[must_use]
    pub fn others_change(&self) -> Changing {
        self.coherence.others_change()
    }
}

#[derive(Clone, Default)]
enum State {
    /// There is nothing to use yet.
    #[default]
    Before,
    /// It is being found.
    Attaching,
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
    pub fn new(access: Arc<dyn Access>, shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            access,
            shared,
            state: RwLock::default(),
            sendings: Mutex::default(),
            carried_out: CarriedOut::default(),
        })
    }

    fn sendings(&self) -> MutexGuard<'_, HashMap<u64, Arc<Sending>>> {
        self.sendings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attachment(&self) -> Result<Arc<Attachment>, Errno> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Attached(attachment) => Ok(Arc::clone(attachment)),
            State::Before | State::Attaching | State::Over => Err(SESSION_OVER),
        }
    }

    async fn answer(self: Arc<Self>, session: Session, body: Bytes) -> Bytes {
        // Of a later version, or broken.
        let Some((ask, order, slot)) = Ask::from_bytes(body) else {
            return Reply::failed(Errno::NOSYS).into_bytes();
        };
        let may_reclaim = || self.attachment().is_ok_and(|attachment| attachment.mounted.may_reclaim);
        if !may_come_early(&ask, may_reclaim) {
            self.shared.grace.until_over().await;
        }
        if !self.carried_out.wait(order).await {
            return Reply::failed(OUT_OF_ORDER).into_bytes();
        }
        // Pages that kernels keep come back first.
        let _using = self.use_bytes(&ask).await;
        let reply = match ask {
            Ask::Attach(attach) => Reply::new(Ok(self.attach(session, attach).await), Vec::new()),
            Ask::Read(read) => Reply::new(self.read(&session, read).await, Vec::new()),
            Ask::Renew(_) => Reply::new(self.renew(), Vec::new()),
            Ask::Map(map) => self.map(map).await.unwrap_or_else(Reply::failed),
            ask => self.operate(ask, slot).await.unwrap_or_else(Reply::failed),
        };
        // What the session's end has kept from being done is asked anew in the next.
        if reply.error != SESSION_OVER.raw_os_error() {
            self.carried_out.add(order);
        }
        reply.into_bytes()
    }

    async fn attach(&self, session: Session, attach: Attach) -> Attached {
        let refused = |refusal: String| Attached { refusal, ..Attached::default() };
        let mount = MountId::try_from(&*attach.mount).ok();
        match &mut *self.state.write().unwrap_or_else(PoisonError::into_inner) {
            state @ State::Before => *state = State::Attaching,
            _ => return refused("this session is attached already".to_owned()),
        }
        let begun = async {
            let cannot = |error: &dyn std::fmt::Display| format!("the server cannot begin: {error}");
            let workers = Workers::start(&self.access).map_err(|error| cannot(&error))?;
            let (access, shared, joining) =
                (Arc::clone(&self.access), Arc::clone(&self.shared), session.clone());
            let find = move || Ok(find(&*access, &shared, joining, &attach.path, mount));
            let found = workers.run(find).await;
            let mounted = found.map_err(|error| cannot(&error))??;
            Ok::<_, String>((mounted, workers))
        };
        let (mounted, workers) = match begun.await {
            Ok(begun) => begun,
            Err(reason) => return refused(reason),
        };
        let for_all = if mounted.acts_for_all { self.access.for_all() } else { ForAll::default() };
        let ranges = |ranges: Vec<IdRange>| ranges.into_iter().map(WireIdRange::from).collect();
        let attached = Attached {
            refusal: String::new(),
            users: ranges(for_all.users),
            groups: ranges(for_all.groups),
            read_only: mounted.read_only,
            acts_for_all: mounted.acts_for_all,
            user: mounted.user,
            may_reclaim: mounted.may_reclaim,
            boot: self.shared.grace.boot.clone(),
            top: node_number(mounted.nodes.top(), FileId { device: 0, inode: 0, born: 0 }),
        };
        let runtime = tokio::runtime::Handle::current();
        let attachment = Attachment { mounted: Arc::new(mounted), workers, session, runtime };
        {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            match *state {
                State::Attaching => *state = State::Attached(Arc::new(attachment)),
                State::Before | State::Attached(_) | State::Over => {
                    attachment.mounted.end();
                    return refused("the session is over".to_owned());
                }
            }
        }
        attached
    }

    /// Carries out what is one operation and no more, when nobody else keeps what it changes.
    async fn operate(&self, ask: Ask, slot: Slot) -> Result<Reply, Errno> {
        let attachment = self.attachment()?;
        let ask = Arc::new(ask);
        let mut held = None;
        loop {
            let (mounted, now) = (Arc::clone(&attachment.mounted), Arc::clone(&ask));
            let step = move || Ok(step(&mounted, &now, slot, held));
            let step = match *ask {
                Ask::Sync(_) | Ask::SyncDir(_) => attachment.workers.sync(step).await?,
                Ask::ReadWhole(_) => attachment.workers.ahead(step).await?,
                _ => attachment.workers.run(step).await?,
            };
            match step {
                Step::Done(reply) => return Ok(reply),
                Step::DoneWhen(reply, change) => {
                    change.ready().await;
                    return Ok(reply);
                }
                Step::Again(under_way) => {
                    under_way.change.ready().await;
                    held = Some(under_way);
                }
            }
        }
    }

    /// Of an operation that shows, or changes, bytes of files.
    async fn use_bytes(&self, ask: &Ask) -> [Option<Using>; 2] {
        let Ok(attachment) = self.attachment() else { return [None, None] };
        let mounted = &attachment.mounted;
        let begin = async |used: Option<(FileId, Use)>| match used {
            Some((file, what)) => mounted.coherence.use_bytes(mounted.client, file, what).await,
            None => None,
        };
        let [one, other] = mounted.used_bytes(ask);
        [begin(one).await, begin(other).await]
    }

    async fn map(&self, map: Map) -> Result<Reply, Errno> {
        let attachment = self.attachment()?;
        let mounted = &attachment.mounted;
        let file = mounted.nodes.file(map.node)?;
        let alone = map.alone && mounted.files.is_written(map.node);
        let serial = mounted.coherence.map(mounted.client, file, alone).await;
        // Now that all who keep pages are known: when what is watched is given up, they are told.
        let watching = Arc::clone(mounted);
        let grants = attachment.workers.run(move || {
            let mut grants = Vec::new();
            watching.grant_node(map.node, &mut grants).map(|()| grants)
        });
        let grants = grants.await?;
        Ok(Reply::new(Ok(Mapped { serial, alone }), grants))
    }

    fn renew(&self) -> Result<Nothing, Errno> {
        let mounted = &self.attachment()?.mounted;
        if mounted.coherence.may_renew(mounted.client) { Ok(Nothing {}) } else { Err(Errno::AGAIN) }
    }

    async fn read(&self, session: &Session, read: Read) -> Result<Content, Errno> {
        let attachment = self.attachment()?;
        let mounted = Arc::clone(&attachment.mounted);
        let access = mounted.coherence.access(mounted.client, &mounted.looked_at(&Ask::Read(read)));
        if let Some(access) = &access {
            access.ready().await;
        }
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
            session.lanes().push_in_turn(Extent { object, offset: 0, length, whole: false }).await;
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
fn find(
    access: &dyn Access,
    shared: &Shared,
    session: Session,
    path: &[u8],
    mount: Option<MountId>,
) -> Result<Mounted, String> {
    let ((dir, below), read_only) = match access.resolve(path, true) {
        Ok(found) => (found, false),
        Err(_) => (access.resolve(path, false)?, true),
    };
    let squashes_root = is_root() && access.for_all().squashes_root;
    let top = if squashes_root { squash::reach(dir, &below) } else { dir.open_beneath(&below) };
    let find = || Mounted::at(&top?, shared, Some(session), read_only, mount);
    let mounted = find().map_err(|error: std::io::Error| error.to_string())?;
    Ok(Mounted { squashes_root, ..mounted })
}

/// Whether the calling thread has root's rights.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Mounted {
    /// All below a directory, with the rights of the calling thread.
    fn at(
        top: &Dir,
        shared: &Shared,
        session: Option<Session>,
        read_only: bool,
        mount: Option<MountId>,
    ) -> std::io::Result<Self> {
        let nodes = Nodes::below(top.fd()?, Arc::clone(&shared.may_keep))?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let (coherence, names) = (Arc::clone(&shared.coherence), Arc::clone(&shared.names));
        let grace = Arc::clone(&shared.grace);
        let (client, gate) = coherence.join(session, nodes.top(), mount);
        // It writes a file; there is one for each mount.
        let may_reclaim = mount.is_some_and(|mount| grace.attach(mount));
        let mounted = Self {
            client,
            gate,
            coherence,
            names,
            grace,
            mount,
            may_reclaim,
            nodes,
            files: OpenFiles::default(),
            direct: DirectWrites::for_lack_of_room(top),
            direct_reads: Arc::clone(&shared.direct_reads),
            read_only,
            user: Caller { uid: uid.as_raw(), gid: gid.as_raw() },
            acts_for_all: is_root(),
            squashes_root: false,
        };
        Ok(mounted)
    }

    /// The session is over: nothing is begun any more.
    fn end(self: &Arc<Self>) {
        if self.grace.is_stopping() {
            // What it has is its own still, at the next server: nobody else gets it from this one.
            let mounted = Arc::clone(self);
            self.coherence.in_background(move || mounted.gate.shut());
        } else {
            self.coherence.end(self.client);
        }
    }
}

/// Whether an operation is one of those by which clients take back what they had before the server was started, or tell
/// what others who do so wait for, or what does not hold anybody up.
fn may_come_early(ask: &Ask, may_reclaim: impl Fn() -> bool) -> bool {
    match ask {
        Ask::Attach(_)
        | Ask::Renew(_)
        | Ask::Reclaim(_)
        | Ask::EndReclaim(_)
        | Ask::Close(_)
        | Ask::Forget(_) => true,
        Ask::Open(ask) => ask.reclaims && may_reclaim(),
        Ask::PutLock(ask) => ask.reclaims && may_reclaim(),
        // To files that have been opened so.
        Ask::Write(_) | Ask::Settle(_) => may_reclaim(),
        // What only this client knew to be gone.
        Ask::Remove(ask) => ask.untouched.is_some() && !ask.may_stay && may_reclaim(),
        _ => false,
    }
}

/// How far an operation has come.
enum Step {
    Done(Reply),
    /// It has been carried out; its asker is told when nobody keeps what was before.
    DoneWhen(Reply, Arc<Change>),
    /// To be tried again when this change is ready.
    Again(UnderWay),
}

/// A change, or an access, that has been begun.
struct UnderWay {
    change: Arc<Change>,
    files: Vec<FileId>,
}

/// Carries an operation out, unless others keep what it changes, or know more than it would show.
fn step(mounted: &Mounted, ask: &Ask, slot: Slot, held: Option<UnderWay>) -> Step {
    let failed = |errno| Step::Done(Reply::failed(errno));
    let touched = match mounted.touched(ask) {
        Ok(Some(touched)) => touched,
        Ok(None) => {
            // What was waited for is held until the operation has been carried out.
            let is_first = held.is_none() && mounted.coherence.has_exclusive();
            let files = if is_first { mounted.looked_at(ask) } else { Vec::new() };
            if let Err(errno) = mounted.judge(ask) {
                return failed(errno);
            }
            return match mounted.coherence.access(mounted.client, &files) {
                Some(access) => Step::Again(UnderWay { change: Arc::new(access), files }),
                None if ask.changes() => carry_out_once(mounted, ask, slot, None),
                None => carry_out(mounted, ask, None),
            };
        }
        Err(errno) => return failed(errno),
    };
    if mounted.read_only {
        return failed(Errno::ROFS);
    }
    // Before others are asked to give something up for it; and once more when nothing changes any more.
    if let Err(errno) = mounted.judge(ask) {
        return failed(errno);
    }
    // What the names lead to is looked at again, now that it cannot change.
    let _locked = mounted.names.lock(&touched.dirs);
    // A change that has waited until its session was over is nobody's wish any more.
    let Some(_open) = mounted.gate.enter() else { return failed(SESSION_OVER) };
    let files = match mounted.touched(ask) {
        Ok(touched) => touched.map(|touched| touched.files).unwrap_or_default(),
        Err(errno) => return failed(errno),
    };
    let under_way = match held {
        Some(held) if files.iter().all(|file| held.files.contains(file)) => held,
        held => {
            let change = Arc::new(mounted.coherence.change(mounted.client, files.iter().copied()));
            drop(held);
            UnderWay { change, files }
        }
    };
    if !under_way.change.is_ready() {
        return Step::Again(under_way);
    }
    match mounted.judge(ask) {
        Ok(()) => carry_out_once(mounted, ask, slot, Some(under_way.change)),
        Err(errno) => failed(errno),
    }
}

fn carry_out(mounted: &Mounted, ask: &Ask, change: Option<Arc<Change>>) -> Step {
    let mut grants = Vec::new();
    let some = &mut grants;
    let reply = match ask {
        // Elsewhere: they need more than the files.
        Ask::Attach(_) | Ask::Read(_) | Ask::Renew(_) | Ask::Map(_) => Reply::failed(Errno::NOSYS),
        Ask::Create(ask) => match mounted.create(ask, some) {
            Ok((created, change)) => return Step::DoneWhen(Reply::new(Ok(created), grants), change),
            Err(errno) => Reply::failed(errno),
        },
        Ask::Lookup(ask) => Reply::new(mounted.look_up(ask, some), grants),
        Ask::Forget(ask) => Reply::new(mounted.forget(ask), grants),
        Ask::GetAttr(ask) => Reply::new(mounted.get_attr(*ask, some), grants),
        Ask::SetAttr(ask) => Reply::new(mounted.set_attr(*ask), grants),
        Ask::ReadLink(ask) => Reply::new(mounted.read_link(*ask, some), grants),
        Ask::Make(ask) => Reply::new(mounted.make(ask, some), grants),
        Ask::Remove(ask) => Reply::new(mounted.remove(ask, some), grants),
        Ask::Rename(ask) => Reply::new(mounted.rename(ask), grants),
        Ask::Link(ask) => Reply::new(mounted.link(ask, some), grants),
        Ask::Open(ask) => Reply::new(mounted.open(*ask, change, some), grants),
        Ask::ReadWhole(ask) => Reply::new(Ok(mounted.read_whole(ask, some)), grants),
        Ask::Write(ask) => Reply::new(mounted.write(ask), grants),
        Ask::Settle(ask) => Reply::new(mounted.settle(*ask), grants),
        Ask::Acquire(ask) => Reply::new(mounted.acquire(*ask, some), grants),
        Ask::Sync(ask) => Reply::new(mounted.sync(*ask), grants),
        Ask::Close(ask) => Reply::new(mounted.close(*ask), grants),
        Ask::ReadDir(ask) => Reply::new(mounted.read_dir(*ask, some), grants),
        Ask::StatFs(ask) => Reply::new(mounted.stat_fs(*ask), grants),
        Ask::GetXattr(ask) => Reply::new(mounted.get_xattr(ask), grants),
        Ask::SetXattr(ask) => Reply::new(mounted.set_xattr(ask), grants),
        Ask::ListXattr(ask) => Reply::new(mounted.list_xattr(*ask), grants),
        Ask::RemoveXattr(ask) => Reply::new(mounted.remove_xattr(ask), grants),
        Ask::Allocate(ask) => Reply::new(mounted.allocate(*ask), grants),
        Ask::Seek(ask) => Reply::new(mounted.seek(*ask), grants),
        Ask::CopyRange(ask) => Reply::new(mounted.copy_range(*ask), grants),
        Ask::SyncDir(ask) => Reply::new(mounted.sync_dir(*ask), grants),
        Ask::PutLock(ask) => Reply::new(mounted.put_lock(*ask), grants),
        Ask::StopWaiting(ask) => Reply::new(mounted.stop_waiting(*ask), grants),
        Ask::Reclaim(ask) => Reply::new(mounted.reclaim(ask), grants),
        Ask::EndReclaim(_) => Reply::new(mounted.end_reclaim(), grants),
    };
    Step::Done(reply)
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
            let notice = Notice { broken_transfer: extent.object, ..Notice::default() };
            let session = attachment.session.clone();
            attachment.runtime.spawn(async move {
                let _ = session.request(notice.encode_to_vec().into()).await; // or the session is over
            });
        }
    }

    fn store(&self, object: u64, offset: u64, data: &[u8], _checksum: u64) -> Stored {
        let (file, write) = write_of(object);
        let Ok(attachment) = self.attachment() else { return Stored::Unwanted };
        let mounted = &attachment.mounted;
        let (Some(_open), Ok(file)) = (mounted.gate.enter(), mounted.files.get(file)) else {
            return Stored::Unwanted;
        };
        let Ok(id) = mounted.nodes.file(file.node) else { return Stored::Unwanted };
        let Some(_using) = mounted.coherence.change_bytes(mounted.client, id) else {
            // This thread cannot wait: the writer asks another way.
            file.refuse(write, Errno::AGAIN);
            return Stored::Unwanted;
        };
        match file.store_piece(write, offset, data, &mounted.direct) {
            None => return Stored::Unwanted,
            Some(true) => {}
            Some(false) => {
                mounted.stored_piece(object, offset, data.len());
                mounted.coherence.progress(mounted.client);
            }
        }
        Stored::Kept
    }

    fn enter_thread(&self) {
        workers::enter_thread(&*self.access);
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
        let state =
            std::mem::replace(&mut *self.state.write().unwrap_or_else(PoisonError::into_inner), State::Over);
        if let State::Attached(attachment) = state {
            attachment.mounted.end();
        }
        self.sendings().clear();
    }
}

#[cfg(test)]
mod tests;
