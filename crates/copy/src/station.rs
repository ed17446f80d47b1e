//! One end of a copy's session: hands the session's requests and bytes to the sending or receiving engine.

use std::io::IoSliceMut;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use longhaul_files::{Dir, RelPath};
use longhaul_transport::{Extent, Handler, Pieces, Session, SessionEnd, Stored, Withdrawn};
use prost::Message;
use tokio::sync::{Notify, mpsc};

use crate::destination;
use crate::exclude::Excludes;
use crate::limits::{SOURCES_MAX, WALKED_ENTRIES_MAX};
use crate::message::{
    Ask, Direction, Offer, Problems as WireProblems, Start, Started, Wants, Watched, WireProblem,
};
use crate::progress::{Problem, Problems, Progress};
use crate::source::{Source, path_bytes, path_from};
use crate::target::Target;
use crate::walk::{SourceRoot, Walk};

/// What a client may reach on the server, and with whose rights.
pub trait Access: Send + Sync + 'static {
    /// Finds the directory that `path` is below, and the rest of it.
    ///
    /// # Errors
    /// In words for the client.
    fn resolve(&self, path: &[u8], to_write: bool) -> Result<(Dir, RelPath), String>;

    /// Takes on the rights of the client's user, on a thread that will do nothing else.
    fn enter_thread(&self) {}
}

/// The user's own files, with the user's own rights.
#[derive(Debug)]
pub(crate) struct OwnFiles;

impl Access for OwnFiles {
    fn resolve(&self, path: &[u8], _to_write: bool) -> Result<(Dir, RelPath), String> {
        own_files(path)
    }
}

/// Finds a path of the user's own, from the current directory on: [`Access::resolve`] for somebody who may reach all.
///
/// # Errors
/// In words.
pub fn own_files(path: &[u8]) -> Result<(Dir, RelPath), String> {
    destination::locate(&path_from(path)).map_err(|error| error.to_string())
}

/// The work of this end.
enum Engine {
    Sending(Arc<Source>),
    Receiving(Arc<Target>),
}

/// The handler of a copy's session, at either end.
pub struct Station {
    access: Arc<dyn Access>,
    engine: OnceLock<Engine>,
    /// The engine has been set, or there will be none.
    started: Notify,
    refused: OnceLock<String>,
    /// Problems of this end, at a server: where they are told before an end is.
    own_problems: OnceLock<Problems>,
    /// Problems the peer tells.
    told: mpsc::UnboundedSender<Problem>,
    progress: Arc<Progress>,
}

impl std::fmt::Debug for Station {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Station").finish_non_exhaustive()
    }
}

impl Station {
    /// The server's end, for a client that may reach what `access` says.
    #[must_use]
    pub fn server(access: Arc<dyn Access>) -> Arc<Self> {
        // A client tells a server no problems.
        let (told, _) = mpsc::unbounded_channel();
        Arc::new(Self::new(access, told, Arc::default()))
    }

    pub(crate) fn new(
        access: Arc<dyn Access>,
        told: mpsc::UnboundedSender<Problem>,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            access,
            engine: OnceLock::new(),
            started: Notify::new(),
            refused: OnceLock::new(),
            own_problems: OnceLock::new(),
            told,
            progress,
        }
    }

    pub(crate) fn set_source(&self, source: Arc<Source>) {
        let _ = self.engine.set(Engine::Sending(source)); // a second start is refused before
        self.started.notify_waiters();
    }

    pub(crate) fn set_target(&self, target: Arc<Target>) {
        let _ = self.engine.set(Engine::Receiving(target));
        self.started.notify_waiters();
    }

    /// The receiving engine, as soon as there is one: offers may overtake the start.
    async fn target(&self) -> Option<Arc<Target>> {
        loop {
            let started = self.started.notified();
            match (self.engine.get(), self.refused.get()) {
                (Some(Engine::Receiving(target)), _) => return Some(Arc::clone(target)),
                (Some(Engine::Sending(_)), _) | (_, Some(_)) => return None,
                (None, None) => started.await,
            }
        }
    }

    async fn answer(self: Arc<Self>, session: Session, body: Bytes) -> Bytes {
        match Ask::from_bytes(body) {
            Some(Ask::Start(start)) => {
                let started = Arc::clone(&self).start(&session, start).await;
                let refusal = started.err().unwrap_or_default();
                if !refusal.is_empty() {
                    let _ = self.refused.set(refusal.clone());
                    self.started.notify_waiters();
                }
                Started { refusal }.encode_to_vec().into()
            }
            Some(Ask::Offer(offer)) => self.take_offer(offer).await.encode_to_vec().into(),
            Some(Ask::Failed(failed)) => {
                if let Some(target) = self.target().await {
                    target.give_up(&failed.files);
                }
                Bytes::new()
            }
            Some(Ask::End(end)) => match self.target().await {
                Some(target) => target.end(end.offers).await.encode_to_vec().into(),
                None => Bytes::new(),
            },
            Some(Ask::Problems(problems)) => {
                for problem in problems.problems {
                    let WireProblem { path, reason } = problem;
                    self.progress.problems.fetch_add(1, Ordering::Relaxed);
                    let _ = self.told.send(Problem { path: path_from(&path), reason }); // nobody listens any more
                }
                if let Some(own) = self.own_problems.get() {
                    own.all_passed().await;
                }
                Bytes::new()
            }
            Some(Ask::Watch(_)) => watched(&session).encode_to_vec().into(),
            // Of a later version, or broken: an empty reply is "not understood".
            None => Bytes::new(),
        }
    }

    async fn take_offer(&self, offer: Offer) -> Wants {
        let over = Wants { over: true, ..Wants::default() };
        let number = offer.number;
        let Ok(entries) = offer.check() else { return over };
        match self.target().await {
            Some(target) => target.offer(number, entries).await,
            None => over,
        }
    }

    /// The server's side of a start.
    async fn start(self: Arc<Self>, session: &Session, start: Start) -> Result<(), String> {
        if self.engine.get().is_some() || self.refused.get().is_some() {
            return Err("this session has its copy already".to_owned());
        }
        if start.paths.is_empty() || start.paths.len() > SOURCES_MAX {
            return Err("the copy names no path, or too many".to_owned());
        }
        let direction = Direction::try_from(start.direction).map_err(|_| "an unknown kind of copy")?;
        let (problems, told) = Problems::for_client(Arc::clone(&self.progress));
        let _ = self.own_problems.set(problems.clone()); // a second start is refused before
        let passed_on = problems.clone();
        let (station, client) = (Arc::clone(&self), session.clone());
        // Paths are looked up with the user's rights.
        let prepared = on_user_thread(Arc::clone(&self.access), move |access| match direction {
            Direction::Push => station.prepare_push(access, client, &start, problems).map(|()| None),
            Direction::Pull => Ok(Some(prepare_pull(access, &start, problems)?)),
        });
        let walk = prepared.await?;
        tokio::spawn(pass_on_problems(session.clone(), passed_on, told));
        if let Some(prepared) = walk {
            self.begin_pull(session.clone(), prepared);
        }
        Ok(())
    }

    fn prepare_push(
        &self,
        access: &Arc<dyn Access>,
        client: Session,
        start: &Start,
        problems: Problems,
    ) -> Result<(), String> {
        let options = start.options.clone().unwrap_or_default();
        let (dir, path) = access.resolve(&start.paths[0], !options.dry_run)?;
        let destination = destination::destination(&dir, path, start.many || options.into_directory)
            .map_err(|error| error.to_string())?;
        let access = Arc::clone(access);
        let enter = move || access.enter_thread();
        let target = Target::start(destination, options, problems, Arc::clone(&self.progress), enter)
            .map_err(|error| format!("the server cannot begin: {error}"))?;
        target.set_session(client);
        self.set_target(target);
        Ok(())
    }

    fn begin_pull(self: Arc<Self>, session: Session, prepared: PreparedPull) {
        let PreparedPull { roots, options, excludes, only, problems } = prepared;
        let (source, failures) = Source::new(problems.clone(), Arc::clone(&self.progress));
        let source = Arc::new(source);
        self.set_source(Arc::clone(&source));
        let (out, found) = mpsc::channel(WALKED_ENTRIES_MAX);
        let walk = Walk::new(options, excludes, only, out, problems, Arc::clone(&self.progress));
        let access = Arc::clone(&self.access);
        let walker = std::thread::Builder::new().name("walk".into()).spawn(move || {
            access.enter_thread();
            walk.run(&roots);
        });
        if let Err(error) = walker {
            tracing::error!(%error, "cannot start a thread to read the sources");
        }
        tokio::spawn(async move {
            // The client sees by its own end of the session how this ended.
            if let Err(error) = source.run(&session, found, failures).await {
                tracing::info!(%error, "a copy ended before its end");
            }
        });
    }
}

/// What a pull needs, looked up.
struct PreparedPull {
    roots: Vec<SourceRoot>,
    options: crate::CopyOptions,
    excludes: Excludes,
    only: Vec<RelPath>,
    problems: Problems,
}

fn prepare_pull(access: &Arc<dyn Access>, start: &Start, problems: Problems) -> Result<PreparedPull, String> {
    let options = start.options.clone().unwrap_or_default();
    let excludes = Excludes::new(&options.excludes).map_err(|error| error.to_string())?;
    let only = start.only.iter().map(|path| RelPath::new(path)).collect::<Result<Vec<_>, _>>();
    let only = only.map_err(|error| format!("in the list of files: {error}"))?;
    let mut roots = Vec::new();
    for path in &start.paths {
        // A source that is not there is one problem among others; one that may not be reached ends it.
        let (dir, below) = access.resolve(path, false)?;
        match destination::source(&dir, below, path.ends_with(b"/.") || &path[..] == b".") {
            Ok(root) => roots.push(root),
            Err(error) => problems.tell(path_from(path), error),
        }
    }
    Ok(PreparedPull { roots, options, excludes, only, problems })
}

/// Runs `job` on a thread with the user's rights.
async fn on_user_thread<T: Send + 'static>(
    access: Arc<dyn Access>,
    job: impl FnOnce(&Arc<dyn Access>) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (reply, done) = tokio::sync::oneshot::channel();
    let spawned = std::thread::Builder::new().name("resolve".into()).spawn(move || {
        access.enter_thread();
        let _ = reply.send(job(&access)); // the session has ended
    });
    spawned.map_err(|error| format!("the server cannot begin: {error}"))?;
    done.await.unwrap_or_else(|_| Err("the server failed to look up the path".to_owned()))
}

/// Sends this server's problems to the client, those of a tenth of a second together.
async fn pass_on_problems(session: Session, passing: Problems, mut told: mpsc::UnboundedReceiver<Problem>) {
    while let Some(first) = tokio::select! {
        first = told.recv() => first,
        _ = session.ended() => None,
    } {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
            () = passing.hurry() => {}
        }
        let mut problems = vec![wire(first)];
        let mut bytes = 0;
        while bytes < 32 << 10
            && let Ok(problem) = told.try_recv()
        {
            let problem = wire(problem);
            bytes += problem.encoded_len();
            problems.push(problem);
        }
        let count = problems.len() as u64;
        if session.request(Ask::Problems(WireProblems { problems }).into_bytes()).await.is_err() {
            break;
        }
        passing.note_passed(count);
    }
    passing.note_passed(u64::MAX); // nobody waits for a client that has gone
}

fn wire(problem: Problem) -> WireProblem {
    WireProblem { path: path_bytes(&problem.path), reason: problem.reason }
}

/// The state of this host's buffers.
fn watched(session: &Session) -> Watched {
    let sample = session.sample();
    Watched {
        socket_bytes: sample.socket_bytes,
        inbox_bytes: sample.lanes.iter().map(|lane| lane.inbox_bytes).sum(),
        dirty_bytes: dirty_bytes(),
        storing_us: sample.storing.as_micros() as u64,
        reading_us: sample.reading.as_micros() as u64,
        received_bytes: sample.received_bytes,
    }
}

/// Bytes of this host's page cache that are not on disk yet.
#[must_use]
pub fn dirty_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    field("Dirty:") + field("Writeback:")
}

impl Pieces for Station {
    fn fill(&self, object: u64, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<(), Withdrawn> {
        match self.engine.get() {
            Some(Engine::Sending(source)) => source.fill(object, offset, into),
            _ => Err(Withdrawn),
        }
    }

    fn delivered(&self, extent: Extent) {
        if let Some(Engine::Sending(source)) = self.engine.get() {
            source.delivered(&extent);
        }
    }

    fn declined(&self, extent: Extent) {
        if let Some(Engine::Sending(source)) = self.engine.get() {
            source.declined(&extent);
        }
    }

    fn store(&self, object: u64, offset: u64, data: &[u8], checksum: u64) -> Stored {
        match self.engine.get() {
            Some(Engine::Receiving(target)) => target.store(object, offset, data, checksum),
            _ => Stored::Unwanted,
        }
    }

    fn enter_thread(&self) {
        self.access.enter_thread();
    }
}

impl Handler for Station {
    fn request(
        self: Arc<Self>,
        session: Session,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = Bytes> + Send + 'static>> {
        Box::pin(self.answer(session, body))
    }

    fn ended(&self, _end: &SessionEnd) {
        if let Some(Engine::Receiving(target)) = self.engine.get() {
            target.stop();
        }
        // Offers that still wait for a start get their answer.
        let _ = self.refused.set("the session is over".to_owned());
        self.started.notify_waiters();
    }
}
