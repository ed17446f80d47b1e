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

/// Clients that read under leases, change things, answer breaks late, forget, and die, and a server that does what the
/// leases say: a model of all of it, with messages that overtake each other.
#[derive(Debug, Default)]
struct World {
    leases: Leases,
    now: Nanos,
    /// How often each file has been changed.
    versions: [u32; 2],
    clients: [Known; 3],
    /// Replies on their way: to whom, which file, version as read, lease.
    replies: Vec<(usize, usize, u32, Option<Serial>)>,
    /// Breaks on their way.
    breaks: Vec<Break>,
    /// Words of given-up leases on their way back.
    released: Vec<Break>,
    changes: Vec<(ChangeId, usize)>,
    /// Lets the planted defect show.
    forgets_breaks: bool,
}

#[derive(Debug, Default)]
struct Known {
    /// Version and lease of each file.
    kept: [Option<(u32, Serial)>; 2],
    /// The highest lease of each file that has been broken.
    broken: [Serial; 2],
}

const FILES: [FileId; 2] = [F, G];

impl World {
    fn step(&mut self, kind: u8, client: usize, file: usize, pick: usize) -> Result<(), String> {
        self.now += 1;
        let number = client as Client + 1;
        match kind {
            // A client reads: from what it keeps, or at the server, which notes the lease first.
            0 | 1 => match self.clients[client].kept[file] {
                Some((version, _)) if version != self.versions[file] => {
                    return Err(format!("client {client} sees {version} of file {file}: {self:?}"));
                }
                Some(_) => {}
                None => {
                    let lease = self.leases.grant(number, FILES[file]);
                    self.replies.push((client, file, self.versions[file], lease));
                }
            },
            // Replies, breaks and answers come in any order.
            2 if !self.replies.is_empty() => {
                let (client, file, version, lease) = self.replies.swap_remove(pick % self.replies.len());
                let known = &mut self.clients[client];
                if let Some(serial) = lease
                    && (self.forgets_breaks || serial > known.broken[file])
                {
                    known.kept[file] = Some((version, serial));
                }
            }
            3 if !self.breaks.is_empty() => {
                let broken = self.breaks.swap_remove(pick % self.breaks.len());
                let file = usize::from(broken.file == G);
                let known = &mut self.clients[broken.client as usize - 1];
                known.broken[file] = known.broken[file].max(broken.serial);
                if known.kept[file].is_some_and(|(_, serial)| serial <= broken.serial) {
                    known.kept[file] = None;
                }
                self.released.push(broken);
            }
            4 if !self.released.is_empty() => {
                let Break { client, file, serial } = self.released.swap_remove(pick % self.released.len());
                self.leases.released(client, file, serial);
            }
            // A change is asked for; what its own client keeps of the file is of no use to it any more.
            5 => {
                self.clients[client].kept[file] = None;
                // A reply on its way may have been read before the change: it is not kept.
                self.replies.retain(|reply| (reply.0, reply.1) != (client, file));
                let (change, breaks) = self.leases.begin_change(self.now, number, [FILES[file]]);
                self.breaks.extend(breaks);
                self.changes.push((change, file));
            }
            // One that is ready is made.
            6 => {
                let ready = self.changes.iter().position(|(change, _)| self.leases.is_ready(*change));
                if let Some(at) = ready {
                    let (change, file) = self.changes.swap_remove(at);
                    self.versions[file] += 1;
                    // The client that changes it drops what it has learnt meanwhile.
                    for client in 0..3 {
                        if self.leases.files[&FILES[file]].changes.get(&change)
                            == Some(&(client as Client + 1))
                        {
                            self.clients[client].kept[file] = None;
                            self.replies.retain(|reply| (reply.0, reply.1) != (client, file));
                        }
                    }
                    self.leases.end_change(change);
                }
            }
            // A session ends: what it knew is gone, and what is on its way to it.
            7 if pick.is_multiple_of(8) => {
                self.clients[client] = Known::default();
                self.clients[client].broken = [self.leases.last_serial; 2];
                self.replies.retain(|reply| reply.0 != client);
                self.leases.gone(number);
                self.leases.join(number);
            }
            8 => {
                self.clients[client].kept[file] = None;
                let serial = self.leases.last_serial;
                self.clients[client].broken[file] = serial; // what is on its way is not kept
                self.leases.forgotten(number, FILES[file]);
            }
            _ => {}
        }
        Ok(())
    }

    /// Everything that is on its way arrives; then nothing waits.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..200 {
            for kind in [2, 3, 4, 6] {
                self.step(kind, 0, 0, 0)?;
            }
        }
        if self.changes.is_empty() { Ok(()) } else { Err(format!("a change waits for ever: {self:?}")) }
    }
}

fn steps() -> impl Strategy<Value = Vec<(u8, usize, usize, usize)>> {
    prop::collection::vec((0..9_u8, 0..3_usize, 0..2_usize, any::<usize>()), 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn whoever_reads_sees_every_change_that_was_made(steps in steps()) {
        let mut world = World { leases: joined(), ..World::default() };
        for (kind, client, file, pick) in steps {
            world.step(kind, client, file, pick).map_err(TestCaseError::fail)?;
        }
        world.settle().map_err(TestCaseError::fail)?;
    }
}

/// The check is one: a client that takes a lease which has been broken on its way is found out.
#[test]
fn a_planted_defect_is_found() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let found = (0..3000).any(|_| {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let mut world = World { leases: joined(), forgets_breaks: true, ..World::default() };
        steps.into_iter().any(|(kind, client, file, pick)| world.step(kind, client, file, pick).is_err())
    });
    assert!(found);
}

/// Every order of nine steps of a small case: two clients read and change one file, and every message comes at any time.
#[test]
fn all_orders_of_two_clients_and_one_file() {
    fn search(path: &mut Vec<(u8, usize, usize)>, depth: usize, seen: &mut HashSet<String>) {
        let mut world = World { leases: joined(), ..World::default() };
        for &(kind, client, pick) in path.iter() {
            world.step(kind, client, 0, pick).unwrap();
        }
        // Worlds that look the same go on the same way.
        world.now = 0;
        let looks = format!(
            "{:?}{:?}{:?}{:?}{:?}{:?}",
            world.versions, world.clients, world.replies, world.breaks, world.released, world.leases
        );
        if depth == 0 || !seen.insert(format!("{depth}{looks}")) {
            return;
        }
        for kind in [0, 2, 3, 4, 5, 6] {
            for client in 0..if matches!(kind, 0 | 5) { 2 } else { 1 } {
                for pick in 0..if matches!(kind, 2..=4) { 2 } else { 1 } {
                    path.push((kind, client, pick));
                    search(path, depth - 1, seen);
                    path.pop();
                }
            }
        }
    }
    search(&mut Vec::new(), 9, &mut HashSet::new());
}
