//! Pages of files that the kernel keeps, because they are mapped into memory or are read by way of its page cache: it
//! keeps them under leases of their own (see [`crate::pages`]), and gives them back when they are broken.
//!
//! A page is filled while the kernel holds it locked, and a locked page cannot be given back. So what the kernel has, and what it has
//! asked for, is told apart: the first is given back, the second waits until that is over. When it takes long the kernel may be
//! waiting for a page that it asked for just before: then pages are filled all the same, and given back in another
//! pass; nobody changes the file before the last.
//!
//! Long files that are here but for little are read by way of pages, too, and stored to them before anybody asks: see [`ahead`].

mod ahead;
mod table;
mod written;

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::task::JoinSet;

use super::open_files::OpenFile;
use super::writing::HowWritten;
use super::{Inner, Remote, lock, now};
use crate::message::{Grant, Map};
use crate::ranges::RangeSet;
use table::{Table, Waits};

/// The kernel's pages.
pub trait PageCache: Send + Sync + 'static {
    /// Has all pages of a node with these bytes written that were changed in memory, and drops them. Waits for those that are being
    /// filled.
    fn give_back(&self, node: u64, bytes: Range<u64>);

    /// Fills pages that nobody has asked for; those that somebody has are waited for.
    fn store(&self, node: u64, offset: u64, data: &[u8]);
}

/// All of a client's.
#[derive(Default)]
pub(super) struct Pages {
    table: Mutex<Table>,
    cache: OnceLock<Arc<dyn PageCache>>,
    /// See [`Remote::store_leaving`]: whoever does so holds it.
    leaving: Arc<tokio::sync::Mutex<()>>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("table", &self.table).finish_non_exhaustive()
    }
}

impl Remote {
    /// Who keeps pages. To be told before the first of them is asked for.
    pub fn keep_pages(&self, cache: Arc<dyn PageCache>) {
        let _ = self.inner.client.pages.cache.set(cache); // there is one
        self.inner.runtime.spawn(Self::watch_pages(Arc::downgrade(&self.inner)));
    }

    /// Reads bytes to fill pages with. `fill` is called with them when they may be kept, at the latest until
    /// [`PageCache::give_back`] returns.
    pub async fn read_pages(
        &self,
        file: u64,
        offset: u64,
        length: u32,
        fill: impl FnOnce(Result<Bytes, Errno>),
    ) {
        let node = match self.open_file(file) {
            Ok(file) => file.node,
            Err(errno) => return fill(Err(errno)),
        };
        let bytes = offset..offset.saturating_add(length.into());
        let number = lock(&self.inner.client.pages.table).comes(node, bytes);
        self.fill_pages(file, node, number, (offset, length), fill).await;
        lock(&self.inner.client.pages.table).came(node, number);
    }

    async fn fill_pages(
        &self,
        file: u64,
        node: u64,
        number: u64,
        (offset, length): (u64, u32),
        fill: impl FnOnce(Result<Bytes, Errno>),
    ) {
        let client = &self.inner.client;
        loop {
            while lock(&client.pages.table).must_wait(now(), node) {
                tokio::time::sleep(PAUSE).await;
            }
            let alone = self.may_be_written_to(node);
            if alone {
                self.open_writers(node).await; // the server gives such a lease to those who have it open
            }
            let mut seen = lock(&client.pages.table).see(node, number, alone);
            if seen.lease.is_none() && !seen.is_owed {
                let asked = self.learn(Map { node, alone }, |_, _, _| {}).await;
                let mapped = match asked {
                    Ok(mapped) => mapped,
                    Err(errno) => return fill(Err(errno)),
                };
                let mut table = lock(&client.pages.table);
                if mapped.serial != 0 {
                    seen = table.granted(node, seen, mapped.serial, mapped.alone);
                }
            }
            let bytes = match self.read(file, offset, length).await {
                Ok(bytes) => bytes,
                Err(errno) => return fill(Err(errno)),
            };
            {
                // It may have been opened for writing meanwhile: then the kernel drops all pages when it hears of that.
                let valid = client.cache().valid_for(now()) > 0;
                let mut table = lock(&client.pages.table);
                if table.may_fill(now(), node, seen, alone, valid) {
                    // Nothing is given back between that and this.
                    return fill(Ok(bytes));
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Whether some open file of this node lets memory be written to that is mapped.
    fn may_be_written_to(&self, node: u64) -> bool {
        let may = |flags: OFlags| flags & OFlags::RWMODE == OFlags::RDWR;
        lock(&self.inner.files).values().any(|file| file.node == node && may(file.flags))
    }

    /// A write to a file is under way until the returned is dropped: meanwhile no page is filled with what was before.
    pub(super) fn writing(
        &self,
        file: &OpenFile,
        bytes: &Range<u64>,
        how: HowWritten,
    ) -> Option<Writing<'_>> {
        if how.later {
            return None;
        }
        Some(self.writes_pages(file.node, bytes.clone(), file.by_pages))
    }

    fn writes_pages(&self, node: u64, bytes: Range<u64>, by_pages: bool) -> Writing<'_> {
        let number = lock(&self.inner.client.pages.table).writes(node, bytes, by_pages);
        Writing { remote: self, node, number }
    }

    /// Whether this host's kernel may have pages with some of these bytes of a file.
    pub(super) fn keeps_pages(&self, node: u64, bytes: &Range<u64>) -> bool {
        lock(&self.inner.client.pages.table).keeps(node, bytes)
    }

    /// Gives pages back.
    pub(super) async fn break_pages(&self, broken: Vec<Grant>) {
        let mut returning = JoinSet::new();
        for grant in broken {
            let broken = lock(&self.inner.client.pages.table).broken(now(), grant);
            let Some((left, waits)) = broken else { continue };
            let remote = self.clone();
            returning.spawn(async move {
                tokio::time::sleep(left).await;
                remote.return_pages(grant.node, waits).await;
            });
        }
        returning.join_all().await;
    }

    async fn return_pages(&self, node: u64, waits: Waits) {
        let table = &self.inner.client.pages.table;
        let turns = lock(table).turns(node);
        let _turn = turns.lock().await;
        let mut is_first = true;
        loop {
            let pass = lock(table).begin_pass(now(), node, is_first);
            let Some(bytes) = pass else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            self.drop_pages(node, bytes).await;
            if !lock(table).end_pass(node, waits) {
                return;
            }
            is_first = false;
        }
    }

    /// Has the kernel drop pages, and the server told what was in them.
    async fn drop_pages(&self, node: u64, bytes: RangeSet) {
        if let Some(cache) = self.inner.client.pages.cache.get().map(Arc::clone) {
            let drop = move || bytes.iter().for_each(|(from, to)| cache.give_back(node, from..to));
            let _ = self.inner.runtime.spawn_blocking(drop).await; // or it panicked
        }
        self.flush_node(node).await;
    }

    /// Of a session that is over. Nobody waits: what was changed in memory is told to the next, which others may use by then.
    pub(super) fn lose_pages(&self) {
        let nodes = lock(&self.inner.client.pages.table).session_lost(now());
        self.return_all_pages(nodes);
    }

    fn return_all_pages(&self, nodes: Vec<u64>) {
        for node in nodes {
            let remote = self.clone();
            self.inner.runtime.spawn(async move { remote.return_pages(node, Waits::Nobody).await });
        }
    }

    /// Drops all pages when leases are over because the server is out of reach.
    async fn watch_pages(remote: Weak<Inner>) {
        while let Some(inner) = remote.upgrade() {
            let remote = Self { inner };
            let left = remote.inner.client.cache().valid_for(now());
            if left == 0 {
                let nodes = lock(&remote.inner.client.pages.table).expired(now());
                remote.return_all_pages(nodes);
            }
            drop(remote);
            tokio::time::sleep(Duration::from_nanos(left).clamp(EXPIRY_TICK / 10, EXPIRY_TICK)).await;
        }
    }

    /// Nobody here uses a node any more.
    pub(super) fn forget_pages(&self, node: u64) {
        lock(&self.inner.client.pages.table).forget(node);
    }
}

/// See [`Remote::writing`].
pub(super) struct Writing<'a> {
    remote: &'a Remote,
    node: u64,
    number: u64,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        lock(&self.remote.inner.client.pages.table).written(self.node, self.number);
    }
}

/// Before bytes are read once more whose lease was broken meanwhile.
const PAUSE: Duration = Duration::from_millis(1);

/// How often the end of leases is looked for, at least.
const EXPIRY_TICK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
