//! Files that are written by way of the kernel's pages, where they can be read again as soon as they are closed.
//!
//! Only by whoever makes them, so that nobody here has pages of them before. The kernel fills a page with what is written, and then
//! sends the write: so the page is new before anybody knows of it here. As long as the file is this client's alone nobody can tell, and
//! the pages stay for as long as its lease does, or one on pages. Where it is not, the pages of each write are dropped before it is made.
//!
//! A page that a write covers in part is locked until the write is done, and has nothing that may be read: nobody waits for it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::OFlags;

use super::super::open_files::OpenFile;
use super::super::writing::HowWritten;
use super::super::{Remote, lock, now};
use super::Writing;
use super::ahead::SHARE_OF_TIME;
use crate::limits::LONG_BYTES;
use crate::message::Grant;

impl Remote {
    /// Whether a file that was made just now, and is known to nobody else here, should be written by way of the kernel's pages. Whoever may
    /// read from it, too, may map it into memory: then its pages would be under leases that small files are better off without.
    pub(in super::super) fn writes_by_pages(&self, file: &OpenFile) -> bool {
        self.inner.client.pages.cache.get().is_some()
            && file.flags & OFlags::RWMODE == OFlags::WRONLY
            && file.is_patient(HowWritten::default())
            && file.exclusive.load(Ordering::SeqCst) != 0
    }

    /// An open file may be written to from now on.
    pub(in super::super) fn opened_for_writing(&self, file: &OpenFile) {
        lock(&self.inner.client.pages.table).opened_for_writing(file.node, file.by_pages);
    }

    /// It is closed.
    pub(in super::super) async fn closed_for_writing(&self, file: &OpenFile) {
        let (table, node) = (&self.inner.client.pages.table, file.node);
        lock(table).closed_for_writing(node, file.by_pages);
        if !file.by_pages {
            return;
        }
        // A long one's pages get a lease of their own, a short one's are dropped.
        let size = self.known_attr(node).map_or(0, |attr| attr.size);
        let is_leased = lock(table).is_leased(node) || (size >= LONG_BYTES && self.lease_pages(node).await);
        if !is_leased {
            self.return_own_pages(node).await;
        } else if lock(table).is_made(node, size) {
            self.inner.runtime.spawn(self.clone().store_all(node, SHARE_OF_TIME));
        }
    }

    /// The kernel has these bytes in its pages: whether they may stay there if the write is kept here. To be told before it is, so that whoever
    /// takes the lease away has them dropped.
    pub(in super::super) fn has_in_pages(&self, file: &OpenFile, bytes: &Range<u64>) -> bool {
        lock(&self.inner.client.pages.table).has_in_pages(file.node, bytes, page_size())
    }

    /// The write is kept here, and so are they.
    pub(in super::super) fn stays_in_pages(&self, file: &OpenFile, bytes: &Range<u64>) {
        if file.by_pages {
            lock(&self.inner.client.pages.table).stays_in_pages(file.node, bytes, page_size());
        }
    }

    /// Has the kernel drop the pages of a write that cannot stay there, before it is made: from then on it is as if it had been written past them.
    pub(in super::super) async fn drop_before_write(
        &self,
        node: u64,
        bytes: &Range<u64>,
    ) -> Option<Writing<'_>> {
        let pages = &self.inner.client.pages;
        let (cache, page) = (pages.cache.get()?, page_size());
        let of_pages = |from: u64, to: u64| from * page..to * page;
        let drop = |bytes: Range<u64>| {
            let cache = Arc::clone(cache);
            self.inner.runtime.spawn_blocking(move || cache.give_back(node, bytes))
        };
        let (first, last) = (bytes.start / page, bytes.end.saturating_sub(1) / page);
        let whole = bytes.start.div_ceil(page)..bytes.end / page;
        let ends = [first, last].map(|end| of_pages(end, end + 1));
        for end in ends.into_iter().filter(|end| !whole.contains(&(end.start / page))) {
            // One that was all there need not be now. Else it is locked until the write is done, and has nothing that may be read.
            if lock(&pages.table).has_whole(node, &end) {
                let _ = tokio::time::timeout(LOCKED, drop(end.clone())).await; // or it panicked
            }
            lock(&pages.table).dropped(node, &end);
        }
        let whole = if whole.is_empty() { 0..0 } else { of_pages(whole.start, whole.end) };
        loop {
            let filled = lock(&pages.table).filled(node);
            if !whole.is_empty() {
                let _ = drop(whole.clone()).await; // as above
            }
            let number = lock(&pages.table).writes_dropped(node, bytes.clone(), &whole, filled);
            if let Some(number) = number {
                return Some(Writing { remote: self, node, number });
            }
        }
    }

    /// These leases on files were broken: what was written to their pages goes, unless a lease on pages is there as well.
    pub(in super::super) async fn return_written(&self, broken: &[Grant]) {
        for &Grant { node, .. } in broken {
            let returns = lock(&self.inner.client.pages.table).lease_broken(now(), node);
            if returns {
                self.return_pages(node, false).await;
            }
        }
    }
}

/// A page that is not dropped by then is locked.
const LOCKED: Duration = Duration::from_millis(10);

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}
