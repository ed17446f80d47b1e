//! Which lane carries which bytes. Pure: the caller passes `now`, and does what it is told.
//!
//! One queue of extents; **a lane that has room takes the next piece**, so unequal lanes and paths fill by
//! themselves. A piece stays with its lane until the peer has stored it. A lost lane's pieces go first again. When
//! nothing waits and a lane is idle, it may take over a piece that has been under way for long on another lane (a
//! *hedge*): the first copy that arrives counts.
//!
//! Invariants: every byte pushed and not cancelled is waiting, or under way on at least one lane, or delivered; it
//! is reported delivered exactly once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::limits::{ALIGNMENT, EXTENTS_WAITING_MAX, FRAME_PAYLOAD_MAX, LANE_PIECES_MAX, PIECE_BYTES_MIN};

/// Nanoseconds since an origin of the caller's choosing.
pub type Nanos = u64;

/// A lane's number within its session.
pub type LaneId = u64;

/// Consecutive bytes of an object of the application's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Whose bytes; the application's own numbering.
    pub object: u64,
    /// Where they begin.
    pub offset: u64,
    /// How many; not 0.
    pub length: u64,
    /// All of it must travel as one piece; then it is no longer than [`FRAME_PAYLOAD_MAX`].
    pub whole: bool,
}

/// What one lane carries at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its number in this session; a hedge has the number of the original.
    pub number: u64,
    /// As [`Extent::object`].
    pub object: u64,
    /// Where it begins in the object.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// It was an extent that must not be cut.
    pub whole: bool,
}

impl Piece {
    /// The same bytes as an extent.
    #[must_use]
    pub fn extent(&self) -> Extent {
        let Self { object, offset, length, whole, .. } = *self;
        Extent { object, offset, length: u64::from(length), whole }
    }
}

#[derive(Debug)]
struct UnderWay {
    piece: Piece,
    taken_at: Nanos,
    lanes: [Option<LaneId>; 2],
}

#[derive(Debug, Default)]
struct Lane {
    under_way: BTreeSet<u64>,
    rate_bytes_per_s: u64,
}

/// No more extents can wait; push again when some have been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue of extents is full")]
pub struct QueueFull;

/// The queue and what is under way.
#[derive(Debug)]
pub struct Scheduler {
    piece_bytes_max: u32,
    waiting: VecDeque<Extent>,
    waiting_bytes: u64,
    returned: VecDeque<Piece>,
    under_way: BTreeMap<u64, UnderWay>,
    under_way_bytes: u64,
    lanes: BTreeMap<LaneId, Lane>,
    next_number: u64,
    completion: Completion,
    delivered_bytes: u64,
    hedged_bytes: u64,
}

/// How long pieces take, as TCP estimates its round-trip time (RFC 6298).
#[derive(Debug, Default)]
struct Completion {
    mean_ns: f64,
    deviation_ns: f64,
}

impl Completion {
    fn add(&mut self, took: Nanos) {
        let took = took as f64;
        if self.mean_ns == 0.0 {
            (self.mean_ns, self.deviation_ns) = (took, took / 2.0);
        } else {
            self.deviation_ns += ((took - self.mean_ns).abs() - self.deviation_ns) / 4.0;
            self.mean_ns += (took - self.mean_ns) / 8.0;
        }
    }

    /// After so long a piece is overdue; never below half a second, which hardly delays an end.
    fn overdue_after(&self) -> Nanos {
        (self.mean_ns + 4.0 * self.deviation_ns).max(5e8) as Nanos
    }
}

/// Hedges may cost so much, and a sixteenth of what was delivered: a stall of one lane is far below it.
const HEDGED_BYTES_FREE: u64 = 16 << 20;

/// A piece shall keep its lane busy for about this long.
const PIECE_TIME: Duration = Duration::from_millis(100);

/// And need not be shorter than this for all lanes to end together: each piece costs both ends something of its own, and
/// short ones reach the disk by way of the page cache.
const PIECE_TIME_MIN: Duration = Duration::from_millis(4);

impl Scheduler {
    /// Nothing to do yet. Pieces are never longer than `piece_bytes_max`.
    #[must_use]
    pub fn new(piece_bytes_max: u32) -> Self {
        Self {
            piece_bytes_max: piece_bytes_max.max(PIECE_BYTES_MIN),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            returned: VecDeque::new(),
            under_way: BTreeMap::new(),
            under_way_bytes: 0,
            lanes: BTreeMap::new(),
            next_number: 0,
            completion: Completion::default(),
            delivered_bytes: 0,
            hedged_bytes: 0,
        }
    }

    /// Puts an extent at the end of the queue.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was queued.
    ///
    /// # Panics
    /// When a `whole` extent is too long for a frame.
    pub fn push(&mut self, extent: Extent) -> Result<(), QueueFull> {
        self.insert(self.waiting.len(), extent)
    }

    /// Likewise, but before those at the end whose objects have higher numbers: the peer, who has numbered what it asks for in
    /// the order in which it reads, waits for the lowest, and requests overtake each other.
    ///
    /// # Errors
    /// As of [`push`](Self::push).
    ///
    /// # Panics
    /// As [`push`](Self::push).
    pub fn push_in_turn(&mut self, extent: Extent) -> Result<(), QueueFull> {
        let later = self.waiting.iter().rev().take_while(|waiting| waiting.object > extent.object).count();
        self.insert(self.waiting.len() - later, extent)
    }

    fn insert(&mut self, place: usize, extent: Extent) -> Result<(), QueueFull> {
        if self.waiting.len() >= EXTENTS_WAITING_MAX {
            return Err(QueueFull);
        }
        assert!(!extent.whole || extent.length <= FRAME_PAYLOAD_MAX as u64, "{extent:?}");
        if extent.length > 0 {
            self.waiting_bytes += extent.length;
            self.waiting.insert(place, extent);
        }
        Ok(())
    }

    /// A lane may take pieces from now on.
    pub fn add_lane(&mut self, lane: LaneId) {
        self.lanes.entry(lane).or_default();
    }

    /// What the lane carries at present; sizes its next pieces.
    pub fn set_lane_rate(&mut self, lane: LaneId, bytes_per_s: u64) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.rate_bytes_per_s = bytes_per_s;
        }
    }

    /// The next piece for `lane`, which has room; `None` when there is nothing for it, or it carries
    /// [`LANE_PIECES_MAX`].
    pub fn take(&mut self, lane: LaneId, now: Nanos) -> Option<Piece> {
        if self.lanes.get(&lane).is_none_or(|lane| lane.under_way.len() >= LANE_PIECES_MAX) {
            return None;
        }
        let piece = match self.returned.pop_front() {
            Some(piece) => piece,
            None => match self.cut(lane) {
                Some(piece) => piece,
                None => return self.hedge(lane, now),
            },
        };
        self.under_way_bytes += u64::from(piece.length);
        self.under_way.insert(piece.number, UnderWay { piece, taken_at: now, lanes: [Some(lane), None] });
        self.lane_carries(lane, piece.number);
        Some(piece)
    }

    fn lane_carries(&mut self, lane: LaneId, number: u64) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.under_way.insert(number);
        }
    }

    /// Cuts the next piece off the first extent.
    fn cut(&mut self, lane: LaneId) -> Option<Piece> {
        let size = u64::from(self.piece_size(lane));
        let extent = self.waiting.front_mut()?;
        let mut length = if extent.whole { extent.length } else { size.min(extent.length) };
        // Pieces of a longer extent end where direct I/O can begin again.
        let tail = (extent.offset + length) % ALIGNMENT as u64;
        if length < extent.length && tail < length {
            length -= tail;
        }
        let number = self.next_number;
        self.next_number += 1;
        let Extent { object, offset, whole, .. } = *extent;
        let piece = Piece { number, object, offset, length: length as u32, whole };
        extent.offset += length;
        extent.length -= length;
        self.waiting_bytes -= length;
        if extent.length == 0 {
            self.waiting.pop_front();
        }
        Some(piece)
    }

    /// Long enough to keep the lane busy, short enough that all lanes end at about the same time.
    fn piece_size(&self, lane: LaneId) -> u32 {
        let rate = self.lanes.get(&lane).map_or(0, |l| l.rate_bytes_per_s);
        let by_rate = u128::from(rate) * PIECE_TIME.as_millis() / 1000;
        let by_rest = u128::from(self.waiting_bytes / (2 * self.lanes.len().max(1) as u64));
        // Nothing is known of a new lane: it gets the smallest.
        let least = u128::from(rate) * PIECE_TIME_MIN.as_millis() / 1000;
        let least =
            least.clamp(PIECE_BYTES_MIN.into(), self.piece_bytes_max.min(FRAME_PAYLOAD_MAX as u32).into());
        let size = by_rate.min(by_rest).clamp(least, self.piece_bytes_max.into());
        size as u32 / PIECE_BYTES_MIN * PIECE_BYTES_MIN
    }

    /// An overdue piece of another lane.
    fn hedge(&mut self, lane: LaneId, now: Nanos) -> Option<Piece> {
        if self.hedged_bytes > HEDGED_BYTES_FREE + self.delivered_bytes / 16 {
            return None;
        }
        let overdue = self.completion.overdue_after();
        let late = self.under_way.values_mut().find(|u| {
            u.lanes[1].is_none() && u.lanes[0] != Some(lane) && now.saturating_sub(u.taken_at) > overdue
        })?;
        late.lanes[1] = Some(lane);
        let piece = late.piece;
        self.hedged_bytes += u64::from(piece.length);
        self.lane_carries(lane, piece.number);
        Some(piece)
    }

    /// The peer has the piece, by way of any lane. `Some` the first time.
    pub fn on_stored(&mut self, number: u64, now: Nanos) -> Option<Piece> {
        let piece = self.finish(number, Some(now))?;
        self.delivered_bytes += u64::from(piece.length);
        Some(piece)
    }

    /// The peer, or the application here, does not want the piece any more. `Some` the first time.
    pub fn on_declined(&mut self, number: u64) -> Option<Piece> {
        self.finish(number, None)
    }

    fn finish(&mut self, number: u64, stored_at: Option<Nanos>) -> Option<Piece> {
        let done = self.under_way.remove(&number)?;
        self.under_way_bytes -= u64::from(done.piece.length);
        for lane in done.lanes.into_iter().flatten() {
            if let Some(lane) = self.lanes.get_mut(&lane) {
                lane.under_way.remove(&number);
            }
        }
        if let (Some(now), None) = (stored_at, done.lanes[1]) {
            self.completion.add(now.saturating_sub(done.taken_at));
        }
        Some(done.piece)
    }

    /// The lane is gone: what it carried alone goes first again. Says how many bytes that is.
    pub fn on_lane_lost(&mut self, lane: LaneId) -> u64 {
        let Some(lost) = self.lanes.remove(&lane) else { return 0 };
        let mut bytes = 0;
        for number in lost.under_way.into_iter().rev() {
            let Some(under_way) = self.under_way.get_mut(&number) else { continue };
            let others = under_way.lanes.map(|l| l.filter(|&l| l != lane));
            if let Some(other) = others.into_iter().flatten().next() {
                under_way.lanes = [Some(other), None];
                continue;
            }
            let piece = under_way.piece;
            self.under_way.remove(&number);
            self.under_way_bytes -= u64::from(piece.length);
            bytes += u64::from(piece.length);
            self.returned.push_front(piece);
        }
        bytes
    }

    /// Forgets what waits of an object; what is under way ends by itself.
    pub fn cancel(&mut self, object: u64) {
        let mut dropped = 0;
        self.waiting.retain(|e| {
            dropped += if e.object == object { e.length } else { 0 };
            e.object != object
        });
        self.waiting_bytes -= dropped;
        self.returned.retain(|p| p.object != object);
    }

    /// Bytes no lane has taken yet.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes + self.returned.iter().map(|p| u64::from(p.length)).sum::<u64>()
    }

    /// Whether [`push`](Self::push) has room for many.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.waiting.len() < EXTENTS_WAITING_MAX / 2
    }

    /// Bytes taken and not yet stored.
    #[must_use]
    pub fn under_way_bytes(&self) -> u64 {
        self.under_way_bytes
    }

    /// Whether the peer has stored all that `lane` has taken.
    #[must_use]
    pub fn lane_is_idle(&self, lane: LaneId) -> bool {
        self.lanes.get(&lane).is_none_or(|l| l.under_way.is_empty())
    }

    /// Bytes sent twice because a piece was overdue.
    #[must_use]
    pub fn hedged_bytes(&self) -> u64 {
        self.hedged_bytes
    }
}

#[cfg(test)]
mod tests;
