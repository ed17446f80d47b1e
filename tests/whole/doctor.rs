//! What the program says of the host that it runs on.

use std::process::{Command, Stdio};

use crate::stage::{LONGHAUL, Need};

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
