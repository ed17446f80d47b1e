//! Locks that programs of clients put on files.

use rustix::io::Errno;

use super::operations::Mounted;
use crate::locks::{Lock, LockKind, Owner, Refused};
use crate::message::{LockState, LockWish, Nothing, PutLock, SESSION_OVER, StopWaiting};

/// No file is longer.
const LAST: u64 = i64::MAX as u64;

impl Mounted {
    pub(super) fn put_lock(&self, ask: PutLock) -> Result<LockState, Errno> {
        // None is put when the client's locks have been taken away.
        let _open = self.gate.enter().ok_or(SESSION_OVER)?;
        let file = self.nodes.file(self.files.get(ask.file)?.node)?;
        let owner = Owner { client: self.client, number: ask.owner };
        let (start, last) = (ask.start, ask.last.min(LAST));
        if start > last {
            return Err(Errno::INVAL);
        }
        let done = LockState { done: true, ..LockState::default() };
        let kind = match LockWish::try_from(ask.wish).map_err(|_| Errno::INVAL)? {
            LockWish::Unlocked if ask.only_looks => return Ok(done),
            LockWish::Unlocked => {
                let unlocked =
                    self.coherence.with_locks(|locks| match locks.unlock(file, owner, start, last) {
                        Ok(woken) => (Ok(done), woken),
                        Err(_) => (Err(Errno::NOLCK), Vec::new()),
                    });
                return unlocked;
            }
            LockWish::Shared => LockKind::Shared,
            LockWish::Exclusive => LockKind::Exclusive,
        };
        let lock = Lock { owner, via: ask.file, pid: ask.pid, kind, start, last };
        let put = self.coherence.with_locks(|locks| {
            let put = match ask.wait {
                _ if ask.only_looks => {
                    locks.conflict(file, &lock).map_or(Ok(None), |held| Err(Refused::Held(held)))
                }
                0 => locks.lock(file, lock).map(Some),
                wait => locks.lock_or_wait(file, lock, wait),
            };
            let woken = put.as_ref().ok().cloned().flatten().unwrap_or_default();
            (put, woken)
        });
        match put {
            Ok(None) if !ask.only_looks => Ok(LockState { waits: true, ..LockState::default() }),
            Ok(_) => Ok(done),
            Err(Refused::Held(Lock { owner, pid, kind, start, last, .. })) => {
                self.coherence.wanted_of(owner.client);
                Ok(LockState {
                    pid,
                    is_exclusive: kind == LockKind::Exclusive,
                    start,
                    last,
                    ..LockState::default()
                })
            }
            Err(Refused::Deadlock) => Err(Errno::DEADLK),
            Err(Refused::TooMany) => Err(Errno::NOLCK),
        }
    }

    pub(super) fn stop_waiting(&self, ask: StopWaiting) -> Result<Nothing, Errno> {
        let waited =
            self.coherence.with_locks(|locks| (locks.stop_waiting((self.client, ask.wait)), Vec::new()));
        if waited { Ok(Nothing {}) } else { Err(Errno::NOENT) }
    }

    /// An open file has been closed: locks that came by way of it go.
    pub(super) fn close_locks(&self, file: u64, node: u64) {
        if let Ok(file_id) = self.nodes.file(node) {
            self.coherence.with_locks(|locks| ((), locks.closed(file_id, self.client, file)));
        }
    }
}
