//! What a path in a copy means: `cp`'s rules.
//!
//! A destination that is a directory takes the sources into it, under their own names. One that is not there gives
//! the one source its name. A source that ends in `/.` means what is in the directory, not the directory.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use longhaul_files::{Dir, Kind, Name, RelPath, shown};

use crate::target::Destination;
use crate::walk::SourceRoot;

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
    let text = match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::XDEV.raw_os_error() => {
            "it leads out of the export".to_owned()
        }
        _ => error.to_string(),
    };
    PathError::Io { path, reason: text.split(" (os error").next().unwrap_or(&text).to_owned() }
}

/// Splits a path of the user's own into the directory it is in, opened, and its last name; empty for `.`, `/`, `..`.
pub(crate) fn locate(path: &Path) -> Result<(Dir, RelPath), PathError> {
    let bad = |reason: String| PathError::Bad { path: path.to_owned(), reason };
    if path.as_os_str().is_empty() {
        return Err(bad("it is empty".to_owned()));
    }
    let bytes = path.as_os_str().as_bytes();
    let ends_in_dot = bytes == b"." || bytes.ends_with(b"/.");
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
pub(crate) fn destination(dir: &Dir, path: RelPath, into: bool) -> Result<Destination, PathError> {
    let shown = dir.path().join(path.to_path_buf());
    match dir.open_beneath(&path) {
        Ok(base) => return Ok(Destination { base, rename: None }),
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
    Ok(Destination { base, rename: Some(name) })
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
