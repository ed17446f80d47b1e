//! What a host's facts mean for longhaul. Pure.

use longhaul_transport::limits::LANES_MAX;

use super::host::{Clock, Device, Host};
use super::{Finding, Job};
use crate::units::{show_rate, show_size};

/// All checks, in the order in which they are shown.
pub(crate) fn all(host: &Host) -> Vec<Finding> {
    [
        kernel,
        fanotify,
        fuse,
        allow_other,
        tun,
        tcp_send,
        tcp_receive,
        congestion,
        udp_buffers,
        udp_gso,
        open_files,
        clock,
        aes,
        cpus,
        idle_cpus,
    ]
    .into_iter()
    .map(|check| check(host))
    .collect()
}

/// `6.1.0-18-amd64` as (6, 1).
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel(host: &Host) -> Finding {
    let what = format!("Linux {}", host.kernel);
    if !host.has_openat2 {
        let why =
            "paths of exports are walked by openat2(2), which came with Linux 5.6 and some containers forbid";
        let todo = "run Linux 5.6 or later, or allow openat2 in the container's seccomp profile";
        return Finding::fine("kernel", what, why).stops(&[Job::Cp, Job::Serve], todo);
    }
    match version(&host.kernel) {
        None => Finding::fine("kernel", what, "its version says what it can").unknown(),
        Some(version) if version < (6, 15) => Finding::fine(
            "kernel",
            what,
            "before 6.15 a lane may wait up to 120 s between two retransmissions, and not 2 s: after an outage of minutes it \
             goes on that much later",
        )
        .slower("nothing is needed but on links that go down for minutes: there, Linux 6.15"),
        Some(_) => Finding::fine("kernel", what, "has openat2, and lanes that try again every 2 s after an outage"),
    }
}

fn fanotify(host: &Host) -> Finding {
    let why = "by fanotify a server learns what others change in its exports; without it no mount may keep anything, and each \
               look at a name costs a round trip: a thousand names 100 ms away take 100 s and not some tenths of a second";
    match &host.fanotify {
        None => Finding::fine(
            "fanotify",
            "can be had",
            "a server here learns what others change, and mounts may keep what they know",
        ),
        Some(error) => Finding::fine("fanotify", format!("cannot be had: {error}"), why)
            .slower("for `serve`: Linux 5.13, or as root 5.9; allow fanotify_init in the container"),
    }
}

fn fuse(host: &Host) -> Finding {
    let why = "mounts are made by FUSE";
    match &host.fuse {
        Device::Missing => Finding::fine("FUSE", "there is no /dev/fuse", why)
            .stops(&[Job::Mount], "modprobe fuse; in a container: --device /dev/fuse"),
        Device::Refused(error) => Finding::fine("FUSE", format!("/dev/fuse: {error}"), why)
            .stops(&[Job::Mount], "let this user open it: mode 0666 on most systems, or be root"),
        Device::Opens if !host.is_root && host.fusermount3.is_none() => {
            Finding::fine("FUSE", "there is no fusermount3", "without root it makes the mount")
                .stops(&[Job::Mount], "install Debian's package fuse3")
        }
        Device::Opens => Finding::fine("FUSE", "/dev/fuse opens", why),
    }
}

fn allow_other(host: &Host) -> Finding {
    let why = "without root a mount is seen by its user alone unless /etc/fuse.conf has this line";
    match (host.is_root, host.user_allow_other) {
        (true, _) => {
            Finding::fine("user_allow_other", "not needed by root", "root's mounts may be seen by all")
        }
        (_, true) => Finding::fine("user_allow_other", "set", "mounts may be seen by others: -o allow_other"),
        _ => Finding::fine("user_allow_other", "not set", why)
            .slower("where others shall use your mounts: the line user_allow_other in /etc/fuse.conf"),
    }
}

fn tun(host: &Host) -> Finding {
    let why = "packets of emulated links go through TUN interfaces";
    let todo = "modprobe tun; in a container: --device /dev/net/tun";
    match &host.tun {
        Device::Opens => Finding::fine("TUN", "/dev/net/tun opens", why),
        Device::Missing => Finding::fine("TUN", "there is no /dev/net/tun", why).stops(&[Job::Emulate], todo),
        Device::Refused(error) => Finding::fine("TUN", format!("/dev/net/tun: {error}"), why)
            .stops(&[Job::Emulate], "let this user open it: mode 0666 on most systems, or be root"),
    }
}

/// Round-trip times that figures are given for.
const RTTS_MS: [u64; 3] = [10, 100, 300];

/// What a lane of this window carries, and how many it takes.
fn by_window(window_bytes: u64) -> String {
    let rate = |ms: u64| window_bytes.saturating_mul(8 * 1000) / ms;
    let each: Vec<String> =
        RTTS_MS.iter().map(|ms| format!("{} at {ms} ms", show_rate(rate(*ms) as f64))).collect();
    let lanes = |bps: u64, ms: u64| bps.div_ceil(rate(ms).max(1));
    format!(
        "one connection carries window / RTT: {}; longhaul opens as many as the path needs, at least {} for 1 Gbit/s x 300 ms and {} \
         for 10 Gbit/s x 300 ms (it has {LANES_MAX} at the most)",
        each.join(", "),
        lanes(1_000_000_000, 300),
        lanes(10_000_000_000, 300)
    )
}

/// Whether as many lanes as a session may have fill 10 Gbit/s x 300 ms.
fn is_wide(window_bytes: u64) -> bool {
    window_bytes.saturating_mul(LANES_MAX as u64) >= 10_000_000_000 / 8 * 3 / 10
}

/// What a lane's socket asks for (`wmem_max`) is doubled by the kernel (socket(7)); others take what TCP takes by itself.
fn send_buffer(tcp_wmem_max: u64, wmem_max: Option<u64>) -> u64 {
    tcp_wmem_max.max(wmem_max.unwrap_or(0).saturating_mul(2))
}

/// Payload of it, which is 0.7.
pub(super) fn send_window(tcp_wmem_max: u64, wmem_max: Option<u64>) -> u64 {
    send_buffer(tcp_wmem_max, wmem_max).saturating_mul(7) / 10
}

/// Seen on Linux 6.18 with full-sized segments: two thirds of the buffer become the window.
pub(super) fn receive_window(tcp_rmem_max: u64) -> u64 {
    tcp_rmem_max / 3 * 2
}

pub(super) const WIDER_SEND_BUFFER: &str = "sysctl -w net.ipv4.tcp_wmem='4096 16384 33554432'";
pub(super) const WIDER_RECEIVE_BUFFER: &str = "sysctl -w net.ipv4.tcp_rmem='4096 131072 33554432'";

fn tcp_send(host: &Host) -> Finding {
    let (Some(wmem_max), Some(autotuned)) = (host.wmem_max, host.tcp_wmem_max) else {
        return Finding::fine("TCP send buffer", "not known", "it bounds what one connection sends")
            .unknown();
    };
    let buffer = send_buffer(autotuned, Some(wmem_max));
    let window = send_window(autotuned, Some(wmem_max));
    let what = format!("up to {} a connection, {} of it payload", show_size(buffer), show_size(window));
    let finding = Finding::fine("TCP send buffer", what, by_window(window));
    if is_wide(window) {
        return finding;
    }
    finding.slower(WIDER_SEND_BUFFER)
}

fn tcp_receive(host: &Host) -> Finding {
    let Some(most) = host.tcp_rmem_max else {
        return Finding::fine("TCP receive buffer", "not known", "it bounds what one connection receives")
            .unknown();
    };
    let window = receive_window(most);
    let what = format!("up to {} a connection, {} of it window", show_size(most), show_size(window));
    let finding = Finding::fine("TCP receive buffer", what, by_window(window));
    if is_wide(window) {
        return finding;
    }
    finding.slower(WIDER_RECEIVE_BUFFER)
}

/// What one stream carries that halves its window at each loss: M. Mathis, J. Semke, J. Mahdavi, T. Ott, "The macroscopic
/// behavior of the TCP congestion avoidance algorithm", 1997, with 1448 bytes a packet.
fn mathis_bps(rtt_s: f64, loss: f64) -> f64 {
    1448.0 * 8.0 / rtt_s * (1.5 / loss).sqrt()
}

fn congestion(host: &Host) -> Finding {
    let in_use = host.congestion_now.clone().unwrap_or_else(|| "unknown".to_owned());
    let available = host.congestion_available.join(" ");
    let what = format!("{in_use} in use; there are {available}");
    let is_allowed =
        host.is_root || host.congestion_allowed.iter().any(|name| name == "bbr") || in_use == "bbr";
    let has_bbr = host.congestion_available.iter().any(|name| name == "bbr");
    if has_bbr && is_allowed {
        return Finding::fine(
            "congestion control",
            what,
            "lanes use BBR, which keeps its rate where packets are lost at random",
        );
    }
    let rate = mathis_bps(0.1, 0.001);
    let why = format!(
        "lanes use CUBIC: with 0.1 % of random loss at 100 ms one carries about {} (Mathis' rate), and 1 Gbit/s takes {:.0} of them",
        show_rate(rate),
        (1e9 / rate).ceil()
    );
    let todo = if has_bbr {
        "as root: sysctl -w net.ipv4.tcp_allowed_congestion_control='reno cubic bbr', or net.ipv4.tcp_congestion_control=bbr"
    } else {
        "as root: modprobe tcp_bbr"
    };
    Finding::fine("congestion control", what, why).slower(todo)
}

/// A program that shares its CPU comes to its turn within about this.
const TURN_MS: f64 = 2.0;

fn udp_buffers(host: &Host) -> Finding {
    let (Some(default), Some(rmem_max), Some(wmem_max)) = (host.rmem_default, host.rmem_max, host.wmem_max)
    else {
        return Finding::fine("UDP buffers", "not known", "what comes while nobody reads has to fit")
            .unknown();
    };
    let ms_at = |bytes: u64, bps: f64| bytes as f64 * 8e3 / bps;
    let what = format!(
        "receive {} unless asked, at most {}; send at most {}",
        show_size(default),
        show_size(rmem_max),
        show_size(wmem_max)
    );
    let why = format!(
        "the control channel (QUIC) takes what it gets unasked, {:.1} ms at 1 Gbit/s, which small messages need not; a measurement with UDP asks for \
         the most: {:.1} ms at 1 Gbit/s and {:.2} ms at 10. Who is not woken in time loses packets that the network has carried",
        ms_at(default, 1e9),
        ms_at(rmem_max, 1e9),
        ms_at(rmem_max, 1e10)
    );
    let finding = Finding::fine("UDP buffers", what, why);
    if ms_at(rmem_max, 1e10) >= TURN_MS {
        return finding;
    }
    finding
        .slower("to measure above some Gbit/s: sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304")
}

fn udp_gso(host: &Host) -> Finding {
    if host.has_udp_gso {
        let why = "up to 64 UDP packets cross into the kernel by one call";
        return Finding::fine("UDP segmentation (GSO)", "the kernel has it", why);
    }
    let why = "each UDP packet is a call of its own: 10 Gbit/s in packets of 1500 bytes are 813,000 calls a second, and not 13,000";
    Finding::fine("UDP segmentation (GSO)", "the kernel does not have it", why)
        .slower("for UDP above 1 or 2 Gbit/s: Linux 4.18 or later")
}

/// Descriptors of a session at a server, as measured with a thousand mounts.
const DESCRIPTORS_A_SESSION: u64 = 16;
/// A copy with all lanes, its files and directories.
const DESCRIPTORS_WANTED: u64 = 1024;

fn open_files(host: &Host) -> Finding {
    let most = host.open_files_hard;
    let what =
        if most == u64::MAX { "no limit".to_owned() } else { format!("{most} for a process (ulimit -Hn)") };
    let sessions = most / DESCRIPTORS_A_SESSION;
    let why = format!(
        "a session has {DESCRIPTORS_A_SESSION} descriptors at a server, and a copy up to {LANES_MAX} lanes and its files: room for {} mounts",
        if most == u64::MAX { "any number of".to_owned() } else { format!("about {sessions}") }
    );
    let finding = Finding::fine("open files", what, why);
    if most >= DESCRIPTORS_WANTED {
        return finding;
    }
    finding.slower("ulimit -Hn 524288; for a unit of systemd: LimitNOFILE=524288")
}

fn clock(host: &Host) -> Finding {
    let why = "`cp --update` compares times that two hosts have written: with clocks apart it may keep the older file. Leases count durations \
               and do not need it";
    match host.clock {
        Clock::Synchronised { error_us } => {
            let what = format!("synchronised, within {:.1} ms", error_us as f64 / 1e3);
            Finding::fine("clock", what, "times of files can be compared with those of other hosts")
        }
        Clock::Free => Finding::fine("clock", "not synchronised", why)
            .slower("run chrony or systemd-timesyncd (timedatectl set-ntp true)"),
        Clock::Unknown => Finding::fine("clock", "the kernel does not tell", why).unknown(),
    }
}

fn aes(host: &Host) -> Finding {
    match host.has_aes {
        Some(true) => Finding::fine(
            "AES instructions",
            "the CPU has them",
            "encryption costs less than the copies do",
        ),
        Some(false) => Finding::fine(
            "AES instructions",
            "the CPU does not have them",
            "without them encryption costs more than all the rest and is the limit; `openssl speed -evp aes-128-gcm` tells what a core seals",
        )
        .slower("in a virtual machine: pass the host's CPU through (-cpu host)"),
        None => Finding::fine("AES instructions", "not known", "the speed of encryption depends on it").unknown(),
    }
}

fn cpus(host: &Host) -> Finding {
    let what = if host.cpus == 1 { "1 CPU".to_owned() } else { format!("{} CPUs", host.cpus) };
    let why = "two CPUs carried 10.8 Gbit/s with both ends of a copy on them, from memory to disk: one end takes about a CPU for each 10 Gbit/s";
    let finding = Finding::fine("CPUs", what, why);
    if host.cpus > 1 {
        return finding;
    }
    finding.slower("for more than some Gbit/s: two CPUs")
}

fn idle_cpus(host: &Host) -> Finding {
    let why = "each call on a mount wakes the mount's process, and that the program";
    if !host.has_idle_driver {
        let what =
            "halt at once: this kernel has no driver for idle CPUs, so that mounts cannot keep them awake";
        return Finding::fine("idle CPUs", what, why).slower(
            "in a virtual machine, for small calls on mounts, as root: modprobe cpuidle-haltpoll force=1",
        );
    }
    if host.cpu_latency == Device::Opens {
        let what = "kept awake by mounts, while programs make many short calls";
        return Finding::fine("idle CPUs", what, why);
    }
    if !host.halts_at_once {
        return Finding::fine(
            "idle CPUs",
            "sleep as the kernel sees fit; root's mounts keep them awake",
            why,
        );
    }
    let why = format!(
        "{why}; a CPU that was given up is slow to wake. Calls of 8 KiB wrote 522 to 720 Mbit/s over 1 Gbit/s on such a machine, and 803 to 851 \
         when its CPUs waited; longer calls hardly notice"
    );
    Finding::fine("idle CPUs", "haltpoll, with guest_halt_poll_ns 0: given up to the hypervisor at once", why).slower(
        "for small calls on mounts, mount as root, who can keep CPUs awake (/dev/cpu_dma_latency), or let them wait, as root: \
         echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns",
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{State, works};
    use super::*;

    /// Nothing to complain about.
    fn host() -> Host {
        Host {
            kernel: "6.18.1".to_owned(),
            is_root: false,
            cpus: 2,
            halts_at_once: false,
            has_idle_driver: true,
            cpu_latency: Device::Refused("Permission denied (os error 13)".to_owned()),
            has_aes: Some(true),
            fuse: Device::Opens,
            tun: Device::Opens,
            fusermount3: Some(PathBuf::from("/usr/bin/fusermount3")),
            user_allow_other: true,
            rmem_default: Some(212_992),
            rmem_max: Some(4 << 20),
            wmem_max: Some(4 << 20),
            tcp_rmem_max: Some(32 << 20),
            tcp_wmem_max: Some(4 << 20),
            congestion_now: Some("cubic".to_owned()),
            congestion_available: vec!["cubic".to_owned(), "bbr".to_owned()],
            congestion_allowed: vec!["bbr".to_owned()],
            open_files_hard: 524_288,
            clock: Clock::Synchronised { error_us: 1500 },
            has_openat2: true,
            fanotify: None,
            has_udp_gso: true,
        }
    }

    #[test]
    fn a_good_host_has_nothing_to_do() {
        for finding in all(&host()) {
            assert_eq!((finding.state, finding.todo.clone()), (State::Fine, None), "{finding:?}");
        }
        assert!(Job::ALL.into_iter().all(|job| works(&all(&host()), job)));
    }

    #[test]
    fn each_lack_stops_its_jobs_and_no_others() {
        let stopped = |change: &dyn Fn(&mut Host)| {
            let mut host = host();
            change(&mut host);
            let findings = all(&host);
            let bad: Vec<&Finding> = findings.iter().filter(|finding| finding.state != State::Fine).collect();
            assert!(bad.len() == 1 && bad[0].todo.is_some(), "{bad:?}");
            Job::ALL.into_iter().filter(|job| !works(&findings, *job)).collect::<Vec<_>>()
        };
        assert_eq!(stopped(&|host| host.has_openat2 = false), [Job::Cp, Job::Serve]);
        assert_eq!(stopped(&|host| host.fuse = Device::Missing), [Job::Mount]);
        assert_eq!(stopped(&|host| host.fuse = Device::Refused("no".to_owned())), [Job::Mount]);
        assert_eq!(stopped(&|host| host.fusermount3 = None), [Job::Mount]);
        assert_eq!(stopped(&|host| host.tun = Device::Missing), [Job::Emulate]);
        let slower: [&dyn Fn(&mut Host); 12] = [
            &|host| host.kernel = "5.10.0-30-amd64".to_owned(),
            &|host| host.fanotify = Some("no".to_owned()),
            &|host| host.user_allow_other = false,
            &|host| host.tcp_rmem_max = Some(212_992),
            &|host| host.congestion_allowed = Vec::new(),
            &|host| host.rmem_max = Some(212_992),
            &|host| host.has_udp_gso = false,
            &|host| host.open_files_hard = 256,
            &|host| host.clock = Clock::Free,
            &|host| host.cpus = 1,
            &|host| host.halts_at_once = true,
            &|host| host.has_idle_driver = false,
        ];
        for change in slower {
            assert!(stopped(change).is_empty());
        }
        let root = Host { is_root: true, fusermount3: None, user_allow_other: false, ..host() };
        assert!(all(&root).iter().all(|finding| finding.state == State::Fine), "root needs neither");
    }

    #[test]
    fn figures_follow_from_what_was_read() {
        let send = tcp_send(&host());
        // Twice 4 MiB, 0.7 of it: 5.6 MiB; at 300 ms 157 Mbit/s.
        assert!(send.what.contains("5.60 MiB") || send.what.contains("5.6 MiB"), "{}", send.what);
        assert!(send.why.contains("157 Mbit/s at 300 ms"), "{}", send.why);
        assert!(send.why.contains("at least 7 for 1 Gbit/s x 300 ms and 64 for 10 Gbit/s"), "{}", send.why);
        let buffers = udp_buffers(&host());
        assert!(buffers.why.contains("33.6 ms at 1 Gbit/s and 3.36 ms at 10"), "{}", buffers.why);
        // 1448 x 8 / 0.1 x sqrt(1500) = 4.49 Mbit/s.
        assert!((mathis_bps(0.1, 0.001) / 1e6 - 4.487).abs() < 0.01);
        let without = congestion(&Host { congestion_available: Vec::new(), ..host() });
        assert!(without.why.contains("takes 223 of them"), "{}", without.why);
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("odd"), None);
    }

    #[test]
    fn what_could_not_be_read_is_called_unknown() {
        let unknown = Host {
            has_aes: None,
            rmem_max: None,
            tcp_rmem_max: None,
            tcp_wmem_max: None,
            clock: Clock::Unknown,
            ..host()
        };
        let count = all(&unknown).iter().filter(|finding| finding.state == State::Unknown).count();
        assert_eq!(count, 5);
        let huge = Host { tcp_rmem_max: Some(u64::MAX), tcp_wmem_max: Some(0), wmem_max: Some(0), ..host() };
        assert!(!all(&huge).is_empty(), "no arithmetic fails");
    }
}
