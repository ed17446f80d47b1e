//! A file that describes hosts and links, in TOML.
//!
//! A link's settings are those of the command line by the same names, so the command line's own reader reads them.

use anyhow::{Context, bail};
use clap::{Args, Parser};
use longhaul_emulator::EngineChoice;
use longhaul_emulator::rules::{Prefix, Rule};
use longhaul_emulator::topology::{Host, RuleSpec, Topology, Wire};
use serde::Deserialize;
use toml::{Table, Value};

use super::emulate::{EngineArg, HostCommand, LinkSettings};
use crate::units;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    seed: Option<u64>,
    #[serde(rename = "host", default)]
    hosts: Vec<DescribedHost>,
    #[serde(rename = "link", default)]
    links: Vec<Table>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedHost {
    name: String,
    /// It passes on what is for others.
    #[serde(default)]
    router: bool,
    /// A shell command that it runs as long as the network is up.
    run: Option<String>,
}

/// A link's settings as words of a command line.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct LinkWords {
    #[command(flatten)]
    settings: LinkSettings,
    #[arg(long)]
    engine: Option<EngineArg>,
}

/// A rule's.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct RuleWords {
    #[command(flatten)]
    matching: Matching,
    #[command(flatten)]
    settings: LinkSettings,
}

/// Which packets a rule is for.
#[derive(Debug, Args)]
struct Matching {
    #[arg(long)]
    from: Option<Prefix>,
    #[arg(long)]
    to: Option<Prefix>,
    #[arg(long, value_parser = protocol)]
    protocol: Option<u8>,
    #[arg(long)]
    port: Option<u16>,
    #[arg(long)]
    from_port: Option<u16>,
    #[arg(long)]
    to_port: Option<u16>,
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..64))]
    dscp: Option<u8>,
}

fn protocol(text: &str) -> Result<u8, String> {
    match text {
        "icmp" => Ok(1),
        "tcp" => Ok(6),
        "udp" => Ok(17),
        "icmpv6" => Ok(58),
        _ => text.parse().map_err(|_| {
            format!("`{text}` is no protocol; write `tcp`, `udp`, `icmp`, `icmpv6` or a number")
        }),
    }
}

/// Reads a file: the topology, the hosts' commands, the seed. `engine`: where a link does not say.
pub(super) fn read(file: &str, engine: EngineChoice) -> anyhow::Result<(Topology, Vec<HostCommand>, u64)> {
    let text = units::read_file(file).map_err(anyhow::Error::msg)?;
    parse(&text, engine).with_context(|| format!("{file} describes no topology"))
}

fn parse(text: &str, engine: EngineChoice) -> anyhow::Result<(Topology, Vec<HostCommand>, u64)> {
    let Described { seed, hosts, links } = toml::from_str(text)?;
    let commands = hosts
        .iter()
        .filter_map(|host| Some(HostCommand { host: host.name.clone(), command: host.run.clone()?.into() }));
    let commands = commands.collect();
    let hosts = hosts.into_iter().map(|host| Host { name: host.name, forwards: host.router }).collect();
    let links = links.into_iter().map(|link| wire(link, engine)).collect::<anyhow::Result<_>>()?;
    Ok((Topology { hosts, links }, commands, seed.unwrap_or(1)))
}

fn wire(mut table: Table, engine: EngineChoice) -> anyhow::Result<Wire> {
    let name = take_name(&mut table, "link")?;
    let Some(Value::Array(ends)) = table.remove("between") else {
        bail!("link {name}: it needs `between = [\"HOST\", \"HOST\"]`");
    };
    let [Value::String(first), Value::String(second)] = &ends[..] else {
        bail!("link {name}: `between` must name two hosts");
    };
    let between = [first.clone(), second.clone()];
    let rules = match table.remove("rule") {
        None => Vec::new(),
        Some(Value::Array(rules)) => rules,
        Some(_) => bail!("link {name}: write each rule as `[[link.rule]]`"),
    };
    let rules = rules.into_iter().map(|rule| match rule {
        Value::Table(table) => rule_spec(table).with_context(|| format!("link {name}")),
        _ => bail!("link {name}: write each rule as `[[link.rule]]`"),
    });
    let rules = rules.collect::<anyhow::Result<_>>()?;
    let LinkWords { settings, engine: said } = read_words(&table).with_context(|| format!("link {name}"))?;
    Ok(Wire { name, between, spec: settings.spec(), rules, engine: said.map_or(engine, Into::into) })
}

fn rule_spec(mut table: Table) -> anyhow::Result<RuleSpec> {
    let name = take_name(&mut table, "rule")?;
    let RuleWords { matching, settings } = read_words(&table).with_context(|| format!("rule {name}"))?;
    let Matching { from, to, protocol, port, from_port, to_port, dscp } = matching;
    Ok(RuleSpec {
        name,
        rule: Rule { from, to, protocol, port, from_port, to_port, dscp },
        spec: settings.spec(),
    })
}

fn take_name(table: &mut Table, what: &str) -> anyhow::Result<String> {
    match table.remove("name") {
        Some(Value::String(name)) => Ok(name),
        _ => bail!("a {what} has no `name = \"...\"`"),
    }
}

/// Has the command line's reader read `key = value` as `--key value`.
fn read_words<T: Parser>(table: &Table) -> anyhow::Result<T> {
    let mut words = Vec::new();
    for (key, value) in table {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            _ => bail!("`{key}` must be a text or a whole number"),
        };
        // In one word, so that a value may begin with a dash.
        words.push(format!("--{key}={value}"));
    }
    T::try_parse_from(words).map_err(|error| {
        // Its first paragraph; the usage of a command line helps nobody here.
        let told = error.to_string();
        let first = told.split("\n\n").next().unwrap_or_default();
        anyhow::Error::msg(first.trim_start_matches("error: ").replace("--", "").replace('\n', " "))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SITE: &str = r#"
        seed = 7

        [[host]]
        name = "alice"

        [[host]]
        name = "edge"
        router = true

        [[host]]
        name = "bob"
        run = "iperf3 -s"

        [[link]]
        name = "lan"
        between = ["alice", "edge"]
        rate = "10Gbit"

        [[link]]
        name = "wan"
        between = ["edge", "bob"]
        rtt = "100ms"
        rate = "1Gbit,100Mbit"
        engine = "held"

        [[link.rule]]
        name = "voice"
        protocol = "udp"
        port = 5060
        dscp = 46
        loss = "1%"
    "#;

    #[test]
    fn a_site_as_people_write_it() {
        let (topology, commands, seed) = parse(SITE, EngineChoice::Split).unwrap();
        topology.check().unwrap();
        assert_eq!((seed, topology.hosts.len(), topology.links.len()), (7, 3, 2));
        assert!(topology.hosts[1].forwards && !topology.hosts[0].forwards);
        assert_eq!((&*commands[0].host, commands[0].command.to_str()), ("bob", Some("iperf3 -s")));
        let [lan, wan] = &topology.links[..] else { panic!() };
        assert_eq!((lan.engine, wan.engine), (EngineChoice::Split, EngineChoice::Held));
        let pair = wan.resolve().unwrap();
        assert_eq!((pair.forward.rate_bps, pair.backward.rate_bps), (Some(1_000_000_000), Some(100_000_000)));
        let voice = &pair.rules[0];
        assert_eq!((voice.rule.protocol, voice.rule.port, voice.rule.dscp), (Some(17), Some(5060), Some(46)));
        assert_eq!(
            (voice.forward.delay, voice.forward.loss.is_possible()),
            (Duration::from_millis(50), true)
        );
    }

    proptest::proptest! {
        #[test]
        fn no_file_panics(at in 0usize..SITE.len(), len in 0usize..40, put in "\\PC{0,8}") {
            // The site, with a part of it replaced.
            let mut text = SITE.to_owned();
            text.replace_range(at..(at + len).min(SITE.len()), &put);
            let _ = parse(&text, EngineChoice::Auto).map(|(topology, ..)| topology.check());
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, what) in [
            ("[[host]]\nname = 5", "invalid type"),
            ("[[host]]\nnom = \"a\"", "unknown field `nom`"),
            ("[[link]]\nname = \"l\"", "link l: it needs `between"),
            ("[[link]]\nname = \"l\"\nbetween = [\"a\"]", "must name two hosts"),
            ("[[link]]\nbetween = [\"a\", \"b\"]", "no `name"),
            ("[[link]]\nname = \"l\"\nbetween = [\"a\", \"b\"]\nrat = \"1G\"", "unexpected argument 'rat'"),
            ("[[link]]\nname = \"l\"\nbetween = [\"a\", \"b\"]\nrate = \"fast\"", "invalid value 'fast'"),
            ("[[link]]\nname = \"l\"\nbetween = [\"a\", \"b\"]\nrate = 1.5", "must be a text"),
            (
                "[[link]]\nname = \"l\"\nbetween = [\"a\", \"b\"]\n[[link.rule]]\nname = \"r\"\nprotocol = \"tpc\"",
                "`tpc` is no protocol",
            ),
            ("hello", "TOML"),
        ] {
            let told = format!("{:#}", parse(text, EngineChoice::Auto).unwrap_err());
            assert!(told.contains(what), "{text:?}: {told}");
        }
    }
}
