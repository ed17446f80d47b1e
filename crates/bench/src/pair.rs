//! Two hosts with a bare pair of interfaces between them: nothing delays or shapes what passes, so that both ends are what
//! is measured. Needs root.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::file::remove;
use crate::link::{Host, checked};

/// The interface of each host.
pub const DEVICE: &str = "wire";

/// The hosts; they are removed when this is dropped.
#[derive(Debug)]
pub struct Pair {
    /// Namespaces that are there, by the names that `ip netns` knows.
    made: Vec<String>,
    /// `/etc/hosts`, as both shall see it.
    hosts: PathBuf,
}

const BOTH: [Host; 2] = [Host::Near, Host::Far];

impl Pair {
    /// Brings them up; `scratch` is where they find each other's names.
    pub fn up(scratch: &Path) -> anyhow::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("network namespaces joined by a veth pair need root");
        }
        let mut pair = Self { made: Vec::new(), hosts: scratch.join("hosts") };
        let mut names = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        for host in BOTH {
            names.push_str(&format!("\n{} {}\n", address(host), host.name()));
        }
        std::fs::write(&pair.hosts, names)
            .with_context(|| format!("cannot write {}", pair.hosts.display()))?;
        for host in BOTH {
            ip(&["netns", "add", &namespace(host)])?;
            pair.made.push(namespace(host));
        }
        ip(&link_words().iter().map(String::as_str).skip(1).collect::<Vec<_>>())?;
        for host in BOTH {
            let namespace = namespace(host);
            ip(&["-n", &namespace, "address", "add", &format!("{}/24", address(host)), "dev", DEVICE])?;
            ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
            ip(&["-n", &namespace, "link", "set", DEVICE, "up"])?;
        }
        Ok(pair)
    }

    /// The start of a command on a host: its words follow. Each step becomes the next by `exec`, so that the process that is
    /// started is the command in the end.
    pub fn command(&self, host: Host) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &namespace(host), "sh", "-c"])
            .arg("mount --bind \"$0\" /etc/hosts && exec \"$@\"")
            .arg(&self.hosts);
        command
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for namespace in &self.made {
            if let Err(error) = ip(&["netns", "delete", namespace]) {
                eprintln!("longhaul: a network namespace stays: {error:#}");
            }
        }
        if let Err(error) = remove(&self.hosts) {
            eprintln!("longhaul: {error:#}");
        }
    }
}

/// The command that joins them.
pub fn link_words() -> Vec<String> {
    let (near, far) = (namespace(Host::Near), namespace(Host::Far));
    ["ip", "link", "add", DEVICE, "netns", &near, "type", "veth", "peer", "name", DEVICE, "netns", &far]
        .map(str::to_owned)
        .to_vec()
}

fn namespace(host: Host) -> String {
    format!("bench-{}-{}", std::process::id(), host.name())
}

/// As the emulator's hosts have them.
fn address(host: Host) -> &'static str {
    match host {
        Host::Near => "10.77.0.1",
        Host::Far => "10.77.0.2",
    }
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
    checked(Command::new("ip").args(words)).map(drop).with_context(|| format!("ip {}", words.join(" ")))
}
