//! `longhaul doctor`: what this host lacks, and a far one, and what matters between them.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use longhaul_probe::path::client::{ProbeError, Prober};
use longhaul_probe::path::clocks::Difference;
use longhaul_probe::path::server::Service;
use longhaul_report::plain::wrapped;
use serde_json::{Map, Value, json};

use super::print_out;
use super::reach::{Keys, Reach};
use crate::doctor::host::Host;
use crate::doctor::path::{self, Path};
use crate::doctor::{Finding, Job, State, checks, works};
use crate::place::Place;
use crate::service::PROBES;
use crate::terminal::{Terminal, harmless};

/// Look at what this host lacks, what that costs, and what to do about it; with HOST at both, and at what matters between them
///
/// Nothing is changed anywhere, and without HOST nothing is sent. The poorer of two hosts sets the limit.
///
/// HOST is where `longhaul serve` runs, or `longhaul probe --listen`: keys as for all commands, and who may measure the path
/// (`longhaul probe`) may ask. With a user's name it is started there over ssh. What is said of HOST is what its own program finds, with the
/// rights that it has. Between them: what a round trip costs, what one TCP stream carries each way with these hosts' buffers, whether UDP
/// gets through, how far the clocks are apart. What the path really carries, `longhaul probe HOST` measures.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  longhaul doctor
  longhaul doctor --all
  longhaul doctor far.example.org                 both ends, and what matters between them
  longhaul doctor alice@far.example.org           the same; started there over ssh
  longhaul doctor far.example.org --json | jq .path.figures

Exit codes: 0 every job works, at each host that was looked at; 1 something is missing without which one does not; 2 HOST could not be looked at.")]
pub(crate) struct Doctor {
    /// Look at this host as well; with a user's name it is started there over ssh
    #[arg(value_name = "[USER@]HOST[:PORT]")]
    host: Option<String>,
    /// Also what is as it should be, and why it matters
    #[arg(long)]
    all: bool,
    /// All findings as JSON (schema longhaul-doctor/1; with HOST, `far` and `path` besides)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    keys: Keys,
}

/// What was learnt of a far host and of the path to it.
#[derive(Debug)]
struct Far {
    /// Or why there are none.
    findings: Result<Vec<Finding>, ProbeError>,
    path: Path,
}

impl Doctor {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let findings = checks::all(&Host::read());
        let Some(name) = &self.host else {
            if self.keys.is_given() {
                bail!("--identity and --known-hosts go with a HOST");
            }
            print_out(&if self.json { pretty(&host_json(&findings)) } else { self.host_text(&findings) })?;
            return Ok(ExitCode::from(u8::from(!all_work(&findings))));
        };
        let place = host_alone(name)?;
        if !self.json {
            // Where the far host cannot be reached this one may be why.
            print_out(&format!("This host\n{}", self.host_text(&findings)))?;
        }
        let far = self.look_at(name, &place);
        if self.json {
            let far = far.as_ref().map_err(|error| format!("{error:#}"));
            print_out(&pretty(&both_json(&findings, name, far)))?;
        }
        let far = far?;
        if !self.json {
            print_out(&self.far_text(name, &far))?;
        }
        let found = far.findings.with_context(|| format!("{name} does not say what it has"))?;
        Ok(ExitCode::from(u8::from(!(all_work(&findings) && all_work(&found)))))
    }

    fn look_at(&self, name: &str, place: &Place) -> anyhow::Result<Far> {
        Terminal::new().log(0);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(self.connect_and_look(name, place)).with_context(|| {
            format!(
                "{name} cannot be looked at from here (`longhaul doctor` that is run there looks at it alone)"
            )
        })
    }

    async fn connect_and_look(&self, name: &str, place: &Place) -> anyhow::Result<Far> {
        let reach = Reach::with(self.keys.clone());
        let far = reach.reach(place).await?;
        // Nothing is asked of a client.
        let handler = Service::new(VERSION, None).station();
        let (session, _ssh) = reach.connect(far, PROBES, handler).await?;
        let prober = tokio::time::timeout(GREETING_LIMIT, Prober::greet(session.clone(), VERSION)).await;
        let prober = prober.map_err(|_| ProbeError::Late(GREETING_LIMIT))??;
        let result = Self::ask(&prober, name).await;
        session.close().await;
        Ok(result?)
    }

    async fn ask(prober: &Prober, name: &str) -> Result<Far, ProbeError> {
        let findings = match prober.findings().await {
            // The path tells all the same.
            findings @ (Ok(_) | Err(ProbeError::Older | ProbeError::Refused(_) | ProbeError::Late(_))) => {
                findings
            }
            Err(error) => return Err(error),
        };
        let readings = match prober.clocks().await {
            Ok(readings) => readings,
            Err(ProbeError::Older) => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut rtts_s: Vec<f64> = readings.iter().map(|reading| reading.round_trip.as_secs_f64()).collect();
        if rtts_s.is_empty() {
            rtts_s.push(prober.rtt().as_secs_f64());
        }
        let path = Path {
            name: name.to_owned(),
            near: (*prober.near).clone(),
            far: (*prober.far).clone(),
            rtts_s,
            clocks: Difference::of(&readings),
            control: prober.session().control_kind(),
        };
        Ok(Far { findings, path })
    }

    fn host_text(&self, findings: &[Finding]) -> String {
        harmless(&(as_text(findings, self.all) + &jobs_text(findings)))
    }

    fn far_text(&self, name: &str, far: &Far) -> String {
        let found = match &far.findings {
            Ok(findings) => as_text(findings, self.all) + &jobs_text(findings),
            Err(error) => format!("unknown  {error}\n"),
        };
        let path = as_text(&path::all(&far.path), self.all);
        harmless(&format!("\n{name}\n{found}\nBetween this host and {name}\n{path}"))
    }
}

fn host_alone(name: &str) -> anyhow::Result<Place> {
    Place::host_alone(name, None).map_err(|error| {
        let hint = "; a host alone is looked at: leave out the directory";
        anyhow::anyhow!("{error}{}", if name.contains('/') { hint } else { "" })
    })
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// As for other steps of a probe.
const GREETING_LIMIT: Duration = longhaul_probe::limits::STEP_TIMEOUT;

/// Of sentences.
const WIDTH: usize = 100;

fn all_work(findings: &[Finding]) -> bool {
    // A later version's job is missing, too.
    !findings.iter().any(|finding| finding.state == State::Missing)
}

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
    text
}

fn jobs_text(findings: &[Finding]) -> String {
    let (good, bad): (Vec<Job>, Vec<Job>) = Job::ALL.into_iter().partition(|job| works(findings, *job));
    let names = |jobs: &[Job]| jobs.iter().map(|job| job.name()).collect::<Vec<_>>().join(", ");
    let mut text = String::new();
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

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn jobs_json(findings: &[Finding]) -> Map<String, Value> {
    Job::ALL.into_iter().map(|job| (job.name().to_owned(), works(findings, job).into())).collect()
}

fn host_json(findings: &[Finding]) -> Value {
    json!({"schema": "longhaul-doctor/1", "findings": findings, "works": jobs_json(findings)})
}

/// Where something could not be had, it says so in `error`.
fn both_json(near: &[Finding], name: &str, far: Result<&Far, String>) -> Value {
    let mut both = host_json(near);
    both["far"] = match &far {
        Err(error) => json!({"host": name, "error": error}),
        Ok(Far { findings: Err(error), path }) => {
            json!({"host": name, "version": path.far.version, "error": error.to_string()})
        }
        Ok(Far { findings: Ok(findings), path }) => {
            json!({"host": name, "version": path.far.version, "findings": findings, "works": jobs_json(findings)})
        }
    };
    if let Ok(far) = far {
        both["path"] = json!({"figures": path::figures(&far.path), "findings": path::all(&far.path)});
    }
    both
}

#[cfg(test)]
mod tests {
    use longhaul_probe::path::test::Host as Told;

    use super::*;

    fn findings() -> Vec<Finding> {
        let fine = Finding::fine("FUSE", "gone", "mounts");
        vec![fine.clone().stops(&[Job::Mount], "modprobe fuse"), fine]
    }

    fn doctor() -> Doctor {
        let keys = <Keys as clap::FromArgMatches>::from_arg_matches(
            &Keys::augment_args(clap::Command::new("doctor")).get_matches_from(["doctor"]),
        );
        Doctor { host: None, all: false, json: false, keys: keys.unwrap() }
    }

    fn far(findings: Result<Vec<Finding>, ProbeError>) -> Far {
        let host = Told { version: "1".to_owned(), ..Told::default() };
        let path = Path {
            name: "far".to_owned(),
            near: host.clone(),
            far: host,
            rtts_s: vec![0.1],
            clocks: None,
            control: Some("QUIC"),
        };
        Far { findings, path }
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do() {
        assert_eq!(
            doctor().host_text(&findings()),
            "MISSING  FUSE: gone\n         mounts\n         do: modprobe fuse\nok       FUSE: gone\n\n\
             works: cp, serve, emulate\ndoes not work: mount\n"
        );
        let json = host_json(&findings());
        assert_eq!((&json["works"]["mount"], &json["works"]["cp"]), (&false.into(), &true.into()));
        assert_eq!(json["findings"][0]["state"], "missing");
        assert!(!all_work(&findings()) && all_work(&findings()[1..]));
    }

    #[test]
    fn both_ends_and_the_path_are_told_in_groups() {
        let text = doctor().far_text("far", &far(Ok(findings())));
        let groups = [
            "\nfar\nMISSING  FUSE: gone\n",
            "\nBetween this host and far\nok       versions: 1 at both ends\n",
        ];
        assert!(groups.iter().all(|group| text.contains(group)), "{text}");
        let json = both_json(&findings()[1..], "far", Ok(&far(Ok(findings()))));
        assert_eq!((&json["works"]["mount"], &json["far"]["works"]["mount"]), (&true.into(), &false.into()));
        assert_eq!(json["path"]["figures"]["rtt_ms"], 100.0);
    }

    #[test]
    fn what_a_far_host_does_not_say_leaves_the_rest() {
        let older = far(Err(ProbeError::Older));
        let text = doctor().far_text("far", &older);
        assert!(
            text.contains("unknown  the server is older") && text.contains("round-trip time: 100.0 ms"),
            "{text}"
        );
        let json = both_json(&[], "far", Ok(&older));
        assert!(
            json["far"]["error"].as_str().unwrap().contains("older") && json["path"].is_object(),
            "{json}"
        );
        let json = both_json(&[], "far", Err("nobody answers".to_owned()));
        assert!(json["far"]["error"] == "nobody answers" && json["path"].is_null(), "{json}");
        assert_eq!(json["schema"], "longhaul-doctor/1");
        let rude = Finding::fine("a\x1b[2J", "b", "c");
        assert!(!doctor().far_text("far", &far(Ok(vec![rude]))).contains('\x1b'));
    }
}
