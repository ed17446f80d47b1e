//! What there is on this host. Nothing here judges, and nothing here changes the host.
#![allow(unsafe_code)] // adjtimex, fanotify_init and UDP_SEGMENT, which rustix does not cover

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::process::Resource;

/// Everything that is looked at. `None`: it could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) kernel: String,
    pub(crate) is_root: bool,
    pub(crate) cpus: usize,
    /// This is a guest whose CPUs are given up as soon as they have nothing to do: its cpuidle driver could wait, and is told not to.
    pub(crate) halts_at_once: bool,
    /// The kernel has a driver that chooses how CPUs idle. Without one they halt, whatever programs ask.
    pub(crate) has_idle_driver: bool,
    /// Where programs ask that CPUs do not sleep deeply; only root may.
    pub(crate) cpu_latency: Device,
    /// Whether the CPU has instructions for AES.
    pub(crate) has_aes: Option<bool>,
    pub(crate) fuse: Device,
    pub(crate) tun: Device,
    pub(crate) fusermount3: Option<PathBuf>,
    /// The line `user_allow_other` is in /etc/fuse.conf.
    pub(crate) user_allow_other: bool,
    pub(crate) rmem_default: Option<u64>,
    pub(crate) rmem_max: Option<u64>,
    pub(crate) wmem_max: Option<u64>,
    /// Most that TCP takes by itself.
    pub(crate) tcp_rmem_max: Option<u64>,
    pub(crate) tcp_wmem_max: Option<u64>,
    pub(crate) congestion_now: Option<String>,
    pub(crate) congestion_available: Vec<String>,
    /// What those without privileges may choose.
    pub(crate) congestion_allowed: Vec<String>,
    /// Most that this process may have; `u64::MAX`: no limit.
    pub(crate) open_files_hard: u64,
    pub(crate) clock: Clock,
    pub(crate) has_openat2: bool,
    /// Why fanotify cannot be had, if so.
    pub(crate) fanotify: Option<String>,
    pub(crate) has_udp_gso: bool,
}

/// A device that has to be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Device {
    /// It can be.
    Opens,
    /// There is none.
    #[default]
    Missing,
    /// It is there.
    Refused(String),
}

/// Whether the clock is kept right by somebody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Clock {
    /// With an error of so much at the most, as the kernel believes.
    Synchronised { error_us: u64 },
    /// By nobody.
    Free,
    #[default]
    Unknown,
}

impl Host {
    /// Looks at this host.
    pub(crate) fn read() -> Self {
        let net = |name: &str| read(&format!("/proc/sys/net/{name}"));
        let number = |name: &str| net(name).and_then(|text| text.trim().parse().ok());
        let words = |name: &str| {
            net(name).map(|text| text.split_whitespace().map(str::to_owned).collect()).unwrap_or_default()
        };
        let third =
            |name: &str| net(name).and_then(|text| text.split_whitespace().nth(2)?.parse::<u64>().ok());
        Self {
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            is_root: rustix::process::geteuid().is_root(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            halts_at_once: halts_at_once(),
            has_idle_driver: read(IDLE_DRIVER).is_some_and(|name| name.trim() != "none"),
            cpu_latency: open("/dev/cpu_dma_latency"), // asks for nothing as long as nothing is written
            has_aes: read("/proc/cpuinfo").and_then(|text| has_aes(&text)),
            fuse: open("/dev/fuse"),
            tun: open("/dev/net/tun"),
            fusermount3: on_path("fusermount3"),
            user_allow_other: read("/etc/fuse.conf")
                .is_some_and(|text| text.lines().any(|line| line.trim() == "user_allow_other")),
            rmem_default: number("core/rmem_default"),
            rmem_max: number("core/rmem_max"),
            wmem_max: number("core/wmem_max"),
            tcp_rmem_max: third("ipv4/tcp_rmem"),
            tcp_wmem_max: third("ipv4/tcp_wmem"),
            congestion_now: net("ipv4/tcp_congestion_control").map(|text| text.trim().to_owned()),
            congestion_available: words("ipv4/tcp_available_congestion_control"),
            congestion_allowed: words("ipv4/tcp_allowed_congestion_control"),
            open_files_hard: rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
            clock: clock(),
            has_openat2: has_openat2(),
            fanotify: fanotify().err().map(|error| error.to_string()),
            has_udp_gso: has_udp_gso(),
        }
    }
}

impl Host {
    /// What others may know of it: of the kernel no more than what it can, not which of its faults are mended.
    pub(crate) fn for_others(self) -> Self {
        let numbers: Vec<&str> = self.kernel.split(|c: char| !c.is_ascii_digit()).take(2).collect();
        Self { kernel: numbers.join("."), ..self }
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// By the lists of /proc/cpuinfo: `flags` of x86, `Features` of ARM. Other processors have none: unknown.
fn has_aes(cpuinfo: &str) -> Option<bool> {
    let list = cpuinfo.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"))?;
    Some(list.split_whitespace().any(|word| word == "aes"))
}

fn open(path: &str) -> Device {
    match rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) {
        Ok(_) => Device::Opens,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV | rustix::io::Errno::NXIO) => Device::Missing,
        Err(error) => Device::Refused(io::Error::from(error).to_string()),
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Documentation/admin-guide/pm/cpuidle.rst of the kernel.
const IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

/// Documentation/virt/guest-halt-polling.rst of the kernel.
fn halts_at_once() -> bool {
    let is = |path: &str, what: &str| read(path).is_some_and(|text| text.trim() == what);
    is(IDLE_DRIVER, "haltpoll") && is("/sys/module/haltpoll/parameters/guest_halt_poll_ns", "0")
}

fn has_openat2() -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(rustix::fs::CWD, Path::new("."), flags, Mode::empty(), ResolveFlags::BENEATH).is_ok()
}

fn clock() -> Clock {
    // SAFETY: zeros are a `timex`, with no mode set: nothing is changed.
    let mut now: libc::timex = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: `now` is a whole `timex` that outlives the call.
    let state = unsafe { libc::adjtimex(&raw mut now) };
    match state {
        -1 => Clock::Unknown,
        libc::TIME_ERROR => Clock::Free,
        _ if now.status & libc::STA_UNSYNC != 0 => Clock::Free,
        _ => Clock::Synchronised { error_us: u64::try_from(now.maxerror).unwrap_or(0) },
    }
}

/// As the server asks for it.
fn fanotify() -> io::Result<()> {
    let reports = libc::FAN_REPORT_DIR_FID | libc::FAN_REPORT_NAME | libc::FAN_REPORT_FID;
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | reports;
    // SAFETY: it takes numbers alone.
    let fd = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as libc::c_uint) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and belongs to nobody else.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

fn has_udp_gso() -> bool {
    let Ok(socket) = UdpSocket::bind("127.0.0.1:0") else { return false };
    let (mut size, mut length) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: `size` is a `c_int`, as `length` says, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw mut size).cast(),
            &raw mut length,
        )
    };
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_can_be_looked_at() {
        let host = Host::read();
        assert!(host.cpus > 0 && host.kernel.contains('.') && host.open_files_hard > 0, "{host:?}");
        assert_eq!(open("/no/such/device"), Device::Missing);
    }

    #[test]
    fn others_learn_what_a_kernel_can_and_not_how_old_it_is() {
        let kernel = |kernel: &str| Host { kernel: kernel.to_owned(), ..Host::default() }.for_others().kernel;
        assert_eq!(kernel("6.1.0-18-amd64"), "6.1");
        assert_eq!(kernel("6.18-rc3"), "6.18");
        assert_eq!(kernel(""), "");
    }

    #[test]
    fn processors_tell_what_they_can() {
        assert_eq!(has_aes("processor : 0\nflags\t\t: fpu aes avx\n"), Some(true));
        assert_eq!(has_aes("flags : fpu vaes\n"), Some(false));
        assert_eq!(has_aes("Features\t: fp asimd aes\n"), Some(true));
        assert_eq!(has_aes("processor : 0\n"), None);
    }
}
