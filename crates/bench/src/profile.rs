//! Where the processors' time goes while a copy runs: the kernel's `perf` samples every processor, and what it saw is
//! counted by process and function.
//!
//! The samples are taken by a timer (`cpu-clock`), which virtual machines have too. Each stands for one period of
//! processor time, so that their number can be held against the CPU time that the kernel accounts to the process.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::file::{remove, write};
use crate::link::checked;
use crate::tool::Package;

/// What it needs.
pub const PACKAGES: [Package; 1] = [Package { program: "perf", name: "linux-perf" }];

/// Samples a second and processor; no divisor of the kernel's own ticks.
const FREQUENCY: u32 = 997;

/// Functions with a smaller share of a process are not in the table.
const SHOWN_SHARE: f64 = 0.01;

/// A recording under way.
#[derive(Debug)]
pub struct Recording {
    perf: Child,
    data: PathBuf,
}

/// What was seen: how often a function of an object (a program, a library, the kernel) ran in a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Profile {
    counts: BTreeMap<Place, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    process: String,
    object: String,
    function: String,
}

impl Recording {
    /// Begins; what is recorded is in `data` until the end.
    pub fn begin(data: PathBuf) -> anyhow::Result<Self> {
        let perf = Command::new("perf")
            .args(["record", "--quiet", "--all-cpus", "--event", "cpu-clock", "--freq"])
            .arg(FREQUENCY.to_string())
            .arg("--output")
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start perf")?;
        Ok(Self { perf, data })
    }

    /// Ends it. `names` are of processes by number; others bear the names of their threads.
    pub fn end(mut self, names: &[(u32, &str)]) -> anyhow::Result<Profile> {
        kill_process(Pid::from_child(&self.perf), Signal::INT).context("cannot end perf")?;
        self.perf.wait()?;
        let fields = ["script", "--fields", "comm,pid,ip,sym,dso", "--input"];
        let script = checked(Command::new("perf").args(fields).arg(&self.data))
            .context("perf has recorded nothing that it can read")?;
        let profile = Profile::parse(&String::from_utf8_lossy(&script.stdout), names);
        remove(&self.data)?;
        if profile.counts.is_empty() {
            bail!("perf has recorded nothing");
        }
        Ok(profile)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.perf.kill(); // it has ended, or is of no use any more
        let _ = self.perf.wait();
    }
}

impl Profile {
    /// From lines of `perf script`: `thread name  number  address function (object)`.
    fn parse(script: &str, names: &[(u32, &str)]) -> Self {
        let mut profile = Self::default();
        for line in script.lines() {
            if let Some(place) = Place::parse(line, names) {
                *profile.counts.entry(place).or_default() += 1;
            }
        }
        profile
    }

    /// Keeps tables of it and every count, in files with `.profile.md` and `.profile.tsv` after this name.
    pub fn keep(&self, name: &Path, tables: &[String]) -> anyhow::Result<()> {
        write(&name.with_added_extension("profile.md"), &tables.join("\n"))?;
        write(&name.with_added_extension("profile.tsv"), &self.lines())
    }

    /// Every count, as lines `samples TAB process TAB object TAB function`.
    pub fn lines(&self) -> String {
        let mut text = "samples\tprocess\tobject\tfunction\n".to_owned();
        for (place, count) in &self.counts {
            let Place { process, object, function } = place;
            let _ = writeln!(text, "{count}\t{process}\t{object}\t{function}"); // a String takes it
        }
        text
    }

    /// The processor time of each process; the one that takes most first, what takes little is left out.
    pub fn processes(&self) -> String {
        let mut processes: BTreeMap<&str, u64> = BTreeMap::new();
        for (place, count) in &self.counts {
            *processes.entry(&place.process).or_default() += count;
        }
        let all: u64 = processes.values().sum();
        let mut rows: Vec<_> =
            processes.into_iter().filter(|(_, count)| *count as f64 >= SHOWN_SHARE * all as f64).collect();
        rows.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let mut text = "| process or thread | s of processor time |\n| --- | ---: |\n".to_owned();
        for (process, count) in rows {
            let _ = writeln!(text, "| {process} | {:.2} |", count as f64 / f64::from(FREQUENCY)); // as above
        }
        text
    }

    /// The table of a process: its functions, those that take most first.
    pub fn table(&self, process: &str) -> String {
        let mut rows: Vec<_> = self.counts.iter().filter(|(place, _)| place.process == process).collect();
        rows.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let all: u64 = rows.iter().map(|(_, count)| **count).sum();
        let seconds = all as f64 / f64::from(FREQUENCY);
        let mut text = format!("{process}: {all} samples, {seconds:.2} s of processor time\n\n");
        text.push_str("| share | function | object |\n| ---: | --- | --- |\n");
        let share = |count: u64| count as f64 / all as f64;
        let mut rest = 1.0;
        for (place, count) in rows.into_iter().take_while(|(_, count)| share(**count) >= SHOWN_SHARE) {
            let share = share(*count);
            rest -= share;
            let Place { object, function, .. } = place;
            let _ = writeln!(text, "| {:.1} % | `{function}` | {object} |", 100.0 * share); // as above
        }
        let _ = writeln!(text, "| {:.1} % | all others | |", 100.0 * rest);
        text
    }
}

impl Place {
    /// None for a line that is no sample.
    fn parse(line: &str, names: &[(u32, &str)]) -> Option<Self> {
        let (line, object) = line.trim().strip_suffix(')')?.rsplit_once(" (")?;
        // Names of threads may have blanks, and functions too; the number and the address between them have none.
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = |word: &&str| word.len() > 8 && u64::from_str_radix(word, 16).is_ok();
        let at = (2..words.len()).find(|at| address(&words[*at]) && words[at - 1].parse::<u32>().is_ok())?;
        let number: u32 = words[at - 1].parse().ok()?;
        let process = match names.iter().find(|(named, _)| *named == number) {
            Some((_, name)) => (*name).to_owned(),
            None => words[..at - 1].join(" "),
        };
        let object = match object {
            "[kernel.kallsyms]" => "kernel".to_owned(),
            path => {
                Path::new(path).file_name().map_or(path.into(), |name| name.to_string_lossy().into_owned())
            }
        };
        Some(Self { process, object, function: words[at + 1..].join(" ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "
           mover    12  ffffffff81b6ff6d _copy_to_iter ([kernel.kallsyms])
           mover    12  ffffffff81b6ff6e _copy_to_iter ([kernel.kallsyms])
           mover    12      56098f5fa2f7 <crc_fast::Ops as crc_fast::ArchOps>::xor3 (/home/x/target/release/longhaul)
 tokio-rt-worker    13      7f508e1bcf02 [unknown] (/usr/lib/x86_64-linux-gnu/libc.so.6)
  Web Content 2     14  ffffffff82203249 _raw_spin_unlock ([kernel.kallsyms])
perf: nothing of the kind
";

    #[test]
    fn samples_are_counted_by_process_and_function() {
        let profile = Profile::parse(SCRIPT, &[(12, "near")]);
        assert_eq!(
            profile.lines(),
            "samples\tprocess\tobject\tfunction\n\
             1\tWeb Content 2\tkernel\t_raw_spin_unlock\n\
             2\tnear\tkernel\t_copy_to_iter\n\
             1\tnear\tlonghaul\t<crc_fast::Ops as crc_fast::ArchOps>::xor3\n\
             1\ttokio-rt-worker\tlibc.so.6\t[unknown]\n"
        );
    }

    #[test]
    fn processes_are_told_apart() {
        let busy = SCRIPT.lines().nth(1).unwrap();
        let script = format!("{SCRIPT}{}", format!("{busy}\n").repeat(997));
        let rows = Profile::parse(&script, &[(12, "near")]).processes();
        assert_eq!(rows.lines().skip(2).collect::<Vec<_>>(), ["| near | 1.00 |"], "{rows}");
    }

    #[test]
    fn the_table_has_what_takes_most_first() {
        let table = Profile::parse(SCRIPT, &[(12, "near")]).table("near");
        let rows: Vec<&str> = table.lines().skip(4).collect();
        assert!(rows[0].starts_with("| 66.7 % | `_copy_to_iter` | kernel |"), "{table}");
        assert!(rows[1].starts_with("| 33.3 % | `<crc_fast"), "{table}");
        assert_eq!(rows[2], "| 0.0 % | all others | |");
    }
}
