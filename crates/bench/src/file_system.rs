//! What is mounted beside each other: longhaul and its rivals.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::ValueEnum;
use longhaul_report::LeftOut;

use crate::file::write;
use crate::server::{Access, Server};
use crate::tool::{Package, how_to_install, missing};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileSystem {
    /// longhaul's mount
    Longhaul,
    /// sshfs over ssh
    Sshfs,
    /// rclone's mount, over ssh
    Rclone,
    /// GlusterFS, one brick
    Gluster,
    /// The kernel's NFSv4.2, where it has that
    Nfs,
    /// The disk itself
    Local,
}

const LONGHAUL: Server = Server::Longhaul { read_only: false };

impl FileSystem {
    /// Those that go over a link.
    pub const OVER_A_LINK: [Self; 5] = [Self::Longhaul, Self::Sshfs, Self::Rclone, Self::Gluster, Self::Nfs];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Longhaul => longhaul_report::record::OURS,
            Self::Sshfs => "sshfs",
            Self::Rclone => "rclone mount",
            Self::Gluster => "GlusterFS",
            Self::Nfs => "NFSv4.2",
            Self::Local => longhaul_report::io::LOCAL,
        }
    }

    /// Debian's packages of it and of its server.
    pub fn packages(self) -> &'static [Package] {
        const SSHD: Package = Package { name: "openssh-server", program: "sshd" };
        match self {
            Self::Longhaul | Self::Local => &[],
            Self::Sshfs => &[Package { name: "sshfs", program: "sshfs" }, SSHD],
            Self::Rclone => &[Package { name: "rclone", program: "rclone" }, SSHD],
            Self::Gluster => &[
                Package { name: "glusterfs-server", program: "glusterfsd" },
                Package { name: "glusterfs-client", program: "glusterfs" },
            ],
            Self::Nfs => &[
                Package { name: "nfs-kernel-server", program: "rpc.nfsd" },
                Package { name: "nfs-common", program: "mount.nfs4" },
            ],
        }
    }

    /// What serves it, where it is served.
    pub fn server(self) -> Option<Server> {
        match self {
            Self::Longhaul => Some(LONGHAUL),
            Self::Sshfs | Self::Rclone => Some(Server::Sshd),
            Self::Gluster => Some(Server::Gluster),
            Self::Nfs => Some(Server::Nfs),
            Self::Local => None,
        }
    }

    /// What a reader of the record is told.
    pub fn is_encrypted(self) -> Option<bool> {
        match self {
            Self::Longhaul | Self::Sshfs | Self::Rclone => Some(true),
            Self::Gluster | Self::Nfs => Some(false),
            Self::Local => None,
        }
    }

    /// Mounts what is served at `at`, and returns when it is there.
    pub fn command(self, access: &Access, served: &Path, at: &Path) -> Vec<String> {
        let (served, at) = (served.display().to_string(), at.display().to_string());
        let own = |path: PathBuf| path.display().to_string();
        match self {
            Self::Longhaul => {
                let server = format!("longhaul://far:{}/data", LONGHAUL.port());
                let (identity, known) = (own(access.client_key()), own(access.longhaul_known_hosts()));
                let program = own(access.longhaul().to_owned());
                [&program, "mount", "--identity", &identity, "--known-hosts", &known, &server, &at]
                    .map(str::to_owned)
                    .to_vec()
            }
            Self::Sshfs => ["sshfs", "-F", &own(access.ssh_config()), &format!("far:{served}"), &at]
                .map(str::to_owned)
                .to_vec(),
            Self::Rclone => {
                let remote = format!(
                    ":sftp,host=far,port={},user={},key_file={},known_hosts_file={}:{served}",
                    Server::Sshd.port(),
                    access.user(),
                    own(access.client_key()),
                    own(access.ssh_known_hosts())
                );
                ["rclone", "mount", "--daemon", "--config=/dev/null", &remote, &at]
                    .map(str::to_owned)
                    .to_vec()
            }
            Self::Gluster => {
                let (volume, log) = (own(access.gluster_client()), own(access.gluster_log()));
                ["glusterfs", "-f", &volume, "-l", &log, &at].map(str::to_owned).to_vec()
            }
            Self::Nfs => ["mount", "-t", "nfs4", "-o", "vers=4.2", "far:/", &at].map(str::to_owned).to_vec(),
            Self::Local => ["mount", "--bind", &served, &at].map(str::to_owned).to_vec(),
        }
    }

    /// Words for a shell that mount it and say nothing but what goes wrong.
    pub fn script(self, access: &Access, served: &Path, at: &Path) -> anyhow::Result<String> {
        let name = at.file_name().unwrap_or_default().to_string_lossy();
        let script = access.directory().join(format!("mount-{name}.sh"));
        let words: Vec<String> = self.command(access, served, at).iter().map(|word| quoted(word)).collect();
        write(&script, &format!("{} >/dev/null 2>\"$0.log\" </dev/null\n", words.join(" ")))?;
        let script = quoted(&script.display().to_string());
        Ok(format!("{{ sh {script} || {{ cat {script}.log >&2; false; }}; }}"))
    }

    /// Why it cannot run with this host's kernel, whatever is installed.
    pub fn refusal(self) -> Option<LeftOut> {
        let Self::Nfs = self else { return None };
        let lacks = crate::nfs::missing()?;
        let reason = format!("this host's kernel has no `{lacks}` (/proc/filesystems)");
        Some(LeftOut { tool: self.name().to_owned(), reason })
    }

    /// What is missing on this machine for these, in words.
    pub fn check(systems: &[Self]) -> anyhow::Result<Vec<Package>> {
        if !rustix::process::geteuid().is_root() {
            bail!("mounting on other hosts of one's own takes root");
        }
        let packages: Vec<Package> = systems.iter().flat_map(|system| system.packages()).copied().collect();
        let missing = missing(&packages);
        if !missing.is_empty() {
            bail!("{}, or choose file systems with --system", how_to_install(&missing));
        }
        Ok(packages)
    }
}

/// As one word of a shell's.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_words() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
