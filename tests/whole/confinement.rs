//! Nothing outside an export can be read or written, by whatever path or link.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use crate::stage::process::Running;
use crate::stage::tree::walk;
use crate::stage::{Need, Stage};

const SECRET: &str = "what nobody shall read";

/// An export with links that lead out of it, and what they lead to.
struct Prison {
    stage: Stage,
    _server: Running,
    outside: PathBuf,
}

impl Prison {
    fn new() -> Self {
        let stage = Stage::shared("--rtt 2ms --rate 1Gbit");
        let outside = stage.path("outside");
        std::fs::create_dir_all(outside.join("deep")).unwrap();
        for name in ["secret", "deep/secret"] {
            std::fs::write(outside.join(name), SECRET).unwrap();
        }
        let far = stage.path("far");
        std::fs::write(far.join("plain"), "p").unwrap();
        symlink("../outside", far.join("dir")).unwrap();
        symlink(&outside, far.join("absolute")).unwrap();
        symlink("../outside/secret", far.join("file")).unwrap();
        symlink(outside.join("secret"), far.join("absolute file")).unwrap();
        symlink("../outside/new", far.join("dangling")).unwrap();
        symlink("../../../../../../../../../../etc/passwd", far.join("passwd")).unwrap();
        let server = stage.serve();
        Self { stage, _server: server, outside }
    }

    fn pull(&self, options: &[&str], path: &str) -> Command {
        let mut command = self.stage.cp(options);
        command.arg(format!("longhaul://far/data/{path}")).arg(self.stage.path("near"));
        command
    }

    /// What has come of the outside, anywhere at the near end.
    fn leaked(&self) -> Vec<PathBuf> {
        let secret = |path: &PathBuf| {
            let is_file = path.symlink_metadata().unwrap().is_file();
            is_file && {
                let bytes = std::fs::read(path).unwrap();
                bytes.windows(4).any(|part| part == b"root") || bytes == SECRET.as_bytes()
            }
        };
        walk(&self.stage.path("near")).into_iter().filter(secret).collect()
    }

    #[track_caller]
    fn assert_outside_is_untouched(&self) {
        let names: Vec<_> = walk(&self.outside);
        let expected = ["deep", "deep/secret", "secret"].map(|name| self.outside.join(name));
        assert_eq!(names, expected);
        for name in ["secret", "deep/secret"] {
            assert_eq!(std::fs::read_to_string(self.outside.join(name)).unwrap(), SECRET);
        }
    }
}

#[test]
fn no_path_reads_outside() {
    require!(Need::Emulator);
    let prison = Prison::new();
    let paths = [
        "../outside/secret",
        "plain/../../outside/secret",
        "dir/secret",
        "dir/deep",
        "dir/.",
        "dir",
        "absolute/secret",
        "file",
        "absolute file",
        "passwd",
        "/etc/passwd",
    ];
    for path in paths {
        for options in [&["-r"][..], &[], &["-rL"], &["-L"]] {
            let ended = prison.stage.run(&mut prison.pull(options, path));
            let leaked = prison.leaked();
            assert!(leaked.is_empty(), "{options:?} {path}: {leaked:?}");
            // A link may come as a link; else it is refused, and said so.
            assert!(
                ended.code != Some(0) || prison.stage.path("near").join(path).is_symlink(),
                "{options:?} {path}: neither a link nor a refusal; it said {}",
                ended.err,
            );
        }
    }
    let ended = prison.stage.run(&mut prison.pull(&["-rL"], "."));
    assert!(prison.leaked().is_empty(), "{:?}", prison.leaked());
    // Each link that leads out is named, and the rest has come.
    ended.expect(1).says(&["dir", "absolute", "file", "absolute file", "passwd", "leads out of the export"]);
    assert!(prison.stage.path("near/plain").exists());
    prison.assert_outside_is_untouched();
}

#[test]
fn a_list_of_files_does_not_read_outside() {
    require!(Need::Emulator);
    let prison = Prison::new();
    let list = prison.stage.path("list");
    for name in ["dir/secret", "file", "dir", "../outside/secret", "/etc/passwd"] {
        std::fs::write(&list, name).unwrap();
        for options in ["-r", "-rL"] {
            let mut command = prison.stage.cp(&[options, "--files-from"]);
            command.arg(&list).arg("longhaul://far/data/.").arg(prison.stage.path("near"));
            prison.stage.run(&mut command);
            assert!(prison.leaked().is_empty(), "{name} {options}: {:?}", prison.leaked());
        }
    }
}

#[test]
fn no_path_writes_outside() {
    require!(Need::Emulator);
    let prison = Prison::new();
    let mine = prison.stage.path("near/mine");
    std::fs::create_dir(&mine).unwrap();
    std::fs::write(mine.join("secret"), "overwritten").unwrap();
    std::fs::create_dir(mine.join("deep")).unwrap();
    std::fs::write(mine.join("deep/secret"), "overwritten").unwrap();
    let file = mine.join("secret");
    let paths = [
        "../outside/secret",
        "../outside",
        "plain/../../outside/new",
        "dir",
        "dir/",
        "dir/new",
        "dir/secret",
        "dir/deep/new",
        "absolute",
        "absolute/secret",
        "file",
        "absolute file",
        "dangling",
    ];
    for path in paths {
        for (options, source) in [(&[][..], &file), (&["-r"][..], &mine), (&["-a"][..], &mine)] {
            let far = format!("longhaul://far/data/{path}");
            prison.stage.run(prison.stage.cp(options).arg(source).arg(far));
            prison.assert_outside_is_untouched();
        }
    }
    // Trees whose directories have the names of such links.
    for name in ["dir", "absolute"] {
        let tree = prison.stage.path("near/tree");
        std::fs::create_dir_all(tree.join(name)).unwrap();
        std::fs::write(tree.join(name).join("secret"), "overwritten").unwrap();
        let mut command = prison.stage.cp(&["-r", "--force"]);
        command.arg(tree.join(".")).arg("longhaul://far/data/");
        prison.stage.run(&mut command).expect(1);
        prison.assert_outside_is_untouched();
        std::fs::remove_dir_all(&tree).unwrap();
    }
}

/// Swaps a directory with a link that leads out, as fast as it can, until told to stop.
fn swap(dir: &Path, link: &Path, stop: &AtomicBool) -> u64 {
    let mut swaps = 0;
    while !stop.load(Ordering::Relaxed) {
        renameat2(AT_FDCWD, dir, AT_FDCWD, link, RenameFlags::RENAME_EXCHANGE).unwrap();
        swaps += 1;
    }
    swaps
}

#[test]
fn a_link_that_is_raced_in_leads_nowhere() {
    require!(Need::Emulator);
    const ROUNDS: usize = 12;
    let prison = Prison::new();
    let far = prison.stage.path("far/race");
    let mine = prison.stage.path("near/mine");
    for dir in [&far, &mine] {
        std::fs::create_dir_all(dir.join("deep")).unwrap();
    }
    for n in 0..50 {
        std::fs::write(far.join(format!("deep/f{n}")), "inside").unwrap();
        std::fs::write(mine.join(format!("deep/new{n}")), "pushed").unwrap();
    }
    std::fs::write(far.join("deep/secret"), "inside").unwrap();
    std::fs::write(mine.join("deep/secret"), "overwritten").unwrap();
    let link = prison.stage.path("far/trap");
    symlink(prison.outside.join("deep"), &link).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swaps = scope.spawn(|| swap(&far.join("deep"), &link, &stop));
        for round in 0..ROUNDS {
            let got = prison.stage.path(format!("near/got{round}"));
            let mut pull = prison.stage.cp(&["-r", "longhaul://far/data/race"]);
            prison.stage.run(pull.arg(&got));
            let mut push = prison.stage.cp(&["-r", "--force"]);
            prison.stage.run(push.arg(mine.join(".")).arg("longhaul://far/data/race"));
        }
        stop.store(true, Ordering::Relaxed);
        let swaps = swaps.join().unwrap();
        assert!(swaps > 1000, "only {swaps} swaps: this has shown nothing");
    });
    assert!(prison.leaked().is_empty(), "{:?}", prison.leaked());
    prison.assert_outside_is_untouched();
}
