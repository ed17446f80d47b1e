//! The emulated link as any user may make one, without being root.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::disk_full::own_mounts;
use crate::stage::process::{Running, wait_for};
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
    assert_eq!(emulate(&["down", &name]).0, Some(0));
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
        let (code, said) = ping(to);
        let least = said.split("min/avg/max/mdev = ").nth(1).and_then(|rest| rest.split('/').next());
        let least: f64 = least.and_then(|ms| ms.parse().ok()).unwrap_or_else(|| panic!("{said}"));
        assert!(code == Some(0) && (40.0..60.0).contains(&least), "{said}");
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
