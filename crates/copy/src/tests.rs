//! Copies over loopback, with one end that does not keep to the rules.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use longhaul_files::{Access, Dir, Name, RelPath};
use longhaul_transport::identity::{HostTrust, Identity, PublicKey};
use longhaul_transport::session::{
    ConnectOptions, ControlChoice, Door, LaneSettings, Refused, Server, ServerOptions, connect,
};
use longhaul_transport::{Extent, Handler, Pieces, Session, Stored, Withdrawn};
use prost::Message;

use crate::message::{
    Ask, Direction, End, Failed, Finished, Offer, Start, Started, Want, Wants, WireEntry, WireKind,
};
use crate::station::Station;
use crate::{Copy, CopyError, CopyOptions, Job, Problem, Writing, far_buffers};

/// An end of a session that does what a test tells it to, and has no bytes.
struct Scripted<F>(F);

type Reply = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

impl<F: Fn(Session, Ask) -> Reply + Send + Sync + 'static> Pieces for Scripted<F> {
    fn fill(&self, _: u64, _: u64, _: &mut [std::io::IoSliceMut<'_>]) -> Result<(), Withdrawn> {
        Err(Withdrawn)
    }

    fn delivered(&self, _: Extent) {}

    fn declined(&self, _: Extent) {}

    fn store(&self, _: u64, _: u64, _: &[u8], _: u64) -> Stored {
        Stored::Kept
    }
}

impl<F: Fn(Session, Ask) -> Reply + Send + Sync + 'static> Handler for Scripted<F> {
    fn request(
        self: Arc<Self>,
        session: Session,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = Bytes> + Send + 'static>> {
        let reply = self.0(session, Ask::from_bytes(body).unwrap());
        Box::pin(async { reply.await.into() })
    }
}

/// Lets everybody in.
struct Open<F>(F);

impl<F: Fn() -> Arc<dyn Handler> + Send + Sync + 'static> Door for Open<F> {
    fn admit(&self, _: PublicKey, _: SocketAddr, _: &str) -> Result<Arc<dyn Handler>, Refused> {
        Ok(self.0())
    }
}

/// All below one directory.
struct Below(PathBuf);

impl Access for Below {
    fn resolve(&self, path: &[u8], _: bool) -> Result<(Dir, RelPath), String> {
        Ok((Dir::open_confined(&self.0, "export".into()).unwrap(), RelPath::new(path).unwrap()))
    }
}

/// A server on loopback whose sessions have the handlers that `make` makes, and a client's way to it.
fn server(make: impl Fn() -> Arc<dyn Handler> + Send + Sync + 'static) -> ConnectOptions {
    let identity = Identity::ephemeral();
    let host_key = identity.public();
    let listen = "127.0.0.1:0".parse().unwrap();
    let options = ServerOptions { listen, identity, lanes: LaneSettings::default() };
    let server = Server::bind(options, Open(make)).unwrap();
    let address = server.address();
    tokio::spawn(async move { server.run().await });
    ConnectOptions {
        host: "far".into(),
        addresses: vec![address],
        identity: Identity::ephemeral(),
        trust: HostTrust::Pinned(host_key),
        service: "copies",
        control: ControlChoice::Auto,
        lanes: LaneSettings::default(),
    }
}

fn scripted_server(script: impl Fn(Session, Ask) -> Reply + Send + Sync + Clone + 'static) -> ConnectOptions {
    server(move || Arc::new(Scripted(script.clone())))
}

fn server_of(dir: &Path) -> ConnectOptions {
    let dir = dir.to_owned();
    server(move || Station::server(Arc::new(Below(dir.clone()))))
}

/// What came of a client's copy, and what it told.
async fn copy(to: ConnectOptions, job: Job, options: CopyOptions) -> (Result<(), CopyError>, Vec<Problem>) {
    let (copy, mut told) = Copy::prepare(job, options, Vec::new()).unwrap();
    let session = connect(to, copy.handler()).await.unwrap();
    let result = tokio::time::timeout(LIMIT, copy.run(&session)).await.expect("it ends");
    session.close().await;
    let mut problems = Vec::new();
    while let Ok(problem) = told.try_recv() {
        problems.push(problem);
    }
    (result, problems)
}

fn pull(path: &str, to: &Path) -> Job {
    Job::Pull { sources: vec![path.into()], in_exports: false, destination: to.to_owned() }
}

fn recursive() -> CopyOptions {
    CopyOptions { recursive: true, ..CopyOptions::default() }
}

fn encoded(message: impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

fn start(direction: Direction, path: &Path) -> Ask {
    Ask::Start(Start {
        direction: direction.into(),
        paths: vec![crate::source::path_bytes(path)],
        options: Some(recursive()),
        many: false,
        listed_parts: 0,
    })
}

fn entry(id: u64, name: &str, kind: WireKind, size: u64) -> WireEntry {
    let name = Bytes::copy_from_slice(name.as_bytes());
    WireEntry { id, name, kind: kind.into(), size, mode: 0o644, ..WireEntry::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_cannot_start_a_copy_at_its_client() {
    let temp = tempfile::tempdir().unwrap();
    let secret = temp.path().join("secret");
    std::fs::write(&secret, "precious").unwrap();
    let answers = Arc::<Mutex<Vec<Started>>>::default();
    let seen = Arc::clone(&answers);
    let path = temp.path().to_owned();
    let to = scripted_server(move |session, ask| {
        let (seen, path) = (Arc::clone(&seen), path.clone());
        Box::pin(async move {
            if !matches!(ask, Ask::Start(_)) {
                return Vec::new();
            }
            for direction in [Direction::Pull, Direction::Push] {
                let reply = session.request(start(direction, &path.join("secret")).into_bytes()).await;
                seen.lock().unwrap().push(Started::decode(reply.unwrap()).unwrap());
            }
            tokio::spawn(session.close());
            encoded(Started::default())
        })
    });
    // A client whose part has not begun: it waits for nothing but requests.
    let (waiting, _told) = Copy::prepare(pull("x", temp.path()), recursive(), Vec::new()).unwrap();
    let session = connect(to, waiting.handler()).await.unwrap();
    session.request(start(Direction::Pull, Path::new("x")).into_bytes()).await.ok();
    session.ended().await;
    let answers = answers.lock().unwrap();
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|started| !started.refusal.is_empty()), "{answers:?}");
    assert_eq!(std::fs::read(&secret).unwrap(), b"precious");
}

/// Longer than anything here takes on a slow machine.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_whose_session_ends_early_has_failed() {
    let temp = tempfile::tempdir().unwrap();
    let (copy, _told) = Copy::prepare(pull("x", temp.path()), CopyOptions::default(), Vec::new()).unwrap();
    let progress = copy.progress();
    let to = scripted_server(move |session, ask| {
        let progress = Arc::clone(&progress);
        Box::pin(async move {
            if matches!(ask, Ask::Start(_)) {
                tokio::spawn(async move {
                    let entries = vec![entry(1, "x", WireKind::File, 100)];
                    session.request(Ask::Offer(Offer { number: 0, entries }).into_bytes()).await.ok();
                    // The file never comes, but its end is told.
                    let end = session.clone();
                    tokio::spawn(async move {
                        end.request(Ask::End(End { offers: 1, ..End::default() }).into_bytes()).await
                    });
                    let found = async {
                        while !progress.all_found.load(Ordering::Relaxed) {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    };
                    tokio::time::timeout(LIMIT, found).await.expect("the end of what was offered");
                    session.close().await;
                });
            }
            encoded(Started::default())
        })
    });
    let session = connect(to, copy.handler()).await.unwrap();
    let result = tokio::time::timeout(LIMIT, copy.run(&session)).await.expect("it ends");
    assert!(matches!(result, Err(CopyError::Session(_))), "{result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_cannot_go_on_says_so() {
    let temp = tempfile::tempdir().unwrap();
    let to = scripted_server(|session, ask| {
        Box::pin(async move {
            if matches!(ask, Ask::Start(_)) {
                let end = End { failure: "its disk is gone".into(), ..End::default() };
                tokio::spawn(async move { session.request(Ask::End(end).into_bytes()).await });
            }
            encoded(Started::default())
        })
    });
    let (result, _) = copy(to, pull("x", temp.path()), CopyOptions::default()).await;
    assert_eq!(result, Err(CopyError::Far("its disk is gone".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_without_the_receiver_s_word_has_failed() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("x"), "").unwrap();
    let to = scripted_server(|_, ask| {
        Box::pin(async move {
            match ask {
                Ask::Start(_) => encoded(Started::default()),
                Ask::Offer(offer) => {
                    let wants = vec![Want::Nothing.into(); offer.entries.len()];
                    encoded(Wants { wants, ..Wants::default() })
                }
                // To the end: nothing, as if it were not understood.
                _ => Vec::new(),
            }
        })
    });
    let job = Job::Push { sources: vec![temp.path().join("x")], destination: b"x".to_vec() };
    let (result, _) = copy(to, job, CopyOptions::default()).await;
    assert_eq!(result, Err(CopyError::Abandoned));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_takes_only_what_was_asked_for() {
    let temp = tempfile::tempdir().unwrap();
    let answers = Arc::<Mutex<Vec<i32>>>::default();
    let seen = Arc::clone(&answers);
    let to = scripted_server(move |session, ask| {
        let seen = Arc::clone(&seen);
        Box::pin(async move {
            if matches!(ask, Ask::Start(_)) {
                tokio::spawn(async move {
                    let entries = vec![
                        entry(1, "asked", WireKind::File, 0),
                        entry(2, "not asked", WireKind::File, 0),
                        WireEntry { hard_link_to: 1, ..entry(3, "asked", WireKind::File, 0) },
                        entry(4, "asked", WireKind::Fifo, 0),
                        entry(5, "asked", WireKind::Dir, 0),
                        entry(6, "", WireKind::Dir, 0),
                    ];
                    let reply = session.request(Ask::Offer(Offer { number: 0, entries }).into_bytes()).await;
                    *seen.lock().unwrap() = Wants::decode(reply.unwrap()).unwrap().wants;
                    let end = End { offers: 1, ..End::default() };
                    session.request(Ask::End(end).into_bytes()).await.ok();
                });
            }
            encoded(Started::default())
        })
    });
    let (result, problems) = copy(to, pull("asked", temp.path()), CopyOptions::default()).await;
    assert!(result.is_ok(), "{result:?}");
    let mut expected = vec![i32::from(Want::Cannot); 6];
    expected[0] = Want::Nothing.into();
    assert_eq!(*answers.lock().unwrap(), expected);
    assert_eq!(problems.len(), 5, "{problems:?}");
    let names: Vec<_> = std::fs::read_dir(temp.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["asked"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_a_file_that_failed_is_not_linked_to_what_was_there() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("first"), "of old").unwrap();
    let to = server_of(temp.path());
    let client = Scripted(|_: Session, _: Ask| -> Reply { Box::pin(async { Vec::new() }) });
    let session = connect(to, Arc::new(client)).await.unwrap();
    let ask = async |ask: Ask| session.request(ask.into_bytes()).await.unwrap();
    let options = CopyOptions { hard_links: true, ..recursive() };
    let begin = Start { options: Some(options), paths: vec![Bytes::from_static(b".")], ..Start::default() };
    assert_eq!(Started::decode(ask(Ask::Start(begin)).await).unwrap(), Started::default());
    let entries = vec![
        WireEntry { has_hard_links: true, ..entry(1, "first", WireKind::File, 1 << 20) },
        WireEntry { hard_link_to: 1, ..entry(2, "second", WireKind::File, 0) },
    ];
    let wants = Wants::decode(ask(Ask::Offer(Offer { number: 0, entries })).await).unwrap();
    assert_eq!(wants.wants, [i32::from(Want::All), i32::from(Want::Nothing)]);
    ask(Ask::Failed(Failed { files: vec![1] })).await;
    let end = End { offers: 1, ..End::default() };
    let finished = Finished::decode(ask(Ask::End(end)).await).unwrap();
    assert_eq!(finished, Finished { whole: true, problems: 1 });
    assert!(!temp.path().join("second").exists());
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_is_too_deep_is_a_problem_and_no_crash() {
    let temp = tempfile::tempdir().unwrap();
    let (from, to) = (temp.path().join("from"), temp.path().join("to"));
    std::fs::create_dir_all(&to).unwrap();
    std::fs::create_dir_all(from.join("tree")).unwrap();
    let name = Name::new(b"d").unwrap();
    let mut dir = Dir::open_path(&from.join("tree")).unwrap();
    for _ in 0..longhaul_files::limits::DEPTH_MAX + 10 {
        dir.make_dir(&name, 0o700).unwrap();
        dir = dir.child(name.clone());
    }
    let job = Job::Push { sources: vec![from.join("tree")], destination: b".".to_vec() };
    let (result, problems) = copy(server_of(&to), job, recursive()).await;
    assert!(result.is_ok(), "{result:?}");
    let reasons: Vec<_> = problems.iter().map(|problem| &problem.reason).collect();
    assert!(reasons.len() == 1 && reasons[0].contains("directories deep"), "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_sources_of_one_name_the_second_is_told_and_not_copied() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    for dir in ["a", "b", "a/d", "b/d", "to"] {
        std::fs::create_dir(at(dir)).unwrap();
    }
    for (file, text) in [("a/f", "first"), ("b/f", "second"), ("a/d/x", "x"), ("b/d/y", "y")] {
        std::fs::write(at(file), text).unwrap();
    }
    let sources = ["a/f", "a/d", "b/f", "b/d"].map(at).to_vec();
    let job = Job::Push { sources, destination: b"to".to_vec() };
    let (result, problems) = copy(server_of(temp.path()), job, recursive()).await;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(std::fs::read(at("to/f")).unwrap(), b"first");
    // Directories of one name become one.
    assert!(at("to/d/x").exists() && at("to/d/y").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_unfinished_copies_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let to = server_of(temp.path());
    let client = Scripted(|_: Session, _: Ask| -> Reply { Box::pin(async { Vec::new() }) });
    let session = connect(to, Arc::new(client)).await.unwrap();
    let ask = async |ask: Ask| session.request(ask.into_bytes()).await.unwrap();
    let begin =
        Start { options: Some(recursive()), paths: vec![Bytes::from_static(b".")], ..Start::default() };
    assert_eq!(Started::decode(ask(Ask::Start(begin.clone())).await).unwrap(), Started::default());
    // One copy a session.
    assert_ne!(Started::decode(ask(Ask::Start(begin)).await).unwrap(), Started::default());
    let entries = vec![entry(1, ".longhaul-0123456789abcdef-0.journal", WireKind::File, 0)];
    let wants = Wants::decode(ask(Ask::Offer(Offer { number: 0, entries })).await).unwrap();
    assert_eq!(wants.wants, [i32::from(Want::Cannot)]);
    session.close().await;
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_tells_what_it_has_stored_past_its_page_cache() {
    // On the disk of the build: /tmp may be memory.
    let temp = tempfile::tempdir_in(".").unwrap();
    let bytes = crate::limits::DIRECT_FILE_MIN;
    let from = temp.path().join("from");
    std::fs::write(&from, vec![7; bytes as usize]).unwrap();
    for (writing, past_cache) in [(Writing::Direct, bytes), (Writing::Buffered, 0)] {
        let job = Job::Push { sources: vec![from.clone()], destination: format!("{writing:?}").into() };
        let options = CopyOptions { writing: writing.into(), ..CopyOptions::default() };
        let (copy, _told) = Copy::prepare(job, options, Vec::new()).unwrap();
        let session = connect(server_of(temp.path()), copy.handler()).await.unwrap();
        copy.run(&session).await.unwrap();
        assert_eq!(far_buffers(&session).await.unwrap().past_cache_bytes, past_cache, "{writing:?}");
        session.close().await;
    }
}
