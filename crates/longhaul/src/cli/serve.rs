//! `longhaul serve`: a server of exports, or of one session started by ssh.

mod disks;

use std::io::{self, BufRead};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use clap::Args;
use longhaul_copy::Station;
use longhaul_files::dir::raise_open_file_limit;
use longhaul_files::rights::{UserRights, own_name};
use longhaul_files::server as files;
use longhaul_files::{Access, Dir, Exports, FilesServer, ForAll, RelPath};
use longhaul_probe::path::server as probes;
use longhaul_transport::identity::{AuthorizedKeys, Grant, Identity, PublicKey};
use longhaul_transport::session::{Door, LaneSettings, Refused, Server, ServerOptions};
use longhaul_transport::{DEFAULT_PORT, Handler, Session};
use tokio::sync::watch;

use super::print_out;
use crate::far::{Introduction, Invitation};
use crate::service::{COPIES, FILES, PROBES};
use crate::signals::until_told_to_stop;
use crate::terminal::{Terminal, harmless};
use crate::{config, doctor, units};

/// Serve directories to those whose keys are authorized
///
/// Listens on one port number, TCP and UDP. Everything is encrypted and both ends are authenticated. Run by root, it
/// acts in each session with the rights of the user that the key's `user=` option names.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  longhaul serve --export data=/srv/data
  longhaul serve --export home=$HOME --export pub=/srv/pub:ro --listen 0.0.0.0:7473

authorized_keys has a line for each key, as OpenSSH's, with options of its own before it:
  ssh-ed25519 AAAA... alice@example
  user=\"alice\",export=\"data\" ssh-ed25519 AAAA... alice@example
  export=\"pub\",ro,no-probe ssh-ed25519 AAAA... guest
A host that root mounts for all its users has a key for user root here, by which they are who they are there; its own root need not be root here,
nor numbers of users and groups the same (THERE:HERE, or THERE:HERE:COUNT; who has none is nobody):
  user=\"root\",root-squash,map-user=\"1000:2000:50\",map-group=\"100:100\" ssh-ed25519 AAAA... cluster
It is read anew when it changes; sessions under way go on.")]
pub(crate) struct Serve {
    /// A directory to serve, under a name; `:ro` for reading only. Clients reach it as longhaul://HOST/NAME/...
    #[arg(long = "export", value_name = "NAME=DIR[:ro]")]
    exports: Vec<String>,
    /// Address and port to listen on [default: [::]:7473]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Who may come in [default: ~/.config/longhaul/authorized_keys; root: /etc/longhaul/authorized_keys]
    #[arg(long, value_name = "FILE")]
    authorized_keys: Option<PathBuf>,
    /// The server's key, made when it is not there
    /// [default: ~/.config/longhaul/host_ed25519; root: /etc/longhaul/host_ed25519]
    #[arg(long, value_name = "FILE")]
    host_key: Option<PathBuf>,
    /// Most that is sent to one client, as `500Mbit` or `100MB/s`
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<u64>,
    /// Let nobody measure the path to here, nor disks (`longhaul probe`), nor look at this host (`longhaul doctor HOST`)
    #[arg(long)]
    no_probe: bool,
    /// Say more; twice: everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Serve one session with this user's own files, as `longhaul cp host:path` starts it over ssh
    #[arg(long, hide = true, conflicts_with_all = ["exports", "listen", "authorized_keys", "host_key"])]
    once: bool,
    #[arg(long, hide = true, requires = "once", default_value_t = 0)]
    listen_port: u16,
}

impl Serve {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let terminal = Terminal::new();
        terminal.log(self.verbose);
        raise_open_file_limit();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        if self.once { runtime.block_on(self.serve_once()) } else { runtime.block_on(self.serve(&terminal)) }
    }

    fn lane_settings(&self) -> LaneSettings {
        LaneSettings { rate_max: self.rate.map(|bits| bits / 8), ..LaneSettings::default() }
    }

    async fn serve(self, terminal: &Terminal) -> anyhow::Result<ExitCode> {
        let mut exports = Exports::default();
        for export in &self.exports {
            let (name, path, read_only) = parse_export(export)?;
            exports.add(name, Path::new(path), read_only)?;
        }
        if exports.is_empty() {
            bail!("there is nothing to serve; name a directory: `--export data=/srv/data`");
        }
        let Credentials { host_key, identity, keys, told } =
            Credentials::load(self.host_key.as_deref(), self.authorized_keys.as_deref())?;
        let listen = self.listen.unwrap_or(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), DEFAULT_PORT));
        let options = ServerOptions { listen, identity, lanes: self.lane_settings() };
        let names: Vec<String> = exports
            .iter()
            .map(|(name, e)| {
                format!(
                    "{}={}{}",
                    name.as_os_str().display(),
                    e.path.display(),
                    if e.read_only { ":ro" } else { "" }
                )
            })
            .collect();
        // Of this key, and this address: others may have servers of their own.
        let mut mounts = host_key.clone().into_os_string();
        mounts.push(format!(".mounts-{listen}"));
        let shared = files::Shared::new((listen.port() != 0).then_some(mounts.into()));
        let door = ExportsDoor {
            exports: Arc::new(exports),
            files: Arc::clone(&shared),
            keys: std::sync::Mutex::new(keys),
            probes: (!self.no_probe)
                .then(|| probes::Service::with_checkup(VERSION, self.rate, doctor::for_clients)),
        };
        let server = Server::bind(options, door).with_context(|| format!("cannot listen on {listen}"))?;
        terminal.say(&format!("serving {} on {} (TCP and UDP)", names.join(" "), server.address()));
        terminal.say(&told);
        tokio::select! {
            () = server.run() => {}
            () = until_told_to_stop() => {}
        }
        shared.stop();
        server.close().await;
        Ok(ExitCode::SUCCESS)
    }

    /// Serves the one who started this over ssh, until that session is over or ssh has gone.
    async fn serve_once(self) -> anyhow::Result<ExitCode> {
        let line = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            io::stdin().lock().read_line(&mut line).map(|_| line)
        });
        let line = line.await??;
        let introduction: Introduction =
            serde_json::from_str(&line).context("`serve --once` is started by `longhaul cp`, not by hand")?;
        let client = PublicKey::from_openssh(&introduction.key)?;
        let identity = Identity::ephemeral();
        let invitation = |port| Invitation {
            longhaul: env!("CARGO_PKG_VERSION").to_owned(),
            port,
            key: identity.public().to_openssh(),
        };
        let (over, mut is_over) = watch::channel(Once::Waiting);
        let listen = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), self.listen_port);
        let options = ServerOptions { listen, identity: identity.clone(), lanes: self.lane_settings() };
        let probes = probes::Service::with_checkup(VERSION, self.rate, doctor::for_clients);
        let door = OnceDoor { client, probes, files: files::Shared::new(None), over: over.clone() };
        let server = Server::bind(options, door).with_context(|| format!("cannot listen on {listen}"))?;
        let mut answer = serde_json::to_string(&invitation(server.address().port()))?;
        answer.push('\n');
        print_out(&answer)?;
        let ssh_gone = tokio::task::spawn_blocking(|| {
            let mut rest = String::new();
            while io::stdin().lock().read_line(&mut rest).is_ok_and(|read| read > 0) {
                rest.clear();
            }
        });
        tokio::select! {
            () = server.run() => {}
            () = until_told_to_stop() => {}
            _ = ssh_gone => {}
            _ = is_over.wait_for(|once| *once == Once::Over) => {}
            () = async {
                tokio::time::sleep(NOBODY_CAME_LIMIT).await;
                if *over.borrow() != Once::Waiting {
                    std::future::pending::<()>().await;
                }
            } => tracing::warn!("nobody has connected within {NOBODY_CAME_LIMIT:?}: is the port reachable?"),
        }
        server.close().await;
        // Threads that read standard input would keep the process.
        std::process::exit(0);
    }
}

/// How long a server that was started over ssh waits for its client.
const NOBODY_CAME_LIMIT: Duration = Duration::from_secs(60);

fn parse_export(text: &str) -> anyhow::Result<(&str, &str, bool)> {
    let (name, path) =
        text.split_once('=').with_context(|| format!("`{text}`: write NAME=DIR, as data=/srv/data"))?;
    Ok(match path.strip_suffix(":ro") {
        Some(path) => (name, path, true),
        None => (name, path, false),
    })
}

/// Of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `authorized_keys`, read anew when it has changed.
pub(super) struct KeysFile {
    path: PathBuf,
    modified: Option<SystemTime>,
    keys: AuthorizedKeys,
}

impl KeysFile {
    pub(super) fn load(path: PathBuf) -> anyhow::Result<Self> {
        if !path.exists() {
            tracing::warn!(
                "{} is not there: nobody can come in. `longhaul key show` prints a line for it",
                path.display()
            );
            return Ok(Self { path, modified: None, keys: AuthorizedKeys::default() });
        }
        let modified = std::fs::metadata(&path).and_then(|m| m.modified()).ok();
        let keys = AuthorizedKeys::load(&path)?;
        Ok(Self { path, modified, keys })
    }

    pub(super) fn current(&mut self) -> &AuthorizedKeys {
        let modified = std::fs::metadata(&self.path).and_then(|m| m.modified()).ok();
        if modified != self.modified {
            self.modified = modified;
            // A file that is wrong, or gone, lets nobody in.
            self.keys = AuthorizedKeys::load(&self.path).unwrap_or_else(|error| {
                tracing::error!("{error}: nobody can come in");
                AuthorizedKeys::default()
            });
        }
        &self.keys
    }
}

/// Who a server is, and who may come in.
pub(super) struct Credentials {
    /// Where its key is.
    pub(super) host_key: PathBuf,
    pub(super) identity: Identity,
    pub(super) keys: KeysFile,
    /// What is said of its key.
    pub(super) told: String,
}

impl Credentials {
    /// From these files, or those that servers have unless told otherwise.
    pub(super) fn load(host_key: Option<&Path>, authorized_keys: Option<&Path>) -> anyhow::Result<Self> {
        let directory = config::server_directory()?;
        let at = |file: Option<&Path>, name| file.map_or_else(|| directory.join(name), Path::to_owned);
        let host_key = at(host_key, "host_ed25519");
        let (identity, new) = config::key_at(&host_key)?;
        let keys = KeysFile::load(at(authorized_keys, "authorized_keys"))?;
        let told = format!(
            "host key {}{}",
            identity.public().fingerprint(),
            if new { ", made just now" } else { "" }
        );
        Ok(Self { host_key, identity, keys, told })
    }
}

/// Lets in who is authorized, to exports.
struct ExportsDoor {
    exports: Arc<Exports>,
    files: Arc<files::Shared>,
    keys: std::sync::Mutex<KeysFile>,
    probes: Option<Arc<probes::Service>>,
}

impl Door for ExportsDoor {
    fn admit(&self, key: PublicKey, from: SocketAddr, service: &str) -> Result<Arc<dyn Handler>, Refused> {
        let grant = {
            let mut keys = self.keys.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            keys.current().grant(&key).cloned().ok_or(Refused::UnknownKey)?
        };
        if service == PROBES {
            let refused = |why: &str| Refused::Because(why.to_owned());
            let probes = self.probes.as_ref();
            let probes = probes.ok_or_else(|| {
                refused("its operator lets nobody measure the path or look at the host (--no-probe)")
            })?;
            if grant.no_probe {
                return Err(refused("your key may not measure the path or look at the host (no-probe)"));
            }
            tracing::info!(%from, key = %key.fingerprint(), "session to measure the path");
            let (exports, files) = (Arc::clone(&self.exports), Arc::clone(&self.files));
            return Ok(probes.station_with(Arc::new(disks::OfKey { exports, grant, files })));
        }
        let rights = rights_of(&grant, service == FILES).map_err(Refused::Because)?;
        tracing::info!(%from, key = %key.fingerprint(), user = grant.user.as_deref().unwrap_or("-"), "session");
        handler(
            service,
            Arc::new(ExportAccess { exports: Arc::clone(&self.exports), grant, rights }),
            &self.files,
        )
    }
}

/// The server's end of a session about `service`.
fn handler(
    service: &str,
    access: Arc<dyn Access>,
    files: &Arc<files::Shared>,
) -> Result<Arc<dyn Handler>, Refused> {
    match service {
        COPIES => Ok(Station::server(Arc::new(Copying { access, _changing: files.others_change() }))),
        FILES => Ok(FilesServer::new(access, Arc::clone(files))),
        _ => Err(Refused::Because(format!(
            "this server does not know `{}`: it may be older",
            harmless(service)
        ))),
    }
}

/// What a copy may reach: whatever it does there, mounts notice.
struct Copying {
    access: Arc<dyn Access>,
    _changing: files::Changing,
}

impl Access for Copying {
    fn resolve(&self, path: &[u8], to_write: bool) -> Result<(Dir, RelPath), String> {
        self.access.resolve(path, to_write)
    }

    fn enter_thread(&self) {
        self.access.enter_thread();
    }
}

/// Whose rights a session gets; `None`: those of the user who runs the server. A client whose root is nobody here is so in whatever is no
/// mount; there, each of its users is told apart.
fn rights_of(grant: &Grant, is_mount: bool) -> Result<Option<UserRights>, String> {
    let is_root = rustix::process::geteuid().is_root();
    let user = if grant.root_squash && !is_mount { Some("nobody") } else { grant.user.as_deref() };
    match user {
        None if is_root => {
            Err("your key has no user= option, which a server that root runs needs".to_owned())
        }
        None => Ok(None),
        // Nothing to take on; where users make their own namespaces, root could not.
        Some(user) if own_name().as_deref() == Some(user) => Ok(None),
        Some(user) if is_root => match UserRights::of(user) {
            Ok(Some(rights)) => can_take_on(rights, user).map(Some),
            Ok(None) => Err(format!("your key's user `{user}` does not exist here")),
            Err(error) => Err(format!("your key's user `{user}` cannot be looked up: {error}")),
        },
        Some(user) => Err(format!("your key is for user `{user}`, whose rights this server cannot take on")),
    }
}

/// Tries it: a session whose threads cannot take on the rights must not begin.
fn can_take_on(rights: UserRights, user: &str) -> Result<UserRights, String> {
    let tried = std::thread::spawn(move || rights.take_on().map(|()| rights)).join();
    let tried = tried.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
    tried.map_err(|error| {
        format!("this server cannot take on the rights of your key's user `{user}`: {error}")
    })
}

struct ExportAccess {
    exports: Arc<Exports>,
    grant: Grant,
    rights: Option<UserRights>,
}

impl Access for ExportAccess {
    fn resolve(&self, path: &[u8], to_write: bool) -> Result<(Dir, RelPath), String> {
        self.exports.resolve(path, &self.grant, to_write).map_err(|error| error.to_string())
    }

    fn for_all(&self) -> ForAll {
        let Grant { root_squash, users, groups, .. } = &self.grant;
        ForAll { squashes_root: *root_squash, users: users.clone(), groups: groups.clone() }
    }

    fn enter_thread(&self) {
        if let Some(rights) = &self.rights
            && let Err(error) = rights.take_on()
        {
            // Going on would be with root's rights.
            tracing::error!(%error, "cannot take on a user's rights");
            std::process::abort();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Once {
    Waiting,
    Busy,
    Over,
}

/// Lets in the one client that has been announced over ssh, to all of this user's files.
struct OnceDoor {
    client: PublicKey,
    probes: Arc<probes::Service>,
    files: Arc<files::Shared>,
    over: watch::Sender<Once>,
}

impl Door for OnceDoor {
    fn admit(&self, key: PublicKey, _from: SocketAddr, service: &str) -> Result<Arc<dyn Handler>, Refused> {
        if key != self.client {
            return Err(Refused::UnknownKey);
        }
        if service == PROBES {
            return Ok(self.probes.station_with(Arc::new(disks::Own)));
        }
        handler(service, Arc::new(AllFiles), &self.files)
    }

    fn began(&self, session: &Session) {
        self.over.send_replace(Once::Busy);
        let (session, over) = (session.clone(), self.over.clone());
        tokio::spawn(async move {
            let end = session.ended().await;
            tracing::info!(%end, "session over");
            over.send_replace(Once::Over);
        });
    }
}

/// The files of the user who runs this, from the home directory on.
struct AllFiles;

impl Access for AllFiles {
    fn resolve(&self, path: &[u8], _to_write: bool) -> Result<(Dir, RelPath), String> {
        longhaul_copy::own_files(path)
    }
}
