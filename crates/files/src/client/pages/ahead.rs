//! Files that are read by way of the kernel's pages: which, and how their bytes come there before anybody asks.
//!
//! A long file that is here but for little, and that nobody here may write to, is read from pages as fast as memory is. Blocks are stored
//! there while a file is written, so that it can be read as soon as it is closed, and before they have to make room here. Not ahead of a
//! reader: the kernel asks for what is next by itself, and whoever stores beside it is in its way.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;

use super::super::cache::Leaving;
use super::super::open_files::{OpenFile, only_reads};
use super::super::{Remote, lock, now};
use super::{Waits, Writing};
use crate::limits::{BLOCK_BYTES, CONTENTION_PAUSE, LONG_BYTES};
use crate::message::Map;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Of a processor's time, one part in so many may be for storing blocks that nobody waits for: it delays whoever writes or reads others.
const SHARE_OF_TIME: u32 = 4;

impl Remote {
    /// Whether a file that is opened like that should be read by way of the kernel's pages.
    pub(in super::super) fn reads_by_pages(&self, node: u64, flags: OFlags) -> bool {
        if !only_reads(flags)
            || flags.contains(OFlags::DIRECT)
            || self.inner.client.pages.cache.get().is_none()
        {
            return false;
        }
        let given = lock(&self.inner.client.pages.table).given(node).cloned().unwrap_or_default();
        let is_here = self.inner.client.cache().is_here(now(), node, LONG_BYTES, &given);
        let writes = |file: &Arc<OpenFile>| file.node == node && !only_reads(file.flags);
        is_here && !lock(&self.inner.files).values().any(writes)
    }

    /// A file is being opened for writing: the kernel drops its pages, and whoever writes need not have them taken back then.
    pub(in super::super) async fn return_own_pages(&self, node: u64) {
        let returns = lock(&self.inner.client.pages.table).returns(now(), node);
        if returns {
            self.return_pages(node, Waits::Nobody).await;
        }
    }

    /// Nothing is stored of a file until the returned is dropped: a store that comes late would make it longer again, or undo
    /// what has been written to its pages in memory.
    pub(in super::super) async fn without_stores(&self, node: u64) -> Writing<'_> {
        let writing = self.writes_pages(node, 0..u64::MAX, false);
        while lock(&self.inner.client.pages.table).is_storing(node) {
            tokio::time::sleep(super::PAUSE).await;
        }
        writing
    }

    /// Whether the kernel has got these bytes, all of them, under a lease on pages: who reads a long file finds them there, unless it has given
    /// them up.
    pub(in super::super) fn is_given(&self, node: u64, bytes: Range<u64>) -> bool {
        let table = lock(&self.inner.client.pages.table);
        table.given(node).is_some_and(|given| given.contains(bytes.start, bytes.end))
    }

    /// A block that was written here has come to the server, and is here.
    pub(in super::super) fn store_written(&self, node: u64, place: u64) {
        let pages = &self.inner.client.pages;
        if pages.cache.get().is_none() || self.may_be_written_to(node) {
            return;
        }
        if lock(&pages.table).has_written(node, place) {
            let remote = self.clone();
            self.inner.runtime.spawn(async move {
                if remote.lease_pages(node).await {
                    remote.store_all(node).await;
                } else {
                    lock(&remote.inner.client.pages.table).give_up_stores(node);
                }
            });
        }
    }

    /// A block has come, and others of this mount's have to make room for more soon: the kernel gets what it has not of these, where long
    /// files are read again. It keeps that as long as it has memory for it.
    pub(in super::super) fn store_leaving(&self) {
        let Ok(turn) = Arc::clone(&self.inner.client.pages.leaving).try_lock_owned() else { return };
        if self.next_leaving(0).is_none() {
            return;
        }
        let remote = self.clone();
        self.inner.runtime.spawn(async move {
            let _turn = turn;
            let (mut used, mut refused) = (0, HashSet::new());
            while let Some(Leaving { used: at, node, place }) = remote.next_leaving(used) {
                used = at;
                if refused.contains(&node) {
                    continue;
                }
                let stored =
                    if remote.lease_pages(node).await { remote.store_block(node, place).await } else { None };
                match stored {
                    Some(took) => tokio::time::sleep(took.min(STORE_MAX) * (SHARE_OF_TIME - 1)).await,
                    None => drop(refused.insert(node)),
                }
            }
            if !refused.is_empty() {
                // Whoever uses that goes on to, most likely: it is not asked for again with each block.
                tokio::time::sleep(CONTENTION_PAUSE).await;
            }
        });
    }

    /// As [`Cache::leaves_after`](super::super::cache::Cache::leaves_after), of those that the kernel has not got, and may get.
    fn next_leaving(&self, used: u64) -> Option<Leaving> {
        let pages = &self.inner.client.pages;
        pages.cache.get()?;
        let written: HashSet<u64> = lock(&self.inner.files)
            .values()
            .filter(|file| !only_reads(file.flags))
            .map(|file| file.node)
            .collect();
        let table = lock(&pages.table);
        let is_wanted = |node, place: u64| {
            let (from, to) = (place * BLOCK, (place + 1) * BLOCK);
            let is_given = match table.given(node) {
                Some(given) => given.contains(from, to),
                None => table.keeps(node, &(from..to)),
            };
            !is_given && !written.contains(&node)
        };
        self.inner.client.cache().leaves_after(used, LONG_BYTES, is_wanted)
    }

    /// Asks for a lease on pages, if there is none.
    pub(super) async fn lease_pages(&self, node: u64) -> bool {
        let table = &self.inner.client.pages.table;
        if lock(table).is_leased(node) {
            return true;
        }
        let seen = lock(table).see(node, 0, false);
        if seen.is_owed {
            return false;
        }
        let Ok(mapped) = self.learn(Map { node, alone: false }, |_, _, _| {}).await else { return false };
        if mapped.serial != 0 {
            let _ = lock(table).granted(node, seen, mapped.serial, mapped.alone);
        }
        lock(table).is_leased(node)
    }

    /// Stores blocks as long as there are some.
    pub(super) async fn store_all(self, node: u64) {
        loop {
            let Some(place) = lock(&self.inner.client.pages.table).next_store(node) else { return };
            let took = self.store_block(node, place).await.unwrap_or_default();
            tokio::time::sleep(took.min(STORE_MAX) * (SHARE_OF_TIME - 1)).await;
        }
    }

    /// How long that took a processor; `None`: it may not be stored.
    async fn store_block(&self, node: u64, place: u64) -> Option<Duration> {
        let client = &self.inner.client;
        let cache = Arc::clone(client.pages.cache.get()?);
        let block = || client.cache().block_beside_writes(now(), node, place);
        if block().is_none() {
            return Some(Duration::ZERO); // it has made room
        }
        let bytes = place * BLOCK..(place + 1) * BLOCK;
        let number = {
            let valid = client.cache().valid_for(now()) > 0;
            let mut table = lock(&client.pages.table);
            if self.may_be_written_to(node) { None } else { table.stores(node, bytes, valid) }
        }?;
        // Taken now that whoever changes it has the kernel's pages taken back.
        let mut took = Duration::ZERO;
        if let Some(block) = block() {
            let store = move || {
                let begun = processor_time();
                cache.store(node, place * BLOCK, &block);
                processor_time().saturating_sub(begun)
            };
            took = self.inner.runtime.spawn_blocking(store).await.unwrap_or_default(); // or it panicked
        }
        lock(&client.pages.table).came(node, number);
        Some(took)
    }
}

/// Of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A block that takes longer is no measure of the next.
const STORE_MAX: Duration = Duration::from_millis(10);
