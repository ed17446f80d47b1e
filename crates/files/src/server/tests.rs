//! Operations on a directory, without a session: also of clients that mean no good.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use rustix::fs::{FileType, OFlags};

use super::listing::Found;
use super::*;
use crate::limits::{INLINE_BYTES_MAX, KEPT_WHEN_FOUND_MAX, NODES_OPEN_MAX, WHOLE_FILE_COST};
use crate::message::{
    Allocate, Close, CopyRange, Count, Create, Created, Forget, Forgotten, GetAttr, Link, Lookup, Make, Node,
    Open, Operation, Place, ReadDir, ReadLink, ReadWhole, Reclaim, Reclaimed, Remove, Rename, Seek, SetAttr,
    SetXattr, TOP, Untouched, WireTime, Write,
};

mod restarts;

/// A directory `top` that is mounted, beside a file that nobody may get at.
fn mounted() -> (tempfile::TempDir, Mounted) {
    mounted_with(&shared())
}

fn mounted_with(shared: &Shared) -> (tempfile::TempDir, Mounted) {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir_all(temp.path().join("top/d/e")).unwrap();
    fs::write(temp.path().join("top/f"), "words").unwrap();
    fs::write(temp.path().join("secret"), "s").unwrap();
    let top = Dir::open_path(&temp.path().join("top")).unwrap();
    let mounted = Mounted::at(&top, shared, None, false, None).unwrap();
    (temp, mounted)
}

/// What sessions share; its tasks are never run.
fn shared() -> Arc<Shared> {
    shared_with(None)
}

fn shared_with(mounts: Option<PathBuf>) -> Arc<Shared> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _guard = runtime.enter();
    Shared::new(mounts)
}

/// One for all cases of a property: each has a group of fanotify's for a second, and a user may have 128 of them.
fn shared_by_cases() -> &'static Shared {
    static SHARED: std::sync::OnceLock<Arc<Shared>> = std::sync::OnceLock::new();
    SHARED.get_or_init(shared)
}

/// Nobody else keeps anything: no operation waits.
fn reply_to(mounted: &Mounted, ask: &Ask) -> Bytes {
    reply_to_slot(mounted, ask, Slot::default())
}

fn reply_to_slot(mounted: &Mounted, ask: &Ask, slot: Slot) -> Bytes {
    match step(mounted, ask, slot, None) {
        Step::Done(reply) | Step::DoneWhen(reply, _) => reply.into_bytes(),
        Step::Again(_) => panic!("{ask:?} waits"),
    }
}

fn call<O: Operation>(mounted: &Mounted, operation: O) -> Result<O::Outcome, Errno> {
    Reply::read(reply_to(mounted, &operation.ask())).0
}

fn look_up(mounted: &Mounted, parent: u64, name: &str) -> Result<u64, Errno> {
    let name = Bytes::copy_from_slice(name.as_bytes());
    call(mounted, Lookup { parent, name }).map(|Node { attr, .. }| attr.node)
}

#[test]
fn names_lead_nowhere_but_down() {
    let (temp, mounted) = mounted();
    std::os::unix::fs::symlink("../secret", temp.path().join("top/out")).unwrap();
    for name in ["..", ".", "", "d/e", "../secret", "/etc"] {
        assert_eq!(look_up(&mounted, TOP, name), Err(Errno::INVAL), "{name}");
    }
    assert_eq!(look_up(&mounted, TOP, &"x".repeat(256)), Err(Errno::NAMETOOLONG));
    let out = look_up(&mounted, TOP, "out").unwrap();
    assert_eq!(call(&mounted, ReadLink { node: out }).unwrap().data, "../secret");
    assert_eq!(
        call(&mounted, Open { node: out, file: 1, ..Open::default() }),
        Err(Errno::LOOP),
        "a link is its client's to follow"
    );
    let f = look_up(&mounted, TOP, "f").unwrap();
    assert_eq!(look_up(&mounted, f, "x"), Err(Errno::NOTDIR));
    assert_eq!(look_up(&mounted, 12345, "x"), Err(Errno::STALE));
}

#[test]
fn a_file_that_is_another_under_its_old_name_is_not_taken_for_it() {
    let (temp, mounted) = mounted();
    let long = vec![0; KEPT_WHEN_FOUND_MAX as usize + 1];
    fs::write(temp.path().join("top/f"), long).unwrap();
    let f = look_up(&mounted, TOP, "f").unwrap();
    fs::rename(temp.path().join("top/f"), temp.path().join("top/moved")).unwrap();
    fs::write(temp.path().join("top/f"), "other").unwrap();
    // Nobody had it open, and its name leads to another.
    assert_eq!(call(&mounted, GetAttr { node: f }), Err(Errno::STALE));
    // Looked up, it is found where it is now.
    assert_eq!(look_up(&mounted, TOP, "moved"), Ok(f));
    assert!(call(&mounted, GetAttr { node: f }).is_ok());
}

#[test]
fn what_has_just_been_looked_up_can_be_used_though_others_replace_it() {
    let (temp, mounted) = mounted();
    let at = |name: &str| temp.path().join("top").join(name);
    std::os::unix::fs::symlink("old", at("link")).unwrap();
    fs::write(at("short"), "old").unwrap();
    let [link, short] = ["link", "short"].map(|name| look_up(&mounted, TOP, name).unwrap());
    std::os::unix::fs::symlink("new", at("next")).unwrap();
    fs::rename(at("next"), at("link")).unwrap();
    fs::write(at("next"), "newer").unwrap();
    fs::rename(at("next"), at("short")).unwrap();
    assert_eq!(call(&mounted, ReadLink { node: link }).unwrap().data, "old");
    let open = Open { node: short, flags: OFlags::RDONLY.bits(), file: 1, reclaims: false };
    assert_eq!(call(&mounted, open).unwrap().content.unwrap(), "old");
}

#[test]
fn what_is_used_stays_open_whatever_is_looked_up() {
    let (temp, mounted) = mounted();
    let at = |name: &str| temp.path().join("top").join(name);
    fs::create_dir(at("used")).unwrap();
    let used = look_up(&mounted, TOP, "used").unwrap();
    let others = |count: usize, kind: &str| {
        for number in 0..count {
            let name = format!("{kind}{number}");
            fs::write(at(&name), "").unwrap();
            look_up(&mounted, TOP, &name).unwrap();
        }
    };
    others(NODES_OPEN_MAX - 50, "before");
    look_up(&mounted, used, "absent").unwrap_err();
    others(100, "after");
    fs::rename(at("used"), at("moved")).unwrap();
    assert!(call(&mounted, GetAttr { node: used }).is_ok());
}

#[test]
fn what_loses_its_name_stays_until_it_is_forgotten() {
    let (_temp, mounted) = mounted();
    let f = look_up(&mounted, TOP, "f").unwrap();
    call(&mounted, Remove { parent: TOP, name: "f".into(), ..Remove::default() }).unwrap();
    assert_eq!(call(&mounted, GetAttr { node: f }).unwrap().links, 0);
    call(&mounted, Forget { nodes: vec![Forgotten { node: f, times: 1 }] }).unwrap();
    assert_eq!(call(&mounted, GetAttr { node: f }), Err(Errno::STALE));
}

#[test]
fn a_name_that_a_client_has_removed_is_removed_later_if_it_is_the_same() {
    let (temp, mounted) = mounted();
    let at = temp.path().join("top/lock");
    let make = |file| {
        let flags = (OFlags::RDWR | OFlags::EXCL).bits();
        let create =
            Create { parent: TOP, name: "lock".into(), mode: 0o600, flags, file, ..Create::default() };
        let attr = call(&mounted, create).unwrap().node.attr;
        call(&mounted, Close { file }).unwrap();
        Some(Untouched { node: attr.node, modified: attr.modified })
    };
    let remove = |untouched, may_stay| {
        let ask = Remove { parent: TOP, name: "lock".into(), untouched, may_stay, ..Remove::default() };
        call(&mounted, ask).map(|loser| loser.kept != 0)
    };
    call(&mounted, GetAttr { node: TOP }).unwrap();
    let first = make(1);
    // Where changes cannot be noticed it does not stay.
    if remove(first, true).unwrap() {
        assert!(at.exists());
        remove(first, false).unwrap();
    }
    assert!(!at.exists());
    let second = make(2);
    assert_eq!(remove(first, false), Err(Errno::STALE), "another");
    fs::write(&at, "words").unwrap();
    assert_eq!(remove(second, false), Err(Errno::STALE), "somebody has made something of it");
    assert_eq!((remove(second, true), at.exists()), (Ok(false), false), "as any name");
    let third = make(3);
    fs::hard_link(&at, temp.path().join("top/again")).unwrap();
    assert_eq!((remove(third, true), at.exists()), (Ok(false), false), "it has another name");
}

/// The client forgets as often as it was told.
#[test]
fn of_what_a_request_that_fails_would_have_told_the_client_does_not_know() {
    let (temp, mounted) = mounted();
    let f = look_up(&mounted, TOP, "f").unwrap();
    call(&mounted, Forget { nodes: vec![Forgotten { node: f, times: 1 }] }).unwrap();
    // A disk that fails half way.
    let dir = fs::File::open(temp.path().join("top")).unwrap().into();
    let found = |name: &'static str| Ok(Found { name: name.into(), kind: FileType::RegularFile, next: 1 });
    let listed = |last| {
        let (ask, found) = (ReadDir { node: TOP, ..ReadDir::default() }, [found("."), found("f"), last]);
        mounted.list(ask, &dir, None, found.into_iter(), &mut Vec::new())
    };
    assert_eq!(listed(Err(Errno::IO)), Err(Errno::IO));
    assert_eq!(call(&mounted, GetAttr { node: f }), Err(Errno::STALE));
    assert_eq!(listed(found("d")).unwrap().entries.len(), 3);
    assert!(call(&mounted, GetAttr { node: f }).is_ok());
    // A file that is made, and cannot be open under that number.
    let create = Create {
        parent: TOP,
        name: "made".into(),
        flags: OFlags::RDWR.bits(),
        mode: 0o600,
        file: 0,
        ..Create::default()
    };
    assert_eq!(call(&mounted, create), Err(Errno::INVAL));
    let made = nodes::stat(fs::File::open(temp.path().join("top/made")).unwrap()).unwrap();
    assert_eq!(call(&mounted, GetAttr { node: mounted.nodes.number(&made) }), Err(Errno::STALE));
}

#[test]
fn nothing_is_kept_of_a_directory_that_was_given_up_while_it_was_listed() {
    let (temp, mounted) = mounted();
    let dir = fs::File::open(temp.path().join("top")).unwrap().into();
    let mut grants = Vec::new();
    let found = || [Ok(Found { name: "f".into(), kind: FileType::RegularFile, next: 1 })].into_iter();
    let ask = ReadDir { node: TOP, ..ReadDir::default() };
    // It was marked when the listing began, and is not any more.
    let gone = FileId { device: 0, inode: 1, born: 0 };
    assert_eq!(mounted.list(ask, &dir, Some(gone), found(), &mut grants).unwrap().entries.len(), 1);
    assert_eq!(grants, []);
    // As it is where changes can be noticed.
    mounted.read_dir(ask, &mut grants).unwrap();
    if !grants.is_empty() {
        assert_eq!(grants.len(), 3, "the directory, and both that are in it");
    }
}

#[test]
fn a_renamed_file_is_found_by_its_new_name() {
    let (_temp, mounted) = mounted();
    let (f, d) = (look_up(&mounted, TOP, "f").unwrap(), look_up(&mounted, TOP, "d").unwrap());
    let rename = Rename { parent: TOP, name: "f".into(), new_parent: d, new_name: "g".into(), flags: 0 };
    call(&mounted, rename).unwrap();
    assert_eq!(call(&mounted, GetAttr { node: f }).unwrap().size, 5);
    assert_eq!(look_up(&mounted, d, "g"), Ok(f));
    // Exchanged, each is where the other was.
    let e = look_up(&mounted, d, "e").unwrap();
    let rename = Rename { parent: d, name: "g".into(), new_parent: d, new_name: "e".into(), flags: 2 };
    call(&mounted, rename).unwrap();
    assert_eq!((look_up(&mounted, d, "e"), look_up(&mounted, d, "g")), (Ok(f), Ok(e)));
}

#[test]
fn what_was_known_before_is_known_by_its_place() {
    let (temp, mounted) = mounted();
    let (d, f) = (look_up(&mounted, TOP, "d").unwrap(), look_up(&mounted, TOP, "f").unwrap());
    let e = look_up(&mounted, d, "e").unwrap();
    // Another session, of the same files: it knows none of them.
    let top = Dir::open_path(&temp.path().join("top")).unwrap();
    let mounted = Mounted::at(&top, &shared(), None, false, None).unwrap();
    assert_eq!(call(&mounted, GetAttr { node: e }), Err(Errno::STALE));
    let place = |node, parent, name: &'static str| Place { node, parent, name: name.into(), times: 2 };
    fs::write(temp.path().join("top/new"), "n").unwrap();
    let places = vec![
        place(d, TOP, "d"),
        place(e, d, "e"),
        place(f, TOP, "new"),
        place(7, TOP, "../secret"),
        place(8, 9, "x"),
    ];
    let Reclaimed { lost } = call(&mounted, Reclaim { nodes: places }).unwrap();
    assert_eq!(lost, [f, 7, 8], "another file, no name, of no directory");
    assert!(call(&mounted, GetAttr { node: e }).is_ok());
    call(&mounted, Forget { nodes: vec![Forgotten { node: e, times: 1 }] }).unwrap();
    assert!(call(&mounted, GetAttr { node: e }).is_ok(), "it counts twice");
    call(&mounted, Forget { nodes: vec![Forgotten { node: e, times: 1 }] }).unwrap();
    assert_eq!(call(&mounted, GetAttr { node: e }), Err(Errno::STALE));
    // A file is open under its client's number, asked once or twice.
    call(&mounted, Reclaim { nodes: vec![place(f, TOP, "f")] }).unwrap();
    for _ in 0..2 {
        call(&mounted, Open { node: f, file: 70, flags: OFlags::RDWR.bits(), reclaims: true }).unwrap();
    }
    assert_eq!(call(&mounted, Open { node: d, file: 70, ..Open::default() }), Err(Errno::ISDIR));
    call(&mounted, Write { file: 70, data: "W".into(), ..Write::default() }).unwrap();
    assert_eq!(fs::read_to_string(temp.path().join("top/f")).unwrap(), "Words");
    for number in [0, 1 << 32] {
        assert_eq!(call(&mounted, Open { node: f, file: number, ..Open::default() }), Err(Errno::INVAL));
    }
}

#[test]
fn who_takes_a_file_back_waits_for_nobody_who_has_it_alone() {
    let (temp, _) = mounted();
    let top = Dir::open_path(&temp.path().join("top")).unwrap();
    let shared = shared();
    let [one, other] = [(); 2].map(|()| Mounted::at(&top, &shared, None, false, None).unwrap());
    let f = look_up(&one, TOP, "f").unwrap();
    call(&other, Reclaim { nodes: vec![Place { node: f, parent: TOP, name: "f".into(), times: 1 }] })
        .unwrap();
    let open = |flags: OFlags, reclaims| Open { node: f, file: 7, flags: flags.bits(), reclaims };
    let opened = call(&one, open(OFlags::RDWR, true)).unwrap();
    assert_ne!(opened.exclusive, 0, "it has it alone");
    // Who does not take back, but opens, is to see what that one knows.
    assert!(matches!(
        step(&other, &open(OFlags::RDONLY, false).ask(), Slot::default(), None),
        Step::Again(_)
    ));
    call(&other, open(OFlags::RDONLY, true)).unwrap();
}

/// Who came later is asked again when a look that had to wait has begun; it need not have ended.
#[tokio::test]
async fn who_lets_others_look_first_is_not_forgotten() {
    let temp = tempfile::tempdir().unwrap();
    let (top, shared) = (Dir::open_path(temp.path()).unwrap(), Shared::new(None));
    let coherence = Arc::clone(&shared.coherence);
    let [one, other, third] = [(); 3].map(|()| Mounted::at(&top, &shared, None, false, None).unwrap().client);
    for inode in 0..20 {
        let file = FileId { device: 0, inode, born: 0 };
        assert_ne!(coherence.map(one, file, true).await, 0);
        let spawned = Arc::clone(&coherence);
        let look = tokio::spawn(async move { spawned.use_bytes(other, file, Use::Look).await });
        tokio::task::yield_now().await;
        let spawned = Arc::clone(&coherence);
        let map = tokio::spawn(async move { spawned.map(third, file, true).await });
        tokio::task::yield_now().await;
        coherence.forgotten(one, file);
        let both = async {
            let look = look.await.unwrap();
            (look, map.await.unwrap())
        };
        let both = tokio::time::timeout(std::time::Duration::from_secs(20), both);
        let (look, serial) = both.await.expect("one waits for ever");
        assert!(look.is_some() && serial != 0);
    }
}

/// Ahead of who reads one file after the other, by a client that asks for what it likes.
#[test]
fn only_files_that_may_be_kept_are_told_of_beforehand() {
    let (temp, mounted) = mounted();
    std::os::unix::fs::symlink("../secret", temp.path().join("top/out")).unwrap();
    call(&mounted, Make { parent: TOP, name: "p".into(), mode: 0o010_600, ..Make::default() }).unwrap();
    fs::write(temp.path().join("top/long"), vec![7; INLINE_BYTES_MAX - WHOLE_FILE_COST]).unwrap();
    fs::write(temp.path().join("top/longer"), vec![7; INLINE_BYTES_MAX - WHOLE_FILE_COST + 1]).unwrap();
    let node = |name| look_up(&mounted, TOP, name).unwrap();
    let nodes = vec![node("out"), node("p"), node("d"), node("longer"), 12345, node("f"), node("long")];
    let sizes = |nodes: Vec<u64>| {
        let mut grants = Vec::new();
        let told = mounted.read_whole(&ReadWhole { nodes }, &mut grants);
        let granted: Vec<u64> = grants.iter().map(|grant| grant.node).collect();
        assert_eq!(granted, told.files.iter().map(|file| file.attr.node).collect::<Vec<_>>());
        told.files.iter().map(|file| file.content.len()).collect::<Vec<_>>()
    };
    if mounted.watched_dir(TOP).unwrap().is_none() {
        assert_eq!(sizes(nodes), [0; 0], "where changes are not noticed nothing is kept");
        assert!(std::env::var_os("LONGHAUL_REQUIRE_ALL").is_none(), "a kernel and a directory with fanotify");
        return eprintln!("SKIPPED: changes in the directory of the tests cannot be noticed");
    }
    assert_eq!(sizes(nodes), [5], "with it the long one does not fit");
    assert_eq!(sizes(vec![node("long")]), [INLINE_BYTES_MAX - WHOLE_FILE_COST]);
    // Of many no more than a message holds.
    let files = sizes(vec![node("f"); 10_000]);
    assert_eq!(files.len(), INLINE_BYTES_MAX / (WHOLE_FILE_COST + 5));
    // While another client has it open for writing, nobody is told.
    let top = Dir::open_path(&temp.path().join("top")).unwrap();
    let shared = shared();
    let [one, other] = [0, 1].map(|_| Mounted::at(&top, &shared, None, false, None).unwrap());
    let f = look_up(&one, TOP, "f").unwrap();
    assert_eq!(look_up(&other, TOP, "f"), Ok(f));
    let read = || one.read_whole(&ReadWhole { nodes: vec![f] }, &mut Vec::new()).files.len();
    let open = Open { node: f, file: 1, flags: OFlags::RDWR.bits(), reclaims: false };
    one.coherence.forgotten(one.client, one.nodes.file(f).unwrap()); // by having looked it up
    call(&other, open).unwrap();
    assert_eq!(read(), 0);
    call(&other, Close { file: 1 }).unwrap();
    assert_eq!(read(), 1);
}

#[test]
fn pipes_are_not_opened_here() {
    let (_temp, mounted) = mounted();
    let make = Make { parent: TOP, name: "p".into(), mode: 0o010_600, ..Make::default() };
    let pipe = call(&mounted, make).unwrap().attr.node;
    assert_eq!(call(&mounted, Open { node: pipe, file: 1, ..Open::default() }), Err(Errno::NXIO));
    let create =
        Create { parent: TOP, name: "p".into(), flags: OFlags::RDWR.bits(), file: 1, ..Create::default() };
    assert_eq!(call(&mounted, create), Err(Errno::EXIST));
}

#[test]
fn nothing_is_changed_where_one_may_only_read() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("f"), "words").unwrap();
    let top = Dir::open_path(temp.path()).unwrap();
    let mounted = Mounted::at(&top, &shared(), None, true, None).unwrap();
    let node = look_up(&mounted, TOP, "f").unwrap();
    let name = Bytes::from_static(b"f");
    let rofs = Err(Errno::ROFS);
    assert_eq!(call(&mounted, SetAttr { node, mode: Some(0), ..SetAttr::default() }).map(drop), rofs);
    assert_eq!(
        call(&mounted, Open { node, flags: OFlags::WRONLY.bits(), file: 1, ..Open::default() }).map(drop),
        rofs
    );
    assert_eq!(
        call(&mounted, Open { node, flags: OFlags::TRUNC.bits(), file: 1, ..Open::default() }).map(drop),
        rofs
    );
    assert_eq!(
        call(&mounted, Remove { parent: TOP, name: name.clone(), ..Remove::default() }).map(drop),
        rofs
    );
    assert_eq!(call(&mounted, Link { node, parent: TOP, name: "g".into() }).map(drop), rofs);
    assert_eq!(call(&mounted, Create { parent: TOP, name, file: 2, ..Create::default() }).map(drop), rofs);
    assert_eq!(
        call(&mounted, SetXattr { node, name: "user.x".into(), ..SetXattr::default() }).map(drop),
        rofs
    );
    // A file opened for reading takes no writes either.
    let file = 1;
    call(&mounted, Open { node, file, ..Open::default() }).unwrap();
    let write = Write { file, data: "x".into(), ..Write::default() };
    assert_eq!(call(&mounted, write), Err(Errno::BADF));
    // Nor one that would append, in place or with nothing.
    let file = 3;
    call(&mounted, Open { node, file, flags: OFlags::APPEND.bits(), ..Open::default() }).unwrap();
    for data in ["x", ""] {
        let write = Write { file, data: data.into(), later: true, drops_set_id: true, ..Write::default() };
        assert_eq!(call(&mounted, write), Err(Errno::BADF));
    }
    assert_eq!(fs::read_to_string(temp.path().join("f")).unwrap(), "words");
}

#[test]
fn what_is_set_is_of_the_node_that_was_asked_for() {
    let (temp, mounted) = mounted();
    fs::write(temp.path().join("top/other"), "words").unwrap();
    let [node, other] = ["f", "other"].map(|name| look_up(&mounted, TOP, name).unwrap());
    call(&mounted, Open { node: other, file: 1, flags: OFlags::RDWR.bits(), ..Open::default() }).unwrap();
    for ask in [
        SetAttr { file: 1, size: Some(0), drops_set_id: true, ..SetAttr::default() },
        SetAttr { uid: Some(u32::MAX), ..SetAttr::default() },
        SetAttr { gid: Some(u32::MAX), mode: Some(0o2755), ..SetAttr::default() },
    ] {
        assert_eq!(call(&mounted, SetAttr { node, ..ask }).map(drop), Err(Errno::INVAL), "{ask:?}");
    }
    assert_eq!(fs::read_to_string(temp.path().join("top/other")).unwrap(), "words");
    call(&mounted, SetAttr { node: other, file: 1, size: Some(1), ..SetAttr::default() }).unwrap();
    assert_eq!(fs::read_to_string(temp.path().join("top/other")).unwrap(), "w");
}

/// What a client might ask: of few names, nodes and files, so that it often hits something.
fn asks() -> impl Strategy<Value = Ask> {
    let name = prop_oneof![
        Just("f"),
        Just("g"),
        Just("d"),
        Just("e"),
        Just(".."),
        Just("."),
        Just("../secret"),
        Just("")
    ];
    let name = name.prop_map(|name| Bytes::from_static(name.as_bytes()));
    // Nodes by their place in a list that grows with what is found.
    let (node, file, number) = (0..8_u64, 0..5_u64, any::<u64>());
    (0..18_u8, name.clone(), name, (node.clone(), node), file, number, any::<u32>()).prop_map(
        |(kind, name, other, (node, parent), file, number, bits)| match kind {
            0..=2 => Lookup { parent, name }.ask(),
            3 => GetAttr { node }.ask(),
            4 => SetAttr { node, file, size: Some(number % 5000), mode: Some(bits), ..SetAttr::default() }
                .ask(),
            5 => Make { parent, name, mode: bits, target: other, ..Make::default() }.ask(),
            6 => Create { parent, name, flags: bits, mode: 0o600, file, ..Create::default() }.ask(),
            7 => {
                let untouched = (bits & 2 != 0).then(|| Untouched { node, modified: WireTime::default() });
                Remove { parent, name, is_dir: bits & 1 != 0, untouched, may_stay: bits & 4 != 0 }.ask()
            }
            8 => Rename { parent, name, new_parent: node, new_name: other, flags: bits % 8 }.ask(),
            9 => Link { node, parent, name }.ask(),
            10 => Open { node, flags: bits, file, reclaims: number % 2 == 0 }.ask(),
            11 => Write {
                file,
                offset: number % 10_000,
                data: name,
                drops_set_id: true,
                later: number % 2 == 0,
                tells: bits % 2 == 0,
                appends: bits % 4 == 0,
            }
            .ask(),
            12 => ReadDir { node, from: number, unasked: number % 2 == 0, all_names: bits % 2 == 0 }.ask(),
            13 => {
                Allocate { file, offset: number % 10_000, length: u64::from(bits % 10_000), mode: bits % 64 }
                    .ask()
            }
            14 => CopyRange { from_file: file, from: number, to_file: node, to: number, length: bits.into() }
                .ask(),
            16 => ReadWhole { nodes: vec![node, parent, number] }.ask(),
            15 => Seek { file, offset: number, hole: bits % 2 == 0 }.ask(),
            _ => Close { file }.ask(),
        },
    )
}

/// Everything in a directory that a test may look at.
fn seen(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_is_asked_nothing_outside_is_touched(asks in prop::collection::vec(asks(), 1..60)) {
        let (temp, mounted) = mounted_with(shared_by_cases());
        let mut nodes = vec![TOP];
        for mut ask in asks {
            // Places become nodes.
            let place = |node: &mut u64| *node = nodes[*node as usize % nodes.len()];
            match &mut ask {
                Ask::Lookup(a) => place(&mut a.parent),
                Ask::GetAttr(a) => place(&mut a.node),
                Ask::SetAttr(a) => place(&mut a.node),
                Ask::Make(a) => place(&mut a.parent),
                Ask::Create(a) => place(&mut a.parent),
                Ask::Remove(a) => {
                    place(&mut a.parent);
                    a.untouched.iter_mut().for_each(|untouched| place(&mut untouched.node));
                }
                Ask::Rename(a) => { place(&mut a.parent); place(&mut a.new_parent); }
                Ask::Link(a) => { place(&mut a.node); place(&mut a.parent); }
                Ask::Open(a) => place(&mut a.node),
                Ask::ReadDir(a) => place(&mut a.node),
                Ask::ReadWhole(a) => a.nodes.iter_mut().for_each(place),
                _ => {}
            }
            let found = match &ask {
                Ask::Lookup(_) | Ask::Make(_) | Ask::Link(_) => {
                    Reply::read::<Node>(reply_to(&mounted, &ask)).0.ok().map(|node| node.attr.node)
                }
                Ask::Create(_) => Reply::read::<Created>(reply_to(&mounted, &ask)).0.ok().map(|c| c.node.attr.node),
                _ => {
                    reply_to(&mounted, &ask);
                    None
                }
            };
            nodes.extend(found);
        }
        prop_assert_eq!(seen(temp.path()), ["secret", "top"]);
        prop_assert_eq!(fs::read_to_string(temp.path().join("secret")).unwrap(), "s");
    }

    #[test]
    fn bytes_that_are_no_request_are_answered_with_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (_temp, mounted) = mounted_with(shared_by_cases());
        if let Some((ask, ..)) = Ask::from_bytes(bytes.into()) {
            let _ = Reply::read::<Count>(reply_to(&mounted, &ask)); // an outcome of any kind
        }
    }
}
