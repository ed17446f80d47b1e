//! `longhaul mount`: the far files in the near tree.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::stage::process::{LIMIT, Running, wait_for};
use crate::stage::{Host, LONGHAUL, Need, Stage, Way, give_to_nobody};

/// A mount on host `near`.
pub(crate) struct Mounted<'a> {
    stage: &'a Stage,
    pub(crate) program: Running,
    name: &'static str,
}

impl<'a> Mounted<'a> {
    pub(crate) fn new(stage: &'a Stage, name: &'static str, arguments: &[&str]) -> Self {
        let mut command = stage.on(Host::Near, LONGHAUL);
        command.args(mount_arguments(stage, name, arguments));
        let mut program = stage.start(&mut command);
        program.wait_to_say("mounted at");
        Self { stage, program, name }
    }

    /// Unmounts. So much must have been answered without asking the server: what is seen through a mount that keeps
    /// nothing shows nothing of what is kept.
    pub(crate) fn stop_having_known(self, least: u64) {
        let said = self.stop();
        let known = count(&said, " answers were known");
        assert!(known >= least, "{known} answers were known, not {least}");
    }

    /// The same for writes that the server was told of later.
    pub(crate) fn stop_having_written(self, least: u64) {
        let said = self.stop();
        let written = count(&said, " writes were told later");
        assert!(written >= least, "{written} writes were told later, not {least}");
    }

    fn stop(self) -> String {
        self.program.stop().expect(0).err
    }

    /// How many requests the server has answered, of some names, by the mount's own count.
    pub(crate) fn answered(&self, counts: impl Fn(&str) -> bool) -> u64 {
        let said = self.statistics();
        let operations = said["operations"].as_array().unwrap().iter();
        let counted = operations.filter(|operation| counts(operation["name"].as_str().unwrap()));
        counted.map(|operation| operation["count"].as_u64().unwrap()).sum()
    }

    /// What is told may be kept.
    pub(crate) fn may_keep(&self) -> bool {
        self.statistics()["lease_ms"].as_u64().unwrap() > 0
    }

    /// Requests that the kernel has made.
    pub(crate) fn kernel_requests(&self) -> u64 {
        self.statistics()["kernel_requests"].as_u64().unwrap()
    }

    /// Writes that were kept here, and told later.
    pub(crate) fn told_later(&self) -> u64 {
        self.statistics()["behind"].as_u64().unwrap()
    }

    /// Bytes of files that have come from the server.
    pub(crate) fn received(&self) -> u64 {
        self.statistics()["received_bytes"].as_u64().unwrap()
    }

    fn statistics(&self) -> serde_json::Value {
        let mut stats = Command::new(LONGHAUL);
        stats.args(["stats", "--json"]).arg(self.path(""));
        serde_json::from_str(&self.stage.run(&mut stats).expect(0).out).unwrap()
    }

    /// A path in it, as programs in the tree of the host reach it.
    pub(crate) fn inside(&self, below: &str) -> PathBuf {
        self.stage.path(self.name).join(below)
    }

    /// A path in it, as this process reaches it: the host may have a tree of its own.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        let here = self.inside(below);
        PathBuf::from(format!("/proc/{}/root{}", self.program.pid(), here.display()))
    }
}

/// What makes a mount at a new directory.
pub(crate) fn mount_arguments(stage: &Stage, name: &str, more: &[&str]) -> Vec<OsString> {
    let place = stage.path(name);
    fs::create_dir(&place).unwrap();
    let (key, known_hosts) = (stage.path("client"), stage.path("known_hosts"));
    let mut arguments: Vec<OsString> = ["mount", "--foreground", "-v", "-i"].map(Into::into).into();
    arguments.extend([key.into(), "--known-hosts".into(), known_hosts.into()]);
    arguments.extend(["longhaul://far/data".into(), place.into()]);
    arguments.extend(more.iter().map(Into::into));
    arguments
}

/// The number before some words of a program.
fn count(said: &str, words: &str) -> u64 {
    let before = said.split_once(words).map(|(before, _)| before);
    let number = before.and_then(|before| before.rsplit(' ').next()?.parse().ok());
    number.unwrap_or_else(|| panic!("it does not tell how many{words}: {said}"))
}

/// Bytes that differ from place to place.
fn pattern(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[test]
fn a_mount_shows_what_is_there_and_changes_it() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 10ms --rate 1Gbit");
    let _server = stage.serve();
    let (far, bytes) = (stage.path("far"), pattern(5 << 20));
    fs::write(far.join("big"), &bytes).unwrap();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    // Small and large reads, past the end too.
    assert_eq!(fs::read(mounted.path("big")).unwrap(), bytes);
    let big = File::open(mounted.path("big")).unwrap();
    let mut some = [0; 1000];
    big.read_exact_at(&mut some, 3_000_001).unwrap();
    assert_eq!(some[..], bytes[3_000_001..3_001_001]);
    assert_eq!(big.read_at(&mut some, bytes.len() as u64 - 7).unwrap(), 7);
    assert_eq!(big.read_at(&mut some, 1 << 40).unwrap(), 0);
    // Large and small writes.
    fs::write(mounted.path("copy"), &bytes).unwrap();
    assert_eq!(fs::read(far.join("copy")).unwrap(), bytes);
    let mut file =
        OpenOptions::new().read(true).write(true).create_new(true).open(mounted.path("new")).unwrap();
    file.write_all(b"words").unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(far.join("new")).unwrap(), b"words");
    file.write_all(b" and more").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 14, "nobody misses what was written");
    file.set_len(3).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut words = String::new();
    file.read_to_string(&mut words).unwrap();
    assert_eq!(words, "wor");
    file.sync_all().unwrap();
    // An open file outlives its name.
    fs::remove_file(mounted.path("new")).unwrap();
    file.write_all_at(b"W", 0).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert!(!far.join("new").exists());
    // Names, links, attributes.
    fs::create_dir(mounted.path("d")).unwrap();
    fs::rename(mounted.path("copy"), mounted.path("d/copy")).unwrap();
    fs::hard_link(mounted.path("d/copy"), mounted.path("d/second")).unwrap();
    symlink("d/copy", mounted.path("link")).unwrap();
    fs::set_permissions(mounted.path("d/copy"), fs::Permissions::from_mode(0o640)).unwrap();
    let attr = fs::metadata(far.join("d/second")).unwrap();
    assert_eq!((attr.nlink(), attr.mode() & 0o7777), (2, 0o640));
    let ino = |name: &str| fs::metadata(mounted.path(name)).unwrap().ino();
    assert_eq!(ino("d/second"), ino("d/copy"));
    assert_ne!(ino("d/second"), ino("big"));
    assert_eq!(fs::read_link(mounted.path("link")).unwrap().to_str(), Some("d/copy"));
    let error = fs::remove_dir(mounted.path("d")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    let mut names: Vec<_> =
        fs::read_dir(mounted.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["big", "d", "link"]);
    mounted.program.stop().expect(0);
}

#[test]
fn a_directory_of_many_files_is_listed_whole() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 2ms");
    let _server = stage.serve();
    let count = 3000;
    for number in 0..count {
        File::create(stage.path("far").join(format!("a-file-with-a-name-of-some-length-{number}"))).unwrap();
    }
    let mounted = Mounted::new(&stage, "mnt", &[]);
    for _ in 0..2 {
        let names: std::collections::BTreeSet<_> =
            fs::read_dir(mounted.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), count);
    }
    // Those that the server keeps no descriptor of are found again.
    for number in 0..count {
        let name = format!("a-file-with-a-name-of-some-length-{number}");
        assert_eq!(fs::metadata(mounted.path(&name)).unwrap().len(), 0);
    }
    mounted.program.stop().expect(0);
}

#[test]
fn two_mounts_see_each_others_changes_at_once() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 10ms --rate 1Gbit");
    let _server = stage.serve();
    let one = Mounted::new(&stage, "one", &[]);
    let other = Mounted::new(&stage, "other", &[]);
    let log = |mounted: &Mounted<'_>| {
        OpenOptions::new().append(true).create(true).open(mounted.path("log")).unwrap()
    };
    let (mut writes, mut too) = (log(&one), log(&other));
    let reads = File::open(other.path("log")).unwrap();
    for round in 0..20_u64 {
        writes.write_all(b"one\n").unwrap();
        assert_eq!(reads.metadata().unwrap().len(), round * 8 + 4);
        // The server places what is appended, wherever this host thinks that the end is.
        too.write_all(b"two\n").unwrap();
        let mut last = [0; 8];
        reads.read_exact_at(&mut last, round * 8).unwrap();
        assert_eq!(&last, b"one\ntwo\n");
        fs::write(one.path("turn"), round.to_string()).unwrap();
        assert_eq!(fs::read_to_string(other.path("turn")).unwrap(), round.to_string());
        fs::remove_file(other.path("turn")).unwrap();
        assert!(!one.path("turn").exists());
    }
    one.program.stop().expect(0);
    other.program.stop().expect(0);
}

#[test]
fn a_directory_can_be_mounted_anew_at_once() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 3ms");
    fs::write(stage.path("far/f"), "words").unwrap();
    let _server = stage.serve();
    fs::create_dir(stage.path("mnt")).unwrap();
    // The process of the mount before is about to end when the next is made.
    let again = "for i in $(seq 25); do \
        \"$0\" mount -i \"$1/client\" --known-hosts \"$1/known_hosts\" longhaul://far/data \"$1/mnt\" </dev/null >&2 || exit 1; \
        cat \"$1/mnt/f\" || exit 1; umount \"$1/mnt\" || exit 1; done";
    let mut shell = stage.on(Host::Near, "sh");
    shell.args(["-c", again, LONGHAUL]).arg(stage.path(""));
    assert_eq!(stage.run(&mut shell).expect(0).out, "words".repeat(25));
}

#[test]
fn who_does_not_want_to_wait_does_not() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 3ms");
    fs::write(stage.path("far/f"), "words").unwrap();
    let _server = stage.serve();
    // Long enough for a slow machine to do what it is asked while the link is there.
    let mounted = Mounted::new(&stage, "mnt", &["--timeout", "15s"]);
    assert_eq!(fs::read_to_string(mounted.path("f")).unwrap(), "words");
    let mut file = File::create(mounted.path("new")).unwrap();
    stage.set_link("--loss 100%");
    let begun = std::time::Instant::now();
    file.write_all(b"lost").unwrap();
    // What is not there is known perhaps; what is to be made has to be asked for.
    let told = [file.sync_all().unwrap_err(), fs::create_dir(mounted.path("dir")).unwrap_err()];
    assert!(told.iter().all(|error| error.raw_os_error() == Some(5)), "{told:?}"); // EIO
    assert!(begun.elapsed() > std::time::Duration::from_secs(15));
    stage.set_link("--loss 0%");
    // The session is there still.
    fs::write(mounted.path("other"), "words").unwrap();
    assert_eq!(fs::read_to_string(stage.path("far/other")).unwrap(), "words");
}

/// As mount(8) does it for a line of fstab.
#[test]
fn the_helper_of_mount_mounts() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 3ms");
    fs::write(stage.path("far/f"), "words").unwrap();
    let _server = stage.serve();
    fs::create_dir(stage.path("mnt")).unwrap();
    let helper = stage.path("mount.longhaul");
    symlink(LONGHAUL, &helper).unwrap();
    let script = "\"$0\" longhaul://far/data \"$1/mnt\" -n -o \"ro,_netdev,x-systemd.automount,timeout=20s,\
        identity=$1/client,known_hosts=$1/known_hosts\" </dev/null >&2 || exit 1; \
        cat \"$1/mnt/f\"; touch \"$1/mnt/f\" && exit 1; umount \"$1/mnt\"";
    let mut shell = stage.on(Host::Near, "sh");
    shell.args(["-c", script]).arg(&helper).arg(stage.path(""));
    let ended = stage.run(&mut shell).expect(0);
    assert_eq!(ended.out, "words");
    assert!(ended.err.contains("Read-only file system"), "{}", ended.err);
    let mut shell = stage.on(Host::Near, "sh");
    shell.args(["-c", "\"$0\" longhaul://far/data \"$1/mnt\" -o secret=x"]).arg(&helper).arg(stage.path(""));
    assert!(stage.run(&mut shell).expect(2).err.contains("no option `secret="));
}

/// Its standard error is read to its end by who has started it, and it is not held until the mount is over.
#[test]
fn who_reads_what_a_mount_says_waits_until_it_is_there() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 3ms");
    fs::write(stage.path("far/f"), "words").unwrap();
    let _server = stage.serve();
    fs::create_dir(stage.path("mnt")).unwrap();
    let script =
        "said=$(\"$0\" mount -i \"$1/client\" --known-hosts \"$1/$2\" longhaul://far/data \"$1/mnt\" 2>&1)
        code=$?; echo \"$said\"; [ $code = 0 ] || exit $code; cat \"$1/mnt/f\"; umount \"$1/mnt\"";
    let mount = |known_hosts: &str| {
        let mut shell = stage.on(Host::Near, "sh");
        shell.args(["-c", script, LONGHAUL]).arg(stage.path("")).arg(known_hosts);
        stage.run(&mut shell)
    };
    // What is said before is passed on, and what is said of a failure.
    let said = mount("none_yet").expect(0).out;
    assert!(said.contains("new server far") && said.ends_with("words"), "{said}");
    let other = fs::read_to_string(stage.path("client.pub")).unwrap();
    fs::write(stage.path("known"), format!("far {other}")).unwrap();
    let said = mount("known").expect(2).out;
    assert!(said.contains("longhaul: "), "{said}");
}

#[test]
fn a_mount_outlives_who_reads_what_it_says() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 3ms");
    fs::write(stage.path("far/f"), "words").unwrap();
    let _server = stage.serve();
    let script = "{ \"$@\"; echo $? > \"$0/code\"; } 2>&1 >/dev/null | true &
        for i in $(seq 1000); do [ -e \"$0/mnt/f\" ] && break; sleep 0.1; done
        cat \"$0/mnt/f\" && umount \"$0/mnt\"; wait; cat \"$0/code\"";
    let mut shell = stage.on(Host::Near, "sh");
    shell.args(["-c", script]).arg(stage.path("")).arg(LONGHAUL).args(mount_arguments(
        &stage,
        "mnt",
        &["-v"],
    ));
    assert_eq!(stage.run(&mut shell).expect(0).out, "words0\n");
}

#[test]
fn a_read_only_export_cannot_be_changed() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 2ms");
    fs::write(stage.path("far/f"), "words").unwrap();
    let line = fs::read_to_string(stage.path("authorized_keys")).unwrap();
    fs::write(stage.path("authorized_keys"), format!("ro,{line}")).unwrap();
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    assert_eq!(fs::read_to_string(mounted.path("f")).unwrap(), "words");
    for error in [
        fs::write(mounted.path("f"), "other").unwrap_err(),
        fs::write(mounted.path("g"), "other").unwrap_err(),
        fs::remove_file(mounted.path("f")).unwrap_err(),
    ] {
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
    mounted.program.stop().expect(0);
}

#[test]
fn a_user_gets_no_further_than_at_the_server() {
    require!(Need::Emulator, Need::Root, Need::Nobody, Need::Fuse);
    let stage = Stage::shared("--rtt 2ms");
    let far = stage.path("far");
    fs::create_dir(far.join("own")).unwrap();
    fs::write(far.join("own/f"), "words").unwrap();
    give_to_nobody(&far.join("own"));
    fs::write(far.join("secret"), "s").unwrap();
    fs::set_permissions(far.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let line = fs::read_to_string(stage.path("authorized_keys")).unwrap();
    fs::write(stage.path("authorized_keys"), line.replace("user=\"root\"", "user=\"nobody\"")).unwrap();
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    // Even root here is only nobody there.
    for error in [
        fs::read(mounted.path("secret")).unwrap_err(),
        fs::write(mounted.path("new"), "x").unwrap_err(),
        fs::remove_file(mounted.path("secret")).unwrap_err(),
    ] {
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    }
    assert_eq!(fs::read_to_string(mounted.path("own/f")).unwrap(), "words");
    fs::write(mounted.path("own/new"), "x").unwrap();
    assert_eq!(fs::metadata(far.join("own/new")).unwrap().uid(), 65534);
    // What is nobody's there is shown as one's own.
    assert_eq!(fs::metadata(mounted.path("own/new")).unwrap().uid(), 0);
    mounted.program.stop().expect(0);
}

#[test]
fn what_cannot_be_looked_at_is_listed_all_the_same() {
    require!(Need::Emulator, Need::Root, Need::Nobody, Need::Fuse);
    let stage = Stage::shared("--rtt 2ms");
    let closed = stage.path("far/closed");
    fs::create_dir_all(closed.join("dir")).unwrap();
    symlink("file", closed.join("link")).unwrap();
    for number in 0..2000 {
        fs::write(closed.join(format!("file{number}")), "words").unwrap();
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o744)).unwrap();
    let line = fs::read_to_string(stage.path("authorized_keys")).unwrap();
    fs::write(stage.path("authorized_keys"), line.replace("user=\"root\"", "user=\"nobody\"")).unwrap();
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let top = |mounted: &Mounted<'_>| fs::metadata(mounted.path("")).unwrap().ino();
    let before = top(&mounted);
    for _ in 0..2 {
        let entries: Vec<_> =
            fs::read_dir(mounted.path("closed")).unwrap().map(|entry| entry.unwrap()).collect();
        assert_eq!(entries.len(), 2002);
        for entry in entries {
            let (name, kind) = (entry.file_name().into_string().unwrap(), entry.file_type().unwrap());
            assert_eq!((kind.is_dir(), kind.is_symlink()), (name == "dir", name == "link"), "{name}");
        }
        for name in ["dir", "link", "file7", "absent"] {
            let told = fs::symlink_metadata(mounted.path("closed").join(name)).unwrap_err();
            assert_eq!(told.kind(), std::io::ErrorKind::PermissionDenied, "{name}");
        }
    }
    // What can be looked at again is.
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
    let look = || fs::metadata(mounted.path("closed/file7")).ok().map(|file| file.len());
    assert_eq!(wait_for("a file that may be looked at", LIMIT, look), 5);
    assert_eq!(fs::read_dir(mounted.path("closed")).unwrap().count(), 2002);
    assert_eq!((top(&mounted), fs::read_dir(mounted.path("")).unwrap().count()), (before, 1));
    mounted.program.stop().expect(0);
}

#[test]
fn holes_and_copies_are_made_at_the_server() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 2ms");
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let file = File::options().read(true).write(true).create_new(true).open(mounted.path("f")).unwrap();
    file.write_all_at(b"begin", 0).unwrap();
    file.write_all_at(b"end", 10 << 20).unwrap();
    let data = nix::unistd::lseek(&file, 4096, nix::unistd::Whence::SeekData).unwrap();
    assert_eq!(data, 10 << 20);
    // The standard library copies files with copy_file_range(2).
    let (before, mut file) = (stage.carried(Way::Pull).bytes, file);
    file.rewind().unwrap();
    let copied = std::io::copy(&mut file, &mut File::create(mounted.path("copy")).unwrap()).unwrap();
    assert_eq!(copied, (10 << 20) + 3);
    assert!(stage.carried(Way::Pull).bytes - before < 1 << 20, "the bytes did not come here");
    assert_eq!(fs::read(stage.path("far/copy")).unwrap(), fs::read(stage.path("far/f")).unwrap());
    mounted.program.stop().expect(0);
}

/// Requests that somebody has waited for, by the mount's own count.
pub(crate) fn round_trips(mounted: &Mounted<'_>) -> u64 {
    mounted.answered(|name| !["Renew", "Forget", "Close"].contains(&name))
}

#[test]
fn round_trips_are_few() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let far = stage.path("far");
    fs::create_dir(far.join("many")).unwrap();
    for number in 0..1000 {
        fs::write(far.join(format!("many/file-{number:04}.dat")), number.to_string()).unwrap();
    }
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let trips = |what: &str, most: u64, work: &dyn Fn()| {
        let before = round_trips(&mounted);
        work();
        let trips = round_trips(&mounted) - before;
        assert!(trips <= most, "{what}: {trips} round trips, not {most}");
    };
    let many = mounted.path("many");
    fs::metadata(&many).unwrap();
    let list = || {
        let entries = fs::read_dir(&many).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        assert_eq!(entries.count(), 1000);
    };
    trips("ls -l of 1,000 files", 3, &list);
    trips("the same again", 0, &list);
    let small = mounted.path("many/file-0007.dat");
    let read = || assert_eq!(fs::read_to_string(&small).unwrap(), "7");
    trips("reading a small file whose name is known", 1, &read);
    trips("reading it again", 0, &read);
    let absent = || assert!(fs::metadata(mounted.path("many/absent")).is_err());
    trips("a name that is not there, in a directory that was listed", 0, &absent);
    let new = mounted.path("many/new");
    trips("a new file of 4 KiB", 2, &|| fs::write(&new, [1; 4096]).unwrap());
    trips("what it is", 0, &|| assert_eq!(fs::metadata(&new).unwrap().len(), 4096));
    trips("a file that takes another's place", 3, &|| {
        let next = mounted.path("many/next");
        fs::write(&next, [2; 4096]).unwrap();
        fs::rename(&next, &new).unwrap();
    });
    let lock = mounted.path("many/lock");
    let locks = || {
        File::create_new(&lock).unwrap();
        fs::remove_file(&lock).unwrap();
        assert!(fs::metadata(&lock).is_err());
    };
    trips("a lock file that is made and removed", 2, &locks);
    trips("the same again", 0, &locks);
    trips("a new directory, and a file in it", 3, &|| {
        let dir = mounted.path("many/dir");
        fs::create_dir(&dir).unwrap();
        File::create_new(dir.join("f")).unwrap();
    });
    mounted.program.stop().expect(0);
}

#[test]
fn cpus_are_kept_awake_while_many_requests_come() {
    require!(Need::Emulator, Need::Root, Need::Fuse, Need::CpuLatency);
    let stage = Stage::shared("--rtt 1ms");
    fs::write(stage.path("far/f"), "words").unwrap();
    let _server = stage.serve();
    for (name, options, are_kept) in [("mnt", &[][..], true), ("frugal", &["-o", "power_save"], false)] {
        let mounted = Mounted::new(&stage, name, options);
        let descriptors = format!("/proc/{}/fd", mounted.program.pid());
        let is_held = || {
            let mut open = fs::read_dir(&descriptors).unwrap();
            open.any(|entry| {
                // One may have been closed since.
                fs::read_link(entry.unwrap().path()).is_ok_and(|file| file.ends_with("cpu_dma_latency"))
            })
        };
        let file = mounted.path("f");
        assert!(!is_held(), "before there is anything to do");
        let begun = std::time::Instant::now();
        // However busy the machine is, some look at it is soon followed by many.
        let mut was_held = false;
        while !was_held && begun.elapsed() < Duration::from_secs(if are_kept { 60 } else { 1 }) {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..500).for_each(|_| assert!(fs::metadata(&file).is_ok())));
                }
            });
            was_held = is_held();
        }
        assert_eq!(was_held, are_kept, "{options:?}");
        wait_for("the end of what was held", LIMIT, || (!is_held()).then_some(()));
        mounted.program.stop().expect(0);
    }
}

#[test]
fn a_trace_shows_what_the_connection_does() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 20ms --rate 100Mbit");
    let _server = stage.serve();
    let bytes = pattern(8 << 20);
    fs::write(stage.path("far/big"), &bytes).unwrap();
    let trace = stage.path("trace");
    let mounted = Mounted::new(&stage, "mnt", &["--trace", trace.to_str().unwrap()]);
    assert_eq!(fs::read(mounted.path("big")).unwrap(), bytes);
    // Ten times a second.
    let is_told = |line: &str| {
        let line: Option<serde_json::Value> = serde_json::from_str(line).ok();
        line.is_some_and(|line| line["done_bytes"].as_u64() >= Some(8 << 20))
    };
    wait_for("a line about all of it", LIMIT, || {
        fs::read_to_string(&trace).unwrap().lines().any(is_told).then_some(())
    });
    mounted.program.stop().expect(0);
    let said = fs::read_to_string(trace).unwrap();
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let done: Vec<u64> = lines.iter().map(|line| line["done_bytes"].as_u64().unwrap()).collect();
    assert!(done.is_sorted() && *done.last().unwrap() >= 8 << 20, "{done:?}");
    let last = lines.last().unwrap();
    assert!(!last["lanes"].as_array().unwrap().is_empty());
    assert!(
        last["mount"]["asked"].as_u64().unwrap() > 3
            && last["mount"]["kept_bytes"].as_u64().unwrap() > 1 << 20
    );
}
