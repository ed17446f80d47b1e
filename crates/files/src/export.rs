//! The directories a server shows, by name.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use longhaul_transport::identity::Grant;

use crate::dir::Dir;
use crate::name::{Name, NameError, RelPath, shown};

/// One exported directory.
#[derive(Clone, Debug)]
pub struct Export {
    /// Where it is on the server.
    pub path: PathBuf,
    /// Nothing may be changed in it.
    pub read_only: bool,
}

/// All exports, by name.
#[derive(Clone, Debug, Default)]
pub struct Exports(BTreeMap<Name, Export>);

/// Why a path on the server could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The path's form.
    #[error("`{path}` is no path in an export: {reason}")]
    BadPath {
        /// As asked.
        path: String,
        /// What is wrong.
        reason: NameError,
    },
    /// No such export, or not for this key; which of them is not told.
    #[error("there is no export `{asked}` for you here; {known}")]
    NoExport {
        /// As asked.
        asked: String,
        /// The ones there are.
        known: String,
    },
    /// Writing to what may only be read.
    #[error("export `{0}` is read-only for you")]
    ReadOnly(String),
    /// The directory itself.
    #[error("cannot open export `{name}`")]
    Open {
        /// The export.
        name: String,
        /// Why.
        source: io::Error,
    },
}

/// What is wrong with an export that was to be added.
#[derive(Debug, thiserror::Error)]
pub enum BadExport {
    /// Its name.
    #[error("`{name}` is no name for an export: {reason}")]
    Name {
        /// As given.
        name: String,
        /// What is wrong.
        reason: NameError,
    },
    /// Twice the same.
    #[error("export `{0}` is given twice")]
    Twice(String),
    /// Not a directory that can be opened.
    #[error("cannot export {}", path.display())]
    Open {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl Exports {
    /// Adds a directory under a name.
    ///
    /// # Errors
    /// [`BadExport`].
    pub fn add(&mut self, name: &str, path: &Path, read_only: bool) -> Result<(), BadExport> {
        let checked =
            Name::new(name.as_bytes()).map_err(|reason| BadExport::Name { name: name.to_owned(), reason })?;
        let failed = |source| BadExport::Open { path: path.to_owned(), source };
        let path = path.canonicalize().map_err(failed)?;
        Dir::open_path(&path).map_err(failed)?;
        if self.0.insert(checked, Export { path, read_only }).is_some() {
            return Err(BadExport::Twice(name.to_owned()));
        }
        Ok(())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their names and directories.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Export)> {
        self.0.iter()
    }

    /// Finds `export/path/below` for somebody with `grant`: the export's directory and the path in it.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn resolve(
        &self,
        asked: &[u8],
        grant: &Grant,
        to_write: bool,
    ) -> Result<(Dir, RelPath), ExportError> {
        let asked_for = || shown(OsStr::from_bytes(asked)).to_string();
        let trimmed = asked.strip_prefix(b"/").unwrap_or(asked);
        let path =
            RelPath::new(trimmed).map_err(|reason| ExportError::BadPath { path: asked_for(), reason })?;
        let visible = |name: &Name| grant.allows_export(&String::from_utf8_lossy(name.as_bytes()));
        let found =
            path.names().first().filter(|name| visible(name)).and_then(|name| self.0.get_key_value(name));
        let Some((name, export)) = found else {
            let names: Vec<_> =
                self.0.keys().filter(|n| visible(n)).map(|n| format!("`{}`", shown(n.as_os_str()))).collect();
            let known = if names.is_empty() {
                "there are none".to_owned()
            } else {
                format!("there are: {}", names.join(", "))
            };
            return Err(ExportError::NoExport { asked: asked_for(), known });
        };
        let shown = PathBuf::from(name.as_os_str());
        let name = name.as_os_str().display().to_string();
        if to_write && (export.read_only || grant.read_only) {
            return Err(ExportError::ReadOnly(name));
        }
        let dir = Dir::open_confined(&export.path, shown);
        let dir = dir.map_err(|source| ExportError::Open { name, source })?;
        let below = path.names()[1..].iter().cloned().fold(RelPath::default(), RelPath::join);
        Ok((dir, below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_found_by_name_and_by_grant() {
        let temp = tempfile::tempdir().unwrap();
        let mut exports = Exports::default();
        exports.add("data", temp.path(), false).unwrap();
        exports.add("pub", temp.path(), true).unwrap();
        assert!(matches!(exports.add("data", temp.path(), false), Err(BadExport::Twice(_))));
        assert!(matches!(exports.add("a/b", temp.path(), false), Err(BadExport::Name { .. })));
        assert!(matches!(exports.add("x", Path::new("/nonexistent"), false), Err(BadExport::Open { .. })));
        let all = Grant::default();
        let (dir, below) = exports.resolve(b"/data/x/y", &all, true).unwrap();
        assert_eq!(below.to_string(), "x/y");
        assert_eq!(dir.path(), Path::new("data"), "not where it is on the server");
        assert!(matches!(exports.resolve(b"pub", &all, true), Err(ExportError::ReadOnly(_))));
        assert!(exports.resolve(b"pub", &all, false).is_ok());
        assert!(matches!(exports.resolve(b"data/../etc", &all, false), Err(ExportError::BadPath { .. })));
        let only_pub = Grant { exports: vec!["pub".into()], ..Grant::default() };
        let error = exports.resolve(b"data", &only_pub, false).unwrap_err().to_string();
        assert!(error.contains("`pub`") && !error.contains("`data`,"), "{error}");
        let read_only = Grant { read_only: true, ..Grant::default() };
        assert!(matches!(exports.resolve(b"data", &read_only, true), Err(ExportError::ReadOnly(_))));
    }
}
