//! Writes at the client: what is written is sent behind the writer's back under an exclusive lease, or at once without one.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use longhaul_transport::{Extent, Session};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::sync::{AcquireError, OwnedSemaphorePermit};

use super::behind::{Ahead, Arrived, OfBlock, Outcome, Part, Source, Taken};
use super::cache::OwnChange;
use super::memory::Buffer;
use super::open_files::{BLOCK, OpenFile, SET_ID};
use super::transfers::Broken;
use super::{Answer, Changing, Remote, lock, now, resume};
use crate::limits::{
    CONTENTION_PAUSE, INLINE_BYTES_MAX, KEPT_TWICE_RATE_MAX, PARTS_UNDER_WAY_MAX, TAILS_MAX, WRITE_BEHIND,
    WRITES_OPEN_MAX,
};
use crate::message::{Acquire, Order, SESSION_OVER, Settle, Settled, Sync, Write, Written, object, write_of};
use crate::ranges::RangeSet;

/// What the client knows of an open file's writes over the lanes.
#[derive(Debug, Default)]
pub(super) struct Writes {
    next: u32,
    under_way: std::collections::BTreeSet<u32>,
    /// As the server has been told.
    floor: u32,
    /// And as it has answered: what comes after that it may keep.
    settled: u32,
}

/// How a write is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HowWritten {
    /// Its writer may not keep set-user-id and set-group-id.
    pub drops_set_id: bool,
    /// Open flags of this write alone (pwritev2(2), fcntl(2)).
    pub flags: u32,
    /// The kernel writes pages back, or the program that has written has gone on already.
    pub later: bool,
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
    /// As [`write`](Self::write), if the bytes only have to be taken; false: they have not been.
    #[must_use]
    pub fn write_at_once(&self, file: u64, offset: u64, data: &[u8], how: HowWritten) -> bool {
        let room = Arc::clone(&self.inner.client.behind.room);
        let Ok(room) = room.try_acquire_many_owned(room_of(data)) else { return false };
        let Ok(file) = self.open_file(file) else { return false };
        let bytes = bytes_of(&file, offset, data.len());
        let _writing = self.writing(&file, &bytes, how);
        let is_by_pages = file.by_pages && !how.later;
        let may_be_kept = if is_by_pages {
            self.has_in_pages(&file, &bytes)
        } else {
            how.later || !self.keeps_pages(file.node, &bytes)
        };
        if !may_be_kept {
            return false;
        }
        let is_well = lock(&file.failure).is_none() && file.is_patient(how);
        let is_taken = is_well && self.write_behind(&file, offset, Source::Lent(data), room) == Taken::Yes;
        if is_taken && is_by_pages {
            self.stays_in_pages(&file, &bytes);
        }
        is_taken
    }

    /// A copy of what is to be written, for [`write`](Self::write).
    #[must_use]
    pub fn buffer(&self, data: &[u8]) -> Buffer {
        self.inner.client.memory.buffer(data)
    }

    /// Writes, all of it or an error. Where this client has the file to itself, nobody waits for the server; else 1 RTT, and
    /// the time of the bytes.
    ///
    /// # Errors
    /// Also of earlier writes to this open file.
    pub async fn write(
        &self,
        file: u64,
        offset: u64,
        mut data: Buffer,
        how: HowWritten,
    ) -> Result<(), Errno> {
        let file = self.open_file(file)?;
        if !how.later {
            file.check()?; // else the kernel would throw pages away for what they have nothing to do with
        }
        if !file.far.initialized() {
            self.writes_to_spare(file.node);
            self.far(&file).await?;
        }
        let bytes = bytes_of(&file, offset, data.len());
        let mut writing = self.writing(&file, &bytes, how);
        let is_by_pages = file.by_pages && !how.later;
        if is_by_pages && self.has_in_pages(&file, &bytes) && self.keep(&file, offset, &mut data, how).await {
            self.stays_in_pages(&file, &bytes);
            return Ok(());
        }
        if is_by_pages {
            drop(writing.take()); // the kernel may wait for pages that wait for this
            writing = Some(self.drop_before_write(file.node, &bytes).await);
        }
        // Others see it as soon as the pages here have been dropped. Those of a write by way of pages have been, and stay away; the kernel
        // may hold locked what it covers in part: whoever waits for that must not be waited for.
        let later = how.later || is_by_pages;
        let may_wait = later || !self.keeps_pages(file.node, &bytes);
        if may_wait && self.keep(&file, offset, &mut data, how).await {
            return Ok(());
        }
        // Later than what was written before.
        self.flush_node(file.node).await;
        let far = self.far(&file).await?;
        let change = [OwnChange::of_bytes(file.node, bytes.start, bytes.end)];
        let changing = Changing::begin(&self.inner.client, &change);
        let under_way = self.in_time(self.begin_write()).await?.ok_or(Errno::IO)?;
        let mut written =
            self.write_far(&file, far, offset, data.freeze(), HowWritten { later, ..how }).await;
        drop((changing, under_way, writing));
        let synced = OFlags::SYNC | OFlags::DSYNC;
        if written.is_ok()
            && OFlags::from_bits_retain(how.flags).intersects(synced)
            && !file.flags.intersects(synced)
        {
            written = self.call(Sync { file: far, data_only: true }).await.outcome.map(drop);
        }
        if file.is_patient(HowWritten::default()) {
            self.may_acquire(&file, far);
        }
        written
    }

    /// Keeps a write here, if the file is this client's alone; false: it is not, and `data` as it was.
    async fn keep(&self, file: &Arc<OpenFile>, offset: u64, data: &mut Buffer, how: HowWritten) -> bool {
        let fits = room_of(data) as usize <= self.inner.client.behind.bytes_max;
        while fits && file.is_patient(how) && file.exclusive.load(Ordering::SeqCst) != 0 {
            let Ok(room) = self.room(room_of(data)).await else { break };
            match self.write_behind(file, offset, Source::Given(data), room) {
                Taken::Yes => return true,
                Taken::Overlaps => self.flush_node(file.node).await,
                Taken::NotAlone => break,
            }
        }
        false
    }

    /// Waits for room; what takes it is sent, unless much is on its way already.
    async fn room(&self, bytes: u32) -> Result<OwnedSemaphorePermit, AcquireError> {
        let behind = &self.inner.client.behind;
        if let Ok(room) = Arc::clone(&behind.room).try_acquire_many_owned(bytes) {
            return Ok(room);
        }
        // What is on its way makes room, too; and a tail that is not whole yet would not be kept as a block. (Those are sent after a
        // second anyway.)
        let enough = (behind.bytes_max / 2).max(bytes as usize);
        if behind.sending.load(Ordering::Relaxed) < enough {
            for node in behind.nodes() {
                self.send_tails(node, None);
            }
        }
        Arc::clone(&behind.room).acquire_many_owned(bytes).await
    }

    /// Sends what a file's writers have not, or only if that is the tail of this number.
    pub(super) fn send_tails(&self, node: u64, only: Option<u64>) {
        let behind = &self.inner.client.behind;
        let parts = behind.of(node).map(|written| written.send_tails(only).0);
        parts.into_iter().flatten().for_each(|part| self.send(part));
        behind.tidy(node);
    }

    fn write_behind(
        &self,
        file: &Arc<OpenFile>,
        offset: u64,
        data: Source<'_>,
        room: OwnedSemaphorePermit,
    ) -> Taken {
        let exclusive = file.exclusive.load(Ordering::SeqCst);
        if exclusive == 0 || offset.checked_add(data.bytes().len() as u64).is_none() {
            return Taken::NotAlone;
        }
        let (node, client) = (file.node, &self.inner.client);
        let written = client.behind.begin(node);
        let may = || client.cache().holds(now(), node, exclusive);
        let begins = |from| client.cache().begin_part(node, from);
        let Outcome { taken, parts, begun } = written.write(file, (offset, data), room, may, begins);
        drop(written);
        if !parts.is_empty() {
            client.cache().set_taken(client.behind.bytes());
        }
        parts.into_iter().for_each(|part| self.send(part));
        for number in begun {
            let remote = self.clone();
            self.inner.runtime.spawn(async move {
                tokio::time::sleep(WRITE_BEHIND).await;
                remote.send_tails(node, Some(number));
            });
        }
        client.behind.tidy(node);
        if taken == Taken::Yes {
            client.behind.taken.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Sends a part, in a task of its own.
    fn send(&self, part: Part) {
        self.send_as(part, None);
    }

    /// The same; `before`: by what number, if something comes after it, and who is to know what has become of it.
    fn send_as(&self, part: Part, before: Option<(u64, Arc<Arrived>)>) {
        let remote = self.clone();
        let session = self.inner.present.borrow().number();
        let is_short = part.data.len() <= INLINE_BYTES_MAX;
        let (node, times) = (part.file.node, part.begun.times);
        let lease = part.file.exclusive.load(Ordering::SeqCst);
        let bytes = part.data.len();
        self.inner.client.behind.sending.fetch_add(bytes, Ordering::Relaxed);
        let alone = is_short.then(|| self.inner.client.cache().parts_under_way(node, 1, times)).flatten();
        self.inner.runtime.spawn(async move {
            let Part { number, file, offset, data, begun, room, of_block } = part;
            let (client, node, end) = (&remote.inner.client, file.node, offset + data.len() as u64);
            let sent = async {
                let _turn = client.behind.turns.acquire().await;
                let far = remote.far(&file).await?;
                if !is_short {
                    return remote.write_far(&file, far, offset, data.clone(), LATER).await.map(|()| None);
                }
                let (data, tells) = (data.clone(), alone.is_some());
                let write = Write { file: far, offset, data, later: true, tells, ..Write::default() };
                let order = Order { number: before.as_ref().map_or(0, |(number, _)| *number), after: 0 };
                let Answer { outcome, session, .. } = remote.ordered_call(write, order, None).await;
                let Written { attr } = outcome?;
                if let Some((_, arrived)) = before {
                    arrived.session.fetch_max(session, Ordering::SeqCst);
                    arrived.stored.fetch_add(1, Ordering::SeqCst);
                }
                remote.has_stored(&file, (end - offset) as usize);
                Ok(attr)
            };
            let mut forfeited = remote.inner.forfeited.subscribe();
            let sent = tokio::select! {
                sent = sent => sent,
                _ = forfeited.wait_for(|forfeited| *forfeited >= session) => Err(Errno::IO),
            };
            let mut is_stored = sent.is_ok();
            let (begins, block, stored) = match of_block {
                OfBlock::Alone => (offset, data.clone(), None),
                OfBlock::Piece(stored) => (offset, data.clone(), Some(stored)),
                OfBlock::Last { block, pieces } => {
                    for piece in pieces {
                        is_stored &= piece.await == Ok(true);
                    }
                    (end - block.len() as u64, block, None)
                }
            };
            let written = client.behind.of(node);
            let is_fast =
                written.is_some_and(|written| written.is_faster_than(KEPT_TWICE_RATE_MAX, now(), bytes));
            let is_given = is_fast && file.by_pages && remote.is_given(node, begins..end);
            let mut cache = client.cache();
            let lease_now = file.exclusive.load(Ordering::SeqCst);
            let kept = (is_stored && !is_given).then_some((lease_now, &block));
            let is_kept = cache.end_part(node, (begins, end), begun, kept);
            if let Some(stored) = stored {
                let _ = stored.send(is_stored); // the last part may never be
            }
            if let (Ok(Some(attr)), Some(alone)) = (&sent, alone) {
                cache.keep_written(alone, lease, *attr);
            }
            client.behind.sending.fetch_sub(bytes, Ordering::Relaxed);
            drop((room, data, block));
            cache.set_taken(client.behind.bytes());
            client.may_forget(cache);
            if let Err(errno) = sent {
                remote.failed(&file, errno);
                remote.lose_written(&file);
            }
            if let Some(written) = client.behind.of(node) {
                written.settle(number, offset);
            }
            client.behind.tidy(node);
            if is_kept {
                remote.store_written(node, offset / BLOCK);
            }
            remote.store_leaving();
        });
    }

    /// Some of what was written to an open file is lost: whoever has the same file open for writing is told.
    pub(super) fn failed(&self, file: &OpenFile, errno: Errno) {
        lock(&file.failure).get_or_insert(errno);
        for other in lock(&self.inner.files).values().filter(|other| other.node == file.node) {
            lock(&other.failure).get_or_insert(errno);
        }
    }

    /// The mode of a file changes: it may have set-user-id or set-group-id to lose from now on.
    pub(super) fn mode_changes(&self, node: u64) {
        for file in lock(&self.inner.files).values().filter(|file| file.node == node) {
            file.no_set_id.store(false, Ordering::SeqCst);
            file.no_capability.store(0, Ordering::SeqCst);
        }
    }

    /// Asks to have a file to itself once more, in the background, now and then.
    fn may_acquire(&self, file: &Arc<OpenFile>, far: u64) {
        let (now, before) = (now(), file.acquired_at.load(Ordering::SeqCst));
        if now < before + CONTENTION_PAUSE.as_nanos() as u64 {
            return;
        }
        file.acquired_at.store(now, Ordering::SeqCst);
        let (remote, file) = (self.clone(), Arc::clone(file));
        self.inner.runtime.spawn(async move {
            if let Ok(acquired) = remote.learn(Acquire { file: far }, |_, _, _| {}).await {
                file.no_set_id.store(acquired.mode & SET_ID == 0, Ordering::SeqCst);
                file.exclusive.store(acquired.exclusive, Ordering::SeqCst);
            }
        });
    }

    /// Has the server told all that is known here of a node.
    pub(super) async fn flush_node(&self, node: u64) {
        self.tell_spares(|spare| spare.concerns(node)).await;
        self.flush_written(node).await;
    }

    /// All that was written here to a file.
    pub(super) async fn flush_written(&self, node: u64) {
        let behind = &self.inner.client.behind;
        let Some(written) = behind.of(node) else { return };
        let (parts, last) = written.send_tails(None);
        parts.into_iter().for_each(|part| self.send(part));
        written.settled(last).await;
        drop(written);
        behind.tidy(node);
    }

    /// The same for what is asked next and comes after it: what is short is on its way when this returns, and need not have arrived.
    pub(super) async fn flush_ahead(&self, node: u64) -> Option<Ahead> {
        self.tell_spares(|spare| spare.concerns(node)).await;
        let client = &self.inner.client;
        let written = client.behind.of(node)?;
        // They do not wait to be sent: somebody does at the server.
        let may_be_sent = client.behind.turns.available_permits() >= TAILS_MAX;
        let short = may_be_sent.then(|| written.send_short_tails()).flatten();
        let Some((parts, last)) = short else {
            drop(written);
            self.flush_node(node).await;
            return None;
        };
        let number = self.inner.last_order.fetch_add(1, Ordering::Relaxed) + 1;
        let (count, times) = (parts.len() as u32, parts.iter().map(|part| part.begun.times).sum());
        let ahead = Ahead {
            node,
            written,
            last,
            order: Order { number, after: count },
            parts: client.cache().parts_under_way(node, count, times),
            unsynced: self.unsynced(node),
            arrived: Arc::default(),
        };
        parts.into_iter().for_each(|part| self.send_as(part, Some((number, Arc::clone(&ahead.arrived)))));
        Some(ahead)
    }

    /// The same as [`flush_node`](Self::flush_node) for several.
    pub(super) async fn flush_all(&self, nodes: impl IntoIterator<Item = u64>) {
        let behind = &self.inner.client.behind;
        let nodes: Vec<u64> = nodes.into_iter().filter(|node| behind.of(*node).is_some()).collect();
        let mut flushing = tokio::task::JoinSet::new();
        for node in nodes {
            let remote = self.clone();
            flushing.spawn(async move { remote.flush_written(node).await });
        }
        flushing.join_all().await;
    }

    /// Has the server told all that was written here, as long as that goes on: `patience` without a byte is the end.
    /// Bytes that are lost by it.
    pub async fn settle(&self, patience: Duration) -> usize {
        let behind = &self.inner.client.behind;
        let _ = tokio::time::timeout(patience, self.tell_spares(|_| true)).await;
        let flushing = self.flush_all(behind.nodes());
        tokio::pin!(flushing);
        loop {
            let before = behind.bytes();
            let over = tokio::time::timeout(patience, &mut flushing).await.is_ok();
            if over || behind.bytes() >= before {
                return behind.bytes();
            }
        }
    }

    /// Has the server told all that was written to a file: it is there for everybody, and on no disk perhaps.
    ///
    /// # Errors
    /// Of earlier writes to this file. They are told again: a process that ends closes what others have open, and does not
    /// listen.
    pub async fn flush(&self, file: u64) -> Result<(), Errno> {
        let file = self.open_file(file)?;
        self.flush_written(file.node).await;
        lock(&file.failure).map_or(Ok(()), Err)
    }

    async fn write_far(
        &self,
        file: &OpenFile,
        far: u64,
        offset: u64,
        data: Bytes,
        how: HowWritten,
    ) -> Result<(), Errno> {
        let bytes = data.len();
        self.write_at_server(file, far, offset, data, how).await?;
        self.has_stored(file, bytes);
        Ok(())
    }

    /// The server has stored so many bytes of a writer's.
    fn has_stored(&self, file: &OpenFile, bytes: usize) {
        if !file.flags.intersects(OFlags::SYNC | OFlags::DSYNC) {
            self.stored(file.node);
        }
        self.inner.client.stored_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Writes at the server.
    async fn write_at_server(
        &self,
        file: &OpenFile,
        far: u64,
        offset: u64,
        data: Bytes,
        how: HowWritten,
    ) -> Result<(), Errno> {
        let HowWritten { drops_set_id, later, .. } = how;
        if data.len() <= INLINE_BYTES_MAX {
            return self.write_in_parts(file, far, offset, &data, how).await;
        }
        let (first, many_wait, lags) = {
            let table = lock(&file.writes);
            let first = table.under_way.first().copied().unwrap_or(table.next);
            let kept = (table.next - table.settled) as usize;
            let many_wait = (table.next - first) as usize >= WRITES_OPEN_MAX / 2;
            (first, many_wait, kept >= WRITES_OPEN_MAX - PARTS_UNDER_WAY_MAX)
        };
        if lags && !many_wait {
            self.settle_below(file, far, first).await?;
        }
        let keeps_pages = || self.keeps_pages(file.node, &bytes_of(file, offset, data.len()));
        let appends = file.flags.contains(OFlags::APPEND);
        if appends || drops_set_id || many_wait || (!later && keeps_pages()) {
            return self.write_in_parts(file, far, offset, &data, how).await;
        }
        self.write_over_lanes(file, far, offset, data, how).await
    }

    /// One part after the other, in order; where files are appended to, the server chooses the place.
    async fn write_in_parts(
        &self,
        file: &OpenFile,
        far: u64,
        offset: u64,
        data: &Bytes,
        HowWritten { drops_set_id, later, .. }: HowWritten,
    ) -> Result<(), Errno> {
        // What is in memory has its place.
        let appends = file.flags.contains(OFlags::APPEND) && !later;
        let mut at = 0;
        loop {
            let part = data.slice(at..data.len().min(at + INLINE_BYTES_MAX));
            let (offset, length) = (offset + at as u64, part.len());
            let write = Write { file: far, offset, data: part, drops_set_id, later, tells: false, appends };
            self.vital_call(write).await.outcome?;
            at += length;
            if at >= data.len() {
                return Ok(());
            }
        }
    }

    /// Tells the server that writes below this number are over: it keeps them no longer.
    async fn settle_below(&self, file: &OpenFile, far: u64, below: u32) -> Result<(), Errno> {
        self.vital_call(Settle { file: far, below, write: None }).await.outcome?;
        let mut table = lock(&file.writes);
        table.settled = table.settled.max(below);
        Ok(())
    }

    async fn write_over_lanes(
        &self,
        file: &OpenFile,
        far: u64,
        offset: u64,
        data: Bytes,
        how: HowWritten,
    ) -> Result<(), Errno> {
        // A number for each session: what is said of one is not taken for the other.
        let (mut numbers, mut before): (Vec<UnderWay<'_>>, u64) = (Vec::new(), 0);
        loop {
            let (session, session_number) = self.in_time(self.session(before)).await?.ok_or(Errno::IO)?;
            if before > 0 && self.is_forfeited(before) {
                return Err(Errno::IO);
            }
            before = session_number;
            let mut missing = RangeSet::default();
            missing.insert(offset, offset + data.len() as u64);
            let is_known = self.in_time(take_stored(&session, far, &numbers, &mut missing)).await??;
            if !is_known {
                continue;
            }
            if missing.is_empty() {
                return Ok(());
            }
            let (number, settle) = next_number(&file.writes)?;
            let object = object(far, number.number);
            numbers.push(number);
            let done = self.inner.client.transfers.send(object, offset, data.clone(), missing.bytes());
            for (start, end) in missing.iter() {
                let extent = Extent { object, offset: start, length: end - start, whole: false };
                session.lanes().push(extent).await;
            }
            if self.inner.present.borrow().number() != session_number {
                self.inner.client.transfers.forget(object); // it may have been noted too late to be ended with the session
            }
            if let Some(below) = settle {
                self.settle_below(file, far, below).await?;
            }
            match self.in_time(done).await? {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Broken::GivenUp)) => {}
                Ok(Err(Broken::SessionOver)) | Err(_) => continue,
            }
            let write = Some(write_of(object).1);
            let Answer { outcome, session, .. } =
                self.vital_call(Settle { file: far, below: 0, write }).await;
            let settled = outcome?;
            if session != session_number {
                continue;
            }
            if !settled.meets_pages {
                return Err(Errno::IO); // it should have said why
            }
            // In messages they wait until those who have the pages have given them back. Not once more what is stored: others may
            // have written there since.
            settled.take_from(&mut missing);
            for (start, end) in missing.iter() {
                let rest = data.slice((start - offset) as usize..(end - offset) as usize);
                self.write_in_parts(file, far, start, &rest, how).await?;
            }
            return Ok(());
        }
    }

    /// Makes a file's bytes durable, and all else of it unless `data_only`.
    pub async fn sync(&self, file: u64, data_only: bool) -> Result<(), Errno> {
        let file = self.open_file(file)?;
        let ahead = self.flush_ahead(file.node).await;
        file.check()?;
        let far = self.far(&file).await?;
        let before = ahead.as_ref().map_or_else(|| self.unsynced(file.node), |ahead| ahead.unsynced);
        let arrived = ahead.as_ref().map(|ahead| Arc::clone(&ahead.arrived));
        self.call_after(ahead, Sync { file: far, data_only }).await.outcome?;
        // The server's machine may have been started again meanwhile: then it had no more to sync. Or there was no room for what
        // has been sent along.
        file.check()?;
        let synced = before + arrived.map_or(0, |arrived| arrived.stored.load(Ordering::SeqCst));
        let mut unsynced = lock(&self.inner.unsynced);
        if unsynced.get(&file.node) == Some(&synced) {
            unsynced.remove(&file.node);
        }
        Ok(())
    }

    /// How often that was so, since it was synced last.
    fn unsynced(&self, node: u64) -> u64 {
        lock(&self.inner.unsynced).get(&node).copied().unwrap_or(0)
    }

    /// The server has, or will have, something of a file that its disk need not have.
    pub(super) fn stored(&self, node: u64) {
        *lock(&self.inner.unsynced).entry(node).or_default() += 1;
    }

    /// The server's machine was started again: what had not been synced may be gone, and who has such a file open is told.
    pub(super) fn lose_unsynced(&self) {
        let unsynced = std::mem::take(&mut *lock(&self.inner.unsynced));
        for file in lock(&self.inner.files).values().filter(|file| unsynced.contains_key(&file.node)) {
            lock(&file.failure).get_or_insert(Errno::IO);
        }
    }
}

impl Settled {
    /// Takes what is stored out of what is not known to be.
    fn take_from(&self, missing: &mut RangeSet) {
        for place in self.stored.chunks_exact(2) {
            missing.remove(place[0], place[1]);
        }
    }
}

/// Takes out of `missing` what servers have stored of a write in sessions before this one: others may have written to the same place since.
/// False: this session is over, too.
async fn take_stored(
    session: &Session,
    file: u64,
    numbers: &[UnderWay<'_>],
    missing: &mut RangeSet,
) -> Result<bool, Errno> {
    for number in numbers {
        let settle = Settle { file, below: 0, write: Some(number.number) };
        match resume::ask(session, settle).await {
            Ok((Ok(settled), _)) => settled.take_from(missing),
            Ok((Err(SESSION_OVER), _)) | Err(_) => return Ok(false),
            // It could not be opened again.
            Ok((Err(Errno::BADF), _)) => return Err(Errno::STALE),
            Ok((Err(errno), _)) => return Err(errno),
        }
    }
    Ok(true)
}

/// The number of a file's next write over the lanes; and, now and then, below what number all are over.
fn next_number(writes: &Mutex<Writes>) -> Result<(UnderWay<'_>, Option<u32>), Errno> {
    let mut table = lock(writes);
    let number = table.next;
    table.next = table.next.checked_add(1).ok_or(Errno::OVERFLOW)?;
    table.under_way.insert(number);
    let floor = table.under_way.first().copied().unwrap_or(number);
    let settles = floor - table.floor >= SETTLE_AFTER;
    if settles {
        table.floor = floor;
    }
    Ok((UnderWay { writes, number }, settles.then_some(floor)))
}

/// What a write changes.
fn bytes_of(file: &OpenFile, offset: u64, length: usize) -> Range<u64> {
    // The server chooses the place.
    let anywhere = file.flags.contains(OFlags::APPEND);
    if anywhere { 0..u64::MAX } else { offset..offset.saturating_add(length as u64) }
}

/// Room that a write takes: small ones cost more than their bytes.
fn room_of(data: &[u8]) -> u32 {
    u32::try_from(data.len().max(ROOM_LEAST)).unwrap_or(u32::MAX)
}

const ROOM_LEAST: usize = 4096;

/// Of what was taken from its writer before.
const LATER: HowWritten = HowWritten { drops_set_id: false, flags: 0, later: true };

/// Writes that are over when the server is told so: well before it has as many as it keeps.
const SETTLE_AFTER: u32 = WRITES_OPEN_MAX as u32 / 16;

#[cfg(test)]
mod tests;
