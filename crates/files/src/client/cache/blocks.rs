//! Parts of files that are kept, and how those that were used longest ago make room for others.

use bytes::Bytes;

use super::{Block, Cache, Kept, Nanos, Turn};
use crate::limits::{BLOCK_BYTES, LEAVING_MAX, LEAVING_SHARE, MISSING_SHARE};
use crate::ranges::RangeSet;

/// A block that has to make room soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Leaving {
    /// When it was used last: in the order of use.
    pub(in super::super) used: u64,
    pub(in super::super) node: u64,
    pub(in super::super) place: u64,
}

impl Cache {
    /// Keeps a part of a file.
    pub(in super::super) fn keep_block(&mut self, turn: Turn, node: u64, place: u64, data: Bytes) {
        if data.is_empty() || self.keeps(turn, node).is_none() {
            return;
        }
        self.put_block(node, place, data);
    }

    pub(super) fn put_block(&mut self, node: u64, place: u64, data: Bytes) {
        self.drop_blocks(node, place, place);
        self.uses += 1;
        let used = self.uses;
        self.bytes += data.len();
        self.by_use.insert(used, (node, place));
        if let Some(kept) = self.nodes.get_mut(&node) {
            kept.blocks.insert(place, Block { data, used });
        }
        self.make_room();
    }

    fn make_room(&mut self) {
        while self.bytes + self.taken > self.bytes_max {
            let Some((_, (node, place))) = self.by_use.pop_first() else { return };
            if let Some(block) = self.nodes.get_mut(&node).and_then(|kept| kept.blocks.remove(&place)) {
                self.bytes -= block.data.len();
            }
        }
    }

    /// So many bytes of what may be kept are taken now by what has been written.
    pub(in super::super) fn set_taken(&mut self, bytes: usize) {
        self.taken = bytes;
        self.make_room();
    }

    /// Bytes of files.
    pub(in super::super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether all of a file's `size` bytes could be kept, and some are not here.
    pub(in super::super) fn lacks(&self, now: Nanos, node: u64, size: u64) -> bool {
        let is_here = |kept: &Kept| kept.blocks.len() as u64 >= size.div_ceil(BLOCK_BYTES as u64);
        self.nodes.get(&node).is_some_and(|kept| kept.changing == 0)
            && !self.valid(now, node).is_some_and(is_here)
    }

    /// A part of a file.
    pub(in super::super) fn block(&mut self, now: Nanos, node: u64, place: u64) -> Option<Bytes> {
        let kept = self.valid(now, node)?;
        let rest = kept.attr?.size.saturating_sub(place * BLOCK_BYTES as u64);
        let length = kept.blocks.get(&place)?.data.len() as u64;
        if length < rest.min(BLOCK_BYTES as u64) {
            return None; // it was the last once
        }
        self.uses += 1;
        let used = self.uses;
        let block = self.nodes.get_mut(&node)?.blocks.get_mut(&place)?;
        self.by_use.remove(&block.used);
        block.used = used;
        self.by_use.insert(used, (node, place));
        Some(block.data.clone())
    }

    /// A whole block of a file, though others of it are being written here: while that one is it is not kept.
    pub(in super::super) fn block_beside_writes(&self, now: Nanos, node: u64, place: u64) -> Option<Bytes> {
        let kept = self.nodes.get(&node).filter(|kept| kept.lease.is_some() && now < self.valid_until)?;
        let block = kept.blocks.get(&place).filter(|block| block.data.len() == BLOCK_BYTES)?;
        Some(block.data.clone())
    }

    /// Whether so many of the whole blocks of a file of at least that length are here, or `elsewhere`, that fetching what is missing is
    /// no reason to read the others from where they are not.
    pub(in super::super) fn is_here(&self, now: Nanos, node: u64, least: u64, elsewhere: &RangeSet) -> bool {
        const BLOCK: u64 = BLOCK_BYTES as u64;
        let Some((kept, size)) = self.valid(now, node).and_then(|kept| Some((kept, kept.attr?.size))) else {
            return false;
        };
        let whole = size / BLOCK;
        // By what there is: a file with holes may have more blocks than anybody counts.
        let of_range = |(from, to): (u64, u64)| (to / BLOCK).min(whole).saturating_sub(from.div_ceil(BLOCK));
        let there: u64 = elsewhere.iter().map(of_range).sum();
        let is_here_alone = |place: &&u64| !elsewhere.contains(**place * BLOCK, (**place + 1) * BLOCK);
        let here = kept.blocks.range(..whole).map(|(place, _)| place).filter(is_here_alone).count() as u64;
        size >= least && (whole - there - here) <= whole / MISSING_SHARE
    }

    /// Of the blocks that have to make room for others soon, the first that has been used after `used`, of a file of at least
    /// that length, and that is wanted (of a node, in that place).
    pub(in super::super) fn leaves_after(
        &self,
        used: u64,
        least: u64,
        is_wanted: impl Fn(u64, u64) -> bool,
    ) -> Option<Leaving> {
        let most = (self.bytes_max / BLOCK_BYTES / LEAVING_SHARE).clamp(1, LEAVING_MAX);
        if self.bytes + self.taken + most * BLOCK_BYTES <= self.bytes_max {
            return None;
        }
        let leaving = self.by_use.iter().take(most).filter(|(at, _)| **at > used);
        leaving.map(|(&used, &(node, place))| Leaving { used, node, place }).find(|leaving| {
            is_wanted(leaving.node, leaving.place)
                && self.nodes.get(&leaving.node).is_some_and(|kept| {
                    let block = kept.blocks.get(&leaving.place);
                    block.is_some_and(|block| block.data.len() == BLOCK_BYTES)
                        && kept.attr.is_some_and(|attr| attr.size >= least)
                })
        })
    }

    pub(super) fn drop_blocks(&mut self, node: u64, first: u64, last: u64) {
        let Some(kept) = self.nodes.get_mut(&node) else { return };
        let places: Vec<u64> = kept.blocks.range(first..=last).map(|(place, _)| *place).collect();
        for place in places {
            if let Some(block) = kept.blocks.remove(&place) {
                self.bytes -= block.data.len();
                self.by_use.remove(&block.used);
            }
        }
    }

    /// A file's last block is short; it may not be the last any more.
    pub(super) fn drop_short(&mut self, node: u64) {
        let last = self.nodes.get(&node).and_then(|kept| kept.blocks.last_key_value());
        if let Some((&place, block)) = last
            && block.data.len() < BLOCK_BYTES
        {
            self.drop_blocks(node, place, place);
        }
    }
}
