//! The far end: an address to connect to, or a program to start there by ssh.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use longhaul_transport::identity::{HostTrust, Identity, KnownHosts, PublicKey};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

use crate::place::known_host_name;

/// What the near end says to the program it has started, on one line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Introduction {
    /// The client's key for this one session.
    pub(crate) key: String,
}

/// What the program answers, on one line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Invitation {
    /// The version of the program, for the reader.
    pub(crate) longhaul: String,
    /// TCP and UDP.
    pub(crate) port: u16,
    /// The server's key for this one session.
    pub(crate) key: String,
}

/// How a far program is started.
#[derive(Clone, Debug)]
pub(crate) struct SshOptions {
    /// The ssh command, with its options.
    pub(crate) command: String,
    /// The program there.
    pub(crate) program: String,
    /// The port it shall listen on; 0: any.
    pub(crate) port: u16,
}

/// Everything a session is opened with.
#[derive(Debug)]
pub(crate) struct Far {
    pub(crate) host: String,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) identity: Identity,
    pub(crate) trust: HostTrust,
    /// The far program lives as long as this.
    pub(crate) ssh: Option<Child>,
}

/// How long a far program may take to answer: a password may have to be typed first.
const INVITATION_LIMIT: Duration = Duration::from_secs(120);

impl Far {
    /// A server at an address.
    pub(crate) async fn server(
        host: &str,
        port: u16,
        identity: Identity,
        known_hosts: &std::path::Path,
    ) -> anyhow::Result<Self> {
        let trust = HostTrust::known(known_host_name(host, port), KnownHosts::load(known_hosts)?);
        let addresses = resolve(host, port).await?;
        Ok(Self { host: host.to_owned(), addresses, identity, trust, ssh: None })
    }

    /// Starts a server for this one session over ssh. Keys of both ends live no longer than it.
    pub(crate) async fn over_ssh(destination: &str, options: &SshOptions) -> anyhow::Result<Self> {
        let mut words = options.command.split_whitespace();
        let ssh = words.next().context("the ssh command is empty")?.to_owned();
        let arguments: Vec<String> = words.map(str::to_owned).collect();
        let (host, _user) = split_user(destination);
        let address = real_host_name(&ssh, &arguments, destination).await.unwrap_or_else(|| host.to_owned());
        let identity = Identity::ephemeral();
        let far_command = format!("{} serve --once --listen-port {}", options.program, options.port);
        let mut child = Command::new(&ssh)
            .args(&arguments)
            // Agents and displays are of no use there.
            .args(["-T", "-a", "-x", destination, &far_command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {ssh}"))?;
        let introduction = Introduction { key: identity.public().to_openssh() };
        let mut line = serde_json::to_string(&introduction)?;
        line.push('\n');
        let stdin = child.stdin.as_mut().context("ssh's input is piped")?;
        stdin.write_all(line.as_bytes()).await.ok(); // ssh that has failed says so itself
        let stdout = child.stdout.take().context("ssh's output is piped")?;
        let invitation = tokio::time::timeout(INVITATION_LIMIT, read_invitation(stdout));
        let invitation = match invitation.await {
            Ok(Some(invitation)) => invitation,
            Ok(None) => bail!(
                "{destination} did not start `{far_command}`; longhaul must be installed there, or `--remote-program` \
                 must say where it is"
            ),
            Err(_) => bail!("{destination} has not answered within {INVITATION_LIMIT:?}"),
        };
        let key = PublicKey::from_openssh(&invitation.key).context("the far program's key")?;
        tracing::info!(version = invitation.longhaul, port = invitation.port, "started at {destination}");
        let addresses = resolve(&address, invitation.port).await?;
        Ok(Self {
            host: host.to_owned(),
            addresses,
            identity,
            trust: HostTrust::Pinned(key),
            ssh: Some(child),
        })
    }
}

/// The first line that is an invitation: login scripts may print others before.
async fn read_invitation(stdout: tokio::process::ChildStdout) -> Option<Invitation> {
    let mut lines = BufReader::new(stdout).lines();
    for _ in 0..LINES_BEFORE_INVITATION_MAX {
        let line = lines.next_line().await.ok()??;
        if let Ok(invitation) = serde_json::from_str(&line) {
            return Some(invitation);
        }
    }
    None
}

const LINES_BEFORE_INVITATION_MAX: usize = 1000;

fn split_user(destination: &str) -> (&str, Option<&str>) {
    let (user, host) = match destination.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, destination),
    };
    (host.trim_start_matches('[').trim_end_matches(']'), user)
}

/// What ssh itself would connect to: its configuration may know the host by another name.
async fn real_host_name(ssh: &str, arguments: &[String], destination: &str) -> Option<String> {
    let output = Command::new(ssh).args(arguments).args(["-G", destination]).output().await.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().find_map(|line| line.strip_prefix("hostname ")).map(|host| host.trim().to_owned())
}

async fn resolve(host: &str, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
    let found = tokio::net::lookup_host((host, port)).await;
    let addresses: Vec<SocketAddr> =
        found.with_context(|| format!("cannot find the address of {host}"))?.collect();
    if addresses.is_empty() {
        bail!("{host} has no address");
    }
    Ok(addresses)
}
