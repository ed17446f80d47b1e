//! Which clients' kernels may keep pages of a file that is mapped into memory (mmap(2), and whatever else the kernel reads
//! by way of its page cache). Pure: the caller passes `now`, and does what it is told.
//!
//! [Leases](crate::lease) on what a file is cannot say that: they are not to be had while another client has the file open
//! for writing, and a mapping lasts. So pages have leases of their own, which a change breaks each time it is made:
//!
//! ```text
//!                 | others may have    | the client itself | waits for changes
//! look            | shared leases      | any               | no
//! write           | none               | none              | no
//! change          | none               | any               | no
//! map             | shared leases      | any               | that are being made, and those that came first: of others, and writes
//! map alone       | none               | any               | the same
//! ```
//!
//! Whoever had to wait is served before pages are lent to a client that would be in his way: who asks for pages *alone* waits
//! for all uses of others that came first and wait, who asks for shared ones waits for those who want them alone. So nobody
//! who asks again and again keeps others from a file.
//!
//! A *write* takes its own client's pages back as well: its kernel could fill some after it has sent the write, and show what was before when
//! others have seen the write already. A *change* does not: pages that are written back, and what the kernel itself keeps in order
//! with its pages (truncation, and what a client tells later).
//!
//! *Alone* is who may write to what he has mapped: nobody is told of each store to memory. Whoever else looks at the file,
//! or changes it, has him give his pages back first, and with them what he has written.
//!
//! A client that is to give pages back may not be able to before it has got others that it has asked for: its kernel waits
//! for them. It gets them at once, without a lease, and gives them back with the others: until then nobody changes them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::lease::{Break, Client, FileId, Nanos, Serial};
use crate::limits::{FENCE_AFTER, OVERDUE_AFTER, TELLING_MAX};

/// What a client wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// See the bytes, once.
    Look,
    /// Change them, by write(2).
    Write,
    /// Change them otherwise.
    Change,
    /// Keep pages.
    Map,
    /// Keep pages that may be written to in memory.
    MapAlone,
}

/// A use's number.
pub type UseId = u64;

/// Whether it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Now. For pages, under this lease.
    Go(Serial),
    /// Of these pages the client is giving back what it has: it may read them now, and gives them back, too.
    Returning,
    /// Not yet.
    Wait,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    serial: Serial,
    is_alone: bool,
    /// When its client was told to give it up.
    broken_at: Option<Nanos>,
    /// When it last showed that it is about to: at first that moment.
    alive_at: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Wish {
    client: Client,
    what: Use,
    /// It is a change, and is being made.
    is_begun: bool,
    /// It was told to wait when it was asked last.
    waits: bool,
}

#[derive(Debug, Default)]
struct File {
    held: BTreeMap<Client, Held>,
    wishes: BTreeMap<UseId, Wish>,
}

/// All of a server's.
#[derive(Debug, Default)]
pub struct Pages {
    files: HashMap<FileId, File>,
    of_client: HashMap<Client, BTreeSet<FileId>>,
    of_wish: HashMap<UseId, FileId>,
    /// Breaks that have no answer, by when their clients last showed that they live.
    unanswered: BTreeSet<(Nanos, Client, FileId)>,
    last_serial: Serial,
    last_use: UseId,
}

impl Pages {
    /// Of a server whose leases have larger numbers than this: no client takes one of the server before for one of this.
    #[must_use]
    pub fn after(last_serial: Serial) -> Self {
        Self { last_serial, ..Self::default() }
    }

    /// A client begins.
    pub fn join(&mut self, client: Client) {
        self.of_client.entry(client).or_default();
    }

    /// Whether there is nothing that a use of this file would have to wait for.
    #[must_use]
    pub fn is_unused(&self, file: FileId) -> bool {
        !self.files.contains_key(&file)
    }

    /// All files that somebody keeps pages of.
    #[must_use]
    pub fn all(&self) -> Vec<FileId> {
        self.files.iter().filter(|(_, entry)| !entry.held.is_empty()).map(|(file, _)| *file).collect()
    }

    /// Whether clients other than this one keep pages of a file.
    #[must_use]
    pub fn others_keep(&self, client: Client, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|entry| entry.held.keys().any(|holder| *holder != client))
    }

    /// A client wants to use a file, until [`end`](Self::end).
    pub fn begin(&mut self, client: Client, file: FileId, what: Use) -> UseId {
        self.last_use += 1;
        let id = self.last_use;
        self.files
            .entry(file)
            .or_default()
            .wishes
            .insert(id, Wish { client, what, is_begun: false, waits: false });
        self.of_wish.insert(id, file);
        id
    }

    /// Whether that may be now, and what is to be sent first. To be asked again when something has been released or ended,
    /// somebody was told to give pages back, or a use has had to wait and need not any more.
    pub fn may_go(&mut self, now: Nanos, id: UseId) -> (Verdict, Vec<Break>) {
        let (verdict, breaks) = self.verdict(now, id);
        let entry = self.of_wish.get(&id).and_then(|file| self.files.get_mut(file));
        if let Some(wish) = entry.and_then(|entry| entry.wishes.get_mut(&id)) {
            wish.waits = verdict == Verdict::Wait;
        }
        (verdict, breaks)
    }

    fn verdict(&mut self, now: Nanos, id: UseId) -> (Verdict, Vec<Break>) {
        let Some(&file) = self.of_wish.get(&id) else { return (Verdict::Returning, Vec::new()) };
        let Some(entry) = self.files.get_mut(&file) else { return (Verdict::Returning, Vec::new()) };
        let Some(&Wish { client, what, .. }) = entry.wishes.get(&id) else {
            return (Verdict::Returning, Vec::new());
        };
        let maps = matches!(what, Use::Map | Use::MapAlone);
        if maps && entry.held.get(&client).is_some_and(|held| held.broken_at.is_some()) {
            return (Verdict::Returning, Vec::new());
        }
        let alone = matches!(what, Use::Write | Use::Change | Use::MapAlone);
        let mut is_free = true;
        let mut breaks = Vec::new();
        for (&holder, held) in &mut entry.held {
            let is_own = holder == client && what != Use::Write;
            if is_own || !(alone || held.is_alone) {
                continue;
            }
            is_free = false;
            if held.broken_at.is_none() {
                (held.broken_at, held.alive_at) = (Some(now), now);
                self.unanswered.insert((now, holder, file));
                breaks.push(Break { client: holder, file, serial: held.serial });
            }
        }
        let in_the_way = |(&other, wish): (&UseId, &Wish)| {
            let (is_other, came_first) = (wish.client != client, other < id);
            match wish.what {
                Use::Write => wish.is_begun || came_first,
                Use::Change => is_other && (wish.is_begun || came_first),
                Use::MapAlone => is_other && came_first && wish.waits,
                Use::Look | Use::Map => alone && is_other && came_first && wish.waits,
            }
        };
        if !is_free || (maps && entry.wishes.iter().any(in_the_way)) {
            return (Verdict::Wait, breaks);
        }
        if matches!(what, Use::Write | Use::Change)
            && let Some(wish) = entry.wishes.get_mut(&id)
        {
            wish.is_begun = true;
        }
        if !maps {
            return (Verdict::Go(0), breaks);
        }
        let known = entry.held.get(&client).filter(|held| held.is_alone || !alone);
        let serial = known.map(|held| held.serial).or_else(|| {
            // It may be over meanwhile.
            self.of_client.get_mut(&client)?.insert(file);
            self.last_serial += 1;
            let serial = self.last_serial;
            entry.held.insert(client, Held { serial, is_alone: alone, broken_at: None, alive_at: 0 });
            Some(serial)
        });
        (serial.map_or(Verdict::Returning, Verdict::Go), breaks)
    }

    /// A use is over, or given up; true: others of the same file may be free to go on.
    pub fn end(&mut self, id: UseId) -> bool {
        let Some(file) = self.of_wish.remove(&id) else { return false };
        let Some(entry) = self.files.get_mut(&file) else { return false };
        entry.wishes.remove(&id);
        let others = !entry.wishes.is_empty();
        self.drop_if_unused(file);
        others
    }

    /// Files have been changed by somebody who did not ask: what is to be sent.
    pub fn noticed(&mut self, now: Nanos, files: impl IntoIterator<Item = FileId>) -> Vec<Break> {
        let mut breaks = Vec::new();
        for file in files.into_iter().collect::<BTreeSet<_>>() {
            let Some(entry) = self.files.get_mut(&file) else { continue };
            for (&holder, held) in entry.held.iter_mut().filter(|(_, held)| held.broken_at.is_none()) {
                (held.broken_at, held.alive_at) = (Some(now), now);
                self.unanswered.insert((now, holder, file));
                breaks.push(Break { client: holder, file, serial: held.serial });
            }
        }
        breaks
    }

    /// A client has stored some of what was in its pages: as long as it goes on so it is waited for, if not for ever.
    pub fn progress(&mut self, now: Nanos, client: Client) {
        let owed: Vec<(Nanos, FileId)> = self
            .unanswered
            .iter()
            .filter(|(_, owing, _)| *owing == client)
            .map(|(at, _, file)| (*at, *file))
            .collect();
        for (at, file) in owed {
            if let Some(held) = self.files.get_mut(&file).and_then(|entry| entry.held.get_mut(&client))
                && held.is_alone
                && held.broken_at.is_some_and(|broken| now < broken + TELLING_MAX.as_nanos() as Nanos)
            {
                held.alive_at = now;
                self.unanswered.remove(&(at, client, file));
                self.unanswered.insert((now, client, file));
            }
        }
    }

    /// A client has given pages back. A later lease on the same file, which crossed the word of this, stays.
    pub fn released(&mut self, client: Client, file: FileId, serial: Serial) {
        let held = self.files.get(&file).and_then(|entry| entry.held.get(&client));
        if held.is_some_and(|held| held.serial <= serial) {
            self.forgotten(client, file);
        }
    }

    /// A client does not use a file any more.
    pub fn forgotten(&mut self, client: Client, file: FileId) {
        let Some(entry) = self.files.get_mut(&file) else { return };
        let Some(held) = entry.held.remove(&client) else { return };
        if held.broken_at.is_some() {
            self.unanswered.remove(&(held.alive_at, client, file));
        }
        if let Some(files) = self.of_client.get_mut(&client) {
            files.remove(&file);
        }
        self.drop_if_unused(file);
    }

    /// A client's session is over.
    pub fn gone(&mut self, client: Client) {
        for file in self.of_client.remove(&client).unwrap_or_default() {
            self.forgotten(client, file);
        }
    }

    /// Whether a client's leases may be prolonged: not while it owes an answer.
    #[must_use]
    pub fn may_renew(&self, now: Nanos, client: Client) -> bool {
        !self.owing(now.saturating_sub(OVERDUE_AFTER.as_nanos() as Nanos)).any(|owing| owing == client)
    }

    /// Clients whose answer is so late that their sessions are to be ended.
    #[must_use]
    pub fn to_fence(&self, now: Nanos) -> BTreeSet<Client> {
        self.owing(now.saturating_sub(FENCE_AFTER.as_nanos() as Nanos)).collect()
    }

    fn owing(&self, before: Nanos) -> impl Iterator<Item = Client> {
        self.unanswered.iter().take_while(move |(at, ..)| *at < before).map(|(_, client, _)| *client)
    }

    fn drop_if_unused(&mut self, file: FileId) {
        let is_unused = |entry: &File| entry.held.is_empty() && entry.wishes.is_empty();
        if self.files.get(&file).is_some_and(is_unused) {
            self.files.remove(&file);
        }
    }
}

#[cfg(test)]
mod tests;
