//! Which hosts there are, and which links between them: what a file describes, and what follows from it.
//!
//! Pure. Link `k` is the network 10.77.k.0/24 (fd77:0:0:k::/64), its first end .1, its second .2; the hosts see nothing else,
//! so the numbers clash with nobody. Each host knows the way to every link by the fewest hops over hosts that
//! forward (routers).

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::limits::{HOSTS_MAX, LINKS_MAX, RULES_MAX};
use crate::link::{LinkPair, RuledLink};
use crate::rules::Rule;
use crate::spec::{LinkSpec, SpecError};

/// How packets travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// Held in the kernel where the link is fast and loses nothing on the wire, and the kernel can; else split.
    #[default]
    Auto,
    /// Read from and written to TUN devices, cut where single segments are hit.
    Split,
    /// Held whole in the kernel.
    Held,
    /// By the kernel's own emulator; see [`netem`](crate::netem).
    Netem,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// By which the others know it.
    pub name: String,
    /// It passes packets on that are for others: a router.
    pub forwards: bool,
}

/// A link between two hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Wire {
    /// Its name, and that of its device on both hosts.
    pub name: String,
    /// The hosts' names; what goes from the first to the second goes forward.
    pub between: [String; 2],
    /// Its settings.
    pub spec: LinkSpec,
    /// Traffic with settings of its own.
    pub rules: Vec<RuleSpec>,
    /// How its packets travel.
    pub engine: EngineChoice,
}

/// Traffic that has a link of its own beside another one.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSpec {
    /// What it is called.
    pub name: String,
    /// Which packets.
    pub rule: Rule,
    /// Its settings; what they do not name is as the other link's.
    pub spec: LinkSpec,
}

impl Wire {
    /// The numbers.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn resolve(&self) -> Result<LinkPair, SpecError> {
        let rules = self.rules.iter().map(|rule| {
            let LinkPair { forward, backward, .. } = self.spec.merge(&rule.spec).resolve()?;
            Ok(RuledLink { name: rule.name.clone(), rule: rule.rule, forward, backward })
        });
        Ok(LinkPair { rules: rules.collect::<Result<_, SpecError>>()?, ..self.spec.resolve()? })
    }
}

/// Hosts and links.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// In the order in which they are made.
    pub hosts: Vec<Host>,
    /// In the order of their networks' numbers.
    pub links: Vec<Wire>,
}

/// Hosts and links that make no topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Names are used in `/etc/hosts` and for devices.
    #[error("`{0}` is no name of a host: use letters, digits, `-` and `_`, at most 63 of them")]
    HostName(String),
    /// The kernel's limit for devices.
    #[error("`{0}` is no name of a link: use letters, digits, `-` and `_`, at most 15 of them, and not `lo`")]
    LinkName(String),
    /// Two of the same name.
    #[error("there are two of the name `{0}`")]
    Twice(String),
    /// A link to nowhere.
    #[error("link `{link}` goes to `{host}`, which is no host")]
    NoHost {
        /// The link.
        link: String,
        /// What it names.
        host: String,
    },
    /// A host has no use of a link to itself.
    #[error("link `{0}` joins a host with itself")]
    Loop(String),
    /// Nothing to do.
    #[error("a topology needs at least two hosts and a link")]
    Small,
    /// More than there are numbers for.
    #[error("a topology of more than {HOSTS_MAX} hosts or {LINKS_MAX} links")]
    Large,
    /// Each has a link of its own.
    #[error("link `{0}` has more than {RULES_MAX} rules")]
    Rules(String),
    /// A link that cannot be.
    #[error("link `{link}`: {source}")]
    Link {
        /// The link.
        link: String,
        /// Why.
        source: SpecError,
    },
}

/// The link's name where there are just two hosts.
pub const ONLY_LINK: &str = "link0";

/// Where a host is on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Number of the link.
    pub link: usize,
    /// 0: its first end, 1: its second.
    pub side: usize,
}

impl End {
    /// Its IPv4 address, of 24 bits for the network.
    #[must_use]
    pub fn ipv4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.link as u8, self.side as u8 + 1)
    }

    /// Its IPv6 address, of 64 bits for the network.
    #[must_use]
    pub fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, self.link as u16, 0, 0, 0, self.side as u16 + 1)
    }

    /// The other end.
    #[must_use]
    pub fn other(self) -> Self {
        Self { side: 1 - self.side, ..self }
    }
}

/// How a host reaches a link that is not its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The link.
    pub to: usize,
    /// The end, of the next host on the way, that packets are sent to.
    pub via: End,
}

/// How a host reaches another one.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// The end, of the next host, that packets are sent to.
    first: End,
    /// The end at which they arrive.
    arrives: End,
    /// Hosts between.
    hops: usize,
}

impl Topology {
    /// Hosts `near` and `far`, and one link.
    #[must_use]
    pub fn two_hosts(spec: LinkSpec, engine: EngineChoice) -> Self {
        let names = ["near", "far"].map(str::to_owned);
        let hosts = names.clone().map(|name| Host { name, forwards: false }).to_vec();
        let link = Wire { name: ONLY_LINK.to_owned(), between: names, spec, rules: Vec::new(), engine };
        Self { hosts, links: vec![link] }
    }

    /// Whether it can be built.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn check(&self) -> Result<(), TopologyError> {
        if self.hosts.len() < 2 || self.links.is_empty() {
            return Err(TopologyError::Small);
        }
        if self.hosts.len() > HOSTS_MAX || self.links.len() > LINKS_MAX {
            return Err(TopologyError::Large);
        }
        let is_name = |name: &str, most: usize| {
            (1..=most).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        let mut hosts = HashSet::new();
        for Host { name, .. } in &self.hosts {
            if !is_name(name, 63) {
                return Err(TopologyError::HostName(name.clone()));
            }
            if !hosts.insert(name) {
                return Err(TopologyError::Twice(name.clone()));
            }
        }
        let mut links = HashSet::new();
        for link in &self.links {
            if !is_name(&link.name, 15) || link.name == "lo" {
                return Err(TopologyError::LinkName(link.name.clone()));
            }
            if !links.insert(&link.name) {
                return Err(TopologyError::Twice(link.name.clone()));
            }
            if let Some(host) = link.between.iter().find(|host| !hosts.contains(host)) {
                return Err(TopologyError::NoHost { link: link.name.clone(), host: host.clone() });
            }
            if link.between[0] == link.between[1] {
                return Err(TopologyError::Loop(link.name.clone()));
            }
            if link.rules.len() > RULES_MAX {
                return Err(TopologyError::Rules(link.name.clone()));
            }
            let mut rules = HashSet::new();
            if let Some(rule) = link.rules.iter().find(|rule| !rules.insert(&rule.name)) {
                return Err(TopologyError::Twice(rule.name.clone()));
            }
            link.resolve().map_err(|source| TopologyError::Link { link: link.name.clone(), source })?;
        }
        Ok(())
    }

    /// The number of a host.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }

    /// A host's ends of links.
    pub fn ends(&self, host: usize) -> impl Iterator<Item = End> + '_ {
        let name = &self.hosts[host].name;
        self.links.iter().enumerate().flat_map(move |(link, wire)| {
            (0..2).filter(|side| wire.between[*side] == *name).map(move |side| End { link, side })
        })
    }

    /// Whose end it is.
    fn owner(&self, end: End) -> Option<usize> {
        self.host(&self.links[end.link].between[end.side])
    }

    /// The way from a host to every other one that it can reach.
    fn ways(&self, from: usize) -> HashMap<usize, Way> {
        let mut found: HashMap<usize, Way> = HashMap::new();
        let mut open = VecDeque::from([(from, None, 0)]);
        while let Some((host, first, hops)) = open.pop_front() {
            if host != from && !self.hosts[host].forwards {
                continue;
            }
            for end in self.ends(host) {
                let arrives = end.other();
                let Some(next) = self.owner(arrives) else { continue };
                if next == from || found.contains_key(&next) {
                    continue;
                }
                let first = first.unwrap_or(arrives);
                found.insert(next, Way { first, arrives, hops });
                open.push_back((next, Some(first), hops + 1));
            }
        }
        found
    }

    /// How a host reaches the links that are not its own.
    #[must_use]
    pub fn routes(&self, host: usize) -> Vec<Route> {
        let ways = self.ways(host);
        let own: HashSet<usize> = self.ends(host).map(|end| end.link).collect();
        let others = (0..self.links.len()).filter(|link| !own.contains(link));
        let route = |to: usize| {
            let ends = [0, 1].map(|side| End { link: to, side });
            let over =
                ends.iter().filter_map(|end| Some((self.owner(*end)?, *ways.get(&self.owner(*end)?)?)));
            // Not over the link itself.
            let over = over.filter(|(_, way)| way.arrives.link != to);
            // Over a host that passes packets on to the other end, the nearest one.
            let best = over.min_by_key(|(host, way)| (!self.hosts[*host].forwards, way.hops));
            best.map(|(_, way)| Route { to, via: way.first })
        };
        others.filter_map(route).collect()
    }

    /// Names of all hosts as one of them should know them: each by the address that its packets reach first; and each
    /// end of a link as `host.link`.
    #[must_use]
    pub fn names(&self, host: usize) -> Vec<(String, IpAddr)> {
        let mut names = Vec::new();
        if let Some(own) = self.ends(host).next() {
            names.push((self.hosts[host].name.clone(), own.ipv4().into()));
        }
        let ways = self.ways(host);
        for (number, other) in self.hosts.iter().enumerate() {
            if let Some(way) = ways.get(&number) {
                names.push((other.name.clone(), way.arrives.ipv4().into()));
            }
        }
        for (link, wire) in self.links.iter().enumerate() {
            for side in [0, 1] {
                names.push((
                    format!("{}.{}", wire.between[side], wire.name),
                    End { link, side }.ipv4().into(),
                ));
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, forwards: bool) -> Host {
        Host { name: name.to_owned(), forwards }
    }

    fn wire(name: &str, a: &str, b: &str) -> Wire {
        let between = [a, b].map(str::to_owned);
        let (spec, engine) = (LinkSpec::default(), EngineChoice::Auto);
        Wire { name: name.to_owned(), between, spec, rules: Vec::new(), engine }
    }

    /// Two pairs of hosts that share a bottleneck, two of them joined by a second link besides.
    fn dumbbell() -> Topology {
        let hosts = vec![
            host("a", false),
            host("b", false),
            host("r", true),
            host("s", true),
            host("c", false),
            host("d", false),
        ];
        let links = vec![
            wire("a-r", "a", "r"),
            wire("b-r", "b", "r"),
            wire("wan", "r", "s"),
            wire("s-c", "s", "c"),
            wire("s-d", "s", "d"),
            wire("wan2", "r", "s"),
        ];
        Topology { hosts, links }
    }

    #[test]
    fn hosts_find_the_way_over_routers() {
        let topology = dumbbell();
        topology.check().unwrap();
        let a = topology.host("a").unwrap();
        // Everything over the router's end of the only link.
        let via = End { link: 0, side: 1 };
        let expected: Vec<Route> = (1..6).map(|to| Route { to, via }).collect();
        assert_eq!(topology.routes(a), expected);
        let r = topology.host("r").unwrap();
        let far = End { link: 2, side: 1 };
        assert_eq!(topology.routes(r), [Route { to: 3, via: far }, Route { to: 4, via: far }]);
        let names: HashMap<String, IpAddr> = topology.names(a).into_iter().collect();
        assert_eq!(names["a"], IpAddr::from([10, 77, 0, 1]));
        assert_eq!(names["d"], IpAddr::from([10, 77, 4, 2]));
        assert_eq!(names["s"], IpAddr::from([10, 77, 2, 2]));
        assert_eq!(names["s.wan2"], IpAddr::from([10, 77, 5, 2]));
        // From the other side the router is met at another address.
        let names: HashMap<String, IpAddr> =
            topology.names(topology.host("d").unwrap()).into_iter().collect();
        assert_eq!(names["s"], IpAddr::from([10, 77, 4, 1]));
    }

    #[test]
    fn a_host_with_two_links_is_reached_by_each() {
        let hosts = vec![host("client", false), host("r1", true), host("r2", true), host("core", true)];
        for turned in [false, true] {
            let end = |name: &str, router: &str| match turned {
                true => wire(name, router, "client"),
                false => wire(name, "client", router),
            };
            let links =
                vec![end("c1", "r1"), end("c2", "r2"), wire("w1", "r1", "core"), wire("w2", "r2", "core")];
            let topology = Topology { hosts: hosts.clone(), links };
            let routes = topology.routes(topology.host("core").unwrap());
            let expected = [(0, 2), (1, 3)].map(|(to, link)| Route { to, via: End { link, side: 0 } });
            assert_eq!(routes, expected);
        }
    }

    #[test]
    fn hosts_that_do_not_forward_are_no_way() {
        let mut topology = dumbbell();
        topology.hosts[2].forwards = false;
        let a = topology.host("a").unwrap();
        // The networks at the other ends of the first router can be named, but are of no use beyond it.
        let reached: Vec<usize> = topology.routes(a).iter().map(|route| route.to).collect();
        assert_eq!(reached, [1, 2, 5]);
        assert!(topology.names(a).iter().all(|(name, _)| name != "c"));
    }

    #[test]
    fn two_hosts_are_as_they_have_always_been() {
        let topology = Topology::two_hosts(LinkSpec::default(), EngineChoice::Auto);
        topology.check().unwrap();
        assert_eq!(
            topology.names(0)[..2],
            [
                ("near".to_owned(), IpAddr::from([10, 77, 0, 1])),
                ("far".to_owned(), IpAddr::from([10, 77, 0, 2])),
            ]
        );
        assert_eq!(topology.routes(0), []);
        assert_eq!(End { link: 0, side: 1 }.ipv6(), "fd77::2".parse::<Ipv6Addr>().unwrap());
    }

    #[test]
    fn what_is_no_topology_is_refused() {
        let refused = |change: &dyn Fn(&mut Topology)| {
            let mut topology = dumbbell();
            change(&mut topology);
            topology.check().unwrap_err()
        };
        assert_eq!(refused(&|t| t.hosts.truncate(1)), TopologyError::Small);
        assert_eq!(refused(&|t| t.hosts[1].name = "a".into()), TopologyError::Twice("a".into()));
        assert_eq!(refused(&|t| t.hosts[1].name = "b c".into()), TopologyError::HostName("b c".into()));
        assert_eq!(refused(&|t| t.links[1].name = "wan".into()), TopologyError::Twice("wan".into()));
        let long = "sixteen-letters-";
        assert_eq!(refused(&|t| t.links[1].name = long.into()), TopologyError::LinkName(long.into()));
        assert_eq!(refused(&|t| t.links[1].between[1] = "b".into()), TopologyError::Loop("b-r".into()));
        let nowhere = TopologyError::NoHost { link: "b-r".into(), host: "x".into() };
        assert_eq!(refused(&|t| t.links[1].between[1] = "x".into()), nowhere);
        let rate = TopologyError::Link { link: "b-r".into(), source: SpecError::ZeroRate };
        assert_eq!(refused(&|t| t.links[1].spec.rate_bps = [Some(0); 2]), rate);
        let rule = || RuleSpec { name: "x".into(), rule: Rule::default(), spec: LinkSpec::default() };
        assert_eq!(refused(&|t| t.links[1].rules = vec![rule(), rule()]), TopologyError::Twice("x".into()));
    }
}
