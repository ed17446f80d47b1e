//! Which clients may keep what they know of a file: its attributes, a directory's names, a file's bytes; and which may
//! keep to themselves for a while what they have written. Pure: the caller passes `now`, and does what it is told.
//!
//! ```text
//!           grant, in a reply             a change begins, by another
//!   NONE ----------------------> SHARED -------------------------------> BREAKING
//!    ^                            |  ^                                     ^   |
//!    |  forgotten        made     |  |  one's own     a change, or an      |   |
//!    |<---------------- exclusive |  |  change ends   access, begins       |   |
//!    |                            v  |                                     |   |
//!    |                          EXCLUSIVE ---------------------------------'   |
//!    '-------------------------------------------------------------------------'
//!                              released, fenced
//! ```
//!
//! A lease is noted **before** what it covers is read, and a change begins to be made only when no other client has one
//! on any of its files; while a change waits or is made nobody else gets one. So whoever has a lease knows what is there
//! now. A client's own changes do not touch its own leases: it knows what it does.
//!
//! A client that changes a file all the while (has it open for writing) may be the only one to know it: then its lease is
//! *exclusive*, and it need not tell at once what it has written. Whoever else wants to see the file begins an access,
//! which is carried out when the client has told all, and has given its lease up. A directory's may stay exclusive when the
//! change that brought it is over.
//!
//! A client that does not answer in time is *fenced*: it gets no answers that would prolong its leases, and stops to
//! use them, by its own clock, before they are taken from it ([`OVERDUE_AFTER`], [`LEASE_TERM`](crate::limits::LEASE_TERM), [`FENCE_AFTER`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::limits::{CONTENTION_PAUSE, FENCE_AFTER, LEASES_MAX, OVERDUE_AFTER, TELLING_MAX};

/// A session, numbered by the server.
pub type Client = u64;

/// A file of the server's, for ever: numbers are used again, but not with the same time of birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Its birth, in nanoseconds since 1970; 0 where the file system does not know it.
    pub born: u64,
}

/// A lease's number: later ones have larger numbers.
pub type Serial = u64;

/// A change's number, or an access'.
pub type ChangeId = u64;

/// Nanoseconds since an origin of the caller's choosing.
pub type Nanos = u64;

/// A client is to give up its lease, and to say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Break {
    /// Whose.
    pub client: Client,
    /// On what.
    pub file: FileId,
    /// The number it was granted with.
    pub serial: Serial,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    serial: Serial,
    is_exclusive: bool,
    /// It stays so when its client's changes have ended.
    outlasts: bool,
    /// When its client was told to give it up.
    broken_at: Option<Nanos>,
    /// When it last showed that it is about to: at first that moment.
    alive_at: Nanos,
}

#[derive(Debug, Default)]
struct File {
    held: BTreeMap<Client, Held>,
    /// Changes that wait or are made, and whose they are; [`NOBODY`]: not a client's.
    changes: BTreeMap<ChangeId, Client>,
    /// Accesses, likewise.
    accesses: BTreeMap<ChangeId, Client>,
    /// When an exclusive lease was last broken.
    contended_at: Option<Nanos>,
}

impl File {
    fn others(&mut self, client: Client) -> impl Iterator<Item = (Client, &mut Held)> {
        self.held
            .iter_mut()
            .filter(move |(holder, _)| **holder != client)
            .map(|(holder, held)| (*holder, held))
    }
}

/// What a client does with files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Change,
    Access,
}

#[derive(Debug)]
struct Change {
    client: Client,
    files: BTreeSet<FileId>,
    /// Leases that are in its way.
    waits_for: usize,
}

/// Whoever changes files at the server directly.
const NOBODY: Client = 0;

/// All leases of a server.
#[derive(Debug, Default)]
pub struct Leases {
    files: HashMap<FileId, File>,
    of_client: HashMap<Client, BTreeSet<FileId>>,
    changes: BTreeMap<ChangeId, Change>,
    /// Breaks that have no answer, by the time they were sent.
    unanswered: BTreeSet<(Nanos, Client, FileId)>,
    /// How many are exclusive.
    exclusive: usize,
    last_serial: Serial,
    last_change: ChangeId,
}

impl Leases {
    /// Of a server whose leases have larger numbers than this: no client takes one of the server before for one of this.
    #[must_use]
    pub fn after(last_serial: Serial) -> Self {
        Self { last_serial, ..Self::default() }
    }

    /// A client begins.
    pub fn join(&mut self, client: Client) {
        self.of_client.entry(client).or_default();
    }

    /// Gives `client` a lease on `file`, or tells the number of the one it has. `None`: somebody is changing it, or has it to himself, the
    /// client has been told to give it up, has too many, or is gone.
    pub fn grant(&mut self, client: Client, file: FileId) -> Option<Serial> {
        let of_client = self.of_client.get_mut(&client)?; // or it is over
        let entry = self.files.entry(file).or_default();
        let is_anothers = entry.held.iter().any(|(holder, held)| *holder != client && held.is_exclusive);
        if is_anothers || entry.changes.values().any(|&changer| changer != client) {
            return None; // it is used
        }
        if let Some(held) = entry.held.get(&client) {
            return held.broken_at.is_none().then_some(held.serial);
        }
        if of_client.len() >= LEASES_MAX {
            self.drop_if_unused(file);
            return None;
        }
        self.last_serial += 1;
        let serial = self.last_serial;
        entry.held.insert(
            client,
            Held { serial, is_exclusive: false, outlasts: false, broken_at: None, alive_at: 0 },
        );
        of_client.insert(file);
        Some(serial)
    }

    /// Makes a client's lease on a file that it is changing exclusive: its number. `None`: it has none, or others do
    /// something with the file, or did until a moment ago.
    pub fn make_exclusive(&mut self, now: Nanos, client: Client, file: FileId) -> Option<Serial> {
        let entry = self.files.get_mut(&file)?;
        let pause = CONTENTION_PAUSE.as_nanos() as Nanos;
        let is_alone = entry.changes.values().chain(entry.accesses.values()).all(|who| *who == client)
            && entry.changes.values().any(|who| *who == client)
            && entry.others(client).next().is_none()
            && entry.contended_at.is_none_or(|at| now >= at + pause);
        let held = entry.held.get_mut(&client).filter(|held| is_alone && held.broken_at.is_none())?;
        if !std::mem::replace(&mut held.is_exclusive, true) {
            self.exclusive += 1;
        }
        Some(held.serial)
    }

    /// The same, and it stays so until it is given up, whatever its client changes.
    pub fn keep_exclusive(&mut self, now: Nanos, client: Client, file: FileId) -> Option<Serial> {
        let serial = self.make_exclusive(now, client, file)?;
        let held = self.files.get_mut(&file)?.held.get_mut(&client)?;
        held.outlasts = true;
        Some(serial)
    }

    /// Whether somebody's lease on this file is exclusive.
    #[must_use]
    pub fn is_exclusive(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|entry| entry.held.values().any(|held| held.is_exclusive))
    }

    /// Whether any lease is exclusive.
    #[must_use]
    pub fn has_exclusive(&self) -> bool {
        self.exclusive > 0
    }

    /// Whether somebody else may know more of these files than is in them.
    #[must_use]
    pub fn is_behind(&self, client: Client, files: &[FileId]) -> bool {
        let mut entries = files.iter().filter_map(|file| self.files.get(file));
        entries.any(|entry| entry.held.iter().any(|(holder, held)| *holder != client && held.is_exclusive))
    }

    /// A change of these files by `client` is to be made: what is to be sent first, and its number for
    /// [`is_ready`](Self::is_ready) and [`end_change`](Self::end_change).
    pub fn begin_change(
        &mut self,
        now: Nanos,
        client: Client,
        files: impl IntoIterator<Item = FileId>,
    ) -> (ChangeId, Vec<Break>) {
        self.begin(now, Kind::Change, client, files)
    }

    /// As [`begin_change`](Self::begin_change), for a client that is to see what is in these files now.
    pub fn begin_access(
        &mut self,
        now: Nanos,
        client: Client,
        files: impl IntoIterator<Item = FileId>,
    ) -> (ChangeId, Vec<Break>) {
        self.begin(now, Kind::Access, client, files)
    }

    fn begin(
        &mut self,
        now: Nanos,
        kind: Kind,
        client: Client,
        files: impl IntoIterator<Item = FileId>,
    ) -> (ChangeId, Vec<Break>) {
        self.last_change += 1;
        let id = self.last_change;
        let files: BTreeSet<FileId> = files.into_iter().collect();
        let mut breaks = Vec::new();
        let mut waits_for = 0;
        for &file in &files {
            let entry = self.files.entry(file).or_default();
            match kind {
                Kind::Change => entry.changes.insert(id, client),
                Kind::Access => entry.accesses.insert(id, client),
            };
            let mut contended = false;
            for (holder, held) in entry.others(client) {
                if kind == Kind::Access && !held.is_exclusive {
                    continue;
                }
                waits_for += 1;
                contended |= held.is_exclusive;
                if held.broken_at.is_none() {
                    (held.broken_at, held.alive_at) = (Some(now), now);
                    self.unanswered.insert((now, holder, file));
                    breaks.push(Break { client: holder, file, serial: held.serial });
                }
            }
            if contended {
                entry.contended_at = Some(now);
            }
        }
        self.changes.insert(id, Change { client, files, waits_for });
        (id, breaks)
    }

    /// A client has stored some of what it alone knew: if it was told to give leases up, it is about to, all of them in
    /// their turn. One that takes too long over it is not waited for.
    pub fn progress(&mut self, now: Nanos, client: Client) {
        let owed: Vec<(Nanos, FileId)> = self
            .unanswered
            .iter()
            .filter(|(_, owing, _)| *owing == client)
            .map(|(at, _, file)| (*at, *file))
            .collect();
        let held =
            |leases: &Self, file| leases.files.get(&file).and_then(|entry| entry.held.get(&client)).copied();
        // Nobody has anything to tell of what is shared.
        if !owed.iter().any(|(_, file)| held(self, *file).is_some_and(|held| held.is_exclusive)) {
            return;
        }
        for (at, file) in owed {
            let Some(entry) = self.files.get_mut(&file) else { continue };
            if let Some(held) = entry.held.get_mut(&client)
                && let Some(broken) = held.broken_at
                && now < broken + TELLING_MAX.as_nanos() as Nanos
            {
                held.alive_at = now;
                self.unanswered.remove(&(at, client, file));
                self.unanswered.insert((now, client, file));
            }
        }
    }

    /// Files have been changed by somebody who did not ask: what is to be sent.
    pub fn noticed(&mut self, now: Nanos, files: impl IntoIterator<Item = FileId>) -> Vec<Break> {
        let (id, breaks) = self.begin_change(now, NOBODY, files);
        self.end_change(id); // nobody has it to himself because of that
        breaks
    }

    /// Whether nobody's lease is in the way of a change or access.
    #[must_use]
    pub fn is_ready(&self, change: ChangeId) -> bool {
        self.changes.get(&change).is_none_or(|change| change.waits_for == 0)
    }

    /// A change or access has been made, or given up; true: others may be ready by that.
    pub fn end_change(&mut self, id: ChangeId) -> bool {
        let Some(Change { client, files, .. }) = self.changes.remove(&id) else { return false };
        let mut frees = false;
        for file in files {
            if let Some(entry) = self.files.get_mut(&file) {
                entry.accesses.remove(&id);
                let ended = entry.changes.remove(&id).is_some();
                // It has told all, and keeps nothing to itself any more.
                if ended
                    && !entry.changes.values().any(|changer| *changer == client)
                    && let Some(held) = entry.held.get_mut(&client).filter(|held| !held.outlasts)
                    && std::mem::take(&mut held.is_exclusive)
                {
                    self.exclusive -= 1;
                    frees = true;
                    for (access, accesser) in &entry.accesses {
                        if *accesser != client
                            && let Some(access) = self.changes.get_mut(access)
                        {
                            access.waits_for -= 1;
                        }
                    }
                }
            }
            self.drop_if_unused(file);
        }
        frees
    }

    /// A client has given up a lease. A later one of the same file, which crossed the word of this, stays.
    pub fn released(&mut self, client: Client, file: FileId, serial: Serial) {
        if let Some(entry) = self.files.get(&file)
            && entry.held.get(&client).is_some_and(|held| held.serial <= serial)
        {
            self.remove(client, file);
        }
    }

    /// A client does not use a file any more.
    pub fn forgotten(&mut self, client: Client, file: FileId) {
        self.remove(client, file);
    }

    /// A client's session is over.
    pub fn gone(&mut self, client: Client) {
        for file in self.of_client.remove(&client).unwrap_or_default() {
            self.remove(client, file);
        }
    }

    fn remove(&mut self, client: Client, file: FileId) {
        let Some(entry) = self.files.get_mut(&file) else { return };
        let Some(held) = entry.held.remove(&client) else { return };
        self.exclusive -= usize::from(held.is_exclusive);
        let accesses = entry.accesses.iter().filter(|_| held.is_exclusive);
        for (id, &other) in entry.changes.iter().chain(accesses) {
            if other != client
                && let Some(change) = self.changes.get_mut(id)
            {
                change.waits_for -= 1;
            }
        }
        if held.broken_at.is_some() {
            self.unanswered.remove(&(held.alive_at, client, file));
        }
        if let Some(files) = self.of_client.get_mut(&client) {
            files.remove(&file);
        }
        self.drop_if_unused(file);
    }

    fn drop_if_unused(&mut self, file: FileId) {
        let is_unused =
            |entry: &File| entry.held.is_empty() && entry.changes.is_empty() && entry.accesses.is_empty();
        if self.files.get(&file).is_some_and(is_unused) {
            self.files.remove(&file);
        }
    }

    /// Whether a client's leases may be prolonged: not while it owes an answer.
    #[must_use]
    pub fn may_renew(&self, now: Nanos, client: Client) -> bool {
        let before = now.saturating_sub(OVERDUE_AFTER.as_nanos() as Nanos);
        !self.unanswered.iter().take_while(|(at, ..)| *at < before).any(|(_, owing, _)| *owing == client)
    }

    /// Clients whose answer is so late that they have stopped to use their leases themselves: their sessions are to be
    /// ended.
    #[must_use]
    pub fn to_fence(&self, now: Nanos) -> BTreeSet<Client> {
        let before = now.saturating_sub(FENCE_AFTER.as_nanos() as Nanos);
        self.unanswered.iter().take_while(|(at, ..)| *at < before).map(|(_, client, _)| *client).collect()
    }

    /// All files that somebody has a lease on.
    #[must_use]
    pub fn all(&self) -> Vec<FileId> {
        self.files.iter().filter(|(_, entry)| !entry.held.is_empty()).map(|(file, _)| *file).collect()
    }

    /// Whether anybody has a lease on a file.
    #[must_use]
    pub fn is_held(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|entry| !entry.held.is_empty())
    }

    /// Leases of a client.
    #[must_use]
    pub fn count(&self, client: Client) -> usize {
        self.of_client.get(&client).map_or(0, BTreeSet::len)
    }
}

#[cfg(test)]
mod tests;
