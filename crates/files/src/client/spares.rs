//! Names that were made here and removed again, and have stayed at the server for who makes them next.
//!
//! Programs make a file for its name alone, and remove it: a lock, as that of `git status`. To make it is a round trip, and to remove it
//! another, each time. So an empty file that was made with `O_EXCL` and is removed as it was made may stay, if the server
//! lets this client alone know what names there are in its directory: an exclusive lease.
//!
//! ```text
//!   made ---> removed, and the server lets it stay ---> FREE ---> made again ---> USED
//!                                                        ^                         |
//!                                                        '------ removed again ----'
//! ```
//!
//! It is at the server all the while: nobody else, and no program there, can make it as well. What the server is to be told (that it is
//! gone; or, of one that is used, its times) it is told when the lease on the directory or the file is taken back,
//! before anything else is asked of either, or after [`SPARE_TERM`].
//!
//! Locks are taken in this order: the cache, then these.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use longhaul_transport::Session;
use longhaul_transport::session::RequestError;
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::sync::watch;

use super::cache::{Cache, Nanos, OwnChange};
use super::open_files::OpenFile;
use super::resume::Present;
use super::{Asking, Changing, Remote, User, lock, now, resume};
use crate::limits::{SPARE_TERM, SPARES_MAX};
use crate::message::{Attr, Listed, Loser, NewTime, Operation, Remove, SetAttr, Untouched, WireTime};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Spares {
    table: Mutex<Table>,
    /// Of those in it.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    /// What was made last, the newest at the end.
    made: VecDeque<Made>,
    spares: HashMap<(u64, Bytes), Spare>,
    last: u64,
}

/// How many of those made last are remembered: locks are removed soon.
const MADE_MAX: usize = 16;

/// Longer than that the server's times of one that is used again and again are not left as they were.
const SPARE_AGE_MAX: Duration = Duration::from_secs(120);

/// Until the server has been told.
const TELL_ATTEMPTS: usize = 30;

const TELL_PAUSE: Duration = Duration::from_secs(1);

/// A file as it was made here.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) parent: u64,
    pub(super) name: Bytes,
    pub(super) attr: Attr,
    /// As its maker wanted it.
    pub(super) mode: u32,
    pub(super) caller: User,
    /// When the server had made it, or later.
    pub(super) at: Nanos,
}

impl Made {
    /// The server's clock, as it was at least when this client's was that.
    fn time(&self, now: Nanos) -> WireTime {
        let WireTime { seconds, nanos } = self.attr.changed;
        let nanos = u64::from(nanos) + now.saturating_sub(self.at);
        WireTime { seconds: seconds.saturating_add((nanos / NANOS) as i64), nanos: (nanos % NANOS) as u32 }
    }

    pub(super) fn untouched(&self) -> Untouched {
        Untouched { node: self.attr.node, modified: self.attr.modified }
    }

    fn remove(&self) -> Remove {
        let (parent, name) = (self.parent, self.name.clone());
        Remove { parent, name, is_dir: false, untouched: Some(self.untouched()), may_stay: false }
    }
}

const NANOS: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
pub(super) struct Spare {
    pub(super) made: Made,
    /// Under which it is known: of the directory, exclusive, and of the file.
    leases: (u64, u64),
    /// What it is to its users here; none: it is free.
    used: Option<Attr>,
    /// It is being opened to be written to, which tells all but what has become of its directory.
    is_written: bool,
    /// Of this use, or of the time after it, and when that began.
    number: u64,
    since: Nanos,
    /// The server is being told; it ends with its sender.
    telling: Option<watch::Receiver<()>>,
}

impl Spare {
    fn has_leases(&self, cache: &Cache, now: Nanos) -> bool {
        let (of_dir, of_file) = self.leases;
        cache.holds(now, self.made.parent, of_dir) && cache.holds(now, self.made.attr.node, of_file)
    }

    /// Whether it is this node, or in that directory.
    pub(super) fn concerns(&self, node: u64) -> bool {
        self.made.parent == node || self.made.attr.node == node && !self.is_written
    }

    pub(super) fn is_named(&self, parent: u64, name: &[u8]) -> bool {
        self.made.parent == parent && self.made.name == name
    }
}

impl Table {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl Spares {
    /// A file has been made, and nobody else can have made it.
    pub(super) fn made(&self, made: Made) {
        let mut table = lock(&self.table);
        if table.made.len() >= MADE_MAX {
            table.made.pop_front();
        }
        table.made.push_back(made);
    }

    /// A name that the server lists, as it is here; `None`: it is gone.
    pub(super) fn listed(&self, parent: u64, entry: Listed) -> Option<Listed> {
        let Some(attr) = entry.attr.filter(|_| self.count.load(Ordering::SeqCst) > 0) else {
            return Some(entry);
        };
        match lock(&self.table).spares.get(&(parent, entry.name.clone())) {
            Some(spare) if spare.made.attr.node == attr.node => {
                spare.used.map(|attr| Listed { attr: Some(attr), ..entry })
            }
            _ => Some(entry),
        }
    }

    fn any(&self, which: impl Fn(&Spare) -> bool) -> bool {
        self.count.load(Ordering::SeqCst) > 0 && lock(&self.table).spares.values().any(which)
    }
}

impl Remote {
    fn spares(&self) -> &Spares {
        &self.inner.client.spares
    }

    fn is_open_here(&self, node: u64) -> bool {
        let is_it = |file: &std::sync::Arc<super::OpenFile>| {
            file.node == node && !file.is_closing.load(Ordering::SeqCst)
        };
        lock(&self.inner.files).values().any(is_it)
    }

    /// What is about to lose that name is as it was made here: it may stay.
    pub(super) fn may_stay(&self, parent: u64, name: &[u8]) -> Option<Made> {
        let made = {
            let mut table = lock(&self.spares().table);
            let place = table.made.iter().rposition(|made| made.parent == parent && made.name == name)?;
            table.made.remove(place).filter(|_| table.spares.len() < SPARES_MAX)?
        };
        let node = made.attr.node;
        // Who makes it again may write to it, and has it opened when he does.
        let is_plain = (made.attr.size, made.attr.links, made.mode & 0o600) == (0, 1, 0o600);
        let may = is_plain && !self.is_open_here(node);
        let cache = self.inner.client.cache();
        let is_as_made = cache.kept_attr(now(), node) == Some(made.attr);
        (may && is_as_made).then_some(made)
    }

    /// It has lost it, and stayed: nothing is kept of it but that. False: it may not, somebody else may see it already.
    pub(super) fn stays(&self, cache: &mut Cache, made: Made, of_dir: u64) -> bool {
        let (parent, node, now) = (made.parent, made.attr.node, now());
        let of_file = cache.lease(now, node).map_or(0, |(lease, _)| lease);
        let mut table = lock(&self.spares().table);
        let (number, leases) = (table.number(), (of_dir, of_file));
        let spare = Spare { made, leases, used: None, is_written: false, number, since: now, telling: None };
        if !spare.has_leases(cache, now) {
            return false;
        }
        let place = (parent, spare.made.name.clone());
        table.spares.insert(place.clone(), spare);
        self.spares().count.store(table.spares.len(), Ordering::SeqCst);
        cache.tell(parent);
        cache.tell(node);
        cache.set_spare(node, true);
        self.tell_spare_later(place);
        true
    }

    /// Takes one that is free for a file that is to be made, and opened by that number: what it is.
    pub(super) fn use_spare(
        &self,
        (parent, name): (u64, &[u8]),
        mode: u32,
        caller: User,
        (file, flags): (u64, OFlags),
    ) -> Option<Attr> {
        if !self.spares().any(|spare| spare.is_named(parent, name)) {
            return None;
        }
        let (mut cache, now) = (self.inner.client.cache(), now());
        let mut table = lock(&self.spares().table);
        let number = table.number();
        let spare = table.spares.get_mut(&(parent, Bytes::copy_from_slice(name)))?;
        // The server has another idea of how old it is: not for ever.
        let is_old = now.saturating_sub(spare.made.at) > SPARE_AGE_MAX.as_nanos() as Nanos;
        let is_it = (spare.made.mode, spare.made.caller) == (mode, caller) && !is_old;
        if !is_it || spare.used.is_some() || spare.telling.is_some() || !spare.has_leases(&cache, now) {
            return None;
        }
        let time = spare.made.time(now);
        let attr = Attr { accessed: time, modified: time, changed: time, ..spare.made.attr };
        (spare.used, spare.number, spare.since) = (Some(attr), number, now);
        change_name(&mut cache, now, parent, &spare.made.name, Some(attr.node), time);
        cache.tell(attr.node);
        cache.found_at(attr.node, parent, spare.made.name.clone());
        cache.keep_spare(attr);
        // Before anybody can be told to give up the leases, and has to have it opened at the server.
        let flags = flags.difference(OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC);
        self.add_file(OpenFile::new(file, attr.node, flags, None));
        Some(attr)
    }

    /// Removes the name of one that is used, and as it was made: it is free again. False: that is for the server to do.
    pub(super) fn free_spare(&self, parent: u64, name: &[u8]) -> bool {
        let node = {
            let table = lock(&self.spares().table);
            let spare = table.spares.values().find(|spare| spare.is_named(parent, name));
            spare.map(|spare| spare.made.attr.node)
        };
        let Some(node) = node.filter(|node| !self.is_open_here(*node)) else { return false };
        let (mut cache, now) = (self.inner.client.cache(), now());
        let mut table = lock(&self.spares().table);
        let number = table.number();
        let Some(spare) = table.spares.get_mut(&(parent, Bytes::copy_from_slice(name))) else { return false };
        let is_as_made = spare.used.is_some() && cache.kept_attr(now, node) == spare.used;
        if !is_as_made || spare.telling.is_some() || !spare.has_leases(&cache, now) {
            return false;
        }
        (spare.used, spare.number, spare.since) = (None, number, now);
        let time = spare.made.time(now);
        change_name(&mut cache, now, parent, &spare.made.name, None, time);
        let change = [OwnChange::of(node)];
        cache.begin_change(&change);
        cache.end_change(&change);
        true
    }

    /// One that is used is about to be written to, which tells its times: its writer need not wait for what else is to be told.
    pub(super) fn writes_to_spare(&self, node: u64) {
        if !self.spares().any(|spare| spare.made.attr.node == node) {
            return;
        }
        let mut written = None;
        for spare in lock(&self.spares().table).spares.values_mut() {
            if spare.made.attr.node == node && spare.used.is_some() && spare.telling.is_none() {
                spare.is_written = true;
                written = Some(spare.number);
            }
        }
        if let Some(number) = written {
            self.inner.client.cache().set_spare(node, false);
            let remote = self.clone();
            self.inner.runtime.spawn(async move {
                remote.tell_spares(|spare| spare.number == number).await;
            });
        }
    }

    /// Tells the server of those, and waits for others who do: then it knows what is known here of them.
    pub(super) async fn tell_spares(&self, which: impl Fn(&Spare) -> bool) {
        if !self.spares().any(&which) {
            return;
        }
        let (mut to_tell, mut told_by_others) = (Vec::new(), Vec::new());
        for spare in lock(&self.spares().table).spares.values_mut().filter(|spare| which(spare)) {
            if let Some(telling) = &spare.telling {
                told_by_others.push(telling.clone());
            } else {
                let (tells, telling) = watch::channel(());
                spare.telling = Some(telling);
                to_tell.push((spare.clone(), tells));
            }
        }
        // In tasks of their own: who waits for it may give up.
        let mut telling = Vec::new();
        for (spare, tells) in to_tell {
            let remote = self.clone();
            telling.push(self.inner.runtime.spawn(async move {
                remote.tell_spare(&spare).await;
                remote.is_no_spare(&spare);
                drop(tells);
            }));
        }
        for task in telling {
            let _ = task.await;
        }
        for mut told in told_by_others {
            while told.changed().await.is_ok() {}
        }
    }

    /// Of what has this name, and of what is in it if it is a directory.
    pub(super) async fn tell_spares_below(&self, parent: u64, name: &[u8]) {
        if self.spares().any(|_| true) {
            let dirs = self.spare_dirs(name);
            self.tell_spares(|spare| spare.is_named(parent, name) || dirs.contains(&spare.made.parent)).await;
        }
    }

    /// Directories of spares, of that name wherever they are.
    fn spare_dirs(&self, name: &[u8]) -> Vec<u64> {
        let cache = self.inner.client.cache();
        let table = lock(&self.spares().table);
        let dirs = table.spares.values().map(|spare| spare.made.parent);
        dirs.filter(|dir| cache.place(*dir).is_some_and(|(_, place)| place == name)).collect()
    }

    async fn tell_spare(&self, spare: &Spare) {
        let made = &spare.made;
        let (parent, node) = (made.parent, made.attr.node);
        let Some(attr) = spare.used else {
            let changes = [OwnChange::of_name(parent, &made.name), OwnChange::of(node)];
            let keep = |cache: &mut Cache, loser: &Loser| {
                cache.keep_changed_name(parent, made.name.clone(), None);
                cache.keep_changed(loser.dir);
            };
            return self.insist(|| self.change_vital(made.remove(), &changes, keep)).await;
        };
        let change = [OwnChange::of(node), OwnChange::of(parent)];
        let keep = |cache: &mut Cache, attr: &Attr| cache.keep_changed(Some(*attr));
        let of_file = async {
            if !spare.is_written {
                let time = |time| Some(NewTime { now: false, time });
                let (accessed, modified) = (time(attr.accessed), time(attr.modified));
                let ask = SetAttr { node, accessed, modified, ..SetAttr::default() };
                self.inner.client.cache().set_spare(node, false);
                self.insist(|| self.change_vital(ask, &change[..1], keep)).await;
            }
        };
        // A name has come, as whoever looks here has seen.
        let of_dir = async {
            let now = Some(NewTime { now: true, time: WireTime::default() });
            let ask = SetAttr { node: parent, accessed: now, modified: now, ..SetAttr::default() };
            self.insist(|| self.change_vital(ask, &change[1..], keep)).await;
        };
        tokio::join!(of_file, of_dir);
    }

    /// What has been said here to be done is asked for until there is an answer: the session may be over.
    async fn insist<T, F: Future<Output = Result<T, Errno>>>(&self, ask: impl Fn() -> F) {
        for attempt in 1..=TELL_ATTEMPTS {
            let Err(error) = ask().await else { return };
            let is_over = matches!(*self.inner.present.borrow(), Present::Over(_));
            let may_help = matches!(error, Errno::IO | Errno::MFILE | Errno::NFILE | Errno::NOMEM);
            if is_over || !may_help || attempt == TELL_ATTEMPTS {
                // Somebody has made something of it at the server, most likely.
                tracing::debug!(%error, "what became of a lock here is not told");
                return;
            }
            tokio::time::sleep(TELL_PAUSE).await;
        }
    }

    /// The same of those that are free, in a session that is not used for anything else yet: others wait for that.
    pub(super) async fn tell_spares_in(&self, session: &Session) -> Result<(), RequestError> {
        let free: Vec<Spare> = {
            let table = lock(&self.spares().table);
            table.spares.values().filter(|spare| spare.used.is_none()).cloned().collect()
        };
        for spare in free {
            let _ = resume::ask(session, spare.made.remove()).await?; // or it is gone
        }
        Ok(())
    }

    /// Tells the server of it when it has not been used for a while.
    fn tell_spare_later(&self, place: (u64, Bytes)) {
        let remote = std::sync::Arc::downgrade(&self.inner);
        self.inner.runtime.spawn(async move {
            let mut wait = SPARE_TERM;
            loop {
                tokio::time::sleep(wait).await;
                let Some(inner) = remote.upgrade() else { return };
                let remote = Self { inner };
                let Some((number, since)) =
                    lock(&remote.spares().table).spares.get(&place).map(|spare| (spare.number, spare.since))
                else {
                    return;
                };
                let unused = Duration::from_nanos(now().saturating_sub(since));
                if unused >= SPARE_TERM {
                    return remote.tell_spares(|spare| spare.number == number).await;
                }
                wait = SPARE_TERM - unused;
            }
        });
    }

    fn is_no_spare(&self, told: &Spare) {
        let (parent, node) = (told.made.parent, told.made.attr.node);
        let mut cache = self.inner.client.cache();
        let mut table = lock(&self.spares().table);
        let place = (parent, told.made.name.clone());
        if table.spares.get(&place).is_none_or(|spare| spare.number != told.number) {
            return;
        }
        table.spares.remove(&place);
        self.spares().count.store(table.spares.len(), Ordering::SeqCst);
        cache.set_spare(node, false);
        drop((table, cache));
        self.forget(node, 1);
        self.forget(parent, 1);
    }

    /// As [`change`](Self::change), of what others may wait for.
    async fn change_vital<O: Operation>(
        &self,
        operation: O,
        changes: &[OwnChange<'_>],
        keep: impl FnOnce(&mut Cache, &O::Outcome),
    ) -> Result<O::Outcome, Errno> {
        let asking = Asking::begin(&self.inner.client);
        let changing = Changing::begin(&self.inner.client, changes);
        let answer = self.vital_call(operation).await;
        self.changed(&asking, changing, answer, keep)
    }
}

/// A name of a directory is changed here alone, at that time.
fn change_name(cache: &mut Cache, now: Nanos, parent: u64, name: &Bytes, node: Option<u64>, time: WireTime) {
    let dir = cache.kept_attr(now, parent).map(|dir| {
        let later = |before: WireTime| {
            if (before.seconds, before.nanos) < (time.seconds, time.nanos) { time } else { after(before) }
        };
        Attr { modified: later(dir.modified), changed: later(dir.changed), ..dir }
    });
    let change = [OwnChange::of_name(parent, name)];
    cache.begin_change(&change);
    cache.end_change(&change);
    cache.keep_changed(dir);
    cache.keep_changed_name(parent, name.clone(), node);
    cache.hits += 1;
}

/// The next time.
fn after(WireTime { seconds, nanos }: WireTime) -> WireTime {
    match nanos {
        999_999_999.. => WireTime { seconds: seconds.saturating_add(1), nanos: 0 },
        _ => WireTime { seconds, nanos: nanos + 1 },
    }
}
