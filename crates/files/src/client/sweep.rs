//! Files that are read one after the other, as by `grep -r`, `tar` or a compiler: what comes next in the order of listings,
//! down into directories and up again, is asked for ahead: small files many in a message, and many messages at a time.
//!
//! ```text
//!   dir/          he reads a.c, misses b.c: who misses twice in a directory is taken to read on
//!     a.c  b.c
//!     sub/        c.c, d.c and e.c are asked for, in this order: as many bytes as he has shown to use
//!       c.c
//!     d.c  e.c
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use tokio::sync::watch;

use super::cache::Cache;
use super::open_files::OpenFile;
use super::{Remote, lock, now};
use crate::limits::{
    BLOCK_BYTES, INLINE_BYTES_MAX, SWEEP_DEPTH_MAX, SWEEP_FIRST, SWEEP_MAX, SWEEP_PATIENCE, SWEEP_SHARE,
    SWEPT_FILE_MAX, WHOLE_FILE_COST, WHOLE_FILES_MAX,
};
use crate::message::{Attr, Close, Listed, ReadWhole};

/// Where somebody is who reads files, and what has been asked for ahead of him. Pure.
#[derive(Debug)]
pub(super) struct Sweep {
    /// The directories that he is in, the innermost last.
    levels: Vec<Level>,
    /// And all above the innermost, from there on: also those that he has not shown to go back to.
    above: Vec<u64>,
    /// In which directory he has missed a file last.
    missed_in: u64,
    /// Files asked for that he has not opened, with their costs.
    unread: HashMap<u64, u64>,
    unread_bytes: u64,
    /// Of what was asked for he has read so much since the window grew.
    read_bytes: u64,
    /// Bytes that may be unread.
    window: u64,
    /// A directory that is being listed for him.
    stands_before: Option<u64>,
    /// How often in a row he has been taken to read on, and has not; and how many more misses say nothing because of that.
    in_vain: u32,
    not_looked_at: u32,
}

#[derive(Debug)]
struct Level {
    dir: u64,
    listing: Arc<Vec<Listed>>,
    /// The next entry to look at.
    next: usize,
}

/// A directory above a file, with what it lists, and the entry that leads to the file.
pub(super) type Above = (u64, Arc<Vec<Listed>>, usize);

/// What is to be asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Next {
    /// Small files, and what each takes of a message.
    small: Vec<(u64, u64)>,
    /// Others, and their bytes.
    long: Vec<(u64, u64)>,
    /// A directory that has to be listed before he can be followed further.
    list: Option<u64>,
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            levels: Vec::new(),
            above: Vec::new(),
            missed_in: 0,
            unread: HashMap::new(),
            unread_bytes: 0,
            read_bytes: 0,
            window: SWEEP_FIRST,
            stands_before: None,
            in_vain: 0,
            not_looked_at: 0,
        }
    }
}

impl Sweep {
    /// He opens a file that is here; `most`: that may be unread. Whether more is to be asked for.
    pub(super) fn finds(&mut self, node: u64, most: u64) -> bool {
        let Some(cost) = self.unread.remove(&node) else { return false };
        self.unread_bytes -= cost;
        self.read_bytes += cost;
        self.in_vain = 0;
        if self.read_bytes >= self.window / 2 {
            (self.window, self.read_bytes) = ((2 * self.window).min(SWEEP_MAX).min(most).max(SWEEP_FIRST), 0);
        }
        self.unread_bytes <= self.window / 2
    }

    /// He opens one in this directory that is not. Whether he is taken to read on from there.
    pub(super) fn misses(&mut self, dir: u64) -> bool {
        let often = std::mem::replace(&mut self.missed_in, dir) == dir;
        if self.not_looked_at > 0 {
            self.not_looked_at -= 1;
            return false;
        }
        often || self.window > SWEEP_FIRST
    }

    /// He is, in these directories: the innermost first.
    pub(super) fn reads_on(&mut self, above: Vec<Above>) {
        if self.in_vain > 0 {
            self.not_looked_at = 1 << self.in_vain.min(SWEEP_PATIENCE);
        }
        self.in_vain += 1;
        // What was asked for is of little use where he does not come to it.
        if self.unread_bytes > self.window / 2 {
            self.window = (self.window / 2).max(SWEEP_FIRST);
        }
        (self.unread_bytes, self.read_bytes, self.stands_before) = (0, 0, None);
        self.unread.clear();
        // Up to where he has gone back to before, or does now; else he stays in this directory.
        let place = |dir: u64| above.iter().position(|(above, ..)| *above == dir);
        let highest = self.levels.first().and_then(|level| place(level.dir));
        let turns = self.above.iter().find_map(|dir| place(*dir));
        let until = highest.or(turns).unwrap_or(0);
        self.above = above.iter().map(|(dir, ..)| *dir).collect();
        let levels = above.into_iter().take(until + 1);
        self.levels = levels.map(|(dir, listing, entry)| Level { dir, listing, next: entry + 1 }).collect();
        self.levels.reverse();
    }

    /// Whether he cannot be followed further until this directory is listed.
    pub(super) fn stands_before(&self, dir: u64) -> bool {
        self.stands_before == Some(dir)
    }

    /// What comes next. `listed`: what is known to be in a directory; `lacks`: whether a file's bytes could be kept, and are
    /// neither here nor on their way.
    pub(super) fn next(
        &mut self,
        listed: impl Fn(u64) -> Option<Arc<Vec<Listed>>>,
        lacks: impl Fn(&Attr) -> bool,
    ) -> Next {
        let mut next = Next::default();
        while self.unread_bytes < self.window {
            let depth = self.levels.len();
            let Some(level) = self.levels.last_mut() else { break };
            let Some(entry) = level.listing.get(level.next) else {
                self.levels.pop();
                continue;
            };
            level.next += 1;
            let Some(attr) = entry.attr else { continue };
            match FileType::from_raw_mode(attr.mode) {
                FileType::Directory if depth < SWEEP_DEPTH_MAX => match listed(attr.node) {
                    Some(listing) => self.levels.push(Level { dir: attr.node, listing, next: 0 }),
                    // It has been, and cannot be kept.
                    None if self.stands_before == Some(attr.node) => {}
                    None => {
                        level.next -= 1;
                        (self.stands_before, next.list) = (Some(attr.node), Some(attr.node));
                        break;
                    }
                },
                _ => {
                    if let Some(cost) = cost(&attr)
                        && (cost <= SMALL || cost <= self.window / 2)
                        && !self.unread.contains_key(&attr.node)
                        && lacks(&attr)
                    {
                        self.unread.insert(attr.node, cost);
                        self.unread_bytes += cost;
                        if cost <= SMALL {
                            next.small.push((attr.node, cost));
                        } else {
                            next.long.push((attr.node, attr.size));
                        }
                    }
                }
            }
        }
        next
    }
}

/// What a file takes of a message, or would; `None`: it has no bytes, or more than who opens it waits for.
fn cost(attr: &Attr) -> Option<u64> {
    let has_some = attr.size > 0 && attr.size <= SWEPT_FILE_MAX;
    (has_some && FileType::from_raw_mode(attr.mode) == FileType::RegularFile)
        .then_some(attr.size + WHOLE_FILE_COST as u64)
}

/// Files of that cost fit into one message.
const SMALL: u64 = INLINE_BYTES_MAX as u64;

/// As few messages as they take, in their order.
fn messages(files: Vec<(u64, u64)>) -> Vec<Vec<u64>> {
    let mut messages: Vec<Vec<u64>> = Vec::new();
    let mut room = 0;
    for (node, cost) in files {
        match messages.last_mut() {
            Some(last) if cost <= room && last.len() < WHOLE_FILES_MAX => last.push(node),
            _ => {
                messages.push(vec![node]);
                room = INLINE_BYTES_MAX as u64;
            }
        }
        room -= cost;
    }
    messages
}

impl Remote {
    /// Somebody opens a file to read it: if it is on its way, waits until it is here.
    pub(super) async fn comes_to_file(&self, node: u64) {
        let coming = lock(&self.inner.whole_coming).get(&node).cloned();
        if let Some(mut coming) = coming {
            let _ = coming.wait_for(Option::is_some).await; // it ends with its sender, too
        }
        let goes_on = {
            let mut sweep = lock(&self.inner.sweep);
            let cache = self.inner.client.cache();
            let Some(attr) = cache.kept_attr(now(), node).filter(|attr| cost(attr).is_some()) else { return };
            if cache.lacks(now(), node, attr.size) {
                let goes_on = cache.place(node).is_some_and(|(dir, _)| sweep.misses(dir));
                if goes_on {
                    sweep.reads_on(above(&cache, node));
                }
                goes_on
            } else {
                let most = cache.bytes_max / SWEEP_SHARE;
                sweep.finds(node, most as u64)
            }
        };
        if goes_on {
            self.sweep_on();
        }
    }

    /// Asks for what comes next.
    pub(super) fn sweep_on(&self) {
        let next = {
            let mut sweep = lock(&self.inner.sweep);
            let coming = lock(&self.inner.whole_coming);
            let (cache, now) = (self.inner.client.cache(), now());
            let lacks =
                |file: &Attr| !coming.contains_key(&file.node) && cache.lacks(now, file.node, file.size);
            sweep.next(|dir| cache.listed(now, dir), lacks)
        };
        if let Some(dir) = next.list {
            self.list_ahead(dir, false);
        }
        for nodes in messages(next.small) {
            let remote = self.clone();
            self.fetch_ahead(nodes.clone(), async move { remote.fetch_whole(nodes).await });
        }
        for (node, size) in next.long {
            let remote = self.clone();
            // What does not come is asked for when it is opened.
            self.fetch_ahead(vec![node], async move {
                let _ = remote.fetch_long(node, size).await;
            });
        }
    }

    /// Fetches files in a task of its own; who comes to them waits for that.
    fn fetch_ahead(&self, nodes: Vec<u64>, fetch: impl Future<Output = ()> + Send + 'static) {
        let (tell, coming) = watch::channel(None);
        lock(&self.inner.whole_coming).extend(nodes.iter().map(|node| (*node, coming.clone())));
        let remote = self.clone();
        self.inner.runtime.spawn(async move {
            {
                let _turn = remote.inner.client.whole_turns.acquire().await;
                fetch.await;
            }
            let mut table = lock(&remote.inner.whole_coming);
            nodes.iter().for_each(|node| drop(table.remove(node)));
            drop(table);
            tell.send_replace(Some(()));
        });
    }

    /// What does not come is asked for when it is opened.
    async fn fetch_whole(&self, nodes: Vec<u64>) {
        let client = &self.inner.client;
        let whole = self.learn(ReadWhole { nodes }, |cache: &mut Cache, turn, whole| {
            for file in whole.iter().flat_map(|whole| &whole.files) {
                cache.keep_attr(turn, file.attr);
                cache.keep_block(turn, file.attr.node, 0, file.content.clone());
            }
        });
        if let Ok(whole) = whole.await {
            let bytes: usize = whole.files.iter().map(|file| file.content.len()).sum();
            client.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// As whoever opens it would.
    async fn fetch_long(&self, node: u64, size: u64) -> Result<(), Errno> {
        let number = self.file_number();
        let far = self.open_far(number, node, OFlags::RDONLY).await?;
        let file = Arc::new(OpenFile::new(number, node, OFlags::RDONLY, Some(far)));
        let blocks = 0..size.div_ceil(BLOCK_BYTES as u64);
        let fetched = self.fetch(&file, blocks.clone(), size).await;
        for place in blocks {
            let _ = self.block(&file, place).await; // or it may not be kept
        }
        let _ = self.call(Close { file: number }).await; // or the session is over
        fetched
    }
}

/// The directories that a file is in, from the innermost on, as far as they are listed.
fn above(cache: &Cache, file: u64) -> Vec<Above> {
    let (mut above, mut at, now) = (Vec::new(), file, now());
    while above.len() < SWEEP_DEPTH_MAX
        && let Some((dir, name)) = cache.place(at)
        && let Some(listing) = cache.listed(now, dir)
        && let Some(entry) = listing.iter().position(|entry| entry.name == name)
    {
        above.push((dir, listing, entry));
        at = dir;
    }
    above
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashSet;

    use super::*;

    const SIZE: u64 = 6000;

    /// A tree: directories have numbers from 1000 on, and in each are files `100 * dir ..`, with the directories given in the midst.
    struct Tree {
        listings: HashMap<u64, Arc<Vec<Listed>>>,
        here: RefCell<HashSet<u64>>,
    }

    impl Tree {
        fn new(dirs: &[(u64, &[u64])], files: u64) -> Self {
            let entry = |node: u64, kind: FileType| {
                let attr = Attr { node, mode: kind.as_raw_mode(), size: SIZE, ..Attr::default() };
                Listed { name: node.to_string().into(), attr: Some(attr), next: 0, kind: 0 }
            };
            let listing = |&(dir, below): &(u64, &[u64])| {
                let file = |number| entry(100 * dir + number, FileType::RegularFile);
                let mut listing: Vec<_> = (0..files / 2).map(file).collect();
                listing.extend(below.iter().map(|dir| entry(*dir, FileType::Directory)));
                listing.extend((files / 2..files).map(file));
                (dir, Arc::new(listing))
            };
            Self { listings: dirs.iter().map(listing).collect(), here: RefCell::default() }
        }

        fn above(&self, file: u64) -> Vec<Above> {
            let (mut above, mut at) = (Vec::new(), file);
            let holds = |at: u64| {
                self.listings.iter().find_map(|(dir, listing)| {
                    let entry = listing.iter().position(|entry| entry.attr.unwrap().node == at)?;
                    Some((*dir, Arc::clone(listing), entry))
                })
            };
            while let Some(found) = holds(at) {
                at = found.0;
                above.push(found);
            }
            above
        }

        /// He opens a file: whether it is here, and what is asked for then, which comes at once.
        fn opens(&self, sweep: &mut Sweep, file: u64) -> (bool, Vec<u64>) {
            let is_here = self.here.borrow().contains(&file);
            let goes_on = match is_here {
                true => sweep.finds(file, SWEEP_MAX),
                false => {
                    let above = self.above(file);
                    let goes_on = sweep.misses(above[0].0);
                    if goes_on {
                        sweep.reads_on(above);
                    }
                    goes_on
                }
            };
            self.here.borrow_mut().insert(file);
            if !goes_on {
                return (is_here, Vec::new());
            }
            let listed = |dir: u64| self.listings.get(&dir).cloned();
            let next = sweep.next(listed, |file| !self.here.borrow().contains(&file.node));
            let files: Vec<u64> = next.small.into_iter().map(|(file, _)| file).collect();
            self.here.borrow_mut().extend(&files);
            (is_here, files)
        }
    }

    #[test]
    fn who_misses_twice_is_taken_to_read_on() {
        let (tree, mut sweep) = (Tree::new(&[(1000, &[])], 100), Sweep::default());
        assert_eq!(tree.opens(&mut sweep, 100_000), (false, vec![]));
        let first: Vec<u64> = (100_004..100_014).collect();
        assert_eq!(tree.opens(&mut sweep, 100_003), (false, first), "one message");
        let missed = (100_004..100_100).filter(|file| !tree.opens(&mut sweep, *file).0).count();
        assert_eq!(missed, 0);
        assert!(sweep.window > 4 * SWEEP_FIRST && sweep.unread.is_empty());
    }

    #[test]
    fn he_is_followed_down_and_up_again() {
        let dirs: &[(u64, &[u64])] = &[(1000, &[1001, 1002]), (1001, &[1003]), (1002, &[]), (1003, &[])];
        let (tree, mut sweep) = (Tree::new(dirs, 40), Sweep::default());
        let file = |dir: u64, numbers: std::ops::Range<u64>| numbers.map(move |number| 100 * dir + number);
        let order = file(1000, 0..20)
            .chain(file(1001, 0..20))
            .chain(file(1003, 0..40))
            .chain(file(1001, 20..40))
            .chain(file(1002, 0..40))
            .chain(file(1000, 20..40));
        let missed: Vec<u64> = order.filter(|file| !tree.opens(&mut sweep, *file).0).collect();
        assert_eq!(missed, [100_000, 100_001]);
    }

    #[test]
    fn nobody_is_taken_further_up_than_he_has_been() {
        let dirs: &[(u64, &[u64])] = &[(1000, &[1001, 1002]), (1001, &[]), (1002, &[])];
        let (tree, mut sweep) = (Tree::new(dirs, 4), Sweep::default());
        assert_eq!(tree.opens(&mut sweep, 100_100).1, []);
        assert_eq!(tree.opens(&mut sweep, 100_101).1, [100_102, 100_103], "and not 100_200");
        for file in [100_102, 100_103] {
            assert_eq!(tree.opens(&mut sweep, file), (true, vec![]));
        }
        // He has gone on beside it.
        assert_eq!(tree.opens(&mut sweep, 100_200), (false, vec![]));
        assert_eq!(tree.opens(&mut sweep, 100_201), (false, vec![100_202, 100_203, 100_002, 100_003]));
    }

    #[test]
    fn who_reads_here_and_there_has_little_asked_for() {
        let (tree, mut sweep) = (Tree::new(&[(1000, &[])], 4000), Sweep::default());
        let mut asked = 0;
        // Always further back, and never what follows.
        for number in (0..200).rev() {
            asked += tree.opens(&mut sweep, 100_000 + number * 20).1.len();
        }
        assert!(asked <= 8 * 10, "{asked}");
        assert_eq!(sweep.window, SWEEP_FIRST);
    }

    #[test]
    fn a_directory_that_is_not_listed_is_waited_for_once() {
        let dirs: &[(u64, &[u64])] = &[(1000, &[1001])];
        let (tree, mut sweep) = (Tree::new(dirs, 8), Sweep::default());
        let lacks = |file: &Attr| !tree.here.borrow().contains(&file.node);
        tree.opens(&mut sweep, 100_000);
        assert_eq!(tree.opens(&mut sweep, 100_001).1, [100_002, 100_003]);
        assert_eq!(sweep.stands_before, Some(1001));
        let listed = |dir: u64| tree.listings.get(&dir).cloned();
        let next = sweep.next(listed, lacks);
        let files: Vec<u64> = next.small.iter().map(|(file, _)| *file).collect();
        assert_eq!((files, next.list), (vec![100_004, 100_005, 100_006, 100_007], None), "it could not be");
    }

    #[test]
    fn messages_hold_what_fits() {
        assert!(messages(Vec::new()).is_empty());
        let files = [30_000, 31_000, 20_000, 61_440, 5];
        let files = files.into_iter().enumerate().map(|(node, cost)| (node as u64, cost)).collect();
        assert_eq!(messages(files), [vec![0, 1], vec![2], vec![3], vec![4]]);
        let many = (0..600).map(|node| (node, 1)).collect();
        assert_eq!(messages(many).iter().map(Vec::len).collect::<Vec<_>>(), [256, 256, 88]);
    }

    #[test]
    fn long_files_are_asked_for_by_those_who_read_much() {
        let entry = |node: u64, size: u64, kind: FileType| {
            let attr = Attr { node, mode: kind.as_raw_mode(), size, ..Attr::default() };
            Listed { name: node.to_string().into(), attr: Some(attr), next: 0, kind: 0 }
        };
        let regular = FileType::RegularFile;
        let sizes = [1, 9, SMALL - WHOLE_FILE_COST as u64, SMALL, 0, SWEPT_FILE_MAX, SWEPT_FILE_MAX + 1];
        let mut listing: Vec<_> = (0..).zip(sizes).map(|(node, size)| entry(node, size, regular)).collect();
        listing.push(entry(7, 9, FileType::Fifo));
        let above = || vec![(1000, Arc::new(listing.clone()), 0)];
        let asked = |window| {
            let mut sweep = Sweep { window, ..Sweep::default() };
            sweep.reads_on(above());
            let Next { small, long, list: None } = sweep.next(|_| None, |_| true) else { panic!() };
            let numbers = |files: Vec<(u64, u64)>| files.into_iter().map(|file| file.0).collect::<Vec<_>>();
            (numbers(small), numbers(long))
        };
        assert_eq!(asked(SWEEP_FIRST), (vec![1, 2], vec![]));
        assert_eq!(asked(2 * SWEEP_FIRST), (vec![1, 2], vec![]));
        assert_eq!(asked(4 * SWEEP_FIRST), (vec![1, 2], vec![3]));
        assert_eq!(asked(SWEEP_MAX), (vec![1, 2], vec![3, 5]));
    }
}
