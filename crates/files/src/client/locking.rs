//! Locks that programs put on files. They are the server's; here it is known who has some, and who waits.

use std::collections::HashMap;
use std::sync::Mutex;

use rustix::io::Errno;
use tokio::sync::oneshot;

use super::resume::Present;
use super::{Remote, lock};
use crate::locks::{Lock, LockKind, Locks, Owner};
use crate::message::{LockState, LockWish, PutLock, StopWaiting};

/// What is to become of a range of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// A process, or an open file, as whoever asks numbers them.
    pub owner: u64,
    /// The process.
    pub pid: u32,
    /// `None`: no lock.
    pub kind: Option<LockKind>,
    /// The first byte.
    pub start: u64,
    /// The last one.
    pub last: u64,
}

/// Somebody's lock that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHeld {
    /// His process, on whichever host.
    pub pid: u32,
    /// What for.
    pub kind: LockKind,
    /// The first byte.
    pub start: u64,
    /// The last one.
    pub last: u64,
}

/// This client's.
#[derive(Debug, Default)]
pub(super) struct Locking {
    /// What the server has said yes to.
    held: Mutex<Locks<u64>>,
    waiting: Mutex<(u64, HashMap<u64, oneshot::Sender<()>>)>,
}

impl Locking {
    /// Those who waited under these numbers have their locks.
    pub(super) fn granted(&self, numbers: &[u64]) {
        let mut waiting = lock(&self.waiting);
        for number in numbers {
            if let Some(waiter) = waiting.1.remove(number) {
                let _ = waiter.send(()); // or he does not wait any more, and says so
            }
        }
    }

    /// The session is over: nobody gets anything.
    pub(super) fn end(&self) {
        lock(&self.waiting).1.clear();
    }

    fn begin(&self) -> (u64, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = lock(&self.waiting);
        waiting.0 += 1;
        let number = waiting.0;
        waiting.1.insert(number, sender);
        (number, receiver)
    }

    fn has_any(&self, node: u64, owner: u64) -> bool {
        lock(&self.held).has_any(node, Owner { client: HERE, number: owner })
    }

    /// All that this client's programs have: of which node, what, and by way of which open file.
    pub(super) fn all(&self) -> Vec<(u64, LockRange, u64)> {
        let all = lock(&self.held).all();
        let range = |lock: &Lock| {
            let Lock { owner, pid, kind, start, last, .. } = *lock;
            LockRange { owner: owner.number, pid, kind: Some(kind), start, last }
        };
        all.iter().map(|(node, lock)| (*node, range(lock), lock.via)).collect()
    }

    pub(super) fn note(&self, node: u64, via: u64, range: LockRange) {
        let LockRange { owner, pid, kind, start, last } = range;
        let owner = Owner { client: HERE, number: owner };
        let mut held = lock(&self.held);
        match kind {
            None => drop(held.unlock(node, owner, start, last)),
            // The server knows better than this whether there is room for it.
            Some(kind) => drop(held.lock(node, Lock { owner, via, pid, kind, start, last })),
        }
    }

    pub(super) fn closed(&self, node: u64, via: u64) {
        lock(&self.held).closed(node, HERE, via);
    }
}

/// There is only one client here.
const HERE: u64 = 0;

pub(super) fn put(range: &LockRange, file: u64, wait: u64, only_looks: bool) -> PutLock {
    let wish = match range.kind {
        None => LockWish::Unlocked,
        Some(LockKind::Shared) => LockWish::Shared,
        Some(LockKind::Exclusive) => LockWish::Exclusive,
    };
    let LockRange { owner, pid, start, last, .. } = *range;
    PutLock { file, owner, pid, wish: wish.into(), start, last, wait, only_looks, reclaims: false }
}

impl Remote {
    async fn put_lock(
        &self,
        file: u64,
        range: LockRange,
        wait: u64,
        looks: bool,
    ) -> Result<LockState, Errno> {
        let file = self.far(&*self.open_file(file)?).await?;
        self.call(put(&range, file, wait, looks)).await.outcome
    }

    /// Puts a lock on a range of an open file, or takes it away, as fcntl(2) with `F_SETLK`. 1 RTT.
    ///
    /// # Errors
    /// `EAGAIN`: somebody has one that is in the way.
    pub async fn lock(&self, file: u64, range: LockRange) -> Result<(), Errno> {
        let node = self.open_file(file)?.node;
        if !self.put_lock(file, range, 0, false).await?.done {
            return Err(Errno::AGAIN);
        }
        self.inner.client.locking.note(node, file, range);
        Ok(())
    }

    /// The same with `F_SETLKW`: waits for it, but not longer than until `interrupted`.
    ///
    /// # Errors
    /// `EINTR`; `EDEADLK`: it would wait for somebody who waits for the asker.
    pub async fn lock_waiting(
        &self,
        file: u64,
        range: LockRange,
        interrupted: impl Future<Output = ()>,
    ) -> Result<(), Errno> {
        let node = self.open_file(file)?.node;
        let locking = &self.inner.client.locking;
        tokio::pin!(interrupted);
        loop {
            let (number, mut granted) = locking.begin();
            let state = self.put_lock(file, range, number, false).await;
            let mut end = match &state {
                Ok(LockState { done: true, .. }) => Some(Ok(())),
                Ok(LockState { waits: true, .. }) => None,
                Ok(_) => Some(Err(Errno::AGAIN)),
                Err(error) => Some(Err(*error)),
            };
            if end.is_none() {
                // `None` again: the session is over, and who waited in it is not known in the next.
                end = tokio::select! {
                    has_it = &mut granted => has_it.ok().map(Ok),
                    // Whatever it says, that is the end.
                    () = &mut interrupted => match self.call(StopWaiting { wait: number }).await.outcome {
                        // Too late: it is on its way, or was lost with a session.
                        Err(Errno::NOENT) => Some(granted.await.map_err(|_| Errno::INTR)),
                        Ok(_) => Some(Err(Errno::INTR)),
                        Err(error) => Some(Err(error)),
                    },
                };
            }
            lock(&locking.waiting).1.remove(&number);
            match end {
                Some(Ok(())) => {
                    locking.note(node, file, range);
                    return Ok(());
                }
                Some(Err(error)) => return Err(error),
                None if matches!(*self.inner.present.borrow(), Present::Over(_)) => return Err(Errno::IO),
                // It may wait in the next session, unknown here. If it has been given the lock there, asking is enough.
                None => drop(self.call(StopWaiting { wait: number }).await),
            }
        }
    }

    /// Somebody's lock that is in the way of this one; as `F_GETLK`.
    ///
    /// # Errors
    /// As of a request.
    pub async fn lock_in_the_way(&self, file: u64, range: LockRange) -> Result<Option<LockHeld>, Errno> {
        let state = self.put_lock(file, range, 0, true).await?;
        let LockState { done, pid, is_exclusive, start, last, .. } = state;
        let kind = if is_exclusive { LockKind::Exclusive } else { LockKind::Shared };
        Ok((!done).then_some(LockHeld { pid, kind, start, last }))
    }

    /// A process has closed a file: it has no locks on it any more (fcntl(2)), by whichever descriptor they came.
    pub async fn unlock_all(&self, file: u64, owner: u64) {
        let Ok(node) = self.open_file(file).map(|file| file.node) else { return };
        if self.inner.client.locking.has_any(node, owner) {
            let range = LockRange { owner, pid: 0, kind: None, start: 0, last: u64::MAX };
            let _ = self.lock(file, range).await; // or the session is over, and so the lock
        }
    }
}
