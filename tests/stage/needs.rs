//! What a test needs of the machine, and what happens where it is missing.
//!
//! A test begins with `require!(Need::Root, Need::Sshd)`. Where something is missing the test does not run, and a line
//!
//! ```text
//! SKIPPED <test>: needs <what>; <how to get it>
//! ```
//!
//! goes to standard error and is appended to the file that `LONGHAUL_SKIPS` names (default:
//! `target/skipped-tests.txt`), for whoever runs the tests to print at the end. With `CI` or `LONGHAUL_REQUIRE_ALL` set
//! it fails instead: there nothing may be skipped in silence, but for what only another kernel brings.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Something that not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Requests to the kernel's power management.
    CpuLatency,
    /// Two hosts and a link between them.
    Emulator,
    /// File systems of programs' own.
    Fuse,
    /// Mounts, other users, namespaces of other processes.
    Root,
    /// A user without rights, who can run this build.
    Nobody,
    Iperf3,
    Iptables,
    /// The kernel's own emulator.
    Netem,
    Ping,
    Ss,
    Sqlite,
    Sshd,
    Strace,
    /// Extended attributes of users on the scratch disk.
    UserXattrs,
}

/// What is missing, and how to get it.
type Lack = (&'static str, &'static str);

impl Need {
    fn lack(self) -> Option<Lack> {
        match self {
            Self::CpuLatency => (!Path::new("/dev/cpu_dma_latency").exists()).then_some((
                "/dev/cpu_dma_latency",
                "run outside of a container that keeps it from programs",
            )),
            Self::Emulator => {
                static WORKS: OnceLock<bool> = OnceLock::new();
                let works = *WORKS.get_or_init(emulator_works);
                (!works).then_some((
                    "network namespaces and /dev/net/tun",
                    "run as root, or let users make namespaces and open /dev/net/tun",
                ))
            }
            Self::Fuse => (!Path::new("/dev/fuse").exists())
                .then_some(("/dev/fuse", "load the kernel's module with modprobe fuse")),
            Self::Root => (!is_root()).then_some(("root", "run the tests as root")),
            Self::Nobody => match (is_root(), has("setpriv")) {
                (false, _) => Some(("root, to become another user", "run the tests as root")),
                (true, false) => Some(("setpriv", "install with apt-get install util-linux")),
                (true, true) => (!nobody_can_run(super::LONGHAUL)).then_some((
                    "a build that user `nobody` can reach",
                    "put CARGO_TARGET_DIR where all users can read",
                )),
            },
            Self::Iperf3 => (!(has("iperf3") && has("unshare") && has("nsenter")))
                .then_some(("iperf3, unshare and nsenter", "install with apt-get install iperf3 util-linux")),
            Self::Iptables => {
                (!has("iptables")).then_some(("iptables", "install with apt-get install iptables"))
            }
            Self::Netem => (!succeeds(
                Command::new(super::LONGHAUL)
                    .args(["emulate", "run", "--engine", "netem", "--rtt", "1ms", "--quiet", "--", "true"]),
            ))
            .then_some((
                "a kernel with netem (sch_netem), and tc",
                "run where there is one, such as a User Mode Linux guest, with apt-get install iproute2",
            )),
            Self::Ping => (!has("ping")).then_some(("ping", "install with apt-get install iputils-ping")),
            Self::Ss => (!has("ss")).then_some(("ss", "install with apt-get install iproute2")),
            Self::Sqlite => (!has("sqlite3")).then_some(("sqlite3", "install with apt-get install sqlite3")),
            Self::Sshd => (!(Path::new(super::SSHD).exists() && has("ssh") && has("ssh-keygen")))
                .then_some(("sshd and ssh", "install with apt-get install openssh-server")),
            Self::Strace => (!has("strace")).then_some(("strace", "install with apt-get install strace")),
            Self::UserXattrs => (!scratch_takes_xattrs()).then_some((
                "setfattr, getfattr and a disk with user xattrs",
                "install with apt-get install attr",
            )),
        }
    }
}

/// `require!(Need::Root)`: returns from the test, with a word on why, where something is missing.
macro_rules! require {
    ($($need:expr),+) => {{
        fn here() {}
        let test = std::any::type_name_of_val(&here).trim_end_matches("::here");
        if !$crate::stage::needs::met(test, &[$($need),+]) {
            return;
        }
    }};
}

/// Whether `test` can run.
///
/// # Panics
/// Where it cannot and nothing may be skipped.
pub(crate) fn met(test: &str, needs: &[Need]) -> bool {
    let Some((need, (what, remedy))) = needs.iter().find_map(|need| Some((need, need.lack()?))) else {
        return true;
    };
    let test = test.split_once("::").map_or(test, |(_crate, path)| path);
    let line = format!("SKIPPED {test}: needs {what}; {remedy}\n");
    let must = ["CI", "LONGHAUL_REQUIRE_ALL"].iter().any(|name| std::env::var_os(name).is_some());
    // No package brings another kernel: what depends on it is named among the skipped, wherever that is.
    assert!(!must || matches!(need, Need::Netem), "{line}");
    let list = std::env::var_os("LONGHAUL_SKIPS")
        .map_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("../skipped-tests.txt"), PathBuf::from);
    // Past the test harness, which shows the words of failed tests only.
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    let list = std::fs::OpenOptions::new().append(true).create(true).open(list);
    list.and_then(|mut list| list.write_all(line.as_bytes())).unwrap();
    false
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|dir| dir.join(program).is_file())
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// A named network, as every stage has one: it needs more than `emulate run` on a link that is simple enough.
fn emulator_works() -> bool {
    let name = format!("test-probe-{}", std::process::id());
    let emulate = |verb: &str| succeeds(Command::new(super::LONGHAUL).args(["emulate", verb, &name]));
    let works = emulate("up");
    emulate("down") && works
}

fn nobody_can_run(program: &str) -> bool {
    succeeds(super::as_nobody(Command::new("setpriv")).args([program, "--version"]))
}

fn scratch_takes_xattrs() -> bool {
    let Ok(file) = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")) else { return false };
    has("getfattr") && succeeds(Command::new("setfattr").args(["-n", "user.x", "-v", "y"]).arg(file.path()))
}
