//! What a check of a host, or of a path between two, says. Pure.

use serde::Serialize;

/// What one check says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub subject: String,
    /// How it is.
    pub state: State,
    /// What there is.
    pub what: String,
    /// Why it matters, with a figure.
    pub why: String,
    /// What to do, where there is something to do.
    pub todo: Option<String>,
    /// Jobs that do not work because of it.
    pub stops: Vec<Job>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Fine,
    /// longhaul works, and something is slower or less sure than it could be.
    Slower,
    /// A job does not work.
    Missing,
    /// It could not be found out.
    Unknown,
}

/// What people have longhaul for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// `longhaul cp`.
    Cp,
    /// `longhaul serve`.
    Serve,
    /// `longhaul mount`.
    Mount,
    /// `longhaul emulate`.
    Emulate,
}

impl Job {
    /// In the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Cp, Self::Serve, Self::Mount, Self::Emulate];

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cp => "cp",
            Self::Serve => "serve",
            Self::Mount => "mount",
            Self::Emulate => "emulate",
        }
    }
}

/// Whether a job works, as far as these checks see.
#[must_use]
pub fn works(findings: &[Finding], job: Job) -> bool {
    !findings.iter().any(|finding| finding.stops.contains(&job))
}

impl Finding {
    /// All is well, unless one of the following says something else.
    #[must_use]
    pub fn fine(subject: &str, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            subject: subject.to_owned(),
            state: State::Fine,
            what: what.into(),
            why: why.into(),
            todo: None,
            stops: Vec::new(),
        }
    }

    /// longhaul works, and could do better.
    #[must_use]
    pub fn slower(self, todo: impl Into<String>) -> Self {
        Self { state: State::Slower, todo: Some(todo.into()), ..self }
    }

    /// It could not be found out.
    #[must_use]
    pub fn unknown(self) -> Self {
        Self { state: State::Unknown, ..self }
    }

    /// These jobs do not work.
    #[must_use]
    pub fn stops(self, jobs: &[Job], todo: impl Into<String>) -> Self {
        Self { state: State::Missing, todo: Some(todo.into()), stops: jobs.to_vec(), ..self }
    }
}
