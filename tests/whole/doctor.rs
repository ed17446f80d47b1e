//! What the program says of the host that it runs on, of a far one, and of the path between them.

use std::process::{Command, Stdio};

use crate::stage::process::Ended;
use crate::stage::{Host, LONGHAUL, Need, Stage};

#[test]
fn this_host_is_looked_at_and_nothing_is_left_behind() {
    let home = tempfile::tempdir().unwrap();
    let doctor = |words: &[&str]| {
        let mut command = Command::new(LONGHAUL);
        command.arg("doctor").args(words).env("HOME", home.path()).env_remove("XDG_CONFIG_HOME");
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, json) = doctor(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schema"], "longhaul-doctor/1");
    let works = json["works"].as_object().unwrap();
    assert_eq!(code == 0, works.values().all(|works| works == true), "{json}");
    // These tests themselves copy.
    assert_eq!((&works["cp"], &works["serve"]), (&true.into(), &true.into()));
    let findings = json["findings"].as_array().unwrap();
    for finding in findings {
        let is_fine = finding["state"] == "fine" || finding["state"] == "unknown";
        assert_eq!(is_fine, finding["todo"].is_null(), "{finding}");
    }
    let (again, text) = doctor(&[]);
    assert_eq!(again, code);
    for finding in findings {
        assert!(text.contains(finding["subject"].as_str().unwrap()), "{text}");
    }
    assert!(text.contains("\nworks: cp, serve"), "{text}");
    assert!(doctor(&["--all"]).1.len() > text.len());
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn what_is_missing_stops_what_needs_it_and_no_more() {
    require!(Need::Root);
    // A namespace whose /dev is empty.
    let script = format!("mount -t tmpfs none /dev && exec {LONGHAUL} doctor");
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert!(out.contains("MISSING  FUSE: there is no /dev/fuse") && out.contains("MISSING  TUN"), "{out}");
    assert!(out.contains("works: cp, serve\ndoes not work: mount, emulate"), "{out}");
}

fn doctor(stage: &Stage, key: &str, words: &str) -> Ended {
    let mut command: Command = stage.on(Host::Near, LONGHAUL);
    command.args(["doctor", "far", "--identity"]).arg(stage.path(key));
    command.arg("--known-hosts").arg(stage.path("known_hosts")).args(words.split_whitespace());
    stage.run(&mut command)
}

fn json(ended: &Ended) -> serde_json::Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}{}", ended.out, ended.err))
}

/// The one with this subject.
fn finding<'a>(group: &'a serde_json::Value, subject: &str) -> &'a serde_json::Value {
    let findings = group["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["subject"] == subject).unwrap_or_else(|| panic!("{group}"))
}

#[test]
fn a_far_host_and_the_path_to_it_are_looked_at() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 100ms");
    let _server = stage.serve();
    let ended = doctor(&stage, "client", "--json");
    let both = json(&ended);
    let (far, path) = (&both["far"], &both["path"]);
    assert_eq!((&both["schema"], &far["host"]), (&"longhaul-doctor/1".into(), &"far".into()));
    // Both are this machine, but for what a far one keeps to itself of its kernel.
    let states = |group: &serde_json::Value| -> Vec<_> {
        let findings = group["findings"].as_array().unwrap();
        findings.iter().map(|finding| (finding["subject"].clone(), finding["state"].clone())).collect()
    };
    assert_eq!((states(&both), &both["works"]), (states(far), &far["works"]));
    let kernel = finding(far, "kernel")["what"].as_str().unwrap();
    assert!(kernel.strip_prefix("Linux ").unwrap().split('.').count() == 2, "{kernel}");
    let works = both["works"].as_object().unwrap().values().all(|works| works == true);
    assert_eq!(ended.code, Some(i32::from(!works)), "{}", ended.err);
    let figures = &path["figures"];
    let figure = |name: &str| figures[name].as_f64().unwrap_or_else(|| panic!("{name}: {figures}"));
    assert!((99.9..2000.0).contains(&figure("rtt_ms")) && figures["control"] == "QUIC", "{figures}");
    // It is the same clock.
    assert!(figure("clock_ahead_ms").abs() <= figure("clock_within_ms"), "{figures}");
    for way in ["tcp_to", "tcp_from"] {
        let (window, rate) = (&figures[way]["stream_window_bytes"], &figures[way]["stream_bits_per_second"]);
        let expected = window.as_f64().unwrap() * 8e3 / figure("rtt_ms");
        assert!((rate.as_f64().unwrap() / expected - 1.0).abs() < 1e-6, "{figures}");
    }
    let text = doctor(&stage, "client", "--all").out;
    let groups = ["This host\n", "\nfar\n", "\nBetween this host and far\n"];
    let places: Vec<_> = groups.iter().map(|group| text.find(group)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");
    for words in ["round-trip time: 1", "QUIC: UDP gets through", "one stream of others"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn what_a_far_host_lacks_is_its_own() {
    require!(Need::Emulator, Need::Root, Need::Iptables);
    let stage = Stage::shared("--rtt 10ms");
    let mut command = stage.on(Host::Far, "unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /dev && exec \"$@\"", "sh", LONGHAUL]);
    let mut server = stage.start(command.args(stage.serve_arguments()));
    server.wait_to_say("host key");
    for host in [Host::Near, Host::Far] {
        stage.run(stage.on(host, "iptables").args(["-I", "INPUT", "-p", "udp", "-j", "DROP"])).expect(0);
    }
    let both = json(&doctor(&stage, "client", "--json").expect(1));
    assert_eq!(finding(&both["far"], "FUSE")["state"], "missing");
    assert_eq!(both["far"]["works"]["mount"], false);
    // The tests mount here.
    assert_ne!(finding(&both, "FUSE")["what"], "there is no /dev/fuse");
    let control = finding(&both["path"], "control channel");
    assert!(control["state"] == "slower" && control["what"] == "TCP: UDP does not get through", "{control}");
    let text = doctor(&stage, "client", "").expect(1).out;
    let far = &text[text.find("\nfar\n").unwrap()..];
    assert!(far.contains("MISSING  FUSE: there is no /dev/fuse"), "{text}");
}

#[test]
fn who_may_not_look_at_a_host_is_told_why_and_what_else_helps() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 10ms");
    let server = stage.serve_with(&["--no-probe"]);
    let refused = doctor(&stage, "client", "").expect(2);
    assert!(
        refused.out.starts_with("This host\n") && refused.out.contains("\nworks: cp, serve"),
        "{}",
        refused.out
    );
    refused.says(&[
        "far cannot be looked at from here (`longhaul doctor` that is run there",
        "lets nobody measure the path or look at the host (--no-probe)",
    ]);
    let refused = doctor(&stage, "client", "--json").expect(2);
    let both = json(&refused);
    assert!(
        both["far"]["error"].as_str().unwrap().contains("--no-probe") && both["path"].is_null(),
        "{both}"
    );
    assert_eq!(both["works"]["cp"], true);
    server.stop().expect(0);
    let server = stage.serve();
    stage.run(stage.longhaul(&["key", "generate", "-f"]).arg(stage.path("stranger"))).expect(0);
    doctor(&stage, "stranger", "").expect(2).says(&["does not know your key", "authorized_keys"]);
    let line = std::fs::read_to_string(stage.path("client.pub")).unwrap();
    std::fs::write(stage.path("authorized_keys"), format!("ro,no-probe {line}")).unwrap();
    doctor(&stage, "client", "").expect(2).says(&["your key may not measure the path or look at the host"]);
    server.stop().expect(0);
    doctor(&stage, "client", "").expect(2).says(&["cannot reach far"]);
    let mut command = stage.on(Host::Near, LONGHAUL);
    stage.run(command.args(["doctor", "far:/data"])).expect(2).says(&["leave out the directory"]);
    let mut command = stage.on(Host::Near, LONGHAUL);
    let keys = command.args(["doctor", "--identity"]).arg(stage.path("client"));
    stage.run(keys).expect(2).says(&["go with a HOST"]);
}
