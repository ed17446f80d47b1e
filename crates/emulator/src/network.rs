//! Hosts and the links between them, running.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::JoinHandle;

use crate::capture::{Capture, Tap};
use crate::dice::Dice;
use crate::driver::held::HeldEngine;
use crate::driver::split::SplitEngine;
use crate::driver::{Driver, DriverGone, DriverHandle, Engine, treatments};
use crate::interface::{Interface, bring_up_loopback, create_pair, route_host, route_network};
use crate::limits::HELD_FROM_RATE_BPS;
use crate::link::{LinkConfig, LinkPair};
use crate::namespace::{Namespace, NamespaceError};
use crate::netem::{self, Netem, NetemError};
use crate::nfqueue::PacketQueue;
use crate::report::{LinkReport, Report, ways};
use crate::spec::{LinkSpec, SpecError};
use crate::topology::{End, EngineChoice, Topology, TopologyError, Wire};
use crate::tun::{Tun, TunError};

impl EngineChoice {
    /// Whether to try holding packets in the kernel.
    fn tries_held(self, link: &LinkPair) -> bool {
        let is_fast = |config: &LinkConfig| config.rate_bps.is_none_or(|rate| rate >= HELD_FROM_RATE_BPS);
        match self {
            Self::Auto => can_be_held(link) && is_fast(&link.forward) && is_fast(&link.backward),
            Self::Split | Self::Netem => false,
            Self::Held => true,
        }
    }
}

/// Whether no segment has a fate of its own.
fn can_be_held(link: &LinkPair) -> bool {
    link.rules.is_empty() && [&link.forward, &link.backward].iter().all(|config| config.keeps_packets_whole())
}

/// Why a topology did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It cannot be.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A host could not be made.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A host has no device.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// A host does not know the way.
    #[error("cannot set a route on `{host}`: {source}")]
    Route {
        /// The host.
        host: String,
        /// The answer.
        source: std::io::Error,
    },
    /// The driver could not start.
    #[error("cannot start the packet driver: {0}")]
    Driver(#[from] std::io::Error),
    /// The hosts cannot be joined, or packets held, in the kernel.
    #[error("cannot carry packets in the kernel: {step}: {source}; `--engine split` does without")]
    InKernel {
        /// What was being done.
        step: &'static str,
        /// The answer.
        source: std::io::Error,
    },
    /// The file of a capture.
    #[error("cannot write the capture {}: {source}", file.display())]
    Capture {
        /// The file.
        file: PathBuf,
        /// The answer.
        source: std::io::Error,
    },
    /// What is held in the kernel is not seen when it goes on.
    #[error("a capture needs packets that pass through this program: leave out `--engine`")]
    CaptureInKernel,
    /// A router's packets have destinations beyond the link.
    #[error(
        "link `{link}` ends at a router, which `--engine held` and `--engine netem` do not serve; use `split`"
    )]
    Routed {
        /// The link.
        link: String,
    },
    /// Segments of a packet that is held whole cannot be lost one by one.
    #[error(
        "what happens to single segments, as loss and jitter, needs packets that can be split: leave out `--engine held`"
    )]
    NotWhole,
    /// Not by netem.
    #[error(transparent)]
    Netem(#[from] NetemError),
}

/// Why a link was not changed.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// Nobody is there to change it.
    #[error(transparent)]
    Gone(#[from] DriverGone),
    /// It cannot be.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Not there.
    #[error("there is no link `{name}`; there are: {others}")]
    NoLink {
        /// What was named.
        name: String,
        /// What could have been.
        others: String,
    },
    /// Which one?
    #[error("there are several links; name one with `--link`: {0}")]
    WhichLink(String),
    /// Not there.
    #[error("link `{link}` has no rule `{rule}`")]
    NoRule {
        /// The link.
        link: String,
        /// What was named.
        rule: String,
    },
    /// The way packets travel is chosen at the start.
    #[error(
        "this network holds packets whole in the kernel, where single segments have no fate of their own; \
         bring it up with `--engine split`"
    )]
    NotWhole,
    /// Not by netem.
    #[error(transparent)]
    Netem(#[from] NetemError),
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Nobody is there to make it.
    #[error(transparent)]
    Gone(#[from] DriverGone),
    /// netem does not tell.
    #[error(transparent)]
    Netem(#[from] NetemError),
}

/// What carries packets between a link's hosts.
#[derive(Debug)]
enum RunningLink {
    Driver {
        driver: DriverHandle,
        thread: Option<JoinHandle<std::io::Result<()>>>,
        /// Between its hosts, where packets are held in the kernel.
        middle: Option<Namespace>,
    },
    Netem(Box<Netem>),
}

impl RunningLink {
    fn stop(&self) {
        if let Self::Driver { driver, .. } = self {
            driver.stop();
        }
    }

    fn set(&self, link: LinkPair) -> Result<(), SetError> {
        match self {
            Self::Driver { middle: Some(_), .. } if !can_be_held(&link) => Err(SetError::NotWhole),
            Self::Driver { driver, .. } => Ok(driver.set(link)?),
            Self::Netem(netem) => Ok(netem.set(link)?),
        }
    }

    fn report(&self) -> Result<Report, ReportError> {
        match self {
            Self::Driver { driver, .. } => Ok(driver.report()?),
            Self::Netem(netem) => Ok(netem.report()?),
        }
    }
}

impl Drop for RunningLink {
    fn drop(&mut self) {
        self.stop();
        if let Self::Driver { thread, .. } = self
            && let Some(thread) = thread.take()
        {
            drop(thread.join()); // its result was in the reports
        }
    }
}

/// Hosts and links; they vanish when this is dropped and the hosts' processes have ended.
#[derive(Debug)]
pub struct Network {
    topology: Topology,
    hosts: Vec<Namespace>,
    links: Vec<RunningLink>,
    capture: Option<Capture>,
}

impl Network {
    /// Makes the hosts and starts the links. Needs the rights to make network namespaces
    /// ([`gain_rights`](crate::namespace::gain_rights)). What passes the links is recorded in the file `capture`, if
    /// there is to be one; no packet is held in the kernel then.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left behind.
    pub fn start(topology: Topology, seed: u64, capture: Option<&Path>) -> Result<Self, StartError> {
        topology.check()?;
        let in_kernel = |wire: &Wire| matches!(wire.engine, EngineChoice::Held | EngineChoice::Netem);
        if capture.is_some() && topology.links.iter().any(in_kernel) {
            return Err(StartError::CaptureInKernel);
        }
        let ways = topology
            .links
            .iter()
            .flat_map(|wire| ways(&wire.between).map(|way| format!("{} {way}", wire.name)));
        let capture = capture.map(|file| {
            Capture::create(file, &ways.collect::<Vec<_>>())
                .map_err(|source| StartError::Capture { file: file.to_owned(), source })
        });
        let capture = capture.transpose()?;
        let mut hosts = Vec::new();
        for host in &topology.hosts {
            let (namespace, ready) = Namespace::create(|| {
                // Without loopback a host is odd but usable: tests of loss on a bare kernel should not fail on it.
                drop(bring_up_loopback());
                if host.forwards { forward() } else { Ok(()) }
            })?;
            ready.map_err(|source| StartError::Route { host: host.name.clone(), source })?;
            hosts.push(namespace);
        }
        let mut network = Self { topology, hosts, links: Vec::new(), capture };
        for number in 0..network.topology.links.len() {
            let running = network.start_link(number, seed)?;
            network.links.push(running);
        }
        for (host, namespace) in network.topology.hosts.iter().zip(&network.hosts) {
            let number = network.topology.host(&host.name).unwrap_or_default();
            let routes = network.topology.routes(number);
            let set = || {
                routes.iter().try_for_each(|route| {
                    let to = End { link: route.to, side: 0 };
                    let device = &network.topology.links[route.via.link].name;
                    route_network(to.ipv4().into(), 24, route.via.ipv4().into(), device)?;
                    // A kernel without IPv6 still has usable IPv4 links.
                    drop(route_network(to.ipv6().into(), 64, route.via.ipv6().into(), device));
                    Ok(())
                })
            };
            namespace.run(set)?.map_err(|source| StartError::Route { host: host.name.clone(), source })?;
        }
        Ok(network)
    }

    fn start_link(&self, number: usize, seed: u64) -> Result<RunningLink, StartError> {
        let wire = &self.topology.links[number];
        let link =
            wire.resolve().map_err(|source| TopologyError::Link { link: wire.name.clone(), source })?;
        let ends = [0, 1].map(|side| End { link: number, side });
        let hosts =
            [0, 1].map(|side| &self.hosts[self.topology.host(&wire.between[side]).unwrap_or_default()]);
        // Between hosts that pass on what is for others, the namespace in the middle would not know the way.
        let is_routed = wire
            .between
            .iter()
            .any(|name| self.topology.host(name).is_some_and(|at| self.topology.hosts[at].forwards));
        let in_kernel = matches!(wire.engine, EngineChoice::Held | EngineChoice::Netem);
        if is_routed && in_kernel {
            return Err(StartError::Routed { link: wire.name.clone() });
        }
        if wire.engine == EngineChoice::Held && !can_be_held(&link) {
            return Err(StartError::NotWhole);
        }
        // Each direction of each link has dice of its own.
        let dice = [0, 1].map(|side| Dice::new(seed, number as u64 * 2 + side));
        let taps =
            [0, 1].map(|side| self.capture.as_ref().and_then(|capture| capture.tap(number * 2 + side)));
        let is_recorded = self.capture.is_some();
        if wire.engine == EngineChoice::Netem {
            return start_netem(wire, ends, hosts, link);
        }
        if !is_recorded && !is_routed && wire.engine.tries_held(&link) {
            match start_held(wire, ends, hosts, link.clone(), dice) {
                Err(error) if wire.engine == EngineChoice::Held => return Err(error),
                // The report names the engine; what is lost is speed alone.
                Err(_) => {}
                started => return started,
            }
        }
        let tun = |side: usize| -> Result<Tun, StartError> {
            let addresses = [(ends[side].ipv4().into(), 24), (ends[side].ipv6().into(), 64)];
            Ok(hosts[side].run(|| Tun::create(&wire.name, &addresses))??)
        };
        let [forward, backward] = treatments(link.clone());
        let engine = SplitEngine::new([tun(0)?, tun(1)?], [&forward, &backward]);
        run(engine, None, wire, link, dice, taps)
    }

    /// The topology, with its links as they are now.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// A host's namespace.
    #[must_use]
    pub fn namespace(&self, host: &str) -> Option<&Namespace> {
        self.topology.host(host).map(|number| &self.hosts[number])
    }

    /// What a host calls the others.
    #[must_use]
    pub fn names(&self, host: &str) -> Vec<(String, IpAddr)> {
        self.topology.host(host).map(|number| self.topology.names(number)).unwrap_or_default()
    }

    /// Starts a command on a host, where the others are known by name.
    ///
    /// # Errors
    /// [`NamespaceError`].
    pub fn spawn(&self, host: &str, command: &mut Command) -> Result<Child, NamespaceError> {
        let Some(namespace) = self.namespace(host) else {
            return Err(NamespaceError::NoHost {
                host: host.to_owned(),
                others: listed(self.topology.hosts.iter().map(|host| &host.name)),
            });
        };
        namespace.spawn(command, &self.names(host))
    }

    /// Changes a link while it runs, or that of one of its rules; what `change` does not name stays. Without a name the only
    /// link.
    ///
    /// # Errors
    /// [`SetError`]; then nothing has changed.
    pub fn set(&mut self, link: Option<&str>, rule: Option<&str>, change: &LinkSpec) -> Result<(), SetError> {
        let all = || listed(self.topology.links.iter().map(|link| &link.name));
        let number = match link {
            None if self.topology.links.len() == 1 => 0,
            None => return Err(SetError::WhichLink(all())),
            Some(name) => self
                .topology
                .links
                .iter()
                .position(|link| link.name == name)
                .ok_or_else(|| SetError::NoLink { name: name.to_owned(), others: all() })?,
        };
        let mut changed = self.topology.links[number].clone();
        let spec = match rule {
            None => &mut changed.spec,
            Some(rule) => match changed.rules.iter_mut().find(|known| known.name == rule) {
                Some(known) => &mut known.spec,
                None => {
                    return Err(SetError::NoRule { link: changed.name.clone(), rule: rule.to_owned() });
                }
            },
        };
        *spec = spec.merge(change);
        let pair = changed.resolve()?;
        self.links[number].set(pair)?;
        self.topology.links[number] = changed;
        Ok(())
    }

    /// Ends the links, and writes the rest of the capture.
    ///
    /// # Errors
    /// When the capture could not be written.
    pub fn end(&mut self) -> std::io::Result<()> {
        // All at once, before each is waited for.
        self.links.iter().for_each(RunningLink::stop);
        self.links.clear();
        self.capture.take().map_or(Ok(()), |mut capture| capture.finish())
    }

    /// What has happened on each link so far.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn report(&self) -> Result<Vec<LinkReport>, ReportError> {
        let links = self.topology.links.iter().zip(&self.links);
        links
            .map(|(wire, running)| {
                let (name, between) = (wire.name.clone(), wire.between.clone());
                running.report().map(|report| LinkReport { name, between, report })
            })
            .collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.end(); // whoever wants to know has ended it before
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.cloned().collect::<Vec<_>>().join(", ")
}

fn run<E: Engine + Send + 'static>(
    engine: E,
    middle: Option<Namespace>,
    wire: &Wire,
    link: LinkPair,
    dice: [Dice; 2],
    taps: [Option<Tap>; 2],
) -> Result<RunningLink, StartError> {
    let (driver, handle) = Driver::new(engine, link, dice, ways(&wire.between), taps)?;
    let thread = std::thread::Builder::new().name("link".into()).spawn(move || driver.run())?;
    Ok(RunningLink::Driver { driver: handle, thread: Some(thread), middle })
}

fn start_held(
    wire: &Wire,
    ends: [End; 2],
    hosts: [&Namespace; 2],
    link: LinkPair,
    dice: [Dice; 2],
) -> Result<RunningLink, StartError> {
    let name = &wire.name;
    let (middle, queues) = Namespace::create(|| make_middle(name, ends, hosts))?;
    let [first, second] = queues?;
    address_hosts(name, ends, hosts)?;
    run(HeldEngine::new(first, second), Some(middle), wire, link, dice, [None, None])
}

fn start_netem(
    wire: &Wire,
    ends: [End; 2],
    hosts: [&Namespace; 2],
    link: LinkPair,
) -> Result<RunningLink, StartError> {
    netem::check(&link)?;
    let name = &wire.name;
    let (middle, joined) = Namespace::create(|| {
        join_hosts(name, ends, hosts)?;
        for (side, end) in SIDES.iter().zip(ends) {
            // A kernel without IPv6 still has a usable IPv4 link.
            drop(route_host(end.ipv6().into(), side));
        }
        in_kernel("turn on forwarding", forward())
    })?;
    joined?;
    address_hosts(name, ends, hosts)?;
    for host in hosts {
        // netem treats a packet of many segments as one.
        let cut = host.run(|| Interface::named(name)?.set_gso_segments(1))?;
        in_kernel("have big packets cut", cut)?;
    }
    let [first, second] = SIDES;
    Ok(RunningLink::Netem(Box::new(Netem::start(middle, [second, first], ways(&wire.between), link)?)))
}

fn address_hosts(name: &str, ends: [End; 2], hosts: [&Namespace; 2]) -> Result<(), StartError> {
    for (end, host) in ends.iter().zip(hosts) {
        in_kernel("set the hosts' addresses", host.run(|| address_host(name, *end))?)?;
    }
    Ok(())
}

fn address_host(name: &str, end: End) -> std::io::Result<()> {
    let device = Interface::named(name)?;
    device.set_ipv4(end.ipv4(), 24)?;
    // A kernel without IPv6 still has a usable IPv4 link.
    drop(device.add_ipv6(&end.ipv6().octets(), 64));
    device.bring_up()
}

/// Devices in the namespace between two hosts, to the first and the second.
const SIDES: [&str; 2] = ["first", "second"];

/// In the namespace between two hosts: a device to each, and a route to its end.
fn join_hosts(name: &str, ends: [End; 2], hosts: [&Namespace; 2]) -> Result<(), StartError> {
    for ((side, end), host) in SIDES.iter().zip(ends).zip(hosts) {
        in_kernel("make the hosts' devices", create_pair(side, name, host.as_fd()))?;
        in_kernel("bring up a device", Interface::named(side).and_then(|d| d.bring_up()))?;
        in_kernel("set a route", route_host(end.ipv4().into(), side))?;
    }
    Ok(())
}

fn in_kernel<T>(step: &'static str, result: std::io::Result<T>) -> Result<T, StartError> {
    result.map_err(|source| StartError::InKernel { step, source })
}

/// In the namespace between two hosts: what they send waits in queue 0 or 1.
fn make_middle(name: &str, ends: [End; 2], hosts: [&Namespace; 2]) -> Result<[PacketQueue; 2], StartError> {
    join_hosts(name, ends, hosts)?;
    let queues = [PacketQueue::bind(0), PacketQueue::bind(1)];
    let [first, second] = queues.map(|queue| in_kernel("bind a packet queue (NFQUEUE)", queue));
    // The rules first: nothing may pass the link by.
    in_kernel("set the rules with iptables", queue_forwarded(IPTABLES))?;
    in_kernel("turn on forwarding", forward_ipv4())?;
    // Without its rules, or on a kernel without it, IPv6 just stays off.
    drop(queue_ipv6(ends));
    Ok([first?, second?])
}

fn queue_ipv6(ends: [End; 2]) -> std::io::Result<()> {
    queue_forwarded(IP6TABLES)?;
    for (side, end) in SIDES.iter().zip(ends) {
        route_host(end.ipv6().into(), side)?;
    }
    forward_ipv6()
}

/// Makes the calling thread's network namespace pass packets on.
fn forward() -> std::io::Result<()> {
    // A kernel without IPv6 still has usable IPv4 links.
    drop(forward_ipv6());
    forward_ipv4()
}

fn forward_ipv4() -> std::io::Result<()> {
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
}

fn forward_ipv6() -> std::io::Result<()> {
    std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")
}

/// The older interface first: kernels without nftables' queue have it, and it disturbs nothing in a namespace of our
/// own.
const IPTABLES: [&str; 2] = ["iptables-legacy", "iptables"];
const IP6TABLES: [&str; 2] = ["ip6tables-legacy", "ip6tables"];

fn queue_forwarded(programs: [&str; 2]) -> std::io::Result<()> {
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for program in programs {
        match SIDES.iter().zip(["0", "1"]).try_for_each(|(side, queue)| queue_from(program, side, queue)) {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn queue_from(program: &str, side: &str, queue: &str) -> std::io::Result<()> {
    let rule = ["-w", "-A", "FORWARD", "-i", side, "-j", "NFQUEUE", "--queue-num", queue];
    // Its lock file may be out of reach in a user namespace; there is nobody to lock out.
    let done = Command::new(program).args(rule).env("XTABLES_LOCKFILE", "/dev/null").output()?;
    if done.status.success() {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
}
