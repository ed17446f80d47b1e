//! Memory of blocks, used again. What the system gives anew it has to clear and map page by page, and in a virtual machine its host may
//! have to find each of these pages first.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;

use super::lock;
use crate::limits::BLOCK_BYTES;

/// Where memory of blocks waits for its next use.
#[derive(Debug)]
pub(super) struct Memory {
    blocks: Mutex<Blocks>,
    /// Blocks that there may be, in use and waiting, for one to be kept that is not used any more.
    most: usize,
}

#[derive(Debug, Default)]
struct Blocks {
    waiting: Vec<Vec<u8>>,
    in_use: usize,
    /// As many have waited since they were looked at last, whatever came.
    never_used: usize,
}

impl Memory {
    /// Keeps what has been used as long as there are no more than `bytes_max`, used or not.
    pub(super) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { blocks: Mutex::default(), most: bytes_max / BLOCK_BYTES })
    }

    /// A buffer for what is in `data`, with room for more up to a block where that is much already: most files are small.
    pub(super) fn buffer(self: &Arc<Self>, data: &[u8]) -> Buffer {
        let is_block = (SMALL_BYTES..=BLOCK_BYTES).contains(&data.len());
        let bytes = if is_block {
            self.block_of(data)
        } else {
            let mut bytes = Vec::with_capacity(data.len().max(SMALL_BYTES));
            bytes.extend_from_slice(data);
            bytes
        };
        Buffer { bytes, is_block, memory: Arc::clone(self) }
    }

    /// One of `length` bytes, which are whatever they were: to be written over.
    pub(super) fn to_fill(self: &Arc<Self>, length: usize) -> Buffer {
        let is_block = length == BLOCK_BYTES;
        let waiting = if is_block { self.use_block() } else { None };
        let mut bytes = waiting.unwrap_or_else(|| vec![0; length]);
        bytes.resize(length, 0);
        Buffer { bytes, is_block, memory: Arc::clone(self) }
    }

    /// A block's memory that begins with `data`.
    fn block_of(&self, data: &[u8]) -> Vec<u8> {
        let mut block = self.use_block().unwrap_or_else(|| Vec::with_capacity(BLOCK_BYTES));
        block.clear();
        block.extend_from_slice(data);
        block
    }

    /// One block more is used: one that waits, or, if none does, one that the caller gets from the system.
    fn use_block(&self) -> Option<Vec<u8>> {
        let mut blocks = lock(&self.blocks);
        blocks.in_use += 1;
        let waiting = blocks.waiting.pop();
        blocks.never_used = blocks.never_used.min(blocks.waiting.len());
        waiting
    }

    /// Gives back to the system, now and then, what has not been used again.
    pub(super) async fn give_back(memory: Weak<Self>) {
        loop {
            tokio::time::sleep(GIVE_BACK_EVERY).await;
            let Some(memory) = memory.upgrade() else { return };
            memory.give_back_half();
        }
    }

    fn give_back_half(&self) {
        let mut blocks = lock(&self.blocks);
        let left = blocks.waiting.len() - blocks.never_used.div_ceil(2);
        let given = blocks.waiting.split_off(left);
        blocks.waiting.shrink_to_fit();
        blocks.never_used = left;
        drop(blocks);
        drop(given);
    }
}

/// Bytes in memory that is used again when nobody has them any more, if it is a block's.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    is_block: bool,
    memory: Arc<Memory>,
}

impl Buffer {
    /// Leaves an empty one in its place.
    pub(super) fn take(&mut self) -> Self {
        let is_block = std::mem::take(&mut self.is_block);
        Self { bytes: std::mem::take(&mut self.bytes), is_block, memory: Arc::clone(&self.memory) }
    }

    /// Puts bytes at the end.
    pub(super) fn append(&mut self, data: &[u8]) {
        let length = self.bytes.len() + data.len();
        if self.bytes.capacity() < length && length <= BLOCK_BYTES && !self.is_block {
            // At once as much as it will be at the most, instead of some more each time, which may copy what is there.
            (self.bytes, self.is_block) = (self.memory.block_of(&self.bytes), true);
        }
        self.bytes.extend_from_slice(data);
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
    }

    /// To be shared. Room that is not used is not kept.
    pub(super) fn freeze(mut self) -> Bytes {
        if self.bytes.capacity() / 2 > self.bytes.len() {
            Bytes::copy_from_slice(&self.bytes)
        } else if self.is_block {
            Bytes::from_owner(self)
        } else {
            std::mem::take(&mut self.bytes).into()
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.is_block {
            let mut blocks = lock(&self.memory.blocks);
            blocks.in_use -= 1;
            if blocks.in_use + blocks.waiting.len() < self.memory.most {
                blocks.waiting.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Below this, memory is got from the system: that is soon cleared, and a block would be more than is used.
pub(super) const SMALL_BYTES: usize = 64 << 10;

/// Longer than programs pause between two files.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(memory: &Memory) -> usize {
        lock(&memory.blocks).waiting.len()
    }

    #[test]
    fn a_blocks_memory_is_used_again_when_the_last_has_let_go_of_it() {
        let memory = Memory::new(usize::MAX);
        let block = memory.buffer(&vec![1; BLOCK_BYTES]);
        let place = block.as_ptr();
        let shared = block.freeze();
        let part = shared.slice(7..9);
        drop(shared);
        assert!(waiting(&memory) == 0 && part == [1, 1][..]);
        drop(part);
        let again = memory.to_fill(BLOCK_BYTES);
        assert_eq!((again.as_ptr(), again.len()), (place, BLOCK_BYTES));
        drop(again);
        let mut growing = memory.buffer(b"abc");
        growing.append(&vec![2; SMALL_BYTES]);
        assert_eq!(
            (growing.as_ptr(), &growing[..4], growing.len()),
            (place, &b"abc\x02"[..], SMALL_BYTES + 3)
        );
        // Most of it is room: that is not kept.
        let short = growing.freeze();
        assert!(short.as_ptr() != place && short.len() == SMALL_BYTES + 3);
        let mut given = memory.buffer(&vec![3; SMALL_BYTES]);
        let taken = given.take();
        drop(given);
        assert_eq!((taken.as_ptr(), waiting(&memory)), (place, 0));
        drop(taken);
        assert_eq!((waiting(&memory), lock(&memory.blocks).in_use), (1, 0));
    }

    #[test]
    fn no_more_waits_than_may_be_kept() {
        let memory = Memory::new(3 * BLOCK_BYTES);
        let mut many: Vec<_> = (0..5).map(|_| memory.to_fill(BLOCK_BYTES)).collect();
        many.drain(..2);
        assert_eq!(waiting(&memory), 0, "three are in use");
        many.pop();
        assert_eq!(waiting(&memory), 1);
        drop(many);
        assert_eq!(waiting(&memory), 3);
        for other in [1, SMALL_BYTES, 2 * BLOCK_BYTES] {
            drop((memory.to_fill(other), memory.buffer(&vec![0; other]).freeze()));
        }
        assert_eq!(waiting(&memory), 3);
    }

    #[test]
    fn what_is_not_used_again_is_given_back() {
        let memory = Memory::new(8 * BLOCK_BYTES);
        let fill = |blocks| (0..blocks).map(|_| memory.to_fill(BLOCK_BYTES)).collect::<Vec<_>>();
        drop(fill(8));
        memory.give_back_half();
        assert_eq!(waiting(&memory), 8, "they have not waited all the time");
        drop(fill(6));
        memory.give_back_half();
        assert_eq!(waiting(&memory), 7, "two were not used");
        for left in [3, 1, 0, 0] {
            memory.give_back_half();
            assert_eq!(waiting(&memory), left);
        }
    }
}
