use std::collections::HashSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::*;

const F: FileId = FileId { device: 1, inode: 1, born: 0 };
const G: FileId = FileId { device: 1, inode: 2, born: 0 };

/// With three clients.
fn joined() -> Leases {
    let mut leases = Leases::default();
    (1..=3).for_each(|client| leases.join(client));
    leases
}

fn seconds(seconds: u64) -> Nanos {
    seconds * 1_000_000_000
}

#[test]
fn a_change_waits_for_others_leases_and_not_for_its_own() {
    let mut leases = joined();
    let one = leases.grant(1, F).unwrap();
    let two = leases.grant(2, F).unwrap();
    assert_eq!(leases.grant(1, F), Some(one));
    let (change, breaks) = leases.begin_change(0, 1, [F]);
    assert_eq!(breaks, [Break { client: 2, file: F, serial: two }]);
    assert!(!leases.is_ready(change));
    assert_eq!(leases.grant(3, F), None, "somebody is about to change it");
    assert_eq!(leases.grant(2, F), None);
    assert_eq!(leases.grant(1, F), Some(one));
    leases.released(2, F, two);
    assert!(leases.is_ready(change));
    assert_eq!(leases.grant(2, F), None, "not before the change is made");
    leases.end_change(change);
    assert!(leases.grant(2, F).unwrap() > two);
}

#[test]
fn a_lease_is_broken_once_for_many_changes() {
    let mut leases = joined();
    let serial = leases.grant(1, F).unwrap();
    let (first, breaks) = leases.begin_change(0, 2, [F, G]);
    assert_eq!(breaks.len(), 1);
    let (second, breaks) = leases.begin_change(1, 3, [F]);
    assert_eq!(breaks, []);
    leases.released(1, F, serial);
    assert!(leases.is_ready(first) && leases.is_ready(second), "the file system itself orders changes");
    leases.end_change(first);
    leases.end_change(second);
    assert!(leases.files.is_empty());
}

#[test]
fn a_late_word_of_an_earlier_lease_does_not_end_a_later_one() {
    let mut leases = joined();
    let early = leases.grant(1, F).unwrap();
    leases.forgotten(1, F);
    let late = leases.grant(1, F).unwrap();
    leases.released(1, F, early);
    assert_eq!(leases.grant(1, F), Some(late));
}

#[test]
fn who_does_not_answer_is_not_renewed_and_then_fenced() {
    let mut leases = joined();
    leases.grant(1, F).unwrap();
    leases.grant(2, G).unwrap();
    let (change, _) = leases.begin_change(seconds(100), 3, [F]);
    assert!(leases.may_renew(seconds(104), 1));
    assert!(!leases.may_renew(seconds(106), 1) && leases.may_renew(seconds(106), 2));
    assert!(leases.to_fence(seconds(129)).is_empty());
    assert_eq!(leases.to_fence(seconds(131)), BTreeSet::from([1]));
    leases.gone(1);
    assert!(leases.is_ready(change));
    assert_eq!((leases.count(1), leases.count(2), leases.unanswered.len()), (0, 1, 0));
}

#[test]
fn a_change_that_nobody_asked_for_breaks_all() {
    let mut leases = joined();
    leases.grant(1, F).unwrap();
    leases.grant(2, F).unwrap();
    assert_eq!(leases.noticed(0, [F, G]).len(), 2);
    assert_eq!(leases.noticed(0, [F, G]).len(), 0);
}

#[test]
fn one_client_alone_may_be_the_only_one_to_know() {
    let mut leases = joined();
    assert_eq!(leases.make_exclusive(0, 1, F), None, "it has no lease");
    let serial = leases.grant(1, F).unwrap();
    assert_eq!(leases.make_exclusive(0, 1, F), None, "it does not change it");
    let (open, _) = leases.begin_change(0, 1, [F]);
    assert_eq!(leases.make_exclusive(0, 1, F), Some(serial));
    assert!(leases.is_behind(2, &[G, F]) && !leases.is_behind(1, &[F]) && leases.has_exclusive());
    // Another wants to see it.
    let (access, breaks) = leases.begin_access(seconds(5), 2, [F]);
    assert_eq!(breaks, [Break { client: 1, file: F, serial }]);
    assert!(!leases.is_ready(access));
    leases.released(1, F, serial);
    assert!(leases.is_ready(access) && !leases.has_exclusive());
    // Not while that one looks, nor at once again.
    leases.grant(1, F).unwrap();
    assert_eq!(leases.make_exclusive(seconds(9), 1, F), None);
    leases.end_change(access);
    assert_eq!(leases.make_exclusive(seconds(5), 1, F), None);
    assert!(leases.make_exclusive(seconds(9), 1, F).is_some());
    // Who ends its change has told all: nobody waits.
    let (access, _) = leases.begin_access(seconds(10), 2, [F]);
    leases.end_change(open);
    assert!(leases.is_ready(access) && !leases.has_exclusive());
    assert!(leases.begin_access(seconds(10), 3, [F]).1.is_empty());
}

#[test]
fn what_is_kept_exclusive_stays_so_until_another_comes() {
    let mut leases = joined();
    let serial = leases.grant(1, F).unwrap();
    assert_eq!(leases.keep_exclusive(0, 1, F), None, "it does not change it");
    for _ in 0..2 {
        let (change, _) = leases.begin_change(0, 1, [F]);
        assert_eq!(leases.keep_exclusive(0, 1, F), Some(serial));
        leases.end_change(change);
        assert!(leases.is_exclusive(F) && leases.is_behind(2, &[F]) && !leases.is_exclusive(G));
        assert_eq!(leases.grant(2, F), None, "one who has not begun to look");
    }
    let (access, breaks) = leases.begin_access(0, 2, [F]);
    assert_eq!(breaks, [Break { client: 1, file: F, serial }]);
    leases.released(1, F, serial);
    assert!(leases.is_ready(access) && !leases.has_exclusive());
}

#[test]
fn two_who_change_a_file_have_it_both() {
    let mut leases = joined();
    leases.grant(1, F).unwrap();
    leases.begin_change(0, 1, [F]);
    leases.begin_change(0, 2, [F]);
    assert_eq!(leases.make_exclusive(0, 1, F), None);
    assert!(leases.begin_access(0, 3, [F]).1.is_empty());
}

#[test]
fn who_tells_slowly_is_waited_for_as_long_as_it_goes_on() {
    let mut leases = joined();
    leases.grant(1, F).unwrap();
    leases.grant(1, G).unwrap();
    leases.begin_change(0, 1, [F]);
    leases.make_exclusive(0, 1, F).unwrap();
    leases.begin_access(seconds(100), 2, [F]);
    leases.begin_change(seconds(110), 3, [G]);
    for now in [104, 120, 149] {
        leases.progress(seconds(now), 1);
    }
    // Also for what waits behind it.
    assert!(leases.may_renew(seconds(153), 1) && leases.to_fence(seconds(178)).is_empty());
    assert!(!leases.may_renew(seconds(155), 1));
    assert_eq!(leases.to_fence(seconds(180)), BTreeSet::from([1]));
    // But not for ever.
    leases.progress(seconds(100) + TELLING_MAX.as_nanos() as Nanos, 1);
    assert_eq!(leases.to_fence(seconds(180)), BTreeSet::from([1]));
    leases.gone(1);
    assert!(leases.unanswered.is_empty());
}

#[test]
fn who_has_nothing_to_tell_is_not_waited_for() {
    let mut leases = joined();
    leases.grant(1, F).unwrap();
    leases.begin_change(seconds(100), 2, [F]);
    leases.progress(seconds(120), 1);
    assert_eq!(leases.to_fence(seconds(131)), BTreeSet::from([1]));
}

/// Clients that read under leases, change things, write without telling, answer breaks late, forget, and die, and a
/// server that does what the leases say: a model of all of it, with messages that overtake each other.
#[derive(Debug, Default)]
struct World {
    leases: Leases,
    now: Nanos,
    /// How often each file has been changed, as the server knows.
    versions: [u32; 2],
    /// And as whoever has been told that a write has been made knows.
    truth: [u32; 2],
    clients: [Known; 3],
    /// Replies on their way: to whom, which file, version as read, lease.
    replies: Vec<(usize, usize, u32, Option<Serial>)>,
    /// Breaks on their way.
    breaks: Vec<Break>,
    /// Words of given-up leases on their way back.
    released: Vec<Break>,
    changes: Vec<(ChangeId, usize)>,
    /// Reads that wait for another client to tell what it has written: whose, and of which file.
    accesses: Vec<(ChangeId, usize, usize)>,
    /// Reads that nobody was in the way of: whose, of which file, and what was there when they were asked for.
    reads: Vec<(usize, usize, u32)>,
    /// Files that are open for writing, or about to be.
    open: Vec<Open>,
    /// Open files whose ends are on their way.
    closing: Vec<ChangeId>,
    /// Let planted defects show.
    forgets_breaks: bool,
    forgets_to_tell: bool,
}

#[derive(Debug, Default)]
struct Known {
    /// Version and lease of each file.
    kept: [Option<(u32, Serial)>; 2],
    /// The highest lease of each file that has been broken.
    broken: [Serial; 2],
    /// It has written what the server does not know.
    is_ahead: [bool; 2],
}

#[derive(Clone, Copy, Debug)]
struct Open {
    change: ChangeId,
    client: usize,
    file: usize,
    /// The server has opened it; the reply, with an exclusive lease, is on its way.
    reply: Option<Option<Serial>>,
    /// The reply has come.
    is_open: bool,
    exclusive: Option<Serial>,
    /// The change ends when the server has made it, and only the lease is left.
    outlasts: bool,
}

const FILES: [FileId; 2] = [F, G];

impl World {
    /// A client tells the server what it has written.
    fn tell(&mut self, client: usize, file: usize) {
        if std::mem::take(&mut self.clients[client].is_ahead[file]) {
            self.versions[file] = self.truth[file];
        }
    }

    /// The server reads a file for a client, which has asked for it when that was there.
    fn read(&mut self, client: usize, file: usize, least: u32) -> Result<(), String> {
        self.tell(client, file);
        if self.versions[file] < least {
            return Err(format!("client {client} is shown the past of file {file}: {self:?}"));
        }
        let lease = self.leases.grant(client as Client + 1, FILES[file]);
        self.replies.push((client, file, self.versions[file], lease));
        Ok(())
    }

    /// What a client knows of a file is of no use to it any more; nor what is on its way.
    fn forget(&mut self, client: usize, file: usize) {
        self.clients[client].kept[file] = None;
        self.replies.retain(|reply| (reply.0, reply.1) != (client, file));
        self.reads.retain(|read| (read.0, read.1) != (client, file));
    }

    /// A client's change is made at the server.
    fn change(&mut self, client: usize, file: usize) -> Result<(), String> {
        self.tell(client, file);
        if self.clients.iter().any(|known| known.is_ahead[file]) {
            return Err(format!("client {client} changes a past of file {file}: {self:?}"));
        }
        self.truth[file] += 1;
        self.versions[file] = self.truth[file];
        self.forget(client, file);
        Ok(())
    }

    fn step(&mut self, kind: u8, client: usize, file: usize, pick: usize) -> Result<(), String> {
        self.now += 400_000_000;
        let number = client as Client + 1;
        match kind {
            // A client reads: from what it keeps, or at the server, which notes the lease first.
            0 | 1 => match self.clients[client].kept[file] {
                Some((version, _)) if version != self.truth[file] => {
                    return Err(format!("client {client} sees {version} of file {file}: {self:?}"));
                }
                Some(_) => {}
                None if self.leases.is_behind(number, &[FILES[file]]) => {
                    let (access, breaks) = self.leases.begin_access(self.now, number, [FILES[file]]);
                    self.breaks.extend(breaks);
                    self.accesses.push((access, client, file));
                }
                None => self.reads.push((client, file, self.truth[file])),
            },
            // The server comes to it; somebody may have begun to change the file since.
            15 if !self.reads.is_empty() => {
                let (client, file, least) = self.reads.swap_remove(pick % self.reads.len());
                self.read(client, file, least)?;
            }
            // Replies, breaks and answers come in any order.
            2 if !self.replies.is_empty() => {
                let (client, file, version, lease) = self.replies.swap_remove(pick % self.replies.len());
                let known = &mut self.clients[client];
                if let Some(serial) = lease
                    && (self.forgets_breaks || serial > known.broken[file])
                    && !known.is_ahead[file]
                {
                    known.kept[file] = Some((version, serial));
                }
            }
            3 if !self.breaks.is_empty() => {
                let broken = self.breaks.swap_remove(pick % self.breaks.len());
                let (client, file) = (broken.client as usize - 1, usize::from(broken.file == G));
                let known = &mut self.clients[client];
                known.broken[file] = known.broken[file].max(broken.serial);
                if known.kept[file].is_some_and(|(_, serial)| serial <= broken.serial) {
                    known.kept[file] = None;
                }
                for open in self.open.iter_mut().filter(|open| (open.client, open.file) == (client, file)) {
                    open.exclusive = open.exclusive.filter(|serial| *serial > broken.serial);
                }
                if !self.forgets_to_tell {
                    self.tell(client, file);
                }
                self.released.push(broken);
            }
            4 if !self.released.is_empty() => {
                let Break { client, file, serial } = self.released.swap_remove(pick % self.released.len());
                self.leases.released(client, file, serial);
            }
            // A change is asked for; what its own client keeps of the file is of no use to it any more.
            5 => {
                self.forget(client, file);
                let (change, breaks) = self.leases.begin_change(self.now, number, [FILES[file]]);
                self.breaks.extend(breaks);
                self.changes.push((change, file));
            }
            // Changes and accesses that are ready are made.
            6 => {
                if let Some(at) = self.changes.iter().position(|(change, _)| self.leases.is_ready(*change)) {
                    let (change, file) = self.changes.swap_remove(at);
                    if let Some(Change { client, .. }) = self.leases.changes.get(&change) {
                        self.change(*client as usize - 1, file)?;
                    }
                    self.leases.end_change(change);
                }
                if let Some(at) = self.accesses.iter().position(|(access, ..)| self.leases.is_ready(*access))
                {
                    let (access, client, file) = self.accesses.swap_remove(at);
                    self.read(client, file, self.truth[file])?;
                    self.leases.end_change(access);
                }
            }
            // A session ends: what it knew is gone, and what is on its way to it.
            7 if pick.is_multiple_of(8) => {
                for file in 0..2 {
                    if self.clients[client].is_ahead[file] {
                        self.truth[file] = self.versions[file]; // lost with it
                    }
                }
                self.clients[client] = Known::default();
                self.clients[client].broken = [self.leases.last_serial; 2];
                self.replies.retain(|reply| reply.0 != client);
                self.reads.retain(|read| read.0 != client);
                for open in self.open.extract_if(.., |open| open.client == client) {
                    self.closing.push(open.change);
                }
                self.leases.gone(number);
                self.leases.join(number);
            }
            8 => {
                if self.clients[client].is_ahead[file] || self.open.iter().any(|open| open.client == client) {
                    return Ok(()); // what is open is not forgotten
                }
                self.clients[client].kept[file] = None;
                let serial = self.leases.last_serial;
                self.clients[client].broken[file] = serial; // what is on its way is not kept
                self.leases.forgotten(number, FILES[file]);
            }
            // A file is to be opened for writing.
            9 if self.open.len() < 3 => {
                self.forget(client, file);
                let (change, breaks) = self.leases.begin_change(self.now, number, [FILES[file]]);
                self.breaks.extend(breaks);
                let outlasts = pick % 4 == 1;
                let closed =
                    Open { change, client, file, reply: None, is_open: false, exclusive: None, outlasts };
                self.open.push(closed);
            }
            // The server opens it; the reply comes.
            10 => {
                let ready = |open: &&mut Open| open.reply.is_none() && self.leases.is_ready(open.change);
                if let Some(open) = self.open.iter_mut().find(ready) {
                    let (client, file) = (open.client as Client + 1, FILES[open.file]);
                    self.leases.grant(client, file);
                    open.reply = Some(if open.outlasts {
                        let exclusive = self.leases.keep_exclusive(self.now, client, file);
                        self.leases.end_change(open.change);
                        exclusive
                    } else {
                        self.leases.make_exclusive(self.now, client, file)
                    });
                }
            }
            11 => {
                let coming = |open: &&mut Open| open.reply.is_some() && !open.is_open;
                if let Some(open) = self.open.iter_mut().find(coming) {
                    open.is_open = true;
                    let broken = self.clients[open.client].broken[open.file];
                    open.exclusive = open.reply.flatten().filter(|serial| *serial > broken);
                }
            }
            // It is written to: the server need not be told at once, or must be.
            12 => {
                let open =
                    self.open.iter().filter(|open| open.is_open && open.client == client).nth(pick % 2);
                let Some(&Open { file, exclusive, outlasts, .. }) = open else { return Ok(()) };
                if exclusive.is_some() {
                    self.forget(client, file);
                    self.truth[file] += 1;
                    self.clients[client].is_ahead[file] = true;
                } else if !outlasts {
                    self.change(client, file)?;
                }
            }
            // It is closed; the server knows later.
            13 => {
                let is_open = |open: &Open| open.is_open && open.client == client;
                if let Some(at) = self.open.iter().position(is_open) {
                    let open = self.open.swap_remove(at);
                    self.tell(client, open.file);
                    self.closing.push(open.change);
                }
            }
            14 if !self.closing.is_empty() => {
                let change = self.closing.swap_remove(pick % self.closing.len());
                self.leases.end_change(change);
            }
            _ => {}
        }
        Ok(())
    }

    /// Everything that is on its way arrives, and all is closed; then nothing waits.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..200 {
            for kind in [2, 3, 4, 6, 10, 11, 14, 15] {
                self.step(kind, 0, 0, 0)?;
            }
            for client in 0..3 {
                self.step(13, client, 0, 0)?;
            }
        }
        // What is exclusive still, and nobody has asked for, is given up.
        for (client, file) in [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)] {
            self.step(8, client, file, 0)?;
        }
        let waits = !self.changes.is_empty() || !self.accesses.is_empty() || !self.open.is_empty();
        if waits || self.leases.has_exclusive() {
            return Err(format!("something waits for ever: {self:?}"));
        }
        if self.versions == self.truth { Ok(()) } else { Err(format!("something is lost: {self:?}")) }
    }
}

const KINDS: u8 = 16;

fn steps() -> impl Strategy<Value = Vec<(u8, usize, usize, usize)>> {
    prop::collection::vec((0..KINDS, 0..3_usize, 0..2_usize, any::<usize>()), 0..160)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn whoever_reads_sees_every_change_that_was_made(steps in steps()) {
        let mut world = World { leases: joined(), ..World::default() };
        for (kind, client, file, pick) in steps {
            world.step(kind, client, file, pick).map_err(TestCaseError::fail)?;
        }
        world.settle().map_err(TestCaseError::fail)?;
    }
}

/// Whether random orders find what is wrong in worlds like this one.
fn is_found(world: impl Fn() -> World) -> bool {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    (0..6000).any(|_| {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let mut world = world();
        steps.into_iter().any(|(kind, client, file, pick)| world.step(kind, client, file, pick).is_err())
    })
}

/// The check is one: a client that takes a lease which has been broken on its way is found out.
#[test]
fn a_planted_defect_is_found() {
    assert!(is_found(|| World { leases: joined(), forgets_breaks: true, ..World::default() }));
}

/// And one that gives its lease up before it has told what it has written.
#[test]
fn a_client_that_does_not_tell_is_found() {
    assert!(is_found(|| World { leases: joined(), forgets_to_tell: true, ..World::default() }));
}

/// Every order of steps of a small case: two clients and one file, and every message comes at any time.
fn search(kinds: &[u8], path: &mut Vec<(u8, usize, usize)>, depth: usize, seen: &mut HashSet<String>) {
    let mut world = World { leases: joined(), ..World::default() };
    for &(kind, client, pick) in path.iter() {
        world.step(kind, client, 0, pick).unwrap();
    }
    // Worlds that look the same go on the same way.
    world.now = 0;
    if depth == 0 || !seen.insert(format!("{depth}{world:?}")) {
        return;
    }
    for &kind in kinds {
        for client in 0..if matches!(kind, 0 | 5 | 9 | 12 | 13) { 2 } else { 1 } {
            for pick in 0..if matches!(kind, 2..=4) { 2 } else { 1 } {
                path.push((kind, client, pick));
                search(kinds, path, depth - 1, seen);
                path.pop();
            }
        }
    }
}

#[test]
fn all_orders_of_reads_and_changes() {
    search(&[0, 2, 3, 4, 5, 6, 15], &mut Vec::new(), 9, &mut HashSet::new());
}

#[test]
fn all_orders_of_reads_and_writes_to_open_files() {
    // One has it open, and to itself, or has only kept that; another may have begun to look before.
    for (outlasts, looks) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut path = if looks { vec![(0, 1, 0)] } else { Vec::new() };
        path.extend([(9, 0, outlasts), (10, 0, 0), (11, 0, 0)]);
        search(&[0, 2, 3, 4, 6, 9, 10, 11, 12, 15], &mut path, 7, &mut HashSet::new());
    }
}
