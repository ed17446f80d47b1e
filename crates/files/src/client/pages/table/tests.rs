//! Of pages on their way to the kernel, one case at a time; all orders of them are tried in [`super::super::tests`].

use super::*;

const NODE: u64 = 7;

/// A table with a lease on shared pages of the node.
fn leased() -> Table {
    let mut table = Table::default();
    let seen = table.see(NODE, 0, false);
    assert_eq!(table.granted(NODE, seen, 1, false).lease, Some(1));
    table
}

#[test]
fn what_was_stored_beside_a_page_that_was_asked_for_in_vain_is_given() {
    let mut table = leased();
    let store = table.stores(NODE, 0..8192, true).unwrap();
    let page = table.comes(NODE, 4096..8192);
    table.came(NODE, page); // it could not be read: the store fills it
    table.came(NODE, store);
    assert!(table.given(NODE).unwrap().contains(0, 8192));
}

#[test]
fn nothing_is_stored_where_somebody_waits_for_a_page() {
    let mut table = leased();
    let page = table.comes(NODE, 4096..12288);
    assert_eq!(table.stores(NODE, 0..8192, true), None);
    assert!(table.stores(NODE, 12288..16384, true).is_some());
    table.came(NODE, page);
    assert!(table.stores(NODE, 0..8192, true).is_some());
}

#[test]
fn nobody_knows_what_was_given_in_too_many_ranges() {
    let mut table = leased();
    for page in 0..=PAGES_GIVEN_MAX as u64 {
        assert!(table.given(NODE).is_some());
        let bytes = page * 8192..page * 8192 + 4096;
        let store = table.stores(NODE, bytes, true).unwrap();
        table.came(NODE, store);
    }
    assert!(table.given(NODE).is_none() && table.keeps(NODE, &(4096..8192)));
}

#[test]
fn what_is_written_by_way_of_pages_leaves_others_known() {
    let mut table = leased();
    table.opened_for_writing(NODE, true);
    let page = table.comes(NODE, 0..8192);
    let seen = table.see(NODE, page, false);
    assert!(table.may_fill(0, NODE, seen, false, true));
    // That it has come is not noted yet.
    assert!(!table.has_in_pages(NODE, &(0..4096), 4096));
    let (drops, _) = table.drops(NODE, 0..4096);
    let number = table.writes_dropped(NODE, &(0..4096), &[(drops, true)]).unwrap();
    table.written(NODE, number);
    table.came(NODE, page);
    assert!(table.keeps(NODE, &(4096..8192)) && !table.keeps(NODE, &(0..4096)));
    // Another that is asked for is not there.
    table.comes(NODE, 0..4096);
    table.has_in_pages(NODE, &(0..4096), 4096);
    assert!(!table.given(NODE).unwrap().overlaps(0, 4096));
}

#[test]
fn pages_that_are_written_in_part_are_given_back_and_not_read() {
    let mut table = Table::default();
    table.opened_for_writing(NODE, true);
    assert!(table.has_in_pages(NODE, &(0..100), 4096) && table.has_in_pages(NODE, &(8192..12288), 4096));
    assert!(!table.keeps(NODE, &(0..4096)), "nobody waits for a write that is under way");
    table.stays_in_pages(NODE, &(0..100), 4096);
    assert!(table.keeps(NODE, &(4000..4096)) && !table.keeps(NODE, &(4096..8192)));
    // They need no lease of their own as long as the file's is there, and go with it.
    assert_eq!(table.expired(0), [NODE]);
    assert!(table.expired(0).is_empty(), "it is being done");
    let pass = table.begin_pass(0, NODE, true).unwrap();
    assert_eq!(pass.iter().collect::<Vec<_>>(), [(0, 4096), (8192, 12288)]);
    assert!(!table.end_pass(NODE, Waits::Nobody));
    assert!(table.lease_broken(0, NODE).is_none() && table.expired(0).is_empty());
}

#[test]
fn pages_that_come_again_while_they_are_dropped_are_dropped_once_more() {
    let mut table = leased();
    let drops = [0..4096, 4096..8192].map(|pages| table.drops(NODE, pages).0);
    let page = table.comes(NODE, 0..4096);
    let seen = table.see(NODE, page, false);
    assert!(table.may_fill(0, NODE, seen, false, true));
    table.came(NODE, page);
    let number = table.writes_dropped(NODE, &(4096..8192), &[(drops[1], true)]).unwrap();
    assert_eq!(table.writes_dropped(NODE, &(0..8192), &[(drops[0], true)]), None);
    table.written(NODE, number);
    // What is not known to have gone may be there.
    let (drops, _) = table.drops(NODE, 0..4096);
    let number = table.writes_dropped(NODE, &(0..4096), &[(drops, false)]).unwrap();
    assert!(table.keeps(NODE, &(0..4096)));
    // Nothing of it is filled while it is written.
    let page = table.comes(NODE, 0..4096);
    let seen = table.see(NODE, page, false);
    assert!(!table.may_fill(0, NODE, seen, false, true));
    table.written(NODE, number);
    let seen = table.see(NODE, page, false);
    assert!(table.may_fill(0, NODE, seen, false, true));
}

#[test]
fn a_long_file_is_stored_where_its_pages_are_not_there_when_it_is_made() {
    let (mut table, block, whole) = (leased(), BLOCK, LONG_BYTES);
    table.opened_for_writing(NODE, true);
    assert!(table.has_in_pages(NODE, &(0..3 * block), 4096));
    assert!(table.has_in_pages(NODE, &(3 * block..whole - 1), 4096));
    let last = whole / block - 1;
    assert!(!table.has_written(NODE, last), "its pages are written to");
    assert_eq!(table.stores(NODE, 3 * block..4 * block, true), None);
    assert!(!table.is_made(NODE, whole));
    table.closed_for_writing(NODE, true);
    assert!(table.is_made(NODE, whole));
    let chosen: Vec<u64> = std::iter::from_fn(|| table.next_store(NODE)).collect();
    assert_eq!(chosen, (3..=last).collect::<Vec<_>>());
    assert!(table.stores(NODE, 3 * block..4 * block, true).is_some());
}

#[test]
fn a_file_that_is_written_in_too_many_places_has_no_end() {
    let mut table = leased();
    table.opened_for_writing(NODE, true);
    assert_eq!(table.given_up_to(NODE), 0);
    for page in 0..PAGES_GIVEN_MAX as u64 {
        assert!(table.has_in_pages(NODE, &(page * 8192..page * 8192 + 4096), 4096));
        assert_eq!(table.given_up_to(NODE), page * 8192 + 4096);
    }
    assert!(table.has_in_pages(NODE, &(1 << 40..(1 << 40) + 4096), 4096));
    assert_eq!(table.given_up_to(NODE), 0);
}

#[test]
fn pages_that_the_server_does_not_wait_for_are_filled_under_a_lease_alone() {
    let (mut table, late) = (leased(), LATE.as_nanos() as Nanos);
    let has = |table: &mut Table| {
        let page = table.comes(NODE, 0..4096);
        let seen = table.see(NODE, page, false);
        (page, seen, table.may_fill(late, NODE, seen, false, true))
    };
    assert!(has(&mut table).2);
    // A program opens it for writing, and another mount takes the lease.
    assert!(table.returns(0, NODE));
    let (_, waits) = table.broken(0, Grant { node: NODE, serial: 1 }).unwrap();
    let (page, seen, is_filled) = has(&mut table);
    assert!(seen.is_owed && is_filled, "nobody changes it before it is given back");
    table.came(NODE, page);
    table.begin_pass(0, NODE, true).unwrap();
    assert!(!table.end_pass(NODE, waits));
    let (page, seen, is_filled) = has(&mut table);
    assert!(!seen.is_owed && !is_filled, "others may have changed it");
    let seen = table.granted(NODE, seen, 2, false);
    assert!(table.may_fill(late, NODE, seen, false, true));
    table.came(NODE, page);
    table.begin_pass(0, NODE, false).unwrap();
    assert!(!table.end_pass(NODE, Waits::Nobody) && table.is_leased(NODE));
}

#[test]
fn no_server_waits_for_what_was_owed_to_the_one_before() {
    let mut table = leased();
    let (_, waits) = table.broken(0, Grant { node: NODE, serial: 1 }).unwrap();
    assert!(table.see(NODE, 0, false).is_owed);
    table.session_lost(0);
    assert!(!table.see(NODE, 0, false).is_owed);
    let (_, new) = table.broken(0, Grant { node: NODE, serial: 2 }).unwrap();
    assert!(!table.end_pass(NODE, waits) && table.see(NODE, 0, false).is_owed);
    assert!(!table.end_pass(NODE, new) && !table.see(NODE, 0, false).is_owed);
}
