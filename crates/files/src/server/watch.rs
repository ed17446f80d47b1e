//! Changes that are made directly at the server, by programs that do not ask it: fanotify(7) tells of them.
//!
//! A mark on a directory tells of changes in it and of its files, by their names in it; files with several names get a
//! mark of their own. No privileges are needed for what one may read. Changes that this process makes for its clients
//! are passed over: it knows of them.
//!
//! It comes after the fact, a moment later; and of writes into mapped memory it does not tell at all.
//!
//! Where a client knows alone what names a directory has, whoever opens something in it is told of as well, once.
//!
//! A mark cannot be taken back without its directory at hand. When there is no room for more, and most serve nobody any more,
//! all are given up, and all leases with them.
#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Buf;
use nix::libc;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::lease::FileId;
use crate::limits::{OPENS_WATCHED_MAX, WATCHED_FILES_MAX, WATCHED_NAMES_MAX, WATCHED_PAUSE};
use crate::name::Name;

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    fanotify: Fanotify,
    state: Mutex<State>,
    files_max: usize,
}

#[derive(Debug, Default)]
struct State {
    /// What is marked, by the kernel's handle for it (name_to_handle_at(2)): of several file systems, more than one.
    by_handle: HashMap<Box<[u8]>, HashSet<FileId>>,
    marked: HashSet<FileId>,
    /// What was found under names in marked directories.
    names: HashMap<FileId, HashMap<Name, FileId>>,
    names_count: usize,
    /// Directories in which it is told of what is opened.
    opens: HashMap<FileId, OwnedFd>,
    /// Of these, those where something has been, which need not be told of any more.
    opened: Vec<OwnedFd>,
    /// There were too many names, or marks: what happens to files is not known until all leases are broken.
    is_lost: bool,
    /// How often all marks have been given up.
    given_up: u64,
    /// Something could not be marked for want of room.
    is_full: bool,
    /// When it was looked last whether marks serve somebody.
    looked_at: Option<Instant>,
}

/// What has happened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Noticed {
    /// To these files.
    Files(Vec<FileId>),
    /// To any: there was too much of it.
    All,
}

const CHANGES: MaskFlags = MaskFlags::FAN_MODIFY
    .union(MaskFlags::FAN_ATTRIB)
    .union(MaskFlags::FAN_CREATE)
    .union(MaskFlags::FAN_DELETE)
    .union(MaskFlags::FAN_DELETE_SELF)
    .union(MaskFlags::FAN_MOVED_FROM)
    .union(MaskFlags::FAN_MOVED_TO)
    .union(MaskFlags::FAN_MOVE_SELF)
    .union(MaskFlags::FAN_EVENT_ON_CHILD)
    .union(MaskFlags::FAN_ONDIR);

impl Watch {
    /// Fails where the kernel cannot do it (Linux 5.13 can without privileges).
    pub(super) fn new() -> std::io::Result<Self> {
        let reports = InitFlags::from_bits_retain(
            libc::FAN_REPORT_DIR_FID | libc::FAN_REPORT_NAME | libc::FAN_REPORT_FID,
        );
        let flags = InitFlags::FAN_CLASS_NOTIF | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK | reports;
        let fanotify = Fanotify::init(flags, EventFFlags::O_RDONLY)?;
        Ok(Self { fanotify, state: Mutex::default(), files_max: WATCHED_FILES_MAX })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a directory, or a file with several names; false when changes of it cannot be noticed.
    pub(super) fn add(&self, file: FileId, fd: BorrowedFd<'_>) -> bool {
        let given_up = {
            let mut state = self.lock();
            if state.marked.contains(&file) {
                return true;
            }
            if state.marked.len() >= self.files_max {
                state.is_full = true;
                return false;
            }
            state.given_up
        };
        if !is_local(fd) {
            return false;
        }
        let Ok(handle) = handle_of(fd) else { return false };
        // First known, then marked: nothing is told of what nobody knows.
        self.lock().by_handle.entry(handle.clone()).or_default().insert(file);
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let marked =
            self.fanotify.mark(MarkFlags::FAN_MARK_ADD, CHANGES, rustix::fs::CWD, Some(path.as_str()));
        let mut state = self.lock();
        match marked {
            // Its mark may be among those that have been given up.
            Ok(()) if state.given_up != given_up => {
                state.not_marked(&handle, file);
                false
            }
            // Somebody who may not mark it may have taken it out meanwhile.
            Ok(()) => {
                state.by_handle.entry(handle).or_default().insert(file);
                state.marked.insert(file);
                true
            }
            Err(error) => {
                tracing::debug!(%error, "changes there cannot be noticed");
                state.is_full |= error == nix::errno::Errno::ENOSPC; // the user's, or the kernel's, own limit
                state.not_marked(&handle, file);
                false
            }
        }
    }

    /// Has it told, once, that something is opened in a marked directory, or that itself; false when that cannot be.
    pub(super) fn add_opens(&self, dir: FileId, fd: BorrowedFd<'_>) -> bool {
        let mut state = self.lock();
        if state.opens.contains_key(&dir) {
            return true;
        }
        let Ok(fd) = fd.try_clone_to_owned() else { return false };
        let flags = MaskFlags::FAN_EVENT_ON_CHILD | MaskFlags::FAN_ONDIR;
        let has_room = state.opens.len() < OPENS_WATCHED_MAX;
        if !has_room || !state.marked.contains(&dir) || !self.mark_opens(MarkFlags::FAN_MARK_ADD, flags, &fd)
        {
            return false;
        }
        state.opens.insert(dir, fd);
        true
    }

    /// Lets go of directories where nobody wants to be told of that any more: else they, and what they are mounted on, stay in use.
    pub(super) fn drop_opens(&self, is_wanted: impl Fn(FileId) -> bool) {
        let mut state = self.lock();
        let unwanted: Vec<OwnedFd> =
            state.opens.extract_if(|dir, _| !is_wanted(*dir)).map(|(_, fd)| fd).collect();
        state.opened.extend(unwanted);
        self.unmark_opened(&mut state);
    }

    fn mark_opens(&self, how: MarkFlags, flags: MaskFlags, fd: &OwnedFd) -> bool {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let opens = MaskFlags::FAN_OPEN | flags;
        let marked = self.fanotify.mark(how, opens, rustix::fs::CWD, Some(path.as_str()));
        marked.inspect_err(|error| tracing::debug!(%error, "what is opened there is not told of")).is_ok()
    }

    fn unmark_opened(&self, state: &mut State) {
        for fd in state.opened.drain(..) {
            // Not the flags: changes are told of still.
            self.mark_opens(MarkFlags::FAN_MARK_REMOVE, MaskFlags::empty(), &fd);
        }
    }

    /// Whether changes of this file will be noticed still: as one that has this name in a marked directory, if any, and by a
    /// mark of its own, if it needs one. A lease that was noted before holds if so: later all leases are broken before a
    /// change can pass unnoticed.
    pub(super) fn covers(&self, file: FileId, in_dir: Option<(FileId, &Name)>, own_mark: bool) -> bool {
        let state = self.lock();
        let is_named = |(dir, name): (FileId, &Name)| {
            state.marked.contains(&dir)
                && state.names.get(&dir).and_then(|names| names.get(name)) == Some(&file)
        };
        (!own_mark || state.marked.contains(&file)) && in_dir.is_none_or(is_named)
    }

    /// Gives all marks up if there was no room for one, and no more than half of them serve somebody: `is_kept` tells of a
    /// file whether anybody has a lease on it. Looks at them now and then.
    pub(super) fn make_room(&self, is_kept: impl Fn(FileId) -> bool) {
        let mut state = self.lock();
        if !state.is_full || state.looked_at.is_some_and(|at| at.elapsed() < WATCHED_PAUSE) {
            return;
        }
        (state.is_full, state.looked_at) = (false, Some(Instant::now()));
        let serves = |marked: &&FileId| {
            is_kept(**marked)
                || state.names.get(marked).is_some_and(|names| names.values().any(|file| is_kept(*file)))
        };
        let (all, kept) = (state.marked.len(), state.marked.iter().filter(serves).count());
        if kept > all / 2 {
            tracing::debug!(all, kept, "no room to notice changes in more directories");
            return;
        }
        let flush = MarkFlags::FAN_MARK_FLUSH;
        match self.fanotify.mark(flush, MaskFlags::empty(), rustix::fs::CWD, None::<&str>) {
            Ok(()) => {
                tracing::debug!(all, kept, "directories are marked anew");
                state.give_up();
            }
            Err(error) => tracing::warn!(%error, "marks cannot be given up"),
        }
    }

    /// Notes what has this name in a marked directory; false when there are too many: then all begin anew.
    pub(super) fn add_name(&self, dir: FileId, name: &Name, file: FileId) -> bool {
        let mut state = self.lock();
        let full = state.names_count >= WATCHED_NAMES_MAX;
        let names = state.names.entry(dir).or_default();
        match names.get_mut(name) {
            Some(known) => *known = file,
            None if full => {
                state.give_names_up();
                return false;
            }
            None => {
                names.insert(name.clone(), file);
                state.names_count += 1;
            }
        }
        true
    }

    /// Waits for what happens, for `limit` at most: what other processes do, and, if `own_too` says so by then, this
    /// one. `None`: nothing,
    /// and nothing is left to be told.
    pub(super) fn wait(&self, limit: Duration, own_too: impl Fn() -> bool) -> Option<Noticed> {
        let is_lost = || std::mem::take(&mut self.lock().is_lost);
        if is_lost() {
            return Some(Noticed::All);
        }
        let fd = self.fanotify.as_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let limit = Timespec::try_from(limit).ok()?;
        let told = poll(&mut fds, Some(&limit)).ok()?;
        if is_lost() {
            return Some(Noticed::All);
        }
        if told == 0 {
            return None;
        }
        let mut buffer = vec![0; 64 << 10];
        let read = match rustix::io::read(fd, &mut buffer) {
            Ok(read) => read,
            Err(Errno::AGAIN) => return None,
            Err(Errno::INTR) => return Some(Noticed::Files(Vec::new())),
            Err(error) => {
                tracing::error!(%error, "changes cannot be noticed any more");
                return Some(Noticed::All);
            }
        };
        // Whoever changes something says so before: by now it is known.
        let ignored = (!own_too()).then_some(std::process::id() as i32);
        let mut state = self.lock();
        let noticed = state.noticed(&buffer[..read], ignored);
        self.unmark_opened(&mut state);
        Some(noticed)
    }
}

impl State {
    /// Reads events: `struct fanotify_event_metadata`, each followed by records that say what it is about.
    fn noticed(&mut self, mut events: &[u8], ignored: Option<i32>) -> Noticed {
        const METADATA_BYTES: usize = 24;
        let mut files = Vec::new();
        while events.len() >= METADATA_BYTES {
            let length =
                (events[..4].iter().rev().fold(0, |n, &b| n << 8 | usize::from(b))).max(METADATA_BYTES);
            let Some((event, rest)) = events.split_at_checked(length) else { return Noticed::All };
            events = rest;
            let mut metadata = &event[6..METADATA_BYTES];
            let metadata_bytes = usize::from(metadata.get_u16_ne());
            let mask = metadata.get_u64_ne();
            let pid = {
                metadata.advance(4);
                metadata.get_i32_ne()
            };
            if mask & libc::FAN_Q_OVERFLOW != 0 {
                return Noticed::All;
            }
            let Some(mut records) = event.get(metadata_bytes..) else { return Noticed::All };
            while let Some((about, rest)) = next_record(records) {
                records = rest;
                if ignored != Some(pid) && mask & libc::FAN_OPEN != 0 {
                    self.was_opened(&about, &mut files);
                }
                if ignored != Some(pid) && mask & !(libc::FAN_OPEN | libc::FAN_ONDIR) != 0 {
                    self.told_of(&about, mask, &mut files);
                }
                if mask & libc::FAN_DELETE_SELF != 0 && about.name.is_none() {
                    self.gone(&about);
                }
            }
        }
        files.sort_unstable();
        files.dedup();
        Noticed::Files(files)
    }

    fn told_of(&self, about: &About<'_>, mask: u64, files: &mut Vec<FileId>) {
        let is_itself = about.name.is_none();
        for marked in self.by_handle.get(about.handle).into_iter().flatten() {
            // Of its children only those change it that come or go.
            if is_itself || mask & NAMES != 0 {
                files.push(*marked);
            }
            if let (Some(name), Some(names)) = (&about.name, self.names.get(marked)) {
                files.extend(names.get(name));
            }
        }
    }

    /// Who has a directory to himself is to say what is in it.
    fn was_opened(&mut self, about: &About<'_>, files: &mut Vec<FileId>) {
        for marked in self.by_handle.get(about.handle).into_iter().flatten() {
            if let Some(fd) = self.opens.remove(marked) {
                files.push(*marked);
                self.opened.push(fd);
            }
        }
    }

    fn give_names_up(&mut self) {
        self.names.clear();
        (self.names_count, self.is_lost) = (0, true);
    }

    /// The kernel has no marks any more.
    fn give_up(&mut self) {
        self.by_handle.clear();
        self.marked.clear();
        self.opens.clear();
        self.given_up += 1;
        self.give_names_up();
    }

    /// What was about to be marked is not.
    fn not_marked(&mut self, handle: &[u8], file: FileId) {
        if !self.marked.contains(&file)
            && let Some(files) = self.by_handle.get_mut(handle)
        {
            files.remove(&file);
            if files.is_empty() {
                self.by_handle.remove(handle);
            }
        }
    }

    /// The kernel has dropped its mark with what was marked.
    fn gone(&mut self, about: &About<'_>) {
        for marked in self.by_handle.remove(about.handle).into_iter().flatten() {
            self.marked.remove(&marked);
            self.opens.remove(&marked);
            self.names_count -= self.names.remove(&marked).map_or(0, |names| names.len());
        }
    }
}

/// Something comes or goes in a directory.
const NAMES: u64 = libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO;

/// How many files some events are about, where two are watched; `None`: any.
pub(crate) fn noticed_in(events: &[u8]) -> Option<usize> {
    let file = |inode| FileId { device: 1, inode, born: 0 };
    let mut state = State::default();
    // A handle of no bytes, and one of four: enough for what is made up.
    for (handle, inode) in [(&[0; 8][..], 1), (&[4, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4], 2)] {
        state.by_handle.entry(handle.into()).or_default().insert(file(inode));
        state.marked.insert(file(inode));
        if let Ok(name) = Name::new(b"n") {
            state.names.entry(file(inode)).or_default().insert(name, file(inode + 10));
            state.names_count += 1;
        }
    }
    match state.noticed(events, Some(7)) {
        Noticed::Files(files) => Some(files.len()),
        Noticed::All => None,
    }
}

/// What an event is about: a marked file, or a name in it.
#[derive(Debug)]
struct About<'a> {
    handle: &'a [u8],
    name: Option<Name>,
}

/// The first of some records: `struct fanotify_event_info_fid` with a file handle, and a name where it has one.
fn next_record(records: &[u8]) -> Option<(About<'_>, &[u8])> {
    const HEADER_BYTES: usize = 4;
    const FSID_BYTES: usize = 8;
    let mut header = records.get(..HEADER_BYTES)?;
    let kind = header.get_u8();
    header.advance(1);
    let (record, rest) = records.split_at_checked(usize::from(header.get_u16_ne()).max(HEADER_BYTES))?;
    let handle = record.get(HEADER_BYTES + FSID_BYTES..)?;
    let bytes = handle.get(..4)?.get_u32_ne() as usize;
    let (handle, name) = handle.split_at_checked(8 + bytes)?;
    let name = match kind {
        libc::FAN_EVENT_INFO_TYPE_DFID_NAME => {
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
            Name::new(&name[..end]).ok() // `.`: the directory itself
        }
        _ => None,
    };
    Some((About { handle, name }, rest))
}

/// Whether all changes of a file system come by way of this kernel: what hosts on a network do is not told of.
fn is_local(fd: BorrowedFd<'_>) -> bool {
    /// ext2 to ext4, XFS, btrfs, tmpfs, F2FS, bcachefs, ZFS, overlayfs, ramfs, exFAT, FAT (statfs(2)).
    const LOCAL: [u64; 11] = [
        0xef53,
        0x5846_5342,
        0x9123_683e,
        0x0102_1994,
        0xf2f5_2010,
        0xca45_1a4e,
        0x2fc1_2fc1,
        0x794c_7630,
        0x8584_58f6,
        0x2011_bab0,
        0x4d44,
    ];
    rustix::fs::fstatfs(fd).is_ok_and(|fs| LOCAL.contains(&(fs.f_type as u64 & 0xffff_ffff)))
}

/// `struct file_handle`, as events have it: length, type, bytes.
fn handle_of(fd: BorrowedFd<'_>) -> Result<Box<[u8]>, Errno> {
    /// The header, and MAX_HANDLE_SZ.
    #[repr(C, align(8))]
    struct Handle {
        bytes: u32,
        kind: i32,
        handle: [u8; 128],
    }
    let mut handle = MaybeUninit::<Handle>::zeroed();
    let mut mount = 0;
    // SAFETY: all zeros are a `Handle`; `bytes` says how many the kernel may write behind the header, and these are there.
    let result = unsafe {
        handle.assume_init_mut().bytes = 128;
        let (fd, path) = (fd.as_raw_fd(), c"".as_ptr());
        libc::name_to_handle_at(fd, path, handle.as_mut_ptr().cast(), &raw mut mount, libc::AT_EMPTY_PATH)
    };
    if result != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // SAFETY: as above; the kernel has written a part of it.
    let handle = unsafe { handle.assume_init() };
    let mut bytes = Vec::with_capacity(8 + 128);
    bytes.extend_from_slice(&handle.bytes.to_ne_bytes());
    bytes.extend_from_slice(&handle.kind.to_ne_bytes());
    bytes.extend_from_slice(handle.handle.get(..handle.bytes as usize).ok_or(Errno::OVERFLOW)?);
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use rustix::fs::{Mode, OFlags};

    use super::*;

    fn file(inode: u64) -> FileId {
        FileId { device: 1, inode, born: 0 }
    }

    fn opened(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    /// Where changes can be noticed.
    fn watch(dir: &Path) -> Option<Watch> {
        let watch = Watch::new().ok()?;
        watch.add(file(0), opened(dir).as_fd()).then_some(watch)
    }

    #[test]
    fn marks_that_serve_nobody_make_room_for_others() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = [1, 2, 3].map(|number| {
            let path = temp.path().join(number.to_string());
            std::fs::create_dir(&path).unwrap();
            (file(number), opened(&path), path)
        });
        let Some(mut watch) = watch(temp.path()) else { return };
        watch.files_max = 3;
        let add = |at: usize| watch.add(dirs[at].0, dirs[at].1.as_fd());
        let name = Name::new(b"n").unwrap();
        let noticed = || watch.wait(Duration::ZERO, || true);
        assert!(add(0) && add(1) && !add(2));
        assert!(
            watch.add_name(file(1), &name, file(10)) && watch.covers(file(10), Some((file(1), &name)), false)
        );
        // Of three two serve somebody: one for itself, one for what is in it.
        watch.make_room(|kept| [file(2), file(10)].contains(&kept));
        assert_eq!((noticed(), add(2)), (None, false));
        watch.make_room(|_| false);
        assert!(!add(2), "not at once again");
        watch.lock().looked_at = None;
        watch.make_room(|kept| kept == file(10));
        assert!(!watch.covers(file(10), Some((file(1), &name)), false) && !watch.covers(file(2), None, true));
        assert_eq!((noticed(), noticed()), (Some(Noticed::All), None), "whoever has a lease is told");
        std::fs::write(dirs[0].2.join("n"), "").unwrap();
        assert_eq!(noticed(), None, "it is not marked any more");
        assert!(add(2) && add(1) && watch.covers(file(2), None, true) && !watch.covers(file(1), None, true));
        std::fs::write(dirs[2].2.join("n"), "").unwrap();
        assert_eq!(noticed(), Some(Noticed::Files(vec![file(3)])));
    }

    #[test]
    fn what_may_not_be_marked_takes_no_room() {
        let temp = tempfile::tempdir().unwrap();
        let Some(watch) = watch(temp.path()) else { return };
        let closed = temp.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
        let fd = opened(&closed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if rustix::process::geteuid().is_root() {
                    let nobody = rustix::fs::Uid::from_raw(65534);
                    rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                }
                assert!(!watch.add(file(1), fd.as_fd()));
            });
        });
        assert_eq!(watch.lock().by_handle.len(), 1, "what was marked before");
    }
}
