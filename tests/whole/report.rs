//! Kept records, shown by the command.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::stage::LONGHAUL;

fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/results").join(name).join("results.json")
}

fn report(words: &[&str]) -> Command {
    let mut command = Command::new(LONGHAUL);
    command.arg("report").args(words).stdin(Stdio::null());
    command
}

#[track_caller]
fn done(command: &mut Command, code: i32) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (out, err) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert_eq!(status.code(), Some(code), "{command:?}\n{out}\n{err}");
    (out, err)
}

#[test]
fn every_kind_of_record_is_shown_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace.jsonl");
    let line =
        |tenth: u64| format!("{{\"seconds\":{},\"done_bytes\":{}}}\n", tenth as f64 / 10.0, tenth << 20);
    std::fs::write(&trace, (1..100).map(line).collect::<String>()).unwrap();
    for file in [
        kept("copy-2026-11-22-10g"),
        kept("targets-2026-11-23T044745Z"),
        kept("emulator-2026-11-22-counts"),
        kept("io-2026-11-23T044553Z"),
        kept("reports-2026-11-23").with_file_name("jaxa-udp.json"),
        kept("reports-2026-11-23").with_file_name("download.json"),
        trace,
    ] {
        let (text, _) = done(report(&[]).arg(&file), 0);
        assert!(text.contains("Host") && text.contains("Mbit/s") || text.contains("packets"), "{text}");
        let (markdown, _) = done(report(&["--markdown"]).arg(&file), 0);
        assert!(markdown.starts_with("# ") && markdown.contains("| -"), "{markdown}");
        let (csv, _) = done(report(&["--csv"]).arg(&file), 0);
        assert!(csv.starts_with("record,scenario,tool,") && csv.lines().count() > 1, "{csv}");
        let (json, _) = done(report(&["--json"]).arg(&file), 0);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["schema"], "longhaul-figures/1");
        assert!(!json["records"][0]["figures"].as_array().unwrap().is_empty());
        let page = dir.path().join("page.html");
        let plots = dir.path().join("plots");
        let (out, _) = done(report(&["--html"]).arg(&page).arg("--svg").arg(&plots).arg(&file), 0);
        assert_eq!(out, "", "what was asked for is in files");
        let html = std::fs::read_to_string(&page).unwrap();
        assert!(html.starts_with("<!doctype html>") && html.contains("<svg "), "{file:?}");
        assert!(!html.contains("<script"), "{file:?}");
        let svg = std::fs::read_dir(&plots).unwrap().next().unwrap().unwrap().path();
        assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg xmlns="));
        std::fs::remove_dir_all(plots).unwrap();
    }
}

#[test]
fn a_file_that_is_no_record_does_not_keep_the_others_back() {
    let dir = tempfile::tempdir().unwrap();
    let words = dir.path().join("words.txt");
    std::fs::write(&words, "\u{1b}[2Jno record").unwrap();
    let (out, err) = done(report(&[]).arg(&words).arg("/no/such/file").arg(kept("copy-2026-11-22-10g")), 1);
    assert!(out.contains("Copies over long links"), "{out}");
    assert!(err.contains("words.txt: no record of measurements"), "{err}");
    assert!(err.contains("/no/such/file: cannot open it"), "{err}");
    let (out, err) = done(report(&["--html"]).arg(dir.path().join("page.html")).arg(&words), 2);
    assert!(out.is_empty() && err.contains("none of the files is a record"), "{err}");
    assert!(!dir.path().join("page.html").exists());
    done(&mut report(&[]), 2);
    done(report(&["--csv", "--json"]).arg(&words), 2);
}

#[test]
fn words_of_a_record_do_nothing_on_a_page_or_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(kept("copy-2026-11-22-10g")).unwrap();
    let evil = "<script>alert(1)</script>\\u001b[2J";
    let file = dir.path().join("<b>.json");
    std::fs::write(
        &file,
        text.replace("\"aria2c -x16\"", &format!("\"{evil}\"")).replace("Copies over", evil),
    )
    .unwrap();
    let page = dir.path().join("page.html");
    let (out, _) = done(report(&["--runs", "--html"]).arg(&page).arg(&file), 0);
    assert!(out.contains("alert(1)") && !out.contains('\u{1b}'), "{out}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("&lt;script&gt;alert(1)"));
    assert!(!html.contains("<script") && !html.contains("<b>") && !html.contains('\u{1b}'));
}

/// A record of one file system in four runs, which took so many seconds.
fn io(directory: &Path, name: &str, seconds: [f64; 4]) -> PathBuf {
    let text = std::fs::read_to_string(kept("io-2026-11-23T044553Z")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    let runs = &mut record["places"][0]["runs"];
    let run = runs[0].clone();
    *runs = (1..)
        .zip(seconds)
        .map(|(round, seconds)| {
            let mut run = run.clone();
            run["round"] = round.into();
            run["seconds"] = seconds.into();
            run
        })
        .collect();
    let file = directory.join(name);
    std::fs::write(&file, record.to_string()).unwrap();
    file
}

#[test]
fn what_has_become_worse_is_told_by_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let before = io(dir.path(), "before.json", [2.0, 2.1, 2.05, 2.02]);
    let alike = io(dir.path(), "alike.json", [2.05, 2.0, 2.03, 2.11]);
    let slower = io(dir.path(), "slower.json", [3.0, 3.1, 3.05, 3.02]);
    let (out, _) = done(report(&["--compare"]).arg(&before).arg(&slower), 0);
    assert!(out.contains("WORSE") && out.contains("0.671") && out.contains("Welch"), "{out}");
    let (json, _) = done(report(&["--json", "--compare"]).arg(&before).arg(&slower), 0);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let interval = &json["figures"][0]["interval"];
    assert!(interval[0].as_f64().unwrap() > 0.6 && interval[1].as_f64().unwrap() < 0.75, "{json}");
    let (out, _) = done(report(&["--baseline"]).arg(&before).arg(&alike), 0);
    assert!(out.contains("no difference shown"), "{out}");
    let (_, err) = done(report(&["--baseline"]).arg(&before).arg(&alike).arg(&slower), 1);
    assert!(err.contains("worse: 1g-3.3ms: create write; longhaul, Mbit/s: 0.671 times"), "{err}");
    done(report(&["--tolerance", "40%", "--baseline"]).arg(&before).arg(&slower), 0);
    // One run each: nothing can be said, and that is not taken for good news.
    let single = kept("copy-2026-11-22-10g");
    let (_, err) = done(report(&["--baseline"]).arg(&single).arg(&single), 2);
    assert!(err.contains("no figure could be judged"), "{err}");
    let (_, err) = done(report(&["--compare"]).arg(&single).arg(&before), 2);
    assert!(err.contains("no figure in common"), "{err}");
}
