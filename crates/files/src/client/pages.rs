//! Pages of files that the kernel keeps, because they are mapped into memory or are read by way of its page cache: it
//! keeps them under leases of their own (see [`crate::pages`]), and gives them back when they are broken.
//!
//! A page is filled while the kernel holds it locked, and a locked page cannot be given back. So a page that is asked for
//! while others of its file are being given back is filled all the same, and given back in another pass; nobody changes
//! the file before the last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::task::JoinSet;

use super::open_files::{HowWritten, OpenFile};
use super::{Inner, Nanos, Remote, lock, now};
use crate::message::{Grant, Map};

/// The kernel's pages.
pub trait PageCache: Send + Sync + 'static {
    /// Has all pages of a node written that were changed in memory, and drops them. Waits for those that are being filled.
    fn give_back(&self, node: u64);
}

/// All of a client's.
#[derive(Default)]
pub(super) struct Pages {
    table: Mutex<Table>,
    cache: OnceLock<Arc<dyn PageCache>>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("table", &self.table).finish_non_exhaustive()
    }
}

/// What is known of leases on pages. Pure.
#[derive(Debug, Default)]
struct Table {
    nodes: HashMap<u64, Kept>,
    /// Sessions that are over.
    sessions: u64,
}

#[derive(Debug, Default)]
struct Kept {
    /// Number, and whether pages may be written to in memory.
    lease: Option<(u64, bool)>,
    /// The highest number that was broken.
    broken: u64,
    /// How many are being filled.
    filling: u32,
    /// Writes of programs here that are under way, and how often one has begun or ended.
    writing: u32,
    writes: u64,
    /// How often pages are being given back just now, and how often they have been.
    returning: u32,
    returned: u64,
    /// One was filled meanwhile.
    again: bool,
    /// When one was filled last.
    filled_at: Nanos,
}

/// What was known before a page's bytes were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    lease: Option<u64>,
    returned: u64,
    sessions: u64,
    writes: u64,
}

impl Table {
    /// `alone`: pages may be written to in memory.
    fn see(&mut self, node: u64, alone: bool) -> Seen {
        let sessions = self.sessions;
        let kept = self.nodes.entry(node).or_default();
        let lease = kept.lease.filter(|(_, is_alone)| *is_alone || !alone).map(|(serial, _)| serial);
        Seen { lease, returned: kept.returned, sessions, writes: kept.writes }
    }

    /// Whether the kernel may have pages.
    fn keeps(&self, node: u64) -> bool {
        self.nodes
            .get(&node)
            .is_some_and(|kept| kept.lease.is_some() || kept.returning > 0 || kept.filling > 0)
    }

    /// Pages are filled from now on, or have been.
    fn fills(&mut self, node: u64, by: i32) {
        let kept = self.nodes.entry(node).or_default();
        kept.filling = kept.filling.saturating_add_signed(by);
    }

    /// A write begins, or has ended.
    fn writes(&mut self, node: u64, by: i32) {
        let kept = self.nodes.entry(node).or_default();
        kept.writing = kept.writing.saturating_add_signed(by);
        kept.writes += 1;
    }

    /// The server has granted a lease to who has asked after seeing that.
    fn granted(&mut self, node: u64, seen: Seen, serial: u64, alone: bool) {
        if let Some(kept) = self.nodes.get_mut(&node)
            && seen.sessions == self.sessions
            && serial > kept.broken
            && kept.lease.is_none_or(|(known, is_alone)| known < serial || (known == serial && !is_alone))
        {
            kept.lease = Some((serial, alone));
        }
    }

    /// Whether bytes that were read after seeing that may fill a page now. `valid`: leases may be used.
    fn may_fill(&mut self, now: Nanos, node: u64, seen: Seen, alone: bool, valid: bool) -> bool {
        let sees = self.see(node, alone);
        let Some(kept) = self.nodes.get_mut(&node) else { return false };
        // Else nobody has changed them since they were read, and nobody does before this page is given back, too.
        let is_leased = seen == sees && seen.lease.is_some() && kept.writing == 0 && valid;
        let is_returning =
            kept.returning > 0 && (kept.returned, self.sessions) == (seen.returned, seen.sessions);
        kept.again |= is_returning;
        if is_leased || is_returning {
            kept.filled_at = now;
        }
        is_leased || is_returning
    }

    /// How long whoever has just got a page should be left with it.
    /// `None`: nobody has pages of that.
    fn broken(&mut self, now: Nanos, Grant { node, serial }: Grant) -> Option<Duration> {
        let kept = self.nodes.get_mut(&node)?;
        kept.broken = kept.broken.max(serial);
        kept.lease = kept.lease.filter(|(known, _)| *known > serial);
        kept.returning += 1;
        let left = (kept.filled_at + TURN.as_nanos() as Nanos).saturating_sub(now);
        Some(Duration::from_nanos(left).min(TURN))
    }

    /// A pass begins.
    fn give_back(&mut self, node: u64) {
        if let Some(kept) = self.nodes.get_mut(&node) {
            kept.again = false;
        }
    }

    /// A pass is over; true: another is needed.
    fn gave_back(&mut self, node: u64) -> bool {
        let Some(kept) = self.nodes.get_mut(&node) else { return false };
        if kept.again {
            return true;
        }
        kept.returning = kept.returning.saturating_sub(1);
        kept.returned += 1;
        false
    }

    /// The session is over, and all leases with it: whose pages are to be given back.
    fn session_lost(&mut self) -> Vec<u64> {
        self.sessions += 1;
        self.expired()
    }

    /// Leases are over for now.
    fn expired(&mut self) -> Vec<u64> {
        self.nodes.iter_mut().filter_map(|(node, kept)| kept.lease.take().map(|_| *node)).collect()
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
        lock(&self.inner.client.pages.table).fills(node, 1);
        self.fill_pages(file, node, offset, length, fill).await;
        lock(&self.inner.client.pages.table).fills(node, -1);
    }

    async fn fill_pages(
        &self,
        file: u64,
        node: u64,
        offset: u64,
        length: u32,
        fill: impl FnOnce(Result<Bytes, Errno>),
    ) {
        let client = &self.inner.client;
        loop {
            let alone = self.may_be_written_to(node);
            let mut seen = lock(&client.pages.table).see(node, alone);
            if seen.lease.is_none() {
                let asked = self.learn(Map { node, alone }, |_, _, _| {}).await;
                let mapped = match asked {
                    Ok(mapped) => mapped,
                    Err(errno) => return fill(Err(errno)),
                };
                let mut table = lock(&client.pages.table);
                if mapped.serial != 0 {
                    table.granted(node, seen, mapped.serial, mapped.alone);
                    // Nothing was read before.
                    seen = table.see(node, alone);
                }
            }
            let bytes = match self.read(file, offset, length).await {
                Ok(bytes) => bytes,
                Err(errno) => return fill(Err(errno)),
            };
            {
                let mut table = lock(&client.pages.table);
                // It may have been opened for writing meanwhile: then the kernel drops all pages when it hears of that.
                let valid = client.cache().valid_for(now()) > 0;
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
    pub(super) fn writing(&self, file: &OpenFile, how: HowWritten) -> Option<Writing<'_>> {
        if how.later {
            return None;
        }
        lock(&self.inner.client.pages.table).writes(file.node, 1);
        Some(Writing { remote: self, node: file.node })
    }

    /// Whether this host's kernel may have pages of a file.
    pub(super) fn keeps_pages(&self, node: u64) -> bool {
        lock(&self.inner.client.pages.table).keeps(node)
    }

    /// Gives pages back.
    pub(super) async fn break_pages(&self, broken: Vec<Grant>) {
        let mut returning = JoinSet::new();
        for grant in broken {
            let Some(turn) = lock(&self.inner.client.pages.table).broken(now(), grant) else { continue };
            let remote = self.clone();
            returning.spawn(async move {
                tokio::time::sleep(turn).await;
                loop {
                    lock(&remote.inner.client.pages.table).give_back(grant.node);
                    remote.drop_pages(grant.node).await;
                    if !lock(&remote.inner.client.pages.table).gave_back(grant.node) {
                        return;
                    }
                }
            });
        }
        returning.join_all().await;
    }

    /// Has the kernel drop pages, and the server told what was in them.
    async fn drop_pages(&self, node: u64) {
        if let Some(cache) = self.inner.client.pages.cache.get().map(Arc::clone) {
            let _ = self.inner.runtime.spawn_blocking(move || cache.give_back(node)).await; // or it panicked
        }
        self.flush_node(node).await;
    }

    /// Of a session that is over. Nobody waits: what was changed in memory is told to the next, which others may use by then.
    pub(super) fn lose_pages(&self) {
        let nodes = lock(&self.inner.client.pages.table).session_lost();
        self.drop_all_pages(nodes);
    }

    fn drop_all_pages(&self, nodes: Vec<u64>) {
        for node in nodes {
            let remote = self.clone();
            self.inner.runtime.spawn(async move { remote.drop_pages(node).await });
        }
    }

    /// Drops all pages when leases are over because the server is out of reach.
    async fn watch_pages(remote: Weak<Inner>) {
        while let Some(inner) = remote.upgrade() {
            let remote = Self { inner };
            let left = remote.inner.client.cache().valid_for(now());
            if left == 0 {
                let nodes = lock(&remote.inner.client.pages.table).expired();
                remote.drop_all_pages(nodes);
            }
            drop(remote);
            tokio::time::sleep(Duration::from_nanos(left).clamp(EXPIRY_TICK / 10, EXPIRY_TICK)).await;
        }
    }

    /// Nobody here uses a node any more.
    pub(super) fn forget_pages(&self, node: u64) {
        let mut table = lock(&self.inner.client.pages.table);
        if table
            .nodes
            .get(&node)
            .is_some_and(|kept| kept.returning == 0 && kept.filling == 0 && kept.writing == 0)
        {
            table.nodes.remove(&node);
        }
    }
}

/// See [`Remote::writing`].
pub(super) struct Writing<'a> {
    remote: &'a Remote,
    node: u64,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        lock(&self.remote.inner.client.pages.table).writes(self.node, -1);
    }
}

/// Who has got a page keeps it so long: else two who both write to memory take it from each other before they come to
/// write, again and again.
const TURN: Duration = Duration::from_millis(5);

/// Before bytes are read once more whose lease was broken meanwhile.
const PAUSE: Duration = Duration::from_millis(1);

/// How often the end of leases is looked for, at least.
const EXPIRY_TICK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
