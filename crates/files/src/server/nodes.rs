//! The nodes that a session knows, and the way to them.
//!
//! A node is found again by its parent and its name there; that it is the same file, its number on the file system and
//! the time of its birth say. Of those used last a descriptor (`O_PATH`) is kept, so that they stay the same through
//! renames at the server. What is open, or has lost its name, keeps its descriptor.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, makedev};
use rustix::io::Errno;

use crate::limits::{DEPTH_MAX, NAMELESS_NODES_MAX, NODES_MAX, NODES_OPEN_MAX};
use crate::message::{TOP, node_number};
use crate::name::Name;

/// A file, for ever: numbers are used again, but not with the same time of birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    /// Zero where the file system does not know it.
    born: (i64, u32),
}

impl Identity {
    fn of(stat: &Statx) -> Self {
        Self {
            device: makedev(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            born: (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
        }
    }
}

#[derive(Debug)]
struct Known {
    identity: Identity,
    parent: u64,
    name: Name,
    /// How often the client was told of it, and has not forgotten it.
    told: u64,
    /// Open files of it.
    opens: u32,
    /// It cannot be found by its name any more.
    nameless: bool,
    fd: Option<Arc<OwnedFd>>,
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
    top_identity: Identity,
    table: Mutex<Table>,
}

/// What statx(2) says of an open file or path.
pub(super) fn stat(fd: impl AsFd) -> Result<Statx, Errno> {
    stat_at(fd, "", AtFlags::EMPTY_PATH)
}

fn stat_at(dir: impl AsFd, name: impl rustix::path::Arg, flags: AtFlags) -> Result<Statx, Errno> {
    let flags = flags | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

impl Nodes {
    /// The nodes from `top` downward.
    pub(super) fn below(top: Arc<OwnedFd>) -> Result<Self, Errno> {
        let top_identity = Identity::of(&stat(&top)?);
        Ok(Self { top, top_identity, table: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the node that `stat` describes.
    pub(super) fn number(&self, stat: &Statx) -> u64 {
        let Identity { device, inode, .. } = Identity::of(stat);
        node_number(device, inode, self.top_identity.device, self.top_identity.inode)
    }

    /// A descriptor (`O_PATH`) of a node.
    pub(super) fn fd(&self, node: u64) -> Result<Arc<OwnedFd>, Errno> {
        let (mut fd, way) = self.way_to(node)?;
        for (node, name, identity) in way.into_iter().rev() {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = match rustix::fs::openat(&*fd, name.as_os_str(), flags, Mode::empty()) {
                Ok(opened) => opened,
                Err(Errno::NOENT | Errno::NOTDIR) => return Err(Errno::STALE),
                Err(error) => return Err(error),
            };
            if Identity::of(&stat(&opened)?) != identity {
                return Err(Errno::STALE);
            }
            fd = Arc::new(opened);
            self.keep_open(node, &fd);
        }
        Ok(fd)
    }

    /// The nearest open directory above a node, or the node itself, and the way down from there, last step first.
    #[allow(clippy::type_complexity)]
    fn way_to(&self, node: u64) -> Result<(Arc<OwnedFd>, Vec<(u64, Name, Identity)>), Errno> {
        let table = self.lock();
        let mut way = Vec::new();
        let mut at = node;
        while at != TOP {
            let known = table.nodes.get(&at).ok_or(Errno::STALE)?;
            if let Some(fd) = &known.fd {
                return Ok((Arc::clone(fd), way));
            }
            if way.len() >= DEPTH_MAX {
                return Err(Errno::STALE); // names moved about at the server have made a ring
            }
            way.push((at, known.name.clone(), known.identity));
            at = known.parent;
        }
        Ok((Arc::clone(&self.top), way))
    }

    fn keep_open(&self, node: u64, fd: &Arc<OwnedFd>) {
        let mut table = self.lock();
        let Some(known) = table.nodes.get_mut(&node) else { return };
        if known.fd.is_none() {
            known.fd = Some(Arc::clone(fd));
            table.open.push_back(node);
        }
        table.close_oldest();
    }

    /// What has this name in a directory; the client is told of it.
    pub(super) fn look_up(&self, parent: u64, name: &Name) -> Result<(u64, Statx), Errno> {
        let dir = self.fd(parent)?;
        let stat = stat_at(&*dir, name.as_os_str(), AtFlags::empty())?;
        Ok((self.tell(parent, name, &stat)?, stat))
    }

    /// As [`look_up`](Self::look_up), from an open directory.
    pub(super) fn look_up_in(&self, dir: impl AsFd, parent: u64, name: &Name) -> Result<(u64, Statx), Errno> {
        let stat = stat_at(dir, name.as_os_str(), AtFlags::empty())?;
        Ok((self.tell(parent, name, &stat)?, stat))
    }

    /// Notes that the client is told of the node with this name.
    pub(super) fn tell(&self, parent: u64, name: &Name, stat: &Statx) -> Result<u64, Errno> {
        let node = self.number(stat);
        if node == TOP {
            return Ok(TOP); // a mount of the top below itself
        }
        let identity = Identity::of(stat);
        let mut table = self.lock();
        let full = table.nodes.len() >= NODES_MAX;
        match table.nodes.get_mut(&node) {
            Some(known) if known.identity == identity => {
                known.told += 1;
                if !known.nameless {
                    (known.parent, known.name) = (parent, name.clone());
                }
            }
            // Its number went to another file: what the client knew is gone.
            Some(known) if known.opens == 0 => {
                let told = known.told + 1;
                let nameless = std::mem::replace(
                    known,
                    Known { identity, parent, name: name.clone(), told, opens: 0, nameless: false, fd: None },
                );
                table.nameless -= usize::from(nameless.nameless);
            }
            Some(_) => return Err(Errno::STALE),
            None if full => return Err(Errno::NFILE),
            None => {
                let known = Known {
                    identity,
                    parent,
                    name: name.clone(),
                    told: 1,
                    opens: 0,
                    nameless: false,
                    fd: None,
                };
                table.nodes.insert(node, known);
            }
        }
        Ok(node)
    }

    /// The client has forgotten what it was told so often.
    pub(super) fn forget(&self, node: u64, times: u64) {
        let mut table = self.lock();
        if let Some(known) = table.nodes.get_mut(&node) {
            known.told = known.told.saturating_sub(times);
            table.remove_if_unused(node);
        }
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
            let has_fd = known.fd.is_some();
            table.remove_if_unused(node);
            if has_fd {
                table.open.push_back(node);
                table.close_oldest();
            }
        }
    }

    /// What has this name in a directory is about to lose it: if it is known, it stays open until it is forgotten.
    pub(super) fn will_lose_name(&self, dir: impl AsFd, name: &Name) {
        let Ok(stat) = stat_at(dir, name.as_os_str(), AtFlags::empty()) else { return };
        let node = self.number(&stat);
        // Open, or not known at all.
        if self.fd(node).is_err() {
            return;
        }
        let mut table = self.lock();
        let too_many = table.nameless >= NAMELESS_NODES_MAX;
        if let Some(known) = table.nodes.get_mut(&node)
            && !known.nameless
            && !too_many
        {
            known.nameless = true;
            table.nameless += 1;
        }
    }

    /// What has this name now, if it is known, is found by it from now on.
    pub(super) fn has_name(&self, dir: impl AsFd, parent: u64, name: &Name) {
        let Ok(stat) = stat_at(dir, name.as_os_str(), AtFlags::empty()) else { return };
        let (node, identity) = (self.number(&stat), Identity::of(&stat));
        let mut table = self.lock();
        let Some(known) = table.nodes.get_mut(&node) else { return };
        if known.identity == identity {
            (known.parent, known.name) = (parent, name.clone());
            let nameless = std::mem::take(&mut known.nameless);
            table.nameless -= usize::from(nameless);
        }
    }
}

impl Table {
    fn remove_if_unused(&mut self, node: u64) {
        if let Some(known) = self.nodes.get(&node)
            && known.told == 0
            && known.opens == 0
        {
            self.nameless -= usize::from(known.nameless);
            self.nodes.remove(&node);
        }
    }

    /// Gives up the descriptors that were opened first, of those that can be opened again.
    fn close_oldest(&mut self) {
        while self.open.len() > NODES_OPEN_MAX {
            let Some(node) = self.open.pop_front() else { return };
            if let Some(known) = self.nodes.get_mut(&node)
                && known.opens == 0
                && !known.nameless
            {
                known.fd = None;
            }
        }
    }
}
