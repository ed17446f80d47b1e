//! Directories. Whoever lists one and then another below it is walking a tree: what he comes to next is asked for ahead,
//! many directories at a time, as far as he has been followed with success.

use std::collections::HashSet;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;
use tokio::sync::watch;

use super::cache::Cache;
use super::{Asking, Remote, lock, now};
use crate::limits::{
    LISTING_ENTRIES_MAX, LISTINGS_AHEAD_FIRST, LISTINGS_AHEAD_MAX, LISTINGS_COMING_MAX, LISTINGS_TO_COME_MAX,
};
use crate::message::{Listed, ReadDir};

/// Somebody who walks through a tree. Pure.
#[derive(Debug)]
pub(super) struct Walk {
    /// Directories that he will come to, the next one last.
    to_come: Vec<u64>,
    /// Listings that have been asked for, and that he has not come to.
    ahead: HashSet<u64>,
    /// How many there may be of these.
    allowed: usize,
}

impl Default for Walk {
    fn default() -> Self {
        Self { to_come: Vec::new(), ahead: HashSet::new(), allowed: LISTINGS_AHEAD_FIRST }
    }
}

impl Walk {
    /// He has come to a directory, which has `siblings` in the order of their listing. Where it was not expected, another
    /// walk begins.
    fn comes_to(&mut self, dir: u64, siblings: impl Iterator<Item = u64>) {
        if self.ahead.remove(&dir) {
            self.allowed = (self.allowed * 2).min(LISTINGS_AHEAD_MAX);
        } else if let Some(place) = self.to_come.iter().rposition(|next| *next == dir) {
            self.to_come.truncate(place); // what was before it he has passed by
        } else {
            *self = Self::default();
            let after: Vec<u64> = siblings.skip_while(|sibling| *sibling != dir).skip(1).collect();
            self.may_go_on_to(after.into_iter());
        }
    }

    /// He may go on to these, in their order.
    fn may_go_on_to(&mut self, dirs: impl DoubleEndedIterator<Item = u64>) {
        self.to_come.extend(dirs.rev());
        let too_many = self.to_come.len().saturating_sub(LISTINGS_TO_COME_MAX);
        self.to_come.drain(..too_many); // the last that he will come to
    }

    /// A directory to ask for now.
    fn next(&mut self) -> Option<u64> {
        if self.ahead.len() >= self.allowed {
            return None;
        }
        let next = self.to_come.pop()?;
        self.ahead.insert(next);
        Some(next)
    }
}

fn is_dir(entry: &Listed) -> Option<u64> {
    let attr = entry.attr?;
    (FileType::from_raw_mode(attr.mode) == FileType::Directory).then_some(attr.node)
}

impl Remote {
    /// All of a directory. The nodes in it count when they are used: see [`tell`](Self::tell).
    ///
    /// # Errors
    /// As getdents(2).
    pub async fn read_dir(&self, node: u64) -> Result<Arc<Vec<Listed>>, Errno> {
        let coming = lock(&self.inner.listings_coming).get(&node).cloned();
        if let Some(mut coming) = coming {
            let _ = coming.wait_for(Option::is_some).await; // it ends with its sender, too
        }
        let known = self.inner.client.cache().listing(now(), node);
        let listing = match known {
            Some(listing) => listing,
            None => {
                // It shows sizes.
                self.flush_all(self.inner.client.behind.nodes()).await;
                self.list(node).await?
            }
        };
        let above = self.inner.client.cache().listing_above(now(), node);
        if let Some(above) = above {
            lock(&self.inner.walk).comes_to(node, above.iter().filter_map(is_dir));
            self.walk_on(&listing);
        }
        Ok(listing)
    }

    /// Asks for listings ahead, those below this one first.
    fn walk_on(&self, listing: &[Listed]) {
        let mut walk = lock(&self.inner.walk);
        {
            let cache = self.inner.client.cache();
            let now = now();
            let unknown = |dir: &u64| !cache.is_listed(now, *dir);
            let dirs: Vec<u64> = listing.iter().filter_map(is_dir).filter(unknown).collect();
            walk.may_go_on_to(dirs.into_iter());
        }
        loop {
            if lock(&self.inner.listings_coming).len() >= LISTINGS_COMING_MAX {
                return; // one of them goes on
            }
            let Some(dir) = walk.next() else { return };
            let (tell, coming) = watch::channel(None);
            if lock(&self.inner.listings_coming).insert(dir, coming).is_some() {
                continue;
            }
            let remote = self.clone();
            self.inner.runtime.spawn(async move {
                let listing = remote.list(dir).await;
                lock(&remote.inner.listings_coming).remove(&dir);
                tell.send_replace(Some(()));
                // It cannot be read, or not be kept: whoever comes to it sees.
                remote.walk_on(listing.as_deref().map_or(&[], Vec::as_slice));
            });
        }
    }

    async fn list(&self, node: u64) -> Result<Arc<Vec<Listed>>, Errno> {
        let asking = Asking::begin(&self.inner.client);
        let mut entries: Vec<Listed> = Vec::new();
        loop {
            let from = entries.last().map_or(0, |entry| entry.next);
            let part = self.learn(ReadDir { node, from }, |cache: &mut Cache, turn, part| {
                for entry in part.iter().flat_map(|part| &part.entries) {
                    if let Some(attr) = entry.attr {
                        cache.found_at(attr.node, node, entry.name.clone());
                        cache.keep_attr(turn, attr);
                    }
                }
            });
            let part = part.await?;
            let stands_still = part.entries.is_empty();
            entries.extend(part.entries);
            if part.at_end || stands_still || entries.len() >= LISTING_ENTRIES_MAX {
                break;
            }
        }
        let listing = Arc::new(entries);
        let mut cache = self.inner.client.cache();
        if !cache.keep_listing(asking.turn, node, Arc::clone(&listing)) {
            cache.give_up_listing(Arc::clone(&listing));
        }
        self.inner.client.may_forget(cache);
        Ok(listing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(walk: &mut Walk) -> Vec<u64> {
        std::iter::from_fn(|| walk.next()).collect()
    }

    #[test]
    fn who_walks_is_followed_further_and_further() {
        let mut walk = Walk::default();
        walk.comes_to(9, 5..100);
        let first = all(&mut walk);
        assert_eq!(first, (10..10 + LISTINGS_AHEAD_FIRST as u64).collect::<Vec<_>>());
        // What is below comes before what is beside.
        walk.comes_to(10, 5..100);
        walk.may_go_on_to(200..203);
        assert_eq!(walk.allowed, 2 * LISTINGS_AHEAD_FIRST);
        assert_eq!(all(&mut walk)[..4], [200, 201, 202, 10 + LISTINGS_AHEAD_FIRST as u64]);
        // He goes by some of them.
        walk.comes_to(50, 5..100);
        walk.may_go_on_to(300..301);
        for dir in [11, 12, 13, 14] {
            walk.comes_to(dir, 5..100);
        }
        assert_eq!(all(&mut walk)[..2], [300, 51]);
    }

    #[test]
    fn who_goes_elsewhere_walks_anew() {
        let mut walk = Walk::default();
        walk.may_go_on_to(10..100);
        all(&mut walk);
        walk.comes_to(10, 5..100);
        walk.comes_to(7, std::iter::empty());
        assert_eq!((walk.allowed, walk.ahead.len(), walk.to_come.len()), (LISTINGS_AHEAD_FIRST, 0, 0));
        walk.may_go_on_to(0..2 * LISTINGS_TO_COME_MAX as u64);
        assert_eq!((walk.to_come.len(), walk.next()), (LISTINGS_TO_COME_MAX, Some(0)));
    }
}
