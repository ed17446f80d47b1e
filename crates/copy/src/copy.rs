//! A copy as the client starts it: to a server, or from one.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use longhaul_files::RelPath;
use longhaul_transport::Session;
use prost::Message;
use tokio::sync::mpsc;

use crate::destination;
use crate::exclude::Excludes;
use crate::limits::WALKED_ENTRIES_MAX;
use crate::message::{Ask, Direction, Problems as WireProblems, Start, Started, Watch, Watched};
use crate::options::CopyOptions;
use crate::progress::{Problem, Problems, Progress, ProgressNow};
use crate::source::{CopyError, Source};
use crate::station::{OwnFiles, Station};
use crate::target::Target;
use crate::walk::{SourceRoot, Walk};

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

/// What came of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The counters at its end.
    pub progress: ProgressNow,
    /// Bytes that travelled twice.
    pub repeated_bytes: u64,
}

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
        let station = Arc::new(Station::new(Arc::new(OwnFiles), problems.sender(), Arc::clone(&progress)));
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
    pub async fn run(self, session: &Session) -> Result<Outcome, CopyError> {
        match self.job.clone() {
            Job::Push { sources, destination } => self.push(session, &sources, destination).await?,
            Job::Pull { sources, destination } => self.pull(session, &sources, &destination).await?,
        }
        let repeated_bytes = session.sample().repeated_bytes;
        Ok(Outcome { progress: self.progress.now(), repeated_bytes })
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
            only: Vec::new(),
        };
        // The first offers travel with the start: they wait at the server until it has begun.
        let started = self.start(session, start);
        let (out, found) = mpsc::channel(WALKED_ENTRIES_MAX);
        self.walk(roots, out)?;
        let run = source.run(session, found, failures);
        tokio::pin!(started, run);
        tokio::select! {
            // A refusal is the reason why offers are not answered as wanted.
            biased;
            started = &mut started => started?,
            finished = &mut run => {
                started.await?;
                finished?;
                return Ok(());
            }
        }
        run.await.map(drop)
    }

    fn walk(&self, roots: Vec<SourceRoot>, out: mpsc::Sender<crate::walk::Found>) -> Result<(), CopyError> {
        let walk = Walk::new(
            self.options.clone(),
            self.excludes.clone(),
            self.only.clone(),
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
        to: &std::path::Path,
    ) -> Result<(), CopyError> {
        let into = sources.len() > 1 || self.options.into_directory || !self.only.is_empty();
        let destination =
            destination::locate(to).and_then(|(dir, rest)| destination::destination(&dir, rest, into));
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
        let only = self.only.iter().map(|path| crate::source::path_bytes(&path.to_path_buf()));
        let start = Start {
            direction: Direction::Pull.into(),
            paths: sources.iter().map(|path| Bytes::copy_from_slice(path)).collect(),
            options: Some(self.options.clone()),
            many: false,
            only: only.collect(),
        };
        self.start(session, start).await?;
        tokio::select! {
            () = target.whole() => {}
            end = session.ended() => return Err(CopyError::Session(end.into())),
        }
        if target.sender_failed() {
            // Which files these are, and why, must have come before this ends.
            session.request(Ask::Problems(WireProblems::default()).into_bytes()).await?;
        }
        Ok(())
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
    let Watched { socket_bytes, inbox_bytes, dirty_bytes, storing_us, reading_us, received_bytes } = watched;
    Ok(FarBuffers { socket_bytes, inbox_bytes, dirty_bytes, storing_us, reading_us, received_bytes })
}
