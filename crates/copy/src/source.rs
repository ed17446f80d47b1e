//! The sending end: offers what the walk finds, and feeds the lanes with what the receiver wants.
//!
//! ```text
//! walk (thread) -> entries -> offers, many open at a time -> wants -> feeder -> scheduler -> movers call `fill`
//! ```
//!
//! No round trip per file: while the first files' bytes travel the walk goes on. Small files are bundled as they come.
//! A file is checked each time some of its bytes have been read: as long as size and time of change are those that
//! were offered, all bytes sent so far are of one version of it.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use longhaul_files::attr::attr_of;
use longhaul_files::direct::read_all_at;
use longhaul_transport::session::RequestError;
use longhaul_transport::{Extent, Session, Withdrawn};
use prost::Message;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::bundle;
use crate::limits::{
    BUNDLE_BYTES_MAX, BUNDLED_FILE_MAX, LAST_ACKS_WAIT, OFFER_BYTES_MAX, OFFER_ENTRIES_MAX, OFFERS_OPEN_MAX,
    OPEN_SOURCES_MAX, UNDER_WAY_KIB_MAX,
};
use crate::message::{
    Ask, End, Failed, Finished, Offer, Want, Wants, WireEntry, WireKind, WireRange, check_ranges,
};
use crate::progress::{Problems, Progress, count};
use crate::walk::{Found, Spot, cannot};

/// Objects with this bit are bundles, the others files.
pub(crate) const BUNDLE: u64 = 1 << 63;

/// A file that is wanted.
#[derive(Debug)]
struct SourceFile {
    id: u64,
    spot: Spot,
    /// Bytes that have been neither delivered nor given up.
    left: AtomicU64,
    open: Mutex<Option<Arc<File>>>,
    failed: AtomicBool,
    /// Of [`UNDER_WAY_KIB_MAX`].
    _place: OwnedSemaphorePermit,
}

/// Files of one bundle, or a file on its own.
type Bundle = Arc<Vec<Arc<SourceFile>>>;

/// The sending end of a copy.
#[derive(Debug)]
pub(crate) struct Source {
    files: Mutex<HashMap<u64, Arc<SourceFile>>>,
    places: Arc<Semaphore>,
    bundles: Mutex<HashMap<u64, Bundle>>,
    /// Files held open, the longest first.
    open: Mutex<VecDeque<Arc<SourceFile>>>,
    /// Files that could not be read after all; the receiver is told.
    failed: mpsc::UnboundedSender<u64>,
    /// Told when no file is left to be settled.
    settled: Notify,
    problems: Problems,
    progress: Arc<Progress>,
}

/// What is kept of an entry while its offer is open.
struct Offered {
    id: u64,
    size: u64,
    /// Or the end of one.
    is_directory: bool,
    entry_kib: u32,
    data: Vec<WireRange>,
}

impl Offered {
    fn of(entry: &WireEntry) -> Self {
        let is_directory = matches!(entry.kind(), WireKind::Dir | WireKind::DirEnd);
        // Another name of a file adds no bytes.
        let size = if entry.hard_link_to == 0 { entry.size } else { 0 };
        let entry_kib = (entry.encoded_len() / 1024) as u32 + 1;
        Self { id: entry.id, size, is_directory, entry_kib, data: entry.data.clone() }
    }
}

/// A file and the parts of it that are wanted.
#[derive(Debug)]
struct Feed {
    file: Arc<SourceFile>,
    ranges: Vec<(u64, u64)>,
}

/// Why a copy ended before its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The session.
    #[error(transparent)]
    Session(#[from] RequestError),
    /// The other end's words on why it will not begin.
    #[error("{0}")]
    Refused(String),
    /// The other end's words on why it cannot go on.
    #[error("the far end cannot go on: {0}")]
    Far(String),
    /// The other end has given the copy up.
    #[error("the other end has given the copy up")]
    Abandoned,
    /// The thread that reads the sources has failed.
    #[error("the sources could not be read to their end, which is a defect of longhaul")]
    Unread,
    /// An answer that makes no sense.
    #[error("the other end does not keep to the protocol")]
    Protocol,
}

impl Source {
    /// The engine, and where files that turn out to be unreadable come out.
    pub(crate) fn new(problems: Problems, progress: Arc<Progress>) -> (Self, mpsc::UnboundedReceiver<u64>) {
        // At most one message per wanted file, whose number the open offers bound.
        let (failed, failures) = mpsc::unbounded_channel();
        let source = Self {
            files: Mutex::default(),
            places: Arc::new(Semaphore::new(UNDER_WAY_KIB_MAX)),
            bundles: Mutex::default(),
            open: Mutex::default(),
            failed,
            settled: Notify::new(),
            problems,
            progress,
        };
        (source, failures)
    }

    /// Offers all that `found` brings, feeds what is wanted, and waits until the receiver has all in its place.
    pub(crate) async fn run(
        self: &Arc<Self>,
        session: &Session,
        mut found: mpsc::Receiver<Found>,
        failures: mpsc::UnboundedReceiver<u64>,
    ) -> Result<Finished, CopyError> {
        let (feed, wanted) = mpsc::channel(OFFER_ENTRIES_MAX);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(self).tell_failures(session.clone(), failures));
        tasks.spawn(Arc::clone(self).feed(session.clone(), wanted));
        let finished = async {
            // The feeder ends when nothing more can come.
            let offers = self.offer_all(session, &mut found, feed).await?;
            // A walk that has failed ends as one that is done, but for this.
            if !self.progress.all_found.load(Ordering::Relaxed) {
                return Err(CopyError::Unread);
            }
            self.problems.all_passed().await;
            let end = End { offers, problems: self.problems.count(), failure: String::new() };
            let reply = session.request(Ask::End(end).into_bytes()).await?;
            let finished = Finished::decode(reply).map_err(|_| CopyError::Protocol)?;
            if finished.whole { Ok(finished) } else { Err(CopyError::Abandoned) }
        };
        let finished = finished.await;
        if finished.is_ok() {
            // The reply comes by the control channel and may overtake the last acknowledgements of the lanes. Only
            // the counters wait for them, so not for ever.
            let _ = tokio::time::timeout(LAST_ACKS_WAIT, self.all_settled()).await;
        }
        tasks.abort_all();
        // What the walk still holds is not wanted any more: it ends.
        found.close();
        finished
    }

    async fn all_settled(&self) {
        loop {
            let settled = self.settled.notified();
            if lock(&self.files).is_empty() {
                return;
            }
            settled.await;
        }
    }

    /// Returns how many offers it made, when all are answered.
    async fn offer_all(
        self: &Arc<Self>,
        session: &Session,
        found: &mut mpsc::Receiver<Found>,
        feed: mpsc::Sender<Feed>,
    ) -> Result<u64, CopyError> {
        let open = Arc::new(Semaphore::new(OFFERS_OPEN_MAX));
        let mut answers = JoinSet::new();
        let mut number = 0;
        let mut next: Option<Found> = None;
        loop {
            let (batch, rest) = gather(next.take(), found).await;
            next = rest;
            if batch.is_empty() {
                break;
            }
            while let Some(answered) = answers.try_join_next() {
                answered.map_err(|_| CopyError::Abandoned)??;
            }
            let permit = Arc::clone(&open).acquire_owned().await.map_err(|_| CopyError::Abandoned)?;
            let (source, session, feed) = (Arc::clone(self), session.clone(), feed.clone());
            answers.spawn(async move {
                let answered = source.offer(&session, number, batch, &feed).await;
                drop(permit);
                answered
            });
            number += 1;
        }
        while let Some(answered) = answers.join_next().await {
            answered.map_err(|_| CopyError::Abandoned)??;
        }
        Ok(number)
    }

    async fn offer(
        &self,
        session: &Session,
        number: u64,
        batch: Vec<Found>,
        feed: &mpsc::Sender<Feed>,
    ) -> Result<(), CopyError> {
        let (entries, spots): (Vec<WireEntry>, Vec<Option<Spot>>) =
            batch.into_iter().map(|found| (found.entry, found.spot)).unzip();
        let known: Vec<Offered> = entries.iter().map(Offered::of).collect();
        let reply = session.request(Ask::Offer(Offer { number, entries }).into_bytes()).await?;
        let answer = Wants::decode(reply).map_err(|_| CopyError::Protocol)?;
        if answer.over {
            return Err(CopyError::Abandoned);
        }
        if answer.wants.len() != known.len() {
            return Err(CopyError::Protocol);
        }
        let mut parts = answer.parts.into_iter();
        for ((want, offered), spot) in answer.wants.into_iter().zip(known).zip(spots) {
            let Offered { id, size, is_directory, entry_kib, data } = offered;
            let all = || if data.is_empty() { vec![(0, size)] } else { pairs(&data) };
            let ranges = match Want::try_from(want) {
                Ok(Want::All) => all(),
                Ok(Want::Part) => {
                    let part = parts.next().ok_or(CopyError::Protocol)?;
                    let ranges = check_ranges(&part.ranges, size).map_err(|_| CopyError::Protocol)?;
                    let wanted: u64 = ranges.iter().map(|(start, end)| end - start).sum();
                    let offered: u64 = all().iter().map(|(start, end)| end - start).sum();
                    count(&self.progress.skipped_bytes, offered.saturating_sub(wanted));
                    ranges
                }
                Ok(Want::HasIt) => {
                    count(&self.progress.skipped_files, 1);
                    count(&self.progress.skipped_bytes, size);
                    continue;
                }
                Ok(Want::Nothing) => {
                    // Links, empty files; in a dry run all that would be copied.
                    count(&self.progress.done_files, u64::from(!is_directory));
                    count(&self.progress.done_bytes, size);
                    continue;
                }
                Ok(Want::Cannot) => continue,
                Err(_) => return Err(CopyError::Protocol),
            };
            let Some(spot) = spot else { return Err(CopyError::Protocol) };
            let place = Arc::clone(&self.places).acquire_many_owned(entry_kib).await;
            let place = place.map_err(|_| CopyError::Abandoned)?;
            let left = ranges.iter().map(|(start, end)| end - start).sum();
            let file = Arc::new(SourceFile {
                id,
                spot,
                left: AtomicU64::new(left),
                open: Mutex::default(),
                failed: AtomicBool::new(false),
                _place: place,
            });
            lock(&self.files).insert(id, Arc::clone(&file));
            feed.send(Feed { file, ranges }).await.map_err(|_| CopyError::Abandoned)?;
        }
        Ok(())
    }

    /// Turns wanted files into extents: small ones in bundles, large ones as they are.
    async fn feed(self: Arc<Self>, session: Session, mut wanted: mpsc::Receiver<Feed>) {
        let mut bundle: Vec<Arc<SourceFile>> = Vec::new();
        let mut bundle_bytes = 0;
        let mut next_bundle = BUNDLE;
        loop {
            // A bundle waits for company only as long as there is some.
            let next = match wanted.try_recv() {
                Ok(feed) => Some(feed),
                Err(mpsc::error::TryRecvError::Disconnected) => None,
                Err(mpsc::error::TryRecvError::Empty) => {
                    if !bundle.is_empty() {
                        self.push_bundle(&session, next_bundle, std::mem::take(&mut bundle)).await;
                        (bundle_bytes, next_bundle) = (0, next_bundle + 1);
                    }
                    wanted.recv().await
                }
            };
            let Some(Feed { file, ranges }) = next else {
                if !bundle.is_empty() {
                    self.push_bundle(&session, next_bundle, bundle).await;
                }
                return;
            };
            if file.spot.attr.size > BUNDLED_FILE_MAX {
                for (start, end) in ranges {
                    let extent = Extent { object: file.id, offset: start, length: end - start, whole: false };
                    session.lanes().push(extent).await;
                }
                continue;
            }
            let bytes = bundle::HEAD_BYTES + file.spot.attr.size as usize;
            if bundle_bytes + bytes > BUNDLE_BYTES_MAX {
                self.push_bundle(&session, next_bundle, std::mem::take(&mut bundle)).await;
                (bundle_bytes, next_bundle) = (0, next_bundle + 1);
            }
            bundle.push(file);
            bundle_bytes += bytes;
        }
    }

    async fn push_bundle(&self, session: &Session, object: u64, files: Vec<Arc<SourceFile>>) {
        let bytes = |file: &Arc<SourceFile>| bundle::HEAD_BYTES as u64 + file.spot.attr.size;
        let length = files.iter().map(bytes).sum();
        lock(&self.bundles).insert(object, Arc::new(files));
        session.lanes().push(Extent { object, offset: 0, length, whole: true }).await;
    }

    /// Takes files that the receiver will not get out of the queue and tells it, a few at a time.
    async fn tell_failures(self: Arc<Self>, session: Session, mut failures: mpsc::UnboundedReceiver<u64>) {
        let mut files = Vec::new();
        while failures.recv_many(&mut files, OFFER_ENTRIES_MAX).await > 0 {
            for file in &files {
                session.lanes().cancel(*file);
                self.forget(*file);
            }
            let failed = Failed { files: std::mem::take(&mut files) };
            if session.request(Ask::Failed(failed).into_bytes()).await.is_err() {
                return;
            }
        }
    }

    /// Bytes for the lanes; see [`Pieces::fill`](longhaul_transport::Pieces::fill).
    pub(crate) fn fill(
        &self,
        object: u64,
        offset: u64,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(), Withdrawn> {
        if object & BUNDLE != 0 {
            return self.fill_bundle(object, into);
        }
        let file = lock(&self.files).get(&object).cloned().ok_or(Withdrawn)?;
        if file.failed.load(Ordering::Relaxed) {
            return Err(Withdrawn);
        }
        let length: usize = into.iter().map(|part| part.len()).sum();
        let filled = self.opened(&file).and_then(|open| {
            read_all_at(&*open, into, offset)?;
            check_unchanged(&open, &file.spot)
        });
        // Most files are read in one go; the few bytes that are repeated open it again.
        if offset + length as u64 >= file.spot.attr.size {
            lock(&file.open).take();
        }
        filled.map_err(|error| {
            self.fail(&file, &error);
            Withdrawn
        })
    }

    fn fill_bundle(&self, object: u64, into: &mut [IoSliceMut<'_>]) -> Result<(), Withdrawn> {
        let files = lock(&self.bundles).get(&object).cloned().ok_or(Withdrawn)?;
        let mut bytes = Vec::with_capacity(into.iter().map(|part| part.len()).sum());
        for file in files.iter() {
            bundle::append(&mut bytes, file.id, file.spot.attr.size as u32, |place| {
                let read = open(&file.spot).and_then(|open| {
                    open.read_exact_at(place, 0)?;
                    check_unchanged(&open, &file.spot)
                });
                read.map_err(|error| self.fail(file, &error)).is_ok()
            });
        }
        let mut rest = &bytes[..];
        for part in into {
            let (now, later) = rest.split_at_checked(part.len()).ok_or(Withdrawn)?;
            part.copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    fn opened(&self, file: &Arc<SourceFile>) -> io::Result<Arc<File>> {
        let mut slot = lock(&file.open);
        if let Some(open) = &*slot {
            return Ok(Arc::clone(open));
        }
        let open = Arc::new(open(&file.spot)?);
        check_unchanged(&open, &file.spot)?;
        // Bytes are asked for in order: let the kernel read far ahead.
        let _ = rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::Sequential);
        *slot = Some(Arc::clone(&open));
        drop(slot);
        let evicted = {
            let mut recent = lock(&self.open);
            recent.push_back(Arc::clone(file));
            if recent.len() > OPEN_SOURCES_MAX { recent.pop_front() } else { None }
        };
        if let Some(evicted) = evicted {
            lock(&evicted.open).take();
        }
        Ok(open)
    }

    fn fail(&self, file: &SourceFile, error: &io::Error) {
        if file.failed.swap(true, Ordering::Relaxed) {
            return;
        }
        let reason = match error.kind() {
            io::ErrorKind::UnexpectedEof => CHANGED.to_owned(),
            io::ErrorKind::NotFound => "it has vanished while the copy was under way".to_owned(),
            _ if error.get_ref().is_some_and(|e| e.is::<Changed>()) => CHANGED.to_owned(),
            _ => cannot("read", error),
        };
        self.problems.tell(file.spot.path(), reason);
        let _ = self.failed.send(file.id); // the copy has been given up
    }

    /// The receiver has these bytes.
    pub(crate) fn delivered(&self, extent: &Extent) {
        self.settle(extent, true);
    }

    /// These bytes will not be sent, or the receiver does not want them: nor what else there is of a large file.
    pub(crate) fn declined(&self, extent: &Extent) {
        let file = lock(&self.files).get(&extent.object).cloned();
        if let Some(file) = file
            && !file.failed.swap(true, Ordering::Relaxed)
        {
            let _ = self.failed.send(file.id); // the copy has been given up
        }
        self.settle(extent, false);
    }

    fn settle(&self, extent: &Extent, delivered: bool) {
        if extent.object & BUNDLE != 0 {
            let files = lock(&self.bundles).remove(&extent.object);
            let Some(files) = files else { return };
            for file in files.iter() {
                self.settle_file(file, file.spot.attr.size, delivered);
            }
            return;
        }
        let file = lock(&self.files).get(&extent.object).cloned();
        if let Some(file) = file {
            self.settle_file(&file, extent.length, delivered);
        }
    }

    fn settle_file(&self, file: &Arc<SourceFile>, bytes: u64, delivered: bool) {
        let failed = file.failed.load(Ordering::Relaxed);
        if delivered && !failed {
            count(&self.progress.done_bytes, bytes);
        }
        let before = file.left.fetch_sub(bytes, Ordering::AcqRel);
        if before == bytes {
            if delivered && !failed {
                count(&self.progress.done_files, 1);
            }
            self.forget(file.id);
        }
    }

    /// Nothing more of this file will be sent.
    fn forget(&self, id: u64) {
        let (file, none_left) = {
            let mut files = lock(&self.files);
            (files.remove(&id), files.is_empty())
        };
        if none_left {
            self.settled.notify_waiters();
        }
        if let Some(file) = file {
            lock(&file.open).take();
        }
    }
}

/// Takes entries for one offer: those that are there, or else waits for one. The second value did not fit.
async fn gather(first: Option<Found>, found: &mut mpsc::Receiver<Found>) -> (Vec<Found>, Option<Found>) {
    let mut batch = Vec::new();
    let mut bytes = 0;
    let mut next = match first {
        Some(found) => Some(found),
        None => found.recv().await,
    };
    while let Some(entry) = next {
        let size = entry.entry.encoded_len();
        if !batch.is_empty() && (bytes + size > OFFER_BYTES_MAX || batch.len() >= OFFER_ENTRIES_MAX) {
            return (batch, Some(entry));
        }
        bytes += size;
        batch.push(entry);
        next = found.try_recv().ok();
    }
    (batch, None)
}

fn pairs(ranges: &[WireRange]) -> Vec<(u64, u64)> {
    ranges.iter().map(|range| (range.start, range.end)).collect()
}

fn open(spot: &Spot) -> io::Result<File> {
    if spot.follow { spot.dir.open_file_following(&spot.name) } else { spot.dir.open_file(&spot.name) }
}

const CHANGED: &str = "it has changed while it was copied; run the copy again";

/// The file is another than the one that was offered.
#[derive(Debug, thiserror::Error)]
#[error("changed")]
struct Changed;

fn check_unchanged(file: &File, spot: &Spot) -> io::Result<()> {
    if attr_of(file)?.is_unchanged_since(&spot.attr) { Ok(()) } else { Err(io::Error::other(Changed)) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For a peer's path in a message.
pub(crate) fn path_bytes(path: &std::path::Path) -> Bytes {
    use std::os::unix::ffi::OsStrExt;
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

/// From a peer's message.
pub(crate) fn path_from(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}
