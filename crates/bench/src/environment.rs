//! The machine, the kernel's settings and the versions of everything, for the record.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use longhaul_report::{Environment, Program};

use crate::link::checked;
use crate::tool::Package;

/// Settings that decide what TCP does over a long link.
const SYSCTLS: [&str; 8] = [
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_available_congestion_control",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.default_qdisc",
    "net.ipv4.tcp_slow_start_after_idle",
];

/// Settings that decide what a wake-up takes, and a page that was free, by the names that the kernel's command line has for them.
const GUEST: [(&str, &str); 3] = [
    ("cpuidle.current_driver", "/sys/devices/system/cpu/cpuidle/current_driver"),
    ("haltpoll.guest_halt_poll_ns", "/sys/module/haltpoll/parameters/guest_halt_poll_ns"),
    ("page_reporting.page_reporting_order", "/sys/module/page_reporting/parameters/page_reporting_order"),
];

/// What there is to say of this machine, now. What cannot be found out is called unknown; of the program's
/// sources nothing is known here.
pub fn environment(longhaul: &Path, packages: &[Package]) -> Environment {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    Environment {
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        system: setting(&release, "PRETTY_NAME", '=').unwrap_or_else(unknown),
        kernel: words(Command::new("uname").args(["-r", "-v"])),
        cpu: setting(&cpuinfo, "model name", ':').unwrap_or_else(unknown),
        cores: std::thread::available_parallelism().map_or(0, |n| n.get() as u64),
        memory_bytes: memory("MemTotal").unwrap_or(0),
        sysctls: settings(),
        program: Program { version: words(Command::new(longhaul).arg("--version")), revision: String::new() },
        rivals: versions(packages),
        command: std::iter::once("longhaul".to_owned()).chain(std::env::args().skip(1)).collect(),
    }
}

/// A line of `/proc/meminfo`, in bytes.
fn memory(name: &str) -> Option<u64> {
    let kib = setting(&fs::read_to_string("/proc/meminfo").ok()?, name, ':')?;
    Some(kib.strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// The value of a line `name: value` or `name=value`.
fn setting(text: &str, name: &str, between: char) -> Option<String> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(between)?;
        (found.trim() == name).then(|| value.trim().trim_matches('"').to_owned())
    })
}

fn settings() -> BTreeMap<String, String> {
    let sysctls = SYSCTLS.map(|name| (name, format!("/proc/sys/{}", name.replace('.', "/"))));
    let all = sysctls.into_iter().chain(GUEST.map(|(name, file)| (name, file.to_owned())));
    all.filter_map(|(name, file)| {
        let text = fs::read_to_string(file).ok()?;
        Some((name.to_owned(), text.split_whitespace().collect::<Vec<_>>().join(" ")))
    })
    .collect()
}

/// What a short command prints.
fn words(command: &mut Command) -> String {
    let output = checked(command).map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    output.ok().filter(|text| !text.is_empty()).unwrap_or_else(unknown)
}

fn versions(packages: &[Package]) -> BTreeMap<String, String> {
    packages
        .iter()
        .map(|package| {
            let version = words(Command::new("dpkg-query").args(["-W", "-f", "${Version}", package.name]));
            (package.name.to_owned(), version)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_the_formats_of_the_system() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2:00\n";
        assert_eq!(setting(cpuinfo, "model name", ':').as_deref(), Some("Some CPU @ 2:00"));
        assert_eq!(
            setting("NAME=x\nPRETTY_NAME=\"Debian 12\"\n", "PRETTY_NAME", '=').as_deref(),
            Some("Debian 12")
        );
        assert_eq!(setting("", "NAME", '='), None);
    }

    #[test]
    fn this_machine_has_a_name_for_everything() {
        let found = environment(Path::new("/no/such/program"), &[]);
        assert!(found.cores > 0 && found.memory_bytes > 1 << 20, "{found:?}");
        assert!(found.sysctls.contains_key("net.ipv4.tcp_rmem"), "{found:?}");
        assert_eq!(found.program.version, "unknown");
        assert!(found.date.ends_with('Z'));
    }
}
