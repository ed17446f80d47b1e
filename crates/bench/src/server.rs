//! What runs on `far` while a tool copies from it, with keys and settings of its own in a scratch directory.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::file::remove;
use crate::limited::{Limited, Words, check_interrupt, last_words};
use crate::link::{Host, Network, checked};
use crate::nfs;

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// `longhaul serve`
    Longhaul {
        /// Nobody writes.
        read_only: bool,
    },
    /// sshd, with sftp
    Sshd,
    /// nginx
    Nginx,
    /// xrootd
    Xrootd,
    /// glusterfsd
    Gluster,
    /// The kernel's nfsd
    Nfs,
}

/// A server that has all day to start: it reads a few small files.
const START_LIMIT: Duration = Duration::from_secs(15);

/// Keys and settings that let tools in at servers, in one directory.
#[derive(Debug)]
pub struct Access {
    directory: PathBuf,
    longhaul: PathBuf,
    user: String,
}

impl Access {
    /// In `directory`, which has what [`Access::prepare`] makes.
    pub fn at(directory: &Path, longhaul: &Path, user: &str) -> Self {
        let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        Self { directory, longhaul: longhaul.to_owned(), user: user.to_owned() }
    }

    /// Makes keys and settings in `directory`, anew.
    pub fn prepare(directory: &Path, longhaul: &Path) -> anyhow::Result<Self> {
        remove(directory)?;
        fs::DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        let user = String::from_utf8(checked(Command::new("id").arg("-un"))?.stdout)?.trim().to_owned();
        let access = Self::at(directory, longhaul, &user);
        if access.directory.to_string_lossy().contains(|c: char| c.is_whitespace() || c == ',' || c == ':') {
            bail!(
                "{}: ssh, rclone and nginx need a scratch directory without blanks, commas and colons in its name",
                access.directory.display()
            );
        }
        for key in [access.client_key(), access.host_key()] {
            checked(Command::new(longhaul).args(["key", "generate", "--file"]).arg(&key))?;
        }
        let public = |key: PathBuf| -> anyhow::Result<String> {
            let path = key.with_extension("pub");
            Ok(fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?
                .trim()
                .to_owned())
        };
        let (client, host) = (public(access.client_key())?, public(access.host_key())?);
        access.write("ssh_authorized_keys", &format!("{client}\n"))?;
        access.write("longhaul_authorized_keys", &format!("user=\"{user}\" {client}\n"))?;
        let host: Vec<&str> = host.split_whitespace().take(2).collect();
        let (port, host) = (Server::Sshd.port(), host.join(" "));
        access.write("ssh_known_hosts", &format!("[far]:{port} {host}\n[10.77.0.2]:{port} {host}\n"))?;
        access.write("ssh_config", &access.ssh_client_settings())?;
        access.write("sshd_config", &access.sshd_settings()?)?;
        Ok(access)
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Where they are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The program under test.
    pub fn longhaul(&self) -> &Path {
        &self.longhaul
    }

    /// The user that runs all of it.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The key of all clients.
    pub fn client_key(&self) -> PathBuf {
        self.directory.join("client_ed25519")
    }

    fn host_key(&self) -> PathBuf {
        self.directory.join("host_ed25519")
    }

    /// Settings of ssh's clients.
    pub fn ssh_config(&self) -> PathBuf {
        self.directory.join("ssh_config")
    }

    /// The far host's key, as ssh keeps it.
    pub fn ssh_known_hosts(&self) -> PathBuf {
        self.directory.join("ssh_known_hosts")
    }

    /// What [`Server::Gluster`] writes for its clients.
    pub fn gluster_client(&self) -> PathBuf {
        self.directory.join("gluster-client.vol")
    }

    /// What GlusterFS says, at both ends.
    pub fn gluster_log(&self) -> PathBuf {
        self.directory.join("gluster.log")
    }

    /// The far host's key, as longhaul keeps it.
    pub fn longhaul_known_hosts(&self) -> PathBuf {
        self.directory.join("longhaul_known_hosts")
    }

    fn ssh_client_settings(&self) -> String {
        format!(
            "Host far\n  Port {}\n  User {}\n  IdentityFile {}\n  IdentitiesOnly yes\n  UserKnownHostsFile {}\n  \
             GlobalKnownHostsFile none\n  StrictHostKeyChecking yes\n  BatchMode yes\n",
            Server::Sshd.port(),
            self.user,
            self.client_key().display(),
            self.ssh_known_hosts().display()
        )
    }

    fn sshd_settings(&self) -> anyhow::Result<String> {
        const SFTP_SERVERS: [&str; 3] =
            ["/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server"];
        let sftp = SFTP_SERVERS.into_iter().find(|path| Path::new(path).exists()).unwrap_or("internal-sftp");
        // Shells there read nobody's start-up files: a run that is cut off in one may leave a lock that holds up the next.
        Ok(format!(
            "Port {}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
             PermitRootLogin prohibit-password\nPidFile none\nSetEnv HOME={}\nSubsystem sftp {sftp}\n",
            Server::Sshd.port(),
            self.host_key().display(),
            self.directory.join("ssh_authorized_keys").display(),
            self.directory.display()
        ))
    }
}

/// A server that is starting.
#[derive(Debug)]
pub struct Listener {
    /// Its name in errors.
    pub name: &'static str,
    /// Where it runs.
    pub host: Host,
    /// Of TCP.
    pub port: u16,
    /// Its complaints.
    pub log: PathBuf,
}

impl Listener {
    /// Waits until `server` listens.
    pub fn wait(&self, network: &Network, mut server: Limited) -> anyhow::Result<Limited> {
        let deadline = Instant::now() + START_LIMIT;
        while !(network.has_entered(self.host, server.id()) && listens(server.id(), self.port)) {
            check_interrupt()?;
            if server.has_ended()? {
                bail!("{} does not start: {}", self.name, last_words(&self.log));
            }
            if Instant::now() > deadline {
                bail!("{} does not listen after {START_LIMIT:?}: {}", self.name, last_words(&self.log));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }
}

/// A server that listens; it ends when this is dropped.
#[derive(Debug)]
pub struct Running {
    _last: Last,
    process: Limited,
}

impl Running {
    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

/// Ends what would go on without the server's process.
#[derive(Debug)]
struct Last(Option<Command>);

impl Drop for Last {
    fn drop(&mut self) {
        if let Some(command) = &mut self.0
            && let Err(error) = checked(command)
        {
            eprintln!("longhaul: a server goes on: {error:#}");
        }
    }
}

impl Server {
    /// The TCP port that it listens on.
    pub fn port(self) -> u16 {
        match self {
            Self::Longhaul { .. } => 7473,
            Self::Sshd => 2222,
            Self::Nginx => 8080,
            Self::Xrootd => 1094,
            Self::Gluster => 24007,
            Self::Nfs => 2049,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Longhaul { .. } => "longhaul serve",
            Self::Sshd => "sshd",
            Self::Nginx => "nginx",
            Self::Xrootd => "xrootd",
            Self::Gluster => "glusterfsd",
            Self::Nfs => "nfsd",
        }
    }

    /// Starts it on `far`, serving `directory`, and waits until it listens.
    pub fn start(self, network: &Network, access: &Access, directory: &Path) -> anyhow::Result<Running> {
        let words = self.command(access, directory)?;
        let log = access.directory.join(format!("{}.log", self.name().replace(' ', "-")));
        let process = Limited::start(&mut network.command(Host::Far, &words), Words::Kept(&log))?;
        let last = Last((self == Self::Nfs).then(|| network.command(Host::Far, &nfs::end())));
        let listener = Listener { name: self.name(), host: Host::Far, port: self.port(), log };
        Ok(Running { _last: last, process: listener.wait(network, process)? })
    }

    fn command(self, access: &Access, directory: &Path) -> anyhow::Result<Vec<OsString>> {
        let scratch = &access.directory;
        let served = directory.display();
        let is_root = rustix::process::geteuid().is_root();
        Ok(match self {
            Self::Longhaul { read_only } => vec![
                access.longhaul.clone().into(),
                "serve".into(),
                "--export".into(),
                format!("data={served}{}", if read_only { ":ro" } else { "" }).into(),
                "--listen".into(),
                format!("[::]:{}", self.port()).into(),
                "--authorized-keys".into(),
                scratch.join("longhaul_authorized_keys").into(),
                "--host-key".into(),
                access.host_key().into(),
            ],
            Self::Sshd => {
                if is_root {
                    // Made by the system's own start of sshd, which may never have happened here.
                    fs::create_dir_all("/run/sshd").context("sshd needs /run/sshd")?;
                }
                let program = program("sshd").context("sshd is not installed")?;
                vec![
                    program.into(),
                    "-D".into(),
                    "-e".into(),
                    "-f".into(),
                    scratch.join("sshd_config").into(),
                ]
            }
            Self::Nginx => {
                let own = scratch.join("nginx");
                fs::create_dir_all(&own)?;
                access.write("nginx.conf", &nginx_settings(&own, directory, &access.user, is_root))?;
                let program = program("nginx").context("nginx is not installed")?;
                let log = own.join("error.log");
                vec![
                    program.into(),
                    "-e".into(),
                    log.into(),
                    "-p".into(),
                    own.into(),
                    "-c".into(),
                    scratch.join("nginx.conf").into(),
                ]
            }
            Self::Xrootd => {
                let own = scratch.join("xrootd");
                remove(&own)?;
                fs::DirBuilder::new().recursive(true).create(&own)?;
                fs::set_permissions(&own, fs::Permissions::from_mode(0o777))?; // it runs as another user
                let settings = format!(
                    "all.export {served}\nxrd.port {}\nall.adminpath {own}\nall.pidpath {own}\n",
                    self.port(),
                    own = own.display()
                );
                access.write("xrootd.cfg", &settings)?;
                let mut words: Vec<OsString> = vec![
                    program("xrootd").context("xrootd is not installed")?.into(),
                    "-c".into(),
                    scratch.join("xrootd.cfg").into(),
                    "-l".into(),
                    own.join("log").into(),
                ];
                if is_root {
                    words.extend(["-R".into(), "nobody".into()]);
                }
                words
            }
            Self::Gluster => {
                access.write("gluster-server.vol", &gluster_server(directory, self.port()))?;
                access.write("gluster-client.vol", &gluster_client(self.port()))?;
                let program = program("glusterfsd").context("glusterfsd is not installed")?;
                let (settings, log) = (scratch.join("gluster-server.vol"), access.gluster_log());
                let words = [&program, Path::new("-N"), Path::new("-f"), &settings, Path::new("-l"), &log];
                words.into_iter().map(OsString::from).collect()
            }
            Self::Nfs => {
                access.write("nfs-server.sh", &nfs::server(directory))?;
                nfs::with_own_mounts(&["sh".into(), scratch.join("nfs-server.sh").into()])
            }
        })
    }
}

fn nginx_settings(own: &Path, directory: &Path, user: &str, is_root: bool) -> String {
    let own = own.display();
    let user = if is_root { format!("user {user};\n") } else { String::new() };
    format!(
        "daemon off;\n{user}worker_processes auto;\npid {own}/pid;\nevents {{}}\nhttp {{\n  access_log off;\n  \
         sendfile on;\n  client_body_temp_path {own}/body;\n  proxy_temp_path {own}/proxy;\n  \
         fastcgi_temp_path {own}/fastcgi;\n  uwsgi_temp_path {own}/uwsgi;\n  scgi_temp_path {own}/scgi;\n  \
         server {{\n    listen {};\n    root {};\n  }}\n}}\n",
        Server::Nginx.port(),
        directory.display()
    )
}

/// A brick, with the translators that GlusterFS' own volumes have around it.
fn gluster_server(directory: &Path, port: u16) -> String {
    let directory = directory.display();
    format!(
        "volume posix\n type storage/posix\n option directory {directory}\nend-volume\n\
         volume locks\n type features/locks\n subvolumes posix\nend-volume\n\
         volume io\n type performance/io-threads\n subvolumes locks\nend-volume\n\
         volume brick\n type protocol/server\n option transport-type tcp\n option transport.socket.listen-port {port}\n \
         option auth.addr.io.allow *\n subvolumes io\nend-volume\n"
    )
}

/// And the client's: what a new volume has by default.
fn gluster_client(port: u16) -> String {
    let mut text = format!(
        "volume far\n type protocol/client\n option transport-type tcp\n option remote-host far\n option remote-port {port}\n \
         option remote-subvolume io\nend-volume\n"
    );
    let mut below = "far";
    for name in ["write-behind", "open-behind", "quick-read", "md-cache"] {
        text.push_str(&format!("volume {name}\n type performance/{name}\n subvolumes {below}\nend-volume\n"));
        below = name;
    }
    text
}

/// Where a program is, daemons' directories included.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let daemons = ["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(daemons).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Whether a TCP socket listens on `port` in the network namespace of `pid`.
pub fn listens(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|table| {
        fs::read_to_string(format!("/proc/{pid}/net/{table}")).is_ok_and(|text| has_listener(&text, port))
    })
}

/// Looks for a listening socket in the text of `/proc/net/tcp`: local address is the second field, state the fourth.
fn has_listener(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let end = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&end)) && fields.nth(1) == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1D31 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0200004D:08AE 0100004D:9C40 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
";

    #[test]
    fn a_listener_is_not_a_connection() {
        assert!(has_listener(TABLE, 7473));
        assert!(!has_listener(TABLE, 2222), "connected, not listening");
        assert!(!has_listener(TABLE, 80) && !has_listener("", 80));
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(program("sh").is_some() && program("no-such-program-here").is_none());
    }
}
