//! Two hosts and the link between them, running.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use crate::driver::held::HeldEngine;
use crate::driver::split::SplitEngine;
use crate::driver::{Driver, DriverGone, DriverHandle, Engine};
use crate::interface::{Interface, bring_up_loopback, create_pair, route_host};
use crate::limits::HELD_FROM_RATE_BPS;
use crate::link::{LinkConfig, LinkPair};
use crate::namespace::{Namespace, NamespaceError};
use crate::nfqueue::PacketQueue;
use crate::report::Report;
use crate::tun::{Tun, TunError};

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Host {
    /// The host of the one who measures.
    Near,
    /// The other one.
    Far,
}

impl Host {
    /// Its name, in `/etc/hosts` of both.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }

    /// Its IPv4 address; the hosts see nothing but each other, so the numbers clash with nobody.
    #[must_use]
    pub fn ipv4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number())
    }

    /// Its IPv6 address.
    #[must_use]
    pub fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(self.number()))
    }

    fn number(self) -> u8 {
        match self {
            Self::Near => 1,
            Self::Far => 2,
        }
    }
}

/// Names of both hosts, as they see each other.
#[must_use]
pub fn host_names() -> [(&'static str, IpAddr); 2] {
    [Host::Near, Host::Far].map(|host| (host.name(), IpAddr::V4(host.ipv4())))
}

/// How packets travel; see [`driver`](crate::driver).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// Held in the kernel where the link is fast and loses nothing on the wire, and the kernel can; else split.
    #[default]
    Auto,
    /// Read from and written to TUN devices, cut where single segments are hit.
    Split,
    /// Held whole in the kernel.
    Held,
}

impl EngineChoice {
    /// Whether to try holding packets in the kernel.
    fn tries_held(self, link: &LinkPair) -> bool {
        let is_fast = |config: &LinkConfig| config.rate_bps.is_none_or(|rate| rate >= HELD_FROM_RATE_BPS);
        match self {
            Self::Auto => can_be_held(link) && (is_fast(&link.forward) || is_fast(&link.backward)),
            Self::Split => false,
            Self::Held => true,
        }
    }
}

/// Whether no segment has a fate of its own.
fn can_be_held(link: &LinkPair) -> bool {
    [&link.forward, &link.backward].iter().all(|config| config.keeps_packets_whole())
}

/// Why a topology did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A host could not be made.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A host has no device.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// The driver could not start.
    #[error("cannot start the packet driver: {0}")]
    Driver(#[from] std::io::Error),
    /// Packets cannot be held in the kernel.
    #[error("cannot hold packets in the kernel: {step}: {source}; `--engine split` does without")]
    Held {
        /// What was being done.
        step: &'static str,
        /// The answer.
        source: std::io::Error,
    },
    /// Segments of a packet that is held whole cannot be lost one by one.
    #[error(
        "what happens to single segments, as loss and jitter, needs packets that can be split: leave out `--engine held`"
    )]
    NotWhole,
}

/// Why a link was not changed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum SetError {
    /// Nobody is there to change it.
    #[error(transparent)]
    Gone(#[from] DriverGone),
    /// The way packets travel is chosen at the start.
    #[error(
        "this network holds packets whole in the kernel, where single segments have no fate of their own; \
         bring it up with `--engine split`"
    )]
    NotWhole,
}

/// Hosts `near` and `far`; they and their link vanish when this is dropped and their processes have ended.
#[derive(Debug)]
pub struct TwoHosts {
    near: Namespace,
    far: Namespace,
    /// Between them, where packets are held in the kernel.
    router: Option<Namespace>,
    driver: DriverHandle,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl TwoHosts {
    /// Makes both hosts and starts the link. Needs the rights to make network namespaces
    /// ([`gain_rights`](crate::namespace::gain_rights)).
    ///
    /// # Errors
    /// [`StartError`]; nothing is left behind.
    pub fn start(link: LinkPair, seed: u64, engine: EngineChoice) -> Result<Self, StartError> {
        if engine == EngineChoice::Held && !can_be_held(&link) {
            return Err(StartError::NotWhole);
        }
        if engine.tries_held(&link) {
            match Self::start_held(link.clone(), seed) {
                Err(error) if engine == EngineChoice::Held => return Err(error),
                // The report names the engine; what is lost is speed alone.
                Err(_) => {}
                started => return started,
            }
        }
        let (near, near_tun) = make_host(Host::Near)?;
        let (far, far_tun) = make_host(Host::Far)?;
        let engine = SplitEngine::new(near_tun, far_tun, &link);
        Self::run(near, far, None, engine, link, seed)
    }

    fn start_held(link: LinkPair, seed: u64) -> Result<Self, StartError> {
        let bare = || Namespace::create(|| drop(bring_up_loopback())).map(|(namespace, ())| namespace);
        let (near, far) = (bare()?, bare()?);
        let (router, queues) = Namespace::create(|| make_router(&near, &far))?;
        let [near_queue, far_queue] = queues?;
        for (host, namespace) in [(Host::Near, &near), (Host::Far, &far)] {
            namespace
                .run(|| address_host(host))?
                .map_err(|source| StartError::Held { step: "set the hosts' addresses", source })?;
        }
        let engine = HeldEngine::new(near_queue, far_queue);
        Self::run(near, far, Some(router), engine, link, seed)
    }

    fn run<E: Engine + Send + 'static>(
        near: Namespace,
        far: Namespace,
        router: Option<Namespace>,
        engine: E,
        link: LinkPair,
        seed: u64,
    ) -> Result<Self, StartError> {
        let (driver, handle) = Driver::new(engine, link, seed)?;
        let thread = std::thread::Builder::new().name("link".into()).spawn(move || driver.run())?;
        Ok(Self { near, far, router, driver: handle, thread: Some(thread) })
    }

    /// The namespace of a host.
    #[must_use]
    pub fn namespace(&self, host: Host) -> &Namespace {
        match host {
            Host::Near => &self.near,
            Host::Far => &self.far,
        }
    }

    /// Starts a command on a host, where both hosts are known by name.
    ///
    /// # Errors
    /// [`NamespaceError`].
    pub fn spawn(&self, host: Host, command: &mut Command) -> Result<Child, NamespaceError> {
        self.namespace(host).spawn(command, &host_names())
    }

    /// Changes the link while it runs.
    ///
    /// # Errors
    /// [`SetError`].
    pub fn set(&self, link: LinkPair) -> Result<(), SetError> {
        if self.router.is_some() && !can_be_held(&link) {
            return Err(SetError::NotWhole);
        }
        Ok(self.driver.set(link)?)
    }

    /// What has happened so far.
    ///
    /// # Errors
    /// [`DriverGone`].
    pub fn report(&self) -> Result<Report, DriverGone> {
        self.driver.report()
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        self.driver.stop();
        if let Some(thread) = self.thread.take() {
            drop(thread.join()); // its result was in the reports
        }
    }
}

fn make_host(host: Host) -> Result<(Namespace, Tun), StartError> {
    let (namespace, tun) = Namespace::create(|| {
        // Without loopback a host is odd but usable: tests of loss on a bare kernel should not fail on it.
        drop(bring_up_loopback());
        Tun::create(HOST_DEVICE, &[(IpAddr::V4(host.ipv4()), 24), (IpAddr::V6(host.ipv6()), 64)])
    })?;
    Ok((namespace, tun?))
}

/// The hosts' network device.
const HOST_DEVICE: &str = "link0";

fn address_host(host: Host) -> std::io::Result<()> {
    let device = Interface::named(HOST_DEVICE)?;
    device.set_ipv4(host.ipv4(), 24)?;
    // A kernel without IPv6 still has a usable IPv4 link.
    drop(device.add_ipv6(&host.ipv6().octets(), 64));
    device.bring_up()
}

/// In the namespace between the hosts: a device to each, and what they send waits in queue 0 (near) or 1 (far).
fn make_router(near: &Namespace, far: &Namespace) -> Result<[PacketQueue; 2], StartError> {
    let failed = |step| move |source| StartError::Held { step, source };
    for (host, namespace) in [(Host::Near, near), (Host::Far, far)] {
        create_pair(host.name(), HOST_DEVICE, namespace.as_fd())
            .map_err(failed("make the hosts' devices"))?;
        Interface::named(host.name()).and_then(|d| d.bring_up()).map_err(failed("bring up a device"))?;
        route_host(host.ipv4().into(), host.name()).map_err(failed("set a route"))?;
    }
    let queues = [PacketQueue::bind(0), PacketQueue::bind(1)];
    let [near_queue, far_queue] = queues.map(|queue| queue.map_err(failed("bind a packet queue (NFQUEUE)")));
    // The rules first: nothing may pass the link by.
    queue_forwarded(IPTABLES).map_err(failed("set the rules with iptables"))?;
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(failed("turn on forwarding"))?;
    // Without its rules, or on a kernel without it, IPv6 just stays off.
    drop(forward_ipv6());
    Ok([near_queue?, far_queue?])
}

fn forward_ipv6() -> std::io::Result<()> {
    queue_forwarded(IP6TABLES)?;
    for host in [Host::Near, Host::Far] {
        route_host(host.ipv6().into(), host.name())?;
    }
    std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")
}

/// The older interface first: kernels without nftables' queue have it, and it disturbs nothing in a namespace of our
/// own.
const IPTABLES: [&str; 2] = ["iptables-legacy", "iptables"];
const IP6TABLES: [&str; 2] = ["ip6tables-legacy", "ip6tables"];

fn queue_forwarded(programs: [&str; 2]) -> std::io::Result<()> {
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for program in programs {
        match [Host::Near, Host::Far].iter().zip(["0", "1"]).try_for_each(|(h, q)| queue_from(program, *h, q))
        {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn queue_from(program: &str, host: Host, queue: &str) -> std::io::Result<()> {
    let rule = ["-w", "-A", "FORWARD", "-i", host.name(), "-j", "NFQUEUE", "--queue-num", queue];
    // Its lock file may be out of reach in a user namespace; there is nobody to lock out.
    let done = Command::new(program).args(rule).env("XTABLES_LOCKFILE", "/dev/null").output()?;
    if done.status.success() {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
}
