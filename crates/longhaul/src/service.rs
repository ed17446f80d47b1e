//! What sessions are about: the words that both ends know.

/// Copies: `longhaul cp`.
pub(crate) const COPIES: &str = "copies";

/// Files, one operation after the other: `longhaul mount`.
pub(crate) const FILES: &str = "files";

/// Tests of the path: `longhaul probe`.
pub(crate) const PROBES: &str = longhaul_probe::path::SERVICE;
