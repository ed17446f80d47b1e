//! `longhaul probe --listen`: a server that is measured, and has no exports.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use longhaul_probe::path::server::Service;
use longhaul_transport::identity::PublicKey;
use longhaul_transport::session::{Door, LaneSettings, Refused, Server, ServerOptions};
use longhaul_transport::{DEFAULT_PORT, Handler, Session};
use tokio::sync::Notify;

use super::Probe;
use crate::cli::serve::{Credentials, KeysFile};
use crate::doctor;
use crate::service::PROBES;
use crate::signals::until_told_to_stop;
use crate::terminal::Terminal;

impl Probe {
    pub(super) fn listen_for_probes(self, address: IpAddr) -> anyhow::Result<ExitCode> {
        let terminal = Terminal::new();
        terminal.log(0);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(self.serve_probes(address, &terminal))
    }

    async fn serve_probes(self, address: IpAddr, terminal: &Terminal) -> anyhow::Result<ExitCode> {
        let Credentials { identity, keys, told, .. } =
            Credentials::load(self.host_key.as_deref(), self.authorized_keys.as_deref())?;
        let listen = SocketAddr::new(address, self.port.unwrap_or(DEFAULT_PORT));
        let options = ServerOptions { listen, identity, lanes: LaneSettings::default() };
        let over = Arc::new(Notify::new());
        let door = ProbeDoor {
            service: Service::for_clients(
                env!("CARGO_PKG_VERSION"),
                self.rate_max,
                doctor::for_clients,
                self.clients.unwrap_or(1) as usize,
            ),
            keys: Mutex::new(keys),
            over: Arc::clone(&over),
        };
        let server = Server::bind(options, door).with_context(|| format!("cannot listen on {listen}"))?;
        terminal.say(&format!("to be measured on {} (TCP and UDP)", server.address()));
        terminal.say(&told);
        tokio::select! {
            () = server.run() => bail!("it does not listen any more"),
            () = until_told_to_stop() => {}
            () = over.notified(), if self.one_off => {}
        }
        server.close().await;
        Ok(ExitCode::SUCCESS)
    }
}

/// Lets in whose key is authorized, to measure the path.
struct ProbeDoor {
    service: Arc<Service>,
    keys: Mutex<KeysFile>,
    over: Arc<Notify>,
}

impl Door for ProbeDoor {
    fn admit(&self, key: PublicKey, _from: SocketAddr, service: &str) -> Result<Arc<dyn Handler>, Refused> {
        let grant = {
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            keys.current().grant(&key).cloned().ok_or(Refused::UnknownKey)?
        };
        if grant.no_probe {
            return Err(Refused::Because(
                "your key may not measure the path or look at the host (no-probe)".to_owned(),
            ));
        }
        if service != PROBES {
            let why = "this server has no exports, it is there to be measured (`longhaul probe`)";
            return Err(Refused::Because(why.to_owned()));
        }
        Ok(self.service.station())
    }

    fn began(&self, session: &Session) {
        let (session, over) = (session.clone(), Arc::clone(&self.over));
        tokio::spawn(async move {
            session.ended().await;
            over.notify_one();
        });
    }
}
