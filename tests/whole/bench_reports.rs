//! `longhaul bench reports`: a series keeps its record, and leaves nothing behind. No speed is judged here.

use std::path::Path;
use std::process::Command;

use crate::stage::process::{LIMIT, Running, wait_for};
use crate::stage::{LONGHAUL, Need, Turn};

fn series(scratch: &Path, words: &[&str]) -> Running {
    let mut command = Command::new(LONGHAUL);
    command.args(["bench", "reports", "--seconds", "1"]).args(words);
    command.arg("--scratch").arg(scratch).arg("--json").arg(scratch.join("record.json"));
    Running::start(&mut command, &scratch.join("words"))
}

/// Emulated networks of one series, by the words of their processes.
fn networks_of(pid: i32) -> usize {
    let name = format!("bench-{pid}-");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let words = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    words.filter(|words| words.split('\0').any(|word| word.starts_with(&name))).count()
}

fn left_in(scratch: &Path) -> Vec<String> {
    let names = std::fs::read_dir(scratch).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("longhaul-reports-")).collect()
}

/// Who keeps a network up goes soon after it has answered that it will.
fn assert_nothing_left(pid: i32, scratch: &Path) {
    wait_for("the end of the networks", LIMIT, || (networks_of(pid) == 0).then_some(()));
    assert_eq!(left_in(scratch).len(), 0);
}

#[test]
fn a_series_keeps_a_record_that_is_shown() {
    require!(Need::Root, Need::Emulator, Need::Iperf3);
    let _turn = Turn::shared();
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let page = scratch.path().join("page.html");
    let words = ["--only", "kek-udp", "--only", "kek-tcp", "--html", page.to_str().unwrap()];
    let series = series(scratch.path(), &words);
    let pid = series.pid().as_raw();
    // Where the kernel lets nobody have 8 MiB, that is said.
    let ended = series.wait().expect(0).says(&["kek-tcp"]);
    assert!(ended.out.contains("ICEPP 2004") && ended.out.contains("479"), "{}", ended.out);
    assert_nothing_left(pid, scratch.path());
    let record = scratch.path().join("record.json");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    assert_eq!(json["schema"], "longhaul-reports/1");
    let runs = json["experiments"][1]["found"]["tcp"].as_array().unwrap();
    let tools: Vec<_> = runs.iter().map(|run| run["tool"].as_str().unwrap()).take(2).collect();
    assert_eq!(tools, ["longhaul", "iperf3"]);
    assert!(runs.iter().all(|run| run["bits_per_second"].as_f64().unwrap() > 0.0), "{json:#}");
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("kek-udp") && html.contains("<svg "), "{html}");
    let mut shown = Command::new(LONGHAUL);
    let shown = Running::start(shown.arg("report").arg(&record), &scratch.path().join("shown")).wait();
    let shown = shown.expect(0).out;
    assert!(shown.contains("window / RTT") && shown.contains("256 KiB, 1 stream"), "{shown}");
}

#[test]
fn a_series_that_is_interrupted_leaves_nothing_behind() {
    require!(Need::Root, Need::Emulator);
    let _turn = Turn::shared();
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let series = series(scratch.path(), &["--only", "cern-tcp"]);
    let pid = series.pid();
    let number = pid.as_raw();
    wait_for("a network is up", LIMIT, || (networks_of(number) > 0).then_some(()));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    series.wait().expect(2).says(&["interrupted"]);
    assert_nothing_left(number, scratch.path());
    let unknown = Command::new(LONGHAUL).args(["bench", "reports", "--only", "nasa"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("usadafox-download"));
}
