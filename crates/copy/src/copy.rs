//! A copy as the client starts it: to a server, or from one.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use longhaul_files::RelPath;
use longhaul_transport::Session;
use prost::Message;
use tokio::sync::mpsc;

use crate::destination::{self, Asked};
use crate::exclude::Excludes;
use crate::limits::{LISTED_BYTES_MAX, LISTED_PARTS_MAX, WALKED_ENTRIES_MAX};
use crate::message::{Ask, Direction, Listed, Problems as WireProblems, Start, Started, Watch, Watched};
use crate::options::CopyOptions;
use crate::progress::{Problem, Problems, Progress};
use crate::source::{CopyError, Source};
use crate::station::Station;
use crate::target::Target;
use crate::walk::{Paths, SourceRoot, Walk};

/// What is to be copied, as the person says it.
#[derive(Clone, Debug)]
pub enum Job {
    /// From here to the server.
    Push {
        /// Paths here.
        sources: Vec<PathBuf>,
        /// The path there.
        destination: Vec<u8>,
    },
    /// From the server to here.
    Pull {
        /// Paths there.
        sources: Vec<Vec<u8>>,
        /// They are below exports, whose names they begin with; else they are the user's own.
        in_exports: bool,
        /// The path here.
        destination: PathBuf,
    },
}

/// A copy that is ready to begin: the handler for its session, and what to watch it by.
#[derive(Debug)]
pub struct Copy {
    job: Job,
    options: CopyOptions,
    excludes: Excludes,
    only: Vec<RelPath>,
    station: Arc<Station>,
    progress: Arc<Progress>,
    problems: Problems,
}

/// Bytes of a path in a message besides its own: a tag and a length.
const LISTED_PATH_OVERHEAD: usize = 4;

/// The state of the server's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // as in the message
pub struct FarBuffers {
    pub socket_bytes: u64,
    pub inbox_bytes: u64,
    pub dirty_bytes: u64,
    pub storing_us: u64,
    pub reading_us: u64,
    pub received_bytes: u64,
    pub past_cache_bytes: u64,
}

impl Copy {
    /// Prepares a copy. `only`: just these files, relative to the one source. The second value is where problems
    /// come out; none of them ends the copy.
    ///
    /// # Errors
    /// [`CopyError::Refused`] for a pattern that cannot be understood.
    pub fn prepare(
        job: Job,
        options: CopyOptions,
        only: Vec<RelPath>,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Problem>), CopyError> {
        let excludes =
            Excludes::new(&options.excludes).map_err(|error| CopyError::Refused(error.to_string()))?;
        let progress = Arc::<Progress>::default();
        let (problems, told) = Problems::new(Arc::clone(&progress));
        let station = Station::client(problems.clone(), Arc::clone(&progress));
        Ok((Self { job, options, excludes, only, station, progress, problems }, told))
    }

    /// The handler to [`connect`](longhaul_transport::session::connect) with.
    #[must_use]
    pub fn handler(&self) -> Arc<Station> {
        Arc::clone(&self.station)
    }

    /// How far it has come, from now on.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Copies over `session`, whose handler is [`handler`](Self::handler). Returns when all is in its place, or has
    /// been told as a problem.
    ///
    /// # Errors
    /// [`CopyError`], when the copy as a whole cannot go on.
    pub async fn run(self, session: &Session) -> Result<(), CopyError> {
        match self.job.clone() {
            Job::Push { sources, destination } => self.push(session, &sources, destination).await,
            Job::Pull { sources, in_exports, destination } => {
                let asked = Asked::by_paths(&sources, in_exports, &self.only);
                self.pull(session, &sources, asked, &destination).await
            }
        }
    }

    async fn push(&self, session: &Session, sources: &[PathBuf], to: Vec<u8>) -> Result<(), CopyError> {
        let mut roots = Vec::new();
        for path in sources {
            let root =
                destination::locate(path).and_then(|(dir, rest)| destination::source(&dir, rest, false));
            match root {
                Ok(root) => roots.push(root),
                Err(error) => self.problems.tell(path.clone(), error),
            }
        }
        // The contents of a directory cannot become a file of another name.
        let many =
            sources.len() > 1 || (!self.only.is_empty() && roots.iter().any(destination::is_directory));
        let (source, failures) = Source::new(self.problems.clone(), Arc::clone(&self.progress));
        let source = Arc::new(source);
        self.station.set_source(Arc::clone(&source));
        let start = Start {
            direction: Direction::Push.into(),
            paths: vec![to.into()],
            options: Some(self.options.clone()),
            many,
            listed_parts: 0,
        };
        // The first offers travel with the start: they wait at the server until it has begun.
        let started = self.start(session, start);
        let (out, found) = mpsc::channel(WALKED_ENTRIES_MAX);
        self.walk(roots, out)?;
        let run = source.run(session, found, failures);
        tokio::pin!(started, run);
        let finished = tokio::select! {
            // A refusal is the reason why offers are not answered as wanted.
            biased;
            started = &mut started => {
                started?;
                run.await?
            }
            finished = &mut run => {
                started.await?;
                finished?
            }
        };
        self.problems.check_peers(finished.problems);
        Ok(())
    }

    fn walk(&self, roots: Vec<SourceRoot>, out: mpsc::Sender<crate::walk::Found>) -> Result<(), CopyError> {
        let walk = Walk::new(
            self.options.clone(),
            self.excludes.clone(),
            (!self.only.is_empty()).then(|| Box::new(self.only.clone().into_iter()) as Paths),
            out,
            self.problems.clone(),
            Arc::clone(&self.progress),
        );
        let thread = std::thread::Builder::new().name("walk".into()).spawn(move || walk.run(&roots));
        thread.map(drop).map_err(|error| CopyError::Refused(format!("cannot start a thread: {error}")))
    }

    async fn pull(
        &self,
        session: &Session,
        sources: &[Vec<u8>],
        asked: Asked,
        to: &std::path::Path,
    ) -> Result<(), CopyError> {
        let into = sources.len() > 1 || self.options.into_directory || !self.only.is_empty();
        let destination =
            destination::locate(to).and_then(|(dir, rest)| destination::destination(&dir, rest, into, asked));
        let destination = destination.map_err(|error| CopyError::Refused(error.to_string()))?;
        let target = Target::start(
            destination,
            self.options.clone(),
            self.problems.clone(),
            Arc::clone(&self.progress),
            || (),
        )
        .map_err(|error| CopyError::Refused(format!("cannot begin: {error}")))?;
        self.station.set_target(Arc::clone(&target));
        let listed = self.listed()?;
        let start = Start {
            direction: Direction::Pull.into(),
            paths: sources.iter().map(|path| Bytes::copy_from_slice(path)).collect(),
            options: Some(self.options.clone()),
            many: false,
            listed_parts: listed.len() as u32,
        };
        // The parts of a list travel beside the start, which waits for them at the server.
        for part in listed {
            let session = session.clone();
            tokio::spawn(async move { session.request(Ask::Listed(part).into_bytes()).await });
        }
        self.start(session, start).await?;
        tokio::select! {
            // Whatever was counted as whole when the session ended was not said to be so by the sender.
            biased;
            end = session.ended() => return Err(CopyError::Session(end.into())),
            whole = target.whole() => whole.map_err(CopyError::Far)?,
        }
        if target.sender_failed() {
            // Which files these are, and why, must have come before this ends.
            session.request(Ask::Problems(WireProblems::default()).into_bytes()).await?;
        }
        Ok(())
    }

    /// The list of files in parts that fit a message.
    fn listed(&self) -> Result<Vec<Listed>, CopyError> {
        let mut parts: Vec<Listed> = Vec::new();
        let mut bytes = usize::MAX;
        for path in &self.only {
            let path = crate::source::path_bytes(&path.to_path_buf());
            if bytes.saturating_add(path.len()) > LISTED_BYTES_MAX {
                parts.push(Listed { part: parts.len() as u32, paths: Vec::new() });
                bytes = 0;
            }
            bytes += path.len() + LISTED_PATH_OVERHEAD;
            if let Some(part) = parts.last_mut() {
                part.paths.push(path);
            }
        }
        if parts.len() > LISTED_PARTS_MAX {
            let most = (LISTED_PARTS_MAX * LISTED_BYTES_MAX) >> 20;
            return Err(CopyError::Refused(format!(
                "the list of files is too long: its names may take {most} MiB; divide it"
            )));
        }
        Ok(parts)
    }

    async fn start(&self, session: &Session, start: Start) -> Result<(), CopyError> {
        let reply = session.request(Ask::Start(start).into_bytes()).await?;
        let started = Started::decode(reply).map_err(|_| CopyError::Protocol)?;
        if started.refusal.is_empty() { Ok(()) } else { Err(CopyError::Refused(started.refusal)) }
    }
}

/// Asks the server of `session` for the state of its buffers.
///
/// # Errors
/// As [`Session::request`].
pub async fn far_buffers(session: &Session) -> Result<FarBuffers, CopyError> {
    let reply = session.request(Ask::Watch(Watch {}).into_bytes()).await?;
    let watched = Watched::decode(reply).map_err(|_| CopyError::Protocol)?;
    Ok(FarBuffers {
        socket_bytes: watched.socket_bytes,
        inbox_bytes: watched.inbox_bytes,
        dirty_bytes: watched.dirty_bytes,
        storing_us: watched.storing_us,
        reading_us: watched.reading_us,
        received_bytes: watched.received_bytes,
        past_cache_bytes: watched.past_cache_bytes,
    })
}
