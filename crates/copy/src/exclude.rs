//! Which files stay behind: patterns as rsync's users know them. Pure.
//!
//! `*.o` leaves out everything of that name at any depth, `build/` only directories, `/tmp` or `a/b` what lies there
//! below a source. `*` and `?` stop at slashes, `**` does not.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};

use crate::limits::{EXCLUDES_MAX, PATTERN_BYTES_MAX, PATTERN_DEPTH_MAX};

/// A list of patterns.
#[derive(Clone, Debug, Default)]
pub struct Excludes(Vec<Pattern>);

#[derive(Clone, Debug)]
struct Pattern {
    glob: GlobMatcher,
    /// Against the whole path below the source; otherwise the last name.
    anchored: bool,
    only_dirs: bool,
}

/// A pattern that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{pattern}` is no pattern: {reason}")]
pub struct BadPattern {
    /// As given.
    pub pattern: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Excludes {
    /// Reads patterns, which may be a peer's.
    ///
    /// # Errors
    /// [`BadPattern`], for the first that cannot be understood, or is one too many.
    pub fn new<S: AsRef<str>>(patterns: &[S]) -> Result<Self, BadPattern> {
        if let Some(extra) = patterns.get(EXCLUDES_MAX) {
            let reason = format!("there are more than {EXCLUDES_MAX}");
            return Err(BadPattern { pattern: extra.as_ref().to_owned(), reason });
        }
        patterns.iter().map(|p| Pattern::new(p.as_ref())).collect::<Result<_, _>>().map(Self)
    }

    /// Whether the file at `path`, below its source, stays behind.
    #[must_use]
    pub fn matches(&self, path: &[u8], is_dir: bool) -> bool {
        let last = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
        self.0.iter().any(|pattern| {
            let subject = if pattern.anchored { path } else { last };
            (is_dir || !pattern.only_dirs) && pattern.glob.is_match(Path::new(OsStr::from_bytes(subject)))
        })
    }
}

impl Pattern {
    fn new(pattern: &str) -> Result<Self, BadPattern> {
        let bad = |reason: String| BadPattern { pattern: pattern.to_owned(), reason };
        let (body, only_dirs) = match pattern.strip_suffix('/') {
            Some(body) => (body, true),
            None => (pattern, false),
        };
        if body.is_empty() {
            return Err(bad("it is empty".to_owned()));
        }
        if body.len() > PATTERN_BYTES_MAX {
            return Err(bad(format!("it is longer than {PATTERN_BYTES_MAX} bytes")));
        }
        if depth(body) > PATTERN_DEPTH_MAX {
            return Err(bad(format!("it has more than {PATTERN_DEPTH_MAX} braces within each other")));
        }
        let anchored = body.contains('/');
        let body = body.strip_prefix('/').unwrap_or(body);
        let glob = GlobBuilder::new(body).literal_separator(true).backslash_escape(true).build();
        let glob = glob.map_err(|e| bad(e.kind().to_string()))?.compile_matcher();
        Ok(Self { glob, anchored, only_dirs })
    }
}

/// How deep braces stand within each other, at the most.
fn depth(pattern: &str) -> usize {
    let (mut now, mut most, mut escaped) = (0usize, 0, false);
    for byte in pattern.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => {
                now += 1;
                most = most.max(now);
            }
            b'}' => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_rsync_s_users_expect() {
        let excludes = Excludes::new(&["*.o", "build/", "/top", "a/*/c", "**/deep/x"]).unwrap();
        let yes = |path: &str, dir| assert!(excludes.matches(path.as_bytes(), dir), "{path}");
        let no = |path: &str, dir| assert!(!excludes.matches(path.as_bytes(), dir), "{path}");
        yes("x.o", false);
        yes("far/down/x.o", false);
        no("x.oo", false);
        yes("src/build", true);
        no("src/build", false);
        yes("top", false);
        no("sub/top", false);
        yes("a/b/c", false);
        no("a/b/b/c", false);
        yes("q/r/deep/x", false);
        assert!(excludes.matches(b"\xff.o", false));
    }

    #[test]
    fn bad_patterns_are_named() {
        assert!(Excludes::new(&["["]).unwrap_err().to_string().contains("`[`"));
        assert!(Excludes::new(&["/"]).is_err());
        assert!(Excludes::new::<&str>(&[]).unwrap().0.is_empty());
    }

    #[test]
    fn patterns_that_would_cost_too_much_are_refused() {
        // 30,000 of these fit a message, and would be more than a thread's stack.
        let braces = |n: usize| format!("{}a,b{}", "{".repeat(n), "}".repeat(n));
        let reason = |patterns: &[String]| Excludes::new(patterns).unwrap_err().reason;
        assert!(Excludes::new(&[braces(PATTERN_DEPTH_MAX)]).unwrap().matches(b"b", false));
        assert!(reason(&[braces(PATTERN_DEPTH_MAX + 1)]).contains("braces"));
        assert!(reason(&[braces(2000)]).contains("braces"));
        assert!(Excludes::new(&["{a,b}".repeat(100)]).is_ok(), "side by side they are no deeper");
        assert!(Excludes::new(&["\\{".repeat(100)]).unwrap().matches("{".repeat(100).as_bytes(), false));
        assert!(reason(&["x".repeat(PATTERN_BYTES_MAX + 1)]).contains("longer"));
        assert!(reason(&vec!["x".to_owned(); EXCLUDES_MAX + 1]).contains("more than"));
    }
}
