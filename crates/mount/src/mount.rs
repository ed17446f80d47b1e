//! Putting a server's files into the tree of this host, and taking them out.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fuser::{BackgroundSession, Config, INodeNo, MountOption, Notifier, SessionACL};
use longhaul_files::Remote;
use longhaul_files::client::PageCache;
use rustix::io::Errno;
use tokio::runtime::Handle;

use crate::awake::Awake;
use crate::fuse::Fuse;
use crate::translate::Ids;

/// How it is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// What /proc/mounts shows as the source.
    pub source: String,
    /// Nothing may be changed.
    pub read_only: bool,
    /// Other users may use it, too.
    pub allow_other: bool,
    /// Set-user-id programs work as such.
    pub suid: bool,
    /// Device files work as such.
    pub dev: bool,
    /// No programs are started from it.
    pub noexec: bool,
    /// CPUs go to sleep while programs wait for each of many requests, which then takes longer.
    pub power_save: bool,
}

/// Why it is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The directory.
    #[error("cannot mount at {}: it is no directory", .0.display())]
    NoDirectory(PathBuf),
    /// This host has no FUSE, or this user may not use it.
    #[error(
        "cannot mount at {}: {source}. Without root it takes the program fusermount3 (Debian's package fuse3) and \
         the right to use /dev/fuse{}", path.display(),
        if *.allow_other { "; `allow_other` also the line user_allow_other in /etc/fuse.conf" } else { "" }
    )]
    Fuse {
        /// Where.
        path: PathBuf,
        /// What FUSE said.
        source: io::Error,
        /// It was asked for.
        allow_other: bool,
    },
}

/// The pages that this host's kernel keeps of files.
struct KernelPages(Notifier);

impl PageCache for KernelPages {
    fn give_back(&self, node: u64, bytes: Range<u64>) {
        // 0: up to the end.
        let length = i64::try_from(bytes.end - bytes.start).unwrap_or(0);
        let from = i64::try_from(bytes.start).unwrap_or(i64::MAX);
        // It may have forgotten the node, or the mount is over.
        if let Err(error) = self.0.inval_inode(INodeNo(node), from, length) {
            tracing::debug!(node, %error, "no pages to give back");
        }
    }

    fn store(&self, node: u64, offset: u64, data: &[u8]) {
        // As above, or there is no memory for it.
        if let Err(error) = self.0.store(INodeNo(node), offset, data) {
            tracing::debug!(node, %error, "pages are not stored");
        }
    }
}

/// A file system that is mounted; it is taken out when this is dropped.
#[derive(Debug)]
pub struct Mount {
    at: PathBuf,
    session: BackgroundSession,
}

impl Mount {
    /// Mounts; requests are answered by tasks of `runtime`.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn new(
        remote: Remote,
        at: &Path,
        options: &MountOptions,
        runtime: Handle,
    ) -> Result<Self, MountError> {
        let failed =
            |source| MountError::Fuse { path: at.to_owned(), source, allow_other: options.allow_other };
        if !at.is_dir() {
            return Err(MountError::NoDirectory(at.to_owned()));
        }
        let at = at.canonicalize().map_err(failed)?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let far = remote.user();
        let for_all = remote.acts_for_all() && uid.is_root();
        let ids = if for_all {
            Ids::All(remote.id_ranges().clone())
        } else {
            Ids::One { uids: [far.uid, uid.as_raw()], gids: [far.gid, gid.as_raw()] }
        };
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(options.source.clone()),
            MountOption::Subtype("longhaul".to_owned()),
            if options.suid { MountOption::Suid } else { MountOption::NoSuid },
            if options.dev { MountOption::Dev } else { MountOption::NoDev },
        ];
        if options.read_only || remote.is_read_only() {
            config.mount_options.push(MountOption::RO);
        }
        if options.noexec {
            config.mount_options.push(MountOption::NoExec);
        }
        // Where the server takes this host's word for who somebody is, this host's kernel has to judge what they may.
        // Else the server does, for its one user; others of this host get no further than modes let them.
        if for_all || options.allow_other {
            config.mount_options.push(MountOption::DefaultPermissions);
        }
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        // They only read requests: the work is the runtime's.
        config.n_threads = Some(READERS);
        config.clone_fd = true;
        let awake = (!options.power_save).then(|| Awake::new(&runtime));
        let fuse = Fuse::new(remote.clone(), ids, runtime, awake);
        let session = fuser::Session::new(fuse, &at, &config).map_err(failed)?;
        remote.keep_pages(Arc::new(KernelPages(session.notifier())));
        let session = session.spawn().map_err(failed)?;
        Ok(Self { at, session })
    }

    /// Whether it has been unmounted by somebody else (`umount`, `fusermount3 -u`).
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Takes it out of the tree at once, and waits until nobody has files of it open any more.
    ///
    /// # Errors
    /// When neither this process nor fusermount3 may.
    pub fn unmount(self) -> io::Result<()> {
        let is_over = self.is_over();
        // Dropped, it would unmount whatever is mounted there by then: fuser (0.18) takes a connection that is over for one
        // that is mounted. Nothing but a descriptor is lost.
        let session = ManuallyDrop::new(self.session);
        if !is_over {
            detach(&self.at)?;
        }
        while !session.guard.is_finished() {
            std::thread::sleep(TICK);
        }
        Ok(())
    }
}

fn detach(at: &Path) -> io::Result<()> {
    match rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH) {
        Err(Errno::PERM) => {}
        // Somebody else was faster.
        Err(Errno::INVAL) => return Ok(()),
        result => return Ok(result?),
    }
    // It may do for users what it has mounted for them.
    let output = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(at).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// How often the end is looked for.
const TICK: Duration = Duration::from_millis(10);

/// Threads that read the kernel's requests.
const READERS: usize = 2;
