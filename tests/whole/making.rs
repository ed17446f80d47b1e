//! Files that are made here, and are written by way of the kernel's pages.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::mapping::Mapping;
use crate::mounting::Mounted;
use crate::stage::process::wait_for;
use crate::stage::{Need, Stage};

const PAGE: usize = 4096;
const PAGES: usize = 16;
const MIB_PAGES: usize = (1 << 20) / PAGE;
/// Eight times what is long enough to be read by way of pages.
const LONG_MIB: usize = 128;

/// Pages of words that are all the same.
fn pages(value: u64, count: usize) -> Vec<u8> {
    value.to_ne_bytes().repeat(count * PAGE / 8)
}

/// The first word of a page.
fn word_of(mapping: &Mapping, page: usize) -> u64 {
    mapping.get(page * PAGE / 8)
}

fn word_in(file: &File, place: usize) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, place as u64).unwrap();
    u64::from_ne_bytes(bytes)
}

fn word_at(file: &File, page: usize) -> u64 {
    word_in(file, page * PAGE)
}

fn set_word_at(file: &File, page: usize, value: u64) {
    file.write_all_at(&value.to_ne_bytes(), (page * PAGE) as u64).unwrap();
}

/// Of a server's tree, twice.
fn on_two_mounts(test: impl FnOnce(&Mounted<'_>, &Mounted<'_>)) {
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let _server = stage.serve();
    let [one, other] = ["one", "other"].map(|name| Mounted::new(&stage, name, &[]));
    test(&one, &other);
    one.stop_having_written(1);
    other.stop_having_known(0);
}

#[test]
fn what_is_made_is_in_pages_at_once_and_shows_no_past() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    on_two_mounts(|one, other| {
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
        // It is its maker's alone again when nobody else has had it open for a while.
        drop(others);
        let mut value = 1000;
        wait_for("a write that is told later", Duration::from_secs(60), || {
            let before = one.told_later();
            value += 1;
            made.write_all_at(&pages(value, PAGES), 0).unwrap();
            assert!((0..PAGES).all(|page| word_of(&mapped, page) == value));
            (one.told_later() > before).then_some(())
        });
        drop(made);
        let others = File::options().read(true).write(true).open(other.path("f")).unwrap();
        assert_eq!(word_at(&others, 5), value);
        set_word_at(&others, 5, value + 1);
        assert_eq!((word_of(&mapped, 5), word_of(&mapped, 6)), (value + 1, value));
        drop((mapped, reader, others));
    });
}

#[test]
fn who_makes_a_file_may_have_company() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    on_two_mounts(|one, other| {
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
    });
}

#[test]
fn pages_that_came_in_calls_of_odd_lengths_show_no_past_either() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    on_two_mounts(|one, other| {
        let mut made = File::create(one.path("f")).unwrap();
        let reader = File::open(one.path("f")).unwrap();
        let mapped = Mapping::new(&reader, 3 * PAGE, false);
        made.write_all(&pages(1, 3)[..10_240]).unwrap();
        // The third is not all there: it is asked for.
        assert!((0..3).all(|page| word_of(&mapped, page) == 1));
        made.write_all_at(&7_u64.to_ne_bytes(), 800).unwrap();
        assert_eq!((mapped.get(100), word_of(&mapped, 0)), (7, 1));
        let others = File::options().read(true).write(true).open(other.path("f")).unwrap();
        for page in 0..3 {
            set_word_at(&others, page, 2);
            assert_eq!(word_of(&mapped, page), 2);
        }
        drop((made, mapped, reader, others));
    });
}

/// Where it is written fast, what comes after the first MiB is in the kernel's pages alone.
#[test]
fn a_long_file_that_is_made_is_read_again_and_shows_no_past() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms");
    let _server = stage.serve();
    let [one, other] = ["one", "other"].map(|name| Mounted::new(&stage, name, &[]));
    let mut made = File::create(one.path("f")).unwrap();
    for mib in 0..LONG_MIB {
        made.write_all(&pages(mib as u64, MIB_PAGES)).unwrap();
    }
    drop(made);
    let reader = File::open(one.path("f")).unwrap();
    assert!((0..LONG_MIB * MIB_PAGES).all(|page| word_at(&reader, page) == (page / MIB_PAGES) as u64));
    let others = File::options().write(true).open(other.path("f")).unwrap();
    for mib in 0..LONG_MIB {
        let page = mib * MIB_PAGES + mib;
        set_word_at(&others, page, 4711);
        assert_eq!((word_at(&reader, page), word_at(&reader, page + 1)), (4711, mib as u64));
    }
    drop((reader, others));
    one.stop_having_written(1);
    other.stop_having_known(0);
}

/// Writes of a file's maker, of its company and of another mount, of any lengths at any places: each is seen by all as soon as it has returned.
#[test]
fn whoever_writes_what_all_see_it() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    on_two_mounts(|one, other| {
        for seed in 1..=8 {
            play(seed, one, other);
        }
    });
}

/// Who has asked for pages is treated differently, and so is who has company: both are there by some seeds, and not by others.
fn play(seed: u64, one: &Mounted<'_>, other: &Mounted<'_>) {
    const BYTES: usize = 4 * PAGE;
    let (looks_often, may_have_company) = (seed.is_multiple_of(2), seed % 4 < 2);
    let mut state = seed;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let name = format!("f{seed}");
    let open =
        |mounted: &Mounted<'_>| File::options().read(true).write(true).open(mounted.path(&name)).unwrap();
    let made = File::create(one.path(&name)).unwrap();
    let near = File::open(one.path(&name)).unwrap();
    let mapped = Mapping::new(&near, BYTES, false);
    let (mut far, mut company) = (None, None);
    let mut expected = vec![0; BYTES];
    made.write_all_at(&expected, 0).unwrap();
    for turn in 0..100 {
        // Words, some of which begin or end with pages.
        let at = if random(2) == 0 { random(4) * PAGE } else { random(BYTES / 8) * 8 };
        let most = [64, PAGE, 3 * PAGE][random(3)];
        let length = if random(3) == 0 { most } else { 8 + random(most) / 8 * 8 }.min(BYTES - at);
        let writer = match random(8) {
            0 if may_have_company => {
                company = company.is_none().then(|| open(one));
                None
            }
            1 => {
                far = far.is_none().then(|| open(other));
                None
            }
            2 => company.as_ref(),
            3 | 4 => far.as_ref(),
            _ => Some(&made),
        };
        if let Some(writer) = writer {
            let words = vec![turn + 1; length];
            writer.write_all_at(&words, at as u64).unwrap();
            expected[at..at + length].copy_from_slice(&words);
        }
        // Where it was written, beside that, and anywhere.
        let places = [at, at + length, at.saturating_sub(8), random(BYTES)];
        for place in places.map(|place| place.min(BYTES - 8) / 8 * 8) {
            let what = expected[place..place + 8].try_into().map(u64::from_ne_bytes).unwrap();
            let who = if looks_often { random(4) } else { random(20) };
            let seen = match (&far, &company, who) {
                (.., 0) => mapped.get(place / 8),
                (Some(far), _, 1 | 4..=9) => word_in(far, place),
                (_, Some(company), 2 | 10..=14) => word_in(company, place),
                _ => word_in(&near, place),
            };
            assert_eq!(seen, what, "seed {seed}, turn {turn}, at {place}, by {who}");
        }
    }
    drop((made, near, mapped, far, company));
    assert!(fs::read(one.path(&name)).unwrap() == expected);
    assert!(fs::read(other.path(&name)).unwrap() == expected);
}
