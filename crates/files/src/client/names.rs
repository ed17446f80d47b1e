//! What files are, and what their names are: one call for each operation.

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::cache::{Cache, OwnChange};
use super::open_files::{Far, OpenFile, only_reads};
use super::spares::Made;
use super::{Remote, User, now};
use crate::limits::{INLINE_BYTES_MAX, NAME_BYTES_MAX};
use crate::message::{
    Attr, Create, FileSystem, GetAttr, GetXattr, Link, ListXattr, Lookup, Loser, Make, NewTime, ReadLink,
    Remove, RemoveXattr, Rename, SetAttr, SetXattr, StatFs, SyncDir, WireTime,
};

/// What times may be set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// That.
    To(WireTime),
}

impl From<SetTime> for NewTime {
    fn from(time: SetTime) -> Self {
        match time {
            SetTime::Now => Self { now: true, time: WireTime::default() },
            SetTime::To(time) => Self { now: false, time },
        }
    }
}

/// What is to be changed of a node, and by way of which open file (0: none).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The open file.
    pub file: u64,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change of its bytes.
    pub modified: Option<SetTime>,
    /// A new size takes set-user-id and set-group-id away.
    pub drops_set_id: bool,
}

impl Remote {
    /// What has this name in a directory. It counts: see [`forget`](Self::forget).
    ///
    /// # Errors
    /// As stat(2), as for all operations.
    pub async fn look_up(&self, parent: u64, name: &[u8]) -> Result<Attr, Errno> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG); // rather than that it is not there
        }
        if let Some(found) = self.find_known(parent, name).await {
            return found.ok_or(Errno::NOENT);
        }
        self.tell_spares(|spare| spare.is_named(parent, name)).await;
        let name = Bytes::copy_from_slice(name);
        let ask = Lookup { parent, name: name.clone() };
        let mut changed = false;
        let found = self.learn(ask, |cache, turn, found| match found {
            Ok(node) => {
                cache.tell(node.attr.node);
                changed = cache.has_changed(turn, node.attr.node);
                cache.keep_attr(turn, node.attr);
                cache.found_at(node.attr.node, parent, name.clone());
                cache.keep_name(turn, parent, name, Some(node.attr.node));
            }
            Err(Errno::NOENT) => cache.keep_name(turn, parent, name, None),
            Err(_) => {}
        });
        let attr = found.await?.attr;
        // The server does not know all of it yet, or did not.
        let is_old = self.inner.client.behind.of(attr.node).is_some() || changed;
        if is_old { self.attr(attr.node).await } else { Ok(attr) }
    }

    /// A listed node is used from now on. It counts: see [`forget`](Self::forget).
    pub fn tell(&self, node: u64) {
        self.inner.client.cache().tell(node);
    }

    /// A node that was found so often will not be asked about any more.
    pub fn forget(&self, node: u64, times: u64) {
        let mut cache = self.inner.client.cache();
        cache.forget(node, times);
        let is_known = cache.is_known(node);
        self.inner.client.may_forget(cache);
        if !is_known {
            self.forget_pages(node);
        }
    }

    /// What a node is.
    pub async fn attr(&self, node: u64) -> Result<Attr, Errno> {
        if let Some(attr) = self.inner.client.cache().attr(now(), node) {
            return Ok(attr);
        }
        let ahead = self.flush_ahead(node).await;
        self.learn_after(ahead, GetAttr { node }, |cache, turn, attr| {
            if let Ok(attr) = attr {
                cache.keep_attr(turn, *attr);
            }
        })
        .await
    }

    /// What is known of a node without asking.
    #[must_use]
    pub fn known_attr(&self, node: u64) -> Option<Attr> {
        self.inner.client.cache().attr(now(), node)
    }

    /// Changes attributes.
    pub async fn set_attr(&self, node: u64, change: Change) -> Result<Attr, Errno> {
        let Change { file, mode, uid, gid, size, accessed, modified, drops_set_id } = change;
        if mode.is_some() || uid.is_some() || gid.is_some() || size.is_some() {
            self.open_writers(node).await;
        }
        // A new size may wait for others, who wait for what was written.
        let ahead = match size {
            None => self.flush_ahead(node).await,
            Some(_) => {
                self.flush_node(node).await;
                None
            }
        };
        // Where the file is open here alone, what it may do is asked anew.
        let file =
            self.open_file(file).ok().filter(|file| file.far.initialized()).map_or(0, |file| file.number);
        let (accessed, modified) = (accessed.map(NewTime::from), modified.map(NewTime::from));
        let ask = SetAttr { node, file, mode, uid, gid, size, accessed, modified, drops_set_id };
        let rights = mode.is_some() || uid.is_some() || gid.is_some();
        if rights {
            self.mode_changes(node);
        }
        let change = OwnChange { bytes: size.map(|size| (size, u64::MAX)), rights, ..OwnChange::of(node) };
        let _no_stores = if size.is_some() { Some(self.without_stores(node).await) } else { None };
        if size.is_some() {
            self.stored(node);
        }
        self.change_after(ahead, ask, &[change], |_, _| {}).await
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, node: u64) -> Result<Bytes, Errno> {
        if let Some(target) = self.inner.client.cache().target(now(), node) {
            return Ok(target);
        }
        let target = self.learn(ReadLink { node }, |cache, turn, content| {
            if let Ok(content) = content {
                cache.keep_target(turn, node, content.data.clone());
            }
        });
        Ok(target.await?.data)
    }

    /// Makes a directory, pipe, socket, device file or plain file, by the kind in `mode`.
    pub async fn make(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        device: (u32, u32),
        caller: User,
    ) -> Result<Attr, Errno> {
        let (device_major, device_minor) = device;
        let (caller, target) = (caller.into(), Bytes::new());
        let new_name = Bytes::copy_from_slice(name);
        let make = Make { parent, name: new_name, mode, target, device_major, device_minor, caller };
        self.make_node(make).await
    }

    /// Makes a symbolic link.
    pub async fn make_link(
        &self,
        parent: u64,
        name: &[u8],
        target: &[u8],
        caller: User,
    ) -> Result<Attr, Errno> {
        let make = Make {
            parent,
            name: Bytes::copy_from_slice(name),
            mode: rustix::fs::FileType::Symlink.as_raw_mode() | 0o777,
            target: Bytes::copy_from_slice(target),
            device_major: 0,
            device_minor: 0,
            caller: caller.into(),
        };
        self.make_node(make).await
    }

    async fn make_node(&self, make: Make) -> Result<Attr, Errno> {
        self.tell_spares(|spare| spare.is_named(make.parent, &make.name)).await;
        let (parent, name) = (make.parent, make.name.clone());
        let change = [OwnChange::of_name(parent, &name)];
        let made = self.change(make, &change, |cache, made| {
            cache.keep_changed(made.dir);
            cache.keep_changed_name(parent, name.clone(), Some(made.attr.node));
            let is_new = cache.is_first_told(made.attr.node);
            cache.tell(made.attr.node);
            cache.found_at(made.attr.node, parent, name.clone());
            if is_new {
                cache.keep_new(made.attr);
            }
        });
        Ok(made.await?.attr)
    }

    /// Makes a file and opens it: what it is, by what number, and whether it should be written by way of the kernel's pages.
    pub async fn create(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: OFlags,
        caller: User,
    ) -> Result<(Attr, u64, bool), Errno> {
        let is_new = flags.contains(OFlags::EXCL);
        let number = self.file_number();
        if is_new && let Some(attr) = self.use_spare((parent, name), mode, caller, (number, flags)) {
            if flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
                self.opened_for_writing(attr.node, false);
            }
            return Ok((attr, number, false));
        }
        self.tell_spares(|spare| spare.is_named(parent, name)).await;
        let new_name = Bytes::copy_from_slice(name);
        let bits = flags.bits();
        let create =
            Create { parent, name: new_name, mode, flags: bits, caller: caller.into(), file: number };
        let (change, place) = ([OwnChange::of_name(parent, name)], Bytes::copy_from_slice(name));
        let mut is_first = false;
        let created = self.change(create, &change, |cache, created| {
            let attr = created.node.attr;
            cache.keep_changed(created.node.dir);
            cache.keep_changed_name(parent, place.clone(), Some(attr.node));
            is_first = cache.is_first_told(attr.node);
            cache.tell(attr.node);
            cache.found_at(attr.node, parent, place);
            // It may have been there, and longer.
            let change = OwnChange::of_bytes(attr.node, 0, u64::MAX);
            cache.begin_change(&[change]);
            cache.end_change(&[change]);
            if is_first {
                cache.keep_new(attr);
            }
        });
        let created = created.await?;
        let attr = created.node.attr;
        let far = Far { exclusive: created.exclusive, mode: attr.mode };
        let mut file = OpenFile::new(number, attr.node, flags, Some(far));
        file.by_pages = is_first && self.writes_by_pages(&file);
        let by_pages = file.by_pages;
        if by_pages {
            file.no_capability = created.exclusive.into();
        }
        if !only_reads(flags) {
            self.opened_for_writing(attr.node, by_pages);
        }
        self.add_file(file);
        if is_new {
            let (name, at) = (Bytes::copy_from_slice(name), now());
            self.inner.client.spares.made(Made { parent, name, attr, mode, caller, at });
        } else {
            drop(self.without_stores(attr.node).await); // it may have been there
        }
        Ok((attr, number, by_pages))
    }

    /// Removes a name.
    pub async fn remove(&self, parent: u64, name: &[u8], is_dir: bool) -> Result<(), Errno> {
        if !is_dir && self.free_spare(parent, name) {
            return Ok(());
        }
        self.tell_spares_below(parent, name).await;
        let made = if is_dir { None } else { self.may_stay(parent, name) };
        let removed = self.known_name(parent, name);
        let change = OwnChange::of_name(parent, name);
        let changes = std::iter::once(change).chain(removed).collect::<Vec<_>>();
        let gone = Bytes::copy_from_slice(name);
        let (untouched, may_stay) = (made.as_ref().map(Made::untouched), made.is_some());
        let ask = Remove { parent, name: gone.clone(), is_dir, untouched, may_stay };
        let mut stays = true;
        let keep = |cache: &mut Cache, loser: &Loser| {
            cache.keep_changed_name(parent, gone.clone(), None);
            cache.keep_changed(loser.dir);
            Self::lost_name(cache, loser);
            if let Some(made) = made.filter(|_| loser.kept != 0) {
                stays = self.stays(cache, made, loser.kept);
            }
        };
        self.change(ask, &changes, keep).await?;
        if stays {
            return Ok(());
        }
        // Somebody else is there already, and may see it, or has removed it.
        let ask = Remove { parent, name: gone, ..Remove::default() };
        match self.change(ask, &changes, |_, _| {}).await {
            Err(Errno::NOENT) => Ok(()),
            removed => removed.map(drop),
        }
    }

    /// A node has lost a name: that is a change of it, too.
    fn lost_name(cache: &mut Cache, loser: &Loser) {
        let change = OwnChange::of(loser.node);
        if loser.node != 0 {
            cache.begin_change(&[change]);
            cache.end_change(&[change]);
        }
    }

    /// The node that a name leads to, as far as that is known: it will change with the name.
    fn known_name(&self, parent: u64, name: &[u8]) -> Option<OwnChange<'static>> {
        let node = self.inner.client.cache().look_up(now(), parent, name)??.node;
        Some(OwnChange::of(node))
    }

    /// As renameat2(2).
    pub async fn rename(
        &self,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        self.tell_spares_below(parent, name).await;
        self.tell_spares_below(new_parent, new_name).await;
        let moved = [self.known_name(parent, name), self.known_name(new_parent, new_name)];
        let names = [(parent, name), (new_parent, new_name)];
        let changes = names.map(|(node, name)| OwnChange::of_name(node, name));
        let changes = changes.into_iter().chain(moved.iter().flatten().copied()).collect::<Vec<_>>();
        let (name, new_name) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(new_name));
        let (old, new) = ((parent, name.clone()), (new_parent, new_name.clone()));
        let ask = Rename { parent, name, new_parent, new_name, flags };
        let keep = |cache: &mut Cache, moved: &Loser| {
            cache.keep_changed(moved.dir);
            cache.keep_changed(moved.new_dir);
            // Two names of one file stay as they are.
            if flags & EXCHANGE == 0 && moved.moved != 0 && moved.moved != moved.node {
                cache.keep_changed_name(old.0, old.1.clone(), None);
            }
            cache.found_at(moved.node, old.0, old.1); // if the two have been exchanged; else it is gone
            cache.found_at(moved.moved, new.0, new.1);
            Self::lost_name(cache, moved);
        };
        self.change(ask, &changes, keep).await.map(drop)
    }

    /// Gives a node another name.
    pub async fn link(&self, node: u64, parent: u64, name: &[u8]) -> Result<Attr, Errno> {
        self.flush_node(node).await; // its size is told
        self.tell_spares(|spare| spare.is_named(parent, name)).await;
        let changes = [OwnChange::of_name(parent, name), OwnChange::of(node)];
        let ask = Link { node, parent, name: Bytes::copy_from_slice(name) };
        let linked = self.change(ask, &changes, |cache, linked| {
            cache.keep_changed(linked.dir);
            cache.tell(linked.attr.node);
            cache.found_at(linked.attr.node, parent, Bytes::copy_from_slice(name));
        });
        Ok(linked.await?.attr)
    }

    /// Makes a directory's names durable.
    pub async fn sync_dir(&self, node: u64) -> Result<(), Errno> {
        self.tell_spares(|spare| spare.concerns(node)).await;
        self.call(SyncDir { node }).await.outcome.map(drop)
    }

    /// The file system that a node is on.
    pub async fn file_system(&self, node: u64) -> Result<FileSystem, Errno> {
        self.call(StatFs { node }).await.outcome
    }

    /// The value of an extended attribute.
    pub async fn xattr(&self, node: u64, name: &[u8]) -> Result<Bytes, Errno> {
        let has_none = self.known_attr(node).is_some_and(|attr| attr.no_xattrs);
        // The kernel asks for it before it writes by way of pages.
        if has_none || (name == CAPABILITY && self.has_no_capability(node)) {
            return Err(Errno::NODATA);
        }
        Ok(self.call(GetXattr { node, name: Bytes::copy_from_slice(name) }).await.outcome?.data)
    }

    /// Sets an extended attribute; `flags` as in setxattr(2).
    pub async fn set_xattr(&self, node: u64, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        if name.len() + value.len() > INLINE_BYTES_MAX {
            return Err(Errno::TOOBIG);
        }
        self.flush_node(node).await; // a write takes some attributes away
        self.mode_changes(node); // and an ACL has a mode in it
        let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
        let change = OwnChange { rights: true, ..OwnChange::of(node) };
        self.change(SetXattr { node, name, value, flags }, &[change], |_, _| {}).await.map(drop)
    }

    /// The names of all extended attributes, each with a NUL behind it.
    pub async fn list_xattr(&self, node: u64) -> Result<Bytes, Errno> {
        if self.known_attr(node).is_some_and(|attr| attr.no_xattrs) {
            return Ok(Bytes::new());
        }
        Ok(self.call(ListXattr { node }).await.outcome?.data)
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, node: u64, name: &[u8]) -> Result<(), Errno> {
        self.flush_node(node).await;
        let change = OwnChange { rights: true, ..OwnChange::of(node) };
        let ask = RemoveXattr { node, name: Bytes::copy_from_slice(name) };
        self.change(ask, &[change], |_, _| {}).await.map(drop)
    }
}

/// What takes the place of set-user-id for one program.
const CAPABILITY: &[u8] = b"security.capability";

/// Of renameat2(2).
const EXCHANGE: u32 = rustix::fs::RenameFlags::EXCHANGE.bits();
