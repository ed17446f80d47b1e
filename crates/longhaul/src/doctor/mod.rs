//! What this host lacks, what that costs, and what to do about it; and what matters between two hosts.
//!
//! `host` reads what there is, and judges nothing; `checks` judges what was read, and reads nothing: each check is a function of
//! a [`Host`](host::Host), so that every host can be had in a test. `path` does the same for what was learnt of two hosts and of what is
//! between them. A far host is looked at by the program there, whose checks know what it needs.

pub(crate) mod checks;
pub(crate) mod host;
pub(crate) mod path;

pub(crate) use longhaul_probe::path::finding::{Finding, Job, State, works};

/// What the host of a server may tell its clients of itself.
pub(crate) fn for_clients() -> Vec<Finding> {
    checks::all(&host::Host::read().for_others())
}
