//! Directories. Whoever lists one and then another below it is walking a tree: what he comes to next is asked for ahead,
//! many directories at a time, as far as he has been followed with success.

use std::collections::{HashSet, VecDeque};
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
    /// Directories that he will come to: first those below where he is, then those beside it and above, last what is
    /// below them.
    to_come: VecDeque<u64>,
    /// Listings that have been asked for, and that he has not come to.
    ahead: HashSet<u64>,
    /// How many there may be of these.
    allowed: usize,
}

impl Default for Walk {
    fn default() -> Self {
        Self { to_come: VecDeque::new(), ahead: HashSet::new(), allowed: LISTINGS_AHEAD_FIRST }
    }
}

impl Walk {
    /// He has come to a directory; `siblings` are those beside it that nobody has listed. Where it was not expected, another
    /// walk begins. (Programs have orders of their own: find(1) sorts by inode number.)
    fn comes_to(&mut self, dir: u64, siblings: impl FnOnce() -> Vec<u64>) {
        let is_ahead = self.ahead.remove(&dir);
        let expected = self.to_come.iter().position(|next| *next == dir);
        if let Some(place) = expected {
            self.to_come.remove(place);
        }
        if is_ahead || expected.is_some() {
            self.allowed = (self.allowed * 2).min(LISTINGS_AHEAD_MAX);
        } else {
            *self = Self::default();
            self.to_come.extend(siblings().into_iter().filter(|sibling| *sibling != dir));
        }
    }

    /// These are in a directory that he `is_in`, or that has been listed ahead.
    fn may_go_on_to(&mut self, dirs: Vec<u64>, is_in: bool) {
        if is_in {
            dirs.into_iter().rev().for_each(|dir| self.to_come.push_front(dir));
        } else {
            self.to_come.extend(dirs);
        }
        self.to_come.truncate(LISTINGS_TO_COME_MAX);
    }

    /// A directory to ask for now.
    fn next(&mut self) -> Option<u64> {
        if self.ahead.len() >= self.allowed {
            return None;
        }
        let next = self.to_come.pop_front()?;
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
            let siblings = || self.unlisted(&above);
            lock(&self.inner.walk).comes_to(node, siblings);
            self.walk_on(&listing, true);
        }
        Ok(listing)
    }

    /// The directories in a listing that have not been listed themselves.
    fn unlisted(&self, listing: &[Listed]) -> Vec<u64> {
        let (cache, now) = (self.inner.client.cache(), now());
        listing.iter().filter_map(is_dir).filter(|dir| !cache.is_listed(now, *dir)).collect()
    }

    /// Asks for listings ahead, also of what is in this one.
    fn walk_on(&self, listing: &[Listed], is_in: bool) {
        let mut walk = lock(&self.inner.walk);
        walk.may_go_on_to(self.unlisted(listing), is_in);
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
                remote.walk_on(listing.as_deref().map_or(&[], Vec::as_slice), false);
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
        let siblings = || (9..100).collect();
        walk.comes_to(9, siblings);
        let first = all(&mut walk);
        assert_eq!(first, (10..10 + LISTINGS_AHEAD_FIRST as u64).collect::<Vec<_>>());
        // What is below comes before what is beside.
        walk.comes_to(10, siblings);
        walk.may_go_on_to((200..203).collect(), true);
        walk.may_go_on_to((400..402).collect(), false);
        assert_eq!(walk.allowed, 2 * LISTINGS_AHEAD_FIRST);
        assert_eq!(all(&mut walk)[..4], [200, 201, 202, 10 + LISTINGS_AHEAD_FIRST as u64]);
        // In an order of his own.
        walk.comes_to(50, siblings);
        walk.may_go_on_to(vec![300], true);
        let next = all(&mut walk);
        assert!(next[0] == 300 && next.len() > LISTINGS_AHEAD_FIRST && !next.contains(&50), "{next:?}");
    }

    #[test]
    fn who_goes_elsewhere_walks_anew() {
        let mut walk = Walk::default();
        walk.may_go_on_to((10..100).collect(), true);
        all(&mut walk);
        walk.comes_to(10, Vec::new);
        walk.comes_to(7, Vec::new);
        assert_eq!((walk.allowed, walk.ahead.len(), walk.to_come.len()), (LISTINGS_AHEAD_FIRST, 0, 0));
        walk.may_go_on_to((0..2 * LISTINGS_TO_COME_MAX as u64).collect(), true);
        assert_eq!((walk.to_come.len(), walk.next()), (LISTINGS_TO_COME_MAX, Some(0)));
    }
}
