//! What is written on a mount is told to the server later, and nobody misses it.

use std::fs::{self, File};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::close;

use crate::disk_full::{SmallDisk, own_mounts};
use crate::mounting::Mounted;
use crate::stage::{Need, Stage};

/// Bytes of one write.
const PART: usize = 8 << 10;

#[test]
fn what_one_mount_has_written_the_other_sees_before_it_is_closed() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    let _server = stage.serve();
    let one = Mounted::new(&stage, "one", &[]);
    let other = Mounted::new(&stage, "other", &[]);
    let file = File::options().read(true).write(true).create_new(true).open(one.path("f")).unwrap();
    let count = 1000_u64;
    for number in 0..count {
        file.write_all_at(&[number as u8; PART], number * PART as u64).unwrap();
    }
    let seen = File::open(other.path("f")).unwrap();
    assert_eq!(seen.metadata().unwrap().len(), count * PART as u64);
    // The newest, of a file that both have used just now.
    file.write_all_at(b"newest", 3 * PART as u64).unwrap();
    let mut bytes = [0; PART + 6];
    seen.read_exact_at(&mut bytes, 2 * PART as u64).unwrap();
    assert!(bytes[..PART].iter().all(|byte| *byte == 2));
    assert_eq!(&bytes[PART..], b"newest");
    // One's own, too: all over, longer, shorter, with a hole.
    for (offset, data) in [(7, "abc"), (8, "x"), (count * PART as u64 + 5, "end"), (9, "yz")] {
        file.write_all_at(data.as_bytes(), offset).unwrap();
    }
    let mut bytes = [0; 6];
    file.read_exact_at(&mut bytes, 6).unwrap();
    assert_eq!(&bytes, b"\0axyz\0");
    file.set_len(10).unwrap();
    file.write_all_at(b"!", 12).unwrap();
    assert_eq!(fs::read(other.path("f")).unwrap()[6..], *b"\0axy\0\0!");
    drop(file);
    other.stop_having_known(0);
    one.stop_having_written(count);
}

#[test]
fn who_is_asked_for_a_file_tells_at_once() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 300ms --rate 1Gbit");
    let _server = stage.serve();
    let one = Mounted::new(&stage, "one", &[]);
    let other = Mounted::new(&stage, "other", &[]);
    let file = File::create(one.path("f")).unwrap();
    assert_eq!(fs::read(other.path("f")).unwrap(), b"");
    std::thread::sleep(Duration::from_secs(2)); // until the file may be one mount's alone again
    file.write_all_at(b"through", 0).unwrap();
    // It asks for that behind the writer's back.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(20) {
        let before = Instant::now();
        file.write_all_at(b"behind", 100).unwrap();
        if before.elapsed() < Duration::from_millis(100) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1100));
    }
    let bytes = fs::read(other.path("f")).unwrap();
    assert_eq!((&bytes[..7], &bytes[100..]), (&b"through"[..], &b"behind"[..]));
    drop(file);
    one.stop_having_written(1);
}

#[test]
fn a_full_disk_is_told_to_whoever_syncs_or_closes() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    own_mounts();
    let far = stage.path("far");
    let _small = SmallDisk::new(&far, "4M");
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let fill = |name: &str| {
        let file = File::create(mounted.path(name)).unwrap();
        // Whether some of these are told already is a matter of time.
        let failed = (0..1000).any(|number| file.write_all_at(&[1; PART], number * PART as u64).is_err());
        (file, failed)
    };
    let (file, failed) = fill("synced");
    let synced = file.sync_all();
    assert!(failed || synced.is_err_and(|error| error.raw_os_error() == Some(Errno::ENOSPC as i32)));
    assert!(file.sync_all().is_ok(), "it is told once");
    drop(file);
    let (file, failed) = fill("closed");
    let closed = close(file.into_raw_fd());
    assert!(failed || closed == Err(Errno::ENOSPC), "{closed:?}");
    // Nothing else is held up by it.
    fs::remove_file(mounted.path("synced")).unwrap();
    fs::remove_file(mounted.path("closed")).unwrap();
    fs::write(mounted.path("fits"), [2; 1 << 20]).unwrap();
    assert_eq!(fs::read(far.join("fits")).unwrap(), [2; 1 << 20]);
}
