//! Directories whose disk a client may have measured (`longhaul probe HOST:/EXPORT/DIR`): those that it may write to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use longhaul_files::server::{Changing, Shared};
use longhaul_files::{Dir, Exports, RelPath};
use longhaul_probe::disk::in_words;
use longhaul_probe::path::disks::Directories;
use longhaul_transport::identity::Grant;
use rustix::io::Errno;

use super::rights_of;

/// In exports, as far as one key goes.
pub(super) struct OfKey {
    pub(super) exports: Arc<Exports>,
    pub(super) grant: Grant,
    pub(super) files: Arc<Shared>,
}

/// A directory, as long as something is done in it that mounts are to notice: where files cannot do without names, one has a name for a
/// moment.
struct Changed {
    directory: Arc<OwnedFd>,
    _changing: Changing,
}

impl AsFd for Changed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Directories for OfKey {
    fn open(&self, path: &[u8]) -> Result<Box<dyn AsFd>, String> {
        if let Some(rights) = rights_of(&self.grant, false)? {
            rights.take_on().map_err(|error| format!("it cannot take on your user's rights: {error}"))?;
        }
        let found = self.exports.resolve(path, &self.grant, true).map_err(|error| error.to_string())?;
        let changing = self.files.others_change();
        Ok(Box::new(Changed { directory: open(found)?, _changing: changing }))
    }
}

/// Of the user who runs this server over ssh.
pub(super) struct Own;

impl Directories for Own {
    fn open(&self, path: &[u8]) -> Result<Box<dyn AsFd>, String> {
        Ok(Box::new(open(longhaul_copy::own_files(path)?)?))
    }
}

fn open((dir, below): (Dir, RelPath)) -> Result<Arc<OwnedFd>, String> {
    let open = || match below.split_last() {
        None => dir.fd(),
        Some((above, name)) => dir.open_beneath(&above)?.open_dir_following(&name)?.fd(),
    };
    open().map_err(|error: io::Error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::XDEV) => "it leads out of the export".to_owned(),
        _ => in_words(&error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a key that names no user is let in by a server that root does not run.
    fn open_as(grant: Grant, exports: &Exports, path: &str) -> Result<(), String> {
        let found = exports.resolve(path.as_bytes(), &grant, true).map_err(|error| error.to_string())?;
        open(found).map(drop)
    }

    #[test]
    fn directories_are_those_of_the_export_that_may_be_written() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("top/a/b")).unwrap();
        std::fs::write(temp.path().join("top/file"), "").unwrap();
        for (to, link) in [("../..", "out"), ("/etc", "absolute"), ("a/b", "inside")] {
            std::os::unix::fs::symlink(to, temp.path().join("top").join(link)).unwrap();
        }
        let mut exports = Exports::default();
        exports.add("data", &temp.path().join("top"), false).unwrap();
        exports.add("pub", &temp.path().join("top"), true).unwrap();
        let open_there = |path: &str| open_as(Grant::default(), &exports, path);
        for path in ["/data", "/data/", "data/a", "/data/a/b", "/data/inside"] {
            assert_eq!(open_there(path), Ok(()), "{path}");
        }
        let refused = |path: &str, why: &str| {
            let error = open_there(path).unwrap_err();
            assert!(error.contains(why), "{path}: {error}");
        };
        refused("/data/out", "leads out of the export");
        refused("/data/out/x", "leads out of the export");
        refused("/data/absolute", "leads out of the export");
        refused("/data/../etc", "is no path in an export");
        refused("/data/file", "not a directory");
        refused("/data/gone", "there is no such directory");
        refused("/pub", "read-only for you");
        refused("/else", "there is no export `/else` for you here");
        let other = Grant { exports: vec!["pub".to_owned()], ..Grant::default() };
        assert!(open_as(other, &exports, "/data").unwrap_err().contains("there is no export"));
    }
}
