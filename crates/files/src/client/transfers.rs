//! Bytes on the lanes, at the client: those it waits for, and those it sends.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use longhaul_transport::{Extent, Stored, Withdrawn};
use tokio::sync::oneshot;

use crate::ranges::RangeSet;

/// Why a transfer did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The other end has given it up.
    GivenUp,
    /// The session is over.
    SessionOver,
}

/// A part of a file that is on its way here.
#[derive(Debug)]
struct Incoming {
    buffer: Vec<u8>,
    arrived: RangeSet,
    /// Bytes that there will be, once the server has said so.
    expected: Option<u64>,
    done: Option<oneshot::Sender<Result<Vec<u8>, Broken>>>,
}

impl Incoming {
    /// Hands the bytes over when they are all there; false when not.
    fn finish(&mut self) -> bool {
        let Some(expected) = self.expected else { return false };
        if !self.arrived.contains(0, expected) {
            return false;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.truncate(expected as usize);
        self.tell(Ok(buffer));
        true
    }

    fn tell(&mut self, result: Result<Vec<u8>, Broken>) {
        if let Some(done) = self.done.take() {
            let _ = done.send(result); // the reader has gone
        }
    }
}

/// A part of a file that is on its way to the server.
#[derive(Debug)]
struct Outgoing {
    data: Bytes,
    /// Where it begins in the file.
    offset: u64,
    left: u64,
    given_up: bool,
    done: Option<oneshot::Sender<Result<(), Broken>>>,
}

/// All of a session's.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    incoming: Mutex<Numbered<Arc<Mutex<Incoming>>>>,
    outgoing: Mutex<HashMap<u64, Outgoing>>,
}

#[derive(Debug)]
struct Numbered<T> {
    last: u64,
    table: HashMap<u64, T>,
    over: bool,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { last: 0, table: HashMap::new(), over: false }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A transfer that this end waits for; who gives up waiting for it drops this.
pub(super) struct Awaited<'a> {
    transfers: &'a Transfers,
    pub(super) number: u64,
    done: oneshot::Receiver<Result<Vec<u8>, Broken>>,
}

impl Awaited<'_> {
    /// The server sends so many bytes: waits for them.
    pub(super) async fn bytes(mut self, expected: u64) -> Result<Vec<u8>, Broken> {
        let incoming = lock(&self.transfers.incoming).table.get(&self.number).cloned();
        if let Some(incoming) = incoming {
            let mut incoming = lock(&incoming);
            // A server that sends more than was asked for is not waited for.
            if expected > incoming.buffer.len() as u64 {
                return Err(Broken::GivenUp);
            }
            incoming.expected = Some(expected);
            incoming.finish();
        }
        (&mut self.done).await.unwrap_or(Err(Broken::SessionOver))
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        lock(&self.transfers.incoming).table.remove(&self.number);
    }
}

impl Transfers {
    /// Gets ready for up to `bytes` from the server.
    pub(super) fn expect(&self, bytes: usize) -> Awaited<'_> {
        let (sender, done) = oneshot::channel();
        let mut incoming = lock(&self.incoming);
        incoming.last += 1;
        let number = incoming.last;
        if !incoming.over {
            let buffer = vec![0; bytes];
            let entry = Incoming { buffer, arrived: RangeSet::default(), expected: None, done: Some(sender) };
            incoming.table.insert(number, Arc::new(Mutex::new(entry)));
        }
        Awaited { transfers: self, number, done }
    }

    /// Notes what is to be sent as `object`; resolves when the server has stored it.
    pub(super) fn send(
        &self,
        object: u64,
        offset: u64,
        data: Bytes,
    ) -> oneshot::Receiver<Result<(), Broken>> {
        let (sender, done) = oneshot::channel();
        let left = data.len() as u64;
        let outgoing = Outgoing { data, offset, left, given_up: false, done: Some(sender) };
        let incoming = lock(&self.incoming);
        if !incoming.over {
            lock(&self.outgoing).insert(object, outgoing);
        }
        drop(incoming);
        done
    }

    /// Nobody waits for this one any more.
    pub(super) fn forget(&self, object: u64) {
        lock(&self.outgoing).remove(&object);
    }

    pub(super) fn fill(
        &self,
        object: u64,
        offset: u64,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(), Withdrawn> {
        let (data, begin) = {
            let outgoing = lock(&self.outgoing);
            let outgoing = outgoing.get(&object).ok_or(Withdrawn)?;
            (outgoing.data.clone(), outgoing.offset)
        };
        let mut at = offset.checked_sub(begin).and_then(|at| usize::try_from(at).ok()).ok_or(Withdrawn)?;
        for slice in into {
            let from = data.get(at..at + slice.len()).ok_or(Withdrawn)?;
            slice.copy_from_slice(from);
            at += slice.len();
        }
        Ok(())
    }

    /// Bytes of an object have been stored by the server, or given up by it.
    pub(super) fn settled(&self, extent: &Extent, stored: bool) {
        let mut outgoing = lock(&self.outgoing);
        let Some(entry) = outgoing.get_mut(&extent.object) else { return };
        entry.left = entry.left.saturating_sub(extent.length);
        entry.given_up |= !stored;
        if entry.left == 0
            && let Some(mut entry) = outgoing.remove(&extent.object)
            && let Some(done) = entry.done.take()
        {
            let _ = done.send(if entry.given_up { Err(Broken::GivenUp) } else { Ok(()) }); // the writer has gone
        }
    }

    pub(super) fn store(&self, object: u64, offset: u64, data: &[u8]) -> Stored {
        let Some(incoming) = lock(&self.incoming).table.get(&object).cloned() else {
            return Stored::Unwanted;
        };
        let mut incoming = lock(&incoming);
        let end = offset.saturating_add(data.len() as u64);
        if end > incoming.buffer.len() as u64 {
            return Stored::Unwanted; // more than was asked for, or it has been handed over
        }
        incoming.buffer[offset as usize..end as usize].copy_from_slice(data);
        incoming.arrived.insert(offset, end);
        incoming.finish();
        Stored::Kept
    }

    /// The server cannot bring a transfer to its end.
    pub(super) fn give_up(&self, number: u64) {
        if let Some(incoming) = lock(&self.incoming).table.get(&number).cloned() {
            lock(&incoming).tell(Err(Broken::GivenUp));
        }
    }

    /// Another session has begun.
    pub(super) fn begin(&self) {
        lock(&self.incoming).over = false;
    }

    /// The session is over: whoever waits is told.
    pub(super) fn end(&self) {
        let mut incoming = lock(&self.incoming);
        incoming.over = true;
        let ended = (std::mem::take(&mut incoming.table), std::mem::take(&mut *lock(&self.outgoing)));
        drop(incoming);
        drop(ended);
    }
}
