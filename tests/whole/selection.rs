//! What is copied and what is not, and what is said about it: as users of cp and rsync expect.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::stage::process::Ended;
use crate::stage::tree::{walk, write_random};
use crate::stage::{Need, Stage, Way, as_nobody, give_to_nobody};

fn stage() -> Stage {
    Stage::shared("--rtt 5ms --rate 1Gbit")
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names below `dir`, on one line.
fn names(dir: &Path) -> String {
    let below = walk(dir).into_iter().map(|path| path.strip_prefix(dir).unwrap().display().to_string());
    below.collect::<Vec<_>>().join(" ")
}

/// Copies `near/from` to `to` at the far end.
fn push(stage: &Stage, options: &[&str], from: &str, to: &str) -> Ended {
    let far = format!("longhaul://far/data/{to}");
    stage.run(stage.cp(options).arg(stage.path("near").join(from)).arg(far))
}

#[test]
fn a_dry_run_changes_nothing_and_counts_all() {
    require!(Need::Emulator);
    let stage = stage();
    let _server = stage.serve();
    write(&stage.path("near/tree/a/one"), "1");
    write(&stage.path("near/tree/two"), "22");
    write_random(&stage.path("near/tree/large"), 200 << 10, 1);
    let ended = push(&stage, &["-rn", "--json"], "tree", "tree").expect(0).says(&["would copy 3 files"]);
    assert_eq!(ended.json()["files"], 3);
    assert_eq!(ended.json()["bytes"], (200 << 10) + 3);
    assert_eq!(names(&stage.path("far")), "");
    // Of a read-only export as well.
    let pull = stage.run(&mut stage.copy(Way::Pull, &["-rn"], "tree"));
    assert_eq!(pull.code, Some(1), "nothing is there to pull: {}", pull.err);
}

#[test]
fn update_leaves_newer_files_alone() {
    require!(Need::Emulator);
    let stage = stage();
    let _server = stage.serve();
    let set_age = |path: &Path, days: u64| {
        let time = SystemTime::now() - Duration::from_secs(days * 86_400);
        File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
    };
    for (name, near, far) in [("newer there", 5, 1), ("older there", 1, 5)] {
        for (side, days) in [("near", near), ("far", far)] {
            let path = stage.path(side).join(name);
            write(&path, &format!("of {side}"));
            set_age(&path, days);
        }
        push(&stage, &["-u"], name, "").expect(0);
    }
    assert_eq!(read(&stage.path("far/newer there")), "of far");
    assert_eq!(read(&stage.path("far/older there")), "of near");
    write(&stage.path("near/older there"), "of near again");
    push(&stage, &["--ignore-existing"], "older there", "").expect(0);
    assert_eq!(read(&stage.path("far/older there")), "of near");
}

#[test]
fn equal_files_are_passed_over_unless_forced() {
    require!(Need::Emulator);
    let stage = stage();
    let _server = stage.serve();
    write_random(&stage.path("near/f"), 5 << 20, 2);
    push(&stage, &[], "f", "").expect(0);
    let before = stage.carried(Way::Push);
    let again = push(&stage, &["--json"], "f", "").expect(0).json();
    assert_eq!(
        (&again["files"], &again["skipped_files"], &again["bytes"]),
        (&0.into(), &1.into(), &0.into())
    );
    let sent = stage.carried(Way::Push).bytes - before.bytes;
    assert!(sent < 200_000, "{sent} bytes for nothing");
    let forced = push(&stage, &["--json", "--force"], "f", "").expect(0).json();
    assert_eq!((&forced["files"], &forced["bytes"]), (&1.into(), &(5 << 20).into()));
}

#[test]
fn exclusions_hold_at_every_depth() {
    require!(Need::Emulator);
    let stage = stage();
    let _server = stage.serve();
    for name in ["keep.c", "drop.o", "sub/drop.o", "sub/keep.c", "build/x", "sub/build/y", "top", "sub/top"] {
        write(&stage.path("near/tree").join(name), name);
    }
    let options = ["-r", "--exclude", "*.o", "--exclude", "build/", "--exclude", "/top"];
    push(&stage, &options, "tree", "pushed").expect(0);
    assert_eq!(names(&stage.path("far/pushed")), "keep.c sub sub/keep.c sub/top");
    // The far end walks: it must know them, too.
    std::fs::rename(stage.path("near/tree"), stage.path("far/tree")).unwrap();
    stage.run(&mut stage.copy(Way::Pull, &options, "tree")).expect(0);
    assert_eq!(names(&stage.path("near/tree")), "keep.c sub sub/keep.c sub/top");
    push(&stage, &["-r", "--exclude", "[z-"], "tree", "x").expect(2).says(&["[z-"]);
}

#[test]
fn a_list_names_the_files() {
    require!(Need::Emulator);
    let stage = stage();
    let _server = stage.serve();
    for name in ["a/one", "a/two", "b/c/three", "line\nend", "four"] {
        write(&stage.path("near/tree").join(name), name);
    }
    write(&stage.path("list"), "a/one\nb/c/three\nmissing\n");
    let list = stage.path("list").display().to_string();
    let ended = push(&stage, &["--files-from", &list, "--json"], "tree", "").expect(1);
    assert_eq!(ended.json()["files"], 2);
    assert!(ended.json()["problems"][0]["path"].as_str().unwrap().ends_with("tree/missing"));
    assert_eq!(names(&stage.path("far")), "a a/one b b/c b/c/three");
    write(&stage.path("list"), "line\nend\0four\0");
    push(&stage, &["-0", "--files-from", &list], "tree", "").expect(0);
    assert_eq!(read(&stage.path("far/line\nend")), "line\nend");
    // All of it.
    let dot = stage.path("dot").display().to_string();
    write(&stage.path("dot"), ".\n");
    assert!(!stage.path("far/a/two").exists());
    push(&stage, &["-r", "--files-from", &dot], "tree", "").expect(0);
    assert_eq!(read(&stage.path("far/a/two")), "a/two");
    // The other way round.
    std::fs::create_dir(stage.path("near/got")).unwrap();
    let mut pull = stage.cp(&["-0", "--files-from", &list, "longhaul://far/data/."]);
    stage.run(pull.arg(stage.path("near/got"))).expect(0);
    assert_eq!(names(&stage.path("near/got")), "four line\nend");
}

#[test]
fn many_sources_go_into_a_directory() {
    require!(Need::Emulator);
    let stage = stage();
    let _server = stage.serve();
    for name in ["one", "two", "tree/three"] {
        write(&stage.path("near").join(name), name);
    }
    let all = |options: &[&str], to: &str| {
        let mut command = stage.cp(options);
        command.args(["one", "two", "tree"].map(|name| stage.path("near").join(name)));
        stage.run(command.arg(format!("longhaul://far/data/{to}")))
    };
    // Not onto a name that is not there.
    all(&["-r"], "new").expect(2).says(&["new"]);
    assert_eq!(names(&stage.path("far")), "");
    std::fs::create_dir(stage.path("far/into")).unwrap();
    all(&["-r"], "into").expect(0);
    assert_eq!(names(&stage.path("far/into")), "one tree tree/three two");
    // Without -r the directory stays behind, and is named.
    std::fs::create_dir(stage.path("far/flat")).unwrap();
    all(&[], "flat").expect(1).says(&["tree: not copied: it is a directory"]);
    assert_eq!(names(&stage.path("far/flat")), "one two");
    // Back, several at a time.
    let mut pull = stage.cp(&["longhaul://far/data/flat/one", "longhaul://far/data/flat/two"]);
    std::fs::create_dir(stage.path("near/got")).unwrap();
    stage.run(pull.arg(stage.path("near/got"))).expect(0);
    assert_eq!(names(&stage.path("near/got")), "one two");
}

#[test]
fn a_directory_does_not_replace_a_file_nor_a_file_a_directory() {
    require!(Need::Emulator);
    let stage = stage();
    let _server = stage.serve();
    write(&stage.path("near/tree/sub/x"), "x");
    write(&stage.path("near/file"), "f");
    write(&stage.path("far/name"), "there before");
    let onto = push(&stage, &["-r"], "tree", "name");
    assert_ne!(onto.code, Some(0), "{}", onto.err);
    let onto = onto.says(&["name"]);
    assert!(onto.err.contains("director"), "{}", onto.err);
    assert_eq!(read(&stage.path("far/name")), "there before");
    // Within trees, where the rest goes on.
    write(&stage.path("near/tree/other"), "other");
    write(&stage.path("far/to/tree/sub"), "there before");
    push(&stage, &["-r"], "tree", "to").expect(1).says(&["tree/sub"]);
    assert_eq!(read(&stage.path("far/to/tree/sub")), "there before");
    assert_eq!(read(&stage.path("far/to/tree/other")), "other");
    std::fs::create_dir_all(stage.path("far/dir/file")).unwrap();
    push(&stage, &[], "file", "dir").expect(1).says(&["a directory is in its place"]);
}

#[test]
fn a_missing_source_does_not_hold_up_the_others() {
    require!(Need::Emulator);
    let stage = stage();
    let _server = stage.serve();
    write(&stage.path("near/there"), "there");
    write(&stage.path("far/there too"), "there too");
    let mut push = stage.cp(&["--json"]);
    push.arg(stage.path("near/missing")).arg(stage.path("near/there")).arg("longhaul://far/data/");
    let ended = stage.run(&mut push).expect(1).says(&["missing: no such file"]);
    assert_eq!(ended.json()["files"], 1);
    assert_eq!(ended.json()["problems"].as_array().unwrap().len(), 1);
    assert_eq!(read(&stage.path("far/there")), "there");
    let mut pull = stage.cp(&["--json", "longhaul://far/data/missing", "longhaul://far/data/there too"]);
    let ended = stage.run(pull.arg(stage.path("near"))).expect(1).says(&["missing: no such file"]);
    assert_eq!(ended.json()["files"], 1);
    assert_eq!(read(&stage.path("near/there too")), "there too");
}

#[test]
fn a_source_one_may_not_read_does_not_hold_up_the_others() {
    require!(Need::Emulator, Need::Nobody);
    let stage = stage();
    let _server = stage.serve();
    let tree = stage.path("near/tree");
    for name in ["open", "closed", "dir/inside", "large"] {
        write(&tree.join(name), name);
    }
    write_random(&tree.join("large"), 300 << 10, 3);
    for name in ["closed", "large", "dir"] {
        std::fs::set_permissions(tree.join(name), Permissions::from_mode(0o000)).unwrap();
    }
    ["client", "config", "home", "near"].into_iter().for_each(|path| give_to_nobody(&stage.path(path)));
    write(&stage.path("known_hosts"), "");
    give_to_nobody(&stage.path("known_hosts"));
    let mut command = as_nobody(stage.on(crate::stage::Host::Near, "setpriv"));
    command.arg(crate::stage::LONGHAUL).args(["cp", "-r", "--json", "-i"]).arg(stage.path("client"));
    command.arg("--known-hosts").arg(stage.path("known_hosts")).arg(&tree).arg("longhaul://far/data/");
    let ended = stage.run(&mut command).expect(1);
    let ended =
        ended.says(&["tree/closed: cannot", "tree/large: cannot", "tree/dir: cannot", "Permission denied"]);
    assert_eq!(ended.json()["files"], 1, "{}", ended.out);
    assert_eq!(ended.json()["problems"].as_array().unwrap().len(), 3, "{}", ended.out);
    assert_eq!(names(&stage.path("far")), "tree tree/dir tree/open");
}

#[test]
fn a_session_has_the_rights_of_its_user() {
    require!(Need::Emulator, Need::Nobody);
    let stage = stage();
    let line = read(&stage.path("client.pub"));
    write(&stage.path("authorized_keys"), &format!("user=\"nobody\" {line}"));
    write(&stage.path("far/roots own"), "secret");
    std::fs::set_permissions(stage.path("far/roots own"), Permissions::from_mode(0o600)).unwrap();
    std::fs::create_dir(stage.path("far/nobodys")).unwrap();
    give_to_nobody(&stage.path("far/nobodys"));
    let _server = stage.serve();
    stage.run(&mut stage.copy(Way::Pull, &[], "roots own")).expect(1).says(&["Permission denied"]);
    write(&stage.path("near/f"), "f");
    push(&stage, &[], "f", "f").expect(1).says(&["Permission denied"]);
    push(&stage, &["-p"], "f", "nobodys/f").expect(0);
    let meta = std::fs::metadata(stage.path("far/nobodys/f")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&meta), 65534, "it cannot give files away");
}

/// Whoever withdraws the last file of a directory of root's must not have its mode changed for that.
#[test]
fn a_session_changes_nothing_with_root_s_rights() {
    require!(Need::Emulator, Need::Nobody);
    let stage = stage();
    let line = read(&stage.path("client.pub"));
    write(&stage.path("authorized_keys"), &format!("user=\"nobody\" {line}"));
    let (mine, theirs) = (stage.path("near/bob"), stage.path("far/bob"));
    std::fs::create_dir(&mine).unwrap();
    write_random(&mine.join("unreadable"), 200 << 10, 1);
    std::fs::set_permissions(mine.join("unreadable"), Permissions::from_mode(0o000)).unwrap();
    std::fs::create_dir(&theirs).unwrap();
    for (path, mode) in [(&mine, 0o777), (&theirs, 0o755)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    ["client", "config", "home", "near"].into_iter().for_each(|path| give_to_nobody(&stage.path(path)));
    write(&stage.path("known_hosts"), "");
    give_to_nobody(&stage.path("known_hosts"));
    let _server = stage.serve();
    let mut command = as_nobody(stage.on(crate::stage::Host::Near, "setpriv"));
    command.arg(crate::stage::LONGHAUL).args(["cp", "-rp", "-i"]).arg(stage.path("client"));
    command.arg("--known-hosts").arg(stage.path("known_hosts")).arg(&mine).arg("longhaul://far/data/");
    stage.run(&mut command).expect(1).says(&["unreadable: cannot read", "permissions cannot be set"]);
    assert_eq!(std::fs::metadata(&theirs).unwrap().permissions().mode() & 0o7777, 0o755);
}

/// The far end sends: it must know of the wish. The bound is of the rate that was asked for, not of any machine's.
#[test]
fn a_pull_goes_no_faster_than_it_may() {
    require!(Need::Emulator);
    const BYTES: u64 = 8 << 20;
    let stage = stage();
    let _server = stage.serve();
    write_random(&stage.path("far/f"), BYTES, 1);
    let options = ["--json", "--rate", "32Mbit", "--lanes", "3"];
    let ended = stage.run(&mut stage.copy(Way::Pull, &options, "f")).expect(0);
    let told = ended.json();
    assert_eq!(told["lanes"], 3, "{told}");
    // Two seconds and a bit; a kernel may let each lane go ahead by what fits its buffers before it is paced.
    let at_full_rate = BYTES as f64 * 8.0 / 32e6;
    assert!(told["seconds"].as_f64().unwrap() > at_full_rate * 0.8, "{told}");
}

#[test]
fn a_list_may_be_longer_than_a_message() {
    require!(Need::Emulator);
    const FILES: usize = 3000;
    let stage = stage();
    let _server = stage.serve();
    let mut list = String::new();
    for n in 0..FILES {
        let name = format!("{n:040}");
        write(&stage.path("far/tree").join(&name), &name);
        list.push_str(&format!("{name}\n"));
    }
    write(&stage.path("list"), &list);
    let mut command = stage.cp(&["--json", "--files-from"]);
    command.arg(stage.path("list")).arg("longhaul://far/data/tree").arg(stage.path("near"));
    let ended = stage.run(&mut command).expect(0);
    assert_eq!(ended.json()["files"], FILES);
    assert_eq!(std::fs::read_dir(stage.path("near")).unwrap().count(), FILES);
}

#[test]
fn json_has_all_that_a_script_asks_for() {
    require!(Need::Emulator);
    let stage = stage();
    let _server = stage.serve();
    write(&stage.path("near/f"), "1234");
    let ended = push(&stage, &["--json"], "f", "").expect(0);
    assert_eq!(ended.out.lines().count(), 1, "one object and nothing else: {}", ended.out);
    let told = ended.json();
    assert_eq!(
        (&told["files"], &told["bytes"], &told["error"]),
        (&1.into(), &4.into(), &serde_json::Value::Null)
    );
    for number in
        ["seconds", "bits_per_second", "repeated_bytes", "skipped_files", "skipped_bytes", "lanes", "rtt_ms"]
    {
        assert!(told[number].is_number(), "{number} in {told}");
    }
    assert!(told["rtt_ms"].as_f64().unwrap() >= 5.0, "{told}");
    // On a machine that is so slow that TCP was tried as well, either may be there first.
    let may_be_tcp = ended.took >= longhaul_transport::limits::QUIC_HEAD_START;
    assert!(told["control"] == "QUIC" || may_be_tcp && told["control"] == "TCP", "{told}");
    assert_eq!(told["problems"], serde_json::json!([]));
    // What is refused is told there, too.
    let refused = push(&stage, &["--json"], "f", "none/below/f").expect(2);
    assert!(refused.json()["error"].as_str().unwrap().contains("none"), "{}", refused.out);
}

#[test]
fn quiet_is_silent_until_something_is_wrong() {
    require!(Need::Emulator);
    let stage = stage();
    let _server = stage.serve();
    write(&stage.path("near/f"), "1234");
    push(&stage, &[], "f", "first use").expect(0);
    let ended = push(&stage, &["-q", "--tcp"], "f", "").expect(0);
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", ""));
    push(&stage, &["-q"], "missing", "").expect(1).says(&["missing: no such file"]);
}

#[test]
fn what_cannot_be_meant_is_refused_with_a_hint() {
    require!(Need::Emulator);
    let stage = stage();
    let _server = stage.serve();
    write(&stage.path("near/f"), "f");
    let near = stage.path("near/f").display().to_string();
    let cp = |paths: &[&str]| stage.run(stage.cp(&[]).args(paths));
    cp(&[&near, "/tmp/x"]).expect(2).says(&["both sides are on this host"]);
    cp(&["longhaul://far/data/a", "longhaul://far/data/b"]).expect(2).says(&["both sides are far away"]);
    cp(&[&near, "longhaul://far/nothing/"]).expect(2).says(&["no export", "`data`"]);
    cp(&[&near, "longhaul://far"]).expect(2).says(&["names no export"]);
    cp(&[&near, "longhaul://far:1/data/"]).expect(2).says(&["cannot reach far", "refused"]);
    cp(&[&near, "longhaul://nowhere.invalid/data/"])
        .expect(2)
        .says(&["cannot find the address of nowhere.invalid"]);
}
