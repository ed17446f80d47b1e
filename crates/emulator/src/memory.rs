//! Where packets wait: chunks of memory filled in turn and freed when their last packet has gone.
//!
//! A long fat link holds hundreds of megabytes. Packets are read straight into a chunk and written straight from
//! it; chunks are recycled, so that after the first round no page is touched for the first time.

use crate::limits::PACKET_BYTES_MAX;

const CHUNK_BYTES: usize = 4 << 20;

/// A packet in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    chunk: u32,
    start: u32,
    len: u32,
}

#[derive(Debug)]
struct Chunk {
    bytes: Box<[u8]>,
    /// Packets, each counted once per [`PacketMemory::commit`] or [`PacketMemory::share`].
    held: u32,
}

/// Bounded memory for packets.
#[derive(Debug)]
pub struct PacketMemory {
    chunks: Vec<Chunk>,
    free: Vec<u32>,
    /// The chunk being filled, and up to where.
    current: Option<(u32, usize)>,
    chunks_max: usize,
}

impl PacketMemory {
    /// Memory for `bytes_max`; the first `touched` of them are touched now.
    #[must_use]
    pub fn new(bytes_max: u64, touched: u64) -> Self {
        // One chunk is being filled while others drain.
        let chunks_max = chunks_for(bytes_max).saturating_add(2);
        let mut memory = Self { chunks: Vec::new(), free: Vec::new(), current: None, chunks_max };
        for _ in 0..chunks_for(touched).min(chunks_max) {
            let chunk = memory.add_chunk();
            memory.chunks[chunk as usize].bytes.iter_mut().step_by(4096).for_each(|b| *b = 1);
            memory.free.push(chunk);
        }
        memory
    }

    /// Changes the bound; what is held stays held.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.chunks_max = chunks_for(bytes_max).saturating_add(2);
    }

    fn add_chunk(&mut self) -> u32 {
        self.chunks.push(Chunk { bytes: vec![0; CHUNK_BYTES].into_boxed_slice(), held: 0 });
        (self.chunks.len() - 1) as u32
    }

    /// Room for one packet of any size; `None` when all memory is in use. Nothing is taken until
    /// [`commit`](Self::commit).
    pub fn room(&mut self) -> Option<&mut [u8]> {
        let fits = self.current.is_some_and(|(_, used)| CHUNK_BYTES - used >= PACKET_BYTES_MAX);
        if !fits {
            self.retire_current();
            let next = match self.free.pop() {
                Some(chunk) => chunk,
                None if self.chunks.len() < self.chunks_max => self.add_chunk(),
                None => return None,
            };
            self.current = Some((next, 0));
        }
        let (chunk, used) = self.current?;
        Some(&mut self.chunks[chunk as usize].bytes[used..used + PACKET_BYTES_MAX])
    }

    fn retire_current(&mut self) {
        if let Some((chunk, _)) = self.current.take()
            && self.chunks[chunk as usize].held == 0
        {
            self.free.push(chunk);
        }
    }

    /// Keeps the first `len` bytes of the last [`room`](Self::room), held once.
    ///
    /// # Panics
    /// Without a preceding `room`.
    pub fn commit(&mut self, len: usize) -> Handle {
        let (chunk, used) = self.current.as_mut().expect("commit follows room");
        let handle = Handle { chunk: *chunk, start: *used as u32, len: len as u32 };
        // Packets start on cache lines, so that copies to and from the kernel are aligned.
        *used = (*used + len).next_multiple_of(64).min(CHUNK_BYTES);
        self.chunks[handle.chunk as usize].held += 1;
        handle
    }

    /// Holds the packet once more.
    pub fn share(&mut self, handle: Handle) {
        self.chunks[handle.chunk as usize].held += 1;
    }

    /// The packet's bytes.
    #[must_use]
    pub fn bytes(&self, handle: Handle) -> &[u8] {
        &self.chunks[handle.chunk as usize].bytes[handle.start as usize..][..handle.len as usize]
    }

    /// Gives one hold back; after the last one the handle is void.
    pub fn release(&mut self, handle: Handle) {
        let chunk = &mut self.chunks[handle.chunk as usize];
        chunk.held -= 1;
        if chunk.held == 0 {
            match &mut self.current {
                Some((current, used)) if *current == handle.chunk => *used = 0,
                _ => self.free.push(handle.chunk),
            }
        }
    }
}

fn chunks_for(bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(CHUNK_BYTES as u64)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn full_memory_gives_no_room_and_release_gives_it_back() {
        let mut memory = PacketMemory::new(1, 0);
        let mut held = Vec::new();
        while memory.room().is_some() {
            held.push(memory.commit(PACKET_BYTES_MAX));
            assert!(held.len() < 1000);
        }
        for handle in held.drain(..) {
            memory.release(handle);
        }
        assert!(memory.room().is_some());
    }

    proptest! {
        #[test]
        fn packets_keep_their_bytes(steps in prop::collection::vec((any::<bool>(), 1usize..PACKET_BYTES_MAX), 1..400)) {
            let mut memory = PacketMemory::new(16 << 20, 1 << 20);
            let mut waiting = VecDeque::new();
            for (n, (add, len)) in steps.into_iter().enumerate() {
                if add && let Some(room) = memory.room() {
                    room[..len].fill(n as u8);
                    waiting.push_back((memory.commit(len), n as u8, len));
                } else if let Some((handle, fill, len)) = waiting.pop_front() {
                    prop_assert_eq!(memory.bytes(handle).len(), len);
                    prop_assert!(memory.bytes(handle).iter().all(|&b| b == fill));
                    memory.release(handle);
                }
            }
        }
    }
}
