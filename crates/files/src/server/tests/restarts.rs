//! What is asked for again of a server that was killed: it is done once.

use super::*;

/// Servers of one directory, one after the other, that are killed; and one mount of them.
struct Servers {
    temp: tempfile::TempDir,
    /// Of the changes that have been asked for.
    sequence: u64,
}

impl Servers {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("top")).unwrap();
        Self { temp, sequence: 0 }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.temp.path().join("top").join(name)
    }

    /// The next, which knows what the mount has: the top, and these names in it.
    fn next(&self, names: &[&'static str]) -> Mounted {
        let top = Dir::open_path(&self.temp.path().join("top")).unwrap();
        let mounted =
            Mounted::at(&top, &shared_with(Some(self.mounts())), None, false, Some([7; 16])).unwrap();
        for name in names {
            look_up(&mounted, TOP, name).unwrap();
        }
        mounted
    }

    fn mounts(&self) -> PathBuf {
        self.temp.path().join("mounts")
    }

    /// Has the server carry out a change, whose answer is lost; then `others` do something, and the next is asked once more.
    fn ask_twice<O: Operation>(
        &mut self,
        names: &[&'static str],
        operation: impl Fn(&Mounted) -> O,
        others: impl FnOnce(&Self),
    ) -> Result<O::Outcome, Errno> {
        let first = self.next(names);
        let asked = operation(&first).ask();
        self.sequence += 1;
        let slot = Slot { number: 3, sequence: self.sequence, ..Slot::default() };
        reply_to_slot(&first, &asked, slot);
        drop(first);
        others(self);
        let next = self.next(names);
        operation(&next); // what is open is open again
        Reply::read(reply_to_slot(&next, &asked, Slot { again: true, ..slot })).0
    }
}

#[test]
fn a_change_that_a_server_made_before_it_died_is_not_made_twice() {
    let mut servers = Servers::new();
    let mode = |kind: FileType| kind.as_raw_mode() | 0o700;
    let make =
        |kind| move |_: &Mounted| Make { parent: TOP, name: "n".into(), mode: mode(kind), ..Make::default() };
    let create = |flags: OFlags| {
        let flags = (OFlags::RDWR | flags).bits();
        move |_: &Mounted| Create {
            parent: TOP,
            name: "c".into(),
            mode: 0o600,
            flags,
            file: 9,
            ..Create::default()
        }
    };
    let remove = |name: &'static str| {
        move |_: &Mounted| Remove { parent: TOP, name: name.into(), ..Remove::default() }
    };
    let node = |mounted: &Mounted, name: &str| look_up(mounted, TOP, name).unwrap_or_default();
    let nothing = |_: &Servers| {};

    // What is made is there, and is what was made.
    let made = servers.ask_twice(&[], make(FileType::Directory), nothing).unwrap();
    assert_eq!(made.attr.node, node(&servers.next(&[]), "n"));
    let another = |servers: &Servers| {
        fs::remove_file(servers.path("n")).or_else(|_| fs::remove_dir(servers.path("n"))).unwrap();
        fs::create_dir(servers.path("n")).unwrap();
    };
    fs::remove_dir(servers.path("n")).unwrap();
    let made = servers.ask_twice(&[], make(FileType::Directory), another);
    assert_eq!(made, Err(Errno::STALE), "it has been removed, and another's is not its own");
    // What has failed has failed.
    let made = servers
        .ask_twice(&[], make(FileType::Directory), |servers| fs::remove_dir(servers.path("n")).unwrap());
    assert_eq!((made, servers.path("n").exists()), (Err(Errno::EXIST), false));

    let written = |servers: &Servers| fs::write(servers.path("c"), "another's").unwrap();
    for flags in [OFlags::EXCL, OFlags::TRUNC] {
        let created = servers.ask_twice(&[], create(flags), written).unwrap();
        assert_eq!(
            (created.node.attr.size, fs::read_to_string(servers.path("c")).unwrap()),
            (9, "another's".into())
        );
        fs::remove_file(servers.path("c")).unwrap();
    }
    let replaced = |servers: &Servers| {
        fs::write(servers.path("new"), "").unwrap();
        fs::rename(servers.path("new"), servers.path("c")).unwrap();
    };
    assert_eq!(servers.ask_twice(&[], create(OFlags::EXCL), replaced), Err(Errno::STALE));
    let removed = |servers: &Servers| fs::remove_file(servers.path("c")).unwrap();
    fs::remove_file(servers.path("c")).unwrap();
    assert_eq!(servers.ask_twice(&[], create(OFlags::empty()), removed), Err(Errno::STALE));
    assert!(!servers.path("c").exists());

    // What is removed, moved or cut off is not once more, whatever others have made there.
    let there = |servers: &Servers| fs::write(servers.path("r"), "another's").unwrap();
    there(&servers);
    servers.ask_twice(&[], remove("r"), there).unwrap();
    assert!(servers.path("r").exists());
    let rename = |flags| {
        move |_: &Mounted| Rename {
            parent: TOP,
            name: "r".into(),
            new_parent: TOP,
            new_name: "s".into(),
            flags,
        }
    };
    let moved = servers.ask_twice(&[], rename(0), there).unwrap();
    assert!(servers.path("r").exists() && servers.path("s").exists());
    assert_eq!(moved.moved, node(&servers.next(&[]), "s"), "and it is known where it is");
    fs::write(servers.path("s"), "s").unwrap();
    servers.ask_twice(&[], rename(2), nothing).unwrap();
    assert_eq!(fs::read_to_string(servers.path("r")).unwrap(), "s", "exchanged, and not back");
    let cut = |mounted: &Mounted| SetAttr { node: node(mounted, "r"), size: Some(0), ..SetAttr::default() };
    let attr = servers.ask_twice(&["r"], cut, there).unwrap();
    assert_eq!((attr.size, fs::read_to_string(servers.path("r")).unwrap()), (9, "another's".into()));
    let truncate = |mounted: &Mounted| {
        let flags = (OFlags::RDWR | OFlags::TRUNC).bits();
        Open { node: node(mounted, "r"), flags, file: 5, ..Open::default() }
    };
    assert_eq!(servers.ask_twice(&["r"], truncate, there).unwrap().attr.unwrap().size, 9);
    let link = |mounted: &Mounted| Link { node: node(mounted, "r"), parent: TOP, name: "l".into() };
    assert_eq!(servers.ask_twice(&["r"], link, nothing).unwrap().attr.links, 2);

    // What is appended is there once, and a copy says how much it was.
    let open = |mounted: &Mounted, flags: OFlags, file| {
        let node = node(mounted, "r");
        call(mounted, Open { node, flags: (OFlags::RDWR | flags).bits(), file, reclaims: true }).unwrap();
    };
    let append = |mounted: &Mounted| {
        open(mounted, OFlags::APPEND, 6);
        Write { file: 6, data: "!".into(), appends: true, ..Write::default() }
    };
    servers.ask_twice(&["r"], append, nothing).unwrap();
    assert_eq!(fs::read_to_string(servers.path("r")).unwrap(), "another's!");
    let copy = |mounted: &Mounted| {
        open(mounted, OFlags::empty(), 7);
        CopyRange { from_file: 7, from: 0, to_file: 7, to: 10, length: 100 }
    };
    let copied = servers.ask_twice(&["r"], copy, |servers| fs::write(servers.path("r"), "short").unwrap());
    assert_eq!(
        (copied, fs::read_to_string(servers.path("r")).unwrap()),
        (Ok(Count { count: 10 }), "short".into())
    );
    let xattr = |mounted: &Mounted| SetXattr {
        node: node(mounted, "r"),
        name: "user.x".into(),
        value: "1".into(),
        flags: 1,
    };
    servers.ask_twice(&["r"], xattr, nothing).unwrap();
}

/// By a client that means no good.
#[test]
fn another_change_under_the_slot_of_one_that_was_made_is_not_made() {
    let servers = Servers::new();
    let mounted = servers.next(&[]);
    let slot = Slot { number: 0, sequence: 1, again: true, ..Slot::default() };
    let make = Make { parent: TOP, name: "d".into(), mode: 0o040_700, ..Make::default() };
    reply_to_slot(&mounted, &make.clone().ask(), slot);
    let d = look_up(&mounted, TOP, "d").unwrap();
    let flags = OFlags::RDWR.bits();
    let others = [
        Make { name: "other".into(), ..make }.ask(),
        Create { parent: TOP, name: "d".into(), flags, file: 1, ..Create::default() }.ask(),
        Create { parent: TOP, name: "..".into(), flags, file: 1, ..Create::default() }.ask(),
        Remove { parent: TOP, name: "d".into(), is_dir: true, ..Remove::default() }.ask(),
        Link { node: d, parent: 7, name: "l".into() }.ask(),
        Open { node: d, flags: flags | OFlags::TRUNC.bits(), file: 1, ..Open::default() }.ask(),
        CopyRange { from_file: 1, to_file: 2, ..CopyRange::default() }.ask(),
    ];
    for ask in others {
        let _ = Reply::read::<Nothing>(reply_to_slot(&mounted, &ask, slot));
    }
    assert_eq!(seen(&servers.path("")), ["d"]);
}

#[test]
fn what_a_server_was_killed_in_the_middle_of_is_looked_at() {
    let mut servers = Servers::new();
    // As if it had not come to write down how it went, or its machine had been started again.
    let damaged = |servers: &Servers| fs::write(servers.mounts().with_extension("replies"), "").unwrap();
    let make = |name: &'static str, kind: FileType, target: &'static str| {
        let mode = kind.as_raw_mode() | 0o700;
        move |_: &Mounted| Make {
            parent: TOP,
            name: name.into(),
            mode,
            target: target.into(),
            ..Make::default()
        }
    };
    for (name, kind, target) in
        [("d", FileType::Directory, ""), ("l", FileType::Symlink, "to"), ("p", FileType::Fifo, "")]
    {
        servers.ask_twice(&[], make(name, kind, target), damaged).unwrap();
    }
    let elsewhere = servers.ask_twice(&[], make("l", FileType::Symlink, "elsewhere"), damaged);
    assert_eq!(elsewhere, Err(Errno::EXIST));
    assert_eq!(servers.ask_twice(&[], make("p", FileType::Directory, ""), damaged), Err(Errno::EXIST));
    let create = |_: &Mounted| {
        let flags = (OFlags::RDWR | OFlags::EXCL).bits();
        Create { parent: TOP, name: "c".into(), mode: 0o600, flags, file: 9, ..Create::default() }
    };
    servers.ask_twice(&[], create, damaged).unwrap();
    fs::write(servers.path("c"), "another's").unwrap();
    assert_eq!(servers.ask_twice(&[], create, damaged), Err(Errno::EXIST));
    let link = |mounted: &Mounted| Link {
        node: look_up(mounted, TOP, "c").unwrap(),
        parent: TOP,
        name: "again".into(),
    };
    servers.ask_twice(&["c"], link, damaged).unwrap();
    let rename = |_: &Mounted| Rename {
        parent: TOP,
        name: "again".into(),
        new_parent: TOP,
        new_name: "moved".into(),
        flags: 0,
    };
    servers.ask_twice(&[], rename, damaged).unwrap();
    let remove = |_: &Mounted| Remove { parent: TOP, name: "moved".into(), ..Remove::default() };
    servers.ask_twice(&[], remove, damaged).unwrap();
}
