//! Where longhaul's own files are: keys, known hosts, authorized keys.

use std::path::{Path, PathBuf};

use anyhow::Context;
use longhaul_transport::identity::{Identity, KeyError};

/// `$XDG_CONFIG_HOME/longhaul`, or `~/.config/longhaul`.
pub(crate) fn directory() -> anyhow::Result<PathBuf> {
    let base = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    match base.or_else(|| std::env::home_dir().map(|home| home.join(".config"))) {
        Some(base) => Ok(base.join("longhaul")),
        None => anyhow::bail!("neither XDG_CONFIG_HOME nor HOME is set: name the files by options"),
    }
}

/// A server's own files: the system's for root, the user's otherwise.
pub(crate) fn server_directory() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() { Ok(PathBuf::from("/etc/longhaul")) } else { directory() }
}

/// Reads a key, or makes it where there is none; the second value says that it is new.
pub(crate) fn key_at(path: &Path) -> anyhow::Result<(Identity, bool)> {
    if path.exists() {
        return Ok((Identity::load(path)?, false));
    }
    match Identity::create(path, &comment()) {
        Ok(identity) => Ok((identity, true)),
        // Another process was faster.
        Err(KeyError::Io { .. }) if path.exists() => Ok((Identity::load(path)?, false)),
        Err(error) => Err(error).context("cannot make a key"),
    }
}

/// This user's key: the one that is named, longhaul's own, an OpenSSH key that can be used, or a new one.
pub(crate) fn user_key(named: Option<&Path>) -> anyhow::Result<Identity> {
    if let Some(path) = named {
        return Ok(Identity::load(path)?);
    }
    let own = directory()?.join("id_ed25519");
    if !own.exists()
        && let Some(ssh) = std::env::home_dir().map(|home| home.join(".ssh/id_ed25519"))
        && ssh.exists()
    {
        match Identity::load(&ssh) {
            Ok(identity) => return Ok(identity),
            Err(error) => {
                tracing::info!("{}: {error}; a key of longhaul's own is used instead", ssh.display())
            }
        }
    }
    let (identity, new) = key_at(&own)?;
    if new {
        tracing::warn!(
            "made a new key, {}; its public half is in {}.pub",
            identity.public().fingerprint(),
            own.display()
        );
    }
    Ok(identity)
}

/// `user@host`, for the end of a key's line.
pub(crate) fn comment() -> String {
    let user = longhaul_files::rights::own_name().unwrap_or_else(|| "unknown".to_owned());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{user}@{host}")
}
