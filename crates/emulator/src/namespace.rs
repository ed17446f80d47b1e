//! Hosts: network namespaces held by file descriptors, so that nothing of them outlives the process that made them.
#![allow(unsafe_code)] // unshare: rustix marks it unsafe because of file-descriptor tables, which are not touched here

use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountPropagationFlags;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// A network namespace, and the user namespace that owns it where that is not the caller's.
#[derive(Debug)]
pub struct Namespace {
    net: OwnedFd,
}

/// Why a namespace could not be made or entered.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// Not root, and this kernel or its settings refuse user namespaces.
    #[error(
        "cannot make a user namespace: {0}; run as root, or let users make them \
         (sysctl kernel.unprivileged_userns_clone=1 or kernel.apparmor_restrict_unprivileged_userns=0, where present; \
         user.max_user_namespaces above 0)"
    )]
    User(io::Error),
    /// The network namespace itself.
    #[error(
        "cannot make or enter a network namespace: {0}; it needs root (CAP_SYS_ADMIN) or a user namespace"
    )]
    Net(io::Error),
    /// The names of the hosts could not be put before `/etc/hosts`.
    #[error("cannot give the hosts their names: {0}")]
    Hosts(io::Error),
    /// Not there.
    #[error("there is no host `{host}`; there are: {others}")]
    NoHost {
        /// What was named.
        host: String,
        /// What could have been.
        others: String,
    },
    /// The command itself.
    #[error("cannot start {program}")]
    Spawn {
        /// What was to be run.
        program: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Makes the calling process root of a new user namespace when it lacks the rights to make network namespaces.
/// Must be called while the process has one thread. Returns whether it did.
///
/// # Errors
/// [`NamespaceError::User`] where the kernel refuses.
pub fn gain_rights() -> Result<bool, NamespaceError> {
    if rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(UnshareFlags::NEWUSER).map_err(NamespaceError::User)?;
    fs::write("/proc/self/setgroups", "deny")
        .and_then(|()| fs::write("/proc/self/uid_map", format!("0 {uid} 1")))
        .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {gid} 1")))
        .map_err(NamespaceError::User)?;
    Ok(true)
}

impl Namespace {
    /// Makes a namespace and runs `setup` in it, on a thread of its own.
    ///
    /// # Errors
    /// [`NamespaceError::Net`].
    pub fn create<T: Send>(setup: impl FnOnce() -> T + Send) -> Result<(Self, T), NamespaceError> {
        on_own_thread(|| {
            unshare(UnshareFlags::NEWNET).map_err(NamespaceError::Net)?;
            let net = current_net()?;
            Ok((Self { net }, setup()))
        })
    }

    /// A namespace received from another process.
    #[must_use]
    pub fn from_fd(net: OwnedFd) -> Self {
        Self { net }
    }

    /// Starts `command` in the namespace, where `hosts` are known by name.
    ///
    /// # Errors
    /// [`NamespaceError`].
    pub fn spawn(&self, command: &mut Command, hosts: &[(String, IpAddr)]) -> Result<Child, NamespaceError> {
        on_own_thread(|| {
            self.enter(hosts)?;
            command.spawn().map_err(|source| NamespaceError::Spawn {
                program: command.get_program().to_string_lossy().into_owned(),
                source,
            })
        })
    }

    /// Runs `job` in the namespace, on a thread of its own.
    ///
    /// # Errors
    /// [`NamespaceError::Net`].
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        on_own_thread(|| {
            self.enter_net()?;
            Ok(job())
        })
    }

    /// Moves the calling thread, and the commands it starts from now on, into the namespace.
    ///
    /// # Errors
    /// [`NamespaceError`].
    pub fn enter(&self, hosts: &[(String, IpAddr)]) -> Result<(), NamespaceError> {
        self.enter_net()?;
        name_hosts(hosts).map_err(NamespaceError::Hosts)
    }

    fn enter_net(&self) -> Result<(), NamespaceError> {
        rustix::thread::move_into_link_name_space(self.net.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| NamespaceError::Net(e.into()))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.net.as_fd()
    }
}

fn on_own_thread<T: Send>(job: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(job).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the hazard is CLONE_FILES, which would split the table of file descriptors; it is never passed.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

fn current_net() -> Result<OwnedFd, NamespaceError> {
    rustix::fs::open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| NamespaceError::Net(e.into()))
}

/// Gives the calling thread its own view of `/etc/hosts`, with `hosts` added.
fn name_hosts(hosts: &[(String, IpAddr)]) -> io::Result<()> {
    if hosts.is_empty() {
        return Ok(());
    }
    unshare(UnshareFlags::NEWNS)?;
    // Nothing mounted here may show elsewhere.
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let mut text = fs::read_to_string("/etc/hosts").unwrap_or_default();
    for (name, address) in hosts {
        text.push_str(&format!("\n{address} {name}"));
    }
    text.push('\n');
    let path =
        std::env::temp_dir().join(format!(".longhaul-hosts-{}", rustix::thread::gettid().as_raw_nonzero()));
    // Nothing that somebody else has put there is written to, nor through.
    let _ = fs::remove_file(&path); // of a process that was killed; there mostly is none
    fs::OpenOptions::new().write(true).create_new(true).open(&path)?.write_all(text.as_bytes())?;
    let bound = rustix::mount::mount_bind(&path, "/etc/hosts");
    fs::remove_file(&path)?; // the mount keeps the file
    Ok(bound?)
}
