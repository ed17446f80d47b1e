//! One end of a copy's session: hands the session's requests and bytes to the sending or receiving engine.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use longhaul_files::{Access, Dir, RelPath};
use longhaul_transport::{Extent, Handler, Pieces, Session, SessionEnd, Stored, Withdrawn};
use prost::Message;
use tokio::sync::{Notify, mpsc};

use crate::destination::{self, Asked};
use crate::exclude::Excludes;
use crate::limits::{LISTED_PARTS_MAX, LISTED_PATHS_MAX, PROBLEM_BYTES_MAX, SOURCES_MAX, WALKED_ENTRIES_MAX};
use crate::message::{
    Ask, Direction, End, Finished, Listed, Offer, Problems as WireProblems, Start, Started, Wants, Watched,
    WireProblem,
};
use crate::progress::{Problem, Problems, Progress};
use crate::source::{Source, path_bytes, path_from};
use crate::target::Target;
use crate::walk::{Paths, Walk};

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

/// Which end of the session this is, and what only that end has.
enum Role {
    /// It has decided what is copied, and shows the problems of both.
    Client(Problems),
    /// The client decides, and may reach what this says.
    Server(Arc<dyn Access>),
}

/// The handler of a copy's session, at either end.
pub struct Station {
    role: Role,
    engine: OnceLock<Engine>,
    /// A client has asked for its copy.
    begun: AtomicBool,
    /// The engine has been set, or there will be none.
    started: Notify,
    refused: OnceLock<String>,
    /// Problems of this end, at a server: where they are told before an end is.
    own_problems: OnceLock<Problems>,
    /// Parts of a list of files, and word of each that comes.
    listed: Mutex<BTreeMap<u32, Vec<Bytes>>>,
    part_came: Notify,
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
        Arc::new(Self::new(Role::Server(access), Arc::default()))
    }

    /// The client's end, which shows its own problems and the server's.
    pub(crate) fn client(problems: Problems, progress: Arc<Progress>) -> Arc<Self> {
        Arc::new(Self::new(Role::Client(problems), progress))
    }

    fn new(role: Role, progress: Arc<Progress>) -> Self {
        Self {
            role,
            engine: OnceLock::new(),
            begun: AtomicBool::new(false),
            started: Notify::new(),
            refused: OnceLock::new(),
            own_problems: OnceLock::new(),
            listed: Mutex::default(),
            part_came: Notify::new(),
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
            Some(Ask::Listed(listed)) => {
                self.take_listed(listed);
                Bytes::new()
            }
            Some(Ask::Start(start)) => {
                let started = Arc::clone(&self).start(&session, start).await;
                let refusal = started.err().unwrap_or_default();
                if !refusal.is_empty() {
                    self.refuse(refusal.clone());
                }
                Started { refusal }.encode_to_vec().into()
            }
            Some(Ask::Offer(offer)) => self.take_offer(offer).await.encode_to_vec().into(),
            Some(Ask::Failed(failed)) => {
                if let Some(target) = self.target().await {
                    target.give_up(failed.files).await;
                }
                Bytes::new()
            }
            Some(Ask::End(end)) => self.take_end(end).await.encode_to_vec().into(),
            Some(Ask::Problems(problems)) => {
                if let Role::Client(shown) = &self.role {
                    for WireProblem { path, reason } in problems.problems {
                        shown.tell_of_peer(path_from(&path), &reason);
                    }
                }
                if let Some(own) = self.own_problems.get() {
                    own.all_passed().await;
                }
                Bytes::new()
            }
            Some(Ask::Watch(_)) => self.watched(&session).encode_to_vec().into(),
            // Of a later version, or broken: an empty reply is "not understood".
            None => Bytes::new(),
        }
    }

    /// The state of this host's buffers.
    fn watched(&self, session: &Session) -> Watched {
        let sample = session.sample();
        let past_cache_bytes = match self.engine.get() {
            Some(Engine::Receiving(target)) => target.past_cache_bytes(),
            Some(Engine::Sending(_)) | None => 0,
        };
        Watched {
            socket_bytes: sample.socket_bytes,
            inbox_bytes: sample.lanes.iter().map(|lane| lane.inbox_bytes).sum(),
            dirty_bytes: dirty_bytes(),
            storing_us: sample.storing.as_micros() as u64,
            reading_us: sample.reading.as_micros() as u64,
            received_bytes: sample.received_bytes,
            past_cache_bytes,
        }
    }

    /// There will be no engine: whoever waits for it is told so.
    fn refuse(&self, reason: String) {
        let _ = self.refused.set(reason); // the first reason stands
        self.started.notify_waiters();
        self.part_came.notify_waiters();
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

    async fn take_end(&self, end: End) -> Finished {
        let Some(target) = self.target().await else { return Finished::default() };
        if let Role::Client(shown) = &self.role {
            shown.check_peers(end.problems);
        }
        if !end.failure.is_empty() {
            target.break_off(end.failure);
            return Finished::default();
        }
        target.end(end.offers).await.unwrap_or_default()
    }

    fn take_listed(&self, Listed { part, paths }: Listed) {
        let is_server = matches!(self.role, Role::Server(_));
        if is_server && self.engine.get().is_none() {
            let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
            let others: usize = listed.values().map(Vec::len).sum();
            if listed.len() < LISTED_PARTS_MAX && others + paths.len() <= LISTED_PATHS_MAX {
                listed.insert(part, paths);
            } else {
                let _ = self.refused.set("the list of files is too long".to_owned()); // or was refused for another reason
                listed.clear();
            }
        }
        self.part_came.notify_waiters();
    }

    /// All parts of the list, when they are there.
    fn take_list(&self, parts: u32) -> Option<BTreeMap<u32, Vec<Bytes>>> {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        (0..parts).all(|part| listed.contains_key(&part)).then(|| std::mem::take(&mut *listed))
    }

    /// The list of files, when all its parts have come.
    async fn whole_list(&self, parts: u32) -> Result<Vec<Bytes>, String> {
        if parts as usize > LISTED_PARTS_MAX {
            return Err("the list of files is too long".to_owned());
        }
        let parts = loop {
            let came = self.part_came.notified();
            if let Some(reason) = self.refused.get() {
                return Err(reason.clone());
            }
            match self.take_list(parts) {
                Some(parts) => break parts,
                None => came.await,
            }
        };
        let checked = |path: Bytes| match RelPath::new(&path) {
            Ok(_) => Ok(path),
            Err(error) => Err(format!("in the list of files: {error}")),
        };
        parts.into_values().flatten().map(checked).collect()
    }

    /// The server's side of a start.
    async fn start(self: Arc<Self>, session: &Session, start: Start) -> Result<(), String> {
        let Role::Server(access) = &self.role else {
            return Err("only a client starts a copy".to_owned());
        };
        if self.begun.swap(true, Ordering::SeqCst) || self.refused.get().is_some() {
            return Err("this session has its copy already".to_owned());
        }
        if start.paths.is_empty() || start.paths.len() > SOURCES_MAX {
            let given = start.paths.len();
            return Err(format!("a copy takes 1 to {SOURCES_MAX} sources, and not {given}"));
        }
        let direction = Direction::try_from(start.direction).map_err(|_| "an unknown kind of copy")?;
        let only = self.whole_list(start.listed_parts).await?;
        let (problems, told) = Problems::for_client(Arc::clone(&self.progress));
        let _ = self.own_problems.set(problems.clone()); // a second start is refused before
        let passed_on = problems.clone();
        let (station, client) = (Arc::clone(&self), session.clone());
        // Paths are looked up with the user's rights.
        let prepared = on_user_thread(Arc::clone(access), move |access| match direction {
            Direction::Push => station.prepare_push(access, client, &start, problems),
            Direction::Pull => station.prepare_pull(access, client, &start, only, problems),
        });
        let run = prepared.await?;
        tokio::spawn(pass_on_problems(session.clone(), passed_on, told));
        if let Some(run) = run {
            tokio::spawn(run);
        }
        Ok(())
    }

    fn prepare_push(
        &self,
        access: &Arc<dyn Access>,
        client: Session,
        start: &Start,
        problems: Problems,
    ) -> Result<Option<Run>, String> {
        let options = start.options.clone().unwrap_or_default();
        let (dir, path) = access.resolve(&start.paths[0], !options.dry_run)?;
        let into = start.many || options.into_directory;
        let destination = destination::destination(&dir, path, into, Asked::by_sender())
            .map_err(|error| error.to_string())?;
        let access = Arc::clone(access);
        let enter = move || access.enter_thread();
        let target = Target::start(destination, options, problems, Arc::clone(&self.progress), enter)
            .map_err(|error| format!("the server cannot begin: {error}"))?;
        target.set_session(client);
        self.set_target(target);
        Ok(None)
    }

    /// Called on a thread of the user's, which the walk's inherits its rights from.
    fn prepare_pull(
        &self,
        access: &Arc<dyn Access>,
        client: Session,
        start: &Start,
        only: Vec<Bytes>,
        problems: Problems,
    ) -> Result<Option<Run>, String> {
        let options = start.options.clone().unwrap_or_default();
        let excludes = Excludes::new(&options.excludes).map_err(|error| error.to_string())?;
        let mut roots = Vec::new();
        for path in &start.paths {
            // A source that is not there is one problem among others; one that may not be reached ends it.
            let (dir, below) = access.resolve(path, false)?;
            match destination::source(&dir, below, destination::means_contents(path)) {
                Ok(root) => roots.push(root),
                Err(error) => problems.tell(path_from(path), error),
            }
        }
        let (source, failures) = Source::new(problems.clone(), Arc::clone(&self.progress));
        let source = Arc::new(source);
        let (out, found) = mpsc::channel(WALKED_ENTRIES_MAX);
        // They have been checked; as bytes they take a twentieth of what they may take as paths.
        let listed = !only.is_empty();
        let only = only.into_iter().filter_map(|path| RelPath::new(&path).ok());
        let only = listed.then(|| Box::new(only) as Paths);
        let walk = Walk::new(options, excludes, only, out, problems, Arc::clone(&self.progress));
        let access = Arc::clone(access);
        let walker = std::thread::Builder::new().name("walk".into()).spawn(move || {
            access.enter_thread();
            walk.run(&roots);
        });
        walker.map_err(|error| format!("the server cannot begin: {error}"))?;
        self.set_source(Arc::clone(&source));
        Ok(Some(Box::pin(async move {
            if let Err(error) = source.run(&client, found, failures).await {
                tracing::info!(%error, "a copy ended before its end");
                let end = End { failure: error.to_string(), ..End::default() };
                let _ = client.request(Ask::End(end).into_bytes()).await; // or its session is over
            }
        })))
    }
}

/// What goes on after the answer to a start.
type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

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
        while bytes < PROBLEM_BYTES_MAX
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
        if let Role::Server(access) = &self.role {
            access.enter_thread();
        }
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
        self.refuse("the session is over".to_owned());
    }
}
