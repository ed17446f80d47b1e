use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn extent(object: u64, offset: u64, length: u64) -> Extent {
    Extent { object, offset, length, whole: false }
}

#[test]
fn pieces_cover_the_extent_in_order_and_end_aligned() {
    let mut s = Scheduler::new(MIB as u32);
    s.add_lane(1);
    s.set_lane_rate(1, 100 * MIB);
    s.push(extent(7, 1000, 10 * MIB)).unwrap();
    let mut next = 1000;
    while let Some(piece) = s.take(1, 0) {
        assert_eq!((piece.object, piece.offset), (7, next));
        next += u64::from(piece.length);
        assert!(next % ALIGNMENT as u64 == 0 || next == 1000 + 10 * MIB);
    }
    assert_eq!(next, 1000 + 10 * MIB);
    assert_eq!((s.waiting_bytes(), s.under_way_bytes()), (0, 10 * MIB));
}

#[test]
fn what_was_asked_for_first_goes_first_however_the_requests_came() {
    let mut s = Scheduler::new(PIECE_BYTES_MIN);
    s.add_lane(1);
    let piece = u64::from(PIECE_BYTES_MIN);
    for object in [2, 1, 5, 3, 4] {
        s.push_in_turn(extent(object, 0, 2 * piece)).unwrap();
    }
    let mut objects = Vec::new();
    objects.extend((0..5).filter_map(|_| s.take(1, 0)).map(|piece| piece.object));
    // A request that comes late goes before what is left of a later one.
    s.push_in_turn(extent(0, 0, piece)).unwrap();
    objects.extend(std::iter::from_fn(|| s.take(1, 0)).map(|piece| piece.object));
    assert_eq!(objects, [1, 1, 2, 2, 3, 0, 3, 4, 4, 5, 5]);
    assert_eq!((s.waiting_bytes(), s.under_way_bytes()), (0, 11 * piece));
}

#[test]
fn a_lost_lane_s_pieces_go_first_again_in_their_order() {
    let mut s = Scheduler::new(PIECE_BYTES_MIN);
    s.add_lane(1);
    s.add_lane(2);
    s.push(extent(1, 0, MIB)).unwrap();
    let (a, b, c) = (s.take(1, 0).unwrap(), s.take(2, 0).unwrap(), s.take(1, 0).unwrap());
    assert_eq!(s.on_lane_lost(1), u64::from(a.length + c.length));
    assert_eq!(s.take(1, 0), None, "a lost lane takes nothing");
    assert_eq!([s.take(2, 0), s.take(2, 0)], [Some(a), Some(c)]);
    assert_eq!(s.on_stored(b.number, 1), Some(b));
    assert_eq!(s.on_stored(b.number, 2), None, "delivered once");
}

#[test]
fn an_overdue_piece_is_hedged_once_by_an_idle_lane() {
    let mut s = Scheduler::new(PIECE_BYTES_MIN);
    for lane in 1..=3 {
        s.add_lane(lane);
    }
    s.push(extent(1, 0, u64::from(PIECE_BYTES_MIN))).unwrap();
    let piece = s.take(1, 0).unwrap();
    let second = 1_000_000_000;
    assert_eq!(s.take(2, second / 10), None, "not overdue");
    assert_eq!(s.take(1, second), None, "not by its own lane");
    assert_eq!(s.take(2, second), Some(piece));
    assert_eq!(s.take(3, second), None, "once");
    assert_eq!(s.on_lane_lost(1), 0, "the other copy is under way");
    assert_eq!(s.on_stored(piece.number, second), Some(piece));
    assert!(s.lane_is_idle(2));
}

#[test]
fn a_whole_extent_is_not_cut() {
    let mut s = Scheduler::new(PIECE_BYTES_MIN);
    s.add_lane(1);
    s.push(Extent { whole: true, ..extent(1, 0, FRAME_PAYLOAD_MAX as u64) }).unwrap();
    assert_eq!(s.take(1, 0).unwrap().length as usize, FRAME_PAYLOAD_MAX);
}

#[test]
fn a_cancelled_object_is_forgotten() {
    let mut s = Scheduler::new(PIECE_BYTES_MIN);
    s.add_lane(1);
    s.push(extent(1, 0, MIB)).unwrap();
    s.push(extent(2, 0, 10)).unwrap();
    let piece = s.take(1, 0).unwrap();
    s.cancel(1);
    assert_eq!(s.waiting_bytes(), 10);
    assert_eq!(s.take(1, 0).unwrap().object, 2);
    assert_eq!(s.on_declined(piece.number), Some(piece));
}

#[test]
fn the_queue_is_bounded() {
    let mut s = Scheduler::new(PIECE_BYTES_MIN);
    for _ in 0..EXTENTS_WAITING_MAX {
        s.push(extent(1, 0, 1)).unwrap();
    }
    assert_eq!(s.push(extent(1, 0, 1)), Err(QueueFull));
}

/// Lanes of given rates (bytes/s) and one latency carry `total` bytes; says when the last one was stored.
fn simulate(rates: &[u64], total: u64, latency_ns: u64) -> u64 {
    let mut s = Scheduler::new(MIB as u32);
    s.push(extent(1, 0, total)).unwrap();
    // (negative time, lane, number or "has room")
    let mut events: BinaryHeap<(std::cmp::Reverse<u64>, usize, Option<u64>)> = BinaryHeap::new();
    for (lane, &rate) in rates.iter().enumerate() {
        s.add_lane(lane as u64);
        s.set_lane_rate(lane as u64, rate);
        events.push((std::cmp::Reverse(0), lane, None));
    }
    let (mut delivered, mut last) = (0, 0);
    while let Some((std::cmp::Reverse(now), lane, event)) = events.pop() {
        match event {
            Some(number) => {
                if let Some(piece) = s.on_stored(number, now) {
                    delivered += u64::from(piece.length);
                    last = now;
                }
                if delivered == total {
                    return last;
                }
            }
            None => match s.take(lane as u64, now) {
                Some(piece) => {
                    let sent = now + u64::from(piece.length) * 1_000_000_000 / rates[lane];
                    events.push((std::cmp::Reverse(sent), lane, None));
                    events.push((std::cmp::Reverse(sent + latency_ns), lane, Some(piece.number)));
                }
                // Asks again as the driver's tick does.
                None => events.push((std::cmp::Reverse(now + 100_000_000), lane, None)),
            },
        }
    }
    unreachable!("{delivered} of {total} delivered");
}

#[test]
fn unequal_lanes_end_within_five_percent_of_the_ideal() {
    for rates in [&[10, 10, 10, 10][..], &[100, 10], &[120, 60, 30, 15, 1], &[50; 32]] {
        let rates: Vec<u64> = rates.iter().map(|r| r * 1_000_000).collect();
        let total = 2_000_000_000;
        let latency = 200_000_000;
        let ideal = total as f64 / rates.iter().sum::<u64>() as f64 + latency as f64 / 1e9;
        let took = simulate(&rates, total, latency) as f64 / 1e9;
        assert!(took < ideal * 1.05, "{rates:?}: {took} s, ideal {ideal} s");
    }
}

#[test]
fn a_stalled_lane_does_not_hold_up_the_end() {
    // The second lane takes a piece and needs 1000 s for it.
    let took = simulate(&[100_000_000, 70], 1_000_000_000, 50_000_000) as f64 / 1e9;
    assert!(took < 13.0, "{took}");
}

/// 16 lanes take what a writer brings 1 MiB at a time, who is no faster than they: how long the pieces are.
fn pieces_of_a_short_queue(lane_rate: u64) -> Vec<u32> {
    let mut s = Scheduler::new(MIB as u32);
    for lane in 0..16 {
        s.add_lane(lane);
        s.set_lane_rate(lane, lane_rate);
    }
    let mut lengths = Vec::new();
    for written in 0..16 {
        s.push(extent(1, written * MIB, MIB)).unwrap();
        while s.waiting_bytes() > 0 {
            lengths.push(s.take(lengths.len() as u64 % 16, 0).unwrap().length);
        }
    }
    lengths
}

#[test]
fn fast_lanes_take_long_pieces_though_little_waits() {
    // 10 Gbit/s
    assert_eq!(pieces_of_a_short_queue(78_000_000), [FRAME_PAYLOAD_MAX as u32; 64]);
    // 1 Gbit/s
    assert_eq!(pieces_of_a_short_queue(7_800_000), [PIECE_BYTES_MIN; 256]);
}

proptest! {
    /// Random takes, answers, losses and returns of lanes: every byte is delivered exactly once.
    #[test]
    fn every_byte_is_delivered_exactly_once(
        extents in prop::collection::vec((0u64..5, 0u64..1 << 30, 1u64..3_000_000), 1..20),
        steps in prop::collection::vec((0u8..10, 0u64..6, any::<prop::sample::Index>()), 0..400),
    ) {
        let mut s = Scheduler::new(MIB as u32);
        // Objects get disjoint extents, so that coverage can be counted.
        let mut next = [0u64; 5];
        let mut total = 0;
        for (object, gap, length) in extents {
            let offset = next[object as usize] + gap;
            next[object as usize] = offset + length;
            total += length;
            s.push(extent(object, offset, length)).unwrap();
        }
        let mut flying: Vec<(u64, Piece)> = Vec::new();
        let mut delivered: Vec<Piece> = Vec::new();
        let mut now = 0;
        let mut step = |s: &mut Scheduler, action: u8, lane: u64, pick: usize| {
            now += 50_000_000;
            match action {
                0 => {
                    s.on_lane_lost(lane);
                    // Copies on a lost lane may still arrive: the peer's answer came on another way, or not at all.
                    if pick.is_multiple_of(2) { flying.retain(|(l, _)| *l != lane); }
                }
                1 | 2 => s.add_lane(lane),
                3 => s.set_lane_rate(lane, pick as u64 * 1000),
                4..=6 => flying.extend(s.take(lane, now).map(|p| (lane, p))),
                _ => if !flying.is_empty() {
                    let (_, piece) = flying.swap_remove(pick % flying.len());
                    delivered.extend(s.on_stored(piece.number, now));
                }
            }
            flying.is_empty()
        };
        for (action, lane, pick) in steps {
            step(&mut s, action, lane, pick.index(1000));
        }
        // Then all goes well: one fresh lane and every other one gone.
        for lane in 0..6 { step(&mut s, 0, lane, 0); }
        step(&mut s, 1, 9, 0);
        for _ in 0..100_000 {
            step(&mut s, 4, 9, 0);
            let idle = step(&mut s, 9, 9, 0);
            if idle && s.waiting_bytes() == 0 && s.under_way_bytes() == 0 { break; }
        }
        prop_assert_eq!((s.waiting_bytes(), s.under_way_bytes()), (0, 0));
        delivered.sort_by_key(|p| (p.object, p.offset));
        let disjoint = delivered.windows(2).all(|w| {
            w[0].object < w[1].object || w[0].offset + u64::from(w[0].length) <= w[1].offset
        });
        prop_assert!(disjoint);
        prop_assert_eq!(delivered.iter().map(|p| u64::from(p.length)).sum::<u64>(), total);
    }
}

#[test]
fn a_lane_carries_a_bounded_number_of_pieces() {
    let mut scheduler = Scheduler::new(1 << 20);
    scheduler.add_lane(1);
    for object in 0..=LANE_PIECES_MAX as u64 {
        scheduler.push(Extent { object, offset: 0, length: 1, whole: true }).unwrap();
        let taken = scheduler.take(1, 0);
        assert_eq!(taken.is_some(), object < LANE_PIECES_MAX as u64, "{object}");
    }
    scheduler.on_stored(0, 1).unwrap();
    assert_eq!(scheduler.take(1, 1).unwrap().object, LANE_PIECES_MAX as u64);
}
