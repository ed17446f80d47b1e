//! What is written on a mount is told to the server later, and nobody misses it.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::unistd::close;

use crate::disk_full::{SmallDisk, own_mounts};
use crate::mounting::Mounted;
use crate::stage::process::{LIMIT, wait_for};
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

/// Of users without privileges the kernel says with each write that it takes set-user-id away.
#[test]
fn nobody_waits_for_the_writes_of_ordinary_users_either() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &["-o", "allow_other,suid"]);
    fs::set_permissions(mounted.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    let file = mounted.path("f");
    let as_nobody = |script: &str| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
        // The mount is seen by way of another's process, which only root may look into.
        command.stdin(File::open(&file).unwrap()).current_dir(mounted.path(""));
        assert!(command.status().unwrap().success(), "{script}");
    };
    File::create(&file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    as_nobody("head -c 4000000 /dev/zero | dd of=f bs=4000 iflag=fullblock conv=notrunc status=none");
    assert_eq!(fs::metadata(&file).unwrap().len(), 4_000_000);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4777)).unwrap();
    as_nobody("echo x | dd of=f conv=notrunc status=none");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o777);
    mounted.stop_having_written(900);
}

#[test]
fn who_is_asked_for_a_file_tells_at_once() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    const RTT: Duration = Duration::from_millis(300);
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
    while begun.elapsed() < LIMIT {
        let before = Instant::now();
        file.write_all_at(b"behind", 100).unwrap();
        if before.elapsed() < RTT {
            break;
        }
        std::thread::sleep(Duration::from_millis(1100));
    }
    let bytes = fs::read(other.path("f")).unwrap();
    assert_eq!((&bytes[..7], &bytes[100..]), (&b"through"[..], &b"behind"[..]));
    drop(file);
    one.stop_having_written(1);
}

/// A short write is under way with what is asked next; where packets are lost, they overtake each other.
#[test]
fn what_is_asked_after_a_write_comes_after_it() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit --loss 5%");
    let _server = stage.serve();
    let (one, other) = (Mounted::new(&stage, "one", &[]), Mounted::new(&stage, "other", &[]));
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for round in 0..400_u64 {
        let name = format!("f{round}");
        let far = stage.path("far").join(&name);
        let file = File::create_new(one.path(&name)).unwrap();
        let mut bytes = vec![round as u8; round as usize + 1];
        file.write_all_at(&bytes, 0).unwrap();
        if round % 3 == 0 {
            // In several pieces.
            file.write_all_at(b"end", 5000).unwrap();
            bytes.resize(5000, 0);
            bytes.extend_from_slice(b"end");
        }
        match round % 5 {
            0 => {
                file.set_modified(then).unwrap();
                let stat = fs::metadata(&far).unwrap();
                assert_eq!((stat.len(), stat.modified().unwrap()), (bytes.len() as u64, then), "{name}");
            }
            1 => {
                let lengths = [(); 2].map(|()| file.metadata().unwrap().len());
                assert_eq!(lengths, [bytes.len() as u64; 2], "{name}");
                file.write_all_at(b"longer", bytes.len() as u64).unwrap();
                bytes.extend_from_slice(b"longer");
                assert_eq!(file.metadata().unwrap().len(), bytes.len() as u64, "{name}");
            }
            2 => {
                file.sync_data().unwrap();
                assert!(fs::read(&far).unwrap() == bytes, "{name}");
            }
            3 => {
                // Writing takes set-user-id away.
                file.set_permissions(fs::Permissions::from_mode(0o4711)).unwrap();
                assert_eq!(fs::metadata(&far).unwrap().mode() & 0o7777, 0o4711, "{name}");
            }
            _ => {
                let seen = fs::metadata(other.path(&name)).unwrap();
                file.set_modified(then).unwrap();
                assert_eq!(seen.len(), bytes.len() as u64, "{name}");
            }
        }
        drop(file);
        assert!(fs::read(other.path(&name)).unwrap() == bytes, "{name}");
        if round % 5 == 0 {
            assert_eq!(
                fs::metadata(&far).unwrap().modified().unwrap(),
                then,
                "{name}: closing it changes nothing"
            );
        }
    }
    other.program.stop().expect(0);
    one.stop_having_written(400);
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
    // Whoever else writes to it is told, too; and closing a copy of a descriptor does not take the word from the others.
    let file = File::create(mounted.path("shared")).unwrap();
    let same = File::options().write(true).open(mounted.path("shared")).unwrap();
    let failed = (0..1000).any(|number| file.write_all_at(&[1; PART], number * PART as u64).is_err());
    let copy = file.try_clone().unwrap();
    assert!(failed || close(copy.into_raw_fd()) == Err(Errno::ENOSPC));
    for file in [file, same] {
        assert!(failed || file.sync_all().is_err());
    }
    fs::remove_file(mounted.path("shared")).unwrap();
    let (file, failed) = fill("closed");
    let closed = close(file.into_raw_fd());
    assert!(failed || closed == Err(Errno::ENOSPC), "{closed:?}");
    // Nothing else is held up by it.
    fs::remove_file(mounted.path("synced")).unwrap();
    fs::remove_file(mounted.path("closed")).unwrap();
    fs::write(mounted.path("fits"), [2; 1 << 20]).unwrap();
    assert_eq!(fs::read(far.join("fits")).unwrap(), [2; 1 << 20]);
}

/// The server's kernel says that the quota is reached; said by strace(1), since not every kernel has quotas.
#[test]
fn a_quota_that_is_reached_is_told_to_whoever_syncs_or_closes() {
    require!(Need::Emulator, Need::Root, Need::Fuse, Need::Strace);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    let server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-o", "/dev/null", "-e", "inject=pwrite64:error=EDQUOT", "-p"]);
    let mut strace = stage.start(strace.arg(server.pid().to_string()));
    strace.wait_to_say("attached");
    let told = Some(Errno::EDQUOT as i32);
    // In messages, and over the lanes.
    for (name, bytes) in [("small", PART), ("large", 4 << 20)] {
        let file = File::create(mounted.path(name)).unwrap();
        let written = file.write_all_at(&vec![1; bytes], 0).and_then(|()| file.sync_all());
        assert_eq!(written.unwrap_err().raw_os_error(), told, "{name}");
        let file = File::create(mounted.path("closed")).unwrap();
        let written = file.write_all_at(&vec![1; bytes], 0);
        let closed = written.and_then(|()| Ok(close(file.into_raw_fd())?));
        assert_eq!(closed.unwrap_err().raw_os_error(), told, "{name}");
    }
    drop(strace.stop());
    fs::write(mounted.path("fits"), [2; PART]).unwrap();
    assert_eq!(fs::read(stage.path("far/fits")).unwrap(), [2; PART]);
}

/// A disk that takes its time over syncs, said by strace(1); more programs sync than the server has threads for a mount.
#[test]
fn nobody_else_waits_for_syncs() {
    require!(Need::Emulator, Need::Root, Need::Fuse, Need::Strace);
    const FILES: usize = 12;
    let stage = Stage::shared("--rtt 2ms");
    let server = stage.serve();
    for number in 0..50 {
        fs::write(stage.path(format!("far/other{number}")), "words").unwrap();
    }
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let files: Vec<File> = (0..FILES)
        .map(|number| {
            let mut file = File::create(mounted.path(&format!("synced{number}"))).unwrap();
            file.write_all(b"words").unwrap();
            file
        })
        .collect();
    let mut strace = Command::new("strace");
    let inject = "inject=fsync,fdatasync:delay_enter=200s";
    strace.args(["-f", "-o"]).arg(stage.path("syncs")).args(["-e", "trace=fsync,fdatasync"]);
    let mut strace = stage.start(strace.args(["-e", inject, "-p"]).arg(server.pid().to_string()));
    strace.wait_to_say("attached");
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| file.sync_all().unwrap());
        }
        let begun = || fs::read_to_string(stage.path("syncs")).unwrap().matches("sync(").count();
        wait_for("syncs at the server", LIMIT, || (begun() > 0).then_some(()));
        let begun = Instant::now();
        for number in 0..50 {
            assert_eq!(fs::read(mounted.path(&format!("other{number}"))).unwrap(), b"words");
        }
        assert!(begun.elapsed() < Duration::from_secs(100), "{:?} for 50 small files", begun.elapsed());
        drop(strace.stop());
    });
}

#[test]
fn many_writes_all_over_a_file_are_stored() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    const BLOCK: usize = 64 << 10;
    const BLOCKS: usize = 4000;
    let stage = Stage::shared("--rtt 1ms");
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let file = File::create_new(mounted.path("f")).unwrap();
    // In an order in which hardly one follows another: each is a part of its own, and more are under way than the server
    // keeps of one file.
    for number in 0..BLOCKS {
        let place = number * 1777 % BLOCKS;
        file.write_all_at(&[place as u8 | 1; BLOCK], (place * BLOCK) as u64).unwrap();
    }
    file.sync_all().unwrap();
    let stored = fs::read(stage.path("far/f")).unwrap();
    assert_eq!(stored.len(), BLOCKS * BLOCK);
    for (place, block) in stored.chunks(BLOCK).enumerate() {
        assert!(block.iter().all(|byte| *byte == place as u8 | 1), "block {place}");
    }
    drop(file);
    mounted.stop_having_written(BLOCKS as u64);
}
