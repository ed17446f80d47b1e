//! Clients with kernels that keep pages, and a server, as a model: messages overtake each other, kernels wait for pages
//! that are being filled, and nobody may see the past.

use proptest::prelude::*;

use super::*;
use crate::lease::{Break, FileId};
use crate::pages::{Pages as Leases, Use, UseId, Verdict};

const F: FileId = FileId { device: 1, inode: 1, born: 0 };
const NODE: u64 = 7;
/// Of the file.
const PAGES: usize = 2;
/// The first only reads what it has mapped.
const CLIENTS: usize = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Page {
    #[default]
    Absent,
    /// Being filled.
    Locked,
    Present {
        version: u32,
        is_dirty: bool,
    },
}

/// How far the filling of a page has come.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begins,
    /// The server is asked for a lease.
    Asks(Seen, UseId),
    /// Its answer is on its way.
    Granted(Seen, u64),
    /// It is asked for the bytes.
    Looks(Seen, UseId),
    /// They are on their way.
    Read(Seen, u32),
}

#[derive(Debug, Default)]
struct World {
    leases: Leases,
    /// What each page is, for whoever has been told of all changes, and at the server.
    truth: [u32; PAGES],
    stored: [u32; PAGES],
    tables: [Table; CLIENTS],
    kernels: [[Page; PAGES]; CLIENTS],
    fills: Vec<(usize, usize, Step)>,
    breaks: Vec<Break>,
    /// Pages are being given back: whose, under which lease, and how many of them have been in this pass.
    passes: Vec<(usize, Break, usize)>,
    released: Vec<Break>,
    changes: Vec<(usize, usize, UseId, bool)>,
    looks: Vec<(usize, usize, UseId)>,
    /// Planted defects.
    fills_whatever: bool,
    forgets_dirty: bool,
    needs_no_second_pass: bool,
    keeps_own: bool,
}

impl World {
    fn new() -> Self {
        let mut world = Self::default();
        (1..=CLIENTS as u64).for_each(|client| world.leases.join(client));
        world
    }

    fn writes(client: usize) -> bool {
        client > 0
    }

    fn ask(&mut self, id: UseId) -> Verdict {
        let (verdict, breaks) = self.leases.may_go(0, id);
        self.breaks.extend(breaks);
        verdict
    }

    /// A kernel writes a page that was changed in memory.
    fn write_back(&mut self, client: usize, page: usize) -> Result<(), String> {
        if let Page::Present { version, is_dirty: true } = self.kernels[client][page] {
            let id = self.leases.begin(client as u64 + 1, F, Use::Change);
            if self.ask(id) != Verdict::Go(0) {
                return Err(format!("client {client} may not give back what it has: {self:?}"));
            }
            self.leases.end(id);
            self.stored[page] = version;
            self.kernels[client][page] = Page::Present { version, is_dirty: false };
        }
        Ok(())
    }

    fn fill(&mut self, at: usize) {
        let (client, page, step) = self.fills[at];
        let (number, alone) = (client as u64 + 1, Self::writes(client));
        let next = match step {
            Step::Begins => {
                let seen = self.tables[client].see(NODE, alone);
                let what = if alone { Use::MapAlone } else { Use::Map };
                match seen.lease {
                    None => Step::Asks(seen, self.leases.begin(number, F, what)),
                    Some(_) => Step::Looks(seen, self.leases.begin(number, F, Use::Look)),
                }
            }
            Step::Asks(seen, id) => match self.ask(id) {
                Verdict::Wait => return,
                Verdict::Go(serial) => {
                    self.leases.end(id);
                    Step::Granted(seen, serial)
                }
                Verdict::Returning => {
                    self.leases.end(id);
                    Step::Granted(seen, 0)
                }
            },
            Step::Granted(mut seen, serial) => {
                if serial != 0 {
                    self.tables[client].granted(NODE, seen, serial, alone);
                    seen = self.tables[client].see(NODE, alone);
                }
                Step::Looks(seen, self.leases.begin(number, F, Use::Look))
            }
            Step::Looks(seen, id) => match self.ask(id) {
                Verdict::Wait => return,
                _ => {
                    self.leases.end(id);
                    Step::Read(seen, self.stored[page])
                }
            },
            Step::Read(seen, version) => {
                if self.tables[client].may_fill(0, NODE, seen, alone, true) || self.fills_whatever {
                    self.kernels[client][page] = Page::Present { version, is_dirty: false };
                    self.fills.swap_remove(at);
                    return;
                }
                Step::Begins
            }
        };
        self.fills[at].2 = next;
    }

    fn give_back(&mut self, at: usize) -> Result<(), String> {
        let (client, broken, done) = self.passes[at];
        if done == 0 {
            self.tables[client].give_back(NODE);
        }
        if done < PAGES {
            if let Page::Locked = self.kernels[client][done] {
                return Ok(()); // the kernel waits for it
            }
            if !self.forgets_dirty {
                self.write_back(client, done)?;
            }
            self.kernels[client][done] = Page::Absent;
            self.passes[at].2 += 1;
        } else if self.tables[client].gave_back(NODE) && !self.needs_no_second_pass {
            self.passes[at].2 = 0;
        } else {
            self.passes.swap_remove(at);
            self.released.push(broken);
        }
        Ok(())
    }

    fn step(&mut self, kind: u8, client: usize, page: usize, pick: usize) -> Result<(), String> {
        match kind {
            // A program loads from memory.
            0..=2 => match self.kernels[client][page] {
                Page::Absent => {
                    self.kernels[client][page] = Page::Locked;
                    self.fills.push((client, page, Step::Begins));
                }
                Page::Locked => {}
                Page::Present { version, .. } if version != self.truth[page] => {
                    return Err(format!("client {client} sees the past of page {page}: {self:?}"));
                }
                Page::Present { .. } => {}
            },
            // Or stores to it.
            3 if Self::writes(client) => {
                if let Page::Present { version, .. } = self.kernels[client][page] {
                    if version != self.truth[page] {
                        return Err(format!("client {client} changes a past of page {page}: {self:?}"));
                    }
                    self.truth[page] += 1;
                    self.kernels[client][page] = Page::Present { version: version + 1, is_dirty: true };
                }
            }
            4 | 5 if !self.fills.is_empty() => self.fill(pick % self.fills.len()),
            6 if !self.breaks.is_empty() => {
                let broken = self.breaks.swap_remove(pick % self.breaks.len());
                let client = broken.client as usize - 1;
                let _ = self.tables[client].broken(0, Grant { node: NODE, serial: broken.serial });
                self.passes.push((client, broken, 0));
            }
            7 | 8 if !self.passes.is_empty() => self.give_back(pick % self.passes.len())?,
            9 if !self.released.is_empty() => {
                let Break { client, file, serial } = self.released.swap_remove(pick % self.released.len());
                self.leases.released(client, file, serial);
            }
            // write(2): the kernel writes what it has first, and drops it; it may be there again before the server has the write.
            10 if self.changes.len() < 2 => {
                self.write_back(client, page)?;
                if self.kernels[client][page] != Page::Locked {
                    self.kernels[client][page] = Page::Absent;
                }
                let id = self.leases.begin(
                    client as u64 + 1,
                    F,
                    if self.keeps_own { Use::Change } else { Use::Write },
                );
                self.changes.push((client, page, id, false));
            }
            11 if !self.changes.is_empty() => self.change(pick % self.changes.len())?,
            // read(2), likewise.
            12 if self.looks.len() < 2 => {
                self.write_back(client, page)?;
                let id = self.leases.begin(client as u64 + 1, F, Use::Look);
                self.looks.push((client, page, id));
            }
            13 if !self.looks.is_empty() => {
                let at = pick % self.looks.len();
                let (client, page, id) = self.looks[at];
                if self.ask(id) != Verdict::Wait {
                    // One's own memory may have been written to again meanwhile.
                    let own = matches!(self.kernels[client][page], Page::Present { is_dirty: true, .. });
                    if self.stored[page] != self.truth[page] && !own {
                        return Err(format!("client {client} reads the past of page {page}: {self:?}"));
                    }
                    self.leases.end(id);
                    self.looks.swap_remove(at);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn change(&mut self, at: usize) -> Result<(), String> {
        let (client, page, id, is_begun) = self.changes[at];
        if !is_begun {
            self.changes[at].3 = self.ask(id) != Verdict::Wait;
            return Ok(());
        }
        if self.kernels.iter().any(|pages| matches!(pages[page], Page::Present { .. })) {
            return Err(format!("client {client} changes page {page}, which kernels keep: {self:?}"));
        }
        self.truth[page] += 1;
        self.stored[page] = self.truth[page];
        self.leases.end(id);
        self.changes.swap_remove(at);
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        self.fills.is_empty()
            && self.passes.is_empty()
            && self.breaks.is_empty()
            && self.released.is_empty()
            && self.changes.is_empty()
            && self.looks.is_empty()
    }

    /// All that has been begun comes to its end.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..1000 {
            if self.is_quiet() {
                return Ok(());
            }
            for at in (0..self.fills.len()).rev() {
                self.fill(at);
            }
            for kind in [6, 9, 11, 13] {
                (0..4).try_for_each(|pick| self.step(kind, 0, 0, pick))?;
            }
            for at in (0..self.passes.len()).rev() {
                self.give_back(at)?;
            }
        }
        Err(format!("it does not come to an end: {self:?}"))
    }
}

type Steps = Vec<(u8, usize, usize, usize)>;

fn steps() -> impl Strategy<Value = Steps> {
    prop::collection::vec((0..14_u8, 0..CLIENTS, 0..PAGES, 0..8_usize), 1..400)
}

fn run(steps: Steps, world: &mut World) -> Result<(), String> {
    steps.into_iter().try_for_each(|(kind, client, page, pick)| world.step(kind, client, page, pick))?;
    world.settle()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn nobody_sees_the_past_and_nobody_waits_for_ever(steps in steps()) {
        run(steps, &mut World::new()).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn the_model_finds_what_is_wrong() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let plants: [fn(&mut World); 4] = [
        |world| world.fills_whatever = true,
        |world| world.forgets_dirty = true,
        |world| world.needs_no_second_pass = true,
        |world| world.keeps_own = true,
    ];
    for (number, plant) in plants.into_iter().enumerate() {
        let mut runner = TestRunner::deterministic();
        let found = (0..5000).any(|_| {
            let mut world = World::new();
            plant(&mut world);
            run(steps().new_tree(&mut runner).unwrap().current(), &mut world).is_err()
        });
        assert!(found, "defect {number}");
    }
}
