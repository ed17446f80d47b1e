//! What is read of open files: from what is kept, from what is on its way, and what is fetched for it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::cache::Nanos;
use super::open_files::OpenFile;
use super::reading::Plan;
use super::resume::Present;
use super::transfers::Broken;
use super::{Asking, Remote, lock, now};
use crate::limits::{BLOCK_BYTES, BLOCKS_COMING_MAX, INLINE_BYTES_MAX, READ_BYTES_MAX};
use crate::message::Read;

/// A block on its way.
#[derive(Clone, Debug)]
pub(super) struct Coming {
    asked_at: Nanos,
    /// Word that it has come, or will not.
    over: watch::Receiver<Option<()>>,
}

/// Bytes that were asked for ahead, and are kept for one reader until he has come to the next.
#[derive(Clone, Debug)]
pub(super) struct Apart {
    bytes: Range<u64>,
    /// As it was when they were asked for: see [`Cache::lease`](super::cache::Cache::lease).
    lease: (u64, u64),
    asked_at: Nanos,
    /// What has come, or that nothing has.
    came: watch::Receiver<Option<Option<Bytes>>>,
    _room: Arc<OwnedSemaphorePermit>,
}

/// The end of a block's way, whether it has come or not.
#[derive(Debug)]
struct Fetching {
    remote: Remote,
    at: (u64, u64),
    tell: watch::Sender<Option<()>>,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        lock(&self.remote.inner.coming).remove(&self.at);
        self.tell.send_replace(Some(()));
    }
}

impl Remote {
    /// As [`read`](Self::read), if no more is to be done for it than to take bytes that are here; else that follows. In the
    /// order in which programs ask.
    #[must_use]
    pub fn read_known(&self, file: u64, offset: u64, length: u32) -> Option<Bytes> {
        let file = self.open_file(file).ok()?;
        lock(&file.reading).comes_to(offset, length.into());
        let mut cache = self.inner.client.cache();
        let now = now();
        let size = cache.attr(now, file.node)?.size;
        let wanted = size.saturating_sub(offset).min(length.into());
        if wanted == 0 {
            return Some(Bytes::new());
        }
        let place = offset / BLOCK;
        if (offset + wanted - 1) / BLOCK != place {
            return None;
        }
        let block = cache.block(now, file.node, place)?;
        drop(cache);
        let from = (offset - place * BLOCK) as usize;
        let part =
            block.get(from..from + wanted as usize).map(|_| block.slice(from..from + wanted as usize))?;
        let plan = lock(&file.reading).read(offset, wanted, size, self.kept_for_one(), || self.round_trip());
        if plan.asks() {
            let remote = self.clone();
            self.inner.runtime.spawn(async move {
                let _ = remote.fetch_planned(&file, plan, size).await; // its reader will see
            });
        }
        Some(part)
    }

    /// Reads at most `length` bytes from `offset` on: fewer at the end of the file. Nothing is waited for that is here.
    pub async fn read(&self, file: u64, offset: u64, length: u32) -> Result<Bytes, Errno> {
        let file = self.open_file(file)?;
        self.flush_node(file.node).await;
        let length = length.min(READ_BYTES_MAX);
        let lease = self.inner.client.cache().lease(now(), file.node);
        if lease.is_some()
            && let Some(bytes) = self.read_kept(&file, offset, length, lease).await?
        {
            return Ok(bytes);
        }
        self.read_far(self.far(&file).await?, offset, length).await
    }

    /// Of a file whose parts may be kept; `None`: that does not pay, or they may not be any more.
    async fn read_kept(
        &self,
        file: &Arc<OpenFile>,
        offset: u64,
        length: u32,
        lease: Option<(u64, u64)>,
    ) -> Result<Option<Bytes>, Errno> {
        let size = self.attr(file.node).await?.size;
        let wanted = size.saturating_sub(offset).min(length.into());
        if wanted == 0 {
            return Ok(Some(Bytes::new()));
        }
        let plan = lock(&file.reading).read(offset, wanted, size, self.kept_for_one(), || self.round_trip());
        let (first, last) = (offset / BLOCK, (offset + wanted - 1) / BLOCK);
        let (reads_on, lies_apart) =
            (matches!(plan, Plan::Blocks(_) | Plan::BlocksDown(_)), matches!(plan, Plan::Apart(_)));
        self.fetch_planned(file, plan, size).await?;
        let mut parts = Vec::with_capacity(2);
        for place in first..=last {
            let mut block = self.block(file, place).await;
            if block.is_none() && reads_on {
                // It had to make room for others, was changed on its way, or its session is over: so what was to follow it is asked for again.
                lock(&file.reading).lost(place);
                self.fetch(file, place..place + 1, size).await?;
                block = self.block(file, place).await;
            }
            let Some(block) = block else {
                return Ok(if lies_apart { self.read_apart(file, offset, wanted).await } else { None });
            };
            let from = offset.saturating_sub(place * BLOCK) as usize;
            let to = ((offset + wanted - place * BLOCK) as usize).min(block.len());
            if from >= to {
                return Ok(None);
            }
            parts.push(block.slice(from..to));
        }
        // Parts of before and after a change are no bytes that were ever there.
        if first < last && self.inner.client.cache().lease(now(), file.node) != lease {
            return Ok(None);
        }
        Ok(Some(match <[Bytes; 1]>::try_from(parts) {
            Ok([whole]) => whole,
            Err(parts) => parts.concat().into(),
        }))
    }

    /// Of bytes that were asked for ahead, each run for itself.
    async fn read_apart(&self, file: &OpenFile, offset: u64, length: u64) -> Option<Bytes> {
        let mut run = {
            let mut apart = lock(&file.apart);
            let holds = |run: &Apart| run.bytes.start <= offset && offset + length <= run.bytes.end;
            let place = apart.iter().position(holds)?;
            apart.drain(..place); // he has jumped over these
            apart.front()?.clone()
        };
        if run.came.borrow().is_none() {
            let _ = run.came.wait_for(Option::is_some).await; // it ends with its sender, too
            let took = Duration::from_nanos(now().saturating_sub(run.asked_at));
            lock(&file.reading).waited_apart(took, self.round_trip());
        }
        let bytes = run.came.borrow().clone().flatten()?;
        // It is true still if that is the lease under which it was read, and nothing has been changed here since.
        if self.inner.client.cache().lease(now(), file.node) != Some(run.lease) {
            return None;
        }
        let from = (offset - run.bytes.start) as usize;
        bytes.get(from..from + length as usize).map(|part| bytes.slice_ref(part))
    }

    /// Most that is fetched ahead for one reader.
    fn kept_for_one(&self) -> u64 {
        self.inner.client.behind.bytes_max as u64
    }

    /// A block that is here or on its way; `None`: neither, or it came and may not be kept.
    pub(super) async fn block(&self, file: &OpenFile, place: u64) -> Option<Bytes> {
        if let Some(block) = self.inner.client.cache().block(now(), file.node, place) {
            return Some(block);
        }
        let mut coming = lock(&self.inner.coming).get(&(file.node, place)).cloned()?;
        if coming.over.borrow().is_none() {
            let _ = coming.over.wait_for(Option::is_some).await; // it ends with its sender, too
            let took = Duration::from_nanos(now().saturating_sub(coming.asked_at));
            lock(&file.reading).waited(place, took, self.round_trip(), self.kept_for_one());
        }
        self.inner.client.cache().block(now(), file.node, place)
    }

    /// As far as it is known.
    fn round_trip(&self) -> Duration {
        match &*self.inner.present.borrow() {
            Present::Up { session, .. } => session.rtt().unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }

    /// Has fetched what a reader is expected to come to.
    async fn fetch_planned(&self, file: &Arc<OpenFile>, plan: Plan, size: u64) -> Result<(), Errno> {
        if !matches!(plan, Plan::Apart(_)) {
            lock(&file.apart).clear();
        }
        match plan {
            Plan::Alone => Ok(()),
            Plan::Blocks(blocks) => self.fetch(file, blocks, size).await,
            // Blocks of one question would come in the wrong order.
            Plan::BlocksDown(blocks) => {
                for place in blocks.rev() {
                    self.fetch(file, place..place + 1, size).await?;
                }
                Ok(())
            }
            Plan::Apart(runs) => self.fetch_apart(file, runs).await,
        }
    }

    /// Has runs fetched that lie apart and are not here, as far as there is room for them.
    async fn fetch_apart(&self, file: &Arc<OpenFile>, mut runs: Vec<Range<u64>>) -> Result<(), Errno> {
        {
            let (mut cache, now) = (self.inner.client.cache(), now());
            runs.retain(|run| {
                let mut blocks = run.start / BLOCK..run.end.div_ceil(BLOCK);
                blocks.any(|place| cache.block(now, file.node, place).is_none())
            });
        }
        if runs.is_empty() {
            return Ok(());
        }
        {
            let reading = lock(&file.reading);
            lock(&file.apart).retain(|run| !reading.has_passed(run.bytes.start));
        }
        let far = self.far(file).await?;
        let client = &self.inner.client;
        let Some(lease) = client.cache().lease(now(), file.node) else { return Ok(()) };
        for run in runs {
            let (offset, length) = (run.start, (run.end - run.start) as u32);
            let Ok(room) = Arc::clone(&client.room_apart).try_acquire_many_owned(length) else { break };
            let (tell, came) = watch::channel(None);
            let apart = Apart { bytes: run, lease, asked_at: now(), came, _room: Arc::new(room) };
            lock(&file.apart).push_back(apart);
            let remote = self.clone();
            tokio::spawn(async move {
                tell.send_replace(Some(remote.read_far(far, offset, length).await.ok()));
            });
        }
        Ok(())
    }

    /// Has blocks fetched that are neither here nor on their way: in their order, and as few questions as that takes.
    pub(super) async fn fetch(
        &self,
        file: &Arc<OpenFile>,
        blocks: Range<u64>,
        size: u64,
    ) -> Result<(), Errno> {
        let missing: Vec<u64> = {
            let mut cache = self.inner.client.cache();
            let now = now();
            blocks
                .filter(|place| place * BLOCK < size && cache.block(now, file.node, *place).is_none())
                .collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        let far = self.far(file).await?;
        let asked_at = now();
        let mut runs: Vec<Vec<Fetching>> = Vec::new();
        let mut left_out = None;
        for place in missing {
            let at = (file.node, place);
            let (tell, over) = watch::channel(None);
            {
                let mut table = lock(&self.inner.coming);
                if table.contains_key(&at) {
                    continue;
                }
                if table.len() >= BLOCKS_COMING_MAX {
                    left_out = Some(place);
                    break;
                }
                table.insert(at, Coming { asked_at, over });
            }
            let fetching = Fetching { remote: self.clone(), at, tell };
            let goes_on = |run: &&mut Vec<Fetching>| {
                run.len() < RUN_BLOCKS_MAX && run.last().is_some_and(|last| last.at.1 + 1 == place)
            };
            match runs.last_mut().filter(goes_on) {
                Some(run) => run.push(fetching),
                None => runs.push(vec![fetching]),
            }
        }
        if let Some(place) = left_out {
            // Asked for with the next ones, before its reader comes to it: then it would stand behind all of them.
            lock(&file.reading).lost(place);
        }
        for run in runs {
            let (remote, transfer) = (self.clone(), self.inner.client.transfers.number());
            // What does not come is asked for again when it is read.
            tokio::spawn(async move { remote.fetch_run(far, transfer, run, size).await });
        }
        Ok(())
    }

    /// Fetches blocks that follow each other; each is kept as soon as it is there.
    async fn fetch_run(&self, far: u64, transfer: u64, run: Vec<Fetching>, size: u64) -> Option<()> {
        let client = &self.inner.client;
        let (node, first) = run.first()?.at;
        let offset = first * BLOCK;
        let length = (size - offset).min(run.len() as u64 * BLOCK) as u32;
        let asking = Asking::begin(client);
        let mut awaited = client.transfers.expect(transfer, length as usize, BLOCK_BYTES);
        let content = self.call(Read { file: far, offset, length, transfer }).await.outcome.ok()?;
        let mut run: Vec<Option<Fetching>> = run.into_iter().map(Some).collect();
        let mut keep = |index: usize, data: Bytes| {
            let fetching = run.get_mut(index).and_then(Option::take);
            client.received_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
            if data.len() as u64 == u64::from(length).saturating_sub(index as u64 * BLOCK).min(BLOCK) {
                client.cache().keep_block(asking.turn, node, first + index as u64, data);
                self.store_leaving();
            }
            drop(fetching);
        };
        if content.on_lanes == 0 {
            keep(0, content.data);
            return Some(());
        }
        awaited.begin(content.on_lanes.into()).ok()?;
        for _ in 0..u64::from(content.on_lanes).div_ceil(BLOCK) {
            let (index, data) = self.in_time(awaited.next()).await.ok()?.ok()?;
            keep(index, data.freeze());
        }
        Some(())
    }

    async fn read_far(&self, file: u64, offset: u64, length: u32) -> Result<Bytes, Errno> {
        let read = self.read_at_server(file, offset, length).await;
        let bytes = read.as_ref().map_or(0, |data| data.len() as u64);
        self.inner.client.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        read
    }

    /// Reads at the server. 1 RTT, and the time of the bytes.
    async fn read_at_server(&self, file: u64, offset: u64, length: u32) -> Result<Bytes, Errno> {
        if length as usize <= INLINE_BYTES_MAX {
            let mut data = self.call(Read { file, offset, length, transfer: 0 }).await.outcome?.data;
            data.truncate(length as usize); // whatever the server says
            return Ok(data);
        }
        let mut attempts = READ_ATTEMPTS;
        while attempts > 0 {
            let transfer = self.inner.client.transfers.number();
            let mut awaited = self.inner.client.transfers.expect(transfer, length as usize, length as usize);
            let mut content = self.call(Read { file, offset, length, transfer }).await.outcome?;
            if content.on_lanes == 0 {
                content.data.truncate(length as usize);
                return Ok(content.data);
            }
            let whole = match awaited.begin(content.on_lanes.into()) {
                Ok(()) => self.in_time(awaited.next()).await?,
                Err(broken) => Err(broken),
            };
            match whole {
                Ok((_, bytes)) => return Ok(bytes.freeze()),
                // The file has become shorter meanwhile, most likely.
                Err(Broken::GivenUp) => attempts -= 1,
                // The next one is asked; where there is none, that fails.
                Err(Broken::SessionOver) => {}
            }
        }
        Err(Errno::IO)
    }
}

/// A file may become shorter more than once while it is read.
const READ_ATTEMPTS: usize = 4;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Blocks of one question.
const RUN_BLOCKS_MAX: usize = READ_BYTES_MAX as usize / BLOCK_BYTES;
