//! Bytes that have been written here and are not at the server yet.
//!
//! ```text
//! write(2) -> tail: grows as long as writes follow each other -> a part under way -> stored by the server
//!                   sent when it is large enough, has waited long enough, or is asked for
//! ```
//!
//! Only of files that this client has to itself (an exclusive lease), so that nobody can miss them. Parts under way never
//! overlap: the lanes keep no order. What goes wrong with a part is told to whoever writes to, syncs or closes the open
//! file next.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::lock;
use super::open_files::OpenFile;
use crate::limits::{PARTS_UNDER_WAY_MAX, WRITE_PART_BYTES};

/// All of a client's.
#[derive(Debug)]
pub(super) struct Behind {
    nodes: Mutex<HashMap<u64, Arc<Written>>>,
    /// Bytes that there may be more.
    pub(super) room: Arc<Semaphore>,
    /// Parts that may be sent at a time.
    pub(super) turns: Semaphore,
    pub(super) bytes_max: usize,
    /// Writes that were.
    pub(super) taken: AtomicU64,
}

/// What has been written to a file, and is not at the server.
#[derive(Debug, Default)]
pub(super) struct Written {
    state: Mutex<State>,
    /// A part has been settled.
    settled: Notify,
}

#[derive(Debug, Default)]
struct State {
    tail: Option<Tail>,
    /// Parts that have been sent, by where they begin: up to, and number. They do not overlap.
    under_way: BTreeMap<u64, (u64, u64)>,
    numbers: BTreeSet<u64>,
    last: u64,
}

/// Writes that follow each other, and wait for more.
#[derive(Debug)]
struct Tail {
    number: u64,
    file: Arc<OpenFile>,
    offset: u64,
    data: BytesMut,
    /// What the cache said when it began.
    alone: Option<u64>,
    room: Option<OwnedSemaphorePermit>,
}

impl Tail {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// A part to be sent.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) number: u64,
    pub(super) file: Arc<OpenFile>,
    pub(super) offset: u64,
    pub(super) data: Bytes,
    pub(super) alone: Option<u64>,
    pub(super) room: Option<OwnedSemaphorePermit>,
}

/// What has come of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Yes,
    /// The file is not this client's alone (any more).
    NotAlone,
    /// A part with some of the same bytes is under way.
    Overlaps,
}

/// And what is to be done now.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) taken: Taken,
    /// To be sent.
    pub(super) parts: Vec<Part>,
    /// A tail of this number has begun: it is to be sent after a while.
    pub(super) begun: Option<u64>,
}

impl Behind {
    pub(super) fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Self {
            nodes: Mutex::default(),
            room: Arc::new(Semaphore::new(bytes_max)),
            turns: Semaphore::new(PARTS_UNDER_WAY_MAX),
            taken: AtomicU64::new(0),
            bytes_max,
        }
    }

    /// Of a file, if there is something.
    pub(super) fn of(&self, node: u64) -> Option<Arc<Written>> {
        lock(&self.nodes).get(&node).cloned()
    }

    /// Of a file, where something is about to be written.
    pub(super) fn begin(&self, node: u64) -> Arc<Written> {
        Arc::clone(lock(&self.nodes).entry(node).or_default())
    }

    /// Bytes that are here.
    pub(super) fn bytes(&self) -> usize {
        self.bytes_max - self.room.available_permits()
    }

    /// The files that there is something of.
    pub(super) fn nodes(&self) -> Vec<u64> {
        lock(&self.nodes).keys().copied().collect()
    }

    /// Forgets a file that there is nothing of.
    pub(super) fn tidy(&self, node: u64) {
        let mut nodes = lock(&self.nodes);
        // Whoever has it in hand may be about to write.
        if nodes.get(&node).is_some_and(|written| Arc::strong_count(written) == 1 && written.is_empty()) {
            nodes.remove(&node);
        }
    }
}

impl Written {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        let state = self.state();
        state.tail.is_none() && state.under_way.is_empty()
    }

    /// Takes a write and the room that it has, if it does. `may`: the file is this client's alone; nobody takes it away
    /// between that and the write being here. `begins`: bytes from a place on begin to be changed; what it says goes with
    /// the part.
    pub(super) fn write(
        &self,
        file: &Arc<OpenFile>,
        (offset, data): (u64, &[u8]),
        mut room: OwnedSemaphorePermit,
        may: impl FnOnce() -> bool,
        mut begins: impl FnMut(u64) -> Option<u64>,
    ) -> Outcome {
        let mut state = self.state();
        let mut outcome = Outcome { taken: Taken::NotAlone, parts: Vec::new(), begun: None };
        if !may() {
            return outcome;
        }
        let end = offset + data.len() as u64;
        if state.under_way.range(..end).next_back().is_some_and(|(_, &(to, _))| offset < to) {
            return Outcome { taken: Taken::Overlaps, ..outcome };
        }
        outcome.taken = Taken::Yes;
        if let Some(tail) = state.tail.as_mut()
            && offset < tail.end()
            && tail.offset < end
        {
            if !Arc::ptr_eq(&tail.file, file) || offset < tail.offset || tail.end() < end {
                outcome.taken = Taken::Overlaps;
                outcome.parts.extend(state.send_tail());
                return outcome;
            }
            let at = (offset - tail.offset) as usize;
            tail.data[at..at + data.len()].copy_from_slice(data);
            return outcome;
        }
        // Parts end where blocks do.
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let to_boundary = WRITE_PART_BYTES - (at % WRITE_PART_BYTES as u64) as usize;
            let (piece, further) = rest.split_at(rest.len().min(to_boundary));
            let is_next = |tail: &&mut Tail| Arc::ptr_eq(&tail.file, file) && tail.end() == at;
            match state.tail.as_mut().filter(is_next) {
                Some(tail) => {
                    // It costs no more than its bytes.
                    if let (Some(room), Some(more)) = (&mut tail.room, room.split(piece.len())) {
                        room.merge(more);
                    }
                    tail.data.extend_from_slice(piece);
                }
                None => {
                    outcome.parts.extend(state.send_tail());
                    let of_piece = if further.is_empty() { room.num_permits() } else { piece.len() };
                    let room = room.split(of_piece);
                    state.begin(file, at, piece, begins(at), room);
                    outcome.begun = Some(state.last);
                }
            }
            if piece.len() == to_boundary {
                outcome.parts.extend(state.send_tail());
                outcome.begun = None;
            }
            (at, rest) = (at + piece.len() as u64, further);
        }
        outcome
    }

    /// The tail, to be sent; all up to the number is under way then. `only`: if it is that one still.
    pub(super) fn send_tail(&self, only: Option<u64>) -> (Option<Part>, u64) {
        let mut state = self.state();
        let is_meant = only.is_none_or(|only| state.tail.as_ref().is_some_and(|tail| tail.number == only));
        (if is_meant { state.send_tail() } else { None }, state.last)
    }

    /// A part has been stored, or will not be.
    pub(super) fn settle(&self, number: u64, offset: u64) {
        let mut state = self.state();
        state.under_way.remove(&offset);
        state.numbers.remove(&number);
        drop(state);
        self.settled.notify_waiters();
    }

    /// Waits for all parts up to this one.
    pub(super) async fn settled(&self, number: u64) {
        loop {
            let settled = self.settled.notified();
            if self.state().numbers.first().is_none_or(|&first| first > number) {
                return;
            }
            settled.await;
        }
    }
}

impl State {
    fn begin(
        &mut self,
        file: &Arc<OpenFile>,
        offset: u64,
        piece: &[u8],
        alone: Option<u64>,
        room: Option<OwnedSemaphorePermit>,
    ) {
        self.last += 1;
        let mut data = BytesMut::with_capacity(FIRST_BYTES.max(piece.len()));
        data.extend_from_slice(piece);
        self.tail = Some(Tail { number: self.last, file: Arc::clone(file), offset, data, alone, room });
    }

    fn send_tail(&mut self) -> Option<Part> {
        let tail = self.tail.take()?;
        self.under_way.insert(tail.offset, (tail.end(), tail.number));
        self.numbers.insert(tail.number);
        let Tail { number, file, offset, data, alone, room } = tail;
        Some(Part { number, file, offset, data: data.freeze(), alone, room })
    }
}

/// Room for what follows a first write: most files are small.
const FIRST_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use rustix::fs::OFlags;

    use super::*;

    const NODE: u64 = 7;

    fn behind() -> Behind {
        Behind::new(16 << 20)
    }

    fn open() -> Arc<OpenFile> {
        Arc::new(OpenFile::new(1, NODE, OFlags::RDWR, None))
    }

    fn write(behind: &Behind, file: &Arc<OpenFile>, offset: u64, data: &[u8]) -> Outcome {
        let room = Arc::clone(&behind.room).try_acquire_many_owned(data.len() as u32).unwrap();
        behind.begin(NODE).write(file, (offset, data), room, || true, |_| None)
    }

    fn bytes(parts: &[Part]) -> Vec<(u64, &[u8])> {
        parts.iter().map(|part| (part.offset, &part.data[..])).collect()
    }

    #[test]
    fn writes_that_follow_each_other_are_one_part() {
        let (behind, file) = (behind(), open());
        let first = write(&behind, &file, 10, b"one");
        assert_eq!((first.taken, first.parts.len(), first.begun), (Taken::Yes, 0, Some(1)));
        assert_eq!(write(&behind, &file, 13, b"two").begun, None);
        // Written once more, inside.
        assert_eq!(write(&behind, &file, 12, b"ET").taken, Taken::Yes);
        let elsewhere = write(&behind, &file, 100, b"x");
        assert_eq!(bytes(&elsewhere.parts), [(10, &b"onETwo"[..])]);
        assert_eq!(elsewhere.begun, Some(2));
        // The first tail's time is over: there is another now.
        let written = behind.of(NODE).unwrap();
        assert!(written.send_tail(Some(1)).0.is_none());
        let (tail, last) = written.send_tail(Some(2));
        assert_eq!((bytes(tail.as_slice()), last), (vec![(100, &b"x"[..])], 2));
    }

    #[test]
    fn parts_end_where_blocks_do() {
        let (behind, file) = (behind(), open());
        let block = WRITE_PART_BYTES;
        let half = vec![1; block / 2];
        assert!(write(&behind, &file, 0, &half).parts.is_empty());
        let sent = write(&behind, &file, half.len() as u64, &half);
        assert_eq!((sent.parts[0].offset, sent.parts[0].data.len(), sent.begun), (0, block, None));
        // As the kernel cuts long writes from memory that does not begin with a page.
        let odd = vec![2; block - 16];
        let mut parts = Vec::new();
        for number in 5..9 {
            let at = 5 * block + (number - 5) * odd.len();
            parts.extend(write(&behind, &file, at as u64, &odd).parts);
        }
        let sizes: Vec<_> =
            parts.iter().map(|part| (part.offset as usize / block, part.data.len())).collect();
        assert_eq!(sizes, [(5, block), (6, block), (7, block)]);
        let (rest, _) = behind.of(NODE).unwrap().send_tail(None);
        assert_eq!(rest.unwrap().data.len(), block - 4 * 16);
        // One that is longer than a block, across two boundaries.
        let sent = write(&behind, &file, 20 * block as u64 - 1, &vec![3; block + 2]);
        let sizes: Vec<_> = sent.parts.iter().map(|part| part.data.len()).collect();
        assert_eq!((sizes, sent.begun.is_some()), (vec![1, block], true));
    }

    #[test]
    fn parts_under_way_do_not_overlap() {
        let (behind, file, other) = (behind(), open(), open());
        write(&behind, &file, 0, b"abcdef");
        // Not of one piece with what another open file has written: that is sent first.
        let crossed = write(&behind, &other, 3, b"xyz");
        assert_eq!((crossed.taken, bytes(&crossed.parts)), (Taken::Overlaps, vec![(0, &b"abcdef"[..])]));
        assert_eq!(write(&behind, &file, 5, b"1").taken, Taken::Overlaps);
        assert_eq!(write(&behind, &file, 6, b"1").taken, Taken::Yes);
        let written = behind.of(NODE).unwrap();
        written.settle(crossed.parts[0].number, 0);
        assert_eq!(write(&behind, &other, 3, b"xyz").taken, Taken::Yes);
    }

    #[test]
    fn room_is_given_back_with_the_parts() {
        let (behind, file) = (behind(), open());
        let before = behind.room.available_permits();
        write(&behind, &file, 0, b"abc");
        write(&behind, &file, 3, b"def");
        assert_eq!(behind.room.available_permits(), before - 6);
        // It needs none.
        write(&behind, &file, 0, b"ABC");
        assert_eq!(behind.room.available_permits(), before - 6);
        let (part, number) = behind.of(NODE).unwrap().send_tail(None);
        drop(part);
        assert_eq!(behind.room.available_permits(), before);
        behind.tidy(NODE);
        assert!(behind.of(NODE).is_some(), "the server has not stored it");
        behind.of(NODE).unwrap().settle(number, 0);
        behind.tidy(NODE);
        assert!(behind.of(NODE).is_none());
    }

    #[test]
    fn who_is_not_alone_is_not_taken() {
        let (behind, file) = (behind(), open());
        let room = Arc::clone(&behind.room).try_acquire_many_owned(1).unwrap();
        let outcome =
            behind.begin(NODE).write(&file, (0, b"x"), room, || false, |_| panic!("nothing begins"));
        assert_eq!(outcome.taken, Taken::NotAlone);
        behind.tidy(NODE);
        assert!(behind.of(NODE).is_none());
    }

    #[tokio::test]
    async fn whoever_waits_is_told_when_all_before_is_there() {
        let (behind, file) = (behind(), open());
        write(&behind, &file, 0, b"a");
        let first = write(&behind, &file, 10, b"b").parts.remove(0);
        let written = behind.of(NODE).unwrap();
        let (second, last) = written.send_tail(None);
        let waiting = tokio::spawn({
            let written = Arc::clone(&written);
            async move { written.settled(last).await }
        });
        tokio::task::yield_now().await;
        written.settle(second.unwrap().number, 10);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        // What comes later is not waited for.
        write(&behind, &file, 20, b"c");
        written.settle(first.number, 0);
        waiting.await.unwrap();
    }
}
