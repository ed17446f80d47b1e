//! The tools that are measured: how each is installed, served and invoked, and what it does with links.
//!
//! Every tool copies in the same direction, from `far` to `near`, since some can only fetch. All run with the settings
//! that they come with, but for the number of streams of those that leave it to the user.

use std::ffi::OsString;
use std::path::Path;

use clap::ValueEnum;

use crate::data::{Data, Links};
use crate::server::{Access, Server};

/// A way to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tool {
    /// `longhaul cp` from `longhaul serve`
    Longhaul,
    /// scp over ssh
    Scp,
    /// rsync over ssh
    Rsync,
    /// rclone from its sftp backend, over ssh
    Rclone,
    /// aria2c -x16 -s16 from nginx
    Aria2c,
    /// xrdcp from xrootd, as it comes
    Xrdcp,
    /// xrdcp -S 15 (its most streams) from xrootd
    XrdcpS15,
}

/// One copy to make.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// What is copied.
    pub data: &'a Data,
    /// An empty directory; the copy shall be in it under the source's name.
    pub into: &'a Path,
    /// Keys and settings.
    pub access: &'a Access,
    /// longhaul only: write a trace there.
    pub trace: Option<&'a Path>,
    /// longhaul only: show progress.
    pub progress: bool,
}

/// A package, and a program that it brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Package {
    /// Debian's name of it.
    pub name: &'static str,
    /// The program.
    pub program: &'static str,
}

const SSH: Package = Package { name: "openssh-client", program: "ssh" };
const SSHD: Package = Package { name: "openssh-server", program: "sshd" };

impl Tool {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Longhaul, Self::Scp, Self::Rsync, Self::Rclone, Self::Aria2c, Self::Xrdcp, Self::XrdcpS15];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Longhaul => longhaul_report::record::OURS,
            Self::Scp => "scp",
            Self::Rsync => "rsync",
            Self::Rclone => "rclone",
            Self::Aria2c => "aria2c",
            Self::Xrdcp => "xrdcp",
            Self::XrdcpS15 => "xrdcp -S 15",
        }
    }

    /// Debian's packages of the tool and of its server.
    pub fn packages(self) -> &'static [Package] {
        match self {
            Self::Longhaul => &[],
            Self::Scp => &[SSH, SSHD],
            Self::Rsync => &[Package { name: "rsync", program: "rsync" }, SSH, SSHD],
            Self::Rclone => &[Package { name: "rclone", program: "rclone" }, SSHD],
            Self::Aria2c => &[
                Package { name: "aria2", program: "aria2c" },
                Package { name: "nginx-light", program: "nginx" },
            ],
            Self::Xrdcp | Self::XrdcpS15 => &[
                Package { name: "xrootd-client", program: "xrdcp" },
                Package { name: "xrootd-server", program: "xrootd" },
            ],
        }
    }

    /// What serves it.
    pub fn server(self) -> Server {
        match self {
            Self::Longhaul => Server::Longhaul { read_only: true },
            Self::Scp | Self::Rsync | Self::Rclone => Server::Sshd,
            Self::Aria2c => Server::Nginx,
            Self::Xrdcp | Self::XrdcpS15 => Server::Xrootd,
        }
    }

    /// Whether what it sends over the link is encrypted.
    pub fn is_encrypted(self) -> bool {
        !matches!(self, Self::Aria2c | Self::Xrdcp | Self::XrdcpS15)
    }

    /// Why it is not run on this data, if so.
    pub fn refusal(self, data: &Data) -> Option<&'static str> {
        match self {
            Self::Aria2c if data.is_tree() => {
                Some("fetches URLs one by one; HTTP has no way to name the files of a tree")
            }
            Self::Xrdcp | Self::XrdcpS15 if data.is_tree() => Some(
                "is made for single large files; its recursive mode is not what its users copy source trees with",
            ),
            _ => None,
        }
    }

    /// What becomes of symbolic links in a tree.
    pub fn links(self) -> Links {
        match self {
            Self::Scp => Links::Followed,
            Self::Rclone => Links::LeftOut,
            _ => Links::Kept,
        }
    }

    /// The command, to be run on `near`.
    pub fn command(self, job: &Job<'_>) -> Vec<OsString> {
        let (data, access) = (job.data, job.access);
        let source = data.source().to_string_lossy().into_owned();
        let name = data.file_name();
        let into = format!("{}/", job.into.display());
        let ssh_config = access.ssh_config().display().to_string();
        let recursive = |flag: &'static str| data.is_tree().then(|| flag.to_owned());
        let words: Vec<String> = match self {
            Self::Longhaul => [access.longhaul().display().to_string(), "cp".to_owned()]
                .into_iter()
                .chain(recursive("-r"))
                .chain((!job.progress).then(|| ["-q", "--json"].map(str::to_owned)).into_iter().flatten())
                .chain(["--identity".to_owned(), access.client_key().display().to_string()])
                .chain(["--known-hosts".to_owned(), access.longhaul_known_hosts().display().to_string()])
                .chain(job.trace.iter().flat_map(|file| ["--trace".to_owned(), file.display().to_string()]))
                .chain([format!("longhaul://far:{}/data/{name}", self.server().port()), into])
                .collect(),
            Self::Scp => ["scp", "-q", "-F", &ssh_config]
                .map(str::to_owned)
                .into_iter()
                .chain(recursive("-r"))
                .chain([format!("far:{source}"), into])
                .collect(),
            Self::Rsync => vec![
                "rsync".to_owned(),
                "-a".to_owned(),
                "-e".to_owned(),
                format!("ssh -F {ssh_config}"),
                format!("far:{source}"),
                into,
            ],
            Self::Rclone => vec![
                "rclone".to_owned(),
                "copy".to_owned(),
                "--config=/dev/null".to_owned(),
                format!(
                    ":sftp,host=far,port={},user={},key_file={},known_hosts_file={}:{source}",
                    Server::Sshd.port(),
                    access.user(),
                    access.client_key().display(),
                    access.ssh_known_hosts().display()
                ),
                // It copies what is in a directory, not the directory.
                if data.is_tree() { format!("{into}{name}") } else { into },
            ],
            Self::Aria2c => {
                ["aria2c", "-x16", "-s16", "--file-allocation=none", "--quiet", "-d", &into, "-o", &name]
                    .map(str::to_owned)
                    .into_iter()
                    .chain([format!("http://far:{}/{name}", Server::Nginx.port())])
                    .collect()
            }
            Self::Xrdcp | Self::XrdcpS15 => ["xrdcp", "--nopbar"]
                .map(str::to_owned)
                .into_iter()
                .chain(
                    (self == Self::XrdcpS15).then(|| ["-S", "15"].map(str::to_owned)).into_iter().flatten(),
                )
                .chain([format!("root://far:{}/{source}", Server::Xrootd.port()), into])
                .collect(),
        };
        words.into_iter().map(OsString::from).collect()
    }
}

/// All packages of `tools`, with repetitions.
pub fn packages(tools: &[Tool]) -> Vec<Package> {
    tools.iter().flat_map(|tool| tool.packages()).copied().collect()
}

/// Those of `packages` that are missing.
pub fn missing(packages: &[Package]) -> Vec<Package> {
    let mut missing: Vec<Package> = Vec::new();
    for package in packages {
        if !missing.contains(package) && crate::server::program(package.program).is_none() {
            missing.push(*package);
        }
    }
    missing
}

/// `rsync and ssh are missing; install them with ...`
pub fn how_to_install(missing: &[Package]) -> String {
    let programs: Vec<&str> = missing.iter().map(|package| package.program).collect();
    let packages: Vec<&str> = missing.iter().map(|package| package.name).collect();
    format!(
        "missing on this machine: {}; install with `apt-get install --no-install-recommends {}`",
        programs.join(", "),
        packages.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(tool: Tool, tree: bool) -> String {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("src/thing");
        if tree {
            std::fs::create_dir_all(&source).unwrap();
        } else {
            std::fs::create_dir_all(dir.path().join("src")).unwrap();
            std::fs::write(&source, "x").unwrap();
        }
        let data = Data::of("thing", "a thing", &source).unwrap();
        let access = Access::at(dir.path(), Path::new("/bin/longhaul"), "me");
        let job =
            Job { data: &data, into: Path::new("/near"), access: &access, trace: None, progress: false };
        let words: Vec<String> =
            tool.command(&job).iter().map(|word| word.to_string_lossy().into_owned()).collect();
        words.join(" ").replace(&dir.path().canonicalize().unwrap().display().to_string(), "TOP")
    }

    #[test]
    fn commands_are_what_a_user_would_type() {
        assert_eq!(words(Tool::Scp, true), "scp -q -F TOP/ssh_config -r far:TOP/src/thing /near/");
        assert_eq!(words(Tool::Scp, false), "scp -q -F TOP/ssh_config far:TOP/src/thing /near/");
        assert_eq!(words(Tool::Rsync, true), "rsync -a -e ssh -F TOP/ssh_config far:TOP/src/thing /near/");
        assert!(words(Tool::Rclone, true).ends_with(":TOP/src/thing /near/thing"));
        assert!(words(Tool::Rclone, false).ends_with(":TOP/src/thing /near/"));
        assert!(words(Tool::Aria2c, false).starts_with("aria2c -x16 -s16 "));
        assert!(words(Tool::Xrdcp, false).ends_with("root://far:1094/TOP/src/thing /near/"));
        assert!(words(Tool::XrdcpS15, false).starts_with("xrdcp --nopbar -S 15 root:"));
        assert!(words(Tool::Longhaul, true).ends_with("longhaul://far:7473/data/thing /near/"));
        assert!(words(Tool::Longhaul, true).starts_with("/bin/longhaul cp -r -q --json "));
    }

    #[test]
    fn trees_are_only_for_tools_that_know_them() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Data::of("tree", "", dir.path()).unwrap();
        let refusing: Vec<Tool> =
            Tool::ALL.into_iter().filter(|tool| tool.refusal(&tree).is_some()).collect();
        assert_eq!(refusing, [Tool::Aria2c, Tool::Xrdcp, Tool::XrdcpS15]);
    }

    #[test]
    fn what_is_missing_is_named_with_the_command_that_brings_it() {
        let text = how_to_install(&[SSHD, Package { name: "aria2", program: "aria2c" }]);
        assert!(text.contains("sshd, aria2c"), "{text}");
        assert!(text.contains("apt-get install --no-install-recommends openssh-server aria2"), "{text}");
        assert!(missing(&packages(&[Tool::Longhaul])).is_empty());
    }
}
