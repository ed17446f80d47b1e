//! Two hosts and the link between them, running.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Child, Command};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use crate::driver::{Driver, DriverGone, DriverHandle};
use crate::link::LinkPair;
use crate::namespace::{Namespace, NamespaceError};
use crate::report::Report;
use crate::tun::{Tun, TunError, bring_up_loopback};

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Host {
    /// The host of the one who measures.
    Near,
    /// The other one.
    Far,
}

impl Host {
    /// Its name, in `/etc/hosts` of both.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }

    /// Its IPv4 address; the hosts see nothing but each other, so the numbers clash with nobody.
    #[must_use]
    pub fn ipv4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number())
    }

    /// Its IPv6 address.
    #[must_use]
    pub fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(self.number()))
    }

    fn number(self) -> u8 {
        match self {
            Self::Near => 1,
            Self::Far => 2,
        }
    }
}

/// Names of both hosts, as they see each other.
#[must_use]
pub fn host_names() -> [(&'static str, IpAddr); 2] {
    [Host::Near, Host::Far].map(|host| (host.name(), IpAddr::V4(host.ipv4())))
}

/// Why a topology did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A host could not be made.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A host has no device.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// The driver could not start.
    #[error("cannot start the packet driver: {0}")]
    Driver(#[from] std::io::Error),
}

/// Hosts `near` and `far`; they and their link vanish when this is dropped and their processes have ended.
#[derive(Debug)]
pub struct TwoHosts {
    near: Namespace,
    far: Namespace,
    driver: DriverHandle,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl TwoHosts {
    /// Makes both hosts and starts the link. Needs the rights to make network namespaces
    /// ([`gain_rights`](crate::namespace::gain_rights)).
    ///
    /// # Errors
    /// [`StartError`]; nothing is left behind.
    pub fn start(link: LinkPair, seed: u64) -> Result<Self, StartError> {
        let (near, near_tun) = make_host(Host::Near)?;
        let (far, far_tun) = make_host(Host::Far)?;
        let (driver, handle) = Driver::new(near_tun, far_tun, link, seed)?;
        let thread = std::thread::Builder::new().name("link".into()).spawn(move || driver.run())?;
        Ok(Self { near, far, driver: handle, thread: Some(thread) })
    }

    /// The namespace of a host.
    #[must_use]
    pub fn namespace(&self, host: Host) -> &Namespace {
        match host {
            Host::Near => &self.near,
            Host::Far => &self.far,
        }
    }

    /// Starts a command on a host, where both hosts are known by name.
    ///
    /// # Errors
    /// [`NamespaceError`].
    pub fn spawn(&self, host: Host, command: &mut Command) -> Result<Child, NamespaceError> {
        self.namespace(host).spawn(command, &host_names())
    }

    /// Changes the link while it runs.
    ///
    /// # Errors
    /// [`DriverGone`].
    pub fn set(&self, link: LinkPair) -> Result<(), DriverGone> {
        self.driver.set(link)
    }

    /// What has happened so far.
    ///
    /// # Errors
    /// [`DriverGone`].
    pub fn report(&self) -> Result<Report, DriverGone> {
        self.driver.report()
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        self.driver.stop();
        if let Some(thread) = self.thread.take() {
            drop(thread.join()); // its result was in the reports
        }
    }
}

fn make_host(host: Host) -> Result<(Namespace, Tun), StartError> {
    let (namespace, tun) = Namespace::create(|| {
        // Without loopback a host is odd but usable: tests of loss on a bare kernel should not fail on it.
        drop(bring_up_loopback());
        Tun::create("link0", &[(IpAddr::V4(host.ipv4()), 24), (IpAddr::V6(host.ipv6()), 64)])
    })?;
    Ok((namespace, tun?))
}
