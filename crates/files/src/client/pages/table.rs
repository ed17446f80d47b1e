//! What is known of leases on pages, and of pages on their way to the kernel. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::super::Nanos;
use crate::limits::{BLOCK_BYTES, LONG_BYTES, PAGES_GIVEN_MAX};
use crate::message::Grant;
use crate::ranges::RangeSet;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Of all nodes.
#[derive(Debug, Default)]
pub(super) struct Table {
    nodes: HashMap<u64, Kept>,
    /// Sessions that are over.
    sessions: u64,
    last: u64,
}

#[derive(Debug, Default)]
struct Kept {
    /// Number, and whether pages may be written to in memory.
    lease: Option<(u64, bool)>,
    /// The highest number that was broken.
    broken: u64,
    /// On their way to the kernel.
    coming: BTreeMap<u64, Coming>,
    /// What the kernel may have, and what of this it has got, if it has not dropped it since.
    given: RangeSet,
    whole: RangeSet,
    /// Writes of programs here that are under way, and whether by way of pages.
    writing: BTreeMap<u64, (Range<u64>, bool)>,
    /// Pages that are being dropped before such a write, and whether some have been filled again.
    dropping: BTreeMap<u64, (Range<u64>, bool)>,
    /// Open files here that may be written to, and those of them that are written by way of pages.
    writers: u32,
    makers: u32,
    /// How often pages are being given back just now, and how often they have been.
    returning: u32,
    returned: u64,
    /// For how many of these times the server waits, with a lease on pages and with one on the file.
    owed_of_pages: u32,
    owed_of_file: u32,
    /// See [`Table::turns`].
    turns: Arc<tokio::sync::Mutex<()>>,
    /// When that began, or its last pass.
    pass_since: Nanos,
    /// Filled meanwhile.
    again: RangeSet,
    /// When one was filled last, and whether one ever was.
    filled_at: Nanos,
    has_readers: bool,
    ahead: Ahead,
}

#[derive(Debug)]
struct Coming {
    bytes: Range<u64>,
    /// Nobody has asked for it.
    is_store: bool,
    /// Its bytes are read under a lease, or one has been asked for.
    is_leased: bool,
    /// A write of a program here has begun or ended since its bytes were asked for, or one by way of pages.
    is_old: bool,
    is_past: bool,
    /// It is there.
    is_filled: bool,
}

impl Coming {
    fn new(bytes: Range<u64>, is_store: bool) -> Self {
        Self { bytes, is_store, is_leased: is_store, is_old: false, is_past: false, is_filled: false }
    }
}

/// Who waits until pages are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// The server, with a lease, as long as this session lasts: nobody changes them before.
    Server(Lease, u64),
    /// Only who asked for it here, if anybody. While there is a lease, that keeps others from changing them, and no longer.
    Nobody,
}

/// On what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    Pages,
    File,
}

/// What was known before a page's bytes were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    number: u64,
    pub(super) lease: Option<u64>,
    /// Pages are being given back that the server waits for: no lease is to be had, and none is needed.
    pub(super) is_owed: bool,
    returned: u64,
    sessions: u64,
}

/// Blocks that are stored before anybody asks for their pages.
#[derive(Debug, Default)]
struct Ahead {
    places: BTreeSet<u64>,
    is_running: bool,
    /// Blocks that were written are chosen from now on.
    is_long: bool,
}

/// Notes a range, or all bytes where there are too many to be told apart.
fn note(ranges: &mut RangeSet, bytes: &Range<u64>) {
    if ranges.count() >= PAGES_GIVEN_MAX && !ranges.contains(bytes.start, bytes.end) {
        ranges.insert(0, u64::MAX);
    }
    ranges.insert(bytes.start, bytes.end);
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Table {
    fn kept(&mut self, node: u64) -> &mut Kept {
        self.nodes.entry(node).or_default()
    }

    /// A page is asked for: by what number it is told that it has [`come`](Self::came).
    pub(super) fn comes(&mut self, node: u64, bytes: Range<u64>) -> u64 {
        self.last += 1;
        let number = self.last;
        let kept = self.kept(node);
        // The kernel does not ask for what it has; and it does not drop what it waits for before it is there.
        kept.drop(&bytes);
        kept.again.remove(bytes.start, bytes.end);
        kept.coming.insert(number, Coming::new(bytes, false));
        number
    }

    /// It is there, or will not be.
    pub(super) fn came(&mut self, node: u64, number: u64) {
        if let Some(kept) = self.nodes.get_mut(&node)
            && let Some(coming) = kept.coming.remove(&number)
            && coming.is_store
        {
            // Of what somebody has asked for meanwhile, and not got, the kernel may have what was stored.
            kept.give(&coming.bytes);
        }
    }

    /// Whether bytes for pages are not to be read yet: others are being given back, and these would have to be at once, so that
    /// who reads on and on would hold up whoever waits for that. After a while they are: the kernel may wait for them.
    pub(super) fn must_wait(&self, now: Nanos, node: u64) -> bool {
        self.nodes.get(&node).is_some_and(|kept| kept.returning > 0 && !kept.is_late(now))
    }

    /// Bytes are read from now on. `alone`: pages may be written to in memory.
    pub(super) fn see(&mut self, node: u64, number: u64, alone: bool) -> Seen {
        let sessions = self.sessions;
        let kept = self.kept(node);
        let lease = kept.lease.filter(|(_, is_alone)| *is_alone || !alone).map(|(serial, _)| serial);
        if let Some(coming) = kept.coming.get_mut(&number) {
            (coming.is_leased, coming.is_old, coming.is_past) = (kept.returning == 0, false, false);
        }
        Seen { number, lease, is_owed: kept.is_owed(), returned: kept.returned, sessions }
    }

    /// Whether the kernel may have pages with some of these bytes, or has them soon.
    pub(super) fn keeps(&self, node: u64, bytes: &Range<u64>) -> bool {
        self.nodes.get(&node).is_some_and(|kept| {
            kept.returning > 0
                || kept.given.overlaps(bytes.start, bytes.end)
                || kept.coming.values().any(|coming| overlap(&coming.bytes, bytes))
        })
    }

    /// What the kernel has got of a file under a lease that is there still, and may have dropped since; `None`: nobody knows.
    pub(super) fn given(&self, node: u64) -> Option<&RangeSet> {
        let kept = self.nodes.get(&node).filter(|kept| kept.returning == 0 && kept.lease.is_some());
        // Not so many ranges that they are not told apart.
        kept.map(|kept| &kept.whole).filter(|whole| !whole.contains(u64::MAX - 1, u64::MAX))
    }

    /// A program here writes: by what number it is told that it has [`written`](Self::written).
    pub(super) fn writes(&mut self, node: u64, bytes: Range<u64>, by_pages: bool) -> u64 {
        self.last += 1;
        let number = self.last;
        let kept = self.kept(node);
        kept.age(&bytes, by_pages);
        kept.writing.insert(number, (bytes, by_pages));
        number
    }

    /// It has.
    pub(super) fn written(&mut self, node: u64, number: u64) {
        if let Some(kept) = self.nodes.get_mut(&node)
            && let Some((bytes, by_pages)) = kept.writing.remove(&number)
        {
            kept.age(&bytes, by_pages);
        }
    }

    /// A program here may write to a file from now on, by way of pages or not.
    pub(super) fn opened_for_writing(&mut self, node: u64, by_pages: bool) {
        let kept = self.kept(node);
        (kept.writers, kept.makers) = (kept.writers + 1, kept.makers + u32::from(by_pages));
    }

    /// It has closed it.
    pub(super) fn closed_for_writing(&mut self, node: u64, by_pages: bool) {
        if let Some(kept) = self.nodes.get_mut(&node) {
            kept.writers = kept.writers.saturating_sub(1);
            kept.makers = kept.makers.saturating_sub(u32::from(by_pages));
        }
    }

    /// A program writes these bytes by way of pages. True: they may stay there as long as the file is this client's alone. Beside others who write
    /// here they may not: these would write to them in memory, or past them. Nor beside readers of pages: those may have asked for
    /// one after it was filled, and dropped, and before this write came.
    pub(super) fn has_in_pages(&mut self, node: u64, bytes: &Range<u64>, page: u64) -> bool {
        let kept = self.kept(node);
        // Those at its ends may be locked until it is done, and have nothing that may be read.
        let whole = bytes.start.next_multiple_of(page)..bytes.end / page * page;
        if !whole.is_empty() {
            note(&mut kept.given, &whole);
        }
        if whole == *bytes {
            note(&mut kept.whole, bytes);
        }
        // What it has asked for it does not have (any more).
        let asked: Vec<Range<u64>> = kept
            .coming
            .values()
            .filter(|coming| !coming.is_filled)
            .map(|coming| coming.bytes.clone())
            .collect();
        asked.iter().for_each(|asked| kept.drop(asked));
        asked.is_empty() && kept.returning == 0 && kept.writers <= 1 && !kept.has_readers
    }

    /// It has, and they do.
    pub(super) fn stays_in_pages(&mut self, node: u64, bytes: &Range<u64>, page: u64) {
        let covered = bytes.start / page * page..bytes.end.next_multiple_of(page);
        if covered != *bytes {
            // So that writes that follow each other leave one range.
            note(&mut self.kept(node).given, &covered);
        }
    }

    /// These pages are about to be dropped, as they are written to, see [`writes_dropped`](Self::writes_dropped). True: the kernel may have some.
    pub(super) fn drops(&mut self, node: u64, pages: Range<u64>) -> (u64, bool) {
        let keeps = self.keeps(node, &pages);
        self.last += 1;
        let number = self.last;
        self.kept(node).dropping.insert(number, (pages, false));
        (number, keeps)
    }

    /// As [`writes`](Self::writes), by way of pages that the kernel was about to [drop](Self::drops), and whether it has: none of them is filled
    /// until it is over. `None`: it has been given some again before.
    pub(super) fn writes_dropped(
        &mut self,
        node: u64,
        bytes: &Range<u64>,
        pages: &[(u64, bool)],
    ) -> Option<u64> {
        let kept = self.kept(node);
        let dropped: Vec<_> = pages
            .iter()
            .filter_map(|(number, is_gone)| Some((kept.dropping.remove(number)?, *is_gone)))
            .collect();
        if dropped.iter().any(|((_, is_filled), _)| *is_filled) {
            return None;
        }
        for ((pages, _), _) in dropped.iter().filter(|(_, is_gone)| *is_gone) {
            kept.drop(pages);
        }
        Some(self.writes(node, bytes.clone(), true))
    }

    /// Whether a program here makes a file.
    pub(super) fn has_maker(&self, node: u64) -> bool {
        self.nodes.get(&node).is_some_and(|kept| kept.makers > 0)
    }

    /// Up to where the kernel may have pages of a file; 0: of none, or of too many places.
    pub(super) fn given_up_to(&self, node: u64) -> u64 {
        let last = self.nodes.get(&node).and_then(|kept| kept.given.iter().last());
        last.filter(|(_, end)| *end < u64::MAX).map_or(0, |(_, end)| end)
    }

    /// A lease on the file itself is broken: if pages are to be given back that no other covers, as if [`broken`](Self::broken), who waits.
    pub(super) fn lease_broken(&mut self, now: Nanos, node: u64) -> Option<Waits> {
        let waits = Waits::Server(Lease::File, self.sessions);
        let uncovered = |kept: &&mut Kept| kept.lease.is_none() && !kept.given.is_empty();
        let kept = self.nodes.get_mut(&node).filter(uncovered)?;
        // They wait for a lease on pages, which comes after what this one is broken for.
        kept.wait_for_stores_alone();
        kept.returns(now, waits);
        Some(waits)
    }

    /// The server has granted a lease to who has asked after seeing that: what is to be seen now. Nothing has been read before.
    pub(super) fn granted(&mut self, node: u64, seen: Seen, serial: u64, alone: bool) -> Seen {
        let sessions = self.sessions;
        let Some(kept) = self.nodes.get_mut(&node) else { return seen };
        if seen.sessions == sessions
            && serial > kept.broken
            && kept.lease.is_none_or(|(known, is_alone)| known < serial || (known == serial && !is_alone))
        {
            kept.lease = Some((serial, alone));
        }
        if let Some(coming) = kept.coming.get_mut(&seen.number) {
            (coming.is_old, coming.is_past) = (false, false);
        }
        let lease = kept.lease.filter(|(known, _)| *known == serial).map(|(known, _)| known);
        // The lease may be taken back already: until it has been given back nobody changes what is read from now on.
        Seen { lease, is_owed: kept.is_owed(), returned: kept.returned, sessions, ..seen }
    }

    /// Whether bytes that were read after seeing that may fill a page now. `valid`: leases may be used.
    pub(super) fn may_fill(&mut self, now: Nanos, node: u64, seen: Seen, alone: bool, valid: bool) -> bool {
        let sessions = self.sessions;
        let kept = self.kept(node);
        let lease = kept.lease.filter(|(_, is_alone)| *is_alone || !alone).map(|(serial, _)| serial);
        let is_late = kept.is_late(now);
        let Some(coming) = kept.coming.get_mut(&seen.number) else { return false };
        let (bytes, is_old, is_past) = (coming.bytes.clone(), coming.is_old, coming.is_past);
        // Once: if they are not what they should be nobody waits for them any more.
        let is_awaited = std::mem::take(&mut coming.is_leased);
        let mut overlapping = kept.writing.values().filter(|(writing, _)| overlap(writing, &bytes));
        let is_written = overlapping.clone().next().is_some();
        let is_made = is_past || overlapping.any(|(_, by_pages)| *by_pages);
        let is_same = (seen.returned, seen.sessions) == (kept.returned, sessions);
        let has_lease = valid && lease.is_some() && lease == seen.lease;
        let is_leased = is_same && kept.returning == 0 && has_lease && !is_old && !is_written;
        // Else nobody has changed them since they were read, and nobody does before this page is given back, too.
        let was_kept = seen.lease.is_some() || seen.is_owed;
        // Writes of programs here do not wait for the end of that, unless there is a lease on pages; those by way of pages never do.
        let waits_for_pages = kept.owed_of_pages > 0 || has_lease;
        let is_newest = if waits_for_pages { !is_made } else { !is_old && !is_written };
        let is_returning = is_same
            && was_kept
            && (waits_for_pages || kept.owed_of_file > 0)
            && is_newest
            && kept.returning > 0
            && (is_awaited || is_late);
        if is_returning {
            kept.again.insert(bytes.start, bytes.end);
        }
        let may = is_leased || is_returning;
        coming.is_filled = may;
        if may {
            (kept.filled_at, kept.has_readers) = (now, true);
            for (dropping, is_filled) in kept.dropping.values_mut() {
                *is_filled |= overlap(dropping, &bytes);
            }
            kept.give(&bytes);
        }
        may
    }

    /// How long whoever has just got a page should be left with it, and who waits; then [`begin_pass`](Self::begin_pass) is to be asked.
    /// `None`: nobody has pages of that.
    pub(super) fn broken(&mut self, now: Nanos, Grant { node, serial }: Grant) -> Option<(Duration, Waits)> {
        let waits = Waits::Server(Lease::Pages, self.sessions);
        let kept = self.nodes.get_mut(&node)?;
        kept.broken = kept.broken.max(serial);
        kept.lease = kept.lease.filter(|(known, _)| *known > serial);
        Some((kept.returns(now, waits), waits))
    }

    /// What the kernel has of a file is to be given back though nobody else asks for that; false: it has nothing. Leases stay.
    pub(super) fn returns(&mut self, now: Nanos, node: u64) -> bool {
        let kept = self.nodes.get_mut(&node).filter(|kept| !kept.given.is_empty());
        kept.map(|kept| kept.returns(now, Waits::Nobody)).is_some()
    }

    /// Whoever gives back holds it: each time pages are given back of a file that comes after the one before.
    pub(super) fn turns(&mut self, node: u64) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(&self.kept(node).turns)
    }

    /// A pass begins, of these bytes: in the first all that the kernel may have, then what was filled meanwhile. `None`: not yet,
    /// some are on their way under the lease. (Whoever has asked for one before gets its page: else clients could take leases from
    /// each other without anybody getting a page.)
    pub(super) fn begin_pass(&mut self, now: Nanos, node: u64, is_first: bool) -> Option<RangeSet> {
        let kept = self.nodes.get_mut(&node)?;
        if kept.coming.values().any(|coming| coming.is_leased) {
            return None;
        }
        kept.pass_since = now;
        let again = std::mem::take(&mut kept.again);
        Some(if is_first { kept.given.clone() } else { again })
    }

    /// A pass is over; true: another is needed.
    pub(super) fn end_pass(&mut self, node: u64, waits: Waits) -> bool {
        let sessions = self.sessions;
        let Some(kept) = self.nodes.get_mut(&node) else { return false };
        if !kept.again.is_empty() {
            return true;
        }
        kept.returning = kept.returning.saturating_sub(1);
        if let Waits::Server(lease, session) = waits
            && session == sessions
        {
            let owed = kept.owed(lease);
            *owed = owed.saturating_sub(1);
        }
        kept.returned += 1;
        if kept.returning == 0 {
            (kept.given, kept.whole) = (RangeSet::default(), RangeSet::default());
        }
        false
    }

    /// Whether something is being stored.
    pub(super) fn is_storing(&self, node: u64) -> bool {
        let is_store = |kept: &Kept| kept.coming.values().any(|coming| coming.is_store);
        self.nodes.get(&node).is_some_and(is_store)
    }

    /// Whether shared pages may be kept under a lease now.
    pub(super) fn is_leased(&self, node: u64) -> bool {
        self.nodes.get(&node).is_some_and(|kept| kept.returning == 0 && kept.lease.is_some())
    }

    /// Bytes are to be stored that nobody has asked for: if they may be, by what number it is told that they have
    /// [`come`](Self::came). They are to be read after this: whoever writes to them from now on has them given back.
    pub(super) fn stores(&mut self, node: u64, bytes: Range<u64>, valid: bool) -> Option<u64> {
        let kept = self.nodes.get_mut(&node)?;
        // Pages that may be written to in memory may know more, and so may those that are written to by way of them.
        let is_leased =
            valid && kept.returning == 0 && kept.makers == 0 && kept.lease.is_some_and(|(_, alone)| !alone);
        // Who waits for a page of these may wait for others that are not here: the store would have to wait for that, and leases for the store.
        let is_awaited =
            kept.coming.values().any(|coming| !coming.is_store && overlap(&coming.bytes, &bytes));
        if !is_leased || is_awaited || kept.writing.values().any(|(writing, _)| overlap(writing, &bytes)) {
            return None;
        }
        kept.give(&bytes);
        self.last += 1;
        kept.coming.insert(self.last, Coming::new(bytes, true));
        Some(self.last)
    }

    /// The session is over, and all leases with it: whose pages are to be given back, see [`broken`](Self::broken).
    pub(super) fn session_lost(&mut self, now: Nanos) -> Vec<u64> {
        self.sessions += 1;
        self.nodes.values_mut().for_each(|kept| (kept.owed_of_pages, kept.owed_of_file) = (0, 0));
        self.expired(now)
    }

    /// Leases are over for now. As above.
    pub(super) fn expired(&mut self, now: Nanos) -> Vec<u64> {
        let had = |(node, kept): (&u64, &mut Kept)| {
            // What was written to pages needs none as long as leases on files are there.
            let was_leased = kept.lease.take().is_some();
            if !was_leased && (kept.given.is_empty() || kept.returning > 0) {
                return None;
            }
            // Nobody waits for these pages, and those on their way may wait for the server for long.
            kept.wait_for_stores_alone();
            // What was read under the lease may be changed by others from now on.
            kept.returned += 1;
            kept.returns(now, Waits::Nobody);
            Some(*node)
        };
        self.nodes.iter_mut().filter_map(had).collect()
    }

    /// Nobody here uses a node any more.
    pub(super) fn forget(&mut self, node: u64) {
        let is_unused = |kept: &Kept| {
            kept.returning == 0 && kept.coming.is_empty() && kept.writing.is_empty() && kept.writers == 0
        };
        if self.nodes.get(&node).is_some_and(is_unused) {
            self.nodes.remove(&node);
        }
    }

    /// A block that was written here has come to the server, and is here. True: [`next_store`](Self::next_store) is to be asked for blocks.
    /// What is written by way of pages is there already; what is not, as its pages were written to in part, is chosen [later](Self::is_made).
    pub(super) fn has_written(&mut self, node: u64, place: u64) -> bool {
        let Kept { ahead, lease, makers, .. } = self.kept(node);
        if !ahead.is_long && (place + 1) * BLOCK < LONG_BYTES {
            return false;
        }
        let first = if std::mem::replace(&mut ahead.is_long, true) { place } else { 0 };
        if *makers == 0 {
            ahead.places.extend(first..=place);
        } else if lease.is_some() {
            return false;
        }
        !std::mem::replace(&mut ahead.is_running, true)
    }

    /// Nobody writes any more to a long file by way of pages. As above.
    pub(super) fn is_made(&mut self, node: u64, size: u64) -> bool {
        let Kept { ahead, whole, makers, .. } = self.kept(node);
        if *makers > 0 {
            return false;
        }
        let is_given = |place: &u64| whole.contains(place * BLOCK, (place + 1) * BLOCK);
        ahead.places.extend((0..size / BLOCK).filter(|place| !is_given(place)));
        !ahead.places.is_empty() && !std::mem::replace(&mut ahead.is_running, true)
    }

    /// The block that is to be stored next; after `None` that is over.
    pub(super) fn next_store(&mut self, node: u64) -> Option<u64> {
        let ahead = &mut self.nodes.get_mut(&node)?.ahead;
        let next = ahead.places.pop_first();
        ahead.is_running = next.is_some();
        next
    }

    /// None of those that were chosen are to be stored.
    pub(super) fn give_up_stores(&mut self, node: u64) {
        if let Some(kept) = self.nodes.get_mut(&node) {
            kept.ahead.places.clear();
            kept.ahead.is_running = false;
        }
    }
}

impl Kept {
    /// Programs here write to these bytes: what was read of them before is old.
    fn age(&mut self, bytes: &Range<u64>, by_pages: bool) {
        for coming in self.coming.values_mut().filter(|coming| overlap(&coming.bytes, bytes)) {
            (coming.is_old, coming.is_past) = (true, coming.is_past || by_pages);
        }
    }

    /// Pages may be given back while others are on their way that somebody has asked for.
    fn wait_for_stores_alone(&mut self) {
        self.coming.values_mut().for_each(|coming| coming.is_leased = coming.is_store);
    }

    fn is_late(&self, now: Nanos) -> bool {
        now >= self.pass_since + LATE.as_nanos() as Nanos
    }

    fn drop(&mut self, bytes: &Range<u64>) {
        self.given.remove(bytes.start, bytes.end);
        self.whole.remove(bytes.start, bytes.end);
    }

    fn give(&mut self, bytes: &Range<u64>) {
        note(&mut self.given, bytes);
        note(&mut self.whole, bytes);
    }

    /// Whether the server waits for pages that are being given back, and nobody changes them before.
    fn is_owed(&self) -> bool {
        self.owed_of_pages > 0 || self.owed_of_file > 0
    }

    fn owed(&mut self, lease: Lease) -> &mut u32 {
        match lease {
            Lease::Pages => &mut self.owed_of_pages,
            Lease::File => &mut self.owed_of_file,
        }
    }

    fn returns(&mut self, now: Nanos, waits: Waits) -> Duration {
        self.returning += 1;
        if let Waits::Server(lease, _) = waits {
            *self.owed(lease) += 1;
        }
        self.pass_since = now;
        self.ahead.places.clear();
        let left = (self.filled_at + TURN.as_nanos() as Nanos).saturating_sub(now);
        Duration::from_nanos(left).min(TURN)
    }
}

/// Who has got a page keeps it so long: else two who both write to memory take it from each other before they come to
/// write, again and again.
const TURN: Duration = Duration::from_millis(5);

/// A pass takes less, unless the kernel waits for a page that it asked for before that was known here.
pub(super) const LATE: Duration = Duration::from_millis(3);

#[cfg(test)]
mod tests;
