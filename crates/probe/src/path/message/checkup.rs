//! What is said about a server's host: findings.

use prost::Message;

use super::cut;
use crate::limits::{FINDING_LETTERS_MAX, FINDINGS_MAX};
use crate::path::finding::{Finding, Job, State};

/// See [`Finding`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Findings {
    #[prost(message, repeated, tag = "1")]
    findings: Vec<FindingMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct FindingMessage {
    #[prost(string, tag = "1")]
    subject: String,
    /// 0 unknown, 1 fine, 2 slower, 3 missing.
    #[prost(uint32, tag = "2")]
    state: u32,
    #[prost(string, tag = "3")]
    what: String,
    #[prost(string, tag = "4")]
    why: String,
    /// Empty: there is nothing to do.
    #[prost(string, tag = "5")]
    todo: String,
    #[prost(uint32, repeated, tag = "6")]
    stops: Vec<u32>,
}

fn number(job: Job) -> u32 {
    match job {
        Job::Cp => 1,
        Job::Serve => 2,
        Job::Mount => 3,
        Job::Emulate => 4,
    }
}

impl Findings {
    pub(crate) fn of(findings: Vec<Finding>) -> Self {
        let one = |finding: Finding| FindingMessage {
            subject: finding.subject,
            state: match finding.state {
                State::Unknown => 0,
                State::Fine => 1,
                State::Slower => 2,
                State::Missing => 3,
            },
            what: finding.what,
            why: finding.why,
            todo: finding.todo.unwrap_or_default(),
            stops: finding.stops.into_iter().map(number).collect(),
        };
        Self { findings: findings.into_iter().map(one).collect() }
    }

    /// Words are cut where they are too long, and more than there can be are left out; what a later version says of states and jobs that
    /// are not known here is shown as far as it is.
    pub(crate) fn findings(self) -> Vec<Finding> {
        let one = |finding: FindingMessage| Finding {
            subject: cut(&finding.subject, FINDING_LETTERS_MAX),
            state: match finding.state {
                1 => State::Fine,
                2 => State::Slower,
                3 => State::Missing,
                _ => State::Unknown,
            },
            what: cut(&finding.what, FINDING_LETTERS_MAX),
            why: cut(&finding.why, FINDING_LETTERS_MAX),
            todo: Some(cut(&finding.todo, FINDING_LETTERS_MAX)).filter(|todo| !todo.is_empty()),
            stops: Job::ALL.into_iter().filter(|job| finding.stops.contains(&number(*job))).collect(),
        };
        self.findings.into_iter().take(FINDINGS_MAX).map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_survive() {
        let findings = vec![
            Finding::fine("TUN", "opens", "links"),
            Finding::fine("clock", "not synchronised", "times").slower("run chrony"),
            Finding::fine("FUSE", "gone", "mounts").stops(&[Job::Cp, Job::Emulate], "modprobe fuse"),
            Finding::fine("AES", "not known", "speed").unknown(),
        ];
        assert_eq!(Findings::of(findings.clone()).findings(), findings);
    }

    #[test]
    fn what_a_server_says_is_bounded_and_harmless() {
        let long = Finding::fine("a\nok  b\x1b[2J", "x".repeat(60_000), "y\r").slower("\u{7f}");
        let told = Findings::of(vec![long; FINDINGS_MAX + 1]).findings();
        assert_eq!(told.len(), FINDINGS_MAX);
        let finding = &told[0];
        assert_eq!(
            (finding.subject.as_str(), finding.why.as_str(), &finding.todo),
            ("aok  b[2J", "y", &None)
        );
        assert_eq!(finding.what.chars().count(), FINDING_LETTERS_MAX);
        let strange = FindingMessage { state: 9, stops: vec![9; 20_000], ..FindingMessage::default() };
        let [told] = &Findings { findings: vec![strange] }.findings()[..] else { panic!("there is one") };
        assert_eq!((told.state, told.stops.len()), (State::Unknown, 0));
        let all = FindingMessage { stops: (0..1000).chain(0..1000).collect(), ..FindingMessage::default() };
        assert_eq!(Findings { findings: vec![all] }.findings()[0].stops, Job::ALL);
    }
}
