//! How a far host is reached: options of every command that needs one.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use longhaul_transport::session::{ConnectOptions, ControlChoice, LaneSettings, connect};
use longhaul_transport::{Handler, Session};

use crate::config;
use crate::far::{Far, SshOptions};
use crate::place::Place;
use crate::units;

#[derive(Clone, Debug, Args)]
pub(crate) struct Reach {
    /// Most that is sent, as `500Mbit` or `100MB/s`
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<u64>,
    /// Number of connections, instead of as many as the path needs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    lanes: Option<u16>,
    /// Longest piece of a file that one connection carries at a time [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    piece: Option<u64>,
    /// Size of the connections' buffers, instead of the kernel's choice
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    sockbuf: Option<u64>,
    /// Do without UDP
    #[arg(long)]
    tcp: bool,

    /// Private key [default: ~/.config/longhaul/id_ed25519, else ~/.ssh/id_ed25519]
    #[arg(short, long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Servers' keys [default: ~/.config/longhaul/known_hosts]
    #[arg(long, value_name = "FILE")]
    known_hosts: Option<PathBuf>,
    /// How to start ssh for HOST:PATH
    #[arg(long, value_name = "COMMAND", env = "LONGHAUL_SSH", default_value = "ssh")]
    ssh: String,
    /// The program at HOST
    #[arg(long, value_name = "PATH", default_value = "longhaul")]
    remote_program: String,
    /// Port that the program at HOST shall listen on (TCP and UDP) [default: any]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    remote_port: u16,
}

/// What commands with letters of their own take of it.
#[derive(Clone, Debug, Args)]
pub(crate) struct Keys {
    /// Private key [default: ~/.config/longhaul/id_ed25519, else ~/.ssh/id_ed25519]
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Servers' keys [default: ~/.config/longhaul/known_hosts]
    #[arg(long, value_name = "FILE")]
    known_hosts: Option<PathBuf>,
    /// How to start ssh for USER@HOST
    #[arg(long, value_name = "COMMAND", env = "LONGHAUL_SSH", default_value = "ssh")]
    ssh: String,
    /// The program at USER@HOST
    #[arg(long, value_name = "PATH", default_value = "longhaul")]
    remote_program: String,
}

impl Keys {
    /// Whether anything was said of keys.
    pub(crate) fn is_given(&self) -> bool {
        self.identity.is_some() || self.known_hosts.is_some()
    }
}

impl Reach {
    /// For sessions in which no bytes of files travel.
    pub(crate) fn with(keys: Keys) -> Self {
        let Keys { identity, known_hosts, ssh, remote_program } = keys;
        Self {
            rate: None,
            lanes: Some(1),
            piece: None,
            sockbuf: None,
            tcp: false,
            identity,
            known_hosts,
            ssh,
            remote_program,
            remote_port: 0,
        }
    }

    /// The same for sessions in which they do: as many connections as the path needs.
    pub(crate) fn for_copies(self) -> Self {
        Self { lanes: None, ..self }
    }

    /// Finds out where a far place's server is, or starts it there.
    pub(crate) async fn reach(&self, remote: &Place) -> anyhow::Result<Far> {
        match remote {
            Place::Here(_) => bail!("a far host is needed"),
            Place::Server { host, port, .. } => {
                let known_hosts = self
                    .known_hosts
                    .clone()
                    .map_or_else(|| config::directory().map(|d| d.join("known_hosts")), Ok)?;
                let identity = config::user_key(self.identity.as_deref())?;
                Far::server(host, *port, identity, &known_hosts).await
            }
            Place::Ssh { destination, .. } => {
                let options = SshOptions {
                    command: self.ssh.clone(),
                    program: self.remote_program.clone(),
                    port: self.remote_port,
                };
                Far::over_ssh(destination, &options).await
            }
        }
    }

    /// Opens a session about `service`; the far program, if one was started, lives as long as what comes with it.
    pub(crate) async fn connect(
        &self,
        far: Far,
        service: &'static str,
        handler: Arc<dyn Handler>,
    ) -> anyhow::Result<(Session, Option<tokio::process::Child>)> {
        let Far { host, addresses, identity, trust, ssh } = far;
        let control = if self.tcp { ControlChoice::Tcp } else { ControlChoice::Auto };
        let lanes = self.lane_settings();
        let options = ConnectOptions { host, addresses, identity, trust, service, control, lanes };
        let by_ssh = ssh.is_some();
        let session = connect(options, handler).await.map_err(|error| {
            let hint = "; its data connections go straight to that port: `--remote-port` chooses one that the firewall lets through";
            anyhow::anyhow!("{error}{}", if by_ssh { hint } else { "" })
        })?;
        if session.control_kind() == Some("TCP") && !self.tcp {
            tracing::warn!("UDP does not get through: the control channel runs over TCP");
        }
        Ok((session, ssh))
    }

    fn lane_settings(&self) -> LaneSettings {
        let default = LaneSettings::default();
        LaneSettings {
            lanes: self.lanes.map(usize::from),
            piece_bytes_max: self.piece.map_or(default.piece_bytes_max, |bytes| {
                u32::try_from(bytes).unwrap_or(u32::MAX).min(longhaul_transport::limits::PIECE_BYTES_MAX)
            }),
            socket_buffer: self.sockbuf.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
            rate_max: self.rate.map(|bits| bits / 8),
            ..default
        }
    }
}
