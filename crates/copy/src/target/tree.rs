//! The directories that files arrive in, and what is kept of the source's attributes.
//!
//! Everything here touches the file system with the rights of the thread that calls it: none of it happens in a `Drop`,
//! which might run on a thread of the runtime.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use longhaul_files::attr::{set_mode, set_modified, set_owner, set_xattr};
use longhaul_files::{Dir, Name, Time};

use crate::limits::DIR_XATTR_BYTES_MAX;
use crate::message::Meta;
use crate::options::{CopyOptions, Existing, Sync};
use crate::progress::Problems;
use crate::walk::words;

/// What all parts of the receiving end know.
pub(super) struct Settings {
    pub(super) options: CopyOptions,
    pub(super) existing: Existing,
    pub(super) sync: Sync,
    pub(super) problems: Problems,
    /// Permission bits that new files do not get when modes are not preserved.
    umask: u32,
    pub(super) is_root: bool,
    /// What extended attributes of directories under way take.
    dir_xattr_bytes: Arc<AtomicUsize>,
}

/// Counted as long as it lives.
struct Counted {
    bytes: usize,
    of: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Settings {
    pub(super) fn new(options: CopyOptions, problems: Problems) -> Self {
        Self {
            existing: options.existing(),
            sync: options.sync(),
            problems,
            umask: current_umask(),
            is_root: rustix::process::geteuid().is_root(),
            dir_xattr_bytes: Arc::default(),
            options,
        }
    }

    /// Sets what shall be kept of the source's attributes. What cannot be set is told: the bytes are of use without.
    pub(super) fn keep(&self, file: impl AsFd, meta: &Meta, path: impl Fn() -> PathBuf) {
        let file = file.as_fd();
        if let Err((what, error)) = self.try_keep(file, meta) {
            let reason = format!("copied, but its {what} cannot be set: {}", words(&error));
            self.problems.tell(path(), reason);
        }
    }

    /// Tries all, and says the first that failed. The time comes last: everything else changes it.
    fn try_keep(&self, file: BorrowedFd<'_>, meta: &Meta) -> Result<(), (&'static str, io::Error)> {
        let mut first = Ok(());
        let mut note = |what, result: io::Result<()>| {
            let failed = result.is_err();
            if let (Err(error), true) = (result, first.is_ok()) {
                first = Err((what, error));
            }
            failed
        };
        let mut mode = self.mode_for(meta);
        if self.options.preserve && self.is_root && note("owner", set_owner(file, meta.uid, meta.gid)) {
            // Whom it belongs to now, nobody shall act as.
            mode &= 0o777;
        }
        if self.options.xattrs {
            // Others than these are the system's, unless one is root.
            let own = |name: &[u8]| name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_");
            for xattr in meta.xattrs.iter().filter(|xattr| self.is_root || own(&xattr.name)) {
                note("extended attributes", set_xattr(file, xattr));
            }
        }
        note("permissions", set_mode(file, mode));
        note("time", set_modified(file, meta.modified));
        first
    }

    pub(super) fn mode_for(&self, meta: &Meta) -> u32 {
        if self.options.preserve { meta.mode } else { meta.mode & 0o777 & !self.umask }
    }
}

/// The process' umask, without changing it.
fn current_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}

/// A directory that files arrive in. After the last change in it, it gets its own attributes.
pub(super) struct TargetDir {
    pub(super) dir: Dir,
    kept: Kept,
    parent: Option<Arc<TargetDir>>,
    /// Changes in it that are still to come: its listing's end, files, directories and links.
    expected: AtomicUsize,
    _counted: Option<Counted>,
}

/// What a directory gets of its source's attributes.
pub(super) enum Kept {
    Nothing,
    /// One that was there already: only its time, and only where one may.
    Time(Time),
    All(Meta),
}

impl TargetDir {
    /// The destination itself, which stays as it is.
    pub(super) fn top(dir: Dir) -> Arc<Self> {
        let expected = AtomicUsize::new(1);
        Arc::new(Self { dir, kept: Kept::Nothing, parent: None, expected, _counted: None })
    }

    /// The directory called `name` in `parent`, which expects the end of its listing. `None`: too much is kept already.
    pub(super) fn below(
        parent: &Arc<Self>,
        name: Name,
        kept: Kept,
        settings: &Settings,
    ) -> Option<Arc<Self>> {
        let bytes = if let Kept::All(meta) = &kept { meta.xattr_bytes() } else { 0 };
        let counted = Counted { bytes, of: Arc::clone(&settings.dir_xattr_bytes) };
        if counted.of.fetch_add(bytes, Ordering::Relaxed) + bytes > DIR_XATTR_BYTES_MAX {
            return None;
        }
        parent.expect_one();
        Some(Arc::new(Self {
            dir: parent.dir.child(name),
            kept,
            parent: Some(Arc::clone(parent)),
            expected: AtomicUsize::new(1),
            _counted: Some(counted),
        }))
    }

    /// One change more is to come; [`settle_one`](Self::settle_one) when it has, or will not.
    pub(super) fn expect_one(&self) {
        self.expected.fetch_add(1, Ordering::AcqRel);
    }

    /// One change less. After the last this directory gets its attributes, and is one change less to the one above.
    pub(super) fn settle_one(&self, settings: &Settings) {
        let mut at = Some(self);
        while let Some(dir) = at {
            if dir.expected.fetch_sub(1, Ordering::AcqRel) > 1 {
                return;
            }
            dir.keep(settings);
            at = dir.parent.as_deref();
        }
    }

    fn keep(&self, settings: &Settings) {
        match &self.kept {
            Kept::Nothing => {}
            // Somebody else's directory keeps its own.
            Kept::Time(modified) => drop(self.dir.fd().and_then(|fd| set_modified(&*fd, *modified))),
            Kept::All(meta) => match self.dir.fd() {
                Ok(fd) => settings.keep(&*fd, meta, || self.dir.path()),
                Err(error) => {
                    let reason = format!("copied, but its permissions cannot be set: {}", words(&error));
                    settings.problems.tell(self.dir.path(), reason);
                }
            },
        }
    }
}
