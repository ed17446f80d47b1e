//! Bytes that have been written here and are not at the server yet.
//!
//! ```text
//! write(2) -> tail: grows as long as writes follow each other -> a part under way -> stored by the server
//!                   sent when it is a block, has waited long enough, makes room for others, or is asked for
//! ```
//!
//! A block need not be whole before some of it is sent: while little of the file is under way, a tail's beginning goes ahead as a
//! piece. The last part of the block waits for what has become of its pieces, and is what the block is kept with.
//!
//! The kernel cuts a long write(2) to pieces, which overtake each other, and need not begin where blocks do: so a file has several tails,
//! which are joined where they meet.
//!
//! Only of files that this client has to itself (an exclusive lease), so that nobody can miss them. Parts under way never
//! overlap: the lanes keep no order. What goes wrong with a part is told to whoever writes to, syncs or closes the open
//! file next.

mod pace;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::cache::PartsUnderWay;
use super::memory::{Buffer, Memory, SMALL_BYTES};
use super::open_files::OpenFile;
use super::{Nanos, lock};
use crate::limits::{INLINE_BYTES_MAX, PARTS_UNDER_WAY_MAX, TAILS_MAX, WRITE_PART_BYTES, WRITE_PIECE_BYTES};
use crate::message::Order;
use pace::Pace;

/// All of a client's.
#[derive(Debug)]
pub(super) struct Behind {
    nodes: Mutex<HashMap<u64, Arc<Written>>>,
    /// Bytes that there may be more.
    pub(super) room: Arc<Semaphore>,
    /// Parts that may be sent at a time.
    pub(super) turns: Semaphore,
    pub(super) bytes_max: usize,
    memory: Arc<Memory>,
    /// Bytes of parts that have been sent, or wait for their turn.
    pub(super) sending: AtomicUsize,
    /// Writes that were.
    pub(super) taken: AtomicU64,
}

/// What has been written to a file, and is not at the server.
#[derive(Debug)]
pub(super) struct Written {
    memory: Arc<Memory>,
    state: Mutex<State>,
    /// A part has been settled.
    settled: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest first. They do not overlap.
    tails: VecDeque<Tail>,
    /// Parts that have been sent, by where they begin: up to, and number. They do not overlap.
    under_way: BTreeMap<u64, (u64, u64)>,
    bytes_under_way: usize,
    numbers: BTreeSet<u64>,
    last: u64,
    pace: Pace,
}

/// Writes that follow each other, and wait for more.
#[derive(Debug)]
struct Tail {
    number: u64,
    file: Arc<OpenFile>,
    offset: u64,
    data: Buffer,
    begun: Begun,
    room: Option<OwnedSemaphorePermit>,
    /// Bytes at its beginning that have gone ahead, and what will have become of each piece of them.
    sent: usize,
    pieces: Vec<Settles>,
}

/// Whether a piece has been stored.
pub(super) type Settles = oneshot::Receiver<bool>;

/// What the cache said when the changes of a part began, and how many these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Begun {
    pub(super) alone: Option<u64>,
    pub(super) times: u32,
}

impl Begun {
    /// With so many more that have begun.
    fn and(self, alone: Option<u64>, times: u32) -> Self {
        Self { alone: self.alone.filter(|_| self.alone == alone), times: self.times + times }
    }
}

impl Tail {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }

    fn append(&mut self, data: &[u8], room: Option<OwnedSemaphorePermit>) {
        self.data.append(data);
        match (&mut self.room, room) {
            (Some(room), Some(more)) => room.merge(more),
            (room, more) => *room = room.take().or(more),
        }
    }
}

/// A part to be sent.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) number: u64,
    pub(super) file: Arc<OpenFile>,
    pub(super) offset: u64,
    pub(super) data: Bytes,
    pub(super) begun: Begun,
    pub(super) room: Option<OwnedSemaphorePermit>,
    pub(super) of_block: OfBlock,
}

/// What a part is of its block.
#[derive(Debug)]
pub(super) enum OfBlock {
    /// All that there is to be known of it.
    Alone,
    /// A piece that has gone ahead; the last part is told whether it has been stored.
    Piece(oneshot::Sender<bool>),
    /// What comes after those pieces, and all of the block.
    Last { block: Bytes, pieces: Vec<Settles> },
}

/// What has been written to a file, and is sent together with what is asked next, which comes after it.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) node: u64,
    pub(super) written: Arc<Written>,
    /// The number of the last part.
    pub(super) last: u64,
    /// Of what is asked.
    pub(super) order: Order,
    /// The parts, as the cache knows them.
    pub(super) parts: Option<PartsUnderWay>,
    /// How often something had been stored of the file that its disk need not have, before.
    pub(super) unsynced: u64,
    pub(super) arrived: Arc<Arrived>,
}

/// What has become of parts.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// How many the server has stored.
    pub(super) stored: AtomicU64,
    /// The last session in which it has answered one.
    pub(super) session: AtomicU64,
}

impl Ahead {
    pub(super) fn is_settled(&self) -> bool {
        self.written.is_settled(self.last)
    }

    pub(super) async fn settled(&self) {
        self.written.settled(self.last).await;
    }
}

/// What is written.
#[derive(Debug)]
pub(super) enum Source<'a> {
    /// In memory that is used for something else then.
    Lent(&'a [u8]),
    /// In memory that may be kept; empty when it was.
    Given(&'a mut Buffer),
}

impl Source<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Given(bytes) => bytes,
        }
    }

    /// The first bytes of a tail.
    fn begin(&mut self, from: usize, to: usize, memory: &Arc<Memory>) -> Buffer {
        match self {
            Self::Given(bytes) if to - from == bytes.len() && bytes.len() >= SMALL_BYTES => bytes.take(),
            _ => memory.buffer(&self.bytes()[from..to]),
        }
    }
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
    /// Tails of these numbers have begun: they are to be sent after a while.
    pub(super) begun: Vec<u64>,
}

impl Behind {
    pub(super) fn new(bytes_max: usize, memory: Arc<Memory>) -> Self {
        let bytes_max = bytes_max.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Self {
            nodes: Mutex::default(),
            room: Arc::new(Semaphore::new(bytes_max)),
            turns: Semaphore::new(PARTS_UNDER_WAY_MAX),
            sending: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            bytes_max,
            memory,
        }
    }

    /// Of a file, if there is something.
    pub(super) fn of(&self, node: u64) -> Option<Arc<Written>> {
        lock(&self.nodes).get(&node).cloned()
    }

    /// Of a file, where something is about to be written.
    pub(super) fn begin(&self, node: u64) -> Arc<Written> {
        let nothing =
            || Written { memory: Arc::clone(&self.memory), state: Mutex::default(), settled: Notify::new() };
        Arc::clone(lock(&self.nodes).entry(node).or_insert_with(|| Arc::new(nothing())))
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
        state.tails.is_empty() && state.under_way.is_empty()
    }

    /// Takes a write and the room that it has, if it does. `may`: the file is this client's alone; nobody takes it away
    /// between that and the write being here. `begins`: bytes from a place on begin to be changed; what it says goes with
    /// the part.
    pub(super) fn write(
        &self,
        file: &Arc<OpenFile>,
        (offset, mut source): (u64, Source<'_>),
        mut room: OwnedSemaphorePermit,
        may: impl FnOnce() -> bool,
        mut begins: impl FnMut(u64) -> Option<u64>,
    ) -> Outcome {
        let mut state = self.state();
        let mut outcome = Outcome { taken: Taken::NotAlone, parts: Vec::new(), begun: Vec::new() };
        if !may() {
            return outcome;
        }
        let length = source.bytes().len();
        let end = offset + length as u64;
        if state.under_way.range(..end).next_back().is_some_and(|(_, &(to, _))| offset < to) {
            return Outcome { taken: Taken::Overlaps, ..outcome };
        }
        outcome.taken = Taken::Yes;
        if let Some(tail) = state.tails.iter_mut().find(|tail| offset < tail.end() && tail.offset < end) {
            let is_inside = tail.offset + tail.sent as u64 <= offset && end <= tail.end();
            if !Arc::ptr_eq(&tail.file, file) || !is_inside {
                return Outcome { taken: Taken::Overlaps, parts: state.send_tails(), ..outcome };
            }
            let at = (offset - tail.offset) as usize;
            tail.data[at..at + length].copy_from_slice(source.bytes());
            return outcome;
        }
        // Parts end where blocks do.
        let mut from = 0;
        while from < length {
            let at = offset + from as u64;
            let to_boundary = WRITE_PART_BYTES - (at % WRITE_PART_BYTES as u64) as usize;
            let to = length.min(from + to_boundary);
            let is_inside = to_boundary < WRITE_PART_BYTES;
            let goes_on = |tail: &Tail| is_inside && tail.end() == at && Arc::ptr_eq(&tail.file, file);
            let number = if let Some(tail) = state.tails.iter_mut().find(|tail| goes_on(tail)) {
                // It costs no more than its bytes.
                tail.append(&source.bytes()[from..to], room.split(to - from));
                tail.number
            } else {
                let of_piece = if to == length { room.num_permits() } else { to - from };
                let room = room.split(of_piece);
                if state.tails.len() >= TAILS_MAX {
                    outcome.parts.extend(state.send(0));
                }
                let number = state.begin(file, at, source.begin(from, to, &self.memory), begins(at), room);
                outcome.begun.push(number);
                number
            };
            outcome.parts.extend(state.join(number));
            outcome.parts.extend(state.send_ahead(number, &mut begins));
            from = to;
        }
        outcome.begun.retain(|begun| state.tails.iter().any(|tail| tail.number == *begun));
        outcome
    }

    /// All tails, or only that of this number, to be sent; all up to the number that comes with them is under way then.
    pub(super) fn send_tails(&self, only: Option<u64>) -> (Vec<Part>, u64) {
        let mut state = self.state();
        let parts = match only {
            None => state.send_tails(),
            Some(only) => {
                let place = state.tails.iter().position(|tail| tail.number == only);
                place.and_then(|place| state.send(place)).into_iter().collect()
            }
        };
        (parts, state.last)
    }

    /// All tails, where each of them is short, and nothing else is under way; and the number of the last.
    pub(super) fn send_short_tails(&self) -> Option<(Vec<Part>, u64)> {
        let mut state = self.state();
        let are_all = state.under_way.is_empty() && !state.tails.is_empty();
        let are_short = state.tails.iter().all(|tail| tail.data.len() <= INLINE_BYTES_MAX);
        (are_all && are_short).then(|| (state.send_tails(), state.last))
    }

    /// See [`Pace::is_above`], of this file.
    pub(super) fn is_faster_than(&self, rate: u64, now: Nanos, bytes: usize) -> bool {
        self.state().pace.is_above(rate, now, bytes)
    }

    /// A part has been stored, or will not be.
    pub(super) fn settle(&self, number: u64, offset: u64) {
        let mut state = self.state();
        if let Some((end, _)) = state.under_way.remove(&offset) {
            state.bytes_under_way -= (end - offset) as usize;
        }
        state.numbers.remove(&number);
        drop(state);
        self.settled.notify_waiters();
    }

    /// Whether no part up to this one is under way.
    fn is_settled(&self, number: u64) -> bool {
        self.state().numbers.first().is_none_or(|&first| first > number)
    }

    /// Waits for all parts up to this one.
    pub(super) async fn settled(&self, number: u64) {
        loop {
            let settled = self.settled.notified();
            if self.is_settled(number) {
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
        data: Buffer,
        alone: Option<u64>,
        room: Option<OwnedSemaphorePermit>,
    ) -> u64 {
        self.last += 1;
        let begun = Begun { alone, times: 1 };
        let (number, file, pieces) = (self.last, Arc::clone(file), Vec::new());
        self.tails.push_back(Tail { number, file, offset, data, begun, room, sent: 0, pieces });
        self.last
    }

    /// Joins a tail that has become longer with the one that it meets, and sends it if it is a block.
    fn join(&mut self, number: u64) -> Option<Part> {
        let place = self.tails.iter().position(|tail| tail.number == number)?;
        let (file, end) = (Arc::clone(&self.tails[place].file), self.tails[place].end());
        let is_inside = !end.is_multiple_of(WRITE_PART_BYTES as u64);
        let follows = |tail: &Tail| is_inside && tail.offset == end && Arc::ptr_eq(&tail.file, &file);
        let next = self.tails.iter().position(follows).and_then(|next| self.tails.remove(next));
        let place = self.tails.iter().position(|tail| tail.number == number)?;
        let tail = &mut self.tails[place];
        if let Some(Tail { data, begun, room, .. }) = next {
            tail.append(&data, room);
            tail.begun = tail.begun.and(begun.alone, begun.times);
        }
        (tail.data.len() == WRITE_PART_BYTES).then(|| self.send(place)).flatten()
    }

    fn send(&mut self, place: usize) -> Option<Part> {
        let Tail { number, file, offset, data, begun, room, sent, pieces } = self.tails.remove(place)?;
        let (block, offset) = (data.freeze(), offset + sent as u64);
        let data = block.slice(sent..);
        self.sets_off(number, offset, data.len());
        let of_block = if sent == 0 { OfBlock::Alone } else { OfBlock::Last { block, pieces } };
        Some(Part { number, file, offset, data, begun, room, of_block })
    }

    /// While less is under way than half of what a block's tail has, most of that goes ahead: else nothing would be until the block is
    /// whole. Something is left, which ends what has begun with it.
    fn send_ahead(&mut self, number: u64, begins: &mut impl FnMut(u64) -> Option<u64>) -> Option<Part> {
        let least = WRITE_PIECE_BYTES.max(self.bytes_under_way) * 2;
        let tail = self.tails.iter_mut().find(|tail| tail.number == number)?;
        let unsent = tail.data.len() - tail.sent;
        if unsent <= least || !tail.offset.is_multiple_of(WRITE_PART_BYTES as u64) {
            return None;
        }
        let (offset, from) = (tail.offset + tail.sent as u64, tail.sent);
        tail.sent += (unsent - 1) / WRITE_PIECE_BYTES * WRITE_PIECE_BYTES;
        let data = Bytes::copy_from_slice(&tail.data[from..tail.sent]);
        let (stored, settles) = oneshot::channel();
        tail.pieces.push(settles);
        let (begun, next) = (tail.begun, begins(tail.offset + tail.sent as u64));
        tail.begun = Begun { times: 0, ..begun }.and(next, 1);
        let file = Arc::clone(&tail.file);
        self.last += 1;
        let number = self.last;
        self.sets_off(number, offset, data.len());
        Some(Part { number, file, offset, data, begun, room: None, of_block: OfBlock::Piece(stored) })
    }

    fn sets_off(&mut self, number: u64, offset: u64, bytes: usize) {
        self.under_way.insert(offset, (offset + bytes as u64, number));
        self.bytes_under_way += bytes;
        self.numbers.insert(number);
    }

    fn send_tails(&mut self) -> Vec<Part> {
        std::iter::from_fn(|| self.send(0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::OFlags;

    use super::*;

    const NODE: u64 = 7;

    fn behind() -> Behind {
        Behind::new(16 << 20, Memory::new(0))
    }

    fn open() -> Arc<OpenFile> {
        Arc::new(OpenFile::new(1, NODE, OFlags::RDWR, None))
    }

    fn write(behind: &Behind, file: &Arc<OpenFile>, offset: u64, data: &[u8]) -> Outcome {
        let room = Arc::clone(&behind.room).try_acquire_many_owned(data.len() as u32).unwrap();
        behind.begin(NODE).write(file, (offset, Source::Lent(data)), room, || true, |_| None)
    }

    /// So much is under way that nothing goes ahead.
    fn busy(behind: &Behind) -> Arc<Written> {
        let written = behind.begin(NODE);
        written.state().bytes_under_way = WRITE_PART_BYTES;
        written
    }

    fn bytes(parts: &[Part]) -> Vec<(u64, &[u8])> {
        parts.iter().map(|part| (part.offset, &part.data[..])).collect()
    }

    #[test]
    fn writes_that_follow_each_other_are_one_part() {
        let (behind, file) = (behind(), open());
        let first = write(&behind, &file, 10, b"one");
        assert_eq!((first.taken, first.parts.len(), first.begun), (Taken::Yes, 0, vec![1]));
        assert_eq!(write(&behind, &file, 13, b"two").begun, []);
        // Written once more, inside.
        assert_eq!(write(&behind, &file, 12, b"ET").taken, Taken::Yes);
        let written = behind.of(NODE).unwrap();
        for number in 2..=TAILS_MAX as u64 {
            let elsewhere = write(&behind, &file, number * 100, b"x");
            assert_eq!((elsewhere.parts.len(), elsewhere.begun), (0, vec![number]));
        }
        // The oldest makes room.
        let one_more = write(&behind, &file, 1000, b"y");
        assert_eq!(bytes(&one_more.parts), [(10, &b"onETwo"[..])]);
        // Its time is over, and it has been sent.
        assert!(written.send_tails(Some(1)).0.is_empty());
        assert_eq!(bytes(&written.send_tails(Some(3)).0), [(300, &b"x"[..])]);
        let (tails, last) = written.send_tails(None);
        assert_eq!((tails.len(), last), (TAILS_MAX - 1, TAILS_MAX as u64 + 1));
    }

    #[test]
    fn pieces_that_overtake_each_other_are_blocks_all_the_same() {
        let (behind, file, block) = (behind(), open(), WRITE_PART_BYTES);
        let _written = busy(&behind);
        // As the kernel cuts a long write from memory that does not begin with a page.
        let odd = block - 16;
        let pieces: Vec<Vec<u8>> = (0..8_u8).map(|number| vec![number; odd]).collect();
        let (mut parts, mut begins) = (Vec::new(), 0);
        for number in [1, 0, 3, 2, 5, 4, 6, 7] {
            let room = Arc::clone(&behind.room).try_acquire_many_owned(odd as u32).unwrap();
            let piece = ((number * odd) as u64, Source::Lent(&pieces[number]));
            let begin = |_| {
                begins += 1;
                None
            };
            let outcome = behind.begin(NODE).write(&file, piece, room, || true, begin);
            assert_eq!(outcome.taken, Taken::Yes);
            parts.extend(outcome.parts);
        }
        let (rest, _) = behind.of(NODE).unwrap().send_tails(None);
        assert_eq!(rest.len(), 1);
        assert!(
            parts.iter().all(|part| part.data.len() == block && part.offset.is_multiple_of(block as u64))
        );
        let times: u32 = parts.iter().chain(&rest).map(|part| part.begun.times).sum();
        assert_eq!(times, begins, "each of them ends with its part");
        parts.extend(rest);
        parts.sort_by_key(|part| part.offset);
        let stored: Vec<u8> = parts.iter().flat_map(|part| part.data.iter().copied()).collect();
        assert!(stored == pieces.concat());
    }

    #[test]
    fn parts_end_where_blocks_do() {
        let (behind, file) = (behind(), open());
        let _written = busy(&behind);
        let block = WRITE_PART_BYTES;
        let half = vec![1; block / 2];
        assert!(write(&behind, &file, 0, &half).parts.is_empty());
        let sent = write(&behind, &file, half.len() as u64, &half);
        assert_eq!((sent.parts[0].offset, sent.parts[0].data.len(), sent.begun), (0, block, vec![]));
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
        let (rest, _) = behind.of(NODE).unwrap().send_tails(None);
        assert_eq!(rest[0].data.len(), block - 4 * 16);
        // One that is longer than a block, across two boundaries.
        let sent = write(&behind, &file, 20 * block as u64 - 1, &vec![3; block + 2]);
        let sizes: Vec<_> = sent.parts.iter().map(|part| part.data.len()).collect();
        assert_eq!((sizes, sent.begun.len()), (vec![block], 2));
        let (rest, _) = behind.of(NODE).unwrap().send_tails(None);
        let places: Vec<_> = rest.iter().map(|part| part.offset).collect();
        assert_eq!(places, [20 * block as u64 - 1, 21 * block as u64]);
    }

    #[test]
    fn a_block_goes_ahead_in_pieces_while_little_is_under_way() {
        const CALL: usize = 8 << 10;
        let (behind, file, block) = (behind(), open(), WRITE_PART_BYTES);
        let data: Vec<u8> = (0..2 * block).map(|at| (at / CALL) as u8).collect();
        let (mut parts, mut begins) = (Vec::new(), Vec::new());
        for (number, call) in data.chunks(CALL).enumerate() {
            let room = Arc::clone(&behind.room).try_acquire_many_owned(CALL as u32).unwrap();
            let begin = |from| {
                begins.push(from);
                Some(1)
            };
            let call = ((number * CALL) as u64, Source::Lent(call));
            let outcome = behind.begin(NODE).write(&file, call, room, || true, begin);
            assert_eq!(outcome.taken, Taken::Yes);
            parts.extend(outcome.parts);
        }
        let sizes: Vec<_> = parts.iter().map(|part| part.data.len() >> 10).collect();
        assert_eq!(sizes, [128, 256, 640, 1024], "each begins when twice as much is there as is under way");
        let sent: Vec<u8> = parts.iter().flat_map(|part| part.data.iter().copied()).collect();
        assert!(sent == data, "all of it, once, in order");
        assert_eq!(parts.iter().map(|part| part.begun.times as usize).sum::<usize>(), begins.len());
        assert!(parts.iter().all(|part| part.begun.alone == Some(1)));
        let kinds: Vec<_> = parts.into_iter().map(|part| part.of_block).collect();
        let [
            OfBlock::Piece(first),
            OfBlock::Piece(second),
            OfBlock::Last { block: whole, pieces },
            OfBlock::Alone,
        ] = <[_; 4]>::try_from(kinds).unwrap()
        else {
            panic!("two pieces, what is left, and a block")
        };
        assert!(whole == data[..block]);
        first.send(true).unwrap();
        second.send(false).unwrap();
        let settled: Vec<_> = pieces.into_iter().map(|mut piece| piece.try_recv()).collect();
        assert_eq!(settled, [Ok(true), Ok(false)]);
    }

    #[test]
    fn what_has_gone_ahead_is_not_changed_where_it_lies() {
        let (behind, file) = (behind(), open());
        let sent = write(&behind, &file, 0, &vec![1; 300 << 10]);
        let ahead = (256 << 10) as u64;
        assert_eq!(sent.parts.iter().map(|part| part.data.len() as u64).collect::<Vec<_>>(), [ahead]);
        let written = behind.of(NODE).unwrap();
        written.settle(sent.parts[0].number, 0);
        // What has not can be.
        let changed = write(&behind, &file, ahead, b"x");
        assert_eq!((changed.taken, changed.parts.len()), (Taken::Yes, 0));
        let again = write(&behind, &file, ahead - 1, b"yz");
        assert_eq!((again.taken, again.parts.len()), (Taken::Overlaps, 1));
        assert_eq!((again.parts[0].offset, &again.parts[0].data[..2]), (ahead, &b"x\x01"[..]));
        written.settle(again.parts[0].number, ahead);
        assert_eq!(write(&behind, &file, ahead - 1, b"yz").taken, Taken::Yes);
        assert_eq!(written.state().bytes_under_way, 0);
    }

    #[test]
    fn a_block_that_is_given_is_not_copied() {
        let (behind, file, block) = (behind(), open(), WRITE_PART_BYTES);
        let give = |offset: u64, data: &mut Buffer| {
            let room = Arc::clone(&behind.room).try_acquire_many_owned(data.len() as u32).unwrap();
            behind.begin(NODE).write(&file, (offset, Source::Given(data)), room, || true, |_| None)
        };
        let mut whole = behind.memory.buffer(&vec![1; block]);
        let place = whole.as_ptr();
        let sent = give(0, &mut whole);
        assert_eq!((sent.parts[0].data.as_ptr(), sent.parts[0].data.len()), (place, block));
        assert!(whole.is_empty());
        // Across a boundary: two tails.
        let mut odd = behind.memory.buffer(&vec![2; block]);
        let sent = give(2 * block as u64 - 7, &mut odd);
        assert_eq!((sent.parts.len(), sent.begun.len(), odd.len()), (0, 2, block));
        // What goes on is of one piece with it.
        let mut half = behind.memory.buffer(&vec![3; block / 2]);
        give(9 * block as u64, &mut half);
        let sent = write(&behind, &file, 9 * block as u64 + block as u64 / 2, &vec![4; block / 2]);
        assert_eq!(sent.parts[0].data[block / 2 - 1..=block / 2], [3, 4]);
        // Not taken, and still there.
        let mut again = behind.memory.buffer(&vec![5; block]);
        assert_eq!((give(9 * block as u64, &mut again).taken, again.len()), (Taken::Overlaps, block));
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
        let (parts, number) = behind.of(NODE).unwrap().send_tails(None);
        drop(parts);
        assert_eq!(behind.room.available_permits(), before);
        behind.tidy(NODE);
        assert!(behind.of(NODE).is_some(), "the server has not stored it");
        behind.of(NODE).unwrap().settle(number, 0);
        behind.tidy(NODE);
        assert!(behind.of(NODE).is_none());
    }

    #[test]
    fn what_is_short_and_all_there_is_may_be_sent_ahead() {
        let (behind, file) = (behind(), open());
        write(&behind, &file, 0, b"abc");
        write(&behind, &file, 10, b"def");
        let written = behind.of(NODE).unwrap();
        let (parts, last) = written.send_short_tails().unwrap();
        assert_eq!((bytes(&parts), last), (vec![(0, &b"abc"[..]), (10, &b"def"[..])], 2));
        write(&behind, &file, 20, b"ghi");
        assert!(written.send_short_tails().is_none(), "others are under way");
        let ahead = Ahead {
            node: NODE,
            written: Arc::clone(&written),
            last,
            order: Order { number: 1, after: 2 },
            parts: None,
            unsynced: 0,
            arrived: Arc::default(),
        };
        for part in parts {
            assert!(!ahead.is_settled());
            written.settle(part.number, part.offset);
        }
        assert!(ahead.is_settled(), "whatever has been written since");
        write(&behind, &file, 30, &vec![0; INLINE_BYTES_MAX + 1]);
        assert!(written.send_short_tails().is_none(), "one is long");
        assert_eq!(written.send_tails(None).0.len(), 2);
        let nothing = behind.begin(NODE + 1);
        assert!(nothing.send_short_tails().is_none());
    }

    #[test]
    fn who_is_not_alone_is_not_taken() {
        let (behind, file) = (behind(), open());
        let room = Arc::clone(&behind.room).try_acquire_many_owned(1).unwrap();
        let outcome = behind.begin(NODE).write(
            &file,
            (0, Source::Lent(b"x")),
            room,
            || false,
            |_| panic!("nothing begins"),
        );
        assert_eq!(outcome.taken, Taken::NotAlone);
        behind.tidy(NODE);
        assert!(behind.of(NODE).is_none());
    }

    #[tokio::test]
    async fn whoever_waits_is_told_when_all_before_is_there() {
        let (behind, file) = (behind(), open());
        write(&behind, &file, 0, b"a");
        write(&behind, &file, 10, b"b");
        let written = behind.of(NODE).unwrap();
        let first = written.send_tails(Some(1)).0.remove(0);
        let (mut rest, last) = written.send_tails(None);
        let second = rest.remove(0);
        let waiting = tokio::spawn({
            let written = Arc::clone(&written);
            async move { written.settled(last).await }
        });
        tokio::task::yield_now().await;
        written.settle(second.number, 10);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        // What comes later is not waited for.
        write(&behind, &file, 20, b"c");
        written.settle(first.number, 0);
        waiting.await.unwrap();
    }
}
