//! Long files, which are read by way of the kernel's pages.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::mounting::Mounted;
use crate::stage::process::wait_for;
use crate::stage::{Need, Stage};

/// Of a file that is read by way of pages, and not a whole number of blocks.
const BYTES: usize = (24 << 20) + 12_345;

/// Bytes that tell what they are.
fn version(number: u8) -> Vec<u8> {
    (0..BYTES).map(|at| number ^ (at / 4096) as u8).collect()
}

/// Reads all of a file until the kernel asks for next to nothing: its pages are there.
fn read_until_it_is_in_pages(mounted: &Mounted<'_>, expected: &[u8]) {
    wait_for("the kernel to have all pages", Duration::from_secs(60), || {
        let before = mounted.kernel_requests();
        assert!(fs::read(mounted.path("f")).unwrap() == expected);
        // To open and close it, for its attributes, and of the last block, which is not whole.
        (mounted.kernel_requests() - before < 20).then_some(())
    });
}

#[test]
fn long_files_are_read_from_memory_that_shows_no_past() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let _server = stage.serve();
    fs::write(stage.path("far/f"), version(1)).unwrap();
    let [reader, writer] = ["one", "other"].map(|name| Mounted::new(&stage, name, &[]));
    read_until_it_is_in_pages(&reader, &version(1));
    // What another mount writes is seen at once, by whoever has it open, too.
    let open = File::open(reader.path("f")).unwrap();
    let write = File::options().write(true).open(writer.path("f")).unwrap();
    let (mut expected, mut seen) = (version(1), [0; 100]);
    for (number, place) in [0, 5_000_000, BYTES - 100, 1 << 20, 0].into_iter().enumerate() {
        let words = [100 + number as u8; 100];
        write.write_all_at(&words, place as u64).unwrap();
        expected[place..place + 100].copy_from_slice(&words);
        open.read_exact_at(&mut seen, place as u64).unwrap();
        assert_eq!(seen, words);
    }
    assert!(fs::read(reader.path("f")).unwrap() == expected);
    // It grows, and becomes shorter.
    write.write_all_at(b"more", BYTES as u64).unwrap();
    assert_eq!(open.read_at(&mut seen, BYTES as u64 - 1).unwrap(), 5);
    write.set_len(BYTES as u64 - 50).unwrap();
    assert_eq!(open.read_at(&mut seen, BYTES as u64 - 100).unwrap(), 50);
    assert_eq!(fs::read(reader.path("f")).unwrap().len(), BYTES - 50);
    // All of it anew, when nobody has it open for writing any more.
    drop(write);
    fs::write(writer.path("f"), version(2)).unwrap();
    read_until_it_is_in_pages(&reader, &version(2));
    // And at the server itself: a moment later.
    fs::write(stage.path("far/f"), version(3)).unwrap();
    wait_for("a change at the server to be seen", Duration::from_secs(60), || {
        (fs::read(reader.path("f")).unwrap() == version(3)).then_some(())
    });
    drop(open);
    reader.stop_having_known(0);
    writer.stop_having_known(0);
}

#[test]
fn what_was_written_is_read_from_memory_and_can_be_written_again() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "one", &[]);
    fs::write(mounted.path("f"), version(1)).unwrap();
    read_until_it_is_in_pages(&mounted, &version(1));
    // Beside readers of its pages, by the same mount.
    let (open, mut expected, mut seen) = (File::open(mounted.path("f")).unwrap(), version(1), [0; 100]);
    let write = File::options().read(true).write(true).open(mounted.path("f")).unwrap();
    for number in 0..50 {
        let (place, words) = (number * 499_999, [200 - number as u8; 100]);
        write.write_all_at(&words, place as u64).unwrap();
        expected[place..place + 100].copy_from_slice(&words);
        open.read_exact_at(&mut seen, place as u64).unwrap();
        assert_eq!(seen, words);
    }
    drop(write);
    assert!(fs::read(mounted.path("f")).unwrap() == expected);
    // Over and over, each time from the first byte on.
    for number in 2..6 {
        let write = File::options().write(true).open(mounted.path("f")).unwrap();
        for (piece, bytes) in version(number).chunks(300_000).enumerate() {
            write.write_all_at(bytes, piece as u64 * 300_000).unwrap();
        }
        open.read_exact_at(&mut seen, 5_000_000).unwrap();
        assert_eq!(seen[..], version(number)[5_000_000..][..100]);
        drop(write);
        assert!(fs::read(mounted.path("f")).unwrap() == version(number));
        assert!(fs::read(stage.path("far/f")).unwrap() == version(number));
    }
    drop(open);
    mounted.stop_having_written(1);
}

#[test]
fn what_is_made_in_pieces_that_are_no_pages_is_read_from_memory_too() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "one", &[]);
    let mut made = File::create(mounted.path("f")).unwrap();
    version(1).chunks(10_000).for_each(|piece| made.write_all(piece).unwrap());
    // Over what has come to the server, in part.
    let mut expected = version(1);
    for place in [5_000_000, 12_345_678, 0] {
        made.write_all_at(&[7; 9000], place as u64).unwrap();
        expected[place..place + 9000].fill(7);
    }
    drop(made);
    read_until_it_is_in_pages(&mounted, &expected);
    assert!(fs::read(stage.path("far/f")).unwrap() == expected);
    mounted.stop_having_written(1);
}

#[test]
fn files_longer_than_a_mount_s_memory_stay_in_the_kernel_s() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let _server = stage.serve();
    fs::write(stage.path("far/f"), version(1)).unwrap();
    let small = Mounted::new(&stage, "one", &["--cache-mem", "16MiB"]);
    let other = Mounted::new(&stage, "other", &[]);
    read_until_it_is_in_pages(&small, &version(1));
    // Whoever reads past them leaves them there.
    let before = small.kernel_requests();
    let past = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut seen = vec![0; 1 << 20];
    File::options()
        .read(true)
        .custom_flags(past)
        .open(small.path("f"))
        .unwrap()
        .read_exact(&mut seen)
        .unwrap();
    assert!(fs::read(small.path("f")).unwrap() == version(1));
    let asked = small.kernel_requests() - before;
    assert!(asked < 30, "{asked} requests");
    // And they are no older than others' writes.
    for number in 2..5 {
        fs::write(other.path("f"), version(number)).unwrap();
        assert!(fs::read(small.path("f")).unwrap() == version(number));
    }
    read_until_it_is_in_pages(&small, &version(4));
    fs::write(small.path("f"), version(5)).unwrap();
    read_until_it_is_in_pages(&small, &version(5));
    assert!(fs::read(stage.path("far/f")).unwrap() == version(5));
    small.stop_having_written(1);
    other.stop_having_written(1);
}

#[test]
fn readers_of_pages_hold_nobody_up() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let _server = stage.serve();
    fs::write(stage.path("far/f"), version(1)).unwrap();
    let [reader, writer] = ["one", "other"].map(|name| Mounted::new(&stage, name, &[]));
    read_until_it_is_in_pages(&reader, &version(1));
    // By way of pages: before anybody has it open for writing.
    let open = [(); 3].map(|()| File::open(reader.path("f")).unwrap());
    let write = File::options().write(true).open(writer.path("f")).unwrap();
    let newest = AtomicU64::new(0);
    let last = 30;
    write.write_all_at(&0_u64.to_ne_bytes(), 8192).unwrap();
    std::thread::scope(|scope| {
        for (reads, open) in open.iter().enumerate() {
            let (newest, reads) = (&newest, reads as u64);
            scope.spawn(move || {
                let (mut piece, mut heard) = (vec![0; 1 << 20], 0);
                while heard < last {
                    // From different places on, all of it, again and again.
                    for place in (0..24).map(|block| (block + reads * 8) % 24) {
                        open.read_exact_at(&mut piece, place << 20).unwrap();
                        let (least, mut word) = (newest.load(Ordering::SeqCst), [0; 8]);
                        open.read_exact_at(&mut word, 8192).unwrap();
                        let seen = u64::from_ne_bytes(word);
                        // What was there at first is more than what is written.
                        let may_be = least.max(heard)..=last;
                        assert!(may_be.contains(&seen), "{seen}, not {may_be:?}");
                        heard = seen;
                    }
                }
            });
        }
        for value in 1..=last {
            let begun = Instant::now();
            write.write_all_at(&value.to_ne_bytes(), 8192).unwrap();
            newest.store(value, Ordering::SeqCst);
            // Who does not give pages back has half a minute.
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?} for one write", begun.elapsed());
        }
    });
    drop((open, write));
    reader.stop_having_known(0);
    writer.stop_having_known(0);
}
