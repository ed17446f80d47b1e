//! Names of files are any bytes; a terminal must not be made to believe them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::stage::tree::{assert_same_trees, write_random};
use crate::stage::{Need, Stage, Way};

fn odd_names() -> Vec<Vec<u8>> {
    vec![
        b"two\nlines".to_vec(),
        b"\x1b[31mred\x07".to_vec(),
        b"not \xff\xfe UTF-8".to_vec(),
        "gr\u{fc}\u{df}e \u{1f4be}".as_bytes().to_vec(),
        b" leading and trailing ".to_vec(),
        b"-rf".to_vec(),
        b"host:path".to_vec(),
        b"back\\slash\"quote'".to_vec(),
        vec![b'n'; 255],
        vec![0xe9; 255],
    ]
}

fn fill(dir: &Path) {
    for (number, name) in odd_names().into_iter().enumerate() {
        let odd = dir.join(OsStr::from_bytes(&name));
        // As directory, as small file in it, and as one that travels in pieces and has a partial file.
        std::fs::create_dir(&odd).unwrap();
        std::fs::write(odd.join(OsStr::from_bytes(&name)), &name).unwrap();
        write_random(&odd.join("large"), 200 << 10, number as u64);
        let mut large = name.clone();
        large[0] = b'L';
        write_random(&dir.join(OsStr::from_bytes(&large)), 100 << 10, number as u64);
    }
}

#[test]
fn odd_names_travel_both_ways() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    let _server = stage.serve();
    let top = stage.path("near/odd");
    std::fs::create_dir(&top).unwrap();
    fill(&top);
    stage.run(stage.cp(&["-a"]).arg(&top).arg("longhaul://far/data/")).expect(0);
    assert_same_trees(&top, &stage.path("far/odd"));
    stage.run(stage.cp(&["-a", "longhaul://far/data/odd"]).arg(stage.path("near/back"))).expect(0);
    assert_same_trees(&top, &stage.path("near/back"));
}

#[test]
fn a_name_cannot_write_to_the_terminal() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    let _server = stage.serve();
    let name = OsStr::from_bytes(b"two\nlines \x1b[31m \xff");
    for way in [Way::Push, Way::Pull] {
        let dir = stage.source(way).join("pipes");
        std::fs::create_dir(&dir).unwrap();
        // A pipe is a problem without -a, which is told with its name.
        mkfifo(&dir.join(name), Mode::S_IRWXU).unwrap();
        let ended = match way {
            Way::Push => stage.run(stage.cp(&["-r", "--json"]).arg(&dir).arg("longhaul://far/data/pushed")),
            Way::Pull => stage
                .run(stage.cp(&["-r", "--json", "longhaul://far/data/pipes"]).arg(stage.path("near/got"))),
        };
        let ended = ended.expect(1).says(&["two\\nlines \\u{1b}[31m \\xff: not copied"]);
        assert!(!ended.err.contains('\x1b') && !ended.out.contains('\x1b'));
        let path = ended.json()["problems"][0]["path"].as_str().unwrap().to_owned();
        assert!(path.ends_with("two\\nlines \\u{1b}[31m \\xff"), "{path}");
    }
}

#[test]
fn a_name_in_a_reason_cannot_write_to_the_terminal_either() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    let _server = stage.serve();
    let evil = OsStr::from_bytes(b"no\n\x1b[31msuch");
    let mut far = std::ffi::OsString::from("longhaul://far/data/");
    far.push(evil);
    far.push("/below");
    std::fs::write(stage.path("near/f"), "f").unwrap();
    // Each ends with words about the path: of this end, of the far end, of a refusal, of a missing source.
    let commands: [&mut dyn FnMut() -> std::process::Command; 4] = [
        &mut || {
            let mut command = stage.cp(&[]);
            command.arg(&far).arg(stage.path("near/got"));
            command
        },
        &mut || {
            let mut command = stage.cp(&[]);
            command.arg(stage.path("near/f")).arg(&far);
            command
        },
        &mut || {
            let mut command = stage.cp(&[]);
            command.arg(stage.path("near").join(evil).join("x")).arg("longhaul://far/data/x");
            command
        },
        &mut || {
            let mut command = stage.cp(&["longhaul://far/data/f"]);
            command.arg(stage.path("near").join(evil).join("x"));
            command
        },
    ];
    for command in commands {
        let ended = stage.run(&mut command());
        assert_ne!(ended.code, Some(0), "{}", ended.err);
        assert!(!ended.err.contains('\x1b'), "{:?}", ended.err);
        assert!(ended.err.contains("no\\n\\u{1b}[31msuch"), "{:?}", ended.err);
    }
}
