//! Locks that programs put on files: which owner has which bytes, and who waits for them. Pure.
//!
//! The rules are those of fcntl(2): an owner's lock replaces what it had in the range; locks to read may be shared; an
//! owner who would wait for somebody who waits for him is told so. A lock of flock(2) is one of all bytes, as with NFS
//! (flock(2), NFS details): the two kinds see each other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use crate::lease::Client;
use crate::limits::LOCKS_MAX;

/// A process, or an open file, of a client's, which numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Whose.
    pub client: Client,
    /// Its number.
    pub number: u64,
}

/// What a lock is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Others may have it, too.
    Shared,
    /// Nobody else.
    Exclusive,
}

/// A lock that somebody has, or wants to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Whose.
    pub owner: Owner,
    /// By way of which open file; it goes with that.
    pub via: u64,
    /// The process, as its client numbers it: for people.
    pub pid: u32,
    /// What for.
    pub kind: LockKind,
    /// The first byte.
    pub start: u64,
    /// The last one.
    pub last: u64,
}

impl Lock {
    fn overlaps(&self, start: u64, last: u64) -> bool {
        self.start <= last && start <= self.last
    }

    fn excludes(&self, other: &Self) -> bool {
        self.owner != other.owner
            && self.overlaps(other.start, other.last)
            && (self.kind, other.kind) != (LockKind::Shared, LockKind::Shared)
    }
}

/// Who waits: a client, and its number for this.
pub type WaitId = (Client, u64);

/// Why there is no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Somebody has this one.
    Held(Lock),
    /// Somebody who waits for the asker has it.
    Deadlock,
    /// The client has as many as it may, or waits under this number already.
    TooMany,
}

#[derive(Debug)]
struct Waiting<F> {
    file: F,
    lock: Lock,
}

/// All locks. `F` names files.
#[derive(Debug)]
pub struct Locks<F> {
    held: HashMap<F, Vec<Lock>>,
    waiting: BTreeMap<u64, (WaitId, Waiting<F>)>,
    counts: HashMap<Client, usize>,
    last_wait: u64,
}

impl<F> Default for Locks<F> {
    fn default() -> Self {
        Self { held: HashMap::new(), waiting: BTreeMap::new(), counts: HashMap::new(), last_wait: 0 }
    }
}

impl<F: Copy + Eq + Hash> Locks<F> {
    /// Somebody's lock that is in the way of this one.
    #[must_use]
    pub fn conflict(&self, file: F, lock: &Lock) -> Option<Lock> {
        self.held.get(&file)?.iter().find(|held| held.excludes(lock)).copied()
    }

    /// Puts a lock on a file: whose waiting is over by that, as a lock to write may have become one to read.
    ///
    /// # Errors
    /// [`Refused::Held`], [`Refused::TooMany`].
    pub fn lock(&mut self, file: F, lock: Lock) -> Result<Vec<WaitId>, Refused> {
        if let Some(held) = self.conflict(file, &lock) {
            return Err(Refused::Held(held));
        }
        if self.count(lock.owner.client) >= LOCKS_MAX {
            return Err(Refused::TooMany);
        }
        self.set(file, lock);
        Ok(self.wake(file))
    }

    /// The same for somebody who waits for it; `None`: he does from now on.
    ///
    /// # Errors
    /// [`Refused::Deadlock`], [`Refused::TooMany`].
    pub fn lock_or_wait(&mut self, file: F, lock: Lock, number: u64) -> Result<Option<Vec<WaitId>>, Refused> {
        match self.lock(file, lock) {
            Ok(woken) => return Ok(Some(woken)),
            Err(Refused::Held(_)) => {}
            Err(refused) => return Err(refused),
        }
        let id = (lock.owner.client, number);
        if self.count(id.0) >= LOCKS_MAX || self.waiting.values().any(|(waits, _)| *waits == id) {
            return Err(Refused::TooMany);
        }
        if self.would_wait_for_himself(file, &lock) {
            return Err(Refused::Deadlock);
        }
        self.last_wait += 1;
        self.waiting.insert(self.last_wait, (id, Waiting { file, lock }));
        *self.counts.entry(id.0).or_default() += 1;
        Ok(None)
    }

    fn would_wait_for_himself(&self, file: F, lock: &Lock) -> bool {
        let blockers = |file: F, lock: &Lock| -> Vec<Owner> {
            let held = self.held.get(&file).into_iter().flatten();
            held.filter(|held| held.excludes(lock)).map(|held| held.owner).collect()
        };
        let mut seen = BTreeSet::new();
        let mut next = blockers(file, lock);
        while let Some(owner) = next.pop() {
            if owner == lock.owner {
                return true;
            }
            if seen.insert(owner) {
                for (_, waiting) in self.waiting.values().filter(|(_, waiting)| waiting.lock.owner == owner) {
                    next.extend(blockers(waiting.file, &waiting.lock));
                }
            }
        }
        false
    }

    /// Somebody does not wait any more; false: he has his lock already, or never waited.
    pub fn stop_waiting(&mut self, id: WaitId) -> bool {
        let found = self.waiting.iter().find(|(_, (waits, _))| *waits == id).map(|(at, _)| *at);
        let Some(at) = found else { return false };
        self.waiting.remove(&at);
        self.uncount(id.0);
        true
    }

    /// Takes an owner's locks in a range away: whose waiting is over by that.
    ///
    /// # Errors
    /// [`Refused::TooMany`]: a lock would become two.
    pub fn unlock(&mut self, file: F, owner: Owner, start: u64, last: u64) -> Result<Vec<WaitId>, Refused> {
        let is_cut = |held: &Lock| held.owner == owner && held.start < start && last < held.last;
        if self.count(owner.client) >= LOCKS_MAX
            && self.held.get(&file).is_some_and(|held| held.iter().any(is_cut))
        {
            return Err(Refused::TooMany);
        }
        self.clear(file, owner, start, last);
        Ok(self.wake(file))
    }

    /// An open file is closed: locks that came by way of it go, and nobody waits for more.
    pub fn closed(&mut self, file: F, client: Client, via: u64) -> Vec<WaitId> {
        let came_by_it = |waits: &Waiting<F>| (waits.lock.owner.client, waits.lock.via) == (client, via);
        let ended: Vec<WaitId> =
            self.waiting.values().filter(|(_, waits)| came_by_it(waits)).map(|(id, _)| *id).collect();
        for id in ended {
            self.stop_waiting(id);
        }
        self.retain(file, |held| (held.owner.client, held.via) != (client, via));
        self.wake(file)
    }

    /// A client is gone.
    pub fn gone(&mut self, client: Client) -> Vec<WaitId> {
        self.waiting.retain(|_, (id, _)| id.0 != client);
        let files: Vec<F> = self
            .held
            .iter()
            .filter(|(_, held)| held.iter().any(|held| held.owner.client == client))
            .map(|(file, _)| *file)
            .collect();
        let mut woken = Vec::new();
        for file in files {
            self.retain(file, |held| held.owner.client != client);
            woken.extend(self.wake(file));
        }
        self.counts.remove(&client);
        woken
    }

    /// All locks that anybody has.
    #[must_use]
    pub fn all(&self) -> Vec<(F, Lock)> {
        self.held.iter().flat_map(|(file, held)| held.iter().map(|lock| (*file, *lock))).collect()
    }

    /// Clients whose locks somebody waits for.
    #[must_use]
    pub fn waited_for(&self) -> BTreeSet<Client> {
        let in_the_way = |waiting: &Waiting<F>| {
            let held = self.held.get(&waiting.file).into_iter().flatten();
            let excluding = held.filter(|held| held.excludes(&waiting.lock));
            excluding.map(|held| held.owner.client).collect::<Vec<_>>()
        };
        self.waiting.values().flat_map(|(_, waiting)| in_the_way(waiting)).collect()
    }

    /// Whether an owner has any lock on a file.
    #[must_use]
    pub fn has_any(&self, file: F, owner: Owner) -> bool {
        self.held.get(&file).is_some_and(|held| held.iter().any(|held| held.owner == owner))
    }

    /// Locks, and waits, of a client.
    #[must_use]
    pub fn count(&self, client: Client) -> usize {
        self.counts.get(&client).copied().unwrap_or(0)
    }

    fn uncount(&mut self, client: Client) {
        if let Some(count) = self.counts.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&client);
            }
        }
    }

    fn retain(&mut self, file: F, stays: impl Fn(&Lock) -> bool) {
        let Some(held) = self.held.get_mut(&file) else { return };
        let (stay, go): (Vec<_>, Vec<_>) = held.drain(..).partition(stays);
        *held = stay;
        if held.is_empty() {
            self.held.remove(&file);
        }
        go.iter().for_each(|lock| self.uncount(lock.owner.client));
    }

    fn push(&mut self, file: F, lock: Lock) {
        *self.counts.entry(lock.owner.client).or_default() += 1;
        self.held.entry(file).or_default().push(lock);
    }

    /// Takes an owner's locks off a range: what is left of them to the left and to the right stays.
    fn clear(&mut self, file: F, owner: Owner, start: u64, last: u64) {
        let is_hit = |held: &Lock| held.owner == owner && held.overlaps(start, last);
        let hit: Vec<Lock> =
            self.held.get(&file).into_iter().flatten().filter(|held| is_hit(held)).copied().collect();
        self.retain(file, |held| !is_hit(held));
        for held in hit {
            if held.start < start {
                self.push(file, Lock { last: start - 1, ..held });
            }
            if last < held.last {
                self.push(file, Lock { start: last + 1, ..held });
            }
        }
    }

    fn set(&mut self, file: F, mut lock: Lock) {
        self.clear(file, lock.owner, lock.start, lock.last);
        // One with its neighbours.
        let is_neighbour = |held: &Lock| {
            (held.owner, held.kind, held.via) == (lock.owner, lock.kind, lock.via)
                && (held.last.checked_add(1) == Some(lock.start)
                    || lock.last.checked_add(1) == Some(held.start))
        };
        let (mut start, mut last) = (lock.start, lock.last);
        for held in self.held.get(&file).into_iter().flatten().filter(|held| is_neighbour(held)) {
            (start, last) = (start.min(held.start), last.max(held.last));
        }
        self.retain(file, |held| !is_neighbour(held));
        (lock.start, lock.last) = (start, last);
        self.push(file, lock);
    }

    /// Gives locks to those who wait for this file, the first of them first.
    fn wake(&mut self, file: F) -> Vec<WaitId> {
        let mut woken = Vec::new();
        loop {
            let next = self.waiting.iter().find_map(|(at, (id, waiting))| {
                let may = waiting.file == file && self.conflict(file, &waiting.lock).is_none();
                may.then_some((*at, *id, waiting.lock))
            });
            let Some((at, id, lock)) = next else { return woken };
            self.waiting.remove(&at);
            self.uncount(id.0);
            self.set(file, lock);
            woken.push(id);
        }
    }
}

#[cfg(test)]
mod tests;
