//! What this host lacks, what that costs, and what to do about it.
//!
//! `host` reads what there is, and judges nothing; `checks` judges what was read, and reads nothing: each check is a function of
//! a [`Host`](host::Host), so that every host can be had in a test.

pub(crate) mod checks;
pub(crate) mod host;

use serde::Serialize;

/// What one check says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// What was looked at.
    pub(crate) subject: &'static str,
    /// How it is.
    pub(crate) state: State,
    /// What there is.
    pub(crate) what: String,
    /// Why it matters, with a figure.
    pub(crate) why: String,
    /// What to do, where there is something to do.
    pub(crate) todo: Option<String>,
    /// Jobs that do not work because of it.
    pub(crate) stops: Vec<Job>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
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
pub(crate) enum Job {
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
    pub(crate) const ALL: [Self; 4] = [Self::Cp, Self::Serve, Self::Mount, Self::Emulate];

    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cp => "cp",
            Self::Serve => "serve",
            Self::Mount => "mount",
            Self::Emulate => "emulate",
        }
    }
}

/// Whether a job works, as far as these checks see.
pub(crate) fn works(findings: &[Finding], job: Job) -> bool {
    !findings.iter().any(|finding| finding.stops.contains(&job))
}
