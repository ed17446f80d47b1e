//! Mounts for all users of a host: who they are at the server, and what they may do there.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::mounting::{Mounted, mount_arguments};
use crate::stage::process::{Ended, LIMIT, wait_for};
use crate::stage::{Host, LONGHAUL, Need, Stage};

/// Runs a script as nobody, with the mount's directory as `$1`.
fn as_nobody(stage: &Stage, mounted: &Mounted<'_>, script: &str) -> Ended {
    let mut enter = Command::new("nsenter");
    enter.args(["--mount", "--target", &mounted.program.pid().to_string(), "setpriv"]);
    let mut shell = crate::stage::as_nobody(enter);
    shell.args(["sh", "-c", script, "sh"]).arg(stage.path("mnt"));
    stage.run(&mut shell)
}

fn make(path: &Path, (uid, gid): (u32, u32), mode: u32) {
    fs::write(path, "words").unwrap();
    chown(path, Some(uid), Some(gid)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn owner(path: &Path) -> (u32, u32) {
    let attr = fs::symlink_metadata(path).unwrap();
    (attr.uid(), attr.gid())
}

#[test]
fn what_users_make_on_a_mount_for_all_is_theirs() {
    require!(Need::Emulator, Need::Root, Need::Nobody, Need::Fuse);
    let stage = Stage::shared("--rtt 2ms");
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &["-o", "allow_other"]);
    fs::set_permissions(stage.path("far"), Permissions::from_mode(0o1777)).unwrap();
    make(&stage.path("far/secret"), (0, 0), 0o600);
    let as_nobody = |script| as_nobody(&stage, &mounted, script);
    as_nobody("cd $1 && umask 027 && echo x > own && mkdir dir && ln -s own link && mkfifo pipe").expect(0);
    for (name, mode) in [("own", 0o640), ("dir", 0o750), ("link", 0o777), ("pipe", 0o640)] {
        let path = stage.path("far").join(name);
        assert_eq!(owner(&path), (65534, 65534), "{name}");
        assert_eq!(fs::symlink_metadata(path).unwrap().mode() & 0o7777, mode, "{name}");
    }
    assert!(as_nobody("cat $1/secret").err.contains("Permission denied"));
    mounted.program.stop().expect(0);
}

/// That a quota is reached is the kernel's to say, and not every kernel has quotas; this is what it looks at.
#[test]
fn quotas_bind_the_users_of_a_mount_for_all() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    const SYS_RESOURCE: u64 = 1 << 24; // linux/capability.h
    let stage = Stage::shared("--rtt 2ms");
    // Root of a user namespace has all capabilities, also where a container's root has few.
    let mut server = stage.on(Host::Far, "unshare");
    server.args(["--user", "--map-root-user", LONGHAUL]).args(stage.serve_arguments());
    let mut server = stage.start(&mut server);
    server.wait_to_say("host key");
    let mounted = Mounted::new(&stage, "mnt", &["-o", "allow_other"]);
    fs::write(mounted.path("long"), vec![1; 4 << 20]).unwrap();
    let threads = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    let mut seen = Vec::new();
    for thread in threads {
        let thread = thread.unwrap().path();
        let name = fs::read_to_string(thread.join("comm")).unwrap().trim().to_owned();
        if name != "mover" && !name.starts_with("files") {
            continue;
        }
        let status = fs::read_to_string(thread.join("status")).unwrap();
        for set in ["CapPrm", "CapEff"] {
            let set = capabilities(&status, set);
            assert_eq!(set & SYS_RESOURCE, 0, "{name}");
            assert_ne!(set, 0, "{name} has root's other rights");
        }
        seen.push(name);
    }
    assert!(seen.iter().any(|name| name == "mover") && seen.iter().any(|name| name != "mover"), "{seen:?}");
    // They had it from the thread that started them.
    let first = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    assert_ne!(capabilities(&first, "CapEff") & SYS_RESOURCE, 0);
    mounted.program.stop().expect(0);
}

/// A set of a thread's, by its name in proc_pid_status(5).
fn capabilities(status: &str, set: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':')).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

/// An access control list as it is in `system.posix_acl_access` (linux/posix_acl_xattr.h): tags (owner 1, user 2, group 4, mask 16, others 32),
/// permissions, and whose.
fn access_list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// What mode bits cannot say: with a list, those of the group are the most that anybody but the owner may have.
#[test]
fn access_control_lists_count_on_a_mount_for_all() {
    require!(Need::Emulator, Need::Root, Need::Nobody, Need::Fuse);
    let stage = Stage::shared("--rtt 2ms");
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &["-o", "allow_other"]);
    let list = |at: &Path, of_user: u16, user: u32| {
        const NONE: u32 = u32::MAX;
        let entries = [(1, 6, NONE), (2, of_user, user), (4, 0, NONE), (0x10, 6, NONE), (0x20, 0, NONE)];
        set_xattr(at, "system.posix_acl_access", &access_list(&entries)).unwrap();
    };
    make(&stage.path("far/granted"), (0, 0), 0o600);
    list(&stage.path("far/granted"), 4, 65534);
    make(&stage.path("far/denied"), (0, 65534), 0o600);
    list(&stage.path("far/denied"), 6, 7);
    assert_eq!(
        fs::metadata(stage.path("far/denied")).unwrap().mode() & 0o777,
        0o660,
        "so modes alone would let its group in"
    );
    let as_nobody = |script| as_nobody(&stage, &mounted, script);
    assert_eq!(as_nobody("cat $1/granted").expect(0).out, "words");
    assert!(as_nobody("echo x >> $1/granted").err.contains("Permission denied"));
    assert!(as_nobody("cat $1/denied").err.contains("Permission denied"));
    // One that is put there by the mount is the server's, and counts from then on.
    list(&mounted.path("denied"), 4, 65534);
    assert_eq!(as_nobody("cat $1/denied").expect(0).out, "words");
    // And one that is changed at the server.
    list(&stage.path("far/denied"), 0, 65534);
    wait_for("what has changed", LIMIT, || {
        as_nobody("cat $1/denied").err.contains("Permission denied").then_some(())
    });
    mounted.program.stop().expect(0);
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty())?)
}

#[test]
fn a_client_s_root_is_nobody_and_its_users_others_where_its_key_says_so() {
    require!(Need::Emulator, Need::Root, Need::Nobody, Need::Fuse);
    let stage = Stage::shared("--rtt 2ms");
    let keys = fs::read_to_string(stage.path("authorized_keys")).unwrap();
    let options = r#"user="root",root-squash,map-user="65534:1234",map-group="65534:1235" "#;
    fs::write(stage.path("authorized_keys"), keys.replace(r#"user="root" "#, options)).unwrap();
    let far = |name: &str| stage.path("far").join(name);
    fs::set_permissions(far(""), Permissions::from_mode(0o1777)).unwrap();
    for (name, ids, mode) in [
        ("secret", (0, 0), 0o600),
        ("shown", (0, 0), 0o644),
        ("theirs", (1234, 1235), 0o600),
        ("others", (7, 7), 0o644),
    ] {
        make(&far(name), ids, mode);
    }
    fs::create_dir_all(far("private/below")).unwrap();
    make(&far("private/f"), (0, 0), 0o666);
    fs::set_permissions(far("private"), Permissions::from_mode(0o700)).unwrap();
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &["-o", "allow_other"]);
    let here = |name: &str| mounted.path(name);
    let code = |result: io::Result<()>| result.err().and_then(|error| error.raw_os_error());
    let (denied, forbidden) = (Some(nix::libc::EACCES), Some(nix::libc::EPERM));

    // Its root, to which this host's kernel denies nothing.
    let read = |name: &str| code(fs::read(here(name)).map(drop));
    assert_eq!(
        [read("shown"), read("theirs"), read("others")],
        [None; 3],
        "a client's root can be any of its users"
    );
    assert_eq!([read("secret"), read("private/f")], [denied; 2]);
    let first = |mut dir: fs::ReadDir| dir.next().transpose().map(drop);
    assert_eq!(code(fs::read_dir(here("private")).and_then(first)), denied);
    assert_eq!(code(File::options().append(true).open(here("shown")).map(drop)), denied);
    assert_eq!(code(File::create(here("shown")).map(drop)), denied);
    assert_eq!(code(fs::write(here("private/new"), "")), denied);
    assert_eq!(code(fs::remove_file(here("shown"))), forbidden, "the directory keeps what is root's");
    assert_eq!(code(fs::rename(here("secret"), here("mine"))), forbidden);
    assert_eq!(code(fs::rename(here("others"), here("shown"))), forbidden);
    assert_eq!(code(fs::hard_link(here("shown"), here("link"))), forbidden);
    assert_eq!(code(fs::set_permissions(here("secret"), Permissions::from_mode(0o666))), forbidden);
    assert_eq!(code(chown(here("secret"), Some(65534), None)), forbidden);
    fs::write(here("made"), "words").unwrap();
    assert_eq!(owner(&far("made")), (65534, 65534));
    assert_eq!(code(chown(here("made"), Some(0), None)), forbidden);
    fs::set_permissions(here("made"), Permissions::from_mode(0o640)).unwrap();
    let capability = set_xattr(
        &here("made"),
        "security.capability",
        &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    );
    assert_eq!(code(capability), forbidden);
    let device = Command::new("mknod").arg(here("device")).args(["c", "1", "3"]).status().unwrap();
    assert!(!device.success() && !far("device").exists());

    // Its users have other numbers there.
    let as_nobody = |script| as_nobody(&stage, &mounted, script);
    as_nobody(
        "cd $1 && cat theirs && echo x >> theirs && mkdir dir && echo x > dir/own && chmod 600 dir/own",
    )
    .expect(0);
    assert_eq!([owner(&far("dir")), owner(&far("dir/own"))], [(1234, 1235); 2]);
    assert_eq!(
        as_nobody("stat -c %u:%g $1/theirs $1/dir/own $1/others $1/shown").expect(0).out,
        "65534:65534\n65534:65534\n4294967294:4294967294\n0:0\n"
    );
    assert!(
        as_nobody("echo x >> $1/others").err.contains("Permission denied"),
        "whoever has no number here is somebody else"
    );

    // Nor by another way.
    as_nobody("ln -s private/below $1/dir/../way").expect(0);
    for (name, below, why) in [("other", "private/below", "only root may go there"), ("third", "way", "")] {
        let mut command = stage.on(Host::Near, LONGHAUL);
        let mut arguments = mount_arguments(&stage, name, &[]);
        let source = arguments.iter().position(|argument| *argument == "longhaul://far/data").unwrap();
        arguments[source] = format!("longhaul://far/data/{below}").into();
        let refused = stage.run(command.args(arguments));
        assert!(refused.code != Some(0) && refused.err.contains(why), "{}", refused.err);
    }
    let copied = stage.run(stage.cp(&["longhaul://far/data/secret"]).arg(stage.path("near")));
    assert!(copied.code != Some(0) && !stage.path("near/secret").exists(), "{}", copied.err);
    stage.run(stage.cp(&["longhaul://far/data/shown"]).arg(stage.path("near"))).expect(0);
    mounted.program.stop().expect(0);
}
