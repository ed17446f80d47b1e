//! Two hosts, a long link between them, a server and a client: where the tests play.

#[macro_use]
pub(crate) mod needs;
pub(crate) mod process;
pub(crate) mod tree;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use needs::Need;
use process::{Ended, Running};

/// The program under test.
pub(crate) const LONGHAUL: &str = env!("CARGO_BIN_EXE_longhaul");

pub(crate) const SSHD: &str = "/usr/sbin/sshd";

/// Where the server listens: host `far`, the port that is the default.
pub(crate) const LISTEN: &str = "10.77.0.2:7473";

/// Tests that move hundreds of megabytes run alone, the others side by side.
static TURNS: RwLock<()> = RwLock::new(());

/// Held as long as a test plays.
#[derive(Default)]
pub(crate) struct Turn {
    _alone: Option<RwLockWriteGuard<'static, ()>>,
    _shared: Option<RwLockReadGuard<'static, ()>>,
}

impl Turn {
    /// For a test that keeps the machine busy.
    pub(crate) fn alone() -> Self {
        let alone = Some(TURNS.write().unwrap_or_else(PoisonError::into_inner));
        Self { _alone: alone, ..Self::default() }
    }

    /// For any other; not twice in one thread, which may wait for somebody who waits for it.
    pub(crate) fn shared() -> Self {
        let shared = Some(TURNS.read().unwrap_or_else(PoisonError::into_inner));
        Self { _shared: shared, ..Self::default() }
    }
}

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Near,
    Far,
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Push,
    Pull,
}

/// A link under a name of its own, and scratch directories: `near` of the client, `far` of the server. Dropped, all
/// of it goes away.
pub(crate) struct Stage {
    name: String,
    dir: tempfile::TempDir,
    words: AtomicU32,
    _turn: Turn,
}

impl Stage {
    /// A stage for a test that keeps the machine busy, which then has it for itself. `link` as for `emulate up`.
    pub(crate) fn alone(link: &str) -> Self {
        Self::new(link, Turn::alone())
    }

    /// A stage beside others.
    pub(crate) fn shared(link: &str) -> Self {
        Self::new(link, Turn::shared())
    }

    fn new(link: &str, turn: Turn) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{number}", std::process::id());
        let dir = tempfile::Builder::new().prefix("whole-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // Other users take part in some tests.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let stage = Self { name, dir, words: AtomicU32::new(0), _turn: turn };
        for directory in ["near", "far", "home", "config"] {
            std::fs::create_dir(stage.path(directory)).unwrap();
        }
        stage.do_emulate(&["up", &stage.name], link);
        stage.make_keys();
        stage
    }

    /// A client's key, and a server's list with it.
    fn make_keys(&self) {
        let made = self.longhaul(&["key", "generate", "-f"]).arg(self.path("client")).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let line = std::fs::read_to_string(self.path("client.pub")).unwrap();
        std::fs::write(self.path("authorized_keys"), format!("user=\"root\" {line}")).unwrap();
    }

    /// A path in the scratch directory.
    pub(crate) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(below)
    }

    /// The program on this machine, with directories of the stage's own for its settings.
    pub(crate) fn longhaul(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(LONGHAUL);
        command.args(arguments).env("HOME", self.path("home")).env("XDG_CONFIG_HOME", self.path("config"));
        command
    }

    fn do_emulate(&self, words: &[&str], link: &str) {
        let mut command = self.longhaul(&["emulate"]);
        let output = command.args(words).args(link.split_whitespace()).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "emulate {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Changes the link; see `emulate set`.
    pub(crate) fn set_link(&self, change: &str) {
        self.do_emulate(&["set", &self.name], change);
    }

    /// A command on a host. Its process is the one that is started: killing it kills the command.
    pub(crate) fn on(&self, host: Host, program: impl AsRef<OsStr>) -> Command {
        let host = match host {
            Host::Near => "near",
            Host::Far => "far",
        };
        let mut command = self.longhaul(&["emulate", "exec", &self.name, host, "--"]);
        command.arg(program);
        command
    }

    /// Starts a command; its words are kept in the scratch directory.
    pub(crate) fn start(&self, command: &mut Command) -> Running {
        let number = self.words.fetch_add(1, Ordering::Relaxed);
        Running::start(command, &self.path(format!("words-{number}")))
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, command: &mut Command) -> Ended {
        self.start(command).wait()
    }

    /// A server of `data`, the directory `far`.
    pub(crate) fn serve(&self) -> Running {
        self.serve_with(&[])
    }

    /// A server of `data` with more arguments, ready for clients.
    pub(crate) fn serve_with(&self, arguments: &[&str]) -> Running {
        let mut command = self.on(Host::Far, LONGHAUL);
        command.args(self.serve_arguments()).args(arguments);
        let mut server = self.start(&mut command);
        server.wait_to_say("host key");
        server
    }

    /// Of that server.
    pub(crate) fn serve_arguments(&self) -> Vec<OsString> {
        let export = format!("data={}", self.path("far").display());
        let (keys, host_key) = (self.path("authorized_keys"), self.path("host_key"));
        let mut arguments: Vec<OsString> =
            ["serve", "--listen", LISTEN, "--export", &export].map(Into::into).into();
        arguments.extend(["--authorized-keys".into(), keys.into(), "--host-key".into(), host_key.into()]);
        arguments
    }

    /// A server of `data` that something is done to on request.
    pub(crate) fn serve_and_restart(&self) -> Tended {
        self.tend(Host::Far, LONGHAUL, self.serve_arguments(), "host key", None)
    }

    /// A program that something is done to on request, by somebody on its host; `mount`: it mounts something there. To run
    /// a program closes what is open here, and tells the server: where files on a mount are open, only somebody who has
    /// none can start a server that is gone, or wake a mount.
    pub(crate) fn tend(
        &self,
        host: Host,
        program: &str,
        arguments: Vec<OsString>,
        ready: &str,
        mount: Option<&Path>,
    ) -> Tended {
        const TENDER: &str = r#"
            mount=$1; shift
            "$@" &
            while read -r signal pause; do
                case $signal in
                STOP) kill -STOP $!; sleep "$pause"; kill -CONT $! ;;
                *)
                    kill -"$signal" $!; wait $!
                    if test "$mount"; then umount -l "$mount"; fi
                    sleep "$pause"; "$@" & ;;
                esac
            done
            kill -TERM $!; wait $!"#;
        let number = self.words.fetch_add(1, Ordering::Relaxed);
        let words = self.path(format!("words-{number}"));
        let mut command = self.on(host, "sh");
        command.args(["-c", TENDER, "sh"]).arg(mount.unwrap_or(Path::new(""))).arg(program).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(std::fs::File::create(&words).unwrap());
        let tended = Tended { tender: command.spawn().unwrap(), words };
        process::wait_for("a program", process::LIMIT, || tended.said().contains(ready).then_some(()));
        tended
    }

    /// A client on host `near`, which still lacks sources and destination.
    pub(crate) fn cp(&self, arguments: &[&str]) -> Command {
        self.cp_as("client", arguments)
    }

    /// As [`cp`](Self::cp), with the key in another file.
    pub(crate) fn cp_as(&self, key: &str, arguments: &[&str]) -> Command {
        let mut command = self.on(Host::Near, LONGHAUL);
        command.arg("cp").arg("-i").arg(self.path(key));
        command.arg("--known-hosts").arg(self.path("known_hosts"));
        command.args(arguments);
        command
    }

    /// Copies what is called `name` from `near` to `far` or back, into a place of the same name.
    pub(crate) fn copy(&self, way: Way, arguments: &[&str], name: &str) -> Command {
        let mut command = self.cp(arguments);
        let far = format!("longhaul://far/data/{name}");
        match way {
            Way::Push => command.arg(self.path("near").join(name)).arg(far),
            Way::Pull => command.arg(far).arg(self.path("near").join(name)),
        };
        command
    }

    /// The directory that a copy reads from.
    pub(crate) fn source(&self, way: Way) -> PathBuf {
        self.path(if way == Way::Push { "near" } else { "far" })
    }

    /// The directory that a copy writes to.
    pub(crate) fn target(&self, way: Way) -> PathBuf {
        self.path(if way == Way::Push { "far" } else { "near" })
    }

    /// What the link has carried from the sender of a copy to its receiver.
    pub(crate) fn carried(&self, way: Way) -> Carried {
        let mut command = self.longhaul(&["emulate", "show", &self.name, "--json"]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let counters = &report[if way == Way::Push { "forward" } else { "backward" }]["counters"];
        let count = |name: &str| counters[name].as_u64().unwrap();
        Carried {
            bytes: count("bytes"),
            lost: count("dropped_queue") + count("lost"),
            corrupted: count("corrupted"),
        }
    }

    /// Waits until a copy has sent so many bytes more than `before`, while it runs.
    pub(crate) fn wait_until_carried(&self, way: Way, before: Carried, bytes: u64, copy: &mut Running) {
        process::wait_for(&format!("{bytes} bytes on the link"), process::LIMIT, || {
            assert!(!copy.has_ended(), "the copy was over too early; it said:\n{}", copy.said());
            (self.carried(way).bytes - before.bytes >= bytes).then_some(())
        });
    }
}

/// See [`Stage::tend`].
pub(crate) struct Tended {
    tender: std::process::Child,
    words: PathBuf,
}

impl Tended {
    /// Ends the program with a signal, and starts it again after some seconds; or, with `STOP`, has it stand still for so
    /// long.
    pub(crate) fn signal(&self, signal: &str, pause: f64) {
        writeln!(self.tender.stdin.as_ref().unwrap(), "{signal} {pause}").unwrap();
    }

    /// Kills the program, and starts it again after some seconds; it is dead when this returns.
    pub(crate) fn kill(&self, pause: f64) {
        let children = || {
            let tender = self.tender.id();
            std::fs::read_to_string(format!("/proc/{tender}/task/{tender}/children")).unwrap()
        };
        let program = children();
        self.signal("KILL", pause);
        process::wait_for("its death", process::LIMIT, || (children() != program).then_some(()));
    }

    /// What all of them have said.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.words).unwrap_or_default()
    }

    /// Of somebody who sees what the program sees, as long as this lives.
    pub(crate) fn pid(&self) -> u32 {
        self.tender.id()
    }
}

impl Drop for Tended {
    fn drop(&mut self) {
        drop(self.tender.stdin.take());
        let _ = self.tender.wait();
        if std::thread::panicking() {
            eprintln!("the programs said:\n{}", self.said());
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Also while a failed test unwinds: say nothing that would hide its reason.
        let _ = self.longhaul(&["emulate", "down", &self.name]).stderr(Stdio::null()).status();
    }
}

/// Counters of one direction of the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    /// With the headers of IP and TCP.
    pub(crate) bytes: u64,
    /// Packets, which TCP sends again.
    pub(crate) lost: u64,
    /// Packets.
    pub(crate) corrupted: u64,
}

/// Makes `setpriv` run what follows as user `nobody`.
pub(crate) fn as_nobody(mut setpriv: Command) -> Command {
    setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--"]);
    setpriv
}

/// Gives a path, and all below it, to user `nobody`.
pub(crate) fn give_to_nobody(path: &Path) {
    let status = Command::new("chown").args(["-hR", "65534:65534"]).arg(path).status().unwrap();
    assert!(status.success());
}
