//! Clients with kernels that keep pages, and a server, as a model: messages overtake each other, kernels wait for pages
//! that are being filled, and nobody may see the past.

use proptest::prelude::*;

use super::super::Nanos;
use super::table::{LATE, Seen};
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
    /// The kernel's request is on its way.
    Comes,
    Begins(u64),
    /// The server is asked for a lease.
    Asks(u64, Seen, UseId),
    /// Its answer is on its way.
    Granted(u64, Seen, u64),
    /// It is asked for the bytes.
    Looks(u64, Seen, UseId),
    /// They are on their way.
    Read(u64, Seen, u32),
}

/// Pages are being given back: whose, under which lease, and what is left of a pass that has begun.
#[derive(Debug)]
struct Pass {
    client: usize,
    broken: Break,
    left: Option<Vec<usize>>,
    is_first: bool,
    since: Nanos,
}

/// write(2) to a page.
#[derive(Clone, Copy, Debug)]
struct Writing {
    client: usize,
    page: usize,
    number: u64,
    id: UseId,
    is_begun: bool,
}

/// A page is stored that nobody has asked for: whose, which, by what number, and with what.
#[derive(Clone, Copy, Debug)]
struct Store {
    client: usize,
    page: usize,
    number: Option<u64>,
    version: Option<u32>,
}

#[derive(Debug, Default)]
struct World {
    now: Nanos,
    leases: Leases,
    /// What each page is, for whoever has been told of all changes, and at the server.
    truth: [u32; PAGES],
    stored: [u32; PAGES],
    tables: [Table; CLIENTS],
    kernels: [[Page; PAGES]; CLIENTS],
    fills: Vec<(usize, usize, Step)>,
    breaks: Vec<Break>,
    passes: Vec<Pass>,
    released: Vec<Break>,
    changes: Vec<Writing>,
    looks: Vec<(usize, usize, UseId)>,
    stores: Vec<Store>,
    /// Planted defects.
    fills_whatever: bool,
    forgets_dirty: bool,
    needs_no_second_pass: bool,
    keeps_own: bool,
    stores_whatever: bool,
    passes_beside_stores: bool,
    knows_no_pages: bool,
    fills_at_once: bool,
}

/// Of a page.
fn bytes(page: usize) -> Range<u64> {
    let from = page as u64 * 4096;
    from..from + 4096
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
        let (owner, alone) = (client as u64 + 1, Self::writes(client));
        let now = if self.fills_at_once { self.now + 1000 * MILLISECOND } else { self.now };
        let next = match step {
            Step::Comes => Step::Begins(self.tables[client].comes(NODE, bytes(page))),
            Step::Begins(number) => {
                if self.tables[client].must_wait(now, NODE) {
                    return;
                }
                let seen = self.tables[client].see(NODE, number, alone);
                let what = if alone { Use::MapAlone } else { Use::Map };
                match seen.lease {
                    None if !seen.is_returning => Step::Asks(number, seen, self.leases.begin(owner, F, what)),
                    _ => Step::Looks(number, seen, self.leases.begin(owner, F, Use::Look)),
                }
            }
            Step::Asks(number, seen, id) => match self.ask(id) {
                Verdict::Wait => return,
                Verdict::Go(serial) => {
                    self.leases.end(id);
                    Step::Granted(number, seen, serial)
                }
                Verdict::Returning => {
                    self.leases.end(id);
                    Step::Granted(number, seen, 0)
                }
            },
            Step::Granted(number, mut seen, serial) => {
                if serial != 0 {
                    seen = self.tables[client].granted(NODE, seen, serial, alone);
                }
                Step::Looks(number, seen, self.leases.begin(owner, F, Use::Look))
            }
            Step::Looks(number, seen, id) => match self.ask(id) {
                Verdict::Wait => return,
                _ => {
                    self.leases.end(id);
                    Step::Read(number, seen, self.stored[page])
                }
            },
            Step::Read(number, seen, version) => {
                if self.tables[client].may_fill(now, NODE, seen, alone, true) || self.fills_whatever {
                    self.kernels[client][page] = Page::Present { version, is_dirty: false };
                    self.tables[client].came(NODE, number);
                    self.fills.swap_remove(at);
                    return;
                }
                Step::Begins(number)
            }
        };
        self.fills[at].2 = next;
    }

    /// A page is stored in some steps; the caller of the first does not wait for it.
    fn store(&mut self, at: usize) {
        let Store { client, page, number, version } = self.stores[at];
        match (number, version) {
            (None, _) => {
                let number = self.tables[client].stores(NODE, bytes(page), true);
                self.stores[at].number = number.or(self.stores_whatever.then_some(0));
                if self.stores[at].number.is_none() {
                    self.stores.swap_remove(at);
                }
            }
            // While a program here writes to a block it is not kept.
            (Some(number), None) => {
                if self.changes.iter().any(|writing| (writing.client, writing.page) == (client, page)) {
                    self.tables[client].came(NODE, number);
                    self.stores.swap_remove(at);
                } else {
                    self.stores[at].version = Some(self.stored[page]);
                }
            }
            (Some(number), Some(version)) => {
                if self.kernels[client][page] != Page::Locked {
                    self.kernels[client][page] = Page::Present { version, is_dirty: false };
                    self.tables[client].came(NODE, number);
                    self.stores.swap_remove(at);
                }
            }
        }
    }

    fn give_back(&mut self, at: usize) -> Result<(), String> {
        let client = self.passes[at].client;
        if self.passes.iter().take(at).any(|before| before.client == client) {
            return Ok(()); // one after the other
        }
        let Some(left) = &mut self.passes[at].left else {
            let is_first = self.passes[at].is_first;
            let mut pass = self.tables[client].begin_pass(self.now, NODE, is_first);
            if self.passes_beside_stores {
                pass = pass.or(Some(RangeSet::up_to(u64::MAX)));
            }
            if let Some(pass) = pass {
                let pages = (0..PAGES).filter(|page| pass.overlaps(bytes(*page).start, bytes(*page).end));
                self.passes[at].left = Some(pages.collect());
            }
            return Ok(());
        };
        if let Some(&page) = left.first() {
            if let Page::Locked = self.kernels[client][page] {
                return Ok(()); // the kernel waits for it
            }
            left.remove(0);
            if !self.forgets_dirty {
                self.write_back(client, page)?;
            }
            self.kernels[client][page] = Page::Absent;
        } else if self.tables[client].end_pass(NODE) && !self.needs_no_second_pass {
            (self.passes[at].left, self.passes[at].is_first) = (None, false);
        } else {
            let Pass { broken, .. } = self.passes.remove(at);
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
                    self.fills.push((client, page, Step::Comes));
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
                let _ = self.tables[client].broken(self.now, Grant { node: NODE, serial: broken.serial });
                self.passes.push(Pass { client, broken, left: None, is_first: true, since: self.now });
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
                let number = self.tables[client].writes(NODE, bytes(page));
                let keeps = self.tables[client].keeps(NODE, &bytes(page)) && !self.knows_no_pages;
                let what = if self.keeps_own || !keeps { Use::Change } else { Use::Write };
                let id = self.leases.begin(client as u64 + 1, F, what);
                if keeps {
                    self.changes.push(Writing { client, page, number, id, is_begun: false });
                } else {
                    // It has the file to itself, and keeps the write to itself.
                    if self.ask(id) != Verdict::Wait {
                        self.truth[page] += 1;
                        self.stored[page] = self.truth[page];
                    }
                    self.leases.end(id);
                    self.tables[client].written(NODE, number);
                }
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
            14 if self.stores.len() < 2 && !Self::writes(client) => {
                self.stores.push(Store { client, page, number: None, version: None });
            }
            15 if !self.stores.is_empty() => self.store(pick % self.stores.len()),
            16 => self.now += MILLISECOND,
            _ => {}
        }
        Ok(())
    }

    fn change(&mut self, at: usize) -> Result<(), String> {
        let Writing { client, page, number, id, is_begun } = self.changes[at];
        if !is_begun {
            self.changes[at].is_begun = self.ask(id) != Verdict::Wait;
            return Ok(());
        }
        if self.kernels.iter().any(|pages| matches!(pages[page], Page::Present { .. })) {
            return Err(format!("client {client} changes page {page}, which kernels keep: {self:?}"));
        }
        self.truth[page] += 1;
        self.stored[page] = self.truth[page];
        self.leases.end(id);
        self.tables[client].written(NODE, number);
        self.changes.swap_remove(at);
        Ok(())
    }

    /// A millisecond of everybody's.
    fn go_on(&mut self, restless: bool) -> Result<(), String> {
        self.now += MILLISECOND;
        for at in (0..self.fills.len()).rev() {
            self.fill(at);
        }
        for at in (0..self.stores.len()).rev() {
            self.store(at);
        }
        for kind in [6, 9, 11, 13] {
            (0..4).try_for_each(|pick| self.step(kind, 0, 0, pick))?;
        }
        // A kernel that need not wait drops many pages in a millisecond, and asks for as many.
        for _ in 0..2 * (PAGES + 2) {
            for at in (0..self.passes.len()).rev() {
                self.give_back(at)?;
            }
            if restless {
                (0..PAGES).try_for_each(|page| self.step(0, 0, page, 0))?;
                for at in (0..self.fills.len()).rev() {
                    self.fill(at);
                }
            }
        }
        Ok(())
    }

    /// Nobody is held up by a program that reads on and on.
    fn stay_free(&mut self) -> Result<(), String> {
        self.passes.iter_mut().for_each(|pass| pass.since = self.now);
        for _ in 0..100 {
            self.go_on(true)?;
            if self.passes.iter().any(|pass| self.now > pass.since + 20 * MILLISECOND) {
                return Err(format!("pages are not given back: {self:?}"));
            }
        }
        if self.changes.is_empty() { Ok(()) } else { Err(format!("nothing can be changed: {self:?}")) }
    }

    /// All that has been begun comes to its end.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..1000 {
            let is_free = self.passes.is_empty() && self.breaks.is_empty() && self.released.is_empty();
            let is_quiet = self.fills.is_empty() && self.looks.is_empty() && self.stores.is_empty();
            if is_free && is_quiet && self.changes.is_empty() {
                return Ok(());
            }
            self.go_on(false)?;
        }
        Err(format!("it does not come to an end: {self:?}"))
    }
}

const MILLISECOND: Nanos = 1_000_000;

const _: () = assert!(LATE.as_nanos() as Nanos > MILLISECOND);

type Steps = Vec<(u8, usize, usize, usize)>;

fn steps() -> impl Strategy<Value = Steps> {
    prop::collection::vec((0..17_u8, 0..CLIENTS, 0..PAGES, 0..8_usize), 1..400)
}

fn run(steps: Steps, world: &mut World) -> Result<(), String> {
    steps.into_iter().try_for_each(|(kind, client, page, pick)| world.step(kind, client, page, pick))?;
    world.stay_free()?;
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
    let plants: [fn(&mut World); 8] = [
        |world| world.fills_whatever = true,
        |world| world.forgets_dirty = true,
        |world| world.needs_no_second_pass = true,
        |world| world.keeps_own = true,
        |world| world.stores_whatever = true,
        |world| world.passes_beside_stores = true,
        |world| world.knows_no_pages = true,
        |world| world.fills_at_once = true,
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

/// A table with a lease on shared pages of the node.
fn leased() -> Table {
    let mut table = Table::default();
    let seen = table.see(NODE, 0, false);
    assert_eq!(table.granted(NODE, seen, 1, false).lease, Some(1));
    table
}

#[test]
fn what_was_stored_beside_a_page_that_was_asked_for_in_vain_is_given() {
    let mut table = leased();
    let store = table.stores(NODE, 0..8192, true).unwrap();
    let page = table.comes(NODE, 4096..8192);
    table.came(NODE, page); // it could not be read: the store fills it
    table.came(NODE, store);
    assert!(table.given(NODE).unwrap().contains(0, 8192));
}

#[test]
fn nothing_is_stored_where_somebody_waits_for_a_page() {
    let mut table = leased();
    let page = table.comes(NODE, 4096..12288);
    assert_eq!(table.stores(NODE, 0..8192, true), None);
    assert!(table.stores(NODE, 12288..16384, true).is_some());
    table.came(NODE, page);
    assert!(table.stores(NODE, 0..8192, true).is_some());
}

#[test]
fn nobody_knows_what_was_given_in_too_many_ranges() {
    let mut table = leased();
    for page in 0..=crate::limits::PAGES_GIVEN_MAX as u64 {
        assert!(table.given(NODE).is_some());
        let bytes = page * 8192..page * 8192 + 4096;
        let store = table.stores(NODE, bytes, true).unwrap();
        table.came(NODE, store);
    }
    assert!(table.given(NODE).is_none() && table.keeps(NODE, &(4096..8192)));
}
