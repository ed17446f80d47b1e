use super::*;

const F: FileId = FileId { device: 1, inode: 1, born: 0 };

fn joined() -> Pages {
    let mut pages = Pages::default();
    (1..=3).for_each(|client| pages.join(client));
    pages
}

fn seconds(seconds: u64) -> Nanos {
    seconds * 1_000_000_000
}

/// Asks once, and ends what may be.
fn verdict(pages: &mut Pages, client: Client, what: Use) -> (Verdict, Vec<Break>) {
    let id = pages.begin(client, F, what);
    let (verdict, breaks) = pages.may_go(0, id);
    pages.end(id);
    (verdict, breaks)
}

fn map(pages: &mut Pages, client: Client, what: Use) -> Serial {
    match verdict(pages, client, what) {
        (Verdict::Go(serial), _) => serial,
        other => panic!("{other:?}"),
    }
}

#[test]
fn many_may_read_what_nobody_changes() {
    let mut pages = joined();
    let one = map(&mut pages, 1, Use::Map);
    assert_eq!(map(&mut pages, 1, Use::Map), one);
    let two = map(&mut pages, 2, Use::Map);
    assert_eq!(verdict(&mut pages, 3, Use::Look), (Verdict::Go(0), vec![]));
    // A change takes back what others have, and not one's own.
    let change = pages.begin(1, F, Use::Change);
    let (wait, breaks) = pages.may_go(0, change);
    assert_eq!((wait, breaks), (Verdict::Wait, vec![Break { client: 2, file: F, serial: two }]));
    assert_eq!(pages.may_go(0, change), (Verdict::Wait, vec![]), "it has been told");
    // Who is giving back gets what his kernel waits for; others wait for the change.
    assert_eq!(verdict(&mut pages, 2, Use::Map).0, Verdict::Returning);
    assert_eq!(verdict(&mut pages, 3, Use::Map).0, Verdict::Wait);
    pages.released(2, F, two);
    assert_eq!(pages.may_go(0, change).0, Verdict::Go(0));
    assert_eq!(verdict(&mut pages, 2, Use::Map).0, Verdict::Wait, "it is being made");
    assert!(!pages.end(change));
    assert!(map(&mut pages, 2, Use::Map) > two);
}

#[test]
fn a_write_takes_back_its_own_client_s_pages_too() {
    let mut pages = joined();
    let serial = map(&mut pages, 1, Use::Map);
    let write = pages.begin(1, F, Use::Write);
    assert_eq!(pages.may_go(0, write), (Verdict::Wait, vec![Break { client: 1, file: F, serial }]));
    // What comes back is written.
    assert_eq!(verdict(&mut pages, 1, Use::Change).0, Verdict::Go(0));
    pages.released(1, F, serial);
    assert_eq!(pages.may_go(0, write).0, Verdict::Go(0));
    assert_eq!(verdict(&mut pages, 1, Use::Map).0, Verdict::Wait);
    pages.end(write);
    map(&mut pages, 1, Use::Map);
}

#[test]
fn one_alone_may_write_to_memory() {
    let mut pages = joined();
    let one = map(&mut pages, 1, Use::Map);
    let id = pages.begin(2, F, Use::MapAlone);
    assert_eq!(pages.may_go(0, id), (Verdict::Wait, vec![Break { client: 1, file: F, serial: one }]));
    pages.released(1, F, one);
    let Verdict::Go(alone) = pages.may_go(0, id).0 else { panic!("nobody is in the way") };
    pages.end(id);
    assert_eq!(map(&mut pages, 2, Use::Map), alone, "it includes the other");
    assert!(pages.others_keep(1, F) && !pages.others_keep(2, F));
    // Whoever looks has it given back; its own writes, by which that is done, wait for nobody.
    let look = pages.begin(3, F, Use::Look);
    assert_eq!(pages.may_go(0, look).1.len(), 1);
    assert_eq!(verdict(&mut pages, 2, Use::Change).0, Verdict::Go(0));
    pages.gone(2);
    assert_eq!(pages.may_go(0, look).0, Verdict::Go(0));
    pages.end(look);
    assert_eq!(verdict(&mut pages, 2, Use::Map).0, Verdict::Returning, "it is over");
    assert!(pages.is_unused(F) && pages.unanswered.is_empty() && pages.of_wish.is_empty());
}

#[test]
fn who_asks_for_pages_alone_again_and_again_keeps_nobody_waiting() {
    for what in [Use::Look, Use::Map, Use::MapAlone] {
        let mut pages = joined();
        let alone = map(&mut pages, 1, Use::MapAlone);
        let waiting = pages.begin(2, F, what);
        assert_eq!(pages.may_go(0, waiting).0, Verdict::Wait);
        pages.released(1, F, alone);
        // It asks before the other has heard of that.
        let again = pages.begin(1, F, Use::MapAlone);
        assert_eq!(pages.may_go(0, again).0, Verdict::Wait, "{what:?} came first");
        assert!(matches!(pages.may_go(0, waiting).0, Verdict::Go(_)), "{what:?}");
        // Then it is its turn, though the other is not at its end.
        let (verdict, breaks) = pages.may_go(0, again);
        match what {
            Use::Look => assert!(matches!(verdict, Verdict::Go(_))),
            _ => assert_eq!((verdict, breaks.len()), (Verdict::Wait, 1)),
        }
        breaks.iter().for_each(|broken| pages.released(broken.client, F, broken.serial));
        assert!(matches!(pages.may_go(0, again).0, Verdict::Go(_)));
    }
}

#[test]
fn those_who_share_pages_do_not_keep_them_from_who_wants_them_alone() {
    let mut pages = joined();
    let shared = [1, 2].map(|client| map(&mut pages, client, Use::Map));
    let alone = pages.begin(3, F, Use::MapAlone);
    assert_eq!(pages.may_go(0, alone).1.len(), 2);
    pages.released(1, F, shared[0]);
    assert_eq!(verdict(&mut pages, 1, Use::Map).0, Verdict::Wait);
    pages.released(2, F, shared[1]);
    assert!(matches!(pages.may_go(0, alone).0, Verdict::Go(_)));
    // Whoever only looks is in nobody's way, though he waits.
    let look = pages.begin(1, F, Use::Look);
    assert_eq!(pages.may_go(0, look).1.len(), 1);
    pages.gone(3);
    map(&mut pages, 2, Use::Map);
    assert_eq!(pages.may_go(0, look).0, Verdict::Go(0));
    // Who has given up does not wait.
    pages.join(3);
    let (alone, again) = (pages.begin(3, F, Use::MapAlone), pages.begin(3, F, Use::Map));
    assert_eq!(pages.may_go(0, alone).0, Verdict::Wait);
    assert!(matches!(pages.may_go(0, again).0, Verdict::Go(_)), "one's own wishes are in nobody's way");
    assert_eq!(verdict(&mut pages, 1, Use::Map).0, Verdict::Wait);
    assert!(pages.end(alone));
    map(&mut pages, 1, Use::Map);
}

#[test]
fn who_has_pages_to_read_may_get_them_to_write() {
    let mut pages = joined();
    let read = map(&mut pages, 1, Use::Map);
    let write = map(&mut pages, 1, Use::MapAlone);
    assert!(write > read);
    pages.released(1, F, read);
    assert!(pages.others_keep(2, F), "a late word of the first");
}

#[test]
fn who_does_not_give_back_is_fenced() {
    let mut pages = joined();
    map(&mut pages, 1, Use::MapAlone);
    let look = pages.begin(2, F, Use::Look);
    pages.may_go(seconds(100), look);
    assert!(pages.may_renew(seconds(104), 1) && !pages.may_renew(seconds(106), 1));
    pages.progress(seconds(110), 1);
    assert!(pages.may_renew(seconds(114), 1) && pages.to_fence(seconds(139)).is_empty());
    assert_eq!(pages.to_fence(seconds(141)), BTreeSet::from([1]));
    pages.gone(1);
    assert_eq!(pages.may_go(seconds(141), look).0, Verdict::Go(0));
}

#[test]
fn changes_that_nobody_asked_for_take_all_back() {
    let mut pages = joined();
    map(&mut pages, 1, Use::Map);
    map(&mut pages, 2, Use::Map);
    pages.begin(1, FileId { inode: 2, ..F }, Use::Look);
    assert_eq!(pages.all(), [F]);
    assert_eq!(pages.noticed(0, [F, F]).len(), 2);
    assert_eq!(pages.noticed(0, [F]).len(), 0);
}
