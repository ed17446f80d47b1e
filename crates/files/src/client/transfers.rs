//! Bytes on the lanes, at the client: those it waits for, and those it sends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use longhaul_transport::{Extent, Stored};
use tokio::sync::{mpsc, oneshot};

use super::memory::{Buffer, Memory};
use crate::ranges::RangeSet;

/// Why a transfer did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The other end has given it up.
    GivenUp,
    /// The session is over.
    SessionOver,
}

/// A part of a file that is on its way here, block by block: lanes bring several at a time.
#[derive(Debug)]
struct Incoming {
    block_bytes: usize,
    blocks: Vec<Mutex<Block>>,
    /// Bytes that there will be, once the server has said so.
    expected: OnceLock<u64>,
    /// For each block its number and its bytes.
    done: mpsc::UnboundedSender<Result<(usize, Buffer), Broken>>,
}

/// Empty when it has been handed over.
#[derive(Debug)]
struct Block {
    buffer: Buffer,
    arrived: RangeSet,
}

impl Incoming {
    /// Hands a block over when it is all there.
    fn finish(&self, index: usize, block: &mut Block) {
        let Some(expected) = self.expected.get() else { return };
        let bytes = expected.saturating_sub((index * self.block_bytes) as u64).min(block.buffer.len() as u64);
        if bytes > 0 && block.arrived.contains(0, bytes) {
            let mut buffer = block.buffer.take();
            buffer.truncate(bytes as usize);
            let _ = self.done.send(Ok((index, buffer))); // the reader has gone
        }
    }

    /// Takes bytes that begin at `offset`; false: nobody wants them.
    fn store(&self, offset: u64, mut data: &[u8]) -> bool {
        let Ok(mut at) = usize::try_from(offset) else { return false };
        let mut is_wanted = false;
        while !data.is_empty() {
            let (index, from) = (at / self.block_bytes, at % self.block_bytes);
            let Some(block) = self.blocks.get(index) else { return false }; // more than was asked for
            let (here, rest) = data.split_at(data.len().min(self.block_bytes - from));
            let mut block = lock(block);
            if let Some(place) = block.buffer.get_mut(from..from + here.len()) {
                place.copy_from_slice(here);
                block.arrived.insert(from as u64, (from + here.len()) as u64);
                self.finish(index, &mut block);
                is_wanted = true;
            }
            drop(block);
            (data, at) = (rest, at + here.len());
        }
        is_wanted
    }
}

/// A part of a file that is on its way to the server.
#[derive(Debug)]
struct Outgoing {
    data: Bytes,
    /// Where it begins in the file.
    offset: u64,
    left: u64,
    given_up: bool,
    done: Option<oneshot::Sender<Result<(), Broken>>>,
}

/// All of a session's.
#[derive(Debug)]
pub(super) struct Transfers {
    memory: Arc<Memory>,
    incoming: Mutex<Numbered<Arc<Incoming>>>,
    outgoing: Mutex<HashMap<u64, Outgoing>>,
}

#[derive(Debug)]
struct Numbered<T> {
    last: u64,
    table: HashMap<u64, T>,
    over: bool,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { last: 0, table: HashMap::new(), over: false }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A transfer that this end waits for; who gives up waiting for it drops this.
pub(super) struct Awaited<'a> {
    transfers: &'a Transfers,
    pub(super) number: u64,
    done: mpsc::UnboundedReceiver<Result<(usize, Buffer), Broken>>,
}

impl Awaited<'_> {
    /// The server sends so many bytes.
    pub(super) fn begin(&self, expected: u64) -> Result<(), Broken> {
        let incoming = lock(&self.transfers.incoming).table.get(&self.number).cloned();
        let Some(incoming) = incoming else { return Err(Broken::SessionOver) };
        // A server that sends more than was asked for is not waited for.
        if expected > incoming.blocks.iter().map(|block| lock(block).buffer.len() as u64).sum() {
            return Err(Broken::GivenUp);
        }
        let _ = incoming.expected.set(expected); // once
        for (index, block) in incoming.blocks.iter().enumerate() {
            incoming.finish(index, &mut lock(block));
        }
        Ok(())
    }

    /// The next block that is all there: its number, and its bytes.
    pub(super) async fn next(&mut self) -> Result<(usize, Buffer), Broken> {
        self.done.recv().await.unwrap_or(Err(Broken::SessionOver))
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        lock(&self.transfers.incoming).table.remove(&self.number);
    }
}

impl Transfers {
    pub(super) fn new(memory: Arc<Memory>) -> Self {
        Self { memory, incoming: Mutex::default(), outgoing: Mutex::default() }
    }

    /// The number of a transfer that is to be expected. The server sends those with the lowest numbers first.
    pub(super) fn number(&self) -> u64 {
        let mut incoming = lock(&self.incoming);
        incoming.last += 1;
        incoming.last
    }

    /// Gets ready for up to `bytes` from the server, in blocks of `block_bytes`.
    pub(super) fn expect(&self, number: u64, bytes: usize, block_bytes: usize) -> Awaited<'_> {
        let (sender, done) = mpsc::unbounded_channel(); // as many as there are blocks
        let mut incoming = lock(&self.incoming);
        if !incoming.over {
            let block = |begin| {
                let buffer = self.memory.to_fill(block_bytes.min(bytes - begin));
                Mutex::new(Block { buffer, arrived: RangeSet::default() })
            };
            let blocks = (0..bytes).step_by(block_bytes).map(block).collect();
            let entry = Incoming { block_bytes, blocks, expected: OnceLock::new(), done: sender };
            incoming.table.insert(number, Arc::new(entry));
        }
        Awaited { transfers: self, number, done }
    }

    /// Notes that `left` bytes of what begins at `offset` in its file are to be sent as `object`; resolves when the server has stored them.
    pub(super) fn send(
        &self,
        object: u64,
        offset: u64,
        data: Bytes,
        left: u64,
    ) -> oneshot::Receiver<Result<(), Broken>> {
        let (sender, done) = oneshot::channel();
        let outgoing = Outgoing { data, offset, left, given_up: false, done: Some(sender) };
        let incoming = lock(&self.incoming);
        if !incoming.over {
            lock(&self.outgoing).insert(object, outgoing);
        }
        drop(incoming);
        done
    }

    /// Nobody waits for this one any more.
    pub(super) fn forget(&self, object: u64) {
        lock(&self.outgoing).remove(&object);
    }

    /// Bytes of an object; `None`: nobody wants to have them sent any more.
    pub(super) fn lend(&self, object: u64, offset: u64, length: usize) -> Option<Bytes> {
        let outgoing = lock(&self.outgoing);
        let Outgoing { data, offset: begin, .. } = outgoing.get(&object)?;
        let at = usize::try_from(offset.checked_sub(*begin)?).ok()?;
        let there = at.checked_add(length).is_some_and(|end| end <= data.len());
        there.then(|| data.slice(at..at + length))
    }

    /// Bytes of an object have been stored by the server, or given up by it.
    pub(super) fn settled(&self, extent: &Extent, stored: bool) {
        let mut outgoing = lock(&self.outgoing);
        let Some(entry) = outgoing.get_mut(&extent.object) else { return };
        entry.left = entry.left.saturating_sub(extent.length);
        entry.given_up |= !stored;
        if entry.left == 0
            && let Some(mut entry) = outgoing.remove(&extent.object)
            && let Some(done) = entry.done.take()
        {
            let _ = done.send(if entry.given_up { Err(Broken::GivenUp) } else { Ok(()) }); // the writer has gone
        }
    }

    pub(super) fn store(&self, object: u64, offset: u64, data: &[u8]) -> Stored {
        let Some(incoming) = lock(&self.incoming).table.get(&object).cloned() else {
            return Stored::Unwanted;
        };
        if incoming.store(offset, data) { Stored::Kept } else { Stored::Unwanted }
    }

    /// The server cannot bring a transfer to its end.
    pub(super) fn give_up(&self, number: u64) {
        if let Some(incoming) = lock(&self.incoming).table.get(&number).cloned() {
            let _ = incoming.done.send(Err(Broken::GivenUp)); // the reader has gone
        }
    }

    /// Another session has begun.
    pub(super) fn begin(&self) {
        lock(&self.incoming).over = false;
    }

    /// The session is over: whoever waits is told.
    pub(super) fn end(&self) {
        let mut incoming = lock(&self.incoming);
        incoming.over = true;
        let ended = (std::mem::take(&mut incoming.table), std::mem::take(&mut *lock(&self.outgoing)));
        drop(incoming);
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Pieces of any length come in any order, some twice, before and after the server has said how much there will be.
        #[test]
        fn each_block_is_handed_over_once_and_whole(
            asked in 1_usize..500,
            block_bytes in 1_usize..200,
            fewer in 0_usize..500,
            cuts in proptest::collection::vec(0_usize..500, 0..12),
            order in any::<prop::sample::Index>(),
            said_after in 0_usize..14,
            seed in any::<u64>(),
        ) {
            let there = asked.saturating_sub(fewer).max(1);
            let data: Vec<u8> = (0..there).map(|at| (at * 31 % 251) as u8).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(there)).collect();
            cuts.extend([0, there]);
            cuts.sort_unstable();
            let mut pieces: Vec<(usize, usize)> = cuts.windows(2).map(|cut| (cut[0], cut[1])).filter(|(a, b)| a < b).collect();
            let turn = order.index(pieces.len());
            pieces.rotate_left(turn);
            if seed % 2 == 0 {
                pieces.reverse();
            }
            pieces.push(pieces[seed as usize % pieces.len()]); // hedged
            let transfers = Transfers::new(Memory::new(0));
            let mut awaited = transfers.expect(transfers.number(), asked, block_bytes);
            for (number, (from, to)) in pieces.iter().enumerate() {
                if number == said_after {
                    prop_assert_eq!(awaited.begin(there as u64), Ok(()));
                }
                let stored = transfers.store(awaited.number, *from as u64, &data[*from..*to]);
                prop_assert!(stored == Stored::Kept || number + 1 == pieces.len());
            }
            if said_after >= pieces.len() {
                prop_assert_eq!(awaited.begin(there as u64), Ok(()));
            }
            let mut blocks = Vec::new();
            while let Ok(block) = awaited.done.try_recv() {
                let (number, data) = block.unwrap();
                blocks.push((number, data.to_vec()));
            }
            blocks.sort_unstable();
            let whole: Vec<_> = data.chunks(block_bytes).map(<[u8]>::to_vec).enumerate().collect();
            prop_assert_eq!(blocks, whole);
        }
    }

    #[test]
    fn more_than_was_asked_for_is_not_taken() {
        let transfers = Transfers::new(Memory::new(0));
        let mut awaited = transfers.expect(transfers.number(), 100, 64);
        assert_eq!(transfers.store(awaited.number, 90, &[1; 11]), Stored::Unwanted);
        assert_eq!(transfers.store(awaited.number, u64::MAX - 3, &[1; 11]), Stored::Unwanted);
        assert_eq!(transfers.store(awaited.number + 1, 0, &[1; 11]), Stored::Unwanted);
        assert_eq!(awaited.begin(101), Err(Broken::GivenUp));
        assert_eq!(awaited.begin(100), Ok(()));
        transfers.give_up(awaited.number);
        assert!(matches!(awaited.done.try_recv(), Ok(Err(Broken::GivenUp))));
        transfers.end();
        assert!(awaited.done.try_recv().is_err());
        assert_eq!(awaited.begin(100), Err(Broken::SessionOver));
    }
}
