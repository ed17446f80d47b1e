//! `longhaul mount`: the files of a far host in the tree of this one.

mod background;

use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use longhaul_files::client::Reconnect;
use longhaul_files::limits::CACHE_BYTES;
use longhaul_files::{FilesClient, Remote, Statistics};
use longhaul_mount::{Mount, MountOptions};
use longhaul_transport::Session;

use super::cp::end_session;
use super::reach::Reach;
use crate::place::Place;
use crate::service::FILES;
use crate::signals::until_told_to_stop;
use crate::terminal::{Terminal, harmless};
use crate::trace::Trace;
use crate::units;

/// Mount the files of a far host: every access sees what is there now
///
/// SOURCE is `longhaul://HOST/EXPORT/PATH` (a running `longhaul serve`) or `[USER@]HOST:PATH` (longhaul is started there
/// over ssh). Returns when the files are there; `umount DIR`, or `fusermount3 -u DIR` without root, ends it. What goes wrong later is told on
/// standard error where that is a terminal or a file, else in the system's log.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  longhaul mount alice@far:/data /mnt/data
  longhaul mount longhaul://far/data ~/data -o ro

Options of -o, with commas between: ro, rw, allow_other, suid, nosuid, dev, nodev, exec, noexec,
power_save (let CPUs sleep while programs make many short calls, which then take longer).
Without root it takes fusermount3 (Debian's package fuse3).

Exit codes: 0 mounted (with -f: unmounted in order); 2 not mounted.")]
pub(crate) struct MountCommand {
    /// What to mount
    source: OsString,
    /// Where: a directory
    directory: PathBuf,
    /// Stay in the foreground; Ctrl-C unmounts
    #[arg(short, long)]
    foreground: bool,
    /// Options, as mount(8) has them
    #[arg(short = 'o', value_name = "OPTION,...", value_delimiter = ',')]
    options: Vec<String>,

    /// Most that is kept of files in memory, and read ahead [default: 512MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    cache_mem: Option<u64>,

    /// Let operations fail with EIO that the server has not answered after this time, instead of waiting for it; what was
    /// written then may be lost, and is told so by fsync and close
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    timeout: Option<Duration>,

    /// Write what the connection does to FILE as JSON lines, ten a second while it does something
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    #[command(flatten)]
    reach: Reach,

    /// Say more; twice: everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Say on standard output when the files are there: the parent waits for it
    #[arg(long, hide = true)]
    tell_ready: bool,
}

/// How often it is looked whether somebody has unmounted.
const TICK: Duration = Duration::from_millis(100);

/// How long a server that takes nothing of what was written is waited for at the end: longer than it may wait for others
/// when it has been started again.
const PATIENCE: Duration = Duration::from_secs(40);

/// How long files that are still open are waited for.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(2);

impl MountCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let options = self.mount_options()?;
        if !self.foreground {
            return background::start();
        }
        let terminal = Terminal::new();
        terminal.log(self.verbose);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let code = runtime.block_on(self.mount(&terminal, options, handle));
        runtime.shutdown_background();
        code
    }

    async fn mount(
        &self,
        terminal: &Terminal,
        options: MountOptions,
        runtime: tokio::runtime::Handle,
    ) -> anyhow::Result<ExitCode> {
        let place = Place::parse(&self.source).map_err(anyhow::Error::msg)?;
        let path = match &place {
            Place::Here(_) => bail!(
                "`{}` is on this host: a far place is written longhaul://HOST/EXPORT/PATH or HOST:PATH",
                self.source.display()
            ),
            Place::Server { path, .. } | Place::Ssh { path, .. } => path.clone(),
        };
        let mut trace = self.trace.as_deref().map(Trace::create).transpose()?;
        let far = self.reach.reach(&place).await?;
        let host = far.host.clone();
        let client = FilesClient::new(self.cache_bytes(), self.timeout);
        let (session, ssh) = self.reach.connect(far, FILES, client.clone()).await?;
        let again = Again { reach: self.reach.clone(), place, client: Arc::downgrade(&client) };
        let remote = Remote::attach(session, client, &path, again.if_possible()).await;
        let remote = remote.map_err(|error| anyhow::anyhow!("{host}: {}", harmless(&error.to_string())))?;
        let counted = remote.clone();
        let directory = self.directory.clone();
        let mounting = tokio::task::spawn_blocking(move || Mount::new(remote, &directory, &options, runtime));
        let mount = mounting.await??;
        if self.tell_ready {
            background::ready()?;
        } else {
            terminal.say(&format!("longhaul: mounted at {}", self.directory.display()));
        }
        let unmounted_by_others = async {
            while !mount.is_over() {
                tokio::time::sleep(TICK).await;
                if let Some(open) = &mut trace
                    && let Some(session) = counted.current()
                    && let Err(error) = open.mounted(&session, &counted.statistics())
                {
                    tracing::error!("the trace ends here: {error:#}");
                    trace = None;
                }
            }
        };
        let lost = tokio::select! {
            () = unmounted_by_others => None,
            () = until_told_to_stop() => None,
            end = counted.ended() => Some(end),
        };
        let Statistics { asked, known, behind, .. } = counted.statistics();
        tracing::info!(
            "the server was asked {asked} times, {known} answers were known, {behind} writes were told later"
        );
        // Out of the tree at once. Who still has files open does not hold up the end: they cannot use them any more.
        let unmounting = tokio::task::spawn_blocking(move || mount.unmount());
        let unmounted = tokio::time::timeout(UNMOUNT_LIMIT, unmounting).await;
        // What was written to files that were open until now.
        let lost_bytes = counted.settle(PATIENCE).await;
        if lost_bytes > 0 {
            tracing::error!("{lost_bytes} bytes that were written are not at the server: they are lost");
        }
        if let Ok(unmounted) = unmounted {
            unmounted?.context("cannot unmount")?;
        }
        match counted.stop() {
            Some(session) => end_session(session, ssh).await,
            None => drop(ssh),
        }
        match lost {
            None if lost_bytes > 0 => Ok(ExitCode::from(1)),
            None => Ok(ExitCode::SUCCESS),
            Some(end) => bail!("{host}: {end}; {} is unmounted, mount it again", self.directory.display()),
        }
    }

    fn cache_bytes(&self) -> usize {
        self.cache_mem.map_or(CACHE_BYTES, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    fn mount_options(&self) -> anyhow::Result<MountOptions> {
        let mut options =
            MountOptions { source: self.source.to_string_lossy().into_owned(), ..MountOptions::default() };
        for option in &self.options {
            match option.as_str() {
                "ro" => options.read_only = true,
                "rw" => options.read_only = false,
                "allow_other" => options.allow_other = true,
                "suid" => options.suid = true,
                "nosuid" => options.suid = false,
                "dev" => options.dev = true,
                "nodev" => options.dev = false,
                "exec" => options.noexec = false,
                "noexec" => options.noexec = true,
                "power_save" => options.power_save = true,
                // What mount(8) and fstab add for themselves.
                "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "_netdev" | "nofail" => {}
                option => {
                    bail!("there is no option `-o {}`; `longhaul mount --help` lists them", harmless(option))
                }
            }
        }
        Ok(options)
    }
}

/// Makes another session when one is over.
struct Again {
    reach: Reach,
    place: Place,
    client: Weak<FilesClient>,
}

impl Again {
    /// Not by ssh: the program there has ended, and ssh may ask for a password.
    fn if_possible(self) -> Option<Arc<dyn Reconnect>> {
        match self.place {
            Place::Server { .. } => Some(Arc::new(self)),
            Place::Here(_) | Place::Ssh { .. } => None,
        }
    }
}

impl Reconnect for Again {
    fn connect(&self) -> Pin<Box<dyn Future<Output = Result<Session, String>> + Send + '_>> {
        Box::pin(async {
            let client = self.client.upgrade().ok_or("nobody uses it any more")?;
            let words = |error: anyhow::Error| format!("{error:#}");
            let far = self.reach.reach(&self.place).await.map_err(words)?;
            let (session, _) = self.reach.connect(far, FILES, client).await.map_err(words)?;
            Ok(session)
        })
    }
}
