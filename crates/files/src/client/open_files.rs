//! Open files at the client. How they are read is in [`super::reading`], how they are written in [`super::writing`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::cache::OwnChange;
use super::fetch::Apart;
use super::reading::Reading;
use super::writing::{HowWritten, Writes};
use super::{Remote, lock, now};
use crate::limits::{BLOCK_BYTES, OVERDUE_AFTER};
use crate::message::{Allocate, Attr, Close, CopyRange, Grant, Open, Opened, Seek};

/// An open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    /// By which the server knows it, too.
    pub(super) number: u64,
    pub(super) node: u64,
    pub(super) flags: OFlags,
    /// It is open at the server; a file that is known already, or that a spare was taken for, is opened there when that is needed.
    pub(super) far: tokio::sync::OnceCell<()>,
    /// It was, and cannot be opened in another session.
    pub(super) is_gone: AtomicBool,
    /// Nobody uses it any more.
    pub(super) is_closing: AtomicBool,
    pub(super) writes: Mutex<Writes>,
    pub(super) reading: Mutex<Reading>,
    /// In the order in which it was asked for.
    pub(super) apart: Mutex<VecDeque<Apart>>,
    /// The lease under which what is written need not be at the server at once; 0: none.
    pub(super) exclusive: AtomicU64,
    /// When such a lease was last asked for.
    pub(super) acquired_at: AtomicU64,
    /// It cannot lose set-user-id or set-group-id by being written to, as long as that lease is there: it has none.
    pub(super) no_set_id: AtomicBool,
    /// What has gone wrong behind the writer's back, and nobody has been told.
    pub(super) failure: Mutex<Option<Errno>>,
    /// What is written to it is in the kernel's pages before it comes here.
    pub(super) by_pages: bool,
    /// As long as that lease is there the file has no capabilities, as it was made under it; 0: that is not known.
    pub(super) no_capability: AtomicU64,
}

/// What the server has opened: the exclusive lease that came with it, or 0, and its mode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Far {
    pub(super) exclusive: u64,
    pub(super) mode: u32,
}

impl Far {
    fn of(opened: &Opened) -> Self {
        let mode = opened.attr.map_or(SET_ID, |attr| attr.mode);
        Self { exclusive: opened.exclusive, mode }
    }
}

impl OpenFile {
    pub(super) fn new(number: u64, node: u64, flags: OFlags, far: Option<Far>) -> Self {
        Self {
            number,
            node,
            flags,
            far: tokio::sync::OnceCell::new_with(far.map(|_| ())),
            is_gone: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            writes: Mutex::default(),
            reading: Mutex::default(),
            apart: Mutex::default(),
            exclusive: far.map_or(0, |far| far.exclusive).into(),
            no_set_id: far.is_some_and(|far| far.mode & SET_ID == 0).into(),
            acquired_at: now().into(),
            failure: Mutex::default(),
            by_pages: false,
            no_capability: AtomicU64::new(0),
        }
    }

    /// Whether its user is content with a write that is not at the server.
    pub(super) fn is_patient(&self, how: HowWritten) -> bool {
        let impatient = OFlags::APPEND | OFlags::SYNC | OFlags::DSYNC | OFlags::DIRECT;
        let keeps = !how.drops_set_id || self.no_set_id.load(Ordering::SeqCst);
        keeps && !(self.flags | OFlags::from_bits_retain(how.flags)).intersects(impatient)
    }

    /// Tells once what has gone wrong.
    pub(super) fn check(&self) -> Result<(), Errno> {
        lock(&self.failure).take().map_or(Ok(()), Err)
    }
}

impl Remote {
    pub(super) fn add_file(&self, file: OpenFile) {
        lock(&self.inner.files).insert(file.number, Arc::new(file));
    }

    /// The number of the next open file: of 32 bits, as it is the upper half of an object's.
    pub(super) fn file_number(&self) -> u64 {
        loop {
            let next = self.inner.last_file.fetch_add(1, Ordering::Relaxed) + 1;
            let number = next % (u64::from(u32::MAX) + 1);
            if number != 0 && !lock(&self.inner.files).contains_key(&number) {
                return number;
            }
        }
    }

    pub(super) fn open_file(&self, file: u64) -> Result<Arc<OpenFile>, Errno> {
        lock(&self.inner.files).get(&file).cloned().ok_or(Errno::BADF)
    }

    /// The server's number of an open file.
    pub(super) async fn far(&self, file: &OpenFile) -> Result<u64, Errno> {
        let open = || async {
            let far = self.open_far(file.number, file.node, file.flags).await?;
            file.no_set_id.store(far.mode & SET_ID == 0, Ordering::SeqCst);
            file.exclusive.store(far.exclusive, Ordering::SeqCst);
            Ok(())
        };
        file.far.get_or_try_init(open).await?;
        if file.is_gone.load(Ordering::SeqCst) { Err(Errno::STALE) } else { Ok(file.number) }
    }

    pub(super) async fn open_far(&self, number: u64, node: u64, flags: OFlags) -> Result<Far, Errno> {
        self.flush_node(node).await;
        let writes = !only_reads(flags);
        let ask = Open { node, flags: flags.bits(), file: number, reclaims: false };
        if writes {
            let bytes = flags.contains(OFlags::TRUNC).then_some((0, u64::MAX));
            let opened = self.change(ask, &[OwnChange { bytes, ..OwnChange::of(node) }], |_, _| {}).await?;
            return Ok(Far::of(&opened));
        }
        let opened = self.learn(ask, |cache, turn, opened| {
            let Ok(opened) = opened else { return };
            if let Some(attr) = opened.attr {
                cache.keep_attr(turn, attr);
                // A small one is all there now.
                if let Some(content) = &opened.content {
                    cache.keep_block(turn, node, 0, content.clone());
                }
            }
        });
        let opened = opened.await?;
        let content = opened.content.as_ref().map_or(0, Bytes::len);
        self.inner.client.received_bytes.fetch_add(content as u64, Ordering::Relaxed);
        Ok(Far::of(&opened))
    }

    /// Those who have been given a spare to write to have it opened at the server, before they may not.
    pub(super) async fn open_writers(&self, node: u64) {
        let is_one =
            |file: &&Arc<OpenFile>| file.node == node && !file.far.initialized() && !only_reads(file.flags);
        let files: Vec<Arc<OpenFile>> = lock(&self.inner.files).values().filter(is_one).cloned().collect();
        for file in files {
            let _ = self.far(&file).await; // who uses it is told
        }
    }

    /// Opens at the server what is open here alone, of these nodes.
    pub(super) async fn open_all(&self, nodes: &[Grant]) {
        let nodes: std::collections::HashSet<u64> = nodes.iter().map(|grant| grant.node).collect();
        let files: Vec<Arc<OpenFile>> = lock(&self.inner.files).values().cloned().collect();
        let mut opening = tokio::task::JoinSet::new();
        for file in files.into_iter().filter(|file| nodes.contains(&file.node) && !file.far.initialized()) {
            let remote = self.clone();
            // If it is gone already, its reader is told when it comes to that.
            opening.spawn(async move {
                let _ = remote.far(&file).await;
            });
        }
        // Whoever waits for the answer does not wait longer than that anyway.
        let _ = tokio::time::timeout(OVERDUE_AFTER, opening.join_all()).await;
    }

    /// Opens a file: by what number, and whether it should be read by way of the kernel's pages. One that is kept whole was
    /// allowed to be read: its reader need not ask.
    pub async fn open(&self, node: u64, flags: OFlags) -> Result<(u64, bool), Errno> {
        let only_reads = only_reads(flags);
        if only_reads {
            self.comes_to_file(node).await;
        }
        let is_kept = only_reads && {
            let (mut cache, now) = (self.inner.client.cache(), now());
            let blocks = cache.attr(now, node).map_or(0, |attr| attr.size.div_ceil(BLOCK));
            (1..=KEPT_BLOCKS_MAX).contains(&blocks)
                && (0..blocks).all(|place| cache.block(now, node, place).is_some())
        };
        if !only_reads {
            self.opened_for_writing(node, false); // whose pages are given back is told before
        }
        let number = self.file_number();
        let opened = self.open_as(number, node, flags, is_kept).await;
        if opened.is_err() && !only_reads {
            self.closed_for_writing(node, false).await;
        }
        opened.map(|()| (number, self.reads_by_pages(node, flags)))
    }

    async fn open_as(&self, number: u64, node: u64, flags: OFlags, is_kept: bool) -> Result<(), Errno> {
        if flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
            self.return_own_pages(node).await;
        }
        // From then on it may be written to in memory, or is empty.
        let changes = flags.contains(OFlags::RDWR) || flags.contains(OFlags::TRUNC);
        let _no_stores = if changes { Some(self.without_stores(node).await) } else { None };
        let far = if is_kept { None } else { Some(self.open_far(number, node, flags).await?) };
        self.add_file(OpenFile::new(number, node, flags, far));
        Ok(())
    }

    /// Closes an open file; nobody waits for it.
    pub fn close(&self, file: u64) {
        let Ok(file) = self.open_file(file) else { return };
        file.is_closing.store(true, Ordering::SeqCst);
        let remote = self.clone();
        self.inner.runtime.spawn(async move {
            // What mapped memory has changed may come after the last close(2).
            remote.flush_written(file.node).await;
            {
                let mut files = lock(&remote.inner.files);
                if files.remove(&file.number).is_none() {
                    return;
                }
                // Nobody is there to be told.
                if !files.values().any(|other| other.node == file.node) {
                    lock(&remote.inner.unsynced).remove(&file.node);
                }
            }
            if !only_reads(file.flags) {
                remote.closed_for_writing(file.node, file.by_pages).await;
            }
            remote.inner.client.locking.closed(file.node, file.number);
            if let Err(error) = file.check() {
                tracing::error!(%error, "some of what was written to a file could not be stored");
            }
            // It may be about to be opened.
            let far = file.far.get_or_try_init(|| std::future::ready(Err(Errno::BADF))).await;
            if far.is_ok() {
                let _ = remote.call(Close { file: file.number }).await; // or the session is over
            }
        });
    }

    /// As fallocate(2).
    pub async fn allocate(&self, file: u64, offset: u64, length: u64, mode: u32) -> Result<(), Errno> {
        let file = self.open_file(file)?;
        self.flush_node(file.node).await;
        let _no_stores = self.without_stores(file.node).await;
        let far = self.far(&file).await?;
        let change = OwnChange::of_bytes(file.node, offset, u64::MAX);
        self.stored(file.node);
        self.change(Allocate { file: far, offset, length, mode }, &[change], |_, _| {}).await.map(drop)
    }

    /// The next hole, or the next bytes, from `offset` on.
    pub async fn seek(&self, file: u64, offset: u64, hole: bool) -> Result<u64, Errno> {
        let file = self.open_file(file)?;
        self.flush_node(file.node).await;
        // As many blocks as it has bytes: there are no holes.
        let full = self.known_attr(file.node).filter(|attr| attr.blocks.saturating_mul(512) >= attr.size);
        if let Some(Attr { size, .. }) = full {
            return if offset >= size { Err(Errno::NXIO) } else { Ok(if hole { size } else { offset }) };
        }
        let file = self.far(&file).await?;
        Ok(self.call(Seek { file, offset, hole }).await.outcome?.count)
    }

    /// As copy_file_range(2): how many bytes, which may be fewer.
    pub async fn copy_range(
        &self,
        (from_file, from): (u64, u64),
        (to_file, to): (u64, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        let (from_file, to_file) = (self.open_file(from_file)?, self.open_file(to_file)?);
        self.flush_all([from_file.node, to_file.node]).await;
        let _no_stores = self.without_stores(to_file.node).await;
        let change = OwnChange::of_bytes(to_file.node, to, u64::MAX);
        self.stored(to_file.node);
        let (from_file, to_file) = (self.far(&from_file).await?, self.far(&to_file).await?);
        let ask = CopyRange { from_file, from, to_file, to, length };
        Ok(self.change(ask, &[change], |_, _| {}).await?.count)
    }
}

/// Whether a file that is opened like that is neither written to nor made empty.
#[must_use]
pub fn only_reads(flags: OFlags) -> bool {
    !flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
}

/// Set-user-id and set-group-id, in a mode.
pub(super) const SET_ID: u32 = 0o6000;

pub(super) const BLOCK: u64 = BLOCK_BYTES as u64;

/// Files of more blocks are opened at the server in any case: the round trip is small beside what is read.
const KEPT_BLOCKS_MAX: u64 = 16;
