//! The nodes that a session knows, and the way to them.
//!
//! A node is found again by its parent and its name there; that it is the same file, its [`FileId`] says. Of those used last a descriptor (`O_PATH`) is kept, so that they stay the same through
//! renames at the server. What is open, or has lost its name, keeps its descriptor.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, makedev};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::lease::FileId;
use crate::limits::{DEPTH_MAX, DESCRIPTORS_FOR_NODES, NAMELESS_NODES_MAX, NODES_MAX, NODES_OPEN_MAX};
use crate::message::{Place, TOP, node_number};
use crate::name::Name;

/// The file that `stat` describes.
pub(super) fn file_id(stat: &Statx) -> FileId {
    let (seconds, nanos) = (stat.stx_btime.tv_sec as u64, u64::from(stat.stx_btime.tv_nsec));
    FileId {
        device: makedev(stat.stx_dev_major, stat.stx_dev_minor),
        inode: stat.stx_ino,
        born: seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos),
    }
}

#[derive(Debug)]
struct Known {
    file: FileId,
    parent: u64,
    name: Name,
    /// How often the client was told of it, and has not forgotten it.
    told: u64,
    /// Open files of it.
    opens: u32,
    /// It cannot be found by its name any more.
    nameless: bool,
    kept: Option<Kept>,
}

/// A descriptor that is kept, and its part of what all sessions may keep; none where it has to be kept in any case.
#[derive(Debug)]
struct Kept {
    fd: Arc<OwnedFd>,
    /// Since it was opened, or looked at last to be closed.
    used: bool,
    _part: Option<OwnedSemaphorePermit>,
}

/// How many descriptors all sessions of a server may keep of nodes that are not in use: a part of those that the process
/// may have.
pub(super) fn descriptors_to_keep() -> Arc<Semaphore> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20) as usize;
    Arc::new(Semaphore::new(limit / DESCRIPTORS_FOR_NODES))
}

#[derive(Debug, Default)]
struct Table {
    nodes: HashMap<u64, Known>,
    /// Those with a descriptor, the oldest first; some that are here have none any more.
    open: VecDeque<u64>,
    nameless: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Nodes {
    top: Arc<OwnedFd>,
    top_id: FileId,
    table: Mutex<Table>,
    may_keep: Arc<Semaphore>,
}

/// What statx(2) says of an open file or path.
pub(super) fn stat(fd: impl AsFd) -> Result<Statx, Errno> {
    stat_flags(fd, "", AtFlags::EMPTY_PATH)
}

/// As above, of a name in a directory.
pub(super) fn stat_at(dir: impl AsFd, name: &Name) -> Result<Statx, Errno> {
    stat_flags(dir, name.as_os_str(), AtFlags::empty())
}

fn stat_flags(dir: impl AsFd, name: impl rustix::path::Arg, flags: AtFlags) -> Result<Statx, Errno> {
    let flags = flags | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

impl Nodes {
    /// The nodes from `top` downward; `may_keep` is shared by all sessions.
    pub(super) fn below(top: Arc<OwnedFd>, may_keep: Arc<Semaphore>) -> Result<Self, Errno> {
        let top_id = file_id(&stat(&top)?);
        Ok(Self { top, top_id, table: Mutex::default(), may_keep })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory that all are below.
    pub(super) fn top(&self) -> FileId {
        self.top_id
    }

    /// The number of the node that `stat` describes.
    pub(super) fn number(&self, stat: &Statx) -> u64 {
        node_number(file_id(stat), self.top())
    }

    /// The file that a node is.
    pub(super) fn file(&self, node: u64) -> Result<FileId, Errno> {
        if node == TOP {
            return Ok(self.top());
        }
        Ok(self.lock().nodes.get(&node).ok_or(Errno::STALE)?.file)
    }

    /// The directory that a node was found in last, and its name there; none for the top, and for what has lost it.
    pub(super) fn place(&self, node: u64) -> Option<(u64, Name)> {
        let table = self.lock();
        let known = table.nodes.get(&node).filter(|known| !known.nameless)?;
        Some((known.parent, known.name.clone()))
    }

    /// A descriptor (`O_PATH`) of a node.
    pub(super) fn fd(&self, node: u64) -> Result<Arc<OwnedFd>, Errno> {
        let (mut fd, way) = self.way_to(node)?;
        for (node, name, file) in way.into_iter().rev() {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = match rustix::fs::openat(&*fd, name.as_os_str(), flags, Mode::empty()) {
                Ok(opened) => opened,
                Err(Errno::NOENT | Errno::NOTDIR) => return Err(Errno::STALE),
                Err(error) => return Err(error),
            };
            if file_id(&stat(&opened)?) != file {
                return Err(Errno::STALE);
            }
            fd = Arc::new(opened);
            self.keep_open(node, &fd);
        }
        Ok(fd)
    }

    /// The nearest open directory above a node, or the node itself, and the way down from there, last step first.
    #[allow(clippy::type_complexity)]
    fn way_to(&self, node: u64) -> Result<(Arc<OwnedFd>, Vec<(u64, Name, FileId)>), Errno> {
        let mut table = self.lock();
        let mut way = Vec::new();
        let mut at = node;
        while at != TOP {
            let known = table.nodes.get_mut(&at).ok_or(Errno::STALE)?;
            if let Some(kept) = &mut known.kept {
                kept.used = true;
                return Ok((Arc::clone(&kept.fd), way));
            }
            if way.len() >= DEPTH_MAX {
                return Err(Errno::STALE); // names moved about at the server have made a ring
            }
            way.push((at, known.name.clone(), known.file));
            at = known.parent;
        }
        Ok((Arc::clone(&self.top), way))
    }

    fn keep_open(&self, node: u64, fd: &Arc<OwnedFd>) {
        let mut table = self.lock();
        let mut part = Arc::clone(&self.may_keep).try_acquire_owned();
        // Rather than one of another session's.
        while part.is_err() && table.close_oldest() {
            part = Arc::clone(&self.may_keep).try_acquire_owned();
        }
        let (Ok(part), Some(known)) = (part, table.nodes.get_mut(&node)) else { return };
        if known.kept.is_none() {
            known.kept = Some(Kept { fd: Arc::clone(fd), used: false, _part: Some(part) });
            table.open.push_back(node);
        }
        table.close_too_many();
    }

    /// Notes that the client is told of the node with this name.
    pub(super) fn tell(&self, parent: u64, name: &Name, stat: &Statx) -> Result<u64, Errno> {
        let node = self.number(stat);
        if node == TOP {
            return Ok(TOP); // a mount of the top below itself
        }
        let file = file_id(stat);
        let mut table = self.lock();
        let full = table.nodes.len() >= NODES_MAX;
        match table.nodes.get_mut(&node) {
            Some(known) if known.file == file => {
                known.told = known.told.saturating_add(1);
                if !known.nameless {
                    (known.parent, known.name) = (parent, name.clone());
                }
            }
            // Two files with one number: see `node_number`.
            Some(_) => return Err(Errno::STALE),
            None if full => return Err(Errno::NFILE),
            None => {
                let name = name.clone();
                let known = Known { file, parent, name, told: 1, opens: 0, nameless: false, kept: None };
                table.nodes.insert(node, known);
            }
        }
        Ok(node)
    }

    /// The client knows a node from a session before; false: it is not there any more.
    pub(super) fn reclaim(&self, place: &Place) -> bool {
        let found = || {
            let name = Name::new(&place.name).ok()?;
            let stat = stat_at(&*self.fd(place.parent).ok()?, &name).ok()?;
            (self.number(&stat) == place.node).then_some(())?;
            self.tell(place.parent, &name, &stat).ok()
        };
        let is_there = found().is_some();
        if is_there && let Some(known) = self.lock().nodes.get_mut(&place.node) {
            known.told = place.times.clamp(1, u64::MAX / 2);
        }
        is_there
    }

    /// The client has forgotten what it was told so often; `is_forgotten` hears of a file that it does not know at all any
    /// more.
    pub(super) fn forget(&self, node: u64, times: u64, is_forgotten: impl FnOnce(FileId)) {
        let mut table = self.lock();
        let Some(known) = table.nodes.get_mut(&node) else { return };
        known.told = known.told.saturating_sub(times);
        // Before anybody tells of it anew, and gives a lease with that.
        if known.told == 0 {
            is_forgotten(known.file);
        }
        let gone = table.remove_if_unused(node);
        drop(table);
        drop(gone); // where it has no name any more its bytes are freed now, which takes long for many
    }

    /// A file of the node is opened, or closed: it keeps its descriptor meanwhile.
    pub(super) fn opened(&self, node: u64) {
        if let Some(known) = self.lock().nodes.get_mut(&node) {
            known.opens += 1;
        }
    }

    /// As above.
    pub(super) fn closed(&self, node: u64) {
        let mut table = self.lock();
        if let Some(known) = table.nodes.get_mut(&node) {
            known.opens = known.opens.saturating_sub(1);
            let has_fd = known.kept.is_some();
            let gone = table.remove_if_unused(node);
            if has_fd {
                table.open.push_back(node);
                table.close_too_many();
            }
            drop(table);
            drop(gone); // as above
        }
    }

    /// What has this name in a directory is about to lose it: if it is known, it stays open until it is forgotten.
    pub(super) fn will_lose_name(&self, dir: impl AsFd, name: &Name) {
        let Ok(stat) = stat_at(dir, name) else { return };
        let node = self.number(&stat);
        let Ok(fd) = self.fd(node) else { return }; // not known at all, most likely
        let mut table = self.lock();
        let too_many = table.nameless >= NAMELESS_NODES_MAX;
        if let Some(known) = table.nodes.get_mut(&node)
            && !known.nameless
            && !too_many
        {
            known.nameless = true;
            known.kept.get_or_insert_with(|| Kept { fd, used: true, _part: None });
            table.nameless += 1;
        }
    }

    /// What has this name now, if it is known, is found by it from now on.
    pub(super) fn has_name(&self, dir: impl AsFd, parent: u64, name: &Name) {
        let Ok(stat) = stat_at(dir, name) else { return };
        let (node, file) = (self.number(&stat), file_id(&stat));
        let mut table = self.lock();
        let Some(known) = table.nodes.get_mut(&node) else { return };
        if known.file == file {
            (known.parent, known.name) = (parent, name.clone());
            let nameless = std::mem::take(&mut known.nameless);
            table.nameless -= usize::from(nameless);
        }
    }
}

impl Table {
    /// What is to be dropped when the table is not locked any more.
    fn remove_if_unused(&mut self, node: u64) -> Option<Known> {
        let known = self.nodes.get(&node).filter(|known| known.told == 0 && known.opens == 0)?;
        self.nameless -= usize::from(known.nameless);
        self.nodes.remove(&node)
    }

    fn close_too_many(&mut self) {
        while self.open.len() > NODES_OPEN_MAX && self.close_oldest() {}
    }

    /// Gives up the descriptor that was opened first, of those that can be opened again; false: there is none. One that has been used
    /// since gets another turn (Corbato: A Paging Experiment with the Multics System, 1968): directories that all goes by, say.
    fn close_oldest(&mut self) -> bool {
        while let Some(node) = self.open.pop_front() {
            let Some(known) = self.nodes.get_mut(&node) else { continue };
            if known.opens > 0 || known.nameless {
                continue;
            }
            match &mut known.kept {
                Some(kept) if kept.used => {
                    kept.used = false;
                    self.open.push_back(node);
                }
                Some(_) => {
                    known.kept = None;
                    return true;
                }
                None => {}
            }
        }
        false
    }
}
