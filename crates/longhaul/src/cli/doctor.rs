//! `longhaul doctor`: what this host lacks.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use longhaul_report::plain::wrapped;
use serde_json::json;

use super::print_out;
use crate::doctor::host::Host;
use crate::doctor::{Finding, Job, State, checks, works};
use crate::terminal::harmless;

/// Look at what this host lacks, what that costs, and what to do about it
///
/// Nothing is changed, and nothing is sent. A near and a far host each have to be looked at: the poorer one sets the limit.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  longhaul doctor
  longhaul doctor --all
  ssh far longhaul doctor --json | jq '.findings[] | select(.state != \"fine\")'

Exit codes: 0 every job works; 1 something is missing without which one does not.")]
pub(crate) struct Doctor {
    /// Also what is as it should be, and why it matters
    #[arg(long)]
    all: bool,
    /// All findings as JSON (schema longhaul-doctor/1)
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let host = Host::read();
        let findings = checks::all(&host);
        print_out(&if self.json { as_json(&findings) } else { harmless(&as_text(&findings, self.all)) })?;
        let all_work = Job::ALL.into_iter().all(|job| works(&findings, job));
        Ok(if all_work { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}

/// Of sentences.
const WIDTH: usize = 100;

fn as_text(findings: &[Finding], all: bool) -> String {
    let mut text = String::new();
    for finding in findings {
        let Finding { subject, state, what, why, todo, .. } = finding;
        let mark = match state {
            State::Fine => "ok      ",
            State::Slower => "slower  ",
            State::Missing => "MISSING ",
            State::Unknown => "unknown ",
        };
        // A String takes everything here.
        let _ = writeln!(text, "{mark} {subject}: {what}");
        if *state != State::Fine || all {
            indented(&mut text, why);
            if let Some(todo) = todo {
                indented(&mut text, &format!("do: {todo}"));
            }
        }
    }
    let (good, bad): (Vec<Job>, Vec<Job>) = Job::ALL.into_iter().partition(|job| works(findings, *job));
    let names = |jobs: &[Job]| jobs.iter().map(|job| job.name()).collect::<Vec<_>>().join(", ");
    if !good.is_empty() {
        let _ = writeln!(text, "\nworks: {}", names(&good));
    }
    if !bad.is_empty() {
        let _ = writeln!(text, "does not work: {}", names(&bad));
    }
    text
}

fn indented(text: &mut String, words: &str) {
    for line in wrapped(words, WIDTH - 9) {
        let _ = writeln!(text, "         {line}");
    }
}

fn as_json(findings: &[Finding]) -> String {
    let jobs: serde_json::Map<String, serde_json::Value> =
        Job::ALL.into_iter().map(|job| (job.name().to_owned(), works(findings, job).into())).collect();
    format!("{:#}\n", json!({"schema": "longhaul-doctor/1", "findings": findings, "works": jobs}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(state: State, stops: Vec<Job>) -> Finding {
        let todo = (state != State::Fine).then(|| "modprobe fuse".to_owned());
        Finding { subject: "FUSE", state, what: "gone".to_owned(), why: "mounts".to_owned(), todo, stops }
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do() {
        let text =
            as_text(&[finding(State::Missing, vec![Job::Mount]), finding(State::Fine, Vec::new())], false);
        assert_eq!(
            text,
            "MISSING  FUSE: gone\n         mounts\n         do: modprobe fuse\nok       FUSE: gone\n\n\
             works: cp, serve, emulate\ndoes not work: mount\n"
        );
        let json: serde_json::Value =
            serde_json::from_str(&as_json(&[finding(State::Missing, vec![Job::Mount])])).unwrap();
        assert_eq!((&json["works"]["mount"], &json["works"]["cp"]), (&false.into(), &true.into()));
        assert_eq!(json["findings"][0]["state"], "missing");
    }
}
