//! `longhaul emulate`: a long fat network on this machine.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use longhaul_emulator::aqm::Aqm;
use longhaul_emulator::control::{Client, ControlError, Daemon, Name};
use longhaul_emulator::delay::Jitter;
use longhaul_emulator::dice::Probability;
use longhaul_emulator::link::Reorder;
use longhaul_emulator::loss::LossModel;
use longhaul_emulator::namespace::{self, Namespace};
use longhaul_emulator::outage::Outage;
use longhaul_emulator::presets::{PRESETS, Preset};
use longhaul_emulator::report::{DirectionReport, LinkReport, ways};
use longhaul_emulator::spec::QueueSpec;
use longhaul_emulator::trace::Trace;
use longhaul_emulator::{EngineChoice, LinkSpec, Network as Running, Topology};

use longhaul_report::traffic::{Sample, Traffic};
use longhaul_report::{picture, plot};
use signal_hook::iterator::Signals;

use super::{print_out, topology_file};
use crate::units;

/// A long fat network on this machine: two hosts, `near` and `far`, and a link with delay, rate, queue and loss; or more
/// of both, from a file
///
/// Works as root, or as any user where the kernel lets users make namespaces and /dev/net/tun is open to them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  longhaul emulate run --rtt 300ms --rate 1Gbit -- ping -c 3 far
  longhaul emulate run --rtt 100ms --rate 1Gbit --loss 0.1% --far 'iperf3 -s -1' -- iperf3 -c far
  longhaul emulate run --preset tokyo-cern -- ping -c 3 far
  longhaul emulate run --rtt 40ms --jitter 5ms:normal --loss gilbert:0.5%:30% -- ping -c 20 far
  longhaul emulate run --topology site.toml --on alice -- ping -c 3 bob
  longhaul emulate up lab --rtt 200ms --rate 10Gbit
  longhaul emulate exec lab far -- iperf3 -s -D
  longhaul emulate set lab --loss 1%
  longhaul emulate show lab --watch
  longhaul emulate down lab")]
pub(crate) struct Emulate {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Run(Run),
    Up(Up),
    Exec(Exec),
    Set(Set),
    Show(Show),
    Down(Down),
    #[command(hide = true)]
    Daemon(Up),
    #[command(hide = true)]
    Guard(Guard),
}

/// Run a command on host `near` behind the link; exits as the command does
#[derive(Debug, Args)]
struct Run {
    #[command(flatten)]
    network: NetworkArgs,
    /// Host to run the command on [default: near; with --topology the first of the file]
    #[arg(long, value_name = "HOST")]
    on: Option<String>,
    /// Shell command to run on host `far` meanwhile; ended when CMD ends
    #[arg(long, value_name = "CMD", conflicts_with = "topology")]
    far: Option<OsString>,
    /// No report at the end
    #[arg(short, long)]
    quiet: bool,
    /// Draw the traffic over time to FILE (.svg or .png)
    #[arg(long, value_name = "FILE")]
    graph: Option<PathBuf>,
    /// Command and arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Start a network under a name, in the background
#[derive(Debug, Args)]
struct Up {
    name: Name,
    #[command(flatten)]
    network: NetworkArgs,
}

/// Run a command on a host of a running network
#[derive(Debug, Args)]
struct Exec {
    name: Name,
    /// `near` or `far`, or as the topology's file calls it
    host: String,
    /// Command and arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Change a link of a running network; what is not named stays
#[derive(Debug, Args)]
struct Set {
    name: Name,
    /// Which link; needed where there are several
    #[arg(long, value_name = "NAME")]
    link: Option<String>,
    /// The link of this rule's traffic instead
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,
    #[command(flatten)]
    settings: LinkSettings,
}

/// Show what has passed a running network's link
#[derive(Debug, Args)]
struct Show {
    name: Name,
    /// A JSON object for each link, one a line
    #[arg(long)]
    json: bool,
    /// Again and again until Ctrl-C, with the rates since the time before
    #[arg(long, value_name = "TIME", value_parser = units::duration, num_args = 0..=1, require_equals = true, default_missing_value = "1s")]
    watch: Option<Duration>,
    /// Draw the traffic since the first look to FILE (.svg or .png), anew each time
    #[arg(long, value_name = "FILE", requires = "watch")]
    graph: Option<PathBuf>,
}

/// End a running network
#[derive(Debug, Args)]
struct Down {
    name: Name,
}

#[derive(Debug, Args)]
struct NetworkArgs {
    /// Hosts and links as a file says, instead of one link between `near` and `far`: see docs/emulate.md
    #[arg(long, value_name = "FILE", conflicts_with_all = ["LinkSettings", "engine"])]
    topology: Option<String>,
    #[command(flatten)]
    settings: LinkSettings,
    /// Seed of every random decision: the same seed loses the same packets [default: 1, or as the topology's file says]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Record packets in FILE (pcapng): sent into each link, delivered, and dropped, with the reason
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// How packets travel: `split` cuts big packets where single segments are lost; `held` leaves them in the kernel,
    /// which costs less but cannot; `auto` takes `held` for links from 2.5 Gbit/s on without loss, where it can
    /// (default of `run`; of `up` it is `split`, so that `set` can change anything); `netem` is the kernel's own emulator,
    /// where it has one, to compare with: it repeats no run and knows fewer settings
    #[arg(long, value_name = "HOW")]
    engine: Option<EngineArg>,
}

impl NetworkArgs {
    /// `engine`: where it is not said.
    fn network(&self, engine: EngineChoice) -> anyhow::Result<Network> {
        let (described, commands, seed) = match &self.topology {
            Some(file) => topology_file::read(file, engine)?,
            None => {
                let engine = self.engine.map_or(engine, Into::into);
                (Topology::two_hosts(self.settings.spec(), engine), Vec::new(), 1)
            }
        };
        described.check()?;
        Ok(Network { described, commands, seed: self.seed.unwrap_or(seed) })
    }
}

/// What is to be started.
struct Network {
    described: Topology,
    commands: Vec<HostCommand>,
    seed: u64,
}

/// A shell command that a host runs from the beginning to the end.
#[derive(Debug)]
pub(super) struct HostCommand {
    pub(super) host: String,
    pub(super) command: OsString,
}

/// Runs a shell command and ends it, with all that it has started, when the standard input ends: when the process that
/// wanted it is no more, whatever has become of that
#[derive(Debug, Args)]
struct Guard {
    command: OsString,
}

impl Guard {
    fn run(self) -> anyhow::Result<ExitCode> {
        // The whole group is asked to end, and the guard waits with it for those who tidy up first. A handler, since what
        // is ignored would be so for the command as well.
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGTERM, asked)?;
        let mut child = shell(&self.command).stdin(Stdio::null()).spawn()?;
        std::thread::spawn(|| {
            let _ = io::copy(&mut io::stdin(), &mut io::sink()); // an error is an end too
            let group = rustix::process::getpgrp();
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL); // it is this one
        });
        Ok(exit_code_of(child.wait()?))
    }
}

/// Hosts' own commands while they run; ended with all that they have started.
struct Services(Vec<Child>);

impl Services {
    /// Starts each and waits until it listens. Whoever goes to the background lets nobody wait for their words.
    fn start(network: &Running, commands: &[HostCommand], is_heard: bool) -> anyhow::Result<Self> {
        let mut services = Self(Vec::new());
        for HostCommand { host, command } in commands {
            let mut guard = Command::new(std::env::current_exe()?);
            guard.args(["emulate", "guard"]).arg("--").arg(command);
            if !is_heard {
                guard.stdout(Stdio::null()).stderr(Stdio::null());
            }
            // Its other end is this process's alone.
            let mut child = network.spawn(host, guard.stdin(Stdio::piped()).process_group(0))?;
            let heard = network.namespace(host).map(|namespace| wait_until_it_listens(namespace, &mut child));
            services.0.push(child);
            heard.transpose()?;
        }
        Ok(services)
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        end_groups(&mut self.0);
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum EngineArg {
    Auto,
    Split,
    Held,
    Netem,
}

impl From<EngineArg> for EngineChoice {
    fn from(engine: EngineArg) -> Self {
        match engine {
            EngineArg::Auto => Self::Auto,
            EngineArg::Split => Self::Split,
            EngineArg::Held => Self::Held,
            EngineArg::Netem => Self::Netem,
        }
    }
}

/// Values may differ each way: `NEAR_TO_FAR,FAR_TO_NEAR`, as in `--rate 1Gbit,100Mbit`.
#[derive(Debug, Args)]
pub(super) struct LinkSettings {
    /// A link by its name, whole; what is said besides replaces its settings
    #[arg(long, value_name = "NAME", value_parser = preset())]
    preset: Option<String>,
    /// Round-trip time, half of it each way
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "delay")]
    rtt: Option<Duration>,
    /// One-way delay
    #[arg(long, value_name = "TIME[,TIME]", value_parser = |s: &str| units::each_way(s, units::duration))]
    delay: Option<[Option<Duration>; 2]>,
    /// Rate of the wire, Ethernet framing included: 1Gbit carries 941 Mbit/s of TCP payload [default: unlimited]
    #[arg(long, value_name = "RATE[,RATE]", value_parser = |s: &str| units::each_way(s, units::rate))]
    rate: Option<[Option<u64>; 2]>,
    /// How the delay varies: by up to TIME to each side (`5ms`), normally or by a Pareto distribution with the standard
    /// deviation TIME (`5ms:normal`, `5ms:pareto`), or by what a file says in milliseconds, one a line (`table=FILE`).
    /// `:corr=25%` makes it depend on the packet before, `:overtake` lets packets arrive out of order
    #[arg(long, value_name = "TIME[:HOW][,...]", value_parser = |s: &str| units::each_way(s, units::jitter))]
    jitter: Option<[Option<Jitter>; 2]>,
    /// Drop-tail queue in bytes, in packets (`1000p`), or in multiples of rate x RTT (`1bdp`) [default: 1bdp]
    #[arg(long, value_name = "SIZE[,SIZE]", value_parser = |s: &str| units::each_way(s, units::queue))]
    queue: Option<[Option<QueueSpec>; 2]>,
    /// Drops packets before the queue is full: by how long they wait (`codel[:target=5ms][:interval=100ms]`, RFC 8289), the
    /// same with a queue for each flow (`fq_codel`, RFC 8290), or by how many wait (`drd:MIN:MAX`, NIST Net's derivative random drop: none below MIN, 95 % from MAX on). `:ecn` marks
    /// those that can be instead. `policer`: nothing waits, what the queue would hold passes at once, and the rest is dropped.
    /// `none` is the default
    #[arg(long, value_name = "HOW[,HOW]", value_parser = |s: &str| units::each_way(s, units::aqm))]
    aqm: Option<[Option<Aqm>; 2]>,
    /// Packets lost: a share at random (`0.1%`); in bursts by Gilbert's and Elliott's model
    /// (`gilbert:FAIL:RECOVER[:LOSS_IN_BAD[:LOSS_IN_GOOD]]`), by a chain of four states
    /// (`markov:P13[:P31[:P32[:P23[:P14]]]]`, as netem's), or so many in a row (`burst:BEGIN:PACKETS`)
    #[arg(long, value_name = "MODEL[,MODEL]", value_parser = |s: &str| units::each_way(s, units::loss))]
    loss: Option<[Option<LossModel>; 2]>,
    /// Share of packets that arrive twice
    #[arg(long, value_name = "P[,P]", value_parser = |s: &str| units::each_way(s, units::probability))]
    duplicate: Option<[Option<Probability>; 2]>,
    /// Share of packets that have no delay and so overtake others; with `:N` only every N-th of a flow may
    #[arg(long, value_name = "P[:N][,...]", value_parser = |s: &str| units::each_way(s, units::reorder))]
    reorder: Option<[Option<Reorder>; 2]>,
    /// When the link is down, since it came up: `10s+2s` after 10 s for 2 s, `10s+2s/60s` and each minute again
    #[arg(long, value_name = "AT+FOR[/EVERY][,...]", value_parser = |s: &str| units::each_way(s, units::outage))]
    outage: Option<[Option<Outage>; 2]>,
    /// A link that changes with time: a file in mahimahi's format, or a table with a line `time,rate,delay,loss` (any of
    /// the last three) and then such lines as `30s,2Mbit,40ms,1%`; `60s,repeat` at the end begins anew. `none` ends it
    #[arg(long, value_name = "FILE[,FILE]", value_parser = |s: &str| units::each_way(s, units::trace))]
    trace: Option<[Option<Trace>; 2]>,
    /// Share of packets with one flipped bit that checksums do not see
    #[arg(long, value_name = "P[,P]", value_parser = |s: &str| units::each_way(s, units::probability))]
    corrupt: Option<[Option<Probability>; 2]>,
}

/// Names of links, with what they are.
fn preset() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new(PRESETS.iter().map(|preset| PossibleValue::new(preset.name).help(preset.about)))
}

impl LinkSettings {
    pub(super) fn spec(&self) -> LinkSpec {
        let preset = self.preset.as_deref().and_then(Preset::named);
        preset.map(|preset| preset.spec().in_full()).unwrap_or_default().merge(&self.said())
    }

    /// What is said beyond the preset.
    fn said(&self) -> LinkSpec {
        LinkSpec {
            delay: self.rtt.map_or(self.delay.unwrap_or_default(), |rtt| [Some(rtt / 2); 2]),
            jitter: self.jitter.clone().unwrap_or_default(),
            rate_bps: self.rate.unwrap_or_default(),
            queue: self.queue.unwrap_or_default(),
            aqm: self.aqm.unwrap_or_default(),
            loss: self.loss.unwrap_or_default(),
            corrupt: self.corrupt.unwrap_or_default(),
            duplicate: self.duplicate.unwrap_or_default(),
            reorder: self.reorder.unwrap_or_default(),
            outage: self.outage.unwrap_or_default(),
            trace: self.trace.clone().unwrap_or_default(),
        }
    }
}

impl Emulate {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Run(run) => run.run(),
            Action::Up(up) => up.up(),
            Action::Daemon(up) => up.daemon(),
            Action::Guard(guard) => guard.run(),
            Action::Exec(exec) => exec.run(),
            Action::Set(set) => {
                Client::connect(set.name)?.set(set.link, set.rule, set.settings.spec())?;
                Ok(ExitCode::SUCCESS)
            }
            Action::Show(show) => show.run(),
            Action::Down(down) => match Client::connect(down.name).and_then(Client::down) {
                // What it is for holds: nothing is up.
                Err(error @ ControlError::NotUp(_)) => {
                    eprintln!("{error}");
                    Ok(ExitCode::SUCCESS)
                }
                result => Ok(result.map(|()| ExitCode::SUCCESS)?),
            },
        }
    }
}

impl Run {
    fn run(self) -> anyhow::Result<ExitCode> {
        let Network { described, mut commands, seed } = self.network.network(EngineChoice::Auto)?;
        let on = self.on.clone().or_else(|| Some(described.hosts.first()?.name.clone())).unwrap_or_default();
        let mut graph = self.graph.clone().map(Graph::new).transpose()?;
        namespace::gain_rights()?;
        let mut network = Running::start(described, seed, self.network.capture.as_deref())?;
        commands.extend(self.far.map(|command| HostCommand { host: "far".to_owned(), command }));
        let services = Services::start(&network, &commands, true)?;
        // Ctrl-C reaches the command by itself; this process stays to end the far one and to report.
        let mut signals = Signals::new([
            signal_hook::consts::SIGINT,
            signal_hook::consts::SIGTERM,
            signal_hook::consts::SIGHUP,
        ])?;
        let mut command = Command::new(&self.command[0]);
        let child = network.spawn(&on, command.args(&self.command[1..]));
        let status = std::thread::scope(|scope| {
            let (done, end) = channel();
            if let Some(graph) = &mut graph {
                let network = &network;
                scope.spawn(move || keep_looking(network, graph, &end));
            }
            let status = child.map_err(anyhow::Error::from).and_then(|child| wait_for(child, &mut signals));
            drop(done);
            status
        });
        drop(services);
        if !self.quiet {
            network.report()?.iter().for_each(|report| eprintln!("{report}"));
        }
        network.end().context("cannot write the capture")?;
        graph.as_ref().map_or(Ok(()), Graph::draw)?;
        Ok(exit_code_of(status?))
    }
}

/// Waits for a command, and passes on to it what this process is asked to do.
fn wait_for(mut child: Child, signals: &mut Signals) -> anyhow::Result<ExitStatus> {
    let pid = rustix::process::Pid::from_child(&child);
    let handle = signals.handle();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for signal in signals.forever().filter(|s| *s != signal_hook::consts::SIGINT) {
                if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
                    let _ = rustix::process::kill_process(pid, signal); // gone already: fine
                }
            }
        });
        let status = child.wait();
        handle.close();
        Ok(status?)
    })
}

impl Up {
    /// Starts the daemon and waits for its word that all is up.
    fn up(self) -> anyhow::Result<ExitCode> {
        self.network.network(EngineChoice::Split)?;
        let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let verb = arguments.iter().position(|a| a == "up").context("`up` is among the arguments")?;
        arguments[verb] = "daemon".into();
        let mut daemon = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the network's own process")?;
        let mut said = String::new();
        let stdout = daemon.stdout.take().context("the daemon's output is piped")?;
        BufReader::new(stdout).read_line(&mut said)?;
        if said.is_empty() {
            daemon.wait()?; // it has told the reason on standard error
            return Ok(ExitCode::from(2));
        }
        print_out(&said)?;
        Ok(ExitCode::SUCCESS)
    }

    fn daemon(self) -> anyhow::Result<ExitCode> {
        rustix::process::setsid().context("cannot leave the terminal")?;
        let Network { described, commands, seed } = self.network.network(EngineChoice::Split)?;
        let daemon = Daemon::bind(self.name.clone())?;
        let user: Option<OwnedFd> = if namespace::gain_rights()? {
            Some(std::fs::File::open("/proc/self/ns/user")?.into())
        } else {
            None
        };
        let mut network = Running::start(described, seed, self.network.capture.as_deref())?;
        let services = Services::start(&network, &commands, false)?;
        if let [first, second, ..] = &network.topology().hosts[..] {
            let (name, first, second) = (&self.name, &first.name, &second.name);
            print_out(&format!("{name} is up: `longhaul emulate exec {name} {first} -- ping {second}`\n"))?;
        }
        detach_stdio()?;
        daemon.serve(&mut network, user.as_ref())?;
        drop(services);
        Ok(ExitCode::SUCCESS)
    }
}

impl Exec {
    fn run(self) -> anyhow::Result<ExitCode> {
        let (namespace, names) = Client::connect(self.name)?.enter(self.host)?;
        namespace.enter(&names)?;
        let error = Command::new(&self.command[0]).args(&self.command[1..]).exec();
        bail!("cannot start {}: {error}", self.command[0].to_string_lossy())
    }
}

/// Looking more often tells nothing more.
const WATCH_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// What has passed between two reports.
fn rates(old: &LinkReport, new: &LinkReport, time: Duration) -> String {
    let line = |name: &str, old: &DirectionReport, new: &DirectionReport| {
        let (then, now) = (old.counters, new.counters);
        let offered = now.bytes.saturating_sub(then.bytes) as f64 * 8.0 / time.as_secs_f64();
        format!(
            "  {name}  now {} offered, {} packets lost or dropped, {} waiting\n",
            units::show_rate(offered),
            now.dropped().saturating_sub(then.dropped()),
            units::show_size(new.queue_bytes),
        )
    };
    let [forward, backward] = ways(&new.between);
    let (old, new) = (&old.report, &new.report);
    line(&forward, &old.forward, &new.forward) + &line(&backward, &old.backward, &new.backward)
}

/// What passes the links, for a plot.
struct Graph {
    file: PathBuf,
    began: Instant,
    links: Vec<Traffic>,
}

impl Graph {
    /// An empty one; whether it can be written is told now and not at the end.
    fn new(file: PathBuf) -> anyhow::Result<Self> {
        let graph = Self { file, began: Instant::now(), links: Vec::new() };
        graph.draw()?;
        Ok(graph)
    }

    fn add(&mut self, reports: &[LinkReport]) {
        if self.links.is_empty() {
            let traffic = |report: &LinkReport| Traffic::new(&report.name, ways(&report.between));
            self.links = reports.iter().map(traffic).collect();
        }
        let at = self.began.elapsed().as_secs_f64();
        for (link, LinkReport { report, .. }) in self.links.iter_mut().zip(reports) {
            link.add(
                at,
                [&report.forward, &report.backward].map(|way| Sample {
                    delivered_bytes: way.counters.delivered_bytes,
                    dropped: way.counters.dropped(),
                    queue_bytes: way.queue_bytes,
                }),
            );
        }
    }

    /// Whoever reads the file meanwhile finds the old one or the new one.
    fn draw(&self) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.file.display());
        let mut part = self.file.clone().into_os_string();
        part.push(".part");
        std::fs::write(&part, picture::for_file(&self.file, plot::traffic(&self.links)?)?)
            .with_context(cannot)?;
        std::fs::rename(&part, &self.file).with_context(cannot)
    }
}

/// How often a graph's traffic is looked at: ten times in the shortest run that a person would look at.
const GRAPH_INTERVAL: Duration = Duration::from_millis(200);

/// Adds to a graph until told to end.
fn keep_looking(network: &Running, graph: &mut Graph, end: &Receiver<()>) {
    let mut is_over = false;
    loop {
        if let Ok(reports) = network.report() {
            graph.add(&reports);
        }
        if is_over {
            return;
        }
        // And once more at the end.
        is_over = end.recv_timeout(GRAPH_INTERVAL) != Err(RecvTimeoutError::Timeout);
    }
}

impl Show {
    fn run(self) -> anyhow::Result<ExitCode> {
        let mut before: Option<(Instant, Vec<LinkReport>)> = None;
        let mut graph = self.graph.map(Graph::new).transpose()?;
        loop {
            let reports = match Client::connect(self.name.clone()).and_then(Client::show) {
                // It was up, and has been taken down: nothing is wrong.
                Err(ControlError::NotUp(_) | ControlError::Io { .. }) if before.is_some() => {
                    return Ok(ExitCode::SUCCESS);
                }
                reports => reports?,
            };
            let now = Instant::now();
            if let Some(graph) = &mut graph {
                graph.add(&reports);
                graph.draw()?;
            }
            let mut text = String::new();
            for (number, report) in reports.iter().enumerate() {
                let line = if self.json { serde_json::to_string(report)? } else { report.to_string() };
                text.push_str(&(line + "\n"));
                if let Some((then, old)) = before.as_ref().filter(|_| !self.json) {
                    text.push_str(
                        &old.get(number).map(|old| rates(old, report, now - *then)).unwrap_or_default(),
                    );
                }
            }
            print_out(&text)?;
            let Some(interval) = self.watch else { return Ok(ExitCode::SUCCESS) };
            before = Some((now, reports));
            std::thread::sleep(interval.max(WATCH_INTERVAL_MIN));
        }
    }
}

/// The daemon's words went to the terminal of `up`; from now on it holds nothing of it.
fn detach_stdio() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

fn shell(command: &OsString) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command);
    shell
}

/// The others may start as soon as somebody listens there, or the command has ended, or after a grace for commands that
/// never listen.
fn wait_until_it_listens(far: &Namespace, child: &mut Child) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline && child.try_wait()?.is_none() && !far.run(somebody_listens)? {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Whether a TCP socket listens or a UDP socket is bound in the calling thread's network namespace.
fn somebody_listens() -> bool {
    let lines =
        |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    const LISTEN: &str = "0A";
    ["tcp", "tcp6"].iter().any(|f| lines(f).lines().any(|l| l.split_whitespace().nth(3) == Some(LISTEN)))
        || ["udp", "udp6"].iter().any(|f| lines(f).lines().count() > 1)
}

/// SIGTERM to the commands and what they have started, SIGKILL after two seconds.
fn end_groups(children: &mut [Child]) {
    use rustix::process::{Signal, kill_process_group};
    let to_all = |children: &[Child], signal| {
        for child in children {
            let _ = kill_process_group(rustix::process::Pid::from_child(child), signal); // it may have ended by itself
        }
    };
    to_all(children, Signal::TERM);
    let deadline = Instant::now() + Duration::from_secs(2);
    let is_left = |child: &mut Child| matches!(child.try_wait(), Ok(None));
    while children.iter_mut().any(is_left) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    to_all(children, Signal::KILL);
    for child in children {
        let _ = child.wait(); // killed
    }
}

/// As a shell tells it: the command's own code, or 128 + the signal that ended it.
fn exit_code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
