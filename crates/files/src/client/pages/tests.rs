//! Clients with kernels that keep pages, and a server, as a model: messages overtake each other, kernels wait for pages
//! that are being filled, and nobody may see the past.

use proptest::prelude::*;

use super::super::Nanos;
use super::table::{LATE, Lease, Seen, Waits};
use super::*;
use crate::lease::{Break, FileId};
use crate::pages::{Pages as Leases, Use, UseId, Verdict};

const F: FileId = FileId { device: 1, inode: 1, born: 0 };
const NODE: u64 = 7;
/// Of the file.
const PAGES: usize = 2;
/// The first only reads what it has mapped. It has made the file, and writes to it by way of its pages.
const CLIENTS: usize = 3;
const MAKER: usize = 0;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Page {
    #[default]
    Absent,
    /// Being filled.
    Locked,
    /// By a write that covers a part of it.
    Held,
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
    /// The kernel has them, and that is about to be noted.
    Filled(u64),
}

/// Pages are being given back: whose, under which lease, and what is left of a pass that has begun.
#[derive(Debug)]
struct Pass {
    client: usize,
    why: Why,
    left: Option<Vec<usize>>,
    is_first: bool,
    since: Nanos,
}

#[derive(Clone, Copy, Debug)]
enum Why {
    /// A lease on pages is broken.
    Broken(Break),
    /// The maker's lease on the file is.
    NotAlone,
    /// Nobody else has asked for it: a program here opens the file for writing.
    Opened,
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

/// write(2) by way of the maker's pages: which, and what is in it.
#[derive(Clone, Copy, Debug)]
struct Making {
    page: usize,
    /// All that it covers.
    is_whole: bool,
    version: u32,
    step: Made,
}

#[derive(Clone, Copy, Debug)]
enum Made {
    /// It is in the kernel's page, and on its way.
    Comes,
    /// It cannot stay there.
    Noted,
    /// The page is to be dropped.
    Drops(u64),
    /// It has been, or is locked, or was not there.
    Dropped(u64, bool),
    /// The server is asked: it cannot be kept here.
    Asks(u64, UseId),
}

impl Made {
    /// Of a page that it covers in part what is known is enough.
    fn drops(table: &mut Table, page: usize, is_whole: bool) -> Self {
        match table.drops(NODE, bytes(page)) {
            (number, keeps) if keeps || is_whole => Self::Drops(number),
            (number, _) => Self::Dropped(number, true),
        }
    }
}

/// How far a lease on the file has come that is the maker's alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Alone {
    #[default]
    Held,
    /// The word that it is broken is on its way.
    Broken,
    /// It has come: nothing more is kept, and pages are being given back.
    Returning,
    Released,
}

#[derive(Debug, Default)]
struct World {
    now: Nanos,
    leases: Leases,
    alone: Alone,
    making: Option<Making>,
    /// It has closed the file.
    is_made: bool,
    /// Somebody else at the maker's has it open for writing.
    has_company: bool,
    last_version: u32,
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
    keeps_made: bool,
    leaves_made: bool,
    minds_no_company: bool,
    minds_no_fills: bool,
    thinks_server_waits: bool,
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
        world.tables[MAKER].opened_for_writing(NODE, true);
        world
    }

    fn new_version(&mut self) -> u32 {
        self.last_version += 1;
        self.last_version
    }

    fn writes(client: usize) -> bool {
        client > 0
    }

    fn ask(&mut self, client: usize, id: UseId) -> Verdict {
        if client != MAKER && self.alone != Alone::Released {
            if self.alone == Alone::Held {
                self.alone = Alone::Broken;
            }
            return Verdict::Wait;
        }
        let (verdict, breaks) = self.leases.may_go(0, id);
        self.breaks.extend(breaks);
        verdict
    }

    /// A kernel writes a page that was changed in memory.
    fn write_back(&mut self, client: usize, page: usize) -> Result<(), String> {
        if let Page::Present { version, is_dirty: true } = self.kernels[client][page] {
            let id = self.leases.begin(client as u64 + 1, F, Use::Change);
            if self.ask(client, id) != Verdict::Go(0) {
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
                    None if !seen.is_owed => Step::Asks(number, seen, self.leases.begin(owner, F, what)),
                    _ => Step::Looks(number, seen, self.leases.begin(owner, F, Use::Look)),
                }
            }
            Step::Asks(number, seen, id) => match self.ask(client, id) {
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
            Step::Looks(number, seen, id) => match self.ask(client, id) {
                Verdict::Wait => return,
                _ => {
                    self.leases.end(id);
                    Step::Read(number, seen, self.stored[page])
                }
            },
            Step::Read(number, seen, version) => {
                if self.tables[client].may_fill(now, NODE, seen, alone, true) || self.fills_whatever {
                    self.kernels[client][page] = Page::Present { version, is_dirty: false };
                    Step::Filled(number)
                } else {
                    Step::Begins(number)
                }
            }
            Step::Filled(number) => {
                self.tables[client].came(NODE, number);
                self.fills.swap_remove(at);
                return;
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
            if let Page::Locked | Page::Held = self.kernels[client][page] {
                return Ok(()); // the kernel waits for it
            }
            left.remove(0);
            if !self.forgets_dirty {
                self.write_back(client, page)?;
            }
            self.kernels[client][page] = Page::Absent;
            return Ok(());
        }
        let waits = match self.passes[at].why {
            Why::Broken(_) => Waits::Server(Lease::Pages, 0),
            Why::NotAlone => Waits::Server(Lease::File, 0),
            Why::Opened if self.thinks_server_waits => Waits::Server(Lease::Pages, 0),
            Why::Opened => Waits::Nobody,
        };
        if self.tables[client].end_pass(NODE, waits) && !self.needs_no_second_pass {
            (self.passes[at].left, self.passes[at].is_first) = (None, false);
        } else {
            match self.passes.remove(at).why {
                Why::Broken(broken) => self.released.push(broken),
                Why::NotAlone => self.alone = Alone::Released,
                Why::Opened => {}
            }
        }
        Ok(())
    }

    /// `overtakes`: it comes before the last that has not begun.
    fn returns(&mut self, client: usize, why: Why, overtakes: bool) {
        let pass = Pass { client, why, left: None, is_first: true, since: self.now };
        let waits = |pass: &Pass| pass.client == client && pass.is_first && pass.left.is_none();
        let at = self.passes.iter().rposition(waits).filter(|_| overtakes);
        self.passes.insert(at.unwrap_or(self.passes.len()), pass);
    }

    fn step(&mut self, kind: u8, client: usize, page: usize, pick: usize) -> Result<(), String> {
        match kind {
            // A program loads from memory.
            0..=2 => match self.kernels[client][page] {
                Page::Absent => {
                    self.kernels[client][page] = Page::Locked;
                    self.fills.push((client, page, Step::Comes));
                }
                Page::Locked | Page::Held => {}
                // It has not been written yet, and nobody has been told.
                Page::Present { version, .. } if self.is_making(client, page, version) => {}
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
                    let version = self.new_version();
                    self.truth[page] = version;
                    self.kernels[client][page] = Page::Present { version, is_dirty: true };
                }
            }
            4 | 5 if !self.fills.is_empty() => self.fill(pick % self.fills.len()),
            6 if !self.breaks.is_empty() => {
                let broken = self.breaks.swap_remove(pick % self.breaks.len());
                let client = broken.client as usize - 1;
                let _ = self.tables[client].broken(self.now, Grant { node: NODE, serial: broken.serial });
                self.returns(client, Why::Broken(broken), false);
            }
            7 | 8 if !self.passes.is_empty() => self.give_back(pick % self.passes.len())?,
            9 if !self.released.is_empty() => {
                let Break { client, file, serial } = self.released.swap_remove(pick % self.released.len());
                self.leases.released(client, file, serial);
            }
            // write(2): the kernel writes what it has first, and drops it; it may be there again before the server has the write.
            10 if self.changes.len() < 2 && (client != MAKER || self.has_company) => {
                self.write_back(client, page)?;
                if !matches!(self.kernels[client][page], Page::Locked | Page::Held) {
                    self.kernels[client][page] = Page::Absent;
                }
                let number = self.tables[client].writes(NODE, bytes(page), false);
                let keeps = self.tables[client].keeps(NODE, &bytes(page)) && !self.knows_no_pages;
                let what = if self.keeps_own || !keeps { Use::Change } else { Use::Write };
                let id = self.leases.begin(client as u64 + 1, F, what);
                if keeps {
                    self.changes.push(Writing { client, page, number, id, is_begun: false });
                } else {
                    // It has the file to itself, and keeps the write to itself.
                    if self.ask(client, id) != Verdict::Wait {
                        self.truth[page] = self.new_version();
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
                if self.ask(client, id) != Verdict::Wait {
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
            // The kernel fills a page with what is written, and sends the write.
            17 | 18
                if self.making.is_none() && !self.is_made && self.kernels[MAKER][page] != Page::Locked =>
            {
                let (version, is_whole) = (self.new_version(), pick < 5);
                let kernel = &mut self.kernels[MAKER][page];
                *kernel = match kernel {
                    Page::Absent if !is_whole => Page::Held,
                    _ => Page::Present { version, is_dirty: false },
                };
                self.making = Some(Making { page, is_whole, version, step: Made::Comes });
            }
            19 | 20 => self.make()?,
            21 => self.end_alone(),
            22 => self.is_alone_again(),
            23 => self.company(),
            24 if pick == 0 => self.end_making(),
            25 if client != MAKER => {
                let table = &mut self.tables[client];
                let returns = if self.thinks_server_waits {
                    table.broken(self.now, Grant { node: NODE, serial: 0 }).is_some()
                } else {
                    table.returns(self.now, NODE)
                };
                if returns {
                    self.returns(client, Why::Opened, pick.is_multiple_of(2));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn is_making(&self, client: usize, page: usize, version: u32) -> bool {
        let is_it = |making: &Making| (making.page, making.version) == (page, version);
        client == MAKER && self.making.as_ref().is_some_and(is_it)
    }

    /// Whether somebody's kernel has this page, but for what is about to be written.
    fn is_kept(&self, page: usize, but: Option<usize>) -> bool {
        self.kernels.iter().enumerate().any(|(client, pages)| match pages[page] {
            Page::Present { version, .. } => Some(client) != but && !self.is_making(client, page, version),
            _ => false,
        })
    }

    /// What is written by way of pages goes on.
    fn make(&mut self) -> Result<(), String> {
        let Some(Making { page, is_whole, version, step }) = self.making else { return Ok(()) };
        let mut written = bytes(page);
        if !is_whole {
            written.end -= 1;
        }
        let (table, kernel) = (&mut self.tables[MAKER], self.kernels[MAKER][page]);
        let is_alone = matches!(self.alone, Alone::Held | Alone::Broken);
        let next = match step {
            Made::Comes => {
                let may_stay = table.has_in_pages(NODE, &written, 4096) || self.minds_no_company;
                if may_stay && is_alone {
                    let number = table.writes(NODE, written.clone(), true);
                    table.written(NODE, number);
                    table.stays_in_pages(NODE, &written, 4096);
                    None
                } else {
                    Some(Made::Noted)
                }
            }
            Made::Noted => Some(Made::drops(table, page, is_whole)),
            Made::Drops(_) if kernel == Page::Locked => return Ok(()),
            Made::Drops(number) => {
                let is_gone = kernel != Page::Held; // else it is not waited for
                if is_gone && !self.leaves_made {
                    self.write_back(MAKER, page)?;
                    self.kernels[MAKER][page] = Page::Absent;
                }
                Some(Made::Dropped(number, is_gone))
            }
            Made::Dropped(number, is_gone) => {
                let dropped = if self.minds_no_fills { vec![] } else { vec![(number, is_gone)] };
                match table.writes_dropped(NODE, &written, &dropped) {
                    None => Some(Made::Noted),
                    Some(number) if is_alone => {
                        table.written(NODE, number);
                        None
                    }
                    Some(number) => {
                        Some(Made::Asks(number, self.leases.begin(MAKER as u64 + 1, F, Use::Change)))
                    }
                }
            }
            Made::Asks(number, id) => {
                if self.ask(MAKER, id) == Verdict::Wait {
                    return Ok(());
                }
                if self.is_kept(page, None) {
                    return Err(format!("the maker changes page {page}, which kernels keep: {self:?}"));
                }
                self.leases.end(id);
                self.tables[MAKER].written(NODE, number);
                None
            }
        };
        if next.is_none() {
            (self.truth[page], self.stored[page]) = (version, version);
            if self.kernels[MAKER][page] == Page::Held {
                self.kernels[MAKER][page] = Page::Absent;
            }
        }
        self.making = next.map(|step| Making { page, is_whole, version, step });
        Ok(())
    }

    /// The maker hears that the file is not its own any more.
    fn end_alone(&mut self) {
        if self.alone != Alone::Broken {
            return;
        }
        self.alone = Alone::Returning;
        if self.tables[MAKER].lease_broken(self.now, NODE).is_some() && !self.keeps_made {
            self.returns(MAKER, Why::NotAlone, false);
        } else {
            self.alone = Alone::Released;
        }
    }

    /// Nobody else uses the file any more.
    fn is_alone_again(&mut self) {
        let is_quiet = self.changes.is_empty() && self.looks.is_empty() && self.passes.is_empty();
        let others_fill = self.fills.iter().any(|(client, ..)| *client != MAKER);
        let is_unused = is_quiet && !others_fill && !self.leases.others_keep(MAKER as u64 + 1, F);
        if self.alone == Alone::Released
            && !self.is_made
            && is_unused
            && self.breaks.is_empty()
            && self.released.is_empty()
        {
            self.alone = Alone::Held;
        }
    }

    /// The maker closes the file, when nothing in its pages needs the lease that it had.
    fn end_making(&mut self) {
        if self.making.is_none() && self.alone == Alone::Released && !self.is_made {
            self.tables[MAKER].closed_for_writing(NODE, true);
            self.is_made = true;
        }
    }

    /// Somebody at the maker's opens the file for writing, or closes it.
    fn company(&mut self) {
        let table = &mut self.tables[MAKER];
        if self.has_company {
            if !self.changes.iter().any(|writing| writing.client == MAKER) {
                table.closed_for_writing(NODE, false);
                self.has_company = false;
            }
            return;
        }
        table.opened_for_writing(NODE, false);
        self.has_company = true;
        // The kernel drops them as it opens it.
        for page in self.kernels[MAKER].iter_mut().filter(|page| matches!(page, Page::Present { .. })) {
            *page = Page::Absent;
        }
    }

    fn change(&mut self, at: usize) -> Result<(), String> {
        let Writing { client, page, number, id, is_begun } = self.changes[at];
        if !is_begun {
            self.changes[at].is_begun = self.ask(client, id) != Verdict::Wait;
            return Ok(());
        }
        if self.is_kept(page, None) {
            return Err(format!("client {client} changes page {page}, which kernels keep: {self:?}"));
        }
        self.truth[page] = self.new_version();
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
        self.make()?;
        self.end_alone();
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
            let is_made = self.making.is_none() && matches!(self.alone, Alone::Held | Alone::Released);
            if is_free && is_quiet && is_made && self.changes.is_empty() {
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
    prop::collection::vec((0..26_u8, 0..CLIENTS, 0..PAGES, 0..8_usize), 1..500)
}

fn run(steps: Steps, world: &mut World) -> Result<(), String> {
    steps.into_iter().try_for_each(|(kind, client, page, pick)| world.step(kind, client, page, pick))?;
    world.stay_free()?;
    world.settle()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(2000), ..ProptestConfig::default() })]
    #[test]
    fn nobody_sees_the_past_and_nobody_waits_for_ever(steps in steps()) {
        run(steps, &mut World::new()).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn the_model_finds_what_is_wrong() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let plants: [fn(&mut World); 13] = [
        |world| world.fills_whatever = true,
        |world| world.forgets_dirty = true,
        |world| world.needs_no_second_pass = true,
        |world| world.keeps_own = true,
        |world| world.stores_whatever = true,
        |world| world.passes_beside_stores = true,
        |world| world.knows_no_pages = true,
        |world| world.fills_at_once = true,
        |world| world.keeps_made = true,
        |world| world.leaves_made = true,
        |world| world.minds_no_company = true,
        |world| world.minds_no_fills = true,
        |world| world.thinks_server_waits = true,
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
