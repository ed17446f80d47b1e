//! Names and relative paths that cannot leave a directory. Checked once, where they come in.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX};

/// One name in a directory: any bytes but `/` and NUL, not empty, not `.` or `..`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

/// Names from a directory downward; empty: the directory itself.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelPath(Vec<Name>);

/// Bytes that are no name, or no relative path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// `""`, `.` or `..`.
    #[error("`.`, `..` and the empty name are not names of files")]
    Reserved,
    /// `/` or NUL.
    #[error("a name cannot hold a slash or a NUL")]
    BadByte,
    /// More than the file system takes.
    #[error("a name of {0} bytes is too long (at most {NAME_BYTES_MAX})")]
    TooLong(usize),
    /// More than programs take.
    #[error("a path of {0} bytes is too long (at most {PATH_BYTES_MAX})")]
    PathTooLong(usize),
    /// It begins with `/`.
    #[error("an absolute path where a relative one is needed")]
    Absolute,
}

impl Name {
    /// Checks and copies.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        match bytes {
            b"" | b"." | b".." => Err(NameError::Reserved),
            _ if bytes.iter().any(|b| matches!(b, 0 | b'/')) => Err(NameError::BadByte),
            _ if bytes.len() > NAME_BYTES_MAX => Err(NameError::TooLong(bytes.len())),
            _ => Ok(Self(bytes.into())),
        }
    }

    /// Its bytes; not necessarily UTF-8.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// For the operating system.
    #[must_use]
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_os_str())
    }
}

impl RelPath {
    /// Reads `a/b/c`; doubled slashes and `.` are passed over, `..` is refused.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        if bytes.len() > PATH_BYTES_MAX {
            return Err(NameError::PathTooLong(bytes.len()));
        }
        if bytes.first() == Some(&b'/') {
            return Err(NameError::Absolute);
        }
        let parts = bytes.split(|&b| b == b'/').filter(|part| !matches!(*part, b"" | b"."));
        parts.map(Name::new).collect::<Result<_, _>>().map(Self)
    }

    /// The names, outermost first.
    #[must_use]
    pub fn names(&self) -> &[Name] {
        &self.0
    }

    /// Splits off the last name; `None` for the empty path.
    #[must_use]
    pub fn split_last(mut self) -> Option<(Self, Name)> {
        let last = self.0.pop()?;
        Some((self, last))
    }

    /// Goes one name further.
    #[must_use]
    pub fn join(mut self, name: Name) -> Self {
        self.0.push(name);
        self
    }

    /// For the operating system and for messages; the empty path is `.`.
    #[must_use]
    pub fn to_path_buf(&self) -> PathBuf {
        if self.0.is_empty() {
            return PathBuf::from(".");
        }
        self.0.iter().map(|name| Path::new(name.as_os_str())).collect()
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_path_buf())
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", shown(&self.to_path_buf()))
    }
}

/// A name or path for people: control characters, and bytes that are no UTF-8, are escaped, so that no name can write
/// to a terminal what it likes, and two names never look the same.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(&'a [u8]);

/// Shows a path.
pub fn shown<P: AsRef<Path> + ?Sized>(path: &P) -> Shown<'_> {
    Shown(path.as_ref().as_os_str().as_bytes())
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\'' | '"' => write!(f, "{c}")?,
                    c => write!(f, "{}", c.escape_debug())?,
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_would_leave_a_directory_are_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", &[b'x'; 256]] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        for good in [&b"..."[..], b"a\nb", b"\xff\xfe", b" ", b"-rf", &[b'x'; 255]] {
            assert_eq!(Name::new(good).unwrap().as_bytes(), good);
        }
    }

    #[test]
    fn what_is_shown_writes_nothing_to_a_terminal() {
        let show = |bytes: &[u8]| shown(OsStr::from_bytes(bytes)).to_string();
        assert_eq!(show(b"a/it's \"b\" \xc3\xbc"), "a/it's \"b\" \u{fc}");
        assert_eq!(show(b"two\nlines \x1b[31m \xff\\"), r"two\nlines \u{1b}[31m \xff\\");
    }

    #[test]
    fn paths_are_normalised_and_never_go_up() {
        let path = |s: &str| RelPath::new(s.as_bytes()).map(|p| p.to_string());
        assert_eq!(path("a//b/./c/"), Ok("a/b/c".to_owned()));
        assert_eq!(path("./"), Ok(".".to_owned()));
        assert_eq!(path("a/../b"), Err(NameError::Reserved));
        assert_eq!(path("/etc"), Err(NameError::Absolute));
        assert_eq!(path(&"a/".repeat(3000)), Err(NameError::PathTooLong(6000)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_path_below_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(path) = RelPath::new(&bytes) {
                prop_assert!(path.names().iter().all(|n| Name::new(n.as_bytes()).is_ok()));
                prop_assert_eq!(RelPath::new(path.to_path_buf().as_os_str().as_bytes()), Ok(path));
            }
        }
    }
}
