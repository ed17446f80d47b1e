use super::*;
use crate::ranges::RangeSet;

const NODE: u64 = 7;
const TERM: Duration = Duration::from_secs(20);

fn attr(node: u64, size: u64) -> Attr {
    Attr { node, size, ..Attr::default() }
}

fn grant(serial: u64) -> [Grant; 1] {
    [Grant { node: NODE, serial }]
}

/// A cache whose leases hold, and that knows a node.
fn cache() -> Cache {
    cache_of(3)
}

/// The same, with room for so many blocks.
fn cache_of(blocks: usize) -> Cache {
    let mut cache = Cache::new(blocks * BLOCK_BYTES);
    cache.renewed(0, TERM);
    cache.told(NODE);
    cache.tell(NODE);
    cache
}

/// Asks what the node is, and is answered at once.
fn learn(cache: &mut Cache, serial: u64, size: u64) {
    let turn = cache.begin();
    cache.granted(turn, &grant(serial));
    cache.keep_attr(turn, attr(NODE, size));
    cache.end(turn);
}

#[test]
fn what_was_learnt_under_a_lease_is_known_until_it_is_broken_or_over() {
    let mut cache = cache();
    learn(&mut cache, 1, 5);
    assert_eq!(cache.attr(0, NODE), Some(attr(NODE, 5)));
    assert_eq!(cache.attr(TERM.as_nanos() as Nanos, NODE), None);
    cache.renewed(1, TERM);
    assert!(cache.attr(TERM.as_nanos() as Nanos, NODE).is_some());
    cache.broken(grant(1)[0]);
    assert_eq!(cache.attr(0, NODE), None);
}

#[test]
fn a_lease_that_was_broken_on_its_way_is_not_taken() {
    let mut cache = cache();
    let turn = cache.begin();
    cache.broken(grant(1)[0]);
    cache.granted(turn, &grant(1));
    cache.keep_attr(turn, attr(NODE, 5));
    cache.end(turn);
    assert_eq!(cache.attr(0, NODE), None);
    assert!(cache.broken.is_empty(), "nobody can bring it any more");
    learn(&mut cache, 2, 6);
    assert_eq!(cache.attr(0, NODE), Some(attr(NODE, 6)));
}

#[test]
fn an_old_answer_is_not_kept_under_a_newer_lease() {
    let mut cache = cache();
    learn(&mut cache, 1, 5);
    let old = cache.begin();
    cache.broken(grant(1)[0]);
    learn(&mut cache, 2, 9);
    // It was read before the change that broke the first lease.
    cache.keep_attr(old, attr(NODE, 5));
    cache.keep_block(old, NODE, 0, Bytes::from_static(b"old"));
    cache.end(old);
    assert_eq!(cache.attr(0, NODE), Some(attr(NODE, 9)));
    assert_eq!(cache.block(0, NODE, 0), None);
}

#[test]
fn nothing_is_kept_that_was_asked_before_a_change_of_one_s_own() {
    let mut cache = cache();
    learn(&mut cache, 1, 5);
    let before = cache.begin();
    let change = OwnChange::of_bytes(NODE, 0, 3);
    cache.begin_change(&[change]);
    assert_eq!(cache.attr(0, NODE), None, "nor is anything known meanwhile");
    let during = cache.begin();
    cache.end_change(&[change]);
    for turn in [before, during] {
        cache.keep_attr(turn, attr(NODE, 5));
        assert_eq!(cache.attr(0, NODE), None);
    }
    // Nor when the node was forgotten and found anew in between.
    cache.forget(NODE, 1);
    cache.told(NODE);
    cache.tell(NODE);
    cache.granted(before, &grant(2));
    cache.keep_attr(before, attr(NODE, 5));
    assert_eq!(cache.attr(0, NODE), None);
    cache.end(before);
    cache.end(during);
    learn(&mut cache, 2, 3);
    assert!(cache.attr(0, NODE).is_some());
}

#[test]
fn the_last_block_of_a_file_that_has_grown_is_not_all_there_is() {
    let mut cache = cache();
    learn(&mut cache, 1, 600);
    let turn = cache.begin();
    cache.keep_block(turn, NODE, 0, vec![1; 600].into());
    assert!(cache.block(0, NODE, 0).is_some());
    let change = OwnChange::of_bytes(NODE, 3 << 20, 4 << 20);
    cache.begin_change(&[change]);
    cache.end_change(&[change]);
    learn(&mut cache, 1, 4 << 20);
    assert_eq!(cache.block(0, NODE, 0), None);
    // One that comes late and short is of no use either.
    let turn = cache.begin();
    cache.keep_block(turn, NODE, 0, vec![1; 600].into());
    assert_eq!(cache.block(0, NODE, 0), None);
}

#[test]
fn blocks_make_room_for_others() {
    let mut cache = cache();
    learn(&mut cache, 1, 100 << 20);
    let turn = cache.begin();
    for place in 0..4 {
        cache.keep_block(turn, NODE, place, vec![1; BLOCK_BYTES].into());
        if place == 2 {
            assert!(cache.block(0, NODE, 0).is_some(), "used last");
        }
    }
    let here: Vec<u64> = (0..4).filter(|place| cache.block(0, NODE, *place).is_some()).collect();
    assert_eq!((here, cache.bytes), (vec![0, 2, 3], 3 * BLOCK_BYTES));
    cache.forget(NODE, 1);
    assert_eq!((cache.bytes, cache.by_use.len()), (0, 0));
    assert_eq!(cache.take_forgotten(10), [(NODE, 1)]);
}

#[test]
fn what_was_written_alone_is_kept_until_it_is_changed_or_shared() {
    let mut cache = cache();
    learn(&mut cache, 1, 2 << 20);
    let data = Bytes::from(vec![1; BLOCK_BYTES]);
    let write = |cache: &mut Cache, lease, offset: u64| {
        let alone = cache.begin_part(NODE, offset);
        let begun = Begun { alone, times: 1 };
        cache.end_part(NODE, (offset, offset + data.len() as u64), begun, Some((lease, &data)));
        learn(cache, 1, 2 << 20);
    };
    write(&mut cache, 1, 0);
    write(&mut cache, 1, BLOCK_BYTES as u64);
    assert!(cache.block(0, NODE, 0).is_some() && cache.block(0, NODE, 1).is_some());
    // The block after one that comes to the server is as it was.
    write(&mut cache, 1, 0);
    assert!(cache.block(0, NODE, 0).is_some() && cache.block(0, NODE, 1).is_some());
    // Written elsewhere in the second.
    write(&mut cache, 1, BLOCK_BYTES as u64 + 5);
    assert!(cache.block(0, NODE, 0).is_some() && cache.block(0, NODE, 1).is_none());
    write(&mut cache, 7, BLOCK_BYTES as u64);
    assert!(cache.block(0, NODE, 1).is_none(), "by another lease");
    // Beside a change that may have come first or last.
    for begins_before in [true, false] {
        let change = OwnChange::of_bytes(NODE, 5 << 20, 6 << 20);
        let alone = if begins_before {
            cache.begin_change(&[change]);
            cache.begin_part(NODE, 0)
        } else {
            let alone = cache.begin_part(NODE, 0);
            cache.begin_change(&[change]);
            alone
        };
        cache.end_change(&[change]);
        cache.end_part(NODE, (0, BLOCK_BYTES as u64), Begun { alone, times: 1 }, Some((1, &data)));
        learn(&mut cache, 1, 2 << 20);
        assert!(cache.block(0, NODE, 0).is_none());
    }
    cache.broken(grant(1)[0]);
    write(&mut cache, 1, 0);
    assert!(cache.block(0, NODE, 0).is_none());
}

#[test]
fn what_a_file_is_after_a_write_is_kept_if_nothing_else_has_changed() {
    let begun = |times| Begun { alone: None, times };
    let written = |beside: fn(&mut Cache), lease| {
        let mut cache = cache();
        learn(&mut cache, 1, 0);
        // Two tails that were joined.
        cache.begin_part(NODE, 0);
        cache.begin_part(NODE, 3);
        let part = cache.parts_under_way(NODE, 1, 2).unwrap();
        beside(&mut cache);
        cache.end_part(NODE, (0, 5), begun(2), None);
        cache.keep_written(part, lease, attr(NODE, 5));
        cache.attr(0, NODE)
    };
    assert_eq!(written(|_| {}, 1), Some(attr(NODE, 5)));
    assert_eq!(written(|_| {}, 2), None, "written under another lease");
    assert_eq!(written(|cache| cache.broken(grant(1)[0]), 1), None);
    assert_eq!(written(|cache| cache.begin_change(&[OwnChange::of(NODE)]), 1), None);
    let other = |cache: &mut Cache| {
        cache.begin_part(NODE, 9);
        cache.end_part(NODE, (9, 10), Begun { alone: None, times: 1 }, None);
    };
    assert_eq!(written(other, 1), None, "it may have been stored first or last");
}

#[test]
fn what_the_server_answers_after_one_s_own_writes_is_kept_if_nothing_else_has_changed() {
    let end = |cache: &mut Cache| {
        let begun = Begun { alone: None, times: 1 };
        cache.end_part(NODE, (0, 5), begun, None);
    };
    let other = OwnChange::of(NODE);
    // What happens beside two parts between the question and its answer, and whether that is kept.
    type Beside = fn(&mut Cache);
    let ways: [(Beside, bool); 6] = [
        (|_| {}, true),
        (|cache| cache.broken(grant(1)[0]), false),
        (
            |cache| {
                let other = OwnChange::of(NODE);
                cache.begin_change(&[other]);
                cache.end_change(&[other]);
            },
            false,
        ),
        (
            |cache| {
                cache.begin_part(NODE, 9);
                cache.end_part(NODE, (9, 10), Begun { alone: None, times: 1 }, None);
            },
            false,
        ),
        (
            |cache| {
                cache.begin_part(NODE, 9);
            },
            false,
        ),
        // Nobody here uses it any more; and it is found anew.
        (
            |cache| {
                cache.forget(NODE, 1);
                cache.told(NODE);
                cache.tell(NODE);
                cache.broken(grant(1)[0]);
            },
            false,
        ),
    ];
    for (way, (beside, is_kept)) in ways.into_iter().enumerate() {
        let mut cache = cache();
        learn(&mut cache, 1, 0);
        cache.begin_part(NODE, 0);
        cache.begin_part(NODE, 3);
        let parts = cache.parts_under_way(NODE, 2, 2);
        assert!(parts.is_some());
        let turn = cache.begin_after(parts);
        end(&mut cache);
        // Before the answer of one of them, and after.
        beside(&mut cache);
        end(&mut cache);
        cache.granted(turn, &grant(1));
        cache.keep_attr(turn, attr(NODE, 5));
        cache.end(turn);
        assert_eq!(cache.attr(0, NODE).is_some(), is_kept, "{way}");
    }
    // An answer before the parts' own.
    let mut cache = cache();
    learn(&mut cache, 1, 0);
    cache.begin_part(NODE, 0);
    let turn = cache.begin_after(cache.parts_under_way(NODE, 1, 1));
    cache.keep_attr(turn, attr(NODE, 5));
    assert_eq!(cache.attr(0, NODE), None);
    end(&mut cache);
    assert_eq!(cache.attr(0, NODE), None);
    // Something else was being changed when the question was asked.
    cache.begin_part(NODE, 0);
    cache.begin_change(&[other]);
    assert_eq!(cache.parts_under_way(NODE, 1, 1), None);
}

#[test]
fn nothing_is_known_when_the_session_is_over_but_where_nodes_are() {
    let mut cache = cache();
    learn(&mut cache, 1, 5);
    let (under_way, name) = (cache.begin(), Bytes::from_static(b"n"));
    cache.keep_block(under_way, NODE, 0, Bytes::from_static(b"bytes"));
    let chain = [(NODE, TOP), (8, NODE), (9, 8), (10, 11), (11, 10), (12, 99)];
    for (node, parent) in chain {
        cache.told(node);
        cache.found_at(node, parent, name.clone());
    }
    cache.told(13); // nobody knows where it is
    cache.session_lost();
    assert_eq!((cache.attr(0, NODE), cache.bytes()), (None, 0));
    cache.renewed(0, TERM);
    // An answer of the session before.
    cache.granted(under_way, &grant(1));
    cache.keep_attr(under_way, attr(NODE, 5));
    assert_eq!(cache.attr(0, NODE), None);
    let places = cache.places();
    let nodes: Vec<Vec<_>> =
        places.iter().map(|level| level.iter().map(|place| (place.node, place.times)).collect()).collect();
    assert_eq!(nodes, [vec![(NODE, 2)], vec![(8, 1)], vec![(9, 1)]]);
    learn(&mut cache, 1, 5);
    assert!(cache.attr(0, NODE).is_some(), "the next server's leases are good");
}

#[test]
fn names_are_known_with_what_they_lead_to() {
    let mut cache = cache();
    let turn = cache.begin();
    cache.granted(turn, &[Grant { node: TOP, serial: 1 }, Grant { node: NODE, serial: 2 }]);
    cache.keep_attr(turn, attr(NODE, 5));
    cache.keep_name(turn, TOP, Bytes::from_static(b"n"), Some(NODE));
    cache.keep_name(turn, TOP, Bytes::from_static(b"absent"), None);
    cache.end(turn);
    assert_eq!(cache.look_up(0, TOP, b"n"), Some(Some(attr(NODE, 5))));
    assert_eq!(cache.look_up(0, TOP, b"absent"), Some(None));
    assert_eq!(cache.look_up(0, TOP, b"other"), None, "that is not known");
    let change = OwnChange::of_name(TOP, b"absent");
    cache.begin_change(&[change]);
    cache.end_change(&[change]);
    assert_eq!(cache.look_up(0, TOP, b"absent"), None);
    assert!(cache.look_up(0, TOP, b"n").is_some(), "other names are as they were");
    // All of a directory: what is not there is known, also when one of its names has been changed here.
    let entry = |name: &'static str, attr| Listed { name: name.into(), attr, ..Listed::default() };
    let turn = cache.begin();
    let listing = vec![entry(".", None), entry("n", Some(attr(NODE, 5))), entry("hidden", None)];
    cache.keep_attr(turn, attr(NODE, 5));
    assert!(cache.keep_listing(turn, TOP, Arc::new(listing)));
    cache.end(turn);
    assert_eq!(cache.look_up(0, TOP, b"absent"), Some(None));
    assert_eq!(cache.look_up(0, TOP, b"hidden"), None, "it cannot be looked at");
    cache.begin_change(&[change]);
    cache.end_change(&[change]);
    assert_eq!(cache.look_up(0, TOP, b"absent"), None);
    assert_eq!(cache.look_up(0, TOP, b"other"), Some(None));
    let turn = cache.begin();
    cache.keep_name(turn, TOP, Bytes::from_static(b"absent"), None);
    cache.end(turn);
    assert_eq!(cache.look_up(0, TOP, b"absent"), Some(None));
    cache.broken(Grant { node: NODE, serial: 2 });
    assert_eq!(cache.look_up(0, TOP, b"n"), None);
}

#[test]
fn a_name_that_was_taken_away_here_is_known_to_be_gone() {
    let held = || {
        let mut cache = cache();
        let turn = cache.begin();
        cache.granted(turn, &[Grant { node: TOP, serial: 1 }]);
        cache.end(turn);
        cache
    };
    let (old, new) = (OwnChange::of_name(TOP, b"old"), OwnChange::of_name(TOP, b"new"));
    let gone = Bytes::from_static(b"old");
    // One change may be of two names of a directory.
    let mut cache = held();
    cache.begin_change(&[old, new]);
    cache.end_change(&[old, new]);
    cache.keep_changed_name(TOP, gone.clone(), None);
    assert_eq!(cache.look_up(0, TOP, b"old"), Some(None));
    assert_eq!(cache.look_up(0, TOP, b"new"), None);
    // Nor is it unknown what was put there.
    cache.keep_changed_name(TOP, Bytes::from_static(b"new"), Some(NODE));
    let turn = cache.begin();
    cache.granted(turn, &grant(2));
    cache.keep_attr(turn, attr(NODE, 5));
    cache.end(turn);
    assert_eq!(cache.look_up(0, TOP, b"new"), Some(Some(attr(NODE, 5))));
    // Another change here may have come first or last.
    for ends_first in [true, false] {
        let mut cache = held();
        cache.begin_change(&[old]);
        cache.begin_change(&[old]);
        cache.end_change(&[old]);
        if ends_first {
            cache.keep_changed_name(TOP, gone.clone(), None);
        }
        cache.end_change(&[old]);
        if !ends_first {
            cache.keep_changed_name(TOP, gone.clone(), None);
        }
        assert_eq!(cache.look_up(0, TOP, b"old"), None, "{ends_first}");
    }
    // Somebody else has made it again, and this client has a new lease already.
    let mut cache = held();
    cache.begin_change(&[old]);
    cache.broken(Grant { node: TOP, serial: 1 });
    let turn = cache.begin();
    cache.granted(turn, &[Grant { node: TOP, serial: 2 }]);
    cache.end(turn);
    cache.end_change(&[old]);
    cache.keep_changed_name(TOP, gone, None);
    assert_eq!(cache.look_up(0, TOP, b"old"), None);
}

#[test]
fn a_listing_is_known_without_the_names_that_were_taken_away_here() {
    let mut cache = cache();
    let turn = cache.begin();
    cache.granted(turn, &[Grant { node: TOP, serial: 1 }, Grant { node: NODE, serial: 2 }]);
    cache.keep_attr(turn, attr(NODE, 5));
    let entry = |name: &'static str, attr| Listed { name: name.into(), attr, ..Listed::default() };
    let listing = vec![entry(".", None), entry("n", Some(attr(NODE, 5))), entry("old", None)];
    assert!(cache.keep_listing(turn, TOP, Arc::new(listing)));
    cache.end(turn);
    let names = |cache: &mut Cache| {
        let listing = cache.listing(0, TOP)?;
        Some(listing.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>())
    };
    assert_eq!(names(&mut cache).unwrap(), [".", "n", "old"]);
    // As a program's lock file.
    let lock = Bytes::from_static(b"lock");
    let change = [OwnChange::of_name(TOP, b"lock")];
    cache.begin_change(&change);
    assert!(names(&mut cache).is_none());
    cache.end_change(&change);
    cache.keep_changed(Some(attr(TOP, 7)));
    assert_eq!(cache.attr(0, TOP), Some(attr(TOP, 7)));
    assert!(names(&mut cache).is_none(), "where it is in the order is not known");
    cache.begin_change(&change);
    cache.end_change(&change);
    cache.keep_changed_name(TOP, lock, None);
    assert_eq!(cache.attr(0, TOP), None, "the server has not told");
    assert_eq!(names(&mut cache).unwrap(), [".", "n", "old"]);
    let change = [OwnChange::of_name(TOP, b"old")];
    cache.begin_change(&change);
    cache.end_change(&change);
    cache.keep_changed_name(TOP, Bytes::from_static(b"old"), None);
    assert_eq!(names(&mut cache).unwrap(), [".", "n"]);
    // Somebody else changes it: nothing of that is told as one's own.
    cache.begin_change(&change);
    cache.broken(Grant { node: TOP, serial: 1 });
    cache.end_change(&change);
    cache.keep_changed(Some(attr(TOP, 8)));
    cache.keep_changed(Some(attr(99, 8)));
    assert_eq!((cache.attr(0, TOP), names(&mut cache)), (None, None));
}

#[test]
fn blocks_that_have_to_make_room_soon_are_told_in_the_order_of_use() {
    let mut cache = cache_of(16);
    learn(&mut cache, 1, 100 << 20);
    let turn = cache.begin();
    let leaving = |cache: &Cache, least| {
        let mut used = 0;
        let next = || {
            let leaving = cache.leaves_after(used, least, |_, place| place != 5)?;
            used = leaving.used;
            Some((leaving.node, leaving.place))
        };
        std::iter::from_fn(next).collect::<Vec<_>>()
    };
    for place in 0..14 {
        assert_eq!(leaving(&cache, 0), [], "there is room");
        cache.keep_block(turn, NODE, place, vec![1; BLOCK_BYTES].into());
    }
    cache.block(0, NODE, 0);
    cache.keep_block(turn, NODE, 14, vec![1; BLOCK_BYTES].into());
    assert_eq!(leaving(&cache, 100 << 20), [(NODE, 1), (NODE, 2)]);
    assert_eq!(leaving(&cache, (100 << 20) + 1), [], "of long files alone");
    // What is written takes room, too.
    cache.set_taken(2 * BLOCK_BYTES);
    assert_eq!(leaving(&cache, 0), [(NODE, 2), (NODE, 3)]);
    // And that is left out which nobody wants.
    cache.block(0, NODE, 2);
    cache.block(0, NODE, 3);
    assert_eq!(leaving(&cache, 0), [(NODE, 4)]);
    cache.broken(grant(1)[0]);
    assert_eq!(leaving(&cache, 0), []);
}

#[test]
fn a_long_file_is_here_if_next_to_nothing_is_missing() {
    let mut cache = cache_of(100);
    learn(&mut cache, 1, 16 << 20);
    let turn = cache.begin();
    for place in 0..13 {
        cache.keep_block(turn, NODE, place, vec![1; BLOCK_BYTES].into());
    }
    let is_here = |cache: &Cache, least, elsewhere: &[u64]| {
        let mut ranges = RangeSet::default();
        for place in elsewhere {
            ranges.insert(place << 20, (place + 1) << 20);
        }
        cache.is_here(0, NODE, least, &ranges)
    };
    assert!(!is_here(&cache, 16 << 20, &[]), "three of sixteen are missing");
    assert!(!is_here(&cache, 16 << 20, &[3]));
    assert!(is_here(&cache, 16 << 20, &[15]));
    let mut parts = RangeSet::default();
    parts.insert((14 << 20) + 1, (16 << 20) - 1);
    assert!(!cache.is_here(0, NODE, 16 << 20, &parts), "no whole block");
    parts.insert(0, u64::MAX);
    assert!(cache.is_here(0, NODE, 16 << 20, &parts));
    assert!(!is_here(&cache, (16 << 20) + 1, &[13, 14, 15]), "it is short");
    // As long as a file may be: what is there is counted, and not what is missing.
    learn(&mut cache, 2, u64::MAX);
    assert!(!is_here(&cache, 16 << 20, &[13, 14, 15]));
    cache.broken(grant(2)[0]);
    assert!(!is_here(&cache, 16 << 20, &(0..16).collect::<Vec<_>>()), "nobody knows what is in it");
}
