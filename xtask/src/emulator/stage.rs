//! Two hosts for one experiment, and the traffic between them: over the emulator's link, or through mahimahi's mm-delay.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use longhaul_emulator::processors::Processors;
use rustix::process::{Pid, Signal, kill_process};

use super::traffic::{Amount, Flow, Load, Pings, Protocol, RoundTrips, kernel_counter, udp_datagrams};
use crate::limited::{Limited, Words, last_words, rest};
use crate::link::{Host, Network, Shown, checked};
use crate::server::{Listener, listens};
use crate::usage;

/// What an experiment runs over.
#[derive(Debug)]
pub(super) enum Stage {
    Link(Network),
    Rival(MmDelay),
}

/// What an experiment sends.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    pub(super) load: Option<Load>,
    /// From which second on the load is looked at; by default from the middle. Pings beside it begin then.
    pub(super) from: Option<f64>,
    pub(super) pings: Option<Pings>,
}

/// How much TCP may have on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buffers {
    /// The kernel's settings.
    Default,
    /// Autotuning may take up to this much.
    Raised(u64),
    /// The receiver's sockets have this much from their beginning, as if `SO_RCVBUF` were half of it; the sender's, enough.
    Receiver(u64),
}

/// What was seen in an experiment.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub(super) flow: Option<Flow>,
    pub(super) round_trips: Option<RoundTrips>,
    /// Of the emulator, at the end.
    pub(super) shown: Option<Shown>,
    /// Datagrams that came to the far host.
    pub(super) far_datagrams: Option<u64>,
    /// TCP segments that came to it before their turn.
    pub(super) far_early_segments: Option<u64>,
    /// TCP segments that the near host has sent once more.
    pub(super) near_segments_again: Option<u64>,
    /// And that came to the far one, which had them (RFC 2883).
    pub(super) far_known_segments: Option<u64>,
    /// And how many datagrams a second while a load of UDP was looked at.
    pub(super) far_datagrams_per_second: Option<f64>,
    /// Of the emulator's process.
    pub(super) emulator_cpu_seconds: Option<f64>,
    /// Of the whole machine.
    pub(super) machine_cpu_seconds: Option<f64>,
    pub(super) stolen: Option<f64>,
    pub(super) seconds: f64,
    pub(super) commands: Vec<Vec<String>>,
}

/// More than a stream has on its way anywhere here: the receiver sets the limit.
const SENDER_BYTES: u64 = 1 << 30;

/// Beyond the time of the traffic itself: connecting, and the last packets.
const PATIENCE: Duration = Duration::from_secs(20);

impl Buffers {
    /// `tcp_rmem` and `tcp_wmem`: least, initial, most.
    fn settings(self) -> Option<[String; 2]> {
        // What sockets begin with is the kernel's own default.
        let sender = |most: u64| format!("4096 16384 {most}");
        match self {
            Self::Default => None,
            Self::Raised(most) => Some([format!("4096 131072 {most}"), sender(most)]),
            Self::Receiver(bytes) => Some([format!("4096 {bytes} {bytes}"), sender(SENDER_BYTES)]),
        }
    }
}

impl Stage {
    pub(super) fn link(longhaul: &Path, options: &[String]) -> anyhow::Result<Self> {
        Network::emulated(longhaul, options).map(Self::Link)
    }

    pub(super) fn rival(program: &Path, one_way_ms: u32, directory: &Path) -> anyhow::Result<Self> {
        MmDelay::up(program, one_way_ms, directory).map(Self::Rival)
    }

    fn command(&self, host: Host, words: &[OsString]) -> Command {
        match self {
            Self::Link(network) => network.command_with_rights(host, words),
            Self::Rival(rival) => rival.command(host, words),
        }
    }

    /// The name of the far host at the near one.
    fn far(&self) -> &'static str {
        match self {
            Self::Link(_) => Host::Far.name(),
            Self::Rival(_) => MmDelay::FAR,
        }
    }

    fn shown(&self) -> anyhow::Result<Option<Shown>> {
        match self {
            Self::Link(network) => network.shown(),
            Self::Rival(_) => Ok(None),
        }
    }

    fn set_buffers(&self, buffers: Buffers) -> anyhow::Result<()> {
        let Some([receiver, sender]) = buffers.settings() else { return Ok(()) };
        let set = format!(
            "echo {receiver} > /proc/sys/net/ipv4/tcp_rmem && echo {sender} > /proc/sys/net/ipv4/tcp_wmem"
        );
        for host in [Host::Near, Host::Far] {
            let words = ["sh".into(), "-c".into(), set.clone().into()];
            checked(&mut self.command(host, &words)).context("cannot set the buffers of a host")?;
        }
        Ok(())
    }

    /// What the far host's kernel has counted.
    /// What the kernel of a host counts.
    fn counters(&self, host: Host) -> Option<String> {
        let words = ["cat".into(), "/proc/net/snmp".into(), "/proc/net/netstat".into()];
        let output = checked(&mut self.command(host, &words)).ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Sends the traffic and waits for its end; words of programs go to files in `directory`.
    pub(super) fn observe(
        &self,
        traffic: &Traffic,
        buffers: Buffers,
        directory: &Path,
    ) -> anyhow::Result<Observed> {
        self.set_buffers(buffers)?;
        let daemon = match self {
            Self::Link(network) => {
                Some(network.daemon().context("the emulator's process is not to be found")?)
            }
            Self::Rival(_) => None,
        };
        let mut observed = Observed::default();
        let servers = self.servers(traffic, directory, &mut observed)?;
        let emulator_cpu = || daemon.and_then(usage::cpu_seconds);
        let (processors, began) = (Processors::now(), Instant::now());
        let (emulator_before, machine_before) = (emulator_cpu(), usage::machine_seconds());
        let before = [Host::Near, Host::Far].map(|host| self.counters(host));
        let clients = self.clients(traffic, directory, &mut observed)?;
        if let Some(pings) = traffic.pings {
            rest(Duration::from_secs_f64(traffic.from.unwrap_or(0.0)))?;
            observed.round_trips = Some(self.ping(pings, directory, &mut observed)?);
        }
        if let Some(load) = &traffic.load {
            if let (Protocol::Udp, Amount::Seconds(seconds), [server, ..]) =
                (load.protocol, load.amount, servers.as_slice())
            {
                let half = Duration::from_secs(seconds.into()) / 2;
                rest(half)?;
                observed.far_datagrams_per_second = datagrams_per_second(server.id(), half - half / 5)?;
            }
            observed.flow = Some(flow(load, traffic.from, clients, servers, directory)?);
        }
        observed.seconds = began.elapsed().as_secs_f64();
        observed.emulator_cpu_seconds = difference(emulator_cpu(), emulator_before);
        observed.machine_cpu_seconds = difference(usage::machine_seconds(), machine_before);
        observed.stolen = processors.and_then(Processors::stolen);
        let [near, far] =
            [(Host::Near, 0), (Host::Far, 1)].map(|(host, at)| (self.counters(host), &before[at]));
        let counted = |(now, then): &(Option<String>, &Option<String>),
                       read: &dyn Fn(&str) -> Option<u64>| {
            Some(read(now.as_ref()?)? - read(then.as_ref()?)?)
        };
        observed.far_datagrams = counted(&far, &udp_datagrams);
        observed.far_early_segments = counted(&far, &|text| kernel_counter(text, "TcpExt", "TCPOFOQueue"));
        observed.near_segments_again = counted(&near, &|text| kernel_counter(text, "Tcp", "RetransSegs"));
        observed.far_known_segments =
            counted(&far, &|text| kernel_counter(text, "TcpExt", "TCPDSACKOldSent"));
        observed.shown = self.shown()?;
        Ok(observed)
    }

    fn servers(
        &self,
        traffic: &Traffic,
        directory: &Path,
        observed: &mut Observed,
    ) -> anyhow::Result<Vec<Limited>> {
        let ports = traffic.load.iter().flat_map(Load::ports);
        let start = |port| {
            let words = Load::server(port);
            observed.commands.push(told(Host::Far, &words));
            let (out, log) = (server_file(directory, port), directory.join(format!("server-{port}.log")));
            let words_to = Words::Apart { out: &out, err: &log };
            let mut server = Limited::start(&mut self.command(Host::Far, &words), words_to)?;
            match self {
                Self::Link(network) => {
                    Listener { name: "iperf3 --server", host: Host::Far, port, log }.wait(network, server)
                }
                Self::Rival(_) => {
                    wait_until("iperf3 --server", &mut server, &log, |pid| listens(pid, port))?;
                    Ok(server)
                }
            }
        };
        ports.map(start).collect()
    }

    fn clients(
        &self,
        traffic: &Traffic,
        directory: &Path,
        observed: &mut Observed,
    ) -> anyhow::Result<Vec<Limited>> {
        let Some(load) = &traffic.load else { return Ok(Vec::new()) };
        let start = |port| {
            let words = load.client(self.far(), port);
            observed.commands.push(told(Host::Near, &words));
            let (out, err) = (client_file(directory, port), directory.join(format!("client-{port}.log")));
            Limited::start(&mut self.command(Host::Near, &words), Words::Apart { out: &out, err: &err })
        };
        load.ports().map(start).collect()
    }

    fn ping(&self, pings: Pings, directory: &Path, observed: &mut Observed) -> anyhow::Result<RoundTrips> {
        let words = pings.words(self.far());
        observed.commands.push(told(Host::Near, &words));
        let file = directory.join("ping");
        let mut ping = Limited::start(&mut self.command(Host::Near, &words), Words::Kept(&file))?;
        if ping.wait(pings.longest() + PATIENCE)?.status.is_none() {
            bail!("ping does not end");
        }
        let text = std::fs::read_to_string(&file)?;
        RoundTrips::of(&text).with_context(|| format!("ping has no result: {}", last_words(&file)))
    }
}

/// What arrives in some time at the host where a process is. Its receiver may have too little room in its socket for all of
/// it, which is not the link's fault.
fn datagrams_per_second(pid: u32, time: Duration) -> anyhow::Result<Option<f64>> {
    let count = || -> anyhow::Result<_> {
        let snmp = std::fs::read_to_string(format!("/proc/{pid}/net/snmp"))?;
        Ok((Instant::now(), udp_datagrams(&snmp)))
    };
    let (began, before) = count()?;
    rest(time)?;
    let (ended, after) = count()?;
    Ok(after.zip(before).map(|(after, before)| (after - before) as f64 / (ended - began).as_secs_f64()))
}

fn flow(
    load: &Load,
    from: Option<f64>,
    clients: Vec<Limited>,
    servers: Vec<Limited>,
    directory: &Path,
) -> anyhow::Result<Flow> {
    // A server ends when it has the client's last word, and prints its result then.
    for mut iperf3 in clients.into_iter().chain(servers) {
        if iperf3.wait(load.longest() + PATIENCE)?.status.is_none() {
            bail!("iperf3 does not end");
        }
    }
    let flows: Vec<Flow> = load
        .ports()
        .map(|port| {
            let server = std::fs::read_to_string(server_file(directory, port))?;
            Flow::of(&server, &std::fs::read_to_string(client_file(directory, port))?, from)
        })
        .collect::<anyhow::Result<_>>()?;
    Ok(Flow::together(&flows))
}

fn server_file(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!("server-{port}.json"))
}

fn client_file(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!("client-{port}.json"))
}

fn difference(now: Option<f64>, then: Option<f64>) -> Option<f64> {
    Some(now? - then?)
}

fn told(host: Host, words: &[OsString]) -> Vec<String> {
    let words = words.iter().map(|word| word.to_string_lossy().into_owned());
    std::iter::once(host.name().to_owned()).chain(words).collect()
}

/// Waits for a condition on a process, given its number.
fn wait_until(
    name: &str,
    process: &mut Limited,
    log: &Path,
    condition: impl Fn(u32) -> bool,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !condition(process.id()) {
        if process.has_ended()? {
            bail!("{name} does not start: {}", last_words(log));
        }
        if Instant::now() > deadline {
            bail!("{name} is not ready: {}", last_words(log));
        }
        rest(Duration::from_millis(10))?;
    }
    Ok(())
}

/// Mahimahi's emulator of a delay (R. Netravali et al.: Mahimahi: Accurate Record-and-Replay for HTTP, 2015). It joins a
/// namespace of its own, `near` here, to the one that it is started in, and asks for a user who is not root.
#[derive(Debug)]
pub(super) struct MmDelay {
    /// The process in `near` that mm-delay was given to run.
    near: u32,
    shell: Limited,
    /// A process that holds the namespace.
    far: Limited,
}

impl MmDelay {
    /// The first address that mahimahi gives away (RFC 6598).
    const FAR: &str = "100.64.0.1";

    /// A user without rights on every Linux.
    const NOBODY: u32 = 65_534;

    fn up(program: &Path, one_way_ms: u32, directory: &Path) -> anyhow::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("mm-delay's hosts need root");
        }
        let log = directory.join("mm-delay.log");
        let mut hold = Command::new("unshare");
        hold.args(["--net", "--", "sh", "-c"]).arg(
            "ip link set lo up && echo 1 > /proc/sys/net/ipv4/ip_forward && echo up && exec sleep 100000",
        );
        let mut far = Limited::start(&mut hold, Words::Kept(&log))?;
        wait_until("unshare", &mut far, &log, |_| last_words(&log) == "up")?;
        let said = directory.join("mm-delay.said");
        let user = Self::NOBODY.to_string();
        let mut shell = Command::new("nsenter");
        shell.args(["--net", "--target", &far.id().to_string(), "--"]);
        shell.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "--"]).arg(program);
        shell.args([&one_way_ms.to_string(), "sh", "-c", "echo $$; exec sleep 100000"]);
        let mut shell = Limited::start(&mut shell, Words::Apart { out: &said, err: &log })?;
        wait_until("mm-delay", &mut shell, &log, |_| last_words(&said).parse::<u32>().is_ok())?;
        Ok(Self { near: last_words(&said).parse()?, shell, far })
    }

    fn command(&self, host: Host, words: &[OsString]) -> Command {
        let target = match host {
            Host::Near => self.near,
            Host::Far => self.far.id(),
        };
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &target.to_string(), "--"]).args(words);
        command
    }
}

impl Drop for MmDelay {
    fn drop(&mut self) {
        // mm-delay ends, with all its processes, when what it runs has ended; they are not all in its group.
        if let Some(near) = i32::try_from(self.near).ok().and_then(Pid::from_raw) {
            let _ = kill_process(near, Signal::KILL); // gone: as good
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.shell.has_ended(), Ok(false)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
