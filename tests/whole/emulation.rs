//! The emulated link as any user may make one, without being root.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::disk_full::own_mounts;
use crate::stage::process::{Running, assert_rtt, wait_for};
use crate::stage::tree::assert_same_bytes;
use crate::stage::{LONGHAUL, Need, as_nobody, give_to_nobody};

/// A /dev/net/tun that all users may open, as distributions have it, for this thread and its children.
fn open_tun_to_all(scratch: &Path) {
    own_mounts();
    let tun = scratch.join("tun");
    mknod(&tun, SFlag::S_IFCHR, Mode::empty(), makedev(10, 200)).unwrap();
    std::fs::set_permissions(&tun, PermissionsExt::from_mode(0o666)).unwrap();
    mount(Some(&tun), "/dev/net/tun", None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

#[test]
fn a_user_without_rights_has_two_hosts_and_copies_between_them() {
    require!(Need::Root, Need::Nobody, Need::Emulator);
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = scratch.path();
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
    open_tun_to_all(dir);
    for name in ["far", "home"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    std::fs::write(dir.join("f"), "over the link").unwrap();
    let mut made = Command::new(LONGHAUL);
    let made = made.args(["key", "generate", "-f"]).arg(dir.join("client")).output().unwrap();
    assert!(made.status.success());
    let line = std::fs::read_to_string(dir.join("client.pub")).unwrap();
    // In its own user namespace the user is root.
    std::fs::write(dir.join("authorized_keys"), format!("user=\"root\" {line}")).unwrap();
    give_to_nobody(dir);
    let show = |name: &str| dir.join(name).display().to_string();
    let far = format!(
        "{LONGHAUL} serve --listen 10.77.0.2:7473 --export data={} --authorized-keys {} --host-key {}",
        show("far"),
        show("authorized_keys"),
        show("host_key"),
    );
    let mut command = as_nobody(Command::new("setpriv"));
    command.args([LONGHAUL, "emulate", "run", "--rtt", "20ms", "--rate", "1Gbit", "--far", &far, "--"]);
    command.args([LONGHAUL, "cp", "-i", &show("client"), "--known-hosts", &show("known_hosts")]);
    command.args([&show("f"), "longhaul://far/data/"]);
    command
        .env("HOME", dir.join("home"))
        .env("XDG_RUNTIME_DIR", dir.join("home"))
        .env_remove("XDG_CONFIG_HOME");
    Running::start(&mut command, &dir.join("words")).wait().expect(0).says(&["copied 1 files"]);
    assert_same_bytes(&dir.join("f"), &dir.join("far/f"));
}

#[test]
fn a_named_network_comes_and_goes() {
    require!(Need::Emulator);
    let name = format!("test-named-{}", std::process::id());
    let emulate = |words: &[&str]| {
        let output = Command::new(LONGHAUL).arg("emulate").args(words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let (code, said) = emulate(&["up", &name, "--rtt", "10ms"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = emulate(&["up", &name]);
    assert!(code == Some(2) && said.contains("already up"), "{said}");
    let (code, said) = emulate(&["exec", &name, "near", "--", "sh", "-c", "exit 7"]);
    assert_eq!(code, Some(7), "{said}");
    // Whoever watches sees it go.
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let words = scratch.path().join("words");
    let mut watch = Command::new("sh");
    watch.args(["-c", &format!("exec {LONGHAUL} emulate show {name} --watch=100ms >&2")]);
    let mut watch = Running::start(&mut watch, &words);
    watch.wait_to_say(" offered, 0 packets lost");
    assert_eq!(emulate(&["down", &name]).0, Some(0));
    watch.wait().expect(0);
    wait_for("the network is down", crate::stage::process::LIMIT, || {
        let (code, said) = emulate(&["show", &name]);
        (code == Some(2) && said.contains("no emulated network is up under the name")).then_some(())
    });
}

#[test]
fn packets_can_be_held_in_the_kernel() {
    require!(Need::Emulator, Need::Iptables, Need::Ping);
    let name = format!("test-held-{}", std::process::id());
    let emulate = |words: &[&str]| {
        let output = Command::new(LONGHAUL).arg("emulate").args(words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let (code, said) = emulate(&["up", &name, "--rtt", "40ms", "--rate", "5Gbit", "--engine", "held"]);
    assert_eq!(code, Some(0), "{said}");
    let ping =
        |to: &str| emulate(&["exec", &name, "near", "--", "ping", "-c", "3", "-i", "0.2", "-W", "2", to]);
    for to in ["far", "fd77::2"] {
        assert_rtt(40.0, || {
            let (code, said) = ping(to);
            assert_eq!(code, Some(0), "{said}");
            said
        });
    }
    let (code, said) = emulate(&["show", &name, "--json"]);
    assert!(code == Some(0) && said.contains("NFQUEUE"), "{said}");
    // A packet that is held whole cannot lose one of its segments; all of them it can.
    let (code, said) = emulate(&["set", &name, "--loss", "1%"]);
    assert!(code == Some(2) && said.contains("--engine split"), "{said}");
    assert_eq!(emulate(&["set", &name, "--loss", "100%"]).0, Some(0));
    assert_eq!(ping("far").0, Some(1), "a dead link answers nothing");
    assert_eq!(emulate(&["down", &name]).0, Some(0));
}

#[test]
fn the_kernels_own_emulator_can_be_asked() {
    require!(Need::Emulator, Need::Netem, Need::Ping);
    let name = format!("test-netem-{}", std::process::id());
    let emulate = |words: &[&str]| {
        let output = Command::new(LONGHAUL).arg("emulate").args(words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let link = ["--rtt", "40ms", "--rate", "10Mbit", "--queue", "50p", "--engine", "netem"];
    let (code, said) = emulate(&[&["up", &name], &link[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    let ping = |count: &str| {
        emulate(&["exec", &name, "near", "--", "ping", "-c", count, "-i", "0.02", "-W", "1", "far"])
    };
    assert_rtt(40.0, || {
        let (code, said) = ping("5");
        assert_eq!(code, Some(0), "{said}");
        said
    });
    // What it cannot do is named, and changes nothing.
    let (code, said) = emulate(&["set", &name, "--outage", "1s+1s"]);
    assert!(code == Some(2) && said.contains("`--outage` has no counterpart in netem"), "{said}");
    assert_eq!(ping("1").0, Some(0));
    let (code, said) = emulate(&["set", &name, "--loss", "100%,0", "--jitter", "1ms:normal"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(ping("3").0, Some(1), "a dead link answers nothing");
    let (code, said) = emulate(&["show", &name]);
    assert!(code == Some(0) && said.contains("emulated by netem") && said.contains("lost 3 "), "{said}");
    assert_eq!(emulate(&["set", &name, "--loss", "0", "--jitter", "0"]).0, Some(0));
    assert_eq!(ping("3").0, Some(0), "{}", emulate(&["show", &name]).1);
    assert_eq!(emulate(&["down", &name]).0, Some(0));
}

#[test]
fn packets_are_treated_as_the_link_is_described() {
    require!(Need::Emulator, Need::Ping);
    // What `ping` and the link's report say.
    let ping = |link: &[&str], words: &[&str]| {
        let mut command = Command::new(LONGHAUL);
        command.args(["emulate", "run"]).args(link);
        command.args(["--", "ping", "-i", "0.01", "far"]).args(words);
        let output = command.output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let says = |said: &str, words: &[&str]| {
        assert!(words.iter().all(|words| said.contains(words)), "{words:?} in: {said}");
    };
    // After its last packet ping waits for twice the longest round trip, or as -W says if nothing has come back by then.
    // Where all must come back, a long way gives a busy machine time.
    let far_away = ["--rtt", "2s"];
    says(
        &ping(&[&far_away[..], &["--duplicate", "100%,0"]].concat(), &["-c", "20", "-W", "60"]),
        &["20 packets transmitted, 20 received, +1", "duplicated 2"],
    );
    let near_by = ["--rtt", "10ms"];
    says(
        &ping(&[&near_by[..], &["--outage", "0s+30s,1h+1s"]].concat(), &["-c", "3", "-W", "1"]),
        &[" 0 received", "lost while the link was down "],
    );
    // One burst after the other.
    let model = ["--loss", "burst:100%:3,0"];
    says(&ping(&[near_by, model].concat(), &["-c", "5", "-W", "1"]), &["5 packets transmitted, 0 received"]);
    let said = ping(&[near_by, ["--jitter", "60ms:overtake,0ms"]].concat(), &["-c", "100"]);
    let sequence: Vec<u32> = said
        .split("icmp_seq=")
        .skip(1)
        .map(|rest| rest.split(' ').next().and_then(|number| number.parse().ok()).unwrap())
        .collect();
    assert!(sequence.len() > 90 && !sequence.is_sorted(), "{said}");
    // ECT(0) packets that wait for too long are marked, others dropped.
    let slow = ["--rate", "512kbit,1Gbit", "--queue", "1MB", "--aqm", "codel:interval=30ms:ecn"];
    // Twenty at a time, so that they wait for each other.
    let flood = ["-c", "100", "-s", "1000", "-l", "20"];
    says(
        &ping(&[&far_away[..], &slow].concat(), &[&flood[..], &["-Q", "2", "-W", "60"]].concat()),
        &["100 received", ", marked "],
    );
    says(
        &ping(&[&near_by[..], &slow].concat(), &[&flood[..], &["-W", "1"]].concat()),
        &["dropped by its management "],
    );
}
