//! Files that are written by way of the kernel's pages, where they can be read again as soon as they are closed.
//!
//! Only by whoever makes them, so that nobody here has pages of them before. The kernel fills a page with what is written, and then
//! sends the write: so the page is new before anybody knows of it here. As long as the file is this client's alone nobody can tell, and
//! the pages stay for as long as its lease does, or one on pages. Where it is not, the pages of each write are dropped before it is made.
//!
//! A page that a write covers in part is locked until the write is done, and has nothing that may be read. Who gives pages back waits for it:
//! so a write by way of pages never waits for that.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::task::JoinSet;

use super::super::open_files::OpenFile;
use super::super::writing::HowWritten;
use super::super::{Remote, lock, now};
use super::Writing;
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
    pub(in super::super) fn opened_for_writing(&self, node: u64, by_pages: bool) {
        lock(&self.inner.client.pages.table).opened_for_writing(node, by_pages);
    }

    /// It is closed.
    pub(in super::super) async fn closed_for_writing(&self, node: u64, by_pages: bool) {
        let table = &self.inner.client.pages.table;
        lock(table).closed_for_writing(node, by_pages);
        if by_pages {
            self.leave_written(node).await;
        }
        // The kernel may have forgotten it before.
        if !self.inner.client.cache().is_known(node) {
            self.forget_pages(node);
        }
    }

    async fn leave_written(&self, node: u64) {
        let table = &self.inner.client.pages.table;
        // A long one's pages get a lease of their own, a short one's are dropped.
        let size = lock(table).given_up_to(node);
        let is_leased = lock(table).is_leased(node) || (size >= LONG_BYTES && self.lease_pages(node).await);
        if !is_leased {
            self.return_own_pages(node).await;
        } else if lock(table).is_made(node, size) {
            self.inner.runtime.spawn(self.clone().store_all(node));
        }
    }

    /// Whether a file has no capabilities (of programs), as it was made here, under a lease that has been there since.
    pub(in super::super) fn has_no_capability(&self, node: u64) -> bool {
        if !lock(&self.inner.client.pages.table).has_maker(node) {
            return false;
        }
        let made = |file: &&Arc<OpenFile>| file.node == node && file.by_pages;
        let lease =
            lock(&self.inner.files).values().find(made).map(|file| file.no_capability.load(Ordering::SeqCst));
        lease.is_some_and(|lease| self.inner.client.cache().holds(now(), node, lease))
    }

    /// The kernel has these bytes in its pages: whether they may stay there if the write is kept here. To be told before it is, so that whoever
    /// takes the lease away has them dropped.
    pub(in super::super) fn has_in_pages(&self, file: &OpenFile, bytes: &Range<u64>) -> bool {
        lock(&self.inner.client.pages.table).has_in_pages(file.node, bytes, page_size())
    }

    /// The write is kept here, and so are they.
    pub(in super::super) fn stays_in_pages(&self, file: &OpenFile, bytes: &Range<u64>) {
        lock(&self.inner.client.pages.table).stays_in_pages(file.node, bytes, page_size());
    }

    /// Has the kernel drop the pages of a write that cannot stay there, before it is made: from then on it is as if it had been written past them.
    pub(in super::super) async fn drop_before_write(&self, node: u64, bytes: &Range<u64>) -> Writing<'_> {
        let (table, page) = (&self.inner.client.pages.table, page_size());
        let first = bytes.start.next_multiple_of(page);
        let whole = first..(bytes.end / page * page).max(first);
        // One that is covered in part is locked until the write is done, and has nothing that may be read; unless it was all there.
        let mut ends = [bytes.end.saturating_sub(1), bytes.start].map(|at| at / page * page).to_vec();
        ends.retain(|end| !whole.contains(end));
        ends.dedup();
        loop {
            let (mut dropped, mut unlocked) = (Vec::new(), Vec::new());
            for &end in &ends {
                let pages = end..end + page;
                let (number, keeps) = lock(table).drops(node, pages.clone());
                let is_gone = !keeps || self.drop_pages_in(LOCKED, node, pages).await;
                dropped.push((number, is_gone));
                unlocked.extend(is_gone.then_some(end));
            }
            // The kernel has these, whatever is known of them.
            let (number, _) = lock(table).drops(node, whole.clone());
            let is_gone = whole.is_empty() || self.drop_pages_in(LOCKED_LONG, node, whole.clone()).await;
            dropped.push((number, is_gone));
            let number = lock(table).writes_dropped(node, bytes, &dropped);
            if let Some(number) = number {
                return Writing { remote: self, node, number };
            }
            ends = unlocked;
        }
    }

    /// Has the kernel drop pages; false: not by then, but as soon as it can.
    async fn drop_pages_in(&self, patience: Duration, node: u64, pages: Range<u64>) -> bool {
        let Some(cache) = self.inner.client.pages.cache.get().map(Arc::clone) else { return true };
        let dropping = self.inner.runtime.spawn_blocking(move || cache.give_back(node, pages));
        tokio::time::timeout(patience, dropping).await.is_ok()
    }

    /// Some of what was written to a file is lost: its pages are not what others see.
    pub(in super::super) fn lose_written(&self, file: &OpenFile) {
        if file.by_pages {
            let (remote, node) = (self.clone(), file.node);
            self.inner.runtime.spawn(async move { remote.return_own_pages(node).await });
        }
    }

    /// These leases on files were broken: what was written to their pages goes, unless a lease on pages is there as well.
    pub(in super::super) async fn return_written(&self, broken: &[Grant]) {
        let mut returning = JoinSet::new();
        for &Grant { node, .. } in broken {
            let broken = lock(&self.inner.client.pages.table).lease_broken(now(), node);
            if let Some(waits) = broken {
                let remote = self.clone();
                returning.spawn(async move { remote.return_pages(node, waits).await });
            }
        }
        returning.join_all().await;
    }
}

/// A page that is not dropped by then is locked: it goes when it is not any more.
const LOCKED: Duration = Duration::from_millis(10);

/// The same where none should be, unless the kernel's are larger than its pages.
const LOCKED_LONG: Duration = Duration::from_secs(1);

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}
