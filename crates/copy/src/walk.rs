//! Finds what there is to copy: walks the sources, depth first, and describes each file as an entry of an offer.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use longhaul_files::attr::read_xattrs;
use longhaul_files::limits::DEPTH_MAX;
use longhaul_files::{Attr, Dir, Kind, Name, RelPath, Xattr};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use tokio::sync::mpsc;

use crate::exclude::Excludes;
use crate::limits::{BUNDLED_FILE_MAX, HARD_LINKS_WAITING_MAX, RANGES_MAX, SORTED_NAMES_MAX};
use crate::message::{WireEntry, WireKind, WireRange, WireXattr, to_wire_ranges};
use crate::options::CopyOptions;
use crate::progress::{Problems, Progress, count};

/// One of the things to be copied.
#[derive(Clone, Debug)]
pub(crate) struct SourceRoot {
    /// The directory it is in.
    pub(crate) dir: Dir,
    /// Its name there; `None`: the directory itself, whose contents are meant.
    pub(crate) name: Option<Name>,
}

/// Where a file is, and what it was when it was found.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) dir: Dir,
    pub(crate) name: Name,
    pub(crate) attr: Attr,
    /// The name may be a link to it.
    pub(crate) follow: bool,
}

impl Spot {
    /// For messages.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join(self.name.as_os_str())
    }
}

/// An entry, and for a file where its bytes are.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) entry: WireEntry,
    pub(crate) spot: Option<Spot>,
}

/// The walk is over before its end: nobody wants the rest.
#[derive(Debug)]
struct Unwanted;

/// Paths one by one, so that a long list need not be there in full.
pub(crate) type Paths = Box<dyn Iterator<Item = RelPath> + Send>;

/// A walk through the sources, on a thread of its own.
pub(crate) struct Walk {
    pub(crate) options: CopyOptions,
    pub(crate) excludes: Excludes,
    /// Only these, below the one source.
    pub(crate) only: Option<Paths>,
    pub(crate) out: mpsc::Sender<Found>,
    pub(crate) problems: Problems,
    pub(crate) progress: Arc<Progress>,
    next_id: u64,
    /// First ids of files with several names.
    linked: HashMap<(u64, u64), u64>,
    /// Names of the sources so far, and whether they are directories.
    roots_offered: HashMap<Name, bool>,
}

/// A directory under way.
struct Level {
    id: u64,
    dir: Dir,
    /// Its path below the source, for patterns.
    path: Vec<u8>,
    /// Its own device and number: to notice when links lead around.
    identity: (u64, u64),
    subdirs: VecDeque<(Name, Attr)>,
}

impl Walk {
    pub(crate) fn new(
        options: CopyOptions,
        excludes: Excludes,
        only: Option<Paths>,
        out: mpsc::Sender<Found>,
        problems: Problems,
        progress: Arc<Progress>,
    ) -> Self {
        let (linked, roots_offered) = (HashMap::new(), HashMap::new());
        Self { options, excludes, only, out, problems, progress, next_id: 1, linked, roots_offered }
    }

    /// Walks all sources. Each problem is told; none ends the walk.
    pub(crate) fn run(mut self, roots: &[SourceRoot]) {
        let walked = match (roots, self.only.take()) {
            ([root], Some(only)) => self.walk_listed(root, only),
            (roots, _) => roots.iter().try_for_each(|root| self.walk_root(root)),
        };
        if walked.is_ok() {
            self.progress.all_found.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a source would replace one that was offered before under its name; only directories become one.
    fn is_in_the_way(&mut self, root: &SourceRoot, name: &Name, kind: Kind) -> bool {
        let is_dir = kind == Kind::Dir;
        let Some(&was_dir) = self.roots_offered.get(name) else {
            self.roots_offered.insert(name.clone(), is_dir);
            return false;
        };
        let in_the_way = !(is_dir && was_dir);
        if in_the_way {
            let at = root.dir.path().join(name.as_os_str());
            self.problems.tell(at, "not copied: another source of this copy has the same name");
        }
        in_the_way
    }

    fn walk_root(&mut self, root: &SourceRoot) -> Result<(), Unwanted> {
        let Some(name) = &root.name else {
            let path = root.dir.path();
            if !self.options.recursive {
                self.problems.tell(path, OMITTED_DIRECTORY);
                return Ok(());
            }
            let attr = root.dir.own_attr();
            return match attr {
                Ok(attr) => self.walk_tree(root.dir.clone(), &attr, 0, &[], Vec::new()),
                Err(error) => {
                    self.problems.tell(path, cannot("read", &error));
                    Ok(())
                }
            };
        };
        // A link that is named is meant, and not its target, only where trees are copied.
        let follow = self.options.follow_links || !self.options.recursive;
        match self.look(&root.dir, name, follow) {
            Some(attr) if self.is_in_the_way(root, name, attr.kind) => Ok(()),
            Some(attr) if attr.kind == Kind::Dir => {
                if !self.options.recursive {
                    self.problems.tell(root.dir.path().join(name.as_os_str()), OMITTED_DIRECTORY);
                    return Ok(());
                }
                let Some(dir) = self.enter(&root.dir, name) else { return Ok(()) };
                self.walk_tree(dir, &attr, 0, name.as_bytes(), Vec::new())
            }
            Some(attr) => self.offer(&root.dir, name, attr, 0, follow),
            None => Ok(()),
        }
    }

    /// Opens a source directory; where links are followed it may be one.
    fn enter(&self, parent: &Dir, name: &Name) -> Option<Dir> {
        if !self.options.follow_links {
            return Some(parent.child(name.clone()));
        }
        match parent.open_dir_following(name) {
            Ok(dir) => Some(dir),
            Err(error) => {
                self.problems.tell(parent.path().join(name.as_os_str()), cannot("open", &error));
                None
            }
        }
    }

    fn look(&self, dir: &Dir, name: &Name, follow: bool) -> Option<Attr> {
        let attr = if follow { dir.attr_following(name) } else { dir.attr(name) };
        let path = || dir.path().join(name.as_os_str());
        match attr {
            Ok(Some(attr)) => Some(attr),
            Ok(None) => {
                self.problems.tell(path(), "no such file");
                None
            }
            Err(error) => {
                self.problems.tell(path(), cannot("look at", &error));
                None
            }
        }
    }

    /// Offers a directory and all below it.
    fn walk_tree(
        &mut self,
        dir: Dir,
        attr: &Attr,
        parent: u64,
        name: &[u8],
        path: Vec<u8>,
    ) -> Result<(), Unwanted> {
        let top = self.offer_dir(&dir, attr, parent, name)?;
        let mut levels = vec![self.level(top, dir, path, attr)?];
        while let Some(level) = levels.last_mut() {
            let Some((name, attr)) = level.subdirs.pop_front() else {
                let id = level.id;
                levels.pop();
                self.offer_dir_end(id)?;
                continue;
            };
            if self.options.follow_links && levels.iter().any(|l| l.identity == (attr.device, attr.inode)) {
                let at = levels.last().map_or_else(PathBuf::new, |l| l.dir.path().join(name.as_os_str()));
                self.problems.tell(at, "not copied: this link leads back to a directory above it");
                continue;
            }
            let Some(level) = levels.last() else { break };
            if levels.len() >= DEPTH_MAX {
                let at = level.dir.path().join(name.as_os_str());
                self.problems.tell(at, format!("not copied: it lies more than {DEPTH_MAX} directories deep"));
                continue;
            }
            let Some(dir) = self.enter(&level.dir, &name) else { continue };
            let (parent, path) = (level.id, join(&level.path, &name));
            let id = self.offer_dir(&dir, &attr, parent, name.as_bytes())?;
            let level = self.level(id, dir, path, &attr)?;
            levels.push(level);
        }
        Ok(())
    }

    /// Reads a directory: files are offered, subdirectories kept for later.
    fn level(&mut self, id: u64, dir: Dir, path: Vec<u8>, attr: &Attr) -> Result<Level, Unwanted> {
        let mut level = Level {
            id,
            path,
            identity: (attr.device, attr.inode),
            subdirs: VecDeque::new(),
            dir: dir.clone(),
        };
        let mut entries = match dir.entries() {
            Ok(entries) => entries,
            Err(error) => {
                self.problems.tell(dir.path(), cannot("read", &error));
                return Ok(level);
            }
        };
        loop {
            // In the order of their numbers, a part at a time: a directory may hold millions.
            let mut names = Vec::new();
            let mut read = 0;
            for entry in entries.by_ref().take(SORTED_NAMES_MAX) {
                read += 1;
                match entry {
                    Ok(entry) => names.push(entry),
                    // One name that cannot be used, or the end of what can be read.
                    Err(error) => self.problems.tell(dir.path(), cannot("read all of", &error)),
                }
            }
            if read == 0 {
                return Ok(level);
            }
            names.sort_unstable_by_key(|entry| entry.inode);
            for entry in names {
                self.visit(&mut level, entry.name)?;
            }
        }
    }

    fn visit(&mut self, level: &mut Level, name: Name) -> Result<(), Unwanted> {
        if crate::partial::is_ours(&name) {
            return Ok(()); // an unfinished copy's own files
        }
        let Some(attr) = self.look(&level.dir, &name, self.options.follow_links) else { return Ok(()) };
        let is_dir = attr.kind == Kind::Dir;
        if self.excludes.matches(&join(&level.path, &name), is_dir) {
            return Ok(());
        }
        if is_dir {
            level.subdirs.push_back((name, attr));
            return Ok(());
        }
        self.offer(&level.dir, &name, attr, level.id, self.options.follow_links)
    }

    /// Offers the listed files, and the directories that lead to them.
    fn walk_listed(&mut self, root: &SourceRoot, only: Paths) -> Result<(), Unwanted> {
        let top = match &root.name {
            None => root.dir.clone(),
            Some(name) => root.dir.child(name.clone()),
        };
        let mut ids: HashMap<RelPath, u64> = HashMap::new();
        for path in only {
            let Some((above, name)) = path.split_last() else {
                // `.`: all of it.
                let all = SourceRoot { dir: top.clone(), name: None };
                self.walk_root(&all)?;
                continue;
            };
            let mut dir = top.clone();
            let mut at = RelPath::default();
            let mut parent = 0;
            let mut reachable = true;
            for step in above.names() {
                let Some(attr) = self.look(&dir, step, false).filter(|attr| attr.kind == Kind::Dir) else {
                    reachable = false;
                    break;
                };
                dir = dir.child(step.clone());
                at = at.join(step.clone());
                parent = match ids.get(&at) {
                    Some(&id) => id,
                    None => {
                        let id = self.offer_dir(&dir, &attr, parent, step.as_bytes())?;
                        ids.insert(at.clone(), id);
                        id
                    }
                };
            }
            if !reachable {
                continue;
            }
            let Some(attr) = self.look(&dir, &name, self.options.follow_links) else { continue };
            let below = above.to_path_buf();
            let path = join(if above.names().is_empty() { b"" } else { below.as_os_str().as_bytes() }, &name);
            if self.excludes.matches(&path, attr.kind == Kind::Dir) {
                continue;
            }
            if attr.kind != Kind::Dir {
                self.offer(&dir, &name, attr, parent, self.options.follow_links)?;
            } else if self.options.recursive {
                let Some(subdir) = self.enter(&dir, &name) else { continue };
                self.walk_tree(subdir, &attr, parent, name.as_bytes(), path)?;
            } else {
                // As rsync: a listed directory is made, its contents are listed themselves.
                let id = self.offer_dir(&dir.child(name.clone()), &attr, parent, name.as_bytes())?;
                self.offer_dir_end(id)?;
            }
        }
        let mut open: Vec<u64> = ids.into_values().collect();
        open.sort_unstable_by(|a, b| b.cmp(a)); // innermost first
        open.into_iter().try_for_each(|id| self.offer_dir_end(id))
    }

    fn offer_dir(&mut self, dir: &Dir, attr: &Attr, parent: u64, name: &[u8]) -> Result<u64, Unwanted> {
        let mut entry = self.entry(attr, parent, name);
        entry.kind = WireKind::Dir.into();
        if self.options.xattrs {
            let xattrs = dir.fd().and_then(|fd| read_xattrs(&*fd));
            entry.xattrs = self.take_xattrs(xattrs, || dir.path());
        }
        let id = entry.id;
        self.send(Found { entry, spot: None })?;
        Ok(id)
    }

    fn offer_dir_end(&mut self, id: u64) -> Result<(), Unwanted> {
        let entry = WireEntry { id, kind: WireKind::DirEnd.into(), ..WireEntry::default() };
        self.send(Found { entry, spot: None })
    }

    /// Offers what is no directory.
    fn offer(
        &mut self,
        dir: &Dir,
        name: &Name,
        attr: Attr,
        parent: u64,
        follow: bool,
    ) -> Result<(), Unwanted> {
        let path = || dir.path().join(name.as_os_str());
        let mut entry = self.entry(&attr, parent, name.as_bytes());
        let mut spot = None;
        match attr.kind {
            Kind::Dir => return Ok(()),
            Kind::File => {
                entry.kind = WireKind::File.into();
                entry.mark = mark(&attr);
                entry.size = attr.size;
                if self.note_hard_link(&attr, &mut entry) {
                    count(&self.progress.found_files, 1);
                    return self.send(Found { entry, spot: None });
                }
                let here = Spot { dir: dir.clone(), name: name.clone(), attr, follow };
                if !self.describe_file(&here, &mut entry) {
                    return Ok(());
                }
                spot = Some(here);
                count(&self.progress.found_bytes, attr.size);
            }
            Kind::Symlink => match dir.read_link(name) {
                Ok(target) => {
                    entry.kind = WireKind::Symlink.into();
                    entry.target = target.into();
                }
                Err(error) => {
                    self.problems.tell(path(), cannot("read", &error));
                    return Ok(());
                }
            },
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                if !self.options.specials {
                    self.problems.tell(
                        path(),
                        "not copied: neither file, directory nor link (`-a` copies it as it is)",
                    );
                    return Ok(());
                }
                entry.kind = special_kind(attr.kind).into();
                entry.special_device = attr.special_device;
            }
        }
        count(&self.progress.found_files, 1);
        self.send(Found { entry, spot })
    }

    /// True when the file was offered before, under another name.
    fn note_hard_link(&mut self, attr: &Attr, entry: &mut WireEntry) -> bool {
        if !self.options.hard_links || attr.links < 2 {
            return false;
        }
        let key = (attr.device, attr.inode);
        if let Some(&first) = self.linked.get(&key) {
            entry.hard_link_to = first;
            return true;
        }
        if self.linked.len() < HARD_LINKS_WAITING_MAX {
            self.linked.insert(key, entry.id);
            entry.has_hard_links = true;
        }
        false
    }

    /// Adds what only the open file tells: where its holes are, its extended attributes.
    fn describe_file(&self, spot: &Spot, entry: &mut WireEntry) -> bool {
        let sparse = spot.attr.may_have_holes() && spot.attr.size > BUNDLED_FILE_MAX;
        if !sparse && !self.options.xattrs {
            return true;
        }
        let file = if spot.follow {
            spot.dir.open_file_following(&spot.name)
        } else {
            spot.dir.open_file(&spot.name)
        };
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                self.problems.tell(spot.path(), cannot("open", &error));
                return false;
            }
        };
        if self.options.xattrs {
            entry.xattrs = self.take_xattrs(read_xattrs(&file), || spot.path());
        }
        if sparse {
            // Where holes cannot be told, all of the file is data.
            entry.data = data_ranges(&file, spot.attr.size).unwrap_or_default();
        }
        true
    }

    fn take_xattrs(&self, xattrs: io::Result<Vec<Xattr>>, path: impl Fn() -> PathBuf) -> Vec<WireXattr> {
        match xattrs {
            Ok(xattrs) => {
                let wire = |x: Xattr| WireXattr { name: x.name.into(), value: x.value.into() };
                xattrs.into_iter().map(wire).collect()
            }
            Err(error) => {
                self.problems.tell(path(), cannot("read the extended attributes of", &error));
                Vec::new()
            }
        }
    }

    fn entry(&mut self, attr: &Attr, parent: u64, name: &[u8]) -> WireEntry {
        let id = self.next_id;
        self.next_id += 1;
        WireEntry {
            id,
            parent,
            name: Bytes::copy_from_slice(name),
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            modified_s: attr.modified.seconds,
            modified_ns: attr.modified.nanos,
            ..WireEntry::default()
        }
    }

    fn send(&self, found: Found) -> Result<(), Unwanted> {
        self.out.blocking_send(found).map_err(|_| Unwanted)
    }
}

/// See [`SourceVersion::mark`](crate::partial::SourceVersion::mark).
fn mark(attr: &Attr) -> u32 {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&attr.changed.seconds.to_le_bytes());
    bytes[8..].copy_from_slice(&attr.changed.nanos.to_le_bytes());
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &bytes) as u32
}

const OMITTED_DIRECTORY: &str = "not copied: it is a directory (`-r` copies directories)";

fn special_kind(kind: Kind) -> WireKind {
    match kind {
        Kind::Fifo => WireKind::Fifo,
        Kind::Socket => WireKind::Socket,
        Kind::CharDevice => WireKind::CharDevice,
        Kind::BlockDevice => WireKind::BlockDevice,
        Kind::File | Kind::Dir | Kind::Symlink => WireKind::Nothing,
    }
}

fn join(path: &[u8], name: &Name) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name.as_bytes());
    joined
}

/// The stored parts of a file. A file that is one hole has one range of no use: its last byte's block is "data" then,
/// so that it is still asked for and made.
fn data_ranges(file: &std::fs::File, size: u64) -> io::Result<Vec<WireRange>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size && ranges.len() <= RANGES_MAX {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        ranges.push((start, end));
        at = end;
    }
    if ranges.len() > RANGES_MAX {
        // Too many to name: the rest counts as data.
        if let Some(last) = ranges.last_mut() {
            last.1 = size;
        }
    }
    if ranges.is_empty() && size > 0 {
        ranges.push((size - 1, size));
    }
    Ok(to_wire_ranges(ranges.into_iter(), RANGES_MAX))
}

/// `cannot open it: Permission denied`.
pub(crate) fn cannot(what: &str, error: &io::Error) -> String {
    format!("cannot {what} it: {}", words(error))
}

/// The kernel's own words, without Rust's "(os error 13)".
pub(crate) fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
