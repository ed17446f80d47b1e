//! What a path in a copy means: `cp`'s rules.
//!
//! A destination that is a directory takes the sources into it, under their own names. One that is not there gives
//! the one source its name. A source that ends in `/.` means what is in the directory, not the directory.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use longhaul_files::{Dir, Kind, Name, RelPath, shown};

use crate::walk::{SourceRoot, words};

/// Where a copy goes.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    /// The directory that exists.
    pub(crate) base: Dir,
    /// The name the one source gets there; `None`: its own.
    pub(crate) rename: Option<Name>,
    /// What may come.
    pub(crate) asked: Asked,
}

/// What a sender may put into the destination: a server must not add to what a client has asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// The names at its top; `None`: any.
    pub(crate) names: Option<HashSet<Name>>,
    /// Files were listed: the directories that lead to them come as well.
    pub(crate) listed: bool,
}

impl Asked {
    /// By a client that sends, whose choice it is.
    pub(crate) fn by_sender() -> Self {
        Self { names: None, listed: true }
    }

    /// By these paths of a server, below exports or of a user's own, and `only`, where that is not empty.
    pub(crate) fn by_paths(paths: &[Vec<u8>], in_exports: bool, only: &[RelPath]) -> Self {
        if !only.is_empty() {
            let first = |path: &RelPath| path.names().first().cloned();
            return Self { names: only.iter().map(first).collect(), listed: true };
        }
        Self { names: paths.iter().map(|path| last_name(path, in_exports)).collect(), listed: false }
    }
}

/// The name that a source on a server has; `None`: what is in the directory is meant.
fn last_name(path: &[u8], in_exports: bool) -> Option<Name> {
    if means_contents(path) {
        return None;
    }
    if in_exports {
        let path = RelPath::new(path.strip_prefix(b"/").unwrap_or(path)).ok()?;
        return path.names().get(1..)?.last().cloned(); // an export's own name is not one of a file
    }
    Name::new(Path::new(OsStr::from_bytes(path)).file_name()?.as_bytes()).ok()
}

/// Whether a source is written as the contents of a directory.
pub(crate) fn means_contents(path: &[u8]) -> bool {
    path == b"." || path.ends_with(b"/.")
}

/// A path that does not fit the copy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PathError {
    #[error("{} is not a directory", shown(.0))]
    NotADirectory(PathBuf),
    #[error("there is no {}", shown(.0))]
    Absent(PathBuf),
    #[error("cannot reach {}: {reason}", shown(path))]
    Io { path: PathBuf, reason: String },
    #[error("{} is no path for a copy: {reason}", shown(path))]
    Bad { path: PathBuf, reason: String },
}

fn failed(path: PathBuf, error: &io::Error) -> PathError {
    let reason = match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::XDEV.raw_os_error() => {
            "it leads out of the export".to_owned()
        }
        _ => words(error),
    };
    PathError::Io { path, reason }
}

/// Splits a path of the user's own into the directory it is in, opened, and its last name; empty for `.`, `/`, `..`.
pub(crate) fn locate(path: &Path) -> Result<(Dir, RelPath), PathError> {
    let bad = |reason: String| PathError::Bad { path: path.to_owned(), reason };
    if path.as_os_str().is_empty() {
        return Err(bad("it is empty".to_owned()));
    }
    let bytes = path.as_os_str().as_bytes();
    let ends_in_dot = means_contents(bytes);
    let (above, name) = match (path.parent(), path.file_name()) {
        (Some(above), Some(name)) if !ends_in_dot => (above, Some(name)),
        _ => (path, None),
    };
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    let dir = Dir::open_path(above).map_err(|error| failed(above.to_owned(), &error))?;
    let rest = match name {
        None => RelPath::default(),
        Some(name) => {
            RelPath::default().join(Name::new(name.as_bytes()).map_err(|error| bad(error.to_string()))?)
        }
    };
    Ok((dir, rest))
}

/// Where sources go when they are copied to `path` below `dir`. `into`: it must be a directory.
pub(crate) fn destination(
    dir: &Dir,
    path: RelPath,
    into: bool,
    asked: Asked,
) -> Result<Destination, PathError> {
    let shown = dir.path().join(path.to_path_buf());
    match dir.open_beneath(&path) {
        Ok(base) => return Ok(Destination { base, rename: None, asked }),
        Err(error) if into && error.kind() == io::ErrorKind::NotADirectory => {
            return Err(PathError::NotADirectory(shown));
        }
        Err(error) if into && error.kind() == io::ErrorKind::NotFound => {
            return Err(PathError::Absent(shown));
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
        Err(error) => return Err(failed(shown, &error)),
    }
    let Some((above, name)) = path.split_last() else { return Err(PathError::Absent(shown)) };
    let base = dir.open_beneath(&above).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => PathError::Absent(dir.path().join(above.to_path_buf())),
        _ => failed(dir.path().join(above.to_path_buf()), &error),
    })?;
    Ok(Destination { base, rename: Some(name), asked })
}

/// What is meant by `path` below `dir` as a source. `contents`: what is in the directory, not the directory.
pub(crate) fn source(dir: &Dir, path: RelPath, contents: bool) -> Result<SourceRoot, PathError> {
    let shown = dir.path().join(path.to_path_buf());
    if contents || path.names().is_empty() {
        let dir = dir.open_beneath(&path).map_err(|error| failed(shown, &error))?;
        return Ok(SourceRoot { dir, name: None });
    }
    let Some((above, name)) = path.split_last() else { return Err(PathError::Absent(shown)) };
    let dir = dir.open_beneath(&above).map_err(|error| failed(shown, &error))?;
    Ok(SourceRoot { dir, name: Some(name) })
}

/// Whether what `root` names is a directory.
pub(crate) fn is_directory(root: &SourceRoot) -> bool {
    match &root.name {
        None => true,
        Some(name) => root.dir.attr_following(name).is_ok_and(|a| a.is_some_and(|a| a.kind == Kind::Dir)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, in_exports: bool) -> Option<Vec<String>> {
        let asked = Asked::by_paths(&[path.into()], in_exports, &[]);
        let shown =
            |names: HashSet<Name>| names.iter().map(|n| n.as_os_str().display().to_string()).collect();
        asked.names.map(shown)
    }

    #[test]
    fn a_pull_asks_for_the_last_names_of_its_paths() {
        for (path, in_exports, name) in [
            ("/data/a/b", true, Some("b")),
            ("/data/a//b/", true, Some("b")),
            ("data/a", true, Some("a")),
            ("/data", true, None),
            ("/data/", true, None),
            ("/data/a/.", true, None),
            ("a", false, Some("a")),
            ("/a/b/", false, Some("b")),
            (".", false, None),
            ("a/..", false, None),
            ("/", false, None),
        ] {
            assert_eq!(
                asked(path, in_exports),
                name.map(|name| vec![name.to_owned()]),
                "{path} {in_exports}"
            );
        }
        let only = [RelPath::new(b"x/y").unwrap(), RelPath::new(b"z").unwrap()];
        let asked = Asked::by_paths(&[b"/data/a".to_vec()], true, &only);
        let names = [b"x", b"z"].map(|name| Name::new(name).unwrap());
        assert_eq!(asked.names, Some(HashSet::from(names)));
        assert!(asked.listed);
    }
}
