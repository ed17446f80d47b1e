//! Which packets travel by which link: rules by address prefix, protocol, port and DSCP, the first that fits decides.
//!
//! NIST Net's table, with a search that does not grow with it: rules that name the same fields, with prefixes of the same
//! lengths, share a hash table (tuple space search: Srinivasan, Suri, Varghese, "Packet classification using tuple space
//! search", SIGCOMM 1999), and what was found is remembered for each flow, so that its next packets ask one table.

use std::collections::HashMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::limits::FLOWS_MAX;
use crate::packet::{FlowKey, Train};

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

/// Text that names no prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address or prefix; write `10.77.0.2`, `10.77.0.0/24` or `fd77::/64`")]
pub struct NotAPrefix(String);

impl std::str::FromStr for Prefix {
    type Err = NotAPrefix;
    fn from_str(text: &str) -> Result<Self, NotAPrefix> {
        let bad = || NotAPrefix(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| bad())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most {
            return Err(bad());
        }
        Ok(Self { address: masked(address, bits), bits })
    }
}

impl TryFrom<String> for Prefix {
    type Error = NotAPrefix;
    fn try_from(text: String) -> Result<Self, NotAPrefix> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> String {
        prefix.to_string()
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// The first bits of an address, the others 0.
fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::from((v4.to_bits() & mask).to_be_bytes())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::from((v6.to_bits() & mask).to_be_bytes())
        }
    }
}

/// What a packet must have; what is not named does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// Its source.
    pub from: Option<Prefix>,
    /// Its destination.
    pub to: Option<Prefix>,
    /// IP's number of its protocol: 6 TCP, 17 UDP, 1 ICMP, 58 ICMPv6.
    pub protocol: Option<u8>,
    /// Port of its source or its destination.
    pub port: Option<u16>,
    /// Port of its source.
    pub from_port: Option<u16>,
    /// Port of its destination.
    pub to_port: Option<u16>,
    /// Differentiated services code point (RFC 2474), 0 to 63.
    pub dscp: Option<u8>,
}

/// Which fields a rule names; of addresses the version and how many bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    from: Option<(bool, u8)>,
    to: Option<(bool, u8)>,
    protocol: bool,
    from_port: bool,
    to_port: bool,
    dscp: bool,
}

/// The values of these fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Key {
    from: Option<IpAddr>,
    to: Option<IpAddr>,
    protocol: Option<u8>,
    from_port: Option<u16>,
    to_port: Option<u16>,
    dscp: Option<u8>,
}

impl Shape {
    /// What a packet has in these fields; none: it has not all of them.
    fn key(&self, flow: &FlowKey, dscp: u8) -> Option<Key> {
        let address = |wanted: Option<(bool, u8)>, address: Option<IpAddr>| match wanted {
            None => Some(None),
            Some((is_v4, bits)) => {
                address.filter(|address| address.is_ipv4() == is_v4).map(|a| Some(masked(a, bits)))
            }
        };
        let (from, to) = flow.addresses().unzip();
        let (from_port, to_port) = flow.ports();
        Some(Key {
            from: address(self.from, from)?,
            to: address(self.to, to)?,
            protocol: self.protocol.then_some(flow.protocol()),
            from_port: self.from_port.then_some(from_port),
            to_port: self.to_port.then_some(to_port),
            dscp: self.dscp.then_some(dscp),
        })
    }
}

/// Rules of one shape.
#[derive(Debug)]
struct Table {
    shape: Shape,
    /// The first of them.
    first: usize,
    rules: HashMap<Key, usize>,
}

/// A list of rules, ready to be asked.
#[derive(Debug, Default)]
pub struct Classifier {
    /// In the order of their first rules.
    tables: Vec<Table>,
    known: HashMap<(FlowKey, u8), Option<usize>>,
}

impl Classifier {
    /// From rules in the order in which they are tried.
    #[must_use]
    pub fn new(rules: &[Rule]) -> Self {
        let mut tables: Vec<Table> = Vec::new();
        let mut of_shape: HashMap<Shape, usize> = HashMap::new();
        for (number, rule) in rules.iter().enumerate() {
            for (shape, key) in keys(rule) {
                let at = *of_shape.entry(shape).or_insert_with(|| {
                    tables.push(Table { shape, first: number, rules: HashMap::new() });
                    tables.len() - 1
                });
                // Of two that want the same the first decides.
                tables[at].rules.entry(key).or_insert(number);
            }
        }
        Self { tables, known: HashMap::new() }
    }

    /// The number of the first rule that a packet fits.
    ///
    /// Cost: one look-up where a packet of its flow has been seen; otherwise one for each shape among the rules at most.
    pub fn classify(&mut self, train: &Train) -> Option<usize> {
        if self.tables.is_empty() {
            return None;
        }
        let dscp = train.traffic_class >> 2;
        if let Some(known) = self.known.get(&(train.flow, dscp)) {
            return *known;
        }
        let found = self.search(&train.flow, dscp);
        if self.known.len() >= FLOWS_MAX {
            self.known.clear();
        }
        self.known.insert((train.flow, dscp), found);
        found
    }

    fn search(&self, flow: &FlowKey, dscp: u8) -> Option<usize> {
        let mut found: Option<usize> = None;
        for table in &self.tables {
            if found.is_some_and(|found| found < table.first) {
                break;
            }
            let here = table.shape.key(flow, dscp).and_then(|key| table.rules.get(&key).copied());
            found = found.into_iter().chain(here).min();
        }
        found
    }
}

/// What a rule looks for; a port of either side is looked for on both.
fn keys(rule: &Rule) -> Vec<(Shape, Key)> {
    let one = |from_port: Option<u16>, to_port: Option<u16>| {
        let version = |prefix: Prefix| (prefix.address.is_ipv4(), prefix.bits);
        let shape = Shape {
            from: rule.from.map(version),
            to: rule.to.map(version),
            protocol: rule.protocol.is_some(),
            from_port: from_port.is_some(),
            to_port: to_port.is_some(),
            dscp: rule.dscp.is_some(),
        };
        let key = Key {
            from: rule.from.map(|prefix| prefix.address),
            to: rule.to.map(|prefix| prefix.address),
            protocol: rule.protocol,
            from_port,
            to_port,
            dscp: rule.dscp,
        };
        (shape, key)
    };
    // One side has the port, and what is wanted of the sides holds besides.
    let side = |wanted: Option<u16>, port: u16| wanted.is_none_or(|wanted| wanted == port);
    match rule.port {
        None => vec![one(rule.from_port, rule.to_port)],
        Some(port) => {
            let from = side(rule.from_port, port).then(|| one(Some(port), rule.to_port));
            let to = side(rule.to_port, port).then(|| one(rule.from_port, Some(port)));
            from.into_iter().chain(to).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The slow, obvious way.
    fn fits(rule: &Rule, flow: &FlowKey, dscp: u8) -> bool {
        let within = |prefix: Option<Prefix>, address: Option<IpAddr>| {
            prefix.is_none_or(|p| {
                address.is_some_and(|a| {
                    let bits = |a: IpAddr| match a {
                        IpAddr::V4(a) => a.octets().to_vec(),
                        IpAddr::V6(a) => a.octets().to_vec(),
                    };
                    let (a, b) = (bits(a), bits(p.address));
                    let bit = |bytes: &[u8], n: usize| bytes[n / 8] >> (7 - n % 8) & 1;
                    a.len() == b.len() && (0..usize::from(p.bits)).all(|n| bit(&a, n) == bit(&b, n))
                })
            })
        };
        let (from, to) = flow.addresses().unzip();
        let (from_port, to_port) = flow.ports();
        within(rule.from, from)
            && within(rule.to, to)
            && rule.protocol.is_none_or(|p| p == flow.protocol())
            && rule.port.is_none_or(|p| p == from_port || p == to_port)
            && rule.from_port.is_none_or(|p| p == from_port)
            && rule.to_port.is_none_or(|p| p == to_port)
            && rule.dscp.is_none_or(|d| d == dscp)
    }

    fn train(flow: FlowKey, dscp: u8) -> Train {
        let traffic_class = dscp << 2;
        Train { flow, segments: 1, header_bytes: 0, segment_bytes: 9, last_bytes: 9, traffic_class }
    }

    #[test]
    fn prefixes_as_people_write_them() {
        let prefix = |text: &str| text.parse::<Prefix>();
        assert_eq!(prefix("10.77.3.9/16").unwrap().to_string(), "10.77.0.0/16");
        assert_eq!(prefix("10.77.0.2").unwrap().to_string(), "10.77.0.2/32");
        assert_eq!(prefix("0.0.0.0/0").unwrap(), prefix("9.9.9.9/0").unwrap());
        assert_eq!(prefix("fd77::5/64").unwrap().to_string(), "fd77::/64");
        for wrong in ["10.77.0/24", "10.77.0.0/33", "fd77::/129", "near", "", "1.2.3.4/"] {
            assert!(prefix(wrong).is_err(), "{wrong}");
        }
    }

    fn rules() -> impl Strategy<Value = Vec<Rule>> {
        let address = (0u8..4).prop_map(|last| IpAddr::from([10, 0, last / 2, last]));
        let prefix = (address, prop::sample::select(vec![0u8, 8, 23, 24, 32]))
            .prop_map(|(address, bits)| Prefix { address: masked(address, bits), bits });
        let port = 1u16..4;
        let rule = (
            prop::option::of(prefix.clone()),
            prop::option::of(prefix),
            prop::option::of(prop::sample::select(vec![6u8, 17])),
            prop::option::of(port.clone()),
            prop::option::of(port.clone()),
            prop::option::of(port),
            prop::option::of(0u8..2),
        );
        let rule = rule.prop_map(|(from, to, protocol, port, from_port, to_port, dscp)| Rule {
            from,
            to,
            protocol,
            port,
            from_port,
            to_port,
            dscp,
        });
        prop::collection::vec(rule, 0..40)
    }

    proptest! {
        #[test]
        fn the_first_rule_that_fits_is_found(
            rules in rules(),
            packets in prop::collection::vec((0u8..5, 0u8..5, 0usize..3, 1u16..4, 1u16..4, 0u8..2), 1..60),
        ) {
            let mut classifier = Classifier::new(&rules);
            for (from, to, protocol, from_port, to_port, dscp) in packets {
                let address = |last: u8| match last {
                    4 => "fd77::1".parse().unwrap(),
                    last => IpAddr::from([10, 0, last / 2, last]),
                };
                let flow = FlowKey::new(address(from), address(to), [6, 17, 1][protocol], (from_port, to_port));
                let expected = rules.iter().position(|rule| fits(rule, &flow, dscp));
                prop_assert_eq!(classifier.classify(&train(flow, dscp)), expected);
                // And from memory.
                prop_assert_eq!(classifier.classify(&train(flow, dscp)), expected);
            }
        }
    }
}
