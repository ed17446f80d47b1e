//! Many clients of one server.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use longhaul_files::{FilesClient, Remote};
use longhaul_transport::Session;
use longhaul_transport::identity::{HostTrust, Identity, PublicKey};
use longhaul_transport::limits::{HANDSHAKES_PER_SOURCE_MAX, SESSIONS_PER_KEY_MAX};
use longhaul_transport::session::{ConnectOptions, ControlChoice, LaneSettings, connect};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;

use crate::stage::process::{LIMIT, Running, wait_for};
use crate::stage::{LONGHAUL, Turn};

const SESSIONS: usize = 1000;

/// Files that each of them knows, and has read.
const FILES: usize = 100;

/// Of the server's memory, each session. It is named in ARCHITECTURE.md.
const BYTES_PER_SESSION: u64 = 1 << 20;

/// Of each end: a session has 16 at the server, with two processors.
const DESCRIPTORS: u64 = 18 * SESSIONS as u64;

/// Sessions that begin at a time. All come from one address, and each has up to three handshakes under way on a slow machine:
/// QUIC, TCP beside it, and a lane, which may take longer than the rest. Together they stay below what a server takes
/// from one source.
const BEGINNING: usize = HANDSHAKES_PER_SOURCE_MAX / 12;

/// Bytes of a process's memory that is no file.
fn memory(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Lets this process, and what it starts, open so many files. Root may go beyond the limit that it was given.
fn may_open(files: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum.map(|most| most.max(files));
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .unwrap_or_else(|error| panic!("{files} open files are needed (`ulimit -Hn`): {error}"));
}

/// A session has threads for each processor, and descriptors for each thread: with two it is the same on all machines. Holds
/// for this thread and for what it starts, threads and programs.
fn use_two_processors() {
    let this_thread = Pid::from_raw(0);
    let all = sched_getaffinity(this_thread).unwrap();
    let mut two = CpuSet::new();
    let may_use = (0..CpuSet::count()).filter(|number| all.is_set(*number).unwrap_or(false));
    may_use.take(2).for_each(|number| two.set(number).unwrap());
    sched_setaffinity(this_thread, &two).unwrap();
}

async fn mount(address: SocketAddr, identity: Identity, host_key: PublicKey) -> (Session, Remote) {
    let client = FilesClient::new(16 << 20, None);
    let lanes = LaneSettings { lanes: Some(1), ..LaneSettings::default() };
    let options = || ConnectOptions {
        host: "here".to_owned(),
        addresses: vec![address],
        identity: identity.clone(),
        trust: HostTrust::Pinned(host_key),
        service: "files",
        control: ControlChoice::Auto,
        lanes,
    };
    // A machine that stands still for longer than a connection may take is not what is tested.
    let begun = Instant::now();
    let session = loop {
        match connect(options(), client.clone()).await {
            Ok(session) => break session,
            Err(error) => assert!(begun.elapsed() < LIMIT, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let remote = Remote::attach(session.clone(), client, b"data", None).await.unwrap();
    (session, remote)
}

/// Looks at all files, and reads them.
async fn use_files(remote: &Remote) {
    for number in 0..FILES {
        let attr = remote.look_up(longhaul_files::TOP, format!("f{number}").as_bytes()).await.unwrap();
        let (opened, _) = remote.open(attr.node, rustix::fs::OFlags::RDONLY).await.unwrap();
        let read = remote.read(opened, 0, 100).await.unwrap();
        assert_eq!(read, number.to_string());
        remote.close(opened);
    }
}

fn serve(dir: &Path, keys: &[Identity]) -> (Running, SocketAddr, PublicKey) {
    let rights = if rustix::process::geteuid().is_root() { "user=\"root\" " } else { "" };
    let line = |key: &Identity| format!("{rights}{}\n", key.public().to_openssh());
    let lines: Vec<String> = keys.iter().map(line).collect();
    fs::write(dir.join("authorized_keys"), lines.concat()).unwrap();
    let mut command = Command::new(LONGHAUL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--export"]);
    command.arg(format!("data={}", dir.join("far").display()));
    command.arg("--authorized-keys").arg(dir.join("authorized_keys"));
    command.arg("--host-key").arg(dir.join("host_key"));
    let mut server = Running::start(&mut command, &dir.join("server"));
    server.wait_to_say("host key");
    let said = server.said();
    let address = said.split_once(" on ").unwrap().1.split_whitespace().next().unwrap();
    let key = fs::read_to_string(dir.join("host_key.pub")).unwrap();
    (server, address.parse().unwrap(), PublicKey::from_openssh(&key).unwrap())
}

#[test]
fn a_thousand_mounts_of_one_server_take_a_bounded_part_of_its_memory() {
    let _turn = Turn::alone();
    may_open(DESCRIPTORS);
    use_two_processors();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("far")).unwrap();
    for number in 0..FILES {
        fs::write(dir.path().join(format!("far/f{number}")), number.to_string()).unwrap();
    }
    let keys: Vec<Identity> =
        (0..SESSIONS.div_ceil(SESSIONS_PER_KEY_MAX)).map(|_| Identity::ephemeral()).collect();
    let (server, address, host_key) = serve(dir.path(), &keys);
    let pid = server.pid().as_raw();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let before = (memory(pid), descriptors(pid));
        let mut beginning = JoinSet::new();
        let mut mounts = Vec::new();
        for number in 0..SESSIONS {
            if beginning.len() >= BEGINNING {
                mounts.push(beginning.join_next().await.unwrap().unwrap());
            }
            let identity = keys[number / SESSIONS_PER_KEY_MAX].clone();
            beginning.spawn(async move {
                let mounted = mount(address, identity, host_key).await;
                use_files(&mounted.1).await;
                mounted
            });
        }
        mounts.extend(beginning.join_all().await);
        assert_eq!(mounts.len(), SESSIONS);
        let each = (memory(pid) - before.0) / SESSIONS as u64;
        eprintln!("{} KiB and {} descriptors each", each >> 10, (descriptors(pid) - before.1) / SESSIONS);
        assert!(each < BYTES_PER_SESSION, "{each} bytes each");
        // All are served: what one changes, another sees.
        let (first, last) = (&mounts[0].1, &mounts[SESSIONS - 1].1);
        let attr = first.look_up(longhaul_files::TOP, b"f7").await.unwrap();
        let change = longhaul_files::client::Change { mode: Some(0o640), ..Default::default() };
        last.set_attr(attr.node, change).await.unwrap();
        assert_eq!(first.attr(attr.node).await.unwrap().mode & 0o777, 0o640);
        for (session, remote) in mounts {
            remote.stop();
            session.close().await;
        }
        // And when they have gone, nothing is left but what the allocator keeps.
        wait_for("the last descriptor to be closed", LIMIT, || {
            (descriptors(pid) <= before.1 + 8).then_some(())
        });
    });
    server.stop().expect(0);
}
