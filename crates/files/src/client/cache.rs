//! What a client keeps under leases: attributes, names, listings, targets of links, bytes. Pure: the caller passes
//! `now`.
//!
//! Something that has been learnt is kept when its lease is there, and when it is sure to be the newest: the lease has
//! not been broken on its way here, and no change of one's own has been under way since it was asked for. Nothing is
//! used after the leases' term.

mod blocks;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::behind::Begun;
use crate::limits::{BLOCK_BYTES, BREAKS_KNOWN_MAX, NAMES_BUT_FOR_MAX};
use crate::message::{Attr, Grant, Listed, Place, TOP};
pub(super) use blocks::Leaving;

/// Nanoseconds since an origin of the caller's choosing, also while the machine sleeps.
pub(super) type Nanos = u64;

/// A question that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    number: u64,
    /// Of the changes of one's own, those before.
    changes: u64,
    /// And those that it comes after at the server.
    after: Option<PartsUnderWay>,
}

/// Parts of what is written behind to a node that is changed by nothing else here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartsUnderWay {
    node: u64,
    /// [`Kept::steps`] when all of them have ended, if nothing else has begun meanwhile.
    steps: u64,
}

#[derive(Debug, Default)]
struct Kept {
    lease: Option<u64>,
    /// The last question that was asked before this lease came: only answers to later ones were read under it, and the
    /// answer that brought it.
    since: u64,
    brought_by: u64,
    attr: Option<Attr>,
    target: Option<Bytes>,
    /// What a directory has under names; `None`: nothing.
    names: HashMap<Bytes, Option<u64>>,
    /// What is not among these is under no name, but for these, which are not known.
    but_for: Option<HashSet<Bytes>>,
    /// All of a directory, in its order, as it was before these names were changed here.
    listing: Option<Arc<Vec<Listed>>>,
    changed_since: HashSet<Bytes>,
    /// Parts of a file, by their place; all [`BLOCK_BYTES`] long but the last.
    blocks: BTreeMap<u64, Block>,
    /// One's own changes: how many are under way, how often one has begun or ended, and the number of the last time.
    changing: u32,
    steps: u64,
    last_change: u64,
    /// Of these, how many are no parts of what is written behind, and how often one of them has begun or ended.
    others: u32,
    turns: u64,
    /// The lease under which the last of these was made, if no other was under way beside it.
    alone: Option<u64>,
    /// How often this client's user has been told of it, and not forgotten it.
    told: u64,
    /// How often the server has told of it.
    told_here: u64,
    /// Where it was found last: in this directory, by this name.
    place: Option<(u64, Bytes)>,
    /// The server does not know all of what it is.
    is_spare: bool,
}

#[derive(Debug)]
struct Block {
    data: Bytes,
    used: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Cache {
    nodes: HashMap<u64, Kept>,
    /// Questions under way.
    turns: BTreeSet<u64>,
    last_turn: u64,
    /// Questions up to this one were asked in a session that is over.
    void: u64,
    changes: u64,
    /// Leases that were broken, for as long as questions are under way that were asked before: with the number of the
    /// next question.
    broken: BTreeMap<(u64, u64), u64>,
    /// Leases may be used until then.
    valid_until: Nanos,
    /// Nodes that nobody here knows any more, and how often the server has told of them.
    to_forget: HashMap<u64, u64>,
    /// Blocks by the time they were used last.
    by_use: BTreeMap<u64, (u64, u64)>,
    uses: u64,
    bytes: usize,
    /// Of `bytes_max`, what something else takes.
    taken: usize,
    pub(super) bytes_max: usize,
    /// Questions that were answered from here.
    pub(super) hits: u64,
}

impl Cache {
    /// `bytes_max`: of files.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            nodes: HashMap::from([(TOP, Kept::default())]),
            turns: BTreeSet::new(),
            last_turn: 0,
            void: 0,
            changes: 0,
            broken: BTreeMap::new(),
            valid_until: 0,
            to_forget: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            bytes: 0,
            taken: 0,
            bytes_max,
            hits: 0,
        }
    }

    /// The server has said yes to a question that was sent then.
    pub(super) fn renewed(&mut self, sent: Nanos, term: Duration) {
        self.valid_until = self.valid_until.max(sent + term.as_nanos() as Nanos);
    }

    /// A question is sent.
    pub(super) fn begin(&mut self) -> Turn {
        self.begin_after(None)
    }

    /// The same; the server answers it when it has stored these.
    pub(super) fn begin_after(&mut self, after: Option<PartsUnderWay>) -> Turn {
        self.last_turn += 1;
        self.turns.insert(self.last_turn);
        Turn { number: self.last_turn, changes: self.changes, after }
    }

    /// So many parts that are about to be sent: as many changes of a node as `times`, if they are all that there are.
    pub(super) fn parts_under_way(&self, node: u64, parts: u32, times: u32) -> Option<PartsUnderWay> {
        let kept = self.nodes.get(&node).filter(|kept| kept.changing == times)?;
        Some(PartsUnderWay { node, steps: kept.steps + u64::from(parts) })
    }

    /// Its answer has been looked at, or nobody waits for it.
    pub(super) fn end(&mut self, turn: Turn) {
        self.turns.remove(&turn.number);
        let first = self.turns.first().copied().unwrap_or(u64::MAX);
        self.broken = self.broken.split_off(&(first.saturating_add(1), 0));
    }

    /// The server takes a lease back.
    pub(super) fn broken(&mut self, Grant { node, serial }: Grant) {
        if self.broken.len() >= BREAKS_KNOWN_MAX {
            // More than is worth keeping: whatever is under way is not kept.
            self.broken.clear();
            self.changes += 1;
            let changes = self.changes;
            for kept in self.nodes.values_mut() {
                (kept.last_change, kept.steps) = (changes, kept.steps + 1);
            }
        }
        if !self.turns.is_empty() {
            let known = self.broken.entry((self.last_turn + 1, node)).or_default();
            *known = (*known).max(serial);
        }
        if self.nodes.get(&node).and_then(|kept| kept.lease).is_some_and(|lease| lease <= serial) {
            self.drop_all(node);
            if let Some(kept) = self.nodes.get_mut(&node) {
                kept.lease = None;
            }
        }
    }

    /// What is kept of a node, but for its lease.
    fn drop_all(&mut self, node: u64) {
        let Some(kept) = self.nodes.get_mut(&node) else { return };
        (kept.attr, kept.target, kept.but_for) = (None, None, None);
        kept.names.clear();
        kept.changed_since.clear();
        let listing = kept.listing.take();
        self.drop_blocks(node, 0, u64::MAX);
        self.drop_listing(listing);
    }

    /// Nodes that are known by a listing alone are of no use without it.
    fn drop_listing(&mut self, listing: Option<Arc<Vec<Listed>>>) {
        for entry in listing.iter().flat_map(|listing| listing.iter()) {
            if let Some(attr) = entry.attr {
                self.forget_if_unused(attr.node);
            }
        }
    }

    /// The session is over, and all leases with it. Nodes stay, to be told to the next server.
    pub(super) fn session_lost(&mut self) {
        (self.void, self.valid_until) = (self.last_turn, 0);
        self.broken.clear();
        let nodes: Vec<u64> = self.nodes.keys().copied().collect();
        for node in nodes {
            self.drop_all(node);
            if let Some(kept) = self.nodes.get_mut(&node) {
                kept.lease = None;
            }
        }
    }

    /// All nodes that a server has told of, each with where it was found last, those above before those below: by how far
    /// they are from the top.
    pub(super) fn places(&mut self) -> Vec<Vec<Place>> {
        self.to_forget.clear(); // who is not told of here need not be forgotten
        let mut depths = HashMap::from([(TOP, 0_usize)]);
        let mut levels: Vec<Vec<Place>> = Vec::new();
        for &node in self.nodes.keys() {
            // Up to the first whose depth is known, and back.
            let mut way = Vec::new();
            let mut at = node;
            let depth = loop {
                if let Some(&depth) = depths.get(&at) {
                    break depth;
                }
                match self.nodes.get(&at).and_then(|kept| kept.place.as_ref()) {
                    Some((parent, _)) if way.len() <= self.nodes.len() => {
                        way.push(at);
                        at = *parent;
                    }
                    // Nobody knows where it is; or names have been moved about until they made a ring.
                    _ => break usize::MAX,
                }
            };
            for (step, node) in way.into_iter().rev().enumerate() {
                depths.insert(node, depth.saturating_add(step + 1));
            }
        }
        for (&node, kept) in &self.nodes {
            let depth = depths.get(&node).copied().filter(|depth| (1..usize::MAX).contains(depth));
            if let (Some(depth), Some((parent, name))) = (depth, &kept.place)
                && kept.told_here > 0
            {
                levels.resize_with(levels.len().max(depth), Vec::new);
                let (parent, name, times) = (*parent, name.clone(), kept.told_here);
                levels[depth - 1].push(Place { node, parent, name, times });
            }
        }
        levels
    }

    /// A node is found there now.
    pub(super) fn found_at(&mut self, node: u64, parent: u64, name: Bytes) {
        if node != TOP
            && let Some(kept) = self.nodes.get_mut(&node)
        {
            kept.place = Some((parent, name));
        }
    }

    /// Takes the leases of an answer.
    pub(super) fn granted(&mut self, turn: Turn, grants: &[Grant]) {
        if turn.number <= self.void {
            return;
        }
        for &Grant { node, serial } in grants {
            let gone = self
                .broken
                .range((turn.number + 1, 0)..)
                .any(|(&(_, of), &broken)| of == node && broken >= serial);
            let last_turn = self.last_turn;
            if !gone
                && let Some(kept) = self.nodes.get_mut(&node)
                && kept.lease != Some(serial)
            {
                (kept.lease, kept.since, kept.brought_by) = (Some(serial), last_turn, turn.number);
            }
        }
    }

    /// Whether what a question has brought of a node may be kept.
    fn keeps(&mut self, turn: Turn, node: u64) -> Option<&mut Kept> {
        let kept = self.nodes.get_mut(&node)?;
        let is_after = turn.after == Some(PartsUnderWay { node, steps: kept.steps });
        let is_newest = kept.changing == 0 && (kept.last_change <= turn.changes || is_after);
        let is_under_it = turn.number > kept.since || turn.number == kept.brought_by;
        (kept.lease.is_some() && is_newest && is_under_it).then_some(kept)
    }

    /// Whether the server has told of a node once, and nobody here has heard of it.
    pub(super) fn is_first_told(&self, node: u64) -> bool {
        self.nodes.get(&node).is_some_and(|kept| (kept.told_here, kept.told) == (1, 0))
    }

    /// Whether a node has been changed here since a question was asked, or is being changed.
    pub(super) fn has_changed(&self, turn: Turn, node: u64) -> bool {
        self.nodes.get(&node).is_some_and(|kept| kept.changing > 0 || kept.last_change > turn.changes)
    }

    /// A node, known or not yet. What was asked before it was known may be older than one's own changes.
    fn kept(&mut self, node: u64) -> &mut Kept {
        let (last_change, steps) = (self.changes, self.changes);
        self.nodes.entry(node).or_insert_with(|| Kept { last_change, steps, ..Kept::default() })
    }

    /// The server has told of a node once more.
    pub(super) fn told(&mut self, node: u64) {
        if node != TOP {
            self.kept(node).told_here += 1;
        }
    }

    /// This client's user knows a node once more.
    pub(super) fn tell(&mut self, node: u64) {
        if node != TOP {
            self.kept(node).told += 1;
        }
    }

    /// Whether this client knows it at all.
    pub(super) fn is_known(&self, node: u64) -> bool {
        self.nodes.contains_key(&node)
    }

    /// The user has forgotten it so often.
    pub(super) fn forget(&mut self, node: u64, times: u64) {
        if let Some(kept) = self.nodes.get_mut(&node) {
            kept.told = kept.told.saturating_sub(times);
            self.forget_if_unused(node);
        }
    }

    fn forget_if_unused(&mut self, node: u64) {
        if node != TOP && self.nodes.get(&node).is_some_and(|kept| kept.told == 0 && kept.changing == 0) {
            self.drop_all(node);
            if let Some(kept) = self.nodes.remove(&node)
                && kept.told_here > 0
            {
                *self.to_forget.entry(node).or_default() += kept.told_here;
            }
        }
    }

    /// Some of the nodes that the server may forget, with how often it has told of them.
    pub(super) fn take_forgotten(&mut self, at_most: usize) -> Vec<(u64, u64)> {
        let nodes: Vec<u64> = self.to_forget.keys().copied().take(at_most).collect();
        nodes.into_iter().filter_map(|node| self.to_forget.remove_entry(&node)).collect()
    }

    /// Whether there are any.
    pub(super) fn has_forgotten(&self) -> bool {
        !self.to_forget.is_empty()
    }

    /// Keeps attributes.
    pub(super) fn keep_attr(&mut self, turn: Turn, attr: Attr) {
        if let Some(kept) = self.keeps(turn, attr.node).filter(|kept| !kept.is_spare) {
            kept.attr = Some(attr);
        }
    }

    /// What the server says of a node is not what it is, from now on, or is again.
    pub(super) fn set_spare(&mut self, node: u64, is_spare: bool) {
        if let Some(kept) = self.nodes.get_mut(&node) {
            kept.is_spare = is_spare;
        }
    }

    /// What such a node is, now that it is another file for its users.
    pub(super) fn keep_spare(&mut self, attr: Attr) {
        self.set_spare(attr.node, false);
        self.keep_new(attr);
        self.set_spare(attr.node, true);
    }

    /// Keeps a link's target.
    pub(super) fn keep_target(&mut self, turn: Turn, node: u64, target: Bytes) {
        if let Some(kept) = self.keeps(turn, node) {
            kept.target = Some(target);
        }
    }

    /// Keeps what a directory has under a name, or that it has nothing.
    pub(super) fn keep_name(&mut self, turn: Turn, parent: u64, name: Bytes, node: Option<u64>) {
        if let Some(kept) = self.keeps(turn, parent) {
            if let Some(names) = &mut kept.but_for {
                names.remove(&name);
            }
            kept.names.insert(name, node);
        }
    }

    /// Keeps all of a directory, with the names in it.
    pub(super) fn keep_listing(&mut self, turn: Turn, node: u64, listing: Arc<Vec<Listed>>) -> bool {
        let Some(kept) = self.keeps(turn, node) else { return false };
        let mut but_for = HashSet::new();
        for entry in listing.iter() {
            if let Some(attr) = entry.attr {
                kept.names.insert(entry.name.clone(), Some(attr.node));
            } else {
                but_for.insert(entry.name.clone());
            }
        }
        kept.but_for = Some(but_for);
        kept.changed_since.clear();
        let before = kept.listing.replace(listing);
        drop(before);
        true
    }

    /// A listing that is not kept: what it alone has told of is forgotten.
    pub(super) fn give_up_listing(&mut self, listing: Arc<Vec<Listed>>) {
        self.drop_listing(Some(listing));
    }

    /// How long leases may still be used.
    pub(super) fn valid_for(&self, now: Nanos) -> Nanos {
        self.valid_until.saturating_sub(now)
    }

    /// Whether the lease of this number is there to be used, whatever is kept under it.
    pub(super) fn holds(&self, now: Nanos, node: u64, lease: u64) -> bool {
        now < self.valid_until && self.nodes.get(&node).is_some_and(|kept| kept.lease == Some(lease))
    }

    fn valid(&self, now: Nanos, node: u64) -> Option<&Kept> {
        if now >= self.valid_until {
            return None;
        }
        self.nodes.get(&node).filter(|kept| kept.lease.is_some() && kept.changing == 0)
    }

    /// What a node is, if that is known.
    pub(super) fn attr(&mut self, now: Nanos, node: u64) -> Option<Attr> {
        let attr = self.kept_attr(now, node)?;
        self.hits += 1;
        Some(attr)
    }

    /// A link's target.
    pub(super) fn target(&mut self, now: Nanos, node: u64) -> Option<Bytes> {
        let target = self.valid(now, node)?.target.clone()?;
        self.hits += 1;
        Some(target)
    }

    /// What a directory has under a name: `Some(None)`: nothing; `None`: that is not known.
    pub(super) fn look_up(&mut self, now: Nanos, parent: u64, name: &[u8]) -> Option<Option<Attr>> {
        let dir = self.valid(now, parent)?;
        let found = match dir.names.get(name) {
            Some(&node) => node,
            None if dir.but_for.as_ref().is_some_and(|names| !names.contains(name)) => None,
            None => return None,
        };
        let attr = match found {
            Some(node) => Some(self.valid(now, node)?.attr?),
            None => None,
        };
        self.hits += 1;
        Some(attr)
    }

    /// All of a directory, with attributes as they are known now; `None` when one is not, or what is there under a name.
    pub(super) fn listing(&mut self, now: Nanos, node: u64) -> Option<Arc<Vec<Listed>>> {
        let kept = self.valid(now, node)?;
        let listing = Arc::clone(kept.listing.as_ref()?);
        // Where new names are in the order only the server knows; what is gone is left out.
        if kept.changed_since.iter().any(|name| kept.names.get(name) != Some(&None)) {
            return None;
        }
        let is_there = |entry: &&Listed| !kept.changed_since.contains(&entry.name);
        let current = |entry: &Listed| match entry.attr {
            None => Some(entry.clone()),
            Some(attr) => {
                let attr = self.valid(now, attr.node)?.attr?;
                Some(Listed { attr: Some(attr), ..entry.clone() })
            }
        };
        let listing = listing.iter().filter(is_there).map(current).collect::<Option<Vec<_>>>()?;
        self.hits += 1;
        Some(Arc::new(listing))
    }

    /// Whether a directory has been listed, and so what is not in it is known, but for names that were changed here.
    pub(super) fn is_listed(&self, now: Nanos, node: u64) -> bool {
        self.valid(now, node).is_some_and(|kept| kept.listing.is_some())
    }

    /// As [`attr`](Self::attr); nobody has asked.
    pub(super) fn kept_attr(&self, now: Nanos, node: u64) -> Option<Attr> {
        self.valid(now, node)?.attr
    }

    /// All of a directory as it was listed, whatever attributes have become of.
    pub(super) fn listed(&self, now: Nanos, node: u64) -> Option<Arc<Vec<Listed>>> {
        self.valid(now, node)?.listing.clone()
    }

    /// Where a node was found last: in this directory, by this name.
    pub(super) fn place(&self, node: u64) -> Option<(u64, Bytes)> {
        self.nodes.get(&node)?.place.clone()
    }

    /// The listing in which a directory was found.
    pub(super) fn listing_above(&self, now: Nanos, node: u64) -> Option<Arc<Vec<Listed>>> {
        let (parent, _) = self.place(node)?;
        self.listed(now, parent)
    }

    /// The lease under which parts of a file may be kept now, and what it has seen: another one, or none, when the file
    /// has been changed in between.
    pub(super) fn lease(&self, now: Nanos, node: u64) -> Option<(u64, u64)> {
        let kept = self.valid(now, node)?;
        Some((kept.lease?, kept.last_change))
    }

    /// A change of one's own begins, of all these: nodes, names in them, bytes.
    pub(super) fn begin_change(&mut self, changes: &[OwnChange<'_>]) {
        for change in changes {
            let kept = self.kept(change.node);
            kept.alone = kept.lease.filter(|_| kept.others == 0);
        }
        for change in changes {
            let kept = self.begin_one(change.node);
            (kept.others, kept.turns) = (kept.others + 1, kept.turns + 1);
            self.drop_changed(change);
        }
    }

    /// It has been made, or not.
    pub(super) fn end_change(&mut self, changes: &[OwnChange<'_>]) {
        for change in changes {
            if let Some(kept) = self.end_some(change.node, 1) {
                (kept.others, kept.turns) = (kept.others.saturating_sub(1), kept.turns + 1);
            }
            self.drop_changed(change);
            self.forget_if_unused(change.node);
        }
    }

    /// What a node is after the change that has just ended, of which the server tells. It is the newest, if the lease of
    /// before is there still, and no other change of it was under way here: anybody else would have had the lease broken first.
    pub(super) fn keep_changed(&mut self, attr: Option<Attr>) {
        if let Some(attr) = attr
            && let Some(kept) = self.changed_alone(attr.node)
        {
            kept.attr = Some(attr);
        }
    }

    /// What that change has put under a name, or that it has taken it away, likewise.
    pub(super) fn keep_changed_name(&mut self, parent: u64, name: Bytes, node: Option<u64>) {
        if let Some(kept) = self.changed_alone(parent) {
            if let Some(names) = &mut kept.but_for {
                names.remove(&name);
            }
            kept.names.insert(name, node);
        }
    }

    /// What a node is that has just been made, and that this answer is the first to tell of: nothing of that can have been changed here.
    pub(super) fn keep_new(&mut self, attr: Attr) {
        let turn = self.begin();
        self.keep_attr(turn, attr);
        self.end(turn);
    }

    /// What a node is after a part of what is written behind, if that has been all, and under the lease that it was written under: as long
    /// as that is there nobody else has changed it.
    pub(super) fn keep_written(&mut self, part: PartsUnderWay, lease: u64, attr: Attr) {
        if let Some(kept) = self.nodes.get_mut(&part.node)
            && (kept.lease, kept.changing, kept.steps) == (Some(lease), 0, part.steps)
            && attr.node == part.node
        {
            kept.attr = Some(attr);
        }
    }

    fn changed_alone(&mut self, node: u64) -> Option<&mut Kept> {
        let kept = self.nodes.get_mut(&node)?;
        (kept.alone.is_some() && kept.alone == kept.lease && kept.changing == 0).then_some(kept)
    }

    /// A part of what is written behind begins: whether it may be kept afterwards, see [`end_part`](Self::end_part).
    pub(super) fn begin_part(&mut self, node: u64, from: u64) -> Option<u64> {
        let kept = self.begin_one(node);
        let alone = (kept.others == 0).then_some(kept.turns);
        self.drop_changed(&OwnChange::of_bytes(node, from, from));
        alone
    }

    /// It has been stored by the server, with others that it was joined with, or not. If it has, and is worth it, there are its bytes: they are
    /// kept if they are a block, the lease under which they were written is there still, and nothing else was being changed meanwhile: it may
    /// have come first or last.
    pub(super) fn end_part(
        &mut self,
        node: u64,
        (from, to): (u64, u64),
        Begun { alone, times }: Begun,
        stored: Option<(u64, &Bytes)>,
    ) -> bool {
        let turns = self.end_some(node, times).map(|kept| kept.turns);
        self.drop_changed(&OwnChange::of_bytes(node, from, to));
        let mut is_kept = false;
        if let Some((lease, data)) = stored
            && from.is_multiple_of(BLOCK_BYTES as u64)
            && data.len() == BLOCK_BYTES
            && alone.is_some()
            && alone == turns
            && self.nodes.get(&node).is_some_and(|kept| kept.lease == Some(lease))
        {
            self.put_block(node, from / BLOCK_BYTES as u64, data.clone());
            is_kept = true;
        }
        self.forget_if_unused(node);
        is_kept
    }

    fn begin_one(&mut self, node: u64) -> &mut Kept {
        self.changes += 1;
        let number = self.changes;
        let kept = self.kept(node);
        kept.changing += 1;
        kept.steps += 1;
        kept.last_change = number;
        kept
    }

    fn end_some(&mut self, node: u64, times: u32) -> Option<&mut Kept> {
        self.changes += 1;
        let kept = self.nodes.get_mut(&node)?;
        kept.changing = kept.changing.saturating_sub(times);
        kept.steps += 1;
        kept.last_change = self.changes;
        Some(kept)
    }

    fn drop_changed(&mut self, change: &OwnChange<'_>) {
        let Some(kept) = self.nodes.get_mut(&change.node) else { return };
        kept.attr = None;
        if let Some(name) = change.name {
            kept.names.remove(name);
            kept.but_for =
                kept.but_for.take().filter(|names| names.len() < NAMES_BUT_FOR_MAX).map(|mut names| {
                    names.insert(Bytes::copy_from_slice(name));
                    names
                });
            if kept.listing.is_some() {
                kept.changed_since.insert(Bytes::copy_from_slice(name));
            }
            if kept.changed_since.len() > NAMES_BUT_FOR_MAX {
                kept.changed_since.clear();
                let listing = kept.listing.take();
                self.drop_listing(listing);
            }
        }
        if change.rights {
            self.drop_all(change.node);
        } else if let Some((from, to)) = change.bytes {
            let last = from.max(to.saturating_sub(1)); // the byte at `to` is as it was
            self.drop_blocks(change.node, from / BLOCK_BYTES as u64, last / BLOCK_BYTES as u64);
            self.drop_short(change.node);
        }
    }
}

/// What a change of one's own touches.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnChange<'a> {
    pub(super) node: u64,
    /// A name in it.
    pub(super) name: Option<&'a [u8]>,
    /// Bytes of it: from, and up to.
    pub(super) bytes: Option<(u64, u64)>,
    /// Who may do what with it: nothing that is known says whether it may be known still.
    pub(super) rights: bool,
}

impl<'a> OwnChange<'a> {
    /// Of its attributes.
    pub(super) fn of(node: u64) -> Self {
        Self { node, name: None, bytes: None, rights: false }
    }

    /// Of a name in it.
    pub(super) fn of_name(node: u64, name: &'a [u8]) -> Self {
        Self { name: Some(name), ..Self::of(node) }
    }

    /// Of its bytes, from and up to.
    pub(super) fn of_bytes(node: u64, from: u64, to: u64) -> Self {
        Self { bytes: Some((from, to)), ..Self::of(node) }
    }
}

#[cfg(test)]
mod tests;
