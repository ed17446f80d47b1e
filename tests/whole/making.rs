//! Files that are made here, and are written by way of the kernel's pages.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;

use crate::mapping::Mapping;
use crate::mounting::Mounted;
use crate::stage::{Need, Stage};

const PAGE: usize = 4096;
const PAGES: usize = 16;

/// Pages of words that are all the same.
fn pages(value: u64, count: usize) -> Vec<u8> {
    value.to_ne_bytes().repeat(count * PAGE / 8)
}

/// The first word of a page.
fn word_of(mapping: &Mapping, page: usize) -> u64 {
    mapping.get(page * PAGE / 8)
}

fn word_at(file: &File, page: usize) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, (page * PAGE) as u64).unwrap();
    u64::from_ne_bytes(bytes)
}

fn set_word_at(file: &File, page: usize, value: u64) {
    file.write_all_at(&value.to_ne_bytes(), (page * PAGE) as u64).unwrap();
}

#[test]
fn what_is_made_is_in_pages_at_once_and_shows_no_past() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let _server = stage.serve();
    let [one, other] = ["one", "other"].map(|name| Mounted::new(&stage, name, &[]));
    let mut made = File::create(one.path("f")).unwrap();
    // Before there is anything: who maps a file has pages of before dropped.
    let reader = File::open(one.path("f")).unwrap();
    let mapped = Mapping::new(&reader, PAGES * PAGE, false);
    made.write_all(&pages(1, PAGES)).unwrap();
    assert_eq!(mapped.pages_there(), PAGES, "nobody has read any");
    assert!((0..PAGES).all(|page| word_of(&mapped, page) == 1));
    // Others see them, and change them: from then on the file is nobody's alone.
    let others = File::options().read(true).write(true).open(other.path("f")).unwrap();
    let mut newest = 1;
    for turn in 0..40 {
        let page = turn * 7 % PAGES;
        assert_eq!(word_at(&others, page), word_of(&mapped, page));
        newest += 1;
        set_word_at(&others, page, newest);
        assert_eq!(word_of(&mapped, page), newest);
        // A whole page, with parts of those beside it.
        newest += 1;
        let at = (page * PAGE).saturating_sub(turn * 64);
        made.write_all_at(&pages(newest, 2), at as u64).unwrap();
        assert_eq!((word_of(&mapped, page), word_at(&others, page)), (newest, newest));
        newest += 1;
        set_word_at(&others, page, newest);
        assert_eq!((word_of(&mapped, page), word_at(&reader, page)), (newest, newest));
    }
    // What was written is in no pages that nobody answers for.
    for turn in 0..10 {
        let page = turn * 3 % PAGES;
        set_word_at(&others, page, newest + 1);
        made.write_all_at(&pages(newest + 2, 1), (page * PAGE) as u64).unwrap();
        newest += 3;
        set_word_at(&others, page, newest);
        assert_eq!(word_of(&mapped, page), newest);
    }
    // Nobody else has it open for a while.
    drop(others);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    for value in [1001, 1002] {
        made.write_all_at(&pages(value, PAGES), 0).unwrap();
        assert!((0..PAGES).all(|page| word_of(&mapped, page) == value));
    }
    drop(made);
    let others = File::options().read(true).write(true).open(other.path("f")).unwrap();
    assert_eq!(word_at(&others, 5), 1002);
    set_word_at(&others, 5, 1003);
    assert_eq!((word_of(&mapped, 5), word_of(&mapped, 6)), (1003, 1002));
    drop((mapped, reader, others));
    one.stop_having_written(1);
    other.stop_having_written(0);
}

#[test]
fn who_makes_a_file_may_have_company() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let _server = stage.serve();
    let [one, other] = ["one", "other"].map(|name| Mounted::new(&stage, name, &[]));
    let mut made = File::create(one.path("f")).unwrap();
    made.write_all(&pages(1, PAGES)).unwrap();
    // One who writes to it in memory, and one who writes past the pages.
    let both = File::options().read(true).write(true).open(one.path("f")).unwrap();
    let mapped = Mapping::new(&both, PAGES * PAGE, true);
    let past = File::options().write(true).open(one.path("f")).unwrap();
    let mut newest = 1;
    for turn in 0..40 {
        let page = turn * 5 % PAGES;
        let shown = |newest: u64, who: &str| {
            let seen = (word_of(&mapped, page), word_at(&both, page));
            assert_eq!(seen, (newest, newest), "{who}, in turn {turn}");
            if turn % 4 == 0 {
                let others = File::open(other.path("f")).unwrap();
                assert_eq!(word_at(&others, page), newest, "{who}, in turn {turn}, on another mount");
            }
        };
        newest += 1;
        made.write_all_at(&pages(newest, 2), (page * PAGE) as u64).unwrap();
        shown(newest, "maker");
        newest += 1;
        mapped.set(page * PAGE / 8, newest);
        shown(newest, "memory");
        newest += 1;
        set_word_at(&past, page, newest);
        shown(newest, "past the pages");
        newest += 1;
        mapped.set(page * PAGE / 8, newest);
        made.write_all_at(&(newest + 1).to_ne_bytes(), (page * PAGE + 8) as u64).unwrap();
        shown(newest, "memory, and beside it");
        assert_eq!(mapped.get(page * PAGE / 8 + 1), newest + 1);
    }
    let all = fs::read(one.path("f")).unwrap();
    drop((mapped, both, past, made));
    assert!(fs::read(other.path("f")).unwrap() == all);
    one.stop_having_written(1);
    other.stop_having_known(0);
}
