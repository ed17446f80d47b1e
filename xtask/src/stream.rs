//! What the machine itself carries between two hosts without a link between them: plain TCP, and TLS 1.3 by openssl. These
//! are the rates that a copy can be measured against; nothing is read from or written to files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use longhaul_emulator::processors::Processors;
use longhaul_report::{End, Run, Verdict};

use crate::file::remove;
use crate::iperf3::Ended;
use crate::limited::{Limited, Words, check_interrupt, last_words, rest};
use crate::link::{Between, Host, Network, checked};
use crate::pair::DEVICE;
use crate::server::Listener;
use crate::tool::Package;

/// A stream of bytes from `far` to `near`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// iperf3, with so many TCP connections.
    Iperf3 { connections: u32 },
    /// Two TLS 1.3 connections at a time, each with `openssl s_client` and `openssl s_server` of its own.
    TlsPair,
}

/// What all streams need.
pub(crate) const PACKAGES: [Package; 3] = [
    Package { name: "iproute2", program: "ip" },
    Package { name: "iperf3", program: "iperf3" },
    Package { name: "openssl", program: "openssl" },
];

/// The cipher that longhaul's connections agree on, so that both do the same work.
pub(crate) const CIPHER: &str = "TLS_AES_128_GCM_SHA256";

const IPERF3_PORT: u16 = 5201;
/// A server of openssl serves one connection at a time.
const TLS_PORTS: [u16; 2] = [4433, 4434];

/// Connections have come up to speed; nothing here has a round-trip time to speak of.
const SETTLING: Duration = Duration::from_secs(1);

/// Beyond the time of the stream itself.
const PATIENCE: Duration = Duration::from_secs(15);

/// Bytes in a time.
struct Measured {
    bytes: u64,
    seconds: f64,
}

impl Stream {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Iperf3 { connections: 1 } => "iperf3".to_owned(),
            Self::Iperf3 { connections } => format!("iperf3 -P {connections}"),
            Self::TlsPair => "openssl TLS pair".to_owned(),
        }
    }

    /// Measures it for so long, between hosts of its own; `scratch` is an existing directory.
    pub(crate) fn run(
        self,
        longhaul: &Path,
        scratch: &Path,
        time: Duration,
        round: u32,
        order: u32,
    ) -> anyhow::Result<Run> {
        let directory = scratch.join("streams");
        remove(&directory)?;
        std::fs::create_dir(&directory)?;
        let network = Network::up(longhaul, Between::Pair { scratch: &directory }, round)?;
        let processors = Processors::now();
        let measured = match self {
            Self::Iperf3 { .. } => self.iperf3(&network, &directory, time),
            Self::TlsPair => tls_pair(&network, &directory, time),
        };
        let stolen = processors.and_then(Processors::stolen);
        check_interrupt()?;
        drop(network);
        remove(&directory)?;
        let (measured, end) = match measured {
            Ok(measured) => (measured, End::Complete),
            Err(error) => (Measured { bytes: 0, seconds: 0.0 }, End::Failed { reason: format!("{error:#}") }),
        };
        Ok(Run {
            tool: self.name(),
            encrypted: self == Self::TlsPair,
            round,
            order,
            command: self.command(time),
            seconds: measured.seconds,
            bytes: measured.bytes,
            files: 0,
            end,
            remarks: Vec::new(),
            link: Verdict { engine: "none".to_owned(), trusted: true, ..Verdict::default() },
            stolen,
            said: None,
            near: None,
            far: None,
        })
    }

    /// The command that tells the result, or is measured.
    fn command(self, time: Duration) -> Vec<String> {
        let text = match self {
            Self::Iperf3 { connections } => {
                format!(
                    "iperf3 --client far --reverse --json --time {} --parallel {connections}",
                    time.as_secs()
                )
            }
            Self::TlsPair => client_words(TLS_PORTS[0]),
        };
        text.split(' ').map(str::to_owned).collect()
    }

    fn iperf3(self, network: &Network, directory: &Path, time: Duration) -> anyhow::Result<Measured> {
        let log = directory.join("iperf3-server");
        let listener =
            Listener { name: "iperf3 --server", host: Host::Far, port: IPERF3_PORT, log: log.clone() };
        let words = ["iperf3", "--server", "--one-off"].map(Into::into);
        let server = Limited::start(&mut network.command(Host::Far, &words), Words::Kept(&log))?;
        let _server = listener.wait(network, server)?;
        let (out, err) = (directory.join("iperf3.json"), directory.join("iperf3"));
        let words: Vec<_> = self.command(time).into_iter().map(Into::into).collect();
        let words_to = Words::Apart { out: &out, err: &err };
        let ended =
            Limited::start(&mut network.command(Host::Near, &words), words_to)?.wait(time + PATIENCE)?;
        if ended.status.is_none() {
            bail!("iperf3 does not end");
        }
        iperf3_result(&std::fs::read_to_string(&out)?)
            .with_context(|| format!("iperf3 has no result; {}", last_words(&err)))
    }
}

/// Payload that has arrived, as `iperf3 --json` tells it.
fn iperf3_result(json: &str) -> anyhow::Result<Measured> {
    let sum = Ended::of(json)?.sum_received.context("no sum of what was received")?;
    Ok(Measured { bytes: sum.bytes, seconds: sum.seconds })
}

/// Far sends zeros to near over both connections; what arrives is counted at near's interface.
fn tls_pair(network: &Network, directory: &Path, time: Duration) -> anyhow::Result<Measured> {
    let (key, certificate) = (directory.join("key.pem"), directory.join("certificate.pem"));
    let mut make = Command::new("openssl");
    make.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ])
    .args(["-subj", "/CN=near", "-keyout"])
    .arg(&key)
    .arg("-out")
    .arg(&certificate);
    checked(&mut make).context("cannot make a certificate")?;
    let servers = TLS_PORTS.map(|port| tls_server(network, directory, port));
    let servers = servers.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let clients = TLS_PORTS.map(|port| tls_client(network, directory, port));
    let mut clients = clients.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let received = || received_at(servers[0].id());
    rest(SETTLING)?;
    let (began, before) = (Instant::now(), received()?);
    rest(time)?;
    let (seconds, bytes) = (began.elapsed().as_secs_f64(), received()? - before);
    for (client, port) in clients.iter_mut().zip(TLS_PORTS) {
        if client.has_ended()? {
            bail!("a connection ended early: {}", last_words(&client_log(directory, port)));
        }
    }
    if bytes == 0 {
        bail!("nothing passes: {}", last_words(&client_log(directory, TLS_PORTS[0])));
    }
    Ok(Measured { bytes, seconds })
}

/// At near; it throws away what arrives.
fn tls_server(network: &Network, directory: &Path, port: u16) -> anyhow::Result<Limited> {
    let log = directory.join(format!("s_server-{port}"));
    let words = format!(
        "openssl s_server -accept {port} -tls1_3 -ciphersuites {CIPHER} -quiet -key {d}/key.pem -cert {d}/certificate.pem",
        d = directory.display()
    );
    let words: Vec<_> = words.split(' ').map(Into::into).collect();
    let mut command = network.command(Host::Near, &words);
    // At the end of its input it would send that end to the client.
    let server = Limited::start_fed(
        &mut command,
        Stdio::piped(),
        Words::Apart { out: Path::new("/dev/null"), err: &log },
    )?;
    Listener { name: "openssl s_server", host: Host::Near, port, log }.wait(network, server)
}

/// At far; it sends zeros, which it reads as no command of its own.
fn tls_client(network: &Network, directory: &Path, port: u16) -> anyhow::Result<Limited> {
    let words = client_words(port);
    let words: Vec<_> = words.split(' ').map(Into::into).collect();
    let zeros = File::open("/dev/zero")?;
    let log = client_log(directory, port);
    Limited::start_fed(&mut network.command(Host::Far, &words), zeros.into(), Words::Kept(&log))
}

fn client_words(port: u16) -> String {
    format!("openssl s_client -connect near:{port} -tls1_3 -ciphersuites {CIPHER} -quiet -nocommands")
}

fn client_log(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!("s_client-{port}"))
}

/// Bytes that have arrived at the interface of the host where a process is.
fn received_at(pid: u32) -> anyhow::Result<u64> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/dev"))?;
    received_bytes(&table, DEVICE).with_context(|| format!("there is no interface {DEVICE}"))
}

/// The first counter of a line of `/proc/net/dev`: `wire: 1234 ...`.
fn received_bytes(table: &str, device: &str) -> Option<u64> {
    let counters =
        table.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    counters.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_iperf3_says() {
        let text = r#"{"start":{},"intervals":[],"end":{"streams":[],"sum_sent":{"bytes":9,"seconds":2.5},
            "sum_received":{"start":0,"end":2.5,"seconds":2.5,"bytes":1000,"bits_per_second":3200.0}}}"#;
        let found = iperf3_result(text).unwrap();
        assert_eq!((found.bytes, found.seconds), (1000, 2.5));
        let refused = r#"{"start":{},"intervals":[],"end":{},"error":"unable to connect to server"}"#;
        assert!(iperf3_result(refused).is_err_and(|error| error.to_string().contains("unable to connect")));
        assert!(iperf3_result(r#"{"end":{}}"#).is_err() && iperf3_result("").is_err());
    }

    #[test]
    fn an_interface_counts_what_arrives() {
        let table = "Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets
    lo:     160       2    0    0    0     0          0         0      160       2
  wire: 123456789  1000    0    0    0     0          0         0      999      10
 wire2:7 1 0 0 0 0 0 0 0 0
";
        assert_eq!(received_bytes(table, "wire"), Some(123_456_789));
        assert_eq!(received_bytes(table, "wire2"), Some(7));
        assert_eq!(received_bytes(table, "eth0"), None);
    }

    #[test]
    fn streams_have_names() {
        let names = [Stream::Iperf3 { connections: 1 }, Stream::Iperf3 { connections: 4 }, Stream::TlsPair]
            .map(Stream::name);
        assert_eq!(names, ["iperf3", "iperf3 -P 4", "openssl TLS pair"]);
        let words = Stream::Iperf3 { connections: 4 }.command(Duration::from_secs(10)).join(" ");
        assert!(words.ends_with("--time 10 --parallel 4"), "{words}");
    }
}
