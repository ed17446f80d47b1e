use longhaul_transport::Stored;

use super::*;
use crate::client::fake::{serve, serve_storing};
use crate::client::{Change, SetTime, User};
use crate::message::{Ask, Attached, Attr, Created, Grant, Node, Nothing, Opened, Reply, Slot, TOP};

/// What a server was asked in each session that matters here, and that session.
#[derive(Default)]
struct Asked {
    session: Option<Session>,
    /// Nor does its answer to what comes after it.
    is_silent: bool,
    what: Vec<Vec<&'static str>>,
}

/// A server that has stored what was written, and whose word of it gets lost with the session.
fn say(asked: &mut Asked, session: Session, ask: Ask, slot: Slot) -> Option<Reply> {
    let attr = Attr { node: 7, ..Attr::default() };
    let first = asked.what.len() == 1;
    let lease = |serial| vec![Grant { node: 7, serial }];
    let last = asked.what.last_mut();
    Some(match ask {
        Ask::Attach(_) => {
            (asked.session, _) = (Some(session), asked.what.push(Vec::new()));
            Reply::new(Ok(Attached { may_reclaim: true, ..Attached::default() }), Vec::new())
        }
        Ask::Create(_) => Reply::new(Ok(Created { node: Node { attr, dir: None }, exclusive: 1 }), lease(1)),
        Ask::Open(_) => {
            Reply::new(Ok(Opened { attr: Some(attr), exclusive: 2, ..Opened::default() }), lease(2))
        }
        Ask::Write(_) => {
            last?.push("write");
            (!first).then(|| Reply::new(Ok(Written::default()), Vec::new()))?
        }
        Ask::SetAttr(_) => {
            last?.push(if slot.again { "answered" } else { "set" });
            (!first || !asked.is_silent).then(|| Reply::new(Ok(attr), Vec::new()))?
        }
        _ => Reply::new(Ok(Nothing {}), Vec::new()),
    })
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let poll = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), poll).await.expect(what);
}

#[tokio::test]
async fn what_comes_after_a_write_does_so_in_the_next_session_too() {
    for is_silent in [false, true] {
        what_comes_after_a_write(is_silent).await;
    }
}

async fn what_comes_after_a_write(is_silent: bool) {
    let asked = Arc::new(Mutex::new(Asked { is_silent, ..Asked::default() }));
    let by_server = Arc::clone(&asked);
    let way =
        Arc::new(serve(Arc::new(move |session, ask, slot| say(&mut lock(&by_server), session, ask, slot))));
    let (session, client) = (way.session().await, Arc::clone(&way.client));
    let remote = Remote::attach(session, client, b"", Some(way)).await.unwrap();
    until("a lease", || remote.statistics().lease_ms > 0).await;
    let (flags, user) = (OFlags::CREATE | OFlags::RDWR, User { uid: 0, gid: 0 });
    let (_, file, _) = remote.create(TOP, b"f", 0o644, flags, user).await.unwrap();
    assert!(remote.write_at_once(file, 0, b"words", HowWritten::default()));
    let setting = tokio::spawn({
        let remote = remote.clone();
        let change = Change { file, modified: Some(SetTime::Now), ..Change::default() };
        async move { remote.set_attr(7, change).await }
    });
    let is_answered = || remote.statistics().operations.iter().any(|operation| operation.name == "SetAttr");
    let is_asked = || lock(&asked).what[0].len() == 2;
    until("both at the server", || is_asked() && (is_silent || is_answered())).await;
    let session = lock(&asked).session.take();
    session.unwrap().close().await;
    setting.await.unwrap().unwrap();
    let mut what = std::mem::take(&mut lock(&asked).what);
    if is_silent {
        what[1].sort_unstable_by_key(|what| *what != "write"); // sent together, with their order
    }
    assert_eq!(what[1..], [["write", "set"]], "{what:?}");
}

/// What a server has been sent of a write of [`LONG`] bytes.
#[derive(Default)]
struct Sent {
    session: Option<Session>,
    sessions: u32,
    /// By the lanes, and in messages: begins and ends.
    pieces: Vec<(u64, u64)>,
    parts: Vec<(u64, u64)>,
    /// Numbers of writes that were asked for.
    settled: Vec<Option<u32>>,
}

const LONG: u64 = 300_000;

/// What is there before the server takes no more.
const STORED: [u64; 4] = [0, 65_536, 200_000, 200_100];

const MISSING: [(u64, u64); 2] = [(65_536, 200_000), (200_100, LONG)];

/// Writes over the lanes to a server that does not answer it, or refuses it because of pages; then it says what of it is there.
async fn write_long(is_refused: bool) -> Sent {
    let sent = Arc::new(Mutex::new(Sent::default()));
    let (by_server, by_lanes) = (Arc::clone(&sent), Arc::clone(&sent));
    let says = move |session, ask, _| {
        let attr = Attr { node: 7, ..Attr::default() };
        let mut sent = lock(&by_server);
        Some(match ask {
            Ask::Attach(_) => {
                (sent.session, sent.sessions) = (Some(session), sent.sessions + 1);
                Reply::new(Ok(Attached { may_reclaim: true, ..Attached::default() }), Vec::new())
            }
            Ask::Open(_) => Reply::new(Ok(Opened { attr: Some(attr), ..Opened::default() }), Vec::new()),
            Ask::Settle(ask) => {
                sent.settled.push(ask.write);
                Reply::new(Ok(Settled { stored: STORED.into(), meets_pages: is_refused }), Vec::new())
            }
            Ask::Write(write) => {
                sent.parts.push((write.offset, write.offset + write.data.len() as u64));
                Reply::new(Ok(Written::default()), Vec::new())
            }
            _ => Reply::new(Ok(Nothing {}), Vec::new()),
        })
    };
    let runtime = tokio::runtime::Handle::current();
    let stores = move |object, offset, data: &[u8]| {
        if is_refused {
            return Stored::Unwanted;
        }
        let mut sent = lock(&by_lanes);
        if write_of(object).1 == 0 {
            // The session is lost, and this is not answered before.
            if sent.sessions == 1
                && let Some(session) = sent.session.take()
            {
                runtime.spawn(session.close());
            }
            drop(sent);
            let begun = std::time::Instant::now();
            while lock(&by_lanes).sessions == 1 && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(5));
            }
            return Stored::Kept;
        }
        sent.pieces.push((offset, offset + data.len() as u64));
        Stored::Kept
    };
    let way = Arc::new(serve_storing(Arc::new(says), Arc::new(stores)));
    let (session, client) = (way.session().await, Arc::clone(&way.client));
    let remote = Remote::attach(session, client, b"", Some(way)).await.unwrap();
    let (file, _) = remote.open(7, OFlags::WRONLY | OFlags::SYNC).await.unwrap();
    let data = remote.buffer(&vec![1; LONG as usize]);
    let writing = remote.write(file, 0, data, HowWritten::default());
    tokio::time::timeout(Duration::from_secs(30), writing).await.unwrap().unwrap();
    let sent = std::mem::take(&mut *lock(&sent));
    assert_eq!(sent.sessions, if is_refused { 1 } else { 2 }, "lost while it was written, or not");
    sent
}

fn covers(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut set = RangeSet::default();
    ranges.iter().for_each(|(start, end)| set.insert(*start, *end));
    set.iter().collect()
}

#[tokio::test]
async fn what_a_server_has_of_a_write_is_not_sent_to_the_next() {
    let Sent { pieces, parts, settled, .. } = write_long(false).await;
    assert_eq!(covers(&pieces), MISSING);
    assert_eq!((parts, settled), (vec![], vec![Some(0)]));
}

#[tokio::test]
async fn what_a_server_has_of_a_write_that_meets_pages_is_not_sent_again_in_messages() {
    let Sent { pieces, parts, settled, .. } = write_long(true).await;
    assert_eq!(covers(&parts), MISSING);
    assert_eq!((pieces, settled), (vec![], vec![Some(0)]));
}

/// Bytes that are kept of a block after it was written in short calls to a server that takes it all, or all but its beginning, and what
/// flush said.
async fn kept_of_a_block(is_refused: bool) -> (u64, Result<(), Errno>) {
    let ends = Arc::new(Mutex::new(Vec::new()));
    let asked = Mutex::new(Asked::default());
    let says = move |session, ask, slot| match ask {
        Ask::Settle(_) => Some(Reply::new(Ok(Settled::default()), Vec::new())),
        ask => say(&mut lock(&asked), session, ask, slot),
    };
    let by_lanes = Arc::clone(&ends);
    let stores = move |_, offset, data: &[u8]| {
        lock(&by_lanes).push(offset + data.len() as u64);
        if is_refused && offset == 0 { Stored::Unwanted } else { Stored::Kept }
    };
    let way = Arc::new(serve_storing(Arc::new(says), Arc::new(stores)));
    let (session, client) = (way.session().await, Arc::clone(&way.client));
    let remote = Remote::attach(session, client, b"", Some(way)).await.unwrap();
    until("a lease", || remote.statistics().lease_ms > 0).await;
    let (flags, user) = (OFlags::CREATE | OFlags::RDWR, User { uid: 0, gid: 0 });
    let (_, file, _) = remote.create(TOP, b"f", 0o644, flags, user).await.unwrap();
    // The server takes nothing before all is written.
    let held = lock(&ends);
    for offset in (0..BLOCK).step_by(8 << 10) {
        assert!(remote.write_at_once(file, offset, &[1; 8 << 10], HowWritten::default()));
    }
    drop(held);
    let flushed = remote.flush(file).await;
    let pieces = [128 << 10, 384 << 10, BLOCK];
    assert!(pieces.iter().all(|end| lock(&ends).contains(end)), "{:?}", lock(&ends));
    (remote.statistics().kept_bytes, flushed)
}

#[tokio::test]
async fn a_block_that_has_gone_ahead_in_pieces_is_kept_if_all_of_them_are_stored() {
    assert_eq!(kept_of_a_block(false).await, (BLOCK, Ok(())));
    assert_eq!(kept_of_a_block(true).await, (0, Err(Errno::IO)));
}
