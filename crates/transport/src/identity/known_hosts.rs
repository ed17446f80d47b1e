//! The servers one trusts: a file of `host key` lines, trusted on first use, refused on change.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::{Fingerprint, PublicKey};
use crate::limits::KEY_FILE_BYTES_MAX;

/// A `known_hosts` file.
#[derive(Debug)]
pub struct KnownHosts {
    path: PathBuf,
    text: String,
}

/// Why a server was not trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// Another key than last time.
    #[error(
        "the key of {host} has CHANGED: it was {known}, and the server shows {shown}. Somebody may be in between, \
         or the server was set up anew. If its operator confirms {shown}, remove the line of {host} ({}, line {line}) \
         and try again", path.display()
    )]
    Changed {
        /// As written in the file.
        host: String,
        /// The key on file.
        known: Fingerprint,
        /// The key it shows now.
        shown: Fingerprint,
        /// The file.
        path: PathBuf,
        /// Where in it, counted from 1.
        line: usize,
    },
    /// Not the key that was announced over ssh.
    #[error("the server shows key {shown}, not {expected} as announced over ssh: somebody is in between")]
    NotPinned {
        /// The key that was announced.
        expected: Fingerprint,
        /// The key it shows.
        shown: Fingerprint,
    },
    /// The file.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl KnownHosts {
    /// Reads the file; an absent one is empty. Lines that hold no Ed25519 key are passed over, as in OpenSSH.
    ///
    /// # Errors
    /// [`TrustError::Io`].
    pub fn load(path: &Path) -> Result<Self, TrustError> {
        let failed = |source| TrustError::Io { action: "read", path: path.into(), source };
        let text = match read_limited(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(failed)?,
        };
        Ok(Self { path: path.into(), text })
    }

    fn key_of(&self, host: &str) -> Option<PublicKey> {
        self.line_of(host).map(|(_, key)| key)
    }

    /// The first line that counts, from 1.
    fn line_of(&self, host: &str) -> Option<(usize, PublicKey)> {
        let mut lines = self.text.lines().enumerate();
        lines.find_map(|(index, line)| match parse_line(line)? {
            (name, key) if name == host => Some((index + 1, key)),
            _ => None,
        })
    }

    fn add(&mut self, host: &str, key: PublicKey) -> Result<(), TrustError> {
        let failed = |source| TrustError::Io { action: "write", path: self.path.clone(), source };
        if let Some(parent) = self.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
        }
        // An editor may have left the last line without its end.
        let before = if self.text.is_empty() || self.text.ends_with('\n') { "" } else { "\n" };
        let line = format!("{before}{host} {}\n", key.to_openssh());
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(failed)?;
        self.text.push_str(&line);
        Ok(())
    }
}

/// Reads `host key` lines.
pub(crate) fn parse(text: &str) -> Vec<(String, PublicKey)> {
    text.lines().filter_map(parse_line).map(|(host, key)| (host.to_owned(), key)).collect()
}

fn parse_line(line: &str) -> Option<(&str, PublicKey)> {
    let line = line.trim();
    let (host, key) = line.split_once(char::is_whitespace).filter(|_| !line.starts_with('#'))?;
    Some((host, PublicKey::from_openssh(key).ok()?))
}

/// Reads a key file, which is never large.
pub(super) fn read_limited(path: &Path) -> io::Result<String> {
    if fs::metadata(path)?.len() > KEY_FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too large for a file of keys"));
    }
    fs::read_to_string(path)
}

/// How the server's key is judged.
#[derive(Debug)]
pub enum HostTrust {
    /// Exactly this key, as announced over ssh.
    Pinned(PublicKey),
    /// By the file, under this name.
    Known {
        /// `host`, or `[host]:port` where the port is not the usual one.
        host: String,
        /// The file.
        file: Mutex<KnownHosts>,
    },
}

impl HostTrust {
    /// Trust by file.
    #[must_use]
    pub fn known(host: String, file: KnownHosts) -> Self {
        Self::Known { host, file: Mutex::new(file) }
    }

    /// Whether `shown` may be the server's key: the one that is known, or any if none is.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn check(&self, shown: PublicKey) -> Result<(), TrustError> {
        match self {
            Self::Pinned(expected) if *expected == shown => Ok(()),
            Self::Pinned(expected) => {
                Err(TrustError::NotPinned { expected: expected.fingerprint(), shown: shown.fingerprint() })
            }
            Self::Known { host, file } => {
                let file = lock(file);
                match file.line_of(host) {
                    Some((line, known)) if known != shown => Err(TrustError::Changed {
                        host: host.clone(),
                        known: known.fingerprint(),
                        shown: shown.fingerprint(),
                        path: file.path.clone(),
                        line,
                    }),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Remembers the key of a server that has proved to hold it; true when it was new.
    ///
    /// # Errors
    /// [`TrustError`], also when another key has been learnt in between.
    pub fn learn(&self, shown: PublicKey) -> Result<bool, TrustError> {
        self.check(shown)?;
        match self {
            Self::Pinned(_) => Ok(false),
            Self::Known { host, file } => {
                let mut file = lock(file);
                if file.key_of(host).is_some() {
                    return Ok(false);
                }
                file.add(host, shown)?;
                Ok(true)
            }
        }
    }
}

/// A poisoned lock only means that another check panicked; the entries are whole.
fn lock(file: &Mutex<KnownHosts>) -> std::sync::MutexGuard<'_, KnownHosts> {
    file.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::Identity;
    use super::*;

    #[test]
    fn first_use_is_learnt_and_a_change_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("conf/known_hosts");
        let (one, other) = (Identity::ephemeral().public(), Identity::ephemeral().public());
        let trust = HostTrust::known("far".into(), KnownHosts::load(&path).unwrap());
        trust.check(one).unwrap();
        assert!(trust.learn(one).unwrap());
        assert!(!trust.learn(one).unwrap());
        // Another run, from the file.
        let trust = HostTrust::known("far".into(), KnownHosts::load(&path).unwrap());
        trust.check(one).unwrap();
        let error = trust.check(other).unwrap_err();
        assert!(matches!(error, TrustError::Changed { .. }));
        assert!(error.to_string().contains(&one.fingerprint().to_string()));
        assert!(error.to_string().contains("known_hosts, line 1)"), "{error}");
        assert!(trust.learn(other).is_err());
        // Another name is another host.
        let trust = HostTrust::known("[far]:7000".into(), KnownHosts::load(&path).unwrap());
        trust.check(other).unwrap();
    }

    #[test]
    fn odd_lines_are_passed_over() {
        let key = Identity::ephemeral().public();
        let text = format!("# comment\n\nfar ssh-rsa AAAA\nhalf\nfar {} joe@x\n", key.to_openssh());
        assert_eq!(parse(&text), [("far".to_owned(), key)]);
    }
}
