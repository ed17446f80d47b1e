//! What a mount asks for before anybody has: files that are read backwards or in even jumps, and small files that are read one
//! after the other. Whoever changes them meanwhile is seen all the same.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use crate::mounting::Mounted;
use crate::stage::process::{LIMIT, wait_for};
use crate::stage::{Need, Stage};

const MIB: u64 = 1 << 20;

/// Bytes that tell where they are.
fn bytes_at(offset: u64, length: u64) -> Vec<u8> {
    (offset..offset + length).map(|at| (at % 251 + at / MIB) as u8).collect()
}

fn row(file: &File, offset: u64, length: u64) {
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, offset).unwrap();
    assert!(bytes == bytes_at(offset, length), "{length} bytes at {offset}");
}

#[test]
fn who_reads_in_even_jumps_is_read_ahead_for_and_sees_what_others_write() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    let (size, stride, length) = (128 * MIB, 8 * MIB, 8192);
    fs::write(stage.path("far/f"), bytes_at(0, size)).unwrap();
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let other = Mounted::new(&stage, "other", &[]);
    let file = File::open(mounted.path("f")).unwrap();
    for number in 0..3 {
        row(&file, number * stride, length);
    }
    let reads = || mounted.answered(|name| name == "Read");
    wait_for("rows that nobody has asked for", LIMIT, || (reads() >= 3 + 4).then_some(()));
    // One of them is changed.
    let changed = File::options().write(true).open(other.path("f")).unwrap();
    changed.write_all_at(b"new", 4 * stride).unwrap();
    drop(changed);
    row(&file, 3 * stride, length);
    let mut bytes = [0; 3];
    file.read_exact_at(&mut bytes, 4 * stride).unwrap();
    assert_eq!(&bytes, b"new");
    // Here as well.
    for number in 5..8 {
        row(&file, number * stride, length);
    }
    let own = File::options().write(true).open(mounted.path("f")).unwrap();
    own.write_all_at(b"own", 9 * stride).unwrap();
    row(&file, 8 * stride, length);
    file.read_exact_at(&mut bytes, 9 * stride).unwrap();
    assert_eq!(&bytes, b"own");
    drop(own);
    for number in (10..16).chain((10..16).rev()) {
        row(&file, number * stride, length);
    }
    other.stop_having_known(0);
    mounted.stop_having_known(0);
}

#[test]
fn who_reads_a_file_from_its_end_is_read_ahead_for() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    let (size, length) = (64 * MIB, 64 << 10);
    fs::write(stage.path("far/f"), bytes_at(0, size)).unwrap();
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let file = File::open(mounted.path("f")).unwrap();
    let back = |reads: std::ops::RangeInclusive<u64>| {
        reads.for_each(|number| row(&file, size - number * length, length));
    };
    back(1..=3);
    let ahead = || (mounted.received() >= 4 * MIB).then_some(());
    wait_for("bytes that nobody has asked for", LIMIT, ahead);
    back(4..=size / length);
    let reads = mounted.answered(|name| name == "Read");
    // One for each block, and those before it was clear where he goes.
    assert!(reads <= size / MIB + 3, "{reads} reads");
    mounted.stop_having_known(500);
}

/// All below a directory, file after file, as `grep -r` does.
fn read_all(dir: &Path, seen: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => read_all(&path, seen),
            false => seen.push(fs::read_to_string(&path).unwrap()),
        }
    }
}

#[test]
fn small_files_that_are_read_one_after_the_other_come_together() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    let far = stage.path("far");
    let content = |dir: u64, number: u64| format!("{dir} {number} {}", "x".repeat(3000));
    let (dirs, files) = (20, 30);
    for dir in 0..dirs {
        let path = far.join(format!("tree/{}/{dir}", dir % 4));
        fs::create_dir_all(&path).unwrap();
        for number in 0..files {
            fs::write(path.join(format!("{number}")), content(dir, number)).unwrap();
        }
        fs::write(path.join("empty"), "").unwrap();
    }
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let other = Mounted::new(&stage, "other", &[]);
    let read = || {
        let mut seen = Vec::new();
        read_all(&mounted.path("tree"), &mut seen);
        seen.sort();
        seen
    };
    let expected = |changed: Option<(u64, u64, &str)>| {
        let each = |dir| (0..files).map(move |number| (dir, number));
        let mut all: Vec<String> = (0..dirs)
            .flat_map(each)
            .map(|(dir, number)| match changed {
                Some((of, which, what)) if (of, which) == (dir, number) => what.to_owned(),
                _ => content(dir, number),
            })
            .collect();
        all.extend((0..dirs).map(|_| String::new()));
        all.sort();
        all
    };
    assert!(read() == expected(None));
    // In each directory on the way some may be missed, until it is clear that he goes on; and the empty ones are opened.
    let opens = mounted.answered(|name| name == "Open");
    assert!(opens < dirs + files, "{opens} of {} files were asked for by themselves", dirs * (files + 1));
    let together = mounted.answered(|name| name == "ReadWhole");
    assert!(together < dirs * files / 5, "{together} messages");
    // What is known is true.
    fs::write(other.path("tree/3/7/9"), "changed by another mount").unwrap();
    assert!(read() == expected(Some((7, 9, "changed by another mount"))));
    fs::write(other.path("tree/3/7/9"), content(7, 9)).unwrap();
    fs::write(mounted.path("tree/0/4/0"), "changed here").unwrap();
    assert!(read() == expected(Some((4, 0, "changed here"))));
    // While somebody writes to a file, it is not told to others beforehand.
    let written = File::options().write(true).open(other.path("tree/0/4/0")).unwrap();
    written.write_all_at(b"CHANGED", 0).unwrap();
    assert!(read() == expected(Some((4, 0, "CHANGED here"))));
    drop(written);
    other.stop_having_known(0);
    mounted.stop_having_known(1000);
}

#[test]
fn longer_files_among_them_come_once() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    let far = stage.path("far");
    fs::create_dir(far.join("d")).unwrap();
    let length = |number: u64| if number.is_multiple_of(16) { 300_000 + number } else { 6_000 + number };
    let count = 320;
    for number in 0..count {
        fs::write(far.join(format!("d/{number}")), bytes_at(number * 7, length(number))).unwrap();
    }
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let names = fs::read_dir(mounted.path("d")).unwrap().map(|entry| entry.unwrap().file_name());
    for name in names.map(|name| name.into_string().unwrap()) {
        let number = name.parse().unwrap();
        let read = fs::read(mounted.path("d").join(name)).unwrap();
        assert!(read == bytes_at(number * 7, length(number)), "{number}");
    }
    let all: u64 = (0..count).map(length).sum();
    assert_eq!(mounted.received(), all);
    mounted.stop_having_known(count);
}

#[test]
fn what_may_not_be_read_is_not_told_beforehand() {
    require!(Need::Emulator, Need::Root, Need::Nobody, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms");
    let far = stage.path("far");
    fs::create_dir(far.join("d")).unwrap();
    for number in 0..20 {
        fs::write(far.join(format!("d/{number:02}")), format!("words {number:02}")).unwrap();
    }
    let secret = far.join("d/secret");
    fs::write(&secret, "s".repeat(1000)).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let line = fs::read_to_string(stage.path("authorized_keys")).unwrap();
    fs::write(stage.path("authorized_keys"), line.replace("user=\"root\"", "user=\"nobody\"")).unwrap();
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    assert_eq!(fs::read_dir(mounted.path("d")).unwrap().count(), 21);
    for number in 0..20 {
        let read = fs::read_to_string(mounted.path("d").join(format!("{number:02}"))).unwrap();
        assert_eq!(read, format!("words {number:02}"));
    }
    assert!(mounted.answered(|name| name == "ReadWhole") > 0);
    assert_eq!(fs::read(mounted.path("d/secret")).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    assert_eq!(mounted.received(), 20 * "words 00".len() as u64);
    mounted.stop_having_known(0);
}
