//! A session that is over, and the next one: what this client has is told to the server anew.
//!
//! ```text
//! a session ends -> nothing is known any more; requests wait -> another session -> attach
//!   -> nodes, by their places -> open files, by their numbers -> locks -> writes that were under way -> requests go on
//! ```
//!
//! A server that was started again keeps everybody else waiting meanwhile: nobody has seen, or changed, what only this
//! client knew. One that has given this client up does not: then what was written here and not told is lost, and its
//! writers are told so.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use longhaul_transport::session::RequestError;
use longhaul_transport::{Session, SessionEnd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::open_files::OpenFile;
use super::{Asking, AttachError, Inner, LockRange, Remote, lock, locking};
use crate::limits::ORDINARY_REQUESTS_MAX;
use crate::message::{
    Attach, Attached, EndReclaim, Grant, Open, Operation, Order, Place, PutLock, Reclaim, Reply,
    SESSION_OVER, Slot,
};

/// Makes the next session, with the handler of the one before.
pub trait Reconnect: Send + Sync + 'static {
    /// One attempt; the error in words.
    fn connect(&self) -> Pin<Box<dyn Future<Output = Result<Session, String>> + Send + '_>>;
}

/// The session that is used now.
#[derive(Clone, Debug)]
pub(super) enum Present {
    Up {
        session: Session,
        /// Of two sessions the later has the larger number.
        number: u64,
        /// What was under way in the one before is done; others' requests go on, too.
        settled: bool,
    },
    Down {
        /// Of the one before.
        number: u64,
    },
    /// There will be none any more.
    Over(SessionEnd),
}

impl Present {
    pub(super) fn number(&self) -> u64 {
        match self {
            Self::Up { number, .. } | Self::Down { number } => *number,
            Self::Over(_) => u64::MAX,
        }
    }
}

/// A write that counts as under way until this is dropped.
pub(super) struct UnderWay<'a>(&'a watch::Sender<usize>);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Between attempts to reach the server again.
const PAUSE: Duration = Duration::from_secs(1);

/// Nodes in one message: their names are short, most of them.
const PLACES_BYTES: usize = 48 << 10;

/// Asks in a session that is not used for anything else yet.
pub(super) async fn ask<O: Operation>(
    session: &Session,
    operation: O,
) -> Result<(Result<O::Outcome, Errno>, Vec<Grant>), RequestError> {
    Ok(Reply::read(session.request(operation.ask().into_bytes(Order::default(), Slot::default())).await?))
}

pub(super) async fn attach(session: &Session, path: &[u8], mount: &[u8]) -> Result<Attached, AttachError> {
    let attach = Attach { path: Bytes::copy_from_slice(path), mount: Bytes::copy_from_slice(mount) };
    let attached = ask(session, attach).await?.0.map_err(|_| AttachError::Foreign)?;
    if attached.refusal.is_empty() { Ok(attached) } else { Err(AttachError::Refused(attached.refusal)) }
}

impl Remote {
    /// The session, as soon as there is one that is later than number `after`; `None`: there will be none.
    pub(super) async fn session(&self, after: u64) -> Option<(Session, u64)> {
        let mut link = self.inner.present.subscribe();
        let is_it = |link: &Present| match link {
            Present::Up { number, .. } => *number > after,
            Present::Down { .. } => false,
            Present::Over(_) => true,
        };
        match &*link.wait_for(is_it).await.ok()? {
            Present::Up { session, number, .. } => Some((session.clone(), *number)),
            Present::Down { .. } | Present::Over(_) => None,
        }
    }

    /// The session that is used now, if there is one.
    #[must_use]
    pub fn current(&self) -> Option<Session> {
        match &*self.inner.present.borrow() {
            Present::Up { session, .. } => Some(session.clone()),
            Present::Down { .. } | Present::Over(_) => None,
        }
    }

    /// A write that others see at once begins: in a session where all that were under way in the one before are done.
    pub(super) async fn begin_write(&self) -> Option<UnderWay<'_>> {
        let mut link = self.inner.present.subscribe();
        let may = |link: &Present| matches!(link, Present::Up { settled: true, .. } | Present::Over(_));
        let link = link.wait_for(may).await.ok()?;
        if let Present::Over(_) = *link {
            return None;
        }
        // The session is not lost between that and this: `link` is locked.
        self.inner.writing.send_modify(|count| *count += 1);
        Some(UnderWay(&self.inner.writing))
    }

    /// Waits until the files cannot be used any more.
    pub async fn ended(&self) -> SessionEnd {
        let mut link = self.inner.present.subscribe();
        match link.wait_for(|link| matches!(link, Present::Over(_))).await.as_deref() {
            Ok(Present::Over(end)) => end.clone(),
            _ => SessionEnd::Closed,
        }
    }

    /// Uses no other session when this one is over; returns it.
    pub fn stop(&self) -> Option<Session> {
        match self.inner.present.send_replace(Present::Over(SessionEnd::Closed)) {
            Present::Up { session, .. } => Some(session),
            Present::Down { .. } | Present::Over(_) => None,
        }
    }

    /// Waits for the end of a session, and makes the next, again and again.
    pub(super) async fn keep_session(
        remote: Weak<Inner>,
        mut session: Session,
        reconnect: Option<Arc<dyn Reconnect>>,
    ) {
        loop {
            let end = session.ended().await;
            let Some(remote_here) = remote.upgrade().map(|inner| Self { inner }) else { return };
            let ours = matches!(end, SessionEnd::Closed | SessionEnd::Broken(_));
            let again = reconnect.as_ref().filter(|_| !ours);
            let is_over = !remote_here.session_lost(&end, again.is_some());
            drop(remote_here);
            let Some(reconnect) = again.filter(|_| !is_over) else { return };
            tracing::warn!("{end}: operations wait until it is back");
            let since = Instant::now();
            let mut last_reason = String::new();
            session = loop {
                let attempt = async {
                    let session = reconnect.connect().await?;
                    let Some(remote) = remote.upgrade().map(|inner| Self { inner }) else {
                        return Ok(None);
                    };
                    match remote.resume(&session).await {
                        Ok(()) => Ok(Some(session)),
                        Err(reason) => {
                            session.close().await;
                            Err(reason)
                        }
                    }
                };
                match attempt.await {
                    Ok(Some(session)) => break session,
                    Ok(None) => return,
                    Err(reason) if reason == last_reason => {}
                    Err(reason) => {
                        tracing::warn!("{reason}");
                        last_reason = reason;
                    }
                }
                tokio::time::sleep(PAUSE).await;
                let is_over = |inner: Arc<Inner>| matches!(*inner.present.borrow(), Present::Over(_));
                if remote.upgrade().is_none_or(is_over) {
                    return;
                }
            };
            tracing::warn!("the server is back after {:.1} s", since.elapsed().as_secs_f64());
        }
    }

    /// Nothing is known any more; false: and nothing will be.
    fn session_lost(&self, end: &SessionEnd, comes_again: bool) -> bool {
        let mut goes_on = false;
        self.inner.present.send_modify(|link| match link {
            Present::Over(_) => {}
            Present::Up { number, .. } | Present::Down { number } if comes_again => {
                goes_on = true;
                *link = Present::Down { number: *number };
            }
            Present::Up { .. } | Present::Down { .. } => {
                if *end != SessionEnd::Closed {
                    tracing::error!(%end, "the server's files cannot be used any more");
                }
                *link = Present::Over(end.clone());
            }
        });
        self.forget_leases();
        self.inner.client.transfers.end();
        self.inner.client.locking.end();
        goes_on
    }

    fn forget_leases(&self) {
        lock(&self.inner.files).values().for_each(|file| file.exclusive.store(0, Ordering::SeqCst));
        self.inner.client.cache().session_lost();
        self.lose_pages();
    }

    /// Takes back in a new session what there was in the one before. The error in words.
    async fn resume(&self, session: &Session) -> Result<(), String> {
        let client = &self.inner.client;
        self.forget_leases(); // of an attempt before
        let attached = attach(session, &self.inner.path, &self.inner.mount).await;
        let attached = attached.map_err(|error| error.to_string())?;
        let ids = attached.id_ranges();
        let Attached { may_reclaim, boot, read_only, acts_for_all, user, top, .. } = attached;
        let (uid, gid) = (self.inner.user.uid, self.inner.user.gid);
        let rights = (self.inner.read_only, self.inner.acts_for_all, uid, gid, &self.inner.ids);
        if (read_only, acts_for_all, user.uid, user.gid, &ids) != rights {
            return Err("the server's rights are not what they were: mount it again".to_owned());
        }
        if top != self.inner.top {
            return Err(
                "another directory is there than was mounted: its file system may be missing at the server"
                    .to_owned(),
            );
        }
        let number = self.inner.present.borrow().number();
        if !may_reclaim {
            self.forfeit(number);
        }
        let lost = |error: RequestError| error.to_string();
        let levels = client.cache().places();
        for level in levels {
            let mut asking = JoinSet::new();
            for nodes in parts(level) {
                let session = session.clone();
                asking.spawn(async move { ask(&session, Reclaim { nodes }).await.map(drop) });
            }
            while let Some(asked) = asking.join_next().await {
                asked.map_err(|error| error.to_string())?.map_err(lost)?;
            }
        }
        if std::mem::replace(&mut *lock(&self.inner.boot), boot.clone()) != boot {
            self.lose_unsynced();
        }
        self.reopen(session).await?;
        self.relock(session, may_reclaim).await.map_err(lost)?;
        client.transfers.begin();
        self.inner.present.send_modify(|link| {
            if let Present::Down { .. } = link {
                *link = Present::Up { session: session.clone(), number: number + 1, settled: false };
            }
        });
        let goes_on = async {
            // The server before may have carried them out. Nobody has written to the same place since then: nobody may yet.
            let mut writing = self.inner.writing.subscribe();
            let settled = writing.wait_for(|count| *count == 0);
            tokio::select! {
                _ = settled => {}
                end = session.ended() => return Err(end.to_string()),
            }
            if may_reclaim {
                self.tell_spares_in(session).await.map_err(lost)?;
            }
            if ask(session, EndReclaim {}).await.map_err(lost)?.0.is_err() {
                // It has taken too long: others have gone on.
                self.forfeit(number);
                self.relock(session, false).await.map_err(lost)?;
            }
            Ok(())
        };
        if let Err(reason) = goes_on.await {
            self.session_lost(&SessionEnd::Closed, true);
            return Err(reason);
        }
        self.inner.present.send_modify(|link| {
            if let Present::Up { settled, .. } = link {
                *settled = true;
            }
        });
        let remote = self.clone();
        self.inner.runtime.spawn(async move { remote.tell_spares(|_| true).await });
        Ok(())
    }

    /// What has been written up to this session, and not told, is not told any more.
    fn forfeit(&self, number: u64) {
        let behind = &self.inner.client.behind;
        if behind.bytes() > 0 {
            tracing::error!(
                "the server has given this mount up: {} bytes that it had not been told are lost",
                behind.bytes()
            );
        }
        self.inner.forfeited.send_replace(number);
        // What waits to be sent is lost as it is.
        for node in behind.nodes() {
            self.send_tails(node, None);
        }
    }

    /// Opens at the server what is open here.
    async fn reopen(&self, session: &Session) -> Result<(), String> {
        let files: Vec<Arc<OpenFile>> = lock(&self.inner.files).values().cloned().collect();
        let turns = Arc::new(Semaphore::new(ORDINARY_REQUESTS_MAX));
        let mut opening = JoinSet::new();
        for file in files.into_iter().filter(|file| file.far.initialized()) {
            let (remote, session, turns) = (self.clone(), session.clone(), Arc::clone(&turns));
            opening.spawn(async move {
                let _turn = turns.acquire().await;
                let flags = file.flags.difference(OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC);
                let open = Open { node: file.node, flags: flags.bits(), file: file.number, reclaims: true };
                let asking = Asking::begin(&remote.inner.client);
                let (opened, grants) = ask(&session, open).await.map_err(|error| error.to_string())?;
                remote.inner.client.cache().granted(asking.turn, &grants);
                match &opened {
                    Ok(opened) => file.exclusive.store(opened.exclusive, Ordering::SeqCst),
                    // Not now.
                    &Err(error @ (SESSION_OVER | Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                        return Err(error.to_string());
                    }
                    Err(_) => {}
                }
                // Removed meanwhile, or nobody may open it any more: its users are told.
                file.is_gone.store(opened.is_err(), Ordering::SeqCst);
                Ok(())
            });
        }
        while let Some(opened) = opening.join_next().await {
            opened.map_err(|error| error.to_string())??;
        }
        Ok(())
    }

    /// Puts locks where they were.
    async fn relock(&self, session: &Session, may_reclaim: bool) -> Result<(), RequestError> {
        let turns = Arc::new(Semaphore::new(ORDINARY_REQUESTS_MAX));
        let mut locking = JoinSet::new();
        for (node, range, via) in self.inner.client.locking.all() {
            let Some(file) = lock(&self.inner.files).get(&via).cloned() else { continue };
            let (remote, session, turns) = (self.clone(), session.clone(), Arc::clone(&turns));
            locking.spawn(async move {
                let _turn = turns.acquire().await;
                let put = PutLock { reclaims: may_reclaim, ..locking::put(&range, via, 0, false) };
                let has_it = ask(&session, put).await?.0.is_ok_and(|state| state.done);
                if !has_it {
                    tracing::error!(node, "another has taken a lock that a program here had");
                    remote.inner.client.locking.note(node, via, LockRange { kind: None, ..range });
                }
                // Others may have had it meanwhile: what is protected by it is not what it was.
                if !has_it || !may_reclaim {
                    remote.failed(&file, Errno::IO);
                }
                Ok::<_, RequestError>(())
            });
        }
        while let Some(locked) = locking.join_next().await {
            locked.unwrap_or(Ok(()))?;
        }
        Ok(())
    }
}

/// Cuts what is to be told into messages.
fn parts(places: Vec<Place>) -> Vec<Vec<Place>> {
    let mut parts: Vec<Vec<Place>> = Vec::new();
    let mut bytes = PLACES_BYTES;
    for place in places {
        // Numbers and tags, at most.
        let more = place.name.len() + 40;
        if bytes + more > PLACES_BYTES {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(part) = parts.last_mut() {
            part.push(place);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_in_messages_that_are_not_too_long() {
        let place = |node| Place { node, parent: 1, name: vec![b'n'; 255].into(), times: u64::MAX };
        let parts = parts((0..1000).map(place).collect());
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), 1000);
        for part in parts {
            let bytes = Reclaim { nodes: part }.ask().into_bytes(Order::default(), Slot::default());
            assert!(bytes.len() < longhaul_transport::limits::CONTROL_BODY_BYTES_MAX, "{}", bytes.len());
        }
    }
}
