//! The record of a series of measurements, as it is kept in JSON.
//!
//! Times are seconds, amounts are bytes of payload, rates are bits per second where the name ends with `_bps`. Readers
//! must pass over fields that they don't know; a change that breaks them changes [`SCHEMA`].

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::summary::Summary;

/// Name and version of the schema, first in every record.
pub const SCHEMA: &str = "longhaul-report/1";

/// The name under which longhaul's own runs are kept; all other tools are rivals.
pub const OURS: &str = "longhaul";

/// A series of measurements on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// What was measured, in a few words.
    pub title: String,
    /// Where, when and with what.
    pub environment: Environment,
    /// One for each link and kind of data.
    pub scenarios: Vec<Scenario>,
}

/// The machine and the programs of a series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// When the series began, RFC 3339.
    pub date: String,
    /// Name of the operating system.
    pub system: String,
    /// Kernel's release and version.
    pub kernel: String,
    /// Model of the CPU.
    pub cpu: String,
    /// CPUs that the programs could use.
    pub cores: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// Settings of the kernel that the results depend on, by name.
    pub sysctls: BTreeMap<String, String>,
    /// longhaul itself.
    pub program: Program,
    /// Versions of the rivals' packages, by package.
    pub rivals: BTreeMap<String, String>,
    /// The command that ran the series.
    pub command: Vec<String>,
}

/// The program under test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// What it says of itself.
    pub version: String,
    /// The git revision of the sources; ends with `-dirty` when they were changed since.
    pub revision: String,
}

/// One link and one kind of data, and all runs over it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// The link.
    pub link: Link,
    /// What was copied.
    pub data: Data,
    /// A run was ended after this long.
    pub limit_seconds: f64,
    /// Tools without runs here, and why.
    pub left_out: Vec<LeftOut>,
    /// Every run, in the order in which they were made.
    pub runs: Vec<Run>,
    /// What follows from the runs: [`Scenario::derive`].
    pub summaries: Vec<Summary>,
}

/// What is between the two hosts: an emulated link, or a bare pair of interfaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Short name, as `1g-100ms-loss0.1%`.
    pub name: String,
    /// Rate of the wire, framing included; 0 where nothing limits it.
    pub rate_bps: u64,
    /// Round-trip time.
    pub rtt_us: u64,
    /// Share of packets lost at random, each way.
    pub loss: f64,
    /// The command that makes it; the seed is the number of the round.
    pub command: Vec<String>,
}

/// What was copied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    /// Short name, as `big` or `tree`.
    pub name: String,
    /// In words.
    pub about: String,
    /// Regular files.
    pub files: u64,
    /// Their length, together.
    pub bytes: u64,
    /// Where it was read from.
    pub source: String,
    /// Where it was written to.
    pub destination: String,
}

/// A tool that has no runs in a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its name.
    pub tool: String,
    /// Why.
    pub reason: String,
}

/// One run of one tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Name of the tool.
    pub tool: String,
    /// Whether it encrypts what it sends.
    pub encrypted: bool,
    /// From 1.
    pub round: u32,
    /// Place in the whole series, from 1.
    pub order: u32,
    /// The exact command, as it ran on the host at the near end.
    pub command: Vec<String>,
    /// From its start to its end, or to its being cut off.
    pub seconds: f64,
    /// At the destination by then, under whatever name.
    pub bytes: u64,
    /// Regular files at the destination by then.
    pub files: u64,
    /// How it ended.
    #[serde(flatten)]
    pub end: End,
    /// What was found about the copy beyond equality, if anything.
    pub remarks: Vec<String>,
    /// The emulator's own word on this run.
    pub link: Verdict,
    /// Share of the machine's processor time that its own host gave to others meanwhile, of 1 (`steal` in
    /// proc_stat(5)); unknown in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
    /// longhaul only: what the command says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<Said>,
    /// longhaul only: what the command has used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near: Option<Usage>,
    /// longhaul only: what its server has used, from its start to the end of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<Usage>,
}

/// What `longhaul cp --json` says of itself, as far as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// From the beginning of the session to the last file's being durable; the command itself takes a little longer.
    pub seconds: f64,
    /// Most connections at a time.
    pub lanes: u64,
    /// Payload that was sent more than once.
    pub repeated_bytes: u64,
}

/// What a process has used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// On all CPUs, in user space and in the kernel on its behalf.
    pub cpu_seconds: f64,
    /// Most memory that was resident.
    pub peak_bytes: u64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "lowercase")]
pub enum End {
    /// By itself; a copy and its source were found equal.
    Complete,
    /// It was cut off at the time limit.
    Cut {
        /// How long it would have taken had it gone on as before: [`projected_seconds`].
        projected_seconds: Option<f64>,
    },
    /// It failed, or the copy was not equal.
    Failed {
        /// In words.
        reason: String,
    },
}

/// What the emulator says about a run over it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// How it takes packets through the kernel.
    pub engine: String,
    /// Whether the result can be trusted.
    pub trusted: bool,
    /// Why not.
    pub doubts: Vec<String>,
    /// Packets lost by the link's own loss, both ways.
    pub packets_lost: u64,
    /// Packets dropped by full queues, both ways.
    pub packets_dropped: u64,
    /// 99 % of packets were less late than this, the worse of both ways.
    pub late_p99_us: u64,
}

/// Regular files and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// How many.
    pub files: u64,
    /// Their length, together.
    pub bytes: u64,
}

/// From so many files on their number says how far a copy is: those that are only begun, tens at the most, don't matter.
const MANY_FILES: u64 = 1000;

/// How long a copy of `whole` takes in all when `done` took `seconds`, at the same pace: a projection. None when nothing
/// was done.
///
/// What costs time is bytes for some tools and files for others, and the first part of a tree has another mix of both
/// than the rest. So of many files the share that is done is that of the bytes or that of the files, whichever is
/// larger: the projection favours the tool that was cut off.
#[must_use]
pub fn projected_seconds(done: Amount, whole: Amount, seconds: f64) -> Option<f64> {
    let share = |done: u64, whole: u64| if whole == 0 { 0.0 } else { done as f64 / whole as f64 };
    let bytes = share(done.bytes, whole.bytes);
    let files = if whole.files >= MANY_FILES { share(done.files, whole.files) } else { 0.0 };
    // More than all can be there (journals, what links lead to); yet it has not ended: never shorter than it has run.
    let share = bytes.max(files).min(1.0);
    (share > 0.0).then(|| seconds / share)
}

/// A run that lost a larger share of the processors than this says little of what was run.
pub const STOLEN_MAX: f64 = 0.01;

/// Whether a run that lost this share had the machine to itself, as far as is known.
pub(crate) fn is_undisturbed(stolen: Option<f64>) -> bool {
    stolen.is_none_or(|share| share <= STOLEN_MAX)
}

impl Run {
    /// Whether it had the machine to itself, as far as is known.
    #[must_use]
    pub fn is_undisturbed(&self) -> bool {
        is_undisturbed(self.stolen)
    }

    /// Time for the whole: measured, or projected.
    #[must_use]
    pub fn whole_seconds(&self) -> Option<f64> {
        match self.end {
            End::Complete => Some(self.seconds),
            End::Cut { projected_seconds } => projected_seconds,
            End::Failed { .. } => None,
        }
    }

    /// Payload rate over the whole copy of `whole_bytes`, measured or projected. None for a run that failed.
    #[must_use]
    pub fn rate_bps(&self, whole_bytes: u64) -> Option<f64> {
        match (&self.end, self.whole_seconds()) {
            (End::Failed { .. }, _) => None,
            (_, Some(seconds)) if seconds > 0.0 => Some(whole_bytes as f64 * 8.0 / seconds),
            _ => Some(0.0),
        }
    }
}

impl Link {
    /// What the wire carries of TCP payload in full packets: 1448 of the 1538 bytes that a packet of 1500 takes on
    /// Ethernet (IEEE 802.3 framing 38, IPv4 20, TCP with timestamps 32).
    #[must_use]
    pub fn payload_bps(&self) -> f64 {
        self.rate_bps as f64 * 1448.0 / 1538.0
    }

    /// `1 Gbit/s, RTT 100 ms, loss 0.1 %`.
    #[must_use]
    pub fn in_words(&self) -> String {
        if self.rate_bps == 0 {
            return "no limit of rate, no delay".to_owned();
        }
        let loss =
            if self.loss > 0.0 { format!(", loss {} %", trimmed(self.loss * 100.0)) } else { String::new() };
        format!(
            "{} Gbit/s, RTT {} ms{loss}",
            trimmed(self.rate_bps as f64 / 1e9),
            trimmed(self.rtt_us as f64 / 1e3)
        )
    }
}

impl Data {
    /// All of it.
    #[must_use]
    pub fn amount(&self) -> Amount {
        Amount { files: self.files, bytes: self.bytes }
    }
}

impl Scenario {
    /// `1g-100ms big`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} {}", self.link.name, self.data.name)
    }

    /// Computes the summaries from the runs.
    pub fn derive(&mut self) {
        self.summaries = Summary::all(&self.runs, self.data.bytes);
    }
}

impl Report {
    /// A report with no scenario yet.
    #[must_use]
    pub fn new(title: &str, environment: Environment) -> Self {
        Self { schema: SCHEMA.to_owned(), title: title.to_owned(), environment, scenarios: Vec::new() }
    }

    /// As JSON, for people too: indented, with a newline at the end.
    ///
    /// # Errors
    /// When a figure is not a number JSON can hold.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        read(SCHEMA, text)
    }
}

/// The schema that a record names.
///
/// # Errors
/// [`ReadError::Json`].
pub fn schema_of(text: &str) -> Result<String, ReadError> {
    #[derive(Deserialize)]
    struct Head {
        schema: String,
    }
    Ok(serde_json::from_str::<Head>(text)?.schema)
}

/// Reads a record of one schema.
pub(crate) fn read<T: DeserializeOwned>(schema: &'static str, text: &str) -> Result<T, ReadError> {
    let found = schema_of(text)?;
    if found != schema {
        return Err(ReadError::Schema { found, expected: schema });
    }
    Ok(serde_json::from_str(text)?)
}

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Not JSON, or not of this shape.
    #[error("not a record of results: {0}")]
    Json(#[from] serde_json::Error),
    /// Of another version.
    #[error(
        "the record's schema is `{found}`, and this program reads `{expected}`; use the program that wrote it"
    )]
    Schema {
        /// Its own.
        found: String,
        /// What can be read.
        expected: &'static str,
    },
}

/// A number without needless zeros: `3.3`, `100`, `0.01`.
fn trimmed(number: f64) -> String {
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A run of `tool` that moved `bytes` in `seconds`.
    pub(crate) fn run(tool: &str, bytes: u64, seconds: f64, end: End) -> Run {
        Run {
            tool: tool.to_owned(),
            encrypted: tool != "xrdcp",
            round: 1,
            order: 1,
            command: vec![tool.to_owned()],
            seconds,
            bytes,
            files: 1,
            end,
            remarks: Vec::new(),
            link: Verdict { trusted: true, ..Verdict::default() },
            stolen: Some(0.0),
            said: None,
            near: None,
            far: None,
        }
    }

    /// A scenario of 1000 MB over 1 Gbit/s x 100 ms.
    pub(crate) fn scenario(runs: Vec<Run>) -> Scenario {
        let mut scenario = Scenario {
            link: Link {
                name: "1g-100ms-loss0.1%".to_owned(),
                rate_bps: 1_000_000_000,
                rtt_us: 100_000,
                loss: 0.001,
                command: vec!["longhaul".to_owned(), "emulate".to_owned()],
            },
            data: Data {
                name: "big".to_owned(),
                about: "one file of random bytes".to_owned(),
                files: 1,
                bytes: 1_000_000_000,
                source: "/far".to_owned(),
                destination: "/near".to_owned(),
            },
            limit_seconds: 60.0,
            left_out: vec![LeftOut { tool: "none".to_owned(), reason: "a | b".to_owned() }],
            runs,
            summaries: Vec::new(),
        };
        scenario.derive();
        scenario
    }

    #[test]
    fn a_cut_run_is_projected_at_its_pace() {
        let amount = |files, bytes| Amount { files, bytes };
        assert_eq!(projected_seconds(amount(1, 250), amount(1, 1000), 30.0), Some(120.0));
        assert_eq!(projected_seconds(amount(1, 0), amount(1, 1000), 30.0), None, "one begun file is no file");
        assert_eq!(projected_seconds(amount(2, 1001), amount(1, 1000), 30.0), Some(30.0));
        let tree = amount(10_000, 1_000_000);
        assert_eq!(projected_seconds(amount(2000, 100_000), tree, 30.0), Some(150.0), "files are ahead");
        assert_eq!(projected_seconds(amount(1000, 200_000), tree, 30.0), Some(150.0), "bytes are ahead");
        assert_eq!(projected_seconds(amount(0, 0), tree, 30.0), None);

        let cut = run("scp", 250_000_000, 30.0, End::Cut { projected_seconds: Some(120.0) });
        assert_eq!(cut.whole_seconds(), Some(120.0));
        assert_eq!(cut.rate_bps(1_500_000_000), Some(100e6), "of the whole, not of what has arrived");
        let failed = run("scp", 1, 1.0, End::Failed { reason: "no".to_owned() });
        assert_eq!((failed.rate_bps(1), failed.whole_seconds()), (None, None));
    }

    proptest! {
        #[test]
        fn a_projection_is_never_shorter_than_the_run(
            done in any::<(u32, u32)>(), whole in any::<(u32, u32)>(), seconds in 0.0f64..1e6
        ) {
            let amount = |(files, bytes): (u32, u32)| Amount { files: files.into(), bytes: bytes.into() };
            if let Some(projected) = projected_seconds(amount(done), amount(whole), seconds) {
                prop_assert!(projected >= seconds && projected.is_finite());
            }
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let runs = vec![
            run(OURS, 1_000_000_000, 9.25, End::Complete),
            run("scp", 0, 60.0, End::Cut { projected_seconds: None }),
            run("rsync", 5, 1.0, End::Failed { reason: "exit code 12".to_owned() }),
        ];
        let mut report = Report::new("copies", Environment::default());
        report.scenarios.push(scenario(runs));
        let text = report.to_json().unwrap();
        assert!(text.starts_with("{\n  \"schema\": \"longhaul-report/1\""));
        assert!(text.contains("\"end\": \"cut\"") && text.contains("\"projected_seconds\": null"));
        assert_eq!(Report::from_json(&text).unwrap(), report);
    }

    #[test]
    fn another_schema_is_refused_by_name() {
        let error = Report::from_json(r#"{"schema": "longhaul-report/9", "runs": 3}"#).unwrap_err();
        assert!(error.to_string().contains("longhaul-report/9"), "{error}");
        assert!(matches!(Report::from_json("{}"), Err(ReadError::Json(_))));
    }

    #[test]
    fn a_link_in_words() {
        let link = scenario(Vec::new()).link;
        assert_eq!(link.in_words(), "1 Gbit/s, RTT 100 ms, loss 0.1 %");
        assert_eq!(Link { rtt_us: 3300, loss: 0.0, ..link.clone() }.in_words(), "1 Gbit/s, RTT 3.3 ms");
        assert_eq!((link.payload_bps() / 1e6).round(), 941.0);
    }
}
