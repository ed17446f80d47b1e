//! The thread that takes offers in their order, and decides.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use longhaul_files::limits::DEPTH_MAX;
use longhaul_files::{Attr, Dir, Kind, Name};
use tokio::sync::oneshot;

use super::tree::{Kept, Settings, TargetDir};
use super::{Incoming, LargeFile, LargeState, SmallFile, Target, Task, rename_over, with_passing_name};
use crate::destination::{Asked, Destination};
use crate::limits::{
    BUNDLED_FILE_MAX, DIRS_OPEN_MAX, HARD_LINKS_WAITING_MAX, OFFERS_OPEN_MAX, RANGES_MAX, RIVALS_PATIENCE,
};
use crate::message::{Entry, Meta, Want, Wants, What, WireRanges, to_wire_ranges};
use crate::options::{Existing, Sync};
use crate::partial::{LeftOver, SourceVersion, is_ours, left_over};
use crate::progress::count;
use crate::rivals;
use crate::walk::cannot;
use longhaul_files::RangeSet;

/// A name that others shall share.
#[derive(Clone)]
struct LinkedFile {
    id: u64,
    dir: Arc<TargetDir>,
    name: Name,
}

/// Takes offers in their order.
pub(super) struct Planner {
    target: Weak<Target>,
    settings: Arc<Settings>,
    base: Dir,
    /// The name the one source gets; `None`: its own.
    rename: Option<Name>,
    asked: Asked,
    /// By their numbers; the destination itself is 0.
    dirs: HashMap<u64, Arc<TargetDir>>,
    /// Files that have hard links, by their numbers.
    linked: HashMap<u64, LinkedFile>,
    /// Links to make when all files are there.
    links: Vec<(LinkedFile, LinkedFile)>,
    /// Offers that came before their turn.
    early: BTreeMap<u64, (Vec<Entry>, oneshot::Sender<Wants>)>,
    next: u64,
    /// Those that files go to, by their numbers, and a directory on each.
    file_systems: HashMap<u64, Dir>,
    /// How long it will still wait for other copies.
    patience: Duration,
}

/// What the planner says to one entry.
type Decision = Result<(Want, Option<RangeSet>), String>;

/// Nothing has to be sent.
const NOTHING: Decision = Ok((Want::Nothing, None));

impl Planner {
    pub(super) fn new(target: &Arc<Target>, destination: Destination) -> Self {
        let Destination { base, rename, asked } = destination;
        Self {
            target: Arc::downgrade(target),
            settings: Arc::clone(&target.settings),
            dirs: HashMap::from([(0, TargetDir::top(base.clone()))]),
            base,
            rename,
            asked,
            linked: HashMap::new(),
            links: Vec::new(),
            early: BTreeMap::new(),
            next: 0,
            file_systems: HashMap::new(),
            patience: RIVALS_PATIENCE,
        }
    }

    pub(super) fn run(mut self, tasks: &Receiver<Task>) {
        while let Ok(task) = tasks.recv() {
            let Some(target) = self.target.upgrade() else { return };
            match task {
                Task::Plan(number, entries, reply) => self.take_offer(&target, number, entries, reply),
                Task::GiveUp(files, reply) => {
                    for incoming in files.into_iter().filter_map(|id| target.refuse(id)) {
                        target.abandon(&incoming, false);
                    }
                    let _ = reply.send(()); // nobody waits: the session is over
                }
                Task::Finish(reply) => {
                    self.finish(&target);
                    let _ = reply.send(()); // nobody waits: the copy was given up
                    return;
                }
            }
        }
    }

    fn take_offer(
        &mut self,
        target: &Target,
        number: u64,
        entries: Vec<Entry>,
        reply: oneshot::Sender<Wants>,
    ) {
        // The sender has no more open than this; one that has more is not answered.
        if self.early.len() > 2 * OFFERS_OPEN_MAX || number < self.next {
            return;
        }
        self.early.insert(number, (entries, reply));
        while let Some((entries, reply)) = self.early.remove(&self.next) {
            self.next += 1;
            let wants = self.plan(target, entries);
            let _ = reply.send(wants); // the sender has given up
            target.offers_done.fetch_add(1, Ordering::SeqCst);
            target.changed.notify_waiters();
        }
    }

    fn plan(&mut self, target: &Target, entries: Vec<Entry>) -> Wants {
        let mut wants = Wants::default();
        // All ranges of an answer together, so that it fits a message whatever is offered.
        let mut ranges_left = RANGES_MAX;
        for entry in entries {
            let (id, parent, name) = (entry.id, entry.parent, entry.name.clone());
            note_found(target, &entry.what);
            let (want, part) = self.decide(target, entry).unwrap_or_else(|reason| {
                let dir = self.dirs.get(&parent).map_or_else(|| self.base.path(), |d| d.dir.path());
                let path = name.map_or_else(|| dir.clone(), |name| dir.join(name.as_os_str()));
                self.settings.problems.tell(path, reason);
                target.refuse(id);
                (Want::Cannot, None)
            });
            wants.wants.push(want.into());
            if let Some(part) = part {
                let ranges = to_wire_ranges(part.iter(), ranges_left.max(1));
                ranges_left = ranges_left.saturating_sub(ranges.len());
                wants.parts.push(WireRanges { ranges });
            }
        }
        wants
    }

    /// Whether a pull's sender, which is not trusted with more, may send this.
    fn was_asked_for(&self, entry: &Entry) -> bool {
        let options = &self.settings.options;
        let kind = match entry.what {
            What::Dir => options.recursive || self.asked.listed,
            What::HardLink { .. } => options.hard_links,
            What::Special { .. } => options.specials,
            What::File { .. } | What::Symlink { .. } | What::DirEnd => true,
        };
        let place = match (&self.asked.names, &entry.name) {
            (Some(names), Some(name)) => names.contains(name),
            (Some(_), None) => false,
            (None, _) => true,
        };
        kind && (entry.parent != 0 || place)
    }

    fn decide(&mut self, target: &Target, entry: Entry) -> Decision {
        if matches!(entry.what, What::DirEnd) {
            if let Some(dir) = self.dirs.remove(&entry.id) {
                dir.settle_one(&self.settings);
            }
            return NOTHING;
        }
        if !self.was_asked_for(&entry) {
            return Err("not copied: the far end sent what it was not asked for".to_owned());
        }
        // A directory that could not be made has told its own problem.
        let parent = self.dirs.get(&entry.parent).ok_or("not copied: its directory could not be made")?;
        let parent = Arc::clone(parent);
        let renamed = if entry.parent == 0 { self.rename.clone() } else { None };
        let Some(name) = renamed.or(entry.name) else {
            // The destination itself.
            parent.expect_one();
            self.enter_dir(entry.id, parent);
            return NOTHING;
        };
        if is_ours(&name) {
            return Err("not copied: it has a name of longhaul's own unfinished files".to_owned());
        }
        match entry.what {
            What::Dir => self.decide_dir(entry.id, &parent, name, entry.meta),
            What::File { size, has_hard_links, data, mark } => {
                if has_hard_links && self.linked.len() < HARD_LINKS_WAITING_MAX {
                    let (id, dir) = (entry.id, Arc::clone(&parent));
                    self.linked.insert(id, LinkedFile { id, dir, name: name.clone() });
                }
                let file = SmallFile { dir: parent, name, size, meta: entry.meta, replaces: false };
                self.decide_file(target, entry.id, file, &data, mark)
            }
            What::HardLink { to } => {
                let to =
                    self.linked.get(&to).ok_or("not copied: the file it is another name of is not known")?;
                if self.links.len() >= HARD_LINKS_WAITING_MAX {
                    return Err("not copied: there are too many hard links".to_owned());
                }
                parent.expect_one();
                self.links.push((to.clone(), LinkedFile { id: entry.id, dir: parent, name }));
                NOTHING
            }
            What::Symlink { target: to } => self.decide_link(target, &parent.dir, &name, &to, &entry.meta),
            What::Special { kind, device } => {
                self.decide_special(target, &parent.dir, &name, kind, device, &entry.meta)
            }
            What::DirEnd => NOTHING,
        }
    }

    fn decide_dir(&mut self, id: u64, parent: &Arc<TargetDir>, name: Name, meta: Meta) -> Decision {
        if parent.dir.depth() >= DEPTH_MAX {
            return Err(format!("not copied: it lies more than {DEPTH_MAX} directories deep"));
        }
        const TOO_MANY: &str = "not copied: the sender has begun too many directories at a time";
        if self.dirs.len() >= DIRS_OPEN_MAX {
            return Err(TOO_MANY.to_owned());
        }
        let options = &self.settings.options;
        let made = if options.dry_run {
            true
        } else {
            // Until its own come: as they will be, so that a copy that is broken off leaves what can be used.
            let mode = self.settings.mode_for(&meta) & 0o777 | 0o700;
            match parent.dir.make_dir(&name, mode) {
                Ok(made) => made,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err("not copied: something that is no directory is in its place".to_owned());
                }
                Err(error) => return Err(cannot("make", &error)),
            }
        };
        let kept = match () {
            () if options.dry_run => Kept::Nothing,
            () if made || options.preserve => Kept::All(meta),
            () => Kept::Time(meta.modified),
        };
        let dir = TargetDir::below(parent, name, kept, &self.settings).ok_or(TOO_MANY)?;
        if !made {
            self.note_file_system(&dir.dir);
        }
        self.enter_dir(id, dir);
        NOTHING
    }

    /// Another file system may have been mounted on a directory that was there.
    fn note_file_system(&mut self, dir: &Dir) {
        if let Ok(attr) = dir.own_attr() {
            self.file_systems.entry(attr.device).or_insert_with(|| dir.clone());
        }
    }

    fn enter_dir(&mut self, id: u64, dir: Arc<TargetDir>) {
        if let Some(other) = self.dirs.insert(id, dir) {
            other.settle_one(&self.settings); // a sender that uses a number twice
        }
    }

    fn decide_file(
        &mut self,
        target: &Target,
        id: u64,
        file: SmallFile,
        data: &[(u64, u64)],
        mark: u32,
    ) -> Decision {
        let SmallFile { dir, name, size, meta, .. } = &file;
        let size = *size;
        if size > BUNDLED_FILE_MAX && !self.settings.options.dry_run {
            let waited = rivals::wait_for_turn(&dir.dir, name, self.patience);
            self.patience = self.patience.saturating_sub(waited.unwrap_or_default()); // opening it will tell the error
        }
        let there = self.look(&dir.dir, name)?;
        match there {
            Some(attr) if attr.kind == Kind::Dir => {
                return Err("not copied: a directory is in its place".to_owned());
            }
            Some(attr) if attr.kind == Kind::File && self.keeps(&attr, size, meta) => {
                self.bring_in_line(&dir.dir, name, &attr, meta);
                count(&target.progress.skipped_files, 1);
                count(&target.progress.skipped_bytes, size);
                return Ok((Want::HasIt, None));
            }
            _ => {}
        }
        if self.settings.options.dry_run {
            count(&target.progress.done_bytes, size);
            count(&target.progress.done_files, 1);
            return NOTHING;
        }
        let file = SmallFile { replaces: there.is_some(), ..file };
        if size == 0 {
            target.place_small(&file, &[]).map_err(|error| cannot("make", &error))?;
            target.note_placed();
            return NOTHING;
        }
        let (incoming, part) = if size <= BUNDLED_FILE_MAX {
            (Incoming::Small(Box::new(file)), None)
        } else {
            self.plan_large(target, file, data, mark)
        };
        if !target.expect(id, incoming) {
            return Err("not copied: the sender has offered too many files at a time".to_owned());
        }
        Ok((if part.is_some() { Want::Part } else { Want::All }, part))
    }

    /// A large file as it will come, and what of it is wanted; `None`: all.
    fn plan_large(
        &self,
        target: &Target,
        file: SmallFile,
        data: &[(u64, u64)],
        mark: u32,
    ) -> (Incoming, Option<RangeSet>) {
        let SmallFile { dir, name, size, meta, .. } = file;
        let mut all = RangeSet::default();
        if data.is_empty() {
            all.insert(0, size);
        }
        data.iter().for_each(|&(start, end)| all.insert(start, end));
        let version = SourceVersion { size, modified: meta.modified, mark };
        let left = match self.settings.existing {
            Existing::Replace => LeftOver::default(),
            _ => left_over(&dir.dir, &name, version),
        };
        let mut missing = all.clone();
        for (start, end) in left.ranges.iter() {
            missing.remove(start, end);
        }
        if missing.is_empty() {
            // Whole but for its name: the last byte is sent once more, and brings the name with it.
            let end = all.iter().last().map_or(size, |(_, end)| end);
            missing.insert(end.saturating_sub(1), end);
        }
        let part = (missing != all).then(|| missing.clone());
        if part.is_some() {
            count(&target.progress.skipped_bytes, all.bytes() - missing.bytes());
        }
        let state = Mutex::new(LargeState { missing, ..LargeState::default() });
        let file = LargeFile { dir, name, meta, version, data: all, left, state };
        (Incoming::Large(Arc::new(file)), part)
    }

    /// Whether the file that is there may stay.
    fn keeps(&self, there: &Attr, size: u64, meta: &Meta) -> bool {
        let equal = there.size == size && there.modified == meta.modified;
        match self.settings.existing {
            Existing::Replace => false,
            Existing::SkipEqual => equal,
            Existing::SkipNewer => equal || there.modified > meta.modified,
            Existing::SkipAll => true,
        }
    }

    /// A file whose bytes are right may have got other permissions since.
    fn bring_in_line(&self, dir: &Dir, name: &Name, there: &Attr, meta: &Meta) {
        let settings = &self.settings;
        if settings.options.dry_run || !settings.options.preserve || settings.existing != Existing::SkipEqual
        {
            return;
        }
        let owner = settings.is_root && (there.uid, there.gid) != (meta.uid, meta.gid);
        let set = || -> io::Result<()> {
            if owner {
                dir.set_owner(name, meta.uid, meta.gid)?;
            }
            if owner || there.mode != meta.mode {
                dir.set_mode(name, meta.mode)?;
            }
            Ok(())
        };
        if let Err(error) = set() {
            settings.problems.tell(dir.path_of(name), cannot("set the attributes of", &error));
        }
    }

    fn look(&self, dir: &Dir, name: &Name) -> Result<Option<Attr>, String> {
        match dir.attr(name) {
            // In a dry run the directory may not have been made.
            Err(_) if self.settings.options.dry_run => Ok(None),
            attr => attr.map_err(|error| cannot("look at", &error)),
        }
    }

    fn decide_link(&self, target: &Target, dir: &Dir, name: &Name, to: &[u8], meta: &Meta) -> Decision {
        let there = self.look(dir, name)?;
        if there.is_some_and(|attr| attr.kind == Kind::Symlink) && dir.read_link(name).is_ok_and(|t| t == to)
        {
            count(&target.progress.skipped_files, 1);
            return Ok((Want::HasIt, None));
        }
        self.place_unlike_file(target, dir, name, there, meta, |passing| dir.make_link(passing, to))
    }

    fn decide_special(
        &self,
        target: &Target,
        dir: &Dir,
        name: &Name,
        kind: Kind,
        device: u64,
        meta: &Meta,
    ) -> Decision {
        let there = self.look(dir, name)?;
        if there.is_some_and(|attr| attr.kind == kind && attr.special_device == device) {
            count(&target.progress.skipped_files, 1);
            return Ok((Want::HasIt, None));
        }
        self.place_unlike_file(target, dir, name, there, meta, |passing| {
            dir.make_special(passing, kind, device)?;
            dir.set_mode(passing, self.settings.mode_for(meta)).inspect_err(|_| {
                let _ = dir.remove(passing); // the first error is the one to tell
            })
        })
    }

    /// Makes something under a passing name and moves it to its own.
    fn place_unlike_file(
        &self,
        target: &Target,
        dir: &Dir,
        name: &Name,
        there: Option<Attr>,
        meta: &Meta,
        make: impl FnMut(&Name) -> io::Result<()>,
    ) -> Decision {
        match there {
            Some(attr) if attr.kind == Kind::Dir => {
                return Err("not copied: a directory is in its place".to_owned());
            }
            Some(_) if self.settings.existing == Existing::SkipAll => return Ok((Want::HasIt, None)),
            _ => {}
        }
        if !self.settings.options.dry_run {
            let placed = with_passing_name(make).and_then(|(passing, ())| {
                let kept = match self.settings.options.preserve && self.settings.is_root {
                    true => dir.set_owner(&passing, meta.uid, meta.gid),
                    false => Ok(()),
                };
                let kept = kept.and_then(|()| dir.set_modified(&passing, meta.modified));
                rename_over(dir, &passing, name)?;
                Ok(kept)
            });
            if let Err(error) = placed.map_err(|error| cannot("make", &error))? {
                self.settings.problems.tell(dir.path_of(name), cannot("set the attributes of", &error));
            }
        }
        target.note_placed();
        NOTHING
    }

    /// All files are there: makes hard links, lets the directories go, and makes all durable.
    fn finish(&mut self, target: &Target) {
        if self.settings.options.dry_run {
            return;
        }
        for (to, link) in std::mem::take(&mut self.links) {
            match make_hard_link(target, &to, &link) {
                Ok(()) => target.note_placed(),
                Err(reason) => {
                    self.settings.problems.tell(link.dir.dir.path_of(&link.name), reason);
                }
            }
            link.dir.settle_one(&self.settings);
        }
        for dir in std::mem::take(&mut self.dirs).into_values() {
            dir.settle_one(&self.settings);
        }
        if self.settings.sync == Sync::Never {
            return;
        }
        self.note_file_system(&self.base.clone());
        for dir in self.file_systems.values() {
            if let Err(error) = dir.sync_file_system() {
                let reason = cannot("write to the disk what was copied to", &error);
                self.settings.problems.tell(dir.path(), reason);
            }
        }
    }
}

fn make_hard_link(target: &Target, to: &LinkedFile, link: &LinkedFile) -> Result<(), String> {
    if target.is_refused(to.id) {
        // What has that name is something else.
        return Err("not copied: the file it is another name of was not".to_owned());
    }
    let dir = &link.dir.dir;
    let linked = with_passing_name(|passing| to.dir.dir.hard_link(&to.name, dir, passing));
    let made = linked.and_then(|(passing, ())| {
        // rename(2) of two names of one file does nothing: both stay.
        rename_over(dir, &passing, &link.name)?;
        dir.remove(&passing).map(drop)
    });
    made.map_err(|error| cannot("link", &error))
}

/// The receiver of a pull knows no more of the whole than what has been offered.
fn note_found(target: &Target, what: &What) {
    let bytes = match what {
        What::Dir | What::DirEnd => return,
        What::File { size, data, .. } if data.is_empty() => *size,
        What::File { data, .. } => data.iter().map(|(start, end)| end - start).sum(),
        What::HardLink { .. } | What::Symlink { .. } | What::Special { .. } => 0,
    };
    count(&target.progress.found_files, 1);
    count(&target.progress.found_bytes, bytes);
}
