//! Directories held by descriptor. Operations take one checked [`Name`] and follow no symbolic link, so nothing outside
//! the tree can be reached, whatever anybody renames meanwhile. Two exceptions: what is called `*_following` follows
//! links, in a confined tree only inside it, as `open_beneath` does; and a directory that is moved out of the tree
//! while it is open is still worked in.
//!
//! A large tree has more directories than a process may have open: each [`Dir`] knows its parent and is opened again
//! when it is needed and its descriptor has been given up for others.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, Dir as ReadDir, FileType, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use crate::attr::{Attr, Kind, Time, attr_of, timestamps};
use crate::limits::OPEN_DIRS_MAX;
use crate::name::{Name, NameError, RelPath, shown};

/// A directory; clones are the same.
#[derive(Clone)]
pub struct Dir(Arc<Node>);

struct Node {
    id: u64,
    depth: u32,
    /// `None`: the top of its tree.
    above: Option<Above>,
    tree: Arc<Tree>,
}

struct Above {
    parent: Dir,
    name: Name,
}

/// What all directories of a tree share.
struct Tree {
    /// Its top, open for as long as the tree is used.
    top: Arc<OwnedFd>,
    /// What the top is called in messages.
    path: PathBuf,
    within: Option<Within>,
    open: OpenDirs,
}

/// The tree that no link may lead out of, and where in it a top is.
#[derive(Clone)]
struct Within {
    root: Arc<OwnedFd>,
    below: RelPath,
}

/// The open descriptors of a tree's directories, the longest unused given up first.
#[derive(Default)]
struct OpenDirs {
    next_id: AtomicU64,
    open: Mutex<Recent>,
}

#[derive(Default)]
struct Recent {
    clock: u64,
    fds: HashMap<u64, (u64, Arc<OwnedFd>)>,
}

impl OpenDirs {
    fn get(&self, id: u64) -> Option<Arc<OwnedFd>> {
        let mut recent = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        recent.clock += 1;
        let now = recent.clock;
        let (used, fd) = recent.fds.get_mut(&id)?;
        *used = now;
        Some(Arc::clone(fd))
    }

    fn put(&self, id: u64, fd: &Arc<OwnedFd>) {
        let mut recent = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.fds.len() >= OPEN_DIRS_MAX {
            // Half of them at once: a look at all is rare then.
            let mut used: Vec<u64> = recent.fds.values().map(|(used, _)| *used).collect();
            let middle = used.len() / 2;
            let (_, &mut median, _) = used.select_nth_unstable(middle);
            recent.fds.retain(|_, (used, _)| *used > median);
        }
        recent.clock += 1;
        let now = recent.clock;
        recent.fds.insert(id, (now, Arc::clone(fd)));
    }

    fn forget(&self, id: u64) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).fds.remove(&id);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tree.open.forget(self.id);
        // Not recursive: a tree may be deeper than a thread's stack.
        let mut above = self.above.take();
        while let Some(Above { parent, .. }) = above {
            above = Arc::into_inner(parent.0).and_then(|mut last| last.above.take());
        }
    }
}

impl fmt::Debug for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dir").field(&self.path()).finish()
    }
}

/// What a directory holds, one at a time.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// Its name.
    pub name: Name,
    /// Its number; reading files in this order spares a disk's head.
    pub inode: u64,
}

const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Dir {
    /// Opens a directory by a path of the user's own: links are followed.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open_path(path: &std::path::Path) -> io::Result<Self> {
        let fd = rustix::fs::openat(CWD, path, DIR_FLAGS, Mode::empty())?;
        Ok(Self::top(Arc::new(fd), path.to_owned(), None))
    }

    /// As [`open_path`](Self::open_path); but from there on also the operations that follow links (`*_following`)
    /// reach nothing outside. Messages call it `shown`: where it is may be nobody else's business.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open_confined(path: &std::path::Path, shown: PathBuf) -> io::Result<Self> {
        let fd = Arc::new(rustix::fs::openat(CWD, path, DIR_FLAGS, Mode::empty())?);
        let within = Some(Within { root: Arc::clone(&fd), below: RelPath::default() });
        Ok(Self::top(fd, shown, within))
    }

    fn top(fd: Arc<OwnedFd>, path: PathBuf, within: Option<Within>) -> Self {
        let tree = Arc::new(Tree { top: fd, path, within, open: OpenDirs::default() });
        Self(Arc::new(Node { id: 0, depth: 0, above: None, tree }))
    }

    /// The names that lead here from the top of its tree.
    fn names(&self) -> impl Iterator<Item = &Name> {
        // Not recursive: a tree may be deeper than a thread's stack.
        let upwards = std::iter::successors(self.parent(), |(parent, _)| parent.parent());
        let mut names: Vec<&Name> = upwards.map(|(_, name)| name).collect();
        names.reverse();
        names.into_iter()
    }

    /// The tree that `path`, below this directory, is confined to, and where in it that is.
    fn within(&self, path: &RelPath) -> Option<Within> {
        let within = self.0.tree.within.as_ref()?;
        let names = self.names().chain(path.names());
        let below = names.fold(within.below.clone(), |below, name| below.join(name.clone()));
        Some(Within { root: Arc::clone(&within.root), below })
    }

    /// Opens what is called `name`, or what a link of that name leads to.
    fn follow(&self, name: &Name, flags: OFlags) -> io::Result<OwnedFd> {
        let Some(Within { root, below }) = self.within(&RelPath::default().join(name.clone())) else {
            return Ok(rustix::fs::openat(&*self.fd()?, name.as_os_str(), flags, Mode::empty())?);
        };
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&*root, below.to_path_buf(), flags, Mode::empty(), beneath) {
            Err(Errno::XDEV) => Err(io::Error::other("it leads out of the export")),
            opened => Ok(opened?),
        }
    }

    /// Opens what `path` names below this directory, as the top of a tree of its own. Links are followed as long as
    /// they stay below.
    ///
    /// # Errors
    /// `EXDEV` for a path or link that leads out, and as `openat2(2)`.
    pub fn open_beneath(&self, path: &RelPath) -> io::Result<Self> {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let fd = rustix::fs::openat2(&*self.fd()?, path.to_path_buf(), DIR_FLAGS, Mode::empty(), beneath)?;
        let shown = path.names().iter().fold(self.path(), |shown, name| shown.join(name.as_os_str()));
        Ok(Self::top(Arc::new(fd), shown, self.within(path)))
    }

    /// Opens the directory called `name`, and no link, as the top of a tree of its own.
    ///
    /// # Errors
    /// As `open(2)`: `ENOTDIR` or `ELOOP` for a link.
    pub fn open_dir(&self, name: &Name) -> io::Result<Self> {
        let fd =
            rustix::fs::openat(&*self.fd()?, name.as_os_str(), DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty())?;
        let within = self.within(&RelPath::default().join(name.clone()));
        Ok(Self::top(Arc::new(fd), self.path().join(name.as_os_str()), within))
    }

    /// Opens the directory called `name`, or that a link of that name leads to, as the top of a tree of its own.
    ///
    /// # Errors
    /// As `open(2)`, and for a link that leads out of a confined tree.
    pub fn open_dir_following(&self, name: &Name) -> io::Result<Self> {
        let fd = self.follow(name, DIR_FLAGS)?;
        let within = self.within(&RelPath::default().join(name.clone()));
        Ok(Self::top(Arc::new(fd), self.path().join(name.as_os_str()), within))
    }

    /// The directory called `name` in this one; opened when it is needed.
    #[must_use]
    pub fn child(&self, name: Name) -> Self {
        let tree = Arc::clone(&self.0.tree);
        let id = tree.open.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let depth = self.0.depth.saturating_add(1);
        Self(Arc::new(Node { id, depth, above: Some(Above { parent: self.clone(), name }), tree }))
    }

    /// For messages: the path it was found by.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let mut path = self.0.tree.path.clone();
        path.extend(self.names().map(Name::as_os_str));
        path
    }

    /// For messages: the path of what is called `name` in it.
    #[must_use]
    pub fn path_of(&self, name: &Name) -> PathBuf {
        self.path().join(name.as_os_str())
    }

    /// How many directories it is below the top of its tree. Nothing here refuses what is deeper than
    /// [`DEPTH_MAX`](crate::limits::DEPTH_MAX); who goes down a tree should.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.0.depth as usize
    }

    /// The directory above and this one's name there; `None` at the top.
    #[must_use]
    pub fn parent(&self) -> Option<(&Self, &Name)> {
        self.0.above.as_ref().map(|above| (&above.parent, &above.name))
    }

    /// Its descriptor.
    ///
    /// # Errors
    /// As `open(2)`: it may have gone, or be no directory any more. Another directory that has taken the place of a
    /// closed one is not told from it.
    pub fn fd(&self) -> io::Result<Arc<OwnedFd>> {
        // Not recursive: a tree may be deeper than a thread's stack.
        let mut closed = Vec::new();
        let mut at = self;
        let mut fd = loop {
            let Some((parent, name)) = at.parent() else { break Arc::clone(&self.0.tree.top) };
            if let Some(fd) = self.0.tree.open.get(at.0.id) {
                break fd;
            }
            closed.push((at.0.id, name));
            at = parent;
        };
        for (id, name) in closed.into_iter().rev() {
            let flags = DIR_FLAGS | OFlags::NOFOLLOW;
            fd = Arc::new(rustix::fs::openat(&*fd, name.as_os_str(), flags, Mode::empty())?);
            self.0.tree.open.put(id, &fd);
        }
        Ok(fd)
    }

    /// What it is itself.
    ///
    /// # Errors
    /// As `open(2)` and `fstat(2)`.
    pub fn own_attr(&self) -> io::Result<Attr> {
        attr_of(&*self.fd()?)
    }

    /// What is called `name`, a link itself and not its target; `None`: nothing.
    ///
    /// # Errors
    /// As `fstatat(2)`, but for "no such file".
    pub fn attr(&self, name: &Name) -> io::Result<Option<Attr>> {
        match rustix::fs::statat(&*self.fd()?, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Attr::from_stat(&stat).map(Some).ok_or_else(|| io::ErrorKind::Unsupported.into()),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`attr`](Self::attr), of what a link leads to.
    ///
    /// # Errors
    /// As `fstat(2)`, but for "no such file", and for a link that leads out of a confined tree.
    pub fn attr_following(&self, name: &Name) -> io::Result<Option<Attr>> {
        match self.follow(name, OFlags::PATH | OFlags::CLOEXEC) {
            Ok(fd) => attr_of(fd).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The names it holds, in the order of the file system.
    ///
    /// # Errors
    /// As `open(2)`; reading on may fail as `getdents(2)`, and one entry for a name that is too long.
    pub fn entries(&self) -> io::Result<impl Iterator<Item = io::Result<DirEntry>> + use<>> {
        // A descriptor of its own: a shared one would share the position.
        let fd = rustix::fs::openat(&*self.fd()?, ".", DIR_FLAGS, Mode::empty())?;
        let entries = ReadDir::new(fd)?;
        Ok(entries.filter_map(|entry| {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error.into())),
            };
            let name = name_in_dir(entry.file_name().to_bytes())?;
            Some(name.map(|name| DirEntry { name, inode: entry.ino() }))
        }))
    }

    /// Opens a file for reading. A link is not followed, and a pipe or device not waited for.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open_file(&self, name: &Name) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(rustix::fs::openat(&*self.fd()?, name.as_os_str(), flags, Mode::empty())?.into())
    }

    /// As [`open_file`](Self::open_file), through a link.
    ///
    /// # Errors
    /// As `open(2)`, and for a link that leads out of a confined tree.
    pub fn open_file_following(&self, name: &Name) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(self.follow(name, flags)?.into())
    }

    /// Makes a file (mode 0600) and opens it for reading and writing.
    ///
    /// # Errors
    /// `EEXIST` when the name is taken, and as `open(2)`.
    pub fn create_file(&self, name: &Name) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&*self.fd()?, name.as_os_str(), flags, Mode::from_raw_mode(0o600))?.into())
    }

    /// Opens an existing file for reading and writing. A link is not followed, and a pipe or device not waited for.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open_for_update(&self, name: &Name) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(rustix::fs::openat(&*self.fd()?, name.as_os_str(), flags, Mode::empty())?.into())
    }

    /// Opens an existing file for writing past the page cache.
    ///
    /// # Errors
    /// `EINVAL` where the file system cannot do that, and as `open(2)`.
    pub fn open_direct(&self, name: &Name) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&*self.fd()?, name.as_os_str(), flags, Mode::empty())?.into())
    }

    /// Makes a file (mode 0600) that has no name yet; give it one with [`name_file`](Self::name_file), or it vanishes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system cannot do that, and as `open(2)`.
    pub fn create_unnamed(&self) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&*self.fd()?, ".", flags, Mode::from_raw_mode(0o600))?.into())
    }

    /// Gives an unnamed file its first name.
    ///
    /// # Errors
    /// `EEXIST` when the name is taken, and as `linkat(2)`.
    pub fn name_file(&self, file: &File, name: &Name) -> io::Result<()> {
        // The way that needs no rights beyond the file's own (open(2), O_TMPFILE).
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, itself, &*self.fd()?, name.as_os_str(), AtFlags::SYMLINK_FOLLOW)?;
        Ok(())
    }

    /// Makes a directory with these permission bits, the process' umask aside; false when one is there already.
    ///
    /// # Errors
    /// As `mkdir(2)`, also when something else has the name.
    pub fn make_dir(&self, name: &Name, mode: u32) -> io::Result<bool> {
        match rustix::fs::mkdirat(&*self.fd()?, name.as_os_str(), Mode::from_raw_mode(mode & 0o7777)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => match self.attr(name)? {
                Some(attr) if attr.kind == Kind::Dir => Ok(false),
                _ => Err(Errno::EXIST.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Moves `from` to `to` in the same directory, over what is there.
    ///
    /// # Errors
    /// As `rename(2)`.
    pub fn rename(&self, from: &Name, to: &Name) -> io::Result<()> {
        let fd = self.fd()?;
        Ok(rustix::fs::renameat_with(&*fd, from.as_os_str(), &*fd, to.as_os_str(), RenameFlags::empty())?)
    }

    /// Removes a name that is no directory; false when nothing had it.
    ///
    /// # Errors
    /// As `unlink(2)`.
    pub fn remove(&self, name: &Name) -> io::Result<bool> {
        match rustix::fs::unlinkat(&*self.fd()?, name.as_os_str(), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The target of a link.
    ///
    /// # Errors
    /// As `readlink(2)`.
    pub fn read_link(&self, name: &Name) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&*self.fd()?, name.as_os_str(), Vec::new())?.into_bytes())
    }

    /// Makes a link to `target`, which is not looked at.
    ///
    /// # Errors
    /// As `symlink(2)`.
    pub fn make_link(&self, name: &Name, target: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &*self.fd()?, name.as_os_str())?)
    }

    /// Gives the file called `name` in this directory another name.
    ///
    /// # Errors
    /// As `link(2)`.
    pub fn hard_link(&self, name: &Name, to: &Self, to_name: &Name) -> io::Result<()> {
        let (from, to) = (self.fd()?, to.fd()?);
        Ok(rustix::fs::linkat(&*from, name.as_os_str(), &*to, to_name.as_os_str(), AtFlags::empty())?)
    }

    /// Makes a pipe, socket or device file (mode 0600).
    ///
    /// # Errors
    /// As `mknod(2)`; `EINVAL` for other kinds.
    pub fn make_special(&self, name: &Name, kind: Kind, device: u64) -> io::Result<()> {
        let file_type = match kind {
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
            Kind::CharDevice => FileType::CharacterDevice,
            Kind::BlockDevice => FileType::BlockDevice,
            Kind::File | Kind::Dir | Kind::Symlink => return Err(Errno::INVAL.into()),
        };
        let fd = self.fd()?;
        Ok(rustix::fs::mknodat(&*fd, name.as_os_str(), file_type, Mode::from_raw_mode(0o600), device)?)
    }

    /// Sets the owner of what is called `name`, a link itself included.
    ///
    /// # Errors
    /// As `fchownat(2)`.
    pub fn set_owner(&self, name: &Name, uid: u32, gid: u32) -> io::Result<()> {
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        let fd = self.fd()?;
        Ok(rustix::fs::chownat(&*fd, name.as_os_str(), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets the time of the last change of what is called `name`, a link itself included.
    ///
    /// # Errors
    /// As `utimensat(2)`.
    pub fn set_modified(&self, name: &Name, modified: Time) -> io::Result<()> {
        let fd = self.fd()?;
        Ok(rustix::fs::utimensat(&*fd, name.as_os_str(), &timestamps(modified), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets the permission bits of what is called `name`, which must be no link.
    ///
    /// # Errors
    /// As `fchmodat(2)`.
    pub fn set_mode(&self, name: &Name, mode: u32) -> io::Result<()> {
        // Linux' fchmodat follows links: go by a descriptor that does not.
        let fd = self.fd()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&*fd, name.as_os_str(), flags, Mode::empty())?;
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(rustix::fs::chmodat(CWD, itself, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?)
    }

    /// Makes all that was written to its file system durable.
    ///
    /// # Errors
    /// As `syncfs(2)`.
    pub fn sync_file_system(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&*self.fd()?)?)
    }
}

/// A name as the file system lists it; `None` for `.` and `..`.
fn name_in_dir(bytes: &[u8]) -> Option<io::Result<Name>> {
    match Name::new(bytes) {
        Ok(name) => Some(Ok(name)),
        Err(NameError::Reserved) => None,
        Err(error) => {
            let name = shown(OsStr::from_bytes(bytes));
            Some(Err(io::Error::new(io::ErrorKind::InvalidFilename, format!("`{name}`: {error}"))))
        }
    }
}

/// Lets the process open as many files as it may.
pub fn raise_open_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Without it the lower limit stays, under which one copy works, but not many sessions of a server.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Whether `dir`'s file system lies on a disk of this host: not in memory, not on a network. One that may span several
/// disks (btrfs, ZFS) or lies over others (overlayfs) has no disk's number, and counts as not.
#[must_use]
pub fn is_on_local_disk(dir: &Dir) -> bool {
    let device = dir.fd().ok().and_then(|fd| rustix::fs::fstat(fd.as_fd()).ok()).map(|stat| stat.st_dev);
    device.is_some_and(|device| {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        std::path::Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn name(s: &str) -> Name {
        Name::new(s.as_bytes()).unwrap()
    }

    fn rel(s: &str) -> RelPath {
        RelPath::new(s.as_bytes()).unwrap()
    }

    fn tree() -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("top/a/b")).unwrap();
        std::fs::write(temp.path().join("secret"), "s").unwrap();
        let dir = Dir::open_path(&temp.path().join("top")).unwrap();
        (temp, dir)
    }

    #[test]
    fn links_lead_nowhere_out() {
        let (temp, dir) = tree();
        symlink("../secret", temp.path().join("top/out")).unwrap();
        symlink("..", temp.path().join("top/up")).unwrap();
        symlink("/etc", temp.path().join("top/abs")).unwrap();
        symlink("a", temp.path().join("top/in")).unwrap();
        assert_eq!(dir.open_file(&name("out")).unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        assert!(dir.child(name("up")).fd().is_err());
        assert_eq!(
            dir.open_beneath(&rel("up")).unwrap_err().raw_os_error(),
            Some(Errno::XDEV.raw_os_error())
        );
        assert_eq!(
            dir.open_beneath(&rel("abs")).unwrap_err().raw_os_error(),
            Some(Errno::XDEV.raw_os_error())
        );
        assert!(dir.open_beneath(&rel("in/b")).is_ok(), "a link that stays below is followed");
        assert_eq!(dir.attr(&name("out")).unwrap().unwrap().kind, Kind::Symlink);
        assert!(dir.open_for_update(&name("out")).is_err());
        assert!(dir.set_mode(&name("out"), 0o777).is_err());
        let mode = std::fs::metadata(temp.path().join("secret")).unwrap().permissions().mode();
        assert_ne!(mode & 0o777, 0o777);
    }

    #[test]
    fn following_in_a_confined_tree_leads_nowhere_out() {
        let (temp, _) = tree();
        let top = temp.path().join("top");
        std::fs::write(top.join("inside"), "i").unwrap();
        for (to, link) in [
            ("../../secret", "a/out"),
            ("../..", "a/up"),
            ("/etc", "a/abs"),
            ("../inside", "a/in"),
            ("../a/b", "a/dir"),
            ("gone", "a/broken"),
        ] {
            symlink(to, top.join(link)).unwrap();
        }
        let dir = Dir::open_confined(&top, "top".into()).unwrap();
        // However one has come there.
        for a in [
            dir.child(name("a")),
            dir.open_beneath(&rel("a")).unwrap(),
            dir.open_dir_following(&name("a")).unwrap(),
        ] {
            for out in ["out", "up", "abs"] {
                let error = a.attr_following(&name(out)).unwrap_err();
                assert!(error.to_string().contains("leads out of the export"), "{out}: {error}");
                assert!(
                    a.open_file_following(&name(out)).is_err() && a.open_dir_following(&name(out)).is_err()
                );
            }
            assert_eq!(a.attr_following(&name("in")).unwrap().unwrap().kind, Kind::File);
            assert_eq!(io::read_to_string(a.open_file_following(&name("in")).unwrap()).unwrap(), "i");
            assert!(a.open_dir_following(&name("dir")).is_ok());
            assert_eq!(a.attr_following(&name("broken")).unwrap(), None);
        }
        // One's own trees have no such bounds.
        let own = Dir::open_path(&top).unwrap().child(name("a"));
        assert_eq!(own.attr_following(&name("out")).unwrap().unwrap().kind, Kind::File);
    }

    #[test]
    fn a_directory_that_was_given_up_is_opened_again() {
        let (_temp, dir) = tree();
        let dirs: Vec<Dir> = (0..OPEN_DIRS_MAX + 50)
            .map(|i| {
                let n = name(&format!("d{i}"));
                assert!(dir.make_dir(&n, 0o700).unwrap());
                assert!(!dir.make_dir(&n, 0o700).unwrap());
                dir.child(n).child(name("x"))
            })
            .collect();
        for d in &dirs {
            let (parent, n) = d.parent().unwrap();
            parent.make_dir(n, 0o700).unwrap();
            d.create_file(&name("f")).unwrap();
        }
        for d in &dirs {
            assert_eq!(d.attr(&name("f")).unwrap().unwrap().kind, Kind::File);
        }
        assert!(dir.0.tree.open.open.lock().unwrap().fds.len() <= OPEN_DIRS_MAX);
    }

    #[test]
    fn a_deep_tree_needs_no_deep_stack() {
        const DEPTH: usize = 100_000;
        let (temp, top) = tree();
        let path = temp.path().join("top");
        let small = std::thread::Builder::new().stack_size(128 << 10).spawn(move || {
            let deepest = (0..DEPTH).fold(top.clone(), |dir, _| dir.child(name("d")));
            assert_eq!((top.depth(), deepest.depth()), (0, DEPTH));
            assert_eq!(deepest.path(), path.join(vec!["d"; DEPTH].join("/")));
            assert_eq!(format!("{deepest:?}").len(), format!("{top:?}").len() + 2 * DEPTH);
            // A branch keeps what is above it, and no more.
            let (parent, _) = deepest.parent().unwrap();
            let branch = parent.child(name("e"));
            drop(deepest);
            assert_eq!(branch.depth(), DEPTH);
            drop(branch);
            assert_eq!(Arc::strong_count(&top.0), 1);
        });
        small.unwrap().join().unwrap();
    }

    #[test]
    fn an_unnamed_file_gets_a_name_once() {
        let (temp, dir) = tree();
        let Ok(file) = dir.create_unnamed() else { return }; // not on this file system
        dir.name_file(&file, &name("n")).unwrap();
        assert_eq!(dir.name_file(&file, &name("n")).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(temp.path().join("top/n").exists());
    }

    #[test]
    fn entries_are_all_names_but_dots() {
        let (_temp, dir) = tree();
        for n in ["x\ny", "...", "\u{fffd}"] {
            dir.create_file(&name(n)).unwrap();
        }
        let mut names: Vec<Name> = dir.entries().unwrap().map(|e| e.unwrap().name).collect();
        names.sort();
        assert_eq!(names, ["...", "a", "x\ny", "\u{fffd}"].map(name));
    }

    #[test]
    fn a_name_too_long_for_us_is_an_error_and_not_passed_over() {
        // As FAT may list; the file systems that tests can expect end at 255 bytes themselves.
        let error = name_in_dir("\u{fc}".repeat(128).as_bytes()).unwrap().unwrap_err();
        assert!(error.to_string().contains("256 bytes is too long"), "{error}");
        assert!(name_in_dir(b".").is_none() && name_in_dir(b"..").is_none());
    }

    #[test]
    fn special_files_links_and_attributes() {
        let (_temp, dir) = tree();
        dir.make_special(&name("p"), Kind::Fifo, 0).unwrap();
        assert_eq!(dir.attr(&name("p")).unwrap().unwrap().kind, Kind::Fifo);
        dir.make_link(&name("l"), b"nowhere\xff").unwrap();
        assert_eq!(dir.read_link(&name("l")).unwrap(), b"nowhere\xff");
        dir.set_modified(&name("l"), Time { seconds: -5, nanos: 7 }).unwrap();
        assert_eq!(dir.attr(&name("l")).unwrap().unwrap().modified, Time { seconds: -5, nanos: 7 });
        dir.create_file(&name("f")).unwrap();
        dir.set_mode(&name("f"), 0o640).unwrap();
        dir.hard_link(&name("f"), &dir.child(name("a")), &name("g")).unwrap();
        let attr = dir.child(name("a")).attr(&name("g")).unwrap().unwrap();
        assert_eq!((attr.mode, attr.links), (0o640, 2));
        assert!(dir.remove(&name("f")).unwrap());
        assert!(!dir.remove(&name("f")).unwrap());
    }
}
