//! Directories. Whoever lists one and then another below it is walking a tree: what he comes to next is asked for ahead,
//! many directories at a time, as far as he has been followed with success. So is he who looks names up one by one that are
//! not known: the directory is listed for him.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;
use tokio::sync::watch;

use super::cache::Cache;
use super::{Asking, Remote, lock, now};
use crate::limits::{
    LISTED_UNASKED_BYTES_MAX, LISTING_ENTRIES_MAX, LISTINGS_AHEAD_FIRST, LISTINGS_AHEAD_MAX,
    LISTINGS_COMING_MAX, LISTINGS_TO_COME_MAX, LOOKS_FIRST,
};
use crate::message::{Attr, Listed, ReadDir};

/// Somebody who walks through a tree. Pure.
#[derive(Debug)]
pub(super) struct Walk {
    /// Directories in those that he has come to: he needs them soon, in whatever order.
    near: VecDeque<u64>,
    /// Those beside and above where he began, and what is in directories that have been listed ahead; of these the newest
    /// first.
    far: Vec<u64>,
    /// Listings that have been asked for, and that he has not come to.
    ahead: HashSet<u64>,
    /// How many there may be of these before those that are far have to wait.
    allowed: usize,
    /// Directories in which names have been looked up that were not known: how many until one is listed.
    looks: HashMap<u64, Looks>,
}

#[derive(Debug)]
struct Looks {
    left: u32,
    /// And after that, for those that cannot be kept.
    then: u32,
}

/// What a look into a directory tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Nothing,
    /// He has come where he was expected.
    Expected,
    /// He is about to look for all.
    Often,
}

impl Default for Walk {
    fn default() -> Self {
        let (near, far, ahead) = (VecDeque::new(), Vec::new(), HashSet::new());
        Self { near, far, ahead, allowed: LISTINGS_AHEAD_FIRST, looks: HashMap::new() }
    }
}

impl Walk {
    /// He has come to a directory; `siblings` are those beside it that nobody has listed. Where it was neither expected nor
    /// known, another walk begins. (Programs have orders of their own: find(1) sorts by inode number.)
    fn comes_to(&mut self, dir: u64, was_known: bool, siblings: impl FnOnce() -> Vec<u64>) {
        if !self.has_come_to(dir) && !was_known {
            *self = Self::default();
            self.may_go_on_to(siblings().into_iter().filter(|sibling| *sibling != dir).collect(), false);
        }
    }

    /// Whether he was expected there.
    fn has_come_to(&mut self, dir: u64) -> bool {
        let mut expected = self.ahead.remove(&dir);
        if let Some(place) = self.near.iter().position(|next| *next == dir) {
            self.near.remove(place);
            expected = true;
        } else if let Some(place) = self.far.iter().rposition(|next| *next == dir) {
            self.far.remove(place);
            expected = true;
        }
        if expected {
            self.allowed = (self.allowed * 2).min(LISTINGS_AHEAD_MAX);
        }
        expected
    }

    /// He looks a name up, which is known, or is not.
    fn looks_into(&mut self, dir: u64, is_known: bool) -> Look {
        if self.ahead.contains(&dir) {
            self.has_come_to(dir);
            return Look::Expected;
        }
        if is_known {
            return Look::Nothing;
        }
        if self.looks.len() >= LISTINGS_TO_COME_MAX {
            self.looks.clear();
        }
        let looks = self.looks.entry(dir).or_insert(Looks { left: LOOKS_FIRST, then: LOOKS_FIRST });
        looks.left -= 1;
        if looks.left > 0 {
            return Look::Nothing;
        }
        looks.then = looks.then.saturating_mul(4);
        looks.left = looks.then;
        self.has_come_to(dir);
        Look::Often
    }

    /// These are in a directory that he `is_in`, or that has been listed ahead.
    fn may_go_on_to(&mut self, dirs: Vec<u64>, is_in: bool) {
        if is_in {
            dirs.into_iter().rev().for_each(|dir| self.near.push_front(dir));
            self.near.truncate(LISTINGS_TO_COME_MAX);
        } else {
            self.far.extend(dirs.into_iter().rev());
            let too_many = self.far.len().saturating_sub(LISTINGS_TO_COME_MAX);
            self.far.drain(..too_many);
        }
    }

    /// A directory to ask for now.
    fn next(&mut self) -> Option<u64> {
        let near_max =
            if self.allowed > LISTINGS_AHEAD_FIRST { 2 * LISTINGS_AHEAD_MAX } else { self.allowed };
        let is_trusted = self.ahead.len() < near_max;
        let next = match self.near.pop_front() {
            Some(near) if is_trusted => near,
            Some(near) => {
                self.near.push_front(near);
                return None;
            }
            None if self.ahead.len() < self.allowed => self.far.pop()?,
            None => return None,
        };
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
        let was_known = known.is_some();
        let listing = match known {
            Some(listing) => listing,
            None => {
                // It shows sizes.
                self.flush_all(self.inner.client.behind.nodes()).await;
                self.list(node, false).await?
            }
        };
        let above = self.inner.client.cache().listing_above(now(), node);
        if let Some(above) = above {
            let siblings = || self.unlisted(&above);
            lock(&self.inner.walk).comes_to(node, was_known, siblings);
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
            self.list_ahead(dir, false);
        }
    }

    /// Lists a directory that he has not come to, or `is_in`, unless that is under way.
    pub(super) fn list_ahead(&self, dir: u64, is_in: bool) {
        let (tell, coming) = watch::channel(None);
        match lock(&self.inner.listings_coming).entry(dir) {
            Entry::Occupied(_) => return,
            Entry::Vacant(place) => place.insert(coming),
        };
        let remote = self.clone();
        self.inner.runtime.spawn(async move {
            let listing = remote.list(dir, true).await;
            lock(&remote.inner.listings_coming).remove(&dir);
            tell.send_replace(Some(()));
            // It cannot be read, or not be kept: whoever comes to it sees.
            remote.walk_on(listing.as_deref().map_or(&[], Vec::as_slice), is_in);
            if lock(&remote.inner.sweep).stands_before(dir) {
                remote.sweep_on();
            }
        });
    }

    /// What has this name, as far as it is known; waits for a listing that comes and will tell. `Some(None)`: nothing. It
    /// counts: see [`forget`](Self::forget).
    pub(super) async fn find_known(&self, dir: u64, name: &[u8]) -> Option<Option<Attr>> {
        let known = || {
            let mut cache = self.inner.client.cache();
            let found = cache.look_up(now(), dir, name)?;
            found.iter().for_each(|attr| cache.tell(attr.node));
            Some(found)
        };
        let found = known();
        let look = lock(&self.inner.walk).looks_into(dir, found.is_some());
        if found.is_some() {
            let listing = (look == Look::Expected).then(|| self.inner.client.cache().listing(now(), dir));
            if let Some(listing) = listing.flatten() {
                self.walk_on(&listing, true);
            }
            return found;
        }
        // Of a large one he may look for few.
        if self.known_attr(dir).is_none_or(|attr| attr.size > LISTED_UNASKED_BYTES_MAX) {
            return None;
        }
        if look == Look::Often {
            self.list_ahead(dir, true);
        }
        let mut coming = lock(&self.inner.listings_coming).get(&dir).cloned()?;
        let _ = coming.wait_for(Option::is_some).await; // it ends with its sender, too
        known()
    }

    async fn list(&self, node: u64, unasked: bool) -> Result<Arc<Vec<Listed>>, Errno> {
        let asking = Asking::begin(&self.inner.client);
        let mut entries: Vec<Listed> = Vec::new();
        let mut from = 0;
        loop {
            let ask = ReadDir { node, from, unasked, all_names: true };
            let part = self.learn(ask, |cache: &mut Cache, turn, part| {
                for entry in part.iter().flat_map(|part| &part.entries) {
                    if let Some(attr) = entry.attr {
                        cache.found_at(attr.node, node, entry.name.clone());
                        cache.keep_attr(turn, attr);
                    }
                }
            });
            let part = match part.await {
                Ok(part) => part,
                Err(error) => {
                    // The server has told of those before: they are forgotten.
                    let mut cache = self.inner.client.cache();
                    cache.give_up_listing(Arc::new(entries));
                    self.inner.client.may_forget(cache);
                    return Err(error);
                }
            };
            let stands_still = part.entries.is_empty();
            from = part.entries.last().map_or(from, |entry| entry.next);
            entries.extend(
                part.entries.into_iter().filter_map(|entry| self.inner.client.spares.listed(node, entry)),
            );
            if part.at_end || stands_still || entries.len() >= LISTING_ENTRIES_MAX {
                break;
            }
        }
        let listing = Arc::new(entries);
        // What cannot be looked at now may be later, and nobody would hear of that.
        let is_known = listing.iter().all(|entry| entry.kind == 0);
        let mut cache = self.inner.client.cache();
        if !is_known || !cache.keep_listing(asking.turn, node, Arc::clone(&listing)) {
            cache.give_up_listing(Arc::clone(&listing));
        }
        self.inner.client.may_forget(cache);
        Ok(listing)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;
    use crate::client::fake::serve;
    use crate::message::{Ask, Attached, Forget, Forgotten, Listing, Nothing, Reply, TOP};

    #[tokio::test]
    async fn what_half_a_listing_has_told_of_is_forgotten() {
        let (told, mut forgotten) = mpsc::unbounded_channel();
        // One directory; it fails half way through that, and tells what it is to forget.
        let way = serve(Arc::new(move |_, ask, _| {
            let done = Reply::new(Ok(Nothing {}), Vec::new());
            Some(match ask {
                Ask::Attach(_) => Reply::new(Ok(Attached::default()), Vec::new()),
                Ask::ReadDir(ReadDir { from: 0, .. }) => {
                    let attr = Some(Attr { node: 7, ..Attr::default() });
                    let entries = vec![Listed { name: "f".into(), attr, next: 1, kind: 0 }];
                    Reply::new(Ok(Listing { entries, at_end: false }), Vec::new())
                }
                Ask::ReadDir(_) => Reply::failed(Errno::IO),
                Ask::Forget(Forget { nodes }) => {
                    told.send(nodes).unwrap();
                    done
                }
                _ => done,
            })
        }));
        let remote = Remote::attach(way.session().await, way.client, b"", None).await.unwrap();
        assert_eq!(remote.read_dir(TOP).await, Err(Errno::IO));
        let nodes = tokio::time::timeout(Duration::from_secs(20), forgotten.recv()).await;
        assert_eq!(nodes.expect("the server is told"), Some(vec![Forgotten { node: 7, times: 1 }]));
    }

    fn all(walk: &mut Walk) -> Vec<u64> {
        std::iter::from_fn(|| walk.next()).collect()
    }

    #[test]
    fn who_walks_is_followed_further_and_further() {
        let mut walk = Walk::default();
        let siblings = || (9..100).collect();
        walk.comes_to(9, false, siblings);
        walk.may_go_on_to(vec![500, 501], true);
        let first = all(&mut walk);
        assert_eq!(first, [500, 501, 10, 11], "no more than at first");
        // What is below comes before what is beside, however much is ahead.
        walk.comes_to(501, true, siblings);
        walk.may_go_on_to((600..700).collect(), true);
        assert_eq!(walk.allowed, 2 * LISTINGS_AHEAD_FIRST);
        assert_eq!(all(&mut walk), (600..700).collect::<Vec<_>>());
        // In an order of his own; what is in those ahead comes before what is beside.
        for dir in 600..700 {
            walk.comes_to(dir, true, siblings);
        }
        walk.may_go_on_to(vec![800], false);
        walk.comes_to(50, false, siblings);
        let next = all(&mut walk);
        assert!(next[..2] == [800, 12] && next.len() == 89 - 1 && !next.contains(&50), "{next:?}");
    }

    #[test]
    fn who_looks_for_one_name_after_the_other_has_the_directory_listed() {
        let mut walk = Walk::default();
        let looks =
            |walk: &mut Walk, count: u32| (0..count).map(|_| walk.looks_into(7, false)).collect::<Vec<_>>();
        assert_eq!(looks(&mut walk, LOOKS_FIRST).last(), Some(&Look::Often));
        // It could not be kept: less and less often.
        let again = looks(&mut walk, 20 * LOOKS_FIRST);
        assert_eq!(again.iter().filter(|look| **look == Look::Often).count(), 2);
        assert_eq!(walk.looks_into(8, true), Look::Nothing);
        // What was listed ahead was rightly so.
        walk.may_go_on_to(vec![9], true);
        assert_eq!(all(&mut walk), [9]);
        assert_eq!(walk.looks_into(9, true), Look::Expected);
        assert_eq!((walk.looks_into(9, true), walk.allowed), (Look::Nothing, 2 * LISTINGS_AHEAD_FIRST));
    }

    #[test]
    fn who_goes_elsewhere_walks_anew() {
        let mut walk = Walk::default();
        walk.may_go_on_to((10..100).collect(), true);
        all(&mut walk);
        walk.comes_to(10, false, Vec::new);
        walk.comes_to(3, true, Vec::new);
        assert_eq!(walk.allowed, 2 * LISTINGS_AHEAD_FIRST, "what is known already is no other walk");
        walk.comes_to(7, false, Vec::new);
        assert_eq!((walk.allowed, walk.ahead.len(), walk.near.len()), (LISTINGS_AHEAD_FIRST, 0, 0));
        for is_in in [true, false] {
            walk.may_go_on_to((0..2 * LISTINGS_TO_COME_MAX as u64).collect(), is_in);
        }
        assert_eq!((walk.near.len(), walk.far.len()), (LISTINGS_TO_COME_MAX, LISTINGS_TO_COME_MAX));
        assert_eq!(walk.next(), Some(0));
    }
}
